//! libFuzzer's way into `smb2`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smbdirect_fuzz::smb2(data));
