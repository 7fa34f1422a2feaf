//! What the clients of a world asked and were told, transaction by transaction.
//!
//! Lists show the order of what was done: a transaction appends words that nobody else appends, and a list
//! that is read shows every append that came before (the list-append histories of Elle; Kingsbury and
//! Alvaro, 2020).

use std::cell::{Cell, RefCell};

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was acknowledged.
    Done,
    /// It was refused, and must not have happened.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// One thing that a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Appended a word to a list.
    Append { list: usize, word: u64 },
    /// Read a whole list.
    Read { list: usize, words: Vec<u64> },
}

/// A transaction.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    /// Who asked, for explanations.
    #[expect(dead_code, reason = "explanations print it through Debug")]
    pub(super) client: u32,
    /// Events count the instants of a world.
    pub(super) invoked: u64,
    /// When it was acknowledged.
    pub(super) completed: Option<u64>,
    pub(super) outcome: Outcome,
    pub(super) steps: Vec<Step>,
}

/// All transactions of a world.
#[derive(Default)]
pub(super) struct History {
    transactions: RefCell<Vec<Transaction>>,
    events: Cell<u64>,
    words: Cell<u64>,
}

impl History {
    fn event(&self) -> u64 {
        self.events.set(self.events.get() + 1);
        self.events.get()
    }

    /// A word that nobody has appended.
    pub(super) fn new_word(&self) -> u64 {
        self.words.set(self.words.get() + 1);
        self.words.get()
    }

    /// A client is about to ask; until it is told, the outcome is unknown.
    pub(super) fn invoke(&self, client: u32, steps: Vec<Step>) -> usize {
        let (invoked, outcome) = (self.event(), Outcome::Unknown);
        let mut transactions = self.transactions.borrow_mut();
        transactions.push(Transaction { client, invoked, completed: None, outcome, steps });
        transactions.len() - 1
    }

    /// The client has been told.
    pub(super) fn complete(&self, number: usize, outcome: Outcome, steps: Vec<Step>) {
        let completed = Some(self.event());
        let transaction = &mut self.transactions.borrow_mut()[number];
        (transaction.completed, transaction.outcome, transaction.steps) = (completed, outcome, steps);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.transactions.borrow().len()
    }

    pub(super) fn take(&self) -> Vec<Transaction> {
        self.transactions.take()
    }
}
