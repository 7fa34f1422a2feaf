//! The kinds of lines of the log that clients cause, as often as they like: one a second of each.
//!
//! Place on the path: where a core cuts a client, or never lets it in.

use plimsoll_reactor::Seldom;

/// One for each kind that there is.
#[derive(Default)]
pub(crate) struct SeldomLines {
    pub(crate) handshakes: Seldom,
    pub(crate) http: Seldom,
    pub(crate) listeners: Seldom,
    pub(crate) long_values: Seldom,
    pub(crate) evictions: Seldom,
    pub(crate) stalled: Seldom,
    pub(crate) accepts: Seldom,
}
