//! Values too long for memory, on their way in.
//!
//! Role: takes a long argument from the socket part by part and gives it to the key's device as an
//! upload; the command itself runs when its last argument has come. Place on the path: beside the
//! parser.
//!
//! Invariants: at most one part and one receive are in memory; an upload that is not stored, for
//! whatever reason, is given up; a long argument that is no value of a SET is skipped and refused,
//! and the connection goes on. After MULTI a value waits for EXEC in memory, within its bounds.

use super::reader::Input;
use super::{Account, Connection};
use crate::command::{self, Run};
use crate::keyspace::Keyspace;
use crate::reply::Reply;
use crate::slow_log;
use plimsoll_kv::{ContainerId, Op, Output, Result, UploadId};
use plimsoll_reactor::Work;
use plimsoll_resp::{LargeArg, OwnedArgs, Step};
use std::rc::Rc;

/// The beginning of a command with a long argument.
pub(super) struct Head {
    args: Vec<Vec<u8>>,
    index: usize,
    length: usize,
}

impl Head {
    pub(super) fn new(large: &LargeArg<'_>) -> Head {
        let args = large.args.iter().map(<[u8]>::to_vec).collect();
        Head { args, index: large.index, length: large.len }
    }
}

/// A value in parts that is not stored yet. Dropping it gives it up.
pub(crate) struct Upload {
    keyspace: Keyspace,
    pub(crate) id: UploadId,
    pub(crate) key: Vec<u8>,
    open: bool,
}

impl Upload {
    /// Begins a value in parts, of so many bytes.
    pub(crate) async fn begin(
        keyspace: &Keyspace,
        container: ContainerId,
        key: &[u8],
        length: u64,
    ) -> Result<Upload> {
        match keyspace.execute(Op::UploadBegin { container, key: key.to_vec(), length }).await? {
            Output::Upload(id) => {
                Ok(Upload { keyspace: keyspace.clone(), id, key: key.to_vec(), open: true })
            }
            _ => unreachable!("the beginning of an upload gives an upload"),
        }
    }

    /// The upload is stored: it is the key's now.
    pub(crate) fn stored(mut self) {
        self.open = false;
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.open {
            let op = Op::UploadAbort { upload: self.id, key: std::mem::take(&mut self.key) };
            let abort = self.keyspace.execute(op);
            self.keyspace.core().reactor.spawn(Work::Kv, async move {
                if let Err(error) = abort.await {
                    tracing::warn!(%error, "an upload could not be given up");
                }
            });
        }
    }
}

/// What becomes of the long arguments of a command.
enum Fate {
    Uploaded(Upload),
    /// It waits for EXEC in memory.
    Kept(Vec<u8>),
    Refused(Reply),
}

/// Receives the rest of a command that has long arguments, and begins it. `None` if the connection
/// ended.
pub(super) async fn receive(
    input: &mut Input,
    connection: &Rc<Connection>,
    mut head: Head,
) -> Option<(Option<Account>, Run)> {
    let mut args = std::mem::take(&mut head.args);
    let name = args.first().cloned().unwrap_or_default();
    connection.wait_while_paused(Some(&name)).await;
    let is_value = command::takes_upload(connection, &name, head.index) && args.len() == 2;
    let room = connection.multi.borrow().as_ref().map(|multi| multi.room_bytes());
    let mut fate = match room.filter(|_| is_value) {
        Some(room_bytes) if head.length <= room_bytes => {
            connection.request_bytes.set(connection.request_bytes.get() + head.length);
            let kept = part(input, connection, head.length).await;
            connection.request_bytes.set(connection.request_bytes.get() - head.length);
            Fate::Kept(kept?)
        }
        None if is_value => upload(input, connection, &args[1], head.length).await?,
        _ => {
            skip(input, connection, head.length).await?;
            Fate::Refused(Reply::error("ERR argument is too long"))
        }
    };
    args.push(Vec::new());
    loop {
        input.parser.resume_after_large();
        match rest(input, connection, &mut args).await? {
            Rest::Whole => break,
            Rest::Large(length) => {
                skip(input, connection, length).await?;
                args.push(Vec::new());
                fate = Fate::Refused(Reply::error("ERR argument is too long"));
            }
            Rest::Broken => return None,
        }
    }
    let Some(index) = command::find(&name) else {
        let views: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        return Some((None, Run::Now(command::unknown(&views))));
    };
    let run = match fate {
        Fate::Refused(reply) => {
            command::spoil(connection);
            Run::Now(reply)
        }
        Fate::Kept(bytes) => {
            args[2] = bytes;
            let whole = OwnedArgs::new(args.iter().map(Vec::as_slice));
            let (_, run) = command::begin(connection, &whole.args());
            return Some((None, run));
        }
        Fate::Uploaded(upload) => command::set_uploaded(connection, upload, &args[3..]),
    };
    connection.runs(command::slot_of(index));
    args[head.index] = format!("... ({} bytes)", head.length).into_bytes();
    let views = args.iter().map(Vec::as_slice);
    connection.show(command::slot_of(index), views.clone());
    let words = if slow_log::is_on(&connection.core.shared) {
        connection.core.slow_log.capture(views)
    } else {
        Vec::new()
    };
    Some((Some(connection.account(command::slot_of(index), args.iter().map(Vec::len).sum(), words)), run))
}

