//! The picker: which mechanism serves values of a length best, by what is done with them.
//!
//! Role: looks on what is stored, overwritten, read and deleted, by classes of lengths, and says for each
//! class which of the mechanisms that its policy allows it gets. Place on the path: asked when a value is
//! stored. Source: KVMD (FAST'20) leaves it open ("Picking RM"); `docs/rfcs/2026-11-23-picker.md`.
//!
//! Invariants:
//! * every mechanism that it picks is one that its policy names: all survive as many failures;
//! * it never flaps: a class changes only if the other mechanism is better by `GAIN` in as many looks one
//!   after the other as `LOOKS`, and then not again before `SETTLED` operations;
//! * what it has not seen it does not judge: before enough operations a class has what a common mixture
//!   would get, and nothing is moved for it.
//!
//! Never: it counts what it is not asked for; reads that a cache above answers cost devices nothing.

use crate::array::{Array, Place};
use crate::costs::{Mix, load, space};
use crate::mechanism::Mechanism;
use crate::policy::{Choice, Goal};
use crate::speed::{Speed, Timed};
use plimsoll_kv::{Class, Device};
use plimsoll_reactor::Reactor;
use std::cell::Cell;
use std::rc::Rc;

/// Values of class 0 have up to so many bytes; each class has twice those of the one before.
const FIRST_BYTES: u64 = 512;
const CLASSES: usize = 14;
/// Operations between two looks at a class.
const LOOK: u32 = 256;
/// Looks that have to say the same.
const LOOKS: u32 = 2;
/// How much better the other has to be.
const GAIN: f64 = 1.1;
/// Mechanisms that need so much more space than the one with least are taken to need as much.
const AS_SMALL: f64 = 1.05;
/// Operations before a class that has changed may change again.
const SETTLED: u32 = 8192;
/// Of more operations than these all count half from then on.
const REMEMBERED: f64 = 16_384.0;
/// Of what nothing is known.
const COMMON: Mix = Mix { stores: 1.0, updates: 0.5, retrieves: 4.0, deletes: 0.25 };

/// What was seen of values of about one length.
struct LengthClass {
    /// Number of the mechanism that it has.
    pick: Cell<usize>,
    mix: Cell<Mix>,
    /// Bytes of all that was stored or read, together.
    bytes: Cell<f64>,
    /// Operations since the last look, and since the last change.
    unseen: Cell<u32>,
    settled: Cell<u32>,
    /// Looks one after the other that said that another is better; which.
    ahead: Cell<(usize, u32)>,
    /// It was looked at: its mechanism is one for what is done with it.
    is_judged: Cell<bool>,
}

/// What a class of lengths has, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The longest values of the class; nothing: it has no end.
    pub value_bytes_max: Option<u64>,
    /// What they are made into.
    pub mechanism: Mechanism,
    /// Operations that it was judged by; none: it was not, and has what a common mixture gets.
    pub operations: u64,
    /// Of a hundred of them: stores, overwrites, reads, deletes.
    pub mix_percent: [u8; 4],
    /// What each mechanism would cost.
    pub choices: Vec<Estimate>,
}

/// What a mechanism would cost for what is done with values of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Which.
    pub mechanism: Mechanism,
    /// Bytes on devices for a hundred of values.
    pub space_percent: u64,
    /// Time of one device for a mean operation, at the speed that was seen: a comparison.
    pub device_ns: u64,
}

/// Picks among the mechanisms of a policy.
pub(crate) struct Picker {
    choice: Choice,
    /// The longest value that can be packed: longer ones stand in parts.
    packed_bytes_max: u64,
    pub(crate) speed: Rc<Speed>,
    classes: Vec<LengthClass>,
    /// Stores and deletes of all classes: a delete does not say how long its value was.
    written: Cell<f64>,
    deleted: Cell<f64>,
    /// Classes that have changed, ever: what was stored before may be moved.
    changes: Cell<u64>,
}

fn class_of(value_bytes: u64) -> usize {
    let doubled = value_bytes.div_ceil(FIRST_BYTES).max(1);
    (doubled.next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1)
}

