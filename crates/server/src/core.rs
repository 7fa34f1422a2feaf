//! One core of the server: its volume, its listener and its connections.
//!
//! Role: what `serve` starts on every reactor, and the simulator on every simulated one, unchanged.
//! Place on the path: it accepts; the sessions do the rest.
//!
//! Invariants: every connection belongs to the core that accepted it; no command reaches a key before the
//! partitions of all cores are open; at a stop no new connection and no new command is taken, what was begun
//! is answered, and only then is the core idle.
//!
//! Never: it opens devices or knows which kind they are.

mod answer;
mod handshakes;
mod headroom;
mod line;
mod reply_room;
mod seldom;
mod turns;

use crate::channels::Channels;
use crate::latency::Latency;
use crate::limits::{
    GROWING_BYTES_MAX, IDLE_LOOK_NS, SHRUNK_BYTES_MIN, SHRUNK_LOOKS, STALL_LOOK_NS, STOP_NS_MAX,
    UNREAD_BYTES_MUCH,
};
use crate::monitors::Lines;
use crate::parameters::Parameter;
use crate::pause::{Pause, Pausing};
use crate::session::{self, Connection};
use crate::shared::Shared;
use crate::slow_log::SlowLog;
use crate::stream::Stream;
use crate::tls::Tls;
use crate::transaction::{self, Forgetting};
use crate::volume::{Message, Question, Volume};
use futures_util::future::{Either, select};
use handshakes::Handshakes;
use headroom::Headroom;
use line::Line;
use plimsoll_kv::{Completion, Device, Op, Output, Request, Result};
use plimsoll_reactor::sync::WaitList;
use plimsoll_reactor::{Listener, Port, Reactor, Seldom, Socket, Work, give_back_kept_memory};
pub(crate) use reply_room::Reservation;
use seldom::SeldomLines;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
pub(crate) use turns::Turn;
use turns::Turns;

/// Where a server listens: one address at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// For clients without TLS.
    pub plain: Option<SocketAddr>,
    /// For clients with it.
    pub tls: Option<SocketAddr>,
}

impl From<SocketAddr> for Addresses {
    fn from(address: SocketAddr) -> Addresses {
        Addresses { plain: Some(address), tls: None }
    }
}

/// One core that serves.
pub struct Core {
    pub(crate) reactor: Reactor,
    pub(crate) volume: Rc<Volume>,
    pub(crate) shared: Arc<Shared>,
    /// The loops of a connection keep it; here it is only known.
    connections: RefCell<BTreeMap<u64, Weak<Connection>>>,
    addresses: Addresses,
    handshakes: Handshakes,
    /// Lines of the log that clients cause.
    pub(crate) seldom: SeldomLines,
    /// The partitions of all cores are open.
    serves_keys: Cell<bool>,
    /// What was prepared then has been looked at ([`transaction::started`]): once somebody has asked.
    pub(crate) has_started: Cell<bool>,
    stopping: Cell<bool>,
    /// Who listens to what.
    pub(crate) channels: RefCell<Channels>,
    /// Transactions that are applied and not forgotten.
    pub(crate) forgetting: Forgetting,
    /// What all connections hold, and of that what those hold that were cut and have not ended yet.
    held_bytes: Cell<usize>,
    doomed_bytes: Cell<usize>,
    /// The most since somebody last looked.
    held_bytes_peak: Cell<usize>,
    /// Who may go on with a long command while that is much.
    turns: Turns,
    /// Whose backlog may be longer than what is left for others.
    headroom: Headroom,
    /// Who waits to make a long reply.
    reply_line: Line,
    /// Publishes the gauges of this core's devices.
    publisher: RefCell<Option<Rc<dyn Fn()>>>,
    /// Commands that took long.
    pub(crate) slow_log: SlowLog,
    /// The worst latencies of the last seconds that had one.
    pub(crate) latency: RefCell<Latency>,
    /// What clients have to wait for.
    pub(crate) pausing: Pausing,
    /// A task ends the pause.
    pausing_ends: Cell<bool>,
    pause_ended: WaitList,
    /// Lines for the monitors.
    lines: Lines,
    /// Woken when the core stops, and when a connection has ended.
    changed: WaitList,
}

