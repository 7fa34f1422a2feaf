use super::*;

fn applied(edit: &Edit, old: Option<&str>) -> Result<String, EditError> {
    let new = edit.apply(old.map(str::as_bytes))?;
    assert!(new.len() as u64 <= edit.bytes_max(old.map_or(0, str::len) as u64));
    Ok(String::from_utf8(new).unwrap())
}

#[test]
fn integers_are_added_as_redis_adds_them() {
    for (old, amount, new) in [
        (None, 1, "1"),
        (Some("41"), 1, "42"),
        (Some("-1"), 1, "0"),
        (Some("9223372036854775806"), 1, "9223372036854775807"),
        (Some("-9223372036854775807"), -1, "-9223372036854775808"),
    ] {
        assert_eq!(applied(&Edit::Add(amount), old), Ok(new.to_owned()));
    }
    for old in ["", " 1", "1 ", "+1", "01", "-0", "1.0", "abc", "9223372036854775808", "0x1"] {
        assert_eq!(applied(&Edit::Add(1), Some(old)), Err(EditError::NotAnInteger), "{old:?}");
    }
    assert_eq!(applied(&Edit::Add(1), Some("9223372036854775807")), Err(EditError::Overflow));
    assert_eq!(applied(&Edit::Add(i64::MIN), Some("-1")), Err(EditError::Overflow));
}

#[test]
fn floats_are_added_and_written_without_exponent() {
    for (old, amount, new) in [
        (None, 1.5, "1.5"),
        (Some("10.50"), 0.1, "10.6"),
        (Some("5.0e3"), 200.0, "5200"),
        (Some("3.0"), 1.0, "4"),
        (Some("1"), -1.0, "0"),
        (Some("1e20"), 1.0, "100000000000000000000"),
    ] {
        assert_eq!(applied(&Edit::AddFloat(amount), old), Ok(new.to_owned()));
    }
    for old in ["", " 1", "1 ", "abc", "nan", "1.2.3"] {
        assert_eq!(applied(&Edit::AddFloat(1.0), Some(old)), Err(EditError::NotAFloat), "{old:?}");
    }
    assert_eq!(applied(&Edit::AddFloat(1e308), Some("1.7e308")), Err(EditError::NotFinite));
    let longest = applied(&Edit::AddFloat(-f64::MAX), None).unwrap();
    assert_eq!(longest.len(), 310);
    assert_eq!(
        applied(&Edit::AddFloat(f64::MAX), Some(&longest)),
        Ok("0".to_owned()),
        "it can be read again"
    );
    assert!(applied(&Edit::AddFloat(5e-324), None).is_ok_and(|text| text.len() <= FLOAT_BYTES_MAX as usize));
}

#[test]
fn bytes_are_appended_and_written_over() {
    let append = Edit::Append(b"b".to_vec());
    assert_eq!(applied(&append, Some("a")), Ok("ab".to_owned()));
    assert_eq!(applied(&append, None), Ok("b".to_owned()));
    let write = |offset, bytes: &str| Edit::WriteAt { offset, bytes: bytes.as_bytes().to_vec() };
    assert_eq!(applied(&write(6, "Redis"), Some("Hello World")), Ok("Hello Redis".to_owned()));
    assert_eq!(applied(&write(2, "x"), None), Ok("\0\0x".to_owned()));
    assert_eq!(applied(&write(1, "x"), Some("abc")), Ok("axc".to_owned()));
    assert_eq!(write(u64::MAX, "x").bytes_max(3), u64::MAX);
}
