//! libFuzzer's way into `work_completions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::work_completions(data));
