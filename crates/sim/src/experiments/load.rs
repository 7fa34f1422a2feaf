//! Load: so many clients, each with one request after the other, and how many were done in between.
//!
//! Invariant: the rate is that between the first tenth and the last of what was asked: neither the filling of
//! the queues nor their end.

use super::device::Modelled;
use futures_util::future::join_all;
use plimsoll_kv::{Device, Durability, Error, Op, Request};
use plimsoll_reactor::Reactor;
use std::cell::Cell;
use std::rc::Rc;

/// Clients.
const CLIENTS: u64 = 384;
/// What goes on in the background has ended by then.
const AFTERWARDS_NS: u64 = 1_000_000_000;

/// What a load came to, for each operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) per_s: f64,
    /// Requests to devices that were made for it, sooner or later.
    pub(super) requests: f64,
    /// Requests to devices, and bytes that they brought or gave, while the rate was taken.
    pub(super) load: (f64, f64),
}

/// Does operations from 0 to `count`, and measures them.
pub(super) async fn measure(
    reactor: &Reactor,
    device: &Rc<dyn Device>,
    devices: &[Rc<Modelled>],
    count: u64,
    op: impl Fn(u64) -> Op,
) -> Measured {
    let totals = || {
        let sum = |of: fn(&Modelled) -> u64| devices.iter().map(|device| of(device)).sum::<u64>() as f64;
        (sum(|device| device.requests.get()), sum(|device| device.bytes.get()))
    };
    let (first, last) = (count / 10, count - count / 10);
    let (begun, ended) = (Cell::new(0), Cell::new(0));
    let (start, end) = (Cell::new((0, (0.0, 0.0))), Cell::new((0, (0.0, 0.0))));
    let before = totals();
    let each = (0..CLIENTS).map(async |_| {
        while begun.get() < count {
            let number = begun.replace(begun.get() + 1);
            let request = Request::new(Durability::Sync, op(number));
            match device.clone().execute(request).await {
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) => panic!("operation {number}: {error}"),
            }
            ended.set(ended.get() + 1);
            for (at, mark) in [(first, &start), (last, &end)] {
                if ended.get() == at {
                    mark.set((reactor.now_ns(), totals()));
                }
            }
        }
    });
    join_all(each).await;
    reactor.sleep_ns(AFTERWARDS_NS).await;
    let ((start_ns, from), (end_ns, to)) = (start.get(), end.get());
    let done = (last - first) as f64;
    Measured {
        per_s: done * 1e9 / (end_ns - start_ns) as f64,
        requests: (totals().0 - before.0) / count as f64,
        load: ((to.0 - from.0) / done, (to.1 - from.1) / done),
    }
}
