//! A client in a process of its own: it speaks RESP over simulated connections.
//!
//! Place: outside the server, behind the network. What only connections can do is tested here:
//! pipelines, commands in pieces, slow readers, connections cut in the middle of a command.
//!
//! Invariants: every command is in the journal before a byte of it is sent, and ends there when its
//! reply has come or the connection is gone; a connection that ends though nobody cut it, the server
//! lives and its device is sound is a violation.
//!
//! Never: it shares anything with the server but the network (and the world's bookkeeping).

use super::journal::ScanSeen;
use super::life::{Life, Phase, address};
use super::protocol::Pipeline;
use super::workload::{Command, Workload};
use futures_util::future::join;
use plimsoll_reactor::{Reactor, Socket};
use plimsoll_resp::{Decoded, Reply, ReplyDecoder, ReplyLimits};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// A client looks so often whether it may begin.
const LOOK_NS: u64 = 100_000;
/// Connections that a client cuts, in parts per million of its pipelines.
const CUT_PPM: u32 = 20_000;

/// How a connection is used.
#[derive(Clone, Copy)]
struct Manner {
    /// Commands sent together at most.
    depth_max: u64,
    /// Bytes of one send at most.
    piece_bytes_max: u64,
    /// Bytes of one receive.
    receive_bytes: usize,
    /// A rest before each receive lasts up to this long.
    slow_ns: u64,
}

/// A connection.
struct Line {
    socket: Socket,
    decoder: ReplyDecoder,
    received: Vec<u8>,
    database: u32,
    manner: Manner,
}

/// Why no more replies come.
enum End {
    /// All have come.
    Whole,
    /// The stream has ended.
    Closed,
    /// The server is gone.
    Reset,
    /// What came is not the protocol.
    Broken,
}

/// A client by connection.
pub(super) struct Client {
    life: Rc<Life>,
    reactor: Reactor,
    number: u32,
    workload: RefCell<Workload>,
}

impl Client {
    pub(super) fn new(life: &Rc<Life>, reactor: &Reactor, number: u32) -> Client {
        let name = format!("life {} connection {number}", life.number);
        let workload = RefCell::new(Workload::new(life.shape, life.keys.clone(), &name));
        Client { life: life.clone(), reactor: reactor.clone(), number, workload }
    }

    fn below(&self, bound: u64) -> u64 {
        self.workload.borrow_mut().random.below(bound)
    }

    /// Works on one connection after the other, until clients have to stop or the server is gone.
    pub(super) async fn work(self) {
        while self.life.phase.get() < Phase::Working {
            self.reactor.sleep_ns(LOOK_NS).await;
        }
        while self.life.goes_on() {
            // Nobody listens any more: the server is dead.
            let Some(mut line) = self.connect() else { return };
            let mut left = self.below(30);
            while left > 0 && self.life.goes_on() && self.converse(&mut line).await {
                left -= 1;
                let rest_ns = self.below(self.life.shape.rest_ns_max.max(1));
                self.reactor.sleep_ns(rest_ns).await;
            }
        }
        self.life.connected.set(self.life.connected.get() - 1);
    }

    fn connect(&self) -> Option<Line> {
        let socket = self.reactor.connect(address()).ok()?;
        let random = &mut self.workload.borrow_mut().random;
        let mut pick = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        let manner = Manner {
            depth_max: pick(&[1, 1, 3, 8]),
            piece_bytes_max: pick(&[1 << 20, 1 << 20, 5000, 300]),
            receive_bytes: pick(&[64 << 10, 64 << 10, 1000, 100]) as usize,
            slow_ns: pick(&[0, 0, 0, 30_000]),
        };
        let decoder = ReplyDecoder::new(ReplyLimits::DEFAULT);
        Some(Line { socket, decoder, received: Vec::new(), database: 0, manner })
    }

    /// One pipeline, or one scan; false if the connection is gone.
    async fn converse(&self, line: &mut Line) -> bool {
        let mut pipeline = Pipeline::new(&self.life.journal, self.life.shape, (self.number, line.database));
        let mut scans = None;
        {
            let workload = &mut self.workload.borrow_mut();
            match workload.random.below(20) {
                0 => pipeline.set_up(&["HELLO", "3"]),
                1 => pipeline.set_up(&["HELLO", "2"]),
                _ => {}
            }
            for _ in 0..=workload.random.below(line.manner.depth_max) {
                let (key, command) = workload.next(self.reactor.wall_ms());
                match command {
                    Command::Scan => scans = Some(key.name.0),
                    // What is acknowledged before it is durable may be lost; the judges excuse that
                    // by key, and this has none.
                    Command::Clear if self.life.loses_acknowledged() => {}
                    command => pipeline.push(&key, command, &mut workload.random),
                }
            }
        }
        let gone = !self.exchange(line, pipeline).await;
        match scans {
            Some(container) if !gone => self.scan(line, container).await,
            _ => !gone,
        }
    }

    /// Sends a pipeline and judges its replies; false if the connection is gone.
    async fn exchange(&self, line: &mut Line, pipeline: Pipeline) -> bool {
        let (journal, shape) = (self.life.journal.clone(), self.life.shape);
        let mut answered = 0;
        line.database = pipeline.database();
        let expected = &pipeline.expected;
        let whole = self
            .send_and_receive(line, &pipeline.bytes, expected.len(), &mut |reply| {
                expected[answered].judge(&journal, &shape, reply);
                answered += 1;
            })
            .await;
        expected[answered..].iter().for_each(|expected| expected.lose(&self.life.journal));
        whole
    }

