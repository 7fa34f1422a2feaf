//! Operations in flight: the slab that owns each operation and its buffers until completion.
//!
//! Role: the seam between futures, which come and go, and a driver, which completes what it was
//! given. Place on the path: under [`crate::File`] and [`crate::Socket`], above the driver.
//!
//! Invariants:
//! * an operation's memory stays in its slot from submission to completion, whatever happens to
//!   the future that waits for it;
//! * a token names a slot and its generation: a late completion cannot reach a newer operation;
//! * of a file that was retired a driver is asked for nothing more, whoever still has it open.

use crate::buf::Buf;
use crate::limits::{OPS_MAX, SHORT_READ_BYTES_MAX};
use crate::post::Post;
use crate::reactor::Reactor;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A file known to a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(pub(crate) u32);
/// A socket, listening or connected, known to a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SocketId(pub(crate) u32);
/// Names an operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) u64);

impl Token {
    /// The slot it names: below [`OPS_MAX`], and its alone while the operation is in flight.
    pub(crate) fn slot(self) -> usize {
        self.0 as u32 as usize
    }
}

/// One operation with all the memory it needs. The result of each is a count:
/// bytes moved, or the id of the accepted socket.
pub(crate) enum Op {
    /// Fills `buf` from `offset`; completes with its length or an error, never short.
    Read { file: FileId, offset: u64, buf: Buf },
    /// Writes `buf` whole at `offset`; `durable`: on stable media at completion.
    Write { file: FileId, offset: u64, buf: Rc<Buf>, durable: bool },
    /// Everything whose write completed before this began is on stable media at completion.
    Flush { file: FileId },
    /// Waits for a connection; completes with its socket id.
    Accept { listener: SocketId },
    /// Appends at most `bytes_max` received bytes to `into`; 0 when the peer has closed.
    Receive { socket: SocketId, into: Vec<u8>, bytes_max: usize },
    /// Sends `bytes[from..]`, perhaps only a part; completes with the count sent.
    Send { socket: SocketId, bytes: Vec<u8>, from: usize },
}

impl Op {
    /// The file of a read or a write, and how many bytes it moves.
    pub(crate) fn transfer(&self) -> Option<(FileId, usize)> {
        match self {
            Op::Read { file, buf, .. } => Some((*file, buf.len())),
            Op::Write { file, buf, .. } => Some((*file, buf.len())),
            _ => None,
        }
    }

    fn file(&self) -> Option<FileId> {
        match self {
            Op::Read { file, .. } | Op::Write { file, .. } | Op::Flush { file } => Some(*file),
            _ => None,
        }
    }

    fn is_short_read(&self) -> bool {
        matches!(self, Op::Read { buf, .. } if buf.len() <= SHORT_READ_BYTES_MAX)
    }
}

enum State {
    Free,
    Waiting(Option<Waker>),
    Done(io::Result<u64>),
    /// The future is gone; the slot is freed at completion.
    Abandoned,
    /// A send that nobody waits for.
    Posted(Rc<Post>),
}

impl State {
    fn is_with_driver(&self) -> bool {
        matches!(self, State::Waiting(_) | State::Abandoned | State::Posted(_))
    }
}

/// What a completion leaves to its driver.
#[must_use]
pub(crate) enum Left {
    Nothing,
    /// A connection that was accepted and that nobody waits for any more, to be closed.
    Unclaimed(SocketId),
    /// The rest of a posted send, to be started again.
    Rest,
    /// A socket on which a posted send has failed: to be shut down, so that who receives learns of it.
    Failed(SocketId),
}

struct Slot {
    generation: u32,
    state: State,
    op: Option<Op>,
}

#[derive(Default)]
pub(crate) struct Ops {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Futures that wait for a free slot.
    full: Vec<Waker>,
    /// Memory of operations that nobody waited for.
    left: Vec<Vec<u8>>,
    /// Short reads that have not completed.
    short_reads: usize,
    /// Files of which nothing more is asked.
    retired: Vec<FileId>,
    /// Operations that have ended, by the file. There are as many files as devices.
    answered: Vec<(FileId, u64)>,
    /// The reactor stops: of what was posted no rest is sent.
    stops: bool,
}

fn split(token: Token) -> (usize, u32) {
    (token.slot(), (token.0 >> 32) as u32)
}

