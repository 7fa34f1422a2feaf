//! Kept versions: what a store replaced stays on the members until the new one is whole.
//!
//! Role: shards of one version are of no use without enough others, so a half-made overwrite must leave the
//! old ones. Members keep them (a store that retains) and give them up here, in the background, when every
//! member has the new ones. Where the new version was made into fewer pieces than the old one, those that are
//! left of that go here, too. Place on the path: behind the acknowledgement.
//!
//! Invariants:
//! * the journal names the key until nothing of it is kept: after a crash what is kept is put back, or given
//!   up;
//! * what is kept is given up by who holds the key, or replaced by the next store;
//! * where there are several forms, what is kept or left of an older version is gone before the newest one is
//!   deleted or may expire: where that arrives late it would be all that is there of the key;
//! * nobody reads what is left of an older version in roles that the newest one does not have;
//! * no write waits for what is given up in the background: what waits for the write may hold that up.

use crate::array::{Array, Place};
use crate::journal::Slot;
use crate::manner::Manner;
use crate::placement;
use plimsoll_kv::{ContainerId, Error, Expiry, Form, Op, Result};
use plimsoll_reactor::Work;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// How long what is kept waits for more.
const GATHER_NS: u64 = 2_000_000;
/// Keys of which something is kept at a time; what comes beyond them is given up alone, before the reply. All
/// are given up together: fewer would fall behind busy devices.
const KEPT_MAX: usize = 1024;

/// Keys of which something is kept, and what names them.
#[derive(Default)]
pub(crate) struct Kept {
    keys: RefCell<BTreeMap<(ContainerId, Vec<u8>), KeptKey>>,
    runs: Cell<bool>,
}

/// What is known of a key of which something is kept.
pub(crate) struct KeptKey {
    /// What its newest version was made into: what stands in other roles is older.
    form: Form,
    /// Older pieces may stand in so many roles, from the first on.
    roles_before: usize,
    /// Names it.
    slot: Slot,
}

impl KeptKey {
    /// In how many roles a version may stand that is older than what is about to replace what is kept: what
    /// stood before it itself may be left, too.
    pub(crate) fn roles(&self) -> usize {
        self.roles_before.max(self.form.roles())
    }
}

#[cfg(test)]
impl Kept {
    /// What is kept goes when others ask for it, and not by itself.
    pub(crate) fn waits(&self) {
        self.runs.set(true);
    }
}

impl Array {
    /// What names a held key because something of it is kept: a write that is about to replace that has it,
    /// and gives it back when it is whole itself.
    pub(crate) fn take_kept(&self, place: &Place) -> Option<KeptKey> {
        self.kept.keys.borrow_mut().remove(&(place.container, place.key.clone()))
    }

    /// The roles in which the newest version of a key stands: what is left in others is older.
    pub(crate) fn roles_of_newest(&self, place: &Place) -> std::ops::Range<usize> {
        let keys = self.kept.keys.borrow();
        if keys.is_empty() || !self.forms.are_mixed() {
            return 0..self.roles;
        }
        let kept = keys.get(&(place.container, place.key.clone()));
        0..kept.map_or(self.roles, |kept| kept.form.roles())
    }

    /// Before a write after which a held key may be gone: where versions have several forms nothing of it may
    /// be kept, as half of such a write would bring that back.
    pub(crate) async fn keep_nothing(self: &Rc<Self>, place: &Place) -> Result<()> {
        if !self.forms.are_mixed() {
            return Ok(());
        }
        let Some(kept) = self.take_kept(place) else { return Ok(()) };
        let cleared = self.clear_kept(place, (kept.form, kept.roles_before)).await;
        if cleared.is_err() {
            self.restore_kept(place, Some(kept));
        }
        cleared
    }

    /// The write that was about to replace what is kept has failed. If some members have it all the same,
    /// what they keep is what was there before it: that goes when the key has been made whole.
    pub(crate) fn restore_kept(&self, place: &Place, kept: Option<KeptKey>) {
        let kept = kept
            .filter(|_| !self.is_unsettled(place))
            .map(|kept| ((place.container, place.key.clone()), kept));
        self.kept.keys.borrow_mut().extend(kept);
    }

    /// The version before the one just written, of a held key, is kept, in so many roles at most. It goes in
    /// the background, but at once where the new one may expire before that and leaves roles alone in which
    /// the old one may stand.
    pub(crate) async fn release_before(
        self: &Rc<Self>,
        place: &Place,
        (form, expiry): (Form, Expiry),
        roles_before: usize,
        slot: Slot,
    ) {
        let kept = KeptKey { form, roles_before, slot };
        if expiry != Expiry::Never && form.roles() < self.roles {
            self.finish(place, kept).await;
        } else {
            self.release_later(place, kept).await;
        }
    }

