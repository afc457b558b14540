//! Targets by name, and their inputs.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

/// What runs an input.
pub(crate) type Run = fn(&[u8]);

/// The target of this name.
pub(crate) fn target(name: &str) -> Run {
    match name {
        "capture_reader" => smbdirect_fuzz::capture_reader,
        "decode" => smbdirect_fuzz::decode,
        "engine_operations" => smbdirect_fuzz::engine_operations,
        "gateway_translation" => smbdirect_fuzz::gateway_translation,
        "memory_table" => smbdirect_fuzz::memory_table,
        "mpa_stream" => smbdirect_fuzz::mpa_stream,
        "rdmap_stream" => smbdirect_fuzz::rdmap_stream,
        "smb2" => smbdirect_fuzz::smb2,
        "wire_decode" => smbdirect_fuzz::wire_decode,
        #[cfg(target_os = "linux")]
        "work_completions" => smbdirect_fuzz::work_completions,
        _ => panic!("there is no target {name}"),
    }
}

/// The folder of a target in `kind`: corpus, regressions or artifacts.
pub(crate) fn folder(kind: &str, target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(kind)
        .join(target)
}

/// The files of a target in `kind`, in the same order everywhere.
pub(crate) fn inputs(kind: &str, target: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder(kind, target)) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Something that may panic, and what to do if it does.
pub(crate) struct Attempt<F: Fn()>(F);

impl<F: Fn()> Attempt<F> {
    pub(crate) fn new(on_panic: F) -> Self {
        Self(on_panic)
    }
}

impl<F: Fn()> Drop for Attempt<F> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}
