//! Formatting and opening a drive.
//!
//! Place on the path: before the first request.
//!
//! Invariants: only an empty drive is formatted; the owner's epoch has grown, durably, before anything is
//! read, so what is read is durable too; a drive on which something stands that is not ours is refused.

use crate::drive::{DriveError, DriveKey, KvSsd};
use crate::flush::Flushes;
use crate::names::Names;
use crate::object::OVERHEAD_BYTES_MAX;
use crate::parts::Doomed;
use crate::slots::{Slots, State};
use crate::superblock::{SUPERBLOCK_KEYS, Superblock};
use plimsoll_kv::limits::{PART_BYTES_MAX, RECORD_VALUE_BYTES_MAX};
use plimsoll_kv::{Error, Version, WallClock};
use plimsoll_reactor::Reactor;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// How a drive is formatted.
#[derive(Clone, Copy, Debug, Default)]
pub struct FormatOptions {
    /// Bytes of the longest value of one store; nothing: as long as the drive allows.
    pub value_bytes_max: Option<usize>,
    /// Bytes of every part of an upload but the last; nothing: as many as the drive allows.
    pub part_bytes: Option<usize>,
}

/// Why a drive cannot be formatted or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is empty.
    #[error("the drive is not formatted")]
    NotFormatted,
    /// It is not empty, or has something on it that is not ours: the key, in hexadecimal.
    #[error("the drive holds something that is not of this store, under key {0}")]
    Foreign(String),
    /// It is of another version of the format: the key of the object that says so, and what it says.
    #[error("object {0} is of format {1}, which this version does not know")]
    Format(DriveKey, u16),
    /// Its values are too short for what is stored on it, or for anything: how long, and how long they have
    /// to be.
    #[error("the drive takes values of {0} bytes, {1} are needed")]
    TooSmall(usize, usize),
    /// Something cannot be read without which other things might be wrong: what and where.
    #[error("{0}")]
    Damaged(String),
    /// A command failed.
    #[error("{0}")]
    Failed(String),
}

impl From<Error> for OpenError {
    fn from(error: Error) -> OpenError {
        match error {
            Error::Unreadable(what) => OpenError::Damaged(what),
            error => OpenError::Failed(error.to_string()),
        }
    }
}

/// A key as people see it.
pub(crate) fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn failed(what: &str) -> impl Fn(DriveError) -> OpenError {
    move |error| OpenError::Failed(format!("{what}: {error}"))
}

impl Slots {
    /// Makes an empty drive ours.
    ///
    /// # Errors
    /// It is not empty, takes values too short for anything, or fails.
    pub async fn format(
        reactor: &Reactor,
        drive: Rc<dyn KvSsd>,
        options: FormatOptions,
    ) -> Result<(), OpenError> {
        let there = drive.list(Vec::new(), 1).await.map_err(failed("a list"))?;
        if let Some(key) = there.first() {
            return Err(OpenError::Foreign(hex(key)));
        }
        let most = drive.value_bytes_max().saturating_sub(OVERHEAD_BYTES_MAX);
        let value_bytes_max = options.value_bytes_max.unwrap_or(most.min(RECORD_VALUE_BYTES_MAX));
        let part_bytes = options.part_bytes.unwrap_or(most.min(PART_BYTES_MAX));
        let longest = value_bytes_max.max(part_bytes);
        if longest > most || value_bytes_max == 0 || part_bytes == 0 {
            let needed = longest.max(1) + OVERHEAD_BYTES_MAX;
            return Err(OpenError::TooSmall(drive.value_bytes_max(), needed));
        }
        let superblock = Superblock {
            epoch: 0,
            part_bytes: u32::try_from(part_bytes).expect("a part has a limit"),
            value_bytes_max: u32::try_from(value_bytes_max).expect("a value has a limit"),
            horizon: Version::ZERO,
            secret: std::array::from_fn(|_| reactor.random_u64()),
        };
        let slots = Slots::of(reactor, drive, superblock, None);
        Ok(slots.store_superblock().await?)
    }

