//! What the unit tests of this crate share: one simulated core, and requests in one line.

use crate::completion::{Completion, Item, Output, Retrieved};
use crate::request::{ContainerId, Durability, Op, Request};
use crate::{Device, Result};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::{Reactor, Work};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

/// A minute of virtual time: no test waits longer.
const DEADLINE_NS: u64 = 60_000_000_000;

/// Runs a test on a simulated core, to its end.
pub(crate) fn run<F: Future<Output = ()> + 'static>(test: impl Fn(Reactor, World) -> F) {
    let world = World::new(1, |_| "test");
    world.add_disk("disk", 1 << 20);
    let done = Rc::new(Cell::new(false));
    world.start_process(ProcessId(0), 1, |reactor| {
        let (future, done) = (test(reactor.clone(), world.clone()), done.clone());
        reactor.spawn(Work::Kv, async move {
            future.await;
            done.set(true);
        });
    });
    assert!(world.run_until(DEADLINE_NS, || done.get()), "the test did not end");
    world.kill(ProcessId(0), false);
}

pub(crate) const DB: ContainerId = ContainerId(0);

pub(crate) fn store_op(key: &[u8], value: &[u8]) -> Op {
    Op::store(DB, key, value)
}

pub(crate) async fn execute<D: Device + ?Sized>(device: &Rc<D>, op: Op) -> Result<Output> {
    let completion: Result<Completion> = device.clone().execute(Request::new(Durability::Sync, op)).await;
    completion.map(|completion| completion.output)
}

pub(crate) async fn get<D: Device + ?Sized>(device: &Rc<D>, key: &[u8]) -> Result<Item> {
    let op = Op::Retrieve { container: DB, key: key.to_vec(), range: None, pin: false };
    match execute(device, op).await? {
        Output::Found(item) => Ok(item),
        other => panic!("a retrieve gave {other:?}"),
    }
}

/// The same by a request and by the way for whole values.
pub(crate) async fn get_each_way<D: Device + ?Sized>(device: &Rc<D>, key: &[u8]) -> Result<Item> {
    let read = get(device, key).await;
    let whole = device.clone().retrieve_whole(DB, key.into()).await;
    if let Ok(Retrieved { item: Item { upload: Some(upload), .. }, .. }) = &whole {
        execute(device, Op::Unpin { upload: *upload, key: key.to_vec() }).await.unwrap();
    }
    assert_eq!(whole.map(Item::from), read);
    read
}