impl Ops {
    /// True if one more operation has a slot.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < OPS_MAX
    }

    fn insert(&mut self, op: Op, waker: &Waker) -> Result<Token, Op> {
        if !self.has_room() {
            self.full.push(waker.clone());
            return Err(op);
        }
        Ok(self.put(op, State::Waiting(Some(waker.clone()))))
    }

    /// A send that nobody waits for. There has to be room.
    pub(crate) fn post(&mut self, op: Op, post: Rc<Post>) -> Token {
        assert!(matches!(op, Op::Send { .. }) && self.has_room());
        self.put(op, State::Posted(post))
    }

    fn put(&mut self, op: Op, state: State) -> Token {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, state: State::Free, op: None });
            self.slots.len() as u32 - 1
        });
        let kept = &mut self.slots[slot as usize];
        assert!(matches!(kept.state, State::Free) && kept.op.is_none());
        kept.generation = kept.generation.wrapping_add(1);
        self.short_reads += usize::from(op.is_short_read());
        kept.state = state;
        kept.op = Some(op);
        Token(u64::from(kept.generation) << 32 | u64::from(slot))
    }

    fn release(&mut self, slot: usize) -> Op {
        self.slots[slot].state = State::Free;
        self.free.push(slot as u32);
        if let Some(waker) = self.full.pop() {
            waker.wake();
        }
        self.slots[slot].op.take().expect("a slot in use owns its operation")
    }

    fn leave(&mut self, op: Op) {
        if let Op::Receive { into: bytes, .. } | Op::Send { bytes, .. } = op {
            self.left.push(bytes);
        }
    }

    /// Takes memory of operations that nobody waited for.
    pub(crate) fn take_left(&mut self) -> Option<Vec<u8>> {
        self.left.pop()
    }

    /// The operation of a token that is in flight, for the driver.
    pub(crate) fn op_mut(&mut self, token: Token) -> &mut Op {
        let (slot, generation) = split(token);
        assert_eq!(self.slots[slot].generation, generation);
        self.slots[slot].op.as_mut().expect("a slot in use owns its operation")
    }

    /// Takes a completion from the driver, which sees to what is left of it.
    pub(crate) fn complete(&mut self, token: Token, result: io::Result<u64>) -> Left {
        let (slot, generation) = split(token);
        assert_eq!(self.slots[slot].generation, generation, "completion of an operation not in flight");
        let op = self.slots[slot].op.as_ref().expect("a slot in use owns its operation");
        self.short_reads -= usize::from(op.is_short_read());
        if let Some(file) = op.file() {
            self.count_answer(file);
        }
        if let State::Posted(_) = self.slots[slot].state {
            return self.complete_post(slot, result);
        }
        match std::mem::replace(&mut self.slots[slot].state, State::Done(result)) {
            State::Waiting(waker) => waker.expect("a waiting operation has a waker").wake(),
            State::Abandoned => {
                let state = std::mem::replace(&mut self.slots[slot].state, State::Free);
                match (self.release(slot), state) {
                    (Op::Accept { .. }, State::Done(Ok(id))) => return Left::Unclaimed(SocketId(id as u32)),
                    (op, _) => self.leave(op),
                }
            }
            State::Free | State::Done(_) | State::Posted(_) => panic!("operation completed twice"),
        }
        Left::Nothing
    }

    fn count_answer(&mut self, file: FileId) {
        match self.answered.iter_mut().find(|(known, _)| *known == file) {
            Some((_, count)) => *count += 1,
            None => self.answered.push((file, 1)),
        }
    }

    /// A piece of a posted send has left, or will not.
    fn complete_post(&mut self, slot: usize, result: io::Result<u64>) -> Left {
        let kept = &mut self.slots[slot];
        let (State::Posted(post), Some(Op::Send { socket, bytes, from })) = (&kept.state, &mut kept.op)
        else {
            unreachable!("what is posted is a send")
        };
        let (post, socket, count) = (post.clone(), *socket, result.unwrap_or(0) as usize);
        *from += count;
        let is_sent = *from == bytes.len();
        let goes_on = !post.is_closed() && !self.stops;
        if !is_sent && count > 0 && goes_on {
            return Left::Rest;
        }
        let Op::Send { bytes, .. } = self.release(slot) else { unreachable!("it was one above") };
        post.ends(is_sent, bytes);
        if is_sent || !goes_on { Left::Nothing } else { Left::Failed(socket) }
    }

    /// The reactor stops: what was posted is not gone on with.
    pub(crate) fn stop(&mut self) {
        self.stops = true;
    }

    fn poll(&mut self, token: Token, waker: &Waker) -> Poll<(io::Result<u64>, Op)> {
        let (slot, _) = split(token);
        match std::mem::replace(&mut self.slots[slot].state, State::Abandoned) {
            State::Done(result) => Poll::Ready((result, self.release(slot))),
            State::Waiting(_) => {
                self.slots[slot].state = State::Waiting(Some(waker.clone()));
                Poll::Pending
            }
            State::Free | State::Abandoned | State::Posted(_) => panic!("operation polled after its end"),
        }
    }

    /// The future is gone: true if the operation is still with the driver.
    fn abandon(&mut self, token: Token) -> bool {
        let (slot, _) = split(token);
        match self.slots[slot].state {
            State::Waiting(_) => {
                self.slots[slot].state = State::Abandoned;
                true
            }
            State::Done(_) => {
                let op = self.release(slot);
                self.leave(op);
                false
            }
            State::Free | State::Abandoned | State::Posted(_) => panic!("operation abandoned after its end"),
        }
    }

    /// True if short reads are with the driver.
    pub(crate) fn has_short_reads(&self) -> bool {
        self.short_reads > 0
    }

    /// Operations with the driver.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state.is_with_driver()).count()
    }

    /// Operations of a file with the driver, those that nobody waits for included.
    pub(crate) fn in_flight_of(&self, file: FileId) -> usize {
        let is_its = |slot: &&Slot| slot.op.as_ref().and_then(Op::file) == Some(file);
        self.slots.iter().filter(is_its).filter(|slot| slot.state.is_with_driver()).count()
    }

    /// Operations of a file that have ended, well or not, those that nobody waited for included.
    pub(crate) fn answered_of(&self, file: FileId) -> u64 {
        self.answered.iter().find(|(known, _)| *known == file).map_or(0, |(_, count)| *count)
    }

    /// Nothing more is asked of a file.
    pub(crate) fn retire(&mut self, file: FileId) {
        if !self.retired.contains(&file) {
            self.retired.push(file);
        }
    }

    /// A file is closed: another may have its name.
    pub(crate) fn closed(&mut self, file: FileId) {
        self.retired.retain(|retired| *retired != file);
        self.answered.retain(|(answered, _)| *answered != file);
    }

    fn is_retired(&self, op: &Op) -> bool {
        !self.retired.is_empty() && op.file().is_some_and(|file| self.retired.contains(&file))
    }

    /// Leaves the memory of operations in flight to a kernel that may still write to it.
    pub(crate) fn leak_in_flight(&mut self) {
        for slot in &mut self.slots {
            if slot.state.is_with_driver() {
                std::mem::forget(slot.op.take());
            }
        }
    }

    /// Forgets the wakers: the tasks behind them are being dropped.
    pub(crate) fn forget_waiters(&mut self) {
        self.full.clear();
    }
}

