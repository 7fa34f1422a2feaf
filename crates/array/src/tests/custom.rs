//! Values that are made into what their client wishes (KVMD's custom mode).

use super::bench::{Bench, DB, bytes, execute, get, run, set, wish_op};
use super::parts::{long, upload_as};
use super::scripts::Step::{Delete, Set, Wish};
use super::scripts::{Leavings, Script, crash, held, roles_of, settled};
use super::together::{commit, hold, step};
use crate::{Array, Mechanism, MemberState, Policy, SizeRange};
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::transaction::Action;
use plimsoll_kv::{Description, Error, Expiry, Form, Op, Output, Result, Value};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

const ONE: Form = Form::Copies(1);
const TWO: Form = Form::Copies(2);
const THREE: Form = Form::Copies(3);
const SPLIT: Form = Form::Shards { data: 3, parities: 2 };

/// Two copies of short values and three of others, unless their client wishes something else.
fn policy() -> Policy {
    let copies = |copies| Mechanism::Replication { copies };
    let range = |value_bytes_max, mechanism| SizeRange { value_bytes_max, mechanism };
    let by_size = Policy::by_size(&[range(100, copies(2)), range(u64::MAX, copies(3))]).unwrap();
    let split = Mechanism::Splitting { data: 3, parities: 2 };
    by_size.with_custom(&[Mechanism::Hashing, split]).unwrap()
}

fn bench(reactor: &Reactor) -> Bench {
    Bench::by_size(reactor, 6, &[policy()])
}

fn wish(key: &str, value: &[u8], form: Form) -> Op {
    wish_op(key, Value::from(value.to_vec()), Some(form))
}

pub(super) async fn describe(array: &Rc<Array>, key: &str) -> Result<Description> {
    match execute(array, Op::Describe { container: DB, key: key.as_bytes().to_vec() }).await? {
        Output::Described(description) => Ok(description),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_store_may_change_the_mechanism_and_leaves_nothing_of_the_one_before() {
    run(async |reactor| {
        let bench = bench(&reactor);
        let array = bench.open().await;
        let steps = [
            (Set(5), TWO),
            (Wish(5, SPLIT), SPLIT),
            (Wish(6, ONE), ONE),
            (Set(700), THREE),
            (Wish(700, TWO), TWO),
            (Wish(1500, SPLIT), SPLIT),
            (Wish(1500, ONE), ONE),
            (Set(1500), THREE),
            (Wish(3, SPLIT), SPLIT),
            (Set(3), TWO),
        ];
        for (number, (step, form)) in steps.into_iter().enumerate() {
            step.take(&array, number as u8).await.unwrap();
            let length = held(&array).await.unwrap().len() as u64;
            settled(&reactor).await;
            assert_eq!(roles_of(&bench, "k").await, (0..form.roles()).collect::<Vec<_>>(), "{step:?}");
            let told = describe(&array, "k").await.unwrap();
            assert_eq!((told.form, told.length, told.pieces.len()), (form, length, form.roles()));
            assert_eq!(told.code, (!form.is_copies()).then_some("Reed-Solomon, Cauchy"));
            assert!(told.pieces.iter().all(|piece| piece.state == "in" && piece.read.is_ok()), "{told:?}");
        }
        Delete.take(&array, 0).await.unwrap();
        assert_eq!(roles_of(&bench, "k").await, Vec::<usize>::new());
        assert_eq!(describe(&array, "k").await, Err(Error::NotFound));
    });
}

#[test]
fn what_the_array_does_not_have_is_refused_and_changes_nothing() {
    run(async |reactor| {
        let array = bench(&reactor).open().await;
        set(&array, "k", b"value").await.unwrap();
        let refused = Error::Invalid("a mechanism that the array does not have");
        assert_eq!(execute(&array, wish("k", b"other", Form::Copies(4))).await, Err(refused.clone()));
        let id = hold(&array, &["k"]).await;
        let writes = vec![wish("k", b"other", Form::Shards { data: 2, parities: 1 })];
        assert_eq!(commit(&array, id, writes).await, Err(refused));
        step(&array, Some(id), Action::Release).await.unwrap();
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"value"[..]));
    });
}

