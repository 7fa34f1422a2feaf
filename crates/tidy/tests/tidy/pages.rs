//! Pages and other files.
//!
//! * a page names only paths that exist;
//! * no file names a place of somebody's machine;
//! * no file is over 1 MiB.

use crate::tree::{Source, exists, files, report};

const BYTES_MAX: u64 = 1 << 20;
/// Folders whose names, at the head of a path in backticks, make it a path of the project.
const HEADS: [&str; 7] = ["bench/", "crates/", "docs/", "fuzz/", ".ci/", "tests/", "packaging/"];
/// Places of machines. Written in two halves, so that this file passes.
const MACHINE: &[(&str, &str)] =
    &[("/wo", "rk/"), ("/tmp/", "bash"), ("/ro", "ot/"), ("/ho", "me/"), ("/Us", "ers/")];

fn pages() -> impl Iterator<Item = Source> {
    files().into_iter().filter(|file| file.path.ends_with(".md"))
}

/// The paths of the project that a line names: in backticks, or as the target of a link.
fn paths(line: &str) -> Vec<&str> {
    let quoted =
        line.split('`').skip(1).step_by(2).filter(|word| HEADS.iter().any(|head| word.starts_with(head)));
    let linked = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let linked = linked.filter(|target| !target.contains("://") && !target.starts_with('#'));
    let whole = |path: &&str| !path.contains(['*', '{', '<', ' ']);
    quoted.chain(linked).map(|path| path.split('#').next().unwrap_or(path)).filter(whole).collect()
}

#[test]
fn pages_name_only_what_exists() {
    let mut findings = Vec::new();
    for page in pages() {
        let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        for (number, line) in page.text().lines().enumerate() {
            for path in paths(line) {
                if !exists(path) && !exists(&format!("{folder}/{path}")) {
                    findings.push(format!(
                        "{}:{}: {path} does not exist; name what does, or leave it out",
                        page.path,
                        number + 1
                    ));
                }
            }
        }
    }
    report(&findings);
}

#[test]
fn files_name_no_machine() {
    let mut findings = Vec::new();
    for file in files().into_iter().filter(Source::is_text) {
        for (number, line) in file.text().lines().enumerate() {
            for (first, second) in MACHINE {
                let place = format!("{first}{second}");
                if line.contains(&place) {
                    let at = format!("{}:{}", file.path, number + 1);
                    findings.push(format!(
                        "{at}: {place}: a place of one machine; name it from the root, or in words"
                    ));
                }
            }
        }
    }
    report(&findings);
}

#[test]
fn files_are_small() {
    let large = files().into_iter().filter(|file| file.bytes > BYTES_MAX);
    let findings: Vec<String> = large
        .map(|file| {
            format!(
                "{}: {} bytes; {BYTES_MAX} at most: make it in a test, or make it smaller",
                file.path, file.bytes
            )
        })
        .collect();
    report(&findings);
}

#[test]
fn paths_are_found_in_backticks_and_links() {
    let line = "see `crates/kv/src/lib.rs`, `make run`, [it](docs/a.md#part), [they](https://x.org) and `crates/*/x`";
    assert_eq!(paths(line), ["crates/kv/src/lib.rs", "docs/a.md"]);
}
