//! Which words of a command are secrets: the slow log and MONITOR show something else in their place.
//!
//! Invariant: a password that a client gives is shown to nobody.

/// What is shown in the place of a secret.
pub(crate) const SHOWN: &[u8] = b"(redacted)";

/// Parameters of CONFIG SET whose values are secrets, also where this server does not know them.
const SECRET_PARAMETERS: [&[u8]; 4] =
    [b"requirepass", b"masterauth", b"tls-key-file-pass", b"tls-client-key-file-pass"];

/// Whether the word at this place of a command is a secret.
pub(crate) fn is_secret<'a>(mut args: impl Iterator<Item = &'a [u8]> + Clone, index: usize) -> bool {
    if index == 0 {
        return false;
    }
    let all = args.clone();
    let at = |index: usize| all.clone().nth(index).unwrap_or_default();
    let Some(name) = args.next() else { return false };
    // The length alone tells nearly all commands apart.
    match name.len() {
        4 if name.eq_ignore_ascii_case(b"auth") => true,
        5 if name.eq_ignore_ascii_case(b"hello") => {
            let is_auth = |index: usize| index >= 2 && at(index).eq_ignore_ascii_case(b"auth");
            is_auth(index - 1) || (index >= 2 && is_auth(index - 2))
        }
        3 if name.eq_ignore_ascii_case(b"acl") => index >= 2 && at(1).eq_ignore_ascii_case(b"setuser"),
        6 if name.eq_ignore_ascii_case(b"config") => {
            index >= 3
                && at(1).eq_ignore_ascii_case(b"set")
                && SECRET_PARAMETERS.iter().any(|secret| secret.eq_ignore_ascii_case(at(index - 1)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let show = |index: usize| {
            let hidden = is_secret(words.iter().copied(), index);
            String::from_utf8_lossy(if hidden { SHOWN } else { words[index] }).into_owned()
        };
        (0..words.len()).map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn passwords_are_hidden_and_other_words_are_not() {
        assert_eq!(shown("AUTH pw"), "AUTH (redacted)");
        assert_eq!(shown("auth user pw"), "auth (redacted) (redacted)");
        assert_eq!(shown("HELLO 3 AUTH u p SETNAME n"), "HELLO 3 AUTH (redacted) (redacted) SETNAME n");
        assert_eq!(shown("HELLO 3 SETNAME n auth u p"), "HELLO 3 SETNAME n auth (redacted) (redacted)");
        assert_eq!(
            shown("CONFIG SET timeout 1 RequirePass x"),
            "CONFIG SET timeout 1 RequirePass (redacted)"
        );
        assert_eq!(shown("ACL SETUSER u on >p"), "ACL SETUSER (redacted) (redacted) (redacted)");
        assert_eq!(shown("ACL GETUSER default"), "ACL GETUSER default");
        assert_eq!(shown("SET auth pw"), "SET auth pw");
    }
}
