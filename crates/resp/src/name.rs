//! Command names, matched without regard to case and without allocation.
//!
//! Role: fold the first argument to upper case on the stack, so that a `match` on byte strings finds the
//! command. Place: between [`crate::Parser`] and the command table. Invariants: a name that does not fit is
//! no command (`None`), never a truncated one. Never: allocate.

#[cfg(test)]
mod tests;

/// A command or option name in upper case, at most [`CommandName::BYTES_MAX`] bytes.
///
/// ```
/// use plimsoll_resp::CommandName;
/// let name = CommandName::fold(b"getEx").expect("short");
/// assert!(matches!(name.as_bytes(), b"GETEX"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandName {
    bytes: [u8; Self::BYTES_MAX],
    len: u8,
}

impl CommandName {
    /// The longest name; the longest of Redis' own is `SUNSUBSCRIBE`, of its options `MAINT_NOTIFICATIONS`.
    pub const BYTES_MAX: usize = 31;

    /// Upper-case `name` (ASCII letters only). `None` when it is longer than any known name.
    #[inline]
    #[must_use]
    pub fn fold(name: &[u8]) -> Option<Self> {
        let len = u8::try_from(name.len()).ok().filter(|&len| usize::from(len) <= Self::BYTES_MAX)?;
        let mut bytes = [0; Self::BYTES_MAX];
        for (upper, byte) in bytes.iter_mut().zip(name) {
            *upper = byte.to_ascii_uppercase();
        }
        Some(Self { bytes, len })
    }

    /// The folded name.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
