//! Reads structures by nothing but the page's tables.

use crate::tables::{Field, Table, fields, find, size};

/// Reads structures as the page draws them.
pub(crate) struct Reader<'a> {
    pub(crate) page: &'a [Table],
    pub(crate) rest: &'a [u8],
}

/// An entry of a key block: name, whether it was deleted, and in an index position and blocks.
pub(crate) type NameEntry = (Vec<u8>, bool, Option<(u64, u64)>);

/// The fields of one structure that was read.
pub(crate) struct Read(Vec<(String, u64)>);

impl Read {
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.iter().find(|(field, _)| field == name).unwrap_or_else(|| panic!("no field {name}")).1
    }
}

/// What the next transition of a list differs from.
#[derive(Default)]
pub(crate) struct Before {
    container: u64,
    length: u64,
    end: u64,
    previous_end: u64,
}

fn integer(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl Reader<'_> {
    pub(crate) fn integer(&mut self, bytes: usize) -> u64 {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        integer(taken)
    }

    pub(crate) fn structure(&mut self, heading: &str) -> Read {
        let fields = fields(self.page, heading);
        let (taken, rest) = self.rest.split_at(size(&fields));
        self.rest = rest;
        let value = |field: &Field| integer(&taken[field.offset..field.offset + field.size]);
        Read(fields.iter().map(|field| (field.name.clone(), value(field))).collect())
    }

    /// A number in LEB128.
    pub(crate) fn varint(&mut self) -> u64 {
        let bytes = 1 + self.rest.iter().take_while(|byte| **byte & 0x80 != 0).count();
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    }

    /// A number that is coded by its difference to another.
    fn difference(&mut self, from: u64) -> u64 {
        let coded = self.varint();
        if coded.is_multiple_of(2) { from.wrapping_add(coded / 2) } else { from.wrapping_sub(coded / 2 + 1) }
    }

    /// The next transition of a list: its fixed part, then the fields that its shape names.
    pub(crate) fn transition(&mut self, before: &mut Before) -> Read {
        let mut read = self.structure("Transition");
        let shape = read.get("shape");
        for row in &find(self.page, "Transition", "coded").rows {
            let follows = shape & row[0].parse::<u64>().expect("a bit") != 0;
            let value = match if follows { row[2].as_str() } else { row[3].as_str() } {
                "0" => 0,
                "1 byte" => self.integer(1),
                "2 bytes" => self.integer(2),
                "5 bytes" => self.integer(5),
                "number" => self.varint(),
                "difference" if row[1] == "location" => self.difference(before.end),
                "difference" => self.difference(before.previous_end),
                "container before" => before.container,
                "end before" => before.end,
                "length before" => before.length,
                "length, or 0 without previous" if read.get("previous") == 0 => 0,
                "length, or 0 without previous" => read.get("length"),
                other => panic!("the page codes {} as {other:?}", row[1]),
            };
            read.0.push((row[1].clone(), value));
        }
        (before.container, before.length) = (read.get("container"), read.get("length"));
        before.end = read.get("location").wrapping_add(before.length);
        if read.get("previous") != 0 {
            before.previous_end = read.get("previous").wrapping_add(read.get("previous_length"));
        }
        read
    }

    fn list(&mut self, heading: &str) -> Vec<Read> {
        (0..self.integer(4)).map(|_| self.structure(heading)).collect()
    }

    /// The snapshot, in the order of the page's table of parts.
    pub(crate) fn snapshot(&mut self) -> Vec<(String, Vec<Read>)> {
        let parts: Vec<(String, String)> = find(self.page, "Snapshot", "order")
            .rows
            .iter()
            .map(|row| (row[1].clone(), row[2].clone()))
            .collect();
        let mut read = Vec::new();
        for (part, bytes) in parts {
            let items = match part.as_str() {
                "segments" => self.list("Snapshot: segment"),
                "generations" => self.list("Snapshot: generation"),
                "counters" => self.list("Snapshot: counters"),
                "dead" => self.list("Snapshot: dead"),
                "retained" => self.list("Snapshot: retained"),
                "expiry_overrides" => self.list("Snapshot: expiry override"),
                "transactions" => self.list("Snapshot: transaction"),
                "uploads" => self.uploads(),
                _ => {
                    let bytes = bytes.parse().expect("a part that is no list has a size");
                    vec![Read(vec![(part.clone(), self.integer(bytes))])]
                }
            };
            read.push((part, items));
        }
        read
    }

    fn uploads(&mut self) -> Vec<Read> {
        let upload = |reader: &mut Self| {
            let upload = reader.structure("Snapshot: upload");
            for number in 0..upload.get("parts") {
                let part = reader.structure("Snapshot: upload part");
                assert_eq!(part.get("part"), number, "parts stand in order");
            }
            upload
        };
        (0..self.integer(4)).map(|_| upload(self)).collect()
    }

    /// The table of a slot: fingerprint, location and length of its entries.
    pub(crate) fn slot_table(&mut self, location_bits: u64) -> Vec<(u64, u64, u64)> {
        let entries = self.varint();
        if entries == 0 {
            return Vec::new();
        }
        let (length_bits, length_min) = (self.integer(1), self.varint());
        let quotient_bits = u64::from(64 - (entries - 1).leading_zeros());
        let (mut found, mut fingerprint, mut at) = (Vec::new(), 0, 0);
        for _ in 0..entries {
            let mut parts = Vec::new();
            for row in &find(self.page, "Table", "part of an entry").rows {
                parts.push(match row[2].as_str() {
                    "unary" => (0..).take_while(|_| self.bits(&mut at, 1) == 1).count() as u64,
                    "40 - q" => self.bits(&mut at, 40 - quotient_bits),
                    "location_bits" => self.bits(&mut at, location_bits),
                    "length_bits" => self.bits(&mut at, length_bits),
                    other => panic!("the page has {other:?} for bits"),
                });
            }
            fingerprint += parts[0] << (40 - quotient_bits) | parts[1];
            found.push((fingerprint, parts[2], length_min + parts[3]));
        }
        self.rest = &self.rest[(at as usize).div_ceil(8)..];
        found
    }

    /// A number of so many bits, the lowest first; moves `at` behind it.
    fn bits(&self, at: &mut u64, count: u64) -> u64 {
        let bit = |at: u64| u64::from(self.rest[(at / 8) as usize] >> (at % 8) & 1);
        let value = (0..count).fold(0, |value, bit_number| value | bit(*at + bit_number) << bit_number);
        *at += count;
        value
    }

    /// The section of keys: for each run its fields, its segments and its index blocks.
    pub(crate) fn runs(&mut self) -> Vec<(Read, Vec<Read>, Vec<Read>)> {
        let run = |reader: &mut Self| {
            let run = reader.structure("Keys section");
            let segments = reader.list("Keys section: segment");
            (run, segments, reader.list("Keys section: index block"))
        };
        (0..self.integer(4)).map(|_| run(self)).collect()
    }

    /// The entries of a key block: name, whether it was deleted, and in an index the extent.
    pub(crate) fn key_block(&mut self) -> Vec<NameEntry> {
        let header = self.structure("Key block");
        assert_eq!(header.get("magic"), u64::from(u32::from_le_bytes(*b"PKEY")));
        let (mut found, mut name) = (Vec::new(), Vec::new());
        let before = self.rest.len() as u64;
        for _ in 0..header.get("entries") {
            let (length, shared) = (self.varint(), self.varint());
            let (suffix, rest) = self.rest.split_at((length / 2) as usize);
            self.rest = rest;
            name.truncate(shared as usize);
            name.extend_from_slice(suffix);
            let extent = (header.get("kind") == 2).then(|| (self.varint(), self.varint()));
            found.push((name.clone(), length % 2 == 1, extent));
        }
        assert_eq!(before - self.rest.len() as u64, header.get("payload_bytes"));
        found
    }
}
