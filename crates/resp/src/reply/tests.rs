//! Tests of the reply writers: every shape in both versions, byte for byte.

use super::{ReplyWriter, Version};

fn written(version: Version, write: impl Fn(&mut ReplyWriter<'_>)) -> String {
    let mut out = b"before".to_vec();
    write(&mut ReplyWriter::new(&mut out, version));
    let text = String::from_utf8(out).expect("tests write text");
    text.strip_prefix("before").expect("a writer only appends").to_owned()
}

#[track_caller]
fn check(write: impl Fn(&mut ReplyWriter<'_>), resp2: &str, resp3: &str) {
    assert_eq!(written(Version::Resp2, &write), resp2);
    assert_eq!(written(Version::Resp3, &write), resp3);
}

#[test]
fn the_same_in_both_versions() {
    check(|reply| reply.ok(), "+OK\r\n", "+OK\r\n");
    check(|reply| reply.simple("PONG"), "+PONG\r\n", "+PONG\r\n");
    check(|reply| reply.error("ERR no"), "-ERR no\r\n", "-ERR no\r\n");
    check(|reply| reply.integer(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n");
    check(|reply| reply.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n");
    check(|reply| reply.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n");
    check(|reply| reply.array_header(12), "*12\r\n", "*12\r\n");
    let streamed = |reply: &mut ReplyWriter<'_>| {
        reply.bulk_header(1_048_576);
        reply.bulk_end();
    };
    check(streamed, "$1048576\r\n\r\n", "$1048576\r\n\r\n");
}

#[test]
fn a_long_value_is_whole_in_one_piece_or_several() {
    for len in [1, 1023, 1024, 1025, 16_384, 100_001] {
        let value: String = (0..len).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
        let expected = format!("${len}\r\n{value}\r\n");
        check(|reply| reply.bulk(value.as_bytes()), &expected, &expected);
        let streamed = |reply: &mut ReplyWriter<'_>| {
            reply.bulk_header(len);
            value.as_bytes().chunks(len.div_ceil(3)).for_each(|piece| reply.bulk_bytes(piece));
            reply.bulk_end();
        };
        check(streamed, &expected, &expected);
    }
}

#[test]
fn shapes_that_differ() {
    check(|reply| reply.null(), "$-1\r\n", "_\r\n");
    check(|reply| reply.null_array(), "*-1\r\n", "_\r\n");
    check(|reply| reply.map_header(3), "*6\r\n", "%3\r\n");
    check(|reply| reply.set_header(3), "*3\r\n", "~3\r\n");
    check(|reply| reply.push_header(3), "*3\r\n", ">3\r\n");
    check(|reply| reply.boolean(true), ":1\r\n", "#t\r\n");
    check(|reply| reply.boolean(false), ":0\r\n", "#f\r\n");
    check(|reply| reply.verbatim(*b"txt", b"hi"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n");
    check(|reply| reply.big_number("-123"), "$4\r\n-123\r\n", "(-123\r\n");
}

#[test]
fn doubles() {
    for (value, text) in [
        (0.0, "0"),
        (-0.0, "-0"),
        (3.0, "3"),
        (0.1, "0.1"),
        (-2.5, "-2.5"),
        (1e16, "10000000000000000"),
        (1e17, "1e+17"),
        (-1.5e300, "-1.5e+300"),
        (0.00001, "0.00001"),
        (1e-7, "1e-7"),
        (f64::MAX, "1.7976931348623157e+308"),
        (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
        (-1.234_567_890_123_456_7e-5, "-0.000012345678901234568"),
        (5e-324, "5e-324"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (f64::NAN, "nan"),
    ] {
        check(
            |reply| reply.double(value),
            &format!("${}\r\n{text}\r\n", text.len()),
            &format!(",{text}\r\n"),
        );
    }
}

#[test]
fn a_line_break_cannot_forge_a_reply() {
    let forged = "ERR unknown command 'a\r\n+OK'";
    check(
        |reply| reply.error(forged),
        "-ERR unknown command 'a  +OK'\r\n",
        "-ERR unknown command 'a  +OK'\r\n",
    );
    check(|reply| reply.simple("a\nb"), "+a b\r\n", "+a b\r\n");
    check(|reply| reply.big_number("1\r\n2"), "$4\r\n1\r\n2\r\n", "(1  2\r\n");
    let formatted = |reply: &mut ReplyWriter<'_>| {
        reply.error_fmt(format_args!("ERR unknown command '{}', with args: {}", "a\r\nb", 7));
    };
    let expected = "-ERR unknown command 'a  b', with args: 7\r\n";
    check(formatted, expected, expected);
    // What was in the buffer before is not touched.
    let mut out = b"+A\r\n".to_vec();
    ReplyWriter::new(&mut out, Version::Resp2).error("ERR\n");
    assert_eq!(out, b"+A\r\n-ERR \r\n");
}

#[test]
fn version_is_ordered_and_defaults_to_2() {
    assert!(Version::default() == Version::Resp2 && Version::Resp2 < Version::Resp3);
    assert_eq!(ReplyWriter::new(&mut Vec::new(), Version::Resp3).version(), Version::Resp3);
}
