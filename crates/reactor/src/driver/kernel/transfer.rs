//! A whole transfer out of the parts that the kernel makes of it.
//!
//! Role: says what follows from the result of each system call or ring entry: done, once more, failed.
//! Place on the path: the last step of a disk operation, on whatever thread learns of its result.
//!
//! Invariants:
//! * a transfer is whole: what the kernel left is asked for again, a block at a time at least;
//! * what passes by itself (EINTR, EAGAIN) is asked for again so many times, then it is an error.

use std::io;

/// Times an operation is started again after an error that passes before it is reported.
const RETRIES_MAX: u8 = 64;

/// What to do with an operation after a result.
pub(in crate::driver) enum Step {
    Done(io::Result<u64>),
    Again,
}

/// How often an operation has met errors that pass by themselves.
#[derive(Clone, Copy, Default)]
pub(in crate::driver) struct Retries(u8);

impl Retries {
    /// Whether an operation that met this error is to be started again.
    pub(in crate::driver) fn again(&mut self, code: i32) -> bool {
        // A connection that was gone before it was accepted is no error of the listener.
        let passes = matches!(code, libc::EINTR | libc::EAGAIN | libc::ECONNABORTED);
        let again = passes && self.0 < RETRIES_MAX;
        self.0 += u8::from(again);
        again
    }
}

/// Memory, a range of a device, and how far the transfer between them has come.
#[derive(Clone, Copy)]
pub(in crate::driver) struct Transfer {
    pub(in crate::driver) address: *mut u8,
    pub(in crate::driver) len: usize,
    pub(in crate::driver) offset: u64,
    /// Bytes moved so far.
    pub(in crate::driver) moved: usize,
}

impl Transfer {
    /// Address, length and offset of what is still to be moved.
    pub(in crate::driver) fn rest(self) -> (*mut u8, u32, u64) {
        assert!(self.moved < self.len);
        let len = u32::try_from(self.len - self.moved).expect("transfers are bounded by IO_BYTES_MAX");
        (self.address.wrapping_add(self.moved), len, self.offset + self.moved as u64)
    }
}

/// What follows from a result of a transfer of `len` bytes: a count, or an error code below zero. Keeps
/// `moved` and `retries` up to date.
pub(in crate::driver) fn judge(
    result: i32,
    len: usize,
    block_bytes: u32,
    moved: &mut usize,
    retries: &mut Retries,
) -> Step {
    if result < 0 {
        let again = retries.again(-result);
        return if again { Step::Again } else { Step::Done(Err(io::Error::from_raw_os_error(-result))) };
    }
    let now = *moved + result as usize;
    assert!(now <= len, "the kernel moved more than asked");
    if now == len {
        return Step::Done(Ok(len as u64));
    }
    // Direct I/O goes on at a block: a part of one is transferred again.
    let now = now - now % block_bytes as usize;
    if now > *moved {
        *moved = now;
        return Step::Again;
    }
    let words = "the device ended before the transfer did";
    Step::Done(Err(io::Error::new(io::ErrorKind::UnexpectedEof, words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a transfer of `len` bytes in blocks of 512 whose parts have these results.
    fn run(len: usize, results: &[i32]) -> (usize, Option<io::Result<u64>>) {
        let (mut moved, mut retries) = (0, Retries::default());
        for result in results {
            match judge(*result, len, 512, &mut moved, &mut retries) {
                Step::Again => {}
                Step::Done(done) => return (moved, Some(done)),
            }
        }
        (moved, None)
    }

    #[test]
    fn parts_become_a_whole_a_block_at_a_time() {
        assert!(matches!(run(4096, &[4096]), (_, Some(Ok(4096)))));
        assert!(matches!(run(4096, &[1024, 3072]), (_, Some(Ok(4096)))));
        // A part of a block is asked for again.
        assert!(matches!(run(4096, &[1100, 3072]), (_, Some(Ok(4096)))));
        assert!(matches!(run(4096, &[1100]), (1024, None)));
    }

    #[test]
    fn an_end_and_an_error_are_told_and_what_passes_is_not() {
        for results in [&[0][..], &[100], &[1024, 511]] {
            let (_, done) = run(4096, results);
            assert_eq!(done.unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
        let (_, done) = run(4096, &[512, -libc::EIO]);
        assert_eq!(done.unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
        assert!(matches!(run(512, &[-libc::EINTR, -libc::EAGAIN, 512]), (_, Some(Ok(512)))));
        let (_, done) = run(512, &[-libc::EAGAIN; 65]);
        assert_eq!(done.unwrap().unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        assert!(matches!(run(512, &[-libc::EAGAIN; 64]), (0, None)));
    }
}
