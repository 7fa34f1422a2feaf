//! `docs/request-path.md` against the code: every function it names stands in the file it names, and
//! the function that it says calls it does.
//!
//! A row is: number, function, file, who calls it, what happens. Who calls it is a function of an
//! earlier row, or words in italics where the code has no call: a task that wakes, a table, a trait.

use crate::functions::functions;
use crate::tree::{exists, read, report};

const PAGE: &str = "docs/request-path.md";

struct Row {
    line: usize,
    function: String,
    file: String,
    caller: String,
}

fn bare(cell: &str) -> String {
    cell.trim().trim_matches('`').to_owned()
}

/// The walks of the page: each heading's rows.
fn walks(page: &str) -> Vec<(String, Vec<Row>)> {
    let mut walks: Vec<(String, Vec<Row>)> = Vec::new();
    for (number, line) in page.lines().enumerate() {
        if let Some(heading) = line.strip_prefix("## ") {
            walks.push((heading.to_owned(), Vec::new()));
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let is_step = cells.first().is_some_and(|cell| cell.trim().parse::<u32>().is_ok());
        if line.starts_with('|') && is_step && cells.len() == 5 {
            let row = Row {
                line: number + 1,
                function: bare(cells[1]),
                file: bare(cells[2]),
                caller: cells[3].trim().to_owned(),
            };
            walks.last_mut().expect("a walk has a heading").1.push(row);
        }
    }
    walks.retain(|(_, rows)| !rows.is_empty());
    walks
}

/// True if one of the functions of that name in a file calls a function.
fn calls(file: &str, caller: &str, callee: &str) -> bool {
    let text = read(file);
    let call = format!("{callee}(");
    let is_call = |line: &&str| {
        line.match_indices(&call).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            before.is_none_or(|before| !before.is_alphanumeric() && before != '_')
        })
    };
    let named = functions(&text).into_iter().filter(|function| function.name == caller);
    named.flat_map(|function| function.lines.into_iter().skip(1)).any(|line| is_call(&line))
}

#[test]
fn the_request_path_is_true() {
    let mut findings = Vec::new();
    let page = read(PAGE);
    for (_, rows) in walks(&page) {
        for (index, row) in rows.iter().enumerate() {
            let place = format!("{PAGE}:{}", row.line);
            if !exists(&row.file) {
                findings.push(format!("{place}: {} does not exist", row.file));
                continue;
            }
            let text = read(&row.file);
            if !functions(&text).iter().any(|function| function.name == row.function) {
                findings.push(format!("{place}: {} has no function {}", row.file, row.function));
                continue;
            }
            if row.caller.starts_with('*') {
                continue;
            }
            let caller = bare(&row.caller);
            let before = rows[..index].iter().filter(|earlier| earlier.function == caller);
            let known = before.clone().count() > 0;
            if !known || !before.clone().any(|earlier| calls(&earlier.file, &caller, &row.function)) {
                findings
                    .push(format!("{place}: {caller}, in an earlier row, does not call {}", row.function));
            }
        }
    }
    report(&findings);
}

#[test]
fn the_page_walks_a_get_and_a_set() {
    let page = read(PAGE);
    let walks = walks(&page);
    for name in ["A SET", "A GET"] {
        let rows = walks.iter().find(|(heading, _)| heading.starts_with(name)).map(|(_, rows)| rows.len());
        assert!(rows.is_some_and(|rows| rows >= 10), "{PAGE}: '{name}' has {rows:?} steps");
    }
}

#[test]
fn calls_are_found_in_the_body() {
    let file = "crates/tidy/tests/tidy/request_path.rs";
    assert!(calls(file, "walks", "bare") && !calls(file, "walks", "calls"));
}
