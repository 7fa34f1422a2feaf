//! Tests of picking: however tables come, runs stay few and names are not written too often.

use super::*;

/// Flushes tables of so many bytes and merges what is picked; the most runs there were between,
/// and how many times a byte was written.
fn grow(tables: u64, bytes: u64) -> (usize, f64) {
    let mut runs: Vec<Weight> = Vec::new();
    let (mut most, mut written) = (0, 0);
    for _ in 0..tables {
        runs.push(Weight { bytes, names: bytes / 25, deleted: 0 });
        written += bytes;
        while let Some(picked) = pick_all(&runs).or_else(|| pick(&runs)) {
            let bytes: u64 = runs[picked.clone()].iter().map(|run| run.bytes).sum();
            written += bytes;
            runs.splice(picked, [Weight { bytes, names: bytes / 25, deleted: 0 }]);
        }
        most = most.max(runs.len());
    }
    (most, written as f64 / (tables * bytes) as f64)
}

#[test]
fn twenty_million_keys_stay_in_few_runs() {
    // 20 million keys of some 25 bytes in tables of 40 000 keys.
    let (most, written) = grow(500, 1 << 20);
    assert!(most <= 15, "{most} runs");
    assert!(written < 6.0, "written {written} times");
    // The same on one of four partitions.
    let (most, written) = grow(125, 1 << 20);
    assert!(most <= 12 && written < 5.0, "{most} runs, written {written} times");
}

#[test]
fn neighbours_alone_are_merged() {
    let runs = |bytes: &[u64]| -> Vec<Weight> {
        bytes.iter().map(|mib| Weight { bytes: mib << 20, names: 1, deleted: 0 }).collect()
    };
    assert_eq!(pick(&runs(&[])), None);
    assert_eq!(pick(&runs(&[1, 1, 1])), None);
    assert_eq!(pick(&runs(&[1, 1, 1, 1])), Some(0..4));
    assert_eq!(pick(&runs(&[100, 100, 1, 1, 1, 1])), Some(2..6));
    assert_eq!(pick(&runs(&[100, 5, 5, 5, 5, 1, 1])), Some(1..5));
    // A short run below a longer one goes with it.
    assert_eq!(pick(&runs(&[100, 1, 5, 5, 5, 1])), Some(1..5));
}

#[test]
fn many_deletes_are_a_reason_to_merge_everything() {
    let old = Weight { bytes: 100 << 20, names: 100_000, deleted: 0 };
    let few = Weight { bytes: 1 << 20, names: 30_000, deleted: 30_000 };
    let many = Weight { bytes: 1 << 20, names: 40_000, deleted: 40_000 };
    assert_eq!(pick_all(&[old, few]), None);
    assert_eq!(pick_all(&[old, many]), Some(0..2));
    assert_eq!(pick_all(&[many]), None);
    // Too many for one merge: tiers first, for deletes are in the newest.
    assert_eq!(pick_all(&[many; MERGE_RUNS_MAX + 1]), None);
    assert_eq!(pick(&[many; MERGE_RUNS_MAX + 1]), Some(0..MERGE_RUNS_MAX));
}
