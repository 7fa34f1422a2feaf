//! Replacing and scrubbing, as operators ask for it, and what all their wishes have in common.
//!
//! Role: from a wish to orders for the cores. Place on the path: none.
//!
//! Invariants: nothing is formatted before everything that could be wrong with the wish was looked at; a
//! device that is served is never formatted, whatever is asked.

use super::{ArrayControl, Known, locked};
use crate::config::Size;
use crate::serve::core_task::Order;
use crate::serve::devices::{FormatAsked, Found, Identity, identity, make_replacement};
use anyhow::Error;
use axum::http::StatusCode;
use plimsoll_array::ArrayStatus;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;

/// How long a wish waits for a change that is under way.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Why an operator's wish is not done.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) words: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, words: impl Into<String>) -> Refusal {
        Refusal { status, words: words.into() }
    }

    pub(super) fn of_cores(error: &Error) -> Refusal {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

/// What was done, or begun.
#[derive(Debug, serde::Serialize)]
pub(super) struct Done {
    #[serde(rename = "done")]
    pub(super) words: String,
    /// The devices that are being rebuilt, as the array names them.
    pub(super) devices: Vec<String>,
    /// Those that should be, too, and cannot be opened.
    pub(super) unopened: Vec<String>,
}

impl Done {
    pub(super) fn new(words: impl Into<String>) -> Done {
        Done { words: words.into(), devices: Vec::new(), unopened: Vec::new() }
    }
}

/// What is to be replaced by what.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replacement {
    /// The member: its path or its index.
    pub(super) old: Named,
    /// The path of the device that takes its place.
    pub(super) new: String,
    /// Format it even if it holds something.
    #[serde(default)]
    pub(super) force: bool,
    /// Do it even if objects are lost with the old one.
    #[serde(default)]
    pub(super) accept_loss: bool,
}

/// A member, by its path or its index.
#[derive(Debug, serde::Deserialize)]
#[serde(untagged)]
pub(super) enum Named {
    Index(usize),
    Path(String),
}

/// The member that is meant: a path as it was given to the server or as it leads to the same place, or a
/// number from 0.
pub(super) fn find(known: &[Known], named: &Named) -> Result<usize, Refusal> {
    let absolute = |path: &str| std::path::absolute(path).ok();
    let found = match named {
        Named::Index(index) => Some(*index).filter(|index| *index < known.len()),
        // A file whose name is a number is named with its directory.
        Named::Path(path) => path.parse().ok().filter(|index| *index < known.len()).or_else(|| {
            known.iter().position(|known| known.path == *path || absolute(&known.path) == absolute(path))
        }),
    };
    found.ok_or_else(|| {
        let paths: Vec<&str> = known.iter().map(|known| known.path.as_str()).collect();
        let named = match named {
            Named::Index(index) => index.to_string(),
            Named::Path(path) => path.clone(),
        };
        let words = format!("{named}: no device of this array; those are {}", paths.join(", "));
        Refusal::new(StatusCode::NOT_FOUND, words)
    })
}

/// Where a path leads. It may lie on a file system that does not answer.
pub(super) async fn identity_of(path: &str) -> Option<Identity> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || identity(&path)).await.ok().flatten()
}

/// Looks whether a path is free to become a member.
fn check_new(
    known: &[Known],
    open: &BTreeSet<usize>,
    (old, new): (usize, &str),
    there: Option<Identity>,
) -> Result<(), Refusal> {
    let conflict = |words: String| Err(Refusal::new(StatusCode::CONFLICT, words));
    let is_it = |known: &Known| known.identity.is_some() && known.identity == there;
    if let Some((_, served)) = known.iter().enumerate().find(|(at, known)| is_it(known) && open.contains(at))
    {
        let path = &served.path;
        return conflict(format!("{new}: is in use by this array ({path}); name a device that is not"));
    }
    let named = known.iter().enumerate().find(|(member, known)| *member != old && known.path == new);
    if let Some((member, _)) = named {
        return conflict(format!("{new}: is the path of device {member} of this array; choose another"));
    }
    Ok(())
}

