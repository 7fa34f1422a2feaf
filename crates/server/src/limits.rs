//! Every limit of the server in one place, each with its reason.

use plimsoll_reactor::limits::{MESH_MESSAGES_MAX, RECEIVE_DIRECT_BYTES_MIN};

/// Requests that the connections of one core have at the devices of the same core.
pub const LOCAL_IN_FLIGHT_MAX: usize = 8192;

/// Requests that one core has at another. Their completions travel in the ring of the other
/// direction, beside that core's own requests: all together always fit, so that a core that
/// answers never waits for room.
pub const REMOTE_IN_FLIGHT_MAX: usize = MESH_MESSAGES_MAX / 2 - TRANSACTIONS_MAX - STEPS_IN_FLIGHT_MAX;

/// Transactions of one core under way; each may wait at one partition for what it wants to hold.
pub const TRANSACTIONS_MAX: usize = 64;

/// Steps of transactions that hold what they want, which one core has at another. They have a share of
/// their own: requests that wait for a transaction's keys must not keep it from its end.
pub const STEPS_IN_FLIGHT_MAX: usize = 64;

/// Bytes of the commands that wait for EXEC, and of what a transaction is to write.
pub const TRANSACTION_BYTES_MAX: usize = 64 << 20;

/// Bytes of a reply that is made whole before any of it leaves, as EXEC's; `--memory` may allow less.
pub const WHOLE_REPLY_BYTES_MAX: usize = 128 << 20;

/// How long an applied transaction is remembered, so that many are forgotten at once.
pub const FORGET_NS: u64 = 1_000_000_000;

/// After a failed step that has to be done, it is tried again after so long.
pub const STEP_RETRY_NS: u64 = 100_000_000;

/// Commands of one connection under way: enough to keep a drive busy, and what one connection can
/// take from the others.
pub const COMMANDS_IN_FLIGHT_MAX: usize = 64;

/// Replies of one connection that wait, small ones included: bounds the memory of a pipeline of
/// commands that are answered at once.
pub const REPLIES_WAITING_MAX: usize = 1024;

/// Bytes of replies that wait for a reader before no more commands of its connection are begun.
pub const REPLY_BYTES_MAX: usize = 1 << 20;

/// A client that has taken none of its replies for so long may be sending all of a pipeline first: what it
/// sends is received.
pub const BACKLOG_AFTER_NS: u64 = 250_000_000;

/// Places of replies whose memory an idle connection keeps.
pub const REPLY_PLACES_KEPT: usize = 128;

/// Bytes of a value in parts that are read, proved and sent at once. A core does nothing else meanwhile,
/// and other requests wait behind them at the device: small enough that they do not feel it.
pub const SLICE_BYTES: u64 = 128 << 10;

/// Bytes of one send, and so of what is gathered from replies that are ready.
pub const SEND_BYTES_MAX: usize = 256 << 10;

/// Bytes of one receive when nothing larger is known to come.
pub const RECEIVE_BYTES: usize = 16 << 10;

/// After a command of so many bytes another long one is likely.
pub const LONG_COMMAND_BYTES: usize = 8 << 10;

/// Bytes of one receive at most: the kernel copies them while the core waits.
pub const RECEIVE_BYTES_MAX: usize = 128 << 10;

/// A receive of so many bytes that are known to come, or a send of them, waits for its share of what one turn
/// copies. Such a receive goes straight to where its bytes stay.
pub const SHARED_TRANSFER_BYTES_MIN: usize = RECEIVE_DIRECT_BYTES_MIN;

/// Bytes of an unfinished command from which on its client is held back while clients hold much, and its
/// buffer has room for the longest: it is not copied any more as it grows. What was not received yet is
/// address space, not memory.
pub const GROWING_BYTES_MAX: usize = 1 << 20;

/// Bytes of a reply that is sent where it is ready, without a turn of the writer's.
pub const POSTED_BYTES_MAX: usize = 20 << 10;

/// Capacity that a connection's buffer of what it receives keeps while it is idle.
pub const BUFFER_BYTES_KEPT: usize = 32 << 10;

/// Bytes of one command, a value that goes to its device part by part excluded; `--memory` may allow less.
pub const QUERY_BUFFER_BYTES_MAX: usize = 64 << 20;

/// Bytes that all connections of one core hold: commands being received and under way, replies that
/// wait, names that are listened to, keys that are watched; `--memory` may allow less. From half of it on
/// long commands come in one at a time. Above it one is cut, first who holds much, so that no number of
/// clients that send halves of commands or do not read can take the machine's memory.
pub const CLIENT_BYTES_MAX: usize = 256 << 20;

/// Bytes from which on a client that takes none of its replies holds much.
pub const UNREAD_BYTES_MUCH: usize = 128 << 10;

/// How long the client whose long command comes in may send nothing of it before the next one comes in too:
/// longer than a lost packet takes to be sent again.
pub const TURN_STALL_NS_MAX: u64 = 1_000_000_000;

