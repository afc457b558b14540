//! libFuzzer's way into `gateway_translation`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::gateway_translation(data));
