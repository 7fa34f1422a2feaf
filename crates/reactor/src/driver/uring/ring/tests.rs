//! Tests of the ring: every set-up loses nothing, and refusals come in words.

use super::{Ring, SUBMISSIONS_MAX, Setup, build_as, explain};
use io_uring::{opcode, types};
use std::collections::VecDeque;
use std::io;
use std::io::Write as _;
use std::os::fd::AsRawFd;

fn ring(setup: Setup) -> Ring {
    Ring { ring: build_as(setup).expect("this kernel knows every set-up"), backlog: VecDeque::new() }
}

fn take(ring: &mut Ring, count: usize) -> Vec<u64> {
    let mut completions = Vec::new();
    while completions.len() < count {
        ring.wait(Some(5_000_000_000));
        ring.submit();
        let before = completions.len();
        ring.take_completions(&mut completions);
        assert!(completions.len() > before || !ring.backlog.is_empty(), "completions were lost");
    }
    completions.iter().map(io_uring::cqueue::Entry::user_data).collect()
}

#[test]
fn a_burst_beyond_both_queues_completes_in_order_in_every_setup() {
    // More than the completion queue holds, too: the kernel keeps the rest on its own list.
    let burst = u64::from(SUBMISSIONS_MAX) * 20;
    for setup in [Setup::Deferred, Setup::Cooperative, Setup::Plain] {
        let mut ring = ring(setup);
        for data in 0..burst {
            // SAFETY: a NOP names no memory.
            unsafe { ring.push(opcode::Nop::new().build().user_data(data)) };
        }
        assert!(!ring.backlog.is_empty());
        let found = take(&mut ring, burst as usize);
        assert_eq!(found, (0..burst).collect::<Vec<_>>(), "{setup:?}");
    }
}

#[test]
fn a_completion_that_comes_later_is_seen_without_waiting_for_it() {
    for setup in [Setup::Deferred, Setup::Cooperative, Setup::Plain] {
        let mut ring = ring(setup);
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let target = Box::leak(Box::new([0_u8; 4]));
        let entry = opcode::Read::new(types::Fd(reader.as_raw_fd()), target.as_mut_ptr(), 4).build();
        // SAFETY: the target is leaked and read by nobody; the pipe outlives the completion.
        unsafe { ring.push(entry.user_data(7)) };
        ring.submit();
        let mut completions = Vec::new();
        ring.take_completions(&mut completions);
        assert!(completions.is_empty());
        writer.write_all(b"late").expect("the pipe has room");
        while completions.is_empty() {
            ring.submit();
            ring.take_completions(&mut completions);
        }
        assert_eq!((completions[0].user_data(), completions[0].result()), (7, 4), "{setup:?}");
    }
}

#[test]
fn refusals_come_in_words() {
    for (code, words) in [
        (libc::EPERM, "kernel.io_uring_disabled"),
        (libc::ENOSYS, "Linux 5.19 or newer"),
        (libc::ENOMEM, "ulimit -l"),
        (libc::EMFILE, "ulimit -n"),
    ] {
        let error = explain(io::Error::from_raw_os_error(code));
        assert!(error.to_string().contains(words), "{error}");
    }
}
