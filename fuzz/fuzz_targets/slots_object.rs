//! Fuzz target: any bytes as an object of a KV SSD.
//!
//! Role: the libFuzzer entry; the body and what it checks are in `plimsoll_slots::fuzz::object`. Place:
//! outside the product. Never: holds checks of its own.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_slots::fuzz::object(data));
