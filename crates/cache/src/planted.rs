//! Planted bugs: each breaks one rule of the cache, to prove that the simulator's checkers see.
//!
//! Without the feature `planted` (never in a release) [`is_planted`] is a constant `false` and
//! nothing of this remains in the binary.

/// A rule that can be broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Bug {
    /// A read fills the cache although a change of its key began meanwhile.
    FillAcrossChange = 1,
    /// A value is given while a transaction holds its key, until what that writes has been written.
    HitWhileHeld,
    /// The values of a database that is emptied stay.
    KeptOverClear,
    /// A value is given although its key has expired.
    ExpiryIgnored,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 4] =
        [Bug::FillAcrossChange, Bug::HitWhileHeld, Bug::KeptOverClear, Bug::ExpiryIgnored];
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug in this thread's caches, or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// True if a bug is planted.
    #[must_use]
    pub fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(not(feature = "planted"))]
mod switch {
    use super::Bug;

    /// True if a bug is planted: never, in this build.
    #[must_use]
    pub const fn is_planted(_bug: Bug) -> bool {
        false
    }
}

pub use switch::*;
