//! `--pcap`: one capture of all cases, or a file per case in a directory.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Result, anyhow};
use smbdirect::rdma::{Direction, iwarp::Tap, roce::DatagramTap};
use smbdirect_conform::Watch;

use crate::pcap::Capture;

/// The captures of a run.
pub(super) struct Captures {
    /// The directory with a file per case.
    directory: Option<PathBuf>,
    switch: Option<Arc<Switch>>,
}

/// A tap whose file changes from case to case.
#[derive(Debug, Default)]
struct Switch(Mutex<Option<Current>>);

/// The file that is being written. The capture ends with it.
#[derive(Debug)]
struct Current {
    _capture: Capture,
    tap: Arc<dyn Tap>,
    datagram_tap: Arc<dyn DatagramTap>,
}

impl Tap for Switch {
    fn bytes(&self, direction: Direction, local: SocketAddr, remote: SocketAddr, bytes: &[u8]) {
        let current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &*current {
            current.tap.bytes(direction, local, remote, bytes);
        }
    }
}

impl DatagramTap for Switch {
    fn datagram(
        &self,
        direction: Direction,
        local: SocketAddr,
        remote: SocketAddr,
        identification: u16,
        datagram: &[u8],
    ) {
        let current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &*current {
            let tap = &current.datagram_tap;
            tap.datagram(direction, local, remote, identification, datagram);
        }
    }
}

impl Switch {
    fn open(&self, path: &Path) -> Result<()> {
        let capture = Capture::create(path)?;
        let opened = Current {
            tap: capture.tap(),
            datagram_tap: capture.datagram_tap(),
            _capture: capture,
        };
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some(opened);
        Ok(())
    }

    fn close(&self) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *current = None;
    }
}

impl Captures {
    /// # Errors
    /// The file or the directory cannot be written.
    pub(super) fn new(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self {
                directory: None,
                switch: None,
            });
        };
        let switch = Arc::new(Switch::default());
        let text = path.to_string_lossy();
        let is_directory = path.is_dir() || text.ends_with('/');
        if is_directory {
            std::fs::create_dir_all(path)
                .map_err(|error| anyhow!("cannot create {text}: {error}"))?;
        } else {
            switch.open(path)?;
        }
        Ok(Self {
            directory: is_directory.then(|| path.to_owned()),
            switch: Some(switch),
        })
    }

    /// Returns the tap for the connections of iWARP.
    pub(super) fn tap(&self) -> Option<Arc<dyn Tap>> {
        self.switch.clone().map(|switch| switch as Arc<dyn Tap>)
    }

    /// Returns the tap for the connections of RoCE.
    pub(super) fn datagram_tap(&self) -> Option<Arc<dyn DatagramTap>> {
        self.switch
            .clone()
            .map(|switch| switch as Arc<dyn DatagramTap>)
    }

    /// Returns the observer for connections below RDMA.
    pub(super) fn watch(&self) -> Option<Watch> {
        let switch = self.switch.clone()?;
        Some(Arc::new(move |sent, local, remote, bytes| {
            let direction = if sent {
                Direction::Sent
            } else {
                Direction::Received
            };
            switch.bytes(direction, local, remote, bytes);
        }))
    }

    /// Begins the capture of a case, and returns its file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn begin(&self, id: &str) -> Result<Option<PathBuf>> {
        let (Some(directory), Some(switch)) = (&self.directory, &self.switch) else {
            return Ok(None);
        };
        let path = directory.join(format!("{id}.pcap"));
        switch.open(&path)?;
        Ok(Some(path))
    }

    /// Ends the capture of a case.
    pub(super) fn end(&self) {
        if let (Some(_), Some(switch)) = (&self.directory, &self.switch) {
            switch.close();
        }
    }
}
