//! Reads beside writes, and beside the end of a key's life, over members that take their time.

use super::bench::{Bench, DB, bytes, del, execute, keys, retrieve_op, run, set, store_op};
use super::parts::long;
use super::slow;
use crate::placement;
use crate::{Mechanism, Policy, SizeRange};
use futures_util::future::join;
use plimsoll_kv::fault::FaultPolicy;
use plimsoll_kv::{Condition, Error, Expiry, Op, Output, Value};
use plimsoll_reactor::Reactor;

/// What a member takes for a request.
const LATE_NS: u64 = 4_000_000;

/// Copies of values of up to 100 bytes, shards of longer ones.
fn bench(reactor: &Reactor, copies: Mechanism) -> Bench {
    let shards = Mechanism::Splitting { data: 2, parities: 2 };
    let range = |value_bytes_max, mechanism| SizeRange { value_bytes_max, mechanism };
    let policy = Policy::by_size(&[range(100, copies), range(u64::MAX, shards)]).unwrap();
    Bench::by_size(reactor, 5, &[policy])
}

fn range_op(length: u64) -> Op {
    Op::Retrieve { container: DB, key: b"k".to_vec(), range: Some((0, length)), pin: false }
}

/// Stores shards that live so long.
fn expiring(reactor: &Reactor, lives_ms: u64) -> Op {
    let mut store = store_op("k", Value::from(long(700, 1)));
    if let Op::Store { expiry, .. } = &mut store {
        *expiry = Expiry::At(reactor.wall_ms() + lives_ms);
    }
    store
}

/// Found by the simulator, seed 4333: a range that no client ever wrote. The first piece was a shard, and by
/// the time others were read all of them were copies of the next version, which were taken for shards.
#[test]
fn copies_of_the_next_version_are_not_taken_for_shards() {
    run(async |reactor| {
        for after_ns in (0..3 * LATE_NS).step_by(LATE_NS as usize / 4) {
            let bench = bench(&reactor, Mechanism::Replication { copies: 3 });
            let (array, late) = slow::open(&reactor, &bench).await;
            let (old, new) = (long(700, 1), long(90, 2));
            let Ok(Output::Stored { version: first, .. }) = set(&array, "k", &old).await else {
                panic!("stored")
            };
            // The first shard of data has to be computed.
            array.take_out(placement::primary(b"k", 5), "for a test");
            reactor.sleep_ns(LATE_NS).await;
            // What goes in the background would hold the key.
            array.kept.waits();
            late.iter().for_each(|late| late.late_ns.set(LATE_NS));
            let write = async {
                reactor.sleep_ns(after_ns).await;
                set(&array, "k", &new).await
            };
            let (read, written) = join(execute(&array, range_op(50)), write).await;
            let (Ok(Output::Found(item)), Ok(Output::Stored { version, .. })) = (read, written) else {
                panic!("both are done");
            };
            let right = if item.length == 90 { (version, &new[..50]) } else { (first, &old[..50]) };
            assert_eq!((item.version, &item.bytes[..]), right, "{after_ns}");
        }
    });
}

/// Pipelined GETs before DEL were answered that the key is not there, and before SET what that stored:
/// members had it before they were asked.
#[test]
fn a_read_finds_what_a_later_write_takes_away() {
    run(async |reactor| {
        for length in [90, 700] {
            let bench = bench(&reactor, Mechanism::Replication { copies: 3 });
            let (array, late) = slow::open(&reactor, &bench).await;
            let old = long(length, 1);
            set(&array, "k", &old).await.unwrap();
            // Reads take longer than writes.
            late.iter().enumerate().for_each(|(at, late)| late.late_ns.set(at as u64 * LATE_NS));
            let (read, stored) = join(
                execute(&array, retrieve_op(DB, "k")),
                execute(&array, store_op("k", Value::from(long(80, 2)))),
            )
            .await;
            stored.unwrap();
            let Ok(Output::Found(item)) = read else { panic!("{read:?}") };
            assert_eq!(item.bytes, old, "{length} bytes");
            let exist = || Op::Exist { container: DB, key: b"k".to_vec() };
            let looks = join(execute(&array, exist()), execute(&array, range_op(10)));
            let ((seen, read), deleted) = join(looks, del(&array, "k")).await;
            deleted.unwrap();
            let (Ok(Output::Found(seen)), Ok(Output::Found(read))) = (seen, read) else {
                panic!("it is there")
            };
            assert_eq!((seen.length, &read.bytes[..]), (80, &long(80, 2)[..10]));
            assert_eq!(execute(&array, exist()).await, Err(Error::NotFound));
        }
    });
}

