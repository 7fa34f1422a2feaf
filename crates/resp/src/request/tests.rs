//! Tests of the request side: Redis' texts, fragmentation, large arguments, limits.

mod properties;

use crate::fuzz::{Outcome, SMALL_LIMITS, connection};
use crate::request::encode;
use crate::{Limits, Parser, ProtocolError, SHARED_BYTES_MIN, Step};
use bytes::Bytes;

fn run(stream: &[u8]) -> Outcome {
    let whole = connection(stream, Limits::DEFAULT, true, &[usize::MAX]);
    for cuts in [&[1][..], &[0], &[3, 1, 2], &[7]] {
        assert_eq!(whole, connection(stream, Limits::DEFAULT, true, cuts), "cut by {cuts:?}");
    }
    whole
}

fn commands(stream: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let outcome = run(stream);
    assert_eq!(outcome.error, None);
    assert!(outcome.ended_between_commands);
    outcome.commands
}

/// The error reply, as the client sees it.
fn error_text(stream: &[u8]) -> String {
    reply_text(run(stream).error.expect("an error"))
}

fn reply_text(error: ProtocolError) -> String {
    let mut out = Vec::new();
    error.write_reply(&mut out);
    String::from_utf8(out).expect("a text reply")
}

#[test]
fn multibulk_and_pipelining() {
    let stream =
        b"*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n*2\r\n$3\r\nGET\r\n$4\r\n\r\n\r\n\r\n";
    assert_eq!(
        commands(stream),
        [
            vec![b"PING".to_vec()],
            vec![b"SET".to_vec(), b"k".to_vec(), vec![]],
            vec![b"GET".to_vec(), b"\r\n\r\n".to_vec()]
        ]
    );
}

#[test]
fn empty_commands_are_skipped() {
    let stream = b"*0\r\n\r\n\n*-1\r\n*-9223372036854775808\r\n   \r\n*1\r\n$4\r\nPING\r\n\r\n*0\r\n";
    assert_eq!(commands(stream), [[b"PING"]]);
    let mut parser = Parser::new(Limits::DEFAULT);
    // What is skipped need not stay in the buffer.
    let step = parser.parse(b"\r\n*0\r\n*1\r\n$4");
    assert!(matches!(step, Step::Incomplete { consumed: 6, wanted: 2 }), "{step:?}");
}

#[test]
fn inline_commands() {
    assert_eq!(
        commands(b"PING\r\nset a  b\t \n"),
        [vec![b"PING".to_vec()], vec![b"set".to_vec(), b"a".to_vec(), b"b".to_vec()]]
    );
    assert_eq!(
        commands(b"set \"\\x41\\n\\r\\t\\b\\a\\q\\\"\\\\\\xZZ\" 'it\\'s \\n' \"\"\r\n"),
        [[&b"set"[..], b"A\n\r\t\x08\x07q\"\\xZZ", b"it's \\n", b""]]
    );
    // A quote may open inside a word; it ends the word when it closes.
    assert_eq!(commands(b"ab\"c d\" e\r\n"), [[&b"abc d"[..], b"e"]]);
    assert_eq!(commands(b"a\0b c\x0bd\n"), [[&b"a\0b"[..], b"c\x0bd"]]);
}

#[test]
fn unbalanced_quotes() {
    let text = "-ERR Protocol error: unbalanced quotes in request\r\n";
    for line in
        ["set \"\"\"test-key\"\"\" test-value", "a \"b", "a 'b", "a \"b\\", "a 'b'c", "a \"b\"c", "\"\\\""]
    {
        assert_eq!(error_text(format!("{line}\r\n").as_bytes()), text, "{line}");
    }
}

