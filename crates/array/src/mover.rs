//! Moving: values get the mechanism that their length gets now.
//!
//! Role: when the picker has changed its mind, walks over all keys and stores anew what was stored otherwise.
//! Place on the path: none; in the background, one key at a time, through the top of what stands above the
//! array, so that whoever remembers values there hears of it as of any other store.
//!
//! Invariants:
//! * a value is stored only in the place of the version that was read, with the time at which it expires;
//! * nothing is moved by what the picker has not seen, while a member is out, or where clients may ask for
//!   mechanisms themselves: what somebody wished stays as it is;
//! * it takes `REST` times as long as what it does to rest, and ends when devices are full.
//!
//! Never: values in parts are moved; they are made into what their length gets when they are written again.

use crate::array::Array;
use crate::gather::Piece;
use crate::manner::Manner;
use crate::mechanism::Mechanism;
use crate::member::gives_nothing;
use crate::picker::Picker;
use crate::placement::ARRAY_CONTAINERS;
use plimsoll_kv::{
    Class, Condition, ContainerId, Device, Durability, Error, Expiry, Form, Op, Output, Request, Result,
    Value,
};
use plimsoll_reactor::Work;
use std::rc::{Rc, Weak};

/// How often it looks whether the picker has changed its mind.
const LOOK_NS: u64 = 1_000_000_000;
/// For each nanosecond that a key takes.
const REST: u64 = 4;
/// Keys that are looked at between two rests, moved or not.
const LOOKED_AT: usize = 64;

impl Array {
    /// From here on values are moved, through a device that stands above this array, for as long as it does.
    pub fn move_through(self: &Rc<Self>, above: &Rc<dyn Device>) {
        if self.picker.is_none() || self.options.policy.has_custom() {
            return;
        }
        let (array, above) = (self.clone(), Rc::downgrade(above));
        self.spawn(Work::Background, async move {
            let mut moved_for = 0;
            while !array.closing.get() && above.strong_count() > 0 {
                array.rest_until(array.reactor.now_ns() + LOOK_NS).await;
                let changes = array.picker.as_ref().map_or(0, Picker::changes);
                if changes == moved_for || !array.all_in() {
                    continue;
                }
                match array.move_all(&above).await {
                    Ok(true) => moved_for = changes,
                    Ok(false) => {}
                    Err(error) => {
                        moved_for = changes;
                        tracing::warn!(partition = array.partition, %error, "values are moved no further");
                    }
                }
            }
        });
    }

    /// Moves what is to be moved; false if it did not come to its end.
    async fn move_all(self: &Rc<Self>, above: &Weak<dyn Device>) -> Result<bool> {
        let before = self.keys_moved.get();
        for container in (0..ARRAY_CONTAINERS).map(ContainerId) {
            for primary in 0..self.count() {
                let mut after = None;
                while let Some(keys) = self.next_keys(primary, container, &mut after).await? {
                    for some in keys.chunks(LOOKED_AT) {
                        let begun_ns = self.reactor.now_ns();
                        for key in some {
                            if self.closing.get() || !self.all_in() {
                                return Ok(false);
                            }
                            self.move_key(above, container, key).await?;
                        }
                        let now_ns = self.reactor.now_ns();
                        self.rest_until(now_ns + REST * (now_ns - begun_ns)).await;
                    }
                }
            }
        }
        let keys = self.keys_moved.get() - before;
        if keys > 0 {
            tracing::info!(partition = self.partition, keys, "values have the mechanisms that were picked");
        }
        Ok(true)
    }

    /// Moves a key, if it was stored otherwise than what its length gets.
    async fn move_key(
        self: &Rc<Self>,
        above: &Weak<dyn Device>,
        container: ContainerId,
        key: &[u8],
    ) -> Result<()> {
        let place = self.place(container, key)?;
        let manner = Manner::background();
        let Some(device) = self.readable(place.primary) else { return Ok(()) };
        let piece = match self.read_piece(&device, &place, 0, Some((0, 0)), &manner).await {
            Err(error) if gives_nothing(&error) => return Ok(()),
            piece => piece?,
        };
        let Piece { item, header: Some(header), .. } = piece else { return Ok(()) };
        let picked = self.picker.as_ref().and_then(|picker| picker.judged(header.value_bytes));
        let Some(form) = picked.map(Mechanism::form).filter(|form| *form != header.form) else {
            return Ok(());
        };
        if item.upload.is_some() {
            return Ok(());
        }
        match self.store_anew(above, (container, key), form).await {
            Ok(()) => self.keys_moved.set(self.keys_moved.get() + 1),
            // Somebody else has written it, deleted it, or holds it.
            Err(Error::NotFound | Error::VersionMismatch | Error::Overloaded | Error::Unreadable(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Stores what a key holds once more, made into something else.
    async fn store_anew(
        self: &Rc<Self>,
        above: &Weak<dyn Device>,
        (container, key): (ContainerId, &[u8]),
        form: Form,
    ) -> Result<()> {
        let ask = |op| Request { class: Class::Background, ..Request::new(Durability::Sync, op) };
        let key = key.to_vec();
        let read = Op::Retrieve { container, key: key.clone(), range: None, pin: false };
        let Output::Found(item) = self.clone().execute(ask(read)).await?.output else {
            return Err(Error::NotFound);
        };
        let Some(above) = above.upgrade().filter(|_| item.upload.is_none()) else { return Ok(()) };
        let store = Op::Store {
            container,
            key,
            value: Value::from(item.bytes),
            condition: Condition::IfVersion(item.version),
            expiry: Expiry::Keep,
            retain: false,
            want_previous: false,
            form: Some(form),
        };
        above.execute(ask(store)).await.map(drop)
    }
}
