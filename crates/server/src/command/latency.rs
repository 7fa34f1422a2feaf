//! LATENCY: the latency monitor over all cores, and the histograms of commands.
//!
//! Invariant: what is told was measured: from a command's parsing to its reply, waiting included.

use super::Run;
use super::slots::{SLOTS, slots_named};
use super::sparkline::{self, Point};
use crate::core::Core;
use crate::histogram::Distribution;
use crate::latency::{Event, Series, merge};
use crate::parameters::Parameter;
use crate::reply::Reply;
use crate::session::Connection;
use crate::shared::Shared;
use crate::volume::Question;
use plimsoll_resp::Args;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::rc::Rc;

async fn series(core: &Rc<Core>) -> BTreeMap<Event, Series> {
    merge(&core.volume.ask_all(Question::Latency).await)
}

fn integers(numbers: &[u64]) -> impl Iterator<Item = Reply> {
    numbers.iter().map(|number| Reply::Integer(*number as i64))
}

pub(super) fn latest(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let core = connection.core.clone();
    Run::Alone(Box::pin(async move {
        let all = series(&core).await;
        let each = all.iter().filter_map(|(event, series)| {
            let last = series.samples.back()?;
            let numbers = [last.time_s, last.latency_ms, series.latency_ms_max];
            Some(Reply::Array([Reply::bulk(event.name())].into_iter().chain(integers(&numbers)).collect()))
        });
        Reply::Array(each.collect())
    }))
}

pub(super) fn history(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let (core, event) = (connection.core.clone(), Event::named(&args[2]));
    Run::Alone(Box::pin(async move {
        let all = series(&core).await;
        let samples = event.and_then(|event| all.get(&event)).into_iter().flat_map(|series| &series.samples);
        let pair = |sample: &crate::latency::Sample| {
            Reply::Array(integers(&[sample.time_s, sample.latency_ms]).collect())
        };
        Reply::Array(samples.map(pair).collect())
    }))
}

pub(super) fn reset(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let named = args.iter().skip(2).filter_map(Event::named).fold(0, |bits, event| bits | event.bit());
    let events = if args.len() > 2 { named } else { u64::MAX };
    let volume = connection.core.volume.clone();
    Run::Alone(Box::pin(async move {
        let answers = volume.ask_all(Question::ResetLatency(events)).await;
        // A bit for each event: one that several cores had counts once.
        let bits = answers.iter().map(|answer| super::pubsub::sum(std::slice::from_ref(answer)));
        let gone = bits.fold(0, |all, bits| all | bits);
        Reply::Integer(i64::from(gone.count_ones()))
    }))
}

/// How long ago a moment was, as a label.
fn ago(now_s: u64, time_s: u64) -> String {
    match now_s.saturating_sub(time_s) {
        elapsed_s @ 0..60 => format!("{elapsed_s}s"),
        elapsed_s @ 60..3600 => format!("{}m", elapsed_s / 60),
        elapsed_s @ 3600..86_400 => format!("{}h", elapsed_s / 3600),
        elapsed_s => format!("{}d", elapsed_s / 86_400),
    }
}

pub(super) fn graph(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let (core, name) = (connection.core.clone(), args[2].to_vec());
    Run::Alone(Box::pin(async move {
        let all = series(&core).await;
        let Some(series) = Event::named(&name).and_then(|event| all.get(&event)) else {
            return Reply::Error([b"ERR No samples available for event '", &name[..], b"'"].concat());
        };
        let now_s = core.reactor.wall_ms() / 1000;
        let point = |sample: &crate::latency::Sample| Point {
            value: sample.latency_ms,
            label: ago(now_s, sample.time_s),
        };
        let points: Vec<Point> = series.samples.iter().map(point).collect();
        let values = || points.iter().map(|point| point.value);
        let mut text = format!(
            "{} - high {} ms, low {} ms (all time high {} ms)\n{}\n",
            String::from_utf8_lossy(&name),
            values().max().unwrap_or_default(),
            values().min().unwrap_or_default(),
            series.latency_ms_max,
            "-".repeat(sparkline::COLUMNS),
        );
        sparkline::render(&mut text, &points);
        Reply::Text(text.into_bytes())
    }))
}

