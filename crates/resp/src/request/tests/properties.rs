//! Properties of the request parser: fragmentation, hostile bytes, a second parser as oracle.

use crate::fuzz::{self, SMALL_LIMITS, connection};
use crate::{Limits, request};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use resp_rs::{ParseError, resp2};

fn any_commands() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    // Around the length from which SMALL_LIMITS stream an argument.
    let arg = prop_oneof![4 => vec(any::<u8>(), 0..12), 1 => vec(any::<u8>(), 28..80)];
    vec(vec(arg, 1..5), 0..8)
}

/// Bytes that look like the protocol, mostly.
fn near_protocol() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => proptest::sample::select(vec![
            "*", "$", "\r\n", "\r", "\n", "-", "0", "1", "2", "3", "32", "40", "*1\r\n", "*2\r\n", "*3\r\n",
            "$1\r\nk\r\n",
            "$3\r\nGET\r\n", "$32\r\n01234567890123456789012345678901\r\n", "*0\r\n", "*-1\r\n", "PING\r\n",
            "\"", "'",
            "\\x4", " ", "*64\r\n", "*65\r\n", "$4097\r\n", "$256\r\n",
        ])
        .prop_map(|piece| piece.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..40),
    ];
    vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

/// Quote a word as a person would for an inline command, every byte escaped one way or another.
fn quoted(word: &[u8]) -> String {
    let escaped = word.iter().map(|byte| match byte {
        b'\n' => "\\n".to_owned(),
        b'"' => "\\\"".to_owned(),
        b'\\' => "\\\\".to_owned(),
        b' '..=b'~' => char::from(*byte).to_string(),
        _ => format!("\\x{byte:02X}"),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_fragmentation_gives_the_same_commands(commands in any_commands(), cuts in vec(0usize..40, 1..20)) {
        let mut stream = Vec::new();
        for command in &commands {
            request::encode(command, &mut stream);
        }
        let limits = Limits { query_buffer_bytes_max: 1024, ..SMALL_LIMITS };
        for cuts in [&cuts[..], &[1], &[usize::MAX]] {
            let outcome = connection(&stream, limits, true, cuts);
            prop_assert_eq!(&outcome.commands, &commands);
            prop_assert!(outcome.error.is_none() && outcome.ended_between_commands);
        }
    }

    #[test]
    fn quoted_inline_words_come_back(
        words in vec(vec(any::<u8>(), 0..10), 1..6),
        cuts in vec(1usize..9, 1..5),
    ) {
        let line: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let outcome = connection(format!("{}\r\n", line.join(" ")).as_bytes(), Limits::DEFAULT, true, &cuts);
        prop_assert_eq!(outcome.commands, [words]);
    }

    #[test]
    fn any_bytes_keep_the_invariants(data in vec(any::<u8>(), 0..300)) {
        fuzz::request(&data);
    }

    #[test]
    fn nearly_valid_bytes_keep_the_invariants(seed in any::<u8>(), stream in near_protocol()) {
        fuzz::request(&[&[seed][..], &stream].concat());
    }

    /// A stream of arrays of bulk strings, some bytes of it changed: where the other parser reads a whole
    /// command, so do we, and the same one; where it refuses the bytes, so do we.
    #[test]
    fn agrees_with_another_parser(
        commands in any_commands(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut stream = Vec::new();
        for command in &commands {
            request::encode(command, &mut stream);
        }
        for (index, byte) in changes.iter().filter(|_| !commands.is_empty()) {
            let at = index.index(stream.len());
            stream[at] = *byte;
        }
        let ours = connection(&stream, Limits::DEFAULT, true, &[usize::MAX]);
        let mut rest = Bytes::from(stream);
        for command in &ours.commands {
            // Inline commands, empty arrays and the like are not in the other parser's language.
            if rest.first() != Some(&b'*') || rest.starts_with(b"*0") || rest.starts_with(b"*-") {
                return Ok(());
            }
            let Ok((resp2::Frame::Array(Some(theirs)), after)) = resp2::parse_frame(rest.clone()) else {
                return Err(TestCaseError::fail(format!("only we read {command:?}")));
            };
            let bytes_of = |frame: &resp2::Frame| frame.as_bytes().map(|bytes| bytes.to_vec());
            let theirs: Vec<Vec<u8>> = theirs.iter().filter_map(bytes_of).collect();
            prop_assert_eq!(command, &theirs);
            rest = after;
        }
        if rest.first() == Some(&b'*') {
            match resp2::parse_frame(rest) {
                Err(ParseError::Incomplete) | Ok(_) => {}
                Err(_) => prop_assert!(ours.error.is_some() || !ours.ended_between_commands),
            }
        }
    }
}
