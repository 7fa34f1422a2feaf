//! What the cache and the known keys get of the memory: what they were given, or a default that grows with
//! it.
//!
//! Invariant: of a memory that was given each takes at most a fixed part by default, and nothing if that is
//! too little to be of use.

use super::{ConfigError, Size};

/// The size of the cache if none is given.
const CACHE_DEFAULT: Size = Size(64 << 20);
/// The part of `memory` that it is then at most.
const CACHE_PART: u64 = 8;
/// Memory for keys that are known if none is given: 2.5 million of them.
const KNOWN_KEYS_DEFAULT: Size = Size(32 << 20);
/// The part of `memory` that it is then at most.
const KNOWN_KEYS_PART: u64 = 32;
/// Where it would be less, the keys themselves need it more.
const KNOWN_KEYS_MIN: Size = Size(4 << 20);
/// The smallest cache: less is most likely a unit forgotten.
const CACHE_MIN: Size = Size(1 << 20);

/// What was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    cache: Option<Size>,
    known_keys: Option<Size>,
}

/// A default, if it is worth having.
fn default(most: Size, part: u64, least: Size, memory: Option<Size>) -> Size {
    let size = memory.map_or(most, |memory| most.min(Size(memory.0 / part)));
    if size < least { Size(0) } else { size }
}

impl Shares {
    /// # Errors
    /// A cache so small that nothing fits it.
    pub fn new(cache: Option<Size>, known_keys: Option<Size>) -> Result<Shares, ConfigError> {
        match cache {
            Some(size) if size != Size(0) && size < CACHE_MIN => Err(ConfigError(format!(
                "cache: {size} are too few to keep anything in: at least {CACHE_MIN}, or 0 for no cache"
            ))),
            _ => Ok(Shares { cache, known_keys }),
        }
    }

    /// Bytes of the cache, of so much memory.
    #[must_use]
    pub fn cache(&self, memory: Option<Size>) -> Size {
        self.cache.unwrap_or_else(|| default(CACHE_DEFAULT, CACHE_PART, CACHE_MIN, memory))
    }

    /// Bytes for keys whose records are known, of so much memory.
    #[must_use]
    pub fn known_keys(&self, memory: Option<Size>) -> Size {
        self.known_keys
            .unwrap_or_else(|| default(KNOWN_KEYS_DEFAULT, KNOWN_KEYS_PART, KNOWN_KEYS_MIN, memory))
    }
}
