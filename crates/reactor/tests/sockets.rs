//! Sockets on a real kernel: echo, back-pressure, abandoned operations, reused descriptors.

mod common;

use common::{block_on, join, options, wait_until};
use plimsoll_reactor::{Control, DriverChoice, Listener, Reactor, Running, Socket, Work, start};
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

async fn echo(socket: Socket, bytes_max: usize) {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let (result, received) = socket.receive(bytes, bytes_max).await;
        if !matches!(result, Ok(1..)) {
            return;
        }
        assert_eq!(result.unwrap(), received.len());
        let (result, sent) = socket.send(received).await;
        if result.is_err() {
            return;
        }
        bytes = sent;
    }
}

fn serve(reactor: &Reactor, listener: Listener, bytes_max: usize) {
    let own = reactor.clone();
    reactor.spawn(Work::Network, async move {
        while let Ok(socket) = listener.accept().await {
            own.spawn(Work::Network, echo(socket, bytes_max));
        }
    });
}

/// Echo servers on each core at one address, and what stops them.
fn start_echo(driver: DriverChoice, cores: usize, bytes_max: usize) -> (SocketAddr, Running, impl FnOnce()) {
    let (mut sender, ports) = Control::ports::<()>(cores);
    let ports = Mutex::new(ports.into_iter().map(Some).collect::<Vec<_>>());
    // A port is chosen by the first listener; the others listen on the same.
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap();
    drop(holder);
    let (listening, all_listen) = channel();
    let running = start(&options(driver, cores), move |reactor| {
        let port = ports.lock().unwrap()[reactor.core().0 as usize].take().unwrap();
        let stopped = reactor.clone();
        port.open(reactor, move |()| stopped.stop());
        let listener = reactor.listen(address).unwrap();
        assert_eq!(listener.address(), address);
        serve(reactor, listener, bytes_max);
        listening.send(()).unwrap();
    });
    (0..cores).for_each(|_| all_listen.recv().unwrap());
    let stop = move || {
        for core in 0..sender.cores() {
            sender.send(plimsoll_reactor::CoreId(core as u16), ()).unwrap();
        }
    };
    (address, running.unwrap(), stop)
}

fn round_trip(stream: &mut TcpStream, wanted: &[u8]) {
    let mut found = vec![0; wanted.len()];
    if wanted.len() < 16_384 {
        stream.write_all(wanted).unwrap();
        stream.read_exact(&mut found).unwrap();
        assert!(found == wanted, "{} bytes came back changed", wanted.len());
        return;
    }
    let mut writer = stream.try_clone().unwrap();
    // Large messages need someone to read while they are being sent.
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(wanted).unwrap());
        stream.read_exact(&mut found).unwrap();
    });
    assert!(found == wanted, "{} bytes came back changed", wanted.len());
}

