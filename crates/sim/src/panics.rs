//! Panics of worlds: kept off the terminal, and told with their message and place.
//!
//! Invariant: what panics outside of a world goes where it went.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// The message and place of the last panic, while a world runs on this thread.
    static PANIC: RefCell<Option<Option<String>>> = const { RefCell::new(None) };
}

/// Keeps the panics of worlds off the terminal; the rest go where they went.
fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let kept = PANIC.with_borrow_mut(|kept| match kept {
                Some(message) => {
                    message.get_or_insert_with(|| info.to_string());
                    true
                }
                None => false,
            });
            if !kept {
                before(info);
            }
        }));
    });
}

/// Runs a piece of a world.
///
/// # Errors
/// It panicked: the message and the place.
pub(crate) fn catch<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    install_hook();
    PANIC.set(Some(None));
    let ended = catch_unwind(AssertUnwindSafe(run));
    let panic = PANIC.take().flatten();
    ended.map_err(|_| panic.unwrap_or_else(|| "a panic without a message".to_owned()))
}
