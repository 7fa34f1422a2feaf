//! Tasks of the array itself: they end before the members are closed.

use crate::array::Array;
use futures_util::future::select;
use plimsoll_reactor::Work;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

impl Array {
    /// Starts a task that the array's end waits for.
    pub(crate) fn spawn(self: &Rc<Self>, work: Work, task: impl Future<Output = ()> + 'static) {
        let array = self.clone();
        self.tasks.set(self.tasks.get() + 1);
        // In memory of its own at once: a task that holds it in itself is twice as long, and moved whole.
        let task = Box::pin(task);
        self.reactor.spawn(work, async move {
            task.await;
            array.tasks.set(array.tasks.get() - 1);
            array.tasks_ended.wake_all();
        });
    }

    /// Sleeps until then, or until the array is to end.
    pub(crate) async fn rest_until(&self, at_ns: u64) {
        let closing = || self.closing.get().then_some(());
        let ending = pin!(self.tasks_ended.wait_for(closing));
        select(pin!(self.reactor.sleep_until(at_ns)), ending).await;
    }

    /// Ends what the array does by itself. Requests must have ended; the members are closed afterwards.
    pub async fn close(&self) {
        self.closing.set(true);
        self.tasks_ended.wake_all();
        self.transactions.wake();
        self.tasks_ended.wait_for(|| (self.tasks.get() == 0).then_some(())).await;
    }
}
