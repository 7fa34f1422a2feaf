//! The journal of a world: what clients asked and were told, and the first thing that was wrong.
//!
//! Place: clients write it while the world runs; the judges read it afterwards. What can be judged
//! at once (an error that no fault explains, a value nobody wrote) is judged here.
//!
//! Invariants: every operation is begun before it is sent and ends as answered, withdrawn (told that
//! nothing was done) or lost (unknown); the first violation is kept.
//!
//! Never: it looks into the server.

use super::ledger::Ledger;
use super::values::{KeyName, Values};
use crate::checker::{Held, History, Input, Moment, Now, OperationId, Output, Recorder, ValueId};
use plimsoll_kv::{Error, Version};
use plimsoll_reactor::sim::World;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Stands for the server itself where a client would.
const EVICTION: u32 = 9_001;

/// An operation under way.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    container: u32,
    id: Option<OperationId>,
    pub(super) number: u64,
    /// When it was begun, on the journal's own count of events.
    pub(super) begun: u64,
}

/// A version that a completion carried.
#[derive(Clone, Copy, Debug)]
pub(super) struct VersionSeen {
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) ended_ns: u64,
    pub(super) version: Version,
    /// True if the operation made the version.
    pub(super) wrote: bool,
    /// The value under it, if it is known.
    pub(super) value: Option<ValueId>,
    /// The version that had to be there for this one to be made, and when it was seen at the latest.
    pub(super) from: Option<Version>,
    pub(super) looked: u64,
}

/// A scan from its first to its last page.
#[derive(Clone, Debug)]
pub(super) struct ScanSeen {
    pub(super) container: u32,
    pub(super) begun: Moment,
    pub(super) ended: Moment,
    /// The highest wall time there was until it ended.
    pub(super) high_wall_ms: u64,
    pub(super) keys: BTreeSet<Vec<u8>>,
    /// Records that could not be read meanwhile: a scan leaves out so many keys at most.
    pub(super) unreadable: u64,
}

/// Why an operation failed, by protocol or by call.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "explanations print the texts through Debug")]
pub(super) enum Trouble {
    NoSpace,
    Unreadable(String),
    ReadOnly(String),
    Other(String),
}

impl Trouble {
    pub(super) fn of(error: &Error) -> Trouble {
        match error {
            Error::NoSpace => Trouble::NoSpace,
            Error::Unreadable(text) => Trouble::Unreadable(text.clone()),
            Error::ReadOnly(text) => Trouble::ReadOnly(text.clone()),
            other => Trouble::Other(other.to_string()),
        }
    }
}

/// What has to hold for an error to be believed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Excuses {
    pub(super) reads_fail: bool,
    pub(super) writes_fail: bool,
}

/// What was wrong, and who saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule that was broken.
    pub rule: &'static str,
    /// What happened.
    pub explanation: String,
}

struct UnderWay {
    since_ns: u64,
    what: String,
    of: Option<(KeyName, Moment)>,
}

/// A time in which a key was asked for something that was refused, for want of space, in the end.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) key: KeyName,
    pub(super) begun: Moment,
    pub(super) ended: Moment,
}

/// Counters of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations begun.
    pub operations: u64,
    /// Operations that were refused for want of space.
    pub no_space: u64,
    /// Operations that failed because of a fault.
    pub failed: u64,
    /// Operations of unknown outcome.
    pub lost: u64,
}

