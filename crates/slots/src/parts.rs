//! Values in parts: uploads on their way, pins, and the objects that the parts are.
//!
//! Role: counts who needs a part: uploads, values, retained values, prepared writes, pins. Place on the path:
//! beside the operations on uploads, and behind every value in parts.
//!
//! Invariants: a part's object is deleted when nobody needs it any more, and durably so; every part but the
//! last has the drive's part size; an upload's number is never used again.

use crate::drive::DriveKey;
use crate::object::Reader;
use plimsoll_kv::UploadId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Objects that nobody needs any more.
#[derive(Default)]
pub(crate) struct Doomed {
    keys: RefCell<VecDeque<DriveKey>>,
}

impl Doomed {
    pub(crate) fn add(&self, key: DriveKey) {
        self.keys.borrow_mut().push_back(key);
    }

    /// Takes those that came first.
    pub(crate) fn take(&self, most: usize) -> Vec<DriveKey> {
        let mut keys = self.keys.borrow_mut();
        let count = most.min(keys.len());
        keys.drain(..count).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.borrow().is_empty()
    }
}

/// A part that somebody needs.
pub(crate) struct Part {
    /// The upload that brought it.
    pub(crate) upload: u64,
    /// Its number in that, and in every value that shares it.
    pub(crate) number: u32,
    /// Where it stands.
    pub(crate) key: DriveKey,
    /// The flush that makes it durable.
    pub(crate) flush: u64,
    doomed: Rc<Doomed>,
}

impl Part {
    pub(crate) fn new(upload: u64, number: u32, key: DriveKey, flush: u64, doomed: &Rc<Doomed>) -> Rc<Part> {
        Rc::new(Part { upload, number, key, flush, doomed: doomed.clone() })
    }

    /// What its object is named after.
    pub(crate) fn name(upload: u64, number: u32) -> Vec<u8> {
        [&upload.to_le_bytes()[..], &number.to_le_bytes()].concat()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.doomed.add(self.key);
    }
}

/// The parts of a value.
pub(crate) struct Parts {
    /// By which they are asked for.
    pub(crate) upload: UploadId,
    pub(crate) parts: Vec<Rc<Part>>,
    pub(crate) length: u64,
}

impl Parts {
    /// The flush that makes all of them durable.
    pub(crate) fn flush(&self) -> u64 {
        self.parts.iter().map(|part| part.flush).max().unwrap_or(0)
    }

    pub(crate) fn manifest(&self) -> Manifest {
        let mut runs: Vec<(u64, u32)> = Vec::new();
        for part in &self.parts {
            match runs.last_mut() {
                Some((upload, count)) if *upload == part.upload => *count += 1,
                _ => runs.push((part.upload, 1)),
            }
        }
        Manifest { upload: self.upload.0, length: self.length, runs }
    }
}

/// Which parts a value has, as it is stored: runs of parts that the same upload brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) upload: u64,
    pub(crate) length: u64,
    pub(crate) runs: Vec<(u64, u32)>,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.upload.to_le_bytes().to_vec();
        out.extend_from_slice(&self.length.to_le_bytes());
        for (upload, count) in &self.runs {
            out.extend_from_slice(&upload.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Manifest> {
        let mut reader = Reader(bytes);
        let (upload, length) = (reader.u64()?, reader.u64()?);
        let mut runs = Vec::new();
        while !reader.0.is_empty() {
            runs.push((reader.u64()?, reader.u32()?));
        }
        Some(Manifest { upload, length, runs })
    }

    /// The upload and number of each part, if there are as many as the length asks for.
    pub(crate) fn parts(&self, part_bytes: usize) -> Option<Vec<(u64, u32)>> {
        let due = self.length.div_ceil(part_bytes as u64);
        let count: u64 = self.runs.iter().map(|(_, count)| u64::from(*count)).sum();
        if count != due || self.length > plimsoll_kv::limits::VALUE_BYTES_MAX {
            return None;
        }
        let each = self.runs.iter().flat_map(|(upload, count)| (0..*count).map(|_| *upload));
        Some(each.zip(0..).collect())
    }
}

/// An upload that is not stored yet.
pub(crate) struct Pending {
    pub(crate) key: Vec<u8>,
    pub(crate) length: u64,
    pub(crate) received: u64,
    pub(crate) parts: Vec<Rc<Part>>,
}

/// Uploads and pins.
#[derive(Default)]
pub(crate) struct Uploads {
    pub(crate) pending: BTreeMap<UploadId, Pending>,
    pub(crate) pins: BTreeMap<UploadId, (Rc<Parts>, u32)>,
    pub(crate) next: Cell<u64>,
}

impl Uploads {
    pub(crate) fn pin(&mut self, parts: &Rc<Parts>) {
        self.pins.entry(parts.upload).or_insert_with(|| (parts.clone(), 0)).1 += 1;
    }
}