enum Rest {
    Whole,
    Large(usize),
    Broken,
}

/// Parses on to the end of the command or its next long argument.
async fn rest(input: &mut Input, connection: &Rc<Connection>, args: &mut Vec<Vec<u8>>) -> Option<Rest> {
    loop {
        let (parser, bytes) = input.parts();
        let step = parser.parse(bytes);
        let consumed = step.consumed();
        let (outcome, wanted) = match step {
            Step::Incomplete { wanted, .. } => (None, wanted),
            Step::Tail(tail) => {
                args.extend(tail.args.iter().map(<[u8]>::to_vec));
                (Some(Rest::Whole), 0)
            }
            Step::Large(large) => {
                args.extend(large.args.iter().map(<[u8]>::to_vec));
                (Some(Rest::Large(large.len)), 0)
            }
            Step::Error(error) => {
                connection.refuse(error);
                (Some(Rest::Broken), 0)
            }
            Step::Command(_) => unreachable!("a command with a long argument ends with a tail"),
        };
        input.take(consumed);
        match outcome {
            Some(outcome) => return Some(outcome),
            None if input.receive(connection, wanted).await => {}
            None => return None,
        }
    }
}

/// Drops the next bytes of the stream.
async fn skip(input: &mut Input, connection: &Rc<Connection>, mut length: usize) -> Option<()> {
    loop {
        let count = input.pending().len().min(length);
        input.take(count);
        length -= count;
        if length == 0 {
            return Some(());
        }
        if !input.receive(connection, length).await {
            return None;
        }
    }
}

/// Receives a value as an upload. If the device refuses, the rest is dropped and its error kept.
async fn upload(input: &mut Input, connection: &Rc<Connection>, key: &[u8], length: usize) -> Option<Fate> {
    let core = &connection.core;
    let upload =
        match Upload::begin(&connection.keyspace(), connection.database.get(), key, length as u64).await {
            Ok(upload) => upload,
            Err(error) => {
                skip(input, connection, length).await?;
                return Some(Fate::Refused(Reply::failed(&error)));
            }
        };
    let mut left = length;
    while left > 0 {
        let part_bytes = left.min(core.volume.geometry().part_bytes);
        connection.request_bytes.set(connection.request_bytes.get() + part_bytes);
        let bytes = part(input, connection, part_bytes).await?;
        left -= part_bytes;
        let op = Op::UploadPart { upload: upload.id, key: key.to_vec(), bytes };
        let stored = core.clone().execute(op).await;
        connection.request_bytes.set(connection.request_bytes.get() - part_bytes);
        if let Err(error) = stored {
            skip(input, connection, left).await?;
            return Some(Fate::Refused(Reply::failed(&error)));
        }
    }
    Some(Fate::Uploaded(upload))
}

/// Receives one part.
async fn part(input: &mut Input, connection: &Rc<Connection>, length: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let count = input.pending().len().min(length - bytes.len());
        bytes.extend_from_slice(&input.pending()[..count]);
        input.take(count);
        if bytes.len() == length {
            return Some(bytes);
        }
        if !input.receive(connection, length - bytes.len()).await {
            return None;
        }
    }
}
