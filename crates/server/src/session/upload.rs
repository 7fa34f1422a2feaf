//! Values too long for memory, on their way in.
//!
//! Role: takes a long argument from the socket part by part and gives it to the key's device as an
//! upload; the command itself runs when its last argument has come. Place on the path: beside the
//! parser.
//!
//! Invariants: of a value of SET at most two parts, one on its way in and one to the device, and a receive
//! are in memory; an upload that is not stored, for whatever reason, is given up. Long arguments of other
//! commands than SET and KV.STORE, and of these after MULTI, are kept in memory; above its bound they are
//! skipped and refused, and the connection goes on.

use super::reader::Input;
use super::{Account, Connection};
use crate::command::{self, Run};
use crate::keyspace::Keyspace;
use crate::limits::{RECEIVE_BYTES, RECEIVE_BYTES_MAX, SHARED_TRANSFER_BYTES_MIN};
use crate::reply::Reply;
use crate::slow_log;
use futures_util::future::join;
use plimsoll_kv::{ContainerId, Form, Op, Output, Result, UploadId};
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
    container: ContainerId,
    pub(crate) id: UploadId,
    pub(crate) key: Vec<u8>,
    pub(crate) length: u64,
    open: bool,
}

impl Upload {
    /// Begins a value in parts, of so many bytes, to be made into something if that is wished for.
    pub(crate) async fn begin(
        keyspace: &Keyspace,
        container: ContainerId,
        key: &[u8],
        length: u64,
        form: Option<Form>,
    ) -> Result<Upload> {
        let op = Op::UploadBegin { container, key: key.to_vec(), length, shared_bytes: 0, form };
        Upload::begun(keyspace, (container, key, length), op).await
    }

    /// Begins a value in parts, of so many bytes, of which a pinned value of the key brings some.
    pub(crate) async fn begin_shared(
        keyspace: &Keyspace,
        container: ContainerId,
        key: &[u8],
        length: u64,
        shared_bytes: u64,
    ) -> Result<Upload> {
        let op = Op::UploadBegin { container, key: key.to_vec(), length, shared_bytes, form: None };
        Upload::begun(keyspace, (container, key, length), op).await
    }

    async fn begun(
        keyspace: &Keyspace,
        (container, key, length): (ContainerId, &[u8], u64),
        begin: Op,
    ) -> Result<Upload> {
        let Output::Upload(id) = keyspace.execute(begin).await? else {
            unreachable!("the beginning of an upload gives an upload")
        };
        Ok(Upload { keyspace: keyspace.clone(), container, id, key: key.to_vec(), length, open: true })
    }

    /// The same value made into something else: what its client wished for came after it. Its parts are
    /// written once more.
    pub(crate) async fn made_into(self, form: Form) -> Result<Upload> {
        let other = Upload::begin(&self.keyspace, self.container, &self.key, self.length, Some(form)).await?;
        let part_bytes = self.keyspace.core().volume.geometry().part_bytes as u64;
        other.share(self.id, self.length.div_ceil(part_bytes) as u32).await?;
        Ok(other)
    }

    /// Writes the next part.
    pub(crate) async fn write(&self, bytes: Vec<u8>) -> Result<()> {
        let op = Op::UploadPart { upload: self.id, key: self.key.clone(), bytes };
        self.keyspace.execute(op).await.map(drop)
    }

    /// The next parts are those of a pinned value.
    pub(crate) async fn share(&self, from: UploadId, parts: u32) -> Result<()> {
        let op = Op::UploadShare { upload: self.id, key: self.key.clone(), from, parts };
        self.keyspace.execute(op).await.map(drop)
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
    /// The value of a SET is with its device.
    Uploaded(Upload),
    /// They are in memory.
    Kept,
    /// One is too long: the command is not run.
    TooLong,
    /// The device did not take the value of a SET.
    Failed(Reply),
}

/// Bytes that a connection holds of a command that is not begun.
struct Held<'a> {
    connection: &'a Connection,
    bytes: usize,
}

