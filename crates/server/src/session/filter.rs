//! Which connections are meant, by what is known of them.

use super::Connection;

/// Which connections are meant. What is not said holds for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The connection's number.
    pub id: Option<u64>,
    /// Its peer's address.
    pub address: Option<String>,
    /// The address it came to.
    pub local_address: Option<String>,
    /// Only those that listen to channels, or only those that do not.
    pub listens: Option<bool>,
    /// Only those that are so many seconds old.
    pub age_s_min: Option<u64>,
    /// Nobody: what was asked for does not exist here.
    pub nobody: bool,
    /// The connection that asks.
    pub asker: u64,
    /// Whether it is left alone.
    pub skips_asker: bool,
}

impl Connection {
    /// Whether it is one of them.
    pub(crate) fn is_meant(&self, filter: &Filter) -> bool {
        let age_s = self.core.reactor.now_ns().saturating_sub(self.opened_ns) / 1_000_000_000;
        let spared = filter.nobody || self.dead.get() || (filter.skips_asker && filter.asker == self.id);
        !spared
            && filter.id.is_none_or(|id| id == self.id)
            && filter.address.as_ref().is_none_or(|address| *address == self.peer)
            && filter.local_address.as_ref().is_none_or(|address| *address == self.local.to_string())
            && filter.listens.is_none_or(|listens| listens != self.subscriptions.borrow().is_empty())
            && filter.age_s_min.is_none_or(|least| age_s >= least)
    }
}
