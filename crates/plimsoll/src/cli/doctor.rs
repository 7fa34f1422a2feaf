//! `plimsoll doctor`: what this machine allows and lacks, a line each, with the mend.
//!
//! Role: looks and says; what it finds is judged by functions of text, which tests call. Never: it changes
//! nothing, but for a file of 4 KiB beside the data that it makes, writes and removes.

use anyhow::{Result, bail};
use clap::Args;
use plimsoll_reactor::limits::ARENA_BYTES_PER_CORE;
use plimsoll_reactor::{DriverChoice, StartOptions, TMPFS_MAGIC, is_refusal, start};
use plimsoll_server::config::{ConfigError, DriverName, parse_cores};
use plimsoll_server::limits::DESCRIPTORS_BESIDE;
use plimsoll_server::parameters::{PARAMETERS, Parameter};
use plimsoll_server::serve;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What lets a process lock memory.
const MEND_LOCKED: &str = "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited";

/// A block that every device with direct I/O takes.
const BLOCK_BYTES: usize = 4096;

/// What is to be looked at.
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// The directory of the data, or a file or block device that is to hold it.
    #[arg(long, value_name = "PATH", default_value = "plimsoll-data")]
    data: PathBuf,
    /// The processors to run on, as 0-3 or 0,2 [default: all].
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
    /// What the server is to speak to the kernel by.
    #[arg(long, value_enum, default_value = "auto")]
    driver: DriverName,
}

/// How good that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Good,
    /// It works, but worse than it could.
    Worse,
    /// `plimsoll serve` cannot run.
    Bad,
}

/// What was found, and what mends it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    state: State,
    says: String,
    mend: Option<String>,
}

impl Finding {
    fn good(says: impl Into<String>) -> Finding {
        Finding { state: State::Good, says: says.into(), mend: None }
    }

    fn worse(says: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { state: State::Worse, says: says.into(), mend: Some(mend.into()) }
    }

