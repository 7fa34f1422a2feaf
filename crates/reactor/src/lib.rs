//! The reactor: one thread a core, and everything that is not deterministic.
//!
//! Role: runs local tasks, owns timers, files and sockets, carries messages between cores and
//! counts where a core's time goes. It is the bottom of the workspace: every crate above does its
//! I/O, reads the clock and draws random numbers through a [`Reactor`], and so the whole product
//! runs unchanged under the simulation driver.
//!
//! Place on the path: the first stage of a request (bytes readable) and the last of every I/O.
//!
//! Invariants:
//! * a task, an operation in flight and its buffer belong to one reactor and are touched by its
//!   thread alone; no lock is taken on the data path;
//! * a buffer belongs to the operation from submission to completion, never to the future that
//!   waits for it: dropping the future cannot free memory that the kernel still writes;
//! * every queue has a limit ([`limits`]).
//!
//! Never: it knows no key, no protocol and no policy; nothing above it works otherwise on one driver
//! than on another, or asks for more than the name of the one that serves.

pub mod buf;
mod bulk;
mod control;
mod driver;
mod executor;
mod file;
pub mod limits;
mod load;
mod memory;
mod mesh;
mod net;
mod non_temporal;
mod ops;
mod pacer;
mod post;
mod prefetch;
mod reactor;
mod remains;
mod seldom;
pub mod sync;
mod timer;

pub use buf::Buf;
pub use control::{Control, ControlPort, ControlSender};
pub use driver::sim;
pub use driver::{DriverChoice, DriverKind, Running, StartOptions, is_refusal, start};
pub use driver::{TMPFS_MAGIC, cannot_listen};
pub use file::{File, FileOptions, FileStats};
pub use load::{Load, LoadSnapshot, Work};
pub use memory::{Allocator, give_back_kept_memory};
pub use mesh::{Mailbox, Mesh, Port};
pub use net::{Listener, Socket};
pub use non_temporal::copy_for_device;
pub use pacer::Pacer;
pub use prefetch::prefetch;
pub use reactor::{CoreId, Reactor};
pub use seldom::Seldom;
