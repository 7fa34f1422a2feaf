//! A server over memory devices and its clients in the simulator: what the session tests share.
#![allow(dead_code, unreachable_pub)]

use plimsoll_flash::OnFull;
use plimsoll_kv::delay::{Delay, DelayDevice};
use plimsoll_kv::fault::{FaultDevice, FaultPolicy};
use plimsoll_kv::memory::{Memory, MemoryOptions};
use plimsoll_kv::{Device, Durability, Error};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::{Mesh, Port, Reactor, Socket, Work};
use plimsoll_resp::{Decoded, Reply, ReplyDecoder, ReplyLimits, request};
use plimsoll_server::budget::Budget;
use plimsoll_server::config::DebugCommand;
use plimsoll_server::parameters::{Parameter, Values};
use plimsoll_server::tls::Tls;
use plimsoll_server::{Addresses, Core, Geometry, Message, Settings, Shared, serve_core};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

pub const SERVER: ProcessId = ProcessId(0);
const CLIENTS: ProcessId = ProcessId(1);
const DEADLINE_NS: u64 = 600_000_000_000;

#[derive(Clone, Copy)]
pub struct Setup {
    pub seed: u64,
    pub cores: usize,
    pub partitions: u16,
    pub memory: MemoryOptions,
    pub delay: Delay,
    pub clients_max: i64,
    pub budget: Budget,
    pub debug_command: DebugCommand,
    pub on_full: OnFull,
    pub password: Option<&'static str>,
    pub tls: Option<&'static Arc<Tls>>,
    /// When the partitions are open, the cores' one after the other: the last opens after as long again.
    pub opens_ms: u64,
    /// What stands in the place of the device of a partition.
    pub instead: fn(Rc<dyn Device>) -> Rc<dyn Device>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            seed: 1,
            cores: 2,
            partitions: 3,
            memory: MemoryOptions::default(),
            delay: Delay::default(),
            clients_max: 100,
            budget: Budget::NOT_GIVEN,
            debug_command: DebugCommand::No,
            on_full: OnFull::Error,
            password: None,
            tls: None,
            opens_ms: 0,
            instead: |device| device,
        }
    }
}

/// What a test holds.
#[derive(Clone)]
pub struct Bench {
    pub reactor: Reactor,
    pub world: World,
    pub memories: Rc<RefCell<Vec<Rc<Memory>>>>,
    /// What each partition refuses, as [`Error::Overloaded`]: nothing unless a test says so.
    pub faults: Rc<RefCell<BTreeMap<u16, Rc<FaultDevice>>>>,
    pub cores: Rc<RefCell<Vec<Rc<Core>>>>,
    pub shared: Arc<Shared>,
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 6379))
}

/// Where TLS is served, if it is.
pub fn tls_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 6380))
}

fn settings(setup: &Setup) -> Settings {
    Settings {
        durability: Durability::Sync,
        on_full: setup.on_full,
        devices: vec!["/data/device".to_owned()],
        policy: None,
        parameters: Values::default().with(Parameter::ClientsMax, setup.clients_max),
        budget: setup.budget,
        debug_command: setup.debug_command,
        password: setup.password.map(|password| password.to_owned().try_into().unwrap()),
        tls: setup.tls.cloned(),
        data_dir: "/data".to_owned(),
        config_file: None,
        run_id: "0123456789012345678901234567890123456789".to_owned(),
        started_ms: 0,
        process_id: 42,
        driver: plimsoll_reactor::DriverKind::Uring,
    }
}

/// Runs a test against a server, to its end.
pub fn run<F: Future<Output = ()> + 'static>(setup: Setup, test: impl Fn(Bench) -> F) {
    let world = World::new(setup.seed, |_| "test");
    let memory = setup.memory;
    let geometry = Geometry {
        partitions: setup.partitions,
        value_bytes_max: memory.value_bytes_max,
        part_bytes: memory.part_bytes,
    };
    let shared = Arc::new(Shared::new(settings(&setup), geometry, setup.cores));
    let ports: Vec<Option<Port<Message>>> = Mesh::ports(setup.cores).into_iter().map(Some).collect();
    let ports = RefCell::new(ports);
    let faults = Rc::new(RefCell::new(BTreeMap::new()));
    let (memories, cores) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new())));
    world.start_process(SERVER, setup.cores, |reactor| {
        let mut partitions: BTreeMap<u16, Rc<dyn Device>> = BTreeMap::new();
        for partition in geometry.owned(reactor.core(), setup.cores) {
            let device = Memory::new(reactor, memory);
            memories.borrow_mut().push(device.clone());
            let slow: Rc<dyn Device> = if setup.delay == Delay::default() {
                device
            } else {
                DelayDevice::new(reactor, device, setup.delay)
            };
            let faulty = FaultDevice::new((setup.instead)(slow), FaultPolicy::Never, Error::Overloaded);
            faults.borrow_mut().insert(partition, faulty.clone());
            partitions.insert(partition, faulty);
        }
        let addresses = Addresses { plain: Some(address()), tls: setup.tls.map(|_| tls_address()) };
        let port = ports.borrow_mut()[usize::from(reactor.core().0)].take().unwrap();
        let core = serve_core(reactor, port, &shared, addresses).unwrap();
        cores.borrow_mut().push(core.clone());
        open(reactor, core, partitions, setup.opens_ms);
    });
    let done = Rc::new(Cell::new(false));
    world.start_process(CLIENTS, 1, |reactor| {
        let bench = Bench {
            reactor: reactor.clone(),
            world: world.clone(),
            memories: memories.clone(),
            faults: faults.clone(),
            cores: cores.clone(),
            shared: shared.clone(),
        };
        let (future, done) = (test(bench), done.clone());
        reactor.spawn(Work::Kv, async move {
            future.await;
            done.set(true);
        });
    });
    let in_time = world.run_until(world.now_ns() + DEADLINE_NS, || done.get());
    assert!(in_time, "the test did not end");
    world.kill(CLIENTS, false);
    world.kill(SERVER, false);
    cores.borrow_mut().clear();
}

