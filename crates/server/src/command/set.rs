//! SET with all its options, for values that fit memory and for uploads; KV.STORE is SET with a mechanism.
//!
//! Invariants: without GET, IFEQ and IFNE one conditional store does it. With them the old value is read
//! under a pin first and the store asks for its version, again until nobody came between: so the value
//! returned, or compared, is exactly the one replaced, however long it is.

use super::compare::Comparison;
use super::{Run, custom, number, syntax_error};
use crate::core::Core;
use crate::keyspace::Keyspace;
use crate::reply::Reply;
use crate::session::{Connection, Upload};
use bytes::Bytes;
use plimsoll_kv::{Condition, ContainerId, Error, Expiry, Form, LocalFuture, Op, Output, Value};
use plimsoll_resp::{Args, CommandName};
use std::rc::Rc;

/// What the options of a SET ask for.
pub(super) struct Options {
    pub(super) condition: Condition,
    /// What the old value has to be, or must not be; then there is no other condition.
    pub(super) comparison: Option<Comparison>,
    pub(super) expiry: Expiry,
    /// Whether the old value is the reply.
    pub(super) get: bool,
    /// What the value is to be made into, if its client wishes something.
    pub(super) form: Option<Form>,
}

/// An expiry option: how many of which unit from when.
struct When<'a> {
    name: &'static [u8],
    amount: &'a [u8],
}

pub(super) fn set(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    match parse(&connection.core, &args[0], args.iter().skip(3)) {
        Ok(options) => run(connection, args[1].to_vec(), Source::Bytes(args.keep(2)), options),
        Err(reply) => Run::Now(reply),
    }
}

/// A SET with these options.
pub(super) fn store(connection: &Rc<Connection>, key: &[u8], value: Bytes, options: Options) -> Run {
    run(connection, key.to_vec(), Source::Bytes(value), options)
}

/// A command whose value has been uploaded; `options` are the arguments after it.
pub(crate) fn set_uploaded(
    connection: &Rc<Connection>,
    name: &[u8],
    upload: Upload,
    options: &[Vec<u8>],
) -> Run {
    match parse(&connection.core, name, options.iter().map(Vec::as_slice)) {
        Ok(options) => run(connection, upload.key.clone(), Source::Upload(upload), options),
        Err(reply) => Run::Now(reply),
    }
}

/// Where the value is.
enum Source {
    Bytes(Bytes),
    Upload(Upload),
}

fn parse<'a>(core: &Core, name: &[u8], words: impl Iterator<Item = &'a [u8]>) -> Result<Options, Reply> {
    let is_custom = name.eq_ignore_ascii_case(custom::STORE.as_bytes());
    let mut words = words.peekable();
    let mut options = Options::PLAIN;
    let mut when: Option<When<'a>> = None;
    while let Some(word) = words.next() {
        let name = CommandName::fold(word).ok_or_else(syntax_error)?;
        let compares = options.comparison.is_some();
        match (name.as_bytes(), options.condition, &when) {
            (b"NX", Condition::None | Condition::MustNotExist, _) if !compares => {
                options.condition = Condition::MustNotExist;
            }
            (b"XX", Condition::None | Condition::MustExist, _) if !compares => {
                options.condition = Condition::MustExist;
            }
            (b"IFEQ" | b"IFNE", Condition::None, _) if !compares => {
                let value = words.next().ok_or_else(syntax_error)?.to_vec();
                options.comparison = Some(Comparison { value, equal: name.as_bytes() == b"IFEQ" });
            }
            (b"GET", ..) => options.get = true,
            (b"MECHANISM", ..) if is_custom && options.form.is_none() => {
                options.form = Some(custom::wished(&core.shared.settings, &mut words)?);
            }
            (b"KEEPTTL", _, None) => options.expiry = Expiry::Keep,
            (unit @ (b"EX" | b"PX" | b"EXAT" | b"PXAT"), _, before) if options.expiry != Expiry::Keep => {
                let unit: &'static [u8] = match unit {
                    b"EX" => b"EX",
                    b"PX" => b"PX",
                    b"EXAT" => b"EXAT",
                    _ => b"PXAT",
                };
                if before.as_ref().is_some_and(|before| before.name != unit) {
                    return Err(syntax_error());
                }
                when = Some(When { name: unit, amount: words.next().ok_or_else(syntax_error)? });
            }
            _ => return Err(syntax_error()),
        }
    }
    if let Some(when) = when {
        let command = if is_custom { custom::STORE } else { "set" };
        options.expiry = Expiry::At(when.expiry_ms(command, core.reactor.wall_ms())?);
    }
    Ok(options)
}

impl Options {
    /// Those of SET without any.
    pub(super) const PLAIN: Options = Options {
        condition: Condition::None,
        comparison: None,
        expiry: Expiry::Never,
        get: false,
        form: None,
    };

    /// Whether a value that was read, or that nothing was found, lets the store happen.
    async fn allow(&self, keyspace: &Keyspace, old: &Reply) -> Result<bool, Error> {
        let exists = !matches!(old, Reply::Null);
        match (self.condition, &self.comparison) {
            (Condition::MustNotExist, _) => Ok(!exists),
            (Condition::MustExist, _) => Ok(exists),
            (_, Some(comparison)) if exists => comparison.holds(keyspace, old).await,
            (_, Some(comparison)) => Ok(!comparison.equal),
            (_, None) => Ok(true),
        }
    }

    /// The reply: the old value if it is asked for, else whether it was replaced.
    fn reply(&self, old: Reply, stored: bool) -> Reply {
        match (self.get, stored) {
            (true, _) => old,
            (false, true) => Reply::Ok,
            (false, false) => Reply::Null,
        }
    }
}

