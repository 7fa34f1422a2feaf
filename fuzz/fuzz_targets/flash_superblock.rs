//! Fuzz target: any bytes as a superblock of the on-flash format.
//!
//! Role: the libFuzzer entry; the body and what it checks are in `plimsoll_flash::fuzz::superblock`. Place:
//! outside the product. Never: holds checks of its own.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_flash::fuzz::superblock(data));
