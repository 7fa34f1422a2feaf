//! A connection: what is known of its client, and its two loops.
//!
//! Role: the reader receives, parses and begins commands; the writer sends their replies, but for short ones
//! that stand alone, which leave where they are ready. Place on the path: first and last.
//!
//! Invariants:
//! * replies leave in the order of their commands, however these end;
//! * commands begin in their order, and each gets its place at the devices in its first poll; one
//!   that needs several steps runs alone. So the commands of one connection take effect in order
//!   for each key, while reads of different keys overlap;
//! * commands under way, replies that wait and their bytes are bounded, also of a client that does not
//!   read its replies ([`room`], [`crate::limits`]).
//!
//! Never: it waits for a device on behalf of another connection.

mod account;
mod ahead;
mod backlog;
mod filter;
mod holding;
mod long_command;
mod modes;
mod post;
mod queue;
mod reader;
mod received;
mod room;
mod subscriptions;
mod upload;
mod writer;

use crate::channels::Kind;
use crate::command::{self, Multi, Run, Watched};
use crate::core::{Core, Turn};
use crate::keyspace::Keyspace;
use crate::limits::LISTENER_BYTES_MAX;
use crate::reply::Reply;
use crate::stream::Stream;
use crate::transaction::Transaction;
pub(crate) use account::timed;
use account::{Account, DeviceTime};
use backlog::Rests;
pub use filter::Filter;
pub(crate) use modes::{Replies, capture};
use plimsoll_kv::{ContainerId, LocalFuture};
use plimsoll_reactor::Work;
use plimsoll_reactor::sync::WaitList;
use plimsoll_resp::Version;
use queue::Queue;
use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::net::SocketAddr;
use std::rc::Rc;
use subscriptions::Subscriptions;
pub(crate) use upload::Upload;

/// What a client says about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
}

/// One connection.
pub struct Connection {
    pub(crate) id: u64,
    pub(crate) core: Rc<Core>,
    pub(crate) identity: RefCell<Identity>,
    pub(crate) database: Cell<ContainerId>,
    pub(crate) version: Cell<Version>,
    pub(crate) no_evict: Cell<bool>,
    /// The commands that wait for EXEC, after MULTI.
    pub(crate) multi: RefCell<Option<Multi>>,
    /// The keys that WATCH looks after.
    pub(crate) watched: RefCell<Watched>,
    /// Bytes of those.
    pub(crate) watched_bytes: Cell<usize>,
    /// The transaction in which commands run now.
    pub(crate) transaction: RefCell<Option<Rc<Transaction>>>,
    /// The channels and patterns that it listens to.
    pub(crate) subscriptions: RefCell<Subscriptions>,
    /// Bytes of those, and of the keys that WATCH looks after.
    standing_bytes: Cell<usize>,
    /// Which replies its client wants.
    pub(crate) replies: Cell<Replies>,
    /// The reply to the command that begins is not wanted.
    muted: Cell<bool>,
    /// Behind the command that was parsed last there is more.
    has_more: Cell<bool>,
    /// Commands in a row since others had their turn.
    row: Cell<u32>,
    /// It watches all commands.
    monitors: Cell<bool>,
    /// It has given the password, if there is one.
    pub(crate) authenticated: Cell<bool>,
    stream: Stream,
    /// The address that it came to.
    local: SocketAddr,
    peer: String,
    opened_ns: u64,
    last_command: Cell<Option<usize>>,
    last_ns: Cell<u64>,
    queue: RefCell<Queue>,
    /// Bytes that the writer has with the socket.
    sending_bytes: Cell<usize>,
    /// Bytes of a posted reply that were with the socket at the last look.
    lagging_bytes: Cell<usize>,
    /// Bytes that had left when somebody last looked whether the peer takes any, and since when.
    progress: Cell<(u64, u64)>,
    /// A value in parts is on its way.
    sends_parts: Cell<bool>,
    /// What had left when its client was last found to take nothing for a while.
    stalled_at: Cell<Option<u64>>,
    /// Why nothing more is received, where its client takes nothing.
    rests: Cell<Rests>,
    /// Bytes that it has sent meanwhile.
    backlog_bytes: Cell<usize>,
    /// Bytes of the receive buffer.
    received_bytes: Cell<usize>,
    /// Bytes of commands that come in, and that EXEC runs.
    request_bytes: Cell<usize>,
    /// Bytes of the commands under way.
    running_bytes: Cell<usize>,
    /// Bytes that the replies of EXEC may still have, while it runs commands.
    pub(crate) exec_room_bytes: Cell<usize>,
    /// Its place among those whose long commands come in, while clients hold much.
    turn: RefCell<Option<Turn>>,
    /// What the core reckons that this connection holds.
    counted_bytes: Cell<usize>,
    /// No further command is begun.
    closing: Cell<bool>,
    /// Nothing can be sent any more.
    dead: Cell<bool>,
    /// The reader waits for bytes, or has ended: it begins nothing before more happens.
    reader_rests: Cell<bool>,
    loops: Cell<u8>,
    /// Wakes the reader: there is room, or an end.
    room: WaitList,
    /// Wakes the writer: a reply is ready, or an end.
    ready: WaitList,
    /// Wakes the reader out of a receive: nothing can be sent any more.
    end: WaitList,
}

