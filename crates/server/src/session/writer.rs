//! The writer of a connection: sends replies in order, as many as are ready at once.
//!
//! A short reply that nothing stands before or behind has no need of it ([`post`](super::post)).
//!
//! Invariants: a value in parts is sent slice by slice, one in memory and the next one on its way; what
//! follows it waits. If such a value turns out unreadable after its header has left, the
//! connection is cut: bytes that were not verified are never sent in their place.

use super::Connection;
use super::backlog::Rests;
use crate::limits::{SEND_BYTES_MAX, SHARED_TRANSFER_BYTES_MIN, SLICE_BYTES, STALL_NS_MAX};
use crate::reply::{Pinned, Reply};
use futures_util::future::join;
use plimsoll_kv::{Error, Op, Output, Result};
use plimsoll_resp::{ReplyWriter, Version};
use std::rc::Rc;

/// What the writer wakes up for.
enum Next {
    Ready,
    End,
}

/// Sends replies until the connection has ended.
pub(super) async fn write(connection: Rc<Connection>) {
    loop {
        match connection.next().await {
            Next::Ready => {
                let mut out = connection.stream.send_buffer();
                if !connection.send_ready(&mut out).await {
                    break;
                }
                connection.stream.keep_send_buffer(out);
            }
            // Until that has left, more may come: whether it is the end is asked again.
            Next::End if connection.stream.posted_bytes() > 0 => {
                if !connection.wait_for_post().await {
                    break;
                }
            }
            Next::End => break,
        }
    }
    if !connection.dead.get() {
        connection.stream.close().await;
    }
    connection.die();
    connection.loop_ended();
}

impl Connection {
    async fn next(&self) -> Next {
        let look = || {
            let queue = self.queue.borrow();
            if self.dead.get() {
                Some(Next::End)
            } else if queue.is_ready() {
                Some(Next::Ready)
            } else if self.closing.get() && self.reader_rests.get() && queue.is_empty() {
                Some(Next::End)
            } else {
                None
            }
        };
        self.ready.wait_for(look).await
    }

    /// Sends what is ready; false if the peer is gone.
    async fn send_ready(self: &Rc<Self>, out: &mut Vec<u8>) -> bool {
        loop {
            let popped = if out.len() < SEND_BYTES_MAX { self.queue.borrow_mut().pop() } else { None };
            match popped {
                Some((version, Reply::Parts(pinned))) => {
                    self.sends_parts.set(true);
                    let sent = self.send_parts(version, &pinned, out).await;
                    self.sends_parts.set(false);
                    if !sent {
                        return false;
                    }
                }
                Some((version, reply)) => reply.write(&mut ReplyWriter::new(out, version)),
                None => break,
            }
        }
        self.send(out).await
    }

    async fn send(&self, out: &mut Vec<u8>) -> bool {
        if out.is_empty() {
            // Of replies that their client does not want nothing leaves, but their places are free.
            self.room.wake_all();
            return true;
        }
        self.sending_bytes.set(out.len());
        self.room.wake_all();
        if !self.wait_for_post().await {
            return false;
        }
        if out.len() >= SHARED_TRANSFER_BYTES_MIN {
            self.core.reactor.share_to_send(out.len()).await;
        }
        let (sent, mut buffer) = self.stream.send(std::mem::take(out)).await;
        let counters = self.core.shared.core(self.core.reactor.core());
        counters.sent_bytes.add(buffer.len() as u64);
        counters.sends.add(1);
        buffer.clear();
        *out = buffer;
        self.sending_bytes.set(0);
        self.recount();
        self.room.wake_all();
        sent.is_ok() && !self.dead.get()
    }

    /// True if its peer has taken nothing of what it is sent for long. To be asked every now and then.
    pub(crate) fn is_stalled(&self, now_ns: u64) -> bool {
        let sent_bytes = self.stream.sent_bytes();
        let (seen_bytes, since_ns) = self.progress.get();
        if sent_bytes != seen_bytes || self.unsent_bytes() == 0 {
            self.progress.set((sent_bytes, now_ns));
            return false;
        }
        now_ns.saturating_sub(since_ns) >= STALL_NS_MAX && !self.dead.get()
    }

    /// Cuts a connection that has stalled if a value in parts waits for it: it keeps its space as long.
    pub(crate) fn cut_if_pinning(&self) {
        if self.sends_parts.get() || self.queue.borrow().holds_pin() {
            if let Some(untold) = self.core.seldom.long_values.due(self.core.reactor.now_ns()) {
                let words = "a client does not take the long value that it asked for: cut";
                tracing::warn!(client = self.id, untold, "{words}");
            }
            self.die();
        }
    }

    /// True if one that has stalled may send no more, or has sent more than its part. Who waits for others
    /// to go on is not, as long as they do.
    pub(crate) fn is_stuck(&self) -> bool {
        match self.rests.get() {
            Rests::Full => true,
            Rests::WaitsForHeadroom => self.core.headroom_stands_still(),
            Rests::No => self.backlog_bytes.get() > 0 && !self.core.lets_lag(self.counted_bytes.get()),
        }
    }

    /// Sends a value in parts, slice by slice: what waits beside it waits for a slice at most. False if the
    /// connection cannot go on.
    async fn send_parts(self: &Rc<Self>, version: Version, pinned: &Pinned, out: &mut Vec<u8>) -> bool {
        let end = pinned.first + pinned.length;
        let mut at = pinned.first;
        let mut slice = match self.slice(pinned, at).await {
            Ok(slice) => slice,
            Err(error) => {
                Reply::failed(&error).write(&mut ReplyWriter::new(out, version));
                return true;
            }
        };
        ReplyWriter::new(out, version).bulk_header(pinned.length as usize);
        loop {
            ReplyWriter::new(out, version).bulk_bytes(&slice);
            at += slice.len() as u64;
            if at == end {
                break;
            }
            let (sent, fetched) = join(self.send(out), self.slice(pinned, at)).await;
            if !sent {
                return false;
            }
            slice = match fetched {
                Ok(slice) => slice,
                Err(error) => {
                    tracing::error!(%error, at, "a part of a value cannot be read: connection cut");
                    return false;
                }
            };
        }
        ReplyWriter::new(out, version).bulk_end();
        true
    }

    /// Reads what is to be sent from byte `at` on: to the end of its slice of its part.
    async fn slice(self: &Rc<Self>, pinned: &Pinned, at: u64) -> Result<Vec<u8>> {
        let part_bytes = self.core.volume.geometry().part_bytes as u64;
        let part = u32::try_from(at / part_bytes).expect("values are bounded");
        let first = at % part_bytes;
        let end = (first + 1).next_multiple_of(SLICE_BYTES).min(part_bytes);
        let count = (end - first).min(pinned.first + pinned.length - at);
        let (upload, key, range) = (pinned.upload, pinned.key.clone(), Some((first, count)));
        match self.core.clone().execute(Op::RetrievePart { upload, key, part, range }, 0).await? {
            Output::Found(item) if item.bytes.len() as u64 == count => Ok(item.bytes),
            Output::Found(item) => {
                let got = item.bytes.len();
                Err(Error::Unreadable(format!("part {part} of a value gave {got} of {count} bytes")))
            }
            _ => Err(Error::Unsupported("a part of a value came as something else")),
        }
    }
}
