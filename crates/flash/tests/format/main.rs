//! The on-flash format against its two records: the page `docs/on-flash-format.md` and the
//! committed snapshot of constants and samples.

mod checkpoint;
mod document;
mod reader;
mod samples;
mod snapshot;
mod tables;
