//! libFuzzer's way into `rdmap_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::rdmap_stream(data));
