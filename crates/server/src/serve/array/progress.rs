//! How fast a member is rebuilt, or keys are scrubbed, and so when all are.
//!
//! Invariant: a state machine with an explicit clock. Never: an estimate of what has not begun to move.

/// Seconds that weigh: what was before them fades.
const WINDOW_S: f64 = 10.0;

/// What was seen of a rebuild, or a scrub.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// When, and how many keys were done then.
    last: Option<(f64, u64)>,
    keys_per_s: Option<f64>,
}

impl Progress {
    /// Notes how many keys are done now; nothing if none is under way.
    pub(super) fn note(&mut self, now_s: f64, keys_done: Option<u64>) {
        let Some(done) = keys_done else {
            *self = Progress::default();
            return;
        };
        match self.last {
            // It has begun anew.
            Some((_, before)) if done < before => *self = Progress::default(),
            Some((at_s, before)) if now_s > at_s => {
                let passed_s = now_s - at_s;
                let now_per_s = (done - before) as f64 / passed_s;
                let weight = (passed_s / WINDOW_S).min(1.0);
                let smooth = |before: f64| before + (now_per_s - before) * weight;
                self.keys_per_s = Some(self.keys_per_s.map_or(now_per_s, smooth));
            }
            _ => {}
        }
        self.last = Some((now_s, done));
    }

    /// Seconds until so many keys are done; nothing if that cannot be told.
    pub(super) fn seconds_left(&self, keys_total: u64) -> Option<u64> {
        let (_, done) = self.last?;
        let per_s = self.keys_per_s.filter(|per_s| *per_s > 0.0)?;
        let left_s = keys_total.saturating_sub(done) as f64 / per_s;
        Some(left_s.ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_left_follows_the_speed() {
        let mut progress = Progress::default();
        assert_eq!(progress.seconds_left(100), None);
        progress.note(0.0, Some(0));
        assert_eq!(progress.seconds_left(100), None, "nothing has moved yet");
        progress.note(1.0, Some(10));
        assert_eq!(progress.seconds_left(100), Some(9));
        for second in 2..60 {
            progress.note(f64::from(second), Some(10 + (u64::try_from(second).unwrap() - 1) * 2));
        }
        let left_s = progress.seconds_left(1000).unwrap();
        assert!((420..=440).contains(&left_s), "{left_s}");
        progress.note(60.0, Some(0));
        assert_eq!(progress.seconds_left(1000), None, "it began anew");
        progress.note(61.0, None);
        assert_eq!(progress.seconds_left(1000), None);
    }
}
