//! Requests of small cases, counted by hand.

use super::*;
use crate::experiments::device::Kind;
use std::collections::BTreeSet;

const CHUNK: u64 = 4 * KIB;

fn layout(level: Level, chunk_bytes: u64) -> Layout {
    Layout { level, chunk_bytes }
}

/// Reads and writes that a write of so many chunks from some chunk on takes.
fn counted(level: Level, first: u64, chunks: u64) -> (usize, usize) {
    let steps = layout(level, CHUNK).write(first * CHUNK, chunks * CHUNK);
    (steps.reads.len(), steps.writes.len())
}

#[test]
fn no_two_blocks_lie_in_one_place_and_no_two_of_a_stripe_on_one_device() {
    for (_, level) in LEVELS {
        let layout = layout(level, CHUNK);
        let mut taken = BTreeSet::new();
        for stripe in 0..12 {
            let of_stripe: BTreeSet<usize> =
                (0..layout.data() + layout.parities()).map(|index| layout.device(stripe, index)).collect();
            assert_eq!(of_stripe.len(), layout.data() + layout.parities(), "{level:?}");
            for index in 0..layout.data() {
                let at = (stripe * layout.data() as u64 + index as u64) * CHUNK;
                assert!(taken.insert(layout.read(at, CHUNK).reads[0]), "{level:?}");
            }
        }
    }
}

#[test]
fn parities_go_around_but_those_of_raid_4() {
    let of = |level: Level| (0..6).map(|stripe| layout(level, CHUNK).device(stripe, 5)).collect::<Vec<_>>();
    assert_eq!(of(Level::Raid4), [5; 6]);
    assert_eq!(of(Level::Raid5), [5, 4, 3, 2, 1, 0]);
    let first = |stripe| layout(Level::Raid6, CHUNK).device(stripe, 4);
    assert_eq!((0..6).map(first).collect::<Vec<_>>(), [5, 4, 3, 2, 1, 0]);
    assert_eq!((0..6).map(|stripe| layout(Level::Raid6, CHUNK).device(stripe, 5)).max(), Some(5));
    // Left symmetric: data begins behind the parities.
    assert_eq!(
        (0..5).map(|index| layout(Level::Raid5, CHUNK).device(1, index)).collect::<Vec<_>>(),
        [5, 0, 1, 2, 3]
    );
    assert_eq!(layout(Level::Raid6, CHUNK).device(1, 0), 0);
}

#[test]
fn what_reads_less_is_taken() {
    // Without parities nothing is read.
    assert_eq!(counted(Level::Striping, 0, 1), (0, 1));
    assert_eq!(counted(Level::Mirror, 0, 1), (0, 3));
    // The old block and the old parity, one each of RAID 6: three that stay would be as many, and are taken.
    assert_eq!(counted(Level::Raid5, 0, 1), (2, 2));
    assert_eq!(counted(Level::Raid4, 3, 1), (2, 2));
    assert_eq!(counted(Level::Raid6, 0, 1), (3, 3));
    // Four of five are written: one stays, instead of five that are old.
    assert_eq!(counted(Level::Raid5, 0, 4), (1, 5));
    assert_eq!(counted(Level::Raid6, 0, 2), (2, 4));
    // Whole stripes read nothing, and three of them lie side by side.
    assert_eq!(counted(Level::Raid5, 0, 5), (0, 6));
    assert_eq!(counted(Level::Raid6, 0, 12), (0, 6));
    // Sixteen chunks: three whole stripes and a chunk, which with its parity lies behind what is written
    // anyway.
    assert_eq!(counted(Level::Raid5, 0, 16), (2, 6));
}

#[test]
fn parts_of_chunks_take_the_same_part_of_the_parity() {
    let steps = layout(Level::Raid5, 256 * KIB).write(260 * KIB, 4 * KIB);
    let at = |device| Extent { device, offset: 4 * KIB, bytes: 4 * KIB };
    assert_eq!((steps.reads, steps.writes), (vec![at(1), at(5)], vec![at(1), at(5)]));
}

#[test]
fn small_chunks_make_many_requests_of_a_block() {
    let reads = |level, chunk_bytes| layout(level, chunk_bytes).read(0, 64 * KIB).reads.len();
    assert_eq!(reads(Level::Striping, 256 * KIB), 1);
    assert_eq!(reads(Level::Striping, CHUNK), 6);
    assert_eq!(reads(Level::Mirror, CHUNK), 2);
    // Sixteen chunks over four stripes: where the parity lies between, a device is asked twice.
    assert_eq!(reads(Level::Raid4, CHUNK), 5);
    assert_eq!(reads(Level::Raid5, CHUNK), 8);
}

#[test]
fn blocks_that_follow_each_other_are_whole_stripes_if_enough_are_outstanding() {
    let window =
        |level, chunk_kib, block_kib| layout(level, chunk_kib * KIB).window_bytes(block_kib * KIB) / KIB;
    assert_eq!((window(Level::Striping, 4, 1), window(Level::Mirror, 256, 64)), (96, 512));
    assert_eq!(window(Level::Raid5, 4, 1), 80, "96 blocks are outstanding, four stripes are 80");
    assert_eq!(window(Level::Raid5, 256, 1), 64, "and no stripe of 1280");
    assert_eq!(window(Level::Raid5, 256, 64), 1280);
    assert_eq!(window(Level::Raid6, 4, 64), 1024, "256 KiB of each device at most");
}

/// Where requests weigh all, throughput follows their number.
#[test]
fn shares_follow_from_requests() {
    let model = Model { request_ns: 20_000, bytes_per_us: 1_000_000 };
    let shares = |level, chunk_bytes| {
        run(move |reactor| async move {
            let raid = Raid::new(&reactor, model, layout(level, chunk_bytes));
            raid.each_operation(&reactor, 4 * KIB, 1).await.map(|it| it.per_s / (6.0 * 1e9 / 20_000.0))
        })
    };
    let near = |is: f64, should: f64| assert!((is / should - 1.0).abs() < 0.06, "{is} for {should}");
    let [_, _, write, read] = shares(Level::Mirror, 256 * KIB);
    near(write, 1.0 / 3.0);
    near(read, 1.0);
    let [_, _, write, read] = shares(Level::Raid5, 256 * KIB);
    near(write, 1.0 / 4.0);
    near(read, 1.0);
    near(shares(Level::Raid6, 256 * KIB)[2], 1.0 / 6.0);
    // The device of parities has two of the four requests of each write, reads and writes nothing else.
    near(shares(Level::Raid4, 256 * KIB)[2], 1.0 / 12.0);
}

#[test]
fn a_rebuild_takes_what_the_new_device_takes_to_be_written() {
    let model = MODELS[1];
    let units = 400;
    let writes_ns = model.cost_ns(units as f64, (units * REBUILT_BYTES) as f64);
    for level in [Level::Mirror, Level::Raid5, Level::Raid6] {
        let ratio = rebuild_ns(model, level, units * REBUILT_BYTES) as f64 / writes_ns;
        assert!((1.0..1.1).contains(&ratio), "{level:?}: {ratio}");
    }
    let steps = rebuild_of(layout(Level::Raid6, REBUILT_BYTES), 3);
    let of: BTreeSet<usize> = steps.reads.iter().map(|extent| extent.device).collect();
    assert_eq!((of.len(), of.contains(&0), steps.writes.len()), (4, false, 1));
}
