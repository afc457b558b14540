//! Waits for SIGINT and SIGTERM, and on Windows for Ctrl-C and Ctrl-Break, to end commands gracefully.

use std::{future::Future, io};

use anyhow::{Result, bail};

/// Waits for a signal to end. While it exists, these signals do not kill the process.
#[derive(Debug)]
pub(crate) struct Interrupted {
    signals: Signals,
}

impl Interrupted {
    /// # Panics
    /// The system accepts no signal handlers, which no supported system does.
    pub(crate) fn new() -> Self {
        let signals = Signals::new().expect("the signals can be handled");
        Self { signals }
    }

    /// Returns at the next signal. Dropping the future loses none.
    pub(crate) async fn wait(&mut self) {
        self.signals.recv().await;
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

impl Hangup {
    /// # Panics
    /// The system accepts no signal handlers, which no supported system does.
    pub(crate) fn new() -> Self {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let signal = signal(SignalKind::hangup()).expect("the signal can be handled");
            Self { signal }
        }
        #[cfg(not(unix))]
        Self {}
    }

    /// Returns at the next signal, which Windows does not have. Dropping the future loses none.
    pub(crate) async fn wait(&mut self) {
        #[cfg(unix)]
        self.signal.recv().await;
        #[cfg(not(unix))]
        std::future::pending::<()>().await;
    }
}

/// Why work did not complete.
#[derive(Debug)]
pub(crate) enum Stopped {
    Interrupted,
    Failed(anyhow::Error),
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
/// Those of the work, or that it was interrupted.
pub(crate) async fn unless_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match unless(&mut Interrupted::new(), work).await {
        Ok(done) => Ok(done),
        Err(Stopped::Interrupted) => bail!("interrupted"),
        Err(Stopped::Failed(error)) => Err(error),
    }
}
