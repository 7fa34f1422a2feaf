//! Speed: what a request costs a device, and what its bytes cost, as far as its answers tell.
//!
//! Role: stands between the array and a member and looks on. Place on the path: every request of an array
//! that picks mechanisms by itself.
//!
//! For as long as a device has something to do its time passes; windows of requests give their mean time
//! and their mean bytes, and a line through them (least squares, older windows count less) says what a
//! request costs and what a byte does. Where all requests move about as many bytes the line has no slope to
//! find: two points of a common drive are part of it, scaled to what was seen, and give way to evidence.
//!
//! Never: it changes, holds back or reorders a request; its numbers are a comparison of requests and bytes
//! under the load that there was, and no promise of a time.

use plimsoll_kv::{Completion, ContainerId, Device, LocalFuture, Output, Request, Result};
use plimsoll_reactor::Reactor;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Requests of a window.
const WINDOW_REQUESTS: u64 = 32;
/// What an older window counts beside the one after it.
const DECAY: f64 = 0.98;
/// A common drive: what it takes for a request, and for a byte.
const COMMON: ServiceTime = ServiceTime { request_ns: 10_000.0, byte_ns: 1.0 };
/// Where its points lie, as parts of the mean bytes of all requests, and what each counts beside windows.
const COMMON_AT: [f64; 2] = [0.0, 2.0];
const COMMON_WEIGHT: f64 = 0.25;

/// What devices take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ServiceTime {
    pub(crate) request_ns: f64,
    pub(crate) byte_ns: f64,
}

impl ServiceTime {
    /// What so many requests and bytes take.
    pub(crate) fn ns(&self, requests: f64, bytes: f64) -> f64 {
        self.request_ns * requests + self.byte_ns * bytes
    }
}

/// A line through windows: weights, and weighted sums of bytes and times for one request.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    fn add(&mut self, weight: f64, x: f64, y: f64) {
        self.weight += weight;
        self.x += weight * x;
        self.y += weight * y;
        self.xx += weight * x * x;
        self.xy += weight * x * y;
    }

    fn decay(&mut self) {
        for sum in [&mut self.weight, &mut self.x, &mut self.y, &mut self.xx, &mut self.xy] {
            *sum *= DECAY;
        }
    }

    fn cost(mut self) -> ServiceTime {
        if self.weight == 0.0 {
            return COMMON;
        }
        let (scale, mean) = (self.y / COMMON.ns(self.weight, self.x), (self.x / self.weight).max(1.0));
        for bytes in COMMON_AT.map(|part| part * mean) {
            self.add(COMMON_WEIGHT, bytes, scale * COMMON.ns(1.0, bytes));
        }
        let slope = (self.weight * self.xy - self.x * self.y) / (self.weight * self.xx - self.x * self.x);
        // Neither is for nothing.
        let byte_ns = slope.clamp(0.0, self.y / self.x);
        let request_ns = (self.y - byte_ns * self.x) / self.weight;
        ServiceTime { request_ns, byte_ns }
    }
}

/// What was seen of all devices of an array.
#[derive(Default)]
pub(crate) struct Speed {
    line: RefCell<Line>,
}

impl Speed {
    /// What a request and a byte cost.
    pub(crate) fn cost(&self) -> ServiceTime {
        self.line.borrow().cost()
    }

    pub(crate) fn observed(&self, requests: u64, bytes: u64, busy_ns: u64) {
        let mut line = self.line.borrow_mut();
        line.decay();
        line.add(1.0, bytes as f64 / requests as f64, busy_ns as f64 / requests as f64);
    }
}

/// A device that is looked at.
pub(crate) struct Timed {
    reactor: Reactor,
    below: Rc<dyn Device>,
    speed: Rc<Speed>,
    under_way: Cell<u64>,
    /// Since when its time has not been counted.
    since_ns: Cell<u64>,
    /// Of the present window.
    busy_ns: Cell<u64>,
    requests: Cell<u64>,
    bytes: Cell<u64>,
}

impl Timed {
    pub(crate) fn new(reactor: &Reactor, below: Rc<dyn Device>, speed: Rc<Speed>) -> Rc<Timed> {
        let [under_way, since_ns, busy_ns, requests, bytes] = std::array::from_fn(|_| Cell::new(0));
        Rc::new(Timed {
            reactor: reactor.clone(),
            below,
            speed,
            under_way,
            since_ns,
            busy_ns,
            requests,
            bytes,
        })
    }

    /// Counts the time that has passed, if there was anything to do.
    fn pass(&self) {
        let now_ns = self.reactor.now_ns();
        let passed_ns = now_ns - self.since_ns.replace(now_ns);
        if self.under_way.get() > 0 {
            self.busy_ns.set(self.busy_ns.get() + passed_ns);
        }
    }

    fn begin(self: &Rc<Self>) -> UnderWay {
        self.pass();
        self.under_way.set(self.under_way.get() + 1);
        UnderWay(self.clone())
    }

    fn done(&self, bytes: u64) {
        self.pass();
        self.bytes.set(self.bytes.get() + bytes);
        self.requests.set(self.requests.get() + 1);
        if self.requests.get() >= WINDOW_REQUESTS {
            self.speed.observed(self.requests.take(), self.bytes.take(), self.busy_ns.take());
        }
    }
}

/// A request under way: whoever waits for it may go away.
struct UnderWay(Rc<Timed>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.pass();
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

impl Device for Timed {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        let sent = request.op.value_bytes();
        let asked = self.below.clone().execute(request);
        Box::pin(async move {
            let _under_way = self.begin();
            let done = asked.await;
            self.done(sent + done.as_ref().map_or(0, |done| given_bytes(&done.output)));
            done
        })
    }

    fn announce(&self, container: ContainerId, keys: &[&[u8]], round: u32) -> bool {
        self.below.announce(container, keys, round)
    }

    plimsoll_kv::as_below!();
}

fn given_bytes(output: &Output) -> u64 {
    match output {
        Output::Found(item) => item.bytes.len() as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_several_lengths_tell_what_each_costs() {
        let speed = Speed::default();
        assert_eq!(speed.cost(), COMMON);
        for number in 0..400 {
            let bytes = [100, 4000, 20_000][number % 3];
            speed.observed(64, 64 * bytes, 64 * (50_000 + 2 * bytes));
        }
        let ServiceTime { request_ns, byte_ns } = speed.cost();
        assert!(
            (45_000.0..55_000.0).contains(&request_ns) && (1.8..2.2).contains(&byte_ns),
            "{:?}",
            speed.cost()
        );
    }

    #[test]
    fn requests_of_one_length_are_those_of_a_common_drive_as_slow_as_this_one() {
        let speed = Speed::default();
        (0..400).for_each(|_| speed.observed(64, 64 * 10_000, 64 * 60_000));
        let ServiceTime { request_ns, byte_ns } = speed.cost();
        assert!((request_ns / 30_000.0 - 1.0).abs() < 0.01 && (byte_ns / 3.0 - 1.0).abs() < 0.01);
    }
}
