//! A look at a command of two short words, without a parser.
//!
//! Role: lets who looks ahead see the key of a GET for a tenth of what parsing costs. Place: beside the
//! parser, which reads the same bytes afterwards and alone decides.
//!
//! Invariant: what is seen is what a parser between two commands finds there.

use crate::header;
use std::ops::Range;

/// A command of two words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Where its name stands.
    pub name: Range<usize>,
    /// Where the other word stands.
    pub argument: Range<usize>,
    /// Bytes of the command.
    pub bytes: usize,
}

/// Words up to this long are looked at: no limit of a parser is below.
const WORD_BYTES_MAX: usize = 1024;

/// The command of two short words that stands whole at the front of `bytes`. `None` says nothing.
///
/// ```
/// let seen = plimsoll_resp::request::pair(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1").expect("it is whole");
/// assert_eq!((seen.name, seen.argument, seen.bytes), (8..11, 17..18, 20));
/// ```
#[inline]
#[must_use]
pub fn pair(bytes: &[u8]) -> Option<Pair> {
    if !bytes.starts_with(b"*2\r\n") {
        return None;
    }
    let name = word(bytes, 4)?;
    let argument = word(bytes, name.end + 2)?;
    let bytes = argument.end + 2;
    Some(Pair { name, argument, bytes })
}

/// Where the word stands whose header is at `at`, if it is whole and short.
#[inline]
fn word(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let header = bytes.get(at..)?.strip_prefix(b"$")?;
    let (len, read) = header::short_length(header)?;
    let (from, end) = (at + 1 + read, at + 1 + read + len);
    let is_whole = len <= WORD_BYTES_MAX && bytes.get(end..end + 2) == Some(b"\r\n");
    is_whole.then_some(from..end)
}

#[cfg(test)]
mod tests {
    use super::{Pair, pair};
    use crate::{Limits, Parser, Step};
    use proptest::prelude::*;

    fn parsed(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
        match Parser::new(Limits::DEFAULT).parse(bytes) {
            Step::Command(command) => {
                Some((command.args.iter().map(<[u8]>::to_vec).collect(), command.consumed))
            }
            _ => None,
        }
    }

    proptest! {
        #[test]
        fn what_is_seen_is_what_is_parsed(
            words in prop::collection::vec("[a-z\r\n$*0-9]{0,12}", 1..4),
            cut in any::<prop::sample::Index>(),
            change in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
            for word in &words {
                bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
            }
            let is_whole = change.is_none() && cut.index(4) == 0;
            if let Some((at, byte)) = change {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if !is_whole {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            match pair(&bytes) {
                Some(Pair { name, argument, bytes: count }) => {
                    let seen = vec![bytes[name].to_vec(), bytes[argument].to_vec()];
                    prop_assert_eq!(parsed(&bytes), Some((seen, count)));
                }
                None => prop_assert!(!is_whole || words.len() != 2),
            }
        }
    }
}