/// Starts the loops of a connection that was accepted.
pub(crate) fn start(core: &Rc<Core>, stream: Stream, local: SocketAddr) -> Rc<Connection> {
    let peer = stream.peer().map(|address| address.to_string()).unwrap_or_default();
    let now_ns = core.reactor.now_ns();
    let connection = Rc::new(Connection {
        id: core.shared.next_client(),
        core: core.clone(),
        identity: RefCell::default(),
        database: Cell::default(),
        version: Cell::default(),
        no_evict: Cell::new(false),
        multi: RefCell::default(),
        watched: RefCell::default(),
        watched_bytes: Cell::new(0),
        transaction: RefCell::default(),
        subscriptions: RefCell::default(),
        standing_bytes: Cell::new(0),
        replies: Cell::default(),
        muted: Cell::new(false),
        has_more: Cell::new(false),
        row: Cell::new(0),
        monitors: Cell::new(false),
        authenticated: Cell::new(core.shared.settings.password.is_none()),
        stream,
        local,
        peer,
        opened_ns: now_ns,
        last_command: Cell::new(None),
        last_ns: Cell::new(now_ns),
        queue: RefCell::default(),
        sending_bytes: Cell::new(0),
        lagging_bytes: Cell::new(0),
        progress: Cell::new((0, now_ns)),
        sends_parts: Cell::new(false),
        stalled_at: Cell::default(),
        rests: Cell::default(),
        backlog_bytes: Cell::new(0),
        received_bytes: Cell::new(0),
        request_bytes: Cell::new(0),
        running_bytes: Cell::new(0),
        exec_room_bytes: Cell::new(0),
        turn: RefCell::default(),
        counted_bytes: Cell::new(0),
        closing: Cell::new(false),
        dead: Cell::new(false),
        reader_rests: Cell::new(false),
        loops: Cell::new(2),
        room: WaitList::default(),
        ready: WaitList::default(),
        end: WaitList::default(),
    });
    core.reactor.spawn(Work::Network, reader::read(connection.clone()));
    core.reactor.spawn(Work::Network, writer::write(connection.clone()));
    connection
}

impl Connection {
    /// Where the commands of this connection find their keys now.
    pub(crate) fn keyspace(&self) -> Keyspace {
        Keyspace::new(&self.core, self.transaction.borrow().clone())
    }

    /// True while EXEC runs commands of this connection.
    pub(crate) fn in_transaction(&self) -> bool {
        self.transaction.borrow().is_some()
    }

    /// Takes no further command; ends when the replies to those begun have left.
    pub(crate) fn finish(&self) {
        self.closing.set(true);
        self.room.wake_all();
        self.ready.wake_all();
    }

    /// Nothing can be sent any more: forgets what was to be.
    pub(crate) fn die(&self) {
        self.closing.set(true);
        // Before anything is counted anew: who is being cut is not cut once more.
        if !self.dead.replace(true) {
            self.core.doom(self.counted_bytes.get());
        }
        let forgotten = self.queue.borrow_mut().forget();
        drop(forgotten);
        self.stream.shutdown();
        self.end.wake_all();
        self.room.wake_all();
        self.ready.wake_all();
    }

