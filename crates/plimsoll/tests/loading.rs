//! Clients that come while a server opens its partitions, after it was killed.

mod process;

use plimsoll_resp::Reply;
use process::{Client, Server, directory, field};

#[test]
fn clients_are_told_that_partitions_are_being_opened_and_are_served_when_they_are() {
    let data = directory("loading");
    let args = ["--size", "64MiB", "--data", data.to_str().unwrap()];
    let server = Server::start(&args);
    let mut client = server.client();
    for n in 0..100 {
        assert_eq!(client.ask(&format!("SET k{n} v{n}")), Reply::Simple(b"OK".to_vec()));
    }
    server.kill();
    // Opening takes many hundred requests: with this drive seconds.
    let slow = data.join("slow.toml");
    std::fs::write(&slow, "[throttle]\nrequests = 200\n").unwrap();
    let server = Server::spawn(&[&args[..], &["--config", slow.to_str().unwrap()]].concat());
    let line = server.hear("opening partitions");
    let mut client = Client::connect(field(&line, "resp=")).unwrap();
    let loading = Reply::Error(b"LOADING Redis is loading the dataset in memory".to_vec());
    for command in ["GET k7", "SET k7 x", "PING", "DEL k7"] {
        assert_eq!(client.ask(command), loading, "{command}");
    }
    server.hear(" ready ");
    assert_eq!(client.ask("GET k7"), Reply::Bulk(b"v7".to_vec()));
    assert_eq!(client.ask("DBSIZE"), Reply::Integer(100));
    server.stop();
}

#[test]
fn a_server_that_is_stopped_while_it_opens_partitions_ends_in_order() {
    let data = directory("loading-stop");
    let args = ["--size", "64MiB", "--data", data.to_str().unwrap()];
    Server::start(&args).stop();
    let slow = data.join("slow.toml");
    std::fs::write(&slow, "[throttle]\nrequests = 200\n").unwrap();
    let server = Server::spawn(&[&args[..], &["--config", slow.to_str().unwrap()]].concat());
    server.hear("opening partitions");
    let told = server.stop();
    assert!(told.contains("SIGTERM: stopping") && told.contains("stopped: "), "{told}");
}
