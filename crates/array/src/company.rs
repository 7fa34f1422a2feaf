//! Company: what several deletes ask of one member goes in one request.
//!
//! Role: while a member does such a request others gather, and go together when it has ended. Who comes to
//! a member that does none goes at once. Place on the path: deletes where values are packed, between
//! `write` and the members: each has three short records to take away there, and one value to keep for its
//! set. A member that gathers writes by itself (the flash engine) gets each as it comes.
//!
//! Invariants:
//! * a member takes a batch whole or not at all, so what a crash leaves of requests that went together they
//!   could have left one by one;
//! * nobody is refused for the sake of others: a batch of several that is refused goes again, each by itself;
//! * what goes together is of one tenant, class and lifetime, and as durable as the one asks that asks for
//!   most;
//! * each member has a line of its own: one that is slow holds up its own keys, and no others.
//!
//! Never: it waits for a time, or for somebody who has not come yet. Whoever stands in a line is a task that
//! nobody gives up, as it may lead others.

use crate::array::Array;
use crate::member::{Verdict, verdict};
use crate::read::WRONG_OUTPUT;
use futures_util::future::join_all;
use plimsoll_kv::{Class, Device, Error, Lifetime, Op, Output, Request, Result, Tenant};
use plimsoll_reactor::sync::WaitList;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Requests that go together at most, and bytes of their values: more would hold up those behind them.
const TOGETHER: usize = 64;
const BYTES_MAX: u64 = 256 << 10;

/// Who goes together: a member, and what the requests to it have in common.
type Kind = (usize, Tenant, bool, Lifetime);

/// The lines in which somebody stands.
#[derive(Default)]
pub(crate) struct Company(RefCell<BTreeMap<Kind, Rc<Line>>>);

#[derive(Default)]
struct Line {
    waiting: RefCell<VecDeque<Waiting>>,
    /// Some are on their way; whoever leads them takes the next ones along.
    is_led: Cell<bool>,
    ended: WaitList,
}

/// A request that stands in line.
struct Waiting {
    device: Rc<dyn Device>,
    request: Request,
    outcome: Rc<RefCell<Option<Result<Output>>>>,
}

/// What comes next for who stands in line.
enum Next {
    Ended(Result<Output>),
    Leads,
}

impl Company {
    fn line(&self, kind: Kind) -> Rc<Line> {
        self.0.borrow_mut().entry(kind).or_default().clone()
    }

    /// The line goes if nobody stands in it.
    fn leave(&self, kind: Kind) {
        let is_empty = |line: &Rc<Line>| !line.is_led.get() && line.waiting.borrow().is_empty();
        let mut lines = self.0.borrow_mut();
        if lines.get(&kind).is_some_and(is_empty) {
            lines.remove(&kind);
        }
    }
}

impl Line {
    /// The first in line, and those behind it that go along.
    fn take(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting.borrow_mut();
        let (mut bytes, first) = (0, waiting.front().map(|first| first.device.clone()));
        let goes_along = |other: &&Waiting| {
            bytes += other.request.op.value_bytes();
            bytes <= BYTES_MAX && first.as_ref().is_some_and(|first| Rc::ptr_eq(first, &other.device))
        };
        let count = waiting.iter().take(TOGETHER).take_while(goes_along).count();
        let count = count.max(1).min(waiting.len());
        waiting.drain(..count).collect()
    }
}

impl Waiting {
    fn ops(&self) -> &[Op] {
        match &self.request.op {
            Op::Batch(ops) => ops,
            op => std::slice::from_ref(op),
        }
    }

    fn ends(&self, outcome: Result<Output>) {
        *self.outcome.borrow_mut() = Some(outcome);
    }
}

impl Array {
    /// Sends a batch to a member together with what others send to it, if it is busy with such.
    pub(crate) async fn in_company(
        &self,
        member: usize,
        device: Rc<dyn Device>,
        request: Request,
    ) -> Result<Output> {
        let kind = (member, request.tenant, request.class == Class::Background, request.lifetime);
        let (line, outcome) = (self.company.line(kind), Rc::new(RefCell::new(None)));
        line.waiting.borrow_mut().push_back(Waiting { device, request, outcome: outcome.clone() });
        loop {
            let next = || match outcome.borrow_mut().take() {
                Some(outcome) => Some(Next::Ended(outcome)),
                None => (!line.is_led.replace(true)).then_some(Next::Leads),
            };
            match line.ended.wait_for(next).await {
                Next::Ended(outcome) => return outcome,
                Next::Leads => {
                    self.send_joint(line.take()).await;
                    line.is_led.set(false);
                    line.ended.wake_all();
                    self.company.leave(kind);
                }
            }
        }
    }

    /// Sends some to their member, in one request, and tells each what became of it.
    async fn send_joint(&self, some: Vec<Waiting>) {
        if some.len() > 1 {
            match self.sent_joint(&some).await {
                Ok(mut outputs) => {
                    for one in &some {
                        let rest = outputs.split_off(one.ops().len().min(outputs.len()));
                        one.ends(Ok(Output::Batch(std::mem::replace(&mut outputs, rest))));
                    }
                    return;
                }
                Err(error) if verdict(&error) == Verdict::Broken => {
                    return some.iter().for_each(|one| one.ends(Err(error.clone())));
                }
                // It took nothing: whom it refuses each finds out for itself.
                Err(_) => {}
            }
        }
        let each = some.iter().map(async |one| {
            let sent = self.in_time(one.device.clone(), one.request.clone()).await;
            one.ends(sent.map(|completion| completion.output));
        });
        join_all(each).await;
    }

    async fn sent_joint(&self, some: &[Waiting]) -> Result<Vec<Output>> {
        let first = some.first().ok_or(WRONG_OUTPUT)?;
        let durability = some.iter().map(|one| one.request.durability).min();
        let request = Request {
            durability: durability.unwrap_or_default(),
            deadline_ns: 0,
            op: Op::Batch(some.iter().flat_map(Waiting::ops).cloned().collect()),
            ..first.request
        };
        match self.in_time(first.device.clone(), request).await?.output {
            Output::Batch(outputs) => Ok(outputs),
            _ => Err(Error::Invalid("a batch gave something else")),
        }
    }
}
