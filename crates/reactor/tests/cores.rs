//! Cores on a real kernel: messages and sleep, commands from outside, timers, random numbers.
#![allow(clippy::disallowed_methods)] // A core that is busy for a time is what a sender waits for.

mod common;

use common::{block_on, join, options, wait_until};
use plimsoll_reactor::{Control, CoreId, DriverChoice, Mailbox, Mesh, Reactor, StartOptions, Work, start};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const MESSAGES: u64 = 100_000;

type SharedMailbox = Rc<RefCell<Option<Rc<Mailbox<u64>>>>>;

/// Keeps the core busy; the reactor's clock stands still meanwhile.
fn work_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {}
}

fn send(reactor: &Reactor, mailbox: &SharedMailbox, to: CoreId, message: u64) {
    let mailbox = mailbox.borrow().clone().expect("opened before the first message");
    reactor.spawn(Work::Kv, async move { mailbox.send(to, message).await });
}

/// Core 0 sends a number, core 1 sends it back. Between bursts core 0 waits for up to three times
/// the time that a core spins before it sleeps: so messages meet the other core awake, asleep and
/// at every point between. A wake-up lost once is a hang for ever: neither core has a timer then.
fn no_wake_up_is_lost(driver: DriverChoice) {
    let ports = Mutex::new(Mesh::ports::<u64>(2).into_iter().map(Some).collect::<Vec<_>>());
    let running = start(&options(driver, 2), move |reactor| {
        let core = reactor.core();
        let port = ports.lock().unwrap()[core.0 as usize].take().unwrap();
        let mailbox = SharedMailbox::default();
        let (own, shared) = (reactor.clone(), mailbox.clone());
        let expected = Cell::new(0);
        let opened = port.open(reactor, move |from, message| {
            assert_eq!(message, expected.replace(message + 1), "messages arrive once and in order");
            if core == CoreId(1) {
                send(&own, &shared, from, message);
                if message == MESSAGES {
                    // The answer is in the ring before this core stops.
                    let own = own.clone();
                    own.clone().spawn(Work::Control, async move { own.stop() });
                }
                return;
            }
            if message == MESSAGES {
                own.stop();
            } else if message % 16 == 0 {
                let (later, shared) = (own.clone(), shared.clone());
                let pause_ns = own.random_u64() % 60_000;
                own.spawn(Work::Kv, async move {
                    later.sleep_ns(pause_ns).await;
                    send(&later, &shared, CoreId(1), message + 1);
                });
            } else {
                send(&own, &shared, CoreId(1), message + 1);
            }
        });
        *mailbox.borrow_mut() = Some(opened);
        if core == CoreId(0) {
            send(reactor, &mailbox, CoreId(1), 0);
        }
    })
    .unwrap();
    let loads = running.loads().to_vec();
    join(running);
    assert!(loads[1].snapshot().parks > 100, "the test means nothing if nobody slept");
}

/// A burst larger than a ring: senders wait for room, and nothing is lost or reordered. The
/// receiver holds its core now and then for longer than the sender spins: the sender sleeps, and
/// nothing but the room can wake it.
fn a_full_ring_makes_senders_wait(driver: DriverChoice) {
    const BURST: u64 = 50_000;
    let ports = Mutex::new(Mesh::ports::<u64>(2).into_iter().map(Some).collect::<Vec<_>>());
    let running = start(&options(driver, 2), move |reactor| {
        let core = reactor.core();
        let port = ports.lock().unwrap()[core.0 as usize].take().unwrap();
        let (own, expected) = (reactor.clone(), Cell::new(0));
        let mailbox = port.open(reactor, move |from, message| {
            assert_eq!((from, message), (CoreId(0), expected.replace(message + 1)));
            if message % 2_000 == 0 {
                work_for(Duration::from_micros(300));
            }
            if message + 1 == BURST {
                own.stop();
            }
        });
        if core == CoreId(0) {
            let own = reactor.clone();
            reactor.spawn(Work::Kv, async move {
                for message in 0..BURST {
                    mailbox.send(CoreId(1), message).await;
                }
                own.stop();
            });
        }
    })
    .unwrap();
    let loads = running.loads().to_vec();
    join(running);
    assert!(loads[0].snapshot().parks > 5, "the test means nothing if the sender never slept");
}

/// Tasks that send one message each are served in the order in which they were started, also
/// those that come while others wait for room.
fn a_full_ring_keeps_the_order_of_tasks(driver: DriverChoice) {
    const TASKS: u64 = 20_000;
    let ports = Mutex::new(Mesh::ports::<u64>(2).into_iter().map(Some).collect::<Vec<_>>());
    let running = start(&options(driver, 2), move |reactor| {
        let core = reactor.core();
        let port = ports.lock().unwrap()[core.0 as usize].take().unwrap();
        let (own, expected) = (reactor.clone(), Cell::new(0));
        let mailbox = port.open(reactor, move |_, message| {
            assert_eq!(message, expected.replace(message + 1));
            if message + 1 == TASKS {
                own.stop();
            }
        });
        if core == CoreId(0) {
            let own = reactor.clone();
            reactor.spawn(Work::Kv, async move {
                for message in 0..TASKS {
                    let mailbox = mailbox.clone();
                    own.spawn(Work::Kv, async move { mailbox.send(CoreId(1), message).await });
                    if message % 50 == 0 {
                        own.yield_now().await;
                    }
                }
                // Behind all others: when it is served, they were.
                while own.tasks_live() > 1 {
                    own.yield_now().await;
                }
                own.stop();
            });
        }
    });
    join(running.unwrap());
}

