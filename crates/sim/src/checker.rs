//! Checkers of histories: is every key linearizable, is every acknowledged write durable?
//!
//! Place: a world (or a test against a real server) feeds a [`Recorder`]; the [`History`] it gives goes
//! to [`check`], with the contents after the last recovery added by [`add_final_reads`]. [`generated`]
//! makes histories whose verdict is known, to test the checker itself.
//!
//! Invariants: a checker is a pure function of the history and its configuration. A `Violation` is
//! always a true one under the model in `model.rs`; what could not be decided is `Unknown`, never `Ok`.
//!
//! Must never: look at the store under test, or guess.

mod durability;
mod explain;
pub mod generated;
mod history;
mod linearizable;
mod model;
mod prepare;
mod recorder;
mod search;
mod window;

pub use durability::{FinalRead, add_final_reads};
pub use explain::Violation;
pub use history::{
    Condition, Expiry, History, Input, KeyHistory, KeyId, Lifetime, Moment, Operation, Outcome, Output,
    Scope, ValueId, WallSpan,
};
pub use linearizable::{CheckConfig, Exhausted, Held, Verdict, check, check_key, check_key_from};
pub use recorder::{Now, OperationId, Recorder};
