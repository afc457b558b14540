//! libFuzzer's way into `memory_table`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::memory_table(data));
