//! The writer of the log: closes frames when they are due, writes them, and says how far all is durable.
//!
//! Place on the path: a task of its own below the appenders; who waits for durability waits for it.
//!
//! Invariants: at most [`FRAMES_IN_FLIGHT_MAX`] frames are at the device; durable is the longest row of
//! written frames without a gap; after a failed write nothing more is started.

use super::Log;
use crate::planted::{Bug, is_planted};
use futures_util::future::select;
use plimsoll_kv::Durability;
use plimsoll_kv::block::Origin;
use plimsoll_reactor::{Buf, Work};
use std::pin::pin;
use std::rc::Rc;

/// Frames being written at a time: fewer leave a drive idle between long ones. Short ones wait: see below.
const FRAMES_IN_FLIGHT_MAX: usize = 4;
/// A frame with fewer bytes than this waits until the one before is written, and more join it: frames are
/// padded to blocks, and what two small ones pad is written and cleaned for nothing.
const SECOND_FRAME_BYTES_MIN: usize = 64 << 10;
/// How long a group commit may wait for company.
const GROUP_DELAY_NS: u64 = 1_000_000;
/// How long an asynchronous store may stay in memory.
const ASYNC_DELAY_NS: u64 = 500_000_000;
/// After this much quiet an empty frame is written, as proof that the last one was acknowledged.
const SEAL_DELAY_NS: u64 = 2_000_000;

impl Log {
    /// The writer: closes frames when they are due and writes them.
    pub(super) async fn write_frames(self: Rc<Self>) {
        loop {
            // Whatever else is ready in this turn joins the frame.
            self.reactor.yield_now().await;
            let due_ns = self.close_due();
            while let Some((number, offset, buf)) = self.start_next() {
                let durable = !is_planted(Bug::SkippedFlush);
                let write = self.block.write(Origin::FOREGROUND, offset, buf, durable);
                let log = self.clone();
                self.reactor.spawn(Work::Device, async move { log.finish(number, write.await) });
            }
            if self.failed.borrow().is_some() || (self.closing.get() && self.is_idle()) {
                return;
            }
            self.wait_for_work(due_ns).await;
        }
    }

    /// The last frame that is written or will be: one that nothing is in may never be.
    pub(super) fn last_frame(&self) -> u64 {
        self.frame.get() - u64::from(self.tail.borrow().building.items == 0)
    }

    fn is_idle(&self) -> bool {
        let tail = self.tail.borrow();
        tail.pending.is_empty() && tail.building.bytes.is_empty()
    }

    /// Closes the frame being built if it is due; else when it will be.
    fn close_due(&self) -> Option<u64> {
        let now_ns = self.reactor.now_ns();
        let mut tail = self.tail.borrow_mut();
        if tail.building.bytes.is_empty() {
            let quiet = tail.pending.is_empty() && tail.last_content > self.proven.get();
            return quiet.then_some(now_ns + SEAL_DELAY_NS);
        }
        let unstarted = tail.pending.iter().filter(|frame| !frame.started).count();
        let in_flight = tail.pending.len() - unstarted;
        let is_small = tail.building.bytes.len() - tail.building.head_bytes < SECOND_FRAME_BYTES_MIN;
        if unstarted > 0 || in_flight >= FRAMES_IN_FLIGHT_MAX || (in_flight > 0 && is_small) {
            return None; // It fills while the device is busy; a completion looks again.
        }
        let delay_ns = match tail.building.urgency {
            Durability::Sync => 0,
            Durability::Group => GROUP_DELAY_NS,
            Durability::Async => ASYNC_DELAY_NS,
        };
        let due_ns = tail.building.opened_ns + delay_ns;
        if self.closing.get() || due_ns <= now_ns {
            self.close_frame(&mut tail);
            return None;
        }
        Some(due_ns)
    }

    fn start_next(&self) -> Option<(u64, u64, Rc<Buf>)> {
        if self.failed.borrow().is_some() {
            return None;
        }
        let mut tail = self.tail.borrow_mut();
        let in_flight = tail.pending.iter().filter(|frame| frame.started && !frame.written).count();
        if in_flight >= FRAMES_IN_FLIGHT_MAX {
            return None;
        }
        let frame = tail.pending.iter_mut().find(|frame| !frame.started)?;
        frame.started = true;
        Some((frame.number, frame.device_offset, frame.buf.clone()))
    }

    /// Nothing is awaited between the look for work and this, so no call is missed.
    async fn wait_for_work(&self, due_ns: Option<u64>) {
        let mut asked = false;
        let woken = self.work.wait_for(|| std::mem::replace(&mut asked, true).then_some(()));
        let Some(due_ns) = due_ns else { return woken.await };
        select(pin!(woken), pin!(self.reactor.sleep_until(due_ns))).await;
        self.seal_if_quiet(due_ns);
    }

    /// After a quiet time, an empty frame proves that the last frame with content was durable.
    fn seal_if_quiet(&self, due_ns: u64) {
        let mut tail = self.tail.borrow_mut();
        let quiet = tail.building.bytes.is_empty() && tail.pending.is_empty();
        if self.reactor.now_ns() < due_ns || !quiet || tail.last_content <= self.proven.get() {
            return;
        }
        if self.fits(&tail, 0, 0) {
            tail.building.open(due_ns, 0);
            self.close_frame(&mut tail);
        } else {
            // The segment is full; the header of the next one will be the proof.
            self.proven.set(tail.last_content);
        }
    }

    fn finish(&self, number: u64, result: std::io::Result<()>) {
        if let Err(error) = result {
            return self
                .fail(&format!("writing frame {number} of partition {}: {error}", self.layout.partition));
        }
        self.frames_written.set(self.frames_written.get() + 1);
        let mut tail = self.tail.borrow_mut();
        let frame = tail.pending.iter_mut().find(|frame| frame.number == number);
        frame.expect("a frame is written once").written = true;
        if is_planted(Bug::OutOfOrderDurable) {
            self.durable.set(self.durable.get().max(number));
        }
        while tail.pending.front().is_some_and(|frame| frame.written) {
            let frame = tail.pending.pop_front().expect("just looked at");
            tail.pending_bytes -= frame.buf.len();
            assert!(is_planted(Bug::OutOfOrderDurable) || frame.number == self.durable.get() + 1);
            self.durable.set(frame.number.max(self.durable.get()));
            self.proven.set(self.proven.get().max(frame.number - 1));
        }
        let durable = self.durable.get();
        if tail.pending_keys.len() > 64 || tail.pending.is_empty() {
            tail.pending_keys.retain(|_, frame| *frame > durable);
        }
        drop(tail);
        self.acknowledge(self.durable.get());
        self.progress.wake_all();
        self.work.wake_all();
    }
}
