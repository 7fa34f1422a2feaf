//! A client in a process of its own: it moves several keys at once, and looks at them together.
//!
//! Invariants: a transaction is in the history before a byte of it is sent; what it was told is there before
//! the next one begins. What it sees of keys that are always written together it judges at once.

use super::grown::Grown;
use super::history::{History, Outcome, Step};
use super::talk::{Line, Told, Words, list_key, parse, show, words};
use plimsoll_reactor::Reactor;
use plimsoll_reactor::sim::Random;
use plimsoll_resp::Reply;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// Lists that any transaction appends to.
const FREE_LISTS: usize = 5;
/// The list that tells what the keys written by MSET hold.
const SET_LIST: usize = FREE_LISTS;
/// The list that tells what the emptied database holds.
const FLUSH_LIST: usize = FREE_LISTS + 1;
/// All lists.
pub(super) const LISTS: usize = FREE_LISTS + 2;
/// Places of the token that RENAME moves.
const PLACES: u64 = 4;

/// What the clients of a world share.
pub(super) struct Shared {
    pub(super) history: History,
    /// The first thing that was wrong.
    pub(super) violation: RefCell<Option<String>>,
    /// What happened, if it was asked for.
    pub(super) trace: Option<RefCell<Vec<String>>>,
    /// Bytes of the token: long ones stand in parts.
    pub(super) token_bytes: usize,
    /// What each client knows of its own long value.
    pub(super) grown: RefCell<BTreeMap<u32, Grown>>,
    /// The device is full most of the time.
    pub(super) fills: bool,
    /// It makes room then.
    pub(super) evicts: bool,
    /// What is committed is applied.
    pub(super) applies: bool,
    /// Keys that were evicted.
    pub(super) evicted: Cell<u64>,
    /// One of them was not there to be evicted: what clients see proves nothing any more.
    pub(super) has_lost_evidence: Cell<bool>,
    /// Transactions that were answered.
    pub(super) answered: Cell<u64>,
}

impl Shared {
    pub(super) fn violate(&self, text: String) {
        if self.has_lost_evidence.get() {
            return;
        }
        self.note(|| format!("VIOLATION: {text}"));
        self.violation.borrow_mut().get_or_insert(text);
    }

    pub(super) fn note(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.borrow_mut().push(line());
        }
    }
}

/// A client.
pub(super) struct Client {
    pub(super) shared: Rc<Shared>,
    pub(super) reactor: Reactor,
    pub(super) number: u32,
    pub(super) random: RefCell<Random>,
    pub(super) address: SocketAddr,
}

