//! `plimsoll array`, as a user calls it.

mod process;

use process::{plimsoll, succeeds, told};

const PAGE: &str = include_str!("../../../docs/operations.md");

#[test]
fn the_page_shows_what_is_printed() {
    let text = succeeds(&["array", "mttdl"]);
    assert!(PAGE.contains(&format!("$ plimsoll array mttdl\n{text}```")), "{text}");
}

/// The cell of a row of the first table, of which the mechanism's name has two words.
fn cell<'a>(text: &'a str, mechanism: &str, column: usize) -> &'a str {
    let row = text.lines().find(|line| line.starts_with(mechanism)).expect("a row");
    row.split_whitespace().nth(column).expect("a cell")
}

#[test]
fn the_users_own_drives_are_reckoned_with() {
    // MTTF 100, MTTR 1: the exact chain and its approximation are those of three copies at λ = 0.01, µ = 1.
    let few = ["array", "mttdl", "--mttf", "100", "--mttr", "1", "--devices", "3", "--capacity", "4KiB"];
    let text = succeeds(&few);
    assert_eq!(
        (cell(&text, "replication 3", 5), cell(&text, "replication 3", 6)),
        ("173516.667", "166666.667")
    );
    assert_eq!((cell(&text, "replication 3", 4), cell(&text, "replication 3", 7)), ("1.000", "173516.667"));
    for left_out in ["splitting", "packing"] {
        assert!(text.contains(&format!("left out: {left_out} 4+2 needs 6 devices, there are 3")), "{text}");
    }
    let many = succeeds(&["array", "mttdl", "--devices", "64", "--copies", "32", "--data", "30"]);
    assert_eq!((cell(&many, "replication 32", 2), cell(&many, "splitting 30+2", 3)), ("32", "3"));
}

#[test]
fn what_cannot_be_is_wrong_usage() {
    for (args, words) in [
        (["--devices", "0"], "hashing needs 1 devices, there are 0"),
        (["--devices", "65"], "--devices 65: an array has 64 at most"),
        (["--mttr", "0"], "--mttr 0e0: from 1e-9 to 1e12 hours are wanted"),
        (["--mttf", "inf"], "--mttf inf: from 1e-9 to 1e12 hours are wanted"),
        (["--object", "0"], "--object 0: a size above zero is wanted"),
        (["--capacity", "1"], "--capacity 1: no set of hashing fits"),
        (["--data", "40"], "splitting 40+2 has 42 members; a set has 32 at most"),
        (["--copies", "0"], "replication 0 needs at least one of each of its parts"),
    ] {
        let output = plimsoll(&[&["array", "mttdl"], args.as_slice()].concat());
        let text = told(&output);
        assert!(output.status.code() == Some(2) && text.contains(words), "{text}");
    }
}
