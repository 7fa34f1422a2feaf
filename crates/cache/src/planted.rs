//! Planted bugs: each breaks one rule of the cache, to prove that the simulator's checkers see.
//!
//! Which one is planted says the switch of all layers (`plimsoll_kv::planted`).

use plimsoll_kv::planted::Planted;
pub(crate) use plimsoll_kv::planted::is_planted;

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

impl From<Bug> for Planted {
    fn from(bug: Bug) -> Planted {
        Planted { layer: "cache", bug: bug as u8 }
    }
}
