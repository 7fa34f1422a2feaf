//! Habits as tests: what the house rules say and no compiler checks.
//!
//! Every failure says the file, the line and the mend. The rules themselves stand at the top of each
//! module.

mod functions;
mod layers;
mod lines;
mod operations;
mod pages;
mod request_path;
mod tree;
