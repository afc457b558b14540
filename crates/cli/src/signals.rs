//! Waits for SIGINT and SIGTERM, and on Windows for Ctrl-C and Ctrl-Break, to end commands gracefully.

use std::{future::Future, io, pin::pin};

use anyhow::Result;
use thiserror::Error;

/// Waits for a signal to end. While it exists, these signals do not kill the process.
#[derive(Debug)]
pub(crate) struct Interrupted {
    signals: Signals,
    count: u32,
}

impl Interrupted {
    /// # Panics
    /// The system refuses signal handlers, which does not happen on supported systems.
    pub(crate) fn new() -> Self {
        let signals = Signals::new().expect("the signals can be handled");
        Self { signals, count: 0 }
    }

    /// Returns at the next signal. Dropping the future loses no signal.
    pub(crate) async fn wait(&mut self) {
        self.signals.recv().await;
        self.count += 1;
    }

    /// Returns whether there was a signal.
    pub(crate) const fn is_signalled(&self) -> bool {
        self.count > 0
    }

    /// Returns whether a second signal asks to end without tidying up.
    pub(crate) const fn is_urgent(&self) -> bool {
        self.count > 1
    }
}

/// SIGINT and SIGTERM.
#[cfg(unix)]
#[derive(Debug)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

/// Ctrl-C and Ctrl-Break of the console.
#[cfg(windows)]
#[derive(Debug)]
struct Signals {
    interrupt: tokio::signal::windows::CtrlC,
    terminate: tokio::signal::windows::CtrlBreak,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    #[cfg(windows)]
    fn new() -> io::Result<Self> {
        use tokio::signal::windows::{ctrl_break, ctrl_c};
        Ok(Self {
            interrupt: ctrl_c()?,
            terminate: ctrl_break()?,
        })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Waits for SIGHUP, which asks to read the settings again. While it exists, SIGHUP does not kill the
/// process.
#[derive(Debug)]
pub(crate) struct Hangup {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

/// Holds back SIGHUP until [`Hangup::new`]: before, it would end the process.
#[cfg(target_os = "linux")]
pub(crate) fn hold_hangup() {
    // If the system refuses, SIGHUP ends the process for some milliseconds more.
    let _ = hangup_alone().thread_block();
}

#[cfg(target_os = "linux")]
fn hangup_alone() -> nix::sys::signal::SigSet {
    let mut set = nix::sys::signal::SigSet::empty();
    set.add(nix::sys::signal::Signal::SIGHUP);
    set
}

impl Hangup {
    /// # Panics
    /// The system refuses signal handlers, which does not happen on supported systems.
    pub(crate) fn new() -> Self {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let signal = signal(SignalKind::hangup()).expect("the signal can be handled");
            #[cfg(target_os = "linux")]
            let _ = hangup_alone().thread_unblock();
            Self { signal }
        }
        #[cfg(not(unix))]
        Self {}
    }

    /// Returns at the next signal, which Windows does not have. Dropping the future loses no signal.
    pub(crate) async fn wait(&mut self) {
        #[cfg(unix)]
        self.signal.recv().await;
        #[cfg(not(unix))]
        std::future::pending::<()>().await;
    }
}

/// A signal ended a command before it had done its work.
#[derive(Debug, Error)]
#[error("interrupted")]
pub(crate) struct Interruption;

/// Why work did not complete.
#[derive(Debug)]
pub(crate) enum Stopped {
    Interrupted,
    Failed(anyhow::Error),
}

impl From<Stopped> for anyhow::Error {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Interrupted => Interruption.into(),
            Stopped::Failed(error) => error,
        }
    }
}

/// Runs `work` to its end, or drops it at a signal.
pub(crate) async fn unless<T>(
    interrupted: &mut Interrupted,
    work: impl Future<Output = Result<T>>,
) -> Result<T, Stopped> {
    tokio::select! {
        result = work => result.map_err(Stopped::Failed),
        () = interrupted.wait() => Err(Stopped::Interrupted),
    }
}

/// Runs `work` to its end, or drops it at a signal, for work that has nothing to report then.
///
/// # Errors
/// The errors of the work, and an error if a signal interrupted it.
pub(crate) async fn unless_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    Ok(unless(&mut Interrupted::new(), work).await?)
}

/// Runs `work` to its end also at a first signal, and drops it at the second.
pub(crate) async fn unless_urgent<T>(
    interrupted: &mut Interrupted,
    work: impl Future<Output = Result<T>>,
) -> Result<T, Stopped> {
    let mut work = pin!(work);
    loop {
        match unless(interrupted, &mut work).await {
            Err(Stopped::Interrupted) if !interrupted.is_urgent() => {}
            result => return result,
        }
    }
}
