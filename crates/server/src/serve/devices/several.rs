//! The devices of an array: made together, or found and compared.
//!
//! Invariant: nothing is written unless all devices are blank or absent.

use super::{
    Devices, FormatAsked, Found, asked_by, check_new_file, format, identity, open_when_free, told_until,
    warn_of_size,
};
use crate::config::Config;
use anyhow::{Result, anyhow, bail};
use plimsoll_flash::{DeviceError, Superblock};
use plimsoll_reactor::{File, FileOptions, Reactor};
use std::io::ErrorKind;
use std::path::Path;

/// What a look at a path gave.
enum Look {
    /// A device of ours.
    Formatted(Box<Superblock>),
    /// A device that holds nothing.
    Blank,
    /// No file, or one without a byte: made before a crash.
    Absent,
    /// Something that cannot be used, and why.
    Unusable(String),
}

/// Finds or makes the devices of an array.
pub(super) async fn prepare(reactor: &Reactor, config: &Config, paths: &[String]) -> Result<Devices> {
    let mut looks = Vec::new();
    for path in paths {
        looks.push(look(reactor, path).await?);
    }
    let found = if looks.iter().any(|look| matches!(look, Look::Formatted(_))) {
        paths.iter().zip(looks).map(|(path, look)| as_found(config, path, look)).collect()
    } else {
        make_all(reactor, config, paths, &looks).await?
    };
    check_together(&found)?;
    Ok(Devices(found))
}

/// Looks at a path. A device that is in use is no missing one: another server may serve it.
async fn look(reactor: &Reactor, path: &str) -> Result<Look> {
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0) {
        return Ok(Look::Absent);
    }
    let file = match open_when_free(reactor, path, &FileOptions::default()).await {
        Ok(file) => file,
        Err(error) => {
            return match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
                Some(ErrorKind::NotFound) => Ok(Look::Absent),
                Some(ErrorKind::WouldBlock) => Err(error),
                _ => Ok(Look::Unusable(error.to_string())),
            };
        }
    };
    match told_until(reactor, &file, plimsoll_flash::inspect(&file)).await {
        Ok(superblock) => Ok(Look::Formatted(Box::new(superblock))),
        Err(DeviceError::Blank) => Ok(Look::Blank),
        // A newer server's data: that is no device that failed.
        Err(error @ (DeviceError::Version(_) | DeviceError::Features(_))) => bail!("{path}: {error}"),
        Err(error) => Ok(Look::Unusable(format!("{path}: {error}"))),
    }
}

/// Looks again at the path of a device of an array: it is the one of that identity.
pub(super) async fn look_again(reactor: &Reactor, path: &str, id: [u8; 16]) -> Result<Found> {
    match look(reactor, path).await? {
        Look::Formatted(superblock) if superblock.device_id == id => Ok(Found::there(path, *superblock)),
        Look::Formatted(_) => bail!("{path}: it is another device than the one that the array has there"),
        Look::Blank => bail!("{path}: it is blank"),
        Look::Absent => bail!("{path}: there is no such file, or it holds not a byte"),
        Look::Unusable(why) => bail!(why),
    }
}

/// A device beside others that are formatted.
fn as_found(config: &Config, path: &str, look: Look) -> Found {
    let lacks = match look {
        Look::Formatted(superblock) => {
            warn_of_size(config, path, superblock.device_bytes);
            return Found::there(path, *superblock);
        }
        Look::Blank => "it is blank".to_owned(),
        Look::Absent => "there is no such file".to_owned(),
        Look::Unusable(why) => why,
    };
    tracing::warn!(
        device = path,
        reason = lacks,
        "a device of the array is missing: bring it back, or replace it (plimsoll array replace)"
    );
    Found::missing(path, lacks)
}

/// Makes and formats all devices of a new array.
async fn make_all(
    reactor: &Reactor,
    config: &Config,
    paths: &[String],
    looks: &[Look],
) -> Result<Vec<Found>> {
    let asked = asked_by(config);
    for (path, look) in paths.iter().zip(looks) {
        match look {
            Look::Unusable(why) => bail!(
                "{why}; none of the devices is formatted, and an array is made of devices that are all there"
            ),
            _ => {
                check_directory(path)?;
                check_new_file(path, config.size.0, &asked)?;
            }
        }
    }
    let mut files = Vec::new();
    for path in paths {
        let options = FileOptions { create_bytes: Some(config.size.0), read_only: false };
        let file = open_when_free(reactor, path, &options).await?;
        warn_of_size(config, path, file.size_bytes());
        files.push(file);
    }
    check_distinct(paths)?;
    format_all(reactor, &files, asked).await
}

/// Drives are named with the directories on which they are mounted: where one is not there a file in its
/// place would be on another drive, and the array a new one.
fn check_directory(path: &str) -> Result<()> {
    let directory = Path::new(path).parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(absent) = directory.filter(|directory| !directory.exists()) {
        let absent = absent.display();
        bail!(
            "{path}: there is no directory {absent}; if its file system is to be mounted there, mount it, else make it"
        );
    }
    Ok(())
}

