//! Short records that were written lately: who looks at one reads nothing, and sees what stands on flash.

use crate::opening::{DATABASE, DISK_BYTES, live, open_with, run, store, world};
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::{Class, Condition, Device, Durability, Edit, Expiry, Op, Output, Request, Value};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

const SEGMENT_BYTES: u32 = 64 << 10;
const KEYS: u64 = 100;

async fn open(reactor: &Reactor) -> Rc<Partition> {
    open_with(reactor, SEGMENT_BYTES, Options { known_bytes: 256 << 10, ..Options::default() }).await
}

fn key(number: u64) -> Vec<u8> {
    format!("k{number}").into_bytes()
}

async fn put(partition: &Rc<Partition>, number: u64, bytes: &[u8]) {
    run(partition, store(key(number), Value::from(bytes.to_vec()), Expiry::Never)).await.expect("a store");
}

/// Other keys, so that what was written before them is on flash.
async fn fill(partition: &Rc<Partition>, round: u64) {
    for number in 0..40 {
        let scattered = (number * number * 37 + round * 101) % 400;
        put(partition, 1_000_000 + scattered, &[7; 4000]).await;
    }
}

async fn retrieved(partition: &Rc<Partition>, number: u64, class: Class) -> Vec<u8> {
    let op = Op::Retrieve { container: DATABASE, key: key(number), range: None, pin: false };
    let request = Request { class, ..Request::new(Durability::Sync, op) };
    match partition.clone().execute(request).await.map(|done| done.output) {
        Ok(Output::Found(item)) => item.bytes,
        other => panic!("key {number}: {other:?}"),
    }
}

#[test]
fn short_records_are_looked_at_without_a_read() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        for number in 0..KEYS {
            put(&partition, number, format!("value {number}").as_bytes()).await;
        }
        put(&partition, KEYS, &[1; 150]).await;
        fill(&partition, 0).await;
        let before = partition.metrics();
        for number in 0..KEYS {
            let expected = format!("value {number}").into_bytes();
            assert_eq!(retrieved(&partition, number, Class::Foreground).await, expected);
        }
        let after = partition.metrics();
        assert_eq!(
            (after.record_reads, after.recent_reads - before.recent_reads),
            (before.record_reads, KEYS)
        );
        // It is too long, and who looks after what is on flash wants to see that.
        assert_eq!(retrieved(&partition, KEYS, Class::Foreground).await, [1; 150]);
        assert_eq!(retrieved(&partition, 7, Class::Background).await, b"value 7");
        let read = partition.metrics();
        assert_eq!((read.record_reads - after.record_reads, read.recent_reads), (2, after.recent_reads));
        partition.close().await.expect("it stops in order");
    });
    live(&world, |reactor| async move {
        let partition = open(&reactor).await;
        assert_eq!(retrieved(&partition, 7, Class::Foreground).await, b"value 7");
        assert_eq!((partition.metrics().record_reads, partition.metrics().recent_reads), (1, 0));
    });
}

#[test]
fn counters_go_up_without_a_read() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let add = |number| store(key(number), Value::Edit(Edit::Add(1)), Expiry::Keep);
        for round in 1..=5 {
            let before = partition.metrics().record_reads;
            for number in 0..KEYS {
                run(&partition, add(number)).await.expect("a number");
            }
            assert_eq!(partition.metrics().record_reads, before);
            fill(&partition, round).await;
            let counted = retrieved(&partition, 3, Class::Foreground).await;
            assert_eq!(counted, round.to_string().into_bytes());
        }
        // Their times are as they were set, though their records are older.
        let at = Expiry::At(reactor.wall_ms() + 1000);
        let expiry =
            Op::SetExpiry { container: DATABASE, key: key(3), expiry: at, condition: Condition::None };
        run(&partition, expiry).await.expect("it expires");
        reactor.sleep_ns(2_000_000_000).await;
        run(&partition, add(3)).await.expect("a number");
        assert_eq!(retrieved(&partition, 3, Class::Foreground).await, b"1", "it began anew");
        partition.check_accounts().expect("the accounts agree");
    });
}

/// On a device that is written over and over, of which what lives is moved, and segments are used again.
#[test]
fn what_is_looked_at_is_what_was_written_last_though_it_moves() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        let mut written = vec![0; KEYS as usize];
        for round in 1..=60_u64 {
            for number in (0..KEYS).filter(|number| (number * 7 + round).is_multiple_of(1 + number % 9)) {
                written[number as usize] = round;
                put(&partition, number, &round.to_le_bytes()).await;
            }
            fill(&partition, round).await;
            for number in (0..KEYS).filter(|number| written[*number as usize] > 0) {
                let expected = written[number as usize].to_le_bytes();
                assert_eq!(retrieved(&partition, number, Class::Foreground).await, expected, "round {round}");
            }
        }
        let metrics = partition.metrics();
        assert!(metrics.cleaned_segments > 50 && metrics.recent_reads > 1000, "{metrics:?}");
        partition.check_accounts().expect("the accounts agree");
    });
}

/// Else keys that come and go, as locks do, would push out those that stay.
#[test]
fn what_is_deleted_or_replaced_leaves_its_room() {
    live(&world(DISK_BYTES), |reactor| async move {
        let partition = open(&reactor).await;
        for number in 0..KEYS {
            put(&partition, number, b"stays").await;
        }
        for number in 0..5_000 {
            put(&partition, KEYS + number % 20, b"comes").await;
            if number % 3 > 0 {
                let key = key(KEYS + number % 20);
                let delete = Op::Delete { container: DATABASE, key, condition: Condition::None };
                run(&partition, delete).await.expect("it was just stored");
            }
        }
        fill(&partition, 0).await;
        let before = partition.metrics().record_reads;
        for number in 0..KEYS {
            assert_eq!(retrieved(&partition, number, Class::Foreground).await, b"stays");
        }
        let read = partition.metrics().record_reads - before;
        assert!(read < KEYS / 10, "{read} of {KEYS} had to be read");
    });
}
