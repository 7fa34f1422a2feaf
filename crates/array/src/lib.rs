//! Many devices as one reliable device (KVMD, FAST'20).
//!
//! Role: takes KV devices and is one: what is stored stands on several of them, so that it outlives the loss
//! of some. Place on the path: between the cache and the engines. In the order of a request: `array` takes
//! it, `placement` says where the key stands, `policy` what a value is made into, or `picker`, which looks
//! on; `before` says what a write replaces, `read`, `write` and `delete` ask the members, `reconcile` makes
//! whole what they disagree about, `transaction` and `outstanding` do several writes as one, `join` and
//! `membership` say who they are, `rebuild` brings them back, with what they have that counts (`claims`),
//! `bring_back` such as were opened anew. `round` makes sets of values as they come, `pack` behind the
//! acknowledgement; `leave` keeps what a set goes on needing, `company` takes deletes together, `recover`
//! computes what is lost, `regroup` and `sets` look after sets, `mover` stores anew what was picked
//! otherwise.
//!
//! Invariants: see `array`; `docs/rfcs/2026-11-22-array.md` says why they hold at any instant.
//!
//! Never: it promises a time to data loss (`reliability`) as more than a comparison. The model is of objects
//! that fail, each by itself: sets that share devices are taken to be independent of each other, and the
//! failure of a whole device, which takes a member from each of its sets at once, is not in it.
#![forbid(unsafe_code)]

mod answers;
mod array;
mod before;
mod behind;
mod below;
mod bring_back;
mod claims;
mod code;
mod company;
mod costs;
mod delete;
mod describe;
mod enough;
mod expiry;
mod fence;
mod fill;
mod filled;
mod forgotten;
mod forms;
mod gather;
mod give;
mod header;
mod join;
mod journal;
mod kept;
mod leave;
mod loose;
mod manner;
mod mark;
mod mechanism;
mod member;
mod membership;
mod mover;
mod named;
mod open;
mod outstanding;
mod overtaken;
mod pace;
mod pack;
mod parts;
mod picker;
mod pins;
mod placement;
mod policy;
mod read;
mod readers;
mod rebuild;
mod reconcile;
mod recover;
mod regroup;
mod reliability;
mod room;
mod roster;
mod round;
mod scan;
mod scrub;
mod scrubbed;
mod seldom;
mod send;
mod set;
mod sets;
mod speed;
mod tasks;
#[cfg(test)]
mod tests;
mod told;
mod transaction;
mod undo;
mod unfinished;
mod upload;
mod walk;
mod write;

pub use array::{Array, ArrayOptions, ArrayStatus, geometry};
pub use code::{Code, CodeError, Coder};
pub use header::HEADER_BYTES;
pub use join::{OpenError, is_member};
pub use mechanism::{Cost, Mechanism, MechanismError, SET_MEMBERS_MAX, Stored};
pub use member::{Joining, MemberStatus};
pub use picker::{Estimate, Pick};
pub use placement::containers_of;
pub use policy::{CUSTOM_MAX, Choice, Goal, Policy, PolicyError, RANGES_MAX, SizeRange};
pub use reliability::{Failures, set_mttdl_approximate_h, set_mttdl_h};
pub use roster::{MEMBERS_MAX, MemberState};
