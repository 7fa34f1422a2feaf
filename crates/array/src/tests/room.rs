//! Full devices and packing: what waits to be packed gives room, and who is refused waits for it.

use super::bench::{Bench, DB, bytes, execute, retrieve_op, run, set};
use super::packing::{bench, fill, found_sets, settled, value};
use crate::placement::{self, ROSTER, sets};
use crate::{Array, Mechanism, Policy, SizeRange};
use futures_util::future::{join, join_all};
use plimsoll_kv::fault::{FaultDevice, FaultPolicy};
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_kv::{Class, ContainerId, Error, Op, Request, Room, Value};
use plimsoll_reactor::Reactor;
use std::cell::Cell;
use std::rc::Rc;

/// Whether a request stores something in a container, or under a key.
fn stores(op: &Op, is_it: &dyn Fn(ContainerId, &[u8]) -> bool) -> bool {
    match op {
        Op::Batch(ops) => ops.iter().any(|op| stores(op, is_it)),
        Op::Store { container, key, .. } => is_it(*container, key),
        _ => false,
    }
}

fn is_set(request: &Request) -> bool {
    stores(&request.op, &|container, _| container == sets(DB))
}

fn is_late(request: &Request) -> bool {
    stores(&request.op, &|_, key| key.starts_with(b"late"))
}

fn full(bench: &mut Bench) -> Vec<Rc<FaultDevice>> {
    (0..bench.below.len()).map(|member| bench.fails(member, &Error::NoSpace)).collect()
}

/// Stores one after the other: they stand as copies, and are packed behind that.
async fn fill_slowly(array: &Rc<Array>, reactor: &Reactor, numbers: std::ops::Range<usize>) {
    for number in numbers {
        set(array, &format!("key:{number}"), &value(number, 1)).await.unwrap();
        reactor.sleep_ns(60_000_000).await;
    }
}

/// Values that wait to be packed, as a device was out until now. What this says is refused until some sets
/// have been packed; records of sets that were stored by then.
async fn about_to_pack(bench: &mut Bench, is_refused: fn(&Request) -> bool) -> (Rc<Array>, Rc<Cell<usize>>) {
    let faults = full(bench);
    let array = bench.open().await;
    array.take_out(5, "for a test");
    fill(&array, 180, 1).await;
    let packed = Rc::new(Cell::new(0));
    for fault in &faults {
        let packed = packed.clone();
        fault.set_policy(FaultPolicy::When(Box::new(move |request| {
            packed.set(packed.get() + usize::from(is_set(request)));
            is_refused(request) && packed.get() < 60 && request.room == Room::OfStores
        })));
    }
    let fresh = bench.fresh(5, 77);
    array.replace(5, fresh).await.unwrap();
    bench.whole(&array).await;
    (array, packed)
}

#[test]
fn a_store_that_full_devices_refuse_waits_while_values_are_packed() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        let (array, packed) = about_to_pack(&mut bench, is_late).await;
        assert!(packed.get() < 60, "{} records of sets", packed.get());
        let late = (0..40).map(async |number| set(&array, &format!("late:{number}"), b"a value").await);
        join_all(late).await.into_iter().for_each(|stored| drop(stored.unwrap()));
        assert!(packed.get() >= 60);
        assert_eq!(bytes(&array, "late:7").await.as_deref(), Some(&b"a value"[..]));
        settled(&reactor).await;
        assert!(found_sets(&bench).await.0.len() >= 40);
    });
}

/// Nothing gives room back: it is refused, and nobody waits for what does not come.
#[test]
fn a_store_is_refused_where_packing_is_hindered() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        let faults = full(&mut bench);
        let array = bench.open().await;
        for fault in &faults {
            fault.set_policy(FaultPolicy::When(Box::new(|request| is_set(request) || is_late(request))));
        }
        fill_slowly(&array, &reactor, 120..144).await;
        assert_eq!(set(&array, "late", b"a value").await, Err(Error::NoSpace));
        faults.iter().for_each(|fault| fault.set_policy(FaultPolicy::Never));
        set(&array, "late", b"a value").await.unwrap();
    });
}

/// Devices are full but for what makes room: parities and stubs go in the place of copies.
#[test]
fn what_stands_as_copies_is_packed_on_full_devices() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        let faults = full(&mut bench);
        let array = bench.open().await;
        for fault in &faults {
            fault.set_policy(FaultPolicy::When(Box::new(|request| {
                is_set(request) && request.room == Room::OfStores
            })));
        }
        fill_slowly(&array, &reactor, 120..160).await;
        settled(&reactor).await;
        let (sets, _) = found_sets(&bench).await;
        assert!(sets.len() >= 10, "{} sets", sets.len());
    });
}

/// One of the devices of a round is full, and not one that holds every value of it.
#[test]
fn a_full_device_refuses_no_store_of_a_round_that_it_holds_nothing_of() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 12, 4, 2);
        let faults = full(&mut bench);
        let array = bench.open().await;
        fill(&array, 180, 1).await;
        // Packing is hindered: nobody waits for it.
        let packs = |request: &Request| is_set(request) && request.class == Class::Background;
        for (member, fault) in faults.iter().enumerate() {
            fault.set_policy(FaultPolicy::When(Box::new(move |request| {
                let is_store = stores(&request.op, &|_, key| key.starts_with(b"key:"));
                packs(request) || member == 0 && is_store && request.room == Room::OfStores
            })));
        }
        for number in 0..8 {
            set(&array, &format!("alone:{number}"), b"copies").await.unwrap();
            settled(&reactor).await;
        }
        let names: Vec<String> = (0..180).map(|number| format!("key:{number}")).collect();
        let each = names.iter().map(|name| set(&array, name, b"another value"));
        let stored = join_all(each).await;
        for (name, stored) in names.iter().zip(stored) {
            let primary = placement::primary(name.as_bytes(), 12);
            let holds = (0..3).any(|role| placement::member(primary, role, 12) == 0);
            assert_eq!(stored.is_err(), holds, "{name}: {stored:?}");
        }
    });
}

