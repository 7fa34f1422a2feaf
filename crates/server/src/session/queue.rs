//! The replies of a connection in order: those that are ready and those that will be.
//!
//! Invariants:
//! * a place is filled once; places leave from the front, each when it is filled; nothing stands between the
//!   elements of an array;
//! * the number of places, of commands under way and of bytes is bounded by [`Queue::has_room`], which
//!   reckons with what the commands under way may bring, from what recent replies brought;
//! * a value in parts that waits holds little memory, but space on its device and reads that were in vain if
//!   nobody takes it: it counts as much as a long reply.

use crate::limits::{COMMANDS_IN_FLIGHT_MAX, REPLIES_WAITING_MAX, REPLY_BYTES_MAX, REPLY_PLACES_KEPT};
use crate::reply::Reply;
use plimsoll_resp::Version;
use std::collections::VecDeque;

struct Place {
    version: Version,
    reply: Option<Reply>,
    /// The client does not want it.
    is_muted: bool,
}

/// Bytes expected of a reply before any was seen: a client begins with a few commands under way, and gets
/// the full window when its first replies were short.
const REPLY_BYTES_EXPECTED: usize = REPLY_BYTES_MAX / 8;

/// What a value in parts that waits counts beside what it holds.
const PIN_BYTES: usize = REPLY_BYTES_EXPECTED;

/// Values in parts: this reply is one, or is not.
fn pins_of(reply: &Reply) -> usize {
    usize::from(matches!(reply, Reply::Parts(_)))
}

