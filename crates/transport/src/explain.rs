//! Explains why an end did not connect, did not listen or ended, and what to try.

use std::{io, net::SocketAddr, time::Duration};

use smbdirect::{
    ConnectFault, ConnectionError,
    rdma::work::{ProviderError, ProviderErrorKind},
};
use tokio::{net::TcpStream, time::timeout};

use crate::{addresses::ResolveError, kind::Kind, text};

/// A setting that may cure an error. A program names its own option for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The longest time to connect.
    ConnectTimeout,
    /// The kind of RDMA.
    Kind,
    /// The UDP port of RoCE in software.
    UdpPort,
}

/// The reason why an end did not connect or listen, and what to try.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    text: String,
    cause: Cause,
    setting: Option<Setting>,
}

impl Error {
    /// Returns an error with the reason and what to try, in one sentence.
    pub fn new(cause: Cause, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            cause,
            setting: None,
        }
    }

    /// Returns what the error says about the peer.
    pub const fn cause(&self) -> Cause {
        self.cause
    }

    /// Returns the setting that may cure it, if there is one.
    pub const fn setting(&self) -> Option<Setting> {
        self.setting
    }

    /// Says which setting may cure it.
    pub(super) const fn cured_by(mut self, setting: Setting) -> Self {
        self.setting = Some(setting);
        self
    }
}

impl From<ResolveError> for Error {
    fn from(error: ResolveError) -> Self {
        Self::new(Cause::Name, error.to_string())
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::new(Cause::Own, text::plain(&error))
    }
}

/// What the failure of a connection says about the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing: something of this machine has run out.
    Own,
    /// The name of the peer cannot be looked up, or has no address.
    Name,
    /// The machine of the peer answers, and nothing listens at the address.
    Refused,
    /// The peer closed the connection before both ends agreed on one.
    Closed,
    /// The peer answers in another protocol.
    OtherProtocol,
    /// The peer accepted a connection, and did not answer.
    Silent,
    /// No answer has come from the address, or no route leads to it.
    Unreachable,
}

impl Cause {
    /// Returns what a failed connection by RDMA says about the peer.
    pub(super) const fn of(error: &ConnectFault) -> Self {
        match error {
            ConnectFault::Provider(error)
            | ConnectFault::Negotiation(ConnectionError::Provider(error)) => {
                Self::of_provider(error.kind)
            }
            ConnectFault::Negotiation(ConnectionError::TimedOut(_)) => Self::Silent,
            ConnectFault::Negotiation(ConnectionError::Closed | ConnectionError::ClosedHere) => {
                Self::Closed
            }
            // Another fault of the negotiation, and variants to come.
            _ => Self::OtherProtocol,
        }
    }

    const fn of_provider(kind: ProviderErrorKind) -> Self {
        use ProviderErrorKind as Kind;
        match kind {
            Kind::Local | Kind::InUse => Self::Own,
            Kind::Refused | Kind::PortUnreachable => Self::Refused,
            Kind::Rejected | Kind::Reset => Self::Closed,
            Kind::Protocol | Kind::OtherProtocol | Kind::Terminated => Self::OtherProtocol,
            // Address, TimedOut, and kinds to come.
            _ => Self::Unreachable,
        }
    }
}

/// Returns whether something of this machine has run out: descriptors, memory, buffers, threads or ports.
fn has_run_out(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let kinds = [Kind::WouldBlock, Kind::OutOfMemory, Kind::AddrNotAvailable];
    // EMFILE and ENFILE have these numbers on every Unix, and ENOBUFS has the last one on Linux.
    kinds.contains(&error.kind())
        || (cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24)))
        || (cfg!(target_os = "linux") && error.raw_os_error() == Some(105))
}

