//! Layering: which crate may use which. The same table stands in `docs/architecture.md`.

use crate::tree::{read, report, root};
use std::collections::BTreeMap;

/// One line a crate, in the order of the data's way; a crate uses only what its line names.
const ALLOWED: &[(&str, &[&str])] = &[
    ("plimsoll", &["server", "array", "flash", "sim", "bench", "reactor", "resp"]),
    ("resp", &[]),
    ("nvme", &[]),
    (
        "server",
        &["resp", "nvme", "balance", "cache", "array", "flash", "gate", "kv", "reactor", "client", "cluster"],
    ),
    ("balance", &["kv"]),
    ("cache", &["kv", "reactor"]),
    ("array", &["slots", "kv", "reactor"]),
    ("slots", &["kv", "reactor"]),
    ("flash", &["gate", "kv", "reactor"]),
    ("gate", &["kv", "reactor"]),
    ("kv", &["reactor"]),
    ("reactor", &[]),
    ("client", &["resp", "nvme", "kv", "reactor"]),
    ("cluster", &["resp", "client", "kv", "reactor"]),
    ("blobfs", &["client", "kv", "reactor"]),
    ("sim", EVERY),
    ("bench", EVERY),
    ("tidy", EVERY),
];
/// Tools and tests may use all that is above them in the table.
const EVERY: &[&str] = &[
    "resp", "nvme", "server", "balance", "cache", "array", "slots", "flash", "gate", "kv", "reactor",
    "client", "cluster", "blobfs",
];

/// The crates of the workspace that a manifest names as dependencies, of whatever kind.
fn uses(manifest: &str) -> Vec<(usize, String)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (number, line) in manifest.lines().enumerate() {
        if let Some(section) = line.strip_prefix('[') {
            inside = section.contains("dependencies");
        }
        let name = line.strip_prefix("plimsoll-").filter(|_| inside);
        if let Some(name) = name.and_then(|rest| rest.split(['.', ' ', '=']).next()) {
            found.push((number + 1, name.to_owned()));
        }
    }
    found
}

fn crates() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("crates/ can be read") {
        let name = entry.expect("crates/ can be read").file_name().to_string_lossy().into_owned();
        let manifest = read(&format!("crates/{name}/Cargo.toml"));
        found.insert(name, manifest);
    }
    found
}

#[test]
fn crates_use_only_what_their_line_allows() {
    let mut findings = Vec::new();
    for (name, manifest) in crates() {
        let path = format!("crates/{name}/Cargo.toml");
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
            findings
                .push(format!("{path}: unknown crate; give it a line in crates/tidy/tests/tidy/layers.rs"));
            continue;
        };
        for (line, used) in uses(&manifest) {
            if !allowed.contains(&used.as_str()) {
                findings.push(format!(
                    "{path}:{line}: {name} must not use {used}: move what both need into a crate that both may \
                     use, or pass it in as a trait (docs/architecture.md, Layers)"
                ));
            }
        }
    }
    report(&findings);
}

#[test]
fn allowed_edges_have_no_cycle() {
    // Taking away crates that use nothing that is left must take away all.
    let mut left: BTreeMap<&str, Vec<&str>> =
        ALLOWED.iter().map(|(name, uses)| (*name, uses.to_vec())).collect();
    while !left.is_empty() {
        let free: Vec<&str> = left
            .iter()
            .filter(|(_, uses)| uses.iter().all(|used| !left.contains_key(used)))
            .map(|(name, _)| *name)
            .collect();
        assert!(!free.is_empty(), "these crates may use each other in a circle: {:?}", left.keys());
        free.iter().for_each(|name| drop(left.remove(name)));
    }
}

#[test]
fn the_architecture_page_has_the_same_table() {
    let page = read("docs/architecture.md");
    let mut findings = Vec::new();
    for (name, allowed) in ALLOWED {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let Some(row) = row else {
            findings.push(format!("docs/architecture.md: the table of layers has no row for `{name}`"));
            continue;
        };
        let cell = row.split('|').nth(3).unwrap_or_default().trim().to_owned();
        let expected = if *allowed == EVERY { "all above".to_owned() } else { list(allowed) };
        if cell != expected {
            findings.push(format!("docs/architecture.md: `{name}` may use '{expected}', not '{cell}'"));
        }
    }
    report(&findings);
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

#[test]
fn uses_are_found_in_every_section() {
    let manifest = "[package]\nname = \"plimsoll-x\"\n[dependencies]\nplimsoll-kv.workspace = true\n\
                    [dev-dependencies]\nplimsoll-sim = { path = \"../sim\" }\n[features]\nplimsoll-no = []\n";
    assert_eq!(uses(manifest), [(4, "kv".to_owned()), (6, "sim".to_owned())]);
}