    /// What is kept of a held key goes in the background; at once if too much is kept already.
    async fn release_later(self: &Rc<Self>, place: &Place, mut kept: KeptKey) {
        let waits = self.kept.keys.borrow().len() < KEPT_MAX && kept.slot.park();
        if !waits {
            self.finish(place, kept).await;
            return;
        }
        self.kept.keys.borrow_mut().insert((place.container, place.key.clone()), kept);
        if self.kept.runs.replace(true) {
            return;
        }
        let array = self.clone();
        self.spawn(Work::Background, async move {
            loop {
                // Others come meanwhile: one request gives up what many have left.
                if array.kept.keys.borrow().len() < KEPT_MAX {
                    array.rest_until(array.reactor.now_ns() + GATHER_NS).await;
                }
                let some: Vec<_> = array.kept.keys.borrow().keys().cloned().collect();
                if some.is_empty() {
                    break;
                }
                let places = some.iter().filter_map(|(container, key)| array.place(*container, key).ok());
                let (free, busy): (Vec<Place>, Vec<Place>) =
                    places.partition(|place| array.locks.is_free(place.id.0, place.id.1));
                // Nobody waits for keys that are free because of one that is not.
                let some = if free.is_empty() { busy.into_iter().take(1).collect() } else { free };
                array.release_kept(some).await;
            }
            array.kept.runs.set(false);
        });
    }

    /// What is kept of some keys goes: one request to each member for all of them.
    async fn release_kept(self: &Rc<Self>, places: Vec<Place>) {
        let ids: BTreeSet<_> = places.iter().map(|place| place.id).collect();
        let _guards = self.locks.lock_all(&ids.into_iter().collect::<Vec<_>>()).await;
        let taken = places.into_iter().filter_map(|place| self.take_kept(&place).map(|kept| (place, kept)));
        let taken: Vec<(Place, KeptKey)> = taken.collect();
        let mut below: BTreeMap<usize, Vec<Op>> = BTreeMap::new();
        for (place, kept) in &taken {
            let roles = if self.forms.are_mixed() { kept.form.roles() } else { self.roles };
            for role in 0..roles {
                let (container, key) = (placement::container(place.container, role), place.key.clone());
                below.entry(self.member_of(place, role)).or_default().push(Op::Release { container, key });
            }
        }
        let manner = Manner::background();
        let batches = below.into_iter().map(|(member, ops)| (member, manner.request(Op::Batch(ops))));
        let released = self.send(batches.collect()).await.and_then(|sent| sent.refused.map_or(Ok(()), Err));
        for (place, kept) in taken {
            let cleared = match &released {
                Ok(()) if self.forms.are_mixed() => {
                    self.clear_left(&place, (kept.form, kept.roles_before)).await
                }
                released => released.clone(),
            };
            if let Err(error) = cleared {
                tracing::warn!(partition = self.partition, %error, "what is left of a version goes later");
                self.leave_unsettled(&place, kept.slot).await;
            }
        }
    }

    /// Nothing is kept of a held key from here on.
    pub(crate) async fn finish_kept(self: &Rc<Self>, place: &Place) {
        if let Some(kept) = self.take_kept(place) {
            self.finish(place, kept).await;
        }
    }

    /// Nothing is kept of any key from here on; who holds everything says so.
    pub(crate) async fn finish_all_kept(self: &Rc<Self>) {
        let all: Vec<_> = self.kept.keys.borrow().keys().cloned().collect();
        for (container, key) in all {
            let Ok(place) = self.place(container, &key) else { continue };
            self.finish_kept(&place).await;
        }
    }

    async fn finish(self: &Rc<Self>, place: &Place, kept: KeptKey) {
        if !self.forms.are_mixed() {
            self.release_at_members(place).await;
            return;
        }
        if let Err(error) = self.clear_kept(place, (kept.form, kept.roles_before)).await {
            tracing::warn!(partition = self.partition, %error, "what is left of a version goes later");
            self.leave_unsettled(place, kept.slot).await;
        }
    }

    /// Of versions of several forms: nothing of what stood before the newest one of a held key, in so many
    /// roles at most, is left, nor kept below it, on any member that is in.
    pub(crate) async fn clear_kept(
        self: &Rc<Self>,
        place: &Place,
        (newest, roles_before): (Form, usize),
    ) -> Result<()> {
        let manner = Manner::background();
        let each = (0..newest.roles()).map(|role| {
            let (container, key) = (placement::container(place.container, role), place.key.clone());
            (self.member_of(place, role), manner.request(Op::Release { container, key }))
        });
        match self.send(each.collect()).await?.refused {
            // Nothing was kept there.
            None | Some(Error::Invalid(_)) => self.clear_left(place, (newest, roles_before)).await,
            Some(error) => Err(error),
        }
    }

    /// Takes away what an older version of a held key has left in roles that the newest one does not have.
    async fn clear_left(self: &Rc<Self>, place: &Place, (newest, roles_before): (Form, usize)) -> Result<()> {
        let manner = Manner::background();
        let left = (newest.roles()..roles_before).filter(|role| !self.role_lacks(place, *role));
        let deletes =
            left.map(|role| (self.member_of(place, role), manner.request(self.delete_op(place, role))));
        let deletes: Vec<_> = deletes.collect();
        if deletes.is_empty() {
            return Ok(());
        }
        let sent = self.send(deletes).await?;
        sent.refused.map_or(Ok(()), Err)
    }

    /// Members give up what they keep of a held key.
    pub(crate) async fn release_at_members(self: &Rc<Self>, place: &Place) {
        let manner = Manner::background();
        let each = (0..self.roles).map(|role| {
            let (container, key) = (placement::container(place.container, role), place.key.clone());
            (self.member_of(place, role), manner.request(Op::Release { container, key }))
        });
        // Where nothing is kept there is nothing to give up.
        let _ = self.send(each.collect()).await;
    }
}