/// Explains why there is no TCP connection to `address`.
pub(super) fn cannot_connect(error: &io::Error, address: SocketAddr) -> Error {
    let text = text::plain(error);
    let cause = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            let cure = "start the server there, or check the port";
            let text = format!("nothing listens on {address} ({text}); {cure}");
            return Error::new(Cause::Refused, text);
        }
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => Cause::Closed,
        _ if has_run_out(error) => Cause::Own,
        _ => Cause::Unreachable,
    };
    let cure = limit_cure(error).unwrap_or("check the address and the route to it");
    Error::new(
        cause,
        format!("{address} cannot be reached: {text}; {cure}"),
    )
}

/// Longest time for the TCP connection that distinguishes an unreachable host from another service.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Explains why there is no connection by RDMA of a kind, and what to try. `limit` is the longest time that the failed
/// step could take.
pub async fn explain_connect(
    kind: Kind,
    error: &ConnectFault,
    address: SocketAddr,
    limit: Duration,
) -> Error {
    let (text, setting) = match error {
        ConnectFault::Provider(error) => unprovided(kind, error, address, limit).await,
        error => (unnegotiated(kind, error, address, limit), None),
    };
    Error {
        text,
        cause: Cause::of(error),
        setting,
    }
}

/// Returns why RDMA of a kind provides no connection, and the setting that may cure it.
async fn unprovided(
    kind: Kind,
    error: &ProviderError,
    address: SocketAddr,
    limit: Duration,
) -> (String, Option<Setting>) {
    use Kind::{Iwarp, Loopback, Roce, Verbs};
    use ProviderErrorKind as Fault;
    let what = in_short(error);
    let no_iwarp = || {
        format!("{address} accepts TCP but does not answer as iWARP; is it an SMB Direct listener?")
    };
    match (kind, error.kind) {
        (_, Fault::Local) => (format!("no RDMA connection to {address}: {what}"), None),
        (Loopback, Fault::Refused) => (
            format!(
                "nothing listens on {address} within this process; listen there first, with the same runtime, or use \
                 another transport"
            ),
            Some(Setting::Kind),
        ),
        (Loopback, _) => (
            format!("no connection to {address} within this process: {error}"),
            None,
        ),
        (Verbs, Fault::Refused) => (
            format!(
                "nothing listens on {address} ({what}); start `smbdirect gateway` there, or check the port: 445 is for \
                 InfiniBand and RoCE, 5445 for iWARP"
            ),
            None,
        ),
        (Verbs, Fault::Address) => (
            format!(
                "{address} cannot be reached by RDMA: {what}; `smbdirect devices` lists the adapters, and `ip route get \
                 {}` shows the route",
                address.ip()
            ),
            None,
        ),
        (Verbs, Fault::TimedOut) => (
            format!(
                "{address} did not answer by RDMA: {what}; check that it has an adapter of the same kind in the same \
                 network"
            ),
            None,
        ),
        (Roce, Fault::Refused) => (
            format!(
                "nothing listens on {address} by RoCE ({what}); start an SMB Direct listener by RoCE there, or check \
                 the port: 445 is for RoCE, 5445 for iWARP"
            ),
            None,
        ),
        (Roce, Fault::PortUnreachable) => (
            format!(
                "no RoCE listener answers on {} ({what}); start one there, use the same UDP port at both ends, or have \
                 the firewall there admit it",
                address.ip()
            ),
            Some(Setting::UdpPort),
        ),
        (Roce, Fault::TimedOut) => (
            format!("{what}; check the address and UDP firewalls both ways, or give it more time"),
            Some(Setting::ConnectTimeout),
        ),
        (_, Fault::Address) => (
            format!("{address} cannot be reached: {what}; check the address and the route to it"),
            None,
        ),
        (Roce, _) => (format!("no RDMA connection to {address}: {what}"), None),
        // A TCP connection distinguishes an unreachable host from another service.
        (Iwarp, Fault::TimedOut) => {
            let probe = timeout(limit.min(PROBE_TIMEOUT), TcpStream::connect(address)).await;
            match probe {
                Ok(Ok(_)) => (no_iwarp(), None),
                _ => (no_answer(address, limit), Some(Setting::ConnectTimeout)),
            }
        }
        (_, Fault::Refused) => (
            format!(
                "nothing listens on {address} ({what}); start `smbdirect gateway` there, or check the port and the kind \
                 of RDMA: this end uses iWARP"
            ),
            Some(Setting::Kind),
        ),
        (_, Fault::Rejected) => (format!("{address} refused the connection: {what}"), None),
        (_, Fault::Reset | Fault::OtherProtocol) => (no_iwarp(), None),
        (_, Fault::Protocol) => (
            format!("{address} does not speak iWARP as it should: {what}; check the port"),
            None,
        ),
        _ => (format!("no RDMA connection to {address}: {what}"), None),
    }
}

