//! A device that is full of short records: what makes room on it needs room itself, and nobody else takes
//! that.

use crate::opening::{DATABASE as KEPT, delete, live, open_with, run_async as run, store_in, world};
use plimsoll_flash::{Options, Partition};
use plimsoll_kv::{Class, ContainerId, Device, Durability, Error, Expiry, Kept, Op, Request, Result, Value};
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

fn in_batch(class: Class, ops: Vec<Op>) -> Request {
    Request { class, ..Request::new(Durability::Sync, Op::Batch(ops)).making_room() }
}

/// What keeps a value under another key, as it goes, has room on a full device, and so has the background;
/// each as far as is kept for it.
#[test]
fn what_makes_room_goes_beyond_what_stores_may_take() {
    live(&world(64 << 20), |reactor| async move {
        let partition = open(&reactor, Options::default()).await;
        let store = |name: &str, number: u64| {
            store_in(KEPT, format!("{name}{number}"), Value::from(vec![7; 1000]), Expiry::Never)
        };
        let mut stored = 0;
        while run(&partition, store("k", stored)).await.is_ok() {
            stored += 1;
        }
        let keep = |number: u64| {
            let (key, ghost) = (format!("k{number}").into_bytes(), format!("ghost of {number}"));
            let kept = Kept { head: vec![1; 12], bytes: None, container: KEPT, key: key.clone() };
            vec![delete(key), store_in(EMPTIED, ghost, Value::Kept(kept), Expiry::Never)]
        };
        let goes = async |class, limit: u64| {
            for number in 0..limit {
                let ops = match class {
                    Class::Foreground => keep(number),
                    Class::Background => vec![store("b", number)],
                };
                match partition.clone().execute(in_batch(class, ops)).await {
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error, Error::NoSpace);
                        return number;
                    }
                }
            }
            limit
        };
        let (kept, more) = (goes(Class::Foreground, stored).await, goes(Class::Background, stored).await);
        assert!(kept > 1000 && kept < stored / 2, "{kept} of {stored} are kept");
        assert!(more > 100 && more < stored / 20, "{more} beside {stored}");
        assert!(run(&partition, store("k", stored)).await.is_err());
        partition.check_accounts().unwrap();
    });
}