/// The same, however many wait.
pub const TURN_STALL_NS_MIN: u64 = 100_000_000;

/// How long a client is held back with a long command at most, where no other command comes to its end:
/// clients wait for 5 s and more.
pub const TURN_WAIT_NS_MAX: u64 = 3_000_000_000;

/// The same, whatever others do.
pub const LINE_WAIT_NS_MAX: u64 = 30_000_000_000;

/// Bytes that a connection takes beside what its client makes it hold (7 KiB were measured).
pub const CONNECTION_BYTES: usize = 8 << 10;

/// Bytes that a name which a client listens to, or a key that it watches, takes beside its own.
pub const STANDING_NAME_BYTES: usize = 256;

/// Bytes of the name that a client gives itself: CLIENT LIST shows those of all.
pub const CLIENT_NAME_BYTES_MAX: usize = 512;

/// Bytes of the names of the channels and patterns that one client listens to, and of the keys that it
/// watches.
pub const STANDING_NAMES_BYTES_MAX: usize = 8 << 20;

/// Bytes that wait for a client that listens and does not read; above it its connection is cut, as Redis
/// does (client-output-buffer-limit pubsub).
pub const LISTENER_BYTES_MAX: usize = 32 << 20;

/// Names of one COMMAND INFO: each costs a few bytes to ask and a kilobyte to answer.
pub const COMMAND_NAMES_MAX: usize = 4096;

/// Bytes of a line of MONITOR; what a command has beyond is left out of it.
pub const MONITOR_LINE_BYTES_MAX: usize = 64 << 10;

/// Entries of the slow log, whatever `slowlog-max-len` asks for.
pub const SLOWLOG_ENTRIES_MAX: usize = 16 << 10;

/// Bytes that one of them holds at most.
pub const SLOWLOG_ENTRY_BYTES: usize = 5 << 10;

/// Descriptors that the server needs beside its connections.
pub const DESCRIPTORS_BESIDE: u64 = 256;

/// How often clients that are idle for too long are looked for.
pub const IDLE_LOOK_NS: u64 = 1_000_000_000;

/// Clients that hold so many bytes less than a look before have left memory that the allocator keeps.
pub const SHRUNK_BYTES_MIN: usize = 8 << 20;

/// So many looks later it has kept all of it for long enough to give it back.
pub const SHRUNK_LOOKS: u32 = 3;

/// How long DEBUG SLEEP lets its connection wait.
pub const DEBUG_SLEEP_NS_MAX: u64 = 3_600_000_000_000;

/// How long a client that is being sent a value in parts, or has sent more than may wait, may take nothing
/// before its connection is cut: as long, the value keeps its space on the device, whatever became of its
/// key. The kernel has room for a megabyte and tells of no less: so does who takes less than that in this
/// time.
pub const STALL_NS_MAX: u64 = 60_000_000_000;

/// How often that is looked for.
pub const STALL_LOOK_NS: u64 = 10_000_000_000;

/// Keys of one command that are worked on at once.
pub const KEYS_AT_ONCE_MAX: usize = 64;

/// Databases: Redis' default number.
pub const DATABASES: u32 = 16;

/// Keys that one page of SCAN looks at, whatever COUNT says: bounds its reply.
pub const SCAN_COUNT_MAX: usize = 10_000;

/// How long a client that sends nothing more may take no reply before its connection is cut.
pub const LINGER_NS_MAX: u64 = STALL_NS_MAX;

/// Handshakes of TLS that one core has under way. Above it the oldest one is cut: a client that means it
/// is through within a few round trips, so those that only hold a place go first.
pub const HANDSHAKES_MAX: usize = 1024;

/// Bytes that one of them holds at most: a message of the handshake, and one receive.
pub const HANDSHAKE_BYTES_MAX: usize = 80 << 10;

/// How long a handshake may take.
pub const HANDSHAKE_NS_MAX: u64 = 10_000_000_000;

/// Bytes that are sealed at a time, and so what one send of TLS holds beside its plain bytes.
pub const TLS_SEAL_BYTES_MAX: usize = 64 << 10;

/// What an idle connection of TLS is reckoned to hold: its keys, and a part of a record.
pub const TLS_IDLE_BYTES: usize = 16 << 10;

/// Bytes of a file of certificates or of a key.
pub const PEM_BYTES_MAX: usize = 1 << 20;

/// How long a stop waits for replies to leave before connections are cut.
pub const STOP_NS_MAX: u64 = 5_000_000_000;

const _: () = assert!(
    (REMOTE_IN_FLIGHT_MAX + TRANSACTIONS_MAX + STEPS_IN_FLIGHT_MAX) * 2 <= MESH_MESSAGES_MAX
        && REMOTE_IN_FLIGHT_MAX >= MESH_MESSAGES_MAX / 4
);
const _: () = assert!(SEND_BYTES_MAX <= REPLY_BYTES_MAX);
