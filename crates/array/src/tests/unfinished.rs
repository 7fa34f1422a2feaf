//! Sets that were being made when the server died: nobody relies on what they lack.

use super::bench::{Bench, DB, bytes, del, execute, get, retrieve_op, run, set};
use super::packing::{bench, found_sets, pieces, settled, value};
use crate::Array;
use crate::header::Header;
use crate::placement;
use crate::set::{set_key, set_named};
use futures_util::future::join_all;
use plimsoll_kv::fault::{FaultDevice, FaultPolicy};
use plimsoll_kv::{Condition, Device, Error, Expiry, Op, Request, Value};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

/// A key with this primary, of so many members.
pub(super) fn key_at(primary: usize, members: usize, word: &str) -> String {
    let names = (0..).map(|number| format!("{word}:{number}"));
    names.into_iter().find(|name| placement::primary(name.as_bytes(), members) == primary).unwrap()
}

/// Whether a request stores a record of a set.
fn brings_set(op: &Op) -> bool {
    match op {
        Op::Batch(ops) => ops.iter().any(brings_set),
        Op::Store { key, .. } => set_named("{0}", key).is_some(),
        _ => false,
    }
}

/// The set had no parity yet, and named both (seed 1944).
#[test]
fn a_device_that_comes_in_takes_no_copy_away_for_a_set_that_was_never_finished() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 4, 2, 1);
        let names = [key_at(1, 4, "s"), key_at(3, 4, "t")];
        let array = bench.open().await;
        [0, 2].into_iter().for_each(|member| bench.loses(member, brings_set));
        for (number, name) in names.iter().enumerate() {
            set(&array, name, &value(20 + number, 1)).await.unwrap();
        }
        settled(&reactor).await;
        let array = bench.open().await;
        let (found, _) = found_sets(&bench).await;
        assert_eq!((found.len(), found[0].values.len()), (1, 2), "the member of one has a description");
        let out = (found[0].holders[1] as usize + 2) % 4;
        let fresh = bench.fresh(out, 77);
        array.replace(out, fresh).await.unwrap();
        bench.whole(&array).await;
        for (number, name) in names.iter().enumerate() {
            let length = value(20 + number, 1).len();
            assert_eq!(pieces(&bench, name, 2).await, [Some(length), Some(length)], "{name}");
        }
        array.take_out(out, "for a test");
        reactor.sleep_ns(1_000_000).await;
        for (number, name) in names.iter().enumerate() {
            assert_eq!(bytes(&array, name).await, Some(value(20 + number, 1)), "{name}");
        }
    });
}

/// Whether a request stores a key in a role but the first, as a stub or as a copy.
fn brings(op: &Op, name: &str, as_stub: bool) -> bool {
    match op {
        Op::Batch(ops) => ops.iter().any(|op| brings(op, name, as_stub)),
        Op::Store { key, value: Value::Bytes(value), .. } if key == name.as_bytes() => {
            Header::decode(value.start()).is_ok_and(|header| header.role > 0 && header.is_stub == as_stub)
        }
        _ => false,
    }
}

/// A key goes, and then the device of another one: whatever was cut short, that one is there.
async fn outlives(array: &Rc<Array>, bench: &Bench, (goes, stays): (&str, &str), length: usize) {
    del(array, goes).await.unwrap();
    let primary = placement::primary(stays.as_bytes(), bench.members.len());
    bench.members[primary].set_policy(FaultPolicy::From(1));
    assert_eq!(bytes(array, stays).await, Some(value(length, 1)), "{stays}, without {goes}");
}

/// What goes is let go at once, or when the array has had time to look at what was cut short.
async fn opened(reactor: &Reactor, bench: &Bench, waits: bool) -> Rc<Array> {
    let array = bench.open().await;
    if waits {
        settled(reactor).await;
    }
    array
}

/// Two keys of a set whose packing was cut short: the first has its stub, and the second none.
async fn cut_packing(bench: &Bench, reactor: &Reactor) -> [String; 2] {
    let names = [key_at(1, 4, "s"), key_at(3, 4, "t")];
    let array = bench.open().await;
    let late = names[1].clone();
    bench.loses(0, move |op| brings(op, &late, true));
    for (number, name) in names.iter().enumerate() {
        set(&array, name, &value(20 + number, 1)).await.unwrap();
    }
    settled(reactor).await;
    assert_eq!(pieces(bench, &names[0], 2).await[1], None, "it has its stub");
    assert!(pieces(bench, &names[1], 2).await[1].is_some(), "and the other one not");
    names
}