#[test]
fn redis_error_texts() {
    let set = "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n";
    for (stream, reason) in [
        ("*3000000000\r\n".to_owned(), "invalid multibulk length"),
        ("*1048577\r\n".to_owned(), "invalid multibulk length"),
        ("*99999999999999999999\r\n".to_owned(), "invalid multibulk length"),
        ("*\r\n".to_owned(), "invalid multibulk length"),
        ("*+1\r\n".to_owned(), "invalid multibulk length"),
        ("*01\r\n".to_owned(), "invalid multibulk length"),
        ("*-0\r\n".to_owned(), "invalid multibulk length"),
        ("*1 \r\n".to_owned(), "invalid multibulk length"),
        ("*1\rx".to_owned(), "invalid multibulk length"),
        (format!("{set}fooz\r\n"), "expected '$', got 'f'"),
        ("*1\r\nfoo\r\n".to_owned(), "expected '$', got 'f'"),
        ("*1\r\n\r\n".to_owned(), "expected '$', got ' '"),
        (format!("{set}$-10\r\n"), "invalid bulk length"),
        (format!("{set}$-1\r\n"), "invalid bulk length"),
        (format!("{set}$2000000000\r\n"), "invalid bulk length"),
        (format!("{set}$536870913\r\n"), "invalid bulk length"),
        (format!("{set}$blabla\r\n"), "invalid bulk length"),
        (format!("{set}$\r\n"), "invalid bulk length"),
        (format!("{set}$1\rx"), "invalid bulk length"),
        (format!("{set}$1\r\nab\n"), "expected CRLF after bulk data"),
        (format!("*{}", "1".repeat(65536)), "too big mbulk count string"),
        (format!("*1\r\n${}", "1".repeat(65536)), "too big bulk count string"),
        ("A".repeat(65537), "too big inline request"),
        (format!("{}\r\n", "A".repeat(65536)), "too big inline request"),
    ] {
        let stream_start: String = stream.chars().take(60).collect();
        let expected = format!("-ERR Protocol error: {reason}\r\n");
        let cuts: &[usize] = if stream.len() < 1000 { &[1] } else { &[4093] };
        for cuts in [&[usize::MAX][..], &[0], cuts] {
            let outcome = connection(stream.as_bytes(), Limits::DEFAULT, true, cuts);
            assert_eq!(outcome.error.map(reply_text).as_deref(), Some(&expected[..]), "{stream_start}");
        }
    }
}

#[test]
fn display_is_for_logs() {
    let error = ProtocolError::ExpectedDollar { got: b'\n' };
    assert_eq!(error.to_string(), r"Protocol error: expected '$', got '\n'");
    assert_eq!(ProtocolError::UnbalancedQuotes.to_string(), "Protocol error: unbalanced quotes in request");
}

#[test]
fn limits_are_inclusive() {
    let longest_inline = format!("{}\n", "A".repeat(65536));
    assert_eq!(commands(longest_inline.as_bytes())[0][0].len(), 65536);
    let mut many = b"*1048576\r\n".to_vec();
    many.extend(b"$0\r\n\r\n".repeat(1_048_576));
    let outcome = connection(&many, Limits::DEFAULT, true, &[usize::MAX]);
    assert_eq!(outcome.commands[0].len(), 1_048_576);
    // What it grew is given back with the next command.
    let mut parser = Parser::new(Limits::DEFAULT);
    assert!(matches!(parser.parse(&many), Step::Command(_)));
    assert!((8_388_608..=16_777_216).contains(&parser.memory_bytes()));
    assert!(matches!(parser.parse(b"PING\n"), Step::Command(_)));
    assert!(parser.memory_bytes() <= 16 * 1024);
}

#[test]
fn a_claim_allocates_nothing() {
    let mut parser = Parser::new(Limits::DEFAULT);
    let step = parser.parse(b"*1048576\r\n");
    assert!(matches!(step, Step::Incomplete { consumed: 0, wanted: 2 }));
    assert_eq!(parser.memory_bytes(), 0);
    let mut parser = Parser::new(Limits::DEFAULT);
    let step = parser.parse(b"*2\r\n$1048575\r\nab");
    assert!(matches!(step, Step::Incomplete { consumed: 0, wanted: 1_048_575 }));
}

#[test]
fn nothing_is_read_twice() {
    let mut parser = Parser::new(Limits::DEFAULT);
    let mut buffer = b"*3\r\n$3\r\nSET\r\n$3\r\nke".to_vec();
    assert!(matches!(parser.parse(&buffer), Step::Incomplete { consumed: 0, wanted: 3 }));
    // Break the headers already read, against the rules: they must not be looked at again.
    for at in [0, 1, 2, 3, 4, 5, 6, 7, 13, 14, 15, 16] {
        buffer[at] = 0xff;
    }
    buffer.extend_from_slice(b"y\r\n$1");
    assert!(matches!(parser.parse(&buffer), Step::Incomplete { consumed: 0, wanted: 2 }));
    assert_eq!(parser.searched, 2);
    buffer.extend_from_slice(b"\r\nv\r\n");
    let Step::Command(command) = parser.parse(&buffer) else { panic!("the command is whole") };
    assert_eq!(command.args.iter().collect::<Vec<_>>(), [&b"SET"[..], b"key", b"v"]);
    assert_eq!(command.consumed, buffer.len());
    // A line without an end: only what is new is searched.
    let mut parser = Parser::new(Limits::DEFAULT);
    for len in 1..1000 {
        assert!(matches!(parser.parse(&vec![b'a'; len]), Step::Incomplete { .. }));
        assert_eq!(parser.searched, len);
    }
    let mut parser = Parser::new(Limits::DEFAULT);
    assert!(parser.is_between_commands());
    assert!(matches!(parser.parse(b"*1"), Step::Incomplete { .. }));
    assert_eq!(parser.searched, 2);
    assert!(!parser.is_between_commands());
}

