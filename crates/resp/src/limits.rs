//! Every limit of the request parser, in one place.
//!
//! Role: the numbers a hostile client runs into. Place: fixed when a connection is accepted, read by
//! [`crate::Parser`]. Invariants: defaults are Redis' own where Redis has one; [`Limits::is_consistent`]
//! relates them. Never: changed in the middle of a command.

/// Bounds on what one client may make the parser hold or accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Arguments of one command. Above: [`crate::ProtocolError::InvalidMultibulkLength`].
    pub args_max: usize,
    /// Length of one argument (Redis' `proto-max-bulk-len`). Above:
    /// [`crate::ProtocolError::InvalidBulkLength`].
    pub bulk_bytes_max: usize,
    /// Length of an inline command without its line feed. Above:
    /// [`crate::ProtocolError::TooBigInlineRequest`].
    pub inline_bytes_max: usize,
    /// Length of a `*` or `$` line up to its carriage return. Above:
    /// [`crate::ProtocolError::TooBigMbulkCount`] or [`crate::ProtocolError::TooBigBulkCount`].
    pub header_bytes_max: usize,
    /// An argument of at least this many bytes is streamed ([`crate::Step::Large`]) instead of awaited in
    /// the buffer.
    pub large_bulk_bytes_min: usize,
    /// Bytes of one command, headers included and streamed arguments excluded. The buffer never needs to
    /// hold more than this for one command. Above: [`crate::ProtocolError::QueryBufferFull`], said as soon
    /// as a header shows it.
    pub query_buffer_bytes_max: usize,
    /// As `args_max`, while the client is not authenticated. Above:
    /// [`crate::ProtocolError::UnauthenticatedMultibulkLength`].
    pub unauthenticated_args_max: usize,
    /// As `bulk_bytes_max`, while the client is not authenticated. Above:
    /// [`crate::ProtocolError::UnauthenticatedBulkLength`].
    pub unauthenticated_bulk_bytes_max: usize,
}

impl Limits {
    /// Redis' values (`args_max`: those of Redis before 7); 1 MiB to stream an argument, 64 MiB for one
    /// command.
    pub const DEFAULT: Self = Self {
        args_max: 1024 * 1024,
        bulk_bytes_max: 512 * 1024 * 1024,
        inline_bytes_max: 64 * 1024,
        header_bytes_max: 64 * 1024,
        large_bulk_bytes_min: 1024 * 1024,
        query_buffer_bytes_max: 64 * 1024 * 1024,
        unauthenticated_args_max: 10,
        unauthenticated_bulk_bytes_max: 16 * 1024,
    };

    /// Whether these limits can work together. A configuration that is not consistent must be refused
    /// before a parser is built with it: [`crate::Parser::new`] asserts it.
    #[must_use]
    pub const fn is_consistent(&self) -> bool {
        // Positions in the buffer are kept as u32; half of its range leaves room for every sum.
        self.query_buffer_bytes_max <= (u32::MAX / 2) as usize
            && self.inline_bytes_max < self.query_buffer_bytes_max
            && self.header_bytes_max < self.query_buffer_bytes_max
            && self.large_bulk_bytes_min >= 1
            // A shorter bulk must always fit with its headers, or it could neither be held nor streamed.
            && self.large_bulk_bytes_min < self.query_buffer_bytes_max
            && self.args_max >= 1
            && self.args_max <= (u32::MAX / 2) as usize
            // The shortest valid header line is "*1"; the longest useful one is a sign and 19 digits.
            && self.header_bytes_max >= 32
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const _: () = assert!(Limits::DEFAULT.is_consistent());
