//! Bugs in the start-up of iWARP connections: read depths in the private data, in either byte
//! order, with and without the enhanced header of MPA revision 2.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    BufferDescriptorV1, Config, Connection, Settings,
    rdma::{
        iwarp::{
            Iwarp, IwarpConfig,
            ddp::{Tagged, Untagged},
            mpa::{Enhanced, FrameKind, StartupFrame},
            rdmap::Opcode,
        },
        provider::{self, BoxFuture, ConnectRequest, Connected, IncomingRequest, Provider},
        work::ProviderError,
    },
    wire::{IrdOrd, NegotiateResponse, Status},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::ends::{HERE, listen};
use crate::peer::{Peer, fpdu, within};

/// The reply of the acceptor to a peer, and the number of reads it will have outstanding.
type Seen = Arc<Mutex<Vec<(Bytes, u32)>>>;

/// An iWARP provider that records what the listener decides for each peer.
#[derive(Debug)]
struct Watched {
    provider: Iwarp,
    seen: Seen,
}

impl Provider for Watched {
    fn attributes(&self) -> provider::ProviderAttributes {
        self.provider.attributes()
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        self.provider.connect(request)
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn provider::ProviderListener>, ProviderError>> {
        Box::pin(async move {
            let listener = self.provider.listen(address).await?;
            let seen = self.seen.clone();
            Ok(Box::new(WatchedListener { listener, seen }) as Box<dyn provider::ProviderListener>)
        })
    }
}

#[derive(Debug)]
struct WatchedListener {
    listener: Box<dyn provider::ProviderListener>,
    seen: Seen,
}

impl provider::ProviderListener for WatchedListener {
    fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<IncomingRequest, ProviderError>> {
        Box::pin(async move {
            let incoming = self.listener.accept().await?;
            let seen = self.seen.clone();
            let (peer_addr, private_data) = (incoming.peer_addr, incoming.private_data.clone());
            let knows_read_depths = incoming.knows_read_depths;
            let accept = move |request: provider::AcceptRequest| async move {
                let said = request.private_data.clone();
                let connected = incoming.accept(request).await?;
                let reads = connected.limits.max_outbound_reads;
                seen.lock().unwrap().push((said, reads));
                Ok(connected)
            };
            Ok(IncomingRequest::new(
                peer_addr,
                private_data,
                knows_read_depths,
                accept,
            ))
        })
    }
}

/// Returns the decision of a listener with read depths of 32 for a peer with this Request.
async fn seen_of(request: &StartupFrame) -> (StartupFrame, Bytes, u32) {
    let seen = Seen::default();
    let provider: Arc<dyn Provider> = Arc::new(Watched {
        provider: Iwarp::default(),
        seen: seen.clone(),
    });
    let mut listener = listen(&provider, Settings::default()).await;
    let mut peer = Peer::silent(listener.local_addr()).await;
    let reply = peer.greet(request).await.expect("a Reply");
    if request.enhanced.is_some_and(|asked| asked.peer_to_peer) {
        let ready = Tagged {
            last: true,
            rdmap_control: Opcode::RdmaWrite.control(),
            stag: 0,
            tagged_offset: 0,
        };
        peer.say(&fpdu(&[&ready.encode()])).await;
    }
    let response = peer.negotiate().await;
    assert_eq!(response.status, Status::SUCCESS);
    within(listener.accept()).await.unwrap();
    let (said, reads) = seen.lock().unwrap().pop().expect("it was answered");
    (reply, said, reads)
}

fn request(revision: u8, private_data: &[u8]) -> StartupFrame {
    StartupFrame {
        private_data: Bytes::copy_from_slice(private_data),
        ..StartupFrame::new(FrameKind::Request, revision)
    }
}

/// The depths were in the wrong byte order in an old client, were interpreted from the wrong end,
/// or were missing. Expected: the acceptor has at most as many reads outstanding as the peer says
/// it serves, in either byte order, answers with the smaller numbers, and accepts a peer without
/// depths.
#[tokio::test]
async fn bug_20_read_depths_in_either_byte_order() {
    let big = |ird: u32, ord: u32| [ird.to_be_bytes(), ord.to_be_bytes()].concat();
    let little = |ird: u32, ord: u32| [ird.to_le_bytes(), ord.to_le_bytes()].concat();
    // The depths of the peer, the number of reads outstanding at it, and the reply.
    for (private_data, reads, told) in [
        (big(8, 1), 8, big(8, 1)),
        (little(8, 1), 8, big(8, 1)),
        (big(1, 8), 1, big(1, 8)),
        (little(1, 8), 1, big(1, 8)),
        (big(255, 255), 32, big(32, 32)),
        (little(255, 255), 32, big(32, 32)),
        (big(u32::MAX, u32::MAX), 32, big(32, 32)),
        ([big(3, 9), b"and more".to_vec()].concat(), 3, big(3, 9)),
        // Unknown depths: every implementation serves at least sixteen.
        (Vec::new(), 16, Vec::new()),
        (big(8, 1)[..7].to_vec(), 16, Vec::new()),
        (vec![8], 16, Vec::new()),
    ] {
        let (reply, said, outstanding) = seen_of(&request(1, &private_data)).await;
        assert_eq!(outstanding, reads, "{private_data:02x?}");
        assert_eq!(said, told, "{private_data:02x?}");
        assert_eq!(reply.private_data, said);
        assert_eq!(reply.enhanced, None);
    }
    let depths = IrdOrd { ird: 8, ord: 1 };
    assert_eq!(IrdOrd::decode(&big(8, 1)), Ok(Some(depths)));
    assert_eq!(IrdOrd::decode(&little(8, 1)), Ok(Some(depths)));
}

/// The eight bytes were not found if the enhanced header of MPA revision 2 preceded them. Expected:
/// both are decoded, and the smaller number applies.
#[tokio::test]
async fn bug_28_read_depths_behind_the_enhanced_header() {
    let enhanced = |ird, ord, peer_to_peer| Enhanced {
        peer_to_peer,
        rtr_send: false,
        rtr_write: peer_to_peer,
        rtr_read: false,
        ird,
        ord,
    };
    for (ird, private_data, reads) in [
        (8, &[0, 0, 0, 4, 0, 0, 0, 1][..], 4),
        (4, &[0, 0, 0, 8, 0, 0, 0, 1], 4),
        (8, &[4, 0, 0, 0, 1, 0, 0, 0], 4),
        (8, &[], 8),
        (8, &[0, 0, 0, 4], 8),
        (Enhanced::NOT_NEGOTIATED, &[0, 0, 0, 4, 0, 0, 0, 1], 4),
    ] {
        for peer_to_peer in [false, true] {
            let request = StartupFrame {
                enhanced: Some(enhanced(ird, 2, peer_to_peer)),
                ..request(2, private_data)
            };
            let (reply, said, outstanding) = seen_of(&request).await;
            assert_eq!(outstanding, reads, "{ird} {private_data:02x?}");
            // The enhanced header of the Reply has the depths, so the eight bytes are not repeated.
            assert_eq!((said, &reply.private_data[..]), (Bytes::new(), &[][..]));
            let answer = reply.enhanced.expect("it was asked for");
            assert_eq!((answer.ird, u32::from(answer.ord)), (2, reads));
            assert_eq!(answer.peer_to_peer, peer_to_peer);
        }
    }
}

/// Accepts one connection by hand, and returns the request of the initiator and the stream after
/// the negotiation, which granted ten credits.
async fn accept_by_hand(
    listener: &TcpListener,
    reply: impl FnOnce(&StartupFrame) -> StartupFrame,
) -> (StartupFrame, TcpStream) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut bytes = Vec::new();
    let request = loop {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0);
        if let Ok(request) = StartupFrame::decode(FrameKind::Request, &bytes) {
            break request;
        }
    };
    let mut bytes = Vec::new();
    reply(&request).encode(&mut bytes);
    stream.write_all(&bytes).await.unwrap();
    // The Negotiate Request: length, headers of DDP and RDMAP, 20 bytes, and no CRC.
    let mut negotiate_request = [0; 2 + 18 + 20 + 4];
    stream.read_exact(&mut negotiate_request).await.unwrap();
    let response = NegotiateResponse {
        min_version: 0x0100,
        max_version: 0x0100,
        negotiated_version: 0x0100,
        credits_requested: 10,
        credits_granted: 10,
        status: Status::SUCCESS,
        max_read_write_size: 1 << 20,
        preferred_send_size: 1364,
        max_receive_size: 8192,
        max_fragmented_size: 1 << 20,
    };
    let mut message = Vec::new();
    response.encode(&mut message);
    let header = Untagged {
        last: true,
        rdmap_control: Opcode::Send.control(),
        rsvd_ulp: 0,
        queue_number: 0,
        message_sequence_number: 1,
        message_offset: 0,
    };
    let response = fpdu(&[&header.encode(), &message]);
    stream.write_all(&response).await.unwrap();
    (request, stream)
}

