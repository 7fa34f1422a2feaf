//! What one device, one key, or somebody who holds everything hinders for a while, and what goes on, or goes
//! on again, all the same.

use super::bench::{Bench, DB, bytes, del, execute, keys, retrieve_op, run, set, store_op};
use super::packing::{self, found_sets, settled, value};
use super::parts;
use super::slow;
use super::unfinished::key_at;
use crate::MemberState;
use crate::placement::{self, container};
use crate::set::{Stub, is_ghost};
use futures_util::future::{join, join_all};
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::{Condition, Error, Op, Output, Value, Version};

const SECOND_NS: u64 = 1_000_000_000;

/// A controller that resets stops all drives behind it: taking out all but one would not help.
#[test]
fn devices_that_all_stand_still_together_are_not_taken_out() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let (array, late) = slow::open(&reactor, &bench).await;
        reactor.sleep_ns(SECOND_NS).await;
        late.iter().for_each(|late| late.late_ns.set(25 * SECOND_NS));
        set(&array, "k", b"v").await.unwrap();
        late.iter().for_each(|late| late.late_ns.set(0));
        assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"v"[..]));
        let states: Vec<MemberState> = array.status().members.iter().map(|member| member.state).collect();
        assert_eq!(states, [MemberState::In; 3]);
    });
}

#[test]
fn a_part_of_a_long_value_does_not_wait_for_a_slow_device() {
    for split in [false, true] {
        run(move |reactor| async move {
            let bench = if split { Bench::split(&reactor, 6, 4, 2) } else { Bench::new(&reactor, 3, 3) };
            let (array, late) = slow::open(&reactor, &bench).await;
            let long = parts::long(2000, 3);
            let upload = parts::upload(&array, "k", &long).await;
            execute(&array, store_op("k", Value::Upload(upload))).await.unwrap();
            let item = parts::pin(&array, "k").await;
            let primary = placement::primary(b"k", late.len());
            late[primary].late_ns.set(3600 * SECOND_NS);
            let began_ns = reactor.now_ns();
            assert_eq!(parts::read(&array, "k", &item).await, long);
            assert!(reactor.now_ns() - began_ns < SECOND_NS, "{} ns", reactor.now_ns() - began_ns);
        });
    }
}

/// Whoever held a key while a device did not answer held it for good, and with it all who wanted everything.
#[test]
fn a_key_is_let_go_of_though_a_device_does_not_answer_what_is_read_before_a_write() {
    run(async |reactor| {
        let bench = packing::bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        packing::fill(&array, 60, 1).await;
        settled(&reactor).await;
        let place = array.place(DB, b"key:7").unwrap();
        let teller = array.member_of(&place, array.teller(&place));
        bench.loses(teller, |op| matches!(op, Op::Retrieve { .. }));
        set(&array, "key:7", b"v").await.unwrap();
        assert_eq!(bytes(&array, "key:7").await.as_deref(), Some(&b"v"[..]));
        drop(array.locks.lock_everything().await);
    });
}

/// Nobody writes, so nobody finds out that it is silent: what is told of the key comes all the same.
#[test]
fn a_key_is_described_though_a_device_does_not_answer() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let (array, late) = slow::open(&reactor, &bench).await;
        set(&array, "k", b"v").await.unwrap();
        let silent = (placement::primary(b"k", 3) + 1) % 3;
        late[silent].late_ns.set(3600 * SECOND_NS);
        let described = execute(&array, Op::Describe { container: DB, key: b"k".to_vec() }).await;
        let Ok(Output::Described(described)) = described else { panic!("{described:?}") };
        let read: Vec<bool> = described.pieces.iter().map(|piece| piece.read.is_ok()).collect();
        assert_eq!(read, [true, false, true]);
    });
}

