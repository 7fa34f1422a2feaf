//! What the server's process has used, as the kernel tells (`proc(5)`).

use std::fs;

/// What a process has used since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Seconds of processor time, its own and the kernel's for it.
    pub cpu_s: f64,
    /// Bytes that devices read for it.
    pub read_bytes: u64,
    /// Bytes that devices wrote for it.
    pub written_bytes: u64,
    /// Bytes of memory that it holds now.
    pub resident_bytes: u64,
    /// The most that it held.
    pub resident_bytes_max: u64,
}

/// The number that follows a name.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Usage {
    /// Of a process of this machine.
    ///
    /// # Errors
    /// In words: there is no such process, or its usage may not be seen.
    pub fn of(process: u32) -> Result<Usage, String> {
        let read = |name: &str| {
            let path = format!("/proc/{process}/{name}");
            fs::read_to_string(&path).map_err(|error| format!("process {process}: {path}: {error}"))
        };
        let (stat, status, io) = (read("stat")?, read("status")?, read("io")?);
        let unknown = |what: &str| format!("process {process}: the kernel does not tell its {what}");
        // The name stands in brackets and may hold anything; the times are the 14th and 15th word.
        let words = stat.rsplit_once(')').ok_or_else(|| unknown("times"))?.1;
        let times: Vec<u64> = words.split_whitespace().skip(11).take(2).flat_map(str::parse).collect();
        let [user, system] = times[..] else { return Err(unknown("times")) };
        let kib = |name: &str| field(&status, name).map(|kib| kib * 1024).ok_or_else(|| unknown("memory"));
        Ok(Usage {
            cpu_s: (user + system) as f64 / rustix::param::clock_ticks_per_second() as f64,
            read_bytes: field(&io, "read_bytes:").ok_or_else(|| unknown("reads"))?,
            written_bytes: field(&io, "write_bytes:").ok_or_else(|| unknown("writes"))?,
            resident_bytes: kib("VmRSS:")?,
            resident_bytes_max: kib("VmHWM:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_asked() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.resident_bytes > 0 && usage.resident_bytes <= usage.resident_bytes_max, "{usage:?}");
        assert!(Usage::of(u32::MAX).unwrap_err().contains("process 4294967295"));
    }
}