impl Held<'_> {
    fn set(&mut self, bytes: usize) {
        self.connection.hold_instead(std::mem::replace(&mut self.bytes, bytes), bytes);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The arguments that have come of a command that is not begun.
struct Begun<'a> {
    args: Vec<Vec<u8>>,
    /// Their bytes.
    bytes: usize,
    /// What they hold, and the next may come to hold.
    held: Held<'a>,
}

impl<'a> Begun<'a> {
    fn new(connection: &'a Connection, args: Vec<Vec<u8>>) -> Begun<'a> {
        let mut begun = Begun { args, bytes: 0, held: Held { connection, bytes: 0 } };
        begun.count(0);
        begun
    }

    /// Those from here on have come.
    fn count(&mut self, from: usize) {
        let come = &self.args[from..];
        let bytes: usize = come.iter().map(Vec::len).sum();
        self.bytes += bytes;
        self.held.set(self.held.bytes + size_of_val(come) + bytes);
    }

    /// True if so many more are not too much.
    fn fits(&self, bytes: usize) -> bool {
        self.bytes + bytes <= self.held.connection.core.shared.settings.budget.command_bytes_max()
    }

    /// It will not be run: its name is all that is needed to say so.
    fn forget(&mut self) {
        self.held.set(0);
        self.bytes = 0;
        self.discard(1);
    }

    fn discard(&mut self, from: usize) {
        let from = from.min(self.args.len());
        self.args.drain(from..).for_each(|arg| discard(self.held.connection, arg));
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.discard(0);
    }
}

/// Gives an argument back, slowly if it is long.
fn discard(connection: &Connection, argument: Vec<u8>) {
    let used = argument.len();
    connection.core.reactor.discard(argument, used);
}

/// Receives the rest of a command that has long arguments, and begins it. `None` if the connection
/// ended.
pub(super) async fn receive(
    input: &mut Input,
    connection: &Rc<Connection>,
    head: Head,
) -> Option<(Option<Account>, Run)> {
    let name = head.args.first().cloned().unwrap_or_default();
    let mut begun = Begun::new(connection, head.args);
    input.shrink(connection);
    connection.wait_while_paused(Some(&name)).await;
    let is_value = command::takes_upload(connection, &name, head.index) && begun.args.len() == 2;
    let mut fate = if is_value {
        let fate = upload(input, connection, &begun.args[1], head.length).await?;
        begun.args.push(Vec::new());
        fate
    } else {
        keep(input, &mut begun, head.length).await?
    };
    loop {
        input.parser.resume_after_large();
        let known = begun.args.len();
        let next = rest(input, connection, &mut begun.args).await?;
        begun.count(known);
        input.shrink(connection);
        if matches!(fate, Fate::Kept) && !begun.fits(0) {
            fate = Fate::TooLong;
        }
        if matches!(fate, Fate::TooLong) {
            begun.forget();
        }
        match next {
            Rest::Whole => break,
            Rest::Large(length) if matches!(fate, Fate::Kept) => {
                fate = keep(input, &mut begun, length).await?;
            }
            Rest::Large(length) => {
                begun.forget();
                fate = Fate::TooLong;
                skip(input, connection, length).await?;
                begun.args.push(Vec::new());
            }
            Rest::Broken => return None,
        }
    }
    // It is the command's from here on.
    begun.held.set(0);
    let args = &mut begun.args;
    let Some(index) = command::find(&name) else {
        let views: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        command::spoil(connection);
        return Some((None, Run::Now(command::unknown(&views))));
    };
    let (slot, run) = match fate {
        Fate::TooLong => {
            connection.rejects(command::slot_of(index));
            command::spoil(connection);
            (None, Run::Now(Reply::error("ERR argument is too long")))
        }
        Fate::Failed(reply) => (Some(command::slot_of(index)), Run::Now(reply)),
        Fate::Kept => {
            let whole = OwnedArgs::new(args.iter().map(Vec::as_slice));
            let started = command::begin(connection, &whole.args());
            discard(connection, whole.into_bytes());
            started
        }
        Fate::Uploaded(upload) => {
            connection.runs(command::slot_of(index));
            let run = command::set_uploaded(connection, &name, upload, &args[3..]);
            args[head.index] = format!("... ({} bytes)", head.length).into_bytes();
            (Some(command::slot_of(index)), run)
        }
    };
    let Some(slot) = slot else { return Some((None, run)) };
    let views = args.iter().map(Vec::as_slice);
    connection.show(slot, views.clone());
    let words = if slow_log::is_on(&connection.core.shared) {
        connection.core.slow_log.capture(views)
    } else {
        Vec::new()
    };
    Some((Some(connection.account(slot, args.iter().map(Vec::len).sum(), words)), run))
}

/// Receives a long argument into memory, or drops it and what came before it.
async fn keep(input: &mut Input, begun: &mut Begun<'_>, length: usize) -> Option<Fate> {
    let connection = begun.held.connection;
    if !connection.authenticated.get() || !begun.fits(length) {
        begun.forget();
        skip(input, connection, length).await?;
        begun.args.push(Vec::new());
        return Some(Fate::TooLong);
    }
    let (kept, mut bytes) = (begun.held.bytes, Vec::new());
    while bytes.len() < length {
        // What comes takes memory, not what is announced: once something has come there is address space for
        // all, so that nothing is copied as it grows.
        let next = (bytes.len() + bytes.len().clamp(RECEIVE_BYTES, RECEIVE_BYTES_MAX)).min(length);
        let room = if bytes.is_empty() { next } else { length };
        let _ = bytes.try_reserve_exact(room - bytes.len());
        if !connection.wait_for_turn(kept + next).await {
            discard(connection, bytes);
            return None;
        }
        begun.held.set(kept + next);
        bytes = some(input, connection, bytes, next, length).await?;
        begun.held.set(kept + bytes.len());
    }
    begun.bytes += bytes.len();
    begun.args.push(bytes);
    Some(Fate::Kept)
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
            None if input.receive_more(connection, wanted).await => {}
            None => return None,
        }
    }
}

