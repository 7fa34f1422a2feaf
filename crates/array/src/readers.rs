//! Readers: which copy of a key answers.
//!
//! Role: the first copy, as long as every member is in. Once some are out, the keys of each primary are
//! divided among the copies that are left, so that no member has much more to read than others: else whoever
//! stands next to a lost one would have the work of two. In the same way those that have stubs of packed
//! values share in telling where the values of a lost one are. Place on the path: every read, before it is
//! sent.
//!
//! Invariants: which copy answers follows from the key and from who is in, so that the version of a key that
//! is told stays the same until somebody goes or comes; only members that are in are readers, where there are
//! any.

use crate::forms::Forms;
use crate::placement;
use std::ops::Range;

/// Parts into which the keys of a primary are divided, by their hashes.
pub(crate) const SLICES: usize = 64;

/// For each primary, the role that answers for each slice of its keys.
#[derive(Default)]
pub(crate) struct Readers(Vec<[u8; SLICES]>);

impl Readers {
    /// Who gives values, or their first piece.
    pub(crate) fn of_values(forms: &Forms, is_in: &[bool]) -> Readers {
        Readers::new(0..forms.reading_roles(), is_in, |_| true)
    }

    /// Who tells of packed values: those of members that are not in are asked for.
    pub(crate) fn of_stubs(forms: &Forms, is_in: &[bool]) -> Readers {
        Readers::new(forms.sure_stubs(), is_in, |primary| !is_in[primary])
    }

    /// The readers of keys in some roles; the primaries of which keys are read in them share the work.
    fn new(roles: Range<usize>, is_in: &[bool], is_read: impl Fn(usize) -> bool) -> Readers {
        let count = is_in.len();
        let member = |primary, role| placement::member(primary, role, count);
        // Slices that each role of each primary answers for, and each member in all.
        let mut shares = vec![vec![0_usize; roles.end.max(roles.start + 1)]; count];
        let mut loads = vec![0_usize; count];
        let first = |primary| roles.clone().find(|role| is_in[member(primary, *role)]).unwrap_or(roles.start);
        for primary in (0..count).filter(|primary| is_read(*primary)) {
            shares[primary][first(primary)] = SLICES;
            loads[member(primary, first(primary))] += SLICES;
        }
        if is_in.contains(&false) {
            while let Some((primary, from, to)) = best_move(&roles, &shares, &loads, is_in) {
                shares[primary][from] -= 1;
                shares[primary][to] += 1;
                loads[member(primary, from)] -= 1;
                loads[member(primary, to)] += 1;
            }
        }
        for primary in (0..count).filter(|primary| !is_read(*primary)) {
            shares[primary][first(primary)] = SLICES;
        }
        Readers(shares.iter().map(|shares| slices(shares)).collect())
    }

    /// The role that answers for a key.
    pub(crate) fn role(&self, primary: usize, hash: u64) -> usize {
        // The upper half: by the lower one keys are told apart elsewhere.
        usize::from(self.0[primary][(hash >> 32) as usize % SLICES])
    }
}

/// The move of a slice that relieves most, if one does.
fn best_move(
    roles: &Range<usize>,
    shares: &[Vec<usize>],
    loads: &[usize],
    is_in: &[bool],
) -> Option<(usize, usize, usize)> {
    let mut best = (1, None);
    for (primary, shares) in shares.iter().enumerate() {
        let load = |role| loads[placement::member(primary, role, loads.len())];
        let there = roles.clone().filter(|role| is_in[placement::member(primary, *role, loads.len())]);
        let there: Vec<usize> = there.collect();
        let Some(from) = there.iter().copied().filter(|role| shares[*role] > 0).max_by_key(|it| load(*it))
        else {
            continue;
        };
        let Some(to) = there.iter().copied().min_by_key(|role| load(*role)) else { continue };
        let relief = load(from).saturating_sub(load(to));
        if relief > best.0 {
            best = (relief, Some((primary, from, to)));
        }
    }
    best.1
}

fn slices(shares: &[usize]) -> [u8; SLICES] {
    let each = shares.iter().enumerate().flat_map(|(role, share)| std::iter::repeat_n(role as u8, *share));
    let mut slices = [0; SLICES];
    slices.iter_mut().zip(each).for_each(|(slice, role)| *slice = role);
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices that each member answers for.
    fn loads(roles: usize, is_in: &[bool]) -> Vec<usize> {
        let readers = Readers::new(0..roles, is_in, |_| true);
        let mut loads = vec![0; is_in.len()];
        for primary in 0..is_in.len() {
            for slice in 0..SLICES as u64 {
                loads[placement::member(primary, readers.role(primary, slice << 32), is_in.len())] += 1;
            }
        }
        loads
    }

    #[test]
    fn the_first_copy_answers_while_all_are_in() {
        let readers = Readers::new(0..3, &[true; 6], |_| true);
        assert!((0..6).all(|primary| (0..64).all(|slice| readers.role(primary, slice << 32) == 0)));
    }

    #[test]
    fn whoever_is_left_shares_the_work() {
        for roles in [2, 3] {
            for out in 0..6 {
                let mut is_in = [true; 6];
                is_in[out] = false;
                let loads = loads(roles, &is_in);
                assert_eq!(loads[out], 0);
                let most = *loads.iter().max().unwrap();
                assert!(most <= if roles == 2 { 81 } else { 78 }, "{roles} copies, without {out}: {loads:?}");
            }
        }
        // Two neighbours: of three copies one is left of some keys.
        let loads = loads(3, &[false, false, true, true, true, true]);
        assert!(loads[..2] == [0, 0] && loads.iter().all(|load| *load <= 98), "{loads:?}");
    }

    #[test]
    fn nobody_is_read_who_is_out() {
        let is_in = [true, false, true, false, true, true];
        let readers = Readers::new(0..2, &is_in, |_| true);
        for primary in 0..6 {
            for slice in 0..64 {
                let role = readers.role(primary, slice << 32);
                assert!(is_in[placement::member(primary, role, 6)], "{primary}: {role}");
            }
        }
        assert_eq!(loads(1, &[false, true]), [64, 64], "its keys have no other copy");
    }
    /// Of two neighbours that are out the first leaves its keys to one alone: the second leaves its own to
    /// another.
    #[test]
    fn who_tells_of_what_is_lost_shares_the_work_with_those_who_can() {
        for out in 0..6 {
            let is_in: Vec<bool> = (0..6).map(|member| member != out && member != (out + 1) % 6).collect();
            let tellers = Readers::new(1..3, &is_in, |primary| !is_in[primary]);
            for (primary, teller) in [(out, 2), ((out + 1) % 6, 2)] {
                let roles = (0..SLICES as u64).map(|slice| tellers.role(primary, slice << 32));
                assert!(
                    roles.filter(|role| *role == teller).count() >= SLICES - 1,
                    "{primary} without {out}"
                );
            }
        }
    }
}
