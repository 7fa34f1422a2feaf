//! A device that is full of short records: what makes room on it needs room itself, and nobody else takes
//! that.

use crate::opening::{DATABASE as KEPT, delete, live, open_with, run_async as run, store_in, world};
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::{ContainerId, Error, Expiry, Op, Result, Value};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

const DISK_BYTES: usize = 7 << 20;
const EMPTIED: ContainerId = ContainerId(1);

async fn open(reactor: &Reactor, options: Options) -> Rc<Partition> {
    open_with(reactor, 64 << 10, options).await
}

async fn set(partition: &Rc<Partition>, container: ContainerId, number: u64) -> Result<()> {
    let op = store_in(container, format!("k{number}"), Value::from(vec![7; 8]), Expiry::Never);
    run(partition, op).await.map(|_| ())
}

async fn unset(partition: &Rc<Partition>, number: u64) -> Result<()> {
    run(partition, delete(format!("k{number}"))).await.map(|_| ())
}

/// Stores keys until there is no space; how many.
async fn fill(partition: &Rc<Partition>, first: u64, container: impl Fn(u64) -> ContainerId) -> u64 {
    for number in first.. {
        match set(partition, container(number), number).await {
            Ok(()) => continue,
            Err(error) => assert_eq!(error, Error::NoSpace),
        }
        return number - first;
    }
    unreachable!("every device is full some time")
}

/// What goes of an emptied container is noted in the log: that took the last free segments once, and nothing
/// that gives some back was tried any more.
#[test]
fn an_emptied_database_on_a_full_device_makes_room() {
    let world = world(DISK_BYTES);
    live(&world, |reactor| async move {
        let partition = open(&reactor, Options::default()).await;
        fill(&partition, 0, |number| if number % 4 == 3 { KEPT } else { EMPTIED }).await;
        partition.close().await.unwrap();
    });
    live(&world, |reactor| async move {
        let partition = open(&reactor, Options::default()).await;
        run(&partition, Op::Clear { container: EMPTIED }).await.unwrap();
        for number in 0..200 {
            unset(&partition, 4 * number + 3).await.unwrap();
            set(&partition, KEPT, 1_000_000 + number).await.unwrap();
        }
        let stored = fill(&partition, 2_000_000, |_| KEPT).await;
        assert!(stored > 25_000, "{stored} keys in the place of three quarters");
        partition.check_accounts().unwrap();
    });
}

/// Deletes of keys that are known wait for nothing: they took what the next checkpoint needs, which alone
/// would have given it back.
#[test]
fn quick_deletes_on_a_full_device_leave_checkpoints_their_room() {
    // A piece of a checkpoint takes several segments there.
    live(&world(64 << 20), |reactor| async move {
        let options = Options { known_bytes: 32 << 20, ..Options::default() };
        let partition = open(&reactor, options).await;
        let stored = fill(&partition, 0, |_| KEPT).await;
        for number in (0..stored).step_by(3) {
            unset(&partition, number).await.unwrap();
        }
        let again = fill(&partition, stored, |_| KEPT).await;
        assert!(again * 10 > stored / 3 * 9, "{again} keys in the place of a third of {stored}");
        partition.check_accounts().unwrap();
    });
}