/// Starts serving on this core: listens on its addresses, and reaches the other cores through `port`. Until
/// the partitions are open ([`Core::give`], [`Core::serve_keys`]) its clients are told so.
///
/// # Errors
/// An address cannot be listened on.
///
/// # Panics
/// There is an address for TLS, and the settings have no certificates.
pub fn serve_core(
    reactor: &Reactor,
    port: Port<Message>,
    shared: &Arc<Shared>,
    addresses: impl Into<Addresses>,
) -> io::Result<Rc<Core>> {
    let asked = addresses.into();
    let listen = |address: Option<SocketAddr>| address.map(|address| reactor.listen(address)).transpose();
    let (plain, sealed) = (listen(asked.plain)?, listen(asked.tls)?);
    let volume = Volume::new(reactor, port, shared.geometry);
    let core = Rc::new(Core {
        reactor: reactor.clone(),
        volume: volume.clone(),
        shared: shared.clone(),
        connections: RefCell::default(),
        addresses: Addresses {
            plain: plain.as_ref().map(Listener::address),
            tls: sealed.as_ref().map(Listener::address),
        },
        handshakes: Handshakes::default(),
        seldom: SeldomLines::default(),
        serves_keys: Cell::new(false),
        has_started: Cell::new(false),
        stopping: Cell::new(false),
        channels: RefCell::default(),
        forgetting: Forgetting::default(),
        held_bytes: Cell::new(0),
        held_bytes_peak: Cell::new(0),
        doomed_bytes: Cell::new(0),
        turns: Turns::default(),
        headroom: Headroom::default(),
        reply_line: Line::default(),
        publisher: RefCell::default(),
        slow_log: SlowLog::default(),
        latency: RefCell::default(),
        pausing: Pausing::default(),
        pausing_ends: Cell::new(false),
        pause_ended: WaitList::default(),
        lines: Lines::default(),
        changed: WaitList::default(),
    });
    let patient = shared.clone();
    volume.set_patience(Box::new(move || {
        patient.parameters.get(Parameter::TryagainAfter).unsigned_abs() * 1_000_000
    }));
    let weak = Rc::downgrade(&core);
    volume.set_answerer(Rc::new(move |question| {
        weak.upgrade().map(|core| core.answer(question)).unwrap_or_default()
    }));
    if let Some(listener) = plain {
        reactor.spawn(Work::Network, accept(core.clone(), listener, None));
    }
    if let Some(listener) = sealed {
        let tls = shared.settings.tls.clone().expect("who listens for TLS has certificates");
        reactor.spawn(Work::Network, accept(core.clone(), listener, Some(tls)));
    }
    reactor.spawn(Work::Control, watch(core.clone()));
    reactor.spawn(Work::Control, transaction::forget_applied(core.clone()));
    Ok(core)
}

async fn accept(core: Rc<Core>, listener: Listener, tls: Option<Arc<Tls>>) {
    loop {
        let stopped = core.changed.wait_for(|| core.stopping.get().then_some(()));
        let accepted = match select(pin!(listener.accept()), pin!(stopped)).await {
            Either::Left((accepted, _)) => accepted,
            Either::Right(_) => return,
        };
        match accepted {
            Ok(socket) => core.open(socket, listener.address(), tls.as_deref()),
            Err(error) => {
                if let Some(untold) = core.seldom.accepts.due(core.reactor.now_ns()) {
                    tracing::warn!(core = core.reactor.core().0, %error, untold, "cannot accept a connection");
                }
                // Out of descriptors, most likely: trying at once would spin.
                core.reactor.sleep_ns(10_000_000).await;
            }
        }
    }
}

/// Cuts connections that take nothing of what they keep on the device or in memory, and those that are
/// idle for longer than they may; and sees that memory which clients held goes back to the system.
async fn watch(core: Rc<Core>) {
    let (mut stall_look_ns, mut looks_shrunk) = (core.reactor.now_ns() + STALL_LOOK_NS, 0);
    while !core.stopping.get() {
        core.reactor.sleep_ns(IDLE_LOOK_NS).await;
        let now_ns = core.reactor.now_ns();
        if core.has_shrunk() {
            looks_shrunk = SHRUNK_LOOKS;
        }
        if looks_shrunk > 0 {
            looks_shrunk -= 1;
            give_back_kept_memory();
        }
        if now_ns >= stall_look_ns {
            stall_look_ns = now_ns + STALL_LOOK_NS;
            core.cut_stalled(now_ns);
        }
        core.headroom.wake();
        let idle_s_max = core.shared.parameters.get(Parameter::Timeout);
        if idle_s_max > 0 {
            let idle_ns_max = (idle_s_max as u64).saturating_mul(1_000_000_000);
            core.known_connections().iter().for_each(|c| c.cut_if_idle(now_ns, idle_ns_max));
        }
    }
}

impl Core {
    /// The addresses served.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The partitions that this core owns are open: other cores may ask for their keys.
    pub fn give(&self, partitions: BTreeMap<u16, Rc<dyn Device>>) {
        self.volume.give(partitions);
    }

    /// The partitions of all cores are open: clients of this core may ask for keys, and what a crash has left
    /// half done is brought to its end.
    pub fn serve_keys(self: &Rc<Self>) {
        for (partition, _) in self.volume.local() {
            self.reactor.spawn(Work::Control, transaction::resolve(self.clone(), partition));
        }
        self.serves_keys.set(true);
    }

