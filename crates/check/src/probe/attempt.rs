//! Attempts to use SMB Direct, one for each transport.
//!
//! Each attempt is a complete and correct exchange: the RDMA connection, the negotiation of SMB
//! Direct, a keepalive, SMB2 NEGOTIATE, and a graceful end. ksmbd stops listening after eleven
//! negotiations that fail, so an attempt must never be abandoned halfway.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use smbdirect::{
    Config, ConnectFault, Connection, ConnectionError, Settings,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        provider::Provider,
        roce::{Roce, RoceConfig},
        work::{ProviderError, ProviderErrorKind},
    },
};
use smbdirect_transport::{Kind, close, text};
use tokio::time::timeout;

use super::{negotiate, tcp_port};
use crate::{
    facts::{Attempt, AttemptFault, Fabric, Reached, SmbFault, Tcp},
    settings::Stage,
};

/// Longest time for TCP or RDMA CM, and again for the answer to the MPA Request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest time for the negotiation. ksmbd gives up a connection that its software iWARP overlooked
/// after 5 seconds, and its kernel may panic if the initiator gives up first.
const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(8);
/// Longest time for the TCP connection that distinguishes a lost SYN from a silent service.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time for a keepalive.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// An attempt to make: the protocol, the port and the provider.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) fabric: Fabric,
    pub(super) port: u16,
    pub(super) kind: Kind,
    /// The adapter or the software that makes the attempt, for people.
    pub(super) by: String,
    pub(super) provider: Arc<dyn Provider>,
}

impl Candidate {
    /// Returns software iWARP, which runs on every machine.
    pub(super) fn software_iwarp(port: u16, config: IwarpConfig) -> Self {
        Self {
            fabric: Fabric::Iwarp,
            port,
            kind: Kind::Iwarp,
            by: "software iWARP".into(),
            provider: Arc::new(Iwarp::new(config)),
        }
    }

    /// Returns software RoCE, which runs on every machine whose UDP port of RoCE is free. All candidates
    /// share the socket of the provider.
    pub(super) fn software_roce(port: u16, roce: &Roce) -> Self {
        Self {
            fabric: Fabric::Roce,
            port,
            kind: Kind::Roce,
            by: "software RoCE".into(),
            provider: Arc::new(roce.clone()),
        }
    }

    /// Returns the adapters of this machine.
    #[cfg(target_os = "linux")]
    pub(super) fn adapter(fabric: Fabric, name: &str) -> Result<Self, String> {
        use smbdirect_verbs::{Verbs, VerbsConfig};

        let mut config = VerbsConfig::default();
        config.connect_timeout = CONNECT_TIMEOUT;
        let provider = Verbs::new(config).map_err(|why| text::plain(&why))?;
        Ok(Self {
            fabric,
            port: fabric.port(),
            kind: Kind::Verbs,
            by: name.to_owned(),
            provider: Arc::new(provider),
        })
    }

    /// Returns no adapters, because they are used through rdma-core, which exists on Linux only.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn adapter(_: Fabric, _: &str) -> Result<Self, String> {
        Err("rdma-core is for Linux".into())
    }

    /// Returns the stage of the examination that the attempt is.
    pub(super) const fn stage(&self) -> Stage {
        Stage::Attempt {
            fabric: self.fabric.name(),
            port: self.port,
        }
    }
}

/// Returns the configuration of software iWARP for attempts.
pub(super) fn iwarp_config() -> IwarpConfig {
    let mut iwarp = IwarpConfig::default();
    iwarp.connect_timeout = CONNECT_TIMEOUT;
    iwarp
}

/// Returns the configuration of software RoCE for attempts.
pub(super) fn roce_config() -> RoceConfig {
    let mut roce = RoceConfig::default();
    roce.connect_timeout = CONNECT_TIMEOUT;
    roce
}

/// Tries a candidate to `address`, at its own port.
pub(super) async fn attempt(candidate: &Candidate, address: SocketAddr) -> Attempt {
    let result = match open(candidate, address).await {
        Ok(connection) => {
            let reached = examine(&connection).await;
            leave(&connection).await;
            Ok(reached)
        }
        Err(fault) => Err(fault),
    };
    Attempt {
        fabric: candidate.fabric,
        port: candidate.port,
        by: candidate.by.clone(),
        result,
    }
}

/// Opens a connection. The caller uses it and then ends it by [`leave`]: the acceptor's software
/// iWARP may not survive a connection that ends before a message.
pub(super) async fn open(
    candidate: &Candidate,
    mut address: SocketAddr,
) -> Result<Connection, AttemptFault> {
    address.set_port(candidate.port);
    match connect(candidate, address).await {
        // Software iWARP of Linux may overlook the first message, and ksmbd then gives up.
        Err(AttemptFault::Lost(_)) => connect(candidate, address).await,
        result => result,
    }
}

async fn connect(candidate: &Candidate, address: SocketAddr) -> Result<Connection, AttemptFault> {
    let mut settings = Settings::default();
    settings.active_negotiation_timeout = NEGOTIATION_TIMEOUT;
    let config = Config::new(settings).expect("the settings are legal");
    let connected = Connection::connect(&*candidate.provider, address, config).await;
    match connected.map_err(|error| error.fault) {
        Ok(connection) => Ok(connection),
        Err(ConnectFault::Provider(error)) => Err(match candidate.kind {
            Kind::Iwarp => iwarp_fault(&error, address).await,
            _ => adapter_fault(&error),
        }),
        Err(ConnectFault::Negotiation(error)) => Err(negotiation_fault(&error)),
        Err(error) => Err(AttemptFault::Local(error.to_string())),
    }
}

