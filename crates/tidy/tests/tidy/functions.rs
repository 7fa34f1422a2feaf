//! Functions have at most 100 lines, from signature to closing brace. Longer ones are listed with the
//! lines they have, and may only shrink.

use crate::tree::{Source, files, report};

const LINES_MAX: usize = 100;
/// Longer functions: file, name, lines.
const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[];

/// A function of a file.
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    /// The line of its signature, from 1.
    pub(crate) line: usize,
    pub(crate) lines: Vec<&'a str>,
}

/// The name of the function that a line begins, if it begins one.
fn begins(line: &str) -> Option<&str> {
    let mut words = line.trim_start();
    loop {
        let rest = [
            "pub(crate) ",
            "pub(super) ",
            "pub ",
            "const ",
            "async ",
            concat!("un", "safe "),
            "extern \"C\" ",
        ];
        match rest.iter().find_map(|word| words.strip_prefix(word)) {
            Some(rest) => words = rest,
            None => break,
        }
    }
    let rest = words.strip_prefix("fn ")?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(&rest[..end]).filter(|name| !name.is_empty())
}

/// The functions of a text that rustfmt has laid out: a body ends with a brace below its signature.
pub(crate) fn functions(text: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = begins(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let close = format!("{indent}}}");
        let short = line.ends_with('}') || line.ends_with(';');
        let declared =
            || lines[at..].iter().take_while(|line| !line.ends_with('{')).any(|l| l.ends_with(");"));
        let end = if short || (!line.ends_with('{') && declared()) {
            at
        } else {
            (at..lines.len()).find(|end| lines[*end] == close).unwrap_or(at)
        };
        found.push(Function { name, line: at + 1, lines: lines[at..=end].to_vec() });
    }
    found
}

#[test]
fn functions_are_short() {
    let mut findings = Vec::new();
    for file in files().into_iter().filter(Source::is_rust) {
        let text = file.text();
        for function in functions(&text) {
            let listed =
                LONG_FUNCTIONS.iter().find(|(path, name, _)| *path == file.path && *name == function.name);
            let (lines, most) = (function.lines.len(), listed.map_or(LINES_MAX, |(_, _, lines)| *lines));
            if lines > most {
                findings.push(format!(
                    "{}:{}: {} has {lines} lines; {most} at most: give its steps names of their own",
                    file.path, function.line, function.name
                ));
            } else if listed.is_some() && lines < most {
                findings.push(format!(
                    "{}:{}: {} has only {lines} lines now; say so in LONG_FUNCTIONS",
                    file.path, function.line, function.name
                ));
            }
        }
    }
    report(&findings);
}

#[test]
fn functions_are_found_with_their_bodies() {
    let text = [
        "fn a() {}\n\nimpl X {\n    pub(crate) async fn b(\n        x: u32,\n    ) -> u32 {\n        x\n    }\n}\n",
        "trait T {\n    fn c(&self);\n    fn d(\n        &self,\n    );\n}\n",
        "fn e() {\n    if x {\n    }\n}\n",
    ]
    .concat();
    let found: Vec<(&str, usize)> = functions(&text).iter().map(|f| (f.name, f.lines.len())).collect();
    assert_eq!(found, [("a", 1), ("b", 5), ("c", 1), ("d", 1), ("e", 4)]);
}
