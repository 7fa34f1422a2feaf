//! KV.STORE and KV.META: a mechanism for one value, and what became of a value.
//!
//! Role: what Redis has no words for. KV.STORE is SET with one option more; KV.META tells of one key where
//! its pieces stand. Place on the path: none; `set` asks what a wish means.
//!
//! Invariants: a wish is one of the mechanisms that the configuration names, or it is refused before anything
//! is stored; of one device, whose values have no mechanism, nothing is made up.

use super::string::value_reply;
use super::{Run, syntax_error};
use crate::keyspace::Keyspace;
use crate::reply::Reply;
use crate::session::Connection;
use crate::shared::Settings;
use crc_fast::{CrcAlgorithm, Digest};
use plimsoll_array::Mechanism;
use plimsoll_kv::{
    ContainerId, Description, Error, Form, Holds, Op, Output, PackedIn, Piece, PieceRead, Result, Version,
};
use plimsoll_resp::Args;
use std::iter::Peekable;
use std::rc::Rc;

/// The name by which SET takes a mechanism.
pub(super) const STORE: &str = "kv.store";

/// What the words after MECHANISM ask for: a name, and its numbers unless the name alone says enough.
pub(super) fn wished<'a>(
    settings: &Settings,
    words: &mut Peekable<impl Iterator<Item = &'a [u8]>>,
) -> std::result::Result<Form, Reply> {
    let Some(policy) = &settings.policy else {
        return Err(Reply::error("ERR MECHANISM needs several devices: values of one have no mechanism"));
    };
    let mut asked = text(words.next().ok_or_else(syntax_error)?);
    if let Some(numbers) = words.next_if(|word| word.first().is_some_and(u8::is_ascii_digit)) {
        asked = format!("{asked} {}", text(numbers));
    }
    let mut there: Vec<Mechanism> = Vec::new();
    for mechanism in policy.mechanisms() {
        if !there.contains(&mechanism) {
            there.push(mechanism);
        }
    }
    let mut meant = there.iter().filter(|it| it.to_string() == asked || it.name() == asked);
    match (meant.next(), meant.next()) {
        (Some(mechanism), None) => Ok(mechanism.form()),
        (found, _) => {
            let each: Vec<String> = there.iter().map(Mechanism::to_string).collect();
            let which = if found.is_some() { "more than one" } else { "no" };
            let error = format!("ERR {which} mechanism is '{asked}' here: {}", each.join(", "));
            Err(Reply::error(error))
        }
    }
}

/// A word of a client in lower case, as far as an error quotes it.
fn text(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(super::QUOTED_BYTES_MAX)]).to_ascii_lowercase()
}

pub(super) fn meta(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let (keyspace, container, key) = (connection.keyspace(), connection.database.get(), args[1].to_vec());
    Run::Alone(Box::pin(async move {
        let settings = &keyspace.core().shared.settings;
        let described = match settings.policy {
            Some(_) => describe(&keyspace, container, key).await.map(|it| (it.form.to_string(), it)),
            None => describe_whole(&keyspace, container, key).await.map(|it| ("none".to_owned(), it)),
        };
        match described {
            Ok((mechanism, description)) => told(mechanism, &description),
            Err(Error::NotFound) => Reply::Null,
            Err(error) => Reply::failed(&error),
        }
    }))
}

async fn describe(keyspace: &Keyspace, container: ContainerId, key: Vec<u8>) -> Result<Description> {
    match keyspace.execute(Op::Describe { container, key }).await? {
        Output::Described(description) => Ok(description),
        _ => unreachable!("a description describes"),
    }
}

/// A value of one device: it stands there whole.
async fn describe_whole(keyspace: &Keyspace, container: ContainerId, key: Vec<u8>) -> Result<Description> {
    let core = keyspace.core();
    let op = Op::retrieve_whole(container, &key);
    let Output::Found(item) = keyspace.execute(op).await? else {
        unreachable!("a retrieve gives what it found")
    };
    let (version, length): (Version, u64) = (item.version, item.length);
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    match value_reply(core, key, item) {
        Reply::Parts(pinned) => {
            let part_bytes = core.volume.geometry().part_bytes as u64;
            for part in 0..length.div_ceil(part_bytes) as u32 {
                digest.update(&keyspace.part(&pinned, part).await?);
            }
        }
        Reply::Bulk(bytes) => digest.update(&bytes),
        _ => unreachable!("a value is whole or in parts"),
    }
    let device = core.shared.settings.devices.first().cloned().unwrap_or_default();
    let read = Ok(PieceRead { bytes: length, checksum: digest.finalize() as u32 });
    let pieces = vec![Piece { holds: Holds::Copy, device, state: "in", read }];
    Ok(Description { version, length, form: Form::Copies(1), code: None, pieces, set: None })
}

fn told(mechanism: String, description: &Description) -> Reply {
    let Description { version, length, form, code, pieces, set } = description;
    let data = form.needed() as i64;
    let parities = match set {
        Some(PackedIn { parities, .. }) => parities.len() as i64,
        None if form.is_copies() => 0,
        None => form.roles() as i64 - data,
    };
    let splits = map([
        ("data", Reply::Integer(data)),
        ("parities", Reply::Integer(parities)),
        ("bytes", Reply::Integer(form.piece_bytes(*length) as i64)),
    ]);
    let pieces = pieces.iter().enumerate().map(|(role, piece)| told_piece(role, piece));
    let mut fields = vec![
        ("mechanism", Reply::bulk(mechanism)),
        ("version", Reply::bulk(version.to_string())),
        ("bytes", Reply::Integer(*length as i64)),
        ("code", Reply::bulk(code.unwrap_or("none"))),
        ("splits", splits),
        ("devices", Reply::Array(pieces.collect())),
    ];
    fields.extend(set.as_ref().map(|set| ("set", told_set(set))));
    map(fields)
}

fn told_set(set: &PackedIn) -> Reply {
    let parities = set.parities.iter().map(Reply::bulk).collect();
    map([("name", Reply::bulk(set.name.to_string())), ("parities", Reply::Array(parities))])
}

fn told_piece(role: usize, piece: &Piece) -> Reply {
    let (bytes, checksum, error) = match &piece.read {
        Ok(PieceRead { bytes, checksum }) => {
            (Reply::Integer(*bytes as i64), Reply::bulk(format!("{checksum:08x}")), Reply::Null)
        }
        Err(error) => (Reply::Null, Reply::Null, Reply::bulk(error.to_string())),
    };
    map([
        ("role", Reply::Integer(role as i64)),
        ("holds", Reply::bulk(piece.holds.name())),
        ("device", Reply::bulk(&piece.device)),
        ("state", Reply::bulk(piece.state)),
        ("bytes", bytes),
        ("crc32c", checksum),
        ("error", error),
    ])
}

fn map(fields: impl IntoIterator<Item = (&'static str, Reply)>) -> Reply {
    Reply::Map(fields.into_iter().map(|(name, value)| (Reply::bulk(name), value)).collect())
}