    /// Ends the connection of a client that may be sending: it is told at once.
    pub(crate) fn cut(&self) {
        self.stream.abort();
        self.die();
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.get()
    }

    fn loop_ended(&self) {
        self.loops.set(self.loops.get() - 1);
        if self.loops.get() == 0 {
            let held_bytes = self.counted_bytes.replace(0);
            if self.dead.get() {
                self.core.give_back(held_bytes);
            } else {
                self.core.hold(held_bytes, 0);
            }
            command::forget_subscriptions(self);
            self.set_monitor(false);
            self.core.ended(self.id);
        }
    }

    /// A reply that is ready at once.
    fn reply(&self, account: Option<Account>, reply: Reply) {
        if self.dead.get() {
            return;
        }
        self.charge(account, &reply, 0);
        self.enqueue(reply);
    }

    /// Lets a reply that is charged already leave when it is its turn.
    fn enqueue(&self, reply: Reply) {
        if self.dead.get() || self.muted.get() {
            return;
        }
        self.queue.borrow_mut().push_ready(self.version.get(), reply);
        self.let_leave();
        self.recount();
    }

    /// A message of a channel that this client listens to.
    pub(crate) fn hear(&self, pattern: Option<Vec<u8>>, channel: &[u8], message: &[u8]) {
        if self.dead.get() {
            return;
        }
        let kind = if pattern.is_some() { "pmessage" } else { "message" };
        let words = [Reply::bulk(kind)].into_iter().chain(pattern.map(Reply::Bulk));
        let words = words.chain([Reply::bulk(channel), Reply::bulk(message)]).collect();
        self.tell(Reply::Push(words));
    }

    /// Lets a message leave that is no reply; cuts the connection if too much waits for it.
    fn tell(&self, message: Reply) {
        self.queue.borrow_mut().push_message(self.version.get(), message);
        self.ready.wake_all();
        self.recount();
        if self.queue.borrow().waiting_bytes() > LISTENER_BYTES_MAX && !self.dead.get() {
            if let Some(untold) = self.core.seldom.listeners.due(self.core.reactor.now_ns()) {
                let words = "a client that listens does not read: its connection is cut";
                tracing::warn!(client = self.id, untold, "{words}");
            }
            self.die();
        }
    }

    /// The header of an array whose elements get their places one after the other.
    fn begin_array(&self, elements: usize) {
        if self.dead.get() || self.muted.get() {
            return;
        }
        self.queue.borrow_mut().push_header(self.version.get(), elements);
        self.ready.wake_all();
    }

    /// The place of a reply that comes later.
    fn reserve(&self) -> u64 {
        self.queue.borrow_mut().push_pending(self.version.get(), self.muted.get())
    }

    /// Begins a command whose reply gets the next place.
    fn begin(
        self: &Rc<Self>,
        account: Option<Account>,
        shared_time: Option<DeviceTime>,
        future: LocalFuture<Reply>,
    ) {
        let place = self.reserve();
        let connection = self.clone();
        // What memory answers ends here, without a turn of its own.
        self.core.reactor.spawn_now(Work::Kv, async move {
            let own_time = Cell::new(0);
            let time = shared_time.as_deref().unwrap_or(&own_time);
            let reply = timed(&connection, future, time).await;
            connection.fill(place, account, time.get(), reply);
        });
    }

    /// The reply for a reserved place has come.
    fn fill(&self, place: u64, account: Option<Account>, device_ns: u64, reply: Reply) {
        if let Some(account) = &account {
            self.running_bytes.set(self.running_bytes.get() - account.request_bytes);
        }
        self.charge(account, &reply, device_ns);
        let is_muted = self.queue.borrow().is_muted(place);
        let reply = if is_muted {
            Reply::Several(Vec::new())
        } else if self.is_sending() || !self.queue.borrow().is_first(place) {
            reply.kept()
        } else {
            reply
        };
        let first = self.queue.borrow_mut().fill(place, reply);
        if first {
            self.let_leave();
        }
        if self.closing.get() || !self.room.is_empty() {
            self.room.wake_all();
        }
        self.recount();
    }

