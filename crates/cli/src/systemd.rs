//! Reports to the service manager, and the sockets that it or an earlier process passes to this one. Without systemd the
//! reports do nothing.

#[cfg(target_os = "linux")]
use std::{
    env,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::BorrowedFd,
        unix::{ffi::OsStrExt, net::UnixStream},
    },
};
use std::{future::Future, net::TcpListener, time::Duration};

use anyhow::Result;
use smbdirect_transport::Kept;

/// A state of the service.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "only systemd reads the texts")
)]
pub(crate) enum State<'a> {
    /// The service listens; the text is shown by `systemctl status`.
    Ready(&'a str),
    /// The service reads its settings again; `Ready` follows.
    Reloading,
    /// The service ends.
    Stopping(&'a str),
    /// The process with this ID is the main process from now on.
    Succeeded(u32),
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
        State::Succeeded(id) => vec![NotifyState::MainPid(id)],
    };
    if let Err(error) = send(&states, &[]) {
        tracing::warn!(%error, "the state of the service cannot be reported to the service manager");
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn notify(_: State<'_>) {}

/// Sends states to the service manager, with these descriptors. Its socket has a path, or an abstract name, which begins with
/// `@` and which sd-notify does not know.
#[cfg(target_os = "linux")]
fn send(states: &[sd_notify::NotifyState<'_>], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    use rustix::{
        cmsg_space,
        net::{
            AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
            SocketFlags, SocketType, sendmsg_addr, socket_with,
        },
    };

    let Some(name) = env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(&name)?,
    };
    let text: String = states.iter().map(|state| format!("{state}\n")).collect();
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut space = vec![MaybeUninit::uninit(); cmsg_space!(ScmRights(descriptors.len()))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let text = [IoSlice::new(text.as_bytes())];
    sendmsg_addr(&socket, &address, &text, &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Has the service manager keep these listening sockets, in place of those that it keeps, so that clients wait while the
/// service restarts.
#[cfg(target_os = "linux")]
pub(crate) fn store<'a>(sockets: impl Iterator<Item = &'a TcpListener>) {
    use sd_notify::NotifyState::{FdName, FdStore, FdStoreRemove};
    use std::os::fd::AsFd;

    let sockets: Vec<_> = sockets.map(AsFd::as_fd).collect();
    let mut stored = send(&[FdStoreRemove, FdName(KEPT)], &[]);
    for some in sockets.chunks(MAX_STORED_AT_ONCE) {
        let more = send(&[FdStore, FdName(KEPT)], some);
        stored = stored.and(more);
    }
    if let Err(error) = stored {
        tracing::warn!(%error, "the sockets cannot be left with the service manager; clients are refused during a restart");
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn store<'a>(_: impl Iterator<Item = &'a TcpListener>) {}

/// Maximum number of descriptors in one datagram; Linux permits 253.
#[cfg(target_os = "linux")]
const MAX_STORED_AT_ONCE: usize = 200;

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
        let _ = send(&[sd_notify::NotifyState::Watchdog], &[]);
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
                let _ = send(&[more], &[]);
            }
            ended = &mut ending => return ended,
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn with_more_time<T>(ending: impl Future<Output = T>) -> T {
    ending.await
}

/// The name of sockets that an earlier process has left; systemd's name for descriptors that it stores.
pub(crate) const KEPT: &str = "stored";
/// The name of the stream to the process that this one is to succeed.
#[cfg(target_os = "linux")]
pub(crate) const PREDECESSOR: &str = "predecessor";

/// A listening socket, and the name by which it is passed.
#[derive(Debug)]
pub(crate) struct Passed {
    /// FileDescriptorName= of the socket unit, or [`KEPT`].
    pub(crate) name: String,
    pub(crate) socket: TcpListener,
}

impl Passed {
    /// Returns a duplicate.
    ///
    /// # Errors
    /// The system has too many open files.
    pub(crate) fn duplicate(&self) -> Result<Self> {
        let (name, socket) = (self.name.clone(), self.socket.try_clone()?);
        Ok(Self { name, socket })
    }
}

/// What was passed to this process.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// The sockets of socket units (socket activation).
    pub(crate) of_units: Vec<Passed>,
    /// The sockets that an earlier process has left.
    pub(crate) kept: Kept,
    /// The stream to the process that this one is to succeed.
    #[cfg(target_os = "linux")]
    pub(crate) predecessor: Option<UnixStream>,
}

/// Returns what was passed to this process. Later calls return nothing.
///
/// # Errors
/// A socket of a socket unit is not a listening TCP socket.
#[cfg(target_os = "linux")]
pub(crate) fn inherited() -> Result<Inherited> {
    use anyhow::{Context, bail};
    use rustix::net::{AddressFamily, SocketType, sockopt::socket_acceptconn};

    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = listenfd::ListenFd::from_env();
    let (mut of_units, mut kept, mut predecessor) = (Vec::new(), Vec::new(), None);
    for index in 0..passed.len() {
        let name = names.next().unwrap_or_default().to_owned();
        if name == PREDECESSOR {
            let family = AddressFamily::UNIX.as_raw().into();
            let kind = SocketType::STREAM.as_raw() as i32;
            predecessor = passed.take_custom(index, family, kind, "stream")?;
            continue;
        }
        let socket = passed.take_tcp_listener(index);
        if name == KEPT {
            // One that does not listen any longer is of no use.
            let socket = socket.ok().flatten();
            kept.extend(socket.filter(|socket| socket_acceptconn(socket).unwrap_or(false)));
            continue;
        }
        let socket =
            socket.context("a socket that the service manager passed is not a TCP listener")?;
        let Some(socket) = socket else {
            continue;
        };
        if !socket_acceptconn(&socket)? {
            bail!(
                "the socket that the service manager passed does not listen; use ListenStream= with Accept=no in the \
                 socket unit"
            );
        }
        socket
            .set_nonblocking(true)
            .context("the socket of the service manager cannot be used")?;
        of_units.push(Passed { name, socket });
    }
    Ok(Inherited {
        of_units,
        kept: Kept::new(kept, predecessor.is_some()),
        predecessor,
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn inherited() -> Result<Inherited> {
    Ok(Inherited::default())
}

#[cfg(not(target_os = "linux"))]
pub(crate) const fn logs_to_journal() -> bool {
    false
}

/// Returns whether stderr is the journal, so that log lines can have fields.
#[cfg(target_os = "linux")]
pub(crate) fn logs_to_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else {
        return false;
    };
    let Ok(stat) = rustix::fs::fstat(io::stderr()) else {
        return false;
    };
    stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}
