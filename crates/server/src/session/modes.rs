//! What operators and clients change about a connection: replies off, watching all commands, waiting for
//! the end of a pause, being cut when idle.
//!
//! Invariants: a command whose reply is not wanted is run all the same; a client that watches and does
//! not read is cut; nobody who waits for a reply counts as idle.

use super::Connection;
use crate::command::Multi;
use crate::reply::Reply;
use plimsoll_resp::Args;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

/// Commands of one connection that begin in a row: some tens of microseconds, if memory answers them.
const ROW_MAX: u32 = 32;

/// Which replies a client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replies {
    /// All.
    #[default]
    On,
    /// None.
    Off,
    /// All after so many commands, the one that asks for it among them.
    SkipNext(u8),
}

impl Connection {
    /// A command has begun: decides whether its reply is wanted. Others get their turn every now and then,
    /// for what memory answers ends where it begins.
    pub(super) async fn count_command(&self) {
        let (muted, next) = match self.replies.get() {
            Replies::On => (false, Replies::On),
            Replies::Off => (true, Replies::Off),
            Replies::SkipNext(1) => (true, Replies::On),
            Replies::SkipNext(count) => (true, Replies::SkipNext(count - 1)),
        };
        self.replies.set(next);
        self.muted.set(muted);
        self.row.set((self.row.get() + 1) % ROW_MAX);
        if self.row.get() == 0 {
            self.core.reactor.yield_now().await;
        }
    }

    /// Whether it watches all commands.
    pub(crate) fn is_monitor(&self) -> bool {
        self.monitors.get()
    }

    /// Begins or ends watching all commands.
    pub(crate) fn set_monitor(&self, monitors: bool) {
        if self.monitors.replace(monitors) != monitors {
            let count = &self.core.shared.monitors;
            let _ = if monitors { count.fetch_add(1, Relaxed) } else { count.fetch_sub(1, Relaxed) };
        }
    }

    /// Tells those who watch of a command that this client has begun.
    #[inline]
    pub(crate) fn show<'a>(&self, slot: usize, args: impl ExactSizeIterator<Item = &'a [u8]> + Clone) {
        if self.core.shared.monitors.load(Relaxed) > 0 && crate::command::is_shown_when_begun(slot) {
            self.show_now(args);
        }
    }

    /// Tells those who watch of EXEC, behind what it ran.
    pub(crate) fn show_now<'a>(&self, args: impl ExactSizeIterator<Item = &'a [u8]> + Clone) {
        if self.core.shared.monitors.load(Relaxed) > 0 {
            let wall_ms = self.core.reactor.wall_ms();
            let line = crate::monitors::line(wall_ms, self.database.get().0, &self.peer, args);
            self.core.show_command(&line);
        }
    }

    /// Lines for a client that watches.
    pub(crate) fn watch(&self, lines: &[u8]) {
        if self.dead.get() {
            return;
        }
        let each = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let reply = Reply::Several(each.map(|line| Reply::Line(line.to_vec())).collect());
        self.tell(reply);
    }

    /// Whether a command has to wait for the end of a pause.
    pub(super) fn is_held(&self, command: Option<&[u8]>) -> bool {
        let pausing = &self.core.pausing;
        if !pausing.holds_writes() || self.monitors.get() {
            return false;
        }
        if pausing.holds_all() {
            return true;
        }
        // A transaction waits only if it has something to write.
        let of_queued = || self.multi.borrow().as_ref().is_some_and(Multi::may_write);
        command.is_some_and(|name| {
            crate::command::may_write(name) || name.eq_ignore_ascii_case(b"exec") && of_queued()
        })
    }

    /// Waits until a pause is over, or the connection takes no more commands.
    pub(super) async fn wait_while_paused(&self, command: Option<&[u8]>) {
        if self.is_held(command) {
            self.room.wait_for(|| (self.closing.get() || !self.is_held(command)).then_some(())).await;
        }
    }

    /// A pause is over.
    pub(crate) fn go_on(&self) {
        self.room.wake_all();
    }

    /// Whether its client is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.peer.parse().is_ok_and(|peer: std::net::SocketAddr| peer.ip().to_canonical().is_loopback())
    }

    /// Waits until the connection takes no more commands.
    pub(crate) async fn wait_for_end(&self) {
        self.room.wait_for(|| self.closing.get().then_some(())).await;
    }

    /// Cuts the connection if its client has sent nothing for so long, and waits for nothing. Called
    /// every now and then.
    pub(crate) fn cut_if_idle(&self, now_ns: u64, idle_ns_max: u64) {
        let idle_ns = now_ns.saturating_sub(self.last_ns.get());
        let is_paused = self.core.pausing.holds_writes();
        let waits = is_paused || !self.queue.borrow().is_empty() || self.unsent_bytes() > 0;
        let is_listener = !self.subscriptions.borrow().is_empty() || self.monitors.get();
        if idle_ns > idle_ns_max && !waits && !is_listener && !self.dead.get() {
            tracing::debug!(
                client = self.id,
                "a client was idle for longer than it may: its connection is cut"
            );
            self.die();
        }
    }
}

/// The words of a command, if the slow log may want them.
pub(crate) fn capture(connection: &Rc<Connection>, args: &Args<'_>) -> Vec<u8> {
    if crate::slow_log::is_on(&connection.core.shared) {
        connection.core.slow_log.capture(args.iter())
    } else {
        Vec::new()
    }
}
