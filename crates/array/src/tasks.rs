//! Tasks of the array itself: they end before the members are closed.

use crate::array::Array;
use plimsoll_reactor::Work;
use std::future::Future;
use std::rc::Rc;

impl Array {
    /// Starts a task that the array's end waits for.
    pub(crate) fn spawn(self: &Rc<Self>, work: Work, task: impl Future<Output = ()> + 'static) {
        let array = self.clone();
        self.tasks.set(self.tasks.get() + 1);
        self.reactor.spawn(work, async move {
            task.await;
            array.tasks.set(array.tasks.get() - 1);
            array.tasks_ended.wake_all();
        });
    }

    /// Ends what the array does by itself. Requests must have ended; the members are closed afterwards.
    pub async fn close(&self) {
        self.closing.set(true);
        self.tasks_ended.wake_all();
        self.transactions.wake();
        self.tasks_ended.wait_for(|| (self.tasks.get() == 0).then_some(())).await;
    }
}
