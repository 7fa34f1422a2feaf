//! Transactions after a restart: what had prepared holds its keys again, until it is known what became of it.
//!
//! Invariants: the keys are held before anybody is served; a transaction that was not applied, and whose
//! intent cannot be read, is damage: the partition does not open, rather than do half of what was
//! acknowledged.

use super::{Holding, Partition};
use crate::fetch::{Extent, ReadFrom};
use crate::format::Intent;
use crate::index::Entry;
use plimsoll_kv::transaction::{Held, Outstanding, Status};
use plimsoll_kv::{Error, Output, Result};
use std::rc::Rc;

impl Partition {
    /// Holds the keys of the transactions that had prepared and were not applied.
    pub(crate) async fn hold_prepared(&self) -> Result<()> {
        let known = self.state.borrow().transactions.clone();
        *self.transactions.recovered.borrow_mut() = known.keys().copied().collect();
        for (id, prepared) in known {
            if prepared.applied {
                continue;
            }
            let intent = self.read_intent(prepared.intent).await?;
            let keys = intent.writes.iter().filter_map(plimsoll_kv::Op::place);
            let keys = keys.map(|(container, key)| (container, key.to_vec())).collect();
            let held = if intent.clears.is_empty() { Held::keys(keys) } else { Held::everything() };
            let holding: Holding = self.hold_now(&held).await;
            self.transactions.open.borrow_mut().insert(id, holding);
            self.transactions.promise(id, intent, Some(prepared.intent));
            tracing::info!(
                partition = self.layout.partition,
                transaction = %id.version,
                of = id.partition,
                "a transaction had prepared when the server ended"
            );
        }
        Ok(())
    }

    /// The transactions that were known when the partition was opened, and still are.
    pub(super) async fn outstanding(self: &Rc<Self>) -> Result<Output> {
        let recovered = self.transactions.recovered.borrow().clone();
        let mut outstanding = Vec::with_capacity(recovered.len());
        for id in recovered {
            let prepared = self.state.borrow().transactions.get(&id).copied();
            let Some(prepared) = prepared else { continue };
            let participants = match self.transactions.with_promise(id, |p| p.intent.participants.clone()) {
                Some(participants) => participants,
                None => match self.read_intent(prepared.intent).await {
                    Ok(intent) => intent.participants,
                    // It was forgotten while it was read (seed 41).
                    Err(_) if !self.state.borrow().transactions.contains_key(&id) => continue,
                    // Who else took part asks about it, and is told: nothing is done by it here any more.
                    Err(error @ Error::Unreadable(_)) if prepared.applied => {
                        tracing::warn!(
                            partition = self.layout.partition,
                            transaction = %id.version,
                            %error,
                            "an applied transaction cannot be read, and stays known"
                        );
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            let status = if prepared.applied { Status::Applied } else { Status::Prepared };
            outstanding.push(Outstanding { id, participants, status });
        }
        Ok(Output::Outstanding(outstanding))
    }

    /// Reads an intent from the parts that it was written in.
    async fn read_intent(&self, upload: u64) -> Result<Intent> {
        let (length, parts) = {
            let state = self.state.borrow();
            let found = state.uploads.get(&upload);
            let found =
                found.ok_or_else(|| Error::Unreadable("a transaction's intent is gone".to_owned()))?;
            (found.length, found.parts.keys().copied().collect::<Vec<u32>>())
        };
        let mut bytes = Vec::new();
        for part in parts {
            // Cleaning may move it while it is read.
            let place = || self.state.borrow().uploads.get(&upload).and_then(|u| u.parts.get(&part).copied());
            while let Some((location, length)) = place() {
                let read = self
                    .read_record(Entry { fingerprint: 0, location, length }, Extent::Whole, ReadFrom::Flash)
                    .await;
                if place() == Some((location, length)) {
                    bytes.extend_from_slice(self.value(&read?)?);
                    break;
                }
            }
        }
        if bytes.len() as u64 != length {
            return Err(Error::Unreadable("a transaction's intent is not whole".to_owned()));
        }
        Intent::decode(&bytes).map_err(|error| Error::Unreadable(error.to_string()))
    }
}
