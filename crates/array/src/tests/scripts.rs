//! Scripts: writes of one key, one after the other, which the end of the server cuts short anywhere.

use super::bench::{Bench, DB, del, execute, get, keys, retrieve_op, wish_op};
use super::parts::{long, pin, read};
use crate::Array;
use crate::placement::{self, container};
use futures_util::future::{Either, select};
use plimsoll_kv::{Device, Error, Form, Op, Output, Result, Value};
use plimsoll_reactor::Reactor;
use std::pin::pin;
use std::rc::Rc;

/// What is done to the key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A value of so many bytes, which is made into what the policy says.
    Set(usize),
    /// The same, made into what its client wishes.
    Wish(usize, Form),
    Delete,
}

pub(super) type Script = [Step];

/// When what a store has left behind goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leavings {
    GoBetween,
    GoBeside,
    Wait,
}

pub(super) async fn settled(reactor: &Reactor) {
    reactor.sleep_ns(50_000_000).await;
}

/// Which roles hold a piece of a key.
pub(super) async fn roles_of(bench: &Bench, key: &str) -> Vec<usize> {
    let count = bench.below.len();
    let primary = placement::primary(key.as_bytes(), count);
    let mut roles = Vec::new();
    for role in 0..count {
        let asked = retrieve_op(container(DB, role), key);
        match execute(&bench.below[(primary + role) % count], asked).await {
            Ok(_) => roles.push(role),
            Err(error) => assert_eq!(error, Error::NotFound),
        }
    }
    roles
}

/// A value and what it is made into.
pub(super) type Kept = Option<(Vec<u8>, Form)>;

impl Step {
    fn makes(self, array: &Array, seed: u8) -> Kept {
        let (length, wish) = match self {
            Step::Set(length) => (length, None),
            Step::Wish(length, form) => (length, Some(form)),
            Step::Delete => return None,
        };
        Some((long(length, seed), array.form_for(wish, length as u64).unwrap()))
    }

    pub(super) async fn take(self, array: &Rc<Array>, seed: u8) -> Result<Output> {
        match self {
            Step::Set(length) => store(array, &long(length, seed), None).await,
            Step::Wish(length, form) => store(array, &long(length, seed), Some(form)).await,
            Step::Delete => del(array, "k").await,
        }
    }
}

/// Stores a value of the key, in parts if it is longer than one store takes.
async fn store(array: &Rc<Array>, value: &[u8], form: Option<Form>) -> Result<Output> {
    let (key, length) = (b"k".to_vec(), value.len() as u64);
    let value = if value.len() > array.value_bytes_max() {
        let begin = Op::UploadBegin { container: DB, key: key.clone(), length, shared_bytes: 0, form };
        let Output::Upload(upload) = execute(array, begin).await? else { panic!("begun") };
        for part in value.chunks(array.part_bytes()) {
            let op = Op::UploadPart { upload, key: key.clone(), bytes: part.to_vec() };
            execute(array, op).await?;
        }
        Value::Upload(upload)
    } else {
        Value::from(value.to_vec())
    };
    execute(array, wish_op("k", value, form)).await
}

/// Does what the script says until the server dies; what may be there then, and whether it died.
async fn play(
    array: &Rc<Array>,
    reactor: &Reactor,
    script: &Script,
    leavings: Leavings,
) -> (Vec<Kept>, bool) {
    let mut last = None;
    if leavings == Leavings::Wait {
        array.kept.waits();
    }
    for (number, step) in script.iter().enumerate() {
        let made = step.makes(array, number as u8);
        let change = pin!(step.take(array, number as u8));
        // What takes longer was not heard by a member.
        let done = match select(change, pin!(reactor.sleep_ns(20_000_000))).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Err(Error::ShuttingDown),
        };
        match done {
            Ok(_) | Err(Error::NotFound) => last = made,
            Err(_) => return (vec![last, made], true),
        }
        if leavings == Leavings::GoBetween {
            settled(reactor).await;
        }
    }
    (vec![last], false)
}

pub(super) async fn held(array: &Rc<Array>) -> Option<Vec<u8>> {
    match get(array, "k").await {
        Ok(item) if item.upload.is_some() => {
            let item = pin(array, "k").await;
            let value = read(array, "k", &item).await;
            execute(array, Op::Unpin { upload: item.upload.unwrap(), key: b"k".to_vec() }).await.unwrap();
            Some(value)
        }
        Ok(item) => Some(item.bytes),
        Err(Error::NotFound) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The server dies as it is told: what was acknowledged is there, also when a member is lost that may be, and
/// nothing else is, nor any piece of it. False if it did not die.
pub(super) async fn crash(
    bench: Bench,
    (script, leavings): (&Script, Leavings),
    dies: impl Fn(&Bench),
) -> bool {
    let reactor = bench.reactor.clone();
    let array = bench.open().await;
    dies(&bench);
    let (expected, died) = play(&array, &reactor, script, leavings).await;
    let array = bench.open().await;
    let given = held(&array).await;
    let is_given = |kept: &&Kept| kept.as_ref().map(|(value, _)| value) == given.as_ref();
    let context = format!("{}, {script:?}, {leavings:?}", bench.options.policy);
    let Some(kept) = expected.iter().find(is_given) else { panic!("{context}: {given:?}") };
    settled(&reactor).await;
    let roles = kept.as_ref().map_or(0, |(_, form)| form.roles());
    assert_eq!(roles_of(&bench, "k").await, (0..roles).collect::<Vec<_>>(), "{context}");
    assert_eq!(keys(&array).await, u64::from(given.is_some()));
    // Without a member that may hold the only copy of a key, nobody knows whether an absent one was there.
    let may_be_alone = bench.options.policy.mechanisms().any(|mechanism| mechanism.members() == 1);
    if roles > 1 || !may_be_alone {
        array.take_out(placement::primary(b"k", bench.below.len()), "for a test");
        settled(&reactor).await;
        assert_eq!(held(&array).await, given, "{context}");
    }
    if roles <= 1 || !may_be_alone {
        assert_eq!(keys(&array).await, u64::from(given.is_some()));
        let _ = del(&array, "k").await;
        assert_eq!(held(&array).await, None);
    }
    died
}
