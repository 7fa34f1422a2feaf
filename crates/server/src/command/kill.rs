//! CLIENT KILL: ends connections, on whatever core they are.
//!
//! Invariant: a connection that ends itself is answered first.

use super::{Run, number, syntax_error};
use crate::reply::Reply;
use crate::session::{Connection, Filter};
use crate::volume::Question;
use plimsoll_resp::Args;
use std::rc::Rc;

fn text(word: &[u8]) -> Option<String> {
    Some(String::from_utf8_lossy(word).into_owned())
}

fn parse(asker: u64, args: &Args<'_>) -> Result<Filter, Reply> {
    let mut filter = Filter { asker, skips_asker: true, ..Filter::default() };
    let mut words = args.iter().skip(2);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(syntax_error)?;
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let says = |name: &[u8]| value.eq_ignore_ascii_case(name);
        if is(b"id") {
            let id = number::integer(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
            filter.id = Some(id.ok_or_else(|| Reply::error("ERR client-id should be greater than 0"))?);
        } else if is(b"addr") {
            filter.address = text(value);
        } else if is(b"laddr") {
            filter.local_address = text(value);
        } else if is(b"maxage") {
            let age_s = number::integer_or_error(value)?;
            let age_s = u64::try_from(age_s).ok().filter(|age_s| *age_s > 0);
            filter.age_s_min =
                Some(age_s.ok_or_else(|| Reply::error("ERR maxage should be greater than 0"))?);
        } else if is(b"type") {
            match () {
                () if says(b"normal") => filter.listens = Some(false),
                () if says(b"pubsub") => filter.listens = Some(true),
                () if says(b"master") || says(b"slave") || says(b"replica") => filter.nobody = true,
                () => return Err(Reply::Error([b"ERR Unknown client type '", value, b"'"].concat())),
            }
        } else if is(b"user") {
            if value != b"default" {
                return Err(Reply::Error([b"ERR No such user '", value, b"'"].concat()));
            }
        } else if is(b"skipme") && (says(b"yes") || says(b"no")) {
            filter.skips_asker = says(b"yes");
        } else {
            return Err(syntax_error());
        }
    }
    Ok(filter)
}

pub(super) fn kill(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    // The form of an older time: one address, and an error if nobody has it.
    let is_old = args.len() == 3;
    let filter = if is_old {
        Ok(Filter { address: text(&args[2]), asker: connection.id, ..Filter::default() })
    } else {
        parse(connection.id, args)
    };
    let filter = match filter {
        Ok(filter) => filter,
        Err(reply) => return Run::Now(reply),
    };
    let connection = connection.clone();
    Run::Alone(Box::pin(async move {
        let own = connection.is_meant(&filter);
        let answers = connection.core.volume.ask_all(Question::Kill(filter.into())).await;
        let others: i64 = super::pubsub::sum(&answers);
        let count = others + i64::from(own);
        if own {
            connection.finish(); // After the reply.
        }
        match (is_old, count) {
            (true, 0) => Reply::error("ERR No such client"),
            (true, _) => Reply::Ok,
            (false, count) => Reply::Integer(count),
        }
    }))
}
