//! Load: so many clients, each with one request after the other, and how many were done in between.
//!
//! Invariant: the rate is that between the first tenth and the last of what was asked: neither the filling of
//! the queues nor their end.

use futures_util::future::join_all;
use plimsoll_reactor::Reactor;
use std::cell::Cell;
use std::rc::Rc;

/// Clients.
pub(super) const CLIENTS: u64 = 384;
/// What goes on in the background has ended by then.
const AFTERWARDS_NS: u64 = 1_000_000_000;

/// A device that counts.
pub(super) trait Counted {
    /// Requests that were done.
    fn requests(&self) -> u64;
    /// Bytes that they brought or gave.
    fn bytes(&self) -> u64;
}

impl<T: Counted> Counted for Rc<T> {
    fn requests(&self) -> u64 {
        T::requests(self)
    }

    fn bytes(&self) -> u64 {
        T::bytes(self)
    }
}

/// What a load came to, for each operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) per_s: f64,
    /// Requests to devices that were made for it, sooner or later.
    pub(super) requests: f64,
    /// Requests to devices, and bytes that they brought or gave, while the rate was taken.
    pub(super) load: (f64, f64),
}

impl Measured {
    /// The same where each operation was so many.
    pub(super) fn of_each(self, together: u64) -> Measured {
        let (share, (requests, bytes)) = (together as f64, self.load);
        Measured {
            per_s: self.per_s * share,
            requests: self.requests / share,
            load: (requests / share, bytes / share),
        }
    }
}

/// Does operations from 0 to `count` by so many clients, and measures them.
pub(super) async fn measure<D: Counted>(
    reactor: &Reactor,
    devices: &[D],
    (clients, count): (u64, u64),
    op: impl AsyncFn(u64),
) -> Measured {
    let totals = || {
        let sum = |of: fn(&D) -> u64| devices.iter().map(of).sum::<u64>() as f64;
        (sum(D::requests), sum(D::bytes))
    };
    let (first, last) = (count / 10, count - count / 10);
    let (begun, ended) = (Cell::new(0), Cell::new(0));
    let (start, end) = (Cell::new((0, (0.0, 0.0))), Cell::new((0, (0.0, 0.0))));
    let before = totals();
    let each = (0..clients).map(async |_| {
        while begun.get() < count {
            let number = begun.replace(begun.get() + 1);
            op(number).await;
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
