//! libFuzzer's way into `engine_operations`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::engine_operations(data));
