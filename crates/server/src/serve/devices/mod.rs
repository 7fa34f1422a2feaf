//! Devices before they are served: looked at, made, formatted.
//!
//! Role: from the paths of a configuration to devices that are known. Place on the path: before the start,
//! and when a device of an array is replaced or comes back.
//!
//! Invariants:
//! * a device that is not ours is never formatted, unless the operator says that it may go;
//! * devices of one array are formatted together, while all of them are blank: one that is blank or absent
//!   later is missing, and neither made nor formatted here;
//! * devices that do not belong together are refused, with what differs and where.
//!
//! Never: it opens a partition.

mod several;
mod silence;

use super::run_on_reactor;
use crate::config::{Config, ConfigError, Size};
use anyhow::{Context, Result, anyhow};
use plimsoll_flash::{DeviceError, FormatOptions, Superblock};
use plimsoll_reactor::{File, FileOptions, Reactor};
pub(super) use silence::Silence;
use silence::told_until;
use std::io::ErrorKind;
use std::path::Path;

/// 16 random bytes.
#[must_use]
pub fn random_id(reactor: &Reactor) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&reactor.random_u64().to_le_bytes());
    id[8..].copy_from_slice(&reactor.random_u64().to_le_bytes());
    id
}

/// Where a path leads: a file by its device and inode, a block device by its number.
pub(super) type Identity = (bool, u64, u64);

/// Where a path leads now; nothing if nowhere.
pub(super) fn identity(path: &str) -> Option<Identity> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let metadata = std::fs::metadata(path).ok()?;
    if metadata.file_type().is_block_device() {
        return Some((true, metadata.rdev(), 0));
    }
    Some((false, metadata.dev(), metadata.ino()))
}

/// A device as it was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Its path.
    pub(super) path: String,
    /// What it is; nothing if it is missing.
    pub(super) superblock: Option<Superblock>,
    /// Where its path led then.
    pub(super) identity: Option<Identity>,
    /// Why it is missing; empty if it is there.
    pub(super) lacks: String,
}

impl Found {
    fn there(path: &str, superblock: Superblock) -> Found {
        let identity = identity(path);
        Found { path: path.to_owned(), superblock: Some(superblock), identity, lacks: String::new() }
    }

    fn missing(path: &str, lacks: String) -> Found {
        Found { path: path.to_owned(), superblock: None, identity: None, lacks }
    }
}

/// All devices of a server: one at least is there.
#[derive(Clone, Debug)]
pub(super) struct Devices(pub(super) Vec<Found>);

impl Devices {
    /// What all that are there have in common: partitions, segments, secret. The rest is of the first.
    pub(super) fn common(&self) -> &Superblock {
        self.0.iter().find_map(|found| found.superblock.as_ref()).expect("one at least is there")
    }

    /// Partitions on all of them, the missing ones included.
    pub(super) fn flash_partitions(&self) -> u64 {
        u64::from(self.common().partitions) * self.0.len() as u64
    }
}

/// Finds, makes or formats the devices of a configuration.
///
/// # Errors
/// They cannot be served, or not together.
pub(super) async fn prepare(reactor: &Reactor, config: &Config) -> Result<Devices> {
    let text = |path: &std::path::PathBuf| match path.to_str() {
        Some(path) => Ok(path.to_owned()),
        None => Err(anyhow!("device: the path {} is not UTF-8", path.display())),
    };
    let paths = config.devices.iter().map(text).collect::<Result<Vec<String>>>()?;
    match paths.as_slice() {
        [path] => Ok(Devices(vec![prepare_one(reactor, config, path).await?])),
        _ => several::prepare(reactor, config, &paths).await,
    }
}

/// One partition for each core, nothing destroyed.
fn asked_by(config: &Config) -> FormatAsked {
    let partitions = u16::try_from(config.cores.len()).expect("cores are few");
    FormatAsked { partitions, segment_bytes: None, force: false, hash_secret: None }
}

/// Makes the directory of a file that is about to be made.
fn make_directory(path: &str) -> Result<()> {
    let Some(directory) = Path::new(path).parent().filter(|parent| !parent.as_os_str().is_empty()) else {
        return Ok(());
    };
    std::fs::create_dir_all(directory).with_context(|| format!("{}: cannot be made", directory.display()))
}

/// Says that a device keeps another size than was asked for.
fn warn_of_size(config: &Config, path: &str, bytes: u64) {
    if config.size_asked && bytes != config.size.0 {
        let actual = Size(bytes);
        tracing::warn!(device = path, asked = %config.size, %actual, "size: the device exists and keeps its size");
    }
}

/// Opens the one device, formatting it if it holds nothing.
async fn prepare_one(reactor: &Reactor, config: &Config, path: &str) -> Result<Found> {
    let asked = asked_by(config);
    check_new_file(path, config.size.0, &asked)?;
    make_directory(path)?;
    let options = FileOptions { create_bytes: Some(config.size.0), read_only: false };
    let file = open_when_free(reactor, path, &options).await?;
    warn_of_size(config, path, file.size_bytes());
    let superblock = match told_until(reactor, &file, plimsoll_flash::inspect(&file)).await {
        Err(DeviceError::Blank) => format(reactor, &file, &asked).await,
        other => other,
    };
    Ok(Found::there(path, superblock.map_err(|error| anyhow!("{path}: {error}"))?))
}

