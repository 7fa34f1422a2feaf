//! Commands whose reader has gone, as in `plimsoll doctor | head -1`: they end as they would have ended,
//! without a word of that.

mod process;

use process::{BINARY, Server, cores, directory, succeeds};
use std::fs::File;
use std::process::{Command, Output, Stdio};

/// Runs `plimsoll` with a stdout that nobody reads.
fn unread(args: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    Command::new(BINARY).args(args).stdout(Stdio::from(writer)).output().unwrap()
}

#[test]
fn commands_that_nobody_reads_end_quietly_and_as_they_would_have() {
    let place = directory("pipes");
    let (data, device) = (place.join("data"), place.join("device"));
    let (data, device) = (data.to_str().unwrap(), device.to_str().unwrap());
    let report = place.join("report.json");
    let server = Server::start(&["--data", data, "--size", "64MiB", "--cores", &cores(1)]);
    succeeds(&["device", "format", device, "--size", "64MiB"]);
    let bench = ["bench", "--address", &server.resp, "--keys", "100", "--seconds", "0.2", "--warmup", "0"];
    let to_json = ["--json", report.to_str().unwrap()];
    for (args, code) in [
        (&["doctor", "--data", data][..], 0),
        (&["doctor", "--data", "/proc/nothing"], 1),
        (&["device", "info", device], 0),
        (&["serve", "--print-config"], 0),
        (&["sim", "list"], 0),
        (&["sim", "fuzz", "--seeds", "0..2"], 0),
        (&["sim", "fuzz", "--arrays", "--seeds", "0..1", "--trace"], 0),
        (&["array", "mttdl"], 0),
        (&[&bench[..], &["--load"], &to_json].concat(), 0),
        // Its keys are not there.
        (&[&bench[..], &["--database", "1"]].concat(), 1),
    ] {
        let output = unread(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("ipe"), "{args:?}: {said}");
        assert_eq!(said.is_empty(), code == 0, "{args:?}: {said}");
    }
    assert!(report.exists(), "what goes elsewhere is written all the same");
    server.stop();
}

#[test]
fn commands_whose_complaints_nobody_reads_end_as_they_would_have() {
    let place = directory("pipes-stderr");
    let device = place.join("device");
    let device = device.to_str().unwrap();
    succeeds(&["device", "format", device, "--size", "64MiB"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(BINARY);
    command.args(["device", "verify", device]).stderr(Stdio::from(writer));
    assert_eq!(command.output().unwrap().status.code(), Some(0));
}

#[test]
fn what_finds_no_room_is_a_failure_in_words() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(BINARY).args(["sim", "list"]).stdout(Stdio::from(full)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot be written") && said.contains("No space left"), "{said}");
}
