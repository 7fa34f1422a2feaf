//! Inline commands: one line, words separated by blanks, with Redis' quoting.
//!
//! Role: split a line a person typed (`SET "a key" 'it''s'`). Place: called by the parser for what does not
//! start with `*`; not the hot path. Invariants: the words together are never longer than the line. Never:
//! look past the line. Unlike Redis, a NUL is a byte like others (there it ends the C string).

use super::Span;
use crate::ProtocolError;

/// Split `line` into words: their bytes go to `scratch`, their places in it to `spans`.
pub(super) fn split(line: &[u8], scratch: &mut Vec<u8>, spans: &mut Vec<Span>) -> Result<(), ProtocolError> {
    assert!(scratch.is_empty() && spans.is_empty());
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|&byte| is_blank(byte)) {
            at += 1;
        }
        if at == line.len() {
            break;
        }
        let start = scratch.len();
        at = word(line, at, scratch)?;
        spans.push(Span::new(start, scratch.len()));
    }
    assert!(scratch.len() <= line.len());
    Ok(())
}

/// Read one word from `at`; returns where the next may start.
fn word(line: &[u8], mut at: usize, scratch: &mut Vec<u8>) -> Result<usize, ProtocolError> {
    while let Some(&byte) = line.get(at) {
        match byte {
            // Narrower than `is_blank`, as in Redis: a vertical tab or a form feed inside a word belongs to
            // it.
            b' ' | b'\n' | b'\r' | b'\t' => return Ok(at),
            b'"' => return double_quoted(line, at + 1, scratch),
            b'\'' => return single_quoted(line, at + 1, scratch),
            _ => scratch.push(byte),
        }
        at += 1;
    }
    Ok(at)
}

/// After a `"`: up to the closing one, which ends the word.
fn double_quoted(line: &[u8], mut at: usize, scratch: &mut Vec<u8>) -> Result<usize, ProtocolError> {
    loop {
        match line[at..] {
            [b'\\', b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                scratch.push(hex_digit(high) << 4 | hex_digit(low));
                at += 4;
            }
            [b'\\', escaped, ..] => {
                scratch.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => other,
                });
                at += 2;
            }
            [b'"', ..] => return after_quote(line, at + 1),
            [byte, ..] => {
                scratch.push(byte);
                at += 1;
            }
            [] => return Err(ProtocolError::UnbalancedQuotes),
        }
    }
}

/// After a `'`: up to the closing one, which ends the word. Only `\'` is an escape.
fn single_quoted(line: &[u8], mut at: usize, scratch: &mut Vec<u8>) -> Result<usize, ProtocolError> {
    loop {
        match line[at..] {
            [b'\\', b'\'', ..] => {
                scratch.push(b'\'');
                at += 2;
            }
            [b'\'', ..] => return after_quote(line, at + 1),
            [byte, ..] => {
                scratch.push(byte);
                at += 1;
            }
            [] => return Err(ProtocolError::UnbalancedQuotes),
        }
    }
}

/// A closing quote must be followed by a blank or by nothing.
fn after_quote(line: &[u8], at: usize) -> Result<usize, ProtocolError> {
    match line.get(at) {
        Some(&byte) if !is_blank(byte) => Err(ProtocolError::UnbalancedQuotes),
        _ => Ok(at),
    }
}

/// C's `isspace`.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => unreachable!("the caller checked that it is a hexadecimal digit"),
    }
}
