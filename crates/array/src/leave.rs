//! Leaving a set: what it goes on needing of a value that goes.
//!
//! Role: a packed value is part of the parities of others. Before it is overwritten or deleted, or may
//! expire, its member keeps it beside the set: a ghost. Where the member can, it stays where it stands, under
//! another key; else it is read and stored once more. Nobody regroups for that, and nobody waits but for one
//! look. Place on the path: before every change of a key, where values are packed.
//!
//! Invariants:
//! * a value that a set names stands on its member, under its key or as a ghost, as long as another value of
//!   the set lives;
//! * whoever cannot find out whether a value is packed takes it to be;
//! * a ghost names the set that it is for, or, where that is not known when it is made, the time: it is
//!   claimed by the set that needs it when that is looked through, and what nobody claims goes then.

use crate::array::{Array, Place};
use crate::before::Left;
use crate::gather::Piece;
use crate::header::{HEADER_BYTES, Header};
use crate::manner::Manner;
use crate::member::gives_nothing;
use crate::placement;
use crate::read::{Range, WRONG_OUTPUT};
use crate::set::{Stub, VERSION_BYTES, decode_version, encode_version, ghost_key, lasting_key};
use crate::told::{Proof, Told};
use bytes::Bytes;
use plimsoll_kv::{Condition, Device, Error, Expiry, Item, Kept, Op, Payload, Result, Value, Version};
use std::rc::Rc;

/// Whether a key is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    /// It is not.
    Alone,
    /// At this version, of so many bytes, in this set.
    Of { version: Version, value_bytes: u64, stub: Stub },
    /// No member that would know can be asked.
    Unknown,
}

/// What a ghost names of which the set is not known: when it was made.
pub(crate) fn no_set(now: Version) -> Version {
    Version { epoch: 0, ..now }
}

/// Whether a ghost names no set.
pub(crate) fn is_no_set(name: Version) -> bool {
    name.epoch == 0
}

impl Array {
    /// What the first member of a held key has to store beside the change that takes away what it has now.
    pub(crate) async fn ghost(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<Option<Op>> {
        if !self.forms.has_packed() {
            return Ok(None);
        }
        let membership = self.membership(place, manner).await?;
        if let Membership::Of { stub, .. } = &membership {
            self.regroup_later(place.container, stub);
        }
        self.ghost_of(place, &membership, (manner, false)).await
    }

    /// A store has been made that took a value from its set, if it did; these are what members gave back of
    /// it, from the second role on, if they were to.
    pub(crate) fn left<'a>(
        self: &Rc<Self>,
        place: &Place,
        left: Option<Left>,
        previous: impl Iterator<Item = &'a Item>,
    ) {
        match left {
            Some(Left::In(version, stub)) => self.lost_value(place, version, &stub),
            Some(Left::Told(version)) => self.left_set(place, version, previous),
            None => {}
        }
    }

