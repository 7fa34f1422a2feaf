//! A value of a client's own that transactions change again and again, and read in between: long ones stand
//! in parts, and share them with what they were a command before.
//!
//! Invariants: nobody else writes the key, so what a read gives is known; after a transaction of which nobody
//! knows whether it was done, the client goes on with another key.

use super::client::Client;
use super::history::Outcome;
use super::talk::{Line, Told, Words, show, words};
use plimsoll_resp::Reply;

/// Longer ones are deleted.
const GROWN_BYTES_MAX: usize = 30_000;
/// Bytes that one command writes.
const WRITTEN_BYTES_MAX: u64 = 9_000;

/// What a client knows of its value.
#[derive(Clone, Default)]
pub(super) struct Grown {
    /// How many keys it has given up.
    keys: u32,
    /// What the key holds.
    held: String,
    /// The key before, and what it may hold.
    unsure: Option<(String, Vec<String>)>,
}

/// A command, and what it is to be answered with.
type Asked = (Words, Reply);

impl Grown {
    fn key(&self, client: u32) -> String {
        format!("grown{client}.{}", self.keys)
    }

    /// Nobody knows whether the key became this.
    fn leave(&mut self, client: u32, becomes: String) {
        self.unsure = Some((self.key(client), vec![std::mem::take(&mut self.held), becomes]));
        self.keys += 1;
    }
}

fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Null => Some(String::new()),
        Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    }
}

fn bulk(text: &str) -> Reply {
    if text.is_empty() { Reply::Null } else { Reply::Bulk(text.as_bytes().to_vec()) }
}

impl Client {
    fn grown(&self) -> Grown {
        self.shared.grown.borrow().get(&self.number).cloned().unwrap_or_default()
    }

    fn set_grown(&self, grown: Grown) {
        self.shared.grown.borrow_mut().insert(self.number, grown);
    }

    /// Changes the value a few times in one transaction, and looks at it in between.
    pub(super) async fn grow(&self, line: &mut Line) -> Told<()> {
        self.look_at_unsure(line).await?;
        let before = self.grown();
        let (asked, becomes) = self.changes(&before);
        // Until it is told, nobody knows.
        let mut unsure = before.clone();
        unsure.leave(self.number, becomes.clone());
        self.set_grown(unsure);
        let reply = self.exec(line, asked.iter().map(|(command, _)| command.clone()).collect()).await?;
        match &reply {
            Reply::Array(replies) if replies.iter().any(|reply| matches!(reply, Reply::Error(_))) => {
                let failed = replies.iter().find(|reply| matches!(reply, Reply::Error(_)));
                failed.map(|reply| self.outcome_of(reply));
            }
            Reply::Array(replies) => {
                for ((command, expected), reply) in asked.iter().zip(replies) {
                    if reply != expected {
                        let (command, told) = (command.join(" "), show(reply));
                        let command = &command[..command.len().min(60)];
                        self.shared.violate(format!("{command}: {told}, expected {}", show(expected)));
                    }
                }
                self.set_grown(Grown { held: becomes, ..before });
            }
            error if self.outcome_of(error) == Outcome::Refused => self.set_grown(before),
            _ => {}
        }
        Ok(())
    }

    /// Commands that change the value, each with its reply, and what it is then.
    fn changes(&self, grown: &Grown) -> (Vec<Asked>, String) {
        let key = grown.key(self.number);
        let get = |held: &str| (words(&format!("GET {key}")), bulk(held));
        let (mut held, mut asked) = (grown.held.clone(), vec![get(&grown.held)]);
        if held.len() > GROWN_BYTES_MAX {
            asked.push((words(&format!("DEL {key}")), Reply::Integer(1)));
            held.clear();
        }
        for _ in 0..1 + self.below(4) {
            let bytes =
                format!("{:<1$}", self.shared.history.new_word(), 1 + self.below(WRITTEN_BYTES_MAX) as usize);
            let bytes = bytes.replace(' ', "-");
            let command = if held.is_empty() || self.below(2) == 0 {
                held.push_str(&bytes);
                vec!["APPEND".to_owned(), key.clone(), bytes]
            } else {
                let offset = self.below(held.len() as u64 + 1) as usize;
                let end = held.len().min(offset + bytes.len());
                held.replace_range(offset..end, &bytes);
                vec!["SETRANGE".to_owned(), key.clone(), offset.to_string(), bytes]
            };
            asked.push((command, Reply::Integer(held.len() as i64)));
            if self.below(2) == 0 {
                asked.push(get(&held));
            }
        }
        (asked, held)
    }

    /// What was left because nobody knew what it holds, holds one of two values, whole.
    async fn look_at_unsure(&self, line: &mut Line) -> Told<()> {
        let Some((key, values)) = self.grown().unsure else { return Ok(()) };
        let reply = self.ask(line, &[words(&format!("GET {key}"))]).await?.remove(0);
        let Some(held) = text(&reply) else {
            self.outcome_of(&reply);
            return Ok(());
        };
        if !values.contains(&held) {
            let values: Vec<String> = values.iter().map(|value| show(&bulk(value))).collect();
            self.shared.violate(format!("{key} holds {}, which is none of {values:?}", show(&reply)));
        }
        // The delete may be done and its reply lost.
        self.set_grown(Grown { unsure: Some((key.clone(), vec![held, String::new()])), ..self.grown() });
        let deleted = self.ask(line, &[words(&format!("DEL {key}"))]).await?.remove(0);
        if matches!(deleted, Reply::Error(_)) {
            self.outcome_of(&deleted);
        }
        self.set_grown(Grown { unsure: None, ..self.grown() });
        Ok(())
    }
}