/// Drops the next bytes of the stream.
async fn skip(input: &mut Input, connection: &Connection, mut length: usize) -> Option<()> {
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
    let upload = match Upload::begin(
        &connection.keyspace(),
        connection.database.get(),
        key,
        length as u64,
        None,
    )
    .await
    {
        Ok(upload) => upload,
        Err(error) => {
            skip(input, connection, length).await?;
            return Some(Fate::Failed(Reply::failed(&error)));
        }
    };
    let part_bytes = core.volume.geometry().part_bytes;
    let mut held = Held { connection, bytes: 0 };
    held.set(2 * part_bytes);
    let mut left = length;
    let mut received = part(input, connection, left.min(part_bytes)).await?;
    while left > 0 {
        left -= received.len();
        let next = part(input, connection, left.min(part_bytes));
        let (stored, next) = join(upload.write(received), next).await;
        received = next?;
        if let Err(error) = stored {
            skip(input, connection, left - received.len()).await?;
            return Some(Fate::Failed(Reply::failed(&error)));
        }
    }
    Some(Fate::Uploaded(upload))
}

/// Receives one part.
async fn part(input: &mut Input, connection: &Connection, length: usize) -> Option<Vec<u8>> {
    fill(input, connection, Vec::with_capacity(length), length).await
}

/// Receives until there are so many bytes, which are counted as held already.
async fn fill(
    input: &mut Input,
    connection: &Connection,
    mut bytes: Vec<u8>,
    length: usize,
) -> Option<Vec<u8>> {
    while bytes.len() < length {
        bytes = some(input, connection, bytes, length, length).await?;
    }
    Some(bytes)
}

/// Receives some of what makes up `length` bytes, so that there are `most` at the most.
async fn some(
    input: &mut Input,
    connection: &Connection,
    mut bytes: Vec<u8>,
    most: usize,
    length: usize,
) -> Option<Vec<u8>> {
    if input.pending().is_empty() {
        if length - bytes.len() >= SHARED_TRANSFER_BYTES_MIN {
            return input.receive_into(connection, bytes, most).await;
        }
        if !input.receive(connection, length - bytes.len()).await {
            discard(connection, bytes);
            return None;
        }
    }
    let count = input.pending().len().min(most - bytes.len());
    bytes.extend_from_slice(&input.pending()[..count]);
    input.take(count);
    Some(bytes)
}
