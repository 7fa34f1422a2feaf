//! How an array is, over all its partitions: for the admin port, metrics and the log.
//!
//! Invariant: a member is in if it is in everywhere, and out if it is out anywhere.

use super::Known;
use super::picks::{PickView, picks};
use super::progress::Progress;
use plimsoll_array::{ArrayOptions, ArrayStatus, MemberState};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// An array, as the admin port tells it.
#[derive(Debug, Serialize)]
pub(in crate::serve) struct View {
    pub(in crate::serve) mechanism: String,
    pub(in crate::serve) partitions: u16,
    pub(in crate::serve) members: Vec<MemberView>,
    /// Keys that may differ between members, and are compared before they are used.
    pub(in crate::serve) unsettled: u64,
    /// Keys that wait to be packed.
    pub(in crate::serve) packing_waiting: u64,
    /// Sets that have lost values, and have to be looked through.
    pub(in crate::serve) sets_loose: u64,
    /// What values of each length get, of which some were stored or read; if mechanisms are chosen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::serve) picks: Vec<PickView>,
    /// Keys that were stored anew because their length gets another mechanism now.
    pub(in crate::serve) keys_moved: u64,
    /// Values of devices that are out that were kept where they were read from the rest of their sets.
    pub(in crate::serve) values_kept: u64,
    pub(in crate::serve) scrub: ScrubView,
}

/// A scrub, under way or the last one.
#[derive(Debug, Default, Serialize)]
pub(in crate::serve) struct ScrubView {
    pub(in crate::serve) running: bool,
    pub(in crate::serve) keys: u64,
    /// Keys that it has to go through, as counted when it began; 0 until they are.
    pub(in crate::serve) keys_total: u64,
    pub(in crate::serve) errors: u64,
    /// The part of the keys that it has been through, from 0 to 1; nothing if none is under way.
    pub(in crate::serve) progress: Option<f64>,
    /// Until it has been through all keys, if that can be told.
    pub(in crate::serve) seconds_left: Option<u64>,
}

/// A member.
#[derive(Debug, Serialize)]
pub(in crate::serve) struct MemberView {
    pub(in crate::serve) index: usize,
    /// Its path.
    pub(in crate::serve) device: String,
    /// What its superblock calls it, in hexadecimal; nothing if it was never read.
    pub(in crate::serve) id: Option<String>,
    #[serde(serialize_with = "by_name")]
    pub(in crate::serve) state: MemberState,
    /// Why it is not in.
    pub(in crate::serve) reason: String,
    pub(in crate::serve) keys_done: u64,
    pub(in crate::serve) keys_total: u64,
    /// The part that is rebuilt, from 0 to 1; nothing if it is not being rebuilt.
    pub(in crate::serve) progress: Option<f64>,
    /// Until it is rebuilt, if that can be told.
    pub(in crate::serve) seconds_left: Option<u64>,
    pub(in crate::serve) copied_bytes: u64,
    pub(in crate::serve) repaired: u64,
    pub(in crate::serve) failed_requests: u64,
}

fn by_name<S: Serializer>(state: &MemberState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state.name())
}

/// The worse of two states.
fn worse(a: MemberState, b: MemberState) -> MemberState {
    match (a, b) {
        (MemberState::Out, _) | (_, MemberState::Out) => MemberState::Out,
        (MemberState::Resyncing, _) | (_, MemberState::Resyncing) => MemberState::Resyncing,
        (MemberState::In, MemberState::In) => MemberState::In,
    }
}

/// Why somebody has to look after a member that is in.
const LAST_GONE: &str = "the file is gone, and no other device is in that could do without it";

/// The array over what its partitions reported.
pub(super) fn view(
    options: &ArrayOptions,
    partitions: u16,
    reports: &BTreeMap<u16, ArrayStatus>,
    (known, scrubbing): (&[Known], &Progress),
) -> View {
    let sum = |of: fn(&ArrayStatus) -> u64| reports.values().map(of).sum();
    View {
        mechanism: options.policy.to_string(),
        partitions,
        members: known.iter().enumerate().map(|(index, known)| member(index, known, reports)).collect(),
        unsettled: sum(|status| status.unsettled),
        packing_waiting: sum(|status| status.packing_waiting),
        sets_loose: sum(|status| status.sets_loose),
        picks: picks(reports),
        keys_moved: sum(|status| status.keys_moved),
        values_kept: sum(|status| status.values_kept),
        scrub: scrub(reports, scrubbing),
    }
}

fn scrub(reports: &BTreeMap<u16, ArrayStatus>, scrubbing: &Progress) -> ScrubView {
    let sum = |of: fn(&ArrayStatus) -> u64| reports.values().map(of).sum();
    let mut view = ScrubView {
        running: reports.values().any(|status| status.scrubbing),
        keys: sum(|status| status.keys_scrubbed),
        keys_total: sum(|status| status.keys_to_scrub),
        errors: sum(|status| status.scrub_errors),
        progress: None,
        seconds_left: None,
    };
    if view.running && view.keys_total > 0 {
        view.progress = Some((view.keys as f64 / view.keys_total as f64).min(1.0));
        // Sets of packed values, which come after the keys, are not counted.
        let is_among_keys = view.keys < view.keys_total;
        view.seconds_left = scrubbing.seconds_left(view.keys_total).filter(|_| is_among_keys);
    }
    view
}

