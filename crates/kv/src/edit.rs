//! Changes of a value that depend on what it was: what INCR, APPEND and SETRANGE do.
//!
//! Role: a pure function from the old value to the new one, run by the device while nobody else writes
//! the key, so that changes of one key need not wait for each other's durability. Place on the path:
//! inside a store.
//!
//! Invariant: numbers are read and written as Redis does, so that what one wrote the other reads.
//!
//! Never: it makes a value longer than it is allowed to be.

/// A change.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// Adds to a decimal integer; absent is 0.
    Add(i64),
    /// Adds to a decimal number; absent is 0.
    AddFloat(f64),
    /// Appends bytes; absent is empty.
    Append(Vec<u8>),
    /// Writes bytes from an offset on; what lies between the old end and the offset becomes zeros.
    WriteAt {
        /// The first byte written.
        offset: u64,
        /// What is written.
        bytes: Vec<u8>,
    },
}

impl Eq for Edit {}

/// Why a change cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The old value is no decimal integer of 64 bits.
    #[error("value is not an integer or out of range")]
    NotAnInteger,
    /// The sum does not fit 64 bits.
    #[error("increment or decrement would overflow")]
    Overflow,
    /// The old value is no number.
    #[error("value is not a valid float")]
    NotAFloat,
    /// The sum is no finite number.
    #[error("increment would produce NaN or Infinity")]
    NotFinite,
}

impl Edit {
    /// Bytes of the new value, if the old one had so many. Numbers: the longest that there are.
    #[must_use]
    pub fn bytes_max(&self, old_bytes: u64) -> u64 {
        match self {
            Edit::Add(_) => 20,
            Edit::AddFloat(_) => FLOAT_BYTES_MAX,
            Edit::Append(bytes) => old_bytes.saturating_add(bytes.len() as u64),
            Edit::WriteAt { offset, bytes } => offset.saturating_add(bytes.len() as u64).max(old_bytes),
        }
    }

    /// The new value. The caller has looked at [`Edit::bytes_max`].
    ///
    /// # Errors
    /// The old value is not what the change works on.
    pub fn apply(&self, old: Option<&[u8]>) -> Result<Vec<u8>, EditError> {
        match self {
            Edit::Add(amount) => {
                let old = old.map_or(Some(0), integer).ok_or(EditError::NotAnInteger)?;
                let sum = old.checked_add(*amount).ok_or(EditError::Overflow)?;
                Ok(sum.to_string().into_bytes())
            }
            Edit::AddFloat(amount) => {
                let sum = old.map_or(Some(0.0), float).ok_or(EditError::NotAFloat)? + amount;
                if sum.is_finite() { Ok(float_text(sum)) } else { Err(EditError::NotFinite) }
            }
            Edit::Append(bytes) => Ok([old.unwrap_or_default(), bytes].concat()),
            Edit::WriteAt { offset, bytes } => {
                let mut new = old.unwrap_or_default().to_vec();
                let end = *offset as usize + bytes.len();
                new.resize(new.len().max(end), 0);
                new[*offset as usize..end].copy_from_slice(bytes);
                Ok(new)
            }
        }
    }
}

/// A decimal integer of 64 bits: no plus, no blanks, no leading zeros, no `-0`.
#[must_use]
pub fn integer(bytes: &[u8]) -> Option<i64> {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    match digits {
        b"0" if digits.len() == bytes.len() => return Some(0),
        [b'1'..=b'9', rest @ ..] if rest.len() < 19 && rest.iter().all(u8::is_ascii_digit) => {}
        _ => return None,
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Bytes of the longest text of a float that is written, and read.
const FLOAT_BYTES_MAX: u64 = 350;

/// A decimal number without blanks: what C's `strtold` takes whole, without hexadecimal.
#[must_use]
pub fn float(bytes: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= FLOAT_BYTES_MAX)?;
    text.parse().ok().filter(|number: &f64| !number.is_nan())
}

/// A float as Redis writes it after an increment: no exponent, the shortest digits that give it back.
fn float_text(number: f64) -> Vec<u8> {
    // Minus zero is written as zero.
    if number == 0.0 { b"0".to_vec() } else { format!("{number}").into_bytes() }
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
