//! KVMD's experiments over the flash engine, on drives that do so many requests and bytes a second.
//!
//! Role: what each mechanism costs as users run it: many records go to a drive with one request, so what
//! counts of a store is its bytes, beside those that it has to write (`records`); and what space values take.
//! Place: `plimsoll sim run kvmd-flash`. The same over modelled KV devices: `kvmd`.
//!
//! Invariant: a space is looked at when nothing waits to be packed, regrouped or given up any more.

use super::drive::{Drive, Engine};
use super::kvmd::{
    DEVICES, KIB, Keys, MECHANISMS, Setup, Sizes, each_operation, options, run, shares, shown,
};
use super::load::{CLIENTS, Measured};
use super::records::{Written, listed};
use super::{Report, Table};
use plimsoll_array::Mechanism;

/// Drives whose bytes are dear, and whose requests are.
const DRIVES: [Drive; 2] =
    [Drive { requests_per_s: 50_000, mb_per_s: 200 }, Drive { requests_per_s: 5_000, mb_per_s: 200 }];
const SIZES: [u64; 4] = [KIB, 4 * KIB, 16 * KIB, 64 * KIB];
/// Bytes of values of one measurement, and keys at most.
const STORED_BYTES: u64 = 96 << 20;
const KEYS_MAX: u64 = 8_000;
/// How long all must stay the same to have settled: longer than what goes on in the background rests.
const SETTLED_NS: u64 = 1_500_000_000;

/// What stands on the drives, and what was written there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Space {
    /// Bytes of live records.
    live_bytes: u64,
    /// Bytes of segments in use: live, dead, and not yet written.
    used_bytes: u64,
    /// Bytes written so far.
    written_bytes: u64,
}

impl Space {
    fn of(setup: &Setup<Engine>) -> Space {
        setup.devices.iter().fold(Space::default(), |all, device| {
            let metrics = device.metrics();
            let segment_bytes = metrics.capacity_bytes / metrics.segments;
            Space {
                live_bytes: all.live_bytes + metrics.live_bytes,
                used_bytes: all.used_bytes + (metrics.segments - metrics.free_segments) * segment_bytes,
                written_bytes: all.written_bytes + device.stats().written_bytes,
            }
        })
    }

    /// When what goes on in the background has ended: a few values that find no others to be packed with wait
    /// on, as copies.
    async fn settled(setup: &Setup<Engine>) -> Space {
        let now = || (Space::of(setup), setup.waiting());
        let mut before = now();
        loop {
            setup.reactor.sleep_ns(SETTLED_NS).await;
            let now = now();
            if now == before {
                return now.0;
            }
            before = now;
        }
    }
}

impl Setup<Engine> {
    /// Values that wait to be packed, and sets that wait to be regrouped.
    fn waiting(&self) -> (u64, u64) {
        let status = self.has_array().then(|| self.array().status());
        status.map_or((0, 0), |status| (status.packing_waiting, status.sets_loose))
    }
}

/// A mechanism on drives of a kind, with values of one length.
struct Outcome {
    mechanism: Option<Mechanism>,
    value_bytes: u64,
    count: u64,
    /// Store, update, retrieve, delete.
    measured: [Measured; 4],
    space: [Space; 4],
}

impl Outcome {
    fn of(
        drive: Drive,
        mechanism: Option<Mechanism>,
        (value_bytes, count): (u64, u64),
        seed: u64,
    ) -> Outcome {
        let load = (Sizes::All(value_bytes), count, Keys { seed });
        let array = mechanism.map(|mechanism| options(mechanism.into(), 0));
        let all = run(|reactor| each_operation(reactor, drive, array.clone(), load, Space::settled));
        let (measured, space) = (all.map(|(measured, _)| measured), all.map(|(_, space)| space));
        Outcome { mechanism, value_bytes, count, measured, space }
    }

    fn user_bytes(&self) -> f64 {
        (self.count * self.value_bytes) as f64
    }

