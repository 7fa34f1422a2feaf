//! The state of a socket's standing receive, without a kernel.

use super::*;

const SHORT: i32 = 40;
const TOKEN: Token = Token(7);

/// An inbox whose entry stands.
fn standing() -> Inbox {
    let mut inbox = Inbox::default();
    for _ in 0..SHORT_MIN {
        assert_eq!(inbox.ask(TOKEN, false), Ask::Single);
        inbox.received(SHORT as usize);
    }
    assert_eq!(inbox.ask(TOKEN, false), Ask::Stand);
    inbox
}

/// Takes all there is for who waits.
fn take(inbox: &mut Inbox, buffers: &mut ReceiveBuffers, bytes_max: usize) -> Option<i32> {
    let mut into = Vec::new();
    let taken = inbox.take(buffers, &mut into, bytes_max);
    assert_eq!(into.len(), taken.unwrap_or(0).max(0) as usize);
    if taken.is_some() {
        inbox.forget(TOKEN);
    }
    taken
}

#[test]
fn only_short_receives_in_a_row_stand() {
    let mut inbox = Inbox::default();
    for count in [SHORT as usize, SHORT_BYTES, SHORT as usize, 1, 2] {
        assert_eq!(inbox.ask(TOKEN, false), Ask::Single);
        inbox.received(count);
    }
    assert_eq!(inbox.ask(TOKEN, false), Ask::Single);
    inbox.received(0);
    assert_eq!(inbox.ask(TOKEN, true), Ask::Single, "with memory of its own");
    inbox.received(SHORT as usize);
    assert_eq!(inbox.ask(TOKEN, false), Ask::Stand);
}

#[test]
fn what_was_brought_is_taken_in_order_and_each_buffer_given_back_once() {
    let (mut inbox, mut buffers) = (standing(), ReceiveBuffers::new());
    assert!(!inbox.brought(SHORT, Some(3), true));
    assert_eq!(take(&mut inbox, &mut buffers, 16 << 10), Some(SHORT));
    assert_eq!((inbox.waiting(), buffers.given_back()), (None, 1));
    // Two that nobody asked for, taken in parts: the entry is called back.
    assert!(!inbox.brought(SHORT, Some(4), true));
    assert!(inbox.brought(SHORT, Some(5), true));
    assert!(!inbox.brought(SHORT, Some(6), true), "once");
    for left in [50, 50] {
        assert_eq!(inbox.ask(TOKEN, false), Ask::Ready);
        assert_eq!(take(&mut inbox, &mut buffers, left), Some(50));
    }
    assert_eq!(buffers.given_back(), 3);
    assert_eq!(inbox.ask(TOKEN, true), Ask::Ready);
    assert_eq!(take(&mut inbox, &mut buffers, 50), Some(20));
    assert_eq!(buffers.given_back(), 4);
    assert_eq!(inbox.ask(TOKEN, true), Ask::Wait, "it was called back already");
    assert!(!inbox.brought(-libc::ECANCELED, None, false));
    assert!(!inbox.stands() && take(&mut inbox, &mut buffers, 50).is_none());
}

#[test]
fn long_ones_and_a_lack_of_buffers_end_it() {
    let mut buffers = ReceiveBuffers::new();
    let mut inbox = standing();
    assert!(inbox.brought(SHORT_BYTES as i32, Some(0), true));
    assert_eq!(take(&mut inbox, &mut buffers, 16 << 10), Some(SHORT_BYTES as i32));
    assert!(!inbox.brought(-libc::ECANCELED, None, false));
    assert_eq!(inbox.ask(TOKEN, false), Ask::Single);
    for lack in [libc::ENOBUFS, libc::EINVAL] {
        let mut inbox = standing();
        assert!(!inbox.brought(-lack, None, false));
        assert_eq!(take(&mut inbox, &mut buffers, 100), None);
        inbox.forget(TOKEN);
        assert_eq!(inbox.ask(TOKEN, false), Ask::Single, "by itself");
    }
    let mut inbox = standing();
    inbox.forget(TOKEN);
    assert_eq!(inbox.ask(TOKEN, true), Ask::Recall, "it has memory of its own");
}

#[test]
fn the_end_comes_after_the_bytes() {
    for end in [0, -libc::ECONNRESET] {
        let (mut inbox, mut buffers) = (standing(), ReceiveBuffers::new());
        inbox.forget(TOKEN);
        assert!(!inbox.brought(SHORT, Some(1), true));
        assert!(!inbox.brought(end, None, false));
        assert_eq!(inbox.ask(TOKEN, false), Ask::Ready);
        assert_eq!(take(&mut inbox, &mut buffers, 100), Some(SHORT));
        assert_eq!(inbox.ask(TOKEN, false), Ask::Ready);
        assert_eq!(take(&mut inbox, &mut buffers, 100), Some(end));
    }
}

#[test]
fn a_closed_socket_gives_all_buffers_back() {
    let (mut inbox, mut buffers) = (standing(), ReceiveBuffers::new());
    inbox.forget(TOKEN);
    assert!(!inbox.brought(SHORT, Some(1), true));
    inbox.clear(&mut buffers);
    assert!(inbox.is_closed());
    assert!(!inbox.brought(SHORT, Some(2), false));
    inbox.clear(&mut buffers);
    assert_eq!(buffers.given_back(), 2);
}

#[test]
fn data_of_standing_receives_are_no_tokens() {
    for socket in [0, 1, crate::limits::SOCKETS_MAX as u32 - 1] {
        let data = data_of(SocketId(socket));
        assert_eq!(socket_of(data), Some(SocketId(socket)));
        assert!(Token(data).slot() >= crate::limits::OPS_MAX);
    }
    let token = u64::from(u32::MAX) << 32 | (crate::limits::OPS_MAX as u64 - 1);
    assert_eq!(socket_of(token), None);
    assert_eq!((socket_of(super::super::WAKE_DATA), socket_of(super::super::CANCEL_DATA)), (None, None));
}
