//! What the reactor costs on this machine.
//!
//! `measure read PATH` reads 4 KiB blocks of a file made at PATH, 32 at once, and prints the CPU
//! nanoseconds a read; they include the spinning before each sleep. `measure echo ADDRESS` serves
//! `+PONG` for every message, on one core, so that any Redis load generator's PING can drive it.

use plimsoll_reactor::{FileOptions, Reactor, Socket, StartOptions, Work, start};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::rc::Rc;

const FILE_BYTES: u64 = 256 << 20;
const READS: u64 = 60_000;
const DEPTH: u64 = 32;

fn cpu_ns() -> u64 {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64
}

async fn read_round(reactor: &Reactor, path: &str) -> (u64, u64) {
    let options = FileOptions { create_bytes: Some(FILE_BYTES), read_only: false };
    let file = reactor.open_file(path, &options).expect("the file opens");
    if file.created() {
        for offset in (0..FILE_BYTES).step_by(1 << 20) {
            let buf = Rc::new(plimsoll_reactor::Buf::zeroed(1 << 20));
            file.write(offset, buf, false).await.expect("the file is written");
        }
        file.flush().await.expect("the file is flushed");
    }
    let (start_ns, start_cpu_ns) = (reactor.now_ns(), cpu_ns());
    let running = Rc::new(Cell::new(DEPTH));
    for _ in 0..DEPTH {
        let (file, running, own) = (file.clone(), running.clone(), reactor.clone());
        reactor.spawn(Work::Device, async move {
            for _ in 0..READS / DEPTH {
                let block = own.random_u64() % (FILE_BYTES / 4096);
                file.read(block * 4096, 4096).await.expect("the block is read");
            }
            running.set(running.get() - 1);
        });
    }
    while running.get() > 0 {
        reactor.sleep_ns(1_000_000).await;
    }
    ((cpu_ns() - start_cpu_ns) / READS, (reactor.now_ns() - start_ns) / READS)
}

fn read(path: String, cpu: usize) {
    let main = move |reactor: &Reactor| {
        let (own, path) = (reactor.clone(), path.clone());
        reactor.spawn(Work::Control, async move {
            for round in 0..6 {
                let (cpu_ns, wall_ns) = read_round(&own, &path).await;
                println!("round {round}: {cpu_ns} ns of CPU a read, {wall_ns} ns of time");
            }
            own.stop();
        });
    };
    start(&StartOptions::on(vec![cpu]), main).expect("the reactor starts").join();
}

async fn pong(socket: Socket) {
    let (mut bytes, mut reply) = (Vec::new(), Vec::new());
    loop {
        bytes.clear();
        let (result, received) = socket.receive(bytes, 16 << 10).await;
        if !matches!(result, Ok(1..)) {
            return;
        }
        reply.clear();
        // An inline PING is six bytes: as many replies as requests in a pipeline.
        for _ in 0..(received.len() / 6).max(1) {
            reply.extend_from_slice(b"+PONG\r\n");
        }
        let (result, sent) = socket.send(reply).await;
        if result.is_err() {
            return;
        }
        (bytes, reply) = (received, sent);
    }
}

fn echo(address: std::net::SocketAddr, cpu: usize) {
    let main = move |reactor: &Reactor| {
        let listener = reactor.listen(address).expect("the address is free");
        let own = reactor.clone();
        reactor.spawn(Work::Network, async move {
            while let Ok(socket) = listener.accept().await {
                own.spawn(Work::Network, pong(socket));
            }
        });
    };
    start(&StartOptions::on(vec![cpu]), main).expect("the reactor starts").join();
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let cpu = arguments.get(3).map_or(0, |cpu| cpu.parse().expect("a processor's number"));
    match (arguments.get(1).map(String::as_str), arguments.get(2)) {
        (Some("read"), Some(path)) => read(path.clone(), cpu),
        (Some("echo"), Some(address)) => echo(address.parse().expect("an address and port"), cpu),
        _ => {
            eprintln!("usage: measure read PATH [CPU] | measure echo ADDRESS [CPU]");
            std::process::exit(2);
        }
    }
}
