//! Makes the SMB Direct connections of the program, which asks for them on a socket.
//!
//! A request is 32 bytes with a descriptor: the family (4 or 6) in 4 bytes, the number of filling bytes in 4,
//! the port in 2, two zero bytes, the scope in 4, and the address in 16. The answer is an error number of 4
//! bytes, 0 for an established connection, after which the filling bytes are taken out of the socket that the
//! descriptor is. All numbers are in the byte order of the machine. The other end of this protocol is the
//! package smbdirect-preload.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::{fd::OwnedFd, unix::net::UnixStream as BlockingStream},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use smbdirect::{
    Config, ConnectError, Connection, ConnectionError,
    rdma::{provider::Provider, work::ProviderErrorKind},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{UnixListener, UnixStream},
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use crate::report;

/// Length of a request in bytes.
const REQUEST_LENGTH: usize = 32;

/// Longest time until a process that has connected to the broker sends its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Wait after an error of accepting, such as too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Makes connections for a program.
pub(super) struct Broker {
    listener: UnixListener,
    connector: Arc<Connector>,
}

struct Connector {
    provider: Arc<dyn Provider>,
    /// Port of SMB Direct at every server.
    port: u16,
    config: Config,
    connections: Connections,
}

/// Counts the connections that are not over. Clones count together.
#[derive(Clone)]
pub(super) struct Connections(watch::Sender<usize>);

impl Connections {
    /// Waits until there is none.
    pub(super) async fn all_ended(self) {
        // The sender is this value, so that the wait does not fail.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Counts a connection until its end.
    fn add(&self, connection: Connection) {
        let count = self.0.clone();
        count.send_modify(|count| *count += 1);
        tokio::spawn(async move {
            connection.closed().await;
            count.send_modify(|count| *count -= 1);
        });
    }
}

impl Broker {
    /// Listens on a socket at `path`.
    pub(super) fn new(
        path: &Path,
        provider: Arc<dyn Provider>,
        port: u16,
        config: Config,
    ) -> io::Result<Self> {
        let connector = Connector {
            provider,
            port,
            config,
            connections: Connections(watch::Sender::new(0)),
        };
        Ok(Self {
            listener: UnixListener::bind(path)?,
            connector: Arc::new(connector),
        })
    }

    /// Returns the count of the program's connections.
    pub(super) fn connections(&self) -> Connections {
        self.connector.connections.clone()
    }

    /// Serves requests until the future is dropped.
    pub(super) async fn serve(self) {
        loop {
            match self.listener.accept().await {
                Ok((program, _)) => {
                    let connector = self.connector.clone();
                    tokio::spawn(async move {
                        if let Err(error) = connector.serve(program).await {
                            debug!(%error, "a request of the program failed");
                        }
                    });
                }
                Err(error) => {
                    warn!(%error, "the program cannot reach its broker");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }
}

/// A connection that the program asks for.
#[derive(Debug)]
struct Request {
    server: IpAddr,
    scope: u32,
    /// Bytes to take out of the socket.
    filling: u32,
    /// The broker's end of the connection.
    socket: BlockingStream,
}

impl Connector {
    /// Serves one request.
    async fn serve(&self, mut program: UnixStream) -> Result<()> {
        let request = timeout(REQUEST_TIMEOUT, request(&program)).await??;
        let server = match request.server {
            IpAddr::V6(address) => SocketAddrV6::new(address, self.port, 0, request.scope).into(),
            address => SocketAddr::new(address, self.port),
        };
        let connection =
            match Connection::connect(&*self.provider, server, self.config.clone()).await {
                Ok(connection) => connection,
                Err(error) => {
                    // The program only learns an error number.
                    let error_number = number(&error);
                    report::error(&anyhow::Error::new(error).context(format!(
                        "no SMB Direct connection to {server} for the program"
                    )));
                    program.write_all(&error_number.to_ne_bytes()).await?;
                    // The answer has to be there before the end of the socket wakes the program.
                    return Ok(());
                }
            };
        info!(%server, "the program is connected by SMB Direct");
        self.connections.add(connection.clone());
        let serving = async {
            // A program that closes all numbers that it does not know has no socket for the answer any more.
            let _ = program.write_all(&0i32.to_ne_bytes()).await;
            let socket = drain(request.socket, request.filling).await?;
            connection.clone().serve_stream(socket)
        };
        if let Err(error) = serving.await {
            // The program is gone. The count has a handle, so dropping this one closes nothing.
            connection.abort();
            return Err(error.into());
        }
        Ok(())
    }
}

/// Reads a request with its descriptor.
async fn request(program: &UnixStream) -> io::Result<Request> {
    let mut bytes = [0; REQUEST_LENGTH];
    let received = loop {
        program.readable().await?;
        let receive = || receive(program, &mut bytes);
        match program.try_io(Interest::READABLE, receive) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            received => break received?,
        }
    };
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "a request of another version");
    // A request is one write of a few bytes, which arrive together.
    let (REQUEST_LENGTH, Some(descriptor)) = received else {
        return Err(invalid());
    };
    let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let address: [u8; 16] = bytes[16..].try_into().expect("sixteen bytes");
    let server = match number(0) {
        4 => Ipv4Addr::new(address[0], address[1], address[2], address[3]).into(),
        6 => Ipv6Addr::from(address).to_canonical(),
        _ => return Err(invalid()),
    };
    Ok(Request {
        server,
        scope: number(12),
        filling: number(4),
        socket: descriptor.into(),
    })
}

fn receive(program: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(bytes)];
    let message = recvmsg(program, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((message.bytes, descriptors))
}

/// Takes the filling out of a socket, which makes the program's end writable.
async fn drain(socket: BlockingStream, filling: u32) -> io::Result<BlockingStream> {
    socket.set_nonblocking(true)?;
    let mut socket = UnixStream::from_std(socket)?;
    let mut filling_bytes = (&mut socket).take(filling.into());
    let taken = tokio::io::copy(&mut filling_bytes, &mut tokio::io::sink()).await?;
    if taken < filling.into() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    socket.into_std()
}

/// Returns the error number of a connection that failed, as TCP has it.
fn number(error: &ConnectError) -> i32 {
    use rustix::io::Errno;

    let errno = match error {
        ConnectError::Provider(error) => match error.kind {
            ProviderErrorKind::Refused | ProviderErrorKind::Protocol => Errno::CONNREFUSED,
            ProviderErrorKind::TimedOut => Errno::TIMEDOUT,
            ProviderErrorKind::Address => Errno::HOSTUNREACH,
            _ => Errno::CONNRESET,
        },
        ConnectError::Negotiation(ConnectionError::TimedOut(_)) => Errno::TIMEDOUT,
        _ => Errno::CONNREFUSED,
    };
    errno.raw_os_error()
}
