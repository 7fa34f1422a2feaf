//! One core of the server: its volume, its listener and its connections.
//!
//! Role: what `serve` starts on every reactor, and the simulator on every simulated one, unchanged.
//! Place on the path: it accepts; the sessions do the rest.
//!
//! Invariants: every connection belongs to the core that accepted it; at a stop no new connection
//! and no new command is taken, what was begun is answered, and only then is the core idle.
//!
//! Never: it opens devices or knows which kind they are.

use crate::channels::Channels;
use crate::limits::{CLIENT_BYTES_MAX, STALL_LOOK_NS, STOP_NS_MAX};
use crate::session::{self, Connection};
use crate::shared::Shared;
use crate::transaction::{self, Forgetting};
use crate::volume::{Message, Question, Volume};
use futures_util::future::{Either, select};
use plimsoll_kv::{Completion, Device, Op, Output, Request, Result};
use plimsoll_reactor::sync::WaitList;
use plimsoll_reactor::{Listener, Port, Reactor, Socket, Work};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// One core that serves.
pub struct Core {
    pub(crate) reactor: Reactor,
    pub(crate) volume: Rc<Volume>,
    pub(crate) shared: Arc<Shared>,
    /// The loops of a connection keep it; here it is only known.
    connections: RefCell<BTreeMap<u64, Weak<Connection>>>,
    address: SocketAddr,
    stopping: Cell<bool>,
    /// Who listens to what.
    pub(crate) channels: RefCell<Channels>,
    /// Transactions that are applied and not forgotten.
    pub(crate) forgetting: Forgetting,
    /// What all connections hold.
    held_bytes: Cell<usize>,
    /// Woken when the core stops, and when a connection has ended.
    changed: WaitList,
}

/// Starts serving on this core: listens on an address, with the partitions that this core owns, and
/// reaches the other cores through `port`.
///
/// # Errors
/// The address cannot be listened on.
pub fn serve_core(
    reactor: &Reactor,
    port: Port<Message>,
    partitions: BTreeMap<u16, Rc<dyn Device>>,
    shared: &Arc<Shared>,
    address: SocketAddr,
) -> io::Result<Rc<Core>> {
    let listener = reactor.listen(address)?;
    let volume = Volume::new(reactor, port, shared.geometry, partitions);
    let core = Rc::new(Core {
        reactor: reactor.clone(),
        volume: volume.clone(),
        shared: shared.clone(),
        connections: RefCell::default(),
        address: listener.address(),
        stopping: Cell::new(false),
        channels: RefCell::default(),
        forgetting: Forgetting::default(),
        held_bytes: Cell::new(0),
        changed: WaitList::default(),
    });
    let weak = Rc::downgrade(&core);
    volume.set_answerer(Rc::new(move |question| {
        weak.upgrade().map(|core| core.answer(question)).unwrap_or_default()
    }));
    reactor.spawn(Work::Network, accept(core.clone(), listener));
    reactor.spawn(Work::Control, watch(core.clone()));
    reactor.spawn(Work::Control, transaction::forget_applied(core.clone()));
    for partition in volume.local().keys() {
        reactor.spawn(Work::Control, transaction::resolve(core.clone(), *partition));
    }
    Ok(core)
}

async fn accept(core: Rc<Core>, listener: Listener) {
    loop {
        let stopped = core.changed.wait_for(|| core.stopping.get().then_some(()));
        let accepted = match select(pin!(listener.accept()), pin!(stopped)).await {
            Either::Left((accepted, _)) => accepted,
            Either::Right(_) => return,
        };
        match accepted {
            Ok(socket) => core.open(socket),
            Err(error) => {
                tracing::warn!(core = core.reactor.core().0, %error, "cannot accept a connection");
                // Out of descriptors, most likely: trying at once would spin.
                core.reactor.sleep_ns(10_000_000).await;
            }
        }
    }
}

