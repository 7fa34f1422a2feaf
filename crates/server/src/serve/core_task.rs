//! What `serve` does on each core: listens, opens its partitions, serves, ends.
//!
//! Invariants: commands are followed in the order in which they came; each is answered, by one event or to
//! whoever asked, an error by another event before it; the core's reactor stops after its partitions are
//! closed.

use super::devices::Found;
use super::store::{Setup, Store};
use crate::core::{Addresses, Core, serve_core};
use crate::shared::Shared;
use crate::volume::Message;
use futures_util::future::{Either, select};
use plimsoll_array::ArrayStatus;
use plimsoll_reactor::sync::WaitList;
use plimsoll_reactor::{ControlPort, Port, Reactor, Work};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// How often a core says how its arrays are.
const REPORT_NS: u64 = 1_000_000_000;
/// How long a device may take to come into the place of another, or back into its own, before the core goes
/// on without it.
pub(super) const REPLACE_NS_MAX: u64 = 60_000_000_000;

/// What the control thread tells a core.
#[derive(Debug)]
pub(super) enum Command {
    /// Listen here; clients are told that partitions are being opened.
    Listen(Addresses),
    /// Open the partitions.
    Open,
    /// All cores have opened theirs: serve keys.
    Serve,
    /// Do something with the array, and say what came of it.
    Array(Order, oneshot::Sender<Answer>),
    /// Take no more commands, answer those begun.
    Drain,
    /// Close the partitions and end.
    Close,
}

/// What is to be done with an array.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// A member has gone, for this reason.
    TakeOut(usize, String),
    /// A device takes the place of a member.
    Replace(usize, Box<Found>),
    /// Have nothing of a member open any more where it is out.
    LetGo(usize),
    /// A device is there again that was let go, or that the start did not find.
    BringBack(usize, Box<Found>),
    /// Give a member what it lacks; give up what is lost, if that is accepted.
    Rebuild { member: usize, accept_loss: bool },
    /// Compare all members.
    Scrub,
}

/// How a core's arrays are, by the partition's number.
pub(super) type Report = Vec<(u16, ArrayStatus)>;
/// What came of an order, and how things are then.
pub(super) type Answer = (Result<(), String>, Report);

/// What a core tells the control thread.
#[derive(Debug)]
pub(super) enum Event {
    /// It listens.
    Listening(Addresses),
    /// Its partitions are open, with so many records.
    Opened(u64),
    /// It serves keys.
    Serving,
    /// How its arrays are; at any time.
    Array(Report),
    /// Its connections have ended.
    Drained,
    /// Its partitions are closed.
    Closed,
    /// Something failed.
    Failed(String),
}

/// A core's ways to the other cores and to the control thread, taken when it starts.
pub(super) type Ports = Option<(Port<Message>, ControlPort<Command>)>;

/// What the cores are started with.
pub(super) struct Plan {
    pub(super) setup: Setup,
    pub(super) shared: Arc<Shared>,
    pub(super) events: UnboundedSender<Event>,
    pub(super) ports: Mutex<Vec<Ports>>,
}

/// A core on its way.
struct Task {
    reactor: Reactor,
    shared: Arc<Shared>,
    store: Store,
    has_array: bool,
    events: UnboundedSender<Event>,
    commands: RefCell<VecDeque<Command>>,
    arrived: WaitList,
    closing: Cell<bool>,
}

/// Starts this core's part of a server.
pub(super) fn start(reactor: &Reactor, plan: &Plan) {
    let mut ports = plan.ports.lock().expect("nobody panics while holding it");
    let (port, control) = ports[usize::from(reactor.core().0)].take().expect("a core starts once");
    let task = Rc::new(Task {
        reactor: reactor.clone(),
        shared: plan.shared.clone(),
        store: Store::new(reactor, &plan.shared, plan.setup.clone()),
        has_array: plan.setup.array.is_some(),
        events: plan.events.clone(),
        commands: RefCell::default(),
        arrived: WaitList::default(),
        closing: Cell::new(false),
    });
    let own = task.clone();
    control.open(reactor, move |command| {
        own.commands.borrow_mut().push_back(command);
        own.arrived.wake_all();
    });
    reactor.spawn(Work::Control, async move { task.run(port).await });
}

