//! What a store has to write by each mechanism, counted from the formats.
//!
//! Role: what the bytes of a new value become on all devices together, to the last header. Place: what stores
//! over the flash engine are measured against. Sources: `docs/on-flash-format.md` for a record, the heads of
//! `header`, `journal` and `set` in `crates/array` for what stands in it.
//!
//! Invariants: full sets; nothing that is shared by many records is counted, in nobody's favour: the engine's
//! frames and their padding to blocks, summaries, checkpoints.

use super::Table;
use super::kvmd::{KEY_BYTES, KIB};
use plimsoll_array::{HEADER_BYTES, Mechanism};
use plimsoll_flash::format::record::record_bytes;

/// A journal's record: the name of its slot, and the container and key that it names.
const JOURNAL_KEY_BYTES: usize = 8;
const JOURNAL_BYTES: usize = 4 + KEY_BYTES;
/// The name of a set's record, and what a stub says behind its header.
const SET_KEY_BYTES: usize = 16;
const VERSION_BYTES: usize = 12;
/// The description of a set: what it always has, and of each of its values without the key.
const DESCRIPTION_BYTES: usize = 25;
const DESCRIBED_BYTES: usize = 18;

/// A record on a device.
#[derive(Clone, Copy)]
struct Record {
    key_bytes: usize,
    /// Of a value, a copy of it, a shard or a parity.
    payload_bytes: usize,
    /// What the array puts before it.
    header_bytes: usize,
}

impl Record {
    fn of_value(payload_bytes: usize) -> Record {
        Record { key_bytes: KEY_BYTES, payload_bytes, header_bytes: HEADER_BYTES }
    }

    fn of_set(payload_bytes: usize, header_bytes: usize) -> Record {
        Record { key_bytes: SET_KEY_BYTES, payload_bytes, header_bytes }
    }

    fn bytes(&self) -> usize {
        record_bytes(self.key_bytes, self.payload_bytes + self.header_bytes) as usize
    }
}

/// What so many values of one length become.
pub(super) struct Written {
    values: usize,
    value_bytes: usize,
    records: Vec<Record>,
    /// Records of the journal: one beside each value, copy, shard or stub.
    journal: usize,
}

impl Written {
    /// Of one new value, or of as many as share parities; without a mechanism of one that stands alone.
    pub(super) fn by(mechanism: Option<Mechanism>, value_bytes: u64) -> Written {
        let length = value_bytes as usize;
        let (values, records, journal) = match mechanism {
            None => (1, vec![Record { header_bytes: 0, ..Record::of_value(length) }], 0),
            Some(Mechanism::Packing { data, parities }) => packed(data as usize, parities as usize, length),
            Some(Mechanism::Splitting { data, parities }) => {
                let members = (data + parities) as usize;
                (1, vec![Record::of_value(length.div_ceil(data as usize)); members], members)
            }
            Some(copied) => {
                let copies = copied.members() as usize;
                (1, vec![Record::of_value(length); copies], copies)
            }
        };
        Written { values, value_bytes: length, records, journal }
    }

    /// Bytes of the user that a value is.
    fn user_bytes(&self) -> f64 {
        (self.values * self.value_bytes) as f64
    }

    fn journal_bytes(&self) -> usize {
        self.journal * record_bytes(JOURNAL_KEY_BYTES, JOURNAL_BYTES) as usize
    }

    /// Bytes that stay, for each of the user's: all but the journal, whose records replace one another.
    pub(super) fn kept(&self) -> f64 {
        self.records.iter().map(Record::bytes).sum::<usize>() as f64 / self.user_bytes()
    }

    /// Bytes for each of the user's.
    pub(super) fn per_byte(&self) -> f64 {
        self.kept() + self.journal_bytes() as f64 / self.user_bytes()
    }

    /// What they are, for one value.
    fn parts(&self) -> Vec<f64> {
        let sum = |of: fn(&Record) -> usize| self.records.iter().map(of).sum::<usize>();
        let (payloads, keys) = (sum(|it| it.payload_bytes), sum(|it| it.key_bytes));
        let (headers, all) = (sum(|it| it.header_bytes), sum(Record::bytes));
        let redundant = payloads - self.values * self.value_bytes;
        let heads = all - payloads - keys - headers;
        let parts = [redundant, keys, heads, headers, self.journal_bytes(), all + self.journal_bytes()];
        let mut parts: Vec<f64> = parts.iter().map(|bytes| *bytes as f64 / self.values as f64).collect();
        parts.push(self.per_byte());
        parts
    }
}

/// A full set: its values, a stub of each for each parity, the parities behind descriptions, and one alone.
fn packed(data: usize, parities: usize, length: usize) -> (usize, Vec<Record>, usize) {
    let holders = parities + 1;
    let described = DESCRIPTION_BYTES + holders + data * (DESCRIBED_BYTES + KEY_BYTES);
    let stub = Record { header_bytes: HEADER_BYTES + VERSION_BYTES + 1 + holders, ..Record::of_value(0) };
    let mut records = vec![Record::of_value(length); data];
    records.extend(vec![stub; data * parities]);
    records.extend(vec![Record::of_set(length, described); parities]);
    records.push(Record::of_set(0, described));
    (data, records, data * (1 + parities))
}

/// The parts of what a store writes.
pub(super) fn listed(mechanisms: &[(&str, Option<Mechanism>)], sizes: &[u64]) -> Table {
    let row = |bytes: u64, (name, mechanism): &(&str, Option<Mechanism>)| {
        (format!("{name}, {} KiB", bytes / KIB), Written::by(*mechanism, bytes).parts())
    };
    let rows = sizes.iter().flat_map(|bytes| mechanisms.iter().map(|it| row(*bytes, it)));
    let columns =
        ["mechanism", "copies, parities", "keys", "heads", "array's", "journal", "all", "for each byte"];
    Table {
        title: "bytes that a store of one new value has to write, by the formats; heads: of records, with \
                checksums and padding to 16; array's: headers, stubs, descriptions of sets"
            .to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
        plotted: vec![6],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, from the pages of the formats.
    #[test]
    fn what_has_to_be_written_is_counted_to_the_byte() {
        let parts = |mechanism| Written::by(mechanism, 4 * KIB).parts();
        // 64 of header, 16 of key, 4 of checksum, and 12 of padding.
        assert_eq!(parts(None)[..6], [0.0, 16.0, 80.0, 0.0, 0.0, 4192.0]);
        // A journal's record: 64, 8, 4 and 20 bytes.
        let copied = parts(Some(Mechanism::Replication { copies: 3 }));
        assert_eq!(copied[..6], [8192.0, 48.0, 240.0, 96.0, 288.0, 3.0 * 4224.0 + 288.0]);
        let split = parts(Some(Mechanism::Splitting { data: 4, parities: 2 }));
        assert_eq!(split[..6], [2048.0, 96.0, 456.0 + 24.0, 192.0, 576.0, 6.0 * 1152.0 + 576.0]);
        let packed = parts(Some(Mechanism::Packing { data: 4, parities: 2 }));
        assert_eq!(packed[5], (4.0 * 4224.0 + 8.0 * 144.0 + 2.0 * 4352.0 + 256.0 + 12.0 * 96.0) / 4.0);
    }
}
