//! The container image's recipe and its seccomp profile.

use super::process::{Server, cores, directory};
use super::{json, path, read};
use std::collections::BTreeSet;
use std::process::Command;

/// The instructions of the recipe, continued lines joined: word and rest.
fn instructions() -> Vec<(String, String)> {
    let joined = read("packaging/Dockerfile").replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let split = lines.map(|line| line.split_once(' ').unwrap_or_else(|| panic!("no instruction: {line}")));
    split.map(|(word, rest)| (word.to_owned(), rest.trim().to_owned())).collect()
}

fn of<'a>(all: &'a [(String, String)], word: &str) -> Vec<&'a str> {
    all.iter().filter(|(other, _)| other == word).map(|(_, rest)| rest.as_str()).collect()
}

#[test]
fn the_recipe_names_what_it_must() {
    let all = instructions();
    let known = [
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "USER",
        "VOLUME",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
    ];
    for (word, _) in &all {
        assert!(known.contains(&word.as_str()), "{word} is no instruction that is expected");
    }
    let toolchain: toml::Table = read("rust-toolchain.toml").parse().unwrap();
    let version = toolchain["toolchain"]["channel"].as_str().unwrap();
    let stages = of(&all, "FROM");
    assert_eq!(stages.len(), 2);
    assert!(
        stages[0].starts_with(&format!("rust:{version}-")) && stages[0].ends_with(" AS build"),
        "{stages:?}"
    );
    assert_eq!(of(&all, "USER"), ["plimsoll"]);
    assert_eq!((of(&all, "VOLUME"), of(&all, "STOPSIGNAL")), (vec!["/data"], vec!["SIGTERM"]));
    let user_at = all.iter().position(|(word, _)| word == "USER").unwrap();
    assert!(
        all[user_at..].iter().all(|(word, _)| word != "RUN" && word != "COPY"),
        "made by root, run by the user"
    );
    for copied in of(&all, "COPY").into_iter().filter(|copied| !copied.starts_with("--from=")) {
        let source = copied.split(' ').next().unwrap();
        assert!(path(source).exists(), "{source} does not exist");
    }
    let entry: Vec<String> = serde_json::from_str(of(&all, "ENTRYPOINT")[0]).unwrap();
    assert_eq!(entry[..2], ["plimsoll", "serve"]);
    let config = of(&all, "COPY").into_iter().find(|copied| copied.ends_with(&entry[3]));
    assert_eq!(config, Some("packaging/container.toml /etc/plimsoll/plimsoll.toml"));
}

#[test]
fn the_health_check_tells_a_server_from_none() {
    let all = instructions();
    let (_, check) = of(&all, "HEALTHCHECK")[0].split_once("CMD ").unwrap();
    let words: Vec<String> = serde_json::from_str(check).unwrap();
    assert_eq!(words[..2], ["bash", "-c"]);
    assert!(words[2].contains("/healthz") && words[2].contains("/8379 "), "{words:?}");
    let data = directory("packaging-health");
    let server = Server::start(&["--data", data.to_str().unwrap(), "--size", "64MiB", "--cores", &cores(1)]);
    let port = server.admin.rsplit(':').next().unwrap().to_owned();
    let is_healthy = |script: &str| Command::new("bash").args(["-c", script]).status().unwrap();
    let here = words[2].replace("/8379 ", &format!("/{port} "));
    assert!(is_healthy(&here).success());
    // Anything but "200" is no health: the same question for what is not there.
    assert!(!is_healthy(&here.replace("/healthz", "/absent")).success());
    server.stop();
    assert!(!is_healthy(&here).success());
}

#[test]
fn the_profile_allows_what_the_server_is_built_on() {
    let profile = json("packaging/seccomp.json");
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let mut allowed = BTreeSet::new();
    for rule in profile["syscalls"].as_array().unwrap() {
        let is_allowed = rule["action"] == "SCMP_ACT_ALLOW";
        assert!(is_allowed || rule["names"] == serde_json::json!(["clone3"]), "{rule}");
        for name in rule["names"].as_array().unwrap() {
            let name = name.as_str().unwrap();
            assert!(allowed.insert(name) || name == "socket", "{name} stands there twice");
        }
    }
    for call in
        ["io_uring_setup", "io_uring_enter", "io_uring_register", "execve", "futex", "sched_setaffinity"]
    {
        assert!(allowed.contains(call), "{call}");
    }
    // What a server has no business with.
    for call in
        ["mount", "ptrace", "bpf", "unshare", "setns", "init_module", "reboot", "keyctl", "kexec_load"]
    {
        assert!(!allowed.contains(call), "{call}");
    }
}