/// The server dies when one key has its stub, and the other one not yet (seed 7626).
#[test]
fn packing_that_was_cut_short_leaves_no_key_to_a_set_that_another_is_not_in() {
    for waits in [false, true] {
        run(move |reactor| async move {
            let bench = bench(&reactor, 4, 2, 1);
            let names = cut_packing(&bench, &reactor).await;
            let array = opened(&reactor, &bench, waits).await;
            outlives(&array, &bench, (&names[1], &names[0]), 20).await;
        });
    }
}

/// The device of the only stub went with the crash: who comes in its place gets none, as nobody can tell that
/// the key was in the set, and the other one is not (seed 237).
#[test]
fn a_device_that_comes_in_gets_no_stub_of_a_set_that_another_key_is_not_in() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 4, 2, 1);
        let names = cut_packing(&bench, &reactor).await;
        let array = bench.try_open(&[2]).await.unwrap();
        settled(&reactor).await;
        let fresh = bench.fresh(2, 77);
        array.replace(2, fresh).await.unwrap();
        bench.whole(&array).await;
        outlives(&array, &bench, (&names[1], &names[0]), 20).await;
    });
}

/// It keeps a value of that set itself, and had been given it just before (seed 4929).
#[test]
fn a_device_that_comes_in_gets_a_stub_of_a_set_for_which_it_keeps_a_value() {
    run(async |reactor| {
        let mut bench = bench(&reactor, 4, 3, 1);
        let array = bench.open().await;
        let names = [key_at(0, 4, "s"), key_at(3, 4, "t"), key_at(1, 4, "u")];
        join_all(names.iter().map(async |name| set(&array, name, &value(20, 1)).await.unwrap())).await;
        set(&array, &names[0], &value(30, 1)).await.unwrap();
        let fresh = bench.fresh(0, 77);
        array.replace(0, fresh).await.unwrap();
        bench.whole(&array).await;
        let (found, ghosts) = found_sets(&bench).await;
        assert_eq!((found.len(), found[0].values.len(), ghosts), (1, 3, 1), "it keeps what went");
        assert_eq!(pieces(&bench, &names[1], 2).await, [Some(value(20, 1).len()), None]);
        outlives(&array, &bench, (&names[1], &names[2]), 20).await;
    });
}

/// Who makes such a key whole, to write it, asks the member of the other one, which fails just then.
#[test]
fn a_write_looks_past_a_device_that_fails_while_its_key_leaves_an_unfinished_set() {
    run(async |reactor| {
        let bench = bench(&reactor, 4, 2, 1);
        let names = cut_packing(&bench, &reactor).await;
        let array = bench.open().await;
        bench.members[3].set_policy(FaultPolicy::From(1));
        // As a write does that comes before the start has been through all keys.
        let place = array.place(DB, names[0].as_bytes()).unwrap();
        drop(array.hold(&place).await.unwrap());
        set(&array, &names[0], b"new").await.unwrap();
        assert_eq!(bytes(&array, &names[0]).await, Some(b"new".to_vec()));
        assert_eq!(bytes(&array, &names[1]).await, Some(value(21, 1)));
    });
}

/// The server dies when one key stands as copies again, and the other one not yet (seed 7626).
#[test]
fn taking_apart_that_was_cut_short_leaves_no_key_to_a_set_that_another_has_left() {
    for waits in [false, true] {
        run(move |reactor| async move {
            let bench = bench(&reactor, 5, 3, 1);
            let names: Vec<String> = (0..3).map(|primary| key_at(primary, 5, "s")).collect();
            let array = bench.open().await;
            let each = names.iter().enumerate().map(async |(number, name)| {
                set(&array, name, &value(20 + number, 1)).await.unwrap();
            });
            join_all(each).await;
            settled(&reactor).await;
            let (found, _) = found_sets(&bench).await;
            let keys = found[0].values.iter().map(|value| String::from_utf8_lossy(&value.key).into_owned());
            let [first, second, gone] = &keys.collect::<Vec<_>>()[..] else { panic!("{found:?}") };
            let late = second.clone();
            let holder = (placement::primary(late.as_bytes(), 5) + 1) % 5;
            bench.loses(holder, move |op| brings(op, &late, false));
            del(&array, gone).await.unwrap();
            settled(&reactor).await;
            assert!(pieces(&bench, first, 2).await[1].is_some(), "it has a copy");
            assert_eq!(pieces(&bench, second, 2).await[1], None, "and the other one not");
            let array = opened(&reactor, &bench, waits).await;
            let length = 20 + names.iter().position(|name| name == second).unwrap();
            outlives(&array, &bench, (first, second), length).await;
        });
    }
}

