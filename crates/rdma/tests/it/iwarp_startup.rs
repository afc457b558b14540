//! The startup of iWARP connections, byte for byte: every form of the startup frames in both roles,
//! and the first FPDUs after them, against peers that are scripts of bytes on a TCP connection.

use std::{future::poll_fn, io::ErrorKind, net::SocketAddr, time::Duration};

use bytes::Bytes;
use crc::{CRC_32_ISCSI, Crc};
use smbdirect_rdma::{
    iwarp::{Iwarp, IwarpConfig, MpaCrc, Rtr},
    provider::{AcceptRequest, ConnectRequest, Connected, Provider},
    work::{Completion, Inline, ProviderError, ProviderErrorKind, WorkId, WorkRequest},
};
use smbdirect_test::within;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Flag M of a startup frame: markers.
const M: u8 = 0x80;
/// Flag C of a startup frame: CRCs.
const C: u8 = 0x40;
/// Flag R of a startup frame: the connection is rejected.
const R: u8 = 0x20;
/// Flag S of a startup frame: enhanced connection data.
const S: u8 = 0x10;

/// The signature of this library after the private data.
const PEER_SIGNATURE: &[u8] = b"\x9d\xe1smbd\x03\x5b";
/// The signature of an initiator of this library that wants no CRCs.
const PEER_SIGNATURE_WITHOUT_CRC: &[u8] = b"\x9d\xe1smbd\x03\x5c";
/// The read depths 32 and 1, as SMB Direct puts them into the private data.
const DEPTHS: &[u8] = b"\0\0\0\x20\0\0\0\x01";
/// The same read depths in the byte order of old Linux clients.
const DEPTHS_SWAPPED: &[u8] = b"\x20\0\0\0\x01\0\0\0";
/// The enhanced block of Requests of this library: A, IRD 32; C, D, ORD 32.
const BLOCK: &[u8] = b"\x80\x20\xc0\x20";

fn frame(key: &[u8; 16], flags: u8, revision: u8, private_data: &[&[u8]]) -> Vec<u8> {
    let private_data = private_data.concat();
    let length = private_data.len() as u16;
    [
        &key[..],
        &[flags, revision],
        &length.to_be_bytes(),
        &private_data,
    ]
    .concat()
}

fn request(flags: u8, revision: u8, private_data: &[&[u8]]) -> Vec<u8> {
    frame(b"MPA ID Req Frame", flags, revision, private_data)
}

fn reply(flags: u8, revision: u8, private_data: &[&[u8]]) -> Vec<u8> {
    frame(b"MPA ID Rep Frame", flags, revision, private_data)
}