/// Returns the number of outstanding reads at an acceptor that answers none of them.
async fn outstanding_reads(
    config: IwarpConfig,
    reply: impl FnOnce(&StartupFrame) -> StartupFrame,
) -> (StartupFrame, u64) {
    let listener = TcpListener::bind(HERE).await.unwrap();
    let address = listener.local_addr().unwrap();
    let provider = Iwarp::new(config);
    let connecting = Connection::connect(&provider, address, Config::default());
    let by_hand = accept_by_hand(&listener, reply);
    let (connection, (request, _stream)) =
        within(async { tokio::join!(connecting, by_hand) }).await;
    let connection = connection.expect("the Reply was fine");
    let there = BufferDescriptorV1 {
        offset: 0,
        token: 0x1000,
        length: 1,
    };
    let _readings: Vec<_> = (0..50)
        .map(|_| connection.read(&[there], 0, BytesMut::zeroed(1)))
        .collect();
    // Once this message is sent, every read that may be sent has been sent.
    within(connection.send("hello").unwrap()).await.unwrap();
    (request, connection.stats().work_outstanding)
}

//= SMBD-6-02 test
//= EST-13 test
/// Expected: an initiator respects the depths in a Reply too. Linux gives them from its own point of view and the
/// specification from the initiator's. The two cannot be distinguished, so the smaller number applies.
#[tokio::test]
async fn bug_20_read_depths_in_a_reply() {
    for (private_data, reads) in [
        (&b"\0\0\0\x02\0\0\0\x08"[..], 2),
        (b"\0\0\0\x08\0\0\0\x02", 2),
        (b"\x02\0\0\0\x08\0\0\0", 2),
        (b"\0\0\0\x01\0\0\0\x01", 1),
        (b"\0\0\0\x03\0\0\0\x03more", 3),
        (b"\0\0\0\x20\0\0\0\x20", 16),
        (b"\0\0\0\x02", 16),
        (b"", 16),
    ] {
        let mut config = IwarpConfig::default();
        config.revision = 1;
        let reply = |_: &StartupFrame| StartupFrame {
            private_data: Bytes::copy_from_slice(private_data),
            ..StartupFrame::new(FrameKind::Reply, 1)
        };
        let (request, outstanding) = outstanding_reads(config, reply).await;
        assert_eq!(request.private_data, &b"\0\0\0\x20\0\0\0\x20"[..]);
        assert_eq!(outstanding, reads, "{private_data:02x?}");
    }
}