/// More came than may wait to be packed, of some devices: it is found when the others have been packed.
#[test]
fn what_came_beyond_what_may_wait_is_packed_without_a_scrub() {
    run(async |reactor| {
        let each = MemoryOptions { value_bytes_max: 8192, ..MemoryOptions::default() };
        let policy = Mechanism::Packing { data: 4, parities: 2 }.into();
        let bench = Bench::with(&reactor, 64, &[policy], each);
        let array = bench.open().await;
        let mut names: Vec<Vec<String>> = vec![Vec::new(); 64];
        for number in 0.. {
            let name = format!("key:{number}");
            names[placement::primary(name.as_bytes(), 64)].push(name);
            if names[..4].iter().all(|names| names.len() >= 300) {
                break;
            }
        }
        for name in names[..4].iter().flat_map(|names| &names[..300]) {
            set(&array, name, b"a value that is to be packed").await.unwrap();
        }
        for _ in 0..4 {
            settled(&reactor).await;
        }
        let (sets, _) = found_sets(&bench).await;
        let packed: usize = sets.iter().map(|set| set.values.len()).sum();
        assert_eq!(packed, 1200);
    });
}

/// A start knows of no keys that waited; nothing found them but a scrub, or their next write.
#[test]
fn what_waited_to_be_packed_when_the_server_ended_is_packed() {
    run(async |reactor| {
        let bench = bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        let says = async || {
            let op = retrieve_op(ROSTER, "{0}unpacked");
            execute(&bench.below[3], op).await.is_ok()
        };
        for number in 0..40 {
            set(&array, &format!("key:{number}"), b"it comes alone").await.unwrap();
        }
        assert!(found_sets(&bench).await.0.is_empty() && says().await, "they wait");
        let array = bench.open().await;
        settled(&reactor).await;
        let packed: usize = found_sets(&bench).await.0.iter().map(|set| set.values.len()).sum();
        // One alone finds no company, and waits.
        assert!(packed >= 39 && says().await == (packed < 40), "{packed}");
        assert_eq!(array.status().packing_waiting, 40 - packed as u64);
    });
}

/// Requests for a key take effect in their order: who waits for room is not to write after another that has
/// come since.
#[test]
fn a_store_that_waits_is_refused_when_another_comes_for_its_key() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 6, 4, 2);
        let is_long = |request: &Request| stores_bytes(&request.op, b"late") > 100;
        let (array, _) = about_to_pack(&mut bench, is_long).await;
        let first = set(&array, "late", &[1; 500]);
        let next = async {
            reactor.sleep_ns(1_000_000).await;
            assert_eq!(bytes(&array, "late").await, None);
            set(&array, "late", b"short").await
        };
        let (first, next) = join(first, next).await;
        assert_eq!(first, Err(Error::NoSpace));
        next.unwrap();
        assert_eq!(bytes(&array, "late").await.as_deref(), Some(&b"short"[..]));
    });
}

/// Bytes of what a request stores under a key.
fn stores_bytes(op: &Op, name: &[u8]) -> usize {
    match op {
        Op::Batch(ops) => ops.iter().map(|op| stores_bytes(op, name)).sum(),
        Op::Store { key, value: Value::Bytes(value), .. } if key == name => value.len(),
        _ => 0,
    }
}

/// The devices of a round hold other keys of it, too: what these have in roles of an older form stays (found
/// by reading: three of five shards were left).
#[test]
fn what_a_key_has_in_other_roles_stays_when_its_round_is_refused() {
    run(async |reactor| {
        let range = |value_bytes_max, mechanism| SizeRange { value_bytes_max, mechanism };
        let (pack, split) =
            (Mechanism::Packing { data: 4, parities: 2 }, Mechanism::Splitting { data: 5, parities: 3 });
        let policy = Policy::by_size(&[range(500, pack), range(u64::MAX, split)]).unwrap();
        let mut bench = Bench::by_size(&reactor, 8, &[policy]);
        let faults = full(&mut bench);
        let array = bench.open().await;
        let names: Vec<String> = (0..64).map(|number| format!("key:{number}")).collect();
        let each = names.iter().map(|name| set(&array, name, &[7; 800]));
        join_all(each).await.into_iter().for_each(|stored| drop(stored.unwrap()));
        settled(&reactor).await;
        // Short values come in rounds, and one device has room for none.
        faults[3].set_policy(FaultPolicy::When(Box::new(|request| {
            stores(&request.op, &|_, key| key.starts_with(b"key:")) && request.room == Room::OfStores
        })));
        let each = names.iter().map(|name| set(&array, name, &[8; 400]));
        let stored = join_all(each).await;
        assert!(stored.iter().any(Result::is_err));
        for (name, stored) in names.iter().zip(stored) {
            let expected = if stored.is_ok() { vec![8; 400] } else { vec![7; 800] };
            assert_eq!(bytes(&array, name).await, Some(expected), "{name}: {stored:?}");
        }
    });
}