/// Whether a request deletes a key in its first role.
fn deletes(op: &Op, name: &str) -> bool {
    match op {
        Op::Batch(ops) => ops.iter().any(|op| deletes(op, name)),
        Op::Delete { container, key, .. } => {
            *container == placement::container(DB, 0) && key == name.as_bytes()
        }
        _ => false,
    }
}

/// The server dies when the stub of a key has been deleted, and its value not yet: it got a copy in the place
/// of that, and left its set later as if it had been in none (seed 9609).
#[test]
fn a_delete_that_was_cut_short_behind_the_stub_leaves_the_value_to_its_set() {
    for waits in [false, true] {
        run(move |reactor| async move {
            let bench = bench(&reactor, 4, 2, 1);
            let names = [key_at(1, 4, "s"), key_at(3, 4, "t")];
            let array = bench.open().await;
            for (number, name) in names.iter().enumerate() {
                set(&array, name, &value(20 + number, 1)).await.unwrap();
            }
            settled(&reactor).await;
            // More than the journal names: of both it does not know any more that they were packed.
            for number in 0..3000 {
                set(&array, &format!("other:{number}"), b"v").await.unwrap();
            }
            settled(&reactor).await;
            let goes = names[0].clone();
            bench.loses(1, move |op| deletes(op, &goes));
            let (deleting, goes) = (array.clone(), names[0].clone());
            reactor.spawn(plimsoll_reactor::Work::Kv, async move {
                let _ = del(&deleting, &goes).await;
            });
            reactor.sleep_ns(1_000_000).await;
            let [whole, stub] = [0, 1].map(|role| {
                let op = retrieve_op(placement::container(DB, role), &names[0]);
                execute(&bench.below[1 + role], op)
            });
            assert!(whole.await.is_ok() && stub.await == Err(Error::NotFound), "the stub alone is gone");
            let array = opened(&reactor, &bench, waits).await;
            assert_eq!(bytes(&array, &names[0]).await, Some(value(20, 1)));
            outlives(&array, &bench, (&names[0], &names[1]), 21).await;
        });
    }
}

/// A round of two keys of which the second one's stub is lacking, on a device that holds nothing else of it.
async fn cut_round(reactor: &Reactor) -> (Vec<String>, Bench) {
    for tried in 0..20 {
        let bench = bench(reactor, 6, 2, 1);
        let array = bench.open().await;
        let names = [0, 2].map(|primary| key_at(primary, 6, &format!("s{tried}"))).to_vec();
        let late = names[1].clone();
        bench.loses(3, move |op| brings(op, &late, true));
        for number in 0..40 {
            set(&array, &format!("warm:{number}"), b"so that others are expected").await.unwrap();
        }
        for (number, name) in names.iter().enumerate() {
            let (array, name) = (array.clone(), name.clone());
            reactor.spawn(plimsoll_reactor::Work::Kv, async move {
                let _ = set(&array, &name, &value(20 + number, 1)).await;
            });
        }
        reactor.sleep_ns(1_000_000_000).await;
        let named = |key: &[u8]| names.iter().any(|name| name.as_bytes() == key);
        let (found, _) = found_sets(&bench).await;
        let cut = found.iter().find(|set| set.values.iter().all(|value| named(&value.key)));
        if cut.is_some_and(|set| set.values.len() == 2 && !set.holders.contains(&3)) {
            return (names, bench);
        }
    }
    panic!("no such round")
}

#[test]
fn a_round_that_was_cut_short_leaves_no_key_to_a_set_that_another_is_not_in() {
    for waits in [false, true] {
        run(move |reactor| async move {
            let (names, bench) = cut_round(&reactor).await;
            let array = opened(&reactor, &bench, waits).await;
            outlives(&array, &bench, (&names[1], &names[0]), 20).await;
        });
    }
}

/// A device has no room for a stub, and the other key has its one.
#[test]
fn packing_that_was_refused_leaves_no_key_to_a_set_that_another_is_not_in() {
    for waits in [false, true] {
        run(move |reactor| async move {
            let mut bench = bench(&reactor, 4, 2, 1);
            let names = [key_at(1, 4, "s"), key_at(3, 4, "t")];
            let full = bench.fails(0, &Error::NoSpace);
            let array = bench.open().await;
            let late = names[1].clone();
            full.set_policy(FaultPolicy::When(Box::new(move |request| brings(&request.op, &late, true))));
            for (number, name) in names.iter().enumerate() {
                set(&array, name, &value(20 + number, 1)).await.unwrap();
            }
            reactor.sleep_ns(if waits { 500_000_000 } else { 55_000_000 }).await;
            assert!(pieces(&bench, &names[1], 2).await[1].is_some(), "it has no stub");
            outlives(&array, &bench, (&names[1], &names[0]), 20).await;
        });
    }
}

