//! The io_uring driver.

use crate::file::{FileOptions, Opened};
use crate::load::Load;
use crate::ops::{FileId, Op, Ops, SocketId, Token};
use crate::reactor::{CoreId, Reactor};
use std::io;
use std::net::SocketAddr;

/// How to start the reactors of a server.
#[derive(Clone, Debug)]
pub struct UringOptions {
    /// The processors to run on, one reactor each, in the order of their core ids.
    pub cpus: Vec<usize>,
}

/// Starts a reactor thread for each processor and runs `main` on each; returns when all have
/// stopped. `main` gets the reactor before its loop begins, to spawn the first tasks.
///
/// # Errors
/// The ring could not be made (io_uring is forbidden or limits are too low) or a thread failed.
pub fn start_uring(
    _options: &UringOptions,
    _main: impl Fn(&Reactor) + Send + Sync + 'static,
) -> io::Result<Vec<Load>> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) struct Uring {}

#[allow(unused_variables, clippy::unused_self)]
impl Uring {
    pub(crate) fn start(&mut self, token: Token, op: &mut Op) {}
    pub(crate) fn cancel(&mut self, token: Token) {}
    pub(crate) fn reap(&mut self, ops: &mut Ops) -> usize {
        0
    }
    pub(crate) fn announce_sleep(&mut self) {}
    pub(crate) fn announce_awake(&mut self) {}
    pub(crate) fn park(&mut self, timeout_ns: Option<u64>) {}
    pub(crate) fn wake(&mut self, core: CoreId) {}
    pub(crate) fn drain(&mut self, ops: &mut Ops) {}
    pub(crate) fn now_ns(&mut self) -> u64 {
        0
    }
    pub(crate) fn wall_ms(&mut self) -> u64 {
        0
    }
    pub(crate) fn random_u64(&mut self) -> u64 {
        0
    }
    pub(crate) fn open_file(&mut self, path: &str, options: &FileOptions) -> io::Result<Opened> {
        Err(io::ErrorKind::Unsupported.into())
    }
    pub(crate) fn close_file(&mut self, file: FileId) {}
    pub(crate) fn listen(&mut self, address: SocketAddr) -> io::Result<(SocketId, SocketAddr)> {
        Err(io::ErrorKind::Unsupported.into())
    }
    pub(crate) fn connect(&mut self, address: SocketAddr) -> io::Result<SocketId> {
        Err(io::ErrorKind::Unsupported.into())
    }
    pub(crate) fn close_socket(&mut self, socket: SocketId) {}
    pub(crate) fn shutdown_socket(&mut self, socket: SocketId) {}
    pub(crate) fn peer(&mut self, socket: SocketId) -> Option<SocketAddr> {
        None
    }
}