    /// Stores and their bytes: for each of the user's what has to be written and what was; the share of none,
    /// the one that these bytes allow, and how much of that is reached; and what the bytes that have to be
    /// written are of those that the drives can write.
    fn stored_row(&self, drive: Drive, plain: &Outcome) -> Vec<f64> {
        let must = Written::by(self.mechanism, self.value_bytes).per_byte();
        let plain_must = Written::by(None, self.value_bytes).per_byte();
        let written = self.space[0].written_bytes as f64 / self.user_bytes();
        let per_s = self.measured[0].per_s;
        let (share, allowed) = (per_s / plain.measured[0].per_s, plain_must / must);
        let of_drives =
            per_s * self.value_bytes as f64 * must / (DEVICES as f64 * drive.bytes_per_s() as f64);
        vec![per_s, must, written, share, allowed, share / allowed, of_drives]
    }

    /// Updates and deletes a second, by stores of new keys.
    fn own_row(&self) -> Vec<f64> {
        let [store, update, _, delete] = self.measured.each_ref().map(|measured| measured.per_s);
        vec![store, update / store, delete / store]
    }

    /// The space of the user's bytes, as multiples of what the mechanism's redundancy takes by itself.
    fn space_row(&self) -> Vec<f64> {
        let ideal = self.mechanism.map_or(1.0, |mechanism| 1.0 / mechanism.cost().space);
        let of_ideal = |bytes: u64| bytes as f64 / self.user_bytes() / ideal;
        let kept = Written::by(self.mechanism, self.value_bytes).kept() / ideal;
        let [stored, updated, ..] = &self.space;
        let each = [stored.live_bytes, updated.live_bytes, stored.used_bytes, updated.used_bytes];
        [ideal, kept].into_iter().chain(each.map(of_ideal)).collect()
    }
}

/// None, and the mechanisms.
fn mechanisms() -> Vec<(&'static str, Option<Mechanism>)> {
    let each = MECHANISMS.into_iter().map(|(name, mechanism)| (name, Some(mechanism)));
    std::iter::once(("none", None)).chain(each).collect()
}

/// K2 and K3 over the flash engine; the bytes of stores; space.
pub(super) fn mechanisms_on_drives(seed: u64) -> Report {
    let count = |bytes: u64| (STORED_BYTES / bytes).min(KEYS_MAX);
    let mut tables = vec![listed(&mechanisms(), &SIZES)];
    for drive in DRIVES {
        let of_size = |bytes: u64| {
            let each = mechanisms().into_iter();
            each.map(|(name, by)| (name, Outcome::of(drive, by, (bytes, count(bytes)), seed))).collect()
        };
        let sizes: Vec<Vec<(&str, Outcome)>> = SIZES.map(of_size).into();
        tables.push(stored(drive, &sizes));
        tables.extend(sizes.iter().map(|outcomes| operations(drive, outcomes)));
        tables.push(own(drive, &sizes));
        // It is the same on all of them.
        if drive == DRIVES[0] {
            tables.push(space(&sizes));
        }
    }
    Report { seed, conditions: conditions(), tables }
}

fn operations(drive: Drive, outcomes: &[(&str, Outcome)]) -> Table {
    let plain = &outcomes[0].1;
    let row = |(name, outcome): &(&str, Outcome)| {
        ((*name).to_owned(), shares(drive, &outcome.measured, &plain.measured))
    };
    let title = format!("values of {} KiB; {drive}", plain.value_bytes / KIB);
    shown(title, outcomes.iter().map(row).collect())
}

/// A row for each mechanism and length.
fn rows(
    sizes: &[Vec<(&str, Outcome)>],
    of: impl Fn(&Outcome, &Outcome) -> Vec<f64>,
) -> Vec<(String, Vec<f64>)> {
    let row = |(name, outcome): &(&str, Outcome), plain| {
        (format!("{name}, {} KiB", outcome.value_bytes / KIB), of(outcome, plain))
    };
    sizes.iter().flat_map(|outcomes| outcomes.iter().map(|it| row(it, &outcomes[0].1))).collect()
}