#[test]
fn arguments_are_found_and_shown() {
    let mut parser = Parser::new(Limits::DEFAULT);
    let Step::Command(command) = parser.parse(b"\r\n*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n") else {
        panic!("the command is whole")
    };
    assert_eq!((command.args.get(2), command.args.len()), (None, 2));
    assert_eq!(format!("{:?}", command.args), r#"["GET", "key"]"#);
    let Step::Command(command) = parser.parse(b"GET key\n") else { panic!("the command is whole") };
    assert_eq!(&command.args[1], b"key");
}

/// A long argument holds on to the buffer; a short one, and whatever came inline or in a buffer that nobody
/// may hold on to, is a copy.
#[test]
fn arguments_that_are_kept() {
    let mut parser = Parser::new(Limits::DEFAULT);
    for (count, is_shared) in
        [(0, false), (SHARED_BYTES_MIN - 1, false), (SHARED_BYTES_MIN, true), (99_999, true)]
    {
        let value = vec![b'v'; count];
        let mut buffer = b"PING\r\n".to_vec();
        encode(&[b"SET".as_slice(), b"key", &value], &mut buffer);
        let buffer = Bytes::from(buffer);
        let start = b"PING\r\n".len();
        for may_hold in [false, true] {
            let Step::Command(command) = parser.parse(&buffer[start..]) else {
                panic!("the command is whole")
            };
            let args = if may_hold { command.args.within(&buffer) } else { command.args };
            let kept = args.keep(2);
            assert_eq!(kept, value);
            assert_eq!(buffer.as_ptr_range().contains(&kept.as_ptr()), is_shared && may_hold, "{count}");
            assert_eq!(args.keep(1), b"key".as_slice());
        }
    }
    let inline = Bytes::from([b"SET key ", &vec![b'v'; 10_000][..], b"\n"].concat());
    let Step::Command(command) = parser.parse(&inline) else { panic!("the command is whole") };
    assert_eq!(command.args.within(&inline).keep(2), vec![b'v'; 10_000]);
}

#[test]
fn large_argument_is_streamed() {
    let len = Limits::DEFAULT.large_bulk_bytes_min;
    let mut parser = Parser::new(Limits::DEFAULT);
    let head = format!("*5\r\n$3\r\nSET\r\n$1\r\nk\r\n${len}\r\nvvv");
    let Step::Large(large) = parser.parse(head.as_bytes()) else { panic!("the header is whole") };
    assert_eq!((large.index, large.len, large.args_total), (2, len, 5));
    assert_eq!(large.args.iter().collect::<Vec<_>>(), [&b"SET"[..], b"k"]);
    assert_eq!(large.consumed, head.len() - 3);
    assert!(!parser.is_between_commands());
    parser.resume_after_large();
    assert!(matches!(parser.parse(b"\r"), Step::Incomplete { consumed: 0, wanted: 1 }));
    assert!(matches!(parser.parse(b"\r\n$2\r\nE"), Step::Incomplete { consumed: 0, wanted: 3 }));
    let tail = b"\r\n$2\r\nEX\r\n$2\r\n10\r\nPING\r\n";
    let Step::Tail(command) = parser.parse(tail) else { panic!("the command is whole") };
    assert_eq!(command.args.iter().collect::<Vec<_>>(), [b"EX", b"10"]);
    let consumed = command.consumed;
    let Step::Command(ping) = parser.parse(&tail[consumed..]) else { panic!("one more") };
    assert_eq!(&ping.args[0], b"PING");
    assert!(parser.is_between_commands());
}

#[test]
fn several_large_arguments() {
    let (a, b) = (vec![b'a'; 32], vec![b'b'; 4096]);
    let command = [&b"MSET"[..], b"k", &a, &b, b"j", &a, b"x"];
    let mut stream = Vec::new();
    super::encode(&command, &mut stream);
    super::encode(&[&a], &mut stream);
    for cuts in [&[usize::MAX][..], &[0], &[1], &[5]] {
        let outcome = connection(&stream, SMALL_LIMITS, true, cuts);
        assert_eq!(outcome.commands, [command.map(<[u8]>::to_vec).to_vec(), vec![a.clone()]]);
        assert!(outcome.ended_between_commands);
    }
    let end = b"*1\r\n$32\r\n01234567890123456789012345678901xy";
    assert_eq!(connection(end, SMALL_LIMITS, true, &[1]).error, Some(ProtocolError::ExpectedBulkEnd));
}

#[test]
fn query_buffer_is_bounded() {
    // 256 bytes for the command: said at the header that does not fit, before its bytes come.
    let mut stream = b"*20\r\n".to_vec();
    stream.extend(b"$20\r\n01234567890123456789\r\n".repeat(9));
    stream.extend(b"$11\r\n");
    for cuts in [&[usize::MAX][..], &[0], &[1]] {
        let outcome = connection(&stream, SMALL_LIMITS, true, cuts);
        assert_eq!(outcome.error, Some(ProtocolError::QueryBufferFull));
    }
    // A line that does not end counts too, and so does what a large argument let out of the buffer.
    let mut stream = b"*64\r\n".to_vec();
    for _ in 0..30 {
        stream.extend(b"$1\r\nk\r\n$32\r\n01234567890123456789012345678901\r\n");
    }
    for cuts in [&[usize::MAX][..], &[0], &[1]] {
        let outcome = connection(&stream, SMALL_LIMITS, true, cuts);
        assert_eq!(outcome.error, Some(ProtocolError::QueryBufferFull));
    }
}

#[test]
fn unauthenticated_clients_get_little() {
    let run = |stream: &[u8], authenticated| connection(stream, Limits::DEFAULT, authenticated, &[1]).error;
    assert_eq!(run(b"*11\r\n", true), None);
    assert_eq!(run(b"*10\r\n", false), None);
    let error = run(b"*11\r\n", false).expect("too many");
    assert_eq!(reply_text(error), "-ERR Protocol error: unauthenticated multibulk length\r\n");
    assert_eq!(run(b"*1\r\n$16384\r\n", false), None);
    let error = run(b"*1\r\n$16385\r\n", false).expect("too long");
    assert_eq!(reply_text(error), "-ERR Protocol error: unauthenticated bulk length\r\n");
}

#[test]
#[should_panic(expected = "before resume_after_large")]
fn parse_while_streaming_is_the_callers_bug() {
    let mut parser = Parser::new(SMALL_LIMITS);
    assert!(matches!(parser.parse(b"*1\r\n$32\r\n"), Step::Large(_)));
    parser.parse(b"");
}

#[test]
#[should_panic(expected = "inconsistent limits")]
fn inconsistent_limits_are_the_callers_bug() {
    let _ = Parser::new(Limits { large_bulk_bytes_min: usize::MAX, ..Limits::DEFAULT });
}

#[test]
fn query_buffer_bound_is_exact() {
    // 248 bytes of 256, then what follows.
    let run = |rest: &str| {
        let stream = format!("*11\r\n{}{rest}", "$20\r\n01234567890123456789\r\n".repeat(9));
        let whole = connection(stream.as_bytes(), SMALL_LIMITS, true, &[usize::MAX]);
        for cuts in [&[0][..], &[1], &[247, 1]] {
            assert_eq!(whole, connection(stream.as_bytes(), SMALL_LIMITS, true, cuts), "{rest:?}");
        }
        whole.error
    };
    assert_eq!(run("$2\r\nab\r\n"), None);
    assert_eq!(run("$3\r\n"), Some(ProtocolError::QueryBufferFull));
    // A header line counts, whole or not, wrong or not, a large argument's too.
    assert_eq!(run("$1234567"), None);
    assert_eq!(run("$12345678"), Some(ProtocolError::QueryBufferFull));
    assert_eq!(run("$bad\r\n"), Some(ProtocolError::InvalidBulkLength));
    assert_eq!(run("$abcdefgh\r\n"), Some(ProtocolError::QueryBufferFull));
    assert_eq!(run("$32\r\n"), None);
    assert_eq!(run("$0\r\n\r\n$32\r\n"), Some(ProtocolError::QueryBufferFull));
}
