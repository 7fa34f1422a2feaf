//! The reader of a connection: receives, parses, begins commands.
//!
//! Invariants: bytes are parsed where they were received; a command begins only if there is room
//! for its reply; a broken protocol is answered and the connection closed.

use super::backlog::Backlog;
use super::received::{Received, with_room};
use super::{Account, Connection, ahead, long_command, modes};
use crate::command::{self, Run};
use crate::core::Turn;
use crate::limits::{
    BUFFER_BYTES_KEPT, GROWING_BYTES_MAX, LINGER_NS_MAX, LONG_COMMAND_BYTES, RECEIVE_BYTES,
    RECEIVE_BYTES_MAX, SHARED_TRANSFER_BYTES_MIN,
};
use crate::reply::Reply;
use futures_util::future::{Either, select};
use plimsoll_kv::Device;
use plimsoll_reactor::limits::RECEIVE_DIRECT_BYTES_MIN;
use plimsoll_resp::{Limits, Parser, ProtocolError, SHARED_BYTES_MIN, Step};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

/// Bytes received and how far they are parsed.
pub(super) struct Input {
    pub(super) parser: Parser,
    received: Received,
    backlog: Backlog,
    start: usize,
    /// How far it was looked ahead: see `ahead`.
    ahead: usize,
    limits: Limits,
    /// The most that this buffer has held, or a receive may fill of it: that much of its capacity is memory.
    touched_bytes: usize,
    /// Bytes of the last command.
    command_bytes: usize,
    /// What the last receive was given room for, if it filled that.
    filled_bytes: usize,
}

/// What the next bytes were.
enum Parsed {
    /// Not a whole command.
    Incomplete { wanted: usize },
    /// A command, begun.
    Command(Option<Account>, Run),
    /// A command with an argument too long for memory.
    Large(long_command::Head),
    /// A command of this name that waits for the end of a pause: to be parsed again.
    Held(Vec<u8>),
    /// Not the protocol.
    Broken(ProtocolError),
}

/// Reads and begins commands until the connection ends.
pub(super) async fn read(connection: Rc<Connection>) {
    let mut input = Input::new(&connection);
    while connection.has_room_now() || input.beside(&connection, connection.wait_for_room()).await {
        if connection.is_held(None) {
            connection.wait_while_paused(None).await;
            continue;
        }
        if let Some(seen) = input.look_ahead(&connection) {
            // What the keys lead to comes from memory while others go on. No command has begun meanwhile.
            connection.core.reactor.yield_now().await;
            if let Some(key) = seen.lone {
                let key = &input.pending()[key];
                connection.core.volume.announce(connection.database.get(), &[key], 1);
                connection.core.reactor.yield_now().await;
            }
        }
        let go_on = match input.parse(&connection) {
            Parsed::Incomplete { wanted } => input.receive_more(&connection, wanted).await,
            Parsed::Command(account, run) => {
                input.let_go(&connection);
                input.perform(&connection, account, run).await
            }
            Parsed::Held(name) => {
                connection.wait_while_paused(Some(&name)).await;
                true
            }
            Parsed::Large(head) => match long_command::receive(&mut input, &connection, head).await {
                Some((account, run)) => {
                    input.let_go(&connection);
                    input.perform(&connection, account, run).await
                }
                None => false,
            },
            Parsed::Broken(error) => {
                connection.refuse(error);
                false
            }
        };
        if !go_on {
            break;
        }
    }
    input.discard(&connection);
    connection.turn.take();
    connection.core.leave_headroom(connection.id);
    connection.received_bytes.set(0);
    connection.backlog_bytes.set(0);
    connection.recount();
    connection.reader_rests.set(true);
    connection.finish();
    connection.linger().await;
    connection.loop_ended();
}

impl Connection {
    /// Nothing more is read: waits until the replies have left, or leave no more.
    async fn linger(&self) {
        while !self.dead.get() {
            let before_bytes = self.stream.sent_bytes();
            let ended = self.end.wait_for(|| self.dead.get().then_some(()));
            let late = self.core.reactor.sleep_ns(LINGER_NS_MAX);
            select(pin!(ended), pin!(late)).await;
            if self.stream.sent_bytes() == before_bytes && !self.dead.get() {
                self.die();
            }
        }
    }