fn commands_reach_a_sleeping_core(driver: DriverChoice) {
    let (mut sender, ports) = Control::ports::<u64>(2);
    let ports = Mutex::new(ports.into_iter().map(Some).collect::<Vec<_>>());
    let (answers, answered) = mpsc::channel();
    // One command is sent before the cores exist.
    sender.send(CoreId(1), 1).unwrap();
    let running = start(&options(driver, 2), move |reactor| {
        let port = ports.lock().unwrap()[reactor.core().0 as usize].take().unwrap();
        let (own, answers) = (reactor.clone(), answers.clone());
        port.open(reactor, move |command| {
            if command == u64::MAX {
                own.stop();
            }
            answers.send((own.core(), command)).unwrap();
        });
    })
    .unwrap();
    assert_eq!(answered.recv().unwrap(), (CoreId(1), 1));
    for command in 2..2_000 {
        let core = CoreId((command % 2) as u16);
        sender.send(core, command).unwrap();
        assert_eq!(answered.recv_timeout(std::time::Duration::from_secs(30)), Ok((core, command)));
    }
    // A core that does not look gets no more than its ring holds.
    sender.send(CoreId(0), u64::MAX).unwrap();
    sender.send(CoreId(1), u64::MAX).unwrap();
    join(running);
    let refused = (0..).find_map(|command| sender.send(CoreId(0), command).err()).unwrap();
    assert_eq!(refused, plimsoll_reactor::limits::CONTROL_MESSAGES_MAX as u64);
}

fn timers_fire_in_order_and_never_early(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let fired = Rc::new(RefCell::new(Vec::new()));
        let start_ns = reactor.now_ns();
        for index in 0..100_u64 {
            let (own, fired) = (reactor.clone(), fired.clone());
            let deadline_ns = start_ns + (100 - index) * 200_000;
            reactor.spawn(Work::Kv, async move {
                let (mut sleep, mut polls) = (Box::pin(own.sleep_until(deadline_ns)), 0);
                std::future::poll_fn(|cx| {
                    polls += 1;
                    sleep.as_mut().poll(cx)
                })
                .await;
                assert!(own.now_ns() >= deadline_ns);
                // On a busy machine the first may be due before they sleep, and come as they are.
                fired.borrow_mut().push((polls > 1, deadline_ns));
            });
        }
        while fired.borrow().len() < 100 {
            reactor.sleep_ns(1_000_000).await;
        }
        let slept =
            fired.borrow().iter().filter(|(slept, _)| *slept).map(|(_, due)| *due).collect::<Vec<_>>();
        assert!(slept.is_sorted(), "fired in the order of their times: {slept:?}");
        // A timer that nobody waits for any more keeps nobody awake.
        drop(Box::pin(reactor.sleep_ns(1 << 60)));
        assert!(reactor.wall_ms() > 1_700_000_000_000);
        let drawn: std::collections::BTreeSet<u64> = (0..1_000).map(|_| reactor.random_u64()).collect();
        assert_eq!(drawn.len(), 1_000);
    });
}

fn load_is_visible_while_it_runs(driver: DriverChoice) {
    let stop = Arc::new(AtomicU64::new(0));
    let seen = stop.clone();
    let running = start(&options(driver, 1), move |reactor| {
        let (own, stop) = (reactor.clone(), stop.clone());
        reactor.spawn(Work::Background, async move {
            while stop.load(Ordering::Relaxed) == 0 {
                work_for(Duration::from_micros(50));
                own.yield_now().await;
            }
            own.stop();
        });
    })
    .unwrap();
    let load = running.loads()[0].clone();
    wait_until("the load shows", || load.snapshot().busy_ns[Work::Background as usize] > 10_000_000);
    seen.store(1, Ordering::Relaxed);
    join(running);
}

fn a_core_that_cannot_be_is_an_error_in_words(driver: DriverChoice) {
    let started = start(&StartOptions { cpus: vec![0, 999], driver }, |_| unreachable!("nothing runs"));
    let error = started.err().unwrap();
    assert!(error.to_string().contains("core 1: cannot run on processor 999"), "{error}");
    let started = start(&StartOptions { cpus: Vec::new(), driver }, |_| unreachable!("nothing runs"));
    assert!(started.err().unwrap().to_string().contains("0 cores"));
}

on_every_driver! {
    no_wake_up_is_lost,
    a_full_ring_makes_senders_wait,
    a_full_ring_keeps_the_order_of_tasks,
    commands_reach_a_sleeping_core,
    timers_fire_in_order_and_never_early,
    load_is_visible_while_it_runs,
    a_core_that_cannot_be_is_an_error_in_words,
}
