//! Kept records beside a model: stores that keep what they replace, values that other keys are given,
//! batches, changes of expiry, what is put back and given up, with restarts in between; counters and values
//! are exact after every step.

use crate::opening::{DATABASE, DISK_BYTES, delete, live, open_with, run, store, world};
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::transaction::{self, Action};
use plimsoll_kv::{
    Condition, ContainerId, Device, Durability, Error, Expiry, Kept, Op, Output, Request, Value,
};
use plimsoll_reactor::Reactor;
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

const KEYS: u8 = 4;
/// Keys that are given what others hold, and where they are.
const KEEPERS: u8 = 3;
const KEEPING: ContainerId = ContainerId(5);
const HEAD: &[u8] = b"head of it";
const MINUTE_MS: u64 = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Never,
    InAMinute,
    InThePast,
}

/// What becomes of a key that another one is given the value of, in the same batch.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    Store { bytes: u16, retain: bool },
    Delete,
}

#[derive(Clone, Debug)]
enum Step {
    Store { key: u8, bytes: u16, due: Due, retain: bool, batch: bool },
    Expire { key: u8, due: Due },
    Delete { key: u8, batch: bool },
    Release { key: u8 },
    Revert { key: u8 },
    Keep { key: u8, keeper: u8, then: Then },
    Overwrite { keeper: u8 },
    Drop { keeper: u8 },
    ClearKeepers,
    Clear,
    Pass,
    Churn,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let due = || prop_oneof![3 => Just(Due::Never), 2 => Just(Due::InAMinute), 1 => Just(Due::InThePast)];
    let key = || 0..KEYS;
    let then = || {
        prop_oneof![
            2 => Just(Then::Nothing),
            3 => (0_u16..6000, any::<bool>()).prop_map(|(bytes, retain)| Then::Store { bytes, retain }),
            2 => Just(Then::Delete),
        ]
    };
    let step = prop_oneof![
        10 => (key(), 0_u16..6000, due(), any::<bool>(), any::<bool>())
            .prop_map(|(key, bytes, due, retain, batch)| Step::Store { key, bytes, due, retain, batch }),
        5 => (key(), due()).prop_map(|(key, due)| Step::Expire { key, due }),
        2 => (key(), any::<bool>()).prop_map(|(key, batch)| Step::Delete { key, batch }),
        3 => key().prop_map(|key| Step::Release { key }),
        3 => key().prop_map(|key| Step::Revert { key }),
        10 => (key(), 0..KEEPERS, then()).prop_map(|(key, keeper, then)| Step::Keep { key, keeper, then }),
        1 => (0..KEEPERS).prop_map(|keeper| Step::Overwrite { keeper }),
        3 => (0..KEEPERS).prop_map(|keeper| Step::Drop { keeper }),
        1 => Just(Step::ClearKeepers),
        1 => Just(Step::Clear),
        1 => Just(Step::Pass),
        1 => Just(Step::Churn),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..60)
}

/// What a version holds, and when it expires.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    bytes: Vec<u8>,
    expiry_ms: Option<u64>,
}

/// A key: its current version, and the one kept below.
type Held = Option<(Version, Option<Version>)>;

struct Model {
    keys: Vec<Held>,
    keepers: Vec<Option<Vec<u8>>>,
    stores: u8,
}

impl Model {
    fn new() -> RefCell<Model> {
        let (keys, keepers) = (vec![None; usize::from(KEYS)], vec![None; usize::from(KEEPERS)]);
        RefCell::new(Model { keys, keepers, stores: 0 })
    }

    /// The bytes of the next store.
    fn fresh(&mut self, bytes: u16) -> Vec<u8> {
        self.stores = self.stores.wrapping_add(1);
        vec![self.stores; usize::from(bytes)]
    }