/// Gives a core its partitions, as a start does: when all have theirs, they serve keys.
fn open(reactor: &Reactor, core: Rc<Core>, partitions: BTreeMap<u16, Rc<dyn Device>>, opens_ms: u64) {
    if opens_ms == 0 {
        core.give(partitions);
        return core.serve_keys();
    }
    let (reactor, number) = (reactor.clone(), u64::from(reactor.core().0));
    reactor.clone().spawn(Work::Control, async move {
        let (first_ns, cores) = (opens_ms * 1_000_000, reactor.cores() as u64);
        reactor.sleep_ns(first_ns + first_ns * number / cores).await;
        core.give(partitions);
        reactor.sleep_ns(first_ns - first_ns * number / cores).await;
        core.serve_keys();
    });
}

pub struct Client {
    pub socket: Socket,
    decoder: ReplyDecoder,
    buffer: Vec<u8>,
}

impl Bench {
    pub async fn client(&self) -> Client {
        let socket = self.reactor.connect(address()).unwrap();
        // The simulated network forgets to wake a core for bytes that were sent before it accepted
        // and arrive after it began to receive.
        self.reactor.sleep_ns(200_000).await;
        Client { socket, decoder: ReplyDecoder::new(ReplyLimits::DEFAULT), buffer: Vec::new() }
    }

    /// Clients that were cut for what they held.
    pub fn cut(&self) -> u64 {
        self.shared.sum(|counters| counters.evicted.get())
    }

    /// Bytes that all clients hold.
    pub fn held_bytes(&self) -> usize {
        self.shared.sum(|counters| counters.held_bytes.get()) as usize
    }

    pub async fn pause_ms(&self, ms: u64) {
        self.reactor.sleep_ns(ms * 1_000_000).await;
    }
}

pub fn encoded(args: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    request::encode(args, &mut bytes);
    bytes
}

impl Client {
    pub async fn send(&self, bytes: Vec<u8>) {
        let (result, _) = self.socket.send(bytes).await;
        result.unwrap();
    }

    /// The next reply, or nothing at the end of the stream.
    pub async fn next(&mut self) -> Option<Reply> {
        loop {
            match self.decoder.decode(&self.buffer).unwrap() {
                Decoded::Reply { consumed, reply } => {
                    self.buffer.drain(..consumed);
                    return Some(reply);
                }
                Decoded::Incomplete { consumed, .. } => {
                    self.buffer.drain(..consumed);
                }
            }
            let (result, buffer) = self.socket.receive(std::mem::take(&mut self.buffer), 1 << 20).await;
            self.buffer = buffer;
            if !matches!(result, Ok(count) if count > 0) {
                return None;
            }
        }
    }

    pub async fn call(&mut self, args: &[&str]) -> Reply {
        self.send(encoded(args)).await;
        self.next().await.expect("the server has closed the connection")
    }

    /// Calls a command given as words and expects this reply, as [`show`] writes it.
    pub async fn expect(&mut self, words: &str, expected: &str) {
        let args: Vec<&str> = words.split(' ').map(|word| if word == "''" { "" } else { word }).collect();
        let reply = self.call(&args).await;
        assert_eq!(show(&reply), expected, "{words}");
    }

    /// Sends commands and expects these replies, in turn.
    pub async fn dialogue(&mut self, lines: &[(&str, &str)]) {
        for (words, expected) in lines {
            self.expect(words, expected).await;
        }
    }
}

/// A reply on one line, near to how redis-cli shows it.
pub fn show(reply: &Reply) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let list = |items: &[Reply]| items.iter().map(show).collect::<Vec<_>>().join(" ");
    match reply {
        Reply::Simple(bytes) => format!("+{}", text(bytes)),
        Reply::Error(bytes) => format!("-{}", text(bytes)),
        Reply::Integer(value) => format!(":{value}"),
        Reply::Bulk(bytes) => text(bytes),
        Reply::Null => "nil".to_owned(),
        Reply::Array(items) => format!("[{}]", list(items)),
        Reply::Set(items) => format!("{{{}}}", list(items)),
        Reply::Map(pairs) => {
            let pairs: Vec<_> = pairs.iter().map(|(k, v)| format!("{}={}", show(k), show(v))).collect();
            format!("%{}", pairs.join(" "))
        }
        Reply::Verbatim { text: bytes, .. } => format!("={}", text(bytes)),
        other => format!("{other:?}"),
    }
}

/// Sends without waiting for the peer to take it.
pub fn send_in_background(bench: &Bench, client: &Client, bytes: Vec<u8>) {
    let socket = client.socket.clone();
    bench.reactor.spawn(Work::Network, async move {
        let (_, _) = socket.send(bytes).await;
    });
}