impl Client {
    pub(super) fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }

    /// Works on one connection after the other, as long as its process lives.
    pub(super) async fn work(self) {
        loop {
            let Some(mut line) = self.connect().await else { continue };
            while self.transact(&mut line).await.is_ok() {
                let rest_ns = [0, 0, 20_000, 300_000][self.below(4) as usize];
                if rest_ns > 0 {
                    let rest_ns = self.below(rest_ns);
                    self.reactor.sleep_ns(rest_ns + 1).await;
                }
            }
        }
    }

    /// One transaction.
    async fn transact(&self, line: &mut Line) -> Told<()> {
        let of_filling = match (self.shared.evicts, self.shared.fills) {
            (true, _) => 12,
            (false, true) => 2,
            (false, false) => 0,
        };
        let told = match self.below(20 + of_filling) {
            0..3 => self.blind(line).await,
            3 => self.watching(line).await,
            4 => self.single(line).await,
            5 => self.set_together(line).await,
            6 => self.look_at_set(line).await,
            7 => self.move_token(line).await,
            8 => self.look_for_token(line).await,
            9 => self.empty(line).await,
            10 => self.look_at_emptied(line).await,
            11 => self.pair(line).await,
            12..15 => self.glance(line).await,
            15 => self.grow(line).await,
            16 | 17 => self.count(line).await,
            18 if !self.shared.evicts => self.crowd(line).await,
            18 | 19 => self.move_between(line).await,
            _ => self.fill(line).await,
        };
        self.shared.answered.set(self.shared.answered.get() + 1);
        told
    }

    /// Steps over the lists, some of them twice.
    fn steps(&self) -> Vec<Step> {
        let count = 1 + self.below(5);
        let step = |_| {
            let list = self.below(FREE_LISTS as u64) as usize;
            if self.below(5) < 3 {
                Step::Append { list, word: self.shared.history.new_word() }
            } else {
                Step::Read { list, words: Vec::new() }
            }
        };
        (0..count).map(step).collect()
    }

    fn command_of(step: &Step) -> Words {
        match step {
            Step::Append { list, word } => vec!["APPEND".to_owned(), list_key(*list), format!("{word};")],
            Step::Read { list, .. } => vec!["GET".to_owned(), list_key(*list)],
        }
    }

    /// Steps with what was read; nothing if a reply is not what it should be.
    fn filled(steps: &[Step], replies: &[Reply]) -> Option<Vec<Step>> {
        let fill = |(step, reply): (&Step, &Reply)| match step {
            Step::Append { .. } if matches!(reply, Reply::Integer(_)) => Some(step.clone()),
            Step::Append { .. } => None,
            Step::Read { list, .. } => Some(Step::Read { list: *list, words: parse(reply)? }),
        };
        steps.iter().zip(replies).map(fill).collect()
    }

    /// Tells the history what a transaction was told by EXEC.
    fn told(
        &self,
        number: usize,
        steps: Vec<Step>,
        reply: &Reply,
        filled: impl FnOnce(&[Reply]) -> Option<Vec<Step>>,
    ) {
        let history = &self.shared.history;
        match reply {
            Reply::Array(replies) => match filled(replies) {
                Some(steps) => history.complete(number, Outcome::Done, steps),
                // One of its commands failed: what was done of it is for the judge to see.
                None => {
                    let failed = replies.iter().find(|reply| matches!(reply, Reply::Error(_)));
                    failed.map(|reply| self.outcome_of(reply));
                }
            },
            Reply::Null => history.complete(number, Outcome::Refused, steps),
            error => {
                if self.outcome_of(error) == Outcome::Refused {
                    history.complete(number, Outcome::Refused, steps);
                }
            }
        }
    }

    pub(super) async fn exec(&self, line: &mut Line, commands: Vec<Words>) -> Told<Reply> {
        let mut all = vec![words("MULTI")];
        all.extend(commands);
        all.push(words("EXEC"));
        let replies = self.ask(line, &all).await?;
        Ok(replies.into_iter().last().expect("EXEC was answered"))
    }

    /// MULTI, appends and reads, EXEC.
    async fn blind(&self, line: &mut Line) -> Told<()> {
        let steps = self.steps();
        let number = self.shared.history.invoke(self.number, steps.clone());
        let reply = self.exec(line, steps.iter().map(Client::command_of).collect()).await?;
        self.told(number, steps.clone(), &reply, |replies| Client::filled(&steps, replies));
        Ok(())
    }

    /// WATCH, reads, MULTI, appends, EXEC: what was read counts if nobody came between.
    async fn watching(&self, line: &mut Line) -> Told<()> {
        let (reads, appends): (Vec<Step>, Vec<Step>) =
            self.steps().into_iter().partition(|step| matches!(step, Step::Read { .. }));
        if reads.is_empty() {
            return Ok(());
        }
        let steps: Vec<Step> = reads.iter().chain(&appends).cloned().collect();
        let number = self.shared.history.invoke(self.number, steps.clone());
        let mut watch = words("WATCH");
        watch.extend(reads.iter().map(|step| Client::command_of(step)[1].clone()));
        let mut commands = vec![watch];
        commands.extend(reads.iter().map(Client::command_of));
        let replies = self.ask(line, &commands).await?;
        let Some(read) = Client::filled(&reads, &replies[1..]) else { return Ok(()) };
        let reply = self.exec(line, appends.iter().map(Client::command_of).collect()).await?;
        self.told(number, steps, &reply, |replies| {
            Some(read.into_iter().chain(Client::filled(&appends, replies)?).collect())
        });
        Ok(())
    }

    /// A command by itself.
    async fn single(&self, line: &mut Line) -> Told<()> {
        let mut steps = self.steps();
        steps.truncate(1);
        let number = self.shared.history.invoke(self.number, steps.clone());
        let replies = self.ask(line, &[Client::command_of(&steps[0])]).await?;
        match Client::filled(&steps, &replies) {
            Some(steps) => self.shared.history.complete(number, Outcome::Done, steps),
            None if self.outcome_of(&replies[0]) == Outcome::Refused => {
                self.shared.history.complete(number, Outcome::Refused, steps);
            }
            None => {}
        }
        Ok(())
    }

    /// Reads a list by itself again and again, and another one: what is in the cache by then is looked at.
    async fn glance(&self, line: &mut Line) -> Told<()> {
        let list = self.below(LISTS as u64) as usize;
        let other = self.below(LISTS as u64) as usize;
        for list in [list, other, list, other] {
            let steps = vec![Step::Read { list, words: Vec::new() }];
            let number = self.shared.history.invoke(self.number, steps.clone());
            let replies = self.ask(line, &[Client::command_of(&steps[0])]).await?;
            if let Some(steps) = Client::filled(&steps, &replies) {
                self.shared.history.complete(number, Outcome::Done, steps);
            } else {
                self.outcome_of(&replies[0]);
            }
        }
        Ok(())
    }

    /// Three keys get the word that is appended to a list; or three others get one, by MSET alone.
    async fn set_together(&self, line: &mut Line) -> Told<()> {
        let word = self.shared.history.new_word();
        if self.below(2) == 0 {
            let replies =
                self.ask(line, &[words(&format!("MSET alone1 {word} alone2 {word} alone3 {word}"))]).await?;
            if replies[0] != Reply::Simple(b"OK".to_vec()) {
                self.outcome_of(&replies[0]);
            }
            return Ok(());
        }
        let steps = vec![Step::Append { list: SET_LIST, word }];
        let number = self.shared.history.invoke(self.number, steps.clone());
        let mset = words(&format!("MSET together1 {word} together2 {word} together3 {word}"));
        let reply = self.exec(line, vec![mset, Client::command_of(&steps[0])]).await?;
        self.told(number, steps.clone(), &reply, |replies| Client::filled(&steps, &replies[1..]));
        Ok(())
    }

    /// The keys of [`Client::set_together`] hold the same, and that of the list its last word.
    async fn look_at_set(&self, line: &mut Line) -> Told<()> {
        let steps = vec![Step::Read { list: SET_LIST, words: Vec::new() }];
        let number = self.shared.history.invoke(self.number, steps.clone());
        let commands = vec![
            Client::command_of(&steps[0]),
            words("MGET together1 together2 together3"),
            words("MGET alone1 alone2 alone3"),
        ];
        let reply = self.exec(line, commands).await?;
        if let Reply::Array(replies) = &reply
            && let [list, Reply::Array(together), Reply::Array(alone)] = replies.as_slice()
        {
            let is_same = |replies: &[Reply]| replies.windows(2).all(|pair| pair[0] == pair[1]);
            let fails = together.iter().chain(alone).any(|reply| matches!(reply, Reply::Error(_)));
            let are_same = is_same(together) && is_same(alone);
            if !fails && !are_same {
                self.shared.violate(format!("keys that are set together are not the same: {}", show(&reply)));
            }
            self.expect_last(list, &together[0], &reply);
        }
        self.told(number, steps.clone(), &reply, |replies| Client::filled(&steps, replies));
        Ok(())
    }

    /// A key holds the last word of a list.
    fn expect_last(&self, list: &Reply, key: &Reply, all: &Reply) {
        if let (Some(words), false) = (parse(list), matches!(key, Reply::Error(_))) {
            let last = words.last().map(u64::to_string);
            let held = if let Reply::Bulk(bytes) = key {
                Some(String::from_utf8_lossy(bytes).into_owned())
            } else {
                None
            };
            if last != held {
                self.shared.violate(format!("what was written together is not together: {}", show(all)));
            }
        }
    }

    /// Moves the token from one place to another, if it is there.
    async fn move_token(&self, line: &mut Line) -> Told<()> {
        let from = self.below(PLACES);
        let to = (from + 1 + self.below(PLACES - 1)) % PLACES;
        let (from, to) = (format!("place{from}"), format!("place{to}"));
        let reply = match self.below(3) {
            0 => self.ask(line, &[words(&format!("RENAME {from} {to}"))]).await?.remove(0),
            1 => self.ask(line, &[words(&format!("RENAMENX {from} {to}"))]).await?.remove(0),
            _ => {
                let commands = [format!("COPY {from} {to} REPLACE"), format!("DEL {from}")];
                self.exec(line, commands.iter().map(|command| words(command)).collect()).await?
            }
        };
        if matches!(reply, Reply::Error(_)) {
            self.outcome_of(&reply);
        }
        Ok(())
    }

    /// The token is at exactly one place, whole.
    async fn look_for_token(&self, line: &mut Line) -> Told<()> {
        let mut commands: Vec<Words> =
            (0..PLACES).map(|place| words(&format!("STRLEN place{place}"))).collect();
        commands.push(words("EXISTS place0 place1 place2 place3"));
        let reply = self.exec(line, commands).await?;
        let Reply::Array(replies) = &reply else {
            self.outcome_of(&reply);
            return Ok(());
        };
        if replies.iter().any(|reply| matches!(reply, Reply::Error(_))) {
            return Ok(());
        }
        let whole = Reply::Integer(self.shared.token_bytes as i64);
        let lengths = &replies[..PLACES as usize];
        let is_whole = lengths.iter().filter(|length| **length == whole).count() == 1;
        let others_are_empty =
            lengths.iter().filter(|length| **length == Reply::Integer(0)).count() == PLACES as usize - 1;
        if !is_whole || !others_are_empty || replies[PLACES as usize] != Reply::Integer(1) {
            self.shared.violate(format!("the token is not at one place: {}", show(&reply)));
        }
        Ok(())
    }

    /// Empties a database and fills it anew, as one.
    async fn empty(&self, line: &mut Line) -> Told<()> {
        let word = self.shared.history.new_word();
        let steps = vec![Step::Append { list: FLUSH_LIST, word }];
        let number = self.shared.history.invoke(self.number, steps.clone());
        let commands =
            ["SELECT 1", "FLUSHDB", &format!("SET fresh1 {word}"), &format!("SET fresh2 {word}"), "SELECT 0"];
        let mut commands: Vec<Words> = commands.into_iter().map(words).collect();
        commands.push(Client::command_of(&steps[0]));
        let reply = self.exec(line, commands).await?;
        self.told(number, steps.clone(), &reply, |replies| Client::filled(&steps, &replies[5..]));
        Ok(())
    }

    async fn look_at_emptied(&self, line: &mut Line) -> Told<()> {
        let steps = vec![Step::Read { list: FLUSH_LIST, words: Vec::new() }];
        let number = self.shared.history.invoke(self.number, steps.clone());
        let mut commands = vec![Client::command_of(&steps[0])];
        commands.extend(["SELECT 1", "MGET fresh1 fresh2", "DBSIZE", "KEYS *", "SELECT 0"].map(words));
        let reply = self.exec(line, commands).await?;
        if let Reply::Array(replies) = &reply
            && let [list, _, Reply::Array(fresh), Reply::Integer(keys), Reply::Array(listed), _] =
                replies.as_slice()
        {
            let fails = fresh.iter().any(|reply| matches!(reply, Reply::Error(_)));
            let expected = if fresh[0] == Reply::Null { 0 } else { 2 };
            if !fails && (fresh[0] != fresh[1] || *keys != expected || listed.len() as i64 != expected) {
                self.shared.violate(format!("a database is not as it was filled: {}", show(&reply)));
            }
            self.expect_last(list, &fresh[0], &reply);
        }
        self.told(number, steps.clone(), &reply, |replies| Client::filled(&steps, replies));
        Ok(())
    }

    /// Two keys that MSETNX makes and a transaction takes away: both are there, or neither.
    async fn pair(&self, line: &mut Line) -> Told<()> {
        let reply = match self.below(3) {
            0 => self.ask(line, &[words("MSETNX pair1 x pair2 x")]).await?.remove(0),
            1 => self.exec(line, vec![words("DEL pair1 pair2")]).await?,
            _ => {
                let reply = self.exec(line, vec![words("EXISTS pair1 pair2")]).await?;
                if reply == Reply::Array(vec![Reply::Integer(1)]) {
                    self.shared.violate("of a pair one is there".to_owned());
                }
                reply
            }
        };
        if matches!(reply, Reply::Error(_)) {
            self.outcome_of(&reply);
        }
        Ok(())
    }

    /// Puts the token in its first place.
    pub(super) async fn begin(&self) -> bool {
        let Some(mut line) = self.connect().await else { return false };
        let token = "t".repeat(self.shared.token_bytes);
        let set = vec!["SET".to_owned(), "place0".to_owned(), token];
        matches!(self.ask(&mut line, &[set]).await.as_deref(), Ok([Reply::Simple(_)]))
    }

    /// Reads all lists, and looks at everything else once.
    pub(super) async fn read_all(&self) -> Option<Vec<Vec<u64>>> {
        let mut line = self.connect().await?;
        for _ in 0..3 {
            self.look_at_set(&mut line).await.ok()?;
            self.look_for_token(&mut line).await.ok()?;
            self.look_at_emptied(&mut line).await.ok()?;
        }
        let commands: Vec<Words> = (0..LISTS).map(|list| words(&format!("GET list{list}"))).collect();
        let replies = self.ask(&mut line, &commands).await.ok()?;
        replies.iter().map(parse).collect()
    }
}
