//! libFuzzer's way into `capture_reader`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::capture_reader(data));
