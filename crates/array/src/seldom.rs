//! The kinds of lines of the log that whoever asks for a key causes, as often as it is asked for: one a
//! second of each.
//!
//! Place on the path: reads of what is damaged, or lost.

use plimsoll_reactor::Seldom;

/// One for each kind that there is.
#[derive(Default)]
pub(crate) struct SeldomLines {
    pub(crate) not_whole: Seldom,
    pub(crate) no_value: Seldom,
    pub(crate) read_elsewhere: Seldom,
}
