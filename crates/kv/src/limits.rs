//! Limits of keys, values and requests, each with its reason.

/// Bytes of a key. Longer ones are refused: a key is read with every record, and stands in memory
/// while it is looked up.
pub const KEY_BYTES_MAX: usize = (64 << 10) - 1;

/// Bytes of a value in one record: a KV SSD's limit, and one device operation.
pub const RECORD_VALUE_BYTES_MAX: usize = 2 << 20;

/// Bytes of a value behind one key: Redis' limit. Longer than a record means an upload in parts.
pub const VALUE_BYTES_MAX: u64 = 512 << 20;

/// Bytes of one part of an upload: proved, copied and written in one go while others wait, so a tenth of a
/// millisecond's work.
pub const PART_BYTES_MAX: usize = 256 << 10;

/// Bytes in front of a value that is kept under another key: read with the record that names it.
pub const KEPT_HEAD_BYTES_MAX: usize = 64;

/// Keys of one listing page.
pub const LIST_KEYS_MAX: usize = 1024;

/// Operations of one atomic batch.
pub const BATCH_OPS_MAX: usize = 4096;

/// Containers (Redis databases, namespaces) of a device.
pub const CONTAINERS_MAX: u32 = 4096;

/// Containers from here on are the books of a layer above (who belongs to an array, what may be half done):
/// who holds everything does not hold their keys, for it may be what the layer writes down.
pub const BOOKS_CONTAINER_MIN: u32 = 3968;

const _: () = assert!(BOOKS_CONTAINER_MIN < CONTAINERS_MAX);
const _: () = assert!(PART_BYTES_MAX <= RECORD_VALUE_BYTES_MAX);
const _: () = assert!(VALUE_BYTES_MAX.is_multiple_of(PART_BYTES_MAX as u64));
