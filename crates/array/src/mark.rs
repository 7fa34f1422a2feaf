//! The mark: whether the journal names every key that may be half written.
//!
//! Role: devices that are full refuse the journal's records, and take deletes. Before the first delete that
//! is not named the mark is taken away, for which there is always room; an array that is opened without it
//! compares every key. Place on the path: a delete on full devices.
//!
//! Invariant: while the mark stands on every member that is in, every write that may be half done is named.

use crate::array::Array;
use crate::manner::Manner;
use crate::placement::ROSTER;
use plimsoll_kv::{Condition, Device, Error, Expiry, Op, Output, Result, Value};
use std::rc::Rc;

use crate::open::background;

impl Array {
    fn mark_key(&self) -> Vec<u8> {
        format!("{}named", self.tag).into_bytes()
    }

    /// True if a member that is in has no mark, and the array is not new.
    pub(crate) async fn lacks_mark(self: &Rc<Self>) -> Result<bool> {
        if self.roster.borrow().opens == 1 {
            return Ok(false); // It was never marked yet: nothing was written before.
        }
        for member in 0..self.count() {
            let Some(device) = self.readable(member) else { continue };
            if !self.is_marked(&device).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True if a member has a mark.
    pub(crate) async fn is_marked(&self, device: &Rc<dyn Device>) -> Result<bool> {
        match background(device, Op::Exist { container: ROSTER, key: self.mark_key() }).await {
            Ok(output) => Ok(matches!(output, Output::Found(_))),
            // What has rotted is written again where it is, when there is a mark again.
            Err(Error::NotFound | Error::Unreadable(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Says that every half-written key is named from here on.
    pub(crate) async fn mark_named(self: &Rc<Self>) -> Result<()> {
        let each = (0..self.count()).map(|member| {
            let op = Op::Store {
                container: ROSTER,
                key: self.mark_key(),
                value: Value::from(Vec::new()),
                condition: Condition::None,
                expiry: Expiry::Never,
                retain: false,
                want_previous: false,
                form: None,
            };
            (member, Manner::background().request(op))
        });
        let sent = self.send(each.collect()).await?;
        match sent.refused {
            None => self.marked.set(true),
            // It stays away, and the next start compares every key.
            Some(error) => {
                tracing::warn!(partition = self.partition, %error, "half-written keys are not named")
            }
        }
        Ok(())
    }

    /// Says that a half-written key may not be named.
    pub(crate) async fn unmark_named(self: &Rc<Self>) -> Result<()> {
        if !self.marked.get() {
            return Ok(());
        }
        let each = (0..self.count()).map(|member| {
            let (container, condition) = (ROSTER, Condition::None);
            let op = Op::Delete { container, key: self.mark_key(), condition };
            (member, Manner::background().request(op))
        });
        let sent = self.send(each.collect()).await?;
        sent.refused.map_or(Ok(()), Err)?;
        self.marked.set(false);
        Ok(())
    }
}
