//! Clients and servers of a gateway, by SMB Direct over iWARP or by SMB over TCP.

pub mod rdma;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use smbdirect::{
    Config, Connection, Listener,
    rdma::iwarp::{Iwarp, IwarpConfig},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

/// The time limit of a step.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    SmbDirect,
    Tcp,
}

pub use Kind::{SmbDirect, Tcp};

impl Kind {
    /// Returns the name that options of the command have.
    pub fn name(self) -> &'static str {
        match self {
            SmbDirect => "smbdirect",
            Tcp => "tcp",
        }
    }
}

/// The time limit of a step. Its length does not affect a result.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(STEP_TIMEOUT, what)
        .await
        .expect("it happens in time")
}

pub fn iwarp() -> Arc<Iwarp> {
    Arc::new(Iwarp::new(IwarpConfig::default()))
}

/// A server that the test implements.
pub enum Server {
    SmbDirect(Listener),
    Tcp(TcpListener),
}

impl Server {
    pub async fn bind(kind: Kind, config: Config) -> Self {
        let address = "127.0.0.1:0";
        match kind {
            SmbDirect => Self::SmbDirect(Listener::bind(&*iwarp(), address, config).await.unwrap()),
            Tcp => Self::Tcp(TcpListener::bind(address).await.unwrap()),
        }
    }

    pub fn address(&self) -> SocketAddr {
        match self {
            Self::SmbDirect(listener) => listener.local_addr(),
            Self::Tcp(listener) => listener.local_addr().unwrap(),
        }
    }

    pub async fn accept(&mut self) -> End {
        match self {
            Self::SmbDirect(listener) => End::SmbDirect(soon(listener.accept()).await.unwrap()),
            Self::Tcp(listener) => End::Tcp(soon(listener.accept()).await.unwrap().0),
        }
    }
}

/// One end of a connection through the gateway.
#[derive(Debug)]
pub enum End {
    SmbDirect(Connection),
    Tcp(TcpStream),
}

impl End {
    pub async fn connect(kind: Kind, address: &str) -> Self {
        Self::connect_with(kind, address, Config::default()).await
    }

    pub async fn connect_with(kind: Kind, address: &str, config: Config) -> Self {
        match kind {
            SmbDirect => {
                let provider = iwarp();
                let connecting = Connection::connect(&*provider, address, config);
                Self::SmbDirect(soon(connecting).await.unwrap())
            }
            Tcp => Self::Tcp(soon(TcpStream::connect(address)).await.unwrap()),
        }
    }

    pub async fn send(&mut self, message: &[u8]) {
        match self {
            Self::SmbDirect(connection) => {
                let message = Bytes::copy_from_slice(message);
                soon(connection.send(message).unwrap()).await.unwrap();
            }
            Self::Tcp(stream) => {
                let frame = [&(message.len() as u32).to_be_bytes(), message].concat();
                soon(stream.write_all(&frame)).await.unwrap();
            }
        }
    }

    /// Returns the next message, or `None` if the connection has ended.
    pub async fn receive(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::SmbDirect(connection) => {
                let message = soon(connection.recv()).await.ok()?;
                Some(message.into_bytes().to_vec())
            }
            Self::Tcp(stream) => {
                let length = soon(stream.read_u32()).await.ok()?;
                let mut message = vec![0; length as usize];
                soon(stream.read_exact(&mut message)).await.ok()?;
                Some(message)
            }
        }
    }

    pub fn local_addr(&self) -> SocketAddr {
        match self {
            Self::SmbDirect(connection) => connection.local_addr(),
            Self::Tcp(stream) => stream.local_addr().unwrap(),
        }
    }

    pub fn split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        match self {
            Self::SmbDirect(_) => panic!("it has no stream"),
            Self::Tcp(stream) => stream.into_split(),
        }
    }

    pub async fn close(self) {
        match self {
            Self::SmbDirect(connection) => soon(connection.close()).await.unwrap(),
            Self::Tcp(stream) => drop(stream),
        }
    }

    pub fn connection(&self) -> &Connection {
        match self {
            Self::SmbDirect(connection) => connection,
            Self::Tcp(_) => panic!("it is no SMB Direct connection"),
        }
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        match self {
            Self::SmbDirect(_) => panic!("it has no stream"),
            Self::Tcp(stream) => stream,
        }
    }
}