pub(super) struct Journal {
    pub(super) world: World,
    pub(super) values: RefCell<Values>,
    recorders: RefCell<Vec<Recorder>>,
    pub(super) versions: RefCell<BTreeMap<KeyName, Vec<VersionSeen>>>,
    pub(super) scans: RefCell<Vec<ScanSeen>>,
    pub(super) refused: RefCell<Vec<Refused>>,
    /// What each key held when a life began, by key.
    pub(super) cuts: RefCell<BTreeMap<KeyName, Vec<(Moment, Held)>>>,
    /// The ends of the lives, by container.
    pub(super) kills: RefCell<Vec<Vec<Moment>>>,
    evictions: RefCell<BTreeMap<KeyName, u64>>,
    under_way: RefCell<BTreeMap<u64, UnderWay>>,
    events: Cell<u64>,
    pub(super) tally: Cell<Tally>,
    pub(super) excuses: Cell<Excuses>,
    /// Reads of some disk failed now and then, in this life or one before.
    pub(super) reads_have_failed: Cell<bool>,
    /// The highest wall time before the clock was set back.
    high_wall_ms: Cell<u64>,
    /// The last event at which stores had a reason to be refused for want of space.
    full_at: Cell<u64>,
    /// Says whether a store has no reason to be refused for want of space.
    pub(super) is_roomy: RefCell<Option<Box<dyn Fn() -> bool>>>,
    /// Counts the records that could not be read in this life.
    pub(super) unreadable: RefCell<Option<Box<dyn Fn() -> u64>>>,
    /// Damage of a disk explains no error: others have what it had.
    pub(super) bears_damage: Cell<bool>,
    /// The ledgers of all disks.
    pub(super) ledgers: RefCell<Vec<Rc<Ledger>>>,
    violation: RefCell<Option<Violation>>,
    trace: Option<RefCell<Vec<String>>>,
}

impl Journal {
    pub(super) fn new(world: &World, containers: u32, traces: bool) -> Rc<Journal> {
        Rc::new(Journal {
            world: world.clone(),
            values: RefCell::default(),
            recorders: RefCell::new((0..containers).map(|_| Recorder::new()).collect()),
            versions: RefCell::default(),
            scans: RefCell::default(),
            refused: RefCell::default(),
            cuts: RefCell::default(),
            kills: RefCell::new(vec![Vec::new(); containers as usize]),
            evictions: RefCell::default(),
            under_way: RefCell::default(),
            events: Cell::new(0),
            tally: Cell::default(),
            excuses: Cell::default(),
            reads_have_failed: Cell::new(false),
            high_wall_ms: Cell::new(0),
            full_at: Cell::new(0),
            is_roomy: RefCell::default(),
            unreadable: RefCell::default(),
            bears_damage: Cell::new(false),
            ledgers: RefCell::default(),
            violation: RefCell::default(),
            trace: traces.then(RefCell::default),
        })
    }

    pub(super) fn now(&self) -> Now {
        Now { ns: self.world.now_ns(), wall_ms: self.world.wall_ms() }
    }

    /// The count of events now.
    pub(super) fn events(&self) -> u64 {
        self.events.get()
    }

    fn event(&self) -> u64 {
        self.events.set(self.events.get() + 1);
        self.look_for_room();
        self.events.get()
    }

    /// Remembers when the device was full: a refusal may reach its client later.
    fn look_for_room(&self) {
        if !self.is_roomy.borrow().as_ref().is_some_and(|is_roomy| is_roomy()) {
            self.full_at.set(self.events.get());
        }
    }

    /// Records that could not be read so far in this life.
    pub(super) fn unreadable(&self) -> u64 {
        self.unreadable.borrow().as_ref().map_or(0, |count| count())
    }