/// Formats devices for one array: the smallest says how large segments are, for a value that fits one
/// device has to fit all.
async fn format_all(reactor: &Reactor, files: &[File], asked: FormatAsked) -> Result<Vec<Found>> {
    let mut asked = FormatAsked { hash_secret: Some(reactor.random_u64()), ..asked };
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|at| files[*at].size_bytes());
    let mut found: Vec<Option<Found>> = vec![None; files.len()];
    for at in order {
        let path = files[at].path();
        let formatted = format(reactor, &files[at], &asked).await;
        let superblock = formatted.map_err(|error| anyhow!("{path}: {error}"))?;
        asked.segment_bytes = Some(superblock.segment_bytes);
        found[at] = Some(Found::there(path, superblock));
    }
    Ok(found.into_iter().flatten().collect())
}

/// Two names of one file are no two devices.
fn check_distinct(paths: &[String]) -> Result<()> {
    for (at, path) in paths.iter().enumerate() {
        let same = paths[..at].iter().find(|other| identity(other) == identity(path));
        if let Some(other) = same {
            bail!("{other} and {path} are the same file; name each device once");
        }
    }
    Ok(())
}

/// Looks whether devices can belong to one array.
fn check_together(found: &[Found]) -> Result<()> {
    let mut there = found.iter().filter_map(|found| Some((&found.path, found.superblock.as_ref()?)));
    let (first_path, first) = there.next().ok_or_else(|| anyhow!("no device of the array is there"))?;
    for (path, superblock) in there {
        let differs = |what: &str, of_it: u64, of_first: u64| {
            anyhow!(
                "{path} has {of_it} {what}, and {first_path} has {of_first}: they do not belong to one array; \
                 name only devices that do"
            )
        };
        if superblock.partitions != first.partitions {
            return Err(differs("partitions", superblock.partitions.into(), first.partitions.into()));
        }
        if superblock.segment_bytes != first.segment_bytes {
            let (of_it, of_first) = (superblock.segment_bytes.into(), first.segment_bytes.into());
            return Err(differs("bytes in a segment", of_it, of_first));
        }
        if superblock.hash_secret != first.hash_secret {
            bail!(
                "{path} and {first_path} were not formatted together (their hash secrets differ): they do not \
                 belong to one array; name only devices that do, or blank ones, of which `plimsoll serve` makes \
                 a new array"
            );
        }
    }
    check_copies(found)
}

/// A copy of a device is not another device.
fn check_copies(found: &[Found]) -> Result<()> {
    let id = |found: &Found| found.superblock.as_ref().map(|superblock| superblock.device_id);
    for (at, device) in found.iter().enumerate().filter(|(_, device)| device.superblock.is_some()) {
        if let Some(other) = found[..at].iter().find(|other| id(other) == id(device)) {
            let (path, other) = (&device.path, &other.path);
            bail!("{path} is a copy of {other}, or the same file: each device of an array is one of its own");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(path: &str, id: u8) -> Found {
        let superblock = Superblock {
            format_version: 1,
            features_compatible: 0,
            features_read_only: 0,
            features_incompatible: 0,
            device_id: [id; 16],
            created_ms: 0,
            device_bytes: 1 << 30,
            data_offset: 1 << 16,
            hash_secret: 7,
            segment_bytes: 1 << 20,
            block_bytes: 4096,
            segments_per_partition: 100,
            placement_epoch: 0,
            partitions: 2,
            written_ahead: false,
        };
        Found { path: path.to_owned(), superblock: Some(superblock), identity: None, lacks: String::new() }
    }

    fn refusal(change: impl FnOnce(&mut Superblock)) -> String {
        let mut other = device("b", 2);
        change(other.superblock.as_mut().unwrap());
        let missing = Found::missing("c", "it is blank".to_owned());
        check_together(&[missing, device("a", 1), other]).unwrap_err().to_string()
    }

    #[test]
    fn devices_that_belong_together_are_taken() {
        let missing = |path| Found::missing(path, String::new());
        assert!(check_together(&[device("a", 1), missing("b"), missing("c"), device("d", 4)]).is_ok());
        assert!(check_together(&[missing("a"), missing("b")]).is_err());
    }

    #[test]
    fn devices_that_do_not_are_refused_with_what_differs() {
        let words = refusal(|superblock| superblock.partitions = 4);
        assert!(words.starts_with("b has 4 partitions, and a has 2"), "{words}");
        let words = refusal(|superblock| superblock.segment_bytes = 1 << 19);
        assert!(words.starts_with("b has 524288 bytes in a segment"), "{words}");
        let words = refusal(|superblock| superblock.hash_secret = 8);
        assert!(words.starts_with("b and a were not formatted together"), "{words}");
        let words = refusal(|superblock| superblock.device_id = [1; 16]);
        assert!(words.starts_with("b is a copy of a"), "{words}");
    }
}
