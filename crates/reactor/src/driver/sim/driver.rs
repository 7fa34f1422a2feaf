//! One simulated core's driver.
//!
//! Role: turns operations into events of the world, and events back into completions. Place on
//! the path: where a core's ring stands in a server.
//!
//! Invariant: an operation completes in a later turn than it was started in, as with a kernel.
//!
//! Never: it keeps no state of its own; everything is in the world, where faults can reach it.

use super::net::Connection;
use super::{Action, Core, Disk, LISTENER_BIT, ListenerState, NamedDisk, SECTOR_BYTES, State, World, error};
use crate::driver::wake::WakeCell;
use crate::file::{FileOptions, Opened};
use crate::ops::{FileId, Left, Op, Ops, SocketId, Token};
use crate::reactor::CoreId;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// One simulated core's way into the world.
pub(crate) struct SimDriver {
    pub(super) world: World,
    pub(super) index: usize,
    pub(super) life: u64,
}

impl SimDriver {
    fn state(&self) -> std::cell::RefMut<'_, State> {
        self.world.0.borrow_mut()
    }

    pub(crate) fn start(&mut self, token: Token, op: &mut Op) {
        let mut guard = self.state();
        let state = &mut *guard;
        let now_ns = state.now_ns;
        match op {
            Op::Read { file, buf, .. } => {
                let disk = &mut state.disks[state.files[file.0 as usize]].disk;
                let latency_ns = disk.latency_ns(&mut state.random_disk, buf.len());
                state.push(now_ns + latency_ns, self.index, token, Action::Read(buf.len() as u64));
            }
            Op::Write { file, offset, buf, durable } => {
                let write = state.next_write;
                state.next_write += 1;
                let index = state.files[file.0 as usize];
                let disk = &mut state.disks[index].disk;
                let latency_ns = disk.latency_ns(&mut state.random_disk, buf.len());
                disk.start_write(write, *offset, buf);
                let (bytes, durable, disk) = (buf.len() as u64, *durable, index as u32);
                let action = Action::Write { write, durable, disk, bytes };
                state.push(now_ns + latency_ns, self.index, token, action);
            }
            Op::Flush { file } => {
                let index = state.files[file.0 as usize];
                let disk = &mut state.disks[index].disk;
                let latency_ns = disk.latency_ns(&mut state.random_disk, 0);
                let action = Action::Flush { disk: index as u32, covered: disk.start_flush() };
                state.push(now_ns + latency_ns, self.index, token, action);
            }
            Op::Accept { .. } | Op::Receive { .. } | Op::Send { .. } => {
                state.cores[self.index].blocked.push(token);
                state.run_core_at(self.index, now_ns);
            }
        }
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        let mut state = self.state();
        let core = &mut state.cores[self.index];
        if core.blocked.contains(&token) {
            core.blocked.retain(|blocked| *blocked != token);
            core.done.push((token, Err(error(libc::ECANCELED))));
            let now_ns = state.now_ns;
            state.run_core_at(self.index, now_ns);
        }
    }

    /// Nothing is held from a drive.
    pub(crate) fn feed_drive(&mut self) {}

    pub(crate) fn reap(&mut self, ops: &mut Ops) -> usize {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut done = std::mem::take(&mut state.cores[self.index].done);
        let blocked = std::mem::take(&mut state.cores[self.index].blocked);
        for token in blocked {
            match state.try_network((self.index, self.life), ops.op_mut(token)) {
                Some(result) => done.push((token, result)),
                None => state.cores[self.index].blocked.push(token),
            }
        }
        let count = done.len();
        for (token, mut result) in done {
            if let (Op::Read { file, offset, buf }, Ok(_)) = (ops.op_mut(token), &result) {
                let disk = &mut state.disks[state.files[file.0 as usize]].disk;
                if !disk.read(&mut state.random_disk, *offset, buf) {
                    result = Err(error(libc::EIO));
                }
            }
            match ops.complete(token, result) {
                Left::Nothing => {}
                Left::Unclaimed(socket) | Left::Failed(socket) => {
                    let (connection, end) = state.connection(socket);
                    connection.close(end);
                }
                Left::Rest => {
                    state.cores[self.index].blocked.push(token);
                    let now_ns = state.now_ns;
                    state.run_core_at(self.index, now_ns);
                }
            }
        }
        count
    }

    pub(crate) fn announce_sleep(&mut self) {}
    pub(crate) fn announce_awake(&mut self) {}
    pub(crate) fn park(&mut self, _timeout_ns: Option<u64>) {
        unreachable!("the world decides when a simulated core runs");
    }

    pub(crate) fn wake(&mut self, core: CoreId) {
        let mut state = self.state();
        let process = state.cores[self.index].process;
        let sought = |c: &Core| {
            c.process == process && c.reactor.as_ref().is_some_and(|reactor| reactor.core() == core)
        };
        let Some(index) = state.cores.iter().position(sought) else {
            return;
        };
        let delay_ns = state.random_schedule.range(200, 5_000);
        let at_ns = state.now_ns + delay_ns;
        state.run_core_at(index, at_ns);
    }

    pub(crate) fn waker(&mut self) -> Arc<WakeCell> {
        self.state().waker.clone()
    }

    /// What was under way ends with the process.
    pub(crate) fn give_up(&mut self) {
        let mut state = self.state();
        state.cores[self.index].blocked.clear();
        state.cores[self.index].done.clear();
    }

    pub(crate) fn in_flight(&self) -> usize {
        0
    }

    pub(crate) fn leave(&mut self) {}

    pub(crate) fn spin_ns(&mut self) -> u64 {
        0
    }

    pub(crate) fn look_at_clock(&mut self) -> u64 {
        self.state().now_ns
    }

    pub(crate) fn now_ns(&mut self) -> u64 {
        self.state().now_ns
    }
    pub(crate) fn wall_us(&mut self) -> u64 {
        self.state().wall_us()
    }
    pub(crate) fn random_u64(&mut self) -> u64 {
        self.state().random_product.next_u64()
    }

    pub(crate) fn open_file(&mut self, path: &str, options: &FileOptions) -> io::Result<Opened> {
        let mut guard = self.state();
        let state = &mut *guard;
        let process = state.cores[self.index].process;
        let found = state.disks.iter().position(|disk| disk.path == path);
        let index = match (found, options.create_bytes) {
            (Some(index), _) => index,
            (None, None) => return Err(error(libc::ENOENT)),
            (None, Some(bytes)) => {
                let disk = Disk::new(bytes as usize, state.classify);
                state.disks.push(NamedDisk { path: path.to_owned(), disk, locked_by: None, created: true });
                state.disks.len() - 1
            }
        };
        let disk = &mut state.disks[index];
        if !options.read_only && disk.locked_by.is_some_and(|owner| owner != process) {
            return Err(error(libc::EWOULDBLOCK));
        }
        if !options.read_only {
            disk.locked_by = Some(process);
        }
        let created = std::mem::take(&mut disk.created);
        let size_bytes = disk.disk.size_bytes();
        state.files.push(index);
        let id = FileId(state.files.len() as u32 - 1);
        Ok(Opened { id, size_bytes, block_bytes: SECTOR_BYTES as u32, created })
    }

    pub(crate) fn close_file(&mut self, _file: FileId) {}

    pub(crate) fn listen(&mut self, address: SocketAddr) -> io::Result<(SocketId, SocketAddr)> {
        let owner = (self.index, self.life);
        let mut state = self.state();
        let id = state.listeners.len() as u32;
        state.listeners.push(Some(ListenerState { address, owner, backlog: VecDeque::new() }));
        Ok((SocketId(id | LISTENER_BIT), address))
    }

    pub(crate) fn connect(&mut self, address: SocketAddr) -> io::Result<SocketId> {
        let owner = (self.index, self.life);
        let mut guard = self.state();
        let state = &mut *guard;
        let open = |l: &Option<ListenerState>| l.as_ref().is_some_and(|l| l.address == address);
        let listening: Vec<usize> =
            (0..state.listeners.len()).filter(|index| open(&state.listeners[*index])).collect();
        if listening.is_empty() {
            return Err(error(libc::ECONNREFUSED));
        }
        let chosen = listening[state.random_net.below(listening.len() as u64) as usize];
        let connection = state.connections.len();
        state.connections.push(Connection::new(owner));
        let listener = state.listeners[chosen].as_mut().expect("chosen among the open ones");
        listener.backlog.push_back(connection);
        let core = listener.owner.0;
        let at_ns = state.now_ns + state.random_net.range(5_000, 60_000);
        state.run_core_at(core, at_ns);
        Ok(SocketId(connection as u32 * 2))
    }

    pub(crate) fn close_socket(&mut self, socket: SocketId) {
        if socket.0 & LISTENER_BIT != 0 {
            self.state().listeners[(socket.0 & !LISTENER_BIT) as usize] = None;
            return;
        }
        self.shutdown_socket(socket);
    }

    /// Peers see the end at once here.
    pub(crate) fn abort_socket(&mut self, socket: SocketId) {
        self.shutdown_socket(socket);
    }

    pub(crate) fn shutdown_socket(&mut self, socket: SocketId) {
        let mut state = self.state();
        let now_ns = state.now_ns;
        let (connection, end) = state.connection(socket);
        connection.close(end);
        state.run_peer(socket, now_ns);
        state.run_core_at(self.index, now_ns);
    }

    pub(crate) fn peer(&mut self, socket: SocketId) -> Option<SocketAddr> {
        Some(SocketAddr::from(([127, 0, 0, 1], 10_000 + (socket.0 % 50_000) as u16)))
    }
}
