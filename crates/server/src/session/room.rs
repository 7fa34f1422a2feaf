//! Room: when the next command of a connection may begin.
//!
//! Role: holds back a client that does not take its replies. Place on the path: before a command is begun,
//! and before each element of a reply that has many.
//!
//! Invariants:
//! * while its client takes replies, a connection's commands under way, the replies that wait and their bytes
//!   are bounded ([`Queue::has_room`](super::queue::Queue::has_room));
//! * a client that sends all of a pipeline before it takes the first reply comes to the end of it: when it
//!   has taken nothing for [`RUN_AHEAD_NS`] its commands run ahead of what is sent, as long as it holds less
//!   than is left for others ([`Core::lets_wait`](crate::core::Core::lets_wait)).
//!
//! Who has more to send than that and takes nothing for a minute is cut (`writer`).

use super::Connection;
use crate::limits::{RUN_AHEAD_NS, RUN_AHEAD_REST_NS_MAX};
use futures_util::future::select;
use std::pin::pin;

impl Connection {
    /// Waits until another command may begin; false if none may any more.
    pub(super) async fn wait_for_room(&self) -> bool {
        self.wait_for_room_or(|| self.closing.get()).await;
        !self.closing.get()
    }

    /// As [`Connection::wait_for_room`], for a command that has begun and has to come to its end.
    pub(super) async fn wait_for_room_within(&self) -> bool {
        self.wait_for_room_or(|| self.dead.get()).await;
        !self.dead.get()
    }

    /// Waits until no command is under way.
    pub(super) async fn wait_until_alone(&self) {
        self.room.wait_for(|| (self.queue.borrow().in_flight() == 0).then_some(())).await;
    }

    async fn wait_for_room_or(&self, ends: impl Fn() -> bool) {
        let goes_on = || ends() || self.has_room();
        let mut rest_ns = RUN_AHEAD_NS;
        while !goes_on() {
            // Commands under way bring room by themselves.
            self.room.wait_for(|| (goes_on() || self.waits_for_client()).then_some(())).await;
            if goes_on() {
                return;
            }
            let sent_bytes = self.stream.sent_bytes();
            let room = self.room.wait_for(|| goes_on().then_some(()));
            select(pin!(room), pin!(self.core.reactor.sleep_ns(rest_ns))).await;
            if self.stream.sent_bytes() == sent_bytes {
                self.runs_ahead.set(true);
                rest_ns = (rest_ns * 2).min(RUN_AHEAD_REST_NS_MAX);
            }
        }
    }

    /// Nothing but the client's taking a reply makes room.
    fn waits_for_client(&self) -> bool {
        self.queue.borrow().in_flight() == 0 && self.sending_bytes.get() > 0
    }

    fn has_room(&self) -> bool {
        let queue = self.queue.borrow();
        queue.has_room(self.sending_bytes.get())
            || (self.runs_ahead.get()
                && queue.has_room_ahead()
                && self.core.lets_wait(self.counted_bytes.get()))
    }
}
