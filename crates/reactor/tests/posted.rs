//! Posted sends on a real kernel: all of one leaves, who cannot be sent to is known, nobody is waited for.

mod common;

use common::{block_on, fresh_path};
use plimsoll_reactor::{DriverChoice, FileOptions, Work};
use std::cell::Cell;
use std::io::Read;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// More than a kernel keeps of one connection, and than one piece of a send.
const MANY_BYTES: usize = 32 << 20;

fn what_is_posted_leaves_whole_though_its_peer_is_slow(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut peer = TcpStream::connect(listener.address()).unwrap();
        let socket = listener.accept().await.unwrap();
        assert!(socket.may_post());
        let bytes: Vec<u8> = (0..MANY_BYTES).map(|index| (index >> 10) as u8).collect();
        socket.post(bytes.clone());
        // Nobody takes it: as much as the kernel keeps has left at most.
        reactor.sleep_ns(50_000_000).await;
        assert!(!socket.may_post() && socket.posted_bytes() == MANY_BYTES && socket.sent_bytes() == 0);
        let taking = std::thread::spawn(move || {
            let mut found = vec![0; MANY_BYTES];
            peer.read_exact(&mut found).map(|()| (found, peer))
        });
        socket.posted().await.unwrap();
        assert_eq!((socket.posted_bytes(), socket.sent_bytes()), (0, MANY_BYTES as u64));
        assert_eq!(socket.send_buffer().capacity(), 0, "so much is given back");
        let (found, mut peer) = taking.join().unwrap().unwrap();
        assert!(found == bytes);
        // What is short is kept, and sent from again.
        for round in 0..3_u8 {
            let mut bytes = socket.send_buffer();
            assert!(bytes.is_empty() && (bytes.capacity() > 0) == (round > 0));
            bytes.resize(100, round);
            socket.post(bytes);
            socket.posted().await.unwrap();
            let mut found = [9; 100];
            peer.read_exact(&mut found).unwrap();
            assert_eq!(found, [round; 100]);
        }
    });
}

fn who_cannot_be_sent_to_is_known_and_nothing_more_is_posted(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let peer = TcpStream::connect(listener.address()).unwrap();
        let socket = listener.accept().await.unwrap();
        socket.post(vec![7; MANY_BYTES]);
        reactor.sleep_ns(20_000_000).await;
        rustix::net::sockopt::set_socket_linger(&peer, Some(std::time::Duration::ZERO)).unwrap();
        drop(peer);
        socket.posted().await.unwrap_err();
        assert!(!socket.may_post() && socket.posted_bytes() == 0);
        let (received, _) = socket.receive(Vec::new(), 100).await;
        assert!(!matches!(received, Ok(1..)), "who receives learns of it, too");
    });
}

/// The rest of a send that had begun was started on a socket that was closed (found in review).
fn a_socket_that_is_dropped_with_a_post_under_way_is_closed(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut peer = TcpStream::connect(listener.address()).unwrap();
        let socket = listener.accept().await.unwrap();
        socket.post(vec![7; MANY_BYTES]);
        reactor.sleep_ns(20_000_000).await;
        drop(socket);
        reactor.sleep_ns(20_000_000).await;
        let taking = std::thread::spawn(move || {
            let mut found = Vec::new();
            let ended = peer.read_to_end(&mut found);
            (ended.is_ok(), found.len())
        });
        while !taking.is_finished() {
            reactor.sleep_ns(1_000_000).await;
        }
        let (_, taken) = taking.join().unwrap();
        assert!(taken < MANY_BYTES, "the end comes early");
    });
}

#[allow(clippy::disallowed_methods)] // How long a stop takes is seen from outside.
fn a_stop_waits_for_nothing_that_was_posted(driver: DriverChoice) {
    let began = std::time::Instant::now();
    for is_dropped in [false, true] {
        let peers = Arc::new(Mutex::new(Vec::new()));
        let kept = peers.clone();
        block_on(driver, move |reactor| {
            let kept = kept.clone();
            async move {
                let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
                kept.lock().unwrap().push(TcpStream::connect(listener.address()).unwrap());
                let socket = listener.accept().await.unwrap();
                socket.post(vec![7; MANY_BYTES]);
                reactor.sleep_ns(20_000_000).await;
                if !is_dropped {
                    std::mem::forget(socket);
                }
            }
        });
        assert_eq!(peers.lock().unwrap().len(), 1, "it has taken nothing all the time");
    }
    assert!(began.elapsed().as_secs() < 4, "a drain of operations that do not end takes five seconds");
}

/// While the drive reads few sends go at a time: none is forgotten when it reads no more.
fn many_posts_beside_reads_all_leave_in_their_order(driver: DriverChoice) {
    let path = fresh_path("posted");
    let kept = path.clone();
    block_on(driver, move |reactor| {
        let path = path.clone();
        async move {
            let options = FileOptions { create_bytes: Some(1 << 20), read_only: false };
            let device = reactor.open_file(&path, &options).unwrap();
            let reads = Rc::new(Cell::new(true));
            let goes_on = reads.clone();
            let block_bytes = device.block_bytes() as usize;
            reactor.spawn(Work::Device, async move {
                while goes_on.get() {
                    device.read(0, block_bytes).await.unwrap();
                }
            });
            let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
            let (mut peers, mut sockets) = (Vec::new(), Vec::new());
            for _ in 0..100 {
                peers.push(TcpStream::connect(listener.address()).unwrap());
                sockets.push(listener.accept().await.unwrap());
            }
            for round in 0..3_u8 {
                reads.set(round < 2);
                sockets.iter().for_each(|socket| socket.post(vec![round; 100]));
                for socket in &sockets {
                    socket.posted().await.unwrap();
                }
            }
            for mut peer in peers {
                let mut found = [9; 300];
                peer.read_exact(&mut found).unwrap();
                assert!([0, 1, 2].iter().zip(found.chunks(100)).all(|(round, sent)| sent == [*round; 100]));
            }
        }
    });
    std::fs::remove_file(kept).unwrap();
}

on_every_driver! {
    many_posts_beside_reads_all_leave_in_their_order,
    what_is_posted_leaves_whole_though_its_peer_is_slow,
    who_cannot_be_sent_to_is_known_and_nothing_more_is_posted,
    a_socket_that_is_dropped_with_a_post_under_way_is_closed,
    a_stop_waits_for_nothing_that_was_posted,
}
