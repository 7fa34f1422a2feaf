//! Members that fail, fill up, lie, go away and come back.

use super::bench::{Bench, DB, bytes, del, execute, get, keys, retrieve_op, run, set, store_in};
use crate::placement::{self, container};
use crate::{Array, MemberState};
use futures_util::future::join_all;
use plimsoll_kv::fault::{FaultDevice, FaultPolicy};
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_kv::{Condition, Error, Expiry, Op, Output, Request, Value};
use std::cell::Cell;
use std::rc::Rc;

fn is_write(op: &Op) -> bool {
    matches!(op, Op::Store { .. } | Op::Delete { .. } | Op::Batch(_))
}

fn state(array: &Rc<Array>, member: usize) -> MemberState {
    array.status().members[member].state
}

async fn fill(array: &Rc<Array>, generation: u32) {
    let each = (0..200).map(|number| async move {
        set(array, &format!("key:{number}"), format!("{generation}:{number}").as_bytes()).await.unwrap();
    });
    join_all(each).await;
}

async fn check(array: &Rc<Array>, generation: u32) {
    for number in 0..200 {
        let value = bytes(array, &format!("key:{number}")).await;
        assert_eq!(value, Some(format!("{generation}:{number}").into_bytes()), "key:{number}");
    }
    assert_eq!(keys(array).await, 200);
}

#[test]
fn a_member_that_fails_is_out_and_nothing_else_changes() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 5, 3);
        let array = bench.open().await;
        fill(&array, 1).await;
        bench.members[2].set_policy(FaultPolicy::From(1));
        check(&array, 1).await;
        fill(&array, 2).await;
        assert_eq!(state(&array, 2), MemberState::Out);
        assert!(array.status().members[2].reason.contains("broken for a test"));
        check(&array, 2).await;
        bench.members[3].set_policy(FaultPolicy::From(1));
        fill(&array, 3).await;
        check(&array, 3).await;
        // Three of three: some keys have no copy left, and say so.
        bench.members[4].set_policy(FaultPolicy::From(1));
        let lost = (0..200).map(|number| format!("key:{number}"));
        let lost: Vec<String> = lost.filter(|key| placement::primary(key.as_bytes(), 5) == 2).collect();
        for key in &lost {
            assert!(matches!(set(&array, key, b"x").await, Err(Error::ReadOnly(_))));
            assert!(matches!(get(&array, key).await, Err(Error::Unreadable(_) | Error::ReadOnly(_))));
        }
    });
}

#[test]
fn what_cannot_be_read_is_read_elsewhere_and_written_again() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 2);
        let array = bench.open().await;
        set(&array, "k", b"value").await.unwrap();
        let primary = placement::primary(b"k", 3);
        // Rot: another header, or none.
        let rotten = store_in(container(DB, 0), "k", Value::from(b"rot".to_vec()));
        execute(&bench.below[primary], rotten).await.unwrap();
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"value"[..]));
        reactor.sleep_ns(1_000_000_000).await;
        let status = array.status();
        assert_eq!((status.members[primary].repaired, status.unsettled), (1, 0));
        let again = execute(&bench.below[primary], retrieve_op(container(DB, 0), "k")).await;
        assert!(matches!(again, Ok(plimsoll_kv::Output::Found(item)) if &item.bytes[32..] == b"value"));
    });
}

