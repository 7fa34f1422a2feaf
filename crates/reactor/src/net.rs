//! Stream sockets: listening, accepting, receiving, sending.
//!
//! Place on the path: the first and the last stage of a request. Memory is the caller's: bytes
//! are appended to its vector and sent from its vector, and both come back.

use crate::ops::{Op, OpFuture, SocketId};
use crate::post::Post;
use crate::reactor::Reactor;
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

struct Handle {
    reactor: Reactor,
    id: SocketId,
    sent_bytes: Cell<u64>,
    post: Rc<Post>,
}

impl Handle {
    fn new(reactor: &Reactor, id: SocketId) -> Handle {
        Handle { reactor: reactor.clone(), id, sent_bytes: Cell::new(0), post: Rc::default() }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.post.close();
        if let Ok(mut driver) = self.reactor.0.driver.try_borrow_mut() {
            driver.close_socket(self.id);
        }
    }
}

/// A socket that accepts connections on this core.
pub struct Listener {
    handle: Handle,
    address: SocketAddr,
}

/// A connection that this core owns. Clones share it; the last one closes it.
#[derive(Clone)]
pub struct Socket(Rc<Handle>);

impl Reactor {
    /// Listens on `address`. Every core may listen on the same one; each connection goes to one.
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`.
    pub fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        let (id, address) = self.0.driver.borrow_mut().listen(address)?;
        Ok(Listener { handle: Handle::new(self, id), address })
    }

    /// Connects to `address`. Blocks shortly in a server: for tools and tests.
    ///
    /// # Errors
    /// As `connect(2)`.
    pub fn connect(&self, address: SocketAddr) -> io::Result<Socket> {
        let id = self.0.driver.borrow_mut().connect(address)?;
        Ok(Socket(Rc::new(Handle::new(self, id))))
    }
}

impl Listener {
    /// The address in use (its port, if 0 was asked for).
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// As `accept(2)`: running out of descriptors is an error of this call, not of the listener.
    pub async fn accept(&self) -> io::Result<Socket> {
        let reactor = &self.handle.reactor;
        let (result, _) = OpFuture::new(reactor.clone(), Op::Accept { listener: self.handle.id }).await;
        let id = SocketId(u32::try_from(result?).expect("socket ids are 32-bit"));
        Ok(Socket(Rc::new(Handle::new(reactor, id))))
    }
}

impl Socket {
    /// Appends at most `bytes_max` bytes to `into`; tells how many, 0 when the peer has closed.
    pub async fn receive(&self, into: Vec<u8>, bytes_max: usize) -> (io::Result<usize>, Vec<u8>) {
        assert!(bytes_max > 0);
        let op = Op::Receive { socket: self.0.id, into, bytes_max };
        let (result, op) = OpFuture::new(self.0.reactor.clone(), op).await;
        let Op::Receive { into, .. } = op else { unreachable!("an operation keeps its kind") };
        (result.map(|count| count as usize), into)
    }

    /// Sends all of `bytes` and gives the vector back.
    pub async fn send(&self, mut bytes: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        let mut from = 0;
        while from < bytes.len() {
            let op = Op::Send { socket: self.0.id, bytes, from };
            let (result, op) = OpFuture::new(self.0.reactor.clone(), op).await;
            let Op::Send { bytes: returned, .. } = op else { unreachable!("an operation keeps its kind") };
            bytes = returned;
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), bytes),
                Ok(count) => {
                    from += count as usize;
                    self.0.sent_bytes.set(self.0.sent_bytes.get() + count);
                }
                Err(error) => return (Err(error), bytes),
            }
        }
        (Ok(()), bytes)
    }

    /// True if a send may be posted: none is under way, none has failed, and there is room for one more
    /// operation. Whether a send is under way that is waited for is for the caller to know.
    #[must_use]
    pub fn may_post(&self) -> bool {
        let post = &self.0.post;
        post.bytes() == 0 && !post.has_failed() && self.0.reactor.0.ops.borrow().has_room()
    }

    /// Sends all of these bytes, and nobody waits for that: see `post`. Where they cannot be sent the socket
    /// is shut down: receives end, too.
    ///
    /// # Panics
    /// There are no bytes, or it may not ([`Socket::may_post`]).
    pub fn post(&self, bytes: Vec<u8>) {
        self.0.post.begins(bytes.len());
        let inner = &self.0.reactor.0;
        let mut ops = inner.ops.borrow_mut();
        let token = ops.post(Op::Send { socket: self.0.id, bytes, from: 0 }, self.0.post.clone());
        inner.driver.borrow_mut().start(token, ops.op_mut(token));
    }

    /// Bytes of a posted send that is under way.
    #[must_use]
    pub fn posted_bytes(&self) -> usize {
        self.0.post.bytes()
    }

    /// Waits until nothing that was posted is under way.
    ///
    /// # Errors
    /// Something that was posted did not leave, and nothing more will.
    pub async fn posted(&self) -> io::Result<()> {
        self.0.post.ended().await;
        if self.0.post.has_failed() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// Memory to send from, empty.
    #[must_use]
    pub fn send_buffer(&self) -> Vec<u8> {
        self.0.post.memory()
    }

    /// Keeps memory that was sent from, if it is small.
    pub fn keep_send_buffer(&self, memory: Vec<u8>) {
        self.0.post.keep(memory);
    }

    /// Bytes of sends that have ended. What the kernel has of one under way is not known, and it wakes who
    /// waits for room only when much of its own is free.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.0.sent_bytes.get() + self.0.post.sent_bytes()
    }

    /// Ends the connection in both directions: pending receives and sends complete.
    pub fn shutdown(&self) {
        self.0.reactor.0.driver.borrow_mut().shutdown_socket(self.0.id);
    }

    /// The same at once: what has not left is dropped, and a reset tells the peer when the socket is closed.
    /// One that sends more than anybody takes would else wait until the kernel forgets the connection.
    pub fn abort(&self) {
        self.0.reactor.0.driver.borrow_mut().abort_socket(self.0.id);
    }

    /// The peer's address, for CLIENT LIST and logs.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.0.reactor.0.driver.borrow_mut().peer(self.0.id)
    }
}
