//! Fuzz target: any bytes as what stands in the objects of a KV SSD: superblock, manifest, intent.
//!
//! Role: the libFuzzer entry; the body and what it checks are in `plimsoll_slots::fuzz::value`. Place:
//! outside the product. Never: holds checks of its own.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_slots::fuzz::value(data));
