//! Checks whether a server serves SMB: a connection, and an SMB2 NEGOTIATE.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use smbdirect_smb::{
    frame::{self, HEADER_LENGTH},
    smb2::{Command, Header, NegotiateRequest},
};
use smbdirect_transport::{self as transport, text};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{
    event::Event,
    live::{Check, Live},
    peer::Peer,
    servers::{Fault, Server, ServerStatus},
    service::Service,
};

/// Maximum number of bytes of the answer to NEGOTIATE. It has a few hundred.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Longest time for closing an SMB Direct connection after a check.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Service {
    /// Sets the settings for sessions that begin later. The memory is the budget of the running gateway, which
    /// limits the number of connections. Servers that stay keep their state. Must be called within a tokio runtime.
    pub fn set_live(self: &Arc<Self>, live: Live) {
        self.replace_live(live);
        self.begin_checks();
    }

    /// Assumes the health of servers that another process has found, as [`servers`](Self::servers) has returned it there,
    /// until checks find something else. Must be called before the [`Gateway`](super::Gateway) is created, and within a
    /// tokio runtime.
    pub fn assume_servers(self: &Arc<Self>, states: &[ServerStatus]) {
        self.begin_checks();
        self.servers.assume(states);
    }

    /// Begins to check the servers of the settings.
    pub(super) fn begin_checks(self: &Arc<Self>) {
        let live = self.live();
        self.servers
            .set(&live.servers, live.check, |server, check| {
                start(Arc::downgrade(self), server, check)
            });
    }
}

/// Starts to check a server, until the task is aborted or the service is gone.
fn start(service: Weak<Service>, server: Arc<Server>, check: Check) -> AbortHandle {
    tokio::spawn(async move {
        loop {
            let Some(service) = service.upgrade() else {
                return;
            };
            let result = checked(&service, &server, check.interval).await;
            let fault = result.as_ref().err().map(|fault| fault.text.clone());
            if server.checked(&check, result) {
                service.report(&match &fault {
                    None => Event::ServerUp {
                        server: &server.name,
                    },
                    Some(reason) => Event::ServerDown {
                        server: &server.name,
                        reason,
                    },
                });
            }
            drop(service);
            sleep(check.interval).await;
        }
    })
    .abort_handle()
}

/// Checks a server once.
async fn checked(service: &Service, server: &Server, limit: Duration) -> Result<(), Fault> {
    let connected = service.connect(&server.address, None, limit).await;
    let peer = connected.map_err(|error| Fault {
        text: format!("{error:#}"),
        is_own: transport::is_own_fault(&error),
    })?;
    let answered = timeout(limit, answer(service, peer)).await;
    let late = || {
        let limit = text::time(limit);
        Err(format!("it did not answer a NEGOTIATE within {limit}"))
    };
    answered.unwrap_or_else(|_| late()).map_err(|text| Fault {
        text,
        is_own: false,
    })
}

/// Sends a NEGOTIATE, and checks the answer.
async fn answer(service: &Service, peer: Peer) -> Result<(), String> {
    match peer {
        Peer::Tcp(mut stream, _) => {
            let answer = over_tcp(&mut stream, service).await;
            is_negotiated(&answer.map_err(|error| text::plain(&error))?)
        }
        Peer::SmbDirect(connection) => {
            let answered = async {
                for message in first_messages(service) {
                    connection.send(message)?.await?;
                }
                Ok::<_, anyhow::Error>(connection.recv().await?.into_bytes())
            };
            let answer = answered.await;
            transport::close(&connection, CLOSE_TIMEOUT).await;
            is_negotiated(&answer.map_err(|error| error.to_string())?)
        }
    }
}

/// Returns the header for a server that expects one, and the NEGOTIATE.
fn first_messages(service: &Service) -> impl Iterator<Item = Bytes> {
    let header = service.local_header();
    header.into_iter().chain([negotiate()])
}

async fn over_tcp(stream: &mut TcpStream, service: &Service) -> std::io::Result<Bytes> {
    if let Some(header) = service.local_header() {
        stream.write_all(&header).await?;
    }
    let request = negotiate();
    let header = frame::header(request.len()).expect("a NEGOTIATE is shorter than a frame");
    stream.write_all(&[&header[..], &request].concat()).await?;
    let mut header = [0; HEADER_LENGTH];
    stream.read_exact(&mut header).await?;
    let length = frame::message_length(header).map_err(std::io::Error::other)? as usize;
    let mut answer = BytesMut::zeroed(length.min(MAX_ANSWER_BYTES));
    stream.read_exact(&mut answer).await?;
    Ok(answer.freeze())
}

/// Returns a NEGOTIATE with the dialects that need no contexts.
fn negotiate() -> Bytes {
    let request = NegotiateRequest {
        security_mode: 1,
        capabilities: 0,
        client_guid: [0; 16],
        dialects: vec![0x0202, 0x0210, 0x0300, 0x0302],
        contexts: Vec::new(),
    };
    let mut message = Vec::new();
    Header::request(Command::NEGOTIATE, 0).encode(&mut message);
    request.encode(&mut message);
    message.into()
}

/// Checks that the answer is a successful response to NEGOTIATE.
fn is_negotiated(answer: &[u8]) -> Result<(), String> {
    let header = Header::decode(answer).map_err(|_| "its answer is not SMB2".to_owned())?;
    if header.command != Command::NEGOTIATE || !header.is_response() {
        return Err("its answer is not a response to NEGOTIATE".into());
    }
    match header.status {
        0 => Ok(()),
        status => Err(format!("it refused a NEGOTIATE with status {status:#010x}")),
    }
}