#[test]
fn a_write_that_one_member_has_no_room_for_is_undone_on_the_others() {
    run(async |reactor| {
        let each = MemoryOptions { capacity_bytes: 64 << 10, ..MemoryOptions::default() };
        let mut bench = Bench::of(&reactor, 3, 3, each);
        // One member has half the room.
        let small = MemoryOptions { capacity_bytes: 32 << 10, ..MemoryOptions::default() };
        let other = Bench::of(&reactor, 1, 1, small);
        bench.below[1] = other.below[0].clone();
        bench.members[1] = other.members[0].clone();
        let array = bench.open().await;
        set(&array, "before", b"stays").await.unwrap();
        let mut number = 0;
        let refused = loop {
            match set(&array, &format!("key:{number}"), &[7; 1000]).await {
                Ok(_) => number += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, Error::NoSpace);
        assert!(number > 20, "{number}");
        assert_eq!(keys(&array).await, number + 1);
        assert_eq!(bytes(&array, &format!("key:{number}")).await, None);
        // An overwrite that does not fit leaves what was there, on every member.
        assert_eq!(set(&array, "before", &[1; 30_000]).await, Err(Error::NoSpace));
        for member in [0, 1, 2] {
            bench.members.iter().for_each(|member| member.set_policy(FaultPolicy::Never));
            let others = (0..3).filter(|other| *other != member);
            for other in others {
                let fail = |request: &plimsoll_kv::Request| matches!(request.op, Op::Retrieve { .. });
                bench.members[other].set_policy(FaultPolicy::When(Box::new(fail)));
            }
            let _ = get(&array, "before").await;
        }
        bench.members.iter().for_each(|member| member.set_policy(FaultPolicy::Never));
        assert_eq!(bytes(&array, "before").await.as_deref(), Some(&b"stays"[..]));
        assert!(del(&array, "key:0").await.is_ok(), "deletes go on");
        assert!(set(&array, "small", b"fits").await.is_ok());
        assert_eq!(array.status().members.iter().filter(|member| member.state == MemberState::In).count(), 3);
    });
}

/// Bytes of what a request stores under a key.
fn stored_bytes(op: &Op, name: &str) -> Option<usize> {
    match op {
        Op::Batch(ops) => ops.iter().find_map(|op| stored_bytes(op, name)),
        Op::Store { key, value: Value::Bytes(value), .. } if key == name.as_bytes() => Some(value.len()),
        _ => None,
    }
}

/// A short value took the place of a long one, which has no room any more where it was: it is not refused,
/// and read after a restart, too.
#[test]
fn a_short_value_that_one_member_refuses_stands_where_a_long_one_has_no_room_any_more() {
    // How often the full member refuses the short value: then it fits where the long one stood, or never.
    for refused_times in [1, 2, usize::MAX] {
        run(move |reactor| async move {
            let mut bench = Bench::new(&reactor, 3, 3);
            let faults = [0, 1, 2].map(|member| bench.fails(member, &Error::NoSpace));
            let array = bench.open().await;
            let (long, short) = (vec![1; 900], b"short".to_vec());
            set(&array, "k", &long).await.unwrap();
            for member in [0, 2] {
                let is_long =
                    |request: &Request| stored_bytes(&request.op, "k").is_some_and(|bytes| bytes > 500);
                faults[member].set_policy(FaultPolicy::When(Box::new(is_long)));
            }
            let mut times = 0;
            let refuses = move |request: &Request| {
                times += usize::from(stored_bytes(&request.op, "k").is_some());
                stored_bytes(&request.op, "k").is_some() && times <= refused_times
            };
            faults[1].set_policy(FaultPolicy::When(Box::new(refuses)));
            set(&array, "k", &short).await.unwrap();
            assert_eq!(bytes(&array, "k").await.as_ref(), Some(&short), "{refused_times}");
            faults.iter().for_each(|fault| fault.set_policy(FaultPolicy::Never));
            reactor.sleep_ns(2_000_000_000).await;
            let array = bench.open().await;
            bench.whole(&array).await;
            assert_eq!(bytes(&array, "k").await.as_ref(), Some(&short), "{refused_times}, after a restart");
        });
    }
}

/// The value before has room, but for the first that is to have it back.
#[test]
fn what_was_refused_is_on_no_member_though_taking_it_back_fails() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let faults = [0, 1, 2].map(|member| bench.fails(member, &Error::NoSpace));
        let array = bench.open().await;
        set(&array, "k", b"short").await.unwrap();
        let is_long = |bytes: Option<usize>| bytes.is_some_and(|bytes| bytes > 500);
        for (member, fault) in faults.iter().enumerate() {
            let refuses = move |request: &Request| {
                let bytes = stored_bytes(&request.op, "k");
                bytes.is_some() && is_long(bytes) == (member == 1)
            };
            fault.set_policy(FaultPolicy::When(Box::new(refuses)));
        }
        assert_eq!(set(&array, "k", &[1; 900]).await, Err(Error::NoSpace));
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"short"[..]));
        faults.iter().for_each(|fault| fault.set_policy(FaultPolicy::Never));
        reactor.sleep_ns(2_000_000_000).await;
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"short"[..]));
        assert_eq!(array.status().unsettled, 0);
    });
}