    /// Waits until an unfinished command may hold so many bytes. False if the connection was cut meanwhile.
    pub(super) async fn wait_for_turn(&self, command_bytes: usize) -> bool {
        if self.turn.borrow().as_ref().is_some_and(Turn::goes_on) || !self.core.holds_back(command_bytes) {
            return true;
        }
        let since_ns = self.turn.borrow().as_ref().map(Turn::begun_ns);
        let place = self.core.line_up(since_ns);
        let has_come = rest(self, place.comes()).await.is_some();
        self.turn.replace(Some(place));
        has_come
    }

    /// Answers a broken protocol.
    pub(super) fn refuse(&self, error: ProtocolError) {
        self.core.shared.core(self.core.reactor.core()).protocol_errors.add(1);
        let mut text = Vec::new();
        error.write_reply(&mut text);
        let line = text.strip_prefix(b"-").and_then(|line| line.strip_suffix(b"\r\n"));
        self.reply(None, Reply::error(line.expect("an error is one line")));
    }
}

impl Input {
    fn new(connection: &Connection) -> Input {
        let limits = Limits {
            large_bulk_bytes_min: connection.core.volume.value_bytes_max() + 1,
            query_buffer_bytes_max: connection.core.shared.settings.budget.command_bytes_max(),
            ..Limits::DEFAULT
        };
        Input {
            parser: Parser::new(limits),
            received: Received::default(),
            backlog: Backlog::default(),
            start: 0,
            ahead: 0,
            limits,
            touched_bytes: 0,
            command_bytes: 0,
            filled_bytes: 0,
        }
    }

    /// Waits for something that the client may have to make room for, and receives meanwhile what it sends,
    /// if it takes nothing.
    async fn beside<T>(&mut self, connection: &Rc<Connection>, awaited: impl Future<Output = T>) -> T {
        let unread = self.pending().len();
        self.backlog.grow_until(connection, unread, awaited).await
    }

    /// Runs a command to the point from which the next may begin; false to begin no more.
    async fn perform(&mut self, connection: &Rc<Connection>, account: Option<Account>, run: Run) -> bool {
        // The elements of an array wait for the client; no other command does.
        let waits_for_client = matches!(run, Run::Each { .. });
        connection.has_more.set(!self.pending().is_empty());
        let performed = pin!(connection.perform(account, run));
        if waits_for_client { self.beside(connection, performed).await } else { performed.await }
    }

    /// Announces the keys of the next commands, if it is time; what was seen, if others should run before the
    /// first of them is begun.
    fn look_ahead(&mut self, connection: &Connection) -> Option<ahead::Seen> {
        let begins = self.parser.is_between_commands();
        let others_wait = connection.core.reactor.has_ready();
        if self.pending().is_empty() || !ahead::is_due(self.start, self.ahead, begins, others_wait) {
            return None;
        }
        let is_first = self.start == 0;
        let seen = ahead::look(connection, &self.limits, self.pending());
        self.ahead = self.start + seen.bytes;
        (is_first && seen.keys > 0).then_some(seen)
    }

    /// Parses one command and starts it off, as far as that needs no waiting.
    fn parse(&mut self, connection: &Rc<Connection>) -> Parsed {
        if self.pending().len() >= SHARED_BYTES_MIN {
            self.share(connection);
        }
        // Who has not given the password yet may not fill memory.
        self.parser.set_authenticated(connection.authenticated.get());
        let lets_go = self.is_to_let_go();
        let step = self.parser.parse(&self.received.bytes()[self.start..]);
        if let Step::Command(parsed) = &step
            && connection.is_held(Some(&parsed.args[0]))
            && (connection.is_held(None) || command::is_complete(&parsed.args))
        {
            // Nothing is taken: a parser between commands finds the same one again.
            return Parsed::Held(parsed.args[0].to_vec());
        }
        let consumed = step.consumed();
        self.start += consumed;
        if matches!(step, Step::Command(_)) {
            self.command_bytes = consumed;
        }
        match step {
            Step::Incomplete { wanted, .. } => Parsed::Incomplete { wanted },
            Step::Command(mut parsed) => {
                if let Some(shared) = self.received.shared() {
                    parsed.args = parsed.args.within(shared);
                }
                if lets_go {
                    // It is the command's from here on, and counted once.
                    connection.received_bytes.set(self.received.lent_bytes());
                }
                let (command, run) = command::begin(connection, &parsed.args);
                let account = command.map(|command| {
                    connection.show(command, parsed.args.iter());
                    connection.account(command, consumed, modes::capture(connection, &parsed.args))
                });
                Parsed::Command(account, run)
            }
            Step::Large(large) => Parsed::Large(long_command::Head::new(&large)),
            Step::Tail(_) => unreachable!("the end of a long command is read where it began"),
            Step::Error(error) => Parsed::Broken(error),
        }
    }

