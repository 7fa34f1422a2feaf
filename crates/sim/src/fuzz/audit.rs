//! Audits: what has to hold when nobody works.
//!
//! Place: the conductor of a life runs them, at its beginning and when its clients have stopped.
//!
//! Invariants: an audit at the beginning of a life is a cut: nothing that was under way before can
//! take effect after it, so each life is judged from what its audit read.

use super::caller::Caller;
use super::life::Life;
use super::shape::FaultClass;
use super::values::KeyName;
use super::workload::Key;
use crate::checker::Held;
use futures_util::future::join_all;
use plimsoll_array::MemberState;
use plimsoll_kv::{ContainerId, Durability, Error, Op, Output, Stats};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Keys read at a time.
const READS_MAX: usize = 16;
/// After the last client has stopped, requests that lost theirs may still be under way.
const SETTLE_NS: u64 = 300_000_000;
/// How long space may take to come back.
const EMPTY_NS: u64 = 5_000_000_000;

/// Reads every key; what each holds, but for those that could not be read.
pub(super) async fn read_all(life: &Life, caller: &Rc<Caller>, cuts: bool) -> BTreeMap<KeyName, Held> {
    let mut held = BTreeMap::new();
    let evictions: Vec<u64> = life.keys.iter().map(|key| life.journal.evictions(&key.name)).collect();
    for keys in life.keys.chunks(READS_MAX) {
        let reads = join_all(keys.iter().map(|key| caller.get(key))).await;
        let known = keys.iter().zip(reads).filter_map(|(key, read)| Some((key.name.clone(), read?)));
        held.extend(known);
    }
    if cuts {
        let mut all = life.journal.cuts.borrow_mut();
        for (name, held) in &held {
            all.entry(name.clone()).or_default().push((life.journal.mark(name.0), *held));
        }
        // What was evicted since it was read is gone only after the cut.
        let keys = life.keys.iter().zip(evictions);
        let gone = keys.filter(|(key, before)| life.journal.evictions(&key.name) > *before);
        gone.for_each(|(key, _)| life.journal.evicted(&key.name));
    }
    held
}

/// Checks everything that can be checked while nobody works.
pub(super) async fn check(life: &Life, caller: &Rc<Caller>) {
    caller.reactor.sleep_ns(SETTLE_NS).await;
    sync(life, caller).await;
    life.check_all_accounts("when nobody works");
    for container in 0..life.shape.containers {
        caller.scan(container).await;
        check_counts(life, caller, container).await;
    }
    life.extras.check_all(life, caller).await;
}

async fn sync(life: &Life, caller: &Caller) {
    let asked = life.journal.watch(|| "a sync".to_owned());
    match caller.call(Durability::Sync, Op::Sync).await {
        Ok(_) => life.journal.withdraw(&asked, "done"),
        Err(error) => life.journal.fail(&asked, &super::journal::Trouble::of(&error), false),
    }
}

async fn stats(caller: &Caller, container: u32) -> Result<Stats, Error> {
    match caller.call(Durability::Sync, Op::Stats { container: ContainerId(container) }).await? {
        Output::Stats(stats) => Ok(stats),
        _ => Err(Error::Unsupported("a count gave something else")),
    }
}

