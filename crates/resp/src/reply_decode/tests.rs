//! Tests of the reply decoder: every type, limits, fragmentation, round trip with the writer, a second
//! decoder as oracle.

use super::{Reply, ReplyError, ReplyLimits};
use crate::fuzz::{self, SMALL_REPLY_LIMITS, replies};
use crate::{Decoded, ReplyDecoder, ReplyWriter, Version};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use resp_rs::{ParseError, resp3};

fn decode(stream: &[u8]) -> Result<Vec<Reply>, ReplyError> {
    let whole = replies(stream, ReplyLimits::DEFAULT, &[usize::MAX]);
    for cuts in [&[0][..], &[1], &[2, 5]] {
        assert_eq!(whole, replies(stream, ReplyLimits::DEFAULT, cuts));
    }
    whole.1.map_or(Ok(whole.0), Err)
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

#[test]
fn every_type() {
    for (stream, reply) in [
        ("+OK\r\n", Reply::Simple(b"OK".to_vec())),
        ("-ERR no\r\n", Reply::Error(b"ERR no".to_vec())),
        ("!6\r\nERR\r\nx\r\n", Reply::Error(b"ERR\r\nx".to_vec())),
        (":-7\r\n", Reply::Integer(-7)),
        (":+7\r\n", Reply::Integer(7)),
        ("$3\r\na\r\n\r\n", bulk("a\r\n")),
        ("$0\r\n\r\n", bulk("")),
        ("$-1\r\n", Reply::Null),
        ("*-1\r\n", Reply::Null),
        ("_\r\n", Reply::Null),
        (",-1.5e3\r\n", Reply::Double(-1500.0)),
        (",inf\r\n", Reply::Double(f64::INFINITY)),
        (",-inf\r\n", Reply::Double(f64::NEG_INFINITY)),
        ("#t\r\n", Reply::Boolean(true)),
        ("#f\r\n", Reply::Boolean(false)),
        ("=6\r\nmkd:# \r\n", Reply::Verbatim { format: *b"mkd", text: b"# ".to_vec() }),
        (
            "(-123456789012345678901234567890\r\n",
            Reply::BigNumber(b"-123456789012345678901234567890".to_vec()),
        ),
        ("*0\r\n", Reply::Array(vec![])),
        (
            "*2\r\n*1\r\n:1\r\n*0\r\n",
            Reply::Array(vec![Reply::Array(vec![Reply::Integer(1)]), Reply::Array(vec![])]),
        ),
        ("%1\r\n+a\r\n%0\r\n", Reply::Map(vec![(Reply::Simple(b"a".to_vec()), Reply::Map(vec![]))])),
        ("~1\r\n$1\r\na\r\n", Reply::Set(vec![bulk("a")])),
        (">1\r\n$1\r\na\r\n", Reply::Push(vec![bulk("a")])),
        ("|1\r\n+ttl\r\n:3\r\n|0\r\n*1\r\n|1\r\n:1\r\n:2\r\n:9\r\n", Reply::Array(vec![Reply::Integer(9)])),
    ] {
        assert_eq!(decode(stream.as_bytes()), Ok(vec![reply]), "{stream:?}");
    }
}

#[test]
fn malformed_replies() {
    for stream in [
        "$x\r\n",
        "$-2\r\n",
        "$\r\n",
        "$?\r\n",
        "*?\r\n",
        "*-2\r\n",
        ":\r\n",
        ":1x\r\n",
        ":99999999999999999999\r\n",
        "#x\r\n",
        "#\r\n",
        "_x\r\n",
        ",infinity\r\n",
        ",\r\n",
        ",1.2.3\r\n",
        "(12x\r\n",
        "(\r\n",
        "(+-1\r\n",
        "=3\r\ntxt\r\n",
        "=4\r\ntxt.\r\n",
        "+OK\rx",
        "-ERR\nx\r\n",
        "%-1\r\n",
        "~-1\r\n",
    ] {
        assert_eq!(decode(stream.as_bytes()), Err(ReplyError::Malformed), "{stream:?}");
    }
    assert_eq!(decode(b"$1\r\nab\n"), Err(ReplyError::ExpectedBulkEnd));
    assert_eq!(decode(b"+OK\r\nOK\r\n"), Err(ReplyError::UnknownType(b'O')));
    assert_eq!(ReplyError::UnknownType(b'\n').to_string(), r"no reply type starts with '\n'");
}

#[test]
fn limits_hold() {
    let run = |stream: &str| replies(stream.as_bytes(), SMALL_REPLY_LIMITS, &[1]).1;
    assert_eq!(run(&"*1\r\n".repeat(4)), None);
    assert_eq!(run(&"*1\r\n".repeat(5)), Some(ReplyError::TooDeep));
    assert_eq!(run(&format!("{}*0\r\n", "*1\r\n".repeat(4))), None);
    assert_eq!(run("*64\r\n"), None);
    assert_eq!(run("*65\r\n"), Some(ReplyError::TooManyElements));
    assert_eq!(run("%33\r\n"), Some(ReplyError::TooManyElements));
    assert_eq!(run("*2\r\n*32\r\n"), None);
    assert_eq!(run("*2\r\n*63\r\n"), Some(ReplyError::TooManyElements));
    assert_eq!(run("%9223372036854775807\r\n"), Some(ReplyError::TooManyElements));
    assert_eq!(run("$504\r\n"), None);
    assert_eq!(run("$505\r\n"), Some(ReplyError::TooBig));
    assert_eq!(run("$9223372036854775807\r\n"), Some(ReplyError::TooBig));
    assert_eq!(run(&"|0\r\n".repeat(128)), None);
    assert_eq!(run(&"|0\r\n".repeat(129)), Some(ReplyError::TooBig));
    assert_eq!(run(&format!("+{}", "a".repeat(63))), None);
    assert_eq!(run(&format!("+{}", "a".repeat(64))), Some(ReplyError::LineTooLong));
    // They are for one reply, not for the connection.
    assert_eq!(run(&"*2\r\n:1\r\n:2\r\n".repeat(100)), None);
}

#[test]
fn errors_stay() {
    let mut decoder = ReplyDecoder::new(ReplyLimits::DEFAULT);
    assert_eq!(decoder.decode(b"*1\r\nx"), Err(ReplyError::UnknownType(b'x')));
    assert_eq!(decoder.decode(b"+OK\r\n"), Err(ReplyError::UnknownType(b'x')));
}

#[test]
fn says_how_much_is_wanted() {
    let mut decoder = ReplyDecoder::new(ReplyLimits::DEFAULT);
    let step = decoder.decode(b"*2\r\n:1\r\n$1000000\r\nab");
    assert_eq!(step, Ok(Decoded::Incomplete { consumed: 8, wanted: 1_000_000 }));
    assert_eq!(decoder.decode(b"$1000000\r\nab"), Ok(Decoded::Incomplete { consumed: 0, wanted: 1_000_000 }));
}

/// Replies that a writer gives back exactly in RESP3.
fn any_reply() -> impl Strategy<Value = Reply> {
    let text = || vec(any::<u8>().prop_filter("a line", |byte| !matches!(byte, b'\r' | b'\n')), 0..20);
    let leaf = prop_oneof![
        text().prop_map(Reply::Simple),
        text().prop_map(Reply::Error),
        any::<i64>().prop_map(Reply::Integer),
        vec(any::<u8>(), 0..50).prop_map(Reply::Bulk),
        Just(Reply::Null),
        any::<bool>().prop_map(Reply::Boolean),
        any::<f64>().prop_filter("NaN is not itself", |value| !value.is_nan()).prop_map(Reply::Double),
        ("[a-z]{3}", vec(any::<u8>(), 0..20)).prop_map(|(format, text)| {
            let format = format.into_bytes().try_into().expect("three letters");
            Reply::Verbatim { format, text }
        }),
        "[+-]?[0-9]{1,40}".prop_map(|digits| Reply::BigNumber(digits.into_bytes())),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Reply::Array),
            vec(inner.clone(), 0..6).prop_map(Reply::Set),
            vec(inner.clone(), 0..6).prop_map(Reply::Push),
            vec((inner.clone(), inner), 0..4).prop_map(Reply::Map),
        ]
    })
}