    /// Sends bytes in pieces while it receives replies; false if the connection is gone.
    async fn send_and_receive(
        &self,
        line: &mut Line,
        bytes: &[u8],
        count: usize,
        on_reply: &mut dyn FnMut(Reply),
    ) -> bool {
        let cuts = self.workload.borrow_mut().random.chance_ppm(CUT_PPM);
        let length = if cuts { self.below(bytes.len() as u64 + 1) as usize } else { bytes.len() };
        let (socket, pieces_max) = (line.socket.clone(), line.manner.piece_bytes_max);
        let sending = async {
            let mut rest = &bytes[..length];
            while !rest.is_empty() {
                let size = (self.below(pieces_max) as usize + 1).min(rest.len());
                let (piece, after) = rest.split_at(size);
                if socket.send(piece.to_vec()).await.0.is_err() {
                    return;
                }
                rest = after;
            }
            if cuts {
                self.reactor.sleep_ns(self.below(300_000)).await;
                self.life.journal.note(|| format!("client {} cuts its connection", self.number));
                socket.shutdown();
            }
        };
        let (_, end) = join(sending, self.receive(line, count, on_reply)).await;
        match end {
            End::Whole => return !cuts,
            End::Closed if !cuts && !self.may_be_cut() => {
                let text = format!("the server ended the connection of client {}", self.number);
                self.life.journal.violate("connections", text);
            }
            _ => {}
        }
        false
    }

    /// The server cuts a connection if a value turns out unreadable after its beginning was sent.
    fn may_be_cut(&self) -> bool {
        let damage = self.life.was_damaged() && !self.life.shape.is_array();
        self.life.journal.excuses.get().reads_fail || damage
    }

    async fn receive(&self, line: &mut Line, count: usize, on_reply: &mut dyn FnMut(Reply)) -> End {
        let mut answered = 0;
        loop {
            while answered < count {
                let (consumed, reply) = match line.decoder.decode(&line.received) {
                    Ok(Decoded::Reply { consumed, reply }) => (consumed, Some(reply)),
                    Ok(Decoded::Incomplete { consumed, .. }) => (consumed, None),
                    Err(error) => {
                        let text = format!("client {} was sent {error}", self.number);
                        self.life.journal.violate("protocol", text);
                        return End::Broken;
                    }
                };
                line.received.drain(..consumed);
                let Some(reply) = reply else { break };
                on_reply(reply);
                answered += 1;
            }
            if answered == count {
                return End::Whole;
            }
            if line.manner.slow_ns > 0 {
                self.reactor.sleep_ns(self.below(line.manner.slow_ns)).await;
            }
            let received = std::mem::take(&mut line.received);
            let (result, received) = line.socket.receive(received, line.manner.receive_bytes).await;
            line.received = received;
            match result {
                Ok(0) => return End::Closed,
                Ok(_) => {}
                Err(_) => return End::Reset,
            }
        }
    }

    /// Scans a database from end to end; false if the connection is gone.
    async fn scan(&self, line: &mut Line, container: u32) -> bool {
        let journal = &self.life.journal;
        let mut select = Pipeline::new(journal, self.life.shape, (self.number, line.database));
        select.select(container);
        if !self.exchange(line, select).await {
            return false;
        }
        let asked = journal.watch(|| format!("client {} scans db {container}", self.number));
        let (begun, unreadable) = (journal.mark(container), journal.unreadable());
        let (mut keys, mut cursor) = (BTreeSet::new(), "0".to_owned());
        let count = self.below(60) + 1;
        loop {
            let mut bytes = Vec::new();
            let words = ["SCAN", &cursor, "COUNT", &count.to_string()];
            plimsoll_resp::request::encode(&words, &mut bytes);
            let mut reply = None;
            if !self.send_and_receive(line, &bytes, 1, &mut |given| reply = Some(given)).await {
                journal.lose(&asked, "the connection is gone");
                return false;
            }
            match reply.map(page) {
                Some(Ok((next, names))) => {
                    keys.extend(names);
                    cursor = next;
                }
                Some(Err(Reply::Error(text))) => {
                    journal.fail(&asked, &super::protocol::trouble(&text), false);
                    return true;
                }
                other => {
                    journal.violate("answers", format!("a scan gave {other:?}"));
                    return false;
                }
            }
            if cursor == "0" {
                break;
            }
        }
        let ended = journal.mark(container);
        journal.withdraw(&asked, "done");
        let high_wall_ms = journal.high_wall_ms();
        let unreadable = journal.unreadable().saturating_sub(unreadable);
        let seen = ScanSeen { container, begun, ended, high_wall_ms, keys, unreadable };
        journal.scans.borrow_mut().push(seen);
        true
    }
}

/// Cursor and keys of a page of SCAN, or what it is instead.
fn page(reply: Reply) -> Result<(String, Vec<Vec<u8>>), Reply> {
    let Reply::Array(mut parts) = reply else { return Err(reply) };
    let (Some(Reply::Array(keys)), Some(Reply::Bulk(cursor)), 0) = (parts.pop(), parts.pop(), parts.len())
    else {
        return Err(Reply::Array(parts));
    };
    let name = |key| if let Reply::Bulk(name) = key { Ok(name) } else { Err(key) };
    let names = keys.into_iter().map(name).collect::<Result<_, _>>()?;
    Ok((String::from_utf8_lossy(&cursor).into_owned(), names))
}
