//! A rebuild that the end of the server cuts short goes on where it was, and gives way where it has to.

use super::bench::{Bench, DB, bytes, del, execute, retrieve_op, run, set, store_in};
use super::packing::{self, found_sets, pieces, settled};
use crate::placement::{self, JOURNAL, ROSTER};
use crate::{Array, Mechanism, MemberState, Policy, SizeRange};
use futures_util::future::{Either, join_all, select};
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::{Error, Op, Value};
use plimsoll_reactor::Reactor;
use std::pin::pin;
use std::rc::Rc;

const MS: u64 = 1_000_000;

/// Puts a new device in the place of one, which is being filled from then on.
async fn replaced(bench: &mut Bench, array: &Rc<Array>, member: usize) {
    let fresh = bench.fresh(member, 77);
    array.replace(member, fresh).await.unwrap();
    bench.until(array, member, MemberState::Resyncing).await;
}

/// Fills a member with what it should have of 4000 keys; the server ends when it has been given so many of
/// them, and goes on. The bytes that were copied in all, and the requests of the last run; all keys are read
/// without others.
async fn copied(reactor: &Reactor, mut bench: Bench, until: Option<u64>) -> (u64, u64) {
    bench.options.rebuild_bytes_per_s = 100_000;
    let mut array = bench.open().await;
    let (value, mut copied_bytes) = ([7; 100], 0);
    // One after the other: of those at the end some hundreds are named.
    for number in 0..4000 {
        set(&array, &format!("key:{number}"), &value).await.unwrap();
    }
    settled(reactor).await;
    replaced(&mut bench, &array, 1).await;
    if let Some(until) = until {
        while array.status().members[1].keys_done < until {
            reactor.sleep_ns(MS).await;
        }
        copied_bytes += array.status().members[1].copied_bytes;
        drop(array); // A crash.
        bench.options.rebuild_bytes_per_s = 0;
        array = bench.open().await;
        let status = array.status().members[1].clone();
        assert_eq!(status.state, MemberState::Resyncing);
        assert!((until - 256..until + 32).contains(&status.keys_done), "{} keys", status.keys_done);
    }
    bench.asked();
    bench.whole(&array).await;
    let requests = bench.asked().behind;
    let status = array.status().members[1].clone();
    assert_eq!(status.keys_done, status.keys_total);
    assert_eq!(found_sets(&bench).await.1, 0, "what is the same gives way to nothing, and leaves no ghost");
    [0, 2].into_iter().for_each(|member| array.take_out(member, "for a test"));
    reactor.sleep_ns(MS).await;
    for number in 0..4000 {
        assert_eq!(bytes(&array, &format!("key:{number}")).await.as_deref(), Some(&value[..]));
    }
    (copied_bytes + status.copied_bytes, requests)
}

#[test]
fn what_was_copied_before_a_crash_is_not_copied_again() {
    run(async |reactor| {
        // When four fifths have been given; those that were under way then are counted twice, or not at all:
        // 32 keys, and records of sets. Keys that are named are looked at, and every set.
        let copies = (false, 3200, 32 * 100, 35);
        let packed = (true, 1600, 32 * 500, 45);
        for (is_packed, until, under_way, part) in [copies, packed] {
            let bench = || match is_packed {
                true => packing::bench(&reactor, 6, 4, 2),
                false => Bench::new(&reactor, 3, 3),
            };
            let (whole, requests) = copied(&reactor, bench(), None).await;
            let (in_two, rest) = copied(&reactor, bench(), Some(until)).await;
            assert!(in_two.abs_diff(whole) <= under_way, "{in_two} bytes, {whole} in one go");
            assert!(rest * 100 < requests * part, "{rest} requests, {requests} in one go");
        }
    });
}

#[test]
fn a_member_that_others_were_served_without_begins_anew() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        bench.options.rebuild_bytes_per_s = 1000;
        let array = bench.open().await;
        for number in 0..100 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        replaced(&mut bench, &array, 1).await;
        reactor.sleep_ns(20 * MS).await;
        let array = bench.try_open(&[1]).await.expect("two of three are there");
        for number in 0..100 {
            del(&array, &format!("key:{number}")).await.unwrap();
        }
        let array = bench.open().await;
        assert_eq!(array.status().members[1].state, MemberState::Out, "it has missed those");
        bench.whole(&array).await;
        array.take_out(0, "for a test");
        array.take_out(2, "for a test");
        reactor.sleep_ns(MS).await;
        for number in 0..100 {
            assert_eq!(bytes(&array, &format!("key:{number}")).await, None);
        }
    });
}

