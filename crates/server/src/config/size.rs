//! Sizes like `10GiB` and lists of processors like `0-3,8`.

use plimsoll_reactor::limits::CORES_MAX;
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let text = text.trim();
        let unit = UNITS.iter().find(|(name, _)| {
            let start = text.len().checked_sub(name.len());
            start.and_then(|start| text.get(start..)).is_some_and(|end| end.eq_ignore_ascii_case(name))
        });
        let (digits, factor) = match unit {
            Some((name, factor)) => (text[..text.len() - name.len()].trim_end(), *factor),
            None => (text, 1),
        };
        let number: u64 = digits.parse().map_err(|_| {
            format!("'{text}' is no size: write a whole number with KiB, MiB, GiB, TiB, or bytes")
        })?;
        number.checked_mul(factor).map(Size).ok_or_else(|| format!("'{text}' is too large"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary =
            UNITS[..4].iter().rev().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match binary {
            Some((name, factor)) => write!(f, "{}{name}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        deserializer.deserialize_any(Written)
    }
}

/// A size as a file writes it.
struct Written;

impl Visitor<'_> for Written {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, or a size like \"10GiB\"")
    }

    fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<Size, E> {
        Ok(Size(bytes))
    }

    fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<Size, E> {
        u64::try_from(bytes).map(Size).map_err(|_| E::invalid_value(Unexpected::Signed(bytes), &self))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Size, E> {
        text.parse().map_err(E::custom)
    }
}

/// Reads a list of processors: numbers and ranges, each once.
///
/// # Errors
/// Says what is wrong with it.
pub fn parse_cores(list: &str) -> Result<Vec<usize>, String> {
    let number = |text: &str| -> Result<usize, String> {
        text.trim().parse().map_err(|_| format!("'{list}' is no list of processors: write 0-3 or 0,2,4"))
    };
    let mut cores = Vec::new();
    for item in list.split(',') {
        let (first, last) = match item.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(item)?, number(item)?),
        };
        if last < first || last - first >= CORES_MAX {
            return Err(format!("'{item}': between 1 and {CORES_MAX} processors, the lower first"));
        }
        for core in first..=last {
            if cores.contains(&core) {
                return Err(format!("processor {core} stands there twice"));
            }
            cores.push(core);
        }
    }
    if cores.len() > CORES_MAX {
        return Err(format!("{} processors: at most {CORES_MAX} can be served", cores.len()));
    }
    Ok(cores)
}

pub(super) fn serialize_cores<S: Serializer>(cores: &[usize], serializer: S) -> Result<S::Ok, S::Error> {
    let list: Vec<String> = cores.iter().map(usize::to_string).collect();
    serializer.serialize_str(&list.join(","))
}
