//! Messages between cores: a single-producer single-consumer ring for every ordered pair.
//!
//! Role: the only way in which cores talk on the data path. Place on the path: between the
//! connection's core and the key's owner.
//!
//! Invariants: messages of one core to another arrive in the order sent; a ring holds at most
//! [`MESH_MESSAGES_MAX`] messages and a sender past that waits; a message in a ring always has a
//! receiver that is awake or was woken after the message was in, and a sender that waits for room
//! is woken after there is some.

use crate::limits::{CORES_MAX, MESH_MESSAGES_MAX};
use crate::reactor::{CoreId, Reactor};
use rtrb::{Consumer, Producer, RingBuffer};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Poll, Waker};

/// Messages taken from one ring in one turn, so that no sender starves the others.
const MESSAGES_PER_TURN_MAX: usize = 64;

/// The rings of one process, made before its cores start.
pub struct Mesh;

/// The sending end of a ring.
struct Outgoing<M> {
    producer: Producer<M>,
    /// Set by a sender that finds the ring full, at every look; taken by the receiver when it has
    /// made room.
    waits: Arc<AtomicBool>,
}

/// The receiving end of a ring.
struct Incoming<M> {
    consumer: Consumer<M>,
    waits: Arc<AtomicBool>,
}

/// One core's ends of the rings, to be given to that core.
pub struct Port<M> {
    core: CoreId,
    outgoing: Vec<Outgoing<M>>,
    incoming: Vec<Incoming<M>>,
}

/// A port in use.
pub struct Mailbox<M> {
    reactor: Reactor,
    outgoing: RefCell<Vec<Outgoing<M>>>,
    /// Senders that wait for room, by destination.
    full: Vec<RefCell<Queue>>,
}

impl Mesh {
    /// Makes a port for each of `cores` cores.
    #[must_use]
    pub fn ports<M>(cores: usize) -> Vec<Port<M>> {
        assert!((1..=CORES_MAX).contains(&cores));
        let mut ports: Vec<Port<M>> = (0..cores)
            .map(|core| Port { core: CoreId(core as u16), outgoing: Vec::new(), incoming: Vec::new() })
            .collect();
        for from in 0..cores {
            for to in 0..cores {
                let (producer, consumer) = RingBuffer::new(MESH_MESSAGES_MAX);
                let waits = Arc::new(AtomicBool::new(false));
                ports[from].outgoing.push(Outgoing { producer, waits: waits.clone() });
                ports[to].incoming.push(Incoming { consumer, waits });
                debug_assert!(ports[from].outgoing.len() == to + 1);
            }
        }
        ports
    }
}

impl<M: 'static> Port<M> {
    /// Starts receiving on `reactor`: `on_message` gets each message and its sender.
    pub fn open(self, reactor: &Reactor, mut on_message: impl FnMut(CoreId, M) + 'static) -> Rc<Mailbox<M>> {
        assert_eq!(self.core, reactor.core());
        let full = self.outgoing.iter().map(|_| RefCell::default()).collect();
        let mailbox =
            Rc::new(Mailbox { reactor: reactor.clone(), outgoing: RefCell::new(self.outgoing), full });
        let mut incoming = self.incoming;
        let own = mailbox.clone();
        reactor.add_poller(Box::new(move || {
            let mut worked = false;
            for (from, ring) in incoming.iter_mut().enumerate() {
                let from = CoreId(from as u16);
                if ring.take(|message| on_message(from, message)) {
                    worked = true;
                    if ring.has_waiting_sender() {
                        own.reactor.wake_core(from);
                    }
                }
            }
            own.wake_senders() || worked
        }));
        mailbox
    }
}

impl<M> Incoming<M> {
    /// Hands over a bounded number of messages; true if there was one.
    fn take(&mut self, mut on_message: impl FnMut(M)) -> bool {
        for taken in 0..MESSAGES_PER_TURN_MAX {
            let Ok(message) = self.consumer.pop() else { return taken > 0 };
            on_message(message);
        }
        true
    }

    /// To be asked after messages were taken: whether their sender waits for the room.
    fn has_waiting_sender(&self) -> bool {
        // Pairs with the fence in `Outgoing::has_room`: either that sender sees the room made before
        // this fence, or it is seen waiting here.
        fence(Ordering::SeqCst);
        self.waits.load(Ordering::Relaxed) && self.waits.swap(false, Ordering::Relaxed)
    }
}