fn report(text: &mut String, event: Event, series: &Series) {
    let count = series.samples.len() as u64;
    let sum: u64 = series.samples.iter().map(|sample| sample.latency_ms).sum();
    let average_ms = sum / count.max(1);
    let deviation_ms =
        series.samples.iter().map(|s| s.latency_ms.abs_diff(average_ms)).sum::<u64>() / count.max(1);
    let (first, last) = (series.samples.front(), series.samples.back());
    let span_s = first.zip(last).map_or(0, |(first, last)| last.time_s.saturating_sub(first.time_s));
    let period_s = span_s as f64 / (count.max(2) - 1) as f64;
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{}: {count} latency spikes (average {average_ms}ms, mean deviation {deviation_ms}ms, period \
         {period_s:.2} sec). Worst all time event {}ms.",
        event.name(),
        series.latency_ms_max,
    );
}

pub(super) fn doctor(connection: &Rc<Connection>, _: &Args<'_>) -> Run {
    let core = connection.core.clone();
    if core.shared.parameters.get(Parameter::LatencyMonitorThreshold) == 0 {
        return Run::Now(Reply::Text(
            b"Latency monitoring is disabled in this instance. You may use \"CONFIG SET \
              latency-monitor-threshold <milliseconds>.\" in order to enable it.\n"
                .to_vec(),
        ));
    }
    Run::Alone(Box::pin(async move {
        let all = series(&core).await;
        if all.is_empty() {
            return Reply::Text(b"No latency spike was observed since the monitor was reset.\n".to_vec());
        }
        let mut text = "Latency spikes were observed in this instance.\n\n".to_owned();
        for (number, (event, series)) in all.iter().enumerate() {
            text.push_str(&format!("{}. ", number + 1));
            report(&mut text, *event, series);
        }
        text.push_str(
            "\nWhere the time went:\n\n\
             - SLOWLOG GET 10 WITHDEVICE shows slow commands, with the part that their operations were with \
             their partitions: keys, log and drive.\n\
             - If that is nearly all of it, look at the drive, and at INFO plimsoll and /metrics for cleaning.\n\
             - If it is not, the cores are busy: look at plimsoll_core_idle_seconds_total.\n",
        );
        Reply::Text(text.into_bytes())
    }))
}

/// The latencies of a slot, on all cores.
pub(super) fn distribution(shared: &Shared, slot: usize) -> Distribution {
    Distribution::new(shared.cores.iter().filter_map(|core| core.commands[slot].histogram()))
}

pub(super) fn histogram(connection: &Rc<Connection>, args: &Args<'_>) -> Run {
    let shared = &connection.core.shared;
    // Each once, however often it is named.
    let slots: BTreeSet<usize> = if args.len() == 2 {
        (0..SLOTS.len()).collect()
    } else {
        args.iter().skip(2).flat_map(slots_named).collect()
    };
    let was_run = |slot: &usize| shared.sum(|core| core.commands[*slot].calls.get()) > 0;
    let pairs = slots.into_iter().filter(was_run).map(|slot| {
        let distribution = distribution(shared, slot);
        let buckets = distribution.cumulative_us().into_iter();
        let pair = |(bound_us, count)| (Reply::Integer(bound_us as i64), Reply::Integer(count as i64));
        let description = vec![
            (Reply::bulk("calls"), Reply::Integer(distribution.total() as i64)),
            (Reply::bulk("histogram_usec"), Reply::Map(buckets.map(pair).collect())),
        ];
        (Reply::bulk(&SLOTS[slot].name), Reply::Map(description))
    });
    Run::Now(Reply::Map(pairs.collect()))
}