    /// A key was stored that does not expire.
    fn stored(&mut self, number: u8, bytes: Vec<u8>, retain: bool) {
        let held = &mut self.keys[usize::from(number)];
        let before = held.take().map(|(now, _)| now).filter(|_| retain);
        *held = Some((Version { bytes, expiry_ms: None }, before));
    }

    /// What has expired is gone, with what is kept below.
    fn forget_expired(&mut self, now_ms: u64) {
        for held in &mut self.keys {
            if held.as_ref().is_some_and(|(now, _)| now.expiry_ms.is_some_and(|at| at <= now_ms)) {
                *held = None;
            }
        }
    }
}

fn key(number: u8) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

fn keeper(number: u8) -> Vec<u8> {
    format!("keeper:{number}").into_bytes()
}

/// A store of one of the keepers.
fn store_keeper(number: u8, of: Value) -> Op {
    let mut op = store(keeper(number), of, Expiry::Never);
    if let Op::Store { container, .. } = &mut op {
        *container = KEEPING;
    }
    op
}

/// A key is given what another one holds, of which something else becomes at the same instant.
async fn keep(partition: &Rc<Partition>, model: &RefCell<Model>, (number, keeper): (u8, u8), then: Then) {
    let told = model.borrow().keys[usize::from(number)].as_ref().map(|(now, _)| now.bytes.len() as u64);
    let bytes = told.filter(|bytes| bytes % 2 == 0);
    let kept = Kept { head: HEAD.to_vec(), bytes, container: DATABASE, key: key(number) };
    let keeps = store_keeper(keeper, Value::Kept(kept));
    let fresh =
        if let Then::Store { bytes, .. } = then { model.borrow_mut().fresh(bytes) } else { Vec::new() };
    let with = match then {
        Then::Nothing => None,
        Then::Store { retain, .. } => {
            let mut op = store(key(number), Value::from(fresh.clone()), Expiry::Never);
            if let Op::Store { retain: retains, .. } = &mut op {
                *retains = retain;
            }
            Some(op)
        }
        Then::Delete => Some(delete(key(number))),
    };
    let done = match with {
        None => run(partition, keeps).await,
        // Whichever comes first in it, what it held before is meant.
        Some(with) if keeper == 0 => run(partition, Op::Batch(vec![with, keeps])).await,
        Some(with) => run(partition, Op::Batch(vec![keeps, with])).await,
    };
    let mut model = model.borrow_mut();
    done.unwrap();
    if let Some((now, _)) = model.keys[usize::from(number)].clone() {
        model.keepers[usize::from(keeper)] = Some([HEAD, &now.bytes].concat());
    }
    match then {
        Then::Nothing => {}
        Then::Store { retain, .. } => model.stored(number, fresh, retain),
        Then::Delete => model.keys[usize::from(number)] = None,
    }
}

fn expiry(due: Due, now_ms: u64) -> (Expiry, Option<u64>) {
    let at_ms = match due {
        Due::Never => return (Expiry::Never, None),
        Due::InAMinute => now_ms + MINUTE_MS,
        Due::InThePast => now_ms - 1,
    };
    (Expiry::At(at_ms), Some(at_ms))
}

async fn open(reactor: &Reactor) -> Rc<Partition> {
    let options = Options { known_bytes: 64 << 10, ..Options::default() };
    open_with(reactor, 64 << 10, options).await
}

/// An operation, alone or in a batch; in a batch with what stands beside it in an array.
async fn write(partition: &Rc<Partition>, op: Op, batch: bool) -> Result<Output, Error> {
    if !batch {
        return run(partition, op).await;
    }
    let beside = store("beside", Value::from(vec![1; 20]), Expiry::Never);
    match run(partition, Op::Batch(vec![op, beside])).await? {
        Output::Batch(outputs) => Ok(outputs.into_iter().next().expect("as many as there were writes")),
        other => panic!("{other:?}"),
    }
}

