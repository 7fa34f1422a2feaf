//! The silence of a device: for how long it has answered nothing, though something is asked of it.
//!
//! Role: tells the operator that it is the drive which clients wait for. Place on the path: beside it; looked
//! at once a second.
//!
//! Invariants: a device that is asked nothing is not silent; a silence is told when it is long, each minute
//! from then on, and once more when it has ended, unless the device was let go before.
//!
//! Never: it gives up what was asked; a drive may answer late.

use futures_util::future::{Either, select};
use plimsoll_reactor::{File, Reactor};
use std::cell::Cell;
use std::pin::pin;

/// How long a silence is before it is told: a drive that cleans itself, or is held back by its host, is
/// silent for a second or two.
const TOLD_NS_MIN: u64 = 10_000_000_000;
/// How often it is told again.
const TOLD_AGAIN_NS: u64 = 60_000_000_000;
/// How often a device is looked at that is not published yet.
const LOOK_NS: u64 = 1_000_000_000;

/// What is to be told.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Lasts,
    Over,
}

/// What was seen of a device when somebody looked.
#[derive(Clone, Copy, Debug)]
struct Seen {
    answered: u64,
    /// Since when it has answered nothing more, or was asked nothing.
    since_ns: u64,
    /// When it is to be told next.
    due_ns: u64,
    is_told: bool,
}

impl Seen {
    fn begin(now_ns: u64, answered: u64) -> Seen {
        Seen { answered, since_ns: now_ns, due_ns: now_ns + TOLD_NS_MIN, is_told: false }
    }

    /// Looks; nanoseconds of silence before that, and what is to be told of them.
    fn look(&mut self, now_ns: u64, answered: u64, is_asked: bool) -> (u64, Told) {
        let silence_ns = now_ns.saturating_sub(self.since_ns);
        if answered != self.answered || !is_asked {
            let told = if self.is_told { Told::Over } else { Told::Nothing };
            *self = Seen::begin(now_ns, answered);
            return (silence_ns, told);
        }
        if now_ns < self.due_ns {
            return (silence_ns, Told::Nothing);
        }
        (self.due_ns, self.is_told) = (now_ns + TOLD_AGAIN_NS, true);
        (silence_ns, Told::Lasts)
    }
}

/// A device that a core looks at.
pub(in crate::serve) struct Silence {
    reactor: Reactor,
    file: File,
    seen: Cell<Seen>,
}

impl Silence {
    pub(in crate::serve) fn of(file: &File, reactor: &Reactor) -> Silence {
        let seen = Cell::new(Seen::begin(reactor.now_ns(), file.answered()));
        Silence { reactor: reactor.clone(), file: file.clone(), seen }
    }

    /// Looks, and tells what is to be told; for how many whole seconds it has been silent.
    pub(in crate::serve) fn look(&self) -> u64 {
        let (mut seen, in_flight) = (self.seen.get(), self.file.in_flight());
        let now_ns = self.reactor.now_ns();
        let (silence_ns, told) = seen.look(now_ns, self.file.answered(), in_flight > 0);
        self.seen.set(seen);
        let (device, core, seconds) = (self.file.path(), self.reactor.core().0, silence_ns / 1_000_000_000);
        match told {
            Told::Nothing => {}
            Told::Lasts => tracing::warn!(device, core, seconds, in_flight, "the device answers nothing"),
            Told::Over => tracing::warn!(device, core, seconds, "the device answers again"),
        }
        now_ns.saturating_sub(seen.since_ns) / 1_000_000_000
    }
}

/// What comes of something that is asked of a device, whose silences are told meanwhile.
pub(super) async fn told_until<T>(reactor: &Reactor, file: &File, asked: impl Future<Output = T>) -> T {
    let looks = async {
        let silence = Silence::of(file, reactor);
        loop {
            silence.look();
            reactor.sleep_ns(LOOK_NS).await;
        }
    };
    match select(pin!(asked), pin!(looks)).await {
        Either::Left((done, _)) => done,
        Either::Right((never, _)) => never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// What is told at which second, if it is looked at each second and has answered so often by then.
    fn told(answered: impl Fn(u64) -> u64, is_asked: impl Fn(u64) -> bool) -> Vec<(u64, u64, Told)> {
        let mut seen = Seen::begin(1000 * SECOND_NS, 0);
        let look = |second: u64| {
            let (silence_ns, told) =
                seen.look((1000 + second) * SECOND_NS, answered(second), is_asked(second));
            (second, silence_ns / SECOND_NS, told)
        };
        (0..200).map(look).filter(|(_, _, told)| *told != Told::Nothing).collect()
    }

    #[test]
    fn a_silence_is_told_when_it_is_long_and_each_minute_and_when_it_is_over() {
        let lines = told(|second| if second < 130 { 1 } else { second }, |_| true);
        let lasts = |second| (second, second, Told::Lasts);
        assert_eq!(lines, [lasts(10), lasts(70), (130, 130, Told::Over)]);
    }

    #[test]
    fn a_device_that_never_answers_is_silent_since_it_was_opened() {
        assert_eq!(told(|_| 0, |second| second < 30), [(10, 10, Told::Lasts), (30, 30, Told::Over)]);
    }

    #[test]
    fn a_device_that_answers_now_and_then_is_not_silent() {
        assert_eq!(told(|second| second / 9, |_| true), []);
    }

    #[test]
    fn a_device_that_is_asked_nothing_is_not_silent() {
        assert_eq!(told(|_| 7, |_| false), []);
        // It is asked after a minute: then the silence begins, and ends when it is asked nothing more.
        let lines = told(|_| 7, |second| (60..75).contains(&second));
        assert_eq!(lines, [(69, 10, Told::Lasts), (75, 16, Told::Over)]);
    }
}
