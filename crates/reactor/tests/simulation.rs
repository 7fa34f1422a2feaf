//! The simulation driver: the same seed gives the same run; disks lose what was not flushed.

use plimsoll_reactor::sim::{FaultRates, ProcessId, World};
use plimsoll_reactor::{Buf, Control, CoreId, FileOptions, Mesh, Reactor, Socket, Work};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const SECOND_NS: u64 = 1_000_000_000;
const SERVER: ProcessId = ProcessId(0);
const CLIENT: ProcessId = ProcessId(1);

fn world(seed: u64) -> World {
    World::new(seed, |_| "test")
}

fn filled(byte: u8, len: usize) -> Rc<Buf> {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    Rc::new(buf)
}

async fn echo(socket: Socket) {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let (result, received) = socket.receive(bytes, 4096).await;
        if !matches!(result, Ok(1..)) {
            return;
        }
        let (result, sent) = socket.send(received).await;
        if result.is_err() {
            return;
        }
        bytes = sent;
    }
}

fn serve(reactor: &Reactor) {
    let own = reactor.clone();
    let listener = reactor.listen("127.0.0.1:6379".parse().unwrap()).unwrap();
    reactor.spawn(Work::Network, async move {
        while let Ok(socket) = listener.accept().await {
            own.spawn(Work::Network, echo(socket));
        }
    });
}

async fn exchange(reactor: Reactor, client: u32) {
    let socket = reactor.connect("127.0.0.1:6379".parse().unwrap()).unwrap();
    for round in 0..20_u32 {
        let wanted = [client.to_le_bytes(), round.to_le_bytes()].concat().repeat(200);
        let (result, _) = socket.send(wanted.clone()).await;
        result.unwrap();
        let mut found = Vec::new();
        while found.len() < wanted.len() {
            let missing = wanted.len() - found.len();
            let (result, received) = socket.receive(found, missing).await;
            assert!(result.unwrap() > 0);
            found = received;
        }
        assert_eq!(found, wanted);
    }
}

/// Two cores serve ten clients; the answer is what the world remembers of it.
fn run_echo(seed: u64) -> (u64, u64) {
    let world = world(seed);
    world.start_process(SERVER, 2, serve);
    let finished = Rc::new(Cell::new(0));
    let done = finished.clone();
    world.start_process(CLIENT, 1, move |reactor| {
        for client in 0..10 {
            let (own, finished) = (reactor.clone(), finished.clone());
            reactor.spawn(Work::Network, async move {
                exchange(own, client).await;
                finished.set(finished.get() + 1);
            });
        }
    });
    assert!(world.run_until(60 * SECOND_NS, || done.get() == 10), "{} of 10 finished", done.get());
    (world.trace(), world.now_ns())
}

#[test]
fn echo_and_replay() {
    let first = run_echo(1);
    assert_eq!(first, run_echo(1), "one seed, one run");
    assert_ne!(first.0, run_echo(2).0, "another seed, another run");
}

/// Writes blocks, flushes after half of them, loses power; tells which blocks survived.
fn survivors(seed: u64) -> Vec<bool> {
    const BLOCKS: u64 = 16;
    let world = world(seed);
    world.add_disk("disk", 1 << 20);
    let written = Rc::new(Cell::new(false));
    let done = written.clone();
    world.start_process(SERVER, 1, move |reactor| {
        let file = reactor.open_file("disk", &FileOptions::default()).unwrap();
        let written = written.clone();
        reactor.spawn(Work::Device, async move {
            for block in 0..BLOCKS {
                file.write(block * 4096, filled(1, 4096), false).await.unwrap();
                if block == BLOCKS / 2 - 1 {
                    file.flush().await.unwrap();
                }
            }
            file.write(BLOCKS * 4096, filled(1, 4096), true).await.unwrap();
            written.set(true);
        });
    });
    assert!(world.run_until(SECOND_NS, || done.get()));
    world.kill(SERVER, true);
    let whole = |block: u64, durable: &[u8]| {
        let start = block as usize * 4096;
        durable[start..start + 4096].iter().all(|byte| *byte == 1)
    };
    world.with_disk("disk", |disk| (0..=BLOCKS).map(|block| whole(block, disk.durable())).collect())
}

#[test]
fn power_loss_keeps_what_was_flushed() {
    let mut lost = 0;
    for seed in 0..50 {
        let survived = survivors(seed);
        assert_eq!(survived, survivors(seed), "seed {seed}");
        assert!(survived[..8].iter().all(|whole| *whole), "seed {seed}: flushed writes stay");
        assert!(survived[16], "seed {seed}: a durable write needs no flush");
        lost += survived[8..16].iter().filter(|whole| !**whole).count();
    }
    assert!((100..350).contains(&lost), "{lost} of 400 unflushed writes were lost or torn");
}

