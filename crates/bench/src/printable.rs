//! A server's words on a terminal: what would steer it is shown, and steers nothing.
//!
//! Role: every text of a server passes here before it is told. Invariant: nothing that is printed moves the
//! cursor, changes colours or turns the direction of writing.

use std::fmt::Write;

/// True for what a terminal obeys instead of showing it.
fn steers(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text, with what steers terminals written as its escape.
pub(crate) fn printable(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in String::from_utf8_lossy(text).chars() {
        if steers(letter) {
            write!(shown, "{}", letter.escape_default()).expect("a string takes everything");
        } else {
            shown.push(letter);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn what_steers_a_terminal_is_masked_and_the_rest_stays() {
        assert_eq!(printable(b"ERR \x1b[2J\x07\r\x7f gone"), r"ERR \u{1b}[2J\u{7}\r\u{7f} gone");
        assert_eq!(printable("ERR \u{9b}31m \u{202e}txet".as_bytes()), r"ERR \u{9b}31m \u{202e}txet");
        assert_eq!(printable("ERR Schlüssel \\ \"x\" fehlt".as_bytes()), "ERR Schlüssel \\ \"x\" fehlt");
        assert_eq!(printable(b"ERR \xff"), "ERR \u{fffd}");
    }
}
