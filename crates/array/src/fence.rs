//! The fence of a member: who reads from it when it goes out waits no longer.
//!
//! Role: stands between the array and a member. Place on the path: every request to a member.
//!
//! Whoever holds a key and asks a member that does not answer would hold it for good: others wait for the
//! key, and so does whoever wants everything. A member that is silent is taken out by what is written to it
//! ([`crate::read`]); here what is read from it, listed or counted ends then.
//!
//! Invariant: what changes anything is waited for as before: once nobody holds a key, everything that was
//! written to its members has ended, and whoever empties one relies on that.
//!
//! Never: it ends a request by a time of its own.

use plimsoll_kv::{Completion, ContainerId, Device, Error, LocalFuture, Op, Request, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// How often a member went out, and who waits for its answers, by a number of each.
#[derive(Default)]
pub(crate) struct Fence {
    closed: Cell<u64>,
    begun: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Waker>>,
}

impl Fence {
    /// The member is out: what is read from it ends.
    pub(crate) fn close(&self) {
        self.closed.set(self.closed.get() + 1);
        self.waiting.take().into_values().for_each(Waker::wake);
    }
}

/// A device behind the fence of its member.
pub(crate) struct Fenced {
    below: Rc<dyn Device>,
    fence: Rc<Fence>,
}

impl Fenced {
    pub(crate) fn new(below: Rc<dyn Device>, fence: &Rc<Fence>) -> Rc<Fenced> {
        Rc::new(Fenced { below, fence: fence.clone() })
    }
}

/// A read under way.
struct Reading {
    fence: Rc<Fence>,
    answer: LocalFuture<Result<Completion>>,
    number: u64,
    /// How often the member had gone out when it was asked.
    closed: u64,
}

impl Future for Reading {
    type Output = Result<Completion>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Completion>> {
        if let Poll::Ready(answered) = self.answer.as_mut().poll(cx) {
            return Poll::Ready(answered);
        }
        if self.fence.closed.get() != self.closed {
            return Poll::Ready(Err(Error::ReadOnly("it went out before it answered".to_owned())));
        }
        self.fence.waiting.borrow_mut().insert(self.number, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.fence.waiting.borrow_mut().remove(&self.number);
    }
}

/// Whether a request leaves everything as it is.
fn only_reads(op: &Op) -> bool {
    matches!(
        op,
        Op::Retrieve { pin: false, .. }
            | Op::RetrievePart { .. }
            | Op::Exist { .. }
            | Op::List { .. }
            | Op::Scan { .. }
            | Op::Stats { .. }
    )
}

impl Device for Fenced {
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>> {
        let ends = only_reads(&request.op);
        let answer = self.below.clone().execute(request);
        if !ends {
            return answer;
        }
        let fence = self.fence.clone();
        let (number, closed) = (fence.begun.get(), fence.closed.get());
        fence.begun.set(number + 1);
        Box::pin(Reading { fence, answer, number, closed })
    }

    fn announce(&self, container: ContainerId, keys: &[&[u8]], round: u32) -> bool {
        self.below.announce(container, keys, round)
    }

    plimsoll_kv::as_below!();
}