#[test]
fn a_new_device_gets_what_it_should_hold_while_clients_go_on() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 4, 2);
        let array = bench.open().await;
        fill(&array, 1).await;
        bench.members[1].set_policy(FaultPolicy::From(1));
        fill(&array, 2).await;
        assert_eq!(state(&array, 1), MemberState::Out);
        for number in 0..20 {
            del(&array, &format!("key:{number}")).await.unwrap();
        }
        let fresh = bench.fresh(1, 77);
        array.replace(1, fresh).await.unwrap();
        fill(&array, 3).await;
        bench.whole(&array).await;
        assert_eq!(array.status().members[1].name, "new1");
        check(&array, 3).await;
        // What the others hold is not needed any more.
        bench.members[2].set_policy(FaultPolicy::From(1));
        check(&array, 3).await;
        fill(&array, 4).await;
        check(&array, 4).await;
    });
}

#[test]
fn a_member_that_comes_back_brings_back_nothing_that_was_deleted() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let array = bench.open().await;
        fill(&array, 1).await;
        bench.members[0].set_policy(FaultPolicy::When(Box::new(|request| is_write(&request.op))));
        fill(&array, 2).await;
        for number in 0..200 {
            if number % 2 == 0 {
                del(&array, &format!("key:{number}")).await.unwrap();
            }
        }
        array.close().await;
        bench.members[0].set_policy(FaultPolicy::Never);
        let array = bench.open().await;
        assert_ne!(state(&array, 0), MemberState::In, "it has missed writes");
        bench.whole(&array).await;
        assert_eq!(keys(&array).await, 100);
        // It alone is asked.
        for other in [1, 2] {
            array.take_out(other, "for a test");
        }
        reactor.sleep_ns(1_000_000).await;
        for number in 0..200 {
            let value = bytes(&array, &format!("key:{number}")).await;
            let right = (number % 2 == 1).then(|| format!("2:{number}").into_bytes());
            assert_eq!(value, right, "key:{number}");
        }
    });
}

#[test]
fn the_last_member_is_never_taken_out() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 2, 2);
        let array = bench.open().await;
        set(&array, "k", b"v").await.unwrap();
        array.take_out(0, "for a test");
        reactor.sleep_ns(1_000_000).await;
        bench.members[1].set_policy(FaultPolicy::When(Box::new(|request| is_write(&request.op))));
        assert!(matches!(set(&array, "k", b"w").await, Err(Error::ReadOnly(_))));
        assert_eq!(state(&array, 1), MemberState::In);
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"v"[..]), "it can be read still");
    });
}

#[test]
fn a_scrub_finds_and_mends_what_differs() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 4, 3);
        let array = bench.open().await;
        fill(&array, 1).await;
        for number in 0..50 {
            let key = format!("key:{number}");
            let role = number % 3;
            let member = (placement::primary(key.as_bytes(), 4) + role) % 4;
            let spoilt = store_in(container(DB, role), &key, Value::from(b"\xd1rubbish".to_vec()));
            execute(&bench.below[member], spoilt).await.unwrap();
        }
        array.scrub();
        while array.status().scrubbing {
            let status = array.status();
            assert!([0, 600].contains(&status.keys_to_scrub) && status.keys_scrubbed <= 600, "{status:?}");
            reactor.sleep_ns(1_000_000).await;
        }
        let status = array.status();
        assert_eq!((status.keys_scrubbed, status.keys_to_scrub, status.scrub_errors), (600, 600, 50));
        assert_eq!(status.members.iter().map(|member| member.repaired).sum::<u64>(), 50);
        array.scrub();
        while array.status().scrubbing {
            reactor.sleep_ns(1_000_000).await;
        }
        assert_eq!(array.status().scrub_errors, 0, "nothing is left");
        check(&array, 1).await;
    });
}

