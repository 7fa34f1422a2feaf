//! The writer of a connection: sends replies in order, as many as are ready at once.
//!
//! Invariants: a value in parts is sent part by part, one part in memory and the next one on its
//! way; what follows it waits. If such a value turns out unreadable after its header has left, the
//! connection is cut: bytes that were not verified are never sent in their place.

use super::Connection;
use crate::limits::{BUFFER_BYTES_KEPT, SEND_BYTES_MAX, STALL_NS_MAX};
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
    let mut out = Vec::new();
    while let Next::Ready = connection.next().await {
        if !connection.send_ready(&mut out).await {
            break;
        }
        if out.capacity() > BUFFER_BYTES_KEPT {
            out = Vec::new();
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
            return true;
        }
        self.sending_bytes.set(out.len());
        self.room.wake_all();
        let (sent, mut buffer) = self.stream.send(std::mem::take(out)).await;
        let counters = self.core.shared.core(self.core.reactor.core());
        counters.sent_bytes.add(buffer.len() as u64);
        counters.sends.add(1);
        self.sent_bytes.set(self.sent_bytes.get() + buffer.len() as u64);
        buffer.clear();
        *out = buffer;
        self.sending_bytes.set(0);
        self.recount();
        self.room.wake_all();
        sent.is_ok() && !self.dead.get()
    }

    /// Cuts the connection if its peer takes nothing for long while a value in parts waits for it.
    /// Called every now and then.
    pub(crate) fn cut_if_stalled(&self, now_ns: u64) {
        let sent_bytes = self.sent_bytes.get();
        let waits = self.sends_parts.get() || self.queue.borrow().holds_pin();
        let (seen_bytes, since_ns) = self.progress.get();
        if sent_bytes != seen_bytes || !waits || self.sending_bytes.get() == 0 {
            self.progress.set((sent_bytes, now_ns));
        } else if now_ns.saturating_sub(since_ns) >= STALL_NS_MAX && !self.dead.get() {
            tracing::warn!(client = self.id, "a client does not take the long value that it asked for: cut");
            self.die();
        }
    }

    /// Sends a value in parts; false if the connection cannot go on.
    async fn send_parts(self: &Rc<Self>, version: Version, pinned: &Pinned, out: &mut Vec<u8>) -> bool {
        let part_bytes = self.core.volume.geometry().part_bytes as u64;
        let number = |at: u64| u32::try_from(at / part_bytes).expect("values are bounded");
        let (first, last) = (number(pinned.first), number(pinned.first + pinned.length - 1));
        let mut part = match self.part(pinned, first).await {
            Ok(part) => part,
            Err(error) => {
                Reply::failed(&error).write(&mut ReplyWriter::new(out, version));
                return true;
            }
        };
        ReplyWriter::new(out, version).bulk_header(pinned.length as usize);
        let mut left_bytes = pinned.length;
        let mut skipped = (pinned.first % part_bytes) as usize;
        for sent_part in first..=last {
            let due = left_bytes.min(part_bytes - skipped as u64);
            let Some(bytes) = part.get(skipped..skipped + due as usize) else {
                let got = part.len();
                tracing::error!(due, got, "a part of a value has the wrong length: connection cut");
                return false;
            };
            left_bytes -= due;
            out.extend_from_slice(bytes);
            skipped = 0;
            if sent_part == last {
                break;
            }
            let next = sent_part + 1;
            let (sent, fetched) = join(self.send(out), self.part(pinned, next)).await;
            if !sent {
                return false;
            }
            part = match fetched {
                Ok(part) => part,
                Err(error) => {
                    tracing::error!(%error, part = next, "a part of a value cannot be read: connection cut");
                    return false;
                }
            };
        }
        assert_eq!(left_bytes, 0);
        ReplyWriter::new(out, version).bulk_end();
        true
    }

    async fn part(self: &Rc<Self>, pinned: &Pinned, part: u32) -> Result<Vec<u8>> {
        let op = Op::RetrievePart { upload: pinned.upload, key: pinned.key.clone(), part };
        match self.core.clone().execute(op).await? {
            Output::Found(item) => Ok(item.bytes),
            _ => Err(Error::Unsupported("a part of a value came as something else")),
        }
    }
}
