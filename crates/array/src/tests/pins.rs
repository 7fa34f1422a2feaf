//! Values in parts that are read while members go out and come in.

use super::bench::{Bench, DB, bytes, del, execute, run, set, store_op};
use super::parts::{long, pin, read, upload};
use super::slow;
use crate::{Array, MemberState, placement};
use futures_util::future::join;
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::{Error, Expiry, Item, Op, Request, Value};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

async fn store(array: &Rc<Array>, value: &[u8]) {
    let id = upload(array, "k", value).await;
    execute(array, store_op("k", Value::Upload(id))).await.unwrap();
}

async fn unpin(array: &Rc<Array>, item: &Item) {
    let upload = item.upload.expect("in parts");
    execute(array, Op::Unpin { upload, key: b"k".to_vec() }).await.unwrap();
}

async fn take_out(array: &Rc<Array>, reactor: &Reactor, members: &[usize]) {
    members.iter().for_each(|member| array.take_out(*member, "for a test"));
    reactor.sleep_ns(1_000_000).await;
}

/// Two members that go out before a value is pinned, and come back before all others go out.
fn benches(reactor: &Reactor) -> [Bench; 2] {
    [Bench::new(reactor, 4, 4), Bench::split(reactor, 4, 2, 2)]
}

/// Nothing is pinned, nor half uploaded, on members that are in.
fn assert_nothing_left(bench: &Bench, array: &Rc<Array>) {
    for (member, status) in array.status().members.iter().enumerate() {
        if status.state == MemberState::In {
            let below = &bench.below[member];
            assert_eq!((below.pinned(), below.uploading()), (0, 0), "member {member}");
        }
    }
}

/// Found by the simulator, seed 765: none of those was left that had the value when it was pinned.
#[test]
fn a_reader_goes_on_with_members_that_came_in_later() {
    run(async |reactor| {
        for mut bench in benches(&reactor) {
            let array = bench.open().await;
            let value = long(1234, 1);
            store(&array, &value).await;
            take_out(&array, &reactor, &[0, 1]).await;
            let readers = [pin(&array, "k").await, pin(&array, "k").await];
            // Of one the value is gone when the members come in.
            for (round, id) in [50, 60].into_iter().enumerate() {
                if round == 1 {
                    del(&array, "k").await.unwrap();
                }
                for member in [0, 1] {
                    let fresh = bench.fresh(member, id + member as u8);
                    array.replace(member, fresh).await.unwrap();
                }
                bench.whole(&array).await;
                take_out(&array, &reactor, &[2, 3]).await;
                assert_eq!(read(&array, "k", &readers[round]).await, value);
                unpin(&array, &readers[round]).await;
                for member in [2, 3] {
                    let fresh = bench.fresh(member, id + member as u8);
                    array.replace(member, fresh).await.unwrap();
                }
                bench.whole(&array).await;
                take_out(&array, &reactor, &[0, 1]).await;
            }
            assert_nothing_left(&bench, &array);
        }
    });
}

/// Found by the simulator, seed 765: whoever was asked for a part had failed when others had come in.
#[test]
fn a_read_under_way_goes_on_with_members_that_came_in_meanwhile() {
    run(async |reactor| {
        for bench in benches(&reactor) {
            let (array, late) = slow::open(&reactor, &bench).await;
            let value = long(1234, 1);
            store(&array, &value).await;
            take_out(&array, &reactor, &[0, 1]).await;
            let item = pin(&array, "k").await;
            late.iter().for_each(|late| late.late_ns.set(1_000_000_000));
            let others = async {
                reactor.sleep_ns(1_000_000).await;
                late.iter().for_each(|late| late.late_ns.set(0));
                [0, 1].into_iter().for_each(|member| array.rebuild(member));
                bench.whole(&array).await;
                bench.members[2..].iter().for_each(|member| member.set_policy(FaultPolicy::From(1)));
            };
            assert_eq!(join(read(&array, "k", &item), others).await.0, value);
        }
    });
}

