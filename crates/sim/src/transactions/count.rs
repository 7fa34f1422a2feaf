//! Counts beside transactions: DBSIZE and INFO of databases that transactions change as one.
//!
//! Invariant: a count, of one database or of all, sees each transaction whole or nothing of it. What a device
//! that fails has not applied yet is not judged.

use super::client::Client;
use super::talk::{Line, Told, Words, words};
use plimsoll_resp::Reply;

/// The database that `Client::empty` fills, and how many keys it has then.
const EMPTIED: (u64, i64) = (1, 2);
/// One that keys of one partition come to and go from: so many that one write of the log does not hold them.
const CROWD: (u64, i64) = (2, 60);
const CROWD_BYTES: usize = 800;
/// Two databases: a key is in one of them.
const BETWEEN: [u64; 2] = [3, 4];

impl Client {
    /// Stores or deletes the crowd as one.
    pub(super) async fn crowd(&self, line: &mut Line) -> Told<()> {
        let names = (0..CROWD.1).map(|number| format!("{{crowd}}{number}"));
        let command: Words = match self.below(2) {
            0 => std::iter::once("DEL".to_owned()).chain(names).collect(),
            _ => {
                let value = "x".repeat(CROWD_BYTES);
                let pairs = names.flat_map(|name| [name, value.clone()]);
                std::iter::once("MSET".to_owned()).chain(pairs).collect()
            }
        };
        self.change(line, vec![words(&format!("SELECT {}", CROWD.0)), command]).await
    }

    /// Moves a key from one database to another, or begins with it in one.
    pub(super) async fn move_between(&self, line: &mut Line) -> Told<()> {
        let [from, to] = if self.below(2) == 0 { BETWEEN } else { [BETWEEN[1], BETWEEN[0]] };
        let commands =
            [format!("SELECT {from}"), "DEL moved".into(), format!("SELECT {to}"), "SET moved x".into()];
        self.change(line, commands.iter().map(|command| words(command)).collect()).await
    }

    async fn change(&self, line: &mut Line, mut commands: Vec<Words>) -> Told<()> {
        commands.push(words("SELECT 0"));
        let reply = self.exec(line, commands).await?;
        let replies = if let Reply::Array(replies) = &reply { replies } else { std::slice::from_ref(&reply) };
        for reply in replies {
            self.outcome_of(reply);
        }
        Ok(())
    }

    /// Counts by DBSIZE, and by INFO.
    pub(super) async fn count(&self, line: &mut Line) -> Told<()> {
        for (database, all) in [EMPTIED, CROWD] {
            let commands = [words(&format!("SELECT {database}")), words("DBSIZE"), words("SELECT 0")];
            let replies = self.ask(line, &commands).await?;
            match &replies[1] {
                Reply::Integer(keys) => self.expect_keys(database, *keys, &[0, all]),
                error => drop(self.outcome_of(error)),
            }
        }
        let told = self.ask(line, &[words("INFO keyspace")]).await?.remove(0);
        let Reply::Bulk(text) = &told else {
            self.outcome_of(&told);
            return Ok(());
        };
        let text = String::from_utf8_lossy(text);
        let keys_of = |database: u64| -> i64 {
            let keys = text.split(&format!("db{database}:keys=")).nth(1);
            keys.and_then(|keys| keys.split(',').next()?.parse().ok()).unwrap_or(0)
        };
        for (database, all) in [EMPTIED, CROWD] {
            self.expect_keys(database, keys_of(database), &[0, all]);
        }
        let moved = BETWEEN.map(keys_of).iter().sum::<i64>();
        self.expect_keys(BETWEEN[0], moved, &[0, 1]);
        Ok(())
    }

    fn expect_keys(&self, database: u64, keys: i64, expected: &[i64]) {
        if self.shared.applies && !expected.contains(&keys) {
            self.shared.violate(format!("database {database} is counted as {keys} keys, not {expected:?}"));
        }
    }
}