/// Returns why SMB Direct was not negotiated on a connection of a kind.
fn unnegotiated(kind: Kind, error: &ConnectFault, address: SocketAddr, limit: Duration) -> String {
    use ConnectionError as End;
    let ConnectFault::Negotiation(end) = error else {
        return format!("no SMB Direct connection to {address}: {error}");
    };
    match (kind, end) {
        (Kind::Loopback, End::TimedOut(_)) => format!(
            "the listener on {address} within this process did not negotiate in time; does the program accept the \
             connection?"
        ),
        (Kind::Loopback, _) => format!("no connection to {address} within this process: {error}"),
        (Kind::Iwarp, End::TimedOut(_)) => format!(
            "{address} answers as iWARP but did not negotiate SMB Direct within {}; is it an SMB Direct listener?",
            text::time(limit)
        ),
        (Kind::Iwarp, End::Provider(error)) => format!(
            "{address} closed the connection during the negotiation of SMB Direct: {error}; its log may say why"
        ),
        (Kind::Iwarp, End::Closed | End::ClosedHere) => {
            format!(
                "{address} closed the connection during the negotiation of SMB Direct; its log may say why"
            )
        }
        (Kind::Iwarp, _) => format!("SMB Direct was not negotiated with {address}: {end}"),
        _ => format!(
            "SMB Direct was not negotiated with {address}: {end}; is it an SMB Direct listener?"
        ),
    }
}

/// Returns the message of a provider without the words that the sentence around it repeats.
fn in_short(error: &ProviderError) -> String {
    let what = &*error.what;
    let what = ["connecting: ", "listening: "]
        .iter()
        .find_map(|prefix| what.strip_prefix(prefix))
        .unwrap_or(what);
    text::plain(&what)
}

fn no_answer(address: SocketAddr, limit: Duration) -> String {
    let limit = text::time(limit);
    format!(
        "{address} did not answer within {limit}; check the address and firewalls between, or give it more time"
    )
}

/// Explains that nothing answered.
pub(super) fn unanswered(address: SocketAddr, limit: Duration) -> Error {
    Error::new(Cause::Unreachable, no_answer(address, limit)).cured_by(Setting::ConnectTimeout)
}

/// Explains why this end cannot listen by RDMA of a kind, and what to try.
pub fn explain_listen(error: &ProviderError, kind: Kind, address: SocketAddr) -> Error {
    let text = in_short(error);
    let cause = error.os_error().map(io::Error::from_raw_os_error);
    // Of the errors of RoCE in software, only the error of the UDP port comes from the operating system.
    if kind == Kind::Roce && error.kind == ProviderErrorKind::InUse && cause.is_some() {
        let text = format!(
            "cannot listen on {address}: {text}; stop it (rxe: `rdma link delete`), listen on another address, or \
             use another UDP port at both ends"
        );
        return Error::new(Cause::Own, text).cured_by(Setting::UdpPort);
    }
    if kind == Kind::Loopback {
        let text = format!(
            "cannot listen on {address} within this process: {text}; close a listener, or give another port"
        );
        return Error::new(Cause::Own, text);
    }
    let kind = match error.kind {
        ProviderErrorKind::InUse => io::ErrorKind::AddrInUse,
        ProviderErrorKind::Address => io::ErrorKind::AddrNotAvailable,
        _ => cause.map_or(io::ErrorKind::Other, |cause| cause.kind()),
    };
    cannot_listen(&text, kind, address)
}

