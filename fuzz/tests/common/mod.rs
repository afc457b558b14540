//! Looks up targets by name, and reads their inputs.

use std::{
    fs,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    thread,
};

use flate2::read::GzDecoder;

/// A function that runs an input.
pub(crate) type Run = fn(&[u8]);

/// Returns the target of this name.
pub(crate) fn target(name: &str) -> Run {
    match name {
        #[cfg(unix)]
        "capi_calls" => smbdirect_fuzz::capi_calls,
        "capture_reader" => smbdirect_fuzz::capture_reader,
        "decode" => smbdirect_fuzz::decode,
        "engine_operations" => smbdirect_fuzz::engine_operations,
        "gateway_translation" => smbdirect_fuzz::gateway_translation,
        "memory_table" => smbdirect_fuzz::memory_table,
        "mpa_stream" => smbdirect_fuzz::mpa_stream,
        "rdmap_stream" => smbdirect_fuzz::rdmap_stream,
        "roce_endpoint" => smbdirect_fuzz::roce_endpoint,
        "roce_packet" => smbdirect_fuzz::roce_packet,
        "roce_queue_pair" => smbdirect_fuzz::roce_queue_pair,
        "smb2" => smbdirect_fuzz::smb2,
        #[cfg(target_os = "linux")]
        "tdi_calls" => smbdirect_fuzz::tdi_calls,
        "wire_decode" => smbdirect_fuzz::wire_decode,
        #[cfg(target_os = "linux")]
        "work_completions" => smbdirect_fuzz::work_completions,
        _ => panic!("there is no target {name}"),
    }
}

/// Returns the path of a target in `kind`: corpus, regressions or artifacts.
pub(crate) fn folder(kind: &str, target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(kind)
        .join(target)
}

/// An input of a target.
pub(crate) struct Input {
    /// The name of its file, for messages.
    pub(crate) name: String,
    /// The bytes of the input.
    pub(crate) bytes: Vec<u8>,
}

/// Reads the packed corpus of a target, in the same order on every machine.
pub(crate) fn corpus(target: &str) -> Vec<Input> {
    let path = folder("corpus", &format!("{target}.tar.gz"));
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    let read = |entry: io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        Input { name, bytes }
    };
    let corpus: Vec<_> = archive.entries().unwrap().map(read).collect();
    assert!(!corpus.is_empty(), "the corpus of {target} is empty");
    corpus
}

/// Reads the inputs that once made a target fail, in the same order on every machine.
pub(crate) fn regressions(target: &str) -> Vec<Input> {
    let Ok(entries) = fs::read_dir(folder("regressions", target)) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| Input {
        name: path.display().to_string(),
        bytes: fs::read(&path).unwrap(),
    };
    paths.into_iter().map(read).collect()
}

/// Calls its function if the scope ends by a panic.
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
