//! What an array picked, over all its partitions: each picks by itself.
//!
//! Invariant: told is what most partitions have that were asked for such values, and why by the numbers of
//! the one that was asked most.

use plimsoll_array::{ArrayStatus, Pick};
use serde::Serialize;
use std::collections::BTreeMap;

/// What values of some lengths get.
#[derive(Debug, PartialEq, Serialize)]
pub(in crate::serve) struct PickView {
    /// The longest; nothing: without an end.
    pub(in crate::serve) value_bytes_max: Option<u64>,
    pub(in crate::serve) mechanism: String,
    /// Partitions that have picked it, of those that have been asked for such values.
    pub(in crate::serve) partitions: usize,
    pub(in crate::serve) partitions_asked: usize,
    /// Operations that they judge by.
    pub(in crate::serve) operations: u64,
    /// Of a hundred of them.
    pub(in crate::serve) stores_percent: u8,
    pub(in crate::serve) updates_percent: u8,
    pub(in crate::serve) retrieves_percent: u8,
    pub(in crate::serve) deletes_percent: u8,
    pub(in crate::serve) choices: Vec<ChoiceView>,
}

/// What a mechanism would cost there.
#[derive(Debug, PartialEq, Serialize)]
pub(in crate::serve) struct ChoiceView {
    pub(in crate::serve) mechanism: String,
    /// Bytes on devices for a hundred of values.
    pub(in crate::serve) space_percent: u64,
    /// Time of one device for a mean operation: a comparison.
    pub(in crate::serve) device_ns: u64,
}

/// What is picked for the lengths that anybody was asked for.
pub(super) fn picks(reports: &BTreeMap<u16, ArrayStatus>) -> Vec<PickView> {
    let classes = reports.values().map(|status| status.picks.len()).max().unwrap_or(0);
    (0..classes).filter_map(|class| merged(reports, class)).collect()
}

fn merged(reports: &BTreeMap<u16, ArrayStatus>, class: usize) -> Option<PickView> {
    let asked = reports.values().filter_map(|status| status.picks.get(class));
    let asked: Vec<&Pick> = asked.filter(|pick| pick.operations > 0).collect();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    asked.iter().for_each(|pick| *counts.entry(pick.mechanism.to_string()).or_default() += 1);
    let (mechanism, partitions) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let most = asked.iter().max_by_key(|pick| pick.operations)?;
    let [stores_percent, updates_percent, retrieves_percent, deletes_percent] = most.mix_percent;
    let choice = |cost: &plimsoll_array::Estimate| ChoiceView {
        mechanism: cost.mechanism.to_string(),
        space_percent: cost.space_percent,
        device_ns: cost.device_ns,
    };
    Some(PickView {
        value_bytes_max: most.value_bytes_max,
        mechanism,
        partitions,
        partitions_asked: asked.len(),
        operations: asked.iter().map(|pick| pick.operations).sum(),
        stores_percent,
        updates_percent,
        retrieves_percent,
        deletes_percent,
        choices: most.choices.iter().map(choice).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_array::{Estimate, Mechanism};

    fn status(picks: Vec<Pick>) -> ArrayStatus {
        ArrayStatus {
            members: Vec::new(),
            unsettled: 0,
            packing_waiting: 0,
            sets_loose: 0,
            picks,
            keys_moved: 0,
            values_kept: 0,
            keys_scrubbed: 0,
            keys_to_scrub: 0,
            scrub_errors: 0,
            scrubbing: false,
        }
    }

    #[test]
    fn most_partitions_are_told_and_the_numbers_of_the_busiest() {
        let pick = |mechanism, operations| Pick {
            value_bytes_max: Some(512),
            mechanism,
            operations,
            mix_percent: [40, 30, 20, 10],
            choices: vec![Estimate { mechanism, space_percent: 300, device_ns: operations }],
        };
        let (copies, hashing) = (Mechanism::Replication { copies: 3 }, Mechanism::Hashing);
        let each = [(copies, 10), (hashing, 99), (copies, 20), (hashing, 0)];
        let reports = each.into_iter().enumerate();
        let reports: BTreeMap<u16, ArrayStatus> =
            reports.map(|(number, (it, count))| (number as u16, status(vec![pick(it, count)]))).collect();
        let told = picks(&reports);
        let [only] = told.as_slice() else { panic!("one length: {told:?}") };
        assert_eq!(
            (only.mechanism.as_str(), only.partitions, only.partitions_asked),
            ("replication 3", 2, 3)
        );
        assert_eq!((only.operations, only.stores_percent, only.choices[0].device_ns), (129, 40, 99));
        assert_eq!(picks(&BTreeMap::from([(0, status(Vec::new()))])), Vec::new());
    }
}
