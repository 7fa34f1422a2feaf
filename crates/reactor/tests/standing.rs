//! Receives of connections whose requests are short, and then are not: nothing is lost or mixed up.

mod common;

use common::block_on;
use plimsoll_reactor::{DriverChoice, Listener, Reactor, Socket, Work};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

/// So many short requests make a connection one of short requests.
const SHORT_REQUESTS: usize = 10;

/// A client and a server that have exchanged short requests.
async fn acquainted(reactor: &Reactor, listener: &Listener) -> (Socket, Socket) {
    let client = reactor.connect(listener.address()).unwrap();
    let server = listener.accept().await.unwrap();
    for _ in 0..SHORT_REQUESTS {
        client.send(b"request".to_vec()).await.0.unwrap();
        assert_eq!(receive(&server, 7, 4096).await, b"request");
    }
    (client, server)
}

/// Receives until there are so many bytes.
async fn receive(socket: &Socket, count: usize, bytes_max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < count {
        let (result, received) = socket.receive(bytes, bytes_max).await;
        bytes = received;
        assert!(result.unwrap() > 0, "the end came after {} of {count} bytes", bytes.len());
    }
    assert_eq!(bytes.len(), count);
    bytes
}

fn pattern(seed: usize, count: usize) -> Vec<u8> {
    (seed..seed + count).map(|at| (at % 251) as u8).collect()
}

fn bytes_keep_their_order_however_they_are_received(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let (client, server) = acquainted(&reactor, &listener).await;
        for round in 0..400 {
            let count = [1, 300, 9_000, 20, 40_000, 30, 5, 16_384, 7, 8_192, 100, 100][round % 12];
            let bytes_max = [16 << 10, 3, 100 << 10, 1000, 32 << 10][round % 5];
            let (sender, sent) = (client.clone(), Rc::new(Cell::new(false)));
            let ended = sent.clone();
            reactor.spawn(Work::Network, async move {
                sender.send(pattern(round, count)).await.0.unwrap();
                ended.set(true);
            });
            if round % 3 == 0 {
                // It is there before it is asked for.
                reactor.sleep_ns(200_000).await;
            }
            let found = receive(&server, count, bytes_max).await;
            assert!(found == pattern(round, count), "round {round}: {count} bytes, {bytes_max} at a time");
            while !sent.get() {
                reactor.yield_now().await;
            }
        }
    });
}

/// More of them send more than there are buffers to share, and nobody asks for it.
fn who_is_not_listened_to_holds_nobody_up(driver: DriverChoice) {
    const PEERS: usize = 300;
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut peers = Vec::new();
        for peer in 0..PEERS {
            let (client, server) = acquainted(&reactor, &listener).await;
            for part in 0..5 {
                client.send(pattern(peer + part * 1000, 1000)).await.0.unwrap();
                reactor.yield_now().await;
            }
            peers.push((client, server));
        }
        let (client, server) = acquainted(&reactor, &listener).await;
        for round in 0..100 {
            client.send(pattern(round, 100)).await.0.unwrap();
            assert_eq!(receive(&server, 100, 4096).await, pattern(round, 100));
        }
        for (peer, (_, server)) in peers.iter().enumerate() {
            assert!(receive(server, 5000, 1 << 10).await == pattern(peer, 5000), "peer {peer}");
        }
    });
}

/// A receive is given up, and the next one begins before anybody could be told.
fn a_receive_given_up_is_followed_by_another(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let (client, server) = acquainted(&reactor, &listener).await;
        for round in 0..200 {
            for _ in 0..round % 3 {
                let given_up = pin!(server.receive(Vec::new(), 4096));
                assert!(given_up.poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            if round % 2 == 0 {
                reactor.yield_now().await;
            }
            let (sender, own) = (client.clone(), reactor.clone());
            reactor.spawn(Work::Network, async move {
                // What was given up may take what comes while it is called back.
                own.sleep_ns(200_000).await;
                sender.send(pattern(round, 50)).await.0.unwrap();
            });
            assert!(receive(&server, 50, 4096).await == pattern(round, 50), "round {round}");
        }
    });
}

/// Closed while something stands that was brought and not asked for; whoever comes next gets nothing of it.
fn closing_with_bytes_left_leaves_nothing_behind(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        for round in 0..600 {
            let (client, server) = acquainted(&reactor, &listener).await;
            client.send(b"left".to_vec()).await.0.unwrap();
            if round % 2 == 0 {
                reactor.sleep_ns(20_000).await;
            }
            drop(server);
            let (result, bytes) = client.receive(Vec::new(), 100).await;
            assert!(matches!(result, Ok(0) | Err(_)) && bytes.is_empty(), "the peer is told");
        }
    });
}

on_every_driver! {
    bytes_keep_their_order_however_they_are_received,
    who_is_not_listened_to_holds_nobody_up,
    a_receive_given_up_is_followed_by_another,
    closing_with_bytes_left_leaves_nothing_behind,
}
