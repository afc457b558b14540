//! libFuzzer's way into `decode`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::decode(data));
