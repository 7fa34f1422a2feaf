//! Behind: what was recovered of a device that is out stays behind the stub that told of it.
//!
//! Role: a packed value whose member is out takes a stub, a parity and the rest of its set: five requests of
//! 4+2. Kept behind its stub it takes one, from the next read on. Place on the path: behind a read that
//! recovered a value, in the background. When its member is in again a scrub gives the room back.
//!
//! Invariants:
//! * a stub stays a stub, of the same set and version: whoever asks which set a key is in learns the same;
//! * what stands behind it is its value, whole, and is put there by the member only in the place of the stub
//!   that was read, in one step: no key is held for it;
//! * before the value stands the version that the member told until then, and is told from then on: nobody
//!   has written the key, and who watches it must not think so;
//! * nothing is kept for a member that is slow or being filled, or on one that has no room to spare.
//!
//! Never: anybody waits for it, and no member is taken out for it. Where many values are recovered at a
//! time one in twelve is kept, so that reading gets cheaper there, too, and is hardly slower meanwhile; what
//! is not kept is left to the next read.

use crate::array::{Array, Place};
use crate::gather::Piece;
use crate::header::{HEADER_BYTES, Header};
use crate::manner::Manner;
use crate::member::{Verdict, verdict};
use crate::roster::MemberState;
use crate::set::{Stub, VERSION_BYTES, encode_version};
use plimsoll_kv::{Class, Condition, Expiry, Item, Op, Output, Payload, Result};
use plimsoll_reactor::Work;
use std::rc::Rc;

/// Bytes of values that are being kept at a time: they are in memory once more meanwhile.
const KEEPING_BYTES_MAX: usize = 1 << 20;
/// A member that is asked for fewer shards at a time has time.
const BUSY_SHARDS: u32 = 4;
/// Of so many values that a busy one recovered one is kept.
const BUSY_EACH: u64 = 12;

impl Array {
    /// A value was recovered by a stub for somebody who waits: it is kept behind that, if its member is out.
    pub(crate) fn keep_behind(
        self: &Rc<Self>,
        place: &Place,
        (item, header): (&Item, Header),
        (stub, value): (&Stub, &[u8]),
        manner: &Manner,
    ) {
        let role = usize::from(header.role);
        let member = self.member_of(place, role);
        let bytes = HEADER_BYTES + Stub::bytes(stub.holders.len() - 1) + VERSION_BYTES + value.len();
        let device = self.readable(member).filter(|device| device.has_room_to_spare());
        let Some(device) = device.filter(|_| {
            self.state(place.primary) == MemberState::Out
                && manner.class() == Class::Foreground
                && !manner.is_within()
                && item.expiry_ms.is_none()
                && bytes <= self.record_bytes_max()
                && self.keeping_bytes.get() + bytes <= KEEPING_BYTES_MAX
                && !self.is_unsettled(place)
                && self.has_time(member)
        }) else {
            return;
        };
        if !self.keeping.borrow_mut().insert(place.id) {
            return;
        }
        self.keeping_bytes.set(self.keeping_bytes.get() + bytes);
        let before = [&header.encode()[..], &stub.encode(), &encode_version(item.version)].concat();
        let behind = Payload::behind(&before, value.to_vec().into());
        let store = self.stub_op(place, role, behind, Condition::IfVersion(item.version));
        let (array, id) = (self.clone(), place.id);
        self.spawn(Work::Background, async move {
            // Not kept it is recovered again.
            let kept = device.execute(Manner::background().request(store)).await;
            if kept.is_ok_and(|done| matches!(done.output, Output::Stored { .. })) {
                array.kept_behind.set(array.kept_behind.get() + 1);
            }
            array.keeping_bytes.set(array.keeping_bytes.get() - bytes);
            array.keeping.borrow_mut().remove(&id);
        });
    }

    /// Whether a value may be kept on a member now: little is recovered with its help, or it is the turn of
    /// one.
    fn has_time(&self, member: usize) -> bool {
        let asked = self.recovering.borrow().get(&member).copied().unwrap_or(0);
        let turn = self.not_kept.get() + 1;
        let has_time = asked < BUSY_SHARDS || turn >= BUSY_EACH;
        self.not_kept.set(if has_time { 0 } else { turn });
        has_time
    }

    /// Takes away what stands behind a stub of a held key. Where the member refuses it stays: nobody needs
    /// the room less than one that has none.
    pub(crate) async fn keep_no_more(self: &Rc<Self>, place: &Place, piece: &Piece) -> Result<()> {
        let (Some(header), Some(stub)) = (piece.header, &piece.stub) else { return Ok(()) };
        let alone = self.stub_op(place, piece.role, header.before(stub.encode()), Condition::None);
        let member = self.member_of(place, piece.role);
        match self.sent_to_make_room(member, alone).await {
            Err(error) if verdict(&error) == Verdict::Refused => Ok(()),
            replaced => self.unless_out(member, replaced).map(drop),
        }
    }

    /// Puts another record of a stub in the place of one. It expires as that does: an expiry may be set
    /// without another version (seed 244).
    fn stub_op(&self, place: &Place, role: usize, record: Payload, as_of: Condition) -> Op {
        let mut store = self.store_op(place, role, record.into(), Expiry::Keep);
        if let Op::Store { condition, .. } = &mut store {
            *condition = as_of;
        }
        store
    }
}
