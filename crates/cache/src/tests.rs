//! The cache over the memory device, and over one that waits where it is told to.

mod bench;

use crate::Cache;
use bench::{BUDGET_BYTES, Bench, DB, OTHER, delete, get, key_held, run, set, some, store};
use futures_util::future::{FutureExt, join};
use plimsoll_kv::transaction::{Action, Held};
use plimsoll_kv::{
    Above, Condition, ContainerId, Device, Durability, Error, Expiry, Item, Op, Output, Request, Value,
};

#[test]
fn what_was_read_is_given_from_memory() {
    run(|bench| async move {
        bench.run(set(b"value")).await.unwrap();
        let below = bench.read(get(b"k")).await.unwrap();
        bench.gate.take_seen();
        assert_eq!(bench.read(get(b"k")).await.unwrap(), below);
        let range = Op::Retrieve { container: DB, key: b"k".to_vec(), range: Some((1, 3)), pin: false };
        assert_eq!(bench.read(range).await.unwrap().bytes, b"alu");
        let exist = bench.read(Op::Exist { container: DB, key: b"k".to_vec() }).await.unwrap();
        assert_eq!(exist, Item { bytes: Vec::new(), ..below });
        assert_eq!(bench.gate.take_seen(), 0);
        let metrics = bench.cache.metrics();
        assert_eq!((metrics.hits, metrics.misses, metrics.entries, metrics.evictions), (3, 1, 1, 0));
        assert!(metrics.bytes <= metrics.capacity_bytes && metrics.capacity_bytes == BUDGET_BYTES as u64);
        let elsewhere = Op::Retrieve { container: OTHER, key: b"k".to_vec(), range: None, pin: false };
        assert_eq!(bench.read(elsewhere).await, None, "another database has another key");
    });
}

#[test]
fn what_is_not_kept_is_announced_below() {
    run(|bench| async move {
        bench.warm(b"value").await;
        assert!(!bench.cache.announce(DB, &[b"k", b"other"], 0));
        assert_eq!(bench.gate.announced.take(), [b"other"]);
        // Of one alone what leads to it comes first.
        assert!(bench.cache.announce(DB, &[b"k"], 0) && !bench.cache.announce(DB, &[b"k"], 1));
        assert!(bench.gate.announced.take().is_empty());
        assert!(!bench.cache.announce(DB, &[b"other"], 0), "its chain is empty");
        assert_eq!(bench.gate.announced.take(), [b"other"]);
        let many: Vec<Vec<u8>> = (0..40_u8).map(|number| vec![number]).collect();
        bench.cache.announce(DB, &many.iter().map(Vec::as_slice).collect::<Vec<_>>(), 0);
        assert_eq!(bench.gate.announced.take(), many);
    });
}

#[test]
fn ranges_and_absence_are_not_kept() {
    run(|bench| async move {
        bench.run(set(b"value")).await.unwrap();
        let range = Op::Retrieve { container: DB, key: b"k".to_vec(), range: Some((0, 3)), pin: false };
        bench.read(range).await.unwrap();
        bench.read(Op::Exist { container: DB, key: b"k".to_vec() }).await.unwrap();
        assert_eq!(bench.read(get(b"absent")).await, None);
        assert_eq!(bench.cache.metrics().entries, 0);
    });
}

