//! Requests to the admin port of a server.
//!
//! Role: HTTP/1.1 as far as our own server speaks it: one request for each connection, the whole answer in
//! memory. Never: another server than ours, TLS, or a redirection.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A connection that takes longer leads nowhere.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// An answer that takes longer never comes: a device may be formatted, and has a minute to join.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The admin port of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admin(pub(crate) SocketAddr);

impl Admin {
    /// Asks for what stands at a path: the text as it came, if the server says that it is well.
    pub(crate) fn get(&self, path: &str) -> Result<String> {
        self.ask("GET", path, "")
    }

    /// Sends a wish; what the server says of it.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let text = self.ask("POST", path, &body.to_string())?;
        serde_json::from_str(&text).with_context(|| format!("{}: not the admin port of Plimsoll", self.0))
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let address = self.0;
        let unreachable = || {
            format!("{address}: no admin port can be reached there; start the server, or name its --admin")
        };
        let answer = self.exchange(method, path, body).with_context(unreachable)?;
        let (status, text) = parse(&answer).ok_or_else(|| anyhow!("{address}: does not speak HTTP"))?;
        if status == 200 {
            return Ok(text.to_owned());
        }
        let told: Option<Value> = serde_json::from_str(text).ok();
        match told.as_ref().and_then(|value| value["error"].as_str()) {
            Some(words) => bail!("{words}"),
            None => {
                bail!("{address}: HTTP status {status}; is it the admin port of this version of Plimsoll?")
            }
        }
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.0, CONNECT_MAX)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let length = body.len();
        let address = self.0;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
        Ok(answer)
    }
}

/// Status and body of an answer. Ours are never sent in chunks: their length is known.
fn parse(answer: &str) -> Option<(u16, &str)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart() {
        let answer = "HTTP/1.1 409 Conflict\r\ncontent-type: application/json\r\n\r\n{\"error\": \"no\"}\n";
        assert_eq!(parse(answer), Some((409, "{\"error\": \"no\"}\n")));
        for nonsense in ["", "HTTP/1.1 200 OK", "SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 ok\r\n\r\n"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }
}