/// Who counted, listed, or read for a rebuild waited for a device that was taken out meanwhile.
#[test]
fn what_waits_for_a_device_ends_when_that_goes_out() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let (array, late) = slow::open(&reactor, &bench).await;
        for number in 0..20 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        late[1].late_to.set(|op| matches!(op, Op::Stats { .. } | Op::List { .. }));
        late[1].late_ns.set(3600 * SECOND_NS);
        let began_ns = reactor.now_ns();
        let goes = async {
            reactor.sleep_ns(SECOND_NS).await;
            array.take_out(1, "for a test");
        };
        assert_eq!(join(keys(&array), goes).await.0, 20);
        assert!(reactor.now_ns() - began_ns < 2 * SECOND_NS, "{} ns", reactor.now_ns() - began_ns);
    });
}

/// While everything was held no key was free, and those that waited were forgotten.
#[test]
fn what_waits_to_be_packed_is_packed_though_somebody_holds_everything_for_a_while() {
    run(async |reactor| {
        let bench = packing::bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        array.take_out_now(5, "for a test").await.unwrap();
        packing::fill(&array, 60, 1).await;
        array.rebuild(5);
        bench.whole(&array).await;
        let everything = array.locks.lock_everything().await;
        reactor.sleep_ns(3 * SECOND_NS).await;
        drop(everything);
        reactor.sleep_ns(10 * SECOND_NS).await;
        let packed: usize = found_sets(&bench).await.0.iter().map(|set| set.values.len()).sum();
        assert!(packed >= 50, "{packed} of 60 are packed");
    });
}

/// One key that was not whole, and could not be made so, kept a new device from coming in for good.
#[test]
fn a_rebuild_goes_on_past_a_key_for_which_another_device_has_no_room() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        let full = bench.fails(1, &Error::NoSpace);
        let array = bench.open().await;
        for number in 0..20 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        let name = key_at(0, 3, "key");
        let delete =
            Op::Delete { container: container(DB, 1), key: name.clone().into(), condition: Condition::None };
        execute(&bench.below[1], delete).await.unwrap();
        let stays = name.clone();
        full.set_policy(FaultPolicy::When(Box::new(move |request| stores_key(&request.op, &stays))));
        array.suspect(&array.place(DB, name.as_bytes()).unwrap());
        array.replace(2, bench.fresh(2, 9)).await.unwrap();
        for _ in 0..200 {
            reactor.sleep_ns(SECOND_NS / 2).await;
        }
        assert_eq!(array.status().members[2].state, MemberState::In, "{:?}", array.status());
        let role = placement::role(0, 2, 3);
        let copy = execute(&bench.below[2], retrieve_op(container(DB, role), &name)).await;
        assert!(copy.is_ok(), "{copy:?}");
        assert_eq!(bytes(&array, &name).await.as_deref(), Some(&b"v"[..]));
    });
}

/// A value that found no room as copies kept all sets behind its own from being judged.
#[test]
fn a_set_whose_values_find_no_room_hinders_no_other() {
    run(async |reactor| {
        let mut bench = packing::bench(&reactor, 5, 3, 1);
        let full = bench.fails(2, &Error::NoSpace);
        let array = bench.open().await;
        let of = |word: &str| -> Vec<String> { (0..3).map(|primary| key_at(primary, 5, word)).collect() };
        let (first, second) = (of("a"), of("b"));
        for names in [&first, &second] {
            let each = names.iter().enumerate();
            join_all(each.map(async |(at, name)| set(&array, name, &value(20 + at, 1)).await.unwrap())).await;
            settled(&reactor).await;
        }
        let stays = first[1].clone();
        full.set_policy(FaultPolicy::When(Box::new(move |request| stores_key(&request.op, &stays))));
        for name in [&first[0], &second[0]] {
            del(&array, name).await.unwrap();
        }
        reactor.sleep_ns(300 * SECOND_NS).await;
        let (sets, _) = found_sets(&bench).await;
        let names =
            |name: &String| sets.iter().any(|set| set.values.iter().any(|it| it.key == name.as_bytes()));
        assert!(!names(&second[0]), "its set was taken apart: {sets:?}");
        assert!(names(&first[0]), "its own is still needed: {sets:?}");
        assert_eq!(array.packer.loose.count(), 1, "the one without room is tried again");
    });
}