fn echo_with_clients(driver: DriverChoice, cores: usize, bytes_max: usize, rounds: usize) {
    const CLIENTS: usize = 50;
    let (address, running, stop) = start_echo(driver, cores, bytes_max);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                for round in 0..rounds {
                    let len = [1, 100, 5_000, 20_000, 70_000][(client + round) % 5];
                    let wanted: Vec<u8> = (0..len).map(|index| (index / 7 + client + round) as u8).collect();
                    round_trip(&mut stream, &wanted);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    stop();
    join(running);
}

fn echo_on_one_core(driver: DriverChoice) {
    echo_with_clients(driver, 1, 16 << 10, 100);
}

fn echo_on_two_cores(driver: DriverChoice) {
    echo_with_clients(driver, 2, 16 << 10, 100);
}

fn echo_with_direct_receives(driver: DriverChoice) {
    echo_with_clients(driver, 1, 256 << 10, 50);
}

fn more_waiting_connections_than_shared_buffers_all_receive(driver: DriverChoice) {
    const CONNECTIONS: usize = 600;
    let (addresses, listening) = channel();
    let (waiting, sent) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (served, all_sent) = (waiting.clone(), sent.clone());
    let running = start(&options(driver, 1), move |reactor| {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        addresses.send(listener.address()).unwrap();
        let (own, waiting, sent) = (reactor.clone(), waiting.clone(), sent.clone());
        reactor.spawn(Work::Network, async move {
            let done = std::rc::Rc::new(std::cell::Cell::new(0));
            for _ in 0..CONNECTIONS {
                let (socket, done) = (listener.accept().await.unwrap(), done.clone());
                own.spawn(Work::Network, async move {
                    let (result, bytes) = socket.receive(b"kept".to_vec(), 4096).await;
                    assert_eq!((result.unwrap(), &bytes[..]), (5, &b"kepthello"[..]));
                    done.set(done.get() + 1);
                });
            }
            own.sleep_ns(20_000_000).await;
            waiting.store(CONNECTIONS, Ordering::Release);
            // Holds the core, on purpose, until every connection is readable at once.
            wait_until("all clients have sent", || sent.load(Ordering::Acquire) == CONNECTIONS);
            while done.get() < CONNECTIONS {
                own.sleep_ns(1_000_000).await;
            }
            own.stop();
        });
    });
    let address = listening.recv().unwrap();
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
    wait_until("all receives wait", || served.load(Ordering::Acquire) == CONNECTIONS);
    for stream in &mut streams {
        stream.write_all(b"hello").unwrap();
        all_sent.fetch_add(1, Ordering::Release);
    }
    join(running.unwrap());
}

#[allow(clippy::disallowed_methods)] // Time has to pass in which the sender could wrongly finish.
fn a_slow_reader_makes_the_sender_wait(driver: DriverChoice) {
    const BYTES: usize = 32 << 20;
    let (addresses, listening) = channel();
    let progress = Arc::new(AtomicUsize::new(0));
    let seen = progress.clone();
    let running = start(&options(driver, 1), move |reactor| {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        addresses.send(listener.address()).unwrap();
        let (own, progress) = (reactor.clone(), progress.clone());
        reactor.spawn(Work::Network, async move {
            let socket = listener.accept().await.unwrap();
            let bytes: Vec<u8> = (0..BYTES).map(|index| (index >> 10) as u8).collect();
            progress.store(1, Ordering::Release);
            let (result, bytes) = socket.send(bytes).await;
            result.unwrap();
            assert_eq!(bytes.len(), BYTES, "the vector comes back");
            progress.store(2, Ordering::Release);
            own.stop();
        });
    });
    let mut stream = TcpStream::connect(listening.recv().unwrap()).unwrap();
    let mut found = vec![0; BYTES];
    // Nobody reads: the sender fills the socket's buffers and waits, however long we look.
    wait_until("the sender sends", || seen.load(Ordering::Acquire) == 1);
    stream.read_exact(&mut found[..1000]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(seen.load(Ordering::Acquire), 1, "32 MiB fit no socket buffer");
    stream.read_exact(&mut found[1000..]).unwrap();
    assert!(found.iter().enumerate().all(|(index, byte)| *byte == (index >> 10) as u8));
    join(running.unwrap());
}

/// Polls a future once, so that its operation starts, and drops it.
fn start_and_drop(future: impl Future) {
    let polled = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending), "operations never complete at once");
}

fn dropped_receives_and_reused_descriptors_mix_up_no_connections(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address();
        for round in 0..2_000_u32 {
            let mut client = TcpStream::connect(address).unwrap();
            let socket = listener.accept().await.unwrap();
            assert_eq!(socket.peer(), Some(client.local_addr().unwrap()));
            if round % 3 == 0 {
                // Data for a receive that nobody waits for any more.
                client.write_all(b"stale").unwrap();
            }
            start_and_drop(socket.receive(Vec::new(), 4096));
            if round % 2 == 0 {
                reactor.yield_now().await;
            }
            start_and_drop(socket.receive(Vec::new(), 65_536));
            // Closed with operations in flight; the next connection must not meet them.
            drop(socket);
            let mut next = TcpStream::connect(address).unwrap();
            let socket = listener.accept().await.unwrap();
            let message = round.to_le_bytes();
            next.write_all(&message).unwrap();
            let (result, bytes) = socket.receive(Vec::new(), 4096).await;
            assert_eq!((result.unwrap(), &bytes[..]), (4, &message[..]));
            assert!(socket.send(bytes).await.0.is_ok());
            let mut found = [0; 4];
            next.read_exact(&mut found).unwrap();
            assert_eq!(found, message);
        }
    });
}

