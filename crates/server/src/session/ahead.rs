//! Looking ahead: the keys that commands will read are announced before the first of them runs. Of those that
//! came together the processor waits once for all that memory has of them, in the cache or else in the
//! index; for one that came alone others run meanwhile, if they have something to do.
//!
//! Place on the path: in the reader, between what was received and the parser.
//!
//! Invariants: nothing is decided here: the parser and the commands see the same bytes afterwards. What was
//! looked at is not looked at again: a command that comes in many receives costs what it costs to parse.

use super::Connection;
use plimsoll_resp::request::{Pair, pair};
use plimsoll_resp::{Limits, Parser, Step};
use std::ops::Range;

/// Commands looked at together.
const AHEAD_MAX: usize = 16;

/// Whether to look at what stands at `start` of what was received, if somebody looked as far as `looked`.
/// Where a receive begins, only if a command `begins` there, and others wait: one that came alone, while
/// nobody else has anything to do, is parsed at once.
pub(super) fn is_due(start: usize, looked: usize, begins: bool, others_wait: bool) -> bool {
    start >= looked && (start > 0 || (begins && others_wait))
}

/// What was seen.
pub(super) struct Seen {
    /// Bytes looked at.
    pub(super) bytes: usize,
    /// Keys that were announced.
    pub(super) keys: usize,
    /// Where the key stands that came alone, if it should be announced once more.
    pub(super) lone: Option<Range<usize>>,
}

/// Announces the keys of the first commands in these bytes.
pub(super) fn look(connection: &Connection, limits: &Limits, bytes: &[u8]) -> Seen {
    // Where all are short GETs none is needed.
    let mut parser = None;
    let mut keys = [&[][..]; AHEAD_MAX];
    let (mut at, mut count, mut lone) = (0, 0, 0..0);
    for _ in 0..AHEAD_MAX {
        let key = if let Some(Pair { name, argument, bytes: len }) = pair(&bytes[at..]) {
            let is_get = bytes[at..][name].eq_ignore_ascii_case(b"GET");
            let key = at + argument.start..at + argument.end;
            at += len;
            is_get.then_some(key)
        } else {
            let parser = parser.get_or_insert_with(|| Parser::new(*limits));
            let Step::Command(command) = parser.parse(&bytes[at..]) else { break };
            at += command.consumed;
            let is_get = command.args.len() == 2 && command.args[0].eq_ignore_ascii_case(b"GET");
            is_get.then(|| within(bytes, &command.args[1])).flatten()
        };
        if let Some(key) = key {
            keys[count] = &bytes[key.clone()];
            count += 1;
            lone = key;
        }
    }
    let leads_on = count > 0 && connection.core.volume.announce(connection.database.get(), &keys[..count], 0);
    Seen {
        bytes: if at == 0 { bytes.len() } else { at },
        keys: count,
        lone: (leads_on && count == 1).then_some(lone),
    }
}

/// Where the same bytes stand in what was received; nothing if they stand elsewhere.
fn within(bytes: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let from = part.as_ptr().addr().checked_sub(bytes.as_ptr().addr())?;
    (from + part.len() <= bytes.len()).then_some(from..from + part.len())
}

#[cfg(test)]
mod tests {
    use super::is_due;

    #[test]
    fn a_command_in_many_receives_is_looked_at_once() {
        assert!(is_due(0, 0, true, true), "it begins");
        assert!(!is_due(0, 1000, true, true), "it was looked at");
        assert!(!is_due(0, 0, false, true), "more of it was received");
    }

    #[test]
    fn one_that_came_alone_is_looked_at_while_others_wait() {
        assert!(!is_due(0, 0, true, false));
        assert!(is_due(40, 0, true, false), "of several all but the first");
        assert!(!is_due(40, 80, true, true) && is_due(80, 80, true, true), "those not looked at yet");
    }
}
