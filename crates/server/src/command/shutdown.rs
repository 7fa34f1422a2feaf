//! SHUTDOWN: a stop in order of the whole server, as at SIGTERM.
//!
//! Invariant: a stop always leaves everything acknowledged on the device, whatever the words: there is
//! nothing to be saved or not.

use super::{Run, syntax_error};
use crate::reply::Reply;
use crate::session::Connection;
use plimsoll_resp::Args;
use std::rc::Rc;

#[derive(Default)]
struct Words {
    save: bool,
    nosave: bool,
    now: bool,
    force: bool,
    abort: bool,
}

fn parse(args: &Args<'_>) -> Option<Words> {
    let mut words = Words::default();
    for word in args.iter().skip(1) {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let said = match () {
            () if is(b"save") => &mut words.save,
            () if is(b"nosave") => &mut words.nosave,
            () if is(b"now") => &mut words.now,
            () if is(b"force") => &mut words.force,
            () if is(b"abort") => &mut words.abort,
            () => return None,
        };
        *said = true;
    }
    let others = words.save || words.nosave || words.now || words.force;
    let contradicts = (words.abort && others) || (words.save && words.nosave);
    (!contradicts).then_some(words)
}

pub(super) fn shutdown(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let Some(words) = parse(args) else { return Run::Now(syntax_error()) };
    if words.abort {
        // A stop takes no commands: who can ask this is not being stopped.
        return Run::Now(Reply::error("ERR No shutdown in progress."));
    }
    match connection.core.shared.host.get() {
        None => Run::Now(Reply::error("ERR Errors trying to SHUTDOWN. Check logs.")),
        Some(host) => {
            host.stop();
            // As in Redis, the end of the connection is the answer.
            Run::Close(Reply::Several(Vec::new()))
        }
    }
}