/// Explains why this end cannot listen, and what to try.
pub(super) fn cannot_listen(text: &str, kind: io::ErrorKind, address: SocketAddr) -> Error {
    let cure = match kind {
        io::ErrorKind::AddrInUse => "another program listens there; stop it, or give another port",
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need administrator rights; give a higher one"
        }
        io::ErrorKind::AddrNotAvailable => {
            "it is not an address of this machine; omit the host to listen on all of them"
        }
        _ => "give another address",
    };
    let text = format!("cannot listen on {address}: {text}; {cure}");
    Error::new(Cause::Own, text)
}

/// Explains why a connection ended, and what to try.
pub fn explain_end(error: &ConnectionError) -> String {
    match error {
        ConnectionError::TimedOut(_) => {
            format!("{error}; the peer or the network between is stuck")
        }
        error => error.to_string(),
    }
}

/// Returns what to do about an error of the system that a limit causes.
pub fn limit_cure(error: &io::Error) -> Option<&'static str> {
    // EMFILE has this number on every Unix.
    #[cfg(unix)]
    if error.raw_os_error() == Some(24) {
        return Some("raise RLIMIT_NOFILE (`ulimit -n`, LimitNOFILE= of the unit)");
    }
    let _ = error;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_run_out_here_is_no_fault_of_the_peer() {
        let address = ([127, 0, 0, 1], 445).into();
        for (kind, cause) in [
            (io::ErrorKind::OutOfMemory, Cause::Own),
            (io::ErrorKind::AddrNotAvailable, Cause::Own),
            (io::ErrorKind::ConnectionRefused, Cause::Refused),
            (io::ErrorKind::ConnectionReset, Cause::Closed),
            (io::ErrorKind::TimedOut, Cause::Unreachable),
            (io::ErrorKind::HostUnreachable, Cause::Unreachable),
        ] {
            assert_eq!(cannot_connect(&kind.into(), address).cause, cause, "{kind}");
        }
        #[cfg(unix)]
        for number in [23, 24] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(cannot_connect(&error, address).cause, Cause::Own);
        }
    }

    #[tokio::test]
    async fn faults_within_the_process_name_no_other_machine() {
        use ProviderErrorKind::{Refused, Rejected, Reset, TimedOut};

        for kind in [Refused, Rejected, Reset, TimedOut] {
            let error = ProviderError::new(kind, "no").into();
            let address = "127.0.0.1:5445".parse().unwrap();
            let explained =
                explain_connect(Kind::Loopback, &error, address, Duration::from_secs(1)).await;
            let text = explained.to_string();
            assert!(
                text.contains("127.0.0.1:5445 within this process"),
                "{text}"
            );
            for other in ["iWARP", "TCP", "firewall", "smbdirect gateway"] {
                assert!(!text.contains(other), "{text}");
            }
        }
    }

    #[test]
    fn the_cure_of_listening_goes_by_the_kind_of_the_error() {
        use ProviderErrorKind::{Address, InUse, Local};

        let in_use = io::Error::from_raw_os_error(98);
        for (kind, error_kind, number, cure) in [
            (Kind::Iwarp, InUse, None, "another program listens there"),
            (Kind::Roce, InUse, None, "another program listens there"),
            (Kind::Roce, InUse, in_use.raw_os_error(), "UDP port at both"),
            (Kind::Loopback, InUse, None, "close a listener"),
            (Kind::Iwarp, Address, None, "not an address of this machine"),
            (Kind::Iwarp, Local, None, "give another address"),
            #[cfg(unix)]
            (Kind::Iwarp, Local, Some(13), "administrator rights"),
        ] {
            let error = ProviderError::new(error_kind, "listening: no").with_os_error(number);
            let address = "127.0.0.1:445".parse().unwrap();
            let explained = explain_listen(&error, kind, address).to_string();
            assert!(explained.starts_with("cannot listen on 127.0.0.1:445"));
            assert!(explained.contains(": no; "));
            assert!(explained.contains(cure), "{explained}");
        }
    }
}
