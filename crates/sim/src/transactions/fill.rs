//! Keys that fill the device: stored, deleted, or evicted, where the server does that.
//!
//! Invariant: a transaction that looks at the whole database, or at a key, sees nothing go but by itself.

use super::client::Client;
use super::evictions::FILLING;
use super::talk::{Line, Told, Words, show, words};
use plimsoll_resp::Reply;

/// Keys of which some are there.
const KEYS: u64 = 400;
/// Stores of one pipeline, where a full device makes room.
const TOGETHER: u64 = 16;

impl Client {
    /// Fills the device, and makes room again, or looks whether anything goes of itself.
    pub(super) async fn fill(&self, line: &mut Line) -> Told<()> {
        if self.shared.evicts && self.below(2) == 0 {
            return self.look_while_it_is_full(line).await;
        }
        let commands: Vec<Words> = if self.below(5) == 0 {
            let number = self.below(KEYS);
            vec![words(&format!("DEL {FILLING}{number} {FILLING}{} {FILLING}{}", number + 1, number + 2))]
        } else {
            let count = if self.shared.evicts { 1 + self.below(TOGETHER) } else { 1 };
            (0..count).map(|_| self.filling()).collect()
        };
        for reply in self.ask(line, &commands).await? {
            if matches!(reply, Reply::Error(_)) {
                self.outcome_of(&reply);
            }
        }
        Ok(())
    }

    fn filling(&self) -> Words {
        let key = format!("{FILLING}{}", self.below(KEYS));
        vec!["SET".to_owned(), key, "x".repeat(2000 + self.below(10_000) as usize)]
    }

    /// A transaction that stores, and sees a key and the number of all keys before and after.
    async fn look_while_it_is_full(&self, line: &mut Line) -> Told<()> {
        let other = format!("{FILLING}{}", self.below(KEYS));
        let store = self.filling();
        if store[1] == other {
            return Ok(());
        }
        let look = |name: &str, key: &str| vec![name.to_owned(), key.to_owned()];
        let size = if self.below(2) == 0 { words("DBSIZE") } else { look("STRLEN", &other) };
        let exists = look("EXISTS", &store[1]);
        let value = look("STRLEN", &other);
        let commands = vec![size.clone(), exists, value.clone(), store, value, size.clone()];
        let reply = self.exec(line, commands).await?;
        let Reply::Array(replies) = &reply else {
            self.outcome_of(&reply);
            return Ok(());
        };
        if let Some(failed) = replies.iter().find(|reply| matches!(reply, Reply::Error(_))) {
            self.outcome_of(failed);
            return Ok(());
        }
        let numbers = replies.iter().filter_map(|reply| match reply {
            Reply::Integer(number) => Some(*number),
            _ => None,
        });
        let &[before, exists, length, length_after, after] = numbers.collect::<Vec<_>>().as_slice() else {
            self.shared.violate(format!("another reply than is due: {}", show(&reply)));
            return Ok(());
        };
        let added = if size[0] == "DBSIZE" { 1 - exists } else { 0 };
        if length_after != length || after != before + added {
            self.shared.violate(format!("something came or went within {:?}: {}", other, show(&reply)));
        }
        Ok(())
    }
}
