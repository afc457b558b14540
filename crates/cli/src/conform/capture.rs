//! `--pcap`: one capture of all cases, or a file per case in a directory.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Result, anyhow};
use smbdirect::rdma::{Direction, iwarp::Tap, roce::DatagramTap};
use smbdirect_conform::Watch;

use crate::pcap::Capture;

/// The captures of a run.
pub(super) struct Captures {
    /// The directory with a file per case.
    directory: Option<PathBuf>,
    capture: Option<Capture>,
}

impl Captures {
    /// # Errors
    /// The file or the directory cannot be written.
    pub(super) fn new(path: Option<&Path>) -> Result<Self> {
        let is_directory = |path: &&Path| path.is_dir() || path.to_string_lossy().ends_with('/');
        let directory = path.filter(is_directory);
        let capture = match (path, directory) {
            (None, _) => None,
            (_, Some(directory)) => {
                fs::create_dir_all(directory)
                    .map_err(|error| anyhow!("cannot create {}: {error}", directory.display()))?;
                Some(Capture::default())
            }
            (Some(path), None) => Some(Capture::create(path)?),
        };
        Ok(Self {
            directory: directory.map(Path::to_owned),
            capture,
        })
    }

    /// Returns the tap for the connections of iWARP.
    pub(super) fn tap(&self) -> Option<Arc<dyn Tap>> {
        self.capture.as_ref().map(Capture::tap)
    }

    /// Returns the tap for the connections of RoCE.
    pub(super) fn datagram_tap(&self) -> Option<Arc<dyn DatagramTap>> {
        self.capture.as_ref().map(Capture::datagram_tap)
    }

    /// Returns the observer for connections below RDMA.
    pub(super) fn watch(&self) -> Option<Watch> {
        let tap = self.tap()?;
        Some(Arc::new(move |sent, local, remote, bytes| {
            let direction = if sent {
                Direction::Sent
            } else {
                Direction::Received
            };
            tap.bytes(direction, local, remote, bytes);
        }))
    }

    /// Begins the capture of a case, and returns its file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn begin(&self, id: &str) -> Result<Option<PathBuf>> {
        let (Some(directory), Some(capture)) = (&self.directory, &self.capture) else {
            return Ok(None);
        };
        let path = directory.join(format!("{id}.pcap"));
        capture.open(&path)?;
        Ok(Some(path))
    }

    /// Ends the capture of a case.
    pub(super) fn end(&self) {
        if let (Some(_), Some(capture)) = (&self.directory, &self.capture) {
            capture.close();
        }
    }
}