    /// Runs a command to the point from which the next may begin; false to begin no more.
    async fn perform(self: &Rc<Self>, account: Option<Account>, run: Run) -> bool {
        // Until its reply has come, what a command was given is held.
        let account = match run {
            Run::Overlap(_) | Run::Alone(_) | Run::Each { .. } | Run::Many(_) => {
                account.inspect(|account| self.holds_while_running(account))
            }
            _ => account,
        };
        self.count_command().await;
        match run {
            Run::Now(reply) => self.reply(account, reply),
            Run::Overlap(future) => self.begin(account, None, future),
            Run::Alone(future) => {
                self.wait_until_alone().await;
                let place = self.reserve();
                let device_time = Cell::new(0);
                let reply = timed(self, future, &device_time).await;
                self.fill(place, account, device_time.get(), reply);
            }
            Run::Each { keys, one } => {
                self.begin_array(keys.len());
                let (last, mut account, device_time) = (keys.len() - 1, account, DeviceTime::default());
                for (index, key) in keys.into_iter().enumerate() {
                    if !self.wait_for_room_within().await {
                        return false;
                    }
                    let charged = if index == last { account.take() } else { None };
                    self.begin(charged, Some(device_time.clone()), one(self, key));
                }
            }
            Run::Many(future) => {
                self.wait_until_alone().await;
                self.queue.borrow_mut().hold_messages();
                let place = self.reserve();
                let device_time = Cell::new(0);
                let mut replies = timed(self, future, &device_time).await.into_iter();
                self.fill(place, account, device_time.get(), replies.next().expect("there is a reply"));
                replies.for_each(|reply| self.enqueue(reply));
                self.queue.borrow_mut().release_messages();
                self.let_leave();
            }
            Run::Close(reply) => {
                self.reply(account, reply);
                return false;
            }
            Run::Abort => {
                self.die();
                return false;
            }
        }
        true
    }

    /// What CLIENT LIST says of its state, in Redis' letters.
    fn flags(&self) -> String {
        let states = [
            ('O', self.monitors.get()),
            ('P', !self.subscriptions.borrow().is_empty()),
            ('x', self.multi.borrow().is_some()),
            ('e', self.no_evict.get()),
        ];
        let flags: String =
            states.into_iter().filter(|(_, is_so)| *is_so).map(|(letter, _)| letter).collect();
        if flags.is_empty() { "N".to_owned() } else { flags }
    }

    /// A line of CLIENT LIST.
    pub(crate) fn describe(&self, now_ns: u64) -> Vec<u8> {
        let age_s = now_ns.saturating_sub(self.opened_ns) / 1_000_000_000;
        let idle_s = now_ns.saturating_sub(self.last_ns.get()) / 1_000_000_000;
        let identity = self.identity.borrow();
        let mut line =
            format!("id={} addr={} laddr={} fd=-1 name=", self.id, self.peer, self.local).into_bytes();
        line.extend_from_slice(&identity.name);
        let flags = self.flags();
        let queue = self.queue.borrow();
        let mut rest = String::new();
        // Writing to a string does not fail.
        let _ = write!(
            rest,
            " age={age_s} idle={idle_s} flags={flags} db={} sub={} psub={} ssub=0 multi={} qbuf={} qbuf-free=0 \
             argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl={} oll={} omem={} tot-mem={} events=r cmd={} user=default \
             redir=-1 resp={} lib-name=",
            self.database.get().0,
            self.subscriptions.borrow().count(Kind::Channel),
            self.subscriptions.borrow().count(Kind::Pattern),
            self.multi.borrow().as_ref().map_or(-1, |multi| multi.queued.len() as i64),
            self.received_bytes.get(),
            self.unsent_bytes(),
            queue.len(),
            queue.waiting_bytes(),
            self.held_bytes(),
            self.last_command.get().map_or("NULL", |slot| crate::command::SLOTS[slot].name.as_str()),
            if self.version.get() == Version::Resp3 { 3 } else { 2 },
        );
        line.extend_from_slice(rest.as_bytes());
        line.extend_from_slice(&identity.library);
        line.extend_from_slice(b" lib-ver=");
        line.extend_from_slice(&identity.library_version);
        line.push(b'\n');
        line
    }
}