pub(super) struct Queue {
    places: VecDeque<Place>,
    /// The number of the first place.
    first: u64,
    in_flight: usize,
    ready_bytes: usize,
    /// Values in parts that are ready: each keeps its space on the device until it has been sent.
    pins: usize,
    /// About the largest of the recent replies.
    expected_bytes: usize,
    /// Elements of the last array that have no place yet.
    elements_due: usize,
    /// Several replies are under way that belong together.
    holds_messages: bool,
    /// Messages that came meanwhile: they must not stand inside of the array.
    messages: Vec<(Version, Reply)>,
    /// Bytes of those. Nobody waits for room because of them: they leave when the array is whole.
    message_bytes: usize,
    /// The connection is gone: replies are dropped.
    forgotten: bool,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            places: VecDeque::new(),
            first: 0,
            in_flight: 0,
            ready_bytes: 0,
            pins: 0,
            expected_bytes: REPLY_BYTES_EXPECTED,
            elements_due: 0,
            holds_messages: false,
            messages: Vec::new(),
            message_bytes: 0,
            forgotten: false,
        }
    }
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Bytes of replies and messages that wait.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.ready_bytes + self.message_bytes
    }

    /// The same, and of all places.
    pub(super) fn held_bytes(&self) -> usize {
        self.waiting_bytes() + self.places.capacity() * size_of::<Place>()
    }

    /// Whether another command may begin while so many bytes are with the socket.
    pub(super) fn has_room(&self, sending_bytes: usize) -> bool {
        let held_bytes = self.ready_bytes + self.pins * PIN_BYTES + sending_bytes;
        let coming_bytes = self.in_flight.saturating_mul(self.expected_bytes);
        (held_bytes == 0 && self.in_flight == 0)
            || (self.in_flight < COMMANDS_IN_FLIGHT_MAX
                && self.places.len() < REPLIES_WAITING_MAX
                && held_bytes + coming_bytes < REPLY_BYTES_MAX)
    }

    pub(super) fn push_ready(&mut self, version: Version, reply: Reply) {
        self.add_ready(&reply);
        self.places.push_back(Place { version, reply: Some(reply), is_muted: false });
    }

    fn add_ready(&mut self, reply: &Reply) {
        self.ready_bytes += reply.held_bytes();
        self.pins += pins_of(reply);
    }

    /// The header of an array whose elements get their places one after the other.
    pub(super) fn push_header(&mut self, version: Version, elements: usize) {
        self.push_ready(version, Reply::ArrayHeader(elements));
        self.elements_due = elements;
    }

    /// From here on messages wait, until all replies that belong together are there.
    pub(super) fn hold_messages(&mut self) {
        self.holds_messages = true;
    }

    /// They are there.
    pub(super) fn release_messages(&mut self) {
        self.holds_messages = false;
        self.let_messages_leave();
    }

    fn let_messages_leave(&mut self) {
        self.ready_bytes += std::mem::take(&mut self.message_bytes);
        for (version, reply) in std::mem::take(&mut self.messages) {
            self.places.push_back(Place { version, reply: Some(reply), is_muted: false });
        }
    }

    /// A message that is no reply.
    pub(super) fn push_message(&mut self, version: Version, message: Reply) {
        if self.elements_due == 0 && !self.holds_messages {
            return self.push_ready(version, message);
        }
        self.message_bytes += message.held_bytes();
        self.messages.push((version, message));
    }

    pub(super) fn push_pending(&mut self, version: Version, is_muted: bool) -> u64 {
        self.in_flight += 1;
        self.places.push_back(Place { version, reply: None, is_muted });
        let place = self.first + self.places.len() as u64 - 1;
        if self.elements_due > 0 {
            self.elements_due -= 1;
            if self.elements_due == 0 {
                self.let_messages_leave();
            }
        }
        place
    }

    /// Fills a place; true if it is the first, so that it can leave.
    pub(super) fn fill(&mut self, place: u64, reply: Reply) -> bool {
        self.in_flight -= 1;
        if self.forgotten {
            return false;
        }
        self.add_ready(&reply);
        let bytes = reply.held_bytes() + pins_of(&reply) * PIN_BYTES;
        self.expected_bytes = bytes.max(self.expected_bytes - self.expected_bytes / 16);
        let index = usize::try_from(place - self.first).expect("the queue is short");
        let place = &mut self.places[index];
        assert!(place.reply.is_none(), "a place is filled once");
        place.reply = Some(reply);
        index == 0
    }

    /// Whether a place is the first: what fills it may leave.
    pub(super) fn is_first(&self, place: u64) -> bool {
        place == self.first
    }

    /// Whether the client does not want the reply of a place that is not filled yet.
    pub(super) fn is_muted(&self, place: u64) -> bool {
        let index = usize::try_from(place - self.first).expect("the queue is short");
        self.places.get(index).is_some_and(|place| place.is_muted)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.places.front().is_some_and(|place| place.reply.is_some())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of the reply that is ready while no other waits, none that belongs to it comes, and no command
    /// is under way; `None` if it is not so, or it is a value in parts.
    pub(super) fn lone_bytes(&self) -> Option<usize> {
        let is_alone = self.places.len() == 1 && self.elements_due == 0 && !self.holds_messages;
        (is_alone && self.pins == 0 && self.is_ready()).then_some(self.ready_bytes)
    }

    /// True if a value in parts waits.
    pub(super) fn holds_pin(&self) -> bool {
        self.pins > 0
    }

    /// Takes the first reply, if it is ready.
    pub(super) fn pop(&mut self) -> Option<(Version, Reply)> {
        let reply = self.places.front_mut()?.reply.take()?;
        let place = self.places.pop_front()?;
        self.first += 1;
        if self.places.is_empty() && self.places.capacity() > REPLY_PLACES_KEPT {
            self.places = VecDeque::new();
        }
        self.ready_bytes -= reply.held_bytes();
        self.pins -= pins_of(&reply);
        Some((place.version, reply))
    }

    /// Gives everything back to be dropped, and drops what comes from now on.
    #[must_use]
    pub(super) fn forget(&mut self) -> Vec<Reply> {
        self.forgotten = true;
        (self.ready_bytes, self.message_bytes, self.pins) = (0, 0, 0);
        self.messages.clear();
        std::mem::take(&mut self.places).into_iter().filter_map(|place| place.reply).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Pinned;
    use plimsoll_kv::UploadId;

    fn parts() -> Reply {
        let release = Box::new(|_| {});
        Reply::Parts(Box::new(Pinned {
            upload: UploadId(1),
            key: Vec::new(),
            first: 0,
            length: 10 << 20,
            release,
        }))
    }

    #[test]
    fn of_long_values_that_nobody_takes_few_are_begun() {
        let mut queue = Queue::default();
        let mut begun = Vec::new();
        while queue.has_room(0) {
            begun.push(queue.push_pending(Version::Resp2, false));
        }
        for place in &begun {
            queue.fill(*place, parts());
        }
        assert!(begun.len() <= 8 && !queue.has_room(0), "{} begun", begun.len());
        while queue.pop().is_some() {}
        assert!(queue.has_room(0), "they are taken");
    }
}
