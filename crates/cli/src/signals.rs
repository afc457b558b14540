//! Waits for the signals that end a process, and on Windows for Ctrl-C and Ctrl-Break, to end commands gracefully.

use std::{future::Future, io, pin::pin};
#[cfg(unix)]
use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use anyhow::Result;
use thiserror::Error;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};

/// Waits for a signal to end. While it exists, these signals do not kill the process.
#[derive(Debug)]
pub(crate) struct Interrupted {
    signals: Signals,
    count: u32,
}

impl Interrupted {
    /// Waits for the signals that end a process and that a program can handle.
    ///
    /// # Panics
    /// The system refuses signal handlers, which does not happen on supported systems.
    pub(crate) fn new() -> Self {
        let signals = Signals::new().expect("the signals can be handled");
        Self { signals, count: 0 }
    }

    /// Waits for SIGINT and SIGTERM: others mean something else to a service, as [`Requests`] says.
    ///
    /// # Panics
    /// The errors of `new`.
    pub(crate) fn of_service() -> Self {
        let signals = Signals::of_service().expect("the signals can be handled");
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

#[cfg(unix)]
#[derive(Debug)]
struct Signals(Vec<tokio::signal::unix::Signal>);

/// Ctrl-C and Ctrl-Break of the console.
#[cfg(windows)]
#[derive(Debug)]
struct Signals {
    interrupt: tokio::signal::windows::CtrlC,
    terminate: tokio::signal::windows::CtrlBreak,
}

#[cfg(unix)]
impl Signals {
    /// Without SIGHUP if the process ignores it, as under nohup. A file that exceeds the limit of the process becomes
    /// an error of its write (SIGXFSZ).
    fn new() -> io::Result<Self> {
        let mut signals = Self::of_service()?;
        let more = [
            SignalKind::quit(),
            SignalKind::alarm(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
        ];
        for kind in more {
            signals.0.push(signal(kind)?);
        }
        if !ignores_hangup() {
            signals.0.push(signal(SignalKind::hangup())?);
        }
        #[cfg(target_os = "linux")]
        drop(signal(SignalKind::from_raw(
            nix::sys::signal::Signal::SIGXFSZ as i32,
        ))?);
        Ok(signals)
    }

    fn of_service() -> io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
        Ok(Self(
            kinds.map(signal).into_iter().collect::<Result<_, _>>()?,
        ))
    }

    async fn recv(&mut self) {
        let mut any = |context: &mut Context<'_>| {
            let mut signals = self.0.iter_mut();
            signals.any(|signal| signal.poll_recv(context).is_ready())
        };
        poll_fn(|context| {
            if any(context) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

/// Returns whether the process that started this one has it ignore SIGHUP.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

#[cfg(windows)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::windows::{ctrl_break, ctrl_c};
        Ok(Self {
            interrupt: ctrl_c()?,
            terminate: ctrl_break()?,
        })
    }

    fn of_service() -> io::Result<Self> {
        Self::new()
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Waits for the signal by which a shell continues a process that was stopped.
#[cfg(feature = "top")]
#[derive(Debug)]
pub(crate) struct Continued(#[cfg(unix)] tokio::signal::unix::Signal);

#[cfg(feature = "top")]
impl Continued {
    /// Waits for SIGCONT, on Unix.
    ///
    /// # Panics
    /// The errors of [`Interrupted::new`].
    pub(crate) fn new() -> Self {
        #[cfg(unix)]
        let kind = SignalKind::from_raw(nix::libc::SIGCONT);
        Self(
            #[cfg(unix)]
            signal(kind).expect("the signal can be handled"),
        )
    }

    /// Returns at the next signal. Cancel-safe.
    pub(crate) async fn wait(&mut self) {
        #[cfg(unix)]
        self.0.recv().await;
        #[cfg(not(unix))]
        std::future::pending::<()>().await;
    }
}

/// Stops the process as Ctrl-Z does, until its shell continues it. The system passes over it where no shell could.
#[cfg(feature = "top")]
pub(crate) fn stop() {
    #[cfg(unix)]
    let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGTSTP);
}

/// Waits for signals that ask for something. While it exists, these signals do not kill the process.
#[derive(Debug)]
pub(crate) struct Requests {
    #[cfg(unix)]
    reload: tokio::signal::unix::Signal,
    #[cfg(target_os = "linux")]
    upgrade: tokio::signal::unix::Signal,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "not every system has the signals")
)]
pub(crate) enum Request {
    /// SIGHUP: to read the settings again.
    Reload,
    /// SIGUSR2, on Linux: to start the program again, and have the new process serve.
    Upgrade,
}

/// Holds back the signals of [`Requests`] until [`Requests::new`]: before, they would end the process.
#[cfg(target_os = "linux")]
pub(crate) fn hold_requests() {
    // If the system refuses, they end the process for some milliseconds more.
    let _ = requests_alone().thread_block();
}

/// Runs `start` with these signals blocked, so that the processes that it starts inherit the blocked signals. A request
/// for an upgrade may signal each process of a group one after the other.
#[cfg(target_os = "linux")]
pub(crate) fn holding_requests<T>(start: impl FnOnce() -> T) -> T {
    hold_requests();
    let started = start();
    let _ = requests_alone().thread_unblock();
    started
}

#[cfg(target_os = "linux")]
fn requests_alone() -> nix::sys::signal::SigSet {
    use nix::sys::signal::Signal;
    [Signal::SIGHUP, Signal::SIGUSR2].into_iter().collect()
}

impl Requests {
    /// # Panics
    /// The system refuses signal handlers, which does not happen on supported systems.
    pub(crate) fn new() -> Self {
        #[cfg(unix)]
        {
            let handle = |kind| signal(kind).expect("the signal can be handled");
            let requests = Self {
                reload: handle(SignalKind::hangup()),
                #[cfg(target_os = "linux")]
                upgrade: handle(SignalKind::user_defined2()),
            };
            #[cfg(target_os = "linux")]
            let _ = requests_alone().thread_unblock();
            requests
        }
        #[cfg(not(unix))]
        Self {}
    }

    /// Forgets the upgrade that was asked for until now.
    #[cfg(target_os = "linux")]
    pub(crate) async fn forget_upgrade(&mut self) {
        tokio::select! {
            biased;
            _ = self.upgrade.recv() => {}
            () = std::future::ready(()) => {}
        }
    }

    /// Returns the next request, of which Windows has none. Dropping the future loses no signal.
    pub(crate) async fn next(&mut self) -> Request {
        #[cfg(target_os = "linux")]
        tokio::select! {
            _ = self.reload.recv() => Request::Reload,
            _ = self.upgrade.recv() => Request::Upgrade,
        }
        #[cfg(all(unix, not(target_os = "linux")))]
        {
            self.reload.recv().await;
            Request::Reload
        }
        #[cfg(not(unix))]
        std::future::pending().await
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
