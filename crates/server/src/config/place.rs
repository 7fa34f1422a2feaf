//! Where something stands in a configuration file.
//!
//! Never: it shows what stands there, which may be a password.

use std::ops::Range;

/// Line and column where a span begins, as the head of a message; empty if it is not known.
pub(crate) fn of(text: &str, span: Option<Range<usize>>) -> String {
    let Some(before) = span.and_then(|span| text.get(..span.start)) else { return String::new() };
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|char| *char != '\n').count() + 1;
    format!("line {line}, column {column}: ")
}