    /// The bytes received and not parsed.
    pub(super) fn pending(&self) -> &[u8] {
        &self.received.bytes()[self.start..]
    }

    /// Long values may hold on to what was received, as long as clients hold little.
    fn share(&mut self, connection: &Connection) {
        if connection.queue.borrow().in_flight() == 0 {
            self.received.settle();
        }
        if connection.core.holds_little() {
            self.received.share();
        }
    }

    /// The parser, and the bytes it has to look at.
    pub(super) fn parts(&mut self) -> (&mut Parser, &[u8]) {
        (&mut self.parser, &self.received.bytes()[self.start..])
    }

    /// Some bytes have been taken.
    pub(super) fn take(&mut self, count: usize) {
        assert!(count <= self.pending().len());
        self.start += count;
    }

    /// True if memory is given back before the next command is run.
    fn is_to_let_go(&self) -> bool {
        self.touched_bytes > GROWING_BYTES_MAX
    }

    /// A command is whole: others may come in, and where it was long, the memory that it came to is given
    /// back before it is run.
    fn let_go(&mut self, connection: &Connection) {
        if let Some(turn) = connection.turn.take() {
            turn.complete();
        }
        self.shrink(connection);
    }

    /// What is parsed stands elsewhere: its memory is given back where it was long.
    pub(super) fn shrink(&mut self, connection: &Connection) {
        if !self.is_to_let_go() {
            return;
        }
        let (buffer, _) = self.received.drain(self.start, 0);
        (self.start, self.ahead) = (0, 0);
        let used = std::mem::replace(&mut self.touched_bytes, buffer.len());
        self.received.put(buffer.to_vec());
        connection.core.reactor.discard(buffer, used);
        self.count(connection);
    }

    /// Nothing more is read.
    fn discard(mut self, connection: &Connection) {
        let all = self.received.bytes().len();
        connection.core.reactor.discard(self.received.drain(all, 0).0, self.touched_bytes);
    }

    /// Drops what is parsed and gives the buffer, with room for so many bytes if it is a long one.
    fn make_room(&mut self, connection: &Connection, bytes_max: usize) -> Vec<u8> {
        let is_direct = bytes_max >= RECEIVE_DIRECT_BYTES_MIN;
        let (mut buffer, is_other) = self.received.drain(self.start, if is_direct { bytes_max } else { 0 });
        (self.start, self.ahead) = (0, 0);
        let left = buffer.len();
        let taken = if is_other { left } else { buffer.capacity().max(self.touched_bytes) };
        if is_other {
            self.touched_bytes = left;
        }
        // Where long commands come, the next needs it again.
        let is_long = self.command_bytes >= LONG_COMMAND_BYTES;
        let kept = if is_long { 2 * RECEIVE_BYTES_MAX } else { BUFFER_BYTES_KEPT };
        if taken > kept && left <= RECEIVE_BYTES {
            let used = std::mem::replace(&mut self.touched_bytes, left);
            let short = buffer.to_vec();
            connection.core.reactor.discard(std::mem::replace(&mut buffer, short), used);
        }
        if left + bytes_max > GROWING_BYTES_MAX {
            // Where so much address space is not to be had, it grows as it is filled.
            let most = self.limits.query_buffer_bytes_max + RECEIVE_BYTES_MAX;
            let _ = buffer.try_reserve_exact(most.saturating_sub(left));
        } else if (is_direct || left >= RECEIVE_BYTES) && buffer.capacity() - left < bytes_max {
            // Other memory: this one would be copied whole. A quarter more than there is: doubling would hold
            // memory for nothing.
            buffer = with_room(&buffer, bytes_max.max(left / 4));
            self.touched_bytes = left;
        }
        buffer
    }

