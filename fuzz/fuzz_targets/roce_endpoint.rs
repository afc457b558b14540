//! libFuzzer's way into `roce_endpoint`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::roce_endpoint(data));
