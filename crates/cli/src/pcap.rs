//! `--pcap`: the traffic of connections, as a capture.

use std::{
    fmt,
    fs::File,
    io::BufWriter,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow};
use smbdirect::rdma::{Direction, iwarp::Tap, roce::DatagramTap};
use smbdirect_decode::{PerEnd, Recorder, Side};

use crate::report::plain;

/// A tap for providers, and the capture file that it writes. Dropping it completes the file.
#[derive(Debug, Default)]
pub(crate) struct Capture(Arc<Writer>);

/// The file that is being written, if there is one.
#[derive(Default)]
struct Writer(Mutex<Option<Open>>);

type Open = (PathBuf, Recorder<BufWriter<File>>);

/// The first failure of a capture that has ended.
static INCOMPLETE: Mutex<Option<anyhow::Error>> = Mutex::new(None);

/// Checks that all captures that have ended are complete.
///
/// # Errors
/// The first incomplete one, with the reason.
pub(crate) fn complete() -> Result<()> {
    let mut incomplete = INCOMPLETE.lock().unwrap_or_else(PoisonError::into_inner);
    incomplete.take().map_or(Ok(()), Err)
}

impl Capture {
    /// Creates the file, and replaces an existing one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let capture = Self::default();
        capture.open(path)?;
        Ok(capture)
    }

    /// Ends the file that is being written, and creates another.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn open(&self, path: &Path) -> Result<()> {
        self.close();
        let file = File::create(path).and_then(|file| Recorder::new(BufWriter::new(file)));
        let recorder = file
            .map_err(|error| anyhow!(plain(&error)))
            .with_context(|| format!("cannot write the capture {}", path.display()))?;
        *self.0.lock() = Some((path.to_owned(), recorder));
        Ok(())
    }

    /// Completes the file that is being written.
    pub(crate) fn close(&self) {
        let Some((path, recorder)) = self.0.lock().take() else {
            return;
        };
        if let Err(error) = recorder.finish(now()) {
            let (path, why) = (path.display(), plain(&error));
            INCOMPLETE
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(anyhow!("the capture {path} is incomplete: {why}"));
        }
    }

    /// Returns the tap that the provider of iWARP passes its bytes to.
    pub(crate) fn tap(&self) -> Arc<dyn Tap> {
        self.0.clone()
    }

    /// Returns the tap that the provider of RoCE passes its datagrams to.
    pub(crate) fn datagram_tap(&self) -> Arc<dyn DatagramTap> {
        self.0.clone()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.close();
    }
}

impl Writer {
    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Tap for Writer {
    fn bytes(&self, direction: Direction, local: SocketAddr, remote: SocketAddr, bytes: &[u8]) {
        let from = match direction {
            Direction::Sent => Side::A,
            Direction::Received => Side::B,
        };
        if let Some((_, recorder)) = &mut *self.lock() {
            recorder.bytes(now(), from, PerEnd([local, remote]), bytes);
        }
    }
}

impl DatagramTap for Writer {
    fn datagram(
        &self,
        direction: Direction,
        local: SocketAddr,
        remote: SocketAddr,
        identification: u16,
        datagram: &[u8],
    ) {
        let (from, to) = match direction {
            Direction::Sent => (local, remote),
            Direction::Received => (remote, local),
        };
        if let Some((_, recorder)) = &mut *self.lock() {
            recorder.datagram(now(), from, to, identification, datagram);
        }
    }
}

/// Returns the time since 1970.
fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}