#[test]
fn every_change_forgets() {
    run(|bench| async move {
        let expire =
            |expiry| Op::SetExpiry { container: DB, key: b"k".to_vec(), expiry, condition: Condition::None };
        let append = Op::Store {
            container: DB,
            key: b"k".to_vec(),
            value: Value::Edit(plimsoll_kv::Edit::Append(b"+".to_vec())),
            condition: Condition::None,
            expiry: Expiry::Keep,
            retain: true,
            want_previous: false,
            form: None,
        };
        let (place, clear) = (|| (DB, b"k".to_vec()), Op::Clear { container: DB });
        for change in [
            set(b"new"),
            append,
            delete(),
            expire(Expiry::At(u64::MAX)),
            Op::Batch(vec![store(DB, b"other", b"x", Expiry::Never), set(b"batched")]),
            Op::Batch(vec![]),
            clear,
        ] {
            bench.warm(b"old").await;
            let is_nothing = change == Op::Batch(vec![]);
            bench.run(change.clone()).await.unwrap();
            let (value, hit) = bench.value_and_hit().await;
            let below = bench.gate.below.clone();
            let request = Request::new(Durability::Sync, get(b"k"));
            let truth = below.execute(request).await.ok().map(|completion| match completion.output {
                Output::Found(item) => item.bytes,
                other => panic!("{other:?}"),
            });
            assert_eq!((value, hit), (truth, is_nothing), "{change:?}");
        }
        for retained in [true, false] {
            bench.warm(b"one").await;
            let two = store(DB, b"k", b"two", Expiry::Never);
            let Op::Store { container, key, value, condition, expiry, want_previous, form, .. } = two else {
                panic!()
            };
            let two =
                Op::Store { container, key, value, condition, expiry, retain: true, want_previous, form };
            bench.run(two).await.unwrap();
            assert_eq!(bench.value().await, some(b"two"));
            let (container, key) = place();
            let end = if retained { Op::Revert { container, key } } else { Op::Release { container, key } };
            bench.run(end).await.unwrap();
            let left: &[u8] = if retained { b"one" } else { b"two" };
            assert_eq!(bench.value_and_hit().await, (some(left), false));
        }
    });
}

#[test]
fn a_read_across_a_change_fills_nothing() {
    run(|bench| async move {
        bench.run(set(b"old")).await.unwrap();
        bench.gate.closed.set(true);
        // The read has looked at the old value when the store comes; both end later, the read last.
        let reader = async { bench.value().await };
        let writer = async {
            let store = bench.run(set(b"new"));
            let opener = async { bench.gate.open() };
            join(store, opener).await.0.unwrap();
        };
        assert_eq!(join(reader, writer).await.0, some(b"old"));
        assert_eq!(bench.value_and_hit().await, (some(b"new"), false), "the old value was not kept");
        assert_eq!(bench.value_and_hit().await, (some(b"new"), true));
    });
}

#[test]
fn while_a_change_is_under_way_reads_pass_through_and_fill_nothing() {
    run(|bench| async move {
        bench.warm(b"old").await;
        bench.gate.closed.set(true);
        let mut writer = Box::pin(bench.run(set(b"new")));
        assert!((&mut writer).now_or_never().is_none(), "it is done below and not told");
        assert_eq!(bench.recalled(), None, "neither the old value nor the new one");
        bench.gate.take_seen();
        let mut reader = Box::pin(bench.value());
        assert!((&mut reader).now_or_never().is_none(), "it waits below");
        assert_eq!(bench.gate.take_seen(), 1);
        bench.gate.open();
        assert_eq!(reader.await, some(b"new"));
        writer.await.unwrap();
        assert_eq!(bench.value_and_hit().await, (some(b"new"), false), "the read beside it filled nothing");
        assert_eq!(bench.value_and_hit().await, (some(b"new"), true));
    });
}

#[test]
fn a_change_that_is_given_up_has_forgotten_and_is_over() {
    run(|bench| async move {
        bench.warm(b"old").await;
        bench.gate.closed.set(true);
        {
            let mut writer = Box::pin(bench.run(set(b"new")));
            assert!((&mut writer).now_or_never().is_none(), "it is done below and not told");
        }
        bench.gate.open();
        assert_eq!(bench.value_and_hit().await, (some(b"new"), false));
        assert_eq!(bench.value_and_hit().await, (some(b"new"), true), "the change counts as ended");
    });
}

