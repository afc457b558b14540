//! libFuzzer's way into `mpa_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::mpa_stream(data));
