//! Looking ahead: of commands that came together, the keys that they will read are announced before the first
//! of them runs, so that the processor waits once for all that memory has of them: in the
//! cache, or else in the index.
//!
//! Place on the path: in the reader, between what was received and the parser.
//!
//! Invariants: nothing is decided here: the parser and the commands see the same bytes afterwards. What was
//! looked at is not looked at again.

use super::Connection;
use plimsoll_resp::{Limits, Parser, Step};

/// Commands looked at together.
const AHEAD_MAX: usize = 16;

/// Announces the keys of the first commands in these bytes; how many they are, and the bytes looked at.
pub(super) fn look(connection: &Connection, limits: &Limits, bytes: &[u8]) -> (usize, usize) {
    let mut parser = Parser::new(*limits);
    let mut keys: Vec<&[u8]> = Vec::with_capacity(AHEAD_MAX);
    let mut at = 0;
    for _ in 0..AHEAD_MAX {
        let Step::Command(command) = parser.parse(&bytes[at..]) else { break };
        let key = (command.args.len() == 2 && command.args[0].eq_ignore_ascii_case(b"GET"))
            .then(|| within(bytes, &command.args[1]))
            .flatten();
        at += command.consumed;
        keys.extend(key);
    }
    if !keys.is_empty() {
        connection.core.volume.announce(connection.database.get(), &keys);
    }
    (keys.len(), if at == 0 { bytes.len() } else { at })
}

/// The same bytes as part of what was received; nothing if they stand elsewhere.
fn within<'a>(bytes: &'a [u8], part: &[u8]) -> Option<&'a [u8]> {
    let from = part.as_ptr().addr().checked_sub(bytes.as_ptr().addr())?;
    bytes.get(from..from + part.len())
}
