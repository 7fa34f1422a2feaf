//! Who applies transactions that take several writes and who counts keys, in turns: a count sees each of
//! these transactions whole, or nothing of it.
//!
//! Role: what several partitions, or devices, apply as one is not applied at one instant. Place on the path:
//! around the last step of such a transaction (`commit`), around what a start has to bring to its end
//! (`resolve`), and around a count of whole databases; before the first keys that a core lists.
//!
//! This is group mutual exclusion (Joung, PODC 1998) of two groups, as fair as phase-fair locks (Brandenburg
//! and Anderson, ECRTS 2009).
//!
//! Invariants:
//! * nobody counts while somebody applies, and nobody lists keys before what a start has to apply is applied;
//! * neither side waits for more than one turn of the other: who comes while the other side waits does not
//!   overtake it;
//! * who counts in a turn waits for nobody's keys, so that who applies, and holds some, never waits for
//!   itself.

use crate::core::Core;
use crate::shared::Shared;
use futures_util::future::join_all;
use plimsoll_kv::{ContainerId, Durability, Op, Output, Request, Result, Stats};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

/// Who waits for its turn looks for it so often. On one device a turn lasts as long as a message to another
/// core and back; counting an array reads the keys whose copies differ.
const LOOK_NS: u64 = 10_000;

/// What is done in turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Applying,
    Counting,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Applying => Side::Counting,
            Side::Counting => Side::Applying,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    inside: [usize; 2],
    waiting: [usize; 2],
    /// How often those who waited were let in.
    let_in: [u64; 2],
}

impl State {
    /// Comes in: nothing; or what [`State::is_in`] is to be asked with.
    fn arrive(&mut self, side: Side) -> Option<u64> {
        let (own, other) = (side as usize, side.other() as usize);
        if self.inside[other] == 0 && self.waiting[other] == 0 {
            self.inside[own] += 1;
            return None;
        }
        self.waiting[own] += 1;
        Some(self.let_in[own])
    }

    fn is_in(&self, side: Side, ticket: u64) -> bool {
        self.let_in[side as usize] > ticket
    }

    /// Goes, also without having come in.
    fn leave(&mut self, side: Side, ticket: Option<u64>) {
        let (own, other) = (side as usize, side.other() as usize);
        if ticket.is_some_and(|ticket| !self.is_in(side, ticket)) {
            self.waiting[own] -= 1;
            return;
        }
        self.inside[own] -= 1;
        assert_eq!(self.inside[other], 0, "one side at a time");
        if self.inside[own] > 0 {
            return;
        }
        let next = if self.waiting[other] > 0 { other } else { own };
        self.inside[next] = std::mem::take(&mut self.waiting[next]);
        self.let_in[next] += u64::from(self.inside[next] > 0);
    }
}

/// The turns of a server.
#[derive(Debug)]
pub(crate) struct Phases(Mutex<State>);

impl Phases {
    /// At the start, each partition has to bring to its end what a crash has left ([`Phase::of_a_start`]).
    pub(crate) fn new(partitions: u16) -> Phases {
        Phases(Mutex::new(State { inside: [usize::from(partitions), 0], ..State::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics while holding it")
    }
}

/// Somebody's part in a turn, or its place before it; dropping gives it back.
pub(crate) struct Phase {
    shared: Arc<Shared>,
    side: Side,
    ticket: Option<u64>,
}

impl Phase {
    /// Waits for the turn of a side, and is part of it.
    pub(crate) async fn enter(core: &Core, side: Side) -> Phase {
        let ticket = core.shared.phases.state().arrive(side);
        let phase = Phase { shared: core.shared.clone(), side, ticket };
        while phase.waits() {
            core.reactor.sleep_ns(LOOK_NS).await;
        }
        phase
    }

    /// That of a partition which has been applying since the start.
    pub(crate) fn of_a_start(core: &Core) -> Phase {
        Phase { shared: core.shared.clone(), side: Side::Applying, ticket: None }
    }

    fn waits(&self) -> bool {
        self.ticket.is_some_and(|ticket| !self.shared.phases.state().is_in(self.side, ticket))
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        self.shared.phases.state().leave(self.side, self.ticket);
    }
}

/// Waits until each partition has looked at what had prepared when the server ended: who lists keys waits for
/// nobody's, and what was committed is to be seen.
pub(crate) async fn started(core: &Core) {
    // Nobody counts before that.
    drop(Phase::enter(core, Side::Counting).await);
    core.has_started.set(true);
}

/// What databases hold: each transaction is seen whole or not at all.
///
/// # Errors
/// Those of a partition.
pub(crate) async fn count(
    core: &Rc<Core>,
    databases: impl Iterator<Item = ContainerId>,
) -> Result<Vec<Stats>> {
    let _counting = Phase::enter(core, Side::Counting).await;
    let requests = databases.map(|container| Request::new(Durability::Async, Op::Stats { container }));
    let counted =
        join_all(requests.map(|request| core.volume.clone().execute_for_transaction(request))).await;
    let stats = counted.into_iter().map(|counted| match counted? {
        Output::Stats(stats) => Ok(stats),
        _ => unreachable!("counting gives counters"),
    });
    stats.collect()
}

#[cfg(test)]
mod tests {
    use super::Side::{Applying, Counting};
    use super::*;

    #[test]
    fn sides_take_turns_and_nobody_overtakes() {
        let mut state = State::default();
        assert_eq!([state.arrive(Applying), state.arrive(Applying)], [None, None]);
        let counts = state.arrive(Counting).expect("somebody applies");
        let applies = state.arrive(Applying).expect("somebody waits to count");
        state.leave(Applying, None);
        assert!(!state.is_in(Counting, counts));
        state.leave(Applying, None);
        assert!(state.is_in(Counting, counts) && !state.is_in(Applying, applies));
        let later = state.arrive(Counting).expect("somebody waits to apply");
        state.leave(Counting, Some(counts));
        assert!(state.is_in(Applying, applies) && !state.is_in(Counting, later));
        state.leave(Applying, Some(applies));
        assert!(state.is_in(Counting, later));
        state.leave(Counting, Some(later));
        assert_eq!((state.inside, state.waiting), ([0, 0], [0, 0]));
    }

    #[test]
    fn who_goes_before_its_turn_is_waited_for_no_more() {
        let mut state = State::default();
        assert_eq!(state.arrive(Counting), None);
        let applies = state.arrive(Applying);
        let counts = state.arrive(Counting);
        state.leave(Applying, applies);
        state.leave(Counting, None);
        assert!(state.is_in(Counting, counts.expect("somebody waited to apply")));
        state.leave(Counting, counts);
        assert_eq!(state.arrive(Applying), None);
    }

    #[test]
    fn nobody_counts_before_all_partitions_of_a_start_are_done() {
        let phases = Phases::new(2);
        let counts = phases.state().arrive(Counting).expect("two have to be done");
        phases.state().leave(Applying, None);
        assert!(!phases.state().is_in(Counting, counts));
        phases.state().leave(Applying, None);
        assert!(phases.state().is_in(Counting, counts));
    }
}
