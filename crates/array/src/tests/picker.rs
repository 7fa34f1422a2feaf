//! Mechanisms that the array picks, and values that it moves.

use super::bench::{Bench, DB, bytes, del, execute, get, keys, run, set, wish_op};
use super::packing::{found_sets, pieces, settled};
use super::parts::long;
use crate::{Array, Goal, Mechanism, Policy};
use plimsoll_kv::{Condition, Device, Expiry, Op, Value};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

const SPLITTING: Mechanism = Mechanism::Splitting { data: 4, parities: 2 };
const REPLICATION: Mechanism = Mechanism::Replication { copies: 3 };

fn bench(reactor: &Reactor, goal: Goal) -> Bench {
    Bench::by_size(reactor, 6, &[Policy::chosen(goal, 2, 6).unwrap()])
}

fn picked(array: &Rc<Array>, value_bytes: u64) -> Mechanism {
    let picks = array.status().picks;
    picks.into_iter().find(|it| it.value_bytes_max.is_none_or(|most| value_bytes <= most)).unwrap().mechanism
}

/// Stores as many values of so many bytes, each a few times over.
async fn overwrite(array: &Rc<Array>, count: usize, (bytes, times): (usize, usize)) {
    for time in 0..times {
        for number in 0..count {
            set(array, &format!("key:{number}"), &long(bytes, (number + time) as u8)).await.unwrap();
        }
    }
}

#[test]
fn what_is_stored_says_which_mechanism_values_get_and_what_was_stored_before_follows() {
    run(async |reactor| {
        let bench = bench(&reactor, Goal::Space);
        let array = bench.open().await;
        let above: Rc<dyn Device> = array.clone();
        array.move_through(&above);
        // Nothing is known of so short values: what most need least space for they get, too.
        let wish = Some(SPLITTING.form());
        execute(&array, wish_op("wished", Value::from(vec![7; 8]), wish)).await.unwrap();
        let expires = Expiry::At(reactor.wall_ms() + 86_400_000);
        let key = b"expires".to_vec();
        set(&array, "expires", b"soon").await.unwrap();
        let op = Op::SetExpiry { container: DB, key, expiry: expires, condition: Condition::None };
        execute(&array, op).await.unwrap();
        overwrite(&array, 200, (8, 1)).await;
        settled(&reactor).await;
        assert!(!found_sets(&bench).await.0.is_empty(), "they are packed first");
        overwrite(&array, 50, (8, 10)).await;
        assert_eq!(picked(&array, 8), REPLICATION, "names take more than parities save");
        // What nobody has stored again is moved.
        reactor.sleep_ns(20_000_000_000).await;
        for number in 0..200 {
            let key = format!("key:{number}");
            assert_eq!(pieces(&bench, &key, 3).await, [Some(8); 3], "{key}");
            let time = if number < 50 { 9 } else { 0 };
            assert_eq!(bytes(&array, &key).await, Some(long(8, (number + time) as u8)));
        }
        assert!(array.status().keys_moved >= 150, "{}", array.status().keys_moved);
        assert_eq!(bytes(&array, "wished").await, Some(vec![7; 8]));
        let item = get(&array, "expires").await.unwrap();
        assert_eq!((item.bytes.as_slice(), Expiry::At(item.expiry_ms.unwrap())), (&b"soon"[..], expires));
        assert_eq!(keys(&array).await, 202);
        assert_eq!(found_sets(&bench).await, (Vec::new(), 0), "no set is left");
    });
}

#[test]
fn what_clients_may_wish_for_is_not_moved() {
    run(async |reactor| {
        let policy = Policy::chosen(Goal::Space, 2, 6).unwrap().with_custom(&[SPLITTING]).unwrap();
        let bench = Bench::by_size(&reactor, 6, &[policy]);
        let array = bench.open().await;
        let above: Rc<dyn Device> = array.clone();
        array.move_through(&above);
        execute(&array, wish_op("wished", Value::from(vec![7; 8]), Some(SPLITTING.form()))).await.unwrap();
        overwrite(&array, 50, (8, 20)).await;
        reactor.sleep_ns(20_000_000_000).await;
        assert_eq!((picked(&array, 8), array.status().keys_moved), (REPLICATION, 0));
        assert_eq!(pieces(&bench, "wished", 6).await.len(), 6, "it is in shards still");
    });
}

#[test]
fn a_key_that_is_written_while_it_is_moved_keeps_what_was_written() {
    run(async |reactor| {
        let bench = bench(&reactor, Goal::Space);
        let array = bench.open().await;
        let above: Rc<dyn Device> = array.clone();
        overwrite(&array, 400, (8, 1)).await;
        overwrite(&array, 50, (8, 10)).await;
        array.move_through(&above);
        // The walk is under way meanwhile.
        for turn in 0..300 {
            let key = format!("key:{}", 100 + turn);
            match turn % 3 {
                0 => drop(del(&array, &key).await),
                _ => drop(set(&array, &key, &[turn as u8; 9]).await.unwrap()),
            }
            reactor.sleep_ns(5_000_000).await;
        }
        reactor.sleep_ns(20_000_000_000).await;
        assert!(array.status().keys_moved >= 50, "{}", array.status().keys_moved);
        for turn in 0..300 {
            let key = format!("key:{}", 100 + turn);
            let expected = (turn % 3 != 0).then(|| vec![turn as u8; 9]);
            assert_eq!(bytes(&array, &key).await, expected, "{key}");
        }
    });
}