impl<M> Outgoing<M> {
    /// Whether there is room. If not, the receiver has word that a sender waits. To be asked again
    /// before each sleep: the word of an earlier wait may be taken only now, and wakes in vain.
    fn has_room(&self) -> bool {
        if self.producer.slots() > 0 {
            return true;
        }
        self.waits.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Incoming::has_waiting_sender`.
        fence(Ordering::SeqCst);
        self.producer.slots() > 0
    }
}

impl<M> Mailbox<M> {
    /// Sends a message, after waiting for room in the ring if need be. Senders of this core to
    /// one other are served in the order in which they came.
    pub async fn send(&self, to: CoreId, message: M) {
        let queue = &self.full[to.0 as usize];
        let mut message = Some(message);
        let mut place = Place { queue, ticket: None };
        std::future::poll_fn(|cx| {
            if place.is_first() {
                let kept = message.take().expect("polled once after each refusal");
                match self.outgoing.borrow_mut()[to.0 as usize].producer.push(kept) {
                    Ok(()) => return Poll::Ready(()),
                    // The poller leaves word with the receiver before this core sleeps.
                    Err(rtrb::PushError::Full(refused)) => message = Some(refused),
                }
            }
            place.wait(cx.waker());
            Poll::Pending
        })
        .await;
        drop(place);
        self.reactor.wake_core(to);
    }

    fn wake_senders(&self) -> bool {
        let mut woke = false;
        for (queue, ring) in self.full.iter().zip(self.outgoing.borrow().iter()) {
            if !queue.borrow().waiting.is_empty() && ring.has_room() {
                queue.borrow().wake_first();
                woke = true;
            }
        }
        woke
    }
}

/// Senders that wait for room in one ring, oldest first.
#[derive(Default)]
struct Queue {
    next_ticket: u64,
    waiting: VecDeque<(u64, Waker)>,
}

impl Queue {
    fn wake_first(&self) {
        if let Some((_, waker)) = self.waiting.front() {
            waker.wake_by_ref();
        }
    }
}

/// A sender's place in a queue, left when the sender is done or dropped.
struct Place<'a> {
    queue: &'a RefCell<Queue>,
    ticket: Option<u64>,
}

impl Place<'_> {
    /// True if nobody came before.
    fn is_first(&self) -> bool {
        self.queue.borrow().waiting.front().map(|(first, _)| *first) == self.ticket
    }

    /// Takes a place at the end, or keeps the one it has.
    fn wait(&mut self, waker: &Waker) {
        let mut queue = self.queue.borrow_mut();
        match self.ticket {
            None => {
                let ticket = queue.next_ticket;
                queue.next_ticket += 1;
                queue.waiting.push_back((ticket, waker.clone()));
                self.ticket = Some(ticket);
            }
            Some(ticket) => {
                let kept = queue.waiting.iter_mut().find(|(kept, _)| *kept == ticket);
                kept.expect("a sender keeps its place").1.clone_from(waker);
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut queue = self.queue.borrow_mut();
        if queue.waiting.front().is_some_and(|(first, _)| *first == ticket) {
            queue.waiting.pop_front();
            queue.wake_first();
        } else {
            queue.waiting.retain(|(kept, _)| *kept != ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by a hang in a test run: a receiver that was about to take the word of one wait took
    /// that of the next with it, woke the sender before there was room, and never again.
    #[test]
    fn a_sender_woken_in_vain_leaves_word_again() {
        let mut ports = Mesh::ports::<u64>(2);
        let mut incoming = ports[1].incoming.swap_remove(0);
        let outgoing = &mut ports[0].outgoing[1];
        while outgoing.producer.push(0).is_ok() {}
        assert!(!incoming.has_waiting_sender(), "nobody waits yet");
        assert!(!outgoing.has_room());
        assert!(incoming.waits.swap(false, Ordering::Relaxed), "the receiver takes the word late");
        assert!(!outgoing.has_room(), "the sender wakes in vain, and sleeps again");
        assert!(incoming.take(drop));
        assert!(incoming.has_waiting_sender(), "the room that comes is told");
        assert!(outgoing.has_room() && !incoming.has_waiting_sender());
    }
}
