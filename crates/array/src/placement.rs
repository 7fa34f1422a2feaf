//! Placement: on which members a key's copies stand, and under which names.
//!
//! Role: one pure function of a key's hash. Place on the path: before every request to a member.
//!
//! Invariants:
//! * the first copy stands on the primary, `hash(key) mod N`, and the others on the members that follow it in
//!   the order given, around the circle (KVMD's first rule), each under the user's key (the second);
//! * the copy in role i stands in a container of its own, so that a member can be asked which keys it holds
//!   in which role: to count them, to list them, to rebuild a neighbour.

use crate::mechanism::SET_MEMBERS_MAX;
use plimsoll_kv::limits::{BOOKS_CONTAINER_MIN, CONTAINERS_MAX};
use plimsoll_kv::{ContainerId, Slot};

/// Containers (databases) of an array: the members' containers are divided among the roles.
pub(crate) const ARRAY_CONTAINERS: u32 = 120;
/// Roles at most: copies, or members of a set.
pub(crate) const ROLES_MAX: u32 = SET_MEMBERS_MAX;

/// The first of the containers in which sets of packed values stand: one for each of the array's.
const SETS_CONTAINER_MIN: u32 = ROLES_MAX * ARRAY_CONTAINERS;

/// What the array keeps for itself: who its members are.
pub(crate) const ROSTER: ContainerId = ContainerId(BOOKS_CONTAINER_MIN);
/// Which keys may be half written.
pub(crate) const JOURNAL: ContainerId = ContainerId(BOOKS_CONTAINER_MIN + 1);

const _: () = assert!(SETS_CONTAINER_MIN + ARRAY_CONTAINERS <= BOOKS_CONTAINER_MIN);
const _: () = assert!(JOURNAL.0 < CONTAINERS_MAX);

/// The member that holds a key's first copy.
pub(crate) fn primary(key: &[u8], members: usize) -> usize {
    (xxhash_rust::xxh3::xxh3_64(key) % members as u64) as usize
}

/// The member in a role of the keys of a primary.
pub(crate) fn member(primary: usize, role: usize, members: usize) -> usize {
    (primary + role) % members
}

/// The role in which a member has the keys of a primary.
pub(crate) fn role(primary: usize, member: usize, members: usize) -> usize {
    (member + members - primary) % members
}

/// The primary of the keys that a member has in a role.
pub(crate) fn primary_of(member: usize, role: usize, members: usize) -> usize {
    (member + members - role) % members
}

/// Where the copies in a role of a container's keys stand on a member.
pub(crate) fn container(of: ContainerId, role: usize) -> ContainerId {
    assert!(of.0 < ARRAY_CONTAINERS && role < ROLES_MAX as usize, "checked when the request came");
    ContainerId(role as u32 * ARRAY_CONTAINERS + of.0)
}

/// Where the sets of a container's packed values stand on a member: parities, and what sets have lost.
pub(crate) fn sets(of: ContainerId) -> ContainerId {
    assert!(of.0 < ARRAY_CONTAINERS, "checked when the request came");
    ContainerId(SETS_CONTAINER_MIN + of.0)
}

/// Where members have what belongs to a container of the array: pieces in so many roles, and sets.
pub fn containers_of(of: ContainerId, roles: usize) -> impl Iterator<Item = ContainerId> {
    (0..roles).map(move |role| container(of, role)).chain([sets(of)])
}

/// The shortest word of which the keys that begin with it in braces belong to a partition: what the array
/// itself stores there is named with it.
pub(crate) fn tag(partition: u16, partitions: u16) -> String {
    let mut words = (0_u32..).map(|number| format!("{{{number}}}"));
    let here = |word: &String| Slot::of(word.as_bytes()).partition(partitions) == partition;
    words.find(here).expect("every partition has slots")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stand_on_neighbours_around_the_circle() {
        assert_eq!((0..3).map(|role| member(4, role, 6)).collect::<Vec<_>>(), [4, 5, 0]);
        assert_eq!(container(ContainerId(3), 0), ContainerId(3));
        assert_eq!(container(ContainerId(3), 2), ContainerId(2 * 120 + 3));
    }

    #[test]
    fn primaries_are_spread_evenly_and_stay_where_they_are() {
        let mut counts = [0_u32; 6];
        for number in 0..60_000_u32 {
            counts[primary(format!("key:{number}").as_bytes(), 6)] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        // The format depends on it: these never change.
        assert_eq!([&b"a"[..], b"key:1", b""].map(|key| primary(key, 6)), [1, 4, 4]);
    }

    #[test]
    fn every_partition_has_a_tag() {
        for partitions in [1, 2, 64] {
            for partition in 0..partitions {
                let key = format!("{}roster", tag(partition, partitions));
                assert_eq!(Slot::of(key.as_bytes()).partition(partitions), partition);
            }
        }
    }
}