/// A delete that found no room for what others of the set need went without, and they were lost with the next
/// devices: some that nobody had touched.
#[test]
fn a_delete_that_has_no_room_for_what_others_need_is_refused() {
    run(async |reactor| {
        let mut bench = packing::bench(&reactor, 6, 4, 2);
        let full: Vec<_> = (0..4).map(|member| bench.fails(member, &Error::NoSpace)).collect();
        let array = bench.open().await;
        let names: Vec<String> = (0..4).map(|primary| key_at(primary, 6, "s")).collect();
        let each = names.iter().enumerate();
        join_all(each.map(async |(at, name)| set(&array, name, &value(20 + at, 1)).await.unwrap())).await;
        settled(&reactor).await;
        for full in &full {
            full.set_policy(FaultPolicy::When(Box::new(|request| keeps_ghost(&request.op))));
        }
        // Nor when it comes again: others have taken the first, and with it what told that it is packed.
        for name in names[..3].iter().chain(&names[..3]) {
            let refused = del(&array, name).await.unwrap_err();
            assert!(matches!(refused, Error::ReadOnly(_)), "{name}: with its device it is gone: {refused:?}");
        }
        array.take_out_now(3, "for a test").await.unwrap();
        for (at, name) in names.iter().enumerate() {
            assert_eq!(bytes(&array, name).await, Some(value(20 + at, 1)), "{name}");
        }
        full.iter().for_each(|full| full.set_policy(FaultPolicy::Never));
        del(&array, &names[0]).await.unwrap();
        assert_eq!(bytes(&array, &names[3]).await, Some(value(23, 1)));
    });
}

/// Whether a request keeps a value for its set.
fn keeps_ghost(op: &Op) -> bool {
    match op {
        Op::Batch(ops) => ops.iter().any(keeps_ghost),
        Op::Store { key, .. } => is_ghost("{0}", key),
        _ => false,
    }
}

/// Whether a request stores this key, in any role.
fn stores_key(op: &Op, name: &str) -> bool {
    match op {
        Op::Batch(ops) => ops.iter().any(|op| stores_key(op, name)),
        Op::Store { key, container, .. } => key == name.as_bytes() && !container.is_books(),
        _ => false,
    }
}

#[test]
fn no_more_loose_sets_are_remembered_than_may_be() {
    run(async |reactor| {
        let bench = packing::bench(&reactor, 6, 4, 2);
        let array = bench.open().await;
        set(&array, "k", b"v").await.unwrap();
        for clock in 0..20_000 {
            let stub = Stub { set: Version { epoch: 1, clock }, values: 4, holders: vec![0, 1, 2] };
            array.packer.loose.add_if_few(DB, &stub, None);
        }
        assert_eq!(array.packer.loose.count(), 16_384);
        // All are looked for once there is time.
        array.note_packed();
        array.pack_soon();
        reactor.sleep_ns(60 * SECOND_NS).await;
        let status = array.status();
        assert!(status.keys_scrubbed > 0 && !status.scrubbing && status.sets_loose == 0, "{status:?}");
    });
}

/// A scrub that was past a key ended the distrust of a member that came in later.
#[test]
fn a_scrub_ends_no_distrust_that_began_after_it() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 2);
        let (array, late) = slow::open(&reactor, &bench).await;
        for number in 0..40 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        array.scrub();
        reactor.sleep_ns(SECOND_NS).await;
        let once = array.scrub.get().keys;
        assert!(once >= 40 && !array.scrub.get().runs);
        late.iter().for_each(|late| late.late_ns.set(1_000_000));
        array.distrust();
        array.scrub();
        reactor.sleep_ns(3_000_000).await;
        assert!(array.scrub.get().runs, "it is under way");
        array.distrust();
        reactor.sleep_ns(10 * SECOND_NS).await;
        assert!(!array.scrub.get().runs && !array.distrusted.get());
        assert_eq!(array.scrub.get().keys, 2 * once, "every key was compared since");
    });
}
