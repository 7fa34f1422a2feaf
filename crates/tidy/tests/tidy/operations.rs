//! `docs/operations.md` against the code: the flags, metrics and log lines that it names exist.

use crate::tree::{Source, files, read, report};

const PAGE: &str = "docs/operations.md";

/// The words in backticks of a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn code(below: &str) -> String {
    let of_product = files().into_iter().filter(|file| file.is_product() && file.path.starts_with(below));
    of_product.map(|file: Source| file.text()).collect::<Vec<_>>().join("\n")
}

#[test]
fn flags_exist() {
    let flags = code("crates/plimsoll/src/cli");
    let mut findings = Vec::new();
    for (number, line) in read(PAGE).lines().enumerate() {
        for flag in quoted(line).filter_map(|word| word.strip_prefix("--")) {
            let name = flag.split(' ').next().unwrap_or(flag);
            let field = format!("{}: ", name.replace('-', "_"));
            if !flags.contains(&field) {
                let line = number + 1;
                findings.push(format!("{PAGE}:{line}: the command line has no flag --{name}"));
            }
        }
    }
    report(&findings);
}

#[test]
fn metrics_exist() {
    let server = code("crates/server/src");
    let mut findings = Vec::new();
    for (number, line) in read(PAGE).lines().enumerate() {
        for full in quoted(line).filter_map(|word| word.strip_prefix("plimsoll_")) {
            let plain = full.trim_start_matches("partition_").trim_start_matches("device_");
            let names = [full, plain, plain.trim_end_matches("_total")];
            if !names.iter().any(|name| server.contains(&format!("\"{name}\""))) {
                let line = number + 1;
                findings.push(format!("{PAGE}:{line}: no metric plimsoll_{full} is published"));
            }
        }
    }
    report(&findings);
}

#[test]
fn log_lines_exist() {
    // A literal may be broken over lines: what stands between a backslash and the next word is nothing.
    let mut all = String::new();
    let mut continued = false;
    for line in code("crates/").lines() {
        all.push_str(if continued { line.trim_start() } else { line });
        continued = all.ends_with('\\');
        if continued {
            all.pop();
        } else {
            all.push('\n');
        }
    }
    let page = read(PAGE);
    let table = page.split("## Log lines").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows =
        table.expect("the page has a section of log lines").lines().filter(|line| line.starts_with("| `"));
    let mut findings = Vec::new();
    let mut count = 0;
    for row in rows {
        let first = row.split('|').nth(1).unwrap_or_default();
        for words in quoted(first) {
            count += 1;
            if !all.contains(words) {
                findings.push(format!("{PAGE}: nothing logs '{words}'; say what is logged, or leave it out"));
            }
        }
    }
    assert!(count > 10, "the page names log lines");
    report(&findings);
}
