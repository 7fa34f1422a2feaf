//! What a transaction writes, as it is asked of each member.
//!
//! Role: makes of each write what every role of its key has to take, and who they are. Place on the path:
//! between a transaction's commit and its members' parts.
//!
//! Invariants: a write is made into what its policy, or its client, says, as outside of transactions; nothing
//! of what a key was made into before is left behind.

use crate::array::{Array, Place};
use crate::manner::Manner;
use crate::placement;
use crate::transaction::{Holding, UNKNOWN};
use plimsoll_kv::{Class, ContainerId, Error, Op, Result, TransactionId, Value};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What each member is asked to write.
pub(crate) type WritesBelow = BTreeMap<usize, Vec<Op>>;

impl Array {
    /// What sets go on needing of what is written while everything is held; of keys that are held one by one
    /// it was kept before.
    pub(crate) async fn add_ghosts(
        self: &Rc<Self>,
        id: TransactionId,
        places: &[(Place, usize)],
        below: &mut WritesBelow,
        manner: &Manner,
    ) -> Result<()> {
        let holds_everything = |holding: &Holding| holding.everything.is_some() && self.forms.has_packed();
        if !self.transactions.open.borrow().get(&id).is_some_and(holds_everything) {
            return Ok(());
        }
        let within = manner.within(self.partition, id);
        for (place, _) in places {
            let ghost = self.ghost(place, &within).await?;
            below.entry(place.primary).or_default().extend(ghost);
        }
        Ok(())
    }

    /// What each member is asked to write, and of which keys: with how many members have to take that.
    pub(crate) fn writes_below(
        &self,
        id: TransactionId,
        writes: Vec<Op>,
    ) -> Result<(WritesBelow, Vec<(Place, usize)>)> {
        let mut below = WritesBelow::new();
        let (mut uploads, mut places) = (Vec::new(), Vec::new());
        for write in writes {
            if let Op::Clear { container } = write {
                for (member, clears) in self.clears_below(container)? {
                    below.entry(member).or_default().extend(clears);
                }
                continue;
            }
            let (container, key) = write.place().ok_or(Error::Invalid("no write of a transaction"))?;
            let place = self.place(container, key)?;
            self.check_held(id, &place)?;
            if let Some(upload) = write.upload() {
                uploads.push((place.clone(), upload));
            }
            let (needed, each) = self.write_below(&place, &write)?;
            for (role, write) in each {
                below.entry(self.member_of(&place, role)).or_default().push(write);
            }
            places.push((place, needed));
        }
        let mut open = self.transactions.open.borrow_mut();
        open.get_mut(&id).ok_or(UNKNOWN)?.uploads = uploads;
        Ok((below, places))
    }

    /// A write of a key in each role, and how many have to take it. Where values of several forms are, what
    /// the key was made into before may have had more roles.
    fn write_below(&self, place: &Place, write: &Op) -> Result<(usize, Vec<(usize, Op)>)> {
        let delete = |role| (role, self.delete_op(place, role));
        let (form, mut stores) = match write {
            Op::Store { value: Value::Bytes(bytes), expiry, form, .. } => {
                if bytes.len() > self.longest() {
                    return Err(Error::ValueTooLong);
                }
                let form = self.form_for(*form, bytes.len() as u64)?;
                self.note_store(place, bytes.len() as u64, Class::Foreground);
                (form, self.stores(place, (form, &bytes.clone().into_bytes()), *expiry))
            }
            Op::Store { value: Value::Upload(upload), expiry, .. } => {
                let (form, at) = self.upload_at(*upload)?;
                let store = |(role, of)| (role, self.store_op(place, role, Value::Upload(of), *expiry));
                (form, at.into_iter().map(store).collect())
            }
            Op::Delete { .. } => {
                return Ok((1, (0..self.roles).map(delete).collect()));
            }
            Op::SetExpiry { expiry, condition, .. } => {
                let set = |role| {
                    let (container, key) = (placement::container(place.container, role), place.key.clone());
                    (role, Op::SetExpiry { container, key, expiry: *expiry, condition: *condition })
                };
                return Ok((1, (0..self.roles).map(set).collect()));
            }
            _ => return Err(Error::Invalid("no write of a transaction")),
        };
        stores.extend((form.roles()..self.roles).map(delete));
        Ok((form.needed(), stores))
    }

    /// What empties a container on each member.
    pub(crate) fn clears_below(&self, container: ContainerId) -> Result<Vec<(usize, Vec<Op>)>> {
        self.place(container, b"")?;
        let sets = self.forms.has_packed().then(|| placement::sets(container));
        let each = (0..self.roles).map(|role| placement::container(container, role)).chain(sets);
        let clears: Vec<Op> = each.map(|container| Op::Clear { container }).collect();
        self.packer.forget(container);
        Ok((0..self.count()).map(|member| (member, clears.clone())).collect())
    }
}
