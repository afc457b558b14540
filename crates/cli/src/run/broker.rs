//! Makes the SMB Direct connections of the program, which asks for them on a socket.
//!
//! A request is a number of 4 bytes and two addresses of 28 bytes, as the C library has them.
//!
//! | request | addresses | descriptors | answer |
//! |---|---|---|---|
//! | 1, connect | the server, the program's socket | the broker's listener, the broker's socket | an error number of 4 bytes, 0 for an established connection |
//! | 2, name | the broker's socket | | the address of the server, or nothing |
//!
//! All numbers are in the byte order of the machine. The other end of this protocol is the package
//! smbdirect-preload, which says why there are two sockets.

use std::{
    collections::HashMap,
    future::Future,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream as BlockingStream},
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use smbdirect::{
    Config, ConnectFault, Connection, ConnectionError,
    rdma::{provider::Provider, work::ProviderErrorKind},
};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::{TcpSocket, TcpStream, UnixListener, UnixStream},
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use super::relay::relay;
use crate::report;

const CONNECT: u32 = 1;
const NAME: u32 = 2;

/// Length of an address in bytes.
const ADDRESS_LENGTH: usize = 28;

/// Length of a request in bytes.
const REQUEST_LENGTH: usize = 4 + 2 * ADDRESS_LENGTH;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Longest time until a process that has connected to the broker sends its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Wait after an error of accepting, such as too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Longest time until the broker's socket is connected to the program's socket on the same machine.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which the system gives up a connection whose SYNs are not answered.
const SYN_TIMEOUT: Duration = Duration::from_secs(180);

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
    /// The servers by the addresses of the broker's sockets, of which there are at most as many as ports. A socket of the
    /// program has its name longer than the connection.
    servers: Mutex<HashMap<(IpAddr, u16), Address>>,
    /// Whether the program has ended.
    end: watch::Sender<bool>,
    /// The number of connections that are not over.
    connections: watch::Sender<usize>,
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
            servers: Mutex::default(),
            end: watch::Sender::new(false),
            connections: watch::Sender::new(0),
        };
        Ok(Self {
            listener: UnixListener::bind(path)?,
            connector: Arc::new(connector),
        })
    }

    /// Serves requests until the end of the program, and the connections until their last messages have left.
    pub(super) async fn serve(self, program_end: impl Future<Output = ()>) {
        let connector = &self.connector;
        let accepting = async {
            loop {
                match self.listener.accept().await {
                    Ok((program, _)) => connector.clone().start(program),
                    Err(error) => {
                        warn!(%error, "the program cannot reach its broker");
                        sleep(ACCEPT_RETRY_DELAY).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accepting => {}
            () = program_end => {}
        }
        connector.end.send_replace(true);
        // The wait cannot fail, because the sender lives as long as `connector`.
        let mut connections = connector.connections.subscribe();
        let _ = connections.wait_for(|count| *count == 0).await;
    }
}

/// An address as the C library has it.
#[derive(Clone, Copy)]
struct Address([u8; ADDRESS_LENGTH]);

impl Address {
    /// Returns `None` for families other than IPv4 and IPv6.
    fn socket_address(&self) -> Option<SocketAddr> {
        let bytes = &self.0;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match u16::from_ne_bytes([bytes[0], bytes[1]]) {
            AF_INET => {
                let [.., a, b, c, d] = *bytes.first_chunk::<8>()?;
                Some((Ipv4Addr::new(a, b, c, d), port).into())
            }
            AF_INET6 => {
                let (host, scope) = bytes[8..].split_first_chunk::<16>()?;
                let scope = u32::from_ne_bytes(scope.try_into().ok()?);
                Some(SocketAddrV6::new(Ipv6Addr::from(*host), port, 0, scope).into())
            }
            _ => None,
        }
    }
}

/// The sockets that make the broker's end of a connection.
struct End {
    listener: OwnedFd,
    socket: TcpSocket,
}

impl Connector {
    /// Serves one request in a task.
    fn start(self: Arc<Self>, program: UnixStream) {
        self.connections.send_modify(|count| *count += 1);
        tokio::spawn(async move {
            if let Err(error) = self.serve(program).await {
                debug!(%error, "a request of the program failed");
            }
            self.connections.send_modify(|count| *count -= 1);
        });
    }

    async fn serve(&self, mut program: UnixStream) -> Result<()> {
        let (request, sockets) = timeout(REQUEST_TIMEOUT, request(&program)).await??;
        let (kind, addresses) = request.split_first_chunk::<4>().context("no kind")?;
        let (addresses, _) = addresses.as_chunks::<ADDRESS_LENGTH>();
        let address = |index: usize| addresses.get(index).map(|bytes| Address(*bytes));
        let first = address(0).context("no address")?;
        let address_of = |address: Option<Address>| {
            let address = address.and_then(|address| address.socket_address());
            address.context("an address of another family")
        };
        match (u32::from_ne_bytes(*kind), <[OwnedFd; 2]>::try_from(sockets)) {
            (CONNECT, Ok([listener, socket])) => {
                let target = address_of(Some(first))?;
                let from = address_of(address(1))?;
                let socket = BlockingStream::from(socket);
                socket.set_nonblocking(true)?;
                let own = socket.local_addr()?;
                self.servers().insert((own.ip(), own.port()), first);
                let socket = TcpSocket::from_std_stream(socket);
                self.connect(program, target, from, End { listener, socket })
                    .await
            }
            (NAME, _) => {
                let own = address_of(Some(first))?;
                let server = self.servers().get(&(own.ip(), own.port())).copied();
                if let Some(server) = server {
                    program.write_all(&server.0).await?;
                }
                Ok(())
            }
            _ => anyhow::bail!("a request of another version"),
        }
    }

    /// Connects the program to a server, and moves the messages.
    async fn connect(
        &self,
        mut program: UnixStream,
        target: SocketAddr,
        from: SocketAddr,
        end: End,
    ) -> Result<()> {
        let server = match target {
            SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_none() => {
                SocketAddrV6::new(*v6.ip(), self.port, 0, v6.scope_id()).into()
            }
            other => SocketAddr::new(other.ip().to_canonical(), self.port),
        };
        let connected = Connection::connect(&*self.provider, server, self.config.clone()).await;
        let connection = match connected {
            Ok(connection) => connection,
            Err(error) => {
                // The program only learns an error number.
                let number = number(&error.fault);
                report::error(&anyhow::Error::new(error).context(format!(
                    "no SMB Direct connection to {server} for the program"
                )));
                // A program that no longer waits for the answer has closed the socket for it.
                let _ = program
                    .write_all(&number.raw_os_error().to_ne_bytes())
                    .await;
                if number == Errno::TIMEDOUT {
                    // The broker keeps its socket for this connection until the program's own connect has timed
                    // out, which gives the program the same error.
                    let mut end = self.end.subscribe();
                    let _ = timeout(SYN_TIMEOUT, end.wait_for(|end| *end)).await;
                }
                return Ok(());
            }
        };
        match timeout(PROGRAM_TIMEOUT, end.socket.connect(from)).await {
            Ok(Ok(socket)) => {
                drop(end.listener);
                info!(%server, "the program is connected by SMB Direct");
                let _ = program.write_all(&0i32.to_ne_bytes()).await;
                drop(program);
                self.relay(&connection, socket).await;
            }
            failed => {
                debug!(?failed, "the program has given up its connection");
                connection.start_close();
            }
        }
        connection.closed().await;
        Ok(())
    }

    async fn relay(&self, connection: &Connection, socket: TcpStream) {
        if let Err(error) = socket.set_nodelay(true) {
            debug!(%error, "TCP_NODELAY is not set; small messages may be delayed");
        }
        relay(connection, socket, self.end.subscribe()).await;
    }

    fn servers(&self) -> std::sync::MutexGuard<'_, HashMap<(IpAddr, u16), Address>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a request with its descriptors.
async fn request(program: &UnixStream) -> io::Result<([u8; REQUEST_LENGTH], Vec<OwnedFd>)> {
    let mut bytes = [0; REQUEST_LENGTH];
    loop {
        program.readable().await?;
        let receive = || receive(program, &mut bytes);
        match program.try_io(Interest::READABLE, receive) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // A request is one write of a few bytes, which arrive together.
            Ok((REQUEST_LENGTH, sockets)) => return Ok((bytes, sockets)),
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => return Err(error),
        }
    }
}

fn receive(program: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(bytes)];
    let message = recvmsg(program, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut sockets = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            sockets.extend(rights);
        }
    }
    Ok((message.bytes, sockets))
}

/// Returns the error number of a connection that failed, as TCP has it.
fn number(error: &ConnectFault) -> Errno {
    match error {
        ConnectFault::Provider(error) => match error.kind {
            ProviderErrorKind::Refused
            | ProviderErrorKind::PortUnreachable
            | ProviderErrorKind::Rejected
            | ProviderErrorKind::Protocol
            | ProviderErrorKind::OtherProtocol => Errno::CONNREFUSED,
            ProviderErrorKind::TimedOut => Errno::TIMEDOUT,
            ProviderErrorKind::Address => Errno::HOSTUNREACH,
            _ => Errno::CONNRESET,
        },
        ConnectFault::Negotiation(ConnectionError::TimedOut(_)) => Errno::TIMEDOUT,
        _ => Errno::CONNREFUSED,
    }
}
