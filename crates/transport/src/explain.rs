//! Explains why an end did not connect, did not listen or ended, and what to try.

use std::{fmt, io, net::SocketAddr, time::Duration};

use anyhow::anyhow;
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

/// The reason why an end did not connect or listen, and what to try, of which a setting is a part. It is in the chain of
/// the errors of this package.
#[derive(Debug)]
pub struct Curable {
    text: String,
    setting: Setting,
}

impl Curable {
    /// Returns the setting that may cure it.
    pub const fn setting(&self) -> Setting {
        self.setting
    }

    /// Returns an error with this text, cured by this setting.
    fn error(setting: Setting, text: String) -> anyhow::Error {
        Self { text, setting }.into()
    }
}

impl fmt::Display for Curable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Curable {}

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

/// The reason why there is no connection, and what to try.
#[derive(Debug)]
pub struct Unconnected {
    /// What the failure says about the peer.
    pub cause: Cause,
    /// The reason for people.
    pub error: anyhow::Error,
}

impl From<Unconnected> for anyhow::Error {
    fn from(unconnected: Unconnected) -> Self {
        unconnected.error
    }
}

impl From<ResolveError> for Unconnected {
    fn from(error: ResolveError) -> Self {
        Self {
            cause: Cause::Name,
            error: error.into(),
        }
    }
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
pub(super) fn cannot_connect(error: &io::Error, address: SocketAddr) -> Unconnected {
    let text = text::plain(error);
    if error.kind() == io::ErrorKind::ConnectionRefused {
        return Unconnected {
            cause: Cause::Refused,
            error: anyhow!(
                "nothing listens on {address} ({text}); start the server there, or check the port"
            ),
        };
    }
    let cause = match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => Cause::Closed,
        _ if has_run_out(error) => Cause::Own,
        _ => Cause::Unreachable,
    };
    let cure = limit_cure(error).unwrap_or("check the address and the route to it");
    Unconnected {
        cause,
        error: anyhow!("{address} cannot be reached: {text}; {cure}"),
    }
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
) -> anyhow::Error {
    if let ConnectFault::Provider(error) = error
        && error.kind == ProviderErrorKind::Local
    {
        return anyhow!("no RDMA connection to {address}: {}", in_short(error));
    }
    match kind {
        Kind::Verbs => explain_verbs(error, address),
        Kind::Roce => explain_roce(error, address),
        Kind::Iwarp => explain_iwarp(error, address, limit).await,
        Kind::Loopback => explain_loopback(error, address),
    }
}

/// Explains why there is no connection over iWARP.
async fn explain_iwarp(
    error: &ConnectFault,
    address: SocketAddr,
    limit: Duration,
) -> anyhow::Error {
    match error {
        ConnectFault::Provider(error) if error.kind == ProviderErrorKind::TimedOut => {
            explain_silence(address, limit).await
        }
        ConnectFault::Provider(error) => explain_provider(error, address),
        ConnectFault::Negotiation(ConnectionError::TimedOut(_)) => anyhow!(
            "{address} answers as iWARP but did not negotiate SMB Direct within {}; \
             is it an SMB Direct listener?",
            text::time(limit)
        ),
        ConnectFault::Negotiation(ConnectionError::Provider(error)) => {
            anyhow!(
                "{address} closed the connection during the negotiation of SMB Direct: {error}; its log may say why"
            )
        }
        ConnectFault::Negotiation(ConnectionError::Closed | ConnectionError::ClosedHere) => {
            anyhow!(
                "{address} closed the connection during the negotiation of SMB Direct; its log may say why"
            )
        }
        ConnectFault::Negotiation(error) => {
            anyhow!("SMB Direct was not negotiated with {address}: {error}")
        }
        error => anyhow!("no SMB Direct connection to {address}: {error}"),
    }
}

/// Explains why there is no connection through an adapter.
fn explain_verbs(error: &ConnectFault, address: SocketAddr) -> anyhow::Error {
    match error {
        ConnectFault::Provider(error) => {
            let what = in_short(error);
            match error.kind {
                ProviderErrorKind::Refused => anyhow!(
                    "nothing listens on {address} ({what}); start `smbdirect gateway` there, \
                     or check the port: 445 is for InfiniBand and RoCE, 5445 for iWARP"
                ),
                ProviderErrorKind::Address => anyhow!(
                    "{address} cannot be reached by RDMA: {what}; `smbdirect devices` lists the \
                     adapters, and `ip route get {}` shows the route",
                    address.ip()
                ),
                ProviderErrorKind::TimedOut => anyhow!(
                    "{address} did not answer by RDMA: {what}; check that it has an adapter of the \
                     same kind in the same network"
                ),
                _ => explain_provider(error, address),
            }
        }
        error => explain_negotiation(error, address),
    }
}