/// What a dead process left in the device's cache is not flushed over what was written since.
#[test]
fn an_earlier_unflushed_write_does_not_come_back_over_a_durable_one() {
    for seed in 0..20 {
        let world = world(seed);
        world.add_disk("disk", 64 << 10);
        world.start_process(ProcessId(1), 1, |reactor| {
            let handle = reactor.clone();
            reactor.spawn(Work::Device, async move {
                let file = handle.open_file("disk", &FileOptions::default()).unwrap();
                file.write(0, filled(1, 4096), false).await.unwrap();
                file.write(1024, filled(2, 512), true).await.unwrap();
                file.flush().await.unwrap();
            });
        });
        // Power goes before, while or after the flush.
        world.run_until(1_000_000 + 20_000 * seed, || false);
        let written = world.with_disk("disk", |disk| disk.durable()[1024] == 2);
        world.kill(ProcessId(1), true);
        assert!(!written || world.with_disk("disk", |disk| disk.durable()[1024..1536] == [2; 512]));
    }
}

#[test]
fn failing_disks_report_and_count() {
    let world = world(3);
    world.add_disk("disk", 1 << 20);
    world.with_disk("disk", |disk| {
        disk.set_rates(FaultRates {
            read_error_ppm: 200_000,
            write_error_ppm: 200_000,
            ..FaultRates::default()
        });
    });
    let outcome = Rc::new(Cell::new(None));
    let seen = outcome.clone();
    world.start_process(SERVER, 1, move |reactor| {
        let file = reactor.open_file("disk", &FileOptions::default()).unwrap();
        let outcome = outcome.clone();
        reactor.spawn(Work::Device, async move {
            let mut failed = 0;
            for _ in 0..100 {
                failed += u64::from(file.write(0, filled(1, 4096), false).await.is_err());
                failed += u64::from(file.read(0, 4096).await.is_err());
            }
            outcome.set(Some(failed));
        });
    });
    assert!(world.run_until(SECOND_NS, || seen.get().is_some()));
    let counted: u64 = world.with_disk("disk", |disk| disk.counts().values().sum());
    assert_eq!(seen.get(), Some(counted), "every failure injected is a failure seen");
    assert!((20..60).contains(&counted));
}

fn run_mesh(seed: u64) -> (Vec<u64>, u64) {
    let world = world(seed);
    let ports = RefCell::new(Mesh::ports::<u64>(3).into_iter().map(Some).collect::<Vec<_>>());
    let received = Rc::new(RefCell::new(Vec::new()));
    let seen = received.clone();
    world.start_process(SERVER, 3, move |reactor| {
        let core = reactor.core();
        let port = ports.borrow_mut()[core.0 as usize].take().unwrap();
        let received = received.clone();
        let mailbox = port.open(reactor, move |_, message| received.borrow_mut().push(message));
        if core != CoreId(2) {
            reactor.spawn(Work::Kv, async move {
                for message in 0..3_000 {
                    mailbox.send(CoreId(2), u64::from(core.0) << 32 | message).await;
                }
            });
        }
    });
    assert!(world.run_until(SECOND_NS, || seen.borrow().len() == 6_000));
    let messages = seen.borrow().clone();
    (messages, world.trace())
}

#[test]
fn messages_between_simulated_cores() {
    let (messages, trace) = run_mesh(7);
    for core in 0..2 {
        let of_core: Vec<u64> =
            messages.iter().filter(|m| *m >> 32 == core).map(|m| m & 0xffff_ffff).collect();
        assert_eq!(of_core, (0..3_000).collect::<Vec<_>>(), "messages of one core arrive in order");
    }
    assert_eq!((messages, trace), run_mesh(7));
}

#[test]
fn the_control_sender_works_in_the_simulator() {
    let world = world(5);
    let (mut sender, ports) = Control::ports::<u32>(2);
    let ports = RefCell::new(ports.into_iter().map(Some).collect::<Vec<_>>());
    let received = Rc::new(RefCell::new(Vec::new()));
    let seen = received.clone();
    world.start_process(SERVER, 2, move |reactor| {
        let port = ports.borrow_mut()[reactor.core().0 as usize].take().unwrap();
        let (core, received) = (reactor.core(), received.clone());
        port.open(reactor, move |command| received.borrow_mut().push((core, command)));
    });
    // Nothing happens in this world but the commands: they alone must make the cores look.
    assert!(!world.run_until(SECOND_NS, || false));
    sender.send(CoreId(1), 10).unwrap();
    assert!(world.run_until(2 * SECOND_NS, || seen.borrow().len() == 1));
    sender.send(CoreId(0), 20).unwrap();
    assert!(world.run_until(3 * SECOND_NS, || seen.borrow().len() == 2));
    assert_eq!(*seen.borrow(), [(CoreId(1), 10), (CoreId(0), 20)]);
}
