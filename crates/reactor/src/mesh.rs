//! Messages between cores: a single-producer single-consumer ring for every ordered pair.
//!
//! Role: the only way in which cores talk on the data path. Place on the path: between the
//! connection's core and the key's owner.
//!
//! Invariants: messages of one core to another arrive in the order sent; a ring holds at most
//! [`MESH_MESSAGES_MAX`] messages and a sender past that waits; a message in a ring always has a
//! receiver that is awake or was woken after the message was in.

use crate::limits::{CORES_MAX, MESH_MESSAGES_MAX};
use crate::reactor::{CoreId, Reactor};
use crate::sync::WaitList;
use rtrb::{Consumer, Producer, RingBuffer};
use std::cell::RefCell;
use std::rc::Rc;

/// Messages taken from one ring in one turn, so that no sender starves the others.
const MESSAGES_PER_TURN_MAX: usize = 64;

/// The rings of one process, made before its cores start.
pub struct Mesh;

/// One core's ends of the rings, to be given to that core.
pub struct Port<M> {
    core: CoreId,
    producers: Vec<Producer<M>>,
    consumers: Vec<Consumer<M>>,
}

/// A port in use.
pub struct Mailbox<M> {
    reactor: Reactor,
    producers: RefCell<Vec<Producer<M>>>,
    /// Senders that wait for room, by destination.
    full: Vec<WaitList>,
}

impl Mesh {
    /// Makes a port for each of `cores` cores.
    #[must_use]
    pub fn ports<M>(cores: usize) -> Vec<Port<M>> {
        assert!((1..=CORES_MAX).contains(&cores));
        let mut ports: Vec<Port<M>> = (0..cores)
            .map(|core| Port { core: CoreId(core as u16), producers: Vec::new(), consumers: Vec::new() })
            .collect();
        for from in 0..cores {
            for to in 0..cores {
                let (producer, consumer) = RingBuffer::new(MESH_MESSAGES_MAX);
                ports[from].producers.push(producer);
                ports[to].consumers.push(consumer);
                debug_assert!(ports[from].producers.len() == to + 1);
            }
        }
        ports
    }
}

impl<M: 'static> Port<M> {
    /// Starts receiving on `reactor`: `on_message` gets each message and its sender.
    pub fn open(self, reactor: &Reactor, mut on_message: impl FnMut(CoreId, M) + 'static) -> Rc<Mailbox<M>> {
        assert_eq!(self.core, reactor.core());
        let full = self.producers.iter().map(|_| WaitList::default()).collect();
        let mailbox =
            Rc::new(Mailbox { reactor: reactor.clone(), producers: RefCell::new(self.producers), full });
        let mut consumers = self.consumers;
        let sender = mailbox.clone();
        reactor.add_poller(Box::new(move || {
            let mut worked = false;
            for (from, consumer) in consumers.iter_mut().enumerate() {
                for _ in 0..MESSAGES_PER_TURN_MAX {
                    let Ok(message) = consumer.pop() else { break };
                    on_message(CoreId(from as u16), message);
                    worked = true;
                }
            }
            sender.wake_senders() || worked
        }));
        mailbox
    }
}

impl<M> Mailbox<M> {
    /// Sends a message, after waiting for room in the ring if need be.
    pub async fn send(&self, to: CoreId, message: M) {
        let mut message = Some(message);
        std::future::poll_fn(|cx| {
            let kept = message.take().expect("polled once after each refusal");
            match self.producers.borrow_mut()[to.0 as usize].push(kept) {
                Ok(()) => std::task::Poll::Ready(()),
                Err(rtrb::PushError::Full(refused)) => {
                    message = Some(refused);
                    self.full[to.0 as usize].register(cx.waker());
                    std::task::Poll::Pending
                }
            }
        })
        .await;
        self.reactor.wake_core(to);
    }

    fn wake_senders(&self) -> bool {
        let mut woke = false;
        for (to, waiting) in self.full.iter().enumerate() {
            if !waiting.is_empty() && self.producers.borrow()[to].slots() > 0 {
                waiting.wake_all();
                woke = true;
            }
        }
        woke
    }
}
