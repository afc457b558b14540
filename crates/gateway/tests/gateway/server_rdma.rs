//! A client without RDMA and a server with it: which requests use RDMA, and their data.

use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use smbdirect::{BufferDescriptorV1, Config, Connection};

use smbdirect_test::{
    messages::*,
    noise,
    peers::{
        End, Server, SmbDirect, Tcp,
        rdma::{described, negotiate, patient, read_by_rdma, reply, submit},
        soon,
    },
};

use super::{Running, event, gateway, through_with};

const MIB: usize = 1 << 20;
/// Smallest length in bytes that uses RDMA.
const THRESHOLD: usize = 16 << 10;

/// A gateway, and both ends of a connection with dialect 3.1.1 through it.
async fn ready() -> (Running, End, End) {
    let (gateway, mut client, mut server) = through_with(Tcp, SmbDirect, patient()).await;
    negotiate(&mut client, &mut server, 0x0311).await;
    (gateway, client, server)
}

/// Fetches the data of a WRITE from the gateway's memory.
async fn fetched(server: &Connection, from: &[BufferDescriptorV1], length: usize) -> BytesMut {
    let reading = server.read(from, 0, BytesMut::zeroed(length));
    soon(reading).await.unwrap()
}

/// Returns the answer to a READ of which `length` bytes were moved by RDMA.
fn placed(message_id: u64, length: usize) -> Vec<u8> {
    read_answer(message_id, &[], length as u32)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dialect_decides_which_channel_the_server_gets() {
    let read_inline = read(5, 0, 70_000, 0, &[]);
    let write_inline = write(6, 0, &noise(70_000, 1));
    for (dialects, channel) in [
        (&[][..], 0),
        (&[0x0202], 0),
        (&[0x0210], 0),
        (&[0x02ff], 0),
        (&[0x0300], V1),
        (&[0x0302], V1_INVALIDATE),
        (&[0x0311], V1_INVALIDATE),
        (&[0x02ff, 0x0300], V1),
        (&[0x02ff, 0x0311], V1_INVALIDATE),
    ] {
        let (_gateway, mut client, mut server) = through_with(Tcp, SmbDirect, patient()).await;
        for &dialect in dialects {
            negotiate(&mut client, &mut server, dialect).await;
        }
        for request in [&read_inline, &write_inline] {
            client.send(request).await;
            let asked = server.receive().await.unwrap();
            let (found, memory) = described(&asked);
            assert_eq!(found, channel, "{dialects:x?}");
            if channel == 0 {
                assert!(asked == *request, "{dialects:x?}");
                continue;
            }
            let length: u32 = memory.iter().map(|descriptor| descriptor.length).sum();
            assert_eq!(length, 70_000, "{dialects:x?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rdma_is_used_from_16_kib_to_the_maximum_of_the_server() {
    let mut settings = patient().into_settings();
    settings.max_read_write_size = 100_000;
    let limited = Config::new(settings);
    for (config, sizes) in [
        (
            patient(),
            &[
                (0, false),
                (THRESHOLD - 1, false),
                (THRESHOLD, true),
                (8 * MIB, true),
                (8 * MIB + 1, false),
            ][..],
        ),
        (
            limited.unwrap(),
            &[(THRESHOLD, true), (100_000, true), (100_001, false)],
        ),
    ] {
        let (_gateway, mut client, mut server) = through_with(Tcp, SmbDirect, config).await;
        negotiate(&mut client, &mut server, 0x0311).await;
        for (index, &(size, by_rdma)) in sizes.iter().enumerate() {
            let (id, length) = (index as u64 * 2, size as u32);
            let request = read(id, 1 << 40, length, 0, &[]);
            client.send(&request).await;
            let asked = server.receive().await.unwrap();
            let expected = if by_rdma {
                read_by_rdma(id, 1 << 40, length, &described(&asked).1)
            } else {
                request
            };
            assert_eq!(asked, expected, "{size}");
            let request = write(id + 1, 1 << 40, &noise(size, 1));
            client.send(&request).await;
            let asked = server.receive().await.unwrap();
            let memory = described(&asked).1;
            let expected = if by_rdma {
                write_by_rdma(id + 1, 1 << 40, length, V1_INVALIDATE, &memory)
            } else {
                request
            };
            assert!(asked == expected, "{size}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_writes_move_their_data_through_the_gateways_memory() {
    let (mut gateway, mut client, mut server) = ready().await;
    let (mut requests, mut bytes) = (0, 0);
    for size in [THRESHOLD, 65_536, 65_537, MIB + 1, 8 * MIB] {
        for invalidates in [false, true] {
            let id = requests * 2 + 1;
            let data = noise(size, id);
            client.send(&read(id, 0, size as u32, 0, &[])).await;
            let (_, memory) = described(&server.receive().await.unwrap());
            let connection = server.connection();
            let writing = connection.write(&memory, 0, Bytes::from(data.clone()));
            reply(connection, placed(id, size), &memory, invalidates);
            soon(writing).await.unwrap();
            let answered = client.receive().await;
            assert!(answered == Some(read_answer(id, &data, 0)), "{size}");
            client.send(&write(id + 1, 0, &data)).await;
            let (_, memory) = described(&server.receive().await.unwrap());
            let connection = server.connection();
            assert!(fetched(connection, &memory, size).await == data, "{size}");
            let written = write_answer(id + 1, size as u32);
            reply(connection, written.clone(), &memory, invalidates);
            assert_eq!(client.receive().await, Some(written));
            requests += 1;
            bytes += size;
        }
    }
    client.close().await;
    let closed = event(&mut gateway, "closed");
    for event in [closed, gateway.terminate()] {
        assert_eq!(event["reads_by_rdma"], requests, "{event}");
        assert_eq!(event["bytes_read_by_rdma"], bytes, "{event}");
        assert_eq!(event["writes_by_rdma"], requests, "{event}");
        assert_eq!(event["bytes_written_by_rdma"], bytes, "{event}");
        // The NEGOTIATE and its answer have 104 and 128 bytes.
        assert_eq!(event["requests_passed"], 1, "{event}");
        assert_eq!(event["messages_to_server"], 1 + 2 * requests, "{event}");
        assert_eq!(event["messages_to_client"], 1 + 2 * requests, "{event}");
        let to_server = 104 + requests as usize * (113 + 112) + bytes;
        assert_eq!(event["bytes_to_server"], to_server, "{event}");
        let to_client = 128 + requests as usize * (80 + 81) + bytes;
        assert_eq!(event["bytes_to_client"], to_client, "{event}");
    }
}

/// A server may answer a request for RDMA without it.
#[tokio::test(flavor = "multi_thread")]
async fn short_and_inline_answers_and_errors_reach_the_client() {
    let (mut gateway, mut client, mut server) = ready().await;
    let data = noise(50_000, 1);
    for invalidates in [false, true] {
        for (id, answer, expected, length) in [
            (1, placed(1, 1), read_answer(1, &data[..1], 0), 1),
            (
                2,
                placed(2, 49_999),
                read_answer(2, &data[..49_999], 0),
                49_999,
            ),
            (3, placed(3, 0), placed(3, 0), 0),
            (4, read_answer(4, &data, 0), read_answer(4, &data, 0), 0),
            (
                5,
                error(READ, 5, END_OF_FILE),
                error(READ, 5, END_OF_FILE),
                0,
            ),
        ] {
            client.send(&read(id, 0, 50_000, 0, &[])).await;
            let (_, memory) = described(&server.receive().await.unwrap());
            let connection = server.connection();
            submit(connection, interim(READ, id));
            assert_eq!(client.receive().await, Some(interim(READ, id)));
            let writing = connection.write(&memory, 0, Bytes::copy_from_slice(&data[..length]));
            reply(connection, answer, &memory, invalidates);
            soon(writing).await.unwrap();
            assert!(client.receive().await == Some(expected), "{id}");
        }
        for (id, answer) in [
            (6, write_answer(6, 3)),
            (7, error(WRITE, 7, 0xc000_007f)),
            (8, flagged(error(WRITE, 8, CANCELLED), ASYNC)),
        ] {
            client.send(&write(id, 0, &data)).await;
            let (_, memory) = described(&server.receive().await.unwrap());
            submit(server.connection(), interim(WRITE, id));
            assert_eq!(client.receive().await, Some(interim(WRITE, id)));
            let cancel = other(flagged(header(CANCEL, id), ASYNC), &[4, 0, 0, 0]);
            client.send(&cancel).await;
            assert_eq!(server.receive().await, Some(cancel));
            reply(server.connection(), answer.clone(), &memory, invalidates);
            assert_eq!(client.receive().await, Some(answer));
        }
    }
    client.close().await;
    let closed = event(&mut gateway, "closed");
    // Data in messages does not count.
    assert_eq!(closed["reads_by_rdma"], 4, "{closed}");
    assert_eq!(closed["bytes_read_by_rdma"], 2 * 50_000, "{closed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn write_data_at_any_offset_with_trailing_bytes() {
    let (_gateway, mut client, mut server) = ready().await;
    for (id, size, offset, behind) in [
        (1, 100_000, 113, 0),
        (2, 100_000, 200, 100_000),
        (3, 20_000, u16::MAX, 7),
    ] {
        let data = noise(size, id);
        let mut request = with(write(id, 9, &[]), 66, &offset.to_le_bytes());
        put(&mut request, 68, &(size as u32).to_le_bytes());
        request.resize(offset.into(), 0x99);
        request.extend_from_slice(&data);
        request.resize(request.len() + behind, 0x99);
        client.send(&request).await;
        let asked = server.receive().await.unwrap();
        let (channel, memory) = described(&asked);
        assert_eq!(asked, write_by_rdma(id, 9, size as u32, channel, &memory));
        assert!(fetched(server.connection(), &memory, size).await == data);
        let written = write_answer(id, size as u32);
        server.send(&written).await;
        assert_eq!(client.receive().await, Some(written));
    }
}

/// A channel would change bytes that a signature or the place in a compound covers.
#[tokio::test(flavor = "multi_thread")]
async fn signed_requests_and_compounds_keep_their_data() {
    let (_gateway, mut client, mut server) = ready().await;
    let data = noise(200_000, 1);
    for request in [
        flagged(read(1, 0, 200_000, 0, &[]), SIGNED),
        flagged(write(2, 0, &data), SIGNED),
        compound(&[
            other(header(CREATE, 3), &noise(77, 5)),
            flagged(write(4, 0, &data), RELATED),
            flagged(read(5, 0, 200_000, 0, &[]), RELATED),
        ]),
    ] {
        client.send(&request).await;
        assert!(server.receive().await == Some(request));
    }
    for answer in [
        flagged(read_answer(1, &data, 0), SIGNED),
        flagged(write_answer(2, 200_000), SIGNED),
        compound(&[
            answer(CREATE, 3, SUCCESS),
            write_answer(4, 200_000),
            read_answer(5, &data, 0),
        ]),
    ] {
        server.send(&answer).await;
        assert!(client.receive().await == Some(answer));
    }
}

/// The answers in another order than the requests, each with its expected result.
async fn serve(mut server: End, data: Vec<Vec<u8>>, mut random: Rng) -> End {
    let mut asked = Vec::new();
    for _ in &data {
        asked.push(server.receive().await.unwrap());
    }
    random.shuffle(&mut asked);
    for request in asked {
        let id = u64_at(&request, 24);
        let data = &data[id as usize];
        let connection = server.connection();
        let (channel, memory) = described(&request);
        let by_rdma = channel != 0;
        assert_eq!(by_rdma, data.len() >= THRESHOLD);
        let answer = match (u16_at(&request, 12), by_rdma) {
            (READ, true) => {
                drop(connection.write(&memory, 0, data.clone()));
                placed(id, data.len())
            }
            (READ, false) => read_answer(id, data, 0),
            (_, true) => {
                assert!(fetched(connection, &memory, data.len()).await == *data);
                write_answer(id, data.len() as u32)
            }
            (_, false) => {
                assert!(request == write(id, id, data));
                write_answer(id, data.len() as u32)
            }
        };
        reply(connection, answer, &memory, by_rdma && id.is_multiple_of(3));
    }
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn outstanding_requests_are_answered_in_any_order() {
    const REQUESTS: u64 = 300;
    let (_gateway, mut client, server) = ready().await;
    let mut random = Rng::with_seed(1);
    let data: Vec<Vec<u8>> = (0..REQUESTS)
        .map(|id| noise(random.usize(..80_000), id))
        .collect();
    let serving = tokio::spawn(serve(server, data.clone(), random));
    for (data, id) in data.iter().zip(0..) {
        let request = match id % 2 {
            0 => read(id, id, data.len() as u32, 0, &[]),
            _ => write(id, id, data),
        };
        client.send(&request).await;
    }
    let mut answered = vec![false; REQUESTS as usize];
    for _ in 0..REQUESTS {
        let answer = client.receive().await.unwrap();
        let id = u64_at(&answer, 24);
        let data = &data[id as usize];
        let expected = match id % 2 {
            0 => read_answer(id, data, 0),
            _ => write_answer(id, data.len() as u32),
        };
        assert!(answer == expected, "{id}");
        assert!(!std::mem::replace(&mut answered[id as usize], true));
    }
    drop(soon(serving).await.unwrap());
}

/// Memory is reused. If a server writes less than it reports, no earlier data becomes visible.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_sees_nothing_of_another_clients_data() {
    const SIZE: usize = MIB;
    let mut listener = Server::bind(SmbDirect, patient()).await;
    let gateway = gateway(Tcp, SmbDirect, &listener.address().to_string());
    let mut ends = Vec::new();
    for _ in 0..2 {
        let mut client = End::connect(Tcp, &gateway.address).await;
        let mut server = listener.accept().await;
        negotiate(&mut client, &mut server, 0x0311).await;
        ends.push((client, server));
    }
    let [(one, ones_server), (other, others_server)] = &mut ends[..] else {
        panic!("there are two");
    };
    let secret = vec![0x5a; SIZE];
    for id in 0..20 {
        one.send(&read(id, 0, SIZE as u32, 0, &[])).await;
        let (_, memory) = described(&ones_server.receive().await.unwrap());
        drop(ones_server.connection().write(&memory, 0, secret.clone()));
        ones_server.send(&placed(id, SIZE)).await;
        assert!(one.receive().await == Some(read_answer(id, &secret, 0)));
        let length = SIZE - 1000 * id as usize;
        other.send(&read(id, 0, length as u32, 0, &[])).await;
        others_server.receive().await.unwrap();
        others_server.send(&placed(id, length)).await;
        let expected = read_answer(id, &vec![0; length], 0);
        assert!(other.receive().await == Some(expected));
        // The data of a WRITE is in such memory as well.
        one.send(&write(100 + id, 0, &secret)).await;
        ones_server.receive().await.unwrap();
        let written = write_answer(100 + id, SIZE as u32);
        ones_server.send(&written).await;
        assert_eq!(one.receive().await, Some(written));
    }
}
