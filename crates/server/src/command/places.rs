//! Which keys a command names, and in which database.

use super::{Spec, number};
use crate::limits::DATABASES;
use crate::transaction::Key;
use plimsoll_kv::ContainerId;
use plimsoll_resp::Args;
use std::ops::RangeInclusive;

/// The arguments that are keys, all `step` apart; nothing if there is none.
pub(super) fn key_arguments(spec: &Spec, args: &Args<'_>) -> Option<(RangeInclusive<usize>, usize)> {
    if ["eval", "evalsha"].contains(&spec.name) {
        // The script, how many keys there are, the keys.
        let keys = number::integer(args.get(2)?).and_then(|keys| usize::try_from(keys).ok())?;
        let last = keys.checked_add(2)?;
        return (keys > 0 && last < args.len()).then_some((3..=last, 1));
    }
    if let Some(sub) = args.get(1).and_then(|name| super::find_sub(spec, name)) {
        return (spec.subcommands[sub].has_key && args.len() > 2).then_some((2..=2, 1));
    }
    let (first, last, step) = spec.keys;
    let last = if last < 0 { args.len() as i32 + last } else { last };
    (first > 0 && first <= last).then_some((first as usize..=last as usize, step as usize))
}

/// The keys that a command names when it is sent to a database.
pub(super) fn keys_of(spec: &Spec, args: &Args<'_>, database: ContainerId) -> Vec<Key> {
    let Some((places, step)) = key_arguments(spec, args) else { return Vec::new() };
    let named = places.step_by(step).filter_map(|place| args.get(place));
    let mut keys: Vec<Key> = named.map(|key| (database, key.to_vec())).collect();
    if spec.name == "copy"
        && let (Some(copy), Some(other)) = (keys.last_mut(), super::rename::database_of_copy(args))
    {
        copy.0 = other;
    }
    keys
}

/// The database to which commands are sent after this one.
pub(super) fn database_after(spec: &Spec, args: &Args<'_>, database: ContainerId) -> ContainerId {
    let selected = || database_named(args.get(1)?);
    if spec.name == "select" { selected().unwrap_or(database) } else { database }
}

/// The database that a number names.
pub(super) fn database_named(word: &[u8]) -> Option<ContainerId> {
    let number = u32::try_from(number::integer(word)?).ok()?;
    (number < DATABASES).then_some(ContainerId(number))
}
