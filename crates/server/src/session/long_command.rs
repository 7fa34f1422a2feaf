//! Commands with arguments too long for a record, on their way in.
//!
//! Role: takes a long argument from the socket part by part: the value of a SET to the key's device as an
//! upload, others into memory; the command itself runs when its last argument has come. Place on the path:
//! beside the parser.
//!
//! Invariants: of a value of SET at most two parts, one on its way in and one to the device, and a receive
//! are in memory. Arguments of other commands than SET and KV.STORE, and of these after MULTI, are kept in
//! memory and counted as they come; above a command's bound they are forgotten, the rest is skipped and the
//! command refused, and the connection goes on.

use super::reader::Input;
use super::{Account, Connection, Upload};
use crate::command::{self, Run};
use crate::limits::{RECEIVE_BYTES, RECEIVE_BYTES_MAX, SHARED_TRANSFER_BYTES_MIN};
use crate::reply::Reply;
use crate::slow_log;
use futures_util::future::join;
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

/// What becomes of the long arguments of a command.
enum Fate {
    /// The value of a SET, so long, is with its device.
    Uploaded(Upload, usize),
    /// They are in memory.
    Kept,
    /// It is too long: the command is not run.
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

/// What has come of a command that is not begun.
struct Begun<'a> {
    /// Empty if that is too long as well.
    name: Vec<u8>,
    args: Vec<Vec<u8>>,
    /// Their bytes.
    bytes: usize,
    /// What they hold, and the next may come to hold.
    held: Held<'a>,
}

impl<'a> Begun<'a> {
    fn new(connection: &'a Connection, args: Vec<Vec<u8>>) -> Begun<'a> {
        let name = args.first().cloned().unwrap_or_default();
        let mut begun = Begun { name, args, bytes: 0, held: Held { connection, bytes: 0 } };
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

    /// True if so many bytes more are not too many.
    fn fits(&self, bytes: usize) -> bool {
        self.bytes + bytes <= self.held.connection.core.shared.settings.budget.command_bytes_max()
    }

    /// The command will not be run.
    fn forget(&mut self) {
        self.args.drain(..).for_each(|arg| self.held.connection.discard(arg));
        self.bytes = 0;
        self.held.set(0);
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}

/// Receives the rest of a command that has long arguments, and begins it. `None` if the connection
/// ended.
pub(super) async fn receive(
    input: &mut Input,
    connection: &Rc<Connection>,
    head: Head,
) -> Option<(Option<Account>, Run)> {
    let mut begun = Begun::new(connection, head.args);
    input.shrink(connection);
    connection.wait_while_paused(Some(&begun.name)).await;
    let fate = gather(input, connection, &mut begun, (head.index, head.length)).await?;
    // It is the command's from here on.
    begun.held.set(0);
    Some(begin(connection, &mut begun, fate))
}

/// Receives all arguments from the long one on that has this place and length.
async fn gather(
    input: &mut Input,
    connection: &Rc<Connection>,
    begun: &mut Begun<'_>,
    (index, length): (usize, usize),
) -> Option<Fate> {
    let is_value = command::takes_upload(connection, &begun.name, index) && begun.args.len() == 2;
    let mut fate = if is_value {
        let fate = upload(input, connection, &begun.args[1], length).await?;
        begun.args.push(Vec::new());
        fate
    } else {
        keep(input, begun, length).await?
    };
    loop {
        input.parser.resume_after_large();
        let known = begun.args.len();
        let next = rest(input, connection, &mut begun.args).await?;
        if !matches!(fate, Fate::TooLong) {
            begun.count(known);
        }
        input.shrink(connection);
        if matches!(fate, Fate::TooLong) || !begun.fits(0) {
            fate = Fate::TooLong;
            begun.forget();
        }
        fate = match (next, fate) {
            (Rest::Whole, fate) => return Some(fate),
            (Rest::Large(length), Fate::Kept) => keep(input, begun, length).await?,
            (Rest::Large(length), given_up) => {
                drop(given_up);
                refuse(input, begun, length).await?
            }
            (Rest::Broken, _) => return None,
        };
    }
}

/// Begins a command of which all has come, or says why not.
fn begin(connection: &Rc<Connection>, begun: &mut Begun<'_>, fate: Fate) -> (Option<Account>, Run) {
    let args = &mut begun.args;
    let Some(index) = command::find(&begun.name) else {
        if args.is_empty() {
            args.push(std::mem::take(&mut begun.name));
        }
        let views: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        command::spoil(connection);
        return (None, Run::Now(command::unknown(&views)));
    };
    let (slot, run) = match fate {
        Fate::TooLong => {
            connection.rejects(command::slot_of(index));
            command::spoil(connection);
            return (None, Run::Now(Reply::error("ERR argument is too long")));
        }
        Fate::Failed(reply) => (Some(command::slot_of(index)), Run::Now(reply)),
        Fate::Kept => {
            let whole = OwnedArgs::new(args.iter().map(Vec::as_slice));
            let started = command::begin(connection, &whole.args());
            connection.discard(whole.into_bytes());
            started
        }
        Fate::Uploaded(upload, length) => {
            connection.runs(command::slot_of(index));
            let run = command::set_uploaded(connection, &begun.name, upload, &args[3..]);
            args[2] = format!("... ({length} bytes)").into_bytes();
            (Some(command::slot_of(index)), run)
        }
    };
    let Some(slot) = slot else { return (None, run) };
    let views = args.iter().map(Vec::as_slice);
    connection.show(slot, views.clone());
    let words = if slow_log::is_on(&connection.core.shared) {
        connection.core.slow_log.capture(views)
    } else {
        Vec::new()
    };
    (Some(connection.account(slot, args.iter().map(Vec::len).sum(), words)), run)
}

/// Receives a long argument into memory, if there may be so much of the command.
async fn keep(input: &mut Input, begun: &mut Begun<'_>, length: usize) -> Option<Fate> {
    let connection = begun.held.connection;
    if !connection.authenticated.get() || !begun.fits(length) {
        return refuse(input, begun, length).await;
    }
    let (kept, mut bytes) = (begun.held.bytes, Vec::new());
    while bytes.len() < length {
        // What comes takes memory, not what is announced: once something has come there is address space for
        // all, so that nothing is copied as it grows.
        let next = (bytes.len() + bytes.len().clamp(RECEIVE_BYTES, RECEIVE_BYTES_MAX)).min(length);
        let room = if bytes.is_empty() { next } else { length };
        let _ = bytes.try_reserve_exact(room - bytes.len());
        if !connection.wait_for_turn(kept + next).await {
            connection.discard(bytes);
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

/// Forgets what has come, and drops an argument.
async fn refuse(input: &mut Input, begun: &mut Begun<'_>, length: usize) -> Option<Fate> {
    begun.forget();
    skip(input, begun.held.connection, length).await?;
    Some(Fate::TooLong)
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
    Some(Fate::Uploaded(upload, length))
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
            connection.discard(bytes);
            return None;
        }
    }
    let count = input.pending().len().min(most - bytes.len());
    bytes.extend_from_slice(&input.pending()[..count]);
    input.take(count);
    Some(bytes)
}
