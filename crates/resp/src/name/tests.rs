//! Tests of command names: folding, length bound, non-letters untouched.

use super::CommandName;

#[test]
fn folds_ascii_letters_only() {
    let name = CommandName::fold(b"client-Info_\x00\xe4{9").expect("short enough");
    assert_eq!(name.as_bytes(), b"CLIENT-INFO_\x00\xe4{9");
    assert_eq!(CommandName::fold(b"get"), CommandName::fold(b"GET"));
    assert_ne!(CommandName::fold(b"get"), CommandName::fold(b"get\0"));
    assert_eq!(CommandName::fold(b"").map(|name| name.as_bytes().len()), Some(0));
}

#[test]
fn too_long_is_no_name() {
    assert!(CommandName::fold(&[b'a'; CommandName::BYTES_MAX]).is_some());
    assert!(CommandName::fold(&[b'a'; CommandName::BYTES_MAX + 1]).is_none());
    assert!(CommandName::fold(&[b'a'; 1000]).is_none());
}