    fn bad(says: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { state: State::Bad, says: says.into(), mend: Some(mend.into()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.says)?;
        self.mend.iter().try_for_each(|mend| write!(f, "; {mend}"))
    }
}

impl Doctor {
    pub(crate) fn run(self) -> Result<()> {
        let cpus = match &self.cores {
            Some(list) => parse_cores(list).map_err(ConfigError)?,
            None => serve::processors()?,
        };
        let disk = Disk::of(&self.data);
        let findings = [
            ("io_uring", io_uring(&cpus, self.driver)),
            ("descriptors", descriptors(getrlimit(Resource::Nofile).maximum)),
            ("locked memory", locked_memory(locked_bytes_max(), cpus.len())),
            ("direct I/O", direct_io(&self.data)),
            ("write cache", write_cache(disk.as_ref().and_then(|disk| disk.read("write_cache")))),
            ("scheduler", scheduler(disk.as_ref())),
            (
                "cores",
                cores(&cpus, |cpu| {
                    read(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
                }),
            ),
            ("clock", clock(read("/sys/devices/system/clocksource/clocksource0/current_clocksource"))),
        ];
        for (name, finding) in &findings {
            let state = match finding.state {
                State::Good => "good",
                State::Worse => "worse",
                State::Bad => "BAD",
            };
            println!("{state:<6} {name:<14} {finding}");
        }
        if findings.iter().any(|(_, finding)| finding.state == State::Bad) {
            bail!("plimsoll serve cannot run here: see BAD above");
        }
        Ok(())
    }
}

/// A file of the kernel's, without its line end.
fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn io_uring(cpus: &[usize], driver: DriverName) -> Finding {
    if driver == DriverName::Portable {
        return Finding::good("not asked for: the portable driver serves");
    }
    let options = StartOptions { cpus: cpus.to_vec(), driver: DriverChoice::Uring };
    match start(&options, |reactor| reactor.stop()) {
        Ok(running) => {
            running.join();
            let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
            Finding::good(format!("Linux {kernel}: a ring on each of {} processors", cpus.len()))
        }
        Err(error) => judge_refusal(&error, driver),
    }
}

/// What it means that io_uring could not be had.
fn judge_refusal(error: &std::io::Error, driver: DriverName) -> Finding {
    const MEND: &str = "in a container allow it: packaging/ has a seccomp profile; on the machine: sysctl kernel.io_uring_disabled=0";
    let mend = match error.kind() {
        ErrorKind::InvalidInput => "--cores with processors of this machine",
        ErrorKind::OutOfMemory => MEND_LOCKED,
        _ => MEND,
    };
    if is_refusal(error) && driver == DriverName::Auto {
        let says = format!("the portable driver serves, for up to twice the processor time: {error}");
        return Finding::worse(says, mend);
    }
    Finding::bad(error.to_string(), mend)
}

fn descriptors(most: Option<u64>) -> Finding {
    let clients = PARAMETERS[Parameter::ClientsMax as usize].default as u64;
    let wanted = clients + DESCRIPTORS_BESIDE;
    match most {
        Some(most) if most < wanted => Finding::worse(
            format!("{most} may be open, {clients} clients need {wanted}"),
            "LimitNOFILE=65536 in the unit, ulimit -Hn 65536 in a shell, or a lower --clients-max",
        ),
        most => Finding::good(most.map_or("no limit".to_owned(), |most| format!("{most} may be open"))),
    }
}

/// What this process may lock in memory, and so register with the kernel; no limit for the privileged.
fn locked_bytes_max() -> Option<u64> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let status = read("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    if effective & CAP_IPC_LOCK != 0 { None } else { getrlimit(Resource::Memlock).current }
}

fn locked_memory(most: Option<u64>, cores: usize) -> Finding {
    let wanted = (cores * ARENA_BYTES_PER_CORE) as u64;
    match most {
        Some(most) if most < wanted => Finding::worse(
            format!(
                "{} KiB: disk buffers cannot be registered with the kernel, an I/O costs a tenth more",
                most >> 10
            ),
            MEND_LOCKED,
        ),
        most => Finding::good(most.map_or("no limit".to_owned(), |most| format!("{} MiB", most >> 20))),
    }
}

/// The directory in which something is, or will be: the nearest one that is there.
fn nearest(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

fn is_in_memory(place: &Path) -> bool {
    rustix::fs::statfs(place).is_ok_and(|fs| fs.f_type as u64 == TMPFS_MAGIC)
}

fn direct_io(data: &Path) -> Finding {
    let place = nearest(data);
    let says = |error: &dyn fmt::Display| format!("{}: {error}", place.display());
    const MEND: &str = "the data belongs on ext4, XFS or a block device that this user may write";
    if data.is_symlink() && !data.exists() {
        return Finding::bad(format!("{} is a link to what is not there", data.display()), MEND);
    }
    let is_data = std::path::absolute(data).is_ok_and(|path| path == place);
    if !place.is_dir() && !is_data {
        return Finding::bad(says(&"not a directory, though the path goes on behind it"), MEND);
    }
    if !place.is_dir() {
        return match rustix::fs::open(&place, OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())
        {
            Ok(_) => Finding::good(format!("{} can be opened for it", place.display())),
            Err(error) => Finding::bad(says(&error), MEND),
        };
    }
    let path = place.join(format!(".plimsoll-doctor-{}", std::process::id()));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::DIRECT | OFlags::CLOEXEC;
    let written = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).and_then(|file| {
        let block = plimsoll_reactor::Buf::zeroed(BLOCK_BYTES);
        rustix::io::pwrite(&file, &block, 0)
    });
    let _ = std::fs::remove_file(&path);
    match written {
        Ok(BLOCK_BYTES) if is_in_memory(&place) => Finding::worse(
            says(&"in memory (tmpfs), gone at the machine's next stop"),
            "a directory on a drive",
        ),
        Ok(BLOCK_BYTES) => Finding::good(format!("{} takes blocks of 4 KiB", place.display())),
        Ok(_) => Finding::bad(says(&"a block was written in part"), "make room on the file system"),
        Err(error) => Finding::bad(says(&error), MEND),
    }
}

/// The drive that holds the data.
struct Disk {
    name: String,
    /// Its directory below `/sys`.
    queue: PathBuf,
}

impl Disk {
    fn of(data: &Path) -> Option<Disk> {
        let stat = rustix::fs::stat(nearest(data)).ok()?;
        let is_device =
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice;
        let number = if is_device { stat.st_rdev } else { stat.st_dev };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let found = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        // A partition stands below its drive.
        let drive = found.ancestors().take(2).find(|path| path.join("queue").is_dir())?;
        Some(Disk { name: drive.file_name()?.to_string_lossy().into_owned(), queue: drive.join("queue") })
    }

