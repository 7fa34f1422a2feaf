//! The adapter over a drive in memory: what every device does, what it asks of the drive, and what crashes
//! leave.

mod bench;
mod collisions;
mod crash;
mod found;
mod requests;
mod rot;
mod states;
mod transactions;

use crate::{Medium, Slots};
use bench::options;
use plimsoll_kv::memory::MemoryOptions;
use plimsoll_kv::semantics::Leaks;
use plimsoll_kv::{Device, LocalFuture};
use plimsoll_reactor::Reactor;
use std::rc::Rc;

fn make(reactor: Reactor, each: MemoryOptions) -> LocalFuture<(Rc<dyn Device>, Leaks)> {
    Box::pin(async move {
        let medium = Medium::new(1 << 20, u64::MAX);
        Slots::format(&reactor, medium.connect(), options(each.value_bytes_max, each.part_bytes))
            .await
            .unwrap();
        let slots = Slots::open(&reactor, medium.connect()).await.unwrap();
        let same = slots.clone();
        let leaks: Leaks = Box::new(move || (same.pinned(), same.uploading()));
        (slots as Rc<dyn Device>, leaks)
    })
}

plimsoll_kv::device_semantics!(make);
