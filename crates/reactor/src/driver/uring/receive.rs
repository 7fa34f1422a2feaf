//! Receiving: by an entry for each receive, or from one that stands.
//!
//! Place on the path: the first stage of a request, between the ring and the connection that waits.
//!
//! Invariant: each receive that began ends once: with its own entry's completion, with what a standing
//! one brought, or because it was given up.

use super::Uring;
use super::buffers::{BUFFER_BYTES, GROUP};
use super::standing::{self, Ask};
use crate::limits::{RECEIVE_BYTES_MAX, RECEIVE_DIRECT_BYTES_MIN};
use crate::ops::{Op, Ops, SocketId, Token};
use io_uring::{cqueue, opcode, squeue, types};
use std::io;

/// What a receive reserves of its own when the shared buffers have run out.
const RECEIVE_SPARE_BYTES: usize = 4 << 10;
/// `IORING_RECVSEND_POLL_FIRST`: whoever waits for a request has none yet, so to look at once is in vain.
const POLL_FIRST: u16 = 1;

impl Uring {
    /// Lets a receive wait for what stands, or submits it.
    pub(super) fn begin_receive(&mut self, token: Token, socket: SocketId, op: &mut Op) {
        let flight = &mut self.flights[token.slot()];
        let single = self.none_stand || !flight.shared;
        let ask = self.sockets.get(socket).state.ask(token, single);
        flight.stands = (ask != Ask::Single).then_some(socket);
        match ask {
            Ask::Single => self.submit(token, op),
            Ask::Stand => self.stand(socket),
            Ask::Recall => self.push_cancel(standing::data_of(socket)),
            Ask::Ready => self.ready.push(token),
            Ask::Wait => {}
        }
    }

    /// Submits the entry that receives again and again.
    fn stand(&mut self, socket: SocketId) {
        self.sockets.hold(socket);
        let descriptor = types::Fd(self.descriptor(socket));
        let entry = opcode::RecvMulti::new(descriptor, GROUP).build();
        // SAFETY: the entry names the shared buffers alone, which outlive the ring; `hold` keeps the
        // descriptor open until its last completion.
        unsafe { self.ring.push(entry.user_data(standing::data_of(socket))) };
        self.in_flight += 1;
    }

    pub(super) fn receive_entry(
        &mut self,
        socket: SocketId,
        into: &mut Vec<u8>,
        bytes_max: usize,
        shared: bool,
    ) -> squeue::Entry {
        let descriptor = types::Fd(self.descriptor(socket));
        if shared {
            let len = bytes_max.min(BUFFER_BYTES) as u32;
            let receive = opcode::Recv::new(descriptor, std::ptr::null_mut(), len);
            let entry = receive.buf_group(GROUP).ioprio(POLL_FIRST).build();
            return entry.flags(squeue::Flags::BUFFER_SELECT);
        }
        let most = if bytes_max < RECEIVE_DIRECT_BYTES_MIN { RECEIVE_SPARE_BYTES } else { RECEIVE_BYTES_MAX };
        let len = bytes_max.min(most);
        into.reserve(len);
        let spare = into.spare_capacity_mut().as_mut_ptr().cast();
        opcode::Recv::new(descriptor, spare, len as u32).ioprio(POLL_FIRST).build()
    }

    /// A standing receive completed, perhaps not for the last time.
    pub(super) fn brought(&mut self, ops: &mut Ops, socket: SocketId, completion: &cqueue::Entry) {
        let more = cqueue::more(completion.flags());
        let buffer = cqueue::buffer_select(completion.flags());
        let inbox = &mut self.sockets.get(socket).state;
        let recall = inbox.brought(completion.result(), buffer, more);
        if let Some(buffers) = self.receive.as_mut().filter(|_| inbox.is_closed()) {
            inbox.clear(buffers);
        }
        // Before 6.0 none stand.
        self.none_stand |= completion.result() == -libc::EINVAL;
        if let Some(token) = inbox.waiting() {
            self.serve(ops, token);
        }
        if recall {
            self.push_cancel(standing::data_of(socket));
        }
        if !more {
            self.in_flight -= 1;
            self.sockets.release(socket);
        }
    }

    /// Gives a receive that waits what was brought, if anything was.
    pub(super) fn serve(&mut self, ops: &mut Ops, token: Token) {
        let flight = &mut self.flights[token.slot()];
        if !flight.active || flight.token != token || flight.stands.is_none() {
            return; // It was served by what came meanwhile.
        }
        let op = ops.op_mut(token);
        let Op::Receive { socket, into, bytes_max } = op else { unreachable!("only receives stand") };
        let (socket, inbox) = (*socket, &mut self.sockets.get(*socket).state);
        let buffers = self.receive.as_mut().expect("what stands fills shared buffers");
        let taken =
            if flight.cancelled { Some(-libc::ECANCELED) } else { inbox.take(buffers, into, *bytes_max) };
        match taken {
            Some(result) => {
                inbox.forget(token);
                let code = || io::Error::from_raw_os_error(-result);
                self.finish(ops, token, u64::try_from(result).map_err(|_| code()));
            }
            None if inbox.stands() => {}
            None => {
                inbox.forget(token);
                self.begin_receive(token, socket, op);
            }
        }
    }

    /// Appends what a receive brought to `into`, and gives its buffer back.
    pub(super) fn take_received(&mut self, into: &mut Vec<u8>, result: i32, flags: u32, shared: bool) {
        let count = result.max(0) as usize;
        // A completion may own a buffer whatever its result.
        if let Some(id) = cqueue::buffer_select(flags) {
            let receive = self.receive.as_mut().expect("buffers are named only if registered");
            into.extend_from_slice(receive.received(id, count));
            receive.give_back(id);
        } else if count > 0 {
            assert!(!shared, "a shared receive that brought bytes names its buffer");
            assert!(count <= into.capacity() - into.len(), "the kernel received more than asked");
            // SAFETY: the kernel has initialised `count` bytes of the spare capacity, which was
            // large enough when the entry was made; the vector has not been touched since.
            unsafe { into.set_len(into.len() + count) };
        }
    }
}