/// A pipelined EXISTS after SET was answered 0, and after DEL 1: who only looked began at once, and who
/// writes in a task of its own, later.
#[test]
fn a_look_finds_what_an_earlier_write_leaves() {
    run(async |reactor| {
        for length in [90, 700] {
            let bench = bench(&reactor, Mechanism::Replication { copies: 3 });
            let (array, late) = slow::open(&reactor, &bench).await;
            late.iter().for_each(|late| late.late_ns.set(LATE_NS));
            let exist = || execute(&array, Op::Exist { container: DB, key: b"k".to_vec() });
            let (stored, seen) = join(set(&array, "k", &long(length, 1)), exist()).await;
            stored.unwrap();
            let Ok(Output::Found(seen)) = seen else { panic!("{seen:?}") };
            assert_eq!(seen.length, length as u64);
            let (deleted, seen) = join(del(&array, "k"), exist()).await;
            deleted.unwrap();
            assert_eq!(seen, Err(Error::NotFound), "{length} bytes");
        }
    });
}

/// A reader was told that not enough of the key is left. One member was asked what it has of the key after
/// the end of its life, and the others before.
#[test]
fn a_key_that_expires_while_its_members_are_compared_is_absent() {
    run(async |reactor| {
        for lives_ms in (2..50).step_by(2) {
            let bench = bench(&reactor, Mechanism::Hashing);
            let (array, late) = slow::open(&reactor, &bench).await;
            execute(&array, expiring(&reactor, lives_ms)).await.unwrap();
            // As after a crash of a server whose devices were too full to name what was under way.
            array.distrusted.set(true);
            let primary = placement::primary(b"k", 5);
            for late in [&late[primary], &late[(primary + 1) % 5]] {
                late.late_ns.set(LATE_NS);
            }
            match execute(&array, range_op(0)).await {
                Ok(Output::Found(item)) => assert_eq!(item.length, 700),
                told => assert_eq!(told, Err(Error::NotFound), "it lives {lives_ms} ms"),
            }
        }
    });
}

/// Found by the simulator, seeds 3392, 3948, 5662, 6894 and 7484: who asked whether a key exists was told
/// that not enough of it is left.
#[test]
fn a_key_that_expires_while_it_is_described_is_absent() {
    run(async |reactor| {
        for (lives_ms, slow) in (2..20).flat_map(|lives_ms| [(lives_ms, 0), (lives_ms, 1), (lives_ms, 4)]) {
            let bench = bench(&reactor, Mechanism::Hashing);
            let (array, late) = slow::open(&reactor, &bench).await;
            execute(&array, expiring(&reactor, lives_ms)).await.unwrap();
            let primary = placement::primary(b"k", 5);
            for role in 0..slow {
                late[(primary + role) % 5].late_ns.set(LATE_NS);
            }
            late[(primary + 3) % 5].late_ns.set(2 * LATE_NS);
            match execute(&array, Op::Describe { container: DB, key: b"k".to_vec() }).await {
                Ok(Output::Described(told)) => assert!(told.pieces.iter().all(|piece| piece.read.is_ok())),
                told => assert_eq!(told, Err(Error::NotFound), "it lives {lives_ms} ms"),
            }
        }
    });
}

/// Found by the simulator, seed 8772: a change of a key's time was half made when the server died, and what
/// one member had was gone when it was to be made whole. It was taken for whole, and a rebuild never ended.
#[test]
fn a_piece_that_expires_while_its_time_is_put_right_is_given_again() {
    run(async |reactor| {
        for lives_ms in 2..30 {
            let bench = Bench::split(&reactor, 3, 2, 1);
            let (array, late) = slow::open(&reactor, &bench).await;
            set(&array, "k", b"value").await.unwrap();
            let last = (placement::primary(b"k", 3) + 2) % 3;
            let (key, expiry) = (b"k".to_vec(), Expiry::At(reactor.wall_ms() + lives_ms));
            let (container, condition) = (placement::container(DB, 2), Condition::None);
            execute(&bench.below[last], Op::SetExpiry { container, key, expiry, condition }).await.unwrap();
            array.suspect(&array.place(DB, b"k").unwrap());
            late[last].late_ns.set(LATE_NS);
            assert_eq!(bytes(&array, "k").await.as_deref(), Some(&b"value"[..]), "{lives_ms}");
            assert_eq!(array.status().unsettled, 0);
            let piece = execute(&bench.below[last], retrieve_op(container, "k")).await;
            assert!(matches!(piece, Ok(Output::Found(item)) if item.expiry_ms.is_none()), "{lives_ms}");
        }
    });
}

