//! Fuzz target: any bytes as RESP requests.
//!
//! Role: the libFuzzer entry; the body and what it checks are in `plimsoll_resp::fuzz::request`. Place:
//! outside the product. Never: holds checks of its own.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_resp::fuzz::request(data));
