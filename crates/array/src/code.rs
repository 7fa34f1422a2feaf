//! Erasure codes: the parities of a set, and lost shards of it from those that are left.
//!
//! Role: what splitting and packing protect a set by. Place on the path: below a mechanism, which cuts or
//! gathers the shards; no I/O.
//!
//! A code is a matrix over the field of bytes with the polynomial 0x11d. Records name it by a byte, so what
//! the byte stands for never changes: parities are those of ISA-L's `gf_gen_cauchy1_matrix`, byte for byte.
//! It is Cauchy's matrix, not Vandermonde's, because any `data` rows of it can be inverted, whatever the set.
//!
//! Shards of a set may have different lengths; a shorter one counts as padded with zeros that nobody stores
//! or copies (`padding`). Parities are as long as the longest shard of data.
//!
//! Invariants: any `data` shards of a set give all others; a shard that is given back has its own length.
//! Never: it panics for any argument, or gives back bytes for shards that do not fit together in number and
//! length. Whether their bytes are right it cannot know: that is for their checksums.

mod padding;
mod plans;
#[cfg(test)]
mod tests;

use crate::mechanism::SET_MEMBERS_MAX;
use padding::in_pieces;
use plans::{Loss, Plans};
use rusty_erasure::{DecodePlan, Matrix};

/// An erasure code, as records name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// No code: there are no parities.
    None = 0,
    /// Reed and Solomon's with Cauchy's matrix, as ISA-L makes it.
    ReedSolomon = 1,
}

/// Why nothing was coded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// A record names a code that is not known.
    #[error("no erasure code has the number {0}")]
    Unknown(u8),
    /// Parities were asked of no code.
    #[error("without an erasure code there are no parities")]
    NoParities,
    /// No set has such numbers of shards.
    #[error("no set is {data}+{parities}: one shard of each kind at least, {SET_MEMBERS_MAX} in all at most")]
    Set {
        /// Shards of data asked for.
        data: u32,
        /// Shards of parity asked for.
        parities: u32,
    },
    /// More or fewer shards or lengths than the set has.
    #[error("the set has {members} such shards, not {given}")]
    Count {
        /// How many were given.
        given: usize,
        /// How many there are.
        members: usize,
    },
    /// A shard is not as long as it must be.
    #[error("shard {shard} has {bytes} bytes, not {expected}")]
    Length {
        /// Its place in the set: first data, then parities.
        shard: usize,
        /// Its bytes.
        bytes: usize,
        /// The bytes that it must have.
        expected: usize,
    },
    /// A shard was asked for that is not one to give back.
    #[error("shard {0} cannot be given back: it was given, is not of the set, or stands out of order")]
    Wanted(usize),
    /// More are lost than the code makes good.
    #[error("shards {} are lost: {more} of them must be found", list(lost))]
    Lost {
        /// Their places in the set.
        lost: Vec<usize>,
        /// So many more are needed.
        more: usize,
    },
    /// Shards of different sets, or of different versions of one.
    #[error("shard {0} does not end where it must: the others are not of one set")]
    Mixed(usize),
}

/// A code for sets of one shape. Belongs to a core: it remembers how lost shards were computed.
#[derive(Debug)]
pub struct Coder {
    data: usize,
    parities: usize,
    matrix: rusty_erasure::Coder,
    plans: Plans,
}

impl Code {
    /// What operators call it; nothing of no code.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Code::None => None,
            Code::ReedSolomon => Some("Reed-Solomon, Cauchy"),
        }
    }

    /// The code that a stored byte names; `as u8` is the way back.
    ///
    /// # Errors
    /// It names none.
    pub fn from_byte(byte: u8) -> Result<Code, CodeError> {
        let known = [Code::None, Code::ReedSolomon].into_iter().find(|code| *code as u8 == byte);
        known.ok_or(CodeError::Unknown(byte))
    }

    /// The code for sets of so many shards.
    ///
    /// # Errors
    /// The code has no parities, or no set has such numbers of shards.
    pub fn coder(self, data: u32, parities: u32) -> Result<Coder, CodeError> {
        let members = u64::from(data) + u64::from(parities);
        if data == 0 || parities == 0 || members > u64::from(SET_MEMBERS_MAX) {
            return Err(CodeError::Set { data, parities });
        }
        let (data, parities) = (data as usize, parities as usize);
        let matrix = match self {
            Code::None => return Err(CodeError::NoParities),
            Code::ReedSolomon => Matrix::cauchy(data, parities),
        };
        let matrix =
            matrix.and_then(rusty_erasure::coder).expect("far fewer shards than the field has elements");
        Ok(Coder { data, parities, matrix, plans: Plans::default() })
    }
}

impl Coder {
    /// The parities of a set.
    ///
    /// # Errors
    /// Not as many shards as the set has of data.
    pub fn encode(&self, data: &[&[u8]]) -> Result<Vec<Vec<u8>>, CodeError> {
        let bytes = longest(data.iter().map(|shard| shard.len()));
        let mut parities: Vec<Vec<u8>> = (0..self.parities).map(|_| vec![0; bytes]).collect();
        self.encode_into(data, &mut slices(&mut parities))?;
        Ok(parities)
    }