/// Giving takes its time, and others begin to read meanwhile.
#[test]
fn what_is_pinned_while_pins_are_given_is_pinned_on_who_comes_in() {
    run(async |reactor| {
        for mut bench in benches(&reactor) {
            bench.options.rebuild_bytes_per_s = 100_000;
            let array = bench.open().await;
            take_out(&array, &reactor, &[0, 1]).await;
            let mut readers = Vec::new();
            for generation in 0..5 {
                let value = long(1500, generation);
                store(&array, &value).await;
                readers.push((value, pin(&array, "k").await));
            }
            [0, 1].into_iter().for_each(|member| array.rebuild(member));
            let is_out = || array.status().members.iter().any(|member| member.state != MemberState::In);
            while is_out() {
                reactor.sleep_ns(1_000_000).await;
                readers.push((long(1500, 4), pin(&array, "k").await));
            }
            assert!(readers.len() > 50, "{} readers", readers.len());
            take_out(&array, &reactor, &[2, 3]).await;
            for (value, item) in readers {
                assert_eq!(read(&array, "k", &item).await, value);
                unpin(&array, &item).await;
            }
            assert_nothing_left(&bench, &array);
        }
    });
}

/// Each version has readers, some of which end before they have read it.
#[test]
fn readers_of_every_version_go_on_while_members_are_rebuilt() {
    run(async |reactor| {
        for bench in benches(&reactor) {
            let (array, late) = slow::open(&reactor, &bench).await;
            late.iter().for_each(|late| late.late_ns.set(30_000));
            let mut readers = Vec::new();
            for round in 0..6_u8 {
                let out = if round % 2 == 0 { [0, 1] } else { [2, 3] };
                take_out(&array, &reactor, &out).await;
                for generation in 0..20 {
                    if generation == 5 {
                        out.iter().for_each(|member| array.rebuild(*member));
                    }
                    let value = long(1500, round * 20 + generation);
                    store(&array, &value).await;
                    readers.push((value, pin(&array, "k").await));
                    if generation % 3 == 0 {
                        let (_, item) = readers.swap_remove(readers.len() / 2);
                        unpin(&array, &item).await;
                    }
                }
                bench.whole(&array).await;
            }
            take_out(&array, &reactor, &[0, 3]).await;
            for (value, item) in readers {
                assert_eq!(read(&array, "k", &item).await, value);
                unpin(&array, &item).await;
            }
            reactor.sleep_ns(1_000_000_000).await;
            assert_nothing_left(&bench, &array);
        }
    });
}

/// Found by the simulator, seed 1647: such a store was told that there is no such key.
#[test]
fn a_value_that_expires_while_it_is_stored_leaves_nothing_older_on_who_came_in() {
    run(async |reactor| {
        for mut bench in benches(&reactor) {
            let array = bench.open().await;
            set(&array, "k", b"older").await.unwrap();
            take_out(&array, &reactor, &[0]).await;
            let id = upload(&array, "k", &long(1234, 1)).await;
            let fresh = bench.fresh(0, 50);
            array.replace(0, fresh).await.unwrap();
            bench.whole(&array).await;
            let Op::Store { container, key, value, condition, retain, want_previous, form, .. } =
                store_op("k", Value::Upload(id))
            else {
                unreachable!("a store")
            };
            let expiry = Expiry::At(1);
            let op = Op::Store { container, key, value, condition, expiry, retain, want_previous, form };
            execute(&array, op).await.expect("it was stored, and has expired");
            take_out(&array, &reactor, &[2, 3]).await;
            assert_eq!(bytes(&array, "k").await, None);
        }
    });
}

/// Its reader was told that there is no such key.
#[test]
fn a_value_whose_devices_go_away_while_it_is_pinned_is_unreadable() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 4, 1);
        let array = bench.open().await;
        store(&array, &long(1234, 1)).await;
        let member = &bench.members[placement::primary(b"k", 4)];
        let is_pin = |request: &Request| matches!(request.op, Op::Retrieve { pin: true, .. });
        member.set_policy(FaultPolicy::When(Box::new(is_pin)));
        let pinned =
            execute(&array, Op::Retrieve { container: DB, key: b"k".to_vec(), range: None, pin: true });
        let pinned = pinned.await;
        assert!(matches!(pinned, Err(Error::Unreadable(_))), "{pinned:?}");
    });
}
