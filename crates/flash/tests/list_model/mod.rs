//! The model of the tests of listing: which keys exist, and what a listing may give.

use std::collections::{BTreeMap, BTreeSet};

/// A container and a key.
pub(crate) type Named = (u32, Vec<u8>);

#[derive(Clone, Default)]
struct KeyState {
    present: bool,
    expires_ms: Option<u64>,
    /// Grows whenever an operation on the key begins or ends.
    touched: u64,
    under_way: bool,
}

/// Which keys exist.
#[derive(Clone, Default)]
pub(crate) struct Model(BTreeMap<Named, KeyState>);

impl Model {
    /// An operation on a key begins.
    pub(crate) fn begin(&mut self, named: &Named) {
        let state = self.0.entry(named.clone()).or_default();
        state.touched += 1;
        state.under_way = true;
    }

    /// It ended, and the key is now so.
    pub(crate) fn end(&mut self, named: &Named, present: bool, expires_ms: Option<u64>) {
        let state = self.0.get_mut(named).expect("begun before");
        *state = KeyState { present, expires_ms, touched: state.touched + 1, under_way: false };
    }

    /// It ended, and the key is as before.
    pub(crate) fn unchanged(&mut self, named: &Named) {
        let state = self.0.get_mut(named).expect("begun before");
        state.touched += 1;
        state.under_way = false;
    }

    /// Keys ever touched in a container.
    pub(crate) fn names(&self, container: u32) -> Vec<Named> {
        self.0.keys().filter(|named| named.0 == container).cloned().collect()
    }

    /// Keys with an operation under way.
    pub(crate) fn under_way(&self) -> Vec<Named> {
        self.0.iter().filter(|(_, state)| state.under_way).map(|(named, _)| named.clone()).collect()
    }

    /// Compares a listing, begun when the model was as `before`.
    pub(crate) fn compare(
        &self,
        before: &Model,
        container: u32,
        prefix: &[u8],
        found: &[Vec<u8>],
        before_ms: u64,
        after_ms: u64,
    ) {
        let listed: BTreeSet<&Vec<u8>> = found.iter().collect();
        for key in found {
            assert!(self.0.contains_key(&(container, key.clone())), "a key that was never stored");
        }
        for (named, state) in self.0.iter().filter(|(named, _)| named.0 == container) {
            let touched = before.0.get(named).map_or(0, |state| state.touched);
            if state.touched != touched || state.under_way || !named.1.starts_with(prefix) {
                continue;
            }
            let expired = state.expires_ms.is_some_and(|at_ms| at_ms <= before_ms);
            let expiring = state.expires_ms.is_some_and(|at_ms| at_ms <= after_ms);
            if state.present && expiring && !expired {
                continue; // It may be listed or not.
            }
            assert_eq!(
                listed.contains(&named.1),
                state.present && !expired,
                "key {:?} of container {container}",
                String::from_utf8_lossy(&named.1)
            );
        }
    }
}