async fn take(reactor: &Reactor, partition: &Rc<Partition>, model: &RefCell<Model>, step: &Step) {
    let now_ms = reactor.wall_ms();
    match *step {
        Step::Store { key: number, bytes, due, retain, batch } => {
            let (expiry, expiry_ms) = expiry(due, now_ms);
            let bytes = model.borrow_mut().fresh(bytes);
            let mut op = store(key(number), Value::from(bytes.clone()), expiry);
            if let Op::Store { retain: retains, .. } = &mut op {
                *retains = retain;
            }
            write(partition, op, batch).await.unwrap();
            let mut model = model.borrow_mut();
            let held = &mut model.keys[usize::from(number)];
            let before = held.take().map(|(now, _)| now).filter(|_| retain);
            *held = Some((Version { bytes, expiry_ms }, before));
        }
        Step::Expire { key: number, due } => {
            let (expiry, expiry_ms) = expiry(due, now_ms);
            let op =
                Op::SetExpiry { container: DATABASE, key: key(number), expiry, condition: Condition::None };
            let changed = run(partition, op).await;
            match &mut model.borrow_mut().keys[usize::from(number)] {
                Some((now, _)) => {
                    changed.unwrap();
                    now.expiry_ms = expiry_ms;
                }
                None => assert_eq!(changed, Err(Error::NotFound)),
            }
        }
        Step::Delete { key: number, batch } => {
            let deleted = write(partition, delete(key(number)), batch).await;
            let held = model.borrow_mut().keys[usize::from(number)].take();
            assert_eq!(matches!(deleted, Ok(Output::Deleted(_))), held.is_some(), "{deleted:?}");
        }
        Step::Release { key: number } => {
            let released = run(partition, Op::Release { container: DATABASE, key: key(number) }).await;
            let held = &mut model.borrow_mut().keys[usize::from(number)];
            assert_eq!(released.is_ok(), held.as_mut().is_some_and(|(_, kept)| kept.take().is_some()));
        }
        Step::Revert { key: number } => {
            let reverted = run(partition, Op::Revert { container: DATABASE, key: key(number) }).await;
            let held = &mut model.borrow_mut().keys[usize::from(number)];
            let kept = held.as_mut().and_then(|(_, kept)| kept.take());
            assert_eq!(reverted.is_ok(), kept.is_some());
            if let Some(kept) = kept {
                *held = Some((kept, None));
            }
        }
        Step::Keep { key, keeper, then } => keep(partition, model, (key, keeper), then).await,
        Step::Overwrite { keeper } => {
            run(partition, store_keeper(keeper, Value::from(vec![7; 3]))).await.unwrap();
            model.borrow_mut().keepers[usize::from(keeper)] = Some(vec![7; 3]);
        }
        Step::Drop { keeper: number } => {
            let (key, condition) = (keeper(number), Condition::None);
            let dropped = run(partition, Op::Delete { container: KEEPING, key, condition }).await;
            let kept = model.borrow_mut().keepers[usize::from(number)].take();
            assert_eq!(dropped.is_ok(), kept.is_some());
        }
        Step::ClearKeepers => {
            run(partition, Op::Clear { container: KEEPING }).await.unwrap();
            model.borrow_mut().keepers.fill(None);
        }
        Step::Clear => {
            run(partition, Op::Clear { container: DATABASE }).await.unwrap();
            model.borrow_mut().keys.fill(None);
        }
        Step::Pass => reactor.sleep_ns(MINUTE_MS * 1_000_000 / 2).await,
        Step::Churn => churn(partition).await,
        Step::Restart => unreachable!("a life ends with it"),
    }
}

/// Writes the device over, so that what stands on it is moved.
async fn churn(partition: &Rc<Partition>) {
    for round in 0..90_u32 {
        let op = store(format!("churn:{}", round % 3), Value::from(vec![3; 15_000]), Expiry::Never);
        let other = plimsoll_kv::ContainerId(9);
        let Op::Store { key, value, condition, expiry, retain, want_previous, .. } = op else { continue };
        let op =
            Op::Store { container: other, key, value, condition, expiry, retain, want_previous, form: None };
        partition.clone().execute(Request::new(Durability::Group, op)).await.unwrap();
    }
}