#[test]
fn transactions_store_what_is_wished_for() {
    run(async |reactor| {
        let bench = bench(&reactor);
        let array = bench.open().await;
        for [a, b] in [[SPLIT, ONE], [ONE, SPLIT], [TWO, TWO], [ONE, ONE]] {
            let id = hold(&array, &["a", "b"]).await;
            let writes = vec![wish("a", &long(300, 1), a), wish("b", &long(4, 2), b)];
            commit(&array, id, writes).await.unwrap();
            assert_eq!(bytes(&array, "a").await, Some(long(300, 1)));
            assert_eq!(bytes(&array, "b").await, Some(long(4, 2)));
            assert_eq!(roles_of(&bench, "a").await, (0..a.roles()).collect::<Vec<_>>());
            assert_eq!(roles_of(&bench, "b").await, (0..b.roles()).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_description_tells_what_is_read_of_each_piece_and_which_devices_are_out() {
    run(async |reactor| {
        let bench = bench(&reactor);
        let array = bench.open().await;
        let checksums = |told: &Description| -> Vec<Option<u32>> {
            told.pieces.iter().map(|piece| Some(piece.read.as_ref().ok()?.checksum)).collect()
        };
        set(&array, "k", b"123456789").await.unwrap();
        let copies = describe(&array, "k").await.unwrap();
        assert_eq!(checksums(&copies), [Some(0xe306_9283); 2], "the check value of CRC-32C");
        execute(&array, wish("k", b"123456789", SPLIT)).await.unwrap();
        let shards = describe(&array, "k").await.unwrap();
        assert!(shards.version > copies.version);
        assert!(shards.pieces.iter().all(|piece| piece.read.as_ref().is_ok_and(|read| read.bytes == 3)));
        let out = crate::placement::primary(b"k", 6);
        array.take_out(out, "for a test");
        settled(&reactor).await;
        let told = describe(&array, "k").await.unwrap();
        let first = &told.pieces[0];
        assert_eq!((first.device.as_str(), first.state), (&*format!("d{out}"), MemberState::Out.name()));
        assert_eq!(first.read, Err(Error::Unreadable("its device is not in".to_owned())));
        assert_eq!((told.version, &checksums(&told)[1..]), (shards.version, &checksums(&shards)[1..]));
    });
}

/// What clients may ask for is theirs until the next start; what was made of it stays readable.
#[test]
fn what_may_be_wished_for_may_change_at_a_start() {
    run(async |reactor| {
        let mut bench = bench(&reactor);
        let array = bench.open().await;
        Wish(400, SPLIT).take(&array, 1).await.unwrap();
        array.close().await;
        bench.options.policy = Policy::from(Mechanism::Replication { copies: 2 });
        let array = bench.open().await;
        assert_eq!(held(&array).await, Some(long(400, 1)));
        Set(400).take(&array, 2).await.unwrap();
        settled(&reactor).await;
        assert_eq!(roles_of(&bench, "k").await, [0, 1]);
    });
}

/// Found by the simulator, seed 88: a value that was acknowledged had expired before what it had replaced in
/// other roles was gone, and the server died. The one before was whole in those roles.
#[test]
fn what_an_expired_value_has_left_in_other_roles_does_not_come_back() {
    run(async |reactor| {
        for (before, after, length) in [SPLIT, THREE, TWO, ONE].into_iter().flat_map(|before| {
            [SPLIT, THREE, TWO, ONE]
                .into_iter()
                .flat_map(move |it| [5, 1200].map(|length| (before, it, length)))
        }) {
            let bench = bench(&reactor);
            let array = bench.open().await;
            Wish(300, before).take(&array, 1).await.unwrap();
            settled(&reactor).await;
            array.kept.waits();
            let at_ms = reactor.wall_ms() + 100;
            let mut op = match length {
                5 => wish("k", b"value", after),
                _ => wish_op(
                    "k",
                    Value::Upload(upload_as(&array, "k", &long(length, 2), Some(after)).await),
                    None,
                ),
            };
            if let Op::Store { expiry, .. } = &mut op {
                *expiry = Expiry::At(at_ms);
            }
            execute(&array, op).await.unwrap();
            reactor.sleep_ns(200_000_000).await;
            let array = bench.open().await;
            assert_eq!(held(&array).await, None, "{before}, then {after} of {length} bytes");
            assert_eq!(roles_of(&bench, "k").await, Vec::<usize>::new());
        }
    });
}

/// Found by the simulator, seed 231: where the devices of the newest version did not answer, what the one
/// before had left on others was read.
#[test]
fn what_is_left_of_an_older_version_is_never_read() {
    run(async |reactor| {
        for (newest, lengths) in [(ONE, [300, 6]), (TWO, [300, 6]), (TWO, [1200, 1300]), (ONE, [6, 1200])] {
            let bench = bench(&reactor);
            let array = bench.open().await;
            array.kept.waits();
            Wish(lengths[0], SPLIT).take(&array, 1).await.unwrap();
            Wish(lengths[1], newest).take(&array, 2).await.unwrap();
            assert_eq!(roles_of(&bench, "k").await, [0, 1, 2, 3, 4], "it waits");
            let primary = crate::placement::primary(b"k", 6);
            for role in 0..newest.roles() {
                bench.members[(primary + role) % 6].set_policy(FaultPolicy::From(1));
            }
            let given = get(&array, "k").await;
            assert!(matches!(given, Err(Error::Unreadable(_))), "{newest}: {given:?}");
        }
    });
}

const SCRIPTS: [&Script; 4] = [
    &[Set(5), Wish(6, SPLIT), Wish(7, ONE), Delete, Wish(8, SPLIT), Set(9)],
    &[Wish(300, ONE), Set(301), Wish(302, SPLIT), Wish(4, ONE), Delete],
    &[Wish(1200, SPLIT), Wish(1300, ONE), Wish(1300, SPLIT), Wish(5, ONE), Set(1200)],
    &[Wish(5, SPLIT), Wish(5, ONE), Wish(5, TWO), Wish(5, ONE), Wish(5, SPLIT)],
];

#[test]
fn a_crash_between_any_two_requests_leaves_one_whole_version_and_nothing_of_another_form() {
    run(async |reactor| {
        for script in SCRIPTS {
            for leavings in [Leavings::GoBetween, Leavings::GoBeside, Leavings::Wait] {
                let mut nth = 1;
                let dies = |nth| move |bench: &Bench| bench.dies_at(nth, |_| true);
                while crash(bench(&reactor), (script, leavings), dies(nth)).await {
                    nth += 1;
                }
                assert!(nth > script.len(), "it died at too few places: {nth}");
            }
        }
    });
}

#[test]
fn a_crash_of_which_some_members_heard_nothing_leaves_one_whole_version() {
    run(async |reactor| {
        let primary = crate::placement::primary(b"k", 6);
        for script in SCRIPTS {
            for (lost, leavings) in [
                (vec![0], Leavings::Wait),
                (vec![0], Leavings::GoBeside),
                (vec![0, 1], Leavings::GoBeside),
                (vec![1, 3], Leavings::Wait),
                (vec![0, 2, 4], Leavings::Wait),
            ] {
                let lost: Vec<usize> = lost.into_iter().map(|role| (primary + role) % 6).collect();
                let mut nth = 1;
                let dies = |nth| {
                    let lost = lost.clone();
                    move |bench: &Bench| bench.loses_touch_at(nth, &lost)
                };
                while crash(bench(&reactor), (script, leavings), dies(nth)).await {
                    nth += 1;
                }
            }
        }
    });
}
