//! The judges: what a world's journal says about the rules, after the world has ended.
//!
//! Place: the end of every era of a world.
//!
//! Rules: every key is linearizable, life by life, from what the audit at its beginning read (so
//! that nothing of an earlier life takes effect later); versions are unique and grow (those of arrays are
//! told by one member and then another, and need not grow); a scan gives what was there all the while and
//! nothing that was not (but of arrays it may meet what is refused in the end).
//!
//! Invariants: what a fault or a durability level excuses becomes an unknown outcome, nothing more.
//!
//! Never: it knows how the store works.

use super::journal::{Journal, Refused, ScanSeen, VersionSeen, Violation};
use super::values::KeyName;
use crate::checker::{
    CheckConfig, Expiry, Held, History, Input, KeyHistory, Lifetime, Moment, Operation, Output, ValueId,
    Verdict, check_key_from,
};
use std::collections::BTreeMap;

/// Whether a version of an array may stand for one value only. Members give versions by themselves, so that
/// two of them may give the same one to two writes, one before and one after the first of them went out:
/// arrays do not hold that yet.
const ARRAY_VERSIONS: bool = cfg!(feature = "array-limits");

/// Outcomes that may have been taken back: those of a time before a crash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Excuse {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    /// Only keys that are acknowledged before they are durable.
    pub(super) async_only: bool,
}

/// Judges an era: the first rule that was broken, if one was.
pub(super) fn judge(
    journal: &Journal,
    excuses: &[Excuse],
    is_async: &dyn Fn(&[u8]) -> bool,
    versions_grow: bool,
) -> Option<Violation> {
    let mut histories = journal.finish();
    for history in &mut histories {
        excuse(history, excuses, is_async);
    }
    let versions = journal.versions.borrow();
    let found = versions.iter().find_map(|(key, seen)| {
        let lax = is_async(&key.1);
        let stays = |one: &&VersionSeen| !is_excused(excuses, one.ended_ns, lax);
        let seen: Vec<VersionSeen> = seen.iter().filter(stays).copied().collect();
        (versions_grow || ARRAY_VERSIONS)
            .then(|| judge_identity(key, &seen))
            .flatten()
            .or_else(|| judge_swaps(key, &seen))
            .or_else(|| versions_grow.then(|| judge_versions(key, &seen)).flatten())
    });
    if let Some(explanation) = found {
        return Some(Violation { rule: "versions", explanation });
    }
    for (container, history) in (0..).zip(&histories) {
        if let Some(violation) = judge_keys(journal, container, history) {
            return Some(violation);
        }
    }
    let scans = journal.scans.borrow();
    let mut by_key: BTreeMap<u32, Vec<KeyHistory>> = BTreeMap::new();
    let found = scans.iter().find_map(|scan| {
        let container = scan.container;
        let keys = by_key.entry(container).or_insert_with(|| histories[container as usize].by_key());
        // Members of an array are written one by one, and a store that one has no room for is undone.
        let may_be_undone = |name: &[u8]| !versions_grow && was_refused(journal, scan, name);
        judge_scan(scan, keys, &journal.kills.borrow()[container as usize], &may_be_undone)
    });
    found.map(|explanation| Violation { rule: "scans", explanation })
}

fn is_excused(excuses: &[Excuse], at_ns: u64, is_lax: bool) -> bool {
    excuses
        .iter()
        .any(|excuse| (excuse.from_ns..=excuse.to_ns).contains(&at_ns) && (is_lax || !excuse.async_only))
}

/// Forgets the outcomes that may have been taken back.
fn excuse(history: &mut History, excuses: &[Excuse], is_async: &dyn Fn(&[u8]) -> bool) {
    if excuses.is_empty() {
        return;
    }
    let lax: Vec<bool> = history.keys().map(|(_, name)| is_async(name)).collect();
    for operation in history.operations_mut() {
        let Some(outcome) = operation.outcome else { continue };
        let is_lax = match operation.scope {
            crate::checker::Scope::Key(key) => lax[key.0 as usize],
            crate::checker::Scope::All => false,
        };
        if is_excused(excuses, outcome.at.ns, is_lax) {
            operation.outcome = None;
        }
    }
}