/// A server that is killed again and again, right after it was started, makes no more to be compared: the
/// slots that named keys had been used again, and every key was compared, and the member filled anew.
#[test]
fn a_start_that_is_cut_short_leaves_what_there_was_to_be_compared() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        bench.options.rebuild_bytes_per_s = 1000;
        let mut array = bench.open().await;
        for number in 0..100 {
            set(&array, &format!("key:{number}"), b"v").await.unwrap();
        }
        replaced(&mut bench, &array, 1).await;
        for start in 0..5_u8 {
            array = bench.open().await;
            assert!(!array.unsettled.borrow().is_empty(), "keys are named");
            assert!(!array.distrusted.get(), "start {start}");
            assert_eq!(array.status().members[1].state, MemberState::Resyncing, "start {start}");
        }
        set(&array, "key:7", b"new").await.unwrap();
        bench.whole(&array).await;
        [0, 2].into_iter().for_each(|member| array.take_out(member, "for a test"));
        reactor.sleep_ns(MS).await;
        assert_eq!(bytes(&array, "key:7").await.as_deref(), Some(&b"new"[..]));
    });
}

/// What a key may hold: what was acknowledged last, and what was not since.
type MayBe = Vec<Option<Vec<u8>>>;

/// Overwrites and deletes keys until their server dies.
async fn write_until_it_dies(reactor: &Reactor, array: &Rc<Array>) -> (Vec<MayBe>, bool) {
    let each = (0..12_u8).map(async |number| {
        let (name, mut may_be) = (format!("key:{number}"), vec![Some(vec![number; 40])]);
        for round in 1..4_u8 {
            let new = ((number + round) % 3 > 0).then(|| vec![number + 20 * round; 40 + usize::from(round)]);
            let write = async {
                match &new {
                    Some(new) => set(array, &name, new).await.map(drop),
                    None => del(array, &name).await.map(drop),
                }
            };
            let done = match select(pin!(write), pin!(reactor.sleep_ns(20 * MS))).await {
                Either::Left((done, _)) => done.is_ok(),
                Either::Right(_) => false,
            };
            if !done {
                may_be.push(new);
                return (may_be, true);
            }
            may_be = vec![new];
        }
        (may_be, false)
    });
    let (may_be, died): (Vec<MayBe>, Vec<bool>) = join_all(each).await.into_iter().unzip();
    (may_be, died.contains(&true))
}

/// What becomes of a server that dies while a member is filled.
struct Death {
    bench: Bench,
    /// Members that fail when the rebuild has come to its end.
    fails: [usize; 2],
    /// What nobody writes is packed anew, and sets go, before they do.
    rests: bool,
    /// It dies once more, at this request since it was started.
    again: Option<usize>,
}

impl Death {
    fn new(bench: Bench) -> Death {
        Death { bench, fails: [0, 2], rests: false, again: None }
    }

    /// The server dies at some request; then it starts again, the rebuild goes on, and what its member holds
    /// is read with others gone. Whether it went on; nothing if it did not come to that request.
    async fn comes(self, reactor: &Reactor, dies: impl FnOnce(&Bench)) -> Option<bool> {
        let Death { mut bench, fails, rests, again } = self;
        bench.options.rebuild_bytes_per_s = 40_000;
        let array = bench.open().await;
        for number in 0..12_u8 {
            set(&array, &format!("key:{number}"), &[number; 40]).await.unwrap();
        }
        settled(reactor).await;
        replaced(&mut bench, &array, 1).await;
        dies(&bench);
        let (may_be, died) = write_until_it_dies(reactor, &array).await;
        assert_ne!(array.status().members[1].state, MemberState::In, "it was being filled");
        let mut array = bench.open().await;
        let goes_on = array.status().members[1].state == MemberState::Resyncing;
        if let Some(again) = again {
            bench.dies_at(again, |_| true);
            reactor.sleep_ns(20 * MS).await;
            array = bench.open().await;
        }
        bench.whole(&array).await;
        let mut read = Vec::new();
        for (number, may_be) in may_be.iter().enumerate() {
            let found = bytes(&array, &format!("key:{number}")).await;
            assert!(may_be.contains(&found), "key:{number}: {found:?}");
            read.push(found);
        }
        if rests {
            settled(reactor).await;
        }
        fails.iter().for_each(|member| bench.members[*member].set_policy(FaultPolicy::From(1)));
        for (number, before) in read.into_iter().enumerate() {
            assert_eq!(
                bytes(&array, &format!("key:{number}")).await,
                before,
                "key:{number} without {fails:?}"
            );
        }
        died.then_some(goes_on)
    }
}

