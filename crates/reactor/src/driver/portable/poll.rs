//! Readiness of sockets, and the sleep: one epoll a core.
//!
//! Role: tells which sockets may be tried again; sleeps until one may, somebody wakes the core, or the
//! time is up. Place on the path: before the first stage.
//!
//! Invariants: a descriptor is registered once, edge-triggered, and leaves with its closing, so that no
//! operation costs a system call here; one look brings at most [`EVENTS_MAX`] events, the rest come with
//! the next; an event may come for a socket that is gone, and then means nothing.

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const EVENTS_MAX: usize = 1024;
/// Names the event that ends a sleep; sockets are named by their numbers.
const WAKE_DATA: u64 = u64::MAX;

pub(super) struct Poll {
    epoll: OwnedFd,
    events: Vec<Event>,
    /// The kernel counts sleeps in milliseconds.
    coarse: bool,
}

/// What may be done with a socket.
pub(super) struct Ready {
    pub(super) socket: u32,
    /// Receiving or accepting may succeed, or fail.
    pub(super) reading: bool,
    /// Sending may succeed, or fail.
    pub(super) writing: bool,
    /// There may be more to receive than one call brings, without another event.
    pub(super) wary: bool,
}

impl Poll {
    /// `wake` ends sleeps. Nobody reads it: being edge-triggered it tells every write.
    pub(super) fn new(wake: impl AsFd) -> io::Result<Poll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake, EventData::new_u64(WAKE_DATA), EventFlags::IN | EventFlags::ET)?;
        Ok(Poll { epoll, events: Vec::with_capacity(EVENTS_MAX), coarse: false })
    }

    /// Tells of the socket from now on.
    pub(super) fn add(&self, descriptor: impl AsFd, socket: u32) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::PRI | EventFlags::ET;
        Ok(epoll::add(&self.epoll, descriptor, EventData::new_u64(u64::from(socket)), flags)?)
    }

    /// Looks for events, and waits for one for at most so long: for ever if nothing is said. May end early.
    pub(super) fn wait(&mut self, timeout_ns: Option<u64>) {
        self.events.clear();
        let mut waited = self.wait_once(timeout_ns);
        if matches!(waited, Err(Errno::NOSYS | Errno::PERM)) && !self.coarse {
            // epoll_pwait2 came with Linux 5.11, and filters that are older forbid it.
            self.coarse = true;
            waited = self.wait_once(timeout_ns);
        }
        match waited {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("epoll_wait failed: {error}"),
        }
    }

    fn wait_once(&mut self, timeout_ns: Option<u64>) -> rustix::io::Result<usize> {
        const MS: u64 = 1_000_000;
        let timeout_ns = timeout_ns.map(|ns| if self.coarse { ns.div_ceil(MS) * MS } else { ns });
        let timeout = timeout_ns
            .map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref())
    }

    /// What the last wait brought; a wake-up has done its work by ending it.
    pub(super) fn ready(&self) -> impl Iterator<Item = Ready> {
        let sockets = self.events.iter().filter(|event| { event.data }.u64() != WAKE_DATA);
        sockets.map(|event| {
            let (flags, data) = (event.flags, event.data);
            let over = EventFlags::HUP | EventFlags::ERR;
            // What was received before the end, or before an urgent byte, may come in several parts.
            let wary = EventFlags::RDHUP | EventFlags::PRI | over;
            Ready {
                socket: data.u64() as u32,
                reading: flags.intersects(EventFlags::IN | wary),
                writing: flags.intersects(EventFlags::OUT | over),
                wary: flags.intersects(wary),
            }
        })
    }
}