/// Found by the simulator, seed 7917: who let a key expire at once was told that it was not there. A member
/// that had not been given the key came in before another had answered: what has expired it is not given.
#[test]
fn a_member_that_comes_in_meanwhile_does_not_say_that_an_expired_key_was_absent() {
    run(async |reactor| {
        for after_ns in (0..8 * LATE_NS).step_by(LATE_NS as usize / 16) {
            let bench = Bench::new(&reactor, 4, 3);
            let (array, late) = slow::open(&reactor, &bench).await;
            set(&array, "k", b"v").await.unwrap();
            let primary = placement::primary(b"k", 4);
            let (joins, answers_late) = ((primary + 1) % 4, (primary + 2) % 4);
            array.take_out(joins, "for a test");
            reactor.sleep_ns(LATE_NS).await;
            late[primary].late_ns.set(LATE_NS / 4);
            late[answers_late].late_ns.set(1000 * LATE_NS);
            late[answers_late].late_to.set(|op| matches!(op, Op::SetExpiry { .. }));
            array.rebuild(joins);
            reactor.sleep_ns(after_ns).await;
            let expiry = Expiry::At(reactor.wall_ms());
            let op = Op::SetExpiry { container: DB, key: b"k".to_vec(), expiry, condition: Condition::None };
            let told = execute(&array, op).await;
            assert!(matches!(told, Ok(Output::ExpirySet(_))), "{after_ns}: {told:?}");
        }
    });
}

/// Found by the simulator, seed 7173: a scan was told that all who could tell of some keys were out. One had
/// come in while another, which was asked first, failed.
#[test]
fn a_member_that_comes_in_meanwhile_tells_keys_in_the_place_of_one_that_fails() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 2);
        let (array, late) = slow::open(&reactor, &bench).await;
        set(&array, "k", b"v").await.unwrap();
        let primary = placement::primary(b"k", 3);
        let fails = (primary + 1) % 3;
        array.take_out(primary, "for a test");
        reactor.sleep_ns(LATE_NS).await;
        array.rebuild(primary);
        late[fails].late_ns.set(10 * LATE_NS);
        late[fails].late_to.set(|op| matches!(op, Op::Scan { .. }));
        let failure = async {
            bench.whole(&array).await;
            bench.members[fails].set_policy(FaultPolicy::From(1));
        };
        let (scanned, ()) =
            join(execute(&array, Op::Scan { container: DB, cursor: 0, limit: 9 }), failure).await;
        let Ok(Output::Scanned(page)) = scanned else { panic!("{scanned:?}") };
        assert_eq!(page.keys, [b"k"]);
    });
}

/// Found by an audit: a key was counted twice while it was made whole. It was looked at, and counted after
/// the member that tells of it had got it, and before another had.
#[test]
fn a_key_that_is_made_whole_is_counted_once() {
    run(async |reactor| {
        let bench = Bench::new(&reactor, 3, 3);
        let (array, late) = slow::open(&reactor, &bench).await;
        set(&array, "k", b"v").await.unwrap();
        let place = array.place(DB, b"k").unwrap();
        let [teller, lacks, has] = [0, 1, 2].map(|role| array.member_of(&place, role));
        for (role, member) in [teller, lacks].into_iter().enumerate() {
            let (container, key) = (placement::container(DB, role), b"k".to_vec());
            let delete = Op::Delete { container, key, condition: Condition::None };
            execute(&bench.below[member], delete).await.unwrap();
        }
        array.suspect(&place);
        late[has].late_ns.set(LATE_NS);
        late[has].late_to.set(|op| matches!(op, Op::Transaction { .. }));
        late[lacks].late_ns.set(20 * LATE_NS);
        late[lacks].late_to.set(|op| matches!(op, Op::Store { .. }));
        let read = async {
            reactor.sleep_ns(LATE_NS / 2).await;
            bytes(&array, "k").await
        };
        let (counted, read) = join(keys(&array), read).await;
        assert_eq!((counted, read.as_deref()), (1, Some(&b"v"[..])));
    });
}
