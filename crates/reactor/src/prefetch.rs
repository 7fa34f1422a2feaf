//! A hint to the processor: bytes that will be read soon.
//!
//! Role: lets a task name what it will look at and let others run while memory answers. Place on the path:
//! beside it, where an index is larger than the processor's caches.
//!
//! Never: it reads, waits or faults.

/// Asks for the cache line at which a value begins. On processors that are not known here it does nothing.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address neither faults nor changes anything.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
