//! How a client speaks: connections, commands in words, replies, and what an error says.

use super::client::Client;
use super::history::Outcome;
use plimsoll_reactor::Socket;
use plimsoll_resp::{Decoded, Reply, ReplyDecoder, ReplyLimits, request};

/// A connection.
pub(super) struct Line {
    socket: Socket,
    decoder: ReplyDecoder,
    received: Vec<u8>,
}

/// The connection is gone.
pub(super) struct Gone;

pub(super) type Told<T> = Result<T, Gone>;

/// The words of one command.
pub(super) type Words = Vec<String>;

pub(super) fn words(text: &str) -> Words {
    text.split(' ').map(str::to_owned).collect()
}

pub(super) fn list_key(list: usize) -> String {
    format!("list{list}")
}

/// The words of a list.
pub(super) fn parse(reply: &Reply) -> Option<Vec<u64>> {
    match reply {
        Reply::Null => Some(Vec::new()),
        Reply::Bulk(bytes) => {
            let text = std::str::from_utf8(bytes).ok()?;
            text.split_terminator(';').map(|word| word.parse().ok()).collect()
        }
        _ => None,
    }
}

pub(super) fn show(reply: &Reply) -> String {
    let text = |bytes: &[u8]| match bytes.len() {
        0..200 => String::from_utf8_lossy(bytes).into_owned(),
        length => format!("{length} bytes"),
    };
    match reply {
        Reply::Bulk(bytes) => text(bytes),
        Reply::Simple(bytes) => format!("+{}", text(bytes)),
        Reply::Error(bytes) => format!("-{}", text(bytes)),
        Reply::Integer(value) => value.to_string(),
        Reply::Array(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", ")),
        Reply::Null => "nil".to_owned(),
        other => format!("{other:?}"),
    }
}

impl Client {
    pub(super) async fn connect(&self) -> Option<Line> {
        let socket = self.reactor.connect(self.address);
        // A server that has just begun to listen does not hear at once.
        self.reactor.sleep_ns(200_000).await;
        let decoder = ReplyDecoder::new(ReplyLimits::DEFAULT);
        Some(Line { socket: socket.ok()?, decoder, received: Vec::new() })
    }

    async fn send(&self, line: &mut Line, commands: &[Words]) -> Told<()> {
        let mut bytes = Vec::new();
        for command in commands {
            self.shared.note(|| {
                let words = command.iter().map(|word| &word[..word.len().min(40)]);
                format!(
                    "{:>14} ns  client {}: {}",
                    self.now_ns(),
                    self.number,
                    words.collect::<Vec<_>>().join(" ")
                )
            });
            request::encode(&command.iter().map(String::as_bytes).collect::<Vec<_>>(), &mut bytes);
        }
        let (sent, _) = line.socket.send(bytes).await;
        sent.map_err(|_| Gone).map(drop)
    }

    fn now_ns(&self) -> u64 {
        self.reactor.now_ns()
    }

    async fn receive(&self, line: &mut Line) -> Told<Reply> {
        loop {
            match line.decoder.decode(&line.received).map_err(|_| Gone)? {
                Decoded::Reply { consumed, reply } => {
                    line.received.drain(..consumed);
                    self.shared.note(|| {
                        format!("{:>14} ns  client {} <- {}", self.now_ns(), self.number, show(&reply))
                    });
                    return Ok(reply);
                }
                Decoded::Incomplete { consumed, .. } => drop(line.received.drain(..consumed)),
            }
            let (received, buffer) = line.socket.receive(std::mem::take(&mut line.received), 1 << 16).await;
            line.received = buffer;
            if !matches!(received, Ok(count) if count > 0) {
                return Err(Gone);
            }
        }
    }

    /// Sends commands, together or one after the other; their replies.
    pub(super) async fn ask(&self, line: &mut Line, commands: &[Words]) -> Told<Vec<Reply>> {
        let mut replies = Vec::with_capacity(commands.len());
        if self.below(3) > 0 {
            self.send(line, commands).await?;
            for _ in commands {
                replies.push(self.receive(line).await?);
            }
        } else {
            for command in commands {
                self.send(line, std::slice::from_ref(command)).await?;
                replies.push(self.receive(line).await?);
            }
        }
        Ok(replies)
    }

    /// What an error says of the transaction that it answers.
    pub(super) fn outcome_of(&self, reply: &Reply) -> Outcome {
        let Reply::Error(text) = reply else { return Outcome::Unknown };
        let refused = [&b"OOM "[..], b"TRYAGAIN ", b"EXECABORT ", b"ERR no such key"];
        if refused.iter().any(|word| text.starts_with(word)) {
            if self.shared.evicts && text.starts_with(b"OOM ") {
                self.shared.violate(format!("a device that evicts is full: {}", show(reply)));
            }
            return Outcome::Refused;
        }
        let explained = [&b"MISCONF "[..], b"LOADING ", b"ERR stored data cannot be read"];
        if !explained.iter().any(|word| text.starts_with(word)) {
            self.shared.violate(format!("client {} was told {}", self.number, show(reply)));
        }
        Outcome::Unknown
    }
}
