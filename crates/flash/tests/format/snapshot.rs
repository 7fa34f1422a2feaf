//! Constants and samples against the committed text `format.snapshot`.

use crate::document::{constants, flags, kinds};
use crate::samples;
use std::fmt::Write;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/format/format.snapshot");

fn hex(out: &mut String, bytes: &[u8]) {
    // Long structures end in zeros: their number says enough.
    let used = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
    for line in bytes[..used].chunks(32) {
        out.push_str("  ");
        for byte in line {
            write!(out, "{byte:02x}").expect("writing to a string does not fail");
        }
        out.push('\n');
    }
    writeln!(out, "  and {} zeros", bytes.len() - used).expect("writing to a string does not fail");
}

fn current() -> String {
    let mut out = String::new();
    for (name, value) in constants() {
        writeln!(out, "{name} = {value}").expect("writing to a string does not fail");
    }
    for (column, kinds) in kinds() {
        for (byte, name) in kinds {
            writeln!(out, "{column} {name} = {byte}").expect("writing to a string does not fail");
        }
    }
    for (bit, name) in flags() {
        writeln!(out, "{name} = {bit}").expect("writing to a string does not fail");
    }
    for sample in samples::all() {
        writeln!(out, "{}", sample.heading).expect("writing to a string does not fail");
        hex(&mut out, &sample.bytes);
    }
    out
}

#[test]
fn the_format_is_what_it_was() {
    let current = current();
    if std::env::var_os("PLIMSOLL_WRITE_SNAPSHOT").is_some() {
        std::fs::write(PATH, &current).expect("the snapshot can be written");
    }
    let kept = std::fs::read_to_string(PATH).unwrap_or_default();
    let changed = kept.lines().zip(current.lines()).find(|(kept, current)| kept != current);
    assert!(
        kept == current,
        "the on-flash format has changed: {changed:?}.\n\
         Devices in the field were written in the old one. A change needs a new FORMAT_VERSION (or a feature \
         bit), a new fixture (crates/flash/examples/fixture.rs), the page docs/on-flash-format.md, and a second \
         reviewer. Then write the snapshot anew:\n\
         PLIMSOLL_WRITE_SNAPSHOT=1 cargo test -p plimsoll-flash --test format"
    );
}
