//! What operators change in a server that runs: CONFIG SET, CONFIG REWRITE and SHUTDOWN, on a real kernel.

mod process;

use plimsoll_resp::Reply;
use process::{Client, Server, cores, directory};

fn text(reply: Reply) -> String {
    match reply {
        Reply::Simple(bytes) | Reply::Error(bytes) | Reply::Bulk(bytes) => {
            String::from_utf8_lossy(&bytes).into_owned()
        }
        Reply::Array(items) => items.into_iter().map(text).collect::<Vec<_>>().join(" "),
        other => format!("{other:?}"),
    }
}

fn expect(client: &mut Client, words: &str, expected: &str) {
    assert_eq!(text(client.ask(words)), expected, "{words}");
}

#[test]
fn what_was_changed_is_written_into_the_file_and_in_force_after_a_shutdown() {
    let data = directory("operators");
    let file = data.join("plimsoll.toml");
    let before = format!(
        "# Ours.\ndata = {:?} # here\nsize = \"64MiB\"\n\n# Idle clients.\ntimeout = 900 # seconds\n",
        data.join("data")
    );
    std::fs::write(&file, &before).unwrap();
    let args = ["--config", file.to_str().unwrap(), "--cores", &cores(2)];
    let mut server = Server::start(&args);
    let mut c = server.client();
    expect(&mut c, "CONFIG GET timeout", "timeout 900");
    expect(&mut c, "CONFIG REWRITE", "OK");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before, "nothing was changed");
    expect(&mut c, "CONFIG SET timeout 600 slowlog-max-len 7", "OK");
    expect(&mut c, "CONFIG REWRITE", "OK");
    let after = std::fs::read_to_string(&file).unwrap();
    assert_eq!(after, before.replace("900", "600") + "slowlog-max-len = 7\n");
    expect(&mut c, "SET k v", "OK");
    expect(&mut c, "SHUTDOWN ABORT", "ERR No shutdown in progress.");
    c.send(b"SHUTDOWN NOSAVE\r\n").unwrap();
    assert!(c.receive().is_err(), "the end of the connection is the answer");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let server = Server::start(&args);
    let mut c = server.client();
    expect(&mut c, "CONFIG GET timeout slowlog-max-len", "slowlog-max-len 7 timeout 600");
    expect(&mut c, "GET k", "v");
    std::fs::write(&file, "no toml").unwrap();
    let reply = text(c.ask("CONFIG REWRITE"));
    assert!(reply.starts_with("ERR Rewriting config file: "), "{reply}");
    server.stop();
}

#[test]
fn more_clients_than_the_system_serves_are_refused_in_the_words_of_redis() {
    let data = directory("operators-clients");
    let server = Server::start(&["--data", data.to_str().unwrap(), "--size", "64MiB", "--cores", &cores(1)]);
    let mut c = server.client();
    let reply = text(c.ask("CONFIG SET timeout 5 maxclients 4294967295"));
    let words = "ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not \
                 able to handle the specified number of clients, try with ";
    assert!(reply.starts_with(words), "{reply}");
    expect(&mut c, "CONFIG GET timeout", "timeout 0");
    expect(&mut c, "CONFIG SET maxclients 20", "OK");
    server.stop();
}

/// The sum over the partitions of what INFO says of their caches; nothing if there is none.
fn of_caches(client: &mut Client, what: &str) -> Option<u64> {
    let info = text(client.ask("INFO plimsoll"));
    let end = format!("_{what}:");
    let values =
        info.lines().filter_map(|line| Some(line.split_once(&end)?.1.trim().parse::<u64>().unwrap()));
    values.reduce(|sum, value| sum + value)
}

#[test]
fn reads_are_answered_from_memory_and_counted() {
    let data = directory("operators-cache");
    let start = |cache: &str| {
        let data = data.to_str().unwrap();
        Server::start(&["--data", data, "--size", "64MiB", "--cores", &cores(2), "--cache", cache])
    };
    let server = start("2MiB");
    let mut c = server.client();
    expect(&mut c, "SET k one", "OK");
    for _ in 0..3 {
        expect(&mut c, "GET k", "one");
    }
    expect(&mut c, "STRLEN k", "Integer(3)");
    // Gauges are told once a second.
    while of_caches(&mut c, "cache_hits") != Some(3) {
        std::thread::yield_now();
    }
    assert_eq!(of_caches(&mut c, "cache_entries"), Some(1));
    assert!(of_caches(&mut c, "cache_capacity_bytes").is_some_and(|bytes| bytes <= 2 << 20));
    expect(&mut c, "APPEND k +", "Integer(4)");
    expect(&mut c, "GET k", "one+");
    expect(&mut c, "DEL k", "Integer(1)");
    expect(&mut c, "GET k", "Null");
    server.stop();
    let server = start("0");
    let mut c = server.client();
    expect(&mut c, "SET k two", "OK");
    expect(&mut c, "GET k", "two");
    assert_eq!(of_caches(&mut c, "cache_hits"), None);
    server.stop();
}
