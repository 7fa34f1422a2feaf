//! Fuzz target: any bytes as a checkpoint of the on-flash format.
//!
//! Role: the libFuzzer entry; the body and what it checks are in `plimsoll_flash::fuzz::checkpoint`. Place:
//! outside the product. Never: holds checks of its own.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_flash::fuzz::checkpoint(data));