/// How long a start waits for a device that is in use, and between two looks.
const FREE_NS_MAX: u64 = 5_000_000_000;
const FREE_LOOK_NS: u64 = 50_000_000;

/// Opens the device; waits a little if it is in use: the kernel may still be ending the operations
/// of a server that was killed a moment ago.
///
/// # Errors
/// The device cannot be opened, or stays in use.
pub async fn open_when_free(reactor: &Reactor, path: &str, options: &FileOptions) -> Result<File> {
    let until_ns = reactor.now_ns() + FREE_NS_MAX;
    let mut told = false;
    loop {
        match reactor.open_file(path, options) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && reactor.now_ns() < until_ns => {
                if !std::mem::replace(&mut told, true) {
                    tracing::info!(device = path, "in use by another process: waiting for it to end");
                }
                reactor.sleep_ns(FREE_LOOK_NS).await;
            }
            opened => return Ok(opened?),
        }
    }
}

/// Looks whether a file that is about to be made could be formatted, so that none is left behind that
/// cannot. A device that is there is looked at when it is open.
///
/// # Errors
/// It is too small, or what was asked for contradicts itself: wrong usage.
pub fn check_new_file(path: &str, bytes: u64, asked: &FormatAsked) -> Result<()> {
    if Path::new(path).exists() {
        return Ok(());
    }
    match plimsoll_flash::check_format(bytes, &asked.options([0; 16], 0, 0)) {
        Err(DeviceError::Option(what)) => Err(ConfigError(what).into()),
        Err(error) => Err(anyhow!("{path}: {error}; no file was made")),
        Ok(()) => Ok(()),
    }
}

/// What the caller of a format decides.
pub struct FormatAsked {
    /// Partitions, fixed for good.
    pub partitions: u16,
    /// Bytes of a segment; chosen by the size of the device if absent.
    pub segment_bytes: Option<u32>,
    /// Write even if the device holds something else.
    pub force: bool,
    /// What keys the fingerprints: drawn at random if absent. Devices of one array have the same.
    pub hash_secret: Option<u64>,
}

impl FormatAsked {
    fn options(&self, device_id: [u8; 16], hash_secret: u64, created_ms: u64) -> FormatOptions {
        FormatOptions {
            partitions: self.partitions,
            segment_bytes: self.segment_bytes,
            force: self.force,
            written_ahead: false,
            device_id,
            hash_secret,
            created_ms,
        }
    }
}

/// Formats a device with what was asked for and fresh random identity.
///
/// # Errors
/// See [`plimsoll_flash::format`].
pub async fn format(
    reactor: &Reactor,
    file: &File,
    asked: &FormatAsked,
) -> std::result::Result<Superblock, DeviceError> {
    let hash_secret = asked.hash_secret.unwrap_or_else(|| reactor.random_u64());
    let options = FormatOptions {
        written_ahead: is_block_device(Path::new(file.path())),
        ..asked.options(random_id(reactor), hash_secret, reactor.wall_ms())
    };
    let superblock = told_until(reactor, file, plimsoll_flash::format(file, &options)).await?;
    tracing::info!(
        device = file.path(),
        bytes = file.size_bytes(),
        partitions = asked.partitions,
        "formatted"
    );
    Ok(superblock)
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Makes a device that takes the place of another, of so many bytes: a file if there is none, and formats
/// it. Nothing is left behind of a file that was made in vain.
///
/// # Errors
/// It cannot be made, is smaller, or holds something.
pub(super) fn make_replacement(
    options: &plimsoll_reactor::StartOptions,
    path: String,
    bytes: u64,
    asked: FormatAsked,
) -> Result<Found> {
    check_new_file(&path, bytes, &asked)?;
    run_on_reactor(options, move |reactor| async move {
        let options = FileOptions { create_bytes: Some(bytes), read_only: false };
        let file = open_when_free(&reactor, &path, &options).await?;
        let formatted = if file.size_bytes() < bytes {
            let (has, needs) = (file.size_bytes(), bytes);
            Err(anyhow!(
                "{path}: has {has} bytes, and the device that it replaces has {needs}; give a larger one"
            ))
        } else {
            format(&reactor, &file, &asked).await.map_err(|error| refused(&path, &error))
        };
        if formatted.is_err() && file.created() {
            // The error to report is the one that stopped us.
            let _ = std::fs::remove_file(&path);
        }
        Ok(Found::there(&path, formatted?))
    })
}

/// A device of an array that was away, looked at again.
///
/// # Errors
/// It is not there, or not the one of that identity.
pub(super) fn look_again(
    options: &plimsoll_reactor::StartOptions,
    path: String,
    id: [u8; 16],
) -> Result<Found> {
    run_on_reactor(options, move |reactor| async move { several::look_again(&reactor, &path, id).await })
}

/// Why a device cannot take the place of another, with the mend that is at hand there.
fn refused(path: &str, error: &DeviceError) -> anyhow::Error {
    match error {
        DeviceError::Foreign => anyhow!(
            "{path}: holds data that is not Plimsoll's; `plimsoll array replace --force` would destroy it"
        ),
        DeviceError::Formatted => anyhow!(
            "{path}: is a Plimsoll device already; `plimsoll array replace --force` would destroy its data"
        ),
        error => anyhow!("{path}: {error}"),
    }
}
