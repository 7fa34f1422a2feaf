//! Bodies of the fuzz targets, and the model connection they and the property tests drive.
//!
//! Role: say in code what must hold for any bytes at all. Place: tests and `fuzz/`; nothing in the server
//! calls this. Invariants checked: no panic; the same commands and the same error however the stream is
//! cut; the buffer never above the limits; what was parsed, encoded and parsed again is the same. Never:
//! draw randomness of its own; cuts come from the data.

use crate::{
    Decoded, Limits, Parser, ProtocolError, ReplyDecoder, ReplyError, ReplyLimits, ReplyWriter, Step, Version,
};
use crate::{Reply, request as requests};

/// Small limits, so that short inputs reach every one of them.
pub const SMALL_LIMITS: Limits = Limits {
    args_max: 64,
    bulk_bytes_max: 4096,
    inline_bytes_max: 200,
    header_bytes_max: 40,
    large_bulk_bytes_min: 32,
    query_buffer_bytes_max: 256,
    unauthenticated_args_max: 3,
    unauthenticated_bulk_bytes_max: 16,
};

/// Small limits for replies.
pub const SMALL_REPLY_LIMITS: ReplyLimits =
    ReplyLimits { depth_max: 4, elements_max: 64, reply_bytes_max: 512, line_bytes_max: 64 };

/// What a stream of requests came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The whole commands, large arguments put back in their places.
    pub commands: Vec<Vec<Vec<u8>>>,
    /// The error that ended it, if one did.
    pub error: Option<ProtocolError>,
    /// Whether it ended between two commands.
    pub ended_between_commands: bool,
}

/// Run `stream` through a parser as a connection would: each read brings the next of `cuts` bytes (0: as
/// many as the parser wants), over and over; a large argument is taken from the stream past the buffer.
///
/// # Panics
/// If the parser asks for more than the limits allow, or makes no progress.
#[must_use]
pub fn connection(stream: &[u8], limits: Limits, authenticated: bool, cuts: &[usize]) -> Outcome {
    assert!(!cuts.is_empty());
    let mut parser = Parser::new(limits);
    parser.set_authenticated(authenticated);
    let mut cuts = cuts.iter().copied().cycle();
    let (mut buffer, mut rest) = (Vec::new(), stream);
    let mut command = Vec::new();
    let mut outcome = Outcome { commands: Vec::new(), error: None, ended_between_commands: false };
    loop {
        let step = parser.parse(&buffer);
        let consumed = step.consumed();
        match step {
            Step::Error(error) => {
                outcome.error = Some(error);
                assert!(matches!(parser.parse(&buffer), Step::Error(again) if again == error));
                return outcome;
            }
            Step::Incomplete { wanted, .. } => {
                buffer.drain(..consumed);
                // One command only, and of it no more than the limit but the first half of a line end.
                assert!(buffer.len() <= limits.query_buffer_bytes_max + 1);
                assert!(wanted > 0 && wanted <= limits.query_buffer_bytes_max);
                if rest.is_empty() {
                    outcome.ended_between_commands = command.is_empty() && parser.is_between_commands();
                    return outcome;
                }
                let cut = cuts.next().filter(|&cut| cut > 0).unwrap_or(wanted).min(rest.len());
                buffer.extend_from_slice(&rest[..cut]);
                rest = &rest[cut..];
            }
            Step::Command(whole) => {
                assert!(command.is_empty() && !whole.args.is_empty());
                outcome.commands.push(whole.args.iter().map(<[u8]>::to_vec).collect());
                buffer.drain(..consumed);
            }
            Step::Tail(tail) => {
                assert!(!command.is_empty());
                command.extend(tail.args.iter().map(<[u8]>::to_vec));
                outcome.commands.push(std::mem::take(&mut command));
                buffer.drain(..consumed);
            }
            Step::Large(large) => {
                command.extend(large.args.iter().map(<[u8]>::to_vec));
                assert!(large.index == command.len() && large.index < large.args_total);
                assert!(large.len >= limits.large_bulk_bytes_min && large.len <= limits.bulk_bytes_max);
                let len = large.len;
                buffer.drain(..consumed);
                if buffer.len() + rest.len() < len {
                    return outcome;
                }
                let mut value: Vec<u8> = buffer.drain(..len.min(buffer.len())).collect();
                let (streamed, after) = rest.split_at(len - value.len());
                value.extend_from_slice(streamed);
                rest = after;
                command.push(value);
                parser.resume_after_large();
            }
        }
    }
}

