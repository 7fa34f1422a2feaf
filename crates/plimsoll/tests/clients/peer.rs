//! The server that the programs of the matrix talk to: Plimsoll, killed and started again at will on the
//! data that it has, at the same address.
//!
//! `PLIMSOLL_CLIENTS_AT=redis-server` puts a redis-server in its place: what fails there too is wrong in
//! the program, not in Plimsoll.

use super::process::{Directory, Server, cores, directory};
use super::redis_server::Redis;

enum Running {
    Plimsoll(Server),
    Redis(Redis),
}

pub(crate) struct Peer {
    running: Option<Running>,
    pub(crate) address: String,
    data: Directory,
}

/// True if the programs talk to redis-server.
pub(crate) fn is_redis() -> bool {
    match std::env::var("PLIMSOLL_CLIENTS_AT") {
        Ok(name) if name == "redis-server" => true,
        Ok(name) => panic!("PLIMSOLL_CLIENTS_AT={name}: redis-server, or nothing"),
        Err(_) => false,
    }
}

impl Peer {
    pub(crate) fn start(name: &str) -> Peer {
        let data = directory(name);
        // redis-server takes no port 0: it is asked for one by a first start.
        let address = if is_redis() { Redis::start(&data).address.clone() } else { "127.0.0.1:0".to_owned() };
        let mut peer = Peer { running: None, address, data };
        peer.run();
        peer
    }

    fn run(&mut self) {
        let running = if is_redis() {
            // What it acknowledged outlives SIGKILL, as with Plimsoll.
            let safe = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
            Running::Redis(Redis::at(&self.address, &self.data, &safe))
        } else {
            let data = self.data.to_str().expect("a path of ours");
            let args = ["--data", data, "--size", "256MiB", "--cores", &cores(2), "--resp", &self.address];
            let server = Server::start(&args);
            self.address.clone_from(&server.resp);
            Running::Plimsoll(server)
        };
        self.running = Some(running);
    }

    /// SIGKILL, and a start on what is there.
    pub(crate) fn restart(&mut self) {
        match self.running.take().expect("it runs") {
            Running::Plimsoll(server) => drop(server.kill()),
            Running::Redis(redis) => drop(redis),
        }
        self.run();
    }

    /// Ends it in good order.
    pub(crate) fn stop(mut self) {
        match self.running.take().expect("it runs") {
            Running::Plimsoll(server) => drop(server.stop()),
            Running::Redis(redis) => drop(redis),
        }
    }

    pub(crate) fn host_and_port(&self) -> (&str, &str) {
        self.address.rsplit_once(':').expect("HOST:PORT")
    }
}