/// Linearizability, from cut to cut.
fn judge_keys(journal: &Journal, container: u32, history: &History) -> Option<Violation> {
    let config = CheckConfig { states_max: 200_000, steps_max: 6_000_000, ..CheckConfig::default() };
    let cuts = journal.cuts.borrow();
    for key in history.by_key() {
        let none = Vec::new();
        let cuts = cuts.get(&(container, key.name.clone())).unwrap_or(&none);
        let mut held: Held = None;
        let mut from = Moment::at(0);
        let ends = cuts.iter().map(|(at, held)| (*at, *held));
        for (end, next) in ends.chain([(Moment { ns: u64::MAX, order: u32::MAX }, None)]) {
            let mut part = key.clone();
            part.operations.retain(|op| (from..end).contains(&op.invoked));
            if let Verdict::Violation(violation) = check_key_from(&part, held, &config) {
                let at_start = match held {
                    None => "nothing".to_owned(),
                    Some((value, deadline)) => format!("v{}, deadline {deadline:?}", value.0),
                };
                let explanation =
                    format!("db {container}, held at {} ns: {at_start}\n{}", from.ns, violation.explanation);
                return Some(Violation { rule: "linearizability", explanation });
            }
            (from, held) = (end, next);
        }
    }
    None
}

/// Versions of a key: never one for two values.
fn judge_identity(key: &KeyName, seen: &[VersionSeen]) -> Option<String> {
    let name = String::from_utf8_lossy(&key.1);
    let mut values: BTreeMap<_, ValueId> = BTreeMap::new();
    for one in seen {
        let Some(value) = one.value else { continue };
        let other = *values.entry(one.version).or_insert(value);
        if other != value {
            return Some(format!(
                "{name:?}: version {} stands for v{} and v{}",
                one.version, other.0, value.0
            ));
        }
    }
    None
}

/// What was stored if a version was still there: nothing was stored since that was seen.
fn judge_swaps(key: &KeyName, seen: &[VersionSeen]) -> Option<String> {
    let name = String::from_utf8_lossy(&key.1);
    seen.iter().filter(|one| one.from.is_some()).find_map(|swap| {
        let between = |one: &&VersionSeen| one.wrote && one.begun > swap.looked && one.ended < swap.begun;
        let (between, from) = (seen.iter().find(between)?, swap.from?);
        let (to, between) = (swap.version, between.version);
        Some(format!("{name:?}: {to} replaced {from} though {between} was stored after that had been seen"))
    })
}

/// Versions of a key: never lower than one that was told before.
fn judge_versions(key: &KeyName, seen: &[VersionSeen]) -> Option<String> {
    let name = String::from_utf8_lossy(&key.1);
    // By the end of each: the highest version told by then.
    let mut by_end: Vec<&VersionSeen> = seen.iter().collect();
    by_end.sort_by_key(|one| one.ended);
    let mut highest: Vec<(u64, &VersionSeen)> = Vec::new();
    for one in by_end {
        match highest.last() {
            Some((_, last)) if last.version >= one.version => {}
            _ => highest.push((one.ended, one)),
        }
    }
    for one in seen {
        let before = highest.partition_point(|(ended, _)| *ended < one.begun);
        let Some((_, told)) = before.checked_sub(1).map(|at| highest[at]) else { continue };
        if told.version > one.version || (one.wrote && told.version == one.version) {
            let what = if one.wrote { "written" } else { "read" };
            return Some(format!(
                "{name:?}: version {} was {what} after version {} had been told",
                one.version, told.version
            ));
        }
    }
    let swaps = seen.iter().filter_map(|one| Some((one.from?, one.version)));
    for (from, to) in swaps {
        let between = seen.iter().find(|one| one.wrote && one.version > from && one.version < to);
        if let Some(between) = between {
            let text = format!("{name:?}: {to} replaced {from} though {} came between", between.version);
            return Some(text);
        }
    }
    None
}

/// When an operation had its effect at the latest: its answer, or the death of the server.
fn latest(operation: &Operation, kills: &[Moment]) -> Moment {
    let death = || kills.get(kills.partition_point(|kill| *kill < operation.invoked)).copied();
    let never = Moment { ns: u64::MAX, order: u32::MAX };
    operation.outcome.map(|outcome| outcome.at).or_else(death).unwrap_or(never)
}

