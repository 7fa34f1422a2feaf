//! What is packaged against what it is packaged with: each file names what is there, and nothing else.

mod container;
mod dashboard;
#[path = "../process/mod.rs"]
mod process;

use process::{directory, plimsoll, succeeds, told};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A path from the root of the project.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn json(name: &str) -> serde_json::Value {
    serde_json::from_str(&read(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn the_examples_of_a_configuration_are_accepted() {
    let print = |file: &Path| succeeds(&["serve", "--config", file.to_str().unwrap(), "--print-config"]);
    let example = print(&path("packaging/plimsoll.toml"));
    assert!(example.contains("data = \"/var/lib/plimsoll\""), "{example}");
    // What is commented out is accepted too, and names every key that is printed.
    let is_setting = |rest: &str| rest.starts_with(|first: char| first.is_ascii_lowercase() || first == '[');
    let text = read("packaging/plimsoll.toml");
    let bare =
        text.lines().map(|line| line.strip_prefix('#').filter(|rest| is_setting(rest)).unwrap_or(line));
    let place = directory("packaging-toml");
    let all = place.join("all.toml");
    std::fs::write(&all, bare.collect::<Vec<_>>().join("\n")).unwrap();
    let printed = print(&all);
    let keys = |text: &str| {
        let table: toml::Table = text.parse().unwrap();
        let of_array =
            table.get("array").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
        let of_array = of_array.map(|key| format!("array.{key}"));
        table.keys().cloned().chain(of_array).collect::<std::collections::BTreeSet<String>>()
    };
    let (mut named, mut known) = (keys(&std::fs::read_to_string(&all).unwrap()), keys(&printed));
    // Never printed, and nothing to be recommended.
    assert!(named.remove("password") && known.remove("unprotected"));
    assert_eq!(named, known);
    assert!(known.contains("array.rebuild-rate"), "several devices are in the example");
}

#[test]
fn a_container_needs_a_password() {
    let file = path("packaging/container.toml");
    let serve = ["serve", "--config", file.to_str().unwrap(), "--print-config"];
    let refused = plimsoll(&serve);
    assert_eq!(refused.status.code(), Some(2));
    assert!(told(&refused).contains("give one (--password-file)"), "{}", told(&refused));
    let place = directory("packaging-container");
    let password = place.join("password");
    std::fs::write(&password, "secret\n").unwrap();
    let printed = succeeds(&[&serve[..], &["--password-file", password.to_str().unwrap()]].concat());
    assert!(printed.contains("data = \"/data\"") && printed.contains("resp = \"0.0.0.0:6379\""), "{printed}");
}

#[test]
fn the_unit_is_one() {
    let unit = read("packaging/plimsoll.service");
    let values = |key: &str| {
        let lines = unit.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix('='));
        lines.flat_map(str::split_whitespace).collect::<Vec<_>>()
    };
    assert_eq!(values("ExecStart").join(" "), "/usr/bin/plimsoll serve --config /etc/plimsoll/plimsoll.toml");
    // A minimal Debian has no /bin/kill: reloading failed there.
    assert_eq!(values("ExecReload").join(" "), "/bin/sh -c 'kill -HUP $MAINPID'");
    for call in ["io_uring_setup", "io_uring_enter", "io_uring_register", "@system-service"] {
        assert!(values("SystemCallFilter").contains(&call), "{call}");
    }
    assert_eq!(values("LimitMEMLOCK"), ["infinity"]);
    assert!(values("LimitNOFILE")[0].parse::<u64>().unwrap() > 10_256);
    assert_eq!((values("ProtectSystem"), values("StateDirectory")), (vec!["strict"], vec!["plimsoll"]));
    // Longer than the server waits for clients by itself.
    let stop_s = plimsoll_server::limits::STOP_NS_MAX / 1_000_000_000;
    assert!(values("TimeoutStopSec")[0].parse::<u64>().unwrap() > 10 * stop_s);
    assert!(read("packaging/sysusers.d/plimsoll.conf").contains(&format!("u {} ", values("User")[0])));
    // systemd's own look, with a program that is there.
    let place = directory("packaging-unit");
    let copy = place.join("plimsoll.service");
    std::fs::write(&copy, unit.replace("/usr/bin/plimsoll", env!("CARGO_BIN_EXE_plimsoll"))).unwrap();
    match Command::new("systemd-analyze").arg("verify").arg(&copy).output() {
        Ok(output) => {
            let words = told(&output);
            assert!(output.status.success() && !words.contains("plimsoll.service:"), "{words}");
        }
        Err(error) => println!("systemd-analyze cannot be run ({error}): the keys alone were looked at"),
    }
}

#[test]
fn the_package_holds_files_that_exist() {
    let manifest: toml::Table = read("crates/plimsoll/Cargo.toml").parse().unwrap();
    let deb = &manifest["package"]["metadata"]["deb"];
    let mut installed = Vec::new();
    for asset in deb["assets"].as_array().unwrap() {
        let (source, target) = (asset[0].as_str().unwrap(), asset[1].as_str().unwrap());
        installed.push(format!("/{target}"));
        // cargo-deb has systemd read it by the name of the source.
        assert!(
            !target.contains("sysusers.d") || (target.ends_with('/') && source.ends_with("/plimsoll.conf"))
        );
        if source != "target/release/plimsoll" {
            assert!(path("crates/plimsoll").join(source).is_file(), "{source}");
        }
    }
    for conf in deb["conf-files"].as_array().unwrap() {
        assert!(installed.iter().any(|target| target == conf.as_str().unwrap()), "{conf} is not installed");
    }
    for script in ["postinst", "postrm"] {
        let name = format!("packaging/deb/{script}");
        assert!(read(&name).lines().any(|line| line == "#DEBHELPER#"), "{name}: systemd's part has no place");
        let checked = Command::new("sh").arg("-n").arg(path(&name)).output().unwrap();
        assert!(checked.status.success(), "{}", told(&checked));
    }
}
