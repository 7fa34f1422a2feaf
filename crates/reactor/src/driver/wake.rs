//! Waking a core from another thread, at no cost while it is awake.
//!
//! Role: one cell a core, shared by every thread that may leave it a message. Place on the path:
//! under the mesh and the control ring.
//!
//! Invariant: a message put into a ring before [`WakeCell::wake`] is seen by its core without
//! further help. The core announces its sleep and then looks into its rings once more; the sender
//! fills the ring and then looks at the announcement. A sequentially consistent fence stands
//! between the two steps on either side, so at least one of them sees what the other did.
//!
//! Never: it carries no data; a wake-up says "look", not what for.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Where one core announces that it sleeps, and how it is woken.
pub(crate) struct WakeCell {
    sleeping: AtomicBool,
    /// What a sleeping thread waits on; absent in the simulator, where the world looks itself.
    event: Option<OwnedFd>,
}

impl WakeCell {
    /// A cell of a core with its own thread.
    pub(crate) fn for_thread() -> io::Result<WakeCell> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(WakeCell { sleeping: AtomicBool::new(false), event: Some(event) })
    }

    /// A cell of a simulated world: always asleep, so that every wake-up is noted.
    pub(crate) fn for_simulation() -> WakeCell {
        WakeCell { sleeping: AtomicBool::new(true), event: None }
    }

    /// What the core's driver waits on.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_ref().expect("cells of threads have an event").as_fd()
    }

    /// To be called before the last look for messages.
    pub(crate) fn announce_sleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// To be called after the sleep. A wake-up that is on its way arrives in vain.
    pub(crate) fn announce_awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// To be called after the message is in its ring.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        // The swap lets one of several senders pay for the system call.
        if self.sleeping.load(Ordering::Relaxed)
            && self.sleeping.swap(false, Ordering::AcqRel)
            && let Some(event) = &self.event
        {
            // Fails only when 2^64 - 2 wake-ups are pending, and then the core is awake.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }

    /// For the simulator: whether anybody called [`WakeCell::wake`] since the last look.
    pub(crate) fn take_woken(&self) -> bool {
        !self.sleeping.swap(true, Ordering::AcqRel)
    }
}
