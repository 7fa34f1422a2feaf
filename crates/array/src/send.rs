//! Sending: requests to several members at once, and what becomes of those that fail.
//!
//! Place on the path: every write, between what a key's members have to take and the members.
//!
//! Invariant: whoever did not take what it was sent, and had no right to refuse it, is durably out before
//! this ends.

use crate::array::Array;
use crate::member::{Verdict, verdict};
use crate::roster::MemberState;
use futures_util::future::join_all;
use plimsoll_kv::{Device, Error, Op, Output, Request, Result};
use std::rc::Rc;

/// What became of a request at each member: what they gave, and who refused it and why.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) done: Vec<(usize, Output)>,
    pub(crate) refused: Option<Error>,
}

impl Array {
    /// Sends requests to members that take writes; those that fail for good are taken out, durably, before
    /// this ends.
    pub(crate) async fn send(self: &Rc<Self>, requests: Vec<(usize, Request)>) -> Result<Sent> {
        let alone = async |_, device, request| self.in_time(device, request).await.map(|done| done.output);
        self.send_by(requests, alone).await
    }

    /// The same; what others send so meanwhile to a member to which each request costs goes along.
    pub(crate) async fn send_in_company(self: &Rc<Self>, requests: Vec<(usize, Request)>) -> Result<Sent> {
        self.send_by(requests, async |member, device: Rc<dyn Device>, request| match device.gathers() {
            true => self.in_time(device, request).await.map(|done| done.output),
            false => self.in_company(member, device, request).await,
        })
        .await
    }

    async fn send_by(
        self: &Rc<Self>,
        requests: Vec<(usize, Request)>,
        by: impl AsyncFn(usize, Rc<dyn Device>, Request) -> Result<Output>,
    ) -> Result<Sent> {
        let each = requests.into_iter().filter_map(|(member, request)| {
            let device = self.writable(member)?;
            // What rots is written again, and then its time is changed: the key is whole after that, or out.
            let mends = matches!(request.op, Op::SetExpiry { .. }) && self.state(member) == MemberState::In;
            let sent = by(member, device, request);
            Some(async move { (member, mends, sent.await) })
        });
        let mut sent = Sent::default();
        let (mut broken, mut refused) = (Vec::new(), Vec::new());
        for (member, mends, result) in join_all(each.collect::<Vec<_>>()).await {
            match result {
                Err(error @ Error::Unreadable(_)) if mends => refused.push((member, error)),
                Ok(output) => sent.done.push((member, output)),
                Err(Error::NotFound) => sent.done.push((member, Output::Done)),
                Err(error) if verdict(&error) == Verdict::Broken => broken.push((member, error)),
                // It is not whole yet, and would never be; or it is out since it was asked. What it was asked
                // for in vain, because it has not got what others have, it may lack.
                Err(error)
                    if self.state(member) != MemberState::In && !matches!(error, Error::Invalid(_)) =>
                {
                    broken.push((member, error));
                }
                Err(error) => refused.push((member, error)),
            }
        }
        for (member, error) in broken {
            self.note(member, |status| status.failed_requests += 1);
            self.take_out_now(member, &error.to_string()).await?;
        }
        // Those that were left out because they are out are so durably, too. A member that went out while
        // this was under way counts as one that never had it.
        self.roster_settled().await?;
        sent.done.retain(|(member, _)| self.writable(*member).is_some());
        let is_there = |member: &usize| self.writable(*member).is_some();
        sent.refused = refused.into_iter().find(|(member, _)| is_there(member)).map(|(_, error)| error);
        Ok(sent)
    }

    /// Has every member that is in store, or delete, what the array notes for itself. One that has no room
    /// goes without.
    pub(crate) async fn kept_by_all(self: &Rc<Self>, op: &Op) -> Result<()> {
        let members = (0..self.count()).filter(|member| self.readable(*member).is_some());
        let each = members.map(async |member| match self.sent_to_keep(member, op.clone()).await {
            Err(Error::NoSpace | Error::NoMemory) => Ok(()),
            done => self.unless_out(member, done).map(drop),
        });
        join_all(each).await.into_iter().collect()
    }
}
