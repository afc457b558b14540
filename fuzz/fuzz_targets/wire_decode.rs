//! libFuzzer's way into `wire_decode`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::wire_decode(data));
