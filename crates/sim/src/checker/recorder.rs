//! Records a history while it happens.
//!
//! Place: a world's clients call it just before they send and just after they receive.
//!
//! Invariants: events are numbered in the order of the calls, so an operation precedes another exactly
//! if its response was recorded before the other's invocation; every wall span covers all readings
//! between the two ends of its operation, and both sides of every step of the wall clock.
//!
//! Must never: read a clock; every call is told the time.

use super::history::{History, Input, Moment, Operation, Outcome, Output, Scope, WallSpan};

/// The time of an event on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic nanoseconds: never lower than in an earlier call.
    pub ns: u64,
    /// Wall milliseconds: may step either way.
    pub wall_ms: u64,
}

/// An operation under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationId(usize);

/// Builds a [`History`], event by event.
#[derive(Debug, Default)]
pub struct Recorder {
    history: History,
    /// Wall readings, in the order of events.
    readings_ms: Vec<u64>,
    /// Of each operation: the reading of its invocation and of its response.
    ends: Vec<(usize, Option<usize>)>,
    /// Operations that certainly did nothing.
    withdrawn: Vec<usize>,
    events: u32,
    last_ns: u64,
}

impl Recorder {
    /// A recorder of nothing yet.
    pub fn new() -> Recorder {
        Recorder::default()
    }

    /// A client sends an operation on one key.
    pub fn invoke(&mut self, client: u32, key: &[u8], input: Input, now: Now) -> OperationId {
        let scope = Scope::Key(self.history.intern(key));
        self.open(client, scope, input, now)
    }

    /// A client sends `Clear`.
    pub fn invoke_clear(&mut self, client: u32, now: Now) -> OperationId {
        self.open(client, Scope::All, Input::Clear, now)
    }

    /// A client receives its response. An operation that never gets here is of unknown outcome: leave
    /// it so after an error past sending, a lost connection or a crash.
    pub fn respond(&mut self, id: OperationId, output: Output, now: Now) {
        let at = self.event(now);
        assert!(self.ends[id.0].1.is_none(), "one response per operation");
        self.ends[id.0].1 = Some(self.readings_ms.len() - 1);
        self.history.operations_mut()[id.0].outcome = Some(Outcome { at, output });
    }

    /// A client was told that its operation changed nothing, and nothing else: it leaves the history.
    pub fn withdraw(&mut self, id: OperationId) {
        assert!(self.ends[id.0].1.is_none(), "an operation with a response is not withdrawn");
        self.withdrawn.push(id.0);
    }

    /// A moment after all that was recorded and before all that will be.
    pub fn mark(&mut self, now: Now) -> Moment {
        self.event(now)
    }

    /// The wall clock was stepped, in either direction. Between calls it must only run forward.
    pub fn wall_stepped(&mut self, before_ms: u64, after_ms: u64) {
        self.readings_ms.push(before_ms);
        self.readings_ms.push(after_ms);
    }

    /// The end of the run.
    pub fn finish(mut self, now: Now) -> History {
        self.event(now);
        let readings = &self.readings_ms;
        let mut high_ms = readings.clone();
        for i in 1..high_ms.len() {
            high_ms[i] = high_ms[i].max(high_ms[i - 1]);
        }
        let mut low_after_ms = readings.clone();
        let mut high_after_ms = readings.clone();
        for i in (0..readings.len() - 1).rev() {
            low_after_ms[i] = low_after_ms[i].min(low_after_ms[i + 1]);
            high_after_ms[i] = high_after_ms[i].max(high_after_ms[i + 1]);
        }
        for (operation, (first, last)) in self.history.operations_mut().iter_mut().zip(&self.ends) {
            operation.wall = match last {
                Some(last) => {
                    let met = &readings[*first..=*last];
                    WallSpan {
                        min_ms: met.iter().copied().min().expect("both ends are readings"),
                        max_ms: met.iter().copied().max().expect("both ends are readings"),
                        high_ms: high_ms[*last],
                    }
                }
                None => WallSpan {
                    min_ms: low_after_ms[*first],
                    max_ms: high_after_ms[*first],
                    high_ms: high_ms[readings.len() - 1],
                },
            };
        }
        self.history.remove(&mut self.withdrawn);
        self.history
    }

    fn open(&mut self, client: u32, scope: Scope, input: Input, now: Now) -> OperationId {
        let invoked = self.event(now);
        self.history.push(Operation {
            client,
            scope,
            input,
            invoked,
            outcome: None,
            wall: WallSpan::new(now.wall_ms, now.wall_ms),
        });
        self.ends.push((self.readings_ms.len() - 1, None));
        OperationId(self.ends.len() - 1)
    }

    fn event(&mut self, now: Now) -> Moment {
        assert!(now.ns >= self.last_ns, "monotonic time does not run back");
        self.last_ns = now.ns;
        self.readings_ms.push(now.wall_ms);
        self.events += 1;
        Moment { ns: now.ns, order: self.events }
    }
}

#[cfg(test)]
mod tests;