    fn read(&self, name: &str) -> Option<String> {
        read(self.queue.join(name).to_str()?)
    }
}

fn write_cache(cache: Option<String>) -> Finding {
    match cache.as_deref() {
        Some("write through") => Finding::good("none that a power loss empties: a written block is stable"),
        Some("write back") => Finding::good("write back: every acknowledged write is flushed through it"),
        _ => unseen(),
    }
}

/// There is no drive behind the data that the kernel tells of.
fn unseen() -> Finding {
    Finding::worse("the drive cannot be seen from here", "a block device or a local file system is seen")
}

fn scheduler(disk: Option<&Disk>) -> Finding {
    disk.map_or_else(unseen, |disk| judge_scheduler(&disk.name, disk.read("scheduler").as_deref()))
}

fn judge_scheduler(drive: &str, said: Option<&str>) -> Finding {
    let chosen = said.and_then(|said| said.split(['[', ']']).nth(1)).or(said).unwrap_or("none");
    match chosen {
        "none" => Finding::good(format!("{drive}: none")),
        other => Finding::worse(
            format!("{drive}: {other}, which costs processor time for an order that an SSD does not need"),
            format!("echo none > /sys/block/{drive}/queue/scheduler"),
        ),
    }
}

/// Whether processors share a core with each other, given who shares one with whom.
fn cores(cpus: &[usize], siblings: impl Fn(usize) -> Option<String>) -> Finding {
    let shares = |cpu: usize| {
        let others = parse_cores(&siblings(cpu)?).ok()?;
        others.into_iter().find(|other| *other > cpu && cpus.contains(other)).map(|other| (cpu, other))
    };
    match cpus.iter().copied().find_map(shares) {
        None => Finding::good(format!(
            "{} processors, each a core of its own as far as the kernel knows",
            cpus.len()
        )),
        Some((one, other)) => Finding::worse(
            format!("processors {one} and {other} are one core: a reactor on each gets little more than one"),
            "--cores with one of each pair",
        ),
    }
}

fn clock(source: Option<String>) -> Finding {
    match source.as_deref() {
        Some(source @ ("tsc" | "kvm-clock" | "arch_sys_counter" | "hyperv_clocksource_tsc_page")) => {
            Finding::good(format!("{source}, read without a system call"))
        }
        Some(source) => Finding::worse(
            format!("{source}: each reading is a system call, and there are several for every request"),
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource, if it is stable",
        ),
        None => Finding::worse("its source cannot be seen from here", "mount /sys"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_judged() {
        assert_eq!(descriptors(Some(1024)).state, State::Worse);
        assert_eq!(descriptors(None).state, State::Good);
        assert_eq!(locked_memory(Some(8 << 20), 1).state, State::Worse);
        assert_eq!(judge_scheduler("sda", Some("none [mq-deadline] kyber")).state, State::Worse);
        assert_eq!(judge_scheduler("nvme0n1", Some("[none] mq-deadline")).state, State::Good);
        assert_eq!(judge_scheduler("vda", Some("none")).state, State::Good);
        assert_eq!(clock(Some("hpet".to_owned())).state, State::Worse);
        assert_eq!(clock(Some("tsc".to_owned())).state, State::Good);
        assert_eq!(write_cache(Some("write back".to_owned())).state, State::Good);
        assert_eq!(write_cache(None).state, State::Worse);
    }

    #[test]
    fn without_io_uring_the_server_runs_unless_it_was_asked_for() {
        let refused = |kind| std::io::Error::new(kind, "core 0: no");
        for kind in [ErrorKind::PermissionDenied, ErrorKind::Unsupported, ErrorKind::OutOfMemory] {
            let found = judge_refusal(&refused(kind), DriverName::Auto);
            assert!(
                found.state == State::Worse && found.says.contains("the portable driver serves"),
                "{found}"
            );
            assert_eq!(judge_refusal(&refused(kind), DriverName::Uring).state, State::Bad);
        }
        let mend = judge_refusal(&refused(ErrorKind::OutOfMemory), DriverName::Uring).mend.unwrap();
        assert!(mend.contains("ulimit -l") && mend.contains("LimitMEMLOCK=infinity"), "{mend}");
        // Nothing else lets the server run without.
        assert_eq!(judge_refusal(&refused(ErrorKind::Other), DriverName::Auto).state, State::Bad);
        assert_eq!(judge_refusal(&refused(ErrorKind::InvalidInput), DriverName::Auto).state, State::Bad);
    }

    #[test]
    fn processors_of_one_core_are_told() {
        let pairs = |cpu: usize| Some(format!("{},{}", cpu % 2, cpu % 2 + 2));
        assert_eq!(cores(&[0, 1], pairs).state, State::Good);
        let told = cores(&[0, 1, 2], pairs);
        assert_eq!(told.state, State::Worse);
        assert!(told.says.contains("processors 0 and 2"), "{told}");
        assert_eq!(cores(&[0, 1], |_| None).state, State::Good);
    }

    #[test]
    fn what_is_not_there_yet_is_looked_for_above() {
        assert_eq!(nearest(Path::new("/proc/self/not/there")), std::path::absolute("/proc/self").unwrap());
        let refused = direct_io(Path::new("/proc/data"));
        assert_eq!(refused.state, State::Bad, "{refused}");
    }
}