    /// Adds a line to the trace, if there is one.
    pub(super) fn note(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            let now = self.now();
            trace.borrow_mut().push(format!("{:>14} ns  {}", now.ns, line()));
        }
    }

    pub(super) fn take_trace(&self) -> Vec<String> {
        self.trace.as_ref().map(RefCell::take).unwrap_or_default()
    }

    fn count(&self, change: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.get();
        change(&mut tally);
        self.tally.set(tally);
    }

    /// Keeps what was wrong, if nothing was before.
    pub(super) fn violate(&self, rule: &'static str, explanation: String) {
        self.note(|| format!("VIOLATION of {rule}: {explanation}"));
        self.violation.borrow_mut().get_or_insert(Violation { rule, explanation });
    }

    pub(super) fn violation(&self) -> Option<Violation> {
        self.violation.borrow().clone()
    }

    pub(super) fn is_violated(&self) -> bool {
        self.violation.borrow().is_some()
    }

    /// Something that the history does not hold is asked; it has to be answered all the same.
    pub(super) fn watch(&self, what: impl FnOnce() -> String) -> Asked {
        let begun = self.event();
        let what = what();
        self.note(|| format!("#{begun} {what}"));
        let since_ns = self.world.now_ns();
        self.under_way.borrow_mut().insert(begun, UnderWay { since_ns, what, of: None });
        self.count(|tally| tally.operations += 1);
        Asked { container: 0, id: None, number: begun, begun }
    }

    /// A client is about to ask.
    pub(super) fn begin(&self, client: u32, key: &KeyName, input: Input) -> Asked {
        let mut asked = self
            .watch(|| format!("client {client} db {} {:?} {input}", key.0, String::from_utf8_lossy(&key.1)));
        let now = self.now();
        let recorder = &mut self.recorders.borrow_mut()[key.0 as usize];
        asked.container = key.0;
        asked.id = Some(if input == Input::Clear {
            recorder.invoke_clear(client, now)
        } else {
            recorder.invoke(client, &key.1, input, now)
        });
        if let Some(under_way) = self.under_way.borrow_mut().get_mut(&asked.number) {
            under_way.of = Some((key.clone(), recorder.mark(now)));
        }
        asked
    }

    /// The server says that it deletes a key to make room. That takes effect once, from now on or (after a
    /// crash that comes before it is durable) never; so a key may vanish only as often as this was said.
    pub(super) fn evicted(&self, key: &KeyName) {
        self.note(|| format!("db {} {:?} is evicted", key.0, String::from_utf8_lossy(&key.1)));
        *self.evictions.borrow_mut().entry(key.clone()).or_default() += 1;
        let now = self.now();
        let recorder = &mut self.recorders.borrow_mut()[key.0 as usize];
        recorder.invoke(EVICTION, &key.1, Input::Delete, now);
    }

    /// How often a key was evicted.
    pub(super) fn evictions(&self, key: &KeyName) -> u64 {
        self.evictions.borrow().get(key).copied().unwrap_or_default()
    }

    fn end(&self, asked: &Asked, how: impl FnOnce() -> String) -> u64 {
        self.under_way.borrow_mut().remove(&asked.number);
        self.note(|| format!("#{} {}", asked.number, how()));
        self.event()
    }

    /// It was answered; the journal's count of events.
    pub(super) fn answer(&self, asked: &Asked, output: Output) -> u64 {
        let ended = self.end(asked, || format!("-> {output}"));
        if let Some(id) = asked.id {
            let now = self.now();
            self.recorders.borrow_mut()[asked.container as usize].respond(id, output, now);
        }
        ended
    }

    /// It was refused, and certainly did nothing.
    pub(super) fn withdraw(&self, asked: &Asked, why: &str) {
        self.end(asked, || format!("-> refused: {why}"));
        if let Some(id) = asked.id {
            self.recorders.borrow_mut()[asked.container as usize].withdraw(id);
        }
    }

    /// Nobody knows what became of it.
    pub(super) fn lose(&self, asked: &Asked, why: &str) {
        self.end(asked, || format!("-> unknown: {why}"));
        self.count(|tally| tally.lost += 1);
    }

    /// True if anything that is stored ever was damaged.
    pub(super) fn was_damaged(&self) -> bool {
        self.ledgers.borrow().iter().any(|ledger| ledger.was_damaged())
    }

    /// True if something that was overwritten or deleted may have been so unread: nobody knows whether it had
    /// expired, or had a time to.
    pub(super) fn may_be_unread(&self) -> bool {
        self.was_damaged() || self.reads_have_failed.get()
    }

    /// It failed: judges whether that is explained, and ends it.
    pub(super) fn fail(&self, asked: &Asked, trouble: &Trouble, may_be_full: bool) {
        let what = self.under_way.borrow().get(&asked.number).map(|u| u.what.clone()).unwrap_or_default();
        match trouble {
            Trouble::NoSpace => {
                self.count(|tally| tally.no_space += 1);
                self.look_for_room();
                let was_roomy = self.full_at.get() < asked.begun;
                // Segments in which something is damaged are kept, and may leave no room even to delete
                // what was seen expired.
                if (!may_be_full && !self.was_damaged()) || was_roomy {
                    self.violate("space", format!("{what} was refused for want of space"));
                }
                self.note_refused(asked);
                self.withdraw(asked, "no space");
            }
            other => {
                self.count(|tally| tally.failed += 1);
                self.explain(&what, other);
                self.end(asked, || format!("-> failed: {other:?}"));
            }
        }
    }

    /// A scan may have met what was asked before it was refused.
    fn note_refused(&self, asked: &Asked) {
        let of = self.under_way.borrow().get(&asked.number).and_then(|under_way| under_way.of.clone());
        if let Some((key, begun)) = of {
            let ended = self.mark(key.0);
            self.refused.borrow_mut().push(Refused { key, begun, ended });
        }
    }

    /// Judges whether a fault explains an error.
    pub(super) fn explain(&self, what: &str, trouble: &Trouble) {
        let excuses = self.excuses.get();
        let ledgers = self.ledgers.borrow().clone();
        let explained = match trouble {
            Trouble::NoSpace => false,
            Trouble::Unreadable(text) => {
                // Of a block of names only the partition is told (seeds 430 and 2428).
                let is_damaged = |ledger: &Rc<Ledger>| match offset_in(text) {
                    Some(at) => ledger.explains(at),
                    None => text.contains("key block") && ledger.was_damaged(),
                };
                excuses.reads_fail || !self.bears_damage.get() && ledgers.iter().any(is_damaged)
            }
            Trouble::ReadOnly(_) => excuses.writes_fail,
            Trouble::Other(_) => false,
        };
        if !explained {
            self.violate("errors", format!("{what} failed, and no fault explains it: {trouble:?}"));
        }
    }

    /// A moment in the history of a container.
    pub(super) fn mark(&self, container: u32) -> Moment {
        let now = self.now();
        self.recorders.borrow_mut()[container as usize].mark(now)
    }

    /// What a completion said about a key's version.
    pub(super) fn see_version(&self, key: &KeyName, mut seen: VersionSeen) {
        seen.ended_ns = self.world.now_ns();
        self.versions.borrow_mut().entry(key.clone()).or_default().push(seen);
    }

    /// The server died, and all clients with it.
    pub(super) fn killed(&self) {
        self.under_way.borrow_mut().clear();
        let containers = self.kills.borrow().len() as u32;
        for container in 0..containers {
            let mark = self.mark(container);
            self.kills.borrow_mut()[container as usize].push(mark);
        }
    }

    /// The highest wall time there was so far.
    pub(super) fn high_wall_ms(&self) -> u64 {
        self.high_wall_ms.get().max(self.world.wall_ms())
    }

    /// The wall clock steps.
    pub(super) fn step_wall(&self, by_ms: i64) {
        let before_ms = self.world.wall_ms();
        self.high_wall_ms.set(self.high_wall_ms());
        self.world.step_wall_ms(by_ms);
        self.note(|| format!("the wall clock steps by {by_ms} ms"));
        for recorder in self.recorders.borrow_mut().iter_mut() {
            recorder.wall_stepped(before_ms, self.world.wall_ms());
        }
    }

    /// The operation that has waited longest, if it has for this long.
    pub(super) fn overdue(&self, ns: u64) -> Option<String> {
        let now_ns = self.world.now_ns();
        let under_way = self.under_way.borrow();
        let late = under_way.iter().find(|(_, waiting)| now_ns - waiting.since_ns >= ns);
        late.map(|(number, waiting)| {
            format!("#{number}, asked at {} ns, was never answered: {}", waiting.since_ns, waiting.what)
        })
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way.borrow().len()
    }

    /// Ends the histories, one for each container.
    pub(super) fn finish(&self) -> Vec<History> {
        let now = self.now();
        self.recorders.take().into_iter().map(|recorder| recorder.finish(now)).collect()
    }
}

/// The device offset that an error names.
fn offset_in(text: &str) -> Option<u64> {
    let (_, after) = text.split_once("device offset ")?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
