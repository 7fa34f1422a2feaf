//! How the shards of recent losses are computed, so that reads and rebuilds without a device invert a matrix
//! once for each place of a set that the device takes, and not for each object.
//!
//! Invariant: it holds [`PLANS_MAX`] plans at most; the one used longest ago goes first.

use crate::mechanism::SET_MEMBERS_MAX;
use rusty_erasure::DecodePlan;
use std::cell::RefCell;
use std::rc::Rc;

/// Plans that are kept: a lost device takes each place of a set in turn, so there is room for two. One is of
/// 8 KiB at most (16+16, on a processor without instructions for the field).
const PLANS_MAX: usize = 2 * SET_MEMBERS_MAX as usize;

/// What a plan depends on: which shards it computes from, and which it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    survivors: u32,
    wanted: u32,
}
const _: () = assert!(SET_MEMBERS_MAX <= u32::BITS, "a bit for each shard");

/// The plans of one code, those used last first.
#[derive(Debug, Default)]
pub(super) struct Plans(RefCell<Vec<(Loss, Rc<DecodePlan>)>>);

impl Loss {
    /// Of shards by their places in the set.
    pub(super) fn new(survivors: &[usize], wanted: &[usize]) -> Loss {
        let bits = |shards: &[usize]| shards.iter().fold(0, |bits, shard| bits | 1 << shard);
        Loss { survivors: bits(survivors), wanted: bits(wanted) }
    }
}

impl Plans {
    /// The plan for a loss, made if it is not known.
    pub(super) fn get(&self, loss: Loss, make: impl FnOnce() -> DecodePlan) -> Rc<DecodePlan> {
        let mut plans = self.0.borrow_mut();
        if let Some(at) = plans.iter().position(|(known, _)| *known == loss) {
            plans[..=at].rotate_right(1);
        } else {
            plans.truncate(PLANS_MAX - 1);
            plans.insert(0, (loss, Rc::new(make())));
        }
        plans[0].1.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_used_lately_are_kept() {
        let coder = rusty_erasure::coder(rusty_erasure::Matrix::cauchy(1, 31).unwrap()).unwrap();
        let (plans, made) = (Plans::default(), RefCell::new(Vec::new()));
        let get = |survivor: usize, wanted: usize| {
            plans.get(Loss::new(&[survivor], &[wanted]), || {
                made.borrow_mut().push((survivor, wanted));
                let present: Vec<bool> = (0..32).map(|shard| shard == survivor).collect();
                coder.decode_plan(&present, &[wanted]).unwrap()
            });
        };
        get(0, 1);
        get(1, 0);
        for wanted in 0..PLANS_MAX - 2 {
            get(2 + wanted / 32, wanted % 32);
            get(1, 0);
        }
        assert_eq!(made.borrow().len(), PLANS_MAX);
        get(0, 1);
        assert_eq!(made.borrow().len(), PLANS_MAX, "there was room for all");
        get(31, 30);
        get(31, 29);
        get(1, 0);
        get(0, 1);
        assert_eq!(made.borrow().len(), PLANS_MAX + 2, "those used lately were kept");
        get(2, 0);
        assert_eq!(made.borrow().last(), Some(&(2, 0)), "the one used longest ago went");
        assert_eq!(plans.0.borrow().len(), PLANS_MAX);
    }
}