async fn iwarp_fault(error: &ProviderError, address: SocketAddr) -> AttemptFault {
    let what = in_short(error);
    match error.kind {
        ProviderErrorKind::Refused => AttemptFault::Refused,
        ProviderErrorKind::Rejected => AttemptFault::Rejected(what),
        ProviderErrorKind::Protocol => AttemptFault::Incompatible(what),
        ProviderErrorKind::Address => AttemptFault::Unreachable(what),
        ProviderErrorKind::OtherProtocol => AttemptFault::NotIwarp,
        ProviderErrorKind::Reset => AttemptFault::Unanswered,
        // Either TCP was not answered, or the MPA Request was not.
        ProviderErrorKind::TimedOut => match tcp_port::connect(address, EXPLAIN_TIMEOUT).await.0 {
            Tcp::Open => AttemptFault::Unanswered,
            Tcp::Refused => AttemptFault::Refused,
            Tcp::Dropped => AttemptFault::Dropped,
            Tcp::Unreachable(what) => AttemptFault::Unreachable(what),
        },
        _ => AttemptFault::Local(what),
    }
}

/// Returns the fault of an attempt by RoCE, InfiniBand or an adapter for iWARP.
fn adapter_fault(error: &ProviderError) -> AttemptFault {
    let what = in_short(error);
    match error.kind {
        ProviderErrorKind::Refused | ProviderErrorKind::PortUnreachable => AttemptFault::Refused,
        ProviderErrorKind::Rejected => AttemptFault::Rejected(what),
        ProviderErrorKind::Protocol => AttemptFault::Incompatible(what),
        ProviderErrorKind::Address if error.os_error() == Some(NO_DEVICE) => {
            AttemptFault::NoAdapter
        }
        ProviderErrorKind::Address => AttemptFault::Unreachable(what),
        // Servers send to UDP port 4791 only, which another program has here.
        ProviderErrorKind::TimedOut if is_port_taken(error) => AttemptFault::Local(what),
        ProviderErrorKind::TimedOut => AttemptFault::Dropped,
        ProviderErrorKind::Reset => AttemptFault::Lost(what),
        _ => AttemptFault::Local(what),
    }
}

/// `ENODEV`, the error number for an address that no RDMA device serves.
const NO_DEVICE: i32 = 19;

/// Returns whether software RoCE had to use another UDP port, because another program of this machine uses the
/// port of RoCE.
fn is_port_taken(error: &ProviderError) -> bool {
    let cause = error.os_error().map(io::Error::from_raw_os_error);
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::AddrInUse)
}

fn negotiation_fault(error: &ConnectionError) -> AttemptFault {
    match error {
        ConnectionError::Refused(status) => AttemptFault::NegotiationRefused(status.to_string()),
        ConnectionError::Violation(violation) => {
            AttemptFault::NegotiationBroken(violation.to_string())
        }
        ConnectionError::TimedOut(_) => AttemptFault::Silent(error.to_string()),
        error => AttemptFault::Lost(error.to_string()),
    }
}

/// Returns the description of an error without `connecting: ` in front.
fn in_short(error: &ProviderError) -> String {
    let what = &*error.what;
    let what = what.strip_prefix("connecting: ").unwrap_or(what);
    text::plain(&what)
}

async fn examine(connection: &Connection) -> Reached {
    let negotiated = connection.negotiated();
    let keepalive = timeout(KEEPALIVE_TIMEOUT, connection.keepalive()).await;
    let smb = match keepalive {
        Ok(Err(_)) => Err(SmbFault::HungUp),
        _ => negotiate::over_smb_direct(connection).await,
    };
    Reached {
        max_send_size: negotiated.max_send_size,
        max_receive_size: negotiated.max_receive_size,
        max_fragmented_send_size: negotiated.max_fragmented_send_size,
        max_read_write_size: negotiated.max_read_write_size,
        round_trip: keepalive.ok().and_then(Result::ok),
        smb,
    }
}

/// Ends a connection gracefully.
pub(super) async fn leave(connection: &Connection) {
    close(connection, CLOSE_TIMEOUT).await;
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn only_an_answer_shows_another_protocol() {
        for (answer, expected) in [
            (
                Some(&b"SSH-2.0-OpenSSH_9.2\r\n and more than a frame"[..]),
                AttemptFault::NotIwarp,
            ),
            (Some(&b""[..]), AttemptFault::Unanswered),
            (None, AttemptFault::Unanswered),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let server = tokio::spawn(async move {
                let mut open = Vec::new();
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    match answer {
                        Some(answer) => stream.write_all(answer).await.unwrap(),
                        None => open.push(stream),
                    }
                }
            });
            let candidate = Candidate::software_iwarp(address.port(), iwarp_config());
            let attempt = attempt(&candidate, address).await;
            assert_eq!(attempt.result.unwrap_err(), expected, "{answer:?}");
            server.abort();
        }
    }
}
