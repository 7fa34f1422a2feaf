//! What can go wrong with a request, and how each protocol says it.

use crate::edit::EditError;

/// Why a request failed. "Full" and "busy" are not "broken": see [`Error::is_retryable`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The key does not exist.
    #[error("no such key")]
    NotFound,
    /// The key exists, and the request said that it must not.
    #[error("key exists")]
    Exists,
    /// The key's version is not the one the request asked for.
    #[error("version does not match")]
    VersionMismatch,
    /// The device has no room. Reads and deletes go on; stores succeed again once space is back.
    #[error("no space left on device")]
    NoSpace,
    /// The memory that was given for keys is used up. Reads and deletes go on, and make room.
    #[error("no memory left for another key")]
    NoMemory,
    /// The key is longer than [`crate::limits::KEY_BYTES_MAX`].
    #[error("key is too long")]
    KeyTooLong,
    /// The value is longer than the device takes.
    #[error("value is too long")]
    ValueTooLong,
    /// What was stored cannot be read back: a device error or a checksum that does not match.
    /// The text says what and where.
    #[error("stored data cannot be read: {0}")]
    Unreadable(String),
    /// The device takes no more writes since one failed; reads go on. The text says what failed.
    #[error("writes are refused: {0}")]
    ReadOnly(String),
    /// A queue is full or the deadline cannot be met; nothing was done.
    #[error("overloaded, try again")]
    Overloaded,
    /// The value is not what the change asked for works on.
    #[error("{0}")]
    Edit(#[from] EditError),
    /// The device does not do this.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The request contradicts itself or a limit.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// The server is stopping.
    #[error("shutting down")]
    ShuttingDown,
}

/// A result of a request.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// True if the same request may succeed later without anyone repairing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::NoSpace | Error::NoMemory | Error::Overloaded | Error::ShuttingDown)
    }

    /// True if the request certainly changed nothing. After other errors a write may have happened.
    #[must_use]
    pub fn changed_nothing(&self) -> bool {
        !matches!(self, Error::ReadOnly(_) | Error::ShuttingDown | Error::Unreadable(_))
    }

    /// The NVMe status: status code type in the upper byte, status code in the lower
    /// (NVM Express Base 2.1, figure 101; Key Value Command Set 1.1, section 3; 0x1c0 and 0x1c1 are
    /// vendor-specific).
    #[must_use]
    pub fn nvme_status(&self) -> u16 {
        match self {
            Error::NotFound => 0x0087,
            Error::Exists => 0x0089,
            Error::VersionMismatch => 0x01c0,
            Error::NoSpace | Error::NoMemory => 0x0081,
            Error::KeyTooLong => 0x0086,
            Error::ValueTooLong => 0x0085,
            Error::Unreadable(_) => 0x0281,
            Error::ReadOnly(_) => 0x0020,
            Error::Overloaded => 0x0082,
            Error::Edit(_) => 0x01c1,
            Error::Unsupported(_) => 0x0001,
            Error::Invalid(_) => 0x0002,
            Error::ShuttingDown => 0x0008,
        }
    }

    /// The Redis error: its first word is part of the protocol that clients act upon.
    #[must_use]
    pub fn redis(&self) -> String {
        match self {
            Error::NoSpace => "OOM command not allowed: no space left on device".to_owned(),
            Error::NoMemory => {
                "OOM command not allowed: no memory left for another key (--memory)".to_owned()
            }
            Error::Overloaded => "TRYAGAIN overloaded, try again".to_owned(),
            Error::ReadOnly(what) => format!("MISCONF writes are refused: {what}"),
            Error::ShuttingDown => "LOADING server is shutting down".to_owned(),
            other => format!("ERR {other}"),
        }
    }
}