/// The longest value of a class; the last has no end.
fn class_bytes_max(class: usize) -> Option<u64> {
    (class + 1 < CLASSES).then(|| FIRST_BYTES << class)
}

/// A length in the middle of a class.
fn middle(class: usize) -> f64 {
    0.75 * (FIRST_BYTES << class) as f64
}

impl Picker {
    pub(crate) fn new(choice: &Choice, packed_bytes_max: u64) -> Picker {
        let class = |_| LengthClass {
            pick: Cell::new(0),
            mix: Cell::default(),
            bytes: Cell::new(0.0),
            unseen: Cell::new(0),
            settled: Cell::new(SETTLED),
            ahead: Cell::default(),
            is_judged: Cell::new(false),
        };
        let picker = Picker {
            choice: choice.clone(),
            packed_bytes_max,
            speed: Rc::default(),
            classes: (0..CLASSES).map(class).collect(),
            written: Cell::new(0.0),
            deleted: Cell::new(0.0),
            changes: Cell::new(0),
        };
        for class in 0..CLASSES {
            picker.classes[class].pick.set(picker.best(class, middle(class), &COMMON));
        }
        picker
    }

    /// What a value of so many bytes is made into.
    pub(crate) fn mechanism(&self, value_bytes: u64) -> Mechanism {
        self.choice.mechanisms[self.classes[class_of(value_bytes)].pick.get()]
    }

    /// The same, if that is known by what is done with such values.
    pub(crate) fn judged(&self, value_bytes: u64) -> Option<Mechanism> {
        self.classes[class_of(value_bytes)].is_judged.get().then(|| self.mechanism(value_bytes))
    }

    /// How often a class has changed, or was judged for the first time.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// A value was stored, and took the place of another.
    pub(crate) fn note_store(&self, value_bytes: u64, is_update: bool) {
        self.written.set(self.written.get() + 1.0);
        self.note(value_bytes, |mix| *(if is_update { &mut mix.updates } else { &mut mix.stores }) += 1.0);
    }

    pub(crate) fn note_retrieve(&self, value_bytes: u64) {
        self.note(value_bytes, |mix| mix.retrieves += 1.0);
    }

    pub(crate) fn note_delete(&self) {
        self.deleted.set(self.deleted.get() + 1.0);
    }

    fn note(&self, value_bytes: u64, count: impl FnOnce(&mut Mix)) {
        let number = class_of(value_bytes);
        let class = &self.classes[number];
        let mut mix = class.mix.get();
        count(&mut mix);
        class.mix.set(mix);
        class.bytes.set(class.bytes.get() + value_bytes as f64);
        class.settled.set(class.settled.get().saturating_add(1));
        class.unseen.set(class.unseen.get() + 1);
        if class.unseen.get() >= LOOK {
            class.unseen.set(0);
            self.look(number);
        }
    }

    /// What was seen of a class, its deletes as a share of all; and the mean length of its values.
    fn seen(&self, class: &LengthClass) -> (Mix, f64) {
        let mix = class.mix.get();
        let operations = mix.stores + mix.updates + mix.retrieves;
        let share = if self.written.get() > 0.0 { self.deleted.get() / self.written.get() } else { 0.0 };
        (Mix { deletes: share * (mix.stores + mix.updates), ..mix }, class.bytes.get() / operations)
    }

    fn look(&self, number: usize) {
        let class = &self.classes[number];
        let (mix, mean_bytes) = self.seen(class);
        let best = self.best(number, mean_bytes, &mix);
        let (before, looks) = class.ahead.get();
        let looks = if best == before { looks + 1 } else { 1 };
        class.ahead.set((best, looks));
        if looks >= LOOKS && class.settled.get() >= SETTLED {
            let is_better = best != class.pick.get()
                && self.is_better(best, class.pick.get(), (mean_bytes, &mix))
                && self.fits(number, best);
            if !class.is_judged.replace(true) || is_better {
                self.changes.set(self.changes.get() + 1);
            }
            if is_better {
                class.settled.set(0);
                class.pick.set(best);
                let mechanism = self.choice.mechanisms[best];
                tracing::info!(mean_bytes = mean_bytes as u64, %mechanism, "values get another mechanism");
            }
        }
        if mix.stores + mix.updates + mix.retrieves > REMEMBERED {
            self.forget_half(class);
        }
    }

