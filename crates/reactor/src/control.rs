//! Commands from outside the reactors: stop, reconfigure, report.
//!
//! Role: a bounded ring from the control thread to each core, with a wake-up. In the simulator
//! the same sender is used between two events, and the same handler receives. Place on the path:
//! none; requests never pass here.
//!
//! Invariants: commands to one core arrive in the order sent; a ring holds at most
//! [`CONTROL_MESSAGES_MAX`] of them, and past that the sender gets its command back.
//!
//! Never: it waits for nobody, on either side.

use crate::driver::wake::WakeCell;
use crate::limits::{CONTROL_MESSAGES_MAX, CORES_MAX};
use crate::reactor::{CoreId, Reactor};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};

/// The rings between the control thread and the cores, made before the cores start.
pub struct Control;

/// Known when the core has opened its port.
type SharedWaker = Arc<OnceLock<Arc<WakeCell>>>;

/// The control thread's ends.
pub struct ControlSender<M> {
    lanes: Vec<(Producer<M>, SharedWaker)>,
}

/// One core's end, to be given to that core.
pub struct ControlPort<M> {
    core: CoreId,
    consumer: Consumer<M>,
    /// Filled when the core opens the port. A command sent before waits in the ring: the core
    /// looks into it after it has said how to be woken.
    waker: SharedWaker,
}

impl Control {
    /// Makes a sender and a port for each of `cores` cores.
    #[must_use]
    pub fn ports<M>(cores: usize) -> (ControlSender<M>, Vec<ControlPort<M>>) {
        assert!((1..=CORES_MAX).contains(&cores));
        let mut lanes = Vec::with_capacity(cores);
        let mut ports = Vec::with_capacity(cores);
        for core in 0..cores {
            let (producer, consumer) = RingBuffer::new(CONTROL_MESSAGES_MAX);
            let waker = Arc::new(OnceLock::new());
            lanes.push((producer, waker.clone()));
            ports.push(ControlPort { core: CoreId(core as u16), consumer, waker });
        }
        (ControlSender { lanes }, ports)
    }
}

impl<M> ControlSender<M> {
    /// How many cores it reaches.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.lanes.len()
    }

    /// Sends a command to a core and wakes it.
    ///
    /// # Errors
    /// The core has not taken its earlier commands yet: the command comes back, to be sent later.
    pub fn send(&mut self, to: CoreId, command: M) -> Result<(), M> {
        let (producer, waker) = &mut self.lanes[to.0 as usize];
        producer.push(command).map_err(|rtrb::PushError::Full(refused)| refused)?;
        // Pairs with the fence before the core's last look: either this thread sees that the port
        // is open, or the core sees the command before it sleeps for the first time.
        fence(Ordering::SeqCst);
        if let Some(waker) = waker.get() {
            waker.wake();
        }
        Ok(())
    }
}

impl<M: 'static> ControlPort<M> {
    /// Starts receiving on `reactor`: `on_command` gets each command.
    pub fn open(self, reactor: &Reactor, mut on_command: impl FnMut(M) + 'static) {
        assert_eq!(self.core, reactor.core());
        assert!(self.waker.set(reactor.waker()).is_ok(), "a port is opened once");
        let mut consumer = self.consumer;
        reactor.add_poller(Box::new(move || {
            let mut worked = false;
            while let Ok(command) = consumer.pop() {
                on_command(command);
                worked = true;
            }
            worked
        }));
    }
}