/// Has the server die at each of these requests, until it does not come to that; how often, and how often
/// the rebuild went on.
async fn each_death(
    reactor: &Reactor,
    requests: std::iter::StepBy<std::ops::RangeFrom<usize>>,
    death: impl Fn(usize) -> Death,
    dies: impl Fn(&Bench, usize),
) -> (usize, usize) {
    let (mut deaths, mut went_on) = (0, 0);
    for nth in requests {
        let Some(goes_on) = death(nth).comes(reactor, |bench| dies(bench, nth)).await else { break };
        deaths += 1;
        went_on += usize::from(goes_on);
    }
    (deaths, went_on)
}

fn dies_at(bench: &Bench, nth: usize) {
    bench.dies_at(nth, |_| true);
}

#[test]
fn a_crash_at_any_request_while_a_member_is_filled_leaves_it_as_the_others_are() {
    run(async |reactor| {
        let copies = |nth: usize| {
            let again = nth.is_multiple_of(3).then_some(1 + nth % 40);
            Death { again, ..Death::new(Bench::new(&reactor, 3, 3)) }
        };
        let (deaths, went_on) = each_death(&reactor, (1..).step_by(1), copies, dies_at).await;
        assert!(deaths > 200 && went_on * 10 > deaths * 9, "{went_on} of {deaths}");
        let shards = |_| Death::new(Bench::split(&reactor, 6, 4, 2));
        let (deaths, went_on) = each_death(&reactor, (1..).step_by(7), shards, dies_at).await;
        assert!(deaths > 40 && went_on * 10 > deaths * 9, "{went_on} of {deaths}");
    });
}

#[test]
fn a_crash_of_which_some_members_heard_nothing_leaves_a_member_that_is_filled_as_the_others_are() {
    run(async |reactor| {
        // The fourth is the device that took the place of the second.
        for lost in [&[0][..], &[3], &[2], &[0, 3], &[3, 2], &[0, 2]] {
            let loses = |bench: &Bench, nth| bench.loses_touch_at(nth, lost);
            let copies = |_| Death::new(Bench::new(&reactor, 3, 3));
            let (deaths, went_on) = each_death(&reactor, (1..).step_by(3), copies, loses).await;
            assert!(deaths > 20 && went_on * 10 > deaths * 9, "{went_on} of {deaths} without {lost:?}");
        }
    });
}

/// Of packed values: what stood in sets that nobody wrote, and what the new device was given of those.
#[test]
fn a_crash_while_a_member_of_sets_is_filled_leaves_them_whole() {
    run(async |reactor| {
        let packed = |nth: usize| {
            let mut bench = packing::bench(&reactor, 6, 4, 2);
            bench.options.stateless = nth.is_multiple_of(3);
            let again = (nth % 5 < 2).then_some(1 + nth % 40);
            let fails = [[0, 2], [3, 4], [0, 5], [2, 5]][nth % 4];
            Death { fails, rests: nth.is_multiple_of(2), again, ..Death::new(bench) }
        };
        let (deaths, went_on) = each_death(&reactor, (1..).step_by(1), packed, dies_at).await;
        assert!(deaths > 200 && went_on * 10 > deaths * 9, "{went_on} of {deaths}");
        // The seventh is the device that took the place of the second.
        for lost in [&[0][..], &[6], &[2], &[3], &[0, 6], &[6, 2], &[4, 5]] {
            let loses = |bench: &Bench, nth| bench.loses_touch_at(nth, lost);
            let (deaths, went_on) = each_death(&reactor, (1..).step_by(3), packed, loses).await;
            assert!(deaths > 20 && went_on * 10 > deaths * 9, "{went_on} of {deaths} without {lost:?}");
        }
    });
}

