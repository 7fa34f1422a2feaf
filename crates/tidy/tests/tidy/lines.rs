//! Lines and files of Rust code.
//!
//! * a line has at most 110 columns, unless a string literal makes it longer: rustfmt breaks none;
//! * no tab;
//! * a file has at most 800 lines, and those over 500 are listed: a reason to split, not to grow;
//! * a product file begins with `//!`: its role, its place on the path, its invariants;
//! * `unsafe` only in the reactor; every other crate forbids it;
//! * nothing is left for later: no words that say so, no debug prints.

use crate::tree::{Source, exists, files, read, report, root};

const COLUMNS_MAX: usize = 110;
const LINES_MAX: usize = 800;
const LINES_LISTED: usize = 500;
/// Files over [`LINES_LISTED`] lines.
const LONG_FILES: &[&str] = &[];
/// What must not be in code, and what to do instead. Written in two halves, so that this file passes.
const BANNED: &[(&str, &str, &str)] = &[
    ("to", "do!", "write it, or return an error that says what is missing"),
    ("unimple", "mented!", "write it, or return an error that says what is missing"),
    ("db", "g!", "log it with tracing, or remove it"),
    ("FIX", "ME", "fix it, or file an issue and say its number"),
    ("TO", "DO", "do it, or file an issue and say its number"),
];

fn rust() -> impl Iterator<Item = Source> {
    files().into_iter().filter(Source::is_rust)
}

/// True if the line is long for a string literal that stands on it.
fn has_literal(line: &str) -> bool {
    line.ends_with('\\') || line.split('"').skip(1).step_by(2).any(|literal| literal.len() >= 20)
}

#[test]
fn lines_are_short_and_have_no_tabs() {
    let mut findings = Vec::new();
    for file in rust() {
        for (number, line) in file.text().lines().enumerate() {
            let place = format!("{}:{}", file.path, number + 1);
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !has_literal(line) {
                findings.push(format!("{place}: {columns} columns; break the line at {COLUMNS_MAX}"));
            }
            if line.contains('\t') {
                findings.push(format!("{place}: a tab; use spaces, or \\t in a string"));
            }
        }
    }
    report(&findings);
}

#[test]
fn files_are_short() {
    let mut findings = Vec::new();
    for file in rust() {
        let lines = file.text().lines().count();
        if lines > LINES_MAX {
            findings.push(format!("{}:{lines}: more than {LINES_MAX} lines; split it by concern", file.path));
        } else if lines > LINES_LISTED && !LONG_FILES.contains(&file.path.as_str()) {
            findings.push(format!(
                "{}:{lines}: more than {LINES_LISTED} lines; split it, or list it in LONG_FILES with the reviewer's \
                 consent",
                file.path
            ));
        } else if lines <= LINES_LISTED && LONG_FILES.contains(&file.path.as_str()) {
            findings.push(format!("{}: is short again; take it off LONG_FILES", file.path));
        }
    }
    for file in LONG_FILES.iter().filter(|file| !exists(file)) {
        findings.push(format!("{file}: is gone; take it off LONG_FILES"));
    }
    report(&findings);
}

#[test]
fn product_files_say_what_they_are() {
    let silent = |file: &Source| !file.text().starts_with("//! ");
    let findings: Vec<String> = files()
        .into_iter()
        .filter(|file| file.is_product() && silent(file))
        .map(|file| format!("{}:1: begin with `//!`: role, place on the path, invariants, never", file.path))
        .collect();
    report(&findings);
}

/// The code of a line: without what stands in a comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    line.match_indices(word).any(|(at, _)| {
        let bytes = line.as_bytes();
        !is_part(at.checked_sub(1).and_then(|before| bytes.get(before)))
            && !is_part(bytes.get(at + word.len()))
    })
}

#[test]
fn unsafe_stands_in_the_reactor_alone() {
    let word = concat!("un", "safe");
    let mut findings = Vec::new();
    for file in rust().filter(|file| !file.path.starts_with("crates/reactor/")) {
        for (number, line) in file.text().lines().enumerate() {
            if has_word(code(line), word) {
                findings.push(format!(
                    "{}:{}: {word} code; do it safely, or give crates/reactor a safe function for it",
                    file.path,
                    number + 1
                ));
            }
        }
    }
    for entry in std::fs::read_dir(root().join("crates")).expect("crates/ can be read") {
        let name = entry.expect("crates/ can be read").file_name().to_string_lossy().into_owned();
        let library = format!("crates/{name}/src/lib.rs");
        let forbids = "#![forbid(unsafe_code)]";
        if name != "reactor" && exists(&library) && !read(&library).contains(forbids) {
            findings.push(format!("{library}:1: say {forbids}"));
        }
    }
    report(&findings);
}

#[test]
fn nothing_is_left_for_later() {
    let mut findings = Vec::new();
    for file in files().into_iter().filter(Source::is_text) {
        for (number, line) in file.text().lines().enumerate() {
            for (first, second, mend) in BANNED {
                let word = format!("{first}{second}");
                if has_word(line, &word) {
                    findings.push(format!("{}:{}: {word}; {mend}", file.path, number + 1));
                }
            }
        }
    }
    report(&findings);
}

#[test]
fn words_are_found_whole() {
    assert!(has_word("a bad word", "bad") && has_word("bad", "bad") && has_word("(bad!)", "bad"));
    assert!(!has_word("badly", "bad") && !has_word("not_bad", "bad"));
    assert_eq!(code("let a = 1; // and so on"), "let a = 1; ");
    assert!(has_literal("    \"a literal that is long enough\",") && !has_literal("f(\"short\")"));
}
