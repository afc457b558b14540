//! The iWARP provider on 127.0.0.1, against itself and against hand-made peers.

// Allows the imports and helpers that only the last test uses, because it runs on Linux only.
#![cfg_attr(not(target_os = "linux"), allow(dead_code, unused_imports))]

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use smbdirect_rdma::{
    Direction,
    iwarp::{
        FpduAlignment, Iwarp, IwarpConfig, MpaCrc, Tap,
        ddp::{Header, Tagged, Untagged},
        mpa::{Enhanced, Fpdu, FrameKind, StartupError, StartupFrame},
        rdmap::{Opcode, ReadRequest, Terminate, TerminateCode},
    },
    provider::{
        AcceptRequest, ConnectRequest, Connected, IncomingRequest, Provider, ProviderListener,
        QueuePair,
    },
    work::{
        Access, Completion, Disconnect, Inline, ProviderError, ProviderErrorKind, RemoteAddress,
        Teardown, Token, WorkId, WorkRequest,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::yield_now,
    time::{advance, sleep, timeout},
};

const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn receive(id: u64) -> WorkRequest {
    WorkRequest::Receive {
        id: WorkId(id),
        length: 100_000,
        count: 1,
    }
}

fn send(id: u64, payload: impl Into<Bytes>) -> WorkRequest {
    WorkRequest::Send {
        id: WorkId(id),
        header: Inline::new(),
        payload: payload.into(),
        invalidate: None,
    }
}

fn request(address: SocketAddr) -> ConnectRequest {
    ConnectRequest {
        address,
        private_data: Bytes::from_static(b"\0\0\0\x20\0\0\0\x01"),
        receive: receive(1),
    }
}

fn answer() -> AcceptRequest {
    AcceptRequest {
        private_data: Bytes::from_static(b"welcome"),
        receive: receive(1),
        peer_serves_reads: None,
    }
}

async fn listen(config: IwarpConfig) -> Box<dyn ProviderListener> {
    Iwarp::new(config).listen(HERE).await.unwrap()
}

async fn incoming(listener: &mut dyn ProviderListener) -> IncomingRequest {
    let incoming = timeout(Duration::from_secs(20), listener.accept()).await;
    incoming.expect("a request in time").unwrap()
}

/// Connects two ends and returns the initiator and the responder.
async fn pair(initiator: IwarpConfig, responder: IwarpConfig) -> (Connected, Connected) {
    let mut listener = listen(responder).await;
    let address = listener.local_addr();
    let provider = Iwarp::new(initiator);
    let (one, other) = tokio::join!(provider.connect(request(address)), async {
        let incoming = incoming(&mut *listener).await;
        incoming.accept(answer()).await
    });
    (one.unwrap(), other.unwrap())
}

fn post(connected: &mut Connected, work: impl IntoIterator<Item = WorkRequest>) {
    for work in work {
        connected.queue_pair.post(work);
    }
}

async fn next(connected: &mut Connected) -> Completion {
    let queue_pair = &mut connected.queue_pair;
    let completion = poll_fn(|context| {
        queue_pair.flush(context, u64::MAX);
        smbdirect_provider_suite::poll_completion(&mut **queue_pair, context)
    });
    let completion = timeout(Duration::from_secs(20), completion).await;
    completion.expect("a completion in time")
}

async fn received(connected: &mut Connected) -> Bytes {
    loop {
        match next(connected).await {
            Completion::Received { message, .. } => return message,
            Completion::Sent { .. } | Completion::Written { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Takes all completions and returns how the connection ended.
async fn ended(connected: &mut Connected) -> Disconnect {
    loop {
        if let Completion::Disconnected(how) = next(connected).await {
            return how;
        }
    }
}

fn kind(disconnect: Disconnect) -> Option<ProviderErrorKind> {
    match disconnect {
        Disconnect::Broken(error) => Some(error.kind),
        _ => None,
    }
}

/// Exchanges a message in each direction, that of the initiator first.
async fn greet(one: &mut Connected, other: &mut Connected) {
    post(one, [send(2, &b"hello"[..])]);
    post(other, [send(3, &b"good day"[..])]);
    let (there, back) = tokio::join!(sent_and_received(other), sent_and_received(one));
    assert_eq!((&there[..], &back[..]), (&b"hello"[..], &b"good day"[..]));
}

/// Waits until a message of this end is sent and a message of the peer is received, and returns the
/// latter.
async fn sent_and_received(connected: &mut Connected) -> Bytes {
    let mut received = Bytes::new();
    for _ in 0..2 {
        match next(connected).await {
            Completion::Received { message, .. } => received = message,
            Completion::Sent { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    received
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<(Direction, Vec<u8>)>>);

impl Tap for Recorder {
    fn bytes(&self, direction: Direction, local: SocketAddr, remote: SocketAddr, bytes: &[u8]) {
        assert_ne!(local, remote);
        self.0.lock().unwrap().push((direction, bytes.to_vec()));
    }
}

impl Recorder {
    fn all(&self, which: Direction) -> Vec<u8> {
        let chunks = self.0.lock().unwrap();
        let chunks = chunks.iter().filter(|chunk| chunk.0 == which);
        chunks.flat_map(|chunk| chunk.1.clone()).collect()
    }
}

//= MPA-04 test
//= MPA-05 test
//= MPA-06 test
//= MPA-11 test
//= MPA-15 test
//= MPA-17 test
//= MPA-18 test
//= EST-02 test
//= EST-04 test
//= EST-08 test
#[tokio::test]
async fn two_ends_of_this_library_agree_on_everything() {
    use MpaCrc::{Auto, Off, On};
    for (crc, responder_crc, revision, expected) in [
        (Auto, Auto, 2, true),
        (Auto, Off, 2, false),
        (Auto, On, 2, true),
        (Off, Auto, 2, false),
        (Off, On, 2, true),
        (On, Off, 2, true),
        (Auto, Auto, 1, false),
        (On, Auto, 1, true),
        (Off, Off, 1, false),
    ] {
        let tap = Arc::new(Recorder::default());
        let mut initiator = IwarpConfig::default();
        initiator.crc = crc;
        initiator.revision = revision;
        initiator.ird = 5;
        initiator.ord = 2;
        initiator.tap = Some(tap.clone());
        let mut responder = IwarpConfig::default();
        responder.crc = responder_crc;
        let (mut one, mut other) = pair(initiator, responder).await;
        greet(&mut one, &mut other).await;
        assert_eq!(one.private_data, &b"welcome"[..]);
        assert_eq!(one.peer_addr, other.local_addr);
        let (here, there) = (one.limits, other.limits);
        if revision == 2 {
            // IRD 5 is rounded up to 8, and the depths of the two ends match.
            assert_eq!((here.max_inbound_reads, there.max_outbound_reads), (8, 8));
            assert_eq!((here.max_outbound_reads, there.max_inbound_reads), (2, 2));
        }

        // The Request was written in one system call.
        let (direction, first) = tap.0.lock().unwrap()[0].clone();
        let whole = StartupFrame::decode(FrameKind::Request, &first).unwrap();
        assert_eq!(
            (direction, whole.encoded_length()),
            (Direction::Sent, first.len())
        );
        // The tap has observed the startup frames and all FPDUs.
        let (sent, seen) = (tap.all(Direction::Sent), tap.all(Direction::Received));
        let request = StartupFrame::decode(FrameKind::Request, &sent).unwrap();
        let reply = StartupFrame::decode(FrameKind::Reply, &seen).unwrap();
        assert_eq!((request.crc, request.markers), (crc == On, false));
        assert_eq!(
            request.crc || reply.crc,
            expected,
            "{crc:?} {responder_crc:?}"
        );
        assert_eq!((request.revision, reply.revision), (revision, revision));
        assert!(request.private_data.starts_with(b"\0\0\0\x20\0\0\0\x01"));
        let fpdus = &sent[request.encoded_length()..];
        let first = Fpdu::decode(fpdus, expected).unwrap().unwrap();
        assert_eq!(
            first.length,
            if revision == 2 { 20 } else { 32 },
            "an RTR, or hello"
        );
        assert_eq!(fpdus[first.length - 4..first.length] != [0; 4], expected);
    }
}

//= MPA-08 test
//= PERF-03 test
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_transfers_both_ways() {
    const SIZE: usize = 9_000_000;
    let data = |seed: u8| -> Vec<u8> {
        (0..SIZE)
            .map(|at| (at as u8).wrapping_add((at >> 8) as u8) ^ seed)
            .collect()
    };
    for (crc, max_fpdu) in [
        (MpaCrc::Auto, None),
        (MpaCrc::Off, Some(65536)),
        (MpaCrc::Auto, Some(1448)),
    ] {
        let mut config = IwarpConfig::default();
        config.crc = crc;
        config.tuning.max_fpdu = max_fpdu;
        let (mut one, mut other) = pair(config.clone(), config).await;
        let mut register = |access| {
            let buffer = BytesMut::from(&data(1)[..]);
            one.queue_pair.register(buffer, access).unwrap().address
        };
        let source = register(Access::REMOTE_READ);
        let sink = register(Access::REMOTE_WRITE);
        post(&mut one, [send(2, &b"go"[..])]);
        let into = BytesMut::zeroed(SIZE);
        let read = WorkRequest::Read {
            id: WorkId(3),
            from: source,
            into,
        };
        let write = WorkRequest::Write {
            id: WorkId(4),
            data: data(2).into(),
            to: sink,
        };
        post(&mut other, [read, write, send(5, &b"done"[..])]);
        let (finished, mut over) = tokio::sync::oneshot::channel();
        let there = async {
            let mut into = None;
            for _ in 0..4 {
                // These are the message of the peer, and the Read, the Write and the message of
                // this end.
                if let Completion::Read { buffer, .. } = next(&mut other).await {
                    into = Some(buffer);
                }
            }
            let buffer = into.expect("the read is one of them");
            finished.send(()).unwrap();
            buffer
        };
        // This end has to be polled after its message, because it serves the Read.
        let here = async {
            assert_eq!(received(&mut one).await, &b"done"[..]);
            let queue_pair = &mut one.queue_pair;
            tokio::select! {
                _ = &mut over => {}
                more = poll_fn(|context| smbdirect_provider_suite::poll_completion(&mut **queue_pair, context)) => panic!("{more:?}"),
            }
        };
        let (buffer, ()) = tokio::join!(there, here);
        assert!(buffer == data(1)[..]);
        let written = one.queue_pair.deregister(sink.token).unwrap();
        assert!(written == data(2)[..]);
        assert!(one.queue_pair.deregister(source.token).is_ok());
    }
}

//= MPA-29 test
#[tokio::test]
async fn a_dropped_request_is_refused_and_the_listener_continues() {
    let mut listener = listen(IwarpConfig::default()).await;
    let address = listener.local_addr();
    for revision in [2, 1] {
        let mut iwarp = IwarpConfig::default();
        iwarp.revision = revision;
        let provider = Iwarp::new(iwarp);
        let (refused, ()) = tokio::join!(provider.connect(request(address)), async {
            let incoming = incoming(&mut *listener).await;
            assert_eq!(incoming.private_data, &b"\0\0\0\x20\0\0\0\x01"[..]);
            drop(incoming);
        });
        assert_eq!(refused.unwrap_err().kind, ProviderErrorKind::Rejected);
    }
    let provider = Iwarp::default();
    let (connected, other) = tokio::join!(provider.connect(request(address)), async {
        let incoming = incoming(&mut *listener).await;
        incoming.accept(answer()).await
    });
    greet(&mut connected.unwrap(), &mut other.unwrap()).await;
    drop(listener);
    // The task of the listener ends when it runs next.
    sleep(Duration::from_millis(20)).await;
    let refused = provider.connect(request(address)).await;
    assert_eq!(refused.unwrap_err().kind, ProviderErrorKind::Refused);
}

/// Connects to a listener with a plain TCP socket and sends `bytes`.
async fn say(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Returns the bytes that the peer sends before it closes the connection.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let end = timeout(Duration::from_secs(10), stream.read_to_end(&mut bytes)).await;
    let _ = end.expect("an end in time");
    bytes
}

fn bytes_of(frame: &StartupFrame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

//= MPA-09 test
//= MPA-10 test
//= MPA-13 test
//= MPA-16 test
//= MPA-30 test
//= MPA-31 test
//= SEC-06 test
//= SEC-07 test
#[tokio::test]
async fn bad_and_silent_peers_do_not_delay_others() {
    let patience = IwarpConfig::default();
    assert_eq!(patience.connect_timeout, Duration::from_secs(10));
    assert_eq!(patience.accept_timeout, Duration::from_secs(5));
    let mut iwarp = IwarpConfig::default();
    iwarp.accept_timeout = Duration::from_millis(600);
    iwarp.close_timeout = Duration::from_millis(100);
    iwarp.max_half_open = 3;
    let mut listener = listen(iwarp).await;
    let address = listener.local_addr();
    let good = StartupFrame::new(FrameKind::Request, 1);
    let mut unknown = bytes_of(&good);
    unknown[17] = 3;
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        bytes_of(&StartupFrame::new(FrameKind::Reply, 1)),
        unknown,
        [&bytes_of(&good)[..18], &[0xff, 0xff]].concat(),
    ] {
        let mut stream = say(address, &bytes).await;
        assert_eq!(
            rest(&mut stream).await,
            b"",
            "the connection is closed without a reply"
        );
    }
    let markers = StartupFrame {
        markers: true,
        crc: true,
        ..good.clone()
    };
    let mut lacking = bytes_of(&StartupFrame::new(FrameKind::Request, 2));
    lacking[16] = 0x10;
    for (bytes, revision, crc) in [(bytes_of(&markers), 1, true), (lacking, 2, false)] {
        let said = rest(&mut say(address, &bytes).await).await;
        let reply = StartupFrame::decode(FrameKind::Reply, &said).unwrap();
        assert!(reply.rejected && !reply.markers);
        assert_eq!((reply.revision, reply.crc), (revision, crc));
        assert_eq!(reply.enhanced.is_some(), revision == 2);
    }
    // Two silent peers leave room for one more. Then all three have to time out.
    let mut silent = vec![say(address, b"").await, say(address, b"MPA ID").await];
    let provider = Iwarp::default();
    for _ in 0..2 {
        let (one, other) = tokio::join!(provider.connect(request(address)), async {
            let incoming = incoming(&mut *listener).await;
            incoming.accept(answer()).await
        });
        greet(&mut one.unwrap(), &mut other.unwrap()).await;
        silent.push(say(address, b"").await);
    }
    for mut stream in silent {
        assert_eq!(rest(&mut stream).await, b"");
    }
}

//= MPA-31 test
//= SEC-07 test
#[tokio::test]
async fn half_open_peers_stay_within_the_limit() {
    let mut iwarp = IwarpConfig::default();
    iwarp.accept_timeout = Duration::from_millis(300);
    iwarp.close_timeout = Duration::from_millis(100);
    iwarp.max_half_open = 1;
    let mut listener = listen(iwarp).await;
    let address = listener.local_addr();
    let mut silent = say(address, b"MPA ID").await;
    let mut good = say(
        address,
        &bytes_of(&StartupFrame::new(FrameKind::Request, 1)),
    )
    .await;
    // The second peer is not accepted before the first has timed out.
    tokio::select! {
        biased;
        said = rest(&mut silent) => assert_eq!(said, b""),
        _ = incoming(&mut *listener) => panic!("two peers are half open"),
    }
    let second = incoming(&mut *listener).await;
    assert_eq!(second.peer_addr, good.local_addr().unwrap());
    drop(second);
    let said = rest(&mut good).await;
    assert!(
        StartupFrame::decode(FrameKind::Reply, &said)
            .unwrap()
            .rejected
    );
}

/// A hand-made peer that listens and answers the first Request with the result of `reply`.
async fn answer_by_hand(
    listener: &TcpListener,
    reply: impl FnOnce(&StartupFrame) -> Vec<u8>,
) -> (TcpStream, StartupFrame) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut bytes = Vec::new();
    let request = loop {
        match StartupFrame::decode(FrameKind::Request, &bytes) {
            Ok(request) => break request,
            Err(StartupError::Incomplete { needed }) => {
                let mut more = vec![0; needed - bytes.len()];
                stream.read_exact(&mut more).await.unwrap();
                bytes.extend(more);
            }
            Err(error) => panic!("{error}"),
        }
    };
    stream.write_all(&reply(&request)).await.unwrap();
    (stream, request)
}

fn untagged(opcode: Opcode, message_sequence_number: u32) -> [u8; 18] {
    Untagged {
        last: true,
        rdmap_control: opcode.control(),
        rsvd_ulp: 0,
        queue_number: opcode.queue_number(),
        message_sequence_number,
        message_offset: 0,
    }
    .encode()
}

fn fpdu(parts: &[&[u8]], crc: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    Fpdu::encode(parts, crc, &mut bytes);
    bytes
}

fn reply_of_siw(request: &StartupFrame) -> StartupFrame {
    StartupFrame {
        enhanced: Some(Enhanced {
            ird: 1,
            ord: 8,
            ..Enhanced::default()
        }),
        ..StartupFrame::new(FrameKind::Reply, request.revision)
    }
}

async fn connect_to(
    config: IwarpConfig,
    reply: impl FnOnce(&StartupFrame) -> Vec<u8>,
) -> (Result<Connected, ProviderError>, TcpStream) {
    let listener = TcpListener::bind(HERE).await.unwrap();
    let address = listener.local_addr().unwrap();
    let provider = Iwarp::new(config);
    let connecting = provider.connect(request(address));
    let (connected, (stream, _)) = tokio::join!(connecting, answer_by_hand(&listener, reply));
    (connected, stream)
}

//= MPA-08 test
//= MPA-20 test
//= EST-05 test
#[tokio::test]
async fn an_fpdu_in_the_segment_of_the_reply_is_received() {
    let (connected, mut peer) = connect_to(IwarpConfig::default(), |request| {
        let early = fpdu(&[&untagged(Opcode::Send, 1), b"early"], false);
        [bytes_of(&reply_of_siw(request)), early].concat()
    })
    .await;
    let mut connected = connected.unwrap();
    assert_eq!(connected.limits.max_outbound_reads, 1);
    assert_eq!(received(&mut connected).await, &b"early"[..]);
    // The Reply asked for no RTR, so a Send is the first FPDU. CRCs are off.
    post(&mut connected, [send(2, &b"hello"[..])]);
    assert!(matches!(
        next(&mut connected).await,
        Completion::Sent { .. }
    ));
    let mut bytes = [0; 32];
    peer.read_exact(&mut bytes).await.unwrap();
    assert_eq!(
        bytes[..],
        fpdu(&[&untagged(Opcode::Send, 1), b"hello"], false)
    );
}

//= EST-03 test
//= EST-11 test
//= EST-12 test
//= MPA-16 test
//= MPA-29 test
#[tokio::test]
async fn invalid_replies_fail_the_connection() {
    type Change = fn(&mut StartupFrame);
    let cases: [(Change, ProviderErrorKind, Option<TerminateCode>); 6] = [
        (
            |reply| reply.rejected = true,
            ProviderErrorKind::Rejected,
            None,
        ),
        (
            |reply| reply.markers = true,
            ProviderErrorKind::Protocol,
            None,
        ),
        (
            |reply| reply.private_data = Bytes::from(vec![0; 400]),
            ProviderErrorKind::Local,
            None,
        ),
        (
            |reply| reply.enhanced.as_mut().unwrap().ord = 33,
            ProviderErrorKind::Protocol,
            Some(TerminateCode::new(2, 0, 6)),
        ),
        (
            |reply| reply.enhanced.as_mut().unwrap().peer_to_peer = true,
            ProviderErrorKind::Protocol,
            Some(TerminateCode::new(2, 0, 7)),
        ),
        (
            |reply| {
                reply.crc = true;
                reply.enhanced.as_mut().unwrap().ord = 200;
            },
            ProviderErrorKind::Protocol,
            Some(TerminateCode::new(2, 0, 6)),
        ),
    ];
    for (change, expected, code) in cases {
        let mut crc = false;
        let (connected, mut peer) = connect_to(IwarpConfig::default(), |request| {
            let mut reply = reply_of_siw(request);
            change(&mut reply);
            crc = reply.crc;
            bytes_of(&reply)
        })
        .await;
        match connected {
            Err(error) => assert_eq!(error.kind, expected, "{error}"),
            // Long private data is passed to the upper layer.
            Ok(connected) => {
                drop(connected);
                assert_eq!(expected, ProviderErrorKind::Local);
            }
        }
        let said = rest(&mut peer).await;
        let Some(code) = code else {
            assert_eq!(said, b"");
            continue;
        };
        let fpdu = Fpdu::decode(&said, crc).unwrap().unwrap();
        let (_, payload) = Header::decode(fpdu.ulpdu).unwrap();
        assert_eq!(Terminate::decode(payload).code(), code);
    }
}

//= MPA-12 test
//= MPA-30 test
//= MPA-32 test
#[tokio::test]
async fn a_peer_that_closes_is_tried_again_with_revision_1() {
    let listener = TcpListener::bind(HERE).await.unwrap();
    let address = listener.local_addr().unwrap();
    let provider = Iwarp::default();
    let (connected, peer) = tokio::join!(provider.connect(request(address)), async {
        let (_, first) = answer_by_hand(&listener, |_| Vec::new()).await;
        assert_eq!((first.revision, first.enhanced.is_some()), (2, true));
        let (peer, second) = answer_by_hand(&listener, |_| {
            bytes_of(&StartupFrame::new(FrameKind::Reply, 1))
        })
        .await;
        assert_eq!((second.revision, second.enhanced), (1, None));
        assert_eq!(
            second.private_data,
            &b"\0\0\0\x20\0\0\0\x01"[..],
            "no marker"
        );
        peer
    });
    assert_eq!(connected.unwrap().limits.max_outbound_reads, 16);
    drop(peer);

    let mut config = IwarpConfig::default();
    config.fall_back = false;
    let (refused, _) = connect_to(config, |_| b"GET / HTTP".to_vec()).await;
    assert_eq!(refused.unwrap_err().kind, ProviderErrorKind::OtherProtocol);
    let mut iwarp = IwarpConfig::default();
    iwarp.fall_back = false;
    iwarp.connect_timeout = Duration::from_millis(200);
    let provider = Iwarp::new(iwarp);
    let (gone, ()) = tokio::join!(provider.connect(request(address)), async {
        drop(answer_by_hand(&listener, |_| Vec::new()).await);
    });
    assert_eq!(gone.unwrap_err().kind, ProviderErrorKind::Reset);
    let late = provider.connect(request(address)).await;
    assert_eq!(late.unwrap_err().kind, ProviderErrorKind::TimedOut);
}

/// Connects a hand-made initiator to a responder of this library.
async fn accept_by_hand(config: IwarpConfig, frame: &StartupFrame) -> (TcpStream, Connected) {
    let mut listener = listen(config).await;
    let mut stream = say(listener.local_addr(), &bytes_of(frame)).await;
    let incoming = incoming(&mut *listener).await;
    let connected = incoming.accept(answer()).await.unwrap();
    let mut bytes = [0; 20];
    stream.read_exact(&mut bytes).await.unwrap();
    let length = u16::from_be_bytes([bytes[18], bytes[19]]);
    stream
        .read_exact(&mut vec![0; length.into()])
        .await
        .unwrap();
    (stream, connected)
}

/// Memory that the peer does not check.
const NOWHERE: RemoteAddress = RemoteAddress {
    token: Token(77),
    offset: 0,
};

/// Connects a hand-made initiator that uses CRCs and has sent its first FPDU.
async fn accept_with_crcs(config: IwarpConfig) -> (TcpStream, Connected) {
    let frame = StartupFrame {
        crc: true,
        ..StartupFrame::new(FrameKind::Request, 1)
    };
    let (mut peer, connected) = accept_by_hand(config, &frame).await;
    let rtr = Tagged {
        last: true,
        rdmap_control: Opcode::RdmaWrite.control(),
        stag: 1,
        tagged_offset: 0,
    };
    peer.write_all(&fpdu(&[&rtr.encode()], true)).await.unwrap();
    (peer, connected)
}

//= MPA-07 test
//= MPA-34 test
//= RDMAP-21 test
#[tokio::test]
async fn fin_and_rst_are_distinguished() {
    let frame = StartupFrame::new(FrameKind::Request, 1);
    let hello = fpdu(&[&untagged(Opcode::Send, 1), b"hello"], false);
    for (sent, reset, expected) in [
        (hello.len(), false, None),
        (0, false, None),
        (hello.len() - 1, false, Some(ProviderErrorKind::Reset)),
        (hello.len(), true, Some(ProviderErrorKind::Reset)),
    ] {
        let (mut peer, mut connected) = accept_by_hand(IwarpConfig::default(), &frame).await;
        peer.write_all(&hello[..sent]).await.unwrap();
        if sent == hello.len() {
            assert_eq!(received(&mut connected).await, &b"hello"[..]);
            post(&mut connected, [receive(2)]);
        } else {
            // The responder sends nothing before the first FPDU has arrived.
            post(&mut connected, [send(3, &b"early"[..])]);
            let early = timeout(Duration::from_millis(50), peer.read_u8());
            let (early, more) = tokio::join!(early, async {
                timeout(Duration::from_millis(60), next(&mut connected)).await
            });
            assert!(early.is_err() && more.is_err());
        }
        if reset {
            peer.set_zero_linger().unwrap();
        }
        drop(peer);
        let Completion::Flushed { .. } = next(&mut connected).await else {
            panic!("the receive is not flushed");
        };
        let how = ended(&mut connected).await;
        if expected.is_none() {
            assert_eq!(how, Disconnect::Remote);
        }
        assert_eq!(kind(how), expected);
    }
}

//= RDMAP-18 test
//= RDMAP-20 test
//= MPA-22 test
#[tokio::test]
async fn the_end_at_fault_receives_a_terminate() {
    let (mut one, mut other) = pair(IwarpConfig::default(), IwarpConfig::default()).await;
    greet(&mut one, &mut other).await;
    post(&mut other, [receive(7)]);
    let nowhere = RemoteAddress {
        token: Token(77),
        offset: 0,
    };
    let write = WorkRequest::Write {
        id: WorkId(4),
        data: vec![1; 3_000_000].into(),
        to: nowhere,
    };
    post(&mut one, [write, send(5, &b"never"[..])]);
    let (here, there) = tokio::join!(ended(&mut one), ended(&mut other));
    assert_eq!(kind(there), Some(ProviderErrorKind::Protocol));
    let Disconnect::Broken(error) = here else {
        panic!("{here:?}");
    };
    assert_eq!(error.kind, ProviderErrorKind::Terminated, "{error}");
    assert!(error.what.contains("1/1/0"), "{error}");
}

//= RDMAP-22 test
#[tokio::test]
async fn a_graceful_disconnect_follows_posted_work_and_an_abort_does_not() {
    let (mut one, mut other) = pair(IwarpConfig::default(), IwarpConfig::default()).await;
    greet(&mut one, &mut other).await;
    post(&mut other, (10..60).map(receive));
    post(
        &mut one,
        (10..60).map(|id| send(id, vec![id as u8; 50_000])),
    );
    one.queue_pair.disconnect(Teardown::Graceful);
    let there = async {
        for id in 10..60 {
            assert_eq!(received(&mut other).await, vec![id; 50_000]);
        }
        ended(&mut other).await
    };
    let (here, there) = tokio::join!(ended(&mut one), there);
    assert_eq!((here, there), (Disconnect::Local, Disconnect::Remote));

    // The wait for a peer that never closes is short.
    let frame = StartupFrame::new(FrameKind::Request, 1);
    let mut config = IwarpConfig::default();
    config.close_timeout = Duration::from_millis(100);
    let (peer, mut connected) = accept_by_hand(config, &frame).await;
    connected.queue_pair.disconnect(Teardown::Graceful);
    assert_eq!(ended(&mut connected).await, Disconnect::Local);
    drop(peer);

    let (mut one, mut other) = pair(IwarpConfig::default(), IwarpConfig::default()).await;
    greet(&mut one, &mut other).await;
    post(&mut one, [send(8, vec![0; 1000])]);
    one.queue_pair.disconnect(Teardown::Abort);
    assert!(matches!(
        next(&mut one).await,
        Completion::Flushed { id: WorkId(8), .. }
    ));
    assert_eq!(ended(&mut one).await, Disconnect::Local);
    assert_eq!(
        kind(ended(&mut other).await),
        Some(ProviderErrorKind::Reset)
    );

    // Dropping a queue pair aborts the connection.
    let (one, mut other) = pair(IwarpConfig::default(), IwarpConfig::default()).await;
    drop(one);
    assert_eq!(
        kind(ended(&mut other).await),
        Some(ProviderErrorKind::Reset)
    );
}

/// The longest FPDU exceeds the segment size of 127.0.0.1 slightly.
//= MPA-26 test
//= MPA-27 test
#[tokio::test]
async fn long_fpdus_are_sent_to_this_library_and_where_configured() {
    use FpduAlignment::{Off as Unaligned, Runs, Single};
    use MpaCrc::{Auto, Off, On};
    const AUTO: FpduAlignment = FpduAlignment::Auto;
    // An FPDU that fits a segment. If the segment size of the connection is unknown, the segment size of Ethernet
    // applies.
    let fitting = if cfg!(unix) {
        30_000..=65_483
    } else {
        1400..=1460
    };
    // With revision 1, an end of this library is not recognised.
    for (revision, crc, max_fpdu, fpdu_alignment, expected) in [
        (2, Auto, None, AUTO, 65_536..=65_536),
        (2, Auto, Some(1448), AUTO, 1448..=1448),
        (2, Auto, None, Single, fitting.clone()),
        (2, Auto, None, Runs, fitting.clone()),
        (1, On, None, AUTO, fitting.clone()),
        (1, On, Some(65_536), AUTO, fitting.clone()),
        (1, On, Some(65_536), Unaligned, 65_536..=65_536),
        (1, Off, None, AUTO, fitting.clone()),
        (1, Off, Some(65_536), AUTO, 65_536..=65_536),
        (2, Off, None, AUTO, 65_536..=65_536),
        (2, Off, Some(1448), AUTO, 1448..=1448),
    ] {
        let tap = Arc::new(Recorder::default());
        let mut config = IwarpConfig::default();
        config.revision = revision;
        config.crc = crc;
        config.tuning.max_fpdu = max_fpdu;
        config.tuning.fpdu_alignment = fpdu_alignment;
        config.tap = Some(tap.clone());
        let (mut one, mut other) = pair(config, IwarpConfig::default()).await;
        let buffer = BytesMut::zeroed(200_000);
        let registered = other.queue_pair.register(buffer, Access::REMOTE_WRITE);
        let write = WorkRequest::Write {
            id: WorkId(4),
            data: vec![1; 200_000].into(),
            to: registered.unwrap().address,
        };
        post(&mut one, [write, send(5, &b"done"[..])]);
        let there = async {
            assert_eq!(received(&mut other).await, &b"done"[..]);
        };
        let here = async {
            assert!(matches!(next(&mut one).await, Completion::Written { .. }));
            assert!(matches!(next(&mut one).await, Completion::Sent { .. }));
        };
        tokio::join!(here, there);
        let sent = tap.all(Direction::Sent);
        let request = StartupFrame::decode(FrameKind::Request, &sent).unwrap();
        let mut rest = &sent[request.encoded_length()..];
        let mut longest = 0;
        while let Some(fpdu) = Fpdu::decode(rest, false).unwrap() {
            longest = longest.max(fpdu.length);
            rest = &rest[fpdu.length..];
        }
        assert!(expected.contains(&longest), "{longest}, not {expected:?}");
    }
}

//= MPA-28 test
#[tokio::test]
async fn with_crcs_and_another_peer_fpdus_fit_segments() {
    let tap = Arc::new(Recorder::default());
    let mut config = IwarpConfig::default();
    config.tap = Some(tap.clone());
    config.tuning.max_fpdu = Some(65536);
    let (mut peer, mut connected) = accept_with_crcs(config).await;
    let data = vec![7; 500_000];
    let write = WorkRequest::Write {
        id: WorkId(2),
        data: data.into(),
        to: NOWHERE,
    };
    post(&mut connected, [write, send(3, &b"done"[..])]);
    let reader = tokio::spawn(async move { peer.read_to_end(&mut Vec::new()).await });
    assert!(matches!(
        next(&mut connected).await,
        Completion::Written { .. }
    ));
    assert!(matches!(
        next(&mut connected).await,
        Completion::Sent { .. }
    ));
    let sent = tap.all(Direction::Sent);
    let reply = StartupFrame::decode(FrameKind::Reply, &sent).unwrap();
    let mut rest = &sent[reply.encoded_length()..];
    while !rest.is_empty() {
        let fpdu = Fpdu::decode(rest, true)
            .unwrap()
            .expect("the FPDU is complete");
        assert!(fpdu.length < 65536, "within the segment size of loopback");
        rest = &rest[fpdu.length..];
    }
    drop(connected);
    let _ = timeout(Duration::from_secs(5), reader).await;
}

/// A kernel that has to send into a window that is too small for an FPDU sends a part of it after 200 ms.
//= MPA-35 test
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_peer_that_stops_reading_has_received_whole_fpdus_only() {
    let (peer, mut connected) = accept_with_crcs(IwarpConfig::default()).await;
    let socket = socket2::SockRef::from(&peer);
    socket.set_recv_buffer_size(100_000).unwrap();
    let lengths = [700_000, 20, 5000, 1_000_000, 1_300_001];
    let works = lengths.iter().map(|&length| WorkRequest::Write {
        id: WorkId(2),
        data: vec![7; length].into(),
        to: NOWHERE,
    });
    post(&mut connected, works);
    let sender = tokio::spawn(async move {
        for _ in lengths {
            assert!(matches!(
                next(&mut connected).await,
                Completion::Written { .. }
            ));
        }
        connected
    });
    let (mut fpdus, mut payload, mut buffer) = (Vec::new(), 0, vec![0; 1 << 20]);
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut pauses = [700, 300, 300].into_iter();
    while payload < lengths.iter().sum() {
        assert!(Instant::now() < deadline, "{payload} bytes have arrived");
        sleep(Duration::from_millis(pauses.next().unwrap_or(5))).await;
        // While this reads all that has arrived, the sender does not run.
        while let Ok(count @ 1..) = peer.try_read(&mut buffer) {
            fpdus.extend_from_slice(&buffer[..count]);
        }
        let mut rest = &fpdus[..];
        while let Some(fpdu) = Fpdu::decode(rest, true).unwrap() {
            payload += fpdu.ulpdu.len() - Tagged::LENGTH;
            rest = &rest[fpdu.length..];
        }
        assert_eq!(rest.len(), 0, "a part of an FPDU has arrived");
        fpdus.clear();
    }
    drop(sender.await.unwrap());
}

/// An end that cannot say that it has failed resets the connection: FIN between two FPDUs would be a graceful end.
#[tokio::test]
async fn a_terminate_that_finds_no_room_is_a_reset() {
    let frame = StartupFrame::new(FrameKind::Request, 1);
    let (mut peer, mut connected) = accept_by_hand(IwarpConfig::default(), &frame).await;
    let first = fpdu(&[&untagged(Opcode::Send, 1)], false);
    post(&mut connected, [receive(1)]);
    peer.write_all(&first).await.unwrap();
    assert!(matches!(
        next(&mut connected).await,
        Completion::Received { .. }
    ));
    let work = WorkRequest::Write {
        id: WorkId(2),
        data: vec![7; 32 << 20].into(),
        to: NOWHERE,
    };
    post(&mut connected, [work]);
    // Until no more bytes leave. If the machine only pauses for a moment, there is room for the Terminate.
    let blocked = timeout(Duration::from_secs(1), next(&mut connected)).await;
    assert!(blocked.is_err(), "32 MiB went nowhere");
    connected.queue_pair.disconnect(Teardown::Terminate);
    assert_eq!(ended(&mut connected).await, Disconnect::Local);
    drop(connected);
    let mut buffer = vec![0; 1 << 20];
    let end = loop {
        match peer.read(&mut buffer).await {
            Ok(1..) => {}
            end => break end,
        }
    };
    let error = end.expect_err("it is no graceful end");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

//= MPA-04 test
#[tokio::test]
async fn unusable_addresses_are_errors() {
    let provider = Iwarp::default();
    let closed = TcpListener::bind(HERE).await.unwrap().local_addr().unwrap();
    let refused = provider.connect(request(closed)).await;
    assert_eq!(refused.unwrap_err().kind, ProviderErrorKind::Refused);
    let listener = listen(IwarpConfig::default()).await;
    let taken = provider.listen(listener.local_addr()).await;
    assert_eq!(taken.unwrap_err().kind, ProviderErrorKind::InUse);
    let strange = provider.listen("192.0.2.1:0".parse().unwrap()).await;
    assert_eq!(strange.unwrap_err().kind, ProviderErrorKind::Address);
    let much = ConnectRequest {
        private_data: Bytes::from(vec![0; 201]),
        ..request(closed)
    };
    let refused = provider.connect(much).await;
    assert_eq!(refused.unwrap_err().kind, ProviderErrorKind::Local);
    assert_eq!(
        (
            provider.attributes().name,
            provider.attributes().default_port
        ),
        ("iwarp", 5445)
    );
}

/// Queue pairs can move between tasks.
const _: fn(Box<dyn QueuePair>) -> Box<dyn Send> = |queue_pair| Box::new(queue_pair);

#[tokio::test]
async fn an_ipv4_peer_of_an_ipv6_listener_has_its_ipv4_address() {
    let every_address: SocketAddr = "[::]:0".parse().unwrap();
    // Whether IPv6 listeners of this system accept IPv4.
    let accepts_ipv4 = async {
        let probe = TcpListener::bind(every_address).await?;
        let port = probe.local_addr()?.port();
        TcpStream::connect((HERE.ip(), port)).await
    };
    if let Err(error) = accepts_ipv4.await {
        return eprintln!("skipped: {error}");
    }
    let mut listener = Iwarp::default().listen(every_address).await.unwrap();
    let port = listener.local_addr().port();
    let provider = Iwarp::default();
    let connecting = provider.connect(request(SocketAddr::new(HERE.ip(), port)));
    let (one, other) = tokio::join!(connecting, async {
        let incoming = incoming(&mut *listener).await;
        assert_eq!(incoming.peer_addr.ip(), HERE.ip());
        incoming.accept(answer()).await.unwrap()
    });
    let one = one.unwrap();
    assert_eq!(other.peer_addr, one.local_addr);
    assert_eq!(other.local_addr, one.peer_addr);
}

/// Keeps the paused clock of a test from advancing automatically, for at most 20 s.
struct StandingClock(mpsc::Sender<()>);

impl StandingClock {
    /// Starts a blocking task, during which a paused clock does not advance.
    fn new() -> Self {
        let (end, until) = mpsc::channel();
        tokio::task::spawn_blocking(move || until.recv_timeout(Duration::from_secs(20)));
        Self(end)
    }
}

/// Encodes a segment of a Read Response.
fn read_response(request: &ReadRequest, data: &[u8], at: usize, length: usize) -> Vec<u8> {
    let header = Tagged {
        last: at + length == data.len(),
        rdmap_control: Opcode::RdmaReadResponse.control(),
        stag: request.sink_stag,
        tagged_offset: request.sink_tagged_offset + at as u64,
    };
    fpdu(&[&header.encode(), &data[at..at + length]], false)
}

#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn read_data_in_small_pieces_is_collected() {
    const PIECE: usize = 1000;
    let clock = StandingClock::new();
    let tap = Arc::new(Recorder::default());
    let mut config = IwarpConfig::default();
    config.tap = Some(tap.clone());
    config.tuning.startup_probe = false;
    let (connected, mut peer) =
        connect_to(config, |request| bytes_of(&reply_of_siw(request))).await;
    let mut connected = connected.unwrap();
    let data = Bytes::from_iter((0..100 * PIECE).map(|at| (at / 7) as u8));
    let read = WorkRequest::Read {
        id: WorkId(2),
        from: RemoteAddress {
            token: Token(77),
            offset: 0,
        },
        into: BytesMut::zeroed(data.len()),
    };
    post(&mut connected, [read]);
    let (completed, mut completions) = tokio::sync::mpsc::unbounded_channel();
    let receiving =
        tokio::spawn(async move { while completed.send(next(&mut connected).await).is_ok() {} });
    let mut bytes = vec![0; fpdu(&[&[0; 18], &[0; ReadRequest::LENGTH]], false).len()];
    peer.read_exact(&mut bytes).await.unwrap();
    let request = ReadRequest::decode(&bytes[20..20 + ReadRequest::LENGTH]).unwrap();
    let read_bytes = || tap.all(Direction::Received).len();
    let mut all = read_bytes();
    // Each of the first pieces wakes the reader.
    let pieces = (0..data.len()).step_by(PIECE);
    let mut pieces = pieces.map(|at| read_response(&request, &data, at, PIECE));
    for _ in 0..4 {
        let piece = pieces.next().unwrap();
        peer.write_all(&piece).await.unwrap();
        all += piece.len();
        while read_bytes() < all {
            yield_now().await;
        }
    }
    // Neither another piece nor a message wakes it, because the reader sleeps for more Read data.
    let urgent = fpdu(&[&untagged(Opcode::Send, 1), b"urgent"], false);
    for bytes in [pieces.next().unwrap(), urgent] {
        peer.write_all(&bytes).await.unwrap();
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        yield_now().await;
    }
    assert_eq!(read_bytes(), all);
    // The sleep is bounded.
    advance(Duration::from_millis(11)).await;
    match completions.recv().await {
        Some(Completion::Received { message, .. }) => assert_eq!(message, &b"urgent"[..]),
        other => panic!("{other:?}"),
    }
    // The end of the data wakes the reader, however short it is.
    for piece in pieces {
        peer.write_all(&piece).await.unwrap();
    }
    match completions.recv().await {
        Some(Completion::Read { buffer, .. }) => assert!(buffer == data),
        other => panic!("{other:?}"),
    }
    clock.0.send(()).unwrap();
    receiving.abort();
}
