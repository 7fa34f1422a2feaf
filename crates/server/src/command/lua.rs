//! The words of a Lua text, as far as scripts that are known have any.
//!
//! Role: makes texts that Lua takes for the same the same, and no others. Place on the path: below
//! [`super::known_scripts`].
//!
//! Invariant: a text that has words beyond these (escapes in strings, comments of several lines, numbers that
//! are not whole) has none: it is not known.

/// What Lua keeps for itself.
const RESERVED: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// The words of a text one after the other, with a blank between any two: strings in double quotes and small
/// letters, as they name commands; local variables by their number; without semicolons and without the
/// parentheses of a whole condition. Nothing for what has other words, or has them where Lua refuses them.
pub(super) fn normal(text: &str) -> Option<String> {
    let mut words = without_semicolons(words(text)?)?;
    name_locals(&mut words)?;
    open_conditions(&mut words);
    Some(words.join(" "))
}

/// True behind what a value may end with: what follows may be an operator, or the next statement.
fn ends_value(word: &str) -> bool {
    let is_reserved = RESERVED.contains(&word);
    let is_constant = matches!(word, "true" | "false" | "nil");
    let ends = word.ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ')' | ']' | '"'));
    ends && (!is_reserved || is_constant)
}

fn words(text: &str) -> Option<Vec<String>> {
    let mut words: Vec<String> = Vec::new();
    let (mut rest, mut is_new_line) = (text, false);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            ' ' | '\t' | '\x0b' | '\x0c' => 1,
            '\n' | '\r' => {
                is_new_line = true;
                1
            }
            '-' if rest.starts_with("--[") => return None,
            '-' if rest.starts_with("--") => rest.find(['\n', '\r']).unwrap_or(rest.len()),
            '"' | '\'' => {
                let inside = rest[1..].split_once(first)?.0;
                let is_plain = inside.chars().all(|c| c.is_ascii_alphabetic());
                words.push(is_plain.then(|| format!("\"{}\"", inside.to_ascii_lowercase()))?);
                inside.len() + 2
            }
            'a'..='z' | 'A'..='Z' | '_' | '0'..='9' => {
                let is_in = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let length = rest.find(|c| !is_in(c)).unwrap_or(rest.len());
                let is_number = rest[..length].bytes().all(|byte| byte.is_ascii_digit());
                // Lua joins digits and what follows them.
                if first.is_ascii_digit() && (!is_number || rest[length..].starts_with('.')) {
                    return None;
                }
                words.push(rest[..length].to_owned());
                length
            }
            _ => {
                let known = ["==", "~=", "(", ")", "[", "]", ",", ".", "=", "#", "+", "-", ";"];
                let word = known.into_iter().find(|word| rest.starts_with(word))?;
                // A call, or a statement of its own: Lua does not guess.
                if word == "(" && is_new_line && words.last().is_some_and(|last| ends_value(last)) {
                    return None;
                }
                words.push(word.to_owned());
                word.len()
            }
        };
        is_new_line &= matches!(first, ' ' | '\t' | '\x0b' | '\x0c' | '\n' | '\r') || rest.starts_with("--");
        rest = &rest[length..];
    }
    Some(words)
}

/// A semicolon may stand between two statements, and behind the last one of a block.
fn without_semicolons(words: Vec<String>) -> Option<Vec<String>> {
    let (mut kept, mut depth) = (Vec::with_capacity(words.len()), 0_i32);
    for (at, word) in words.iter().enumerate() {
        depth += i32::from(matches!(word.as_str(), "(" | "["));
        depth -= i32::from(matches!(word.as_str(), ")" | "]"));
        if word != ";" {
            kept.push(word.clone());
            continue;
        }
        let last = at.checked_sub(1).map_or("", |before| &words[before]);
        let next = words.get(at + 1).map_or("end", String::as_str);
        let is_reserved = RESERVED.contains(&next);
        let begins = next.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && !is_reserved
            || matches!(next, "end" | "else" | "elseif" | "for" | "if" | "local" | "return");
        if depth != 0 || !begins || !(ends_value(last) || last == "end") {
            return None;
        }
    }
    Some(kept)
}

