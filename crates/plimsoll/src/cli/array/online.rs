//! `plimsoll array status|replace|rebuild|scrub`: the array of a server that runs, over its admin port.
//!
//! Role: sends what is wished, shows what comes of it. Never: it touches a device.

use super::super::http::Admin;
use super::table;
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

/// Between two looks. The server hears from its cores once a second.
const LOOK: Duration = Duration::from_secs(1);
/// Looks that a member may stay out after its rebuild was begun: it is emptied first.
const LOOKS_OUT_MAX: u32 = 60;
/// How the array begins to say that a rebuild ended early, and looks that say so until it is believed: the
/// end of one that was overtaken by another is soon forgotten.
const FAILED: &str = "not resynchronised";
const LOOKS_FAILED_MAX: u32 = 3;

#[allow(clippy::disallowed_methods, reason = "a terminal waits, outside the reactors")]
fn wait_a_look() {
    std::thread::sleep(LOOK);
}

fn array(admin: &Admin) -> Result<Value> {
    let text = admin.get("/api/array")?;
    serde_json::from_str(&text).with_context(|| format!("{}: not the admin port of Plimsoll", admin.0))
}

pub(super) fn status(admin: &Admin, as_json: bool) -> Result<()> {
    if as_json {
        print!("{}", admin.get("/api/array")?);
        return Ok(());
    }
    print!("{}", table::table(&array(admin)?));
    Ok(())
}

/// Sends a wish and says what the server says of it.
fn wish(admin: &Admin, path: &str, body: &Value) -> Result<Value> {
    let answer = admin.post(path, body)?;
    println!("{}", table::text(&answer["done"]));
    Ok(answer)
}

/// What is to be replaced by what, and what may be lost over it.
pub(super) struct Replacement<'a> {
    pub(super) old: &'a str,
    pub(super) new: &'a Path,
    pub(super) force: bool,
    pub(super) accept_loss: bool,
}

pub(super) fn replace(admin: &Admin, asked: &Replacement<'_>, wait: bool) -> Result<()> {
    let Replacement { old, new, force, accept_loss } = *asked;
    // The server has another directory than the terminal.
    let new = std::path::absolute(new).with_context(|| format!("{}: where is that", new.display()))?;
    let new = new.to_str().ok_or_else(|| anyhow!("{}: not UTF-8", new.display()))?;
    let body = json!({ "old": old, "new": new, "force": force, "accept_loss": accept_loss });
    let answer = wish(admin, "/api/array/replace", &body)?;
    if wait { wait_for_rebuild(admin, &answer) } else { Ok(()) }
}

/// Has a device rebuilt, or all; whether what is lost may be given up.
pub(super) fn rebuild(admin: &Admin, (device, accept_loss): (Option<&str>, bool), wait: bool) -> Result<()> {
    let body = json!({ "device": device, "accept_loss": accept_loss });
    let answer = wish(admin, "/api/array/rebuild", &body)?;
    if wait { wait_for_rebuild(admin, &answer) } else { Ok(()) }
}

pub(super) fn scrub(admin: &Admin, wait: bool) -> Result<()> {
    wish(admin, "/api/array/scrub", &json!({}))?;
    if !wait {
        return Ok(());
    }
    let line = Line::new();
    // The cores have begun when they have reported twice.
    wait_a_look();
    loop {
        wait_a_look();
        let array = array(admin)?;
        let scrub = &array["scrub"];
        let (keys, errors) = (table::number(&scrub["keys"]), table::number(&scrub["errors"]));
        line.show(&table::scrubbed(scrub));
        if scrub["running"] != Value::Bool(true) {
            line.end();
            println!("{keys} keys compared, {errors} of them damaged, different or unreadable");
            return Ok(());
        }
    }
}

/// Shows how far members are, until all are in that the server says it rebuilds; one that failed is a
/// failure, and so are those that should have been and cannot be opened.
fn wait_for_rebuild(admin: &Admin, begun: &Value) -> Result<()> {
    let (line, mut looks_out) = (Line::new(), 0);
    let named = |list: &str| begun[list].as_array().cloned().unwrap_or_default();
    let (meant, unopened) = (named("devices"), named("unopened"));
    loop {
        wait_a_look();
        let array = array(admin)?;
        let members = array["members"].as_array().cloned().unwrap_or_default();
        let is_meant = |member: &&Value| meant.contains(&member["device"]);
        let lacking: Vec<_> =
            members.iter().filter(is_meant).filter(|member| member["state"] != "in").collect();
        let Some(member) = lacking.iter().find(|member| member["state"] == "out").or(lacking.first()) else {
            line.end();
            return rebuilt(&unopened);
        };
        let (device, reason) = (table::text(&member["device"]), table::text(&member["reason"]));
        let has_failed = reason.starts_with(FAILED);
        looks_out = if has_failed || member["state"] == "out" { looks_out + 1 } else { 0 };
        if looks_out >= if has_failed { LOOKS_FAILED_MAX } else { LOOKS_OUT_MAX } {
            line.end();
            bail!(
                "{device} is not rebuilt: {reason}; see the server's log, then rebuild it again or replace it"
            );
        }
        let copied = table::bytes(table::number(&member["copied_bytes"]));
        line.show(&format!("{device} {} {copied} copied", table::progress(member)));
    }
}

fn rebuilt(unopened: &[Value]) -> Result<()> {
    if !unopened.is_empty() {
        bail!(
            "not rebuilt, as they cannot be opened: {}",
            unopened.iter().map(table::text).collect::<Vec<_>>().join(", ")
        );
    }
    println!("rebuilt");
    Ok(())
}

/// A line that changes, on a terminal; elsewhere lines.
struct Line {
    is_terminal: bool,
}

impl Line {
    fn new() -> Line {
        Line { is_terminal: std::io::stderr().is_terminal() }
    }

    fn show(&self, text: &str) {
        if self.is_terminal {
            eprint!("\r\x1b[K{text}");
            // What cannot be shown is not worth an error.
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{text}");
        }
    }

    fn end(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}
