//! The answers of a core to the questions of another, for operators' commands and messages.
//!
//! Invariant: an answer is made at once, from what this core knows.

use super::Core;
use crate::volume::Question;
use std::rc::{Rc, Weak};

fn number(number: impl TryInto<i64>) -> Vec<u8> {
    number.try_into().unwrap_or(i64::MAX).to_le_bytes().to_vec()
}

impl Core {
    pub(super) fn answer(self: &Rc<Self>, question: Question) -> Vec<u8> {
        match question {
            Question::Clients => {
                let now_ns = self.reactor.now_ns();
                self.known_connections().iter().flat_map(|connection| connection.describe(now_ns)).collect()
            }
            Question::Kill(filter) => {
                let known = self.known_connections();
                let meant = known.iter().filter(|c| c.id != filter.asker && c.is_meant(&filter));
                number(meant.inspect(|connection| connection.cut()).count())
            }
            Question::Publish { channel, message } => self.publish(&channel, &message),
            Question::Channels(kind) => {
                let channels = self.channels.borrow();
                let mut bytes = Vec::new();
                for name in channels.names(kind) {
                    bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
                    bytes.extend_from_slice(name);
                }
                bytes
            }
            Question::Listeners(channel) => number(self.channels.borrow().count(&channel)),
            Question::ResetCounters => {
                self.shared.core(self.reactor.core()).reset();
                Vec::new()
            }
            Question::PublishGauges => {
                self.publish_gauges();
                Vec::new()
            }
            Question::SlowLog(count) => self.slow_log.tell(count),
            Question::SlowLogLength => number(self.slow_log.len()),
            Question::ResetSlowLog => {
                self.slow_log.reset();
                Vec::new()
            }
            Question::Latency => self.latency.borrow().tell(),
            Question::ResetLatency(events) => number(self.latency.borrow_mut().reset(events)),
            Question::Pause { for_ms, holds_all } => {
                self.pause(for_ms, holds_all);
                Vec::new()
            }
            Question::Unpause => {
                self.unpause();
                Vec::new()
            }
            Question::Monitored(lines) => {
                self.show_monitors(&lines);
                Vec::new()
            }
            Question::CutMonitors => {
                self.known_connections().iter().filter(|c| c.is_monitor()).for_each(|c| c.die());
                Vec::new()
            }
        }
    }

    /// Hands a message to those who listen on this core; how many they are.
    fn publish(&self, channel: &[u8], message: &[u8]) -> Vec<u8> {
        let listeners = self.channels.borrow().listeners(channel);
        let count = listeners.len();
        for (listener, pattern) in listeners {
            let connection = self.connections.borrow().get(&listener).and_then(Weak::upgrade);
            if let Some(connection) = connection {
                connection.hear(pattern, channel, message);
            }
        }
        number(count)
    }

    /// Gives lines to the monitors of this core.
    fn show_monitors(&self, lines: &[u8]) {
        for monitor in self.known_connections().iter().filter(|connection| connection.is_monitor()) {
            monitor.watch(lines);
        }
    }
}
