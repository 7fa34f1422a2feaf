//! Redis Cluster slots: the unit in which keys are spread over partitions and, later, servers.

/// Slots of the key space.
pub const SLOTS: u32 = 16_384;

/// A slot: CRC-16/XMODEM of the key (or of its hash tag) modulo [`SLOTS`], as Redis Cluster has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

const TABLE: [u16; 256] = {
    let mut table = [0_u16; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

impl Slot {
    /// The slot of a key. Only what stands between the first `{` and the next `}` counts, if there
    /// is anything between them.
    #[must_use]
    pub fn of(key: &[u8]) -> Slot {
        let tag = hash_tag(key);
        let crc = tag.iter().fold(0_u16, |crc, byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)]);
        Slot(crc % SLOTS as u16)
    }

    /// The partition that holds this slot when a device has `partitions` of them.
    #[must_use]
    pub fn partition(self, partitions: u16) -> u16 {
        (u32::from(self.0) * u32::from(partitions) / SLOTS) as u16
    }

    /// The slots that `partition` of `partitions` holds, as first and one past the last.
    #[must_use]
    pub fn range_of(partition: u16, partitions: u16) -> std::ops::Range<u32> {
        let first = |p: u16| (u32::from(p) * SLOTS).div_ceil(u32::from(partitions));
        first(partition)..first(partition + 1)
    }
}

fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    match key[open + 1..].iter().position(|byte| *byte == b'}') {
        Some(length) if length > 0 => &key[open + 1..open + 1 + length],
        _ => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(Slot::of(b"123456789").0, 0x31c3);
        assert_eq!(Slot::of(b"foo").0, 12_182);
        assert_eq!(Slot::of(b"{user1000}.following"), Slot::of(b"user1000"));
        assert_eq!(Slot::of(b"foo{}{bar}").0, 8_363);
        assert_eq!(Slot::of(b"foo{{bar}}zap"), Slot::of(b"{bar"));
        assert_eq!(Slot::of(b"").0, 0);
    }

    #[test]
    fn partitions_cover_every_slot_once() {
        for partitions in [1, 2, 3, 5, 7, 64] {
            let mut next = 0;
            for partition in 0..partitions {
                let range = Slot::range_of(partition, partitions);
                assert_eq!(range.start, next);
                next = range.end;
                for slot in range {
                    assert_eq!(Slot(slot as u16).partition(partitions), partition);
                }
            }
            assert_eq!(next, SLOTS);
        }
    }
}
