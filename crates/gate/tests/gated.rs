//! A device behind a gate: what waits, what passes, and who is gone before its turn.

use futures_util::future::{join_all, poll_immediate};
use plimsoll_gate::{Fifo, Gated};
use plimsoll_kv::Block;
use plimsoll_kv::block::{IoFuture, Origin};
use plimsoll_reactor::sim::{ProcessId, World};
use plimsoll_reactor::{Buf, Reactor, Work};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

const OUTSTANDING_MAX: usize = 3;
const LATENCY_NS: u64 = 1_000_000;
/// Where an I/O fails as it begins.
const AT_ONCE: u64 = 1 << 19;

/// A device on which every I/O takes a millisecond, and reads at odd places fail.
struct Slow {
    reactor: Reactor,
    at_once: Cell<usize>,
    at_once_max: Cell<usize>,
    offsets: RefCell<Vec<u64>>,
}

impl Slow {
    fn new(reactor: &Reactor) -> Rc<Slow> {
        let (at_once, at_once_max, offsets) = Default::default();
        Rc::new(Slow { reactor: reactor.clone(), at_once, at_once_max, offsets })
    }
}

/// An I/O goes to the block device and comes back.
async fn device(slow: Rc<Slow>, offset: u64) -> io::Result<()> {
    slow.offsets.borrow_mut().push(offset);
    if offset == AT_ONCE {
        return Err(io::Error::other("at once"));
    }
    slow.at_once.set(slow.at_once.get() + 1);
    slow.at_once_max.set(slow.at_once_max.get().max(slow.at_once.get()));
    slow.reactor.sleep_ns(LATENCY_NS).await;
    slow.at_once.set(slow.at_once.get() - 1);
    if offset % 2 == 1 { Err(io::Error::other("an odd place")) } else { Ok(()) }
}

/// What is behind the gate.
struct Behind(Rc<Slow>);

impl Block for Behind {
    fn size_bytes(&self) -> u64 {
        1 << 20
    }
    fn block_bytes(&self) -> u32 {
        512
    }
    fn read(&self, _: Origin, offset: u64, len: usize) -> IoFuture<Buf> {
        let slow = self.0.clone();
        Box::pin(async move { device(slow, offset).await.map(|()| Buf::zeroed(len)) })
    }
    fn write(&self, _: Origin, offset: u64, _: Rc<Buf>, _: bool) -> IoFuture<()> {
        Box::pin(device(self.0.clone(), offset))
    }
    fn flush(&self, _: Origin) -> IoFuture<()> {
        Box::pin(device(self.0.clone(), 0))
    }
}

fn run<F: Future<Output = ()> + 'static>(test: impl Fn(Reactor) -> F + 'static) {
    let (world, done, test) = (World::new(1, |_| "test"), Rc::new(Cell::new(false)), Rc::new(test));
    let ended = done.clone();
    world.start_process(ProcessId(1), 1, move |reactor| {
        let (inner, test, ended) = (reactor.clone(), test.clone(), ended.clone());
        reactor.spawn(Work::Control, async move {
            test(inner).await;
            ended.set(true);
        });
    });
    assert!(world.run_until(60_000_000_000, || done.get()), "the test does not end");
}

fn gated(reactor: &Reactor) -> (Rc<Slow>, Gated) {
    let slow = Slow::new(reactor);
    let gate = Gated::new(reactor, Rc::new(Behind(slow.clone())), Box::new(Fifo::new(OUTSTANDING_MAX)));
    (slow, gate)
}

const FOR: Origin = Origin::FOREGROUND;

#[test]
fn every_io_passes_in_order_and_no_more_at_once_than_may() {
    run(|reactor| async move {
        let (slow, gate) = gated(&reactor);
        let began_ns = reactor.now_ns();
        let results = join_all((0..40).map(|offset| gate.read(FOR, offset, 512))).await;
        for (offset, result) in (0..).zip(&results) {
            assert_eq!(result.is_ok(), offset % 2 == 0, "a failure is handed on");
        }
        assert_eq!(*slow.offsets.borrow(), (0..40).collect::<Vec<u64>>());
        assert_eq!((slow.at_once_max.get(), slow.at_once.get()), (OUTSTANDING_MAX, 0));
        assert_eq!((reactor.now_ns() - began_ns) / LATENCY_NS, 14);
        let stats = gate.stats();
        assert_eq!((stats.passed, stats.waited), (40, 37));
        // All the same for the others, and for one that finds the gate empty.
        gate.write(FOR, 4, Rc::new(Buf::zeroed(512)), true).await.unwrap();
        gate.flush(FOR).await.unwrap();
        assert_eq!((gate.stats().passed, gate.stats().waited), (42, 37));
    });
}