/// Cuts connections that keep a value on the device and take none of it.
async fn watch(core: Rc<Core>) {
    while !core.stopping.get() {
        core.reactor.sleep_ns(STALL_LOOK_NS).await;
        let now_ns = core.reactor.now_ns();
        core.known_connections().iter().for_each(|connection| connection.cut_if_stalled(now_ns));
    }
}

impl Core {
    /// The address served.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// This core's view of all partitions.
    #[must_use]
    pub fn volume(&self) -> &Rc<Volume> {
        &self.volume
    }

    /// True once the core has been told to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    fn open(self: &Rc<Self>, socket: Socket) {
        let counters = self.shared.core(self.reactor.core());
        if !self.shared.admit() {
            counters.refused.add(1);
            self.reactor.spawn(Work::Network, async move {
                let (_, _) = socket.send(b"-ERR max number of clients reached\r\n".to_vec()).await;
            });
            return;
        }
        counters.accepted.add(1);
        counters.open.add(1);
        let connection = session::start(self, socket);
        self.connections.borrow_mut().insert(connection.id, Rc::downgrade(&connection));
    }

    fn known_connections(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().values().filter_map(Weak::upgrade).collect()
    }

    /// A connection holds other bytes than before. If all together hold too many, the one that holds
    /// the most is cut.
    pub(crate) fn hold(&self, before: usize, now: usize) {
        self.held_bytes.set(self.held_bytes.get() - before + now);
        if now <= before || self.held_bytes.get() <= CLIENT_BYTES_MAX {
            return;
        }
        let known = self.known_connections();
        let largest = known.iter().filter(|connection| !connection.is_dead());
        let Some(largest) = largest.max_by_key(|connection| connection.eviction_rank()) else { return };
        self.shared.core(self.reactor.core()).evicted.add(1);
        tracing::warn!(
            client = largest.id,
            bytes = largest.held_bytes(),
            of = self.held_bytes.get(),
            "clients hold too much memory: the connection that holds the most is cut"
        );
        largest.die();
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

    /// Hands a message to those who listen on this core; how many they are.
    fn publish(&self, channel: &[u8], message: &[u8]) -> Vec<u8> {
        let listeners = self.channels.borrow().listeners(channel);
        let count = listeners.len() as i64;
        for (listener, pattern) in listeners {
            let connection = self.connections.borrow().get(&listener).and_then(Weak::upgrade);
            if let Some(connection) = connection {
                connection.hear(pattern, channel, message);
            }
        }
        count.to_le_bytes().to_vec()
    }

    fn answer(&self, question: Question) -> Vec<u8> {
        match question {
            Question::Clients => {
                let now_ns = self.reactor.now_ns();
                self.known_connections().iter().flat_map(|connection| connection.describe(now_ns)).collect()
            }
            Question::Kill(filter) => {
                let known = self.known_connections();
                let meant = known.iter().filter(|c| c.id != filter.asker && c.is_meant(&filter));
                (meant.inspect(|connection| connection.die()).count() as i64).to_le_bytes().to_vec()
            }
            Question::Publish { channel, message } => self.publish(&channel, &message),
            Question::Channels(kind) => {
                let channels = self.channels.borrow();
                let mut bytes = Vec::new();
                for name in channels.names(kind) {
                    bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
                    bytes.extend_from_slice(name);
                }
                bytes
            }
            Question::Listeners(channel) => {
                (self.channels.borrow().count(&channel) as i64).to_le_bytes().to_vec()
            }
            Question::ResetCounters => {
                self.shared.core(self.reactor.core()).reset();
                Vec::new()
            }
        }
    }

    /// Executes an operation for a client, with the configured durability.
    pub(crate) async fn execute(self: Rc<Self>, op: Op) -> Result<Output> {
        let request = Request::new(self.shared.settings.durability, op);
        let completion: Result<Completion> = self.volume.clone().execute(request).await;
        completion.map(|completion| completion.output)
    }
}