/// Local variables have any names but those that Lua keeps for itself.
fn name_locals(words: &mut [String]) -> Option<()> {
    let declared = |pair: &[String]| (pair[0] == "local").then(|| pair[1].clone());
    let locals: Vec<String> = words.windows(2).filter_map(declared).collect();
    for (number, local) in locals.iter().enumerate() {
        if RESERVED.contains(&local.as_str()) {
            return None;
        }
        for at in 0..words.len() {
            let is_field = at > 0 && words[at - 1] == ".";
            if words[at] == *local && !is_field {
                words[at] = format!("${number}");
            }
        }
    }
    Some(())
}

/// `if (a) then` is `if a then`.
fn open_conditions(words: &mut Vec<String>) {
    let mut at = 0;
    while at + 1 < words.len() {
        if matches!(words[at].as_str(), "if" | "elseif")
            && words[at + 1] == "("
            && let Some(end) = closing(words, at + 1)
            && words.get(end + 1).is_some_and(|word| word == "then")
        {
            words.remove(end);
            words.remove(at + 1);
        }
        at += 1;
    }
}

/// Where the parenthesis is closed that opens at this word.
fn closing(words: &[String], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, word) in words.iter().enumerate().skip(open) {
        match word.as_str() {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::normal;

    #[test]
    fn what_lua_takes_for_the_same_is_the_same() {
        let same = [
            "if redis.call('get', KEYS[1]) == ARGV[1] then return 1 end",
            "if(redis.call(\"GET\",KEYS[1])==ARGV[1])then return 1;end",
            "if redis . call ( 'Get' ,\tKEYS [ 1 ] ) -- ours\r== ARGV[1]\nthen return 1 end; -- done",
        ];
        let all: Vec<_> = same.iter().map(|text| normal(text).expect(text)).collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
        assert_eq!(normal("local a = 1 return a"), normal("local val = 1; return val"));
    }

    #[test]
    fn what_lua_takes_for_another_is_another() {
        let base = normal("if redis.call('get', KEYS[1]) == ARGV[1] then return 1 end");
        for other in [
            "ifredis.call('get', KEYS[1]) == ARGV[1] then return 1 end",
            "IF redis.call('get', KEYS[1]) == ARGV[1] then return 1 end",
            "if redis.call('get', KEYS[1]) = = ARGV[1] then return 1 end",
            "if redis.call('g et', KEYS[1]) == ARGV[1] then return 1 end",
            "if redis.call(\"get', KEYS[1]) == ARGV[1] then return 1 end",
            "if redis.call('get', keys[1]) == ARGV[1] then return 1 end",
            "if redis.call('get', KEYS[1]) == ARGV[1] then; return 1 end",
            "if redis.call('get', KEYS[1]) == ARGV[1] then return 1 end;;",
            "if redis.call('get', KEYS[1]) == ARGV[1] then return 1.5 end",
            "if redis.call('get', KEYS[1]) == ARGV[1] then return 1 end --x\rreturn 2",
            "if redis.call('\\103et', KEYS[1]) == ARGV[1] then return 1 end",
            "--[[ if redis.call('get', KEYS[1]) == ARGV[1] then return 1 end ]]",
            "; if redis.call('get', KEYS[1]) == ARGV[1] then return 1 end",
            "if ; redis.call('get', KEYS[1]) == ARGV[1] then return 1 end",
            "if redis.call;('get', KEYS[1]) == ARGV[1] then return 1 end",
            "if redis.call('get', KEYS[1 ;]) == ARGV[1] then return 1 end",
            "if redis.call('get', KEYS[1]) ; == ARGV[1] then return 1 end",
            "if redis.call('get', KEYS[1]) == ARGV ; [1] then return 1 end",
            "if redis.call\n('get', KEYS[1]) == ARGV[1] then return 1 end",
            "if redis.call\n\x0b('get', KEYS[1]) == ARGV[1] then return 1 end",
            "if redis.call -- x\n ('get', KEYS[1]) == ARGV[1] then return 1 end",
        ] {
            assert_ne!(normal(other), base, "{other}");
        }
        assert_ne!(normal("local a = 1 return b"), normal("local a = 1 return a"));
        assert_ne!(normal("local call = 1 return redis.call"), normal("local a = 1 return redis.a"));
        assert_ne!(normal("local a = 1 return local_0"), normal("local a = 1 return a"));
        assert_eq!(normal("local true = 1 return true"), None);
    }
}
