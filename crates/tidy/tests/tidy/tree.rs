//! The files of the project.

use std::path::{Path, PathBuf};

/// Folders that hold nothing of ours.
const FOREIGN: [&str; 6] = ["target", ".git", "plimsoll-data", "corpus", "artifacts", "node_modules"];
/// Files that people write, by how their names end.
const TEXT: [&str; 20] = [
    "rs",
    "md",
    "toml",
    "yml",
    "yaml",
    "json",
    "sh",
    "py",
    "go",
    "js",
    "java",
    "xml",
    "txt",
    "mod",
    "Makefile",
    "run",
    "prepare",
    "venv",
    "node",
    "gitignore",
];

/// A file of the project.
pub(crate) struct Source {
    /// Its path from the root, with slashes.
    pub(crate) path: String,
    /// Bytes.
    pub(crate) bytes: u64,
    full: PathBuf,
}

/// The root of the project.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the root exists")
}

/// True if a path from the root names something.
pub(crate) fn exists(path: &str) -> bool {
    root().join(path).exists()
}

/// The text of a file of the project.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

impl Source {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Code of the product, as opposed to tests, examples and benchmarks.
    pub(crate) fn is_product(&self) -> bool {
        let aside = ["/tests/", "/examples/", "/benches/", "fuzz/", "/tests.rs", "_tests.rs"];
        self.is_rust() && !aside.iter().any(|part| self.path.contains(part))
    }

    pub(crate) fn is_text(&self) -> bool {
        let end = self.path.rsplit(['.', '/']).next().unwrap_or_default();
        TEXT.contains(&end)
    }

    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.full).unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }
}

/// All files of the project, in the order of their paths.
pub(crate) fn files() -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder can be read") {
            let entry = entry.expect("a folder can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("a file has a type");
            if kind.is_dir() && !FOREIGN.contains(&name.as_str()) {
                folders.push(entry.path());
            } else if kind.is_file() && name != ".git" {
                let full = entry.path();
                let path = full.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
                let bytes = entry.metadata().expect("a file has a size").len();
                found.push(Source { path, bytes, full });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 50, "the project has files");
    found
}

/// Fails with all findings, if there are any.
pub(crate) fn report(findings: &[String]) {
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}
