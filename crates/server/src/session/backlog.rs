//! The backlog: what a client sends that takes none of its replies, received and not looked at yet.
//!
//! Role: lets a client come to the end of a pipeline that it sends whole before it takes the first reply, as
//! clients of Redis do. Place on the path: between the socket and the reader's buffer, beside whatever the
//! reader waits for.
//!
//! Invariants:
//! * a backlog grows only while nothing but the client's taking a reply makes room ([`super::room`]), and it
//!   has taken none for [`BACKLOG_AFTER_NS`]; what is in it begins nothing: replies wait as few as ever;
//! * it is counted as held, is no longer than the longest command may be, and leaves room for others
//!   (`core::headroom`); whose may not grow, and takes nothing for a minute, is cut in the end (`writer`);
//! * there is none before the password was given;
//! * bytes are given on in their order, each once; a receive that has begun is waited for, never dropped
//!   while the stream goes on.

use super::Connection;
use super::reader::rest;
use crate::limits::{BACKLOG_AFTER_NS, RECEIVE_BYTES, RECEIVE_BYTES_MAX};
use futures_util::future::{Either, select};
use plimsoll_kv::LocalFuture;
use std::collections::VecDeque;
use std::future::{Future, pending};
use std::pin::pin;
use std::rc::Rc;

/// What came of a receive: the bytes, and whether the stream goes on.
type Come = (Vec<u8>, bool);

/// Why a client that takes none of its replies is not received from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rests {
    /// It is.
    #[default]
    No,
    /// Others hold too much for its backlog to grow.
    WaitsForHeadroom,
    /// What it has sent is all that it may, or can.
    Full,
}

#[derive(Default)]
pub(super) struct Backlog {
    /// Pieces in their order; of the first, so many bytes are given on already.
    pieces: VecDeque<Vec<u8>>,
    given_bytes: usize,
    /// Bytes of all that are not given on.
    bytes: usize,
    /// A receive that has begun.
    coming: Option<LocalFuture<Come>>,
    has_ended: bool,
}

impl Backlog {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn put(&mut self, (bytes, goes_on): Come) {
        self.has_ended |= !goes_on;
        self.bytes += bytes.len();
        match self.pieces.back_mut() {
            Some(last) if last.len() + bytes.len() <= RECEIVE_BYTES_MAX => last.extend_from_slice(&bytes),
            _ if bytes.is_empty() => {}
            _ => self.pieces.push_back(bytes),
        }
    }

    /// Appends the next bytes of it, so many at most.
    fn give(&mut self, into: &mut Vec<u8>, bytes_max: usize) {
        let Some(first) = self.pieces.front() else { return };
        let rest = &first[self.given_bytes..];
        let count = rest.len().min(bytes_max);
        into.extend_from_slice(&rest[..count]);
        self.bytes -= count;
        self.given_bytes += count;
        if self.given_bytes == first.len() {
            self.pieces.pop_front();
            self.given_bytes = 0;
        }
    }

    /// Waits for something that the client may have to make room for, and receives meanwhile what it sends,
    /// if it takes nothing. `unread` bytes wait in the reader's buffer.
    pub(super) async fn grow_until<T>(
        &mut self,
        connection: &Rc<Connection>,
        unread: usize,
        awaited: impl Future<Output = T>,
    ) -> T {
        let mut awaited = pin!(awaited);
        let come = loop {
            let grown = async {
                connection.has_stalled().await;
                self.grow(connection, unread).await;
            };
            if let Either::Left((come, _)) = select(&mut awaited, pin!(grown)).await {
                break come;
            }
        };
        connection.rests.set(Rests::No);
        if self.bytes == 0 {
            connection.core.leave_headroom(connection.id);
        }
        come
    }

    /// Receives once more, if and as soon as it may.
    async fn grow(&mut self, connection: &Rc<Connection>, unread: usize) {
        let held_bytes = unread + self.bytes + RECEIVE_BYTES;
        let is_full = held_bytes > connection.core.shared.settings.budget.command_bytes_max();
        // Who has not given the password yet may not fill memory.
        if is_full || self.has_ended || !connection.authenticated.get() {
            connection.rests.set(Rests::Full);
            return pending().await;
        }
        // Who has nothing more to send keeps a receive that has begun, and asks for no headroom.
        if self.coming.is_none() {
            connection.rests.set(Rests::WaitsForHeadroom);
            connection.core.wait_for_headroom(connection.id, || connection.counted_bytes.get()).await;
            connection.rests.set(Rests::No);
        }
        let come = self.coming(connection).await;
        self.coming = None;
        self.put(come);
        connection.core.uses_headroom(connection.id);
        connection.count_backlog(self.bytes);
    }

    /// The receive that has begun, or one that begins now.
    fn coming(&mut self, connection: &Rc<Connection>) -> &mut LocalFuture<Come> {
        let connection = connection.clone();
        self.coming.get_or_insert_with(|| {
            Box::pin(async move { connection.append(Vec::new(), RECEIVE_BYTES).await })
        })
    }

    /// Appends what comes next to a buffer, so many bytes at most; whether the stream goes on. `None` if the
    /// connection was cut meanwhile.
    pub(super) async fn append(
        &mut self,
        connection: &Connection,
        mut buffer: Vec<u8>,
        bytes_max: usize,
    ) -> Option<Come> {
        if self.bytes == 0
            && let Some(coming) = &mut self.coming
        {
            let Some(come) = rest(connection, coming).await else {
                connection.discard(buffer);
                return None;
            };
            self.coming = None;
            self.put(come);
        }
        if self.bytes > 0 {
            self.give(&mut buffer, bytes_max);
            connection.count_backlog(self.bytes);
            if self.bytes == 0 {
                connection.core.leave_headroom(connection.id);
            }
            return Some((buffer, !connection.is_dead()));
        }
        if self.has_ended {
            return Some((buffer, false));
        }
        rest(connection, connection.append(buffer, bytes_max)).await
    }
}

impl Connection {
    /// True if the client has taken nothing for a while, and nothing else makes room.
    pub(super) fn takes_nothing(&self) -> bool {
        self.waits_for_client() && self.stalled_at.get() == Some(self.stream.sent_bytes())
    }

    /// Waits until the client has taken nothing for a while, and nothing else makes room.
    async fn has_stalled(&self) {
        loop {
            self.room.wait_for(|| self.waits_for_client().then_some(())).await;
            let sent_bytes = self.stream.sent_bytes();
            if self.stalled_at.get() == Some(sent_bytes) {
                return;
            }
            self.core.reactor.sleep_ns(BACKLOG_AFTER_NS).await;
            if self.waits_for_client() && self.stream.sent_bytes() == sent_bytes {
                self.stalled_at.set(Some(sent_bytes));
            }
        }
    }

    /// Receives what has come, and tells whether more may.
    async fn append(&self, buffer: Vec<u8>, bytes_max: usize) -> Come {
        let before = buffer.len();
        let (result, buffer) = self.stream.receive(buffer, bytes_max).await;
        self.last_ns.set(self.core.reactor.now_ns());
        let received = buffer.len() - before;
        let counters = self.core.shared.core(self.core.reactor.core());
        counters.received_bytes.add(received as u64);
        counters.receives.add(u64::from(received > 0));
        (buffer, matches!(result, Ok(count) if count > 0) && !self.is_dead())
    }

    fn count_backlog(&self, bytes: usize) {
        self.backlog_bytes.set(bytes);
        self.recount();
    }
}
