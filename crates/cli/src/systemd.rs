//! Reports to the service manager, and the listening socket that it passes to this process. Without
//! systemd these functions do nothing.

use std::{future::Future, net::TcpListener, time::Duration};

use anyhow::Result;

/// A state of the service.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "only systemd reads the texts")
)]
pub(crate) enum State<'a> {
    /// It listens; the text is shown by `systemctl status`.
    Ready(&'a str),
    /// It reads its settings again; `Ready` follows.
    Reloading,
    /// It ends.
    Stopping(&'a str),
}

/// Tells the service manager a state.
#[cfg(target_os = "linux")]
pub(crate) fn notify(state: State<'_>) {
    use sd_notify::NotifyState;

    let states = match state {
        State::Ready(text) => vec![NotifyState::Ready, NotifyState::Status(text)],
        State::Reloading => {
            let now = NotifyState::monotonic_usec_now();
            [NotifyState::Reloading]
                .into_iter()
                .chain(now.ok())
                .collect()
        }
        State::Stopping(text) => vec![NotifyState::Stopping, NotifyState::Status(text)],
    };
    if let Err(error) = sd_notify::notify(&states) {
        tracing::warn!(%error, "the state of the service cannot be reported to the service manager");
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn notify(_: State<'_>) {}

/// Tells the service manager regularly that this process is alive, if it asks for that.
#[cfg(target_os = "linux")]
pub(crate) async fn keep_watchdog_quiet() {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut ticks = tokio::time::interval((limit / 3).max(Duration::from_millis(1)));
    loop {
        ticks.tick().await;
        // A failure is repeated each time; the service manager acts on it.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn keep_watchdog_quiet() {
    let _: Duration = std::future::pending().await;
}

/// Time that the service manager is asked for while the service ends.
#[cfg(target_os = "linux")]
const MORE_TIME: Duration = Duration::from_secs(60);

/// Runs `ending` to its end, and asks the service manager for more time as long as it runs. The drain timeout may be
/// longer than `TimeoutStopSec=` of the unit.
#[cfg(target_os = "linux")]
pub(crate) async fn with_more_time<T>(ending: impl Future<Output = T>) -> T {
    let mut ending = std::pin::pin!(ending);
    let mut ticks = tokio::time::interval(MORE_TIME / 3);
    loop {
        tokio::select! {
            biased;
            _ = ticks.tick() => {
                let more = sd_notify::NotifyState::ExtendTimeoutUsec(MORE_TIME.as_micros() as u32);
                // Without the time, the service manager kills the process.
                let _ = sd_notify::notify(&[more]);
            }
            ended = &mut ending => return ended,
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn with_more_time<T>(ending: impl Future<Output = T>) -> T {
    ending.await
}

/// A listening socket that the service manager has passed to this process (socket activation).
#[derive(Debug)]
pub(crate) struct Passed {
    /// FileDescriptorName= of the socket unit.
    pub(crate) name: String,
    pub(crate) socket: TcpListener,
}

/// Returns the listening sockets that the service manager has passed to this process. Later calls return none.
///
/// # Errors
/// A socket is not a listening TCP socket.
#[cfg(target_os = "linux")]
pub(crate) fn passed_listeners() -> Result<Vec<Passed>> {
    use anyhow::{Context, bail};

    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = listenfd::ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..passed.len() {
        let name = names.next().unwrap_or_default().to_owned();
        let socket = passed
            .take_tcp_listener(index)
            .context("a socket that the service manager passed is not a TCP listener")?;
        let Some(socket) = socket else {
            continue;
        };
        if !rustix::net::sockopt::socket_acceptconn(&socket)? {
            bail!(
                "the socket that the service manager passed does not listen; use ListenStream= with Accept=no in the \
                 socket unit"
            );
        }
        socket
            .set_nonblocking(true)
            .context("the socket of the service manager cannot be used")?;
        listeners.push(Passed { name, socket });
    }
    Ok(listeners)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn passed_listeners() -> Result<Vec<Passed>> {
    Ok(Vec::new())
}

#[cfg(not(target_os = "linux"))]
pub(crate) const fn logs_to_journal() -> bool {
    false
}

/// Returns whether stderr is the journal, so that log lines can have fields.
#[cfg(target_os = "linux")]
pub(crate) fn logs_to_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let Ok(stat) = rustix::fs::fstat(std::io::stderr()) else {
        return false;
    };
    stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}