/// DBSIZE against what is there, read key by key.
async fn check_counts(life: &Life, caller: &Rc<Caller>, container: u32) {
    let evicted = life.evicted();
    let (held, stats) = loop {
        let members = life.members();
        let held = read_all(life, caller, false).await;
        let Ok(stats) = stats(caller, container).await else { return };
        // An expired key counts until the member that tells of it has looked at it: others may tell by now.
        if members == life.members() {
            break (held, stats);
        }
    };
    if life.evicted() > evicted {
        return; // Some went meanwhile.
    }
    let keys = life.keys.iter().filter(|key| key.name.0 == container).count();
    let held: Vec<(_, Option<u64>)> =
        held.iter().filter(|(name, _)| name.0 == container).map(|(_, held)| *held).map(split).collect();
    if held.len() < keys {
        return; // Some could not be read: nothing can be said.
    }
    // A deadline that the highest wall time has passed may have been seen by the background.
    let high_ms = life.journal.high_wall_ms();
    let present = held.iter().filter(|(present, _)| *present);
    let (at_most, expiring_at_most) =
        present.fold((0, 0), |(all, some), (_, deadline)| (all + 1, some + u64::from(deadline.is_some())));
    let expired = held.iter().filter(|(_, deadline)| deadline.is_some_and(|d| d <= high_ms)).count() as u64;
    let (at_least, expiring_at_least) = (at_most - expired, expiring_at_most - expired);
    // An expired key counts until the member that tells of it has looked at it. That is not the one that was
    // read, perhaps, when some are out, or one that was slow and looked before its time had come.
    let others_tell = life.members().iter().flatten().any(|state| *state != MemberState::In)
        || (life.shape.is_array() && life.shape.class == FaultClass::Slow);
    let surplus = stats.expiring_keys.saturating_sub(expiring_at_most);
    let unseen = if others_tell { surplus } else { 0 };
    // What was overwritten or deleted unread goes on counting as expiring.
    let unread = if life.journal.may_be_unread() { surplus } else { 0 };
    let (at_most, expiring_at_most) = (at_most + unseen, expiring_at_most + unseen.max(unread));
    if !(at_least..=at_most).contains(&stats.keys)
        || !(expiring_at_least..=expiring_at_most).contains(&stats.expiring_keys)
    {
        let text = format!(
            "container {container} counts {} keys, {} of them expiring; {at_least} to {at_most} are there, \
             {expiring_at_least} to {expiring_at_most} of them expiring",
            stats.keys, stats.expiring_keys
        );
        life.journal.violate("accounts", text);
    }
}

fn split(held: Held) -> (bool, Option<u64>) {
    (held.is_some(), held.and_then(|(_, deadline)| deadline))
}

/// Deletes everything: all space has to come back, and stores have to succeed again.
pub(super) async fn empty(life: &Life, caller: &Rc<Caller>) {
    let is_damaged = life.was_damaged();
    for key in life.keys.iter() {
        caller.perform(key, super::workload::Command::Delete).await;
    }
    life.extras.empty(life, caller).await;
    if life.journal.is_violated() || is_damaged {
        return;
    }
    let end_ns = caller.reactor.now_ns() + EMPTY_NS;
    loop {
        if life.shape.packs {
            // What a crash left of sets that nobody is in is found so.
            life.arrays.borrow().values().for_each(|array| array.scrub());
        }
        sync(life, caller).await;
        let left = left_over(life);
        let Some(text) = left else { break };
        if caller.reactor.now_ns() >= end_ns {
            life.journal.violate("space", text);
            return;
        }
        caller.reactor.sleep_ns(100_000_000).await;
    }
    life.check_all_accounts("when everything was deleted");
    store_again(life, caller, &life.keys[0]).await;
}

fn left_over(life: &Life) -> Option<String> {
    for (place, partition) in life.partitions.borrow().iter() {
        if !life.holds_its_share(*place) {
            continue; // What is not in was not emptied.
        }
        let metrics = partition.metrics();
        // What was in an emptied container is forgotten segment by segment, once they are full.
        let swept_later = if life.shape.sweeps() { 4 * life.shape.segment_bytes } else { 0 };
        let (books, books_bytes) = life.shape.books();
        if metrics.live_bytes > swept_later + books_bytes || (metrics.objects > books && swept_later == 0) {
            return Some(format!(
                "everything was deleted, and partition {} of disk {} keeps {} objects and {} live bytes",
                place.0, place.1, metrics.objects, metrics.live_bytes
            ));
        }
    }
    None
}

async fn store_again(life: &Life, caller: &Rc<Caller>, key: &Key) {
    let before = life.journal.tally.get().no_space;
    let length = life.shape.value_bytes_max as usize;
    let (condition, expiry) = (crate::checker::Condition::Always, crate::checker::Expiry::Discard);
    let set = super::workload::Command::Set { length, condition, expiry, get_old: false };
    caller.perform(key, set).await;
    if life.journal.tally.get().no_space > before {
        let text = "a store is refused for want of space though everything was deleted";
        life.journal.violate("space", text.to_owned());
    }
    assert!(length <= caller.device.value_bytes_max());
    caller.perform(key, super::workload::Command::Delete).await;
}