/// Every key, and the counters, are what the model says.
async fn compare(reactor: &Reactor, partition: &Rc<Partition>, model: &RefCell<Model>) {
    model.borrow_mut().forget_expired(reactor.wall_ms());
    let held = model.borrow().keys.clone();
    for (number, held) in held.iter().enumerate() {
        let op = Op::Retrieve { container: DATABASE, key: key(number as u8), range: None, pin: false };
        let found = match run(partition, op).await {
            Ok(Output::Found(item)) => Some(Version { bytes: item.bytes, expiry_ms: item.expiry_ms }),
            Err(Error::NotFound) => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(found.as_ref(), held.as_ref().map(|(now, _)| now), "key {number}");
    }
    let keepers = model.borrow().keepers.clone();
    compare_keepers(partition, &keepers).await;
    let Ok(Output::Stats(stats)) = run(partition, Op::Stats { container: DATABASE }).await else {
        panic!("no statistics")
    };
    let is_beside = matches!(
        run(partition, Op::Exist { container: DATABASE, key: b"beside".to_vec() }).await,
        Ok(Output::Found(_))
    );
    let there = held.iter().flatten();
    let expiring = there.clone().filter(|(now, _)| now.expiry_ms.is_some()).count() as u64;
    let keys = there.count() as u64 + u64::from(is_beside);
    assert_eq!((stats.keys, stats.expiring_keys), (keys, expiring));
    partition.check_accounts().expect("the accounts agree");
}

/// What was given to other keys is there, whole and in pieces.
async fn compare_keepers(partition: &Rc<Partition>, keepers: &[Option<Vec<u8>>]) {
    for (number, kept) in keepers.iter().enumerate() {
        for range in [None, Some((0, 4)), Some((5, 1000)), Some((9_000, 1))] {
            let op = Op::Retrieve { container: KEEPING, key: keeper(number as u8), range, pin: false };
            let expected = kept.as_ref().map(|kept| {
                let (first, count) = range.unwrap_or((0, u64::MAX));
                let all = kept.iter().copied().skip(first as usize);
                (all.take(count as usize).collect::<Vec<u8>>(), kept.len() as u64)
            });
            match run(partition, op).await {
                Ok(Output::Found(item)) => assert_eq!(Some((item.bytes, item.length)), expected),
                Err(Error::NotFound) => assert_eq!(None, expected, "keeper {number}"),
                other => panic!("{other:?}"),
            }
        }
        let op = Op::Exist { container: KEEPING, key: keeper(number as u8) };
        if let Ok(Output::Found(item)) = run(partition, op).await {
            assert_eq!(Some(item.length), kept.as_ref().map(|kept| kept.len() as u64));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_kept_is_there_put_back_or_given_up(steps in steps()) {
        let world = world(DISK_BYTES);
        let model = Rc::new(Model::new());
        for (number, life) in steps.split(|step| matches!(step, Step::Restart)).enumerate() {
            let (life, model) = (life.to_vec(), model.clone());
            live(&world, move |reactor| {
                let (life, model) = (life.clone(), model.clone());
                async move {
                    let partition = open(&reactor).await;
                    compare(&reactor, &partition, &model).await;
                    for step in &life {
                        take(&reactor, &partition, &model, step).await;
                        compare(&reactor, &partition, &model).await;
                    }
                    // The next life begins with a checkpoint, or with the log alone.
                    if number % 2 == 0 {
                        partition.close().await.unwrap();
                    }
                }
            });
        }
    }
}

/// One keeper says that what it keeps does not expire and another one, from after a change of that, that it
/// does: a checkpoint in which both stood was refused as damaged (`plimsoll sim fuzz --arrays`, seed 3775).
#[test]
fn a_value_is_kept_from_before_and_from_after_a_change_of_its_expiry() {
    let world = world(DISK_BYTES);
    let model = Rc::new(Model::new());
    for life in 0..2 {
        let model = model.clone();
        live(&world, move |reactor| {
            let model = model.clone();
            async move {
                let partition = open(&reactor).await;
                let keep = |keeper, then| Step::Keep { key: 0, keeper, then };
                let steps = [
                    Step::Store { key: 0, bytes: 6000, due: Due::Never, retain: false, batch: false },
                    keep(0, Then::Nothing),
                    Step::Expire { key: 0, due: Due::InAMinute },
                    keep(1, Then::Store { bytes: 10, retain: true }),
                ];
                for step in steps.iter().filter(|_| life == 0) {
                    take(&reactor, &partition, &model, step).await;
                }
                compare(&reactor, &partition, &model).await;
                if life == 1 {
                    take(&reactor, &partition, &model, &Step::Revert { key: 0 }).await;
                    compare(&reactor, &partition, &model).await;
                }
                partition.close().await.unwrap();
            }
        });
    }
}

/// What was swept used to leave the time of expiry of the version below it behind, for whatever came to stand
/// in its place (`plimsoll sim fuzz --arrays`, seed 1017).
#[test]
fn what_is_swept_takes_all_of_the_version_below_along() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        churn(&partition).await;
        let model = Model::new();
        let stores = |retain| Step::Store { key: 0, bytes: 5000, due: Due::Never, retain, batch: false };
        for step in [stores(false), Step::Expire { key: 0, due: Due::InAMinute }, stores(true), Step::Clear] {
            take(&reactor, &partition, &model, &step).await;
        }
        reactor.sleep_ns(1_000_000_000).await;
        compare(&reactor, &partition, &model).await;
    });
}