    /// A change of a held key has been made that left a ghost: these are what members gave back of it, from
    /// the second role on. Its set has lost a value; if it was in none, nobody needs the ghost.
    fn left_set<'a>(
        self: &Rc<Self>,
        place: &Place,
        version: Version,
        previous: impl Iterator<Item = &'a Item>,
    ) {
        let mut copies = 0;
        for item in previous {
            let Ok(header) = Header::decode(&item.bytes) else { return };
            if header.version != version || version == Version::default() {
                return; // Who looks through the sets finds whose it is.
            }
            let stub = Stub::first(&item.bytes[HEADER_BYTES..], header.form.roles() - 1);
            if let Some(stub) = stub.filter(|stub| header.is_stub && self.are_members(&stub.holders)) {
                return self.lost_value(place, version, &stub);
            }
            copies += usize::from(!header.is_stub);
            // Every other role had a copy: it was in no set.
            if copies + 1 == header.form.roles() && !self.is_in_doubt(version) {
                let (container, key) = (placement::sets(place.container), ghost_key(&self.tag, version));
                let delete = Op::Delete { container, key, condition: Condition::None };
                self.packer.loose.unneeded.borrow_mut().push((place.primary, delete));
                return self.pack_soon();
            }
        }
    }

    /// What keeps a value of which its stub says all that has to be known: its member has it, and keeps it
    /// where it is. Where the newest version has fewer pieces the stub may be of an older one.
    pub(crate) fn ghost_by_stub(
        &self,
        place: &Place,
        membership: &Membership,
        manner: &Manner,
    ) -> Option<Op> {
        let Membership::Of { version, value_bytes, stub } = membership else { return None };
        let device = self.readable(place.primary)?;
        let is_newest = self.roles_of_newest(place).end >= self.forms.stubs_end();
        let is_whole = !self.is_unsettled(place) && !self.was_never_packed(*version);
        let keeps = is_newest && is_whole && self.ghost_range(&device, manner).is_some();
        keeps.then(|| self.kept_ghost(place, stub.set, (*version, *value_bytes)))
    }

    /// A ghost of what stands on its member under its key.
    fn kept_ghost(&self, place: &Place, set: Version, (version, value_bytes): (Version, u64)) -> Op {
        let kept = Kept {
            head: encode_version(set).to_vec(),
            bytes: Some(HEADER_BYTES as u64 + value_bytes),
            container: placement::container(place.container, 0),
            key: place.key.clone(),
        };
        self.ghost_store(place, version, kept)
    }

    fn ghost_store(&self, place: &Place, version: Version, value: impl Into<Value>) -> Op {
        Op::store(placement::sets(place.container), ghost_key(&self.tag, version), value)
    }

    /// What keeps a value, of which that much is known; with `proves` all of it is read before.
    pub(crate) async fn ghost_of(
        self: &Rc<Self>,
        place: &Place,
        membership: &Membership,
        (manner, proves): (&Manner, bool),
    ) -> Result<Option<Op>> {
        if *membership == Membership::Alone && !self.has_doubts() {
            return Ok(None);
        }
        if let Some(ghost) = self.ghost_by_stub(place, membership, manner).filter(|_| !proves) {
            return Ok(Some(ghost));
        }
        let Some(device) = self.writable(place.primary) else { return Ok(None) };
        let range = if proves { None } else { self.ghost_range(&device, manner) };
        let piece = match self.read_piece(&device, place, 0, range, manner).await {
            Ok(piece) => piece,
            // What is lost the set gives, when it is looked through: until then it is not taken for one that
            // was never whole.
            Err(Error::Unreadable(_)) => {
                let Membership::Of { version, stub, .. } = membership else { return Ok(None) };
                return Ok(Some(self.ghost_store(place, *version, encode_version(stub.set).to_vec())));
            }
            // Where its member is lost what is sent to it next finds that out.
            Err(Error::NotFound | Error::ReadOnly(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(self.ghost_from(place, (piece, range), membership).map(|(_, ghost)| ghost))
    }

    /// How much of a value has to be read for a ghost of it: its header, where the member keeps the value
    /// itself; else all of it. What a transaction writes names no other key.
    pub(crate) fn ghost_range(&self, device: &Rc<dyn Device>, manner: &Manner) -> Range {
        let keeps = device.keeps() && !manner.is_within();
        keeps.then_some((0, 0))
    }

    /// What keeps a value of which so much was read, and its version; nothing if no set has it.
    pub(crate) fn ghost_from(
        &self,
        place: &Place,
        (piece, read): (Piece, Range),
        membership: &Membership,
    ) -> Option<(Version, Op)> {
        let Piece { item, header: Some(header), .. } = piece else { return None };
        if item.upload.is_some() || !header.form.is_packed() || self.was_never_packed(header.version) {
            return None;
        }
        if *membership == Membership::Alone && !self.is_in_doubt(header.version) {
            return None;
        }
        let set = match membership {
            Membership::Of { version, stub, .. } if *version == header.version => stub.set,
            _ => no_set(self.next_version()),
        };
        if VERSION_BYTES + HEADER_BYTES + header.value_bytes as usize > self.record_bytes_max() {
            return None; // So long a value is in no set.
        }
        let version = header.version;
        let ghost = match read {
            None => self.ghost_store(place, version, ghost_of(set, &header, item.bytes.into())),
            Some(_) => self.kept_ghost(place, set, (version, header.value_bytes)),
        };
        Some((version, ghost))
    }

    /// Whether a value was written after a member went out that is out still: nothing was packed since, so
    /// what replaces it again and again leaves one ghost at most, of what was there before (seed 21420).
    fn was_never_packed(&self, version: Version) -> bool {
        !self.all_in() && version > self.parted_at.get()
    }

    /// The same, done: what its member has of a held key may go from here on.
    pub(crate) async fn leave_set(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<()> {
        let ghost = self.ghost(place, manner).await?;
        self.keep_ghost(place, ghost).await
    }

    /// The same, where it is not known any more whether the key was packed.
    pub(crate) async fn leave_any_set(self: &Rc<Self>, place: &Place) -> Result<()> {
        if !self.forms.has_packed() {
            return Ok(());
        }
        // What may have rotted is proved, and not kept where it stands.
        let manner = (&Manner::background(), true);
        let ghost = self.ghost_of(place, &Membership::Unknown, manner).await?;
        self.keep_ghost(place, ghost.map(|ghost| self.lasting(ghost))).await
    }

    /// The same ghost under the key by which it stays though its value turns out to be a copy: that one was
    /// made because nobody knew.
    fn lasting(&self, mut ghost: Op) -> Op {
        if let Op::Store { key, .. } = &mut ghost {
            let version = key.get(self.tag.len() + 1..).and_then(decode_version).unwrap_or_default();
            *key = lasting_key(&self.tag, version);
        }
        ghost
    }

    async fn keep_ghost(self: &Rc<Self>, place: &Place, ghost: Option<Op>) -> Result<()> {
        let Some(ghost) = ghost else { return Ok(()) };
        let kept = self.sent_to_make_room(place.primary, ghost).await;
        self.unless_out(place.primary, kept).map(drop)
    }

    /// Puts copies in the place of the stubs of a held key.
    pub(crate) async fn put_copies(self: &Rc<Self>, place: &Place) -> Result<()> {
        // Where this is cut short some have copies and others stubs: the next start makes them the same.
        let slot = self.slot_for(place).await;
        let put = self.put_copies_named(place, &[slot.entry(place.container, &place.key)]).await;
        match put {
            Ok(_) => self.return_slot(place, slot),
            Err(_) => self.leave_unsettled(place, slot).await,
        }
        put.map(drop)
    }

    /// The same, beside what names the keys that it may leave half done; false if a member could not say what
    /// it has, which may be a stub.
    pub(crate) async fn put_copies_named(self: &Rc<Self>, place: &Place, names: &[Op]) -> Result<bool> {
        let told = self.ask_all(place, Proof::Record, &Manner::background()).await?;
        let all_told = told.iter().all(|(_, told)| *told != Told::Unreadable);
        let mut stubs: Vec<usize> =
            told.iter().filter(|(_, told)| told.is_stub()).map(|(role, _)| *role).collect();
        stubs.extend(self.stubs_of_filled(place).await?);
        if stubs.is_empty() {
            return Ok(all_told);
        }
        let roles = self.all_roles();
        let mut pieces = self.gather(place, None, (1, &roles, None), &Manner::background()).await?;
        let Some(Piece { item, header: Some(header), .. }) = pieces.pop() else { return Err(WRONG_OUTPUT) };
        for role in stubs.into_iter().filter(|role| *role < header.form.roles()) {
            let value = Header { role: role as u8, ..header }.before(item.bytes.clone()).into();
            let expiry = item.expiry_ms.map_or(Expiry::Never, Expiry::At);
            let store = self.store_op(place, role, value, expiry);
            let batch = Op::Batch([store].into_iter().chain(names.iter().cloned()).collect());
            let stored = self.sent_to_make_room(self.member_of(place, role), batch).await;
            self.unless_out(self.member_of(place, role), stored)?;
        }
        Ok(all_told)
    }

    /// Roles in which members that are being filled may have a stub of a held key. They are not asked what is
    /// right; but who was given a stub before its set is left would have that of a set that goes.
    pub(crate) async fn stubs_of_filled(self: &Rc<Self>, place: &Place) -> Result<Vec<usize>> {
        let mut stubs = Vec::new();
        for role in 1..self.roles {
            let member = self.member_of(place, role);
            let Some(device) = self.writable(member).filter(|_| self.readable(member).is_none()) else {
                continue;
            };
            let told = self.ask(&device, (place, role), Proof::Start, &Manner::background()).await?;
            if told.is_stub() || told == Told::Unreadable {
                stubs.push(role);
            }
        }
        Ok(stubs)
    }

    /// Puts the stub of the newest set of a held key wherever another one is, or a copy: packing it was cut
    /// short, perhaps, or packing it anew.
    pub(crate) async fn put_same_stubs(self: &Rc<Self>, place: &Place) -> Result<()> {
        let (manner, mut pieces) = (Manner::background(), Vec::new());
        for role in 1..self.roles {
            let Some(device) = self.readable(self.member_of(place, role)) else { continue };
            match self.read_piece(&device, place, role, Some((0, 0)), &manner).await {
                Ok(piece) if piece.item.upload.is_none() => pieces.push(piece),
                Ok(_) => {}
                Err(error) if gives_nothing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let stubs = pieces.iter().filter_map(|piece| Some((piece.header?, piece.stub.clone()?)));
        let Some((header, stub)) = stubs.max_by_key(|(header, stub)| (header.version, stub.set)) else {
            return Ok(());
        };
        for piece in &pieces {
            let is_of_it = piece.header.is_some_and(|other| other.version == header.version);
            if is_of_it && piece.stub.as_ref() != Some(&stub) {
                let header = Header { role: piece.role as u8, ..header };
                let expiry = piece.item.expiry_ms.map_or(Expiry::Never, Expiry::At);
                let value = header.before(stub.encode()).into();
                let store = self.store_op(place, piece.role, value, expiry);
                let stored = self.sent_to_make_room(self.member_of(place, piece.role), store).await;
                self.unless_out(self.member_of(place, piece.role), stored)?;
            }
        }
        Ok(())
    }

    /// Whether a held key is packed, as the members that hold no value of it say. If it is whole on all, the
    /// first that can be read knows; if it may not be, it takes all of them to have it, and say that it is
    /// not.
    pub(crate) async fn membership(self: &Rc<Self>, place: &Place, manner: &Manner) -> Result<Membership> {
        let (sure, end) = (self.forms.sure_stubs(), self.forms.stubs_end());
        let is_whole = !self.is_unsettled(place);
        let (mut has_alone, mut all_told) = (false, true);
        let teller = self.teller(place);
        for role in std::iter::once(teller).chain((1..end).filter(|role| *role != teller)) {
            let Some(device) = self.readable(self.member_of(place, role)) else {
                all_told = false;
                continue;
            };
            // Where a set with fewer parities has no stub, nothing says nothing.
            let tells_absence = role < sure.end;
            if is_whole && tells_absence && self.role_lacks(place, role) {
                return Ok(Membership::Alone);
            }
            let read = self.read_piece(&device, place, role, Some((0, 0)), manner);
            match self.read_in_time(read).await {
                Ok(Piece { stub: Some(stub), header: Some(header), .. }) => {
                    let Header { version, value_bytes, .. } = header;
                    return Ok(Membership::Of { version, value_bytes, stub });
                }
                Err(Error::NotFound) if !tells_absence => {}
                Ok(_) | Err(Error::NotFound) if is_whole => return Ok(Membership::Alone),
                Ok(_) => has_alone = true,
                // A delete that others refused may have taken its stub.
                Err(Error::NotFound | Error::Unreadable(_) | Error::ReadOnly(_)) => all_told = false,
                Err(error) => return Err(error),
            }
        }
        Ok(if has_alone && all_told { Membership::Alone } else { Membership::Unknown })
    }
}

/// What a ghost holds: the set that needs it, and the value as it stood.
pub(crate) fn ghost_of(set: Version, header: &Header, value: Bytes) -> Payload {
    Payload::behind(&[&encode_version(set)[..], &header.encode()].concat(), value)
}