#[test]
fn what_waits_is_begun_by_who_makes_room() {
    run(|reactor| async move {
        let (slow, gate) = gated(&reactor);
        let began_ns = reactor.now_ns();
        let mut at_device: Vec<_> = (0..OUTSTANDING_MAX).map(|_| gate.read(FOR, 2, 512)).collect();
        let mut waits = gate.read(FOR, 4, 512);
        for read in at_device.iter_mut().chain([&mut waits]) {
            assert!(poll_immediate(read).await.is_none());
        }
        assert_eq!(slow.offsets.borrow().last(), Some(&2));
        // Its own task is not asked.
        at_device.pop().unwrap().await.unwrap();
        assert_eq!(slow.offsets.borrow().last(), Some(&4));
        assert_eq!(reactor.now_ns() - began_ns, LATENCY_NS);
        waits.await.unwrap();
        assert_eq!(reactor.now_ns() - began_ns, 2 * LATENCY_NS);
        assert_eq!((gate.stats().passed, gate.stats().waited), (4, 1));
        assert_eq!(gate.stats().device_ns, 2 * LATENCY_NS);
    });
}

#[test]
fn who_is_gone_after_it_was_begun_gives_its_place_back() {
    run(|reactor| async move {
        let (slow, gate) = gated(&reactor);
        let mut at_device: Vec<_> = (0..OUTSTANDING_MAX).map(|_| gate.read(FOR, 2, 512)).collect();
        let mut waits = gate.read(FOR, 4, 512);
        for read in at_device.iter_mut().chain([&mut waits]) {
            assert!(poll_immediate(read).await.is_none());
        }
        at_device.pop().unwrap().await.unwrap();
        let began_ns = reactor.now_ns();
        reactor.sleep_ns(LATENCY_NS / 2).await;
        drop(waits);
        assert_eq!(gate.stats().device_ns, LATENCY_NS + LATENCY_NS / 2, "it was at the device as long");
        gate.read(FOR, 6, 512).await.unwrap();
        assert_eq!(reactor.now_ns() - began_ns, LATENCY_NS / 2 + LATENCY_NS, "it found a place at once");
        assert_eq!(*slow.offsets.borrow(), [2, 2, 2, 4, 6]);
    });
}

#[test]
fn what_ends_as_it_begins_is_told() {
    run(|reactor| async move {
        let (slow, gate) = gated(&reactor);
        let mut at_device: Vec<_> = (0..OUTSTANDING_MAX).map(|_| gate.read(FOR, 2, 512)).collect();
        let (mut fails, mut waits) = (gate.read(FOR, AT_ONCE, 512), gate.read(FOR, 4, 512));
        for read in at_device.iter_mut().chain([&mut fails, &mut waits]) {
            assert!(poll_immediate(read).await.is_none());
        }
        at_device.pop().unwrap().await.unwrap();
        assert_eq!(*slow.offsets.borrow(), [2, 2, 2, AT_ONCE]);
        assert_eq!(fails.await.unwrap_err().to_string(), "at once");
        assert_eq!(slow.offsets.borrow().last(), Some(&4), "its end makes room");
        waits.await.unwrap();
    });
}

/// What a task leaves when it is dropped begins nothing: nobody is there to take it.
#[test]
fn nothing_is_begun_while_tasks_are_dropped() {
    let (world, kept) = (World::new(1, |_| "test"), Rc::new(RefCell::new(None)));
    let shown = kept.clone();
    world.start_process(ProcessId(1), 1, move |reactor| {
        let (slow, gate) = gated(reactor);
        *shown.borrow_mut() = Some(slow);
        reactor.spawn(Work::Control, async move {
            let mut reads: Vec<_> = (0..=OUTSTANDING_MAX).map(|_| gate.read(FOR, 2, 512)).collect();
            for read in &mut reads {
                assert!(poll_immediate(read).await.is_none());
            }
            std::future::pending::<()>().await;
        });
    });
    let slow = || kept.borrow().clone().unwrap();
    assert!(world.run_until(60_000_000_000, || slow().offsets.borrow().len() == OUTSTANDING_MAX));
    world.kill(ProcessId(1), false);
    assert_eq!(slow().offsets.borrow().len(), OUTSTANDING_MAX);
}

#[test]
fn who_is_gone_before_its_turn_takes_no_place() {
    run(|reactor| async move {
        let (slow, gate) = gated(&reactor);
        let mut pending: Vec<_> = (0..10).map(|number| gate.read(FOR, 2 * number, 512)).collect();
        for read in &mut pending {
            assert!(poll_immediate(read).await.is_none());
        }
        assert_eq!(slow.offsets.borrow().len(), OUTSTANDING_MAX);
        // Those that would be next, one at the device, and one more.
        drop(pending.drain(3..5));
        drop(pending.remove(2));
        drop(pending.pop());
        let results = join_all(pending).await;
        assert!(results.len() == 6 && results.iter().all(Result::is_ok));
        assert_eq!(*slow.offsets.borrow(), [0, 2, 4, 10, 12, 14, 16]);
        let after = gate.read(FOR, 100, 512).await;
        assert!(after.is_ok() && gate.stats().passed == 8);
    });
}