/// A key that is given what another one holds, which is deleted at the same instant.
async fn given(partition: &Rc<Partition>) {
    run(partition, store(key(0), Value::from(vec![9; 700]), Expiry::Never)).await.unwrap();
    let kept = Kept { head: HEAD.to_vec(), bytes: None, container: DATABASE, key: key(0) };
    let keeps = store_keeper(0, Value::Kept(kept));
    run(partition, Op::Batch(vec![keeps, delete(key(0))])).await.unwrap();
}

/// A transaction reads it as anyone does: an array that has lost a device looks so for what sets kept.
#[test]
fn a_transaction_reads_what_is_kept_under_another_key() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        given(&partition).await;
        let step = |id, action| Op::Transaction { partition: 0, id, action };
        let hold = step(None, Action::Hold(transaction::Held::everything()));
        let Ok(Output::Held(id)) = run(&partition, hold).await else { panic!("everything is free") };
        for (range, first) in [(None, HEAD[0]), (Some((10, 5)), 9)] {
            let action = Action::Retrieve { container: KEEPING, key: keeper(0), range, pin: false };
            match run(&partition, step(Some(id), action)).await {
                Ok(Output::Found(item)) => assert_eq!((item.length, item.bytes[0]), (710, first)),
                other => panic!("{other:?}"),
            }
        }
    });
}

/// It would be given up without what it keeps, and be put back without it.
#[test]
fn what_keeps_another_value_is_not_retained() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        given(&partition).await;
        let mut op = store_keeper(0, Value::from(vec![1; 10]));
        if let Op::Store { retain, .. } = &mut op {
            *retain = true;
        }
        for op in [op.clone(), Op::Batch(vec![op])] {
            assert!(matches!(run(&partition, op).await, Err(Error::Invalid(_))));
        }
        let op = Op::Retrieve { container: KEEPING, key: keeper(0), range: None, pin: false };
        assert!(matches!(run(&partition, op).await, Ok(Output::Found(item)) if item.length == 710));
    });
}