    fn of(
        reactor: &Reactor,
        drive: Rc<dyn KvSsd>,
        superblock: Superblock,
        names: Option<Names>,
    ) -> Rc<Slots> {
        let version = Version { epoch: superblock.epoch, clock: 0 };
        let state = State { version, ..State::default() };
        state.uploads.next.set(1);
        let names = names.unwrap_or_else(|| Names::new(superblock.secret));
        Rc::new(Slots {
            reactor: reactor.clone(),
            clock: Rc::new(WallClock::new(reactor)),
            drive,
            names,
            locks: Rc::default(),
            flushes: Flushes::default(),
            doomed: Rc::new(Doomed::default()),
            keeper: crate::keeper::Keeper::default(),
            superblock: RefCell::new(superblock),
            state: RefCell::new(state),
            transactions: RefCell::default(),
            broken: RefCell::new(None),
            flush_is_due: Cell::new(false),
            found_parts: RefCell::default(),
        })
    }

    /// Opens a drive: reads the head of everything on it.
    ///
    /// # Errors
    /// It is not ours, of another format, or damaged where more than one key would be wrong; or it fails.
    pub async fn open(reactor: &Reactor, drive: Rc<dyn KvSsd>) -> Result<Rc<Slots>, OpenError> {
        Slots::open_named(reactor, drive, None).await
    }

    pub(crate) async fn open_named(
        reactor: &Reactor,
        drive: Rc<dyn KvSsd>,
        names: Option<Names>,
    ) -> Result<Rc<Slots>, OpenError> {
        let mut superblock = Slots::read_superblock(&drive).await?;
        let longest = superblock.value_bytes_max.max(superblock.part_bytes) as usize;
        if longest + OVERHEAD_BYTES_MAX > drive.value_bytes_max() {
            return Err(OpenError::TooSmall(drive.value_bytes_max(), longest + OVERHEAD_BYTES_MAX));
        }
        // One copy may have been the one of the start before that was cut short.
        superblock.epoch = superblock
            .epoch
            .checked_add(2)
            .ok_or_else(|| OpenError::Damaged("no epoch is left".to_owned()))?;
        let slots = Slots::of(reactor, drive, superblock, names);
        slots.store_superblock().await?;
        slots.recover().await?;
        slots.kick();
        Ok(slots)
    }

    async fn read_superblock(drive: &Rc<dyn KvSsd>) -> Result<Superblock, OpenError> {
        let (mut newest, mut is_there): (Option<Superblock>, bool) = (None, false);
        let mut failure = None;
        for key in SUPERBLOCK_KEYS {
            let bytes = match drive.retrieve(key, 0, drive.value_bytes_max()).await {
                Ok(retrieved) => retrieved.bytes,
                Err(DriveError::KeyNotFound) => continue,
                Err(error) => {
                    tracing::warn!(%key, %error, "a copy of the superblock cannot be read");
                    (is_there, failure) = (true, Some(error));
                    continue;
                }
            };
            is_there = true;
            match Superblock::decode(&bytes) {
                Some(found) if newest.as_ref().is_none_or(|newest| found.is_after(newest)) => {
                    newest = Some(found);
                }
                Some(_) => {}
                None => tracing::warn!(%key, "a copy of the superblock is damaged"),
            }
        }
        if let Some(newest) = newest {
            return Ok(newest);
        }
        if let Some(error) = failure {
            return Err(failed("a read of the superblock")(error));
        }
        if is_there {
            return Err(OpenError::Damaged("neither copy of the superblock can be read".to_owned()));
        }
        let there = drive.list(Vec::new(), 1).await.map_err(failed("a list"))?;
        Err(there.first().map_or(OpenError::NotFormatted, |key| OpenError::Foreign(hex(key))))
    }
}
