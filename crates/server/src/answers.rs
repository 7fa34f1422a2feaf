//! Fields of the answers that cores give each other: numbers in eight bytes, and bytes after their number.
//!
//! Role: one form for what a question brings back beyond a number or a text. Place on the path: beside
//! it; operators' commands alone.
//!
//! Invariant: what is read is what was written, in the same order: both ends are this program.

/// Appends a number.
pub(crate) fn put_number(answer: &mut Vec<u8>, number: u64) {
    answer.extend_from_slice(&number.to_le_bytes());
}

/// Appends bytes.
pub(crate) fn put_bytes(answer: &mut Vec<u8>, bytes: &[u8]) {
    put_number(answer, bytes.len() as u64);
    answer.extend_from_slice(bytes);
}

/// The fields of an answer, from the front.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// True at the end of the answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next field, a number.
    pub(crate) fn number(&mut self) -> u64 {
        let (number, rest) = self.0.split_first_chunk().expect("an answer has all its fields");
        self.0 = rest;
        u64::from_le_bytes(*number)
    }

    /// The next field, bytes.
    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let length = self.number() as usize;
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }
}
