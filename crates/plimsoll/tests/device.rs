//! Raw block devices: a loop device is formatted, served and refused as a file is.
//!
//! Only root makes loop devices. Others, and `PLIMSOLL_LOOP=no`, run the same tests on the file
//! itself and say so: the one exception among the tests.

mod process;

use plimsoll_flash::Superblock;
use plimsoll_flash::format::superblock::SUPERBLOCK_BYTES;
use plimsoll_resp::Reply;
use process::{Directory, Server, cores, directory, fails, succeeds};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BYTES: u64 = 64 << 20;
const KEYS: usize = 500;

/// A block device on a file of its own, or just that file.
struct Target {
    file: PathBuf,
    path: String,
    is_loop: bool,
    /// Goes last.
    _place: Directory,
}

fn losetup(args: &[&str]) -> String {
    let words = "losetup: cannot be run; install util-linux, or set PLIMSOLL_LOOP=no to test on a file only";
    let output = Command::new("losetup").args(args).stdin(Stdio::null()).output().expect(words);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "losetup {args:?}: {}; where there are no loop devices, set PLIMSOLL_LOOP=no to test on a file only",
        told.trim()
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Target {
    fn new(name: &str) -> Target {
        let place = directory(name);
        let file = place.join("device");
        std::fs::File::create(&file).unwrap().set_len(BYTES).unwrap();
        let name = file.to_str().unwrap().to_owned();
        let refused = std::env::var("PLIMSOLL_LOOP").is_ok_and(|value| value == "no");
        let is_loop = rustix::process::geteuid().is_root() && !refused;
        let path = if is_loop {
            losetup(&["--find", "--show", &name])
        } else {
            println!(
                "no loop device ({}): tested on a file",
                if refused { "PLIMSOLL_LOOP=no" } else { "not root" }
            );
            name
        };
        Target { file, path, is_loop, _place: place }
    }

    fn resize(&self, bytes: u64) {
        std::fs::OpenOptions::new().write(true).open(&self.file).unwrap().set_len(bytes).unwrap();
        if self.is_loop {
            losetup(&["--set-capacity", &self.path]);
        }
    }

    /// Writes as any program may that does not know what the device is.
    fn write(&self, offset: u64, bytes: &[u8]) {
        let device = std::fs::OpenOptions::new().write(true).open(&self.path).unwrap();
        device.write_all_at(bytes, offset).unwrap();
        device.sync_all().unwrap();
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        std::fs::File::open(&self.path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    fn format(&self, further: &[&str]) -> String {
        succeeds(&[&["device", "format", &self.path], further].concat())
    }

    fn serve(&self, count: usize) -> Server {
        Server::start(&["--device", &self.path, "--cores", &cores(count)])
    }

    fn refusal(&self) -> String {
        Server::refusal(&["--device", &self.path])
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.is_loop {
            // A test that fails is told about that, and not about what it leaves behind.
            let _ = Command::new("losetup").args(["--detach", &self.path]).status();
        }
    }
}

fn value(life: usize, key: usize) -> Vec<u8> {
    format!("{life}/{key}:").into_bytes().repeat(key * 4 + 1)
}

#[test]
fn a_block_device_keeps_its_data_whatever_the_cores() {
    let target = Target::new("block-cores");
    target.format(&["--partitions", "2"]);
    for (life, count) in [1, 2, 1].into_iter().enumerate() {
        let server = target.serve(count);
        let mut client = server.client();
        for key in 0..KEYS {
            let name = format!("key:{key}");
            if life > 0 {
                let found = client.call(&[b"GET", name.as_bytes()]).unwrap();
                assert_eq!(found, Reply::Bulk(value(life - 1, key)), "{name} with {count} cores");
            }
            let stored = client.call(&[b"SET", name.as_bytes(), &value(life, key)]).unwrap();
            assert_eq!(stored, Reply::Simple(b"OK".to_vec()));
        }
        assert_eq!(client.ask("DBSIZE"), Reply::Integer(KEYS as i64));
        drop(client);
        // One life is killed, two end in order.
        let told = if life == 1 { server.kill() } else { server.stop() };
        assert!(!told.contains("ERROR"), "{told}");
    }
    let verified = succeeds(&["device", "verify", &target.path]);
    assert!(verified.contains(&format!("{KEYS} records")), "{verified}");
    let info = succeeds(&["device", "info", &target.path]);
    let ahead = if target.is_loop { "written ahead   yes" } else { "written ahead   as it fills" };
    assert!(info.contains(ahead) && info.contains("size            64MiB"), "{info}");
}

#[test]
fn what_is_not_ours_is_never_written_without_force() {
    let target = Target::new("block-foreign");
    let foreign: Vec<u8> = (0..BYTES as usize).map(|at| (at / 4096 + at) as u8).collect();
    target.write(0, &foreign);
    for told in [target.refusal(), fails(&["device", "format", &target.path])] {
        assert!(told.contains("not Plimsoll's") && told.contains("--force"), "{told}");
    }
    assert!(target.read(0, BYTES as usize) == foreign, "it was written");
    target.format(&["--force"]);
    let server = target.serve(1);
    assert_eq!(server.client().ask("SET k v"), Reply::Simple(b"OK".to_vec()));
    server.stop();
    assert!(fails(&["device", "format", &target.path]).contains("--force"));
}

#[test]
fn another_size_is_refused_and_the_old_one_serves_again() {
    let target = Target::new("block-size");
    target.format(&[]);
    let server = target.serve(1);
    server.client().ask("SET k v");
    server.stop();
    // Larger, then as it was.
    target.resize(BYTES + (1 << 20));
    let told = target.refusal();
    assert!(
        told.contains(&format!("formatted with {BYTES}")) && told.contains("give it its size back"),
        "{told}"
    );
    target.resize(BYTES);
    let server = target.serve(1);
    assert_eq!(server.client().ask("GET k"), Reply::Bulk(b"v".to_vec()));
    server.stop();
    target.resize(BYTES / 2);
    assert!(target.refusal().contains("give it its size back"));
}

#[test]
fn a_second_server_is_refused_while_the_first_serves() {
    let target = Target::new("block-lock");
    target.format(&[]);
    let server = target.serve(1);
    let told = target.refusal();
    let words = told.lines().rev().find(|line| line.starts_with("plimsoll: ")).unwrap();
    assert!(words.contains("in use") && words.contains(&target.path), "{told}");
    assert!(fails(&["device", "format", "--force", &target.path]).contains("in use"));
    assert_eq!(server.client().ask("SET k v"), Reply::Simple(b"OK".to_vec()));
    server.stop();
}

fn superblock_offsets() -> [u64; 2] {
    [0, BYTES - SUPERBLOCK_BYTES as u64]
}

#[test]
fn another_format_version_is_refused_in_words() {
    let target = Target::new("block-version");
    target.format(&[]);
    let ours = target.read(0, SUPERBLOCK_BYTES);
    let mut superblock = Superblock::decode(&ours).unwrap();
    superblock.format_version += 1;
    let theirs = superblock.encode();
    for offset in superblock_offsets() {
        target.write(offset, &theirs);
    }
    let words = format!("has format version {}", superblock.format_version);
    for told in [target.refusal(), fails(&["device", "info", &target.path])] {
        assert!(told.contains(&words) && told.contains("use the server that wrote it"), "{told}");
    }
    assert_eq!(target.read(0, SUPERBLOCK_BYTES), theirs, "it was written");
    assert!(fails(&["device", "format", &target.path]).contains("--force"));
}

#[test]
fn a_damaged_superblock_is_replaced_by_its_copy_and_two_are_refused() {
    let target = Target::new("block-damage");
    target.format(&[]);
    let server = target.serve(1);
    server.client().ask("SET k v");
    server.stop();
    let [first, copy] = superblock_offsets();
    let damage = |offset: u64| target.write(offset + 40, &[0xa5; 8]);
    damage(first);
    let server = target.serve(1);
    assert_eq!(server.client().ask("GET k"), Reply::Bulk(b"v".to_vec()));
    assert!(server.stop().contains("its copy at the end of the device is used"));
    damage(copy);
    for told in [target.refusal(), fails(&["device", "verify", &target.path])] {
        assert!(told.contains("both superblocks are damaged") && told.contains("backup"), "{told}");
    }
    assert!(fails(&["device", "format", &target.path]).contains("both superblocks are damaged"));
}

#[test]
fn a_device_that_is_not_there_is_told() {
    let place = directory("block-missing");
    let missing = place.join("none");
    let missing = missing.to_str().unwrap();
    assert!(Path::new(missing).parent().unwrap().exists());
    assert!(fails(&["device", "info", missing]).contains(missing));
    assert!(fails(&["device", "format", "/dev/null"]).contains("neither a file nor a block device"));
}