impl ArrayControl {
    /// Waits a little for whoever changes the array: the look at the devices is soon over.
    pub(super) async fn begin(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Refusal> {
        timeout(CHANGE_WAIT_MAX, self.change.lock()).await.map_err(|_| {
            let words = "another change of the array is under way; try again when it has ended";
            Refusal::new(StatusCode::CONFLICT, words)
        })
    }

    /// Makes a device and puts it in the place of another; what is to be known of that.
    pub(super) async fn replace(&self, wish: &Replacement) -> Result<Done, Refusal> {
        let _change = self.begin().await?;
        let (new, force) = (wish.new.clone(), wish.force);
        if new.is_empty() || !Path::new(&new).is_absolute() {
            let words = format!("{new}: name the new device by its whole path, from the root");
            return Err(Refusal::new(StatusCode::BAD_REQUEST, words));
        }
        let there = identity_of(&new).await;
        let (member, old, bytes) = {
            let known = locked(&self.members);
            let member = find(&known, &wish.old)?;
            (member, known[member].path.clone(), self.bytes_of(&known, member))
        };
        let holds_last = |status: &ArrayStatus| status.members.get(member).is_some_and(|it| it.holds_last);
        if !wish.accept_loss && locked(&self.reports).values().any(holds_last) {
            let words = format!(
                "{old}: objects may be lost with it, as too few of the other devices that hold their pieces are in; \
                 bring it or those back, or replace those first (--accept-loss does it all the same)"
            );
            return Err(Refusal::new(StatusCode::CONFLICT, words));
        }
        let is_itself = there.is_some() && locked(&self.members)[member].identity == there;
        if is_itself {
            // What is out may go, in its own place, once nothing more is written to it as it was.
            let let_go = self.order(&Order::LetGo(member)).await;
            let_go.map_err(|error| Refusal::new(StatusCode::CONFLICT, format!("{new}: {error}")))?;
        }
        let open = self.with_partitions();
        check_new(&locked(&self.members), &open, (member, &new), there)?;
        let made = self.make(new.clone(), bytes, force).await;
        if made.is_err() && is_itself && self.bring_back(member, &old).await.is_ok() {
            // It was let go for this alone: it comes back as by a rebuild.
            let order = Order::Rebuild { member, accept_loss: false };
            self.order(&order).await.map_err(|error| Refusal::of_cores(&error))?;
        }
        let mut found = made?;
        let is_same_place = std::path::absolute(&old).is_ok_and(|old| old == Path::new(&new));
        if is_same_place {
            found.path.clone_from(&old); // As it is named at the next start.
        }
        tracing::info!(old, new, size = %Size(bytes), "a device of the array is replaced");
        let ordered = self.order(&Order::Replace(member, Box::new(found.clone()))).await;
        let device = found.path.clone();
        self.take_in(member, found);
        ordered.map_err(|error| Refusal::of_cores(&error))?;
        let words = if is_same_place {
            format!("{old} is made anew, and is being rebuilt")
        } else {
            format!(
                "{new} has taken the place of {old}, and is being rebuilt; name it in that place (--device, or \
                 device in the configuration file) at the next start"
            )
        };
        Ok(Done { devices: vec![device], ..Done::new(words) })
    }

    /// The members of which a partition is open. Taken before the members are locked, as a view
    /// locks both.
    fn with_partitions(&self) -> BTreeSet<usize> {
        let reports = locked(&self.reports);
        let members = reports.values().flat_map(|status| status.members.iter().enumerate());
        members.filter(|(_, member)| member.is_there).map(|(number, _)| number).collect()
    }

    /// From here on the new device is the member, if any partition has taken it.
    pub(super) fn take_in(&self, member: usize, found: Found) {
        let id = found.superblock.as_ref().map(|superblock| superblock.device_id);
        let has_it = |status: &ArrayStatus| status.members.get(member).map(|member| member.id) == id;
        if !locked(&self.reports).values().any(has_it) {
            return;
        }
        let known = &mut locked(&self.members)[member];
        known.path = found.path;
        known.superblock = found.superblock;
        known.identity = found.identity;
        known.is_gone = false;
    }

    /// Bytes that a device in this place needs: as many as it had, or if it was never seen, as the smallest.
    fn bytes_of(&self, known: &[Known], member: usize) -> u64 {
        let bytes = |known: &Known| known.superblock.as_ref().map(|superblock| superblock.device_bytes);
        let smallest = || known.iter().filter_map(bytes).min();
        bytes(&known[member]).or_else(smallest).unwrap_or(self.common.device_bytes)
    }

    async fn make(&self, path: String, bytes: u64, force: bool) -> Result<Found, Refusal> {
        let asked = FormatAsked {
            partitions: self.common.partitions,
            segment_bytes: Some(self.common.segment_bytes),
            force,
            hash_secret: Some(self.common.hash_secret),
        };
        let options = self.reactor.clone();
        let made = tokio::task::spawn_blocking(move || make_replacement(&options, path, bytes, asked)).await;
        let made = made.unwrap_or_else(|error| Err(error.into()));
        made.map_err(|error| Refusal::new(StatusCode::CONFLICT, format!("{error:#}")))
    }

    /// Begins to compare all members.
    pub(super) async fn scrub(&self) -> Result<Done, Refusal> {
        let _change = self.begin().await?;
        self.order(&Order::Scrub).await.map_err(|error| Refusal::of_cores(&error))?;
        Ok(Done::new("a scrub is under way"))
    }
}
