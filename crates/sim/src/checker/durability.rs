//! Durability as linearizability: what is there after the last recovery is one more read of every key.
//!
//! Place: after a run's last recovery, a world reads all contents and adds them to the history; then
//! `check` judges both. Recoveries in the midst of a run need nothing: the clients' reads judge them.
//!
//! Invariants: every key of the history is read, also one that is not in the contents (as absent), and
//! every key of the contents, also one that nobody wrote (a violation).
//!
//! Must never: leave out a key because it looks right.

use std::collections::BTreeMap;

use super::history::{
    History, Input, Lifetime, Moment, Operation, Outcome, Output, Scope, ValueId, WallSpan,
};
use super::recorder::Now;

/// The client id of the reads added at the end.
const FINAL_CLIENT: u32 = u32::MAX;

/// What the last recovery left of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalRead {
    /// The value.
    pub value: ValueId,
    /// Its deadline as stored, if the world could tell: `Lifetime::Unlimited` or `Lifetime::Until`.
    pub lifetime: Option<Lifetime>,
}

/// Adds a read of every key, after all that was recorded. `contents` is what a client would read at
/// `now`, by key; so it has no key whose deadline has passed.
pub fn add_final_reads(history: &mut History, contents: &BTreeMap<Vec<u8>, FinalRead>, now: Now) {
    for name in contents.keys() {
        history.intern(name);
    }
    let after_all = Moment { ns: now.ns, order: u32::MAX };
    let ends = history.operations().iter().map(|operation| {
        let end = operation.outcome.map_or(operation.invoked, |outcome| outcome.at);
        (end, operation.wall.high_ms)
    });
    let (last, high_ms) =
        ends.fold((Moment::at(0), now.wall_ms), |(last, high_ms), (end, h)| (last.max(end), high_ms.max(h)));
    assert!(last < after_all, "final reads come last");
    let wall = WallSpan { high_ms, ..WallSpan::new(now.wall_ms, now.wall_ms) };
    let keys: Vec<_> = history.keys().map(|(key, name)| (key, contents.get(name))).collect();
    for (key, read) in keys {
        let mut add = |input, output| {
            history.push(Operation {
                client: FINAL_CLIENT,
                scope: Scope::Key(key),
                input,
                invoked: after_all,
                outcome: Some(Outcome { at: after_all, output }),
                wall,
            });
        };
        add(Input::Get, Output::Value(read.map_or(ValueId::ABSENT, |read| read.value)));
        if let Some(lifetime) = read.and_then(|read| read.lifetime) {
            add(Input::Ttl, Output::Lifetime(lifetime));
        }
    }
}

#[cfg(test)]
mod tests;
