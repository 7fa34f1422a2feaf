//! Forms: what the values of an array may have been made into.
//!
//! Role: every form that a policy of the array ever asked for, with the codes of those that have one. Place
//! on the path: behind the header of what was read, and behind the policy for what is to be stored.
//!
//! Invariants:
//! * a form stays known for as long as the array exists: values may have it;
//! * a key that is there stands in every role that all forms have, so what one of those lacks is absent;
//! * where there is one form, nothing has to be found out.

use crate::code::{Code, CodeError, Coder};
use crate::mechanism::Mechanism;
use crate::policy::Policy;
use bytes::Bytes;
use plimsoll_kv::{Error, Form, Result};
use std::ops::Range;

/// Forms of an array at most.
pub(crate) const FORMS_MAX: usize = 32;

/// The forms that values of an array have.
pub(crate) struct Forms {
    /// In the order in which they came; each with its code, if it has one.
    known: Vec<(Form, Option<Coder>)>,
}

impl Forms {
    pub(crate) fn new(forms: &[Form]) -> Forms {
        assert!(!forms.is_empty(), "an array has a policy");
        Forms { known: forms.iter().map(|form| (*form, coder(*form))).collect() }
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = Form> {
        self.known.iter().map(|(form, _)| *form)
    }

    /// The only form, if there is one.
    pub(crate) fn sole(&self) -> Option<Form> {
        match self.known[..] {
            [(form, _)] => Some(form),
            _ => None,
        }
    }

    /// Whether a key has to be looked at to know its form.
    pub(crate) fn are_mixed(&self) -> bool {
        self.known.len() > 1
    }

    pub(crate) fn has(&self, form: Form) -> bool {
        self.each().any(|known| known == form)
    }

    /// Whether a store keeps what it replaces until it is whole itself: shards are of no use without enough
    /// others, nor is what says where to find a value, and where there are several forms the new one may
    /// stand where the old one did and not in all the places that it needs.
    pub(crate) fn keeps(&self) -> bool {
        self.sole().is_none_or(|form| form.needed() > 1 || form.is_packed())
    }

    /// Whether there are shards.
    pub(crate) fn has_shards(&self) -> bool {
        !self.each().all(Form::is_copies)
    }

    /// Whether values may share parities with others.
    pub(crate) fn has_packed(&self) -> bool {
        self.each().any(Form::is_packed)
    }

    /// Pieces of the form with most.
    pub(crate) fn roles(&self) -> usize {
        self.each().map(Form::roles).max().expect("there is one")
    }

    /// The roles in which every key has a piece.
    pub(crate) fn sure_roles(&self) -> usize {
        self.each().map(Form::roles).min().expect("there is one")
    }

    /// The roles but the first in which every packed value has a piece; none where nothing is packed.
    pub(crate) fn sure_stubs(&self) -> Range<usize> {
        1..self.each().filter(|form| form.is_packed()).map(Form::roles).min().unwrap_or(1)
    }

    /// The end of the roles in which anything packed has a piece.
    pub(crate) fn stubs_end(&self) -> usize {
        self.each().filter(|form| form.is_packed()).map(Form::roles).max().unwrap_or(0)
    }

    /// The roles that may be the first to be read; of shards alone, the first. What is packed stands whole in
    /// the first.
    pub(crate) fn reading_roles(&self) -> usize {
        if self.has_packed() || self.has_shards() && !self.are_mixed() { 1 } else { self.sure_roles() }
    }

    /// Pieces that give any value.
    pub(crate) fn needed_most(&self) -> usize {
        self.each().map(Form::needed).max().expect("there is one")
    }

    /// Of how many members how many have to be in for a key to be changed: of those that it may stand on, or,
    /// where values are packed, of all of so many, as records of sets may stand on any.
    pub(crate) fn needed_for_changes(&self, members: usize) -> (usize, usize) {
        let survived = self.each().map(|form| form.roles() - form.needed()).max().expect("there is one");
        let of = if self.has_packed() { members } else { self.roles() };
        (of - survived, of)
    }

    pub(crate) fn coder(&self, wanted: Form) -> Option<&Coder> {
        self.known.iter().find(|(form, _)| *form == wanted).and_then(|(_, coder)| coder.as_ref())
    }

    /// What each member is to store of a value: whole copies, or shards of one length. Copies and shards of
    /// data are ranges of the value itself, but for what has to be filled up with zeros.
    pub(crate) fn pieces(&self, form: Form, value: &Bytes) -> Vec<Bytes> {
        let coder = self.coder(form).filter(|_| !form.is_copies());
        let Some(coder) = coder else { return vec![value.clone(); form.roles()] };
        let piece_bytes = form.piece_bytes(value.len() as u64) as usize;
        let shard = |number: usize| {
            let first = (number * piece_bytes).min(value.len());
            let shard = value.slice(first..(first + piece_bytes).min(value.len()));
            if shard.len() < piece_bytes { filled_up(&shard, piece_bytes) } else { shard }
        };
        let mut pieces: Vec<Bytes> = (0..form.needed()).map(shard).collect();
        let data: Vec<&[u8]> = pieces.iter().map(|piece| &piece[..]).collect();
        let parities = coder.encode(&data).expect("as many shards as the set has");
        pieces.extend(parities.into_iter().map(Bytes::from));
        pieces
    }

    /// The shards of data one after the other; those that are lost are computed.
    pub(crate) fn data_of(&self, form: Form, mut shards: Vec<Option<Vec<u8>>>) -> Result<Vec<u8>> {
        let lost: Vec<usize> = (0..form.needed()).filter(|role| shards[*role].is_none()).collect();
        for (role, bytes) in lost.iter().zip(self.recovered(form, &shards, &lost)?) {
            shards[*role] = Some(bytes);
        }
        Ok(shards.into_iter().take(form.needed()).flatten().flatten().collect())
    }

    /// Lost shards, computed from others: all of one length.
    pub(crate) fn recovered(
        &self,
        form: Form,
        shards: &[Option<Vec<u8>>],
        wanted: &[usize],
    ) -> Result<Vec<Vec<u8>>> {
        let coder = self.coder(form).expect("shards have a code");
        let bytes = shards.iter().flatten().map(Vec::len).next().unwrap_or(0);
        let lengths = vec![bytes; form.needed()];
        let shards: Vec<Option<&[u8]>> = shards.iter().map(Option::as_deref).collect();
        coder
            .recover(&lengths, &shards, wanted)
            .map_err(|error: CodeError| Error::Unreadable(error.to_string()))
    }
}

/// The forms that a policy asks for, each once.
pub(crate) fn forms(policy: &Policy) -> Vec<Form> {
    let mut forms = Vec::new();
    for form in policy.mechanisms().map(Mechanism::form) {
        if !forms.contains(&form) {
            forms.push(form);
        }
    }
    forms
}

/// A shard that is not as long as others, with zeros behind it.
fn filled_up(shard: &[u8], piece_bytes: usize) -> Bytes {
    let mut piece = Vec::with_capacity(piece_bytes);
    piece.extend_from_slice(shard);
    piece.resize(piece_bytes, 0);
    piece.into()
}

fn coder(form: Form) -> Option<Coder> {
    match form {
        Form::Copies(_) => None,
        Form::Shards { data, parities } | Form::Packed { data, parities } => {
            let coder = Code::ReedSolomon.coder(data.into(), parities.into());
            Some(coder.expect("the mechanism was checked against the number of devices"))
        }
    }
}
