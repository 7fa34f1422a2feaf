//! Patterns, those of Redis' own tests among them.

use super::matches;

#[test]
fn patterns_mean_what_they_mean_in_redis() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("*", "abc", true),
        ("", "", true),
        ("", "a", false),
        ("a*c", "abbbc", true),
        ("a*c", "abbbd", false),
        ("a*b*c", "a1b2b3c", true),
        ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaa", false),
        ("h?llo", "hello", true),
        ("h?llo", "hllo", false),
        ("h[ae]llo", "hallo", true),
        ("h[ae]llo", "hillo", false),
        ("h[^e]llo", "hbllo", true),
        ("h[^e]llo", "hello", false),
        ("h[a-c]llo", "hbllo", true),
        ("h[c-a]llo", "hbllo", true),
        ("h[a-c]llo", "hdllo", false),
        ("a\\*c", "a*c", true),
        ("a\\*c", "abc", false),
        ("[\\]]", "]", true),
        ("[abc", "b", true),
        ("a]", "a]", true),
        ("foo*bar", "foobar", true),
        ("**", "x", true),
        ("x*", "x", true),
        ("\\", "\\", true),
    ] {
        assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), false), expected, "{pattern} {text}");
    }
}

#[test]
fn case_counts_unless_told() {
    assert!(!matches(b"SAVE", b"save", false));
    assert!(matches(b"S[A-B]V?", b"save", true));
}

#[test]
fn a_hostile_pattern_ends() {
    let pattern = b"a*".repeat(1000);
    assert!(!matches(&[pattern.as_slice(), b"b"].concat(), &b"a".repeat(20_000), false));
}