#[test]
fn what_a_transaction_holds_is_not_given_until_it_has_ended() {
    run(|bench| async move {
        for everything in [false, true] {
            let held = || if everything { Held::everything() } else { key_held() };
            bench.warm(b"old").await;
            let id = bench.hold(held()).await;
            assert_eq!(bench.recalled(), None, "it is held");
            bench.gate.take_seen();
            let mut reader = Box::pin(bench.value());
            assert!((&mut reader).now_or_never().is_none(), "it waits below");
            assert_eq!(bench.gate.take_seen(), 1);
            bench.step(Some(id), Action::Commit { writes: vec![set(b"new")] }).await.unwrap();
            assert_eq!(reader.await, some(b"new"));
            assert_eq!(
                bench.value_and_hit().await,
                (some(b"new"), false),
                "the read beside it filled nothing"
            );
            assert_eq!(bench.value_and_hit().await, (some(b"new"), true));

            let id = bench.hold(held()).await;
            bench.step(Some(id), Action::Release).await.unwrap();
            assert_eq!(bench.value_and_hit().await, (some(b"new"), true), "nothing was written");

            let id = bench.hold(held()).await;
            let prepare = Action::Prepare { participants: vec![0], writes: vec![set(b"newer")] };
            bench.step(Some(id), prepare).await.unwrap();
            bench.step(Some(id), Action::Apply).await.unwrap();
            assert_eq!(bench.value_and_hit().await, (some(b"newer"), false));
            assert!(bench.cache.held.borrow().is_empty());
        }
    });
}

#[test]
fn a_transaction_that_empties_forgets_the_database() {
    run(|bench| async move {
        bench.warm(b"old").await;
        let id = bench.hold(Held::everything()).await;
        let writes = vec![Op::Clear { container: DB }];
        bench.step(Some(id), Action::Commit { writes }).await.unwrap();
        assert_eq!(bench.value().await, None);
    });
}

#[test]
fn a_transaction_that_cannot_be_applied_keeps_its_keys_from_the_cache() {
    run(|bench| async move {
        bench.warm(b"old").await;
        let id = bench.hold(key_held()).await;
        let prepare = Action::Prepare { participants: vec![0], writes: vec![set(b"new")] };
        bench.step(Some(id), prepare).await.unwrap();
        bench.gate.fails.replace(Some(Error::ReadOnly("a write failed".to_owned())));
        bench.step(Some(id), Action::Apply).await.unwrap_err();
        for _ in 0..3 {
            assert_eq!(bench.value_and_hit().await, (some(b"new"), false), "it is asked below every time");
        }
    });
}

#[test]
fn a_step_of_a_transaction_that_was_not_seen_to_begin_changes_everything() {
    run(|bench| async move {
        bench.warm(b"old").await;
        // It prepared before a crash: the cache above was made afterwards.
        let id = bench.hold(key_held()).await;
        let clock = bench.gate.below.clock();
        let cache = Cache::new(bench.gate.clone(), clock, 7, BUDGET_BYTES);
        let bench = Bench { cache, ..bench };
        bench.run(store(DB, b"b", b"bystander", Expiry::Never)).await.unwrap();
        assert!(bench.read(get(b"b")).await.is_some());
        let prepare = Action::Prepare { participants: vec![0], writes: vec![set(b"new")] };
        bench.step(Some(id), prepare).await.unwrap();
        let mut reader = Box::pin(bench.value());
        assert!((&mut reader).now_or_never().is_none());
        bench.step(Some(id), Action::Apply).await.unwrap();
        assert_eq!(reader.await, some(b"new"));
        assert_eq!(bench.value_and_hit().await, (some(b"new"), false), "the read across it filled nothing");
        bench.gate.take_seen();
        assert!(bench.read(get(b"b")).await.is_some());
        assert_eq!(bench.gate.take_seen(), 1, "all was forgotten");
    });
}