/// All members refuse with this error what their policies say.
fn failing(bench: &mut Bench, error: &Error) -> Vec<Rc<FaultDevice>> {
    (0..bench.members.len()).map(|member| bench.fails(member, error)).collect()
}

/// Whether a request reads the record of a set.
fn reads(request: &Request, record: &[u8]) -> bool {
    matches!(&request.op, Op::Retrieve { key, .. } if key == record)
}

/// The ghost was made while nobody knew whether the key is in a set, and its value was still there.
#[test]
fn a_ghost_of_a_value_that_is_still_there_keeps_no_key_in_its_set() {
    run(|reactor| async move {
        let mut bench = bench(&reactor, 4, 2, 1);
        let faults = failing(&mut bench, &Error::NoSpace);
        let [stays, goes] = cut_packing(&bench, &reactor).await;
        // The background comes to the key that stays a little later.
        let record = set_key("{0}", found_sets(&bench).await.0[0].name);
        for fault in &faults {
            let record = record.clone();
            fault.set_policy(FaultPolicy::When(Box::new(move |request| reads(request, &record))));
        }
        let array = bench.open().await;
        let (key, condition) = (goes.clone().into_bytes(), Condition::None);
        let expiry = Expiry::At(array.now_ms() + 1_000_000);
        execute(&array, Op::SetExpiry { container: DB, key, expiry, condition }).await.unwrap();
        faults.iter().for_each(|fault| fault.set_policy(FaultPolicy::Never));
        reactor.sleep_ns(20_000_000_000).await;
        set(&array, &goes, &value(30, 2)).await.unwrap();
        settled(&reactor).await;
        array.take_out(1, "lost for a test");
        reactor.sleep_ns(1_000_000).await;
        assert_eq!(bytes(&array, &stays).await, Some(value(20, 1)));
    });
}

/// With two parities, and the device of one of two stubs gone with the crash: the other says that it is none.
#[test]
fn a_key_is_not_in_a_set_if_one_that_knows_says_so_though_another_is_out() {
    run(|reactor| async move {
        for wait_ms in 0..30 {
            let bench = bench(&reactor, 6, 2, 2);
            let names = [key_at(0, 6, "a"), key_at(3, 6, "b")];
            let array = bench.open().await;
            reactor.sleep_ns(1_000_000 * wait_ms).await;
            for member in [4, 5] {
                let late = names[1].clone();
                bench.loses(member, move |op| brings(op, &late, true));
            }
            for (number, name) in names.iter().enumerate() {
                set(&array, name, &value(20 + number, 1)).await.unwrap();
            }
            settled(&reactor).await;
            let (found, _) = found_sets(&bench).await;
            if !found.last().unwrap().holders[..2].contains(&4) {
                continue;
            }
            assert_eq!(pieces(&bench, &names[0], 3).await[1], None);
            let array = bench.try_open(&[4]).await.unwrap();
            settled(&reactor).await;
            return outlives(&array, &bench, (&names[1], &names[0]), 20).await;
        }
        panic!("no such set");
    });
}

/// No holder of its set can read it: what the key's own device has is enough.
#[test]
fn a_key_whose_set_nobody_can_read_is_read_written_and_deleted() {
    run(|reactor| async move {
        let mut bench = bench(&reactor, 4, 2, 1);
        let faults = failing(&mut bench, &Error::Unreadable("rot".to_owned()));
        let [name, _] = cut_packing(&bench, &reactor).await;
        let record = set_key("{0}", found_sets(&bench).await.0[0].name);
        for fault in &faults {
            let record = record.clone();
            fault.set_policy(FaultPolicy::When(Box::new(move |request| reads(request, &record))));
        }
        let array = bench.open().await;
        settled(&reactor).await;
        assert_eq!(bytes(&array, &name).await, Some(value(20, 1)));
        set(&array, &name, b"new").await.unwrap();
        assert_eq!(bytes(&array, &name).await.as_deref(), Some(&b"new"[..]));
        del(&array, &name).await.unwrap();
        execute(&array, Op::Clear { container: DB }).await.unwrap();
    });
}