fn member(index: usize, known: &Known, reports: &BTreeMap<u16, ArrayStatus>) -> MemberView {
    let id = known.superblock.as_ref().map(|superblock| hexadecimal(&superblock.device_id));
    let mut view = MemberView {
        index,
        device: known.path.clone(),
        id,
        state: MemberState::In,
        reason: String::new(),
        keys_done: 0,
        keys_total: 0,
        progress: None,
        seconds_left: None,
        copied_bytes: 0,
        repaired: 0,
        failed_requests: 0,
    };
    for status in reports.values().filter_map(|status| status.members.get(index)) {
        // The words of the worst partition.
        if view.reason.is_empty() || (status.state != view.state && status.state == MemberState::Out) {
            view.reason.clone_from(&status.reason);
        }
        view.state = worse(view.state, status.state);
        view.keys_done += status.keys_done;
        view.keys_total += status.keys_total;
        view.copied_bytes += status.copied_bytes;
        view.repaired += status.repaired;
        view.failed_requests += status.failed_requests;
    }
    if known.is_gone && view.state == MemberState::In {
        LAST_GONE.clone_into(&mut view.reason);
    }
    if view.state == MemberState::Resyncing && view.keys_total > 0 {
        view.progress = Some((view.keys_done as f64 / view.keys_total as f64).min(1.0));
        view.seconds_left = known.progress.seconds_left(view.keys_total);
    }
    view
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_array::{Mechanism, MemberStatus};

    fn known(path: &str) -> Known {
        Known {
            path: path.to_owned(),
            superblock: None,
            identity: None,
            is_gone: false,
            told: MemberState::In,
            progress: Progress::default(),
        }
    }

    fn reported(states: [(MemberState, &str); 2]) -> ArrayStatus {
        let member = |(state, reason): (MemberState, &str)| MemberStatus {
            name: "old".to_owned(),
            id: [0; 16],
            state,
            reason: reason.to_owned(),
            keys_done: 10,
            keys_total: 40,
            copied_bytes: 7,
            repaired: 1,
            failed_requests: 2,
            is_there: true,
            holds_last: false,
        };
        let members = states.map(member).to_vec();
        ArrayStatus {
            members,
            unsettled: 3,
            packing_waiting: 7,
            sets_loose: 2,
            picks: Vec::new(),
            keys_moved: 4,
            values_kept: 3,
            keys_scrubbed: 5,
            keys_to_scrub: 20,
            scrub_errors: 1,
            scrubbing: false,
        }
    }

    #[test]
    fn a_member_is_as_it_is_in_its_worst_partition() {
        use MemberState::{In, Out, Resyncing};
        let options = ArrayOptions {
            policy: Mechanism::Replication { copies: 2 }.into(),
            degraded: false,
            rebuild_bytes_per_s: 0,
            stateless: false,
        };
        let reports = BTreeMap::from([
            (0, reported([(In, ""), (Resyncing, "rebuilt")])),
            (1, reported([(Out, "it failed"), (In, "")])),
        ]);
        let view = view(&options, 2, &reports, (&[known("a"), known("b")], &Progress::default()));
        let [a, b] = view.members.as_slice() else { panic!("two members") };
        assert_eq!((a.state, a.reason.as_str(), a.progress), (Out, "it failed", None));
        assert_eq!((b.state, b.progress, b.copied_bytes, b.repaired), (Resyncing, Some(0.25), 14, 2));
        assert_eq!((view.unsettled, view.scrub.keys, view.scrub.running), (6, 10, false));
        assert_eq!((view.packing_waiting, view.sets_loose), (14, 4));
        assert_eq!((view.keys_moved, view.values_kept), (8, 6));
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["mechanism"], "replication 2");
        assert_eq!(
            (json["members"][0]["state"].as_str(), json["members"][1]["device"].as_str()),
            (Some("out"), Some("b"))
        );
    }

    #[test]
    fn a_scrub_tells_how_far_it_is_while_it_runs() {
        let mut reports = BTreeMap::from([(0, reported([(MemberState::In, ""); 2]))]);
        let mut seen = Progress::default();
        seen.note(0.0, Some(0));
        seen.note(1.0, Some(5));
        let told = |view: ScrubView| (view.keys, view.keys_total, view.progress, view.seconds_left);
        assert_eq!(told(scrub(&reports, &seen)), (5, 20, None, None), "the last one");
        reports.get_mut(&0).unwrap().scrubbing = true;
        assert_eq!(told(scrub(&reports, &seen)), (5, 20, Some(0.25), Some(3)));
        assert_eq!(told(scrub(&reports, &Progress::default())), (5, 20, Some(0.25), None));
        reports.get_mut(&0).unwrap().keys_scrubbed = 20;
        assert_eq!(told(scrub(&reports, &seen)), (20, 20, Some(1.0), None), "sets are not counted");
    }
}
