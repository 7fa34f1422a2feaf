//! Fuzz target: any bytes as the intent of a transaction.
//!
//! Role: the libFuzzer entry; the body and what it checks are in `plimsoll_flash::fuzz::intent`. Place:
//! outside the product. Never: holds checks of its own.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_flash::fuzz::intent(data));
