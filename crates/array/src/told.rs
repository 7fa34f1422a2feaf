//! What members tell of a key: the version of the piece that each has, or that it has none.
//!
//! Role: asks members one by one, so that what they say may be compared. Place on the path: reconciling,
//! rebuilding, scrubbing; counting and listing keys that may differ.
//!
//! Never: it decides. What is right of what was told is for `reconcile`.

use crate::array::{Array, Place};
use crate::header::Header;
use crate::manner::Manner;
use crate::member::{Verdict, verdict};
use futures_util::future::join_all;
use plimsoll_kv::{Device, Error, Form, Result, Version};
use std::rc::Rc;

/// A piece of a key, as a member tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Absent,
    Unreadable,
    Found {
        /// By the header: the same on all members.
        version: Version,
        /// What the value was made into, likewise.
        form: Form,
        expiry_ms: Option<u64>,
        /// Whether it says where to find the value, and is none.
        is_stub: bool,
    },
}

impl Told {
    pub(crate) fn version(&self) -> Option<Version> {
        match self {
            Told::Found { version, .. } => Some(*version),
            Told::Absent | Told::Unreadable => None,
        }
    }

    pub(crate) fn form(&self) -> Option<Form> {
        match self {
            Told::Found { form, .. } => Some(*form),
            Told::Absent | Told::Unreadable => None,
        }
    }

    /// Whether it is of the same version, and expires at the same time, as what is right.
    pub(crate) fn is_as(&self, right: &Told) -> bool {
        match (self, right) {
            (
                Told::Found { version, form, expiry_ms, is_stub: _ },
                Told::Found {
                    version: right_version,
                    form: right_form,
                    expiry_ms: right_expiry_ms,
                    is_stub: _,
                },
            ) => (version, form, expiry_ms) == (right_version, right_form, right_expiry_ms),
            (told, right) => told == right,
        }
    }

    pub(crate) fn is_stub(&self) -> bool {
        matches!(self, Told::Found { is_stub: true, .. })
    }

    /// What stands in a role of a key, if this is what is right of it.
    pub(crate) fn in_role(&self, role: usize) -> Told {
        match self.form() {
            Some(form) if role >= form.roles() => Told::Absent,
            _ => self.clone(),
        }
    }

    pub(crate) fn expiry_ms(&self) -> Option<u64> {
        match self {
            Told::Found { expiry_ms, .. } => *expiry_ms,
            Told::Absent | Told::Unreadable => None,
        }
    }
}

/// How much of a piece is read before it is believed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Its start.
    Start,
    /// All of it; of a value in parts the first.
    Record,
    /// All of it, and every part.
    All,
}

impl Array {
    /// What each member that is in has of a key, by role.
    pub(crate) async fn ask_all(
        self: &Rc<Self>,
        place: &Place,
        proof: Proof,
        manner: &Manner,
    ) -> Result<Vec<(usize, Told)>> {
        let each = (0..self.roles).filter_map(|role| {
            let device = self.readable(self.member_of(place, role))?;
            Some(async move { (role, self.ask(&device, (place, role), proof, manner).await) })
        });
        let told = join_all(each.collect::<Vec<_>>()).await;
        told.into_iter().map(|(role, told)| Ok((role, told?))).collect()
    }

    /// What a member has of a key, proved so far. Who holds the key on the members asks within its
    /// transaction, or waits for itself.
    pub(crate) async fn ask(
        self: &Rc<Self>,
        device: &Rc<dyn Device>,
        (place, role): (&Place, usize),
        proof: Proof,
        manner: &Manner,
    ) -> Result<Told> {
        let range = if proof == Proof::Start { Some((0, 0)) } else { None };
        let told = |result: Result<Option<Told>>| match result {
            // It went, or expired, since it was found.
            Err(Error::NotFound) => Ok(Some(Told::Absent)),
            Err(error) if verdict(&error) == Verdict::Broken => Ok(Some(Told::Unreadable)),
            told => told,
        };
        loop {
            let found = async {
                let read = self.read_piece(device, place, role, range, manner);
                let piece = self.read_in_time(read).await?;
                if proof == Proof::All {
                    self.scrub_has_read(piece.item.length);
                }
                let header = match piece.header {
                    _ if proof == Proof::All && piece.item.upload.is_some() => {
                        Some(self.prove_in_parts(device, place, role, manner).await?.0)
                    }
                    Some(header) => Some(header),
                    None => self.header_in_parts(device, place, role, manner).await?,
                };
                let expiry_ms = piece.item.expiry_ms;
                Ok(header.map(|Header { version, form, is_stub, .. }| Told::Found {
                    version,
                    form,
                    expiry_ms,
                    is_stub,
                }))
            };
            if let Some(told) = told(found.await)? {
                return Ok(told);
            }
        }
    }
}