fn fpdu(crc: bool, ulpdu: &[&[u8]]) -> Vec<u8> {
    let ulpdu = ulpdu.concat();
    let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
    bytes.extend(ulpdu);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let sum = if crc {
        Crc::<u32>::new(&CRC_32_ISCSI).checksum(&bytes)
    } else {
        0
    };
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// Encodes the first Send of a direction.
fn first_send(crc: bool, payload: &[u8]) -> Vec<u8> {
    let header = b"\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0";
    fpdu(crc, &[header, payload])
}

fn ready_to_receive(kind: Rtr, crc: bool) -> Vec<u8> {
    match kind {
        Rtr::Write => empty_write(crc),
        Rtr::Read => empty_read(crc),
    }
}

/// Encodes a ready-to-receive frame: an RDMA Write of length 0 to STag 1.
fn empty_write(crc: bool) -> Vec<u8> {
    fpdu(crc, &[b"\xc1\x40\0\0\0\x01\0\0\0\0\0\0\0\0"])
}

/// Encodes a ready-to-receive frame: an RDMA Read of length 0 from STag 1.
fn empty_read(crc: bool) -> Vec<u8> {
    let header = b"\x41\x41\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\0";
    fpdu(crc, &[header, &[0; 16], b"\0\0\0\x01", &[0; 8]])
}

/// Encodes the response to [`empty_read`].
fn empty_response(crc: bool) -> Vec<u8> {
    fpdu(crc, &[b"\xc1\x42\0\0\0\0\0\0\0\0\0\0\0\0"])
}

fn receive(id: u64) -> WorkRequest {
    let (id, length, count) = (WorkId(id), 1000, 1);
    WorkRequest::Receive { id, length, count }
}

fn send(id: u64, payload: &'static [u8]) -> WorkRequest {
    WorkRequest::Send {
        id: WorkId(id),
        header: Inline::new(),
        payload: Bytes::from_static(payload),
        invalidate: None,
    }
}

async fn next(connected: &mut Connected) -> Completion {
    let queue_pair = &mut connected.queue_pair;
    within(poll_fn(|context| {
        queue_pair.flush(context, u64::MAX);
        smbdirect_provider_suite::poll_completion(&mut **queue_pair, context)
    }))
    .await
}

/// Returns the next message and ignores completions of Sends.
async fn message(connected: &mut Connected) -> Bytes {
    loop {
        match next(connected).await {
            Completion::Received { message, .. } => return message,
            Completion::Sent { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Checks that the next bytes are `expected`.
async fn heard(stream: &mut TcpStream, expected: Vec<u8>, what: &str) {
    let mut bytes = vec![0; expected.len()];
    within(stream.read_exact(&mut bytes)).await.expect(what);
    assert_eq!(bytes, expected, "{what}");
}

async fn said(stream: &mut TcpStream, bytes: &[u8]) {
    within(stream.write_all(bytes)).await.unwrap();
}

/// Returns all remaining bytes.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset counts as an end.
    let _ = within(stream.read_to_end(&mut bytes)).await;
    bytes
}

/// Connects to a hand-made listener that expects `request` and answers `reply`.
async fn connect(
    config: IwarpConfig,
    private_data: &'static [u8],
    request: Vec<u8>,
    reply: &[u8],
    what: &str,
) -> (Result<Connected, ProviderError>, TcpStream) {
    let listener = TcpListener::bind(HERE).await.unwrap();
    let provider = Iwarp::new(config);
    let connecting = provider.connect(ConnectRequest {
        address: listener.local_addr().unwrap(),
        private_data: Bytes::from_static(private_data),
        receive: receive(1),
    });
    within(async {
        tokio::join!(connecting, async {
            let (mut stream, _) = listener.accept().await.unwrap();
            heard(&mut stream, request, what).await;
            said(&mut stream, reply).await;
            stream
        })
    })
    .await
}

fn of_revision(revision: u8, crc: MpaCrc) -> IwarpConfig {
    let mut iwarp = IwarpConfig::default();
    iwarp.revision = revision;
    iwarp.crc = crc;
    iwarp
}

/// A startup with a Request of this library.
struct Active {
    what: &'static str,
    revision: u8,
    crc: MpaCrc,
    /// The private data of the upper layer.
    says: &'static [u8],
    request: Vec<u8>,
    reply: Vec<u8>,
    /// The outcome of a startup: whether CRCs are on, the ready-to-receive frame, the Reads that may be
    /// outstanding, and what the upper layer learns.
    agreed: bool,
    ready: Option<Rtr>,
    reads: u32,
    told: &'static [u8],
}

//= MPA-01 test
//= MPA-02 test
//= MPA-06 test
//= MPA-12 test
//= MPA-14 test
//= MPA-17 test
//= MPA-19 test
//= MPA-20 test
//= MPA-21 test
//= MPA-33 test
//= EST-01 test
//= EST-02 test
//= EST-03 test
//= EST-05 test
//= EST-06 test
//= EST-07 test
//= EST-11 test
//= EST-13 test
#[tokio::test]
async fn an_initiator_accepts_every_valid_reply() {
    use MpaCrc::{Auto, Off, On};
    let plain = Active {
        what: "what siw answers by default",
        revision: 2,
        crc: Auto,
        says: DEPTHS,
        request: request(S, 2, &[BLOCK, DEPTHS, PEER_SIGNATURE]),
        reply: reply(S, 2, &[b"\0\x01\0\x08"]),
        agreed: false,
        ready: None,
        reads: 1,
        told: b"",
    };
    let of_1 = || Active {
        revision: 1,
        request: request(0, 1, &[DEPTHS]),
        reply: reply(0, 1, &[]),
        reads: 16,
        ..plain_like(&plain)
    };
    let cases = [
        Active {
            what: "no private data of the upper layer",
            says: b"",
            request: request(S, 2, &[BLOCK, PEER_SIGNATURE]),
            ..plain_like(&plain)
        },
        Active {
            what: "a Write to begin with",
            reply: reply(S, 2, &[b"\x80\x01\x80\x08"]),
            ready: Some(Rtr::Write),
            ..plain_like(&plain)
        },
        Active {
            what: "a Read to begin with",
            reply: reply(S, 2, &[b"\x80\x01\x40\x08"]),
            ready: Some(Rtr::Read),
            ..plain_like(&plain)
        },
        Active {
            what: "both are fine, and a Send too",
            reply: reply(S, 2, &[b"\xc0\x01\xc0\x08"]),
            ready: Some(Rtr::Write),
            ..plain_like(&plain)
        },
        Active {
            what: "both blocks, the one of SMB Direct after the enhanced one",
            reply: reply(S, 2, &[b"\0\x08\0\x08", DEPTHS]),
            reads: 8,
            told: DEPTHS,
            ..plain_like(&plain)
        },
        Active {
            what: "no block at all in revision 2",
            reply: reply(0, 2, &[DEPTHS_SWAPPED]),
            reads: 16,
            told: DEPTHS_SWAPPED,
            ..plain_like(&plain)
        },
        Active {
            what: "depths that say nothing",
            reply: reply(S, 2, &[b"\x3f\xff\x3f\xff"]),
            reads: 16,
            ..plain_like(&plain)
        },
        Active {
            what: "reserved flags",
            reply: reply(S | 0x0f, 2, &[b"\0\x01\0\x08"]),
            ..plain_like(&plain)
        },
        Active {
            what: "CRC, which was not asked for",
            reply: reply(S | C, 2, &[b"\x80\x01\x80\x08"]),
            agreed: true,
            ready: Some(Rtr::Write),
            ..plain_like(&plain)
        },
        Active {
            what: "CRC, which was asked for",
            crc: On,
            request: request(S | C, 2, &[BLOCK, DEPTHS, PEER_SIGNATURE]),
            reply: reply(S | C, 2, &[b"\x80\x01\x40\x08"]),
            agreed: true,
            ready: Some(Rtr::Read),
            ..plain_like(&plain)
        },
        Active {
            what: "no CRC where it was asked for",
            crc: On,
            request: request(S | C, 2, &[BLOCK, DEPTHS, PEER_SIGNATURE]),
            agreed: true,
            ..plain_like(&plain)
        },
        Active {
            what: "no CRC, no marker",
            crc: Off,
            request: request(S, 2, &[BLOCK, DEPTHS, PEER_SIGNATURE_WITHOUT_CRC]),
            ..plain_like(&plain)
        },
        Active {
            what: "this library, without CRC",
            crc: Off,
            request: request(S, 2, &[BLOCK, DEPTHS, PEER_SIGNATURE_WITHOUT_CRC]),
            reply: reply(S, 2, &[b"\x80\x08\x80\x08", DEPTHS, PEER_SIGNATURE]),
            ready: Some(Rtr::Write),
            reads: 8,
            told: DEPTHS,
            ..plain_like(&plain)
        },
        Active {
            what: "this library",
            reply: reply(S | C, 2, &[b"\x80\x08\x80\x08", DEPTHS, PEER_SIGNATURE]),
            agreed: true,
            ready: Some(Rtr::Write),
            reads: 8,
            told: DEPTHS,
            ..plain_like(&plain)
        },
        Active {
            what: "revision 1, and nothing said",
            says: b"",
            request: request(0, 1, &[]),
            ..of_1()
        },
        Active {
            what: "revision 1 with depths",
            reply: reply(0, 1, &[DEPTHS]),
            told: DEPTHS,
            ..of_1()
        },
        Active {
            what: "revision 1 with depths in the other order",
            reply: reply(0, 1, &[DEPTHS_SWAPPED]),
            told: DEPTHS_SWAPPED,
            ..of_1()
        },
        Active {
            what: "revision 1, where S means nothing",
            reply: reply(S, 1, &[b"\x80\x01\x80\x08"]),
            told: b"\x80\x01\x80\x08",
            ..of_1()
        },
        Active {
            what: "revision 1 with CRC",
            crc: On,
            request: request(C, 1, &[DEPTHS]),
            reply: reply(C, 1, &[]),
            agreed: true,
            ..of_1()
        },
        Active {
            what: "revision 1 with CRC of the peer's wish",
            reply: reply(C, 1, &[]),
            agreed: true,
            ..of_1()
        },
        plain,
    ];
    for case in cases {
        let (what, crc) = (case.what, case.agreed);
        let config = of_revision(case.revision, case.crc);
        let connecting = connect(config, case.says, case.request, &case.reply, what);
        let (connected, mut peer) = connecting.await;
        let mut connected = connected.expect(what);
        let limits = connected.limits;
        assert_eq!(limits.max_outbound_reads, case.reads, "{what}");
        assert_eq!(connected.private_data, case.told, "{what}");
        connected.queue_pair.post(send(2, b"hello"));
        let greeting = async {
            if let Some(ready) = case.ready {
                heard(&mut peer, ready_to_receive(ready, crc), what).await;
            }
            heard(&mut peer, first_send(crc, b"hello"), what).await;
            if case.ready == Some(Rtr::Read) {
                said(&mut peer, &empty_response(crc)).await;
            }
            said(&mut peer, &first_send(crc, b"good day")).await;
        };
        let (message, ()) = tokio::join!(message(&mut connected), greeting);
        assert_eq!(message, &b"good day"[..], "{what}");
    }
}

/// Returns `case` as the base of a case that differs in the fields written before it.
fn plain_like(case: &Active) -> Active {
    Active {
        request: case.request.clone(),
        reply: case.reply.clone(),
        ..*case
    }
}

//= MPA-16 test
//= MPA-29 test
//= EST-11 test
//= EST-12 test
#[tokio::test]
async fn invalid_replies_end_the_connection_with_their_terminate() {
    let terminate = |code| {
        let header = b"\x41\x47\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\0";
        fpdu(false, &[header, &[0x20, code, 0, 0]])
    };
    use ProviderErrorKind::{OtherProtocol, Protocol, Rejected};
    for (reply, kind, says, last) in [
        (reply(R, 2, &[b"full"]), Rejected, "b\"full\"", None),
        (
            reply(R | S, 2, &[&[0; 4], b"no"]),
            Rejected,
            "b\"no\"",
            None,
        ),
        (reply(R | S, 2, &[&[0; 4]]), Rejected, "refused", None),
        (reply(M | S, 2, &[&[0; 4]]), Protocol, "markers", None),
        (reply(S, 2, &[&[0; 3]]), Protocol, "enhanced", None),
        (reply(0, 2, &[&[0; 513]]), Protocol, "512", None),
        (reply(0, 3, &[]), Protocol, "revision 3", None),
        (request(0, 2, &[]), OtherProtocol, "not the expected", None),
        (
            reply(S, 2, &[b"\0\x01\0\x21"]),
            Protocol,
            "33",
            Some(terminate(6)),
        ),
        (
            reply(S, 2, &[b"\x80\x01\0\x08"]),
            Protocol,
            "ready-to-receive",
            Some(terminate(7)),
        ),
        (
            reply(S, 2, &[b"\xc0\x01\0\x08"]),
            Protocol,
            "ready-to-receive",
            Some(terminate(7)),
        ),
    ] {
        let asked = request(S, 2, &[BLOCK, PEER_SIGNATURE]);
        let connecting = connect(IwarpConfig::default(), b"", asked, &reply, says);
        let (refused, mut peer) = connecting.await;
        let error = refused.expect_err(says);
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.what.contains(says), "{error}");
        assert_eq!(rest(&mut peer).await, last.unwrap_or_default(), "{says}");
    }
}

/// The answer to revision 2 of a peer that supports revision 1 only.
#[derive(Clone, Copy, Debug)]
enum Older {
    HangsUp,
    Resets,
    Answers(u8),
}

//= MPA-32 test
#[tokio::test]
async fn revision_1_is_tried_if_the_peer_lacks_revision_2() {
    for older in [
        Older::HangsUp,
        Older::Resets,
        Older::Answers(0),
        Older::Answers(R),
    ] {
        let listener = TcpListener::bind(HERE).await.unwrap();
        let provider = Iwarp::default();
        let connecting = provider.connect(ConnectRequest {
            address: listener.local_addr().unwrap(),
            private_data: Bytes::from_static(DEPTHS),
            receive: receive(1),
        });
        let peer = async {
            let (mut first, _) = listener.accept().await.unwrap();
            let newer = request(S, 2, &[BLOCK, DEPTHS, PEER_SIGNATURE]);
            heard(&mut first, newer, "revision 2 first").await;
            match older {
                Older::HangsUp => {}
                Older::Resets => first.set_zero_linger().unwrap(),
                Older::Answers(flags) => said(&mut first, &reply(flags, 1, &[])).await,
            }
            drop(first);
            let (mut second, _) = listener.accept().await.unwrap();
            heard(&mut second, request(0, 1, &[DEPTHS]), "then revision 1").await;
            said(&mut second, &reply(0, 1, &[])).await;
            second
        };
        let (connected, _peer) = within(async { tokio::join!(connecting, peer) }).await;
        assert!(connected.is_ok(), "{older:?}");
    }
}

//= MPA-30 test
#[tokio::test]
async fn a_partial_reply_times_out_like_a_missing_one() {
    let whole = reply(S, 2, &[&[0; 4]]);
    for length in [0, 1, 16, 19, 20, 23] {
        let mut config = IwarpConfig::default();
        config.connect_timeout = Duration::from_millis(150);
        let asked = request(S, 2, &[BLOCK, PEER_SIGNATURE]);
        let connecting = connect(config, b"", asked, &whole[..length], "a part");
        let (late, mut peer) = connecting.await;
        assert_eq!(late.unwrap_err().kind, ProviderErrorKind::TimedOut);
        assert!(rest(&mut peer).await.is_empty());
    }
}

/// A startup with a Request of a hand-made peer.
struct Passive {
    what: &'static str,
    crc: MpaCrc,
    request: Vec<u8>,
    /// The private data and limits that the upper layer learns, and its answer.
    told: &'static [u8],
    says: &'static [u8],
    reply: Vec<u8>,
    agreed: bool,
    ready: Option<Rtr>,
}

//= MPA-01 test
//= MPA-02 test
//= MPA-07 test
//= MPA-11 test
//= MPA-12 test
//= MPA-14 test
//= MPA-17 test
//= MPA-33 test
//= EST-01 test
//= EST-04 test
//= EST-05 test
//= EST-06 test
//= EST-07 test
//= EST-08 test
//= EST-13 test
#[tokio::test]
async fn a_responder_answers_every_valid_request_and_waits_for_the_first_fpdu() {
    use MpaCrc::{Auto, Off, On};
    let case = |what, request, reply| Passive {
        what,
        crc: Auto,
        request,
        told: b"",
        says: b"",
        reply,
        agreed: false,
        ready: None,
    };
    let ready = |what, asked: &[u8], answered: &[u8], kind| Passive {
        ready: Some(kind),
        ..case(what, request(S, 2, &[asked]), reply(S, 2, &[answered]))
    };
    let cases = [
        case("the least", request(0, 1, &[]), reply(0, 1, &[])),
        Passive {
            told: DEPTHS,
            says: DEPTHS,
            ..case("depths", request(0, 1, &[DEPTHS]), reply(0, 1, &[DEPTHS]))
        },
        Passive {
            told: DEPTHS_SWAPPED,
            ..case(
                "depths in the other order",
                request(0, 1, &[DEPTHS_SWAPPED]),
                reply(0, 1, &[]),
            )
        },
        Passive {
            told: b"\x80\x20\xc0\x20",
            ..case("S in revision 1", request(S, 1, &[BLOCK]), reply(0, 1, &[]))
        },
        Passive {
            told: DEPTHS,
            ..case(
                "revision 2 without S",
                request(0, 2, &[DEPTHS]),
                reply(0, 2, &[]),
            )
        },
        Passive {
            told: DEPTHS,
            ..case(
                "what siw asks by default",
                request(S, 2, &[b"\0\x20\0\x01", DEPTHS]),
                reply(S, 2, &[b"\0\x01\0\x20"]),
            )
        },
        case(
            "an enhanced block alone, with reserved flags",
            request(S | 0x0f, 2, &[b"\0\x08\0\x05"]),
            reply(S, 2, &[b"\0\x08\0\x08"]),
        ),
        case(
            "depths that say nothing",
            request(S, 2, &[b"\x3f\xff\x3f\xff"]),
            reply(S, 2, &[b"\0\x20\0\x10"]),
        ),
        ready(
            "a Write",
            b"\x80\x08\x80\x08",
            b"\x80\x08\x80\x08",
            Rtr::Write,
        ),
        ready(
            "a Read",
            b"\x80\x08\x40\x08",
            b"\x80\x08\x40\x08",
            Rtr::Read,
        ),
        ready(
            "either",
            b"\xc0\x08\xc0\x08",
            b"\x80\x08\x80\x08",
            Rtr::Write,
        ),
        // Few peers implement a Send well, so the Reply asks for a Write.
        ready("a Send", b"\xc0\x08\0\x08", b"\x80\x08\x80\x08", Rtr::Write),
        Passive {
            agreed: true,
            ..ready("CRC", b"\x80\x08\x40\x08", b"\x80\x08\x40\x08", Rtr::Read).with_crc()
        },
        Passive {
            agreed: true,
            ..case("CRC in revision 1", request(C, 1, &[]), reply(C, 1, &[]))
        },
        Passive {
            crc: Off,
            agreed: true,
            ..case("CRC, unwanted here", request(C, 1, &[]), reply(C, 1, &[]))
        },
        Passive {
            crc: On,
            agreed: true,
            ..case("CRC of our wish", request(0, 1, &[]), reply(C, 1, &[]))
        },
        Passive {
            agreed: true,
            told: DEPTHS,
            ready: Some(Rtr::Write),
            ..case(
                "this library",
                request(S, 2, &[BLOCK, DEPTHS, PEER_SIGNATURE]),
                reply(S | C, 2, &[b"\x80\x20\x80\x20", PEER_SIGNATURE]),
            )
        },
        Passive {
            told: DEPTHS,
            ready: Some(Rtr::Write),
            ..case(
                "this library, which wants no CRC",
                request(S, 2, &[BLOCK, DEPTHS, PEER_SIGNATURE_WITHOUT_CRC]),
                reply(S, 2, &[b"\x80\x20\x80\x20", PEER_SIGNATURE]),
            )
        },
        Passive {
            says: b"welcome",
            crc: Off,
            told: b"",
            ready: Some(Rtr::Write),
            ..case(
                "this library, without CRC",
                request(S, 2, &[BLOCK, PEER_SIGNATURE]),
                reply(S, 2, &[b"\x80\x20\x80\x20", b"welcome", PEER_SIGNATURE]),
            )
        },
    ];
    for case in cases {
        let (what, crc) = (case.what, case.agreed);
        let provider = Iwarp::new(of_revision(2, case.crc));
        let mut listener = provider.listen(HERE).await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr()).await.unwrap();
        said(&mut peer, &case.request).await;
        let incoming = within(listener.accept()).await.expect(what);
        assert_eq!(incoming.private_data, case.told, "{what}");
        let enhanced = case.request[16] & S != 0 && case.request[17] == 2;
        assert_eq!(incoming.knows_read_depths, enhanced, "{what}");
        let answer = AcceptRequest {
            private_data: Bytes::from_static(case.says),
            receive: receive(1),
            peer_serves_reads: None,
        };
        let mut connected = within(incoming.accept(answer)).await.expect(what);
        heard(&mut peer, case.reply, what).await;

        // Posted work waits for the first FPDU of the peer.
        connected.queue_pair.post(send(2, b"early"));
        let silence = timeout(Duration::from_millis(20), next(&mut connected)).await;
        assert!(silence.is_err(), "{what}");
        let early = peer.try_read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(early, Err(ErrorKind::WouldBlock), "{what}");
        let hello = first_send(crc, b"hello");
        let greeting = async {
            match case.ready {
                None => said(&mut peer, &hello).await,
                Some(ready) => {
                    said(&mut peer, &[ready_to_receive(ready, crc), hello].concat()).await;
                }
            }
            if case.ready == Some(Rtr::Read) {
                heard(&mut peer, empty_response(crc), what).await;
            }
            heard(&mut peer, first_send(crc, b"early"), what).await;
        };
        // The two completions have the order of the bytes of the peer.
        let exchange = async {
            let both = [next(&mut connected).await, next(&mut connected).await];
            let is_hello = |completion: &Completion| match completion {
                Completion::Received { message, .. } => message == &b"hello"[..],
                _ => false,
            };
            assert!(both.iter().any(is_hello), "{what}: {both:?}");
            let sent = |completion: &Completion| matches!(completion, Completion::Sent { .. });
            assert!(both.iter().any(sent), "{what}: {both:?}");
        };
        tokio::join!(greeting, exchange);
    }
}

impl Passive {
    /// Returns the same case with C in both frames.
    fn with_crc(mut self) -> Self {
        self.request[16] |= C;
        self.reply[16] |= C;
        self
    }
}

//= MPA-13 test
//= MPA-16 test
//= MPA-11 test
#[tokio::test]
async fn invalid_requests_are_refused() {
    let mut iwarp = IwarpConfig::default();
    iwarp.close_timeout = Duration::from_millis(50);
    let provider = Iwarp::new(iwarp);
    let listener = provider.listen(HERE).await.unwrap();
    for (request, reply) in [
        (request(M, 1, &[]), reply(R, 1, &[])),
        (request(M | C, 1, &[DEPTHS]), reply(R | C, 1, &[])),
        (request(M | S, 2, &[BLOCK]), reply(R | S, 2, &[&[0; 4]])),
        (request(R, 1, &[]), reply(R, 1, &[])),
        (request(S, 2, &[&[0; 3]]), reply(R | S, 2, &[&[0; 4]])),
        (request(0, 0, &[]), Vec::new()),
        (request(0, 3, &[]), Vec::new()),
        (request(0, 1, &[&[0; 513]]), Vec::new()),
    ] {
        let mut peer = TcpStream::connect(listener.local_addr()).await.unwrap();
        said(&mut peer, &request).await;
        assert_eq!(rest(&mut peer).await, reply, "{request:02x?}");
    }
}

/// Linux siw takes a FIN directly after a refusal without private data for a failure of the
/// connection, and TCP discards the refusal if it is closed with bytes unread.
//= MPA-37 test
#[tokio::test]
async fn a_refused_peer_closes_first() {
    let patient = Duration::from_secs(600);
    for (close_timeout, hangs_up) in [(patient, true), (Duration::from_millis(50), false)] {
        let mut iwarp = IwarpConfig::default();
        iwarp.close_timeout = close_timeout;
        let provider = Iwarp::new(iwarp);
        let mut listener = provider.listen(HERE).await.unwrap();
        // The provider itself refuses the peer, or the upper layer does by not answering.
        for (flags, is_told) in [(M, false), (0, true)] {
            let mut peer = TcpStream::connect(listener.local_addr()).await.unwrap();
            // Later bytes are read and discarded.
            said(
                &mut peer,
                &[request(flags, 1, &[]), vec![7; 10_000]].concat(),
            )
            .await;
            if is_told {
                drop(within(listener.accept()).await.unwrap());
            }
            heard(&mut peer, reply(R, 1, &[]), "a refusal").await;
            if hangs_up {
                let end = timeout(Duration::from_millis(100), peer.read_u8()).await;
                assert!(end.is_err(), "the peer has to close first: {end:?}");
                peer.shutdown().await.unwrap();
            }
            let end = within(peer.read(&mut [0])).await;
            assert_eq!(end.unwrap(), 0, "a graceful end");
        }
    }
}

/// Linux siw can overlook a first FPDU that arrives while it still processes its Reply. It finds
/// the FPDU when more bytes arrive, and the server above it gives up after five seconds.
//= MPA-36 test
#[tokio::test]
async fn a_startup_probe_follows_an_unanswered_first_fpdu() {
    for (reply, crc, ready) in [
        (reply(S, 2, &[b"\0\x01\0\x08"]), false, None),
        (reply(S, 2, &[b"\x80\x01\x80\x08"]), false, Some(Rtr::Write)),
        (
            reply(S | C, 2, &[b"\x80\x01\x40\x08"]),
            true,
            Some(Rtr::Read),
        ),
    ] {
        let asked = request(S, 2, &[BLOCK, PEER_SIGNATURE]);
        let connecting = connect(IwarpConfig::default(), b"", asked, &reply, "a Request");
        let (connected, mut peer) = connecting.await;
        let mut connected = connected.unwrap();
        connected.queue_pair.post(send(2, b"hello"));
        let sleeper = async {
            let overlooked = [
                ready.map_or_else(Vec::new, |ready| ready_to_receive(ready, crc)),
                first_send(crc, b"hello"),
            ];
            heard(&mut peer, overlooked.concat(), "what is overlooked").await;
            heard(&mut peer, empty_write(crc), "what wakes the peer").await;
            if ready == Some(Rtr::Read) {
                said(&mut peer, &empty_response(crc)).await;
            }
            said(&mut peer, &first_send(crc, b"good day")).await;
        };
        let (message, ()) = tokio::join!(message(&mut connected), sleeper);
        assert_eq!(message, &b"good day"[..]);
    }
}

//= MPA-36 test
#[tokio::test]
async fn startup_probes_are_few_and_not_for_every_peer() {
    let siw = reply(S, 2, &[b"\0\x01\0\x08"]);
    let ours = reply(S, 2, &[b"\0\x01\0\x08", PEER_SIGNATURE]);
    for (reply, startup_probe, expected) in [(&siw, true, 3), (&siw, false, 0), (&ours, true, 0)] {
        let mut config = IwarpConfig::default();
        config.tuning.startup_probe = startup_probe;
        config.close_timeout = Duration::from_millis(1);
        let asked = request(S, 2, &[BLOCK, PEER_SIGNATURE]);
        let (connected, mut peer) = connect(config, b"", asked, reply, "a Request").await;
        let mut connected = connected.unwrap();
        connected.queue_pair.post(send(2, b"hello"));
        let listening = async {
            heard(&mut peer, first_send(false, b"hello"), "the first FPDU").await;
            for _ in 0..expected {
                heard(&mut peer, empty_write(false), "a startup_probe").await;
            }
            let more = timeout(Duration::from_millis(300), peer.read_u8()).await;
            assert!(more.is_err(), "no more than that: {more:?}");
        };
        let waiting = async {
            loop {
                let completion = next(&mut connected).await;
                assert!(matches!(completion, Completion::Sent { .. }));
            }
        };
        tokio::select! {
            () = listening => {}
            () = waiting => {}
        }
    }
}
