//! Behind: what was recovered of a device that is out stays behind the stub that told of it.
//!
//! Role: a packed value whose member is out takes a stub, a parity and the rest of its set: five requests of
//! 4+2. Kept behind its stub it takes one, from the next read on. Place on the path: behind a read that
//! recovered a value, in the background. When its member is in again, whoever fills that or looks through
//! its set gives the room back.
//!
//! Invariants:
//! * a stub stays a stub, of the same set and version: whoever asks which set a key is in learns the same;
//! * what stands behind it is its value, whole, and is put there only in the place of the stub that was read;
//! * nothing is kept for a member that is slow or being filled, or on one that has no room to spare.
//!
//! Never: anybody waits for it, or for much of it. Where devices have more to do than to wait for readers one
//! value in twelve is kept, so that reading gets cheaper there, too, and is hardly slower meanwhile; what is
//! not kept is left to the next read.

use crate::array::{Array, Place};
use crate::gather::Piece;
use crate::header::{HEADER_BYTES, Header};
use crate::manner::Manner;
use crate::roster::MemberState;
use crate::set::Stub;
use plimsoll_kv::{Condition, Error, Expiry, Item, Op, Payload, Result, Version};
use plimsoll_reactor::Work;
use std::rc::Rc;

/// Bytes of values that are being kept at a time: they are in memory once more meanwhile.
const KEEPING_BYTES_MAX: usize = 1 << 20;
/// A member that is asked for fewer shards at a time has time.
const BUSY_SHARDS: u32 = 4;
/// Of so many values that a busy one recovered one is kept.
const BUSY_EACH: u64 = 12;

impl Array {
    /// A value was recovered by a stub: it is kept behind that, if its member is out.
    pub(crate) fn keep_behind(
        self: &Rc<Self>,
        place: &Place,
        (item, header): (&Item, Header),
        (stub, value): (&Stub, &[u8]),
        manner: &Manner,
    ) {
        let role = usize::from(header.role);
        let member = self.member_of(place, role);
        let has_room = self.readable(member).is_some_and(|device| device.has_room());
        let bytes = HEADER_BYTES + Stub::bytes(stub.holders.len() - 1) + value.len();
        if self.state(place.primary) != MemberState::Out
            || manner.is_within()
            || item.expiry_ms.is_some()
            || value.is_empty()
            || bytes > self.record_bytes_max()
            || !has_room
            || self.keeping_bytes.get() + bytes > KEEPING_BYTES_MAX
            || !self.has_time(member)
        {
            return;
        }
        self.keeping_bytes.set(self.keeping_bytes.get() + bytes);
        let behind = Payload::behind(&[&header.encode()[..], &stub.encode()].concat(), value.to_vec().into());
        let (array, place, version) = (self.clone(), place.clone(), item.version);
        self.spawn(Work::Background, async move {
            let _guard = array.locks.lock(place.id.0, place.id.1).await;
            if array.state(place.primary) == MemberState::Out && !array.is_unsettled(&place) {
                // Not kept it is recovered again; a member that failed has been taken out by who sends.
                let kept = array.replace_stub(&place, role, (version, behind)).await;
                array.kept_behind.set(array.kept_behind.get() + u64::from(kept.is_ok()));
            }
            array.keeping_bytes.set(array.keeping_bytes.get() - bytes);
        });
    }

    /// Whether a value may be kept on a member now: it has little else to do, or it is the turn of one.
    fn has_time(&self, member: usize) -> bool {
        let asked = self.recovering.borrow().get(&member).copied().unwrap_or(0);
        let turn = self.not_kept.get() + 1;
        let has_time = asked < BUSY_SHARDS || turn >= BUSY_EACH;
        self.not_kept.set(if has_time { 0 } else { turn });
        has_time
    }

    /// Takes away what stands behind the stub of a held key in a role, as it was read.
    pub(crate) async fn keep_no_more(self: &Rc<Self>, place: &Place, piece: &Piece) -> Result<()> {
        let (Some(header), Some(stub)) = (piece.header, &piece.stub) else { return Ok(()) };
        let alone = header.before(stub.encode());
        match self.replace_stub(place, piece.role, (piece.item.version, alone)).await {
            Err(Error::NotFound | Error::VersionMismatch) => Ok(()),
            replaced => self.unless_out(self.member_of(place, piece.role), replaced).map(drop),
        }
    }

    /// Puts another record of a stub in the place of that with this version, as its member counts. It expires
    /// as that does: an expiry may be set without another version (seed 244).
    async fn replace_stub(
        self: &Rc<Self>,
        place: &Place,
        role: usize,
        (version, record): (Version, Payload),
    ) -> Result<()> {
        let mut store = self.store_op(place, role, record.into(), Expiry::Keep);
        if let Op::Store { condition, .. } = &mut store {
            *condition = Condition::IfVersion(version);
        }
        self.sent_one(self.member_of(place, role), store).await.map(drop)
    }
}
