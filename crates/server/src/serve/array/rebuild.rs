//! Rebuilding, as operators ask for it; a device that is out is opened anew first.
//!
//! Role: from a wish to orders for the cores. Place on the path: none.
//!
//! Invariants: what is opened is the device that went out; before that no core asks anything of it as it was.
//!
//! Never: it formats a device.

use super::replace::{Done, Named, Refusal, find, identity_of};
use super::{ArrayControl, locked};
use crate::serve::core_task::Order;
use crate::serve::devices::look_again;
use axum::http::StatusCode;
use plimsoll_array::MemberState;

/// What else can be done for a device that cannot be opened.
const MEND: &str = "bring back what it was, or replace it (plimsoll array replace)";

impl ArrayControl {
    /// Begins anew to rebuild a member, or all that are not in, and gives up what is lost if that is asked
    /// for; what is to be known of that.
    pub(super) async fn rebuild(&self, named: Option<&Named>, accept_loss: bool) -> Result<Done, Refusal> {
        let _change = self.begin().await?;
        let conflict = |words: String| Refusal::new(StatusCode::CONFLICT, words);
        let chosen = self.chosen(named)?;
        if chosen.is_empty() {
            return Ok(Done::new("every device is in: there is nothing to rebuild"));
        }
        let (mut devices, mut unopened, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
        for (member, path) in chosen {
            match self.bring_back(member, &path).await {
                Ok(()) => devices.push(path),
                Err(why) => {
                    reasons.push(why);
                    unopened.push(path);
                }
            }
            // Of one of which a partition is damaged the others are filled.
            let order = Order::Rebuild { member, accept_loss };
            self.order(&order).await.map_err(|error| Refusal::of_cores(&error))?;
        }
        let reasons = reasons.join("; ");
        if devices.is_empty() {
            return Err(conflict(format!("{reasons}; {MEND}")));
        }
        let left = if unopened.is_empty() { String::new() } else { format!("; {reasons}; {MEND}") };
        Ok(Done { words: format!("{} being rebuilt{left}", devices.join(", ")), devices, unopened })
    }

    /// The members that are meant, and their paths.
    fn chosen(&self, named: Option<&Named>) -> Result<Vec<(usize, String)>, Refusal> {
        let view = self.view();
        let is_lacking = |member: &usize| view.members[*member].state != MemberState::In;
        let known = locked(&self.members);
        let wanted = match named {
            Some(named) => vec![find(&known, named)?],
            None => (0..known.len()).filter(is_lacking).collect(),
        };
        if let Some(member) = wanted.iter().find(|member| !is_lacking(member)) {
            let words =
                format!("{}: is in and lacks nothing: there is nothing to rebuild", known[*member].path);
            return Err(Refusal::new(StatusCode::CONFLICT, words));
        }
        Ok(wanted.into_iter().map(|member| (member, known[member].path.clone())).collect())
    }

    /// Opens a member anew wherever it is out: it may have been away, or have failed. Or why not.
    pub(super) async fn bring_back(&self, member: usize, path: &str) -> Result<(), String> {
        let id = locked(&self.reports).values().next().map(|status| status.members[member].id);
        let id = id.ok_or_else(|| format!("{path}: the cores have not said yet how the array is"))?;
        // Also what leads nowhere is let go: else a rebuild would bring in what is still open of it.
        let let_go = self.order(&Order::LetGo(member)).await;
        if identity_of(path).await.is_none() {
            return Err(format!("{path}: there is no such file"));
        }
        let_go.map_err(|error| format!("{path}: cannot be opened anew while the server runs: {error}"))?;
        let (options, looked_at) = (self.reactor.clone(), path.to_owned());
        let found = tokio::task::spawn_blocking(move || look_again(&options, looked_at, id)).await;
        let found = found.unwrap_or_else(|error| Err(error.into())).map_err(|error| format!("{error:#}"))?;
        let brought = self.order(&Order::BringBack(member, Box::new(found.clone()))).await;
        self.take_in(member, found);
        brought.map_err(|error| error.to_string())
    }
}
