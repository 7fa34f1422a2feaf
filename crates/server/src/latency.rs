//! The latency monitor of a core: for each kind of event the worst of each of the last seconds that had one.
//!
//! Role: keeps what LATENCY LATEST and HISTORY tell: commands that took at least
//! `latency-monitor-threshold` milliseconds. Place on the path: beside it, after a reply.
//!
//! Invariants: a second has one sample; a series has as many samples as in Redis.

use crate::answers::{Fields, put_number};
use std::collections::BTreeMap;
use std::collections::VecDeque;

/// Samples of a series.
const SAMPLES_MAX: usize = 160;

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A command that is not called fast.
    Command,
    /// A command that COMMAND calls fast.
    FastCommand,
}

impl Event {
    pub(crate) const ALL: [Event; 2] = [Event::Command, Event::FastCommand];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Event::Command => "command",
            Event::FastCommand => "fast-command",
        }
    }

    /// The bit that stands for it.
    pub(crate) fn bit(self) -> u64 {
        1 << self as u64
    }

    /// The event of a name.
    pub(crate) fn named(name: &[u8]) -> Option<Event> {
        Event::ALL.into_iter().find(|event| event.name().as_bytes() == name)
    }
}

/// The worst latency of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) time_s: u64,
    pub(crate) latency_ms: u64,
}

/// The samples of one kind of event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Series {
    pub(crate) samples: VecDeque<Sample>,
    /// The worst since the last reset.
    pub(crate) latency_ms_max: u64,
}

impl Series {
    fn add(&mut self, sample: Sample) {
        self.latency_ms_max = self.latency_ms_max.max(sample.latency_ms);
        match self.samples.back_mut() {
            Some(last) if last.time_s == sample.time_s => {
                last.latency_ms = last.latency_ms.max(sample.latency_ms);
            }
            _ => self.samples.push_back(sample),
        }
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// One series of both.
    fn merge(&mut self, other: Series) {
        let mut samples: Vec<Sample> = self.samples.drain(..).chain(other.samples).collect();
        samples.sort_by_key(|sample| sample.time_s);
        let latency_ms_max = self.latency_ms_max.max(other.latency_ms_max);
        samples.into_iter().for_each(|sample| self.add(sample));
        self.latency_ms_max = latency_ms_max;
    }
}

/// What a core remembers.
#[derive(Debug, Default)]
pub(crate) struct Latency(BTreeMap<Event, Series>);

impl Latency {
    pub(crate) fn add(&mut self, event: Event, sample: Sample) {
        self.0.entry(event).or_default().add(sample);
    }

    /// Forgets the events of these bits; a bit for each that there was.
    pub(crate) fn reset(&mut self, events: u64) -> u64 {
        let gone = self.0.keys().fold(0, |bits, event| bits | event.bit()) & events;
        self.0.retain(|event, _| event.bit() & events == 0);
        gone
    }

    /// All series as fields.
    pub(crate) fn tell(&self) -> Vec<u8> {
        let mut answer = Vec::new();
        for (event, series) in &self.0 {
            for number in [*event as u64, series.latency_ms_max, series.samples.len() as u64] {
                put_number(&mut answer, number);
            }
            for sample in &series.samples {
                put_number(&mut answer, sample.time_s);
                put_number(&mut answer, sample.latency_ms);
            }
        }
        answer
    }
}

/// The series of all cores.
pub(crate) fn merge(answers: &[Vec<u8>]) -> BTreeMap<Event, Series> {
    let mut merged: BTreeMap<Event, Series> = BTreeMap::new();
    for answer in answers {
        let mut fields = Fields(answer);
        while !fields.is_empty() {
            let event = Event::ALL[fields.number() as usize];
            let mut series = Series { latency_ms_max: fields.number(), ..Series::default() };
            for _ in 0..fields.number() {
                let (time_s, latency_ms) = (fields.number(), fields.number());
                series.samples.push_back(Sample { time_s, latency_ms });
            }
            merged.entry(event).or_default().merge(series);
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time_s: u64, latency_ms: u64) -> Sample {
        Sample { time_s, latency_ms }
    }

    #[test]
    fn a_second_has_its_worst_and_the_oldest_are_forgotten() {
        let mut latency = Latency::default();
        for (time_s, latency_ms) in [(1, 5), (1, 9), (1, 7)].into_iter().chain((2..170).map(|s| (s, 3))) {
            latency.add(Event::Command, sample(time_s, latency_ms));
        }
        let merged = merge(&[latency.tell()]);
        let series = &merged[&Event::Command];
        assert_eq!((series.samples.len(), series.latency_ms_max), (SAMPLES_MAX, 9));
        assert_eq!(series.samples.back(), Some(&sample(169, 3)));
        assert_eq!(latency.reset(Event::FastCommand.bit()), 0);
        assert_eq!(latency.reset(u64::MAX), Event::Command.bit());
        assert!(merge(&[latency.tell()]).is_empty());
    }

    #[test]
    fn cores_are_merged_by_second() {
        let (mut a, mut b) = (Latency::default(), Latency::default());
        a.add(Event::Command, sample(1, 5));
        a.add(Event::Command, sample(3, 6));
        b.add(Event::Command, sample(2, 8));
        b.add(Event::Command, sample(3, 7));
        b.add(Event::FastCommand, sample(4, 2));
        let merged = merge(&[a.tell(), b.tell()]);
        assert_eq!(merged[&Event::Command].samples, [sample(1, 5), sample(2, 8), sample(3, 7)]);
        assert_eq!(merged[&Event::FastCommand].latency_ms_max, 2);
    }
}