#[test]
fn what_expired_below_is_not_given_when_the_clock_is_set_back() {
    run(|bench| async move {
        let at_ms = bench.reactor.wall_ms() + 1000;
        let expiring = |key: &[u8]| store(DB, key, b"value", Expiry::At(at_ms));
        bench.run(expiring(b"k")).await.unwrap();
        bench.run(expiring(b"other")).await.unwrap();
        assert_eq!(bench.value().await, some(b"value"));
        assert_eq!(bench.value_and_hit().await, (some(b"value"), true));
        bench.world.step_wall_ms(2000);
        // A transaction sees below that the key is gone, and then the clock goes back.
        let id = bench.hold(key_held()).await;
        let retrieve = Action::Retrieve { container: DB, key: b"k".to_vec(), range: None, pin: false };
        assert_eq!(bench.step(Some(id), retrieve).await, Err(Error::NotFound));
        bench.step(Some(id), Action::Release).await.unwrap();
        bench.world.step_wall_ms(-60_000);
        assert_eq!(bench.value().await, None);
        assert_eq!(bench.read(get(b"other")).await, None, "time does not go back for other keys either");
    });
}

#[test]
fn an_expired_value_goes_below_to_be_deleted() {
    run(|bench| async move {
        let at_ms = bench.reactor.wall_ms() + 1000;
        bench.run(store(DB, b"k", b"value", Expiry::At(at_ms))).await.unwrap();
        assert_eq!(bench.value().await, some(b"value"));
        bench.world.step_wall_ms(1000);
        assert_eq!(bench.value_and_hit().await, (None, false));
        assert_eq!(bench.cache.metrics().entries, 0);
    });
}

#[test]
fn what_does_not_fit_makes_room() {
    run(|bench| async move {
        for number in 0..2000_u32 {
            let key = number.to_be_bytes();
            bench.run(store(DB, &key, &[7; 1000], Expiry::Never)).await.unwrap();
            bench.read(get(&key)).await.unwrap();
            let metrics = bench.cache.metrics();
            assert!(metrics.bytes <= metrics.capacity_bytes);
        }
        let metrics = bench.cache.metrics();
        assert_eq!(metrics.entries + metrics.evictions, 2000);
        assert!(metrics.bytes > metrics.capacity_bytes / 10 * 9 && metrics.evictions > 1000);
        bench.run(set(&vec![0; BUDGET_BYTES / 16])).await.unwrap();
        assert!(bench.value().await.is_some());
        assert!(!bench.value_and_hit().await.1, "longer than a sixteenth");
    });
}

#[test]
fn what_is_evicted_below_is_forgotten_and_no_read_from_before_brings_it_back() {
    run(|bench| async move {
        bench.warm(b"old").await;
        // As the device below does: it deletes by itself, and tells of it.
        bench.gate.below.clone().execute(Request::new(Durability::Sync, delete())).await.unwrap();
        bench.cache.evicted(DB, b"k");
        assert_eq!(bench.value().await, None);
        bench.run(set(b"new")).await.unwrap();
        bench.gate.closed.set(true);
        let evict = async {
            // The read has its value, and is on its way.
            bench.gate.below.clone().execute(Request::new(Durability::Sync, delete())).await.unwrap();
            bench.cache.evicted(DB, b"k");
            bench.gate.open();
        };
        let (read, ()) = join(bench.value(), evict).await;
        assert_eq!(read, some(b"new"));
        assert_eq!(bench.value_and_hit().await, (None, false), "it is not kept");
    });
}

#[test]
fn a_hit_is_told_once() {
    run(|bench| async move {
        bench.run(set(b"value")).await.unwrap();
        assert!(!bench.cache.was_read(DB, b"k"), "nothing is kept");
        bench.warm(b"value").await;
        assert!(bench.cache.was_read(DB, b"k") && !bench.cache.was_read(DB, b"k"));
        assert!(!bench.cache.was_read(OTHER, b"k") && !bench.cache.was_read(ContainerId(1 << 20), b"k"));
        assert_eq!(bench.value_and_hit().await, (some(b"value"), true));
        assert!(bench.cache.was_read(DB, b"k"));
    });
}