/// Explains why there is no connection over RoCE in software.
fn explain_roce(error: &ConnectFault, address: SocketAddr) -> anyhow::Error {
    match error {
        ConnectFault::Provider(error) => {
            let what = in_short(error);
            match error.kind {
                ProviderErrorKind::Refused => anyhow!(
                    "nothing listens on {address} by RoCE ({what}); start an SMB Direct listener by \
                     RoCE there, or check the port: 445 is for RoCE, 5445 for iWARP"
                ),
                ProviderErrorKind::PortUnreachable => Curable::error(
                    Setting::UdpPort,
                    format!(
                        "no RoCE listener answers on {} ({what}); start one there, use the same UDP \
                         port at both ends, or have the firewall there admit it",
                        address.ip()
                    ),
                ),
                ProviderErrorKind::TimedOut => Curable::error(
                    Setting::ConnectTimeout,
                    format!(
                        "{what}; check the address and UDP firewalls both ways, or give it more time"
                    ),
                ),
                ProviderErrorKind::Address => explain_provider(error, address),
                _ => anyhow!("no RDMA connection to {address}: {what}"),
            }
        }
        error => explain_negotiation(error, address),
    }
}

/// Explains why there is no connection within this process.
fn explain_loopback(error: &ConnectFault, address: SocketAddr) -> anyhow::Error {
    match error {
        ConnectFault::Provider(error) if error.kind == ProviderErrorKind::Refused => {
            Curable::error(
                Setting::Kind,
                format!(
                    "nothing listens on {address} within this process; listen there first, with the same \
                 runtime, or use another transport"
                ),
            )
        }
        ConnectFault::Negotiation(ConnectionError::TimedOut(_)) => anyhow!(
            "the listener on {address} within this process did not negotiate in time; does the program \
             accept the connection?"
        ),
        error => anyhow!("no connection to {address} within this process: {error}"),
    }
}

/// Explains why there is no SMB Direct on a connection by RDMA.
fn explain_negotiation(error: &ConnectFault, address: SocketAddr) -> anyhow::Error {
    match error {
        ConnectFault::Negotiation(error) => anyhow!(
            "SMB Direct was not negotiated with {address}: {error}; is it an SMB Direct listener?"
        ),
        error => anyhow!("no SMB Direct connection to {address}: {error}"),
    }
}

/// Explains the error of a provider.
fn explain_provider(error: &ProviderError, address: SocketAddr) -> anyhow::Error {
    let what = in_short(error);
    match error.kind {
        ProviderErrorKind::Refused => Curable::error(
            Setting::Kind,
            format!(
                "nothing listens on {address} ({what}); start `smbdirect gateway` there, or check the \
                 port and the kind of RDMA: this end uses iWARP"
            ),
        ),
        ProviderErrorKind::Rejected => anyhow!("{address} refused the connection: {what}"),
        ProviderErrorKind::Address => {
            anyhow!("{address} cannot be reached: {what}; check the address and the route to it")
        }
        ProviderErrorKind::Reset | ProviderErrorKind::OtherProtocol => no_iwarp(address),
        ProviderErrorKind::Protocol => {
            anyhow!("{address} does not speak iWARP as it should: {what}; check the port")
        }
        _ => anyhow!("no RDMA connection to {address}: {what}"),
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

/// Explains that another service listens there.
fn no_iwarp(address: SocketAddr) -> anyhow::Error {
    anyhow!("{address} accepts TCP but does not answer as iWARP; is it an SMB Direct listener?")
}

/// Explains a timeout. A TCP connection distinguishes an unreachable host from another service.
async fn explain_silence(address: SocketAddr, limit: Duration) -> anyhow::Error {
    let probe = timeout(limit.min(PROBE_TIMEOUT), TcpStream::connect(address)).await;
    if let Ok(Ok(_)) = probe {
        return no_iwarp(address);
    }
    unanswered(address, limit)
}

/// Explains that nothing answered.
pub(super) fn unanswered(address: SocketAddr, limit: Duration) -> anyhow::Error {
    let limit = text::time(limit);
    let text = format!(
        "{address} did not answer within {limit}; check the address and firewalls between, or give \
         it more time"
    );
    Curable::error(Setting::ConnectTimeout, text)
}

/// Explains why this end cannot listen by RDMA of a kind, and what to try.
pub fn explain_listen(error: &ProviderError, kind: Kind, address: SocketAddr) -> anyhow::Error {
    let text = in_short(error);
    let cause = error.os_error().map(io::Error::from_raw_os_error);
    // Of the errors of RoCE in software, only the error of the UDP port comes from the operating system.
    if kind == Kind::Roce && error.kind == ProviderErrorKind::InUse && cause.is_some() {
        let text = format!(
            "cannot listen on {address}: {text}; stop it (rxe: `rdma link delete`), listen on another address, or \
             use another UDP port at both ends"
        );
        return Curable::error(Setting::UdpPort, text);
    }
    if kind == Kind::Loopback {
        return anyhow!(
            "cannot listen on {address} within this process: {text}; close a listener, or give another port"
        );
    }
    let kind = match error.kind {
        ProviderErrorKind::InUse => io::ErrorKind::AddrInUse,
        ProviderErrorKind::Address => io::ErrorKind::AddrNotAvailable,
        _ => cause.map_or(io::ErrorKind::Other, |cause| cause.kind()),
    };
    cannot_listen(&text, kind, address)
}

/// Explains why this end cannot listen, and what to try.
pub(super) fn cannot_listen(text: &str, kind: io::ErrorKind, address: SocketAddr) -> anyhow::Error {
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
    anyhow!("cannot listen on {address}: {text}; {cure}")
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
