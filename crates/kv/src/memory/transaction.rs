//! Transactions of the memory device.
//!
//! Invariants: what one holds nobody else touches; what it writes it writes in one instant.

use super::{Memory, State};
use crate::completion::Output;
use crate::error::{Error, Result};
use crate::request::{ContainerId, Op};
use crate::transaction::{Action, Held, Outstanding, Status, TransactionId};

/// What a transaction holds.
pub(super) struct Holding {
    held: Held,
    /// What it has prepared, and who does beside it.
    writes: Option<Vec<Op>>,
    participants: Vec<u16>,
    /// When it began to hold: what had not expired then stays for it.
    since_ms: u64,
}

impl Holding {
    fn holds(&self, container: ContainerId, key: &[u8]) -> bool {
        let is_it = |(of, held): &(ContainerId, Vec<u8>)| *of == container && held == key;
        (self.held.everything && !container.is_books()) || self.held.keys.iter().any(is_it)
    }
}

const UNKNOWN: Error = Error::Invalid("no such transaction");

impl State {
    /// What is prepared: whoever is opened above the memory once more brings it to an end.
    fn outstanding(&self) -> Vec<Outstanding> {
        let prepared = self.transactions.iter().filter(|(_, holding)| holding.writes.is_some());
        let known = prepared.map(|(id, Holding { participants, .. })| Outstanding {
            id: *id,
            participants: participants.clone(),
            status: Status::Prepared,
        });
        known.collect()
    }

    /// True if an operation has to wait for a transaction to end.
    pub(super) fn is_kept(&self, op: &Op) -> bool {
        let kept = |container, key: &[u8]| self.transactions.values().any(|t| t.holds(container, key));
        match op {
            Op::Retrieve { container, key, .. }
            | Op::Exist { container, key }
            | Op::Release { container, key }
            | Op::Revert { container, key } => kept(*container, key),
            Op::Batch(ops) => ops.iter().any(|op| self.is_kept(op)),
            Op::Clear { .. } => !self.transactions.is_empty(),
            Op::Transaction { action: Action::Hold(held), .. } => {
                let alone = held.everything && !self.transactions.is_empty();
                alone || held.keys.iter().any(|(container, key)| kept(*container, key))
            }
            op => op.place().is_some_and(|(container, key)| kept(container, key)),
        }
    }
}

impl Memory {
    pub(super) fn transact(
        &self,
        partition: u16,
        id: Option<TransactionId>,
        action: Action,
    ) -> Result<Output> {
        let mut state = self.state.borrow_mut();
        if let Action::Hold(held) = action {
            let id = id.unwrap_or_else(|| TransactionId { partition, version: state.next_version() });
            let since_ms = state.wall_ms;
            state.transactions.insert(id, Holding { held, writes: None, participants: Vec::new(), since_ms });
            return Ok(Output::Held(id));
        }
        if action == Action::Outstanding {
            return Ok(Output::Outstanding(state.outstanding()));
        }
        if let (Action::Retrieve { container, key, range, pin }, None) = (&action, id) {
            return state.retrieve(*container, key, *range, *pin);
        }
        let id = id.ok_or(UNKNOWN)?;
        match action {
            Action::Retrieve { container, key, range, pin } => {
                let holding = state.transactions.get(&id).ok_or(UNKNOWN)?;
                if !holding.holds(container, &key) {
                    return Err(Error::Invalid("a key that the transaction does not hold"));
                }
                let (since_ms, wall_ms) = (holding.since_ms, state.wall_ms);
                state.wall_ms = since_ms;
                let found = state.retrieve(container, &key, range, pin);
                state.wall_ms = wall_ms;
                found
            }
            Action::Commit { writes } => {
                self.write_all(&mut state, writes)?;
                state.transactions.remove(&id).ok_or(UNKNOWN)?;
                Ok(Output::Done)
            }
            Action::Prepare { participants, writes } => {
                let holding = state.transactions.get_mut(&id).ok_or(UNKNOWN)?;
                (holding.participants, holding.writes) = (participants, Some(writes));
                Ok(Output::Done)
            }
            Action::Apply => {
                let writes = state.transactions.remove(&id).and_then(|t| t.writes).ok_or(UNKNOWN)?;
                self.write_all(&mut state, writes)
            }
            Action::Release => state.transactions.remove(&id).map(|_| Output::Done).ok_or(UNKNOWN),
            Action::Forget => Ok(Output::Done),
            Action::Status => Ok(Output::Status(match state.transactions.get(&id) {
                Some(Holding { writes: Some(_), .. }) => Status::Prepared,
                _ => Status::Unknown,
            })),
            Action::Hold(_) | Action::Outstanding => unreachable!("done above"),
        }
    }

    /// Does all writes, or none; deletes of what is not there do nothing.
    fn write_all(&self, state: &mut State, writes: Vec<Op>) -> Result<Output> {
        let mut others = Vec::new();
        for write in writes {
            match &write {
                Op::Clear { container } => {
                    let cleared = state.clear(*container);
                    self.drop_slowly(cleared);
                }
                Op::Delete { container, key, .. } | Op::SetExpiry { container, key, .. }
                    if state.exist(*container, key).is_err() => {}
                _ => others.push(write),
            }
        }
        state.batch(others, &self.options).map(|_| Output::Done)
    }
}
