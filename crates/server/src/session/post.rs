//! Posting: a short reply that nothing stands before or behind leaves where it is ready.
//!
//! Role: saves such replies, those of clients that wait for each, the two turns of the writer. Place on the
//! path: last, beside the [writer](super::writer).
//!
//! Invariants:
//! * replies leave in their order: one is posted only if no other waits, and nothing is with the socket;
//! * of commands that came together the replies leave together: none is posted while more had come with its
//!   command; nor the header of what follows it;
//! * what stays with the socket is counted as held: from the next reply on, or the next look at who takes
//!   nothing.

use super::Connection;
use crate::limits::POSTED_BYTES_MAX;
use plimsoll_resp::ReplyWriter;

impl Connection {
    /// A reply is ready that may be the next to leave: it does, or the writer is told. Who ends waits for the
    /// writer to see that nothing more is to leave.
    pub(super) fn let_leave(&self) {
        if !self.post() || self.closing.get() {
            self.ready.wake_all();
        }
    }

    /// Posts the reply that waits, if that may be; true if it did.
    fn post(&self) -> bool {
        if self.lagging_bytes.get() > 0 {
            self.count_posted();
        }
        let may = !self.has_more.get() && !self.is_sending() && self.stream.may_post();
        if !may || self.queue.borrow().lone_bytes().is_none_or(|bytes| bytes > POSTED_BYTES_MAX) {
            return false;
        }
        let Some((version, reply)) = self.queue.borrow_mut().pop() else { return false };
        let mut out = self.stream.send_buffer();
        reply.write(&mut ReplyWriter::new(&mut out, version));
        if out.is_empty() {
            self.stream.keep_send_buffer(out);
            return true;
        }
        let counters = self.core.shared.core(self.core.reactor.core());
        counters.sent_bytes.add(out.len() as u64);
        counters.sends.add(1);
        self.stream.post(out);
        true
    }

    /// True if something is with the socket, or will be before anything else.
    pub(super) fn is_sending(&self) -> bool {
        self.unsent_bytes() > 0 || self.sends_parts.get()
    }

    /// Bytes with the socket.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.sending_bytes.get() + self.stream.posted_bytes()
    }

    /// Waits until nothing that was posted is with the socket; false if the peer is gone.
    pub(super) async fn wait_for_post(&self) -> bool {
        self.count_posted();
        let has_left = self.stream.posted().await.is_ok();
        self.count_posted();
        has_left
    }

    /// Counts what was posted and has not left since the last look.
    pub(crate) fn count_posted(&self) {
        let bytes = self.stream.posted_bytes();
        if bytes != self.lagging_bytes.replace(bytes) {
            self.recount();
        }
    }
}
