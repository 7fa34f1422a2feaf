//! MONITOR: the lines that tell of every command, on their way to those who watch.
//!
//! Role: a core that begins a command writes its line here, and a task hands what has come together to
//! all cores; each gives it to its own monitors. Place on the path: beside it, and only while somebody
//! watches.
//!
//! Invariants: with no monitor a command costs one relaxed load; what waits here and at each monitor is
//! bounded: when a core cannot get rid of its lines the monitors are cut, and none is left out silently.
//!
//! Never: a password.

use crate::limits::{LISTENER_BYTES_MAX, MONITOR_LINE_BYTES_MAX};
use crate::secrets;
use std::cell::{Cell, RefCell};
use std::fmt::Write;

/// The lines of one core that are not handed on yet.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    waiting: RefCell<Vec<u8>>,
    /// A task hands them on.
    pub(crate) is_busy: Cell<bool>,
    /// Lines were lost: there was no room.
    overflowed: Cell<bool>,
}

/// Appends a word in quotes, as Redis writes it.
fn put_quoted(line: &mut String, word: &[u8]) {
    line.push('"');
    for byte in word {
        match byte {
            b'\\' | b'"' => {
                line.push('\\');
                line.push(*byte as char);
            }
            b'\n' => line.push_str("\\n"),
            b'\r' => line.push_str("\\r"),
            b'\t' => line.push_str("\\t"),
            0x07 => line.push_str("\\a"),
            0x08 => line.push_str("\\b"),
            b' '..=b'~' => line.push(*byte as char),
            // Writing to a string does not fail.
            _ => {
                let _ = write!(line, "\\x{byte:02x}");
            }
        }
    }
    line.push('"');
}

/// The line of a command, without its end; what is too long for it is left out, and said to be.
pub(crate) fn line<'a>(
    wall_ms: u64,
    database: u32,
    peer: &str,
    args: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
) -> String {
    let mut line = format!("{}.{:03}000 [{database} {peer}]", wall_ms / 1000, wall_ms % 1000);
    let count = args.len();
    for (index, word) in args.clone().enumerate() {
        let room = MONITOR_LINE_BYTES_MAX.saturating_sub(line.len());
        if room == 0 {
            let _ = write!(line, " ... ({} more arguments)", count - index);
            break;
        }
        line.push(' ');
        let shown = if secrets::is_secret(args.clone(), index) { secrets::SHOWN } else { word };
        let kept = shown.len().min(room);
        put_quoted(&mut line, &shown[..kept]);
        if kept < shown.len() {
            let _ = write!(line, "... ({} more bytes)", shown.len() - kept);
        }
    }
    line
}

impl Lines {
    /// Adds a line, if there is room.
    pub(crate) fn push(&self, line: &str) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() + line.len() > LISTENER_BYTES_MAX {
            self.overflowed.set(true);
            return;
        }
        waiting.extend_from_slice(line.as_bytes());
        waiting.push(b'\n');
    }

    /// Takes what waits, nothing if nothing does; an error if lines were lost.
    pub(crate) fn take(&self) -> Result<Vec<u8>, Lost> {
        let lines = std::mem::take(&mut *self.waiting.borrow_mut());
        if self.overflowed.take() { Err(Lost) } else { Ok(lines) }
    }
}

/// Lines were lost.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lost;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&[u8]]) -> String {
        line(1_795_294_034_238, 3, "127.0.0.1:5", words.iter().copied())
    }

    #[test]
    fn a_line_is_that_of_redis() {
        let expected = r#"1795294034.238000 [3 127.0.0.1:5] "SET" "a b\"c\\n" "x\x01\xff\n""#;
        assert_eq!(of(&[b"SET", b"a b\"c\\n", b"x\x01\xff\n"]), expected);
        assert!(of(&[b"AUTH", b"pw"]).ends_with(r#" "AUTH" "(redacted)""#));
    }

    #[test]
    fn a_line_is_bounded_and_says_what_it_leaves_out() {
        let long = vec![b'x'; 2 * MONITOR_LINE_BYTES_MAX];
        let text = of(&[b"MGET", &long, b"b", b"c"]);
        assert!(text.len() < MONITOR_LINE_BYTES_MAX + 200, "{}", text.len());
        assert!(text.contains("more bytes) ... (2 more arguments)"), "{}", &text[text.len() - 80..]);
    }

    #[test]
    fn lines_that_do_not_fit_are_told_to_be_lost() {
        let lines = Lines::default();
        lines.push("a");
        assert_eq!(lines.take(), Ok(b"a\n".to_vec()));
        let long = "x".repeat(LISTENER_BYTES_MAX / 2);
        for _ in 0..3 {
            lines.push(&long);
        }
        assert_eq!(lines.take(), Err(Lost));
        assert_eq!(lines.take(), Ok(Vec::new()));
    }
}
