//! What a partition counts.

use std::cell::Cell;

/// Counters that the operations of a partition keep.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) record_reads: Cell<u64>,
    pub(crate) unreadable: Cell<u64>,
    pub(crate) known_overwrites: Cell<u64>,
    pub(crate) known_deletes: Cell<u64>,
    pub(crate) recent_reads: Cell<u64>,
    pub(crate) checkpoints: Cell<u64>,
    pub(crate) checkpoint_bytes: Cell<u64>,
    pub(crate) cleaned_segments: Cell<u64>,
    pub(crate) cleaned_bytes: Cell<u64>,
    pub(crate) stored_bytes: Cell<u64>,
    pub(crate) expired: Cell<u64>,
    pub(crate) evicted: Cell<u64>,
    pub(crate) evicted_bytes: Cell<u64>,
    pub(crate) no_space: Cell<u64>,
}

/// Adds to a counter.
pub(crate) fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get() + amount);
}

/// One reading of a partition's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionMetrics {
    /// Entries of the index.
    pub objects: u64,
    /// How many there may be: the memory of the index is for as many.
    pub objects_max: u64,
    /// Bytes of memory that the index takes.
    pub index_bytes: u64,
    /// Bytes of live records.
    pub live_bytes: u64,
    /// Bytes of live records that cleaning could not read: reads of them fail.
    pub damaged_bytes: u64,
    /// Bytes of all segments.
    pub capacity_bytes: u64,
    /// Segments that hold nothing.
    pub free_segments: u64,
    /// Segments.
    pub segments: u64,
    /// Frames written since the start.
    pub frames: u64,
    /// Flash reads of records since the start.
    pub record_reads: u64,
    /// Records that could not be read since the start.
    pub unreadable: u64,
    /// Stores since the start that replaced a record without reading it, for its key was known.
    pub known_overwrites: u64,
    /// Deletes since the start that took away a record without reading it, for its key was known.
    pub known_deletes: u64,
    /// Looks at records since the start that memory answered, as they were short and written lately.
    pub recent_reads: u64,
    /// Checkpoints written since the start.
    pub checkpoints: u64,
    /// Bytes of them.
    pub checkpoint_bytes: u64,
    /// Segments cleaned since the start.
    pub cleaned_segments: u64,
    /// Bytes of live records that cleaning moved.
    pub cleaned_bytes: u64,
    /// Bytes of records stored by requests since the start.
    pub stored_bytes: u64,
    /// Keys deleted because they had expired.
    pub expired: u64,
    /// Keys deleted to make room.
    pub evicted: u64,
    /// Bytes of their records.
    pub evicted_bytes: u64,
    /// Bytes of memory for what was read lately, if the device evicts.
    pub mark_bytes: u64,
    /// Bytes of live records above which stores are refused, or keys evicted, as long as long records leave
    /// as much empty beside them as now.
    pub live_bytes_max: u64,
    /// Stores refused for want of space.
    pub no_space: u64,
    /// 1 if a write of the log failed and no more is written until the partition is opened again.
    pub read_only: u64,
    /// Runs of keys in order.
    pub key_runs: u64,
    /// Names in them: a key counts in every run that knows it.
    pub key_run_names: u64,
    /// Bytes of them.
    pub key_run_bytes: u64,
    /// Segments that they hold, with those that a checkpoint still names.
    pub key_segments: u64,
    /// Bytes of memory that their sparse indexes take.
    pub key_index_bytes: u64,
    /// Names in memory that are in no run yet.
    pub key_table_names: u64,
    /// Bytes of memory that they take.
    pub key_table_bytes: u64,
    /// Flash reads of blocks of keys since the start.
    pub key_reads: u64,
    /// Bytes of runs written since the start.
    pub key_written_bytes: u64,
    /// Merges of runs since the start.
    pub key_merges: u64,
    /// Builds of the runs from the records since the start, for damage.
    pub key_rebuilds: u64,
}
