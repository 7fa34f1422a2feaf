//! A line: those who wait for the same thing, first come, first served.
//!
//! Role: what turns of long commands ([`super::turns`]) and room for long replies ([`super::reply_room`])
//! have in common. Place on the path: where clients hold so much that some have to wait.
//!
//! Invariant: only who is first is woken, however many wait, and the next one when that leaves.

use plimsoll_reactor::sync::Bell;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

#[derive(Default)]
pub(super) struct Line {
    /// The first first, each with what wakes it.
    waiting: RefCell<VecDeque<(u64, Rc<Bell>)>>,
    numbers: Cell<u64>,
}

impl Line {
    /// A place at the end: its number, and what wakes who has it.
    pub(super) fn join(&self) -> (u64, Rc<Bell>) {
        let (number, bell) = (self.numbers.get(), Rc::new(Bell::default()));
        self.numbers.set(number + 1);
        self.waiting.borrow_mut().push_back((number, bell.clone()));
        (number, bell)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.borrow().len()
    }

    pub(super) fn is_first(&self, number: u64) -> bool {
        self.waiting.borrow().front().is_some_and(|(first, _)| *first == number)
    }

    /// The first looks again.
    pub(super) fn wake_first(&self) {
        if let Some((_, bell)) = self.waiting.borrow().front() {
            bell.ring();
        }
    }

    /// Gives up a place, if it was not given up before.
    pub(super) fn leave(&self, number: u64) {
        if self.is_first(number) {
            self.waiting.borrow_mut().pop_front();
            self.wake_first();
        } else {
            self.waiting.borrow_mut().retain(|(waiting, _)| *waiting != number);
        }
    }
}
