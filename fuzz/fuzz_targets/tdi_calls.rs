//! libFuzzer's way into `tdi_calls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::tdi_calls(data));
