//! libFuzzer's way into `roce_queue_pair`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::roce_queue_pair(data));
