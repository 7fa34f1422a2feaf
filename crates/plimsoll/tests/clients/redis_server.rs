//! A redis-server of Debian's, to compare with.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Dropping it kills it.
pub(crate) struct Redis {
    child: Child,
    pub(crate) address: String,
}

impl Redis {
    /// Without persistence, on a port of its own.
    pub(crate) fn start(data: &Path) -> Redis {
        // The port is free between this and its use by nobody else but by bad luck.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Redis::at(&free.to_string(), data, &["--save", ""])
    }

    pub(crate) fn at(address: &str, data: &Path, further: &[&str]) -> Redis {
        let (host, port) = address.rsplit_once(':').expect("HOST:PORT");
        let mut child = Command::new("redis-server")
            .args(["--port", port, "--bind", host])
            .args(further)
            .current_dir(data)
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server cannot be run; `make prepare` installs what the tests need");
        let mut log = BufReader::new(child.stdout.take().expect("it is piped")).lines().map(Result::unwrap);
        assert!(log.any(|line| line.contains("Ready to accept connections")), "redis-server does not start");
        // What it says is read to its end, so that it never waits for a reader.
        std::thread::spawn(move || log.for_each(drop));
        Redis { child, address: address.to_owned() }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
