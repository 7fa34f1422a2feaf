//! Copying what this core does not look at again: past its caches.
//!
//! Place on the path: from received values into the frames that the drive reads.
//!
//! A plain copy first brings to this core the memory that it overwrites, which the drive, or who plays it,
//! has read last; and drives from the caches what is needed next. Intel's and AMD's optimization manuals
//! have non-temporal stores for that.
//!
//! Invariant: what was copied is seen by whoever is told of it.

/// From so many bytes on a copy goes past the caches: what is shorter is likely to be there.
const STREAMED_BYTES_MIN: usize = 8 << 10;

/// Copies bytes to where no program reads them soon.
///
/// # Panics
/// If the lengths differ.
pub fn copy_for_device(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    #[cfg(target_arch = "x86_64")]
    if from.len() >= STREAMED_BYTES_MIN {
        return x86_64::copy(to, from);
    }
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// A line of the caches: written whole, it is never read.
    const LINE: usize = 64;
    const WORD: usize = size_of::<__m128i>();

    pub(super) fn copy(to: &mut [u8], from: &[u8]) {
        let before = to.as_ptr().align_offset(LINE).min(to.len());
        let (head, lines) = to.split_at_mut(before);
        let (from_head, from_lines) = from.split_at(before);
        head.copy_from_slice(from_head);
        let mut to_lines = lines.chunks_exact_mut(LINE);
        let mut from_lines = from_lines.chunks_exact(LINE);
        for (to, from) in (&mut to_lines).zip(&mut from_lines) {
            let (to, from) = (to.as_mut_ptr(), from.as_ptr());
            for at in (0..LINE).step_by(WORD) {
                // SAFETY: both are of a line's length, and the target begins at one.
                unsafe { _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast())) };
            }
        }
        to_lines.into_remainder().copy_from_slice(from_lines.remainder());
        // SAFETY: every processor of 64 bits has it. Whoever is told of these bytes sees them.
        unsafe { _mm_sfence() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_is_there_wherever_it_begins_and_ends() {
        let from: Vec<u8> = (0..40_000_u32).map(|at| ((at * 31) >> 3) as u8).collect();
        for (begin, len) in
            [(0, 0), (1, 8191), (0, 8192), (1, 8193), (63, 16_384), (64, 20_000), (17, 39_000)]
        {
            let mut to = vec![0xee; 40_100];
            copy_for_device(&mut to[begin..begin + len], &from[..len]);
            assert!(to[begin..begin + len] == from[..len], "{len} bytes from {begin} on");
            let is_untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xee);
            assert!(is_untouched(&to[..begin]) && is_untouched(&to[begin + len..]));
        }
    }
}
