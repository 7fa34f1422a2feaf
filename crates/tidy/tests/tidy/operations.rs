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

/// The code below a directory, of which literals that are broken over lines are whole again: what stands
/// between a backslash and the next word is nothing.
fn with_whole_literals(below: &str) -> String {
    let (mut all, mut continued) = (String::new(), false);
    for line in code(below).lines() {
        all.push_str(if continued { line.trim_start() } else { line });
        continued = all.ends_with('\\');
        if continued {
            all.pop();
        } else {
            all.push('\n');
        }
    }
    all
}

/// The log lines that the page explains.
fn explained(page: &str) -> Vec<&str> {
    let table = page.split("## Log lines").nth(1).and_then(|rest| rest.split("\n## ").next());
    let table = table.expect("the page has a section of log lines");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.flat_map(|row| quoted(row.split('|').nth(1).unwrap_or_default())).collect()
}

#[test]
fn log_lines_exist() {
    let (all, page) = (with_whole_literals("crates/"), read(PAGE));
    let explained = explained(&page);
    assert!(explained.len() > 10, "the page names log lines");
    let invented = explained.into_iter().filter(|words| !all.contains(words));
    let finding = |words| format!("{PAGE}: nothing logs '{words}'; say what is logged, or leave it out");
    report(&invented.map(finding).collect::<Vec<_>>());
}

/// The words of warnings and errors: the last literal of each call that has one.
fn complaints(code: &str) -> Vec<String> {
    let calls = ["tracing::warn!(", "tracing::error!("];
    let starts = calls.iter().flat_map(|call| code.match_indices(call).map(|(at, call)| at + call.len()));
    starts.filter_map(|start| last_literal(&code[start..])).collect()
}

/// The last literal before the parenthesis that closes what comes before.
fn last_literal(arguments: &str) -> Option<String> {
    let (mut depth, mut last, mut rest) = (0, None, arguments);
    loop {
        let at = rest.find(['(', ')', '"'])?;
        let (found, behind) = (rest.as_bytes()[at], &rest[at + 1..]);
        rest = behind;
        match found {
            b'(' => depth += 1,
            b')' if depth == 0 => return last,
            b')' => depth -= 1,
            _ => {
                let end = rest.find('"')?;
                last = Some(rest[..end].to_owned());
                rest = &rest[end + 1..];
            }
        }
    }
}

#[test]
fn the_words_of_a_complaint_are_its_last_literal() {
    let code =
        "tracing::warn!(name = f(\"a(b\"), \"it is so\"); g(\"no\"); x => tracing::error!(%error, \"bad\"),";
    assert_eq!(complaints(code), ["it is so", "bad"]);
}

#[test]
fn warnings_are_explained() {
    let page = read(PAGE);
    let explained = explained(&page);
    let mut findings = Vec::new();
    for below in ["array", "cache", "flash", "gate", "kv", "reactor", "server"] {
        let code = with_whole_literals(&format!("crates/{below}/src"));
        for words in complaints(&code) {
            // `{words}` is said elsewhere.
            if !words.starts_with('{') && !explained.iter().any(|line| words.contains(line)) {
                findings.push(format!("{PAGE}: '{words}', which {below} logs, is not explained"));
            }
        }
    }
    report(&findings);
}