/// Two records of a set have rotted, and it loses a value: what cannot be read is not taken for absent.
#[test]
fn a_value_that_cannot_be_read_is_not_absent_when_its_set_is_taken_apart() {
    run(|reactor| async move {
        let mut bench = bench(&reactor, 5, 3, 1);
        let names: Vec<String> = (0..3).map(|primary| key_at(primary, 5, "s")).collect();
        let faults = failing(&mut bench, &Error::Unreadable("rot".to_owned()));
        let array = bench.open().await;
        let each = names.iter().enumerate().map(async |(number, name)| {
            set(&array, name, &value(20 + number, 1)).await.unwrap();
        });
        join_all(each).await;
        settled(&reactor).await;
        let (found, _) = found_sets(&bench).await;
        let (lost, own) = (names[1].clone().into_bytes(), placement::container(DB, 0));
        faults[1].set_policy(FaultPolicy::When(Box::new(move |request| {
            matches!(&request.op, Op::Retrieve { container, key, .. } if *container == own && *key == lost)
        })));
        let (parity, record) = (usize::from(found[0].holders[0]), set_key("{0}", found[0].name));
        assert_ne!(parity, 1);
        faults[parity].set_policy(FaultPolicy::When(Box::new(move |request| reads(request, &record))));
        let given = get(&array, &names[1]).await;
        assert!(matches!(given, Err(Error::Unreadable(_))), "{given:?}");
        del(&array, &names[0]).await.unwrap();
        settled(&reactor).await;
        let given = get(&array, &names[1]).await;
        assert!(matches!(given, Err(Error::Unreadable(_))), "{given:?}");
    });
}

/// Whether a request stores anything.
fn stores(op: &Op) -> bool {
    matches!(op, Op::Store { container, .. } if !container.is_books())
        || matches!(op, Op::Batch(ops) if ops.iter().any(|op| matches!(op, Op::Store { .. })))
}

/// One device is full: packing is tried again and again, and so is taking apart.
#[test]
fn what_a_full_device_refuses_again_and_again_leaves_nothing_behind_each_time() {
    for is_packed_before in [false, true] {
        run(move |reactor| async move {
            let mut bench = bench(&reactor, 5, 3, 1);
            let names: Vec<String> = (0..3).map(|primary| key_at(primary, 5, "s")).collect();
            let full = bench.fails(2, &Error::NoSpace);
            let array = bench.open().await;
            let fill = || full.set_policy(FaultPolicy::When(Box::new(|request| stores(&request.op))));
            if is_packed_before {
                let each = names.iter().enumerate().map(async |(number, name)| {
                    set(&array, name, &value(20 + number, 1)).await.unwrap();
                });
                join_all(each).await;
                settled(&reactor).await;
                fill();
                del(&array, &names[0]).await.unwrap();
            } else {
                for (number, name) in names[..1].iter().chain(&[key_at(3, 5, "t")]).enumerate() {
                    set(&array, name, &value(20 + number, 1)).await.unwrap();
                }
                fill();
            }
            let hot = key_at(3, 5, "hot");
            for step in 0..600_u32 {
                set(&array, &hot, &value(9, step as u8)).await.unwrap();
                reactor.sleep_ns(1_000_000_000).await;
            }
            let (sets, ghosts) = found_sets(&bench).await;
            // Some of the last minute wait to be deleted together.
            assert!(sets.len() <= 12 && ghosts <= 80, "{} sets, {ghosts} ghosts", sets.len());
            assert!(array.marked.get(), "what may be half written is named");
        });
    }
}

/// Members are waited for, whatever deadline a client's request has.
#[test]
fn no_member_is_told_that_it_may_be_late() {
    run(|reactor| async move {
        let mut bench = bench(&reactor, 4, 2, 1);
        let faults = failing(&mut bench, &Error::Overloaded);
        for fault in &faults {
            fault.set_policy(FaultPolicy::When(Box::new(|request| request.deadline_ns != 0)));
        }
        let array = bench.open().await;
        for op in [
            super::bench::store_op("k", Value::from(value(20, 1))),
            super::bench::retrieve_op(DB, "k"),
            Op::Delete { container: DB, key: b"k".to_vec(), condition: Condition::None },
        ] {
            let request = Request::new(plimsoll_kv::Durability::Sync, op);
            let request = Request { deadline_ns: reactor.now_ns() + 1, ..request };
            array.clone().execute(request).await.unwrap();
        }
    });
}
