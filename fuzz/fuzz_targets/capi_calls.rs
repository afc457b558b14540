//! libFuzzer's way into `capi_calls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::capi_calls(data));