    /// Bytes to receive at once: what is wanted, or what is likely to come. After a long command there is
    /// room for two like it, and where all of that was filled, for twice as much: each then comes with one
    /// receive, straight to where it is parsed. As long as clients hold little: who waits holds that room.
    fn likely_bytes(&self, connection: &Connection, wanted: usize) -> usize {
        let long = if self.command_bytes >= LONG_COMMAND_BYTES { 2 * self.command_bytes } else { 0 };
        let likely = if connection.core.holds_little() { long.max(2 * self.filled_bytes) } else { 0 };
        wanted.max(likely).clamp(RECEIVE_BYTES, RECEIVE_BYTES_MAX)
    }

    /// Tells the connection what this holds, and what values under way may hold of what it was.
    fn count(&self, connection: &Connection) {
        let bytes = self.touched_bytes + self.received.lent_bytes();
        if bytes != connection.received_bytes.replace(bytes) {
            connection.recount();
        }
    }

    /// Receives more of a command, in turn if it has to be; false at the end of the stream.
    pub(super) async fn receive_more(&mut self, connection: &Connection, wanted: usize) -> bool {
        let command_bytes = self.pending().len() + wanted.min(RECEIVE_BYTES_MAX);
        let is_there = self.backlog.bytes() > 0;
        (is_there || connection.wait_for_turn(command_bytes).await) && self.receive(connection, wanted).await
    }

    /// Receives more; false at the end of the stream.
    pub(super) async fn receive(&mut self, connection: &Connection, wanted: usize) -> bool {
        let bytes_max = self.likely_bytes(connection, wanted);
        let buffer = self.make_room(connection, bytes_max);
        let before = buffer.len();
        if bytes_max >= RECEIVE_DIRECT_BYTES_MIN {
            self.touched_bytes = self.touched_bytes.max(before + bytes_max);
        }
        self.count(connection);
        if wanted >= SHARED_TRANSFER_BYTES_MIN {
            connection.core.reactor.share_to_receive(bytes_max).await;
        }
        let come = self.backlog.append(connection, buffer, bytes_max).await;
        let Some((buffer, goes_on)) = come else { return false };
        let filled = buffer.len() - before == bytes_max;
        self.touched_bytes = self.touched_bytes.max(buffer.len());
        self.received.put(buffer);
        self.count(connection);
        self.filled_bytes = if filled { bytes_max } else { 0 };
        goes_on
    }

    /// Receives as much of a long argument as has come, and is still missing of `length`, to its end: the
    /// kernel puts it where it stays. `None` at the end of the stream.
    pub(super) async fn receive_into(
        &mut self,
        connection: &Connection,
        argument: Vec<u8>,
        length: usize,
    ) -> Option<Vec<u8>> {
        assert!(self.pending().is_empty(), "what was received first belongs before it");
        let bytes_max = (length - argument.len()).min(RECEIVE_BYTES_MAX);
        // What comes behind it belongs to the next argument, and is copied if it is received here.
        self.filled_bytes = 0;
        connection.core.reactor.share_to_receive(bytes_max).await;
        let (argument, goes_on) = self.backlog.append(connection, argument, bytes_max).await?;
        if goes_on {
            return Some(argument);
        }
        connection.discard(argument);
        None
    }
}

/// What comes of something that a reader waits for with a command unfinished; `None` if the connection was
/// cut meanwhile.
pub(super) async fn rest<T>(connection: &Connection, awaited: impl Future<Output = T>) -> Option<T> {
    connection.reader_rests.set(true);
    if connection.closing.get() {
        connection.ready.wake_all();
    }
    let ended = connection.end.wait_for(|| connection.dead.get().then_some(()));
    match select(pin!(awaited), pin!(ended)).await {
        Either::Left((come, _)) => {
            connection.reader_rests.set(false);
            Some(come)
        }
        Either::Right(_) => None,
    }
}
