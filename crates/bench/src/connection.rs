//! One connection: takes what is due, sends it, and proves what comes back.
//!
//! Place on the path: between the schedule and the socket. Invariants: replies are taken in the order of
//! their commands, and there are as many; a value is compared byte for byte; a key whose insert was
//! acknowledged before it was asked for is there. A connection that is lost ends the measurement.

use crate::inserted::Inserted;
use crate::keys::{self, Chooser};
use crate::run::{BenchError, Tenant};
use crate::schedule::Schedule;
use crate::tally::Tally;
use crate::values;
use crate::wire::{Protocol, Wire};
use crate::workload::{Operation, SCAN_KEYS_MAX};
use plimsoll_reactor::{Reactor, Socket};
use plimsoll_resp::Reply;
use rand_core::RngCore;
use rand_xoshiro::Xoshiro256PlusPlus;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of one receive.
const RECEIVE_BYTES: usize = 128 << 10;

/// Bytes that a connection sends together at most, of how many commands ever its pipeline is: 50 connections
/// that store long values hold 200 MiB. One command is sent however long it is.
const PIPELINE_BYTES_MAX: usize = 4 << 20;

/// What the connections of one core have in common for one tenant.
pub(crate) struct Lane {
    pub(crate) reactor: Reactor,
    pub(crate) tenant: Tenant,
    pub(crate) chooser: Chooser,
    pub(crate) schedule: Schedule,
    /// Keys that were stored, or are on their way.
    pub(crate) keys: Arc<AtomicU64>,
    /// Of these, what was inserted and acknowledged.
    pub(crate) inserted: Arc<Inserted>,
    pub(crate) tally: RefCell<Tally>,
    /// Connections that wait for replies.
    pub(crate) waiting: Cell<usize>,
    /// Replies that came.
    pub(crate) replies: Cell<u64>,
}

/// An operation that was sent.
struct Sent {
    operation: Operation,
    /// Its key, or its first.
    key: u64,
    /// Keys that it asks for.
    count: u64,
    /// Which of them have to be there, inserted as they were: a bit for each, the lowest the first's.
    acknowledged: u128,
    begun_ns: u64,
}

