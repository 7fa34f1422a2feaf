//! Looks at keys: whether they exist, how long they live, where their pieces stand.

use super::{Caller, container};
use crate::checker::{self, Input, Lifetime};
use crate::fuzz::journal::Asked;
use crate::fuzz::workload::Key;
use plimsoll_kv::{Durability, Error, Item, Op, Output};

impl Caller {
    pub(super) async fn look(&self, key: &Key) -> Result<Option<Item>, Error> {
        let op = Op::Exist { container: container(key), key: key.name.1.clone() };
        match self.call(Durability::Sync, op).await {
            Ok(Output::Found(item)) => Ok(Some(item)),
            Err(Error::NotFound) => Ok(None),
            Ok(_) => Err(Error::Unsupported("a look gave something else")),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn exists(&self, key: &Key) {
        let asked = self.begin(key, Input::Exists);
        if self.shape.wishes {
            return self.describe(key, &asked).await;
        }
        match self.look(key).await {
            Ok(item) => {
                let ended = self.journal.answer(&asked, checker::Output::Flag(item.is_some()));
                if let Some(item) = item {
                    self.see(key, &asked, ended, item.version, None);
                }
            }
            Err(error) => self.failed(&asked, Some(&error), false),
        }
    }

    /// A look at every piece of a key, to know whether it exists.
    async fn describe(&self, key: &Key, asked: &Asked) {
        let op = Op::Describe { container: container(key), key: key.name.1.clone() };
        match self.call(Durability::Sync, op).await {
            Ok(Output::Described(_)) => drop(self.journal.answer(asked, checker::Output::Flag(true))),
            Err(Error::NotFound) => drop(self.journal.answer(asked, checker::Output::Flag(false))),
            Ok(other) => self.journal.violate("answers", format!("a description gave {other:?}")),
            Err(error) => self.failed(asked, Some(&error), false),
        }
    }

    pub(super) async fn ttl(&self, key: &Key) {
        let asked = self.begin(key, Input::Ttl);
        match self.look(key).await {
            Ok(item) => {
                let until = |item: &Item| item.expiry_ms.map_or(Lifetime::Unlimited, Lifetime::Until);
                let lifetime = item.as_ref().map_or(Lifetime::Absent, until);
                self.journal.answer(&asked, checker::Output::Lifetime(lifetime));
            }
            Err(error) => self.failed(&asked, Some(&error), false),
        }
    }
}