fn stored(drive: Drive, sizes: &[Vec<(&str, Outcome)>]) -> Table {
    let columns =
        ["stores", "a second", "must write", "written", "share", "allowed", "of allowed", "of the drives"];
    let title = format!(
        "stores, and their bytes for each of the user's; allowed: the share that what must be written leaves; \
         of the drives: of the bytes that they can write; {drive}"
    );
    let rows = rows(sizes, |outcome, plain| outcome.stored_row(drive, plain));
    Table { title, columns: columns.map(str::to_owned).to_vec(), rows, plotted: vec![5, 6] }
}

fn own(drive: Drive, sizes: &[Vec<(&str, Outcome)>]) -> Table {
    let columns = ["of its own stores", "stores a second", "updates", "deletes"].map(str::to_owned).to_vec();
    let title = format!("updates and deletes by stores of new keys; {drive}");
    let rows = rows(sizes, |outcome, _| outcome.own_row());
    Table { title, columns, rows, plotted: Vec::new() }
}

fn space(sizes: &[Vec<(&str, Outcome)>]) -> Table {
    let columns = ["space", "ideal", "must keep", "live", "updated", "segments", "updated"];
    let title = "space by the bytes of the user's values; then of that ideal: what must be kept by the \
                 formats, live records when all is stored, and updated once; segments in use, which nothing \
                 cleans before there is need";
    let rows = rows(sizes, |outcome, _| outcome.space_row());
    let columns = columns.map(str::to_owned).to_vec();
    Table { title: title.to_owned(), columns, rows, plotted: vec![1, 2, 3] }
}

fn conditions() -> String {
    format!(
        "simulated: the array and the flash engine of the product, each device an engine on a drive that is held to so \
         many requests and bytes a second, {DEVICES} of them in virtual time; {CLIENTS} clients, durability sync; keys of 16 \
         bytes, at most {KEYS_MAX} of them and {} MiB of values",
        STORED_BYTES >> 20
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bars of stores over the engine and of space, on the drive whose bytes are dear.
    #[test]
    fn stores_are_limited_by_what_they_must_write_and_take_little_more_than_the_ideal() {
        let (drive, load) = (DRIVES[0], (16 * KIB, 2000));
        let outcomes = mechanisms().into_iter().map(|(name, by)| (name, Outcome::of(drive, by, load, 1)));
        let outcomes: Vec<_> = outcomes.collect();
        for (name, outcome) in &outcomes {
            let row = outcome.stored_row(drive, &outcomes[0].1);
            let [_, must, written, _, _, of_allowed, of_drives] = row[..] else { panic!("{row:?}") };
            assert!(of_allowed >= 0.9 && of_drives >= 0.9, "{name}: {row:?}");
            assert!(written >= must && written <= 1.1 * must, "{name}: {row:?}");
            let row = outcome.space_row();
            let [_, must_keep, live, updated, ..] = row[..] else { panic!("{row:?}") };
            assert!(live <= 1.05 && (must_keep..1.02 * must_keep).contains(&live), "{name}: {row:?}");
            assert!(updated <= 1.08, "few values, and a journal as long as that of many: {name}: {row:?}");
            let [_, update, _, delete] = &outcome.measured;
            assert!(update.requests < 0.5, "known keys are not read: {name}: {update:?}");
            assert!(delete.requests < 0.1, "nor when they are deleted: {name}: {delete:?}");
        }
    }

    /// The bar of updates and deletes by packing, where stores are the quickest, on both drives.
    #[test]
    fn packed_values_are_updated_and_deleted_half_as_fast_as_they_are_stored() {
        let mut each = MECHANISMS.into_iter().map(|(_, mechanism)| mechanism);
        let packing = each.rfind(|mechanism| matches!(mechanism, Mechanism::Packing { .. }));
        for drive in DRIVES {
            let row = Outcome::of(drive, packing, (KIB, KEYS_MAX), 1).own_row();
            assert!(row[1] >= 0.5 && row[2] >= 0.5, "{drive}: {row:?}");
        }
    }
}