    fn forget_half(&self, class: &LengthClass) {
        let Mix { stores, updates, retrieves, .. } = class.mix.get();
        class.mix.set(Mix {
            stores: stores / 2.0,
            updates: updates / 2.0,
            retrieves: retrieves / 2.0,
            deletes: 0.0,
        });
        class.bytes.set(class.bytes.get() / 2.0);
        if self.written.get() > REMEMBERED {
            self.written.set(self.written.get() / 2.0);
            self.deleted.set(self.deleted.get() / 2.0);
        }
    }

    /// Whether values of a class can be made into it.
    fn fits(&self, class: usize, number: usize) -> bool {
        let is_packed = self.choice.mechanisms[number].form().is_packed();
        !is_packed || class_bytes_max(class).is_some_and(|bytes_max| bytes_max <= self.packed_bytes_max)
    }

    /// What a mechanism costs: time of devices, and space.
    fn cost(&self, number: usize, (mean_bytes, mix): (f64, &Mix)) -> (f64, f64) {
        let form = self.choice.mechanisms[number].form();
        let asked = load(form, mean_bytes, mix);
        (self.speed.cost().ns(asked.requests, asked.bytes), space(form, mean_bytes))
    }

    /// Which mechanism is best for a mixture.
    fn best(&self, class: usize, mean_bytes: f64, mix: &Mix) -> usize {
        let fits = (0..self.choice.mechanisms.len()).filter(|number| self.fits(class, *number));
        let mut costs: Vec<(usize, (f64, f64))> =
            fits.map(|number| (number, self.cost(number, (mean_bytes, mix)))).collect();
        if self.choice.goal == Goal::Space {
            let least = costs.iter().map(|(_, (_, space))| *space).fold(f64::INFINITY, f64::min);
            costs.retain(|(_, (_, space))| *space <= AS_SMALL * least);
        }
        let quickest = costs.into_iter().min_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b));
        quickest.expect("copies always fit").0
    }

    /// Whether one mechanism is so much better than another that values are made into it from now on.
    fn is_better(&self, one: usize, other: usize, seen: (f64, &Mix)) -> bool {
        let ((time, space), (other_time, other_space)) = (self.cost(one, seen), self.cost(other, seen));
        match self.choice.goal {
            Goal::Throughput => other_time >= GAIN * time,
            Goal::Space => {
                other_space >= GAIN * space || (space <= AS_SMALL * other_space && other_time >= GAIN * time)
            }
        }
    }

    /// What each class has, and why, from the shortest values on.
    pub(crate) fn picks(&self) -> Vec<Pick> {
        (0..CLASSES).map(|number| self.pick_of(number)).collect()
    }

    fn pick_of(&self, number: usize) -> Pick {
        let class = &self.classes[number];
        let is_judged = class.is_judged.get();
        let (mix, mean_bytes) = if is_judged { self.seen(class) } else { (COMMON, middle(number)) };
        let all = mix.stores + mix.updates + mix.retrieves + mix.deletes;
        let percent = |count: f64| (100.0 * count / all).round() as u8;
        let choices = (0..self.choice.mechanisms.len()).filter(|choice| self.fits(number, *choice));
        let choices = choices.map(|choice| {
            let (time_ns, space) = self.cost(choice, (mean_bytes, &mix));
            Estimate {
                mechanism: self.choice.mechanisms[choice],
                space_percent: (100.0 * space / mean_bytes.max(1.0)).round() as u64,
                device_ns: (time_ns / all) as u64,
            }
        });
        Pick {
            value_bytes_max: class_bytes_max(number),
            mechanism: self.choice.mechanisms[class.pick.get()],
            operations: if is_judged { all as u64 } else { 0 },
            mix_percent: [mix.stores, mix.updates, mix.retrieves, mix.deletes].map(percent),
            choices: choices.collect(),
        }
    }
}