/// A key that is in a set, and a member that is being filled and has been given its second stub.
async fn given_a_stub(reactor: &Reactor, bench: &mut Bench) -> (Rc<Array>, String) {
    bench.options.rebuild_bytes_per_s = 10_000;
    let array = bench.open().await;
    packing::fill(&array, 60, 1).await;
    settled(reactor).await;
    replaced(bench, &array, 1).await;
    let is_its = |name: &String| placement::primary(name.as_bytes(), 6) == 5;
    let name = (0..60).map(|number| format!("key:{number}")).find(is_its).unwrap();
    let second = retrieve_op(placement::container(DB, 2), &name);
    while execute(&bench.below[1], second.clone()).await.is_err() {
        reactor.sleep_ns(MS).await;
    }
    assert_eq!(pieces(bench, &name, 3).await[1..], [None, None], "stubs");
    (array, name)
}

async fn put_copies(array: &Rc<Array>, name: &str) {
    let place = array.place(DB, name.as_bytes()).unwrap();
    let _guard = array.hold(&place).await.unwrap();
    array.put_copies(&place).await.unwrap();
}

/// A key leaves its set while a member is filled that has its stub by now: the set goes when all are in, and
/// the stub would be all that is left when the other two go (found by reading).
#[test]
fn a_member_that_is_filled_leaves_sets_with_the_others() {
    run(async |reactor| {
        let mut bench = packing::bench(&reactor, 6, 4, 2);
        let (array, name) = given_a_stub(&reactor, &mut bench).await;
        put_copies(&array, &name).await;
        assert_eq!(array.status().members[1].state, MemberState::Resyncing);
        assert!(pieces(&bench, &name, 3).await.iter().all(Option::is_some), "copies");
    });
}

/// The same where the other stub rots, and a copy is written in its place: nobody who is in says any more
/// that the key is packed (found by reading).
#[test]
fn a_member_that_is_filled_leaves_a_set_of_which_the_others_know_nothing_any_more() {
    run(async |reactor| {
        let mut bench = packing::bench(&reactor, 6, 4, 2);
        let (array, name) = given_a_stub(&reactor, &mut bench).await;
        let rotten = store_in(placement::container(DB, 1), &name, Value::from(Vec::new()));
        execute(&bench.below[0], rotten).await.unwrap();
        array.suspect(&array.place(DB, name.as_bytes()).unwrap());
        assert!(bytes(&array, &name).await.is_some());
        assert_eq!(array.status().members[1].state, MemberState::Resyncing);
        assert!(pieces(&bench, &name, 3).await.iter().all(Option::is_some), "copies");
    });
}

/// The same, cut short when the other has its copy.
#[test]
fn a_member_that_goes_on_being_filled_relies_on_no_set_that_the_others_have_left() {
    run(async |reactor| {
        let mut bench = packing::bench(&reactor, 6, 4, 2);
        let (array, name) = given_a_stub(&reactor, &mut bench).await;
        // The seventh is the device that took the place of the second.
        bench.loses(6, |op| matches!(op, Op::Batch(_)));
        let put = pin!(put_copies(&array, &name));
        assert!(matches!(select(put, pin!(reactor.sleep_ns(MS))).await, Either::Right(_)));
        assert!(matches!(pieces(&bench, &name, 3).await[1..], [Some(_), None]));
        let array = bench.open().await;
        assert_eq!(array.status().members[1].state, MemberState::Resyncing);
        bench.whole(&array).await;
        assert!(pieces(&bench, &name, 3).await.iter().all(Option::is_some), "copies");
    });
}

