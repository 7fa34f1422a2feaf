//! One core of the server: its volume, its listener and its connections.
//!
//! Role: what `serve` starts on every reactor, and the simulator on every simulated one, unchanged.
//! Place on the path: it accepts; the sessions do the rest.
//!
//! Invariants: every connection belongs to the core that accepted it; at a stop no new connection
//! and no new command is taken, what was begun is answered, and only then is the core idle.
//!
//! Never: it opens devices or knows which kind they are.

use crate::limits::STOP_NS_MAX;
use crate::session::{self, Connection};
use crate::shared::Shared;
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
        changed: WaitList::default(),
    });
    let weak = Rc::downgrade(&core);
    volume.set_answerer(Rc::new(move |question| {
        weak.upgrade().map(|core| core.answer(question)).unwrap_or_default()
    }));
    reactor.spawn(Work::Network, accept(core.clone(), listener));
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

    fn answer(&self, question: Question) -> Vec<u8> {
        match question {
            Question::Clients => {
                let now_ns = self.reactor.now_ns();
                self.known_connections().iter().flat_map(|connection| connection.describe(now_ns)).collect()
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