impl Task {
    fn tell(&self, event: Event) {
        // The control thread listens until every core has ended.
        let _ = self.events.send(event);
    }

    async fn command(&self) -> Command {
        self.arrived.wait_for(|| self.commands.borrow_mut().pop_front()).await
    }

    async fn run(self: Rc<Self>, port: Port<Message>) {
        let (mut port, mut core) = (Some(port), None::<Rc<Core>>);
        loop {
            match self.command().await {
                Command::Listen(addresses) => {
                    let port = port.take().expect("a core listens once");
                    match serve_core(&self.reactor, port, &self.shared, addresses) {
                        Ok(listening) => {
                            self.tell(Event::Listening(listening.addresses()));
                            core = Some(listening);
                        }
                        Err(error) => self.tell(Event::Failed(format!("resp: {error}"))),
                    }
                }
                Command::Open => match self.open(core.as_deref().expect("it listens")).await {
                    Ok(()) => self.tell(Event::Opened(self.store.objects())),
                    Err(what) => self.tell(Event::Failed(what)),
                },
                Command::Serve => {
                    core.as_ref().expect("it listens").serve_keys();
                    self.tell(Event::Serving);
                }
                Command::Array(order, answer) => {
                    let done = self.follow(order).await;
                    // Who asked may have given up.
                    let _ = answer.send((done, self.store.statuses()));
                }
                Command::Drain => {
                    if let Some(core) = &core {
                        core.stop().await;
                    }
                    self.tell(Event::Drained);
                }
                Command::Close => {
                    self.closing.set(true);
                    self.store.close().await.into_iter().for_each(|what| self.tell(Event::Failed(what)));
                    self.reactor.stop();
                    return self.tell(Event::Closed);
                }
            }
        }
    }

    /// Opens the partitions, and gives them to the core.
    async fn open(self: &Rc<Self>, core: &Core) -> Result<(), String> {
        let opened = self.store.open().await;
        if self.has_array {
            self.report();
            self.reactor.spawn(Work::Control, self.clone().report_on());
        }
        opened?;
        core.give(self.store.partitions());
        let publishers = self.store.publishers();
        core.set_publisher(Rc::new(move || publishers.publish_now()));
        Ok(())
    }

    async fn follow(&self, order: Order) -> Result<(), String> {
        match order {
            Order::TakeOut(member, reason) => self.store.take_out(member, &reason),
            Order::Rebuild { member, accept_loss } => self.store.rebuild(member, accept_loss),
            Order::Scrub => self.store.scrub(),
            Order::LetGo(member) => return self.store.let_go(member).await,
            Order::Replace(member, found) => {
                let replaced = self.in_time(self.store.replace(member, &found)).await;
                return replaced.unwrap_or_else(|| Err(format!("{}: does not answer", found.path)));
            }
            Order::BringBack(member, found) => {
                let brought = self.in_time(self.store.bring_back(member, &found)).await;
                return brought.unwrap_or_else(|| {
                    // What was begun goes nowhere any more: it may be tried again.
                    self.store.retire(member);
                    Err(format!("{}: does not answer", found.path))
                });
            }
        }
        Ok(())
    }

    /// What comes of opening a device; nothing if that takes too long.
    async fn in_time<T>(&self, opened: impl Future<Output = T>) -> Option<T> {
        match select(pin!(opened), pin!(self.reactor.sleep_ns(REPLACE_NS_MAX))).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }

    fn report(&self) {
        if self.has_array {
            self.tell(Event::Array(self.store.statuses()));
        }
    }

    async fn report_on(self: Rc<Self>) {
        while !self.closing.get() {
            self.reactor.sleep_ns(REPORT_NS).await;
            self.report();
        }
    }
}