/// Waits for one operation and gives back its memory.
pub(crate) struct OpFuture {
    reactor: Reactor,
    op: Option<Op>,
    token: Option<Token>,
}

impl OpFuture {
    pub(crate) fn new(reactor: Reactor, op: Op) -> OpFuture {
        OpFuture { reactor, op: Some(op), token: None }
    }
}

impl Future for OpFuture {
    type Output = (io::Result<u64>, Op);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let inner = &this.reactor.0;
        if let Some(token) = this.token {
            let polled = inner.ops.borrow_mut().poll(token, cx.waker());
            if polled.is_ready() {
                this.token = None;
            }
            return polled;
        }
        let op = this.op.take().expect("an operation is submitted once");
        let mut ops = inner.ops.borrow_mut();
        if ops.is_retired(&op) {
            let why = "the file was retired: it is opened anew";
            return Poll::Ready((Err(io::Error::new(io::ErrorKind::BrokenPipe, why)), op));
        }
        match ops.insert(op, cx.waker()) {
            Ok(token) => {
                this.token = Some(token);
                let mut driver = inner.driver.borrow_mut();
                driver.start(token, ops.op_mut(token));
            }
            Err(op) => this.op = Some(op),
        }
        Poll::Pending
    }
}

impl Drop for OpFuture {
    fn drop(&mut self) {
        let Some(token) = self.token else { return };
        let inner = &self.reactor.0;
        if inner.ops.borrow_mut().abandon(token) {
            inner.driver.borrow_mut().cancel(token);
        }
    }
}
