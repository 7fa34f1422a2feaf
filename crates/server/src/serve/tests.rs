//! Metrics and process numbers, as text.

use super::*;
use crate::counters::Gauges;
use plimsoll_kv::Durability;
use std::collections::BTreeSet;

fn shared() -> Shared {
    let settings = Settings {
        durability: Durability::Sync,
        on_full: plimsoll_flash::OnFull::Error,
        devices: Vec::new(),
        policy: None,
        parameters: crate::parameters::Values::default(),
        budget: crate::budget::Budget::NOT_GIVEN,
        debug_command: crate::config::DebugCommand::No,
        password: None,
        tls: None,
        data_dir: String::new(),
        config_file: None,
        run_id: String::new(),
        started_ms: 0,
        process_id: 1,
        driver: plimsoll_reactor::DriverKind::Uring,
    };
    Shared::new(settings, Geometry { partitions: 2, value_bytes_max: 1, part_bytes: 1 }, 2)
}

#[test]
fn every_metric_is_declared_once_and_before_its_samples() {
    let shared = shared();
    for label in ["partition=\"0\"", "partition=\"1\"", "core=\"0\""] {
        shared.add_gauges(Gauges::new(label.to_owned(), &["objects", "reads"])).publish(&[3, 4]);
    }
    let append = crate::command::slot_of(crate::command::find(b"append").unwrap());
    shared.cores[1].commands[append].ran(1_500_000, true);
    shared.loads.set(vec![plimsoll_reactor::Load::default(); 2]).unwrap();
    let text = metrics::render(&shared, None);
    let mut declared = BTreeSet::new();
    let mut samples = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(declared.insert(rest.split(' ').next().unwrap().to_owned()), "{line}");
        } else if !line.starts_with('#') {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(samples.insert(sample.to_owned()), "{line} stands there twice");
            let name = sample.split('{').next().unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(declared.contains(name) || declared.contains(base.unwrap_or("")), "{line}");
        }
    }
    assert!(samples.contains("plimsoll_partition_objects{partition=\"1\"}"));
    assert!(text.contains("plimsoll_command_seconds_bucket{command=\"append\",le=\"0.001\"} 0\n"));
    assert!(text.contains("plimsoll_command_seconds_bucket{command=\"append\",le=\"0.0025\"} 1\n"));
    assert!(text.contains("plimsoll_device_reads_total{core=\"0\"} 4\n"), "{text}");
}

#[test]
fn a_partition_that_failed_is_named() {
    let shared = shared();
    for (label, failed) in [("partition=\"0\"", 0), ("partition=\"1\"", 1)] {
        shared.add_gauges(Gauges::new(label.to_owned(), &["read_only"])).publish(&[failed]);
    }
    assert_eq!(metrics::labels_above_zero(&shared, "read_only"), ["partition=\"1\""]);
    assert!(metrics::labels_above_zero(&shared, "other").is_empty());
}

#[test]
fn the_process_is_measured() {
    let stat = "42 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
    assert_eq!(process::processor_ms(stat, 100), Some((2500, 500)));
    assert_eq!(process::processor_ms("", 100), None);
    let shared = shared();
    process::measure(&shared.process);
    assert!(shared.process.resident_bytes.load(std::sync::atomic::Ordering::Relaxed) > 1 << 20);
}
