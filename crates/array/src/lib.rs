//! Many devices as one reliable device (KVMD, FAST'20).
//!
//! Role: how objects are protected against the loss of devices. Place on the path: above the engine, below
//! the cache. Here so far is what can be known before anything is stored: what each mechanism survives and
//! costs (`mechanism`), and how long that lasts (`reliability`); and what splitting and packing will protect
//! their sets by (`code`).
//!
//! Never: it promises a time to data loss as more than a comparison. The model is of objects that fail, each
//! by itself: sets that share devices are taken to be independent of each other, and the failure of a whole
//! device, which takes a member from each of its sets at once, is not in it.
#![forbid(unsafe_code)]

mod code;
mod mechanism;
mod reliability;

pub use code::{Code, CodeError, Coder};
pub use mechanism::{Cost, Mechanism, MechanismError, SET_MEMBERS_MAX, Stored};
pub use reliability::{Failures, set_mttdl_approximate_h, set_mttdl_h};