/// A connection, ready to ask.
pub(crate) struct Connection {
    socket: Socket,
    wire: Wire,
    /// What the server says to the greeting, each time.
    greeting: Option<Reply>,
    received: Vec<u8>,
    /// Bytes of `received` that are decoded.
    taken: usize,
    out: Vec<u8>,
    random: Xoshiro256PlusPlus,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(socket: Socket, protocol: Protocol, random: Xoshiro256PlusPlus) -> Connection {
        Connection {
            socket,
            wire: Wire::new(protocol),
            greeting: None,
            received: Vec::new(),
            taken: 0,
            out: Vec::new(),
            random,
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Asks one command and gives its reply.
    pub(crate) async fn ask(&mut self, words: &[&[u8]]) -> Result<Reply, BenchError> {
        self.wire.command(words, &mut self.out);
        self.send().await?;
        let reply = self.receive().await?;
        self.nothing_is_left().map(|()| reply)
    }

    /// Asks for a sign of life, and keeps it.
    pub(crate) async fn greet(&mut self) -> Result<Reply, BenchError> {
        let reply = self.ask(&[self.wire.greeting().as_bytes()]).await?;
        self.greeting = Some(reply.clone());
        Ok(reply)
    }

    /// Proves that the server has said nothing twice: what was left over would come before another greeting.
    async fn take_leave(&mut self) -> Result<(), BenchError> {
        let reply = self.ask(&[self.wire.greeting().as_bytes()]).await?;
        if self.greeting.as_ref() == Some(&reply) { Ok(()) } else { Err(BenchError::Surplus) }
    }

    /// An error if more came than was asked for.
    fn nothing_is_left(&self) -> Result<(), BenchError> {
        if self.taken < self.received.len() { Err(BenchError::Surplus) } else { Ok(()) }
    }

    /// Works until the schedule is over.
    pub(crate) async fn work(&mut self, lane: &Lane) -> Result<(), BenchError> {
        let mut sent = Vec::new();
        while let Some(due) = lane.schedule.take(lane.tenant.pipeline, lane.reactor.now_ns()) {
            if let Some(at_ns) = due.at_ns {
                lane.reactor.sleep_until(at_ns).await;
            }
            let mut left = due.count;
            while left > 0 {
                let begun_ns = due.at_ns.unwrap_or_else(|| lane.reactor.now_ns());
                self.compose_some(lane, left, begun_ns, &mut sent);
                if sent.is_empty() {
                    return self.end(lane).await; // Every key is stored.
                }
                left -= sent.len();
                lane.waiting.set(lane.waiting.get() + 1);
                self.exchange(lane, &mut sent).await?;
                lane.waiting.set(lane.waiting.get() - 1);
            }
        }
        self.end(lane).await
    }

    /// Takes leave, watched as any other reply is.
    async fn end(&mut self, lane: &Lane) -> Result<(), BenchError> {
        lane.waiting.set(lane.waiting.get() + 1);
        self.take_leave().await?;
        lane.waiting.set(lane.waiting.get() - 1);
        Ok(())
    }

    /// Sends what is composed and takes its replies.
    async fn exchange(&mut self, lane: &Lane, sent: &mut Vec<Sent>) -> Result<(), BenchError> {
        self.send().await?;
        let (mut halves, begun_ns) = (0, sent[0].begun_ns);
        for one in sent.drain(..) {
            let reply = self.receive().await?;
            lane.replies.set(lane.replies.get() + 1);
            if self.judge(lane, &one, &reply) && one.operation == Operation::ReadModifyWrite {
                self.compose_set(lane, one.key);
                halves += 1;
            }
        }
        self.nothing_is_left()?;
        self.write_back(lane, begun_ns, halves).await
    }

    /// Writes the next operations to the output: so many, or as many as may be sent together.
    fn compose_some(&mut self, lane: &Lane, count: usize, begun_ns: u64, sent: &mut Vec<Sent>) {
        let mut halves_bytes = 0; // What read-modify-writes will send together.
        while sent.len() < count && self.out.len().max(halves_bytes) < PIPELINE_BYTES_MAX {
            let Some(one) = self.compose(lane, begun_ns) else { return };
            if one.operation == Operation::ReadModifyWrite {
                halves_bytes += lane.tenant.sizes.of(one.key);
            }
            sent.push(one);
        }
    }

    /// Writes the next operation to the output; nothing if there is no key left to store.
    fn compose(&mut self, lane: &Lane, begun_ns: u64) -> Option<Sent> {
        let operation = lane.tenant.workload.mix.draw(&mut self.random);
        if operation == Operation::Insert {
            let key = lane.keys.fetch_add(1, Ordering::Relaxed);
            if lane.tenant.workload.fills && key >= lane.tenant.keys {
                return None;
            }
            self.compose_set(lane, key);
            return Some(Sent { operation, key, count: 1, acknowledged: 0, begun_ns });
        }
        let keys = lane.keys.load(Ordering::Relaxed);
        let key = lane.chooser.choose(keys, &mut self.random);
        let mut count = 1;
        match operation {
            Operation::Update => self.compose_set(lane, key),
            Operation::Scan => {
                count = (1 + keys::below(&mut self.random, SCAN_KEYS_MAX)).min(keys - key);
                self.compose_scan(lane, key, count);
            }
            _ => {
                keys::name(key, lane.tenant.key_bytes, &mut self.name);
                self.wire.get(&self.name, &mut self.out);
            }
        }
        let acknowledged = lane.inserted.among(key, count);
        Some(Sent { operation, key, count, acknowledged, begun_ns })
    }

    fn compose_set(&mut self, lane: &Lane, key: u64) {
        keys::name(key, lane.tenant.key_bytes, &mut self.name);
        let version = self.random.next_u64();
        values::make(key, version, lane.tenant.sizes.of(key), &mut self.value);
        self.wire.set(&self.name, &self.value, &mut self.out);
    }

    fn compose_scan(&mut self, lane: &Lane, first: u64, count: u64) {
        let mut words = vec![b"MGET".to_vec()];
        for key in first..first + count {
            keys::name(key, lane.tenant.key_bytes, &mut self.name);
            words.push(self.name.clone());
        }
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        self.wire.command(&words, &mut self.out);
    }

    async fn send(&mut self) -> Result<(), BenchError> {
        let (sent, mut out) = self.socket.send(std::mem::take(&mut self.out)).await;
        out.clear();
        self.out = out;
        sent.map_err(BenchError::Lost)
    }

    async fn receive(&mut self) -> Result<Reply, BenchError> {
        loop {
            let decoded = self.wire.decode(&self.received[self.taken..]);
            let (consumed, reply) = decoded.map_err(BenchError::Protocol)?;
            self.taken += consumed;
            if let Some(reply) = reply {
                return Ok(reply);
            }
            self.received.drain(..self.taken);
            self.taken = 0;
            let buffer = std::mem::take(&mut self.received);
            let (received, buffer) = self.socket.receive(buffer, RECEIVE_BYTES).await;
            self.received = buffer;
            match received {
                Ok(0) => return Err(BenchError::Closed),
                Ok(_) => {}
                Err(error) => return Err(BenchError::Lost(error)),
            }
        }
    }

    /// Looks at a reply and counts what it says; true if it is what it has to be.
    fn judge(&mut self, lane: &Lane, sent: &Sent, reply: &Reply) -> bool {
        let is_right = match (sent.operation, reply) {
            (_, Reply::Error(text)) => {
                lane.tally.borrow_mut().failed(text);
                false
            }
            (Operation::Update | Operation::Insert, Reply::Simple(text)) if text == b"OK" => {
                lane.inserted.acknowledge(sent.key);
                true
            }
            (Operation::Read | Operation::ReadModifyWrite, reply) => self.prove(lane, sent, 0, reply),
            (Operation::Scan, Reply::Array(replies)) if replies.len() as u64 == sent.count => {
                (0..).zip(replies).fold(true, |right, (at, reply)| self.prove(lane, sent, at, reply) && right)
            }
            (operation, reply) => {
                let what = format!("a reply to {} that is none: {reply:.100?}", operation.name());
                lane.tally.borrow_mut().is_wrong(what);
                false
            }
        };
        // Of a read-modify-write this is half.
        if is_right && sent.operation != Operation::ReadModifyWrite {
            self.done(lane, sent.operation, sent.begun_ns);
        }
        is_right
    }

    fn done(&self, lane: &Lane, operation: Operation, begun_ns: u64) {
        if lane.schedule.counts(begun_ns) {
            lane.tally.borrow_mut().done(operation, begun_ns, lane.reactor.now_ns());
        }
    }

    /// True if a value is one that was stored under its key, the one at this place of those asked for.
    fn prove(&mut self, lane: &Lane, sent: &Sent, at: u64, reply: &Reply) -> bool {
        let key = sent.key + at;
        let mut tally = lane.tally.borrow_mut();
        match reply {
            Reply::Bulk(bytes) => {
                let fault = values::fault(key, lane.tenant.sizes.of(key), bytes, &mut self.value);
                let Some(fault) = fault else { return true };
                keys::name(key, lane.tenant.key_bytes, &mut self.name);
                tally.is_wrong(format!("{}: {fault}", self.name.escape_ascii()));
            }
            Reply::Null if sent.acknowledged >> at & 1 == 1 => tally.lost += 1,
            Reply::Null if key >= lane.tenant.keys => tally.not_yet += 1,
            Reply::Null => tally.absent += 1,
            reply => tally.is_wrong(format!("a value that is none: {reply:.100?}")),
        }
        false
    }

    /// The second halves of as many read-modify-writes.
    async fn write_back(&mut self, lane: &Lane, begun_ns: u64, halves: usize) -> Result<(), BenchError> {
        if halves == 0 {
            return Ok(());
        }
        self.send().await?;
        for _ in 0..halves {
            let reply = self.receive().await?;
            lane.replies.set(lane.replies.get() + 1);
            match reply {
                Reply::Simple(_) => self.done(lane, Operation::ReadModifyWrite, begun_ns),
                Reply::Error(text) => lane.tally.borrow_mut().failed(&text),
                reply => {
                    lane.tally.borrow_mut().is_wrong(format!("a reply to SET that is none: {reply:.100?}"))
                }
            }
        }
        self.nothing_is_left()
    }
}