fn accepts_that_nobody_waits_for_lose_no_listener(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        for round in 0..500 {
            start_and_drop(listener.accept());
            if round % 2 == 0 {
                reactor.yield_now().await;
            }
            // The abandoned accept may take and close one connection, never two.
            let first = TcpStream::connect(listener.address()).unwrap();
            let second = TcpStream::connect(listener.address()).unwrap();
            let socket = listener.accept().await.unwrap();
            let peer = socket.peer();
            let clients = [first.local_addr().ok(), second.local_addr().ok()];
            assert!(clients.contains(&peer), "{peer:?} is neither of {clients:?}");
            if peer == clients[0] {
                drop(listener.accept().await.unwrap());
            }
        }
    });
}

fn a_storm_of_short_connections(driver: DriverChoice) {
    let (address, running, stop) = start_echo(driver, 2, 4096);
    let clients: Vec<_> = (0..8_u8)
        .map(|client| {
            std::thread::spawn(move || {
                for round in 0..500_u32 {
                    let mut stream = TcpStream::connect(address).unwrap();
                    let wanted = [&[client], &round.to_le_bytes()[..]].concat();
                    round_trip(&mut stream, &wanted);
                    if round % 2 == 0 {
                        stream.shutdown(Shutdown::Both).unwrap();
                    }
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    stop();
    join(running);
}

fn shutdown_ends_what_waits_and_closing_tells_the_peer(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = reactor.connect(listener.address()).unwrap();
        let server = listener.accept().await.unwrap();
        let (waiting, own) = (server.clone(), reactor.clone());
        reactor.spawn(Work::Network, async move {
            own.sleep_ns(1_000_000).await;
            waiting.shutdown();
        });
        let (result, bytes) = server.receive(Vec::new(), 100).await;
        assert_eq!((result.unwrap(), bytes.len()), (0, 0));
        let (result, _) = client.receive(Vec::new(), 100).await;
        assert_eq!(result.unwrap(), 0, "the peer sees the end");
        drop((client, server));
        let refused = reactor.connect("127.0.0.1:1".parse().unwrap()).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert!(refused.to_string().contains("127.0.0.1:1"), "{refused}");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let refused = reactor.listen(taken.local_addr().unwrap()).err().unwrap();
        assert!(refused.to_string().contains("another process listens there"), "{refused}");
    });
}

fn a_peer_that_sends_what_nobody_takes_is_told_of_an_abort(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut peer = TcpStream::connect(listener.address()).unwrap();
        peer.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        // More than the kernel keeps for both ends: it waits until somebody takes it.
        let sending = std::thread::spawn(move || peer.write_all(&vec![0; 64 << 20]));
        let server = listener.accept().await.unwrap();
        let (mut taken, mut bytes) = (0, Vec::new());
        while taken < 1 << 20 {
            let (result, all) = server.receive(bytes, 64 << 10).await;
            taken += result.unwrap();
            bytes = all;
            bytes.clear();
        }
        // By then it waits for the kernel, which takes nothing more.
        reactor.sleep_ns(50_000_000).await;
        server.abort();
        // What had come is taken, as by a session that learns of its end.
        while server.receive(Vec::new(), 1 << 20).await.0.is_ok_and(|count| count > 0) {}
        drop(server);
        while !sending.is_finished() {
            reactor.sleep_ns(1_000_000).await;
        }
        // Not that its time was over.
        let error = sending.join().unwrap().unwrap_err();
        let told = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(told.contains(&error.kind()), "{error}");
    });
}

fn stopping_with_thousands_of_waiting_connections_is_quick(driver: DriverChoice) {
    let (address, running, stop) = start_echo(driver, 1, 4096);
    let mut streams: Vec<_> = (0..1_000).map(|_| TcpStream::connect(address).unwrap()).collect();
    for stream in &mut streams {
        round_trip(stream, b"here");
    }
    stop();
    join(running);
    let mut rest = Vec::new();
    for stream in &mut streams {
        assert!(matches!(stream.read_to_end(&mut rest), Ok(0) | Err(_)), "every connection was closed");
    }
}

/// Receives at most `bytes_max` bytes at a time until there are `count`, or the end.
async fn receive_all(socket: &Socket, bytes_max: usize, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        let (result, bytes) = socket.receive(all, bytes_max).await;
        all = bytes;
        if result.unwrap() == 0 {
            break;
        }
    }
    all
}