    /// True until the partitions of all cores are open.
    pub(crate) fn is_loading(&self) -> bool {
        !self.serves_keys.get()
    }

    /// This core's view of all partitions.
    #[must_use]
    pub fn volume(&self) -> &Rc<Volume> {
        &self.volume
    }

    /// Says what publishes the gauges of this core's devices, for commands that tell them.
    pub fn set_publisher(&self, publisher: Rc<dyn Fn()>) {
        *self.publisher.borrow_mut() = Some(publisher);
    }

    fn publish_gauges(&self) {
        let publisher = self.publisher.borrow().clone();
        if let Some(publish) = publisher {
            publish();
        }
    }

    /// True once the core has been told to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// It stops, and no connection is left, to any core.
    pub(crate) fn has_stopped(&self) -> bool {
        self.is_stopping() && self.shared.connections() == 0
    }

    /// A connection has come to one of the addresses.
    fn open(self: &Rc<Self>, socket: Socket, local: SocketAddr, tls: Option<&Tls>) {
        let counters = self.shared.core(self.reactor.core());
        if !self.shared.admit() {
            counters.refused.add(1);
            // Before a handshake nothing can be said.
            if tls.is_none() {
                self.reactor.spawn(Work::Network, async move {
                    let (_, _) = socket.send(b"-ERR max number of clients reached\r\n".to_vec()).await;
                });
            }
            return;
        }
        counters.accepted.add(1);
        match tls {
            None => self.begin(Stream::Plain(socket), local),
            Some(tls) => handshakes::begin(self, socket, local, tls.config()),
        }
    }

    /// A connection that was admitted begins its session.
    fn begin(self: &Rc<Self>, stream: Stream, local: SocketAddr) {
        self.shared.core(self.reactor.core()).open.add(1);
        let connection = session::start(self, stream, local);
        self.connections.borrow_mut().insert(connection.id, Rc::downgrade(&connection));
    }

    fn known_connections(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().values().filter_map(Weak::upgrade).collect()
    }

    /// A connection holds other bytes than before. If all together hold too many, one is cut
    /// ([`Connection::eviction_rank`]). What is about to be given back counts no more: one is cut for it, not
    /// one after the other until it has ended.
    pub(crate) fn hold(&self, before: usize, now: usize) {
        self.set_held_bytes(self.held_bytes.get() - before + now);
        if now <= before {
            self.look_at_lines();
            return;
        }
        if self.staying_bytes() <= self.shared.settings.budget.client_bytes_max {
            return;
        }
        let known = self.known_connections();
        let living = known.iter().filter(|connection| !connection.is_dead());
        let Some(first) = living.max_by_key(|connection| connection.eviction_rank()) else { return };
        self.evict(first, &self.seldom.evictions, "clients hold too much memory: one of them is cut");
    }

    /// Cuts those that take nothing of a value in parts, and of those that stand still as they take nothing
    /// at all the one that holds the most: others may come to their end by that. If clients hold so much that
    /// a long command that begins to come in would have to wait, more of those that take nothing.
    fn cut_stalled(&self, now_ns: u64) {
        let known = self.known_connections();
        known.iter().for_each(|connection| connection.count_posted());
        let mut stalled: Vec<_> = known.iter().filter(|connection| connection.is_stalled(now_ns)).collect();
        stalled.iter().for_each(|connection| connection.cut_if_pinning());
        // Others wait for no less.
        let holds_much = |connection: &Connection| connection.held_bytes() >= UNREAD_BYTES_MUCH;
        stalled
            .retain(|connection| !connection.is_dead() && (connection.is_stuck() || holds_much(connection)));
        stalled.sort_by_key(|connection| std::cmp::Reverse((connection.is_stuck(), connection.held_bytes())));
        for (number, connection) in stalled.into_iter().enumerate() {
            let is_due = number == 0 && connection.is_stuck();
            if !is_due && self.fits_beside(2 * GROWING_BYTES_MAX) {
                return;
            }
            self.evict(connection, &self.seldom.stalled, "a client takes none of its replies: cut");
        }
    }

    /// Cuts a client for the memory that it holds.
    fn evict(&self, client: &Connection, lines: &Seldom, why: &str) {
        self.shared.core(self.reactor.core()).evicted.add(1);
        if let Some(untold) = lines.due(self.reactor.now_ns()) {
            let (bytes, of) = (client.held_bytes(), self.held_bytes.get());
            tracing::warn!(client = client.id, bytes, of, untold, "{why}");
        }
        client.cut();
    }

    /// Clients hold less than before: whoever waits for that first looks again.
    fn look_at_lines(&self) {
        self.look_at_turns();
        self.reply_line.wake_first();
    }

