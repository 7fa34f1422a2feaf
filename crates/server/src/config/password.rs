//! The password of the default user.
//!
//! Invariant: it is never written anywhere: not to the log, not by `--print-config`; a comparison takes as
//! long whatever was given.

use super::ConfigError;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::Path;

/// A password; not empty.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl<'de> Deserialize<'de> for Password {
    /// Where it is no string the usual words would show it.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Password, D::Error> {
        let text = String::deserialize(deserializer)
            .map_err(|_| D::Error::custom("a password is a string, in quotes"))?;
        Password::try_from(text).map_err(D::Error::custom)
    }
}

impl TryFrom<String> for Password {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Password, &'static str> {
        if text.is_empty() {
            Err("a password must not be empty; leave it out for none")
        } else {
            Ok(Password(text))
        }
    }
}

impl Password {
    /// The first line of a file.
    ///
    /// # Errors
    /// The file cannot be read, or its first line is empty.
    pub fn read(path: &Path) -> Result<Password, ConfigError> {
        let words = |what: &dyn fmt::Display| ConfigError(format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| words(&error))?;
        let line = text.lines().next().unwrap_or_default().to_owned();
        Password::try_from(line).map_err(|what| words(&what))
    }

    /// Whether this is what a client gave.
    #[must_use]
    pub fn is(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        // Every byte of what was given is looked at, so that the time tells nothing of where they differ.
        let differing = (0..given.len()).fold(0, |sum, at| sum | (given[at] ^ own[at % own.len()]));
        differing == 0 && given.len() == own.len()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}