/// Sizes of reads made from one byte: 1 to 16, in a fixed but uneven order.
fn cuts_from(seed: u8) -> [usize; 7] {
    let mut state = u32::from(seed) | 1;
    [(); 7].map(|()| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 28) as usize + 1
    })
}

/// Fuzz body for requests. The first byte picks limits and reads, the rest is what a client sends.
///
/// # Panics
/// When an invariant of the parser does not hold.
pub fn request(data: &[u8]) {
    let Some((&seed, stream)) = data.split_first() else { return };
    let limits = if seed & 1 == 0 { Limits::DEFAULT } else { SMALL_LIMITS };
    let authenticated = seed & 2 == 0;
    let whole = connection(stream, limits, authenticated, &[usize::MAX]);
    for cuts in [&[1][..], &[0], &cuts_from(seed)] {
        assert_eq!(whole, connection(stream, limits, authenticated, cuts), "cut by {cuts:?}");
    }
    let mut encoded = Vec::new();
    for command in &whole.commands {
        requests::encode(command, &mut encoded);
    }
    let again = connection(&encoded, Limits::DEFAULT, true, &[usize::MAX]);
    assert_eq!(whole.commands, again.commands);
    assert!(again.error.is_none() && again.ended_between_commands);
}

/// Decode a stream of replies, read by read as [`connection`]; returns them and the error that ended it.
///
/// # Panics
/// If the decoder asks for more than the limits allow, or makes no progress.
#[must_use]
pub fn replies(stream: &[u8], limits: ReplyLimits, cuts: &[usize]) -> (Vec<Reply>, Option<ReplyError>) {
    assert!(!cuts.is_empty());
    let mut decoder = ReplyDecoder::new(limits);
    let mut cuts = cuts.iter().copied().cycle();
    let (mut buffer, mut rest, mut replies) = (Vec::new(), stream, Vec::new());
    loop {
        match decoder.decode(&buffer) {
            Err(error) => return (replies, Some(error)),
            Ok(Decoded::Reply { consumed, reply }) => {
                assert!(consumed > 0);
                buffer.drain(..consumed);
                replies.push(reply);
            }
            Ok(Decoded::Incomplete { consumed, wanted }) => {
                buffer.drain(..consumed);
                assert!(buffer.len() <= limits.reply_bytes_max.max(limits.line_bytes_max + 2));
                assert!(wanted > 0 && wanted <= limits.reply_bytes_max);
                if rest.is_empty() {
                    return (replies, None);
                }
                let cut = cuts.next().filter(|&cut| cut > 0).unwrap_or(wanted).min(rest.len());
                buffer.extend_from_slice(&rest[..cut]);
                rest = &rest[cut..];
            }
        }
    }
}

/// The bytes of replies: compares what `==` cannot, a NaN.
fn written(replies: &[Reply]) -> Vec<u8> {
    let mut out = Vec::new();
    for reply in replies {
        reply.write(&mut ReplyWriter::new(&mut out, Version::Resp3));
    }
    out
}

/// Fuzz body for replies. The first byte picks limits and reads, the rest is what a server sends.
///
/// # Panics
/// When an invariant of the decoder or of the writer does not hold.
pub fn reply(data: &[u8]) {
    let Some((&seed, stream)) = data.split_first() else { return };
    let limits = if seed & 1 == 0 { ReplyLimits::DEFAULT } else { SMALL_REPLY_LIMITS };
    let (whole, error) = replies(stream, limits, &[usize::MAX]);
    let bytes = written(&whole);
    for cuts in [&[1][..], &[0], &cuts_from(seed)] {
        let (cut, cut_error) = replies(stream, limits, cuts);
        assert_eq!((&bytes, error), (&written(&cut), cut_error), "cut by {cuts:?}");
    }
    let (again, error) = replies(&bytes, ReplyLimits::DEFAULT, &[usize::MAX]);
    assert_eq!(error, None);
    assert_eq!(bytes, written(&again));
}
