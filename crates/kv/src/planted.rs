//! The switch of planted bugs: each breaks one rule of a layer, to prove that the simulator's checkers see.
//!
//! Role: layers name their bugs themselves (`planted` of the flash engine and of the cache); which one is
//! planted, if any, is said here, for all layers of a thread.
//!
//! Never: in a release. Without the feature `planted` [`is_planted`] is a constant `false` and nothing of
//! this remains in the binary.

/// A bug of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted {
    /// The layer.
    pub layer: &'static str,
    /// Which of its bugs.
    pub bug: u8,
}

#[cfg(feature = "planted")]
mod switch {
    use super::Planted;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    /// Plants a bug in this thread's devices, or none.
    pub fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }

    /// True if a bug is planted.
    pub fn is_planted(bug: impl Into<Planted>) -> bool {
        PLANTED.get().is_some_and(|planted| planted == bug.into())
    }
}

#[cfg(not(feature = "planted"))]
mod switch {
    use super::Planted;

    /// True if a bug is planted: never, in this build.
    #[inline(always)]
    pub fn is_planted(_bug: impl Into<Planted>) -> bool {
        false
    }
}

pub use switch::*;