fn deadline(operation: &Operation) -> Option<u64> {
    match operation.input {
        Input::Set { expiry: Expiry::At(at_ms), .. } | Input::Expire { deadline_ms: at_ms } => Some(at_ms),
        _ => None,
    }
}

/// Whether something was refused that was asked of a key during a scan.
fn was_refused(journal: &Journal, scan: &ScanSeen, name: &[u8]) -> bool {
    let is_it = |refused: &Refused| {
        let Refused { key, begun, ended } = refused;
        key.0 == scan.container && key.1 == name && *begun < scan.ended && *ended > scan.begun
    };
    journal.refused.borrow().iter().any(is_it)
}

fn judge_scan(
    scan: &ScanSeen,
    keys: &[KeyHistory],
    kills: &[Moment],
    may_be_undone: &dyn Fn(&[u8]) -> bool,
) -> Option<String> {
    for name in &scan.keys {
        if !keys.iter().any(|key| key.name == *name) {
            return Some(format!("a scan gave {:?}, a key of nobody", String::from_utf8_lossy(name)));
        }
    }
    let mut left_out = 0;
    for key in keys {
        let name = String::from_utf8_lossy(&key.name);
        let between = format!("from {} to {} ns", scan.begun.ns, scan.ended.ns);
        let given = scan.keys.contains(&key.name);
        if given && was_absent(key, scan, kills) && !may_be_undone(&key.name) {
            return Some(format!("a scan {between} gave {name:?}, which was absent all the while"));
        }
        left_out += u64::from(!given && was_present(key, scan, kills) && !may_be_undone(&key.name));
        if left_out > scan.unreadable {
            return Some(format!("a scan {between} did not give {name:?}, which was there all the while"));
        }
    }
    None
}

fn was_absent(key: &KeyHistory, scan: &ScanSeen, kills: &[Moment]) -> bool {
    let absent = |op: &&Operation| {
        let told = op.outcome.filter(|outcome| outcome.at < scan.begun);
        told.is_some_and(|outcome| match (op.input, outcome.output) {
            (Input::Get, Output::Value(value)) => value == ValueId::ABSENT,
            (Input::Delete | Input::Clear, _) => true,
            (Input::Exists, Output::Flag(flag)) => !flag,
            (_, Output::Lifetime(lifetime)) => lifetime == Lifetime::Absent,
            _ => false,
        })
    };
    let since = key.operations.iter().filter(absent).map(|op| op.invoked).max();
    let since = since.unwrap_or(Moment::at(0));
    let writes = |op: &Operation| op.input.written().is_some() && op.invoked <= scan.ended;
    !key.operations.iter().any(|op| writes(op) && latest(op, kills) >= since)
}

fn was_present(key: &KeyHistory, scan: &ScanSeen, kills: &[Moment]) -> bool {
    let expires = |op: &Operation| deadline(op).is_some_and(|at_ms| at_ms <= scan.high_wall_ms);
    let begun = key.operations.iter().filter(|op| op.invoked <= scan.ended);
    let begun: Vec<&Operation> = begun.collect();
    let any_expires = begun.iter().any(|op| expires(op));
    let shows = |op: &&&Operation| {
        let told = op.outcome.filter(|outcome| outcome.at < scan.begun);
        told.is_some_and(|outcome| match (op.input, outcome.output) {
            (Input::Set { expiry: Expiry::Discard, .. }, Output::Flag(flag)) => flag,
            (Input::Get, Output::Value(value)) => value != ValueId::ABSENT && !any_expires,
            (Input::Exists, Output::Flag(flag)) => flag && !any_expires,
            _ => false,
        })
    };
    let Some(evidence) = begun.iter().filter(shows).max_by_key(|op| op.invoked) else { return false };
    let removes = |op: &Operation| matches!(op.input, Input::Delete | Input::Clear) || expires(op);
    // A KEEPTTL carries an old deadline on.
    let keeps = |op: &Operation| matches!(op.input, Input::Set { expiry: Expiry::Keep, .. }) && any_expires;
    !begun.iter().any(|op| {
        !std::ptr::eq(*op, *evidence) && (removes(op) || keeps(op)) && latest(op, kills) >= evidence.invoked
    })
}