    /// True if clients hold less than half of what they may.
    pub(crate) fn holds_little(&self) -> bool {
        self.held_bytes.get() < self.shared.settings.budget.client_bytes_max / 2
    }

    /// A connection that holds so many bytes will end.
    pub(crate) fn doom(&self, bytes: usize) {
        self.doomed_bytes.set(self.doomed_bytes.get() + bytes);
        self.look_at_lines();
    }

    /// Bytes that connections hold which were not cut.
    fn staying_bytes(&self) -> usize {
        self.held_bytes.get() - self.doomed_bytes.get()
    }

    /// What a doomed connection held is given back.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.doomed_bytes.set(self.doomed_bytes.get() - bytes);
        self.set_held_bytes(self.held_bytes.get() - bytes);
        self.look_at_lines();
        self.headroom.wake();
    }

    /// Whether clients hold much less than they did since this was last asked.
    fn has_shrunk(&self) -> bool {
        let now = self.held_bytes.get();
        self.held_bytes_peak.replace(now) - now >= SHRUNK_BYTES_MIN
    }

    fn set_held_bytes(&self, bytes: usize) {
        self.held_bytes.set(bytes);
        self.held_bytes_peak.set(self.held_bytes_peak.get().max(bytes));
        self.shared.core(self.reactor.core()).held_bytes.set(bytes as u64);
    }

    /// A connection has ended, on both of its ways.
    pub(crate) fn ended(&self, id: u64) {
        let gone = self.connections.borrow_mut().remove(&id);
        assert!(gone.is_some(), "a connection ends once");
        let counters = self.shared.core(self.reactor.core());
        counters.open.set(counters.open.get() - 1);
        self.shared.dismiss();
        self.changed.wake_all();
    }

    /// Stops: takes no new connection or command, lets replies leave, and returns when the last
    /// connection has ended or the time for that is over.
    pub async fn stop(self: &Rc<Self>) {
        self.stopping.set(true);
        self.changed.wake_all();
        self.forgetting.wake();
        self.handshakes.cut_all();
        for connection in self.known_connections() {
            connection.finish();
        }
        let ended = self.changed.wait_for(|| self.connections.borrow().is_empty().then_some(()));
        let late = self.reactor.sleep_ns(STOP_NS_MAX);
        if let Either::Right(_) = select(pin!(ended), pin!(late)).await {
            let left = self.connections.borrow().len();
            tracing::warn!(core = self.reactor.core().0, left, "connections cut: their clients do not read");
        }
    }

    /// Begins a pause, and the task that ends it.
    fn pause(self: &Rc<Self>, for_ms: u64, holds_all: bool) {
        let now_ns = self.reactor.now_ns();
        let until_ns = now_ns.saturating_add(for_ms.saturating_mul(1_000_000));
        self.pausing.begin(now_ns, Pause { until_ns, holds_all });
        if self.pausing_ends.replace(true) {
            return; // The task of the pause that lasts looks again when that is over.
        }
        let core = self.clone();
        self.reactor.spawn(Work::Control, async move {
            while let Some(until_ns) = core.pausing.look(core.reactor.now_ns()) {
                let over = core.pause_ended.wait_for(|| (!core.pausing.holds_writes()).then_some(()));
                select(pin!(over), pin!(core.reactor.sleep_until(until_ns))).await;
            }
            core.pausing_ends.set(false);
            core.unpause();
        });
    }

    /// Ends a pause.
    fn unpause(&self) {
        self.pausing.end();
        self.pause_ended.wake_all();
        self.known_connections().iter().for_each(|connection| connection.go_on());
    }

    /// Tells the monitors of a command that has begun.
    pub(crate) fn show_command(self: &Rc<Self>, line: &str) {
        self.lines.push(line);
        if self.lines.is_busy.replace(true) {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Work::Control, async move {
            loop {
                let question = match core.lines.take() {
                    Ok(lines) if lines.is_empty() => break,
                    Ok(lines) => Question::Monitored(lines.into()),
                    Err(_) => Question::CutMonitors,
                };
                core.volume.ask_all(question).await;
            }
            core.lines.is_busy.set(false);
        });
    }

    /// Executes an operation for a client, with the configured durability, unless it cannot be begun until
    /// the deadline; 0: however long that takes.
    ///
    /// # Errors
    /// That it came too late, and nothing of it was done; those of the partition.
    pub(crate) async fn execute(self: Rc<Self>, op: Op, deadline_ns: u64) -> Result<Output> {
        let request = Request { deadline_ns, ..Request::new(self.shared.settings.durability, op) };
        let completion: Result<Completion> = self.volume.clone().execute(request).await;
        completion.map(|completion| completion.output)
    }
}
