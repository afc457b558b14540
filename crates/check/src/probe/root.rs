//! Reads the files that describe this machine, below a directory that tests can replace.

use std::{fs, io::Read, path::PathBuf};

/// The root of the file system.
#[derive(Clone, Debug)]
pub(super) struct Root(PathBuf);

/// Maximum number of bytes that are read from a file. A kernel configuration has 300 KB, and `modules.dep` of a
/// distribution 700 KB.
const MAX_FILE_BYTES: u64 = 8 << 20;

impl Root {
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns whether this is the root of the running system.
    pub(super) fn is_real(&self) -> bool {
        self.0.as_os_str() == "/"
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Returns the contents of a file, or `None` if it cannot be read.
    pub(super) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let file = fs::File::open(self.path(path)).ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns the text of a file, or `None` if it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let bytes = self.bytes(path)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the only line of a file, without blanks around it.
    pub(super) fn line(&self, path: &str) -> Option<String> {
        Some(self.text(path)?.trim().to_owned())
    }

    /// Returns the target of a symbolic link, or `None` if it cannot be read.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.to_string_lossy().into_owned())
    }

    /// Returns the sorted names in a directory; none if it cannot be read.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}