/// The resynchronisation used to begin again for ever over it.
#[test]
fn a_key_that_nobody_can_read_holds_up_no_rebuild_and_is_not_absent() {
    run(async |reactor| {
        for (mut bench, damaged) in
            [(Bench::new(&reactor, 2, 2), vec![1]), (Bench::split(&reactor, 5, 3, 2), vec![1, 2, 3])]
        {
            let array = bench.open().await;
            fill(&array, 1).await;
            for member in damaged {
                let role = (member + bench.members.len() - placement::primary(b"key:7", bench.members.len()))
                    % bench.members.len();
                let rot = store_in(container(DB, role), "key:7", Value::from(vec![9; 40]));
                execute(&bench.below[member], rot).await.unwrap();
            }
            let fresh = bench.fresh(0, 77);
            array.replace(0, fresh).await.unwrap();
            bench.whole(&array).await;
            assert!(matches!(get(&array, "key:7").await, Err(Error::Unreadable(_))));
            assert_eq!(bytes(&array, "key:8").await.as_deref(), Some(&b"1:8"[..]));
            array.close().await;
            let array = bench.open().await;
            assert!(matches!(get(&array, "key:7").await, Err(Error::Unreadable(_))));
            fill(&array, 2).await;
            check(&array, 2).await;
        }
    });
}

/// A scan used to tell its client that one member of several could not read.
#[test]
fn keys_that_a_member_cannot_tell_are_told_by_another() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let error = Error::Unreadable("for a test".to_owned());
        bench.members[1] = FaultDevice::new(bench.below[1].clone(), FaultPolicy::Never, error);
        let array = bench.open().await;
        fill(&array, 1).await;
        let tells = |request: &Request| matches!(request.op, Op::Scan { .. } | Op::List { .. });
        bench.members[1].set_policy(FaultPolicy::When(Box::new(tells)));
        assert_eq!(keys(&array).await, 200);
        let scan = Op::Scan { container: DB, cursor: 0, limit: 1000 };
        let Ok(Output::Scanned(page)) = execute(&array, scan).await else { panic!("a page") };
        assert_eq!((page.keys.len(), page.cursor), (200, 0));
        assert_eq!(state(&array, 1), MemberState::In);
        let fresh = bench.fresh(0, 77);
        array.replace(0, fresh).await.unwrap();
        bench.whole(&array).await;
        array.take_out(2, "for a test");
        reactor.sleep_ns(1_000_000).await;
        check(&array, 1).await;
    });
}

/// Found by the simulator, seeds 1755 and 2266: a scan told a key that had expired long before. A member that
/// failed could not take away what had expired, and was asked before it was out.
#[test]
fn a_key_that_one_member_cannot_read_and_another_lacks_is_told_nobody() {
    run(async |reactor| {
        for bench in [Bench::new(&reactor, 3, 3), Bench::split(&reactor, 3, 2, 1)] {
            let array = bench.open().await;
            set(&array, "there", b"v").await.unwrap();
            let rot = store_in(container(DB, 2), "gone", Value::from(b"rot".to_vec()));
            let primary = placement::primary(b"gone", 3);
            execute(&bench.below[(primary + 2) % 3], rot).await.unwrap();
            for key in ["there", "gone"] {
                array.suspect(&array.place(DB, key.as_bytes()).unwrap());
            }
            let scan = Op::Scan { container: DB, cursor: 0, limit: 1000 };
            let Ok(Output::Scanned(page)) = execute(&array, scan).await else { panic!("a page") };
            assert!(page.keys.iter().all(|key| key == b"there"), "{:?}", page.keys);
            let list = Op::List { container: DB, prefix: Vec::new(), after: None, limit: 9 };
            let Ok(Output::Listed(page)) = execute(&array, list).await else { panic!("a page") };
            assert_eq!(page.keys, [b"there".to_vec()]);
            assert_eq!(keys(&array).await, 1);
            assert_eq!(bytes(&array, "gone").await, None);
        }
    });
}

