//! Checks whether a server serves SMB: a connection, and an SMB2 NEGOTIATE.

use std::{
    io::ErrorKind,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use smbdirect::{ConnectionError, SendError};
use smbdirect_smb::{
    frame::{self, HEADER_LENGTH},
    smb2::{Command, Header, NegotiateContext, NegotiateRequest},
};
use smbdirect_transport::{self as transport, Cause, text};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::AbortHandle,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    live::{Check, Live},
    path::peer::Peer,
    servers::{
        Server, ServerStatus,
        state::{Change, Checked, Seen},
    },
    session::{event::Event, service::Service},
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
    pub(crate) fn begin_checks(self: &Arc<Self>) {
        let live = self.live();
        self.servers
            .set(&live.servers, live.check, |server, check| {
                start(Arc::downgrade(self), server, check)
            });
    }
}

/// Starts to check a server, until the task is aborted or the service is gone. The interval counts from the beginning of a
/// check to that of the next one.
fn start(service: Weak<Service>, server: Arc<Server>, check: Check) -> AbortHandle {
    tokio::spawn(async move {
        loop {
            let next = Instant::now() + check.interval;
            let Some(service) = service.upgrade() else {
                return;
            };
            let before = server.answers();
            let outcome = observe(&service, &server, next).await;
            let (seen, fault) = match outcome {
                Ok(()) => (Some(Seen::Answers), None),
                Err((seen, fault)) => (seen, Some(fault)),
            };
            let reason = fault.clone().unwrap_or_default();
            let checked = Checked {
                seen,
                fault,
                answers: [before, server.answers()],
            };
            for change in server.checked(&check, checked) {
                report(
                    &service,
                    &server.name,
                    change,
                    seen.unwrap_or_default(),
                    &reason,
                );
            }
            drop(service);
            sleep_until(next).await;
        }
    })
    .abort_handle()
}

/// Reports what a check has changed.
fn report(service: &Service, server: &str, change: Change, seen: Seen, reason: &str) {
    service.report(&match change {
        Change::Up => Event::ServerUp { server },
        Change::Down => Event::ServerDown {
            server,
            state: seen,
            reason,
        },
        Change::GivenUp => Event::ServerGivenUp { server, reason },
    });
}

/// What a check saw in place of an answer, and its reason. `None` is nothing about the server.
type Fault = (Option<Seen>, String);

/// Checks a server once, until `end`.
async fn observe(service: &Service, server: &Server, end: Instant) -> Result<(), Fault> {
    let limit = end - Instant::now();
    let late = |seen| {
        let limit = text::time(limit);
        (
            Some(seen),
            format!("it did not answer a NEGOTIATE within {limit}"),
        )
    };
    // Shorter than the check, so that the reason is known.
    let connecting = service.connect(&server.address, None, limit / 10 * 9);
    let connected = timeout_at(end, connecting).await;
    let connected = connected.map_err(|_| late(Seen::Unreachable))?;
    let peer = connected.map_err(|error| {
        let text = match error.cause() {
            Cause::Closed => CLOSED.to_owned(),
            _ => error.to_string(),
        };
        (Seen::of(error.cause()), text)
    })?;
    let answered = timeout_at(end, answer(service, peer)).await;
    let answered = answered.map_err(|_| late(Seen::Silent))?;
    answered.map_err(|(seen, text)| (Some(seen), text))
}

/// Why a server gets no new clients that closes connections.
const CLOSED: &str = "it closed the connection before it answered a NEGOTIATE; it may be full";

/// Sends a NEGOTIATE, and checks the answer.
async fn answer(service: &Service, peer: Peer) -> Result<(), (Seen, String)> {
    let answer = match peer {
        Peer::Tcp(mut stream, _) => {
            let answer = over_tcp(&mut stream, service).await;
            answer.map_err(|error| match error.kind() {
                ErrorKind::InvalidData => (Seen::OtherProtocol, text::plain(&error)),
                ErrorKind::TimedOut => (Seen::Silent, text::plain(&error)),
                // UnexpectedEof, ConnectionReset, BrokenPipe.
                _ => (Seen::Closes, CLOSED.to_owned()),
            })
        }
        Peer::SmbDirect(connection) => {
            let answered = async {
                for message in first_messages(service) {
                    connection.send(message)?.await?;
                }
                Ok::<_, SendError>(connection.recv().await?.into_bytes())
            };
            let answer = answered.await;
            // It does not delay the next check.
            tokio::spawn(async move { transport::close(&connection, CLOSE_TIMEOUT).await });
            answer.map_err(|error| match error {
                SendError::Connection(ConnectionError::TimedOut(_)) => {
                    (Seen::Silent, error.to_string())
                }
                _ => (Seen::Closes, CLOSED.to_owned()),
            })
        }
    };
    is_smb2(&answer?).map_err(|text| (Seen::OtherProtocol, text.to_owned()))
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
    let length = frame::message_length(header);
    let length =
        length.map_err(|fault| std::io::Error::new(ErrorKind::InvalidData, fault))? as usize;
    let mut answer = BytesMut::zeroed(length.min(MAX_ANSWER_BYTES));
    stream.read_exact(&mut answer).await?;
    Ok(answer.freeze())
}

/// Returns a NEGOTIATE with all dialects of SMB2.
fn negotiate() -> Bytes {
    // SHA-512, and a salt, which says nothing here.
    let mut integrity = vec![1, 0, SALT_LENGTH, 0, 1, 0];
    integrity.extend([0; SALT_LENGTH as usize]);
    let request = NegotiateRequest {
        security_mode: 1,
        capabilities: 0,
        client_guid: [0; 16],
        dialects: vec![0x0202, 0x0210, 0x0300, 0x0302, 0x0311],
        contexts: vec![NegotiateContext {
            context_type: PREAUTH_INTEGRITY,
            data: integrity,
        }],
    };
    let mut message = Vec::new();
    Header::request(Command::NEGOTIATE, 0).encode(&mut message);
    request.encode(&mut message);
    message.into()
}

/// SMB2_PREAUTH_INTEGRITY_CAPABILITIES ([MS-SMB2] 2.2.3.1.1), which dialect 3.1.1 needs.
const PREAUTH_INTEGRITY: u16 = 1;
/// Bytes of the salt in it.
const SALT_LENGTH: u8 = 32;

/// Checks that the answer is a response to NEGOTIATE. A server that refuses the dialects answers as well: whether it serves a
/// client, the client negotiates by itself.
fn is_smb2(answer: &[u8]) -> Result<(), &'static str> {
    let header = Header::decode(answer).map_err(|_| "its answer is not SMB2")?;
    if header.command != Command::NEGOTIATE || !header.is_response() {
        return Err("its answer is not a response to NEGOTIATE");
    }
    Ok(())
}