/// A device looked at by the picker, if there is one.
pub(crate) fn looked_at(
    picker: Option<&Picker>,
    reactor: &Reactor,
    device: Rc<dyn Device>,
) -> Rc<dyn Device> {
    match picker {
        Some(picker) => Timed::new(reactor, device, picker.speed.clone()),
        None => device,
    }
}

impl Array {
    /// A value is about to be stored; by the array itself, if nobody waits.
    pub(crate) fn note_store(&self, place: &Place, value_bytes: u64, class: Class) {
        if let Some(picker) = self.picker.as_ref().filter(|_| class == Class::Foreground) {
            picker.note_store(value_bytes, !self.role_lacks(place, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLICATION: Mechanism = Mechanism::Replication { copies: 3 };
    const SPLITTING: Mechanism = Mechanism::Splitting { data: 4, parities: 2 };
    const PACKING: Mechanism = Mechanism::Packing { data: 4, parities: 2 };

    fn picker(goal: Goal) -> Picker {
        let mechanisms = [REPLICATION, SPLITTING, PACKING].into();
        Picker::new(&Choice { goal, mechanisms }, 1 << 20)
    }

    fn look_on(picker: &Picker, bytes: u64, operations: u64, [stores, updates, retrieves]: [u64; 3]) {
        for number in 0..operations {
            match number % (stores + updates + retrieves) {
                turn if turn < stores => picker.note_store(bytes, false),
                turn if turn < stores + updates => picker.note_store(bytes, true),
                _ => picker.note_retrieve(bytes),
            }
        }
    }

    #[test]
    fn lengths_have_classes() {
        assert_eq!([0, 1, 512, 513, 1024, 1025].map(class_of), [0, 0, 0, 1, 1, 2]);
        assert_eq!([1 << 20, u64::MAX / 2].map(class_of), [11, 13]);
        for class in 0..CLASSES - 1 {
            let most = class_bytes_max(class).unwrap();
            assert_eq!((class_of(most), class_of(most + 1)), (class, class + 1));
        }
    }

    #[test]
    fn short_values_that_are_read_share_parities_and_tiny_ones_are_copied_for_space() {
        let space = picker(Goal::Space);
        assert_eq!([16, 16_384].map(|bytes| space.mechanism(bytes)), [PACKING, PACKING]);
        look_on(&space, 8, 2000, [1, 0, 1]);
        assert_eq!(space.mechanism(8), REPLICATION);
        assert_eq!((space.judged(8), space.judged(5000)), (Some(REPLICATION), None));
    }

    #[test]
    fn values_in_parts_are_not_packed() {
        for goal in [Goal::Space, Goal::Throughput] {
            let picker = picker(goal);
            look_on(&picker, 5 << 20, 2000, [1, 0, 1]);
            assert_eq!(picker.mechanism(5 << 20), SPLITTING);
        }
    }

    #[test]
    fn overwrites_of_long_values_speak_against_sharing_parities() {
        let picker = picker(Goal::Throughput);
        assert_eq!(picker.mechanism(60_000), PACKING);
        for _ in 0..400 {
            // Bytes weigh more than requests.
            picker.speed.observed(64, 64 * 20_000, 64 * 21_000);
            picker.speed.observed(64, 64 * 1000, 64 * 2000);
        }
        look_on(&picker, 60_000, 20_000, [1, 30, 4]);
        assert_eq!(picker.mechanism(60_000), SPLITTING);
        let long = picker.picks().into_iter().find(|pick| pick.value_bytes_max == Some(65_536)).unwrap();
        assert_eq!((long.mechanism, long.mix_percent), (SPLITTING, [3, 86, 11, 0]));
        assert!(long.operations > 8000 && long.choices.len() == 3, "{long:?}");
    }

    #[test]
    fn a_mixture_that_swings_does_not_make_it_flap() {
        let picker = picker(Goal::Throughput);
        for swing in 0..100 {
            let mix = if swing % 2 == 0 { [1, 40, 0] } else { [1, 0, 40] };
            look_on(&picker, 3000, 1000, mix);
        }
        assert!(picker.changes() <= 2, "{} changes", picker.changes());
    }
}