/// The others have copies of what was there before in fewer roles than the write that they know nothing of:
/// its copy stayed, and was the newest when every key was compared (seed 8316 of the worlds).
#[test]
fn a_member_gives_way_where_what_the_others_have_has_no_copy_on_it() {
    run(async |reactor| {
        let range = |value_bytes_max, copies| {
            let mechanism = Mechanism::Replication { copies };
            SizeRange { value_bytes_max, mechanism }
        };
        let policy = Policy::by_size(&[range(10, 2), range(u64::MAX, 3)]).unwrap();
        let mut bench = Bench::by_size(&reactor, 3, &[policy]);
        bench.options.rebuild_bytes_per_s = 1000;
        let array = bench.open().await;
        let mut names = (0..).map(|number| format!("key:{number}"));
        let name = names.find(|name| placement::primary(name.as_bytes(), 3) == 2).unwrap();
        set(&array, &name, b"short").await.unwrap();
        for number in 0..100 {
            set(&array, &format!("other:{number}"), b"v").await.unwrap();
        }
        replaced(&mut bench, &array, 1).await;
        [0, 2].into_iter().for_each(|member| bench.loses(member, |_| true));
        let write = pin!(set(&array, &name, b"a long value"));
        assert!(matches!(select(write, pin!(reactor.sleep_ns(MS))).await, Either::Right(_)));
        let array = bench.open().await;
        assert_eq!(array.status().members[1].state, MemberState::Resyncing);
        bench.whole(&array).await;
        assert_eq!(bytes(&array, &name).await.as_deref(), Some(&b"short"[..]));
        let left = execute(&bench.below[1], retrieve_op(placement::container(DB, 2), &name)).await;
        assert_eq!(left, Err(Error::NotFound));
    });
}

/// A write that was cut short stands on the member that is being filled alone, which has not given way yet:
/// the others know of no such key (seed 11238 of the worlds: DEL told that it was there).
#[test]
fn a_delete_is_not_told_by_a_member_that_has_not_given_way() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        bench.options.rebuild_bytes_per_s = 1000;
        let array = bench.open().await;
        for number in 0..100 {
            set(&array, &format!("other:{number}"), b"v").await.unwrap();
        }
        replaced(&mut bench, &array, 1).await;
        let place = array.place(DB, b"k").unwrap();
        let role = (0..3).find(|role| array.member_of(&place, *role) == 1).unwrap();
        let cut_short = store_in(placement::container(DB, role), "k", Value::from(vec![1; 50]));
        execute(&bench.below[1], cut_short).await.unwrap();
        assert_eq!(array.status().members[1].state, MemberState::Resyncing);
        assert_eq!(del(&array, "k").await, Err(Error::NotFound));
    });
}

/// Found by `model`: a member was told to be in, another went with the next crash, and then two were out.
#[test]
fn a_member_is_told_to_be_in_when_that_is_durable() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 2);
        bench.options.rebuild_bytes_per_s = 10_000;
        let array = bench.open().await;
        for number in 0..30 {
            set(&array, &format!("key:{number}"), &[7; 100]).await.unwrap();
        }
        replaced(&mut bench, &array, 1).await;
        while array.status().members[1].keys_done == 0 {
            reactor.sleep_ns(MS).await;
        }
        bench.loses(
            0,
            |op| matches!(op, Op::Store { container: ROSTER, key, .. } if key.ends_with(b"roster")),
        );
        while !array.members.borrow()[1].comes_in {
            reactor.sleep_ns(MS).await;
        }
        assert_eq!(array.status().members[1].state, MemberState::Resyncing);
        bench.loses(0, |_| false);
        bench.until(&array, 1, MemberState::In).await;
    });
}

/// A device that fails where it is looked at keeps nobody from being served.
#[test]
fn a_member_that_cannot_go_on_keeps_no_array_from_opening() {
    run(async |reactor| {
        let mut bench = Bench::new(&reactor, 3, 3);
        bench.options.rebuild_bytes_per_s = 1000;
        let array = bench.open().await;
        for number in 0..30 {
            set(&array, &format!("key:{number}"), &[7; 100]).await.unwrap();
        }
        replaced(&mut bench, &array, 1).await;
        let failing = bench.fails(1, &Error::ReadOnly("it has failed".to_owned()));
        drop(array);
        let is_journal = |op: &Op| matches!(op, Op::List { container: JOURNAL, .. });
        failing.set_policy(FaultPolicy::When(Box::new(move |request| is_journal(&request.op))));
        let array = bench.open().await;
        assert_ne!(array.status().members[1].state, MemberState::In);
        assert_eq!(bytes(&array, "key:7").await.as_deref(), Some(&[7; 100][..]));
    });
}
