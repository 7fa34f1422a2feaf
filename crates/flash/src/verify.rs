//! Verifying a device that is not in use: every live record is read and proved.
//!
//! Place on the path: none; `plimsoll device verify`. Segment after segment, so that the device is
//! read in order. Invariants: nothing is written; what is live and could not be proved is counted,
//! found by what the segment table says should be there.

use crate::device::{DeviceError, inspect};
use crate::format::record::{self, verify_value};
use crate::format::{RecordKind, UNIT_BYTES};
use crate::layout::Layout;
use crate::recover::{OpenError, recover};
use crate::state::State;
use crate::walk::{read_segment, record_locations};
use plimsoll_kv::Block;
use plimsoll_kv::block::Origin;

/// Findings kept as text; more are only counted.
const FINDINGS_MAX: usize = 100;

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Live records read and proved.
    pub records: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes of live records that could not be proved.
    pub damaged_bytes: u64,
    /// What is damaged and where: the first hundred findings.
    pub findings: Vec<String>,
}

/// Why a verification could not be done.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A partition cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl VerifyReport {
    fn find(&mut self, what: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(what);
        }
    }
}

/// Verifies a device; `progress` is told the bytes read and the bytes there are.
///
/// # Errors
/// It is no device of ours, or a partition is too damaged to be opened.
pub async fn verify(
    block: &dyn Block,
    mut progress: impl FnMut(u64, u64),
) -> Result<VerifyReport, VerifyError> {
    let superblock = inspect(block).await?;
    let mut report = VerifyReport::default();
    let total = u64::from(superblock.partitions)
        * u64::from(superblock.segments_per_partition)
        * u64::from(superblock.segment_bytes);
    let mut done = 0;
    for partition in 0..superblock.partitions {
        let layout = Layout::new(&superblock, partition);
        let recovered = recover(block, layout).await?;
        for segment in 0..layout.segments {
            if recovered.state.segments.get(segment).live_units > 0 {
                verify_segment(block, &layout, &recovered.state, segment, &mut report).await;
            }
            done += layout.segment_bytes;
            progress(done, total);
        }
    }
    Ok(report)
}

async fn verify_segment(
    block: &dyn Block,
    layout: &Layout,
    state: &State,
    segment: u32,
    report: &mut VerifyReport,
) {
    let info = state.segments.get(segment).clone();
    let place = format!("partition {}, segment {segment}", layout.partition);
    let bytes = match read_segment(block, layout, segment, Origin::FOREGROUND).await {
        Ok(bytes) => bytes,
        Err(error) => {
            report.damaged_bytes += info.live_units * UNIT_BYTES;
            return report.find(format!("{place}: {error}"));
        }
    };
    let (mut proved_units, mut headless) = (0, Vec::new());
    for location in record_locations(block, layout, segment, &info, &bytes).await {
        let at = ((location - u64::from(segment) * layout.segment_units()) * UNIT_BYTES) as usize;
        let offset = layout.device_offset(location);
        match record::verify_head(&bytes[at..], info.sequence, location) {
            // Whether it is live cannot be told before all others have been looked at.
            Err(error) => headless.push(format!("{place}, device offset {offset}: {error}")),
            Ok(header) if !is_live(state, layout, &bytes[at..], &header, location) => {}
            Ok(header) => match verify_value(&bytes[at..], &header) {
                Err(error) => {
                    let of = named(&bytes[at..], &header);
                    report.find(format!("{place}, device offset {offset}, {of}: {error}"));
                }
                Ok(_) => {
                    proved_units += header.record_bytes() / UNIT_BYTES;
                    report.records += 1;
                    report.bytes += header.record_bytes();
                }
            },
        }
    }
    let missing = info.live_units.saturating_sub(proved_units) * UNIT_BYTES;
    if missing > 0 {
        headless.into_iter().for_each(|what| report.find(what));
        report.damaged_bytes += missing;
        report.find(format!("{place}: {missing} bytes of live records cannot be proved"));
    }
}

/// Bytes of a key that a finding quotes.
const QUOTED_BYTES_MAX: usize = 64;

/// What a record whose head is proved holds.
fn named(bytes: &[u8], header: &record::RecordHeader) -> String {
    let key = record::key(bytes, header);
    match header.kind {
        RecordKind::Part => "a part of a long value".to_owned(),
        _ => format!("key \"{}\"", key[..key.len().min(QUOTED_BYTES_MAX)].escape_ascii()),
    }
}

/// True if index or uploads point to this record, or something keeps it.
fn is_live(
    state: &State,
    layout: &Layout,
    bytes: &[u8],
    header: &record::RecordHeader,
    location: u64,
) -> bool {
    let key = record::key(bytes, header);
    if header.kind == RecordKind::Part {
        return state.uploads.is_held(location, (header.record_bytes() / UNIT_BYTES) as u32);
    }
    let fingerprint = layout.fingerprint(header.container, key);
    state.index.contains(plimsoll_kv::Slot(header.slot), fingerprint, location)
        || state.kept.is_kept(location)
}
