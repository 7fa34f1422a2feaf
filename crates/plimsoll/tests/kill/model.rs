//! What a key may hold, as its only client knows it.
//!
//! A key may hold one of several things: what was acknowledged last, or what a change made of it
//! whose acknowledgement never came. A reply or a read narrows them; what none of them explains is
//! a violation.

use plimsoll_resp::Reply;

/// Seconds of an expiry that never comes in a test.
const FAR_SECONDS: i64 = 100_000;

/// When a value expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    Never,
    Far,
    /// In so many milliseconds: it may be gone whenever one looks.
    Soon(u32),
}

/// A value and its expiry. The bytes follow from the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) seed: u64,
    pub(crate) length: usize,
    pub(crate) expiry: Expiry,
}

impl Stored {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length + 8);
        let mut word = self.seed;
        while bytes.len() < self.length {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            bytes.extend_from_slice(&(word ^ word >> 29).to_le_bytes());
        }
        bytes.truncate(self.length);
        bytes
    }

    fn is(&self, bytes: &[u8], seconds: i64) -> bool {
        let expires = match self.expiry {
            Expiry::Never => seconds == -1,
            Expiry::Far => (FAR_SECONDS / 2..=FAR_SECONDS).contains(&seconds),
            // Gone by the time its expiry was asked for, or less than a second left.
            Expiry::Soon(_) => (-2..=1).contains(&seconds) && seconds != -1,
        };
        expires && self.length == bytes.len() && self.bytes() == bytes
    }
}

/// A change of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Set(Stored),
    SetIfThere(Stored),
    SetIfAbsent(Stored),
    Delete,
    ExpireFar,
    Persist,
}

/// What a server answers to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Ok,
    Null,
    Integer(i64),
}

impl Change {
    /// The command.
    pub(crate) fn args(&self, key: &str) -> Vec<Vec<u8>> {
        let far = FAR_SECONDS.to_string().into_bytes();
        let (word, stored, condition) = match self {
            Change::Set(stored) => ("SET", Some(stored), None),
            Change::SetIfThere(stored) => ("SET", Some(stored), Some("XX")),
            Change::SetIfAbsent(stored) => ("SET", Some(stored), Some("NX")),
            Change::Delete => ("DEL", None, None),
            Change::ExpireFar => ("EXPIRE", None, None),
            Change::Persist => ("PERSIST", None, None),
        };
        let mut args = vec![word.as_bytes().to_vec(), key.as_bytes().to_vec()];
        args.extend(stored.map(Stored::bytes));
        args.extend(condition.map(|condition| condition.as_bytes().to_vec()));
        match stored.map(|stored| stored.expiry) {
            Some(Expiry::Far) => args.extend([b"EX".to_vec(), far]),
            Some(Expiry::Soon(ms)) => args.extend([b"PX".to_vec(), ms.to_string().into_bytes()]),
            _ if *self == Change::ExpireFar => args.push(far),
            _ => {}
        }
        args
    }

    /// What it makes of a key, and what the server says.
    fn after(&self, before: Option<Stored>) -> (Option<Stored>, Answer) {
        let with = |expiry| before.map(|stored| Stored { expiry, ..stored });
        let expires = before.is_some_and(|stored| stored.expiry != Expiry::Never);
        match (self, before) {
            (Change::SetIfThere(_), None) | (Change::SetIfAbsent(_), Some(_)) => (before, Answer::Null),
            (Change::Set(new) | Change::SetIfThere(new) | Change::SetIfAbsent(new), _) => {
                (Some(*new), Answer::Ok)
            }
            (Change::Delete, _) => (None, Answer::Integer(before.is_some().into())),
            (Change::ExpireFar, _) => (with(Expiry::Far), Answer::Integer(before.is_some().into())),
            (Change::Persist, _) => (with(Expiry::Never), Answer::Integer(expires.into())),
        }
    }
}

/// What a key may hold: one of these.
#[derive(Clone, Debug)]
pub(crate) struct Holds {
    any: Vec<Option<Stored>>,
    /// It was seen expired: the server may count it until it is reclaimed.
    lingers: bool,
}

impl Default for Holds {
    fn default() -> Holds {
        Holds { any: vec![None], lingers: false }
    }
}

impl Holds {
    /// All that it may hold now: what expires soon may be gone.
    fn now(&self) -> Vec<Option<Stored>> {
        let mut all = self.any.clone();
        let soon = |stored: &Option<Stored>| stored.is_some_and(|s| matches!(s.expiry, Expiry::Soon(_)));
        if all.iter().any(soon) && !all.contains(&None) {
            all.push(None);
        }
        all
    }

    /// Whether it certainly holds something, whether it may, and whether it may be counted.
    pub(crate) fn bounds(&self) -> (bool, bool, bool) {
        let possible = self.any.iter().any(Option::is_some);
        (!self.now().contains(&None), possible, possible || self.lingers)
    }

    /// A change that no reply came to.
    pub(crate) fn may_become(&mut self, change: &Change) {
        let mut all = self.now();
        all.extend(self.now().into_iter().map(|before| change.after(before).0));
        all.dedup();
        self.any = all;
    }

    /// A change with its reply; true if the server had no room and did nothing.
    pub(crate) fn becomes(&mut self, change: &Change, reply: &Reply) -> Result<bool, String> {
        let answer = match reply {
            Reply::Simple(text) if text == b"OK" => Answer::Ok,
            Reply::Null => Answer::Null,
            Reply::Integer(number) => Answer::Integer(*number),
            Reply::Error(text) if text.starts_with(b"OOM ") => return Ok(true),
            other => return Err(format!("{change:?}: {other:?}")),
        };
        let outcomes = self.now().into_iter().map(|before| change.after(before));
        let fitting: Vec<_> = outcomes.filter(|(_, told)| *told == answer).map(|(after, _)| after).collect();
        if fitting.is_empty() {
            return Err(format!("{change:?} of {:?}: {answer:?}", self.any));
        }
        self.any = fitting;
        self.lingers = false;
        Ok(false)
    }

    /// What GET and then TTL said.
    pub(crate) fn reads(&mut self, value: &Reply, seconds: &Reply) -> Result<(), String> {
        let found: Vec<_> = match (value, seconds) {
            (Reply::Null, Reply::Integer(-2)) => self.now().into_iter().filter(Option::is_none).collect(),
            (Reply::Bulk(bytes), Reply::Integer(seconds)) => {
                let is = |stored: &Option<Stored>| stored.is_some_and(|stored| stored.is(bytes, *seconds));
                self.now().into_iter().filter(is).collect()
            }
            _ => Vec::new(),
        };
        if found.is_empty() {
            let told = match value {
                Reply::Bulk(bytes) => format!("{} bytes", bytes.len()),
                other => format!("{other:?}"),
            };
            return Err(format!("{told}, TTL {seconds:?}; it may hold {:?}", self.any));
        }
        self.lingers |= found == [None] && self.any.iter().any(Option::is_some);
        self.any = found;
        Ok(())
    }
}
