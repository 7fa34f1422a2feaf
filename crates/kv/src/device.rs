//! The KV device trait.

use crate::completion::{Completion, Retrieved};
use crate::error::Result;
use crate::request::{ContainerId, Durability, Op, Request};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// A future of this thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// Something that stores key-value pairs: the flash engine, a partition on another core, an array
/// of devices, memory, or a device that wraps another.
///
/// Order: requests for one key take effect in the order in which their futures were first polled.
/// A future that is dropped before its end may or may not have had its effect, once.
pub trait Device {
    /// Executes a request.
    fn execute(self: Rc<Self>, request: Request) -> LocalFuture<Result<Completion>>;

    /// Retrieves the whole value of a key: what a request with [`Op::Retrieve`] does that names no range and
    /// pins. For devices that have a shorter way there than by a request.
    fn retrieve_whole(
        self: Rc<Self>,
        container: ContainerId,
        key: Rc<[u8]>,
    ) -> LocalFuture<Result<Retrieved>> {
        let executed = self.execute(Request::new(Durability::Sync, Op::retrieve_whole(container, &key)));
        Box::pin(async move { executed.await.map(|completion| completion.output.into_retrieved()) })
    }

    /// Keys of which values are about to be asked for: what memory has of them may be brought closer. It
    /// changes nothing. Of a key that comes alone the first `round` may bring what leads to more: true if
    /// the next one should be asked for, after others have had their turn.
    fn announce(&self, container: ContainerId, keys: &[&[u8]], round: u32) -> bool {
        let _ = (container, keys, round);
        false
    }

    /// Gives the whole value of a key, if memory has it and a retrieve that began at this instant might give
    /// it. False says nothing: whoever asked goes on with a retrieve.
    fn recall(&self, container: ContainerId, key: &[u8], give: &mut dyn FnMut(&[u8])) -> bool {
        let _ = (container, key, give);
        false
    }

    /// True if memory alone tells that there is no such key: whoever stores it need not look first. False
    /// says nothing.
    fn lacks(&self, container: ContainerId, key: &[u8]) -> bool {
        let _ = (container, key);
        false
    }

    /// True if a batch may store what another key holds ([`crate::Value::Kept`]): the device can keep a value
    /// where it is under another name.
    fn keeps(&self) -> bool {
        false
    }

    /// True if writes that come together cost it little more than one of them: whoever has several need not
    /// make one request of them.
    fn gathers(&self) -> bool {
        false
    }

    /// True if it is known that less than half of what the device takes is taken: what need not be stored may
    /// be.
    fn has_room_to_spare(&self) -> bool {
        false
    }

    /// Bytes of the longest value that one store takes; longer ones are uploaded in parts.
    fn value_bytes_max(&self) -> usize;

    /// Bytes of every part of an upload but the last.
    fn part_bytes(&self) -> usize;
}

/// What a device that wraps another (its field `below`) does by letting that one do it: all that [`Device`]
/// asks beside its requests and what is announced.
#[macro_export]
macro_rules! as_below {
    () => {
        fn lacks(&self, container: $crate::ContainerId, key: &[u8]) -> bool {
            self.below.lacks(container, key)
        }

        fn keeps(&self) -> bool {
            self.below.keeps()
        }

        fn gathers(&self) -> bool {
            self.below.gathers()
        }

        fn has_room_to_spare(&self) -> bool {
            self.below.has_room_to_spare()
        }

        fn value_bytes_max(&self) -> usize {
            self.below.value_bytes_max()
        }

        fn part_bytes(&self) -> usize {
            self.below.part_bytes()
        }
    };
}
