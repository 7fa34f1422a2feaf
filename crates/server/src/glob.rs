//! Redis' glob patterns: `*`, `?`, `[a-z]`, `[^a]`, `\x`.
//!
//! Role: MATCH of SCAN, KEYS, patterns of CONFIG GET and COMMAND LIST. Invariants: the meaning is that of
//! Redis' `stringmatchlen`, odd cases too; time is bounded by pattern times text, because only the
//! last star is ever tried again. Never: allocate for a match.

#[cfg(test)]
mod tests;

/// The bytes that every text which matches begins with.
#[must_use]
pub(crate) fn literal_prefix(pattern: &[u8]) -> Vec<u8> {
    pattern.iter().copied().take_while(|byte| !b"*?[\\".contains(byte)).collect()
}

/// Whether `text` matches `pattern`; ASCII letters match either case if `ignore_case`.
#[must_use]
pub(crate) fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on if the rest does not match: after the last star, one byte of text further.
    let mut again: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            while pattern.get(p) == Some(&b'*') {
                p += 1;
            }
            if p == pattern.len() {
                return true;
            }
            again = Some((p, t));
            continue;
        }
        if p == pattern.len() && t == text.len() {
            return true;
        }
        if let (true, Some(&byte)) = (p < pattern.len(), text.get(t))
            && let Some(next) = matches_one(&pattern[p..], byte, ignore_case)
        {
            p += next;
            t += 1;
            continue;
        }
        match again {
            Some((star, from)) if from < text.len() => {
                again = Some((star, from + 1));
                (p, t) = (star, from + 1);
            }
            _ => return false,
        }
    }
}

fn fold(byte: u8, ignore_case: bool) -> u8 {
    if ignore_case { byte.to_ascii_lowercase() } else { byte }
}

/// Matches one byte against the first element of a pattern; the element's length if it matches.
fn matches_one(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<usize> {
    let same = |a: u8| fold(a, ignore_case) == fold(byte, ignore_case);
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', rest @ ..] => {
            let (matched, length) = matches_class(rest, byte, ignore_case);
            matched.then_some(1 + length)
        }
        [b'\\', escaped, ..] => same(*escaped).then_some(2),
        [plain, ..] => same(*plain).then_some(1),
        [] => None,
    }
}

/// Matches a byte against a class, after its `[`; whether it matches and the class' length. A
/// class that is not closed ends with the pattern.
fn matches_class(class: &[u8], byte: u8, ignore_case: bool) -> (bool, usize) {
    let byte = fold(byte, ignore_case);
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                found |= fold(*escaped, ignore_case) == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                let (low, high) = (from.min(to), from.max(to));
                found |= (fold(*low, ignore_case)..=fold(*high, ignore_case)).contains(&byte);
                at += 3;
            }
            [plain, ..] => {
                found |= fold(*plain, ignore_case) == byte;
                at += 1;
            }
        }
    }
    (found != negated, at)
}
