//! Room: when the next command of a connection may begin.
//!
//! Role: holds back a client that does not take its replies. Place on the path: before a command is begun,
//! and before each element of a reply that has many.
//!
//! Invariant: a connection's commands under way, the replies that wait and their bytes are bounded
//! ([`Queue::has_room`](super::queue::Queue::has_room)), whatever its client does. What it sends meanwhile
//! waits unread: with the kernel, and where it takes nothing, in the [backlog](super::backlog).

use super::Connection;

impl Connection {
    /// Waits until another command may begin; false if none may any more.
    pub(super) async fn wait_for_room(&self) -> bool {
        self.room.wait_for(|| (self.closing.get() || self.has_room()).then_some(())).await;
        !self.closing.get()
    }

    /// True if it may begin at once.
    pub(super) fn has_room_now(&self) -> bool {
        !self.closing.get() && self.has_room()
    }

    /// As [`Connection::wait_for_room`], for a command that has begun and has to come to its end.
    pub(super) async fn wait_for_room_within(&self) -> bool {
        self.room.wait_for(|| (self.dead.get() || self.has_room()).then_some(())).await;
        !self.dead.get()
    }

    /// Waits until no command is under way.
    pub(super) async fn wait_until_alone(&self) {
        self.room.wait_for(|| (self.queue.borrow().in_flight() == 0).then_some(())).await;
    }

    /// Nothing but the client's taking a reply makes room.
    pub(super) fn waits_for_client(&self) -> bool {
        self.queue.borrow().in_flight() == 0 && self.unsent_bytes() > 0
    }

    fn has_room(&self) -> bool {
        self.queue.borrow().has_room(self.unsent_bytes())
    }
}
