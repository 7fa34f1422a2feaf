//! CONFIG REWRITE: the parameters that were changed, into the configuration file.
//!
//! Role: what the process does for the command, on a thread that may wait for a disk. Place on the path:
//! none.
//!
//! Invariants: one at a time; comments, order and everything else in the file stay; the file is the old
//! one or the new one, whatever happens meanwhile; its permissions stay.
//!
//! Never: it writes what was not changed.

use super::place;
use crate::parameters::Spec;
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, TomlError, Value};

/// The text of a file with these parameters set.
fn rewritten(text: &str, changed: &[(&'static Spec, i64)]) -> Result<String> {
    let invalid = |error: TomlError| {
        let at = place::of(text, error.span());
        Error::new(ErrorKind::InvalidData, format!("{at}{}", error.message()))
    };
    let mut document: DocumentMut = text.parse().map_err(invalid)?;
    for (spec, value) in changed {
        match document.get_mut(spec.key).and_then(Item::as_value_mut) {
            Some(there) => {
                // What stands around it, a comment among it, belongs to it.
                let decor = there.decor().clone();
                *there = Value::from(*value);
                *there.decor_mut() = decor;
            }
            None => drop(document.insert(spec.key, toml_edit::value(*value))),
        }
    }
    Ok(document.to_string())
}

/// A name beside the file.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".rewrite-{}", std::process::id()));
    path.with_file_name(name)
}

fn write_new(path: &Path, new: &Path, text: &str) -> Result<()> {
    let mut file = File::create(new)?;
    file.set_permissions(std::fs::metadata(path)?.permissions())?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(new, path)?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Writes these parameters into the file.
///
/// # Errors
/// The file cannot be read or written, or is no TOML any more.
pub(crate) fn rewrite(path: &Path, changed: &[(&'static Spec, i64)]) -> Result<()> {
    // A link stays a link: the file that it names is replaced.
    let path = std::fs::canonicalize(path)?;
    let text = rewritten(&std::fs::read_to_string(&path)?, changed)?;
    let new = beside(&path);
    let written = write_new(&path, &new, &text);
    if written.is_err() {
        // It may not be there; what matters is the error told.
        let _ = std::fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{PARAMETERS, Parameter};

    const TEXT: &str = "# ours\nsize = \"1GiB\" # big\n\n# idle\ntimeout = 5 # seconds\n\n# the end\n";

    #[test]
    fn values_are_set_and_comments_stay() {
        let spec = |parameter: Parameter| &PARAMETERS[parameter as usize];
        let changed = [(spec(Parameter::Timeout), 7), (spec(Parameter::ClientsMax), 20)];
        let text = rewritten(TEXT, &changed).unwrap();
        assert!(
            text.starts_with("# ours\nsize = \"1GiB\" # big\n\n# idle\ntimeout = 7 # seconds\n"),
            "{text}"
        );
        assert!(text.contains("clients-max = 20\n") && text.contains("# the end"), "{text}");
        assert_eq!(rewritten(&text, &changed).unwrap(), text);
        assert_eq!(rewritten(TEXT, &[]).unwrap(), TEXT);
        let refused = rewritten("size = \"1GiB\"\npassword = \"secret\" oops\n", &changed).unwrap_err();
        assert!(refused.to_string().starts_with("line 2, column "), "{refused}");
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }

    #[test]
    fn a_new_key_stands_before_the_tables() {
        let spec = &PARAMETERS[Parameter::Timeout as usize];
        let text = rewritten("size = \"1GiB\"\n\n[array]\ncopies = 2\n", &[(spec, 7)]).unwrap();
        assert_eq!(text, "size = \"1GiB\"\ntimeout = 7\n\n[array]\ncopies = 2\n");
    }

    #[test]
    fn the_file_is_replaced_as_a_whole() {
        let directory = std::env::temp_dir().join(format!("plimsoll-rewrite-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("plimsoll.toml");
        std::fs::write(&path, TEXT).unwrap();
        rewrite(&path, &[(&PARAMETERS[Parameter::Timeout as usize], 9)]).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("timeout = 9 # seconds"));
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "nothing is left beside it");
        std::fs::write(&path, "no toml").unwrap();
        assert!(rewrite(&path, &[]).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "no toml");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
