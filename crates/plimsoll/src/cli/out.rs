//! What commands print, as long as somebody reads it.
//!
//! Role: takes the places of the library's `print!` and its kind in every command, which panic where a reader
//! has gone (`plimsoll doctor | head -1`). Invariants: a command does its work and gives its exit code
//! whether or not anybody reads; what cannot be written for another reason, as on a full disk, is told at the
//! end, once.

use anyhow::{Result, bail};
use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

/// Why nothing more is written to stdout.
static ENDED: OnceLock<io::Error> = OnceLock::new();

fn note(written: io::Result<()>) {
    if let Err(error) = written {
        ENDED.get_or_init(|| error);
    }
}

/// Writes to stdout.
pub(super) fn print(text: fmt::Arguments<'_>) {
    if ENDED.get().is_none() {
        note(io::stdout().write_fmt(text));
    }
}

/// Writes to stderr, for which nobody waits.
pub(super) fn complain(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// The end of what is printed.
///
/// # Errors
/// Somebody wanted it, and has not got all of it.
pub(super) fn end() -> Result<()> {
    note(io::stdout().flush());
    match ENDED.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            bail!("what was to be printed cannot be written: {error}")
        }
        _ => Ok(()),
    }
}

// They shadow those of the library, so that no command can forget them.
macro_rules! print {
    ($($text:tt)*) => { $crate::cli::out::print(format_args!($($text)*)) };
}
macro_rules! println {
    ($($text:tt)*) => { $crate::cli::out::print(format_args!("{}\n", format_args!($($text)*))) };
}
macro_rules! eprint {
    ($($text:tt)*) => { $crate::cli::out::complain(format_args!($($text)*)) };
}
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::cli::out::complain(format_args!("{}\n", format_args!($($text)*))) };
}
