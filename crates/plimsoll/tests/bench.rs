//! `plimsoll bench` against a server on a real kernel.

mod process;

use process::{Server, cores, directory, fails, plimsoll, succeeds, told};

/// What a report says, as JSON.
fn report(path: &std::path::Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn with<'a>(base: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [base, more].concat()
}

#[test]
fn a_server_is_measured_and_found_out_if_it_loses_values() {
    let place = directory("bench");
    let device = place.join("device");
    let cores = cores(1);
    let server =
        Server::start(&["--device", device.to_str().unwrap(), "--size", "256MiB", "--cores", &cores]);
    let (json, process) = (place.join("report.json"), server.child.id().to_string());
    let to_json = ["--json", json.to_str().unwrap()];
    let base = ["bench", "--address", &server.resp, "--keys", "2000", "--seconds", "0.3", "--warmup", "0.1"];

    let text = succeeds(&with(&base, &[&["--load", "--server-pid", &process], &to_json[..]].concat()));
    assert!(text.contains("stored 2000 keys") && text.contains("us of processor"), "{text}");
    let measured = report(&json);
    let row = &measured["tenants"][0]["rows"][0];
    let (count, p50_us) = (row["count"].as_u64().unwrap(), row["percentiles_us"]["50"].as_f64().unwrap());
    assert!(count > 100 && p50_us > 1.0 && p50_us <= row["max_us"].as_f64().unwrap(), "{row}");
    assert!(measured["clean"].as_bool().unwrap());

    for workload in ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f", "overwrite", "read=1,rmw=1"]
    {
        succeeds(&with(&base, &["--workload", workload, "--pipeline", "4"]));
    }
    let tenants = ["name=a rate=500 connections=2", "name=b workload=set values=10:1,9000:1 database=3"];
    let text = succeeds(&with(&base, &["--tenant", tenants[0], "--tenant", tenants[1], "--requests", "100"]));
    assert!(text.contains("a: get, 2 connections") && text.contains("open loop at 500 a second"), "{text}");
    assert!(text.contains("b: set, 50 connections"), "{text}");
    assert_eq!(text.matches(" 100 ").count(), 2, "all that were asked for are counted: {text}");

    // No number is made of nothing.
    let text = fails(&with(&base[..5], &["--seconds", "0", "--warmup", "0"]));
    assert!(text.contains("nothing was measured: load has done no operation"), "{text}");
    assert!(!text.contains("p99.9"), "no table of zeros: {text}");
    // Nor does the report of an earlier measurement stay.
    fails(&with(&base[..5], &[&["--seconds", "0", "--warmup", "0"], &to_json[..]].concat()));
    let unclean = report(&json);
    assert!(unclean["clean"] == false && unclean["error"].as_str().unwrap().contains("nothing"), "{unclean}");

    // One key is gone, another one holds what nobody stored.
    let mut client = server.client();
    client.ask("DEL key:000000000007");
    client.ask("SET key:000000000009 nonsense");
    let failed = plimsoll(&with(&base, &["--requests", "20000"]));
    assert_eq!(failed.status.code(), Some(1));
    let text = told(&failed);
    assert!(text.contains("ABSENT KEYS") && text.contains("WRONG VALUES"), "{text}");
    assert!(text.contains("key:000000000009: 8 bytes instead of 1024"), "{text}");
    server.stop();
}

#[test]
fn wrong_words_are_refused_and_a_server_that_is_not_there_is_told() {
    for (wrong, says) in [
        (&["--workload", "ycsb-g"][..], "ycsb-g"),
        (&["--values", "x"], "values: 'x'"),
        (&["--connections", "0"], "connections 0: a number from 1 to 10000"),
        (&["--tenant", "size=1"], "'size=1'"),
        (&["--tenant", "name="], "one has no name"),
        (&["--tenant", "name=a", "--tenant", "name=b values=7"], "a and b have keys of one database"),
        (&["--distribution", "zipf:2"], "between 0.01 and 0.999"),
        (&["--protocol", "http"], "resp or memcached"),
        (&["--protocol", "memcached", "--workload", "ycsb-e"], "no scans"),
        (&["--protocol", "memcached", "--database", "1"], "no scans, databases"),
    ] {
        let output = plimsoll(&[&["bench"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(told(&output).contains(says), "{wrong:?}: {}", told(&output));
    }
    let text = fails(&["bench", "--address", "127.0.0.1:1"]);
    assert!(text.contains("127.0.0.1:1"), "{text}");
    let text = fails(&["bench", "--json", "/nothing/report.json"]);
    assert!(text.contains("/nothing/report.json cannot be written"), "before anything is asked: {text}");
}