/// Expected of an initiator: its Request has both headers, and a Reply with both or with either one
/// establishes the connection.
#[tokio::test]
async fn bug_28_a_request_and_a_reply_with_both() {
    for (ird, private_data, reads) in [
        (Some(8), &b"\0\0\0\x04\0\0\0\x04"[..], 4),
        (Some(4), b"\x08\0\0\0\x08\0\0\0", 4),
        (Some(4), b"", 4),
        (Some(4), b"\0", 4),
        (Some(Enhanced::NOT_NEGOTIATED), b"\0\0\0\x04\0\0\0\x04", 4),
        (None, b"\0\0\0\x04\0\0\0\x04", 4),
        (None, b"", 16),
    ] {
        let mut config = IwarpConfig::default();
        config.ird = 4;
        config.ord = 20;
        let reply = |request: &StartupFrame| StartupFrame {
            enhanced: ird.map(|ird| Enhanced {
                peer_to_peer: false,
                rtr_send: false,
                rtr_write: false,
                rtr_read: false,
                ird,
                ord: 4,
            }),
            private_data: Bytes::copy_from_slice(private_data),
            ..StartupFrame::new(FrameKind::Reply, request.revision)
        };
        let (request, outstanding) = outstanding_reads(config, reply).await;
        let asked = request.enhanced.expect("revision 2 has it");
        assert_eq!((request.revision, asked.ird, asked.ord), (2, 4, 20));
        assert!(request.private_data.starts_with(b"\0\0\0\x04\0\0\0\x14"));
        assert_eq!(outstanding, reads, "{ird:?} {private_data:02x?}");
    }
}

/// Expected: if sixteen peers send their requests right after the ready-to-receive frame, before
/// the acceptor has handled any of them, no request is lost.
#[tokio::test]
async fn bug_06_a_burst_of_requests() {
    let provider: Arc<dyn Provider> = Arc::new(Iwarp::default());
    let mut listener = listen(&provider, Settings::default()).await;
    let address = listener.local_addr();
    let mut peers = Vec::new();
    for _ in 0..16 {
        let mut peer = Peer::connected(address).await;
        let request = peer.negotiate_request();
        peer.say(&request).await;
        peers.push(peer);
    }
    for peer in &mut peers {
        let (_, response) = peer.hear().await;
        let response = NegotiateResponse::decode(&response).unwrap();
        assert_eq!(
            (response.status, response.credits_granted),
            (Status::SUCCESS, 255)
        );
        within(listener.accept()).await.unwrap();
    }
}