impl When<'_> {
    fn expiry_ms(&self, command: &str, wall_ms: u64) -> Result<u64, Reply> {
        let unit_ms = if matches!(self.name, b"EX" | b"EXAT") { 1000 } else { 1 };
        let base_ms = if matches!(self.name, b"EX" | b"PX") { wall_ms } else { 0 };
        expiry_ms(command, self.amount, unit_ms, base_ms)
    }
}

/// The expiry time that an argument of a command gives, in so many units after a base.
pub(super) fn expiry_ms(command: &str, amount: &[u8], unit_ms: u64, base_ms: u64) -> Result<u64, Reply> {
    let invalid = || Reply::error(format!("ERR invalid expire time in '{command}' command"));
    let amount = number::integer_or_error(amount)?;
    let amount = u64::try_from(amount).ok().filter(|amount| *amount > 0).ok_or_else(invalid)?;
    let at_ms = amount.checked_mul(unit_ms).and_then(|ms| ms.checked_add(base_ms));
    at_ms.filter(|at_ms| *at_ms <= i64::MAX as u64).ok_or_else(invalid)
}

fn run(connection: &Rc<Connection>, key: Vec<u8>, source: Source, options: Options) -> Run {
    let place = Place { container: connection.database.get(), key };
    if options.get || options.comparison.is_some() {
        return Run::Alone(read_and_set(connection.clone(), place, source, options));
    }
    let keyspace = connection.keyspace();
    let is_long = match &source {
        Source::Bytes(bytes) => keyspace.is_long_value(bytes.len()),
        Source::Upload(_) => options.form.is_some(),
    };
    let stored = Box::pin(async move {
        let kept = match source.into_value(&keyspace, options.form).await {
            Ok(kept) => kept,
            Err(error) => return Reply::failed(&error),
        };
        match place.store(keyspace, kept, &options, options.condition).await {
            Ok(kept) => {
                kept.stored();
                Reply::Ok
            }
            Err(Error::Exists | Error::NotFound) if options.condition != Condition::None => Reply::Null,
            Err(error) => Reply::failed(&error),
        }
    });
    if is_long { Run::Alone(stored) } else { Run::Overlap(stored) }
}

/// What is to be stored, and the upload to give up if it is not.
struct Kept(Value, Option<Upload>);

impl Kept {
    fn stored(self) {
        if let Some(upload) = self.1 {
            upload.stored();
        }
    }
}

impl Source {
    /// The value; of an upload that is to be made into something else than it was, another upload.
    async fn into_value(self, keyspace: &Keyspace, wish: Option<Form>) -> Result<Kept, Error> {
        let upload = match self {
            Source::Bytes(bytes) => return Ok(Kept(Value::Bytes(bytes.into()), None)),
            Source::Upload(upload) => upload,
        };
        let policy = keyspace.core().shared.settings.policy.as_ref();
        let made = policy.map(|policy| policy.mechanism(upload.length).form());
        let upload = match wish {
            Some(form) if made != wish => upload.made_into(form).await?,
            _ => upload,
        };
        Ok(Kept(Value::Upload(upload.id), Some(upload)))
    }
}

struct Place {
    container: ContainerId,
    key: Vec<u8>,
}

impl Place {
    /// Stores; gives back what was stored, for its upload to be marked so.
    async fn store(
        &self,
        keyspace: Keyspace,
        kept: Kept,
        options: &Options,
        condition: Condition,
    ) -> Result<Kept, Error> {
        let Kept(value, upload) = kept;
        keyspace.execute(self.store_op(value, options, condition)).await?;
        Ok(Kept(Value::from(Vec::new()), upload))
    }

    fn store_op(&self, value: Value, options: &Options, condition: Condition) -> Op {
        Op::Store {
            container: self.container,
            key: self.key.clone(),
            value,
            condition,
            expiry: options.expiry,
            retain: false,
            want_previous: false,
            form: options.form,
        }
    }
}

fn read_and_set(
    connection: Rc<Connection>,
    place: Place,
    source: Source,
    options: Options,
) -> LocalFuture<Reply> {
    Box::pin(async move {
        let keyspace = connection.keyspace();
        let Kept(value, upload) = match source.into_value(&keyspace, options.form).await {
            Ok(kept) => kept,
            Err(error) => return Reply::failed(&error),
        };
        let mut is_counted = !options.get;
        loop {
            let read = Op::retrieve_whole(place.container, &place.key);
            let (old, condition) = match keyspace.execute(read).await {
                Ok(Output::Found(item)) => {
                    let condition = Condition::IfVersion(item.version);
                    (super::string::value_reply(&connection.core, place.key.clone(), item), condition)
                }
                Ok(_) => unreachable!("a retrieve gives what it found"),
                Err(Error::NotFound) => (Reply::Null, Condition::MustNotExist),
                Err(error) => return Reply::failed(&error),
            };
            if !std::mem::replace(&mut is_counted, true) {
                super::string::count_hit(&connection.core, condition != Condition::MustNotExist);
            }
            match options.allow(&keyspace, &old).await {
                Ok(true) => {}
                Ok(false) => return options.reply(old, false),
                Err(error) => return Reply::failed(&error),
            }
            // Its reply leaves after it was replaced.
            if options.get
                && let Err(error) = keyspace.prove(&old).await
            {
                return Reply::failed(&error);
            }
            let store = place.store_op(value.clone(), &options, condition);
            match keyspace.execute(store).await {
                Ok(_) => {
                    Kept(value, upload).stored();
                    return options.reply(old, true);
                }
                // Somebody came between: look again.
                Err(Error::VersionMismatch | Error::Exists | Error::NotFound) => {}
                Err(error) => return Reply::failed(&error),
            }
        }
    })
}
