//! The dashboard against `/metrics` of a server that runs.

use super::json;
use super::process::{Server, ask, cores, directory};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The metrics that a server of an array declares, with their kinds: those of one device are among them.
fn declared() -> BTreeMap<String, String> {
    let data = directory("packaging-dashboard");
    let paths = ["a", "b", "c"].map(|name| data.join(name).display().to_string());
    let devices = paths.iter().flat_map(|path| ["--device", path]);
    let cores = cores(1);
    let args: Vec<&str> = devices.chain(["--size", "64MiB", "--cores", &cores]).collect();
    let server = Server::start(&args);
    let metrics = ask(&server.admin, "GET /metrics HTTP/1.0\r\n\r\n");
    server.stop();
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| (name.to_owned(), kind.trim().to_owned())).collect()
}

/// The metrics that an expression names, each with what stands before it.
fn named(expression: &str) -> Vec<(&str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = expression.match_indices("plimsoll_").map(|(at, _)| at);
    let cut = |at: usize| {
        let rest = &expression[at..];
        (&expression[..at], &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())])
    };
    starts.map(cut).collect()
}

fn panels(dashboard: &Value) -> &Vec<Value> {
    dashboard["panels"].as_array().unwrap()
}

#[test]
fn the_dashboard_names_only_metrics_that_are_declared() {
    let (dashboard, declared) = (json("packaging/grafana.json"), declared());
    let mut count = 0;
    for panel in panels(&dashboard) {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let balance = |open, close| expression.matches(open).count() == expression.matches(close).count();
            assert!(balance('(', ')') && balance('{', '}') && balance('[', ']'), "{expression}");
            for (before, name) in named(expression) {
                count += 1;
                let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                let kind = declared.get(name).or_else(|| declared.get(base?));
                let kind = kind.unwrap_or_else(|| panic!("{name} is not declared by /metrics: {expression}"));
                // What only grows is told as its growth, and nothing else is.
                let grows = before.ends_with("rate(") || before.ends_with("increase(");
                assert_eq!(grows, kind != "gauge", "{name} is a {kind}: {expression}");
            }
        }
    }
    assert!(count > 30, "the dashboard has expressions");
    let query = dashboard["templating"].to_string();
    assert!(named(&query).iter().all(|(_, name)| declared.contains_key(*name)), "{query}");
}

#[test]
fn the_dashboard_has_its_rows_and_every_panel_a_place() {
    let dashboard = json("packaging/grafana.json");
    let rows: Vec<&str> = panels(&dashboard)
        .iter()
        .filter(|panel| panel["type"] == "row")
        .map(|panel| panel["title"].as_str().unwrap())
        .collect();
    let titles = ["Traffic", "Latency by command", "Device", "Cleaning", "Memory and clients", "Errors"];
    assert_eq!(rows[..6], titles);
    assert_eq!(rows[6..], ["Cache and array"]);
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels(&dashboard) {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let of = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        assert!(of("x") + of("w") <= 24);
        for (x, y) in (0..of("w")).flat_map(|x| (0..of("h")).map(move |y| (x, y))) {
            assert!(places.insert((of("x") + x, of("y") + y)), "{}: lies over another", panel["title"]);
        }
        if panel["type"] != "row" {
            assert!(panel["description"].is_string() && panel["fieldConfig"]["defaults"]["unit"].is_string());
        }
    }
}