/// What is left of a reply in RESP2.
fn in_resp2(reply: &Reply) -> Reply {
    let all = |replies: &[Reply]| Reply::Array(replies.iter().map(in_resp2).collect());
    match reply {
        Reply::Array(elements) | Reply::Set(elements) | Reply::Push(elements) => all(elements),
        Reply::Map(pairs) => {
            all(&pairs.iter().flat_map(|(key, value)| [key.clone(), value.clone()]).collect::<Vec<_>>())
        }
        Reply::Boolean(value) => Reply::Integer((*value).into()),
        Reply::Verbatim { text, .. } => Reply::Bulk(text.clone()),
        Reply::BigNumber(digits) => Reply::Bulk(digits.clone()),
        Reply::Double(value) => {
            let mut line = Vec::new();
            ReplyWriter::new(&mut line, Version::Resp3).double(*value);
            Reply::Bulk(line[1..line.len() - 2].to_vec())
        }
        other => other.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn written_replies_come_back(sent in vec(any_reply(), 0..5), cuts in vec(0usize..40, 1..10)) {
        for version in [Version::Resp2, Version::Resp3] {
            let mut stream = Vec::new();
            for reply in &sent {
                reply.write(&mut ReplyWriter::new(&mut stream, version));
            }
            let expected: Vec<Reply> = match version {
                Version::Resp2 => sent.iter().map(in_resp2).collect(),
                Version::Resp3 => sent.clone(),
            };
            for cuts in [&cuts[..], &[1], &[usize::MAX]] {
                prop_assert_eq!(replies(&stream, ReplyLimits::DEFAULT, cuts), (expected.clone(), None));
            }
        }
    }

    #[test]
    fn another_decoder_reads_what_is_written(reply in any_reply()) {
        let mut bytes = Vec::new();
        reply.write(&mut ReplyWriter::new(&mut bytes, Version::Resp3));
        let mut rest = Bytes::from(bytes);
        match resp3::parse_frame(rest.clone()) {
            Ok((_, after)) => rest = after,
            // That decoder wants texts to be UTF-8.
            Err(ParseError::Utf8Error) => return Ok(()),
            Err(error) => return Err(TestCaseError::fail(format!("{error}: {rest:?}"))),
        }
        prop_assert!(rest.is_empty(), "{rest:?} is left");
    }

    #[test]
    fn any_bytes_keep_the_invariants(data in vec(any::<u8>(), 0..200)) {
        fuzz::reply(&data);
    }

    #[test]
    fn nearly_valid_bytes_keep_the_invariants(
        seed in any::<u8>(),
        sent in vec(any_reply(), 1..4),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut data = vec![seed];
        for reply in &sent {
            reply.write(&mut ReplyWriter::new(&mut data, Version::Resp3));
        }
        for (index, byte) in changes {
            let at = index.index(data.len());
            data[at] = byte;
        }
        fuzz::reply(&data);
    }
}