fn what_came_before_the_end_is_received_after_it(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        for (round, bytes_max) in [7, 64, 100, 999, 1000, 4096, 65_536].into_iter().enumerate() {
            let mut client = TcpStream::connect(listener.address()).unwrap();
            let socket = listener.accept().await.unwrap();
            if round % 2 == 0 {
                start_and_drop(socket.receive(Vec::new(), 1));
                reactor.sleep_ns(1_000_000).await;
            }
            let wanted: Vec<u8> = (0..1000).map(|at| (at % 251) as u8).collect();
            client.write_all(&wanted).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            // Bytes and end are both there before the first look.
            reactor.sleep_ns(2_000_000).await;
            let found = receive_all(&socket, bytes_max, 1000).await;
            assert!(found == wanted, "{} of 1000 bytes, {bytes_max} at a time", found.len());
            for _ in 0..3 {
                assert_eq!(socket.receive(Vec::new(), bytes_max).await.0.unwrap(), 0, "the end stays");
            }
            // It is half closed: the other half goes on.
            assert!(socket.send(b"and back".to_vec()).await.0.is_ok());
            drop(socket);
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "and back");
        }
    });
}

fn a_peer_that_resets_ends_what_waits(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        for waits in [false, true] {
            let client = TcpStream::connect(listener.address()).unwrap();
            let socket = listener.accept().await.unwrap();
            let kill = move || {
                let at_once = Some(std::time::Duration::ZERO);
                rustix::net::sockopt::set_socket_linger(&client, at_once).unwrap();
                drop(client);
            };
            if waits {
                let own = reactor.clone();
                reactor.spawn(Work::Network, async move {
                    own.sleep_ns(1_000_000).await;
                    kill();
                });
            } else {
                kill();
            }
            let (result, bytes) = socket.receive(Vec::new(), 4096).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(bytes.is_empty());
            let (result, _) = socket.send(b"to nobody".to_vec()).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::BrokenPipe);
        }
        // A sender that waits for room learns of it too.
        let client = TcpStream::connect(listener.address()).unwrap();
        let socket = listener.accept().await.unwrap();
        let own = reactor.clone();
        reactor.spawn(Work::Network, async move {
            own.sleep_ns(20_000_000).await;
            rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
            drop(client);
        });
        let (result, bytes) = socket.send(vec![7; 32 << 20]).await;
        assert!(result.is_err() && bytes.len() == 32 << 20, "the vector comes back");
    });
}

/// A receive ends at an urgent byte although more is there: nothing else tells of the rest.
fn an_urgent_byte_hides_nothing(driver: DriverChoice) {
    block_on(driver, |reactor| async move {
        let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        for round in 0..100 {
            let mut client = TcpStream::connect(listener.address()).unwrap();
            let socket = listener.accept().await.unwrap();
            if round % 2 == 0 {
                reactor.sleep_ns(100_000).await;
            }
            client.write_all(b"before").unwrap();
            rustix::net::send(&client, b"!", rustix::net::SendFlags::OOB).unwrap();
            client.write_all(b"after").unwrap();
            let found = receive_all(&socket, 4096, 11).await;
            assert_eq!(String::from_utf8_lossy(&found), "beforeafter");
        }
    });
}

on_every_driver! {
    echo_on_one_core,
    echo_on_two_cores,
    echo_with_direct_receives,
    more_waiting_connections_than_shared_buffers_all_receive,
    a_slow_reader_makes_the_sender_wait,
    dropped_receives_and_reused_descriptors_mix_up_no_connections,
    accepts_that_nobody_waits_for_lose_no_listener,
    a_storm_of_short_connections,
    shutdown_ends_what_waits_and_closing_tells_the_peer,
    a_peer_that_sends_what_nobody_takes_is_told_of_an_abort,
    what_came_before_the_end_is_received_after_it,
    a_peer_that_resets_ends_what_waits,
    an_urgent_byte_hides_nothing,
    stopping_with_thousands_of_waiting_connections_is_quick,
}
