//! Every limit of the reactor in one place, each with its reason.

/// Cores in one process: the width of an executor id and of the message mesh.
pub const CORES_MAX: usize = 64;

/// Operations in flight a reactor. Past it, submission waits: back-pressure, not an error.
pub const OPS_MAX: usize = 65_536;

/// Messages one core can have waiting at another. A sender waits when the ring is full.
pub const MESH_MESSAGES_MAX: usize = 1024;

/// Tasks run in one turn before I/O is looked at again, so that no burst starves completions.
pub const POLLS_PER_TURN_MAX: usize = 64;

/// The same while short reads are with the drive, which begins with the first of what a burst asks of it
/// while the rest is worked on, and while long values wait for their share of the next turn.
pub const POLLS_PER_SHORT_TURN_MAX: usize = 16;

/// Tasks run before a drive that has nothing to do is given what they have asked of it.
pub const POLLS_PER_FEED: usize = 4;

/// Bytes of one disk operation. Larger transfers are cut by their callers.
pub const IO_BYTES_MAX: usize = 8 << 20;

/// Sockets of one core. Past it, accepting fails with `EMFILE`.
pub const SOCKETS_MAX: usize = 65_536;

/// A receive of at least this many bytes goes straight into the caller's memory; a smaller one
/// takes a shared buffer when its bytes arrive, and holds none while it waits.
pub const RECEIVE_DIRECT_BYTES_MIN: usize = 32 << 10;

/// Bytes of one receive: more than a socket's buffer ever holds is reserved in vain.
pub const RECEIVE_BYTES_MAX: usize = 1 << 20;

/// Bytes of one send: the kernel copies them while the core waits, and delivers them itself to a peer on
/// the same machine.
pub const SEND_BYTES_MAX: usize = 128 << 10;

/// Capacity of what a socket sends from that it keeps: those at rest hold little, and what another has just
/// sent from is in the core's caches.
pub const SEND_BUFFER_BYTES_KEPT: usize = 4 << 10;

/// Bytes that one turn copies for long values, of all sockets together: some tens of microseconds.
pub const BULK_BYTES_PER_TURN: usize = 128 << 10;

/// Receives of long values wait for so long at most while short reads are with the drive: about twice what
/// one takes.
pub const BULK_WAIT_NS_MAX: u64 = 250_000;

/// Bytes of a read that is short: its reply is, too.
pub const SHORT_READ_BYTES_MAX: usize = 32 << 10;

/// Commands of the control thread that one core can have waiting.
pub const CONTROL_MESSAGES_MAX: usize = 64;

/// Memory a core that is registered with the kernel for disk operations.
pub const ARENA_BYTES_PER_CORE: usize = 16 << 20;

/// The finest alignment any device asks of memory, offset and length.
pub const ALIGN_BYTES: usize = 4096;

/// How often the log has a line of a kind that clients cause, of each core.
pub const SELDOM_NS: u64 = 1_000_000_000;

const _: () = assert!(IO_BYTES_MAX.is_multiple_of(ALIGN_BYTES));
