//! Waits for SIGINT and SIGTERM, to end commands gracefully.

use std::future::Future;

use anyhow::{Result, bail};

/// Waits for either signal. While it exists, they do not kill the process.
#[derive(Debug)]
pub(crate) struct Interrupted {
    #[cfg(unix)]
    signals: [tokio::signal::unix::Signal; 2],
}

impl Interrupted {
    /// # Panics
    /// The system accepts no signal handlers, which no supported system does.
    pub(crate) fn new() -> Self {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let handle = |kind| signal(kind).expect("the signal can be handled");
            Self {
                signals: [SignalKind::interrupt(), SignalKind::terminate()].map(handle),
            }
        }
        #[cfg(not(unix))]
        Self {}
    }

    /// Returns at the next signal. Dropping the future loses none.
    pub(crate) async fn wait(&mut self) {
        #[cfg(unix)]
        {
            let [interrupt, terminate] = &mut self.signals;
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
        #[cfg(not(unix))]
        {
            // Without a handler there is nothing to wait for.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
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

    /// Returns at the next signal, or never if there is no handler. Dropping the future loses none.
    pub(crate) async fn wait(this: &mut Option<Self>) {
        #[cfg(unix)]
        if let Some(hangup) = this {
            hangup.signal.recv().await;
            return;
        }
        let _ = this;
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