/// Has a member not read the value of any key whole, from when this is set until it is written again or gone.
fn rots(bench: &mut Bench, member: usize) -> Rc<Cell<bool>> {
    let is_rotten = Rc::new(Cell::new(false));
    let now = is_rotten.clone();
    let fails = move |request: &Request| {
        let mends = matches!(request.op, Op::Store { .. } | Op::Delete { .. });
        now.set(now.get() && !mends);
        now.get() && matches!(request.op, Op::SetExpiry { .. } | Op::Retrieve { range: None, .. })
    };
    let (policy, error) = (FaultPolicy::When(Box::new(fails)), Error::Unreadable("rot".to_owned()));
    bench.members[member] = FaultDevice::new(bench.below[member].clone(), policy, error);
    is_rotten
}

/// Found by the simulator, seed 376: a member of which one value had rotted went out over a change of its
/// time.
#[test]
fn a_value_that_has_rotted_is_written_again_before_its_time_is_changed() {
    run(async |reactor| {
        for rotten in 0..3 {
            for mut bench in [Bench::new(&reactor, 3, 3), Bench::split(&reactor, 3, 2, 1)] {
                let is_rotten = rots(&mut bench, rotten);
                let array = bench.open().await;
                set(&array, "k", b"value").await.unwrap();
                is_rotten.set(true);
                let at_ms = reactor.wall_ms() + 60_000;
                let (key, expiry, condition) = (b"k".to_vec(), Expiry::At(at_ms), Condition::None);
                let expire = Op::SetExpiry { container: DB, key, expiry, condition };
                assert!(matches!(execute(&array, expire).await, Ok(Output::ExpirySet(_))));
                assert!(!is_rotten.get(), "it is written again");
                let status = array.status();
                assert!(status.members.iter().all(|member| member.state == MemberState::In), "{status:?}");
                assert_eq!(status.unsettled, 0);
                for role in 0..3 {
                    let member = (placement::primary(b"k", 3) + role) % 3;
                    let told = execute(&bench.below[member], retrieve_op(container(DB, role), "k")).await;
                    assert!(matches!(told, Ok(Output::Found(item)) if item.expiry_ms == Some(at_ms)));
                }
            }
        }
    });
}

/// Found by the simulator, seed 502: it was said that such a key was not there. The others had let it expire
/// when one could not read its piece.
#[test]
fn a_key_of_which_a_piece_has_rotted_was_there_until_it_was_let_expire() {
    run(async |reactor| {
        for rotten in 0..3 {
            for mut bench in [Bench::new(&reactor, 3, 3), Bench::split(&reactor, 3, 2, 1)] {
                let is_rotten = rots(&mut bench, rotten);
                let array = bench.open().await;
                set(&array, "k", b"value").await.unwrap();
                is_rotten.set(true);
                let expiry = Expiry::At(reactor.wall_ms());
                let (key, condition) = (b"k".to_vec(), Condition::None);
                let expire = Op::SetExpiry { container: DB, key, expiry, condition };
                let told = execute(&array, expire.clone()).await;
                assert!(matches!(told, Ok(Output::ExpirySet(_))), "{told:?}");
                assert_eq!(bytes(&array, "k").await, None);
                assert_eq!(execute(&array, expire).await, Err(Error::NotFound));
            }
        }
    });
}

/// It went out while it was read, and another had come in since that began (seed 14223 of the worlds).
#[test]
fn a_value_is_read_from_who_has_come_in_meanwhile() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let failing = bench.fails(0, &Error::Unreadable("it went out".to_owned()));
        let array = bench.open().await;
        set(&array, "k", b"value").await.unwrap();
        for member in [1, 2] {
            array.set_state(member, MemberState::Out, "for a test");
        }
        let own = array.clone();
        let fails = move |request: &Request| {
            let is_read = matches!(request.op, Op::Retrieve { .. });
            if is_read && own.state(1) == MemberState::Out {
                own.set_state(1, MemberState::In, "");
                own.roster.borrow_mut().epoch += 1;
            }
            is_read
        };
        failing.set_policy(FaultPolicy::When(Box::new(fails)));
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"value"[..]));
    });
}
