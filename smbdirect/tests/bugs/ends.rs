//! Two handles over a provider, and a peer by hand that speaks iWARP to one of them.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use smbdirect::{
    Config, Connection, Listener, Settings,
    rdma::{
        iwarp::{
            Iwarp, IwarpConfig,
            ddp::{Header, Untagged},
            mpa::{Fpdu, FrameKind, StartupFrame},
            rdmap::{Opcode, ReadRequest},
        },
        provider::Provider,
    },
    wire::{DataTransfer, NegotiateRequest, NegotiateResponse},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

pub(crate) const HERE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Nothing here takes nearly as long.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), future)
        .await
        .expect("it takes forever")
}

pub(crate) fn iwarp() -> Arc<dyn Provider> {
    Arc::new(Iwarp::new(IwarpConfig::default()))
}

pub(crate) fn bytes(length: usize, seed: u8) -> Bytes {
    (0..length).map(|at| (at * 31 / 7) as u8 ^ seed).collect()
}

pub(crate) async fn listen(provider: &Arc<dyn Provider>, settings: Settings) -> Listener {
    let config = Config::new(settings).unwrap();
    Listener::bind(provider.clone(), HERE, config)
        .await
        .unwrap()
}

/// Both ends of one connection.
pub(crate) struct Ends {
    pub(crate) client: Connection,
    pub(crate) server: Connection,
    _listener: Listener,
}

impl Ends {
    pub(crate) async fn new(provider: &Arc<dyn Provider>, settings: Settings) -> Self {
        let mut listener = listen(provider, settings.clone()).await;
        let address = listener.local_address();
        let config = Config::new(settings).unwrap();
        let (client, server) = within(async {
            tokio::join!(
                Connection::connect(&**provider, address, config),
                listener.accept()
            )
        })
        .await;
        Self {
            client: client.unwrap(),
            server: server.unwrap(),
            _listener: listener,
        }
    }
}

/// Nothing of a connection that is over is anywhere any more.
pub(crate) fn assert_nothing_outstanding(connection: &Connection) {
    let stats = connection.stats();
    let left = (
        stats.receives_outstanding,
        stats.work_outstanding,
        stats.regions,
    );
    assert_eq!(left, (0, 0, 0), "receives, work and regions at the end");
}

/// A peer that says what a test has it say.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
    next_send: u32,
    next_read: u32,
}

impl Peer {
    /// A TCP connection on which nothing was said.
    pub(crate) async fn silent(address: SocketAddr) -> Self {
        Self {
            stream: within(TcpStream::connect(address)).await.unwrap(),
            received: Vec::new(),
            next_send: 1,
            next_read: 1,
        }
    }

    /// Sends its MPA Request and takes the Reply, or nothing if the other side hangs up.
    pub(crate) async fn greet(&mut self, request: &StartupFrame) -> Option<StartupFrame> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.say(&bytes).await;
        loop {
            if let Ok(reply) = StartupFrame::decode(FrameKind::Reply, &self.received) {
                self.received.drain(..reply.encoded_length());
                return Some(reply);
            }
            if within(self.stream.read_buf(&mut self.received))
                .await
                .ok()?
                == 0
            {
                return None;
            }
        }
    }

    /// An RDMA connection of MPA revision 1, without CRC.
    pub(crate) async fn connected(address: SocketAddr) -> Self {
        let mut peer = Self::silent(address).await;
        let request = StartupFrame::new(FrameKind::Request, 1);
        peer.greet(&request).await.expect("a Reply");
        peer
    }

    /// An SMB Direct connection.
    pub(crate) async fn negotiated(address: SocketAddr) -> Self {
        let mut peer = Self::connected(address).await;
        peer.negotiate().await;
        peer
    }

    pub(crate) async fn negotiate(&mut self) -> NegotiateResponse {
        let fpdu = self.negotiate_request();
        self.say(&fpdu).await;
        let (_, response) = self.hear().await;
        NegotiateResponse::decode(&response).unwrap()
    }

    pub(crate) fn negotiate_request(&mut self) -> Vec<u8> {
        let request = NegotiateRequest {
            min_version: 0x0100,
            max_version: 0x0100,
            credits_requested: 255,
            preferred_send_size: 8136,
            max_receive_size: 8192,
            max_fragmented_size: 1 << 20,
        };
        let mut message = Vec::new();
        request.encode(&mut message);
        self.send(&message)
    }

    pub(crate) async fn say(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.unwrap();
    }

    fn send(&mut self, message: &[u8]) -> Vec<u8> {
        let header = Untagged {
            last: true,
            rdmap_control: Opcode::Send.control(),
            rsvd_ulp: 0,
            queue_number: 0,
            message_sequence_number: self.next_send,
            message_offset: 0,
        };
        self.next_send += 1;
        fpdu(&[&header.encode(), message])
    }

    pub(crate) fn transfer(&mut self, header: DataTransfer) -> Vec<u8> {
        let mut message = Vec::new();
        header.encode(&mut message);
        self.send(&message)
    }

    pub(crate) fn read_request(&mut self, stag: u32, offset: u64, size: u32) -> Vec<u8> {
        let header = Untagged {
            last: true,
            rdmap_control: Opcode::RdmaReadRequest.control(),
            rsvd_ulp: 0,
            queue_number: 1,
            message_sequence_number: self.next_read,
            message_offset: 0,
        };
        self.next_read += 1;
        let request = ReadRequest {
            sink_stag: 1,
            sink_tagged_offset: 0,
            read_message_size: size,
            source_stag: stag,
            source_tagged_offset: offset,
        };
        fpdu(&[&header.encode(), &request.encode()])
    }

    /// The next FPDU: its header and payload.
    pub(crate) async fn hear(&mut self) -> (Header, Vec<u8>) {
        loop {
            if let Some(fpdu) = Fpdu::decode(&self.received, false).unwrap() {
                let (header, payload) = Header::decode(fpdu.ulpdu).unwrap();
                let (payload, length) = (payload.to_vec(), fpdu.length);
                self.received.drain(..length);
                return (header, payload);
            }
            let count = within(self.stream.read_buf(&mut self.received)).await;
            assert_ne!(count.unwrap(), 0, "the connection is over");
        }
    }

    /// Sees the other side hang up, and says how many bytes came before.
    pub(crate) async fn end(&mut self) -> usize {
        let mut rest = std::mem::take(&mut self.received);
        // A reset is an end, too.
        let _ = within(self.stream.read_to_end(&mut rest)).await;
        rest.len()
    }
}

pub(crate) fn fpdu(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Fpdu::encode(parts, false, &mut bytes);
    bytes
}