    /// The parities of a set, written to where they belong; what is there is overwritten.
    ///
    /// # Errors
    /// Not as many shards or parities as the set has, or parities that are not as long as its longest shard.
    pub fn encode_into(&self, data: &[&[u8]], parities: &mut [&mut [u8]]) -> Result<(), CodeError> {
        check_count(data.len(), self.data)?;
        check_count(parities.len(), self.parities)?;
        let expected = longest(data.iter().map(|shard| shard.len()));
        for (at, parity) in parities.iter().enumerate() {
            check_length(self.data + at, parity.len(), expected)?;
        }
        in_pieces(data, parities, |data, parities| {
            self.matrix.encode(data, parities).expect("numbers and lengths were checked");
        });
        Ok(())
    }

    /// The lost shards that are `wanted`, by their places in the set (data first, then parities) and in this
    /// order. `lengths` are those of the shards of data, lost ones included; of `shards`, what is lost is
    /// `None`. Shards that are lost and not wanted are not computed.
    ///
    /// # Errors
    /// More are lost than there are parities; shards that are not as many and as long as the set's; wanted
    /// ones that are not lost, or not in ascending order; shards that cannot be of one set.
    pub fn recover(
        &self,
        lengths: &[usize],
        shards: &[Option<&[u8]>],
        wanted: &[usize],
    ) -> Result<Vec<Vec<u8>>, CodeError> {
        self.check_shards(lengths, shards)?;
        check_wanted(shards, wanted)?;
        let survivors = self.survivors(shards)?;
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        // As long as a survivor, so what a damaged length asks for is never allocated: if a shard of data is
        // lost, a parity survives.
        let mut found = vec![vec![0; longest(lengths.iter().copied())]; wanted.len()];
        self.compute(shards, &survivors, wanted, &mut slices(&mut found));
        for (shard, bytes) in wanted.iter().zip(&mut found) {
            if let Some(length) = lengths.get(*shard) {
                cut_padding(*shard, bytes, *length)?;
            }
        }
        Ok(found)
    }

    fn check_shards(&self, lengths: &[usize], shards: &[Option<&[u8]>]) -> Result<(), CodeError> {
        check_count(lengths.len(), self.data)?;
        check_count(shards.len(), self.data + self.parities)?;
        let longest = longest(lengths.iter().copied());
        for (at, shard) in shards.iter().enumerate() {
            if let Some(shard) = shard {
                check_length(at, shard.len(), lengths.get(at).copied().unwrap_or(longest))?;
            }
        }
        Ok(())
    }

    /// The places of the shards to compute from: the first that are left, so data before parities.
    fn survivors(&self, shards: &[Option<&[u8]>]) -> Result<Vec<usize>, CodeError> {
        let is_lost = |at: &usize| shards[*at].is_none();
        let (lost, mut left): (Vec<usize>, Vec<usize>) = (0..shards.len()).partition(is_lost);
        if left.len() < self.data {
            return Err(CodeError::Lost { lost, more: self.data - left.len() });
        }
        left.truncate(self.data);
        Ok(left)
    }

    fn compute(
        &self,
        shards: &[Option<&[u8]>],
        survivors: &[usize],
        wanted: &[usize],
        found: &mut [&mut [u8]],
    ) {
        let loss = Loss::new(survivors, wanted);
        let plan = self.plans.get(loss, || self.plan(survivors, wanted));
        let sources: Vec<&[u8]> = survivors.iter().filter_map(|at| shards[*at]).collect();
        let mut places = vec![None; shards.len()];
        in_pieces(&sources, found, |sources, found| {
            for (at, source) in survivors.iter().zip(sources) {
                places[*at] = Some(*source);
            }
            self.matrix.recover_with(&plan, &places, found).expect("numbers and lengths were checked");
        });
    }

    fn plan(&self, survivors: &[usize], wanted: &[usize]) -> DecodePlan {
        let mut present = vec![false; self.data + self.parities];
        survivors.iter().for_each(|at| present[*at] = true);
        self.matrix.decode_plan(&present, wanted).expect("any rows of Cauchy's matrix can be inverted")
    }
}

/// Cuts a shard of data to its own length. What is cut off was computed, not read: anything but zeros says
/// that it was computed from shards of different sets.
fn cut_padding(shard: usize, bytes: &mut Vec<u8>, length: usize) -> Result<(), CodeError> {
    if bytes[length..].iter().any(|byte| *byte != 0) {
        return Err(CodeError::Mixed(shard));
    }
    bytes.truncate(length);
    Ok(())
}

fn check_wanted(shards: &[Option<&[u8]>], wanted: &[usize]) -> Result<(), CodeError> {
    let mut least = 0;
    for shard in wanted {
        if *shard < least || shards.get(*shard) != Some(&None) {
            return Err(CodeError::Wanted(*shard));
        }
        least = shard + 1;
    }
    Ok(())
}

fn check_count(given: usize, members: usize) -> Result<(), CodeError> {
    if given == members { Ok(()) } else { Err(CodeError::Count { given, members }) }
}

fn check_length(shard: usize, bytes: usize, expected: usize) -> Result<(), CodeError> {
    if bytes == expected { Ok(()) } else { Err(CodeError::Length { shard, bytes, expected }) }
}

fn longest(lengths: impl Iterator<Item = usize>) -> usize {
    lengths.max().unwrap_or(0)
}

fn slices(shards: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    shards.iter_mut().map(Vec::as_mut_slice).collect()
}

fn list(shards: &[usize]) -> String {
    shards.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
