//! RDMA on both sides of a gateway, and two gateways between ends without RDMA.

use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use smbdirect_test::{
    messages::*,
    noise,
    peers::{
        End, Server, SmbDirect, Tcp,
        rdma::{
            Memory, described, filled, negotiate, patient, read_by_rdma, received, reply, submit,
        },
        soon,
    },
};

use super::{event, gateway, through_with};

const MIB: usize = 1 << 20;
/// Smallest length in bytes that uses RDMA to the server.
const THRESHOLD: usize = 16 << 10;
const SIZES: [usize; 9] = [
    0,
    1,
    4096,
    THRESHOLD - 1,
    THRESHOLD,
    65_537,
    MIB,
    3 * MIB + 1,
    8 * MIB,
];

/// Performs the server's part of a READ or WRITE, by RDMA if the request says so.
async fn serve(server: &mut End, data: &[u8], invalidates: bool) {
    let request = server.receive().await.unwrap();
    let (id, connection) = (u64_at(&request, 24), server.connection());
    let (channel, memory) = described(&request);
    let length = data.len() as u32;
    assert_eq!(channel != 0, data.len() >= THRESHOLD);
    let answer = match (u16_at(&request, 12), channel) {
        (READ, 0) => {
            assert_eq!(request, read(id, id, length, 0, &[]));
            read_answer(id, data, 0)
        }
        (READ, _) => {
            assert_eq!(request, read_by_rdma(id, id, length, &memory));
            drop(connection.write(&memory, 0, Bytes::copy_from_slice(data)));
            read_answer(id, &[], length)
        }
        (_, 0) => {
            assert!(request == write(id, id, data));
            write_answer(id, length)
        }
        _ => {
            assert_eq!(request, write_by_rdma(id, id, length, channel, &memory));
            let reading = connection.read(&memory, 0, BytesMut::zeroed(data.len()));
            assert!(soon(reading).await.unwrap() == *data);
            write_answer(id, length)
        }
    };
    reply(connection, answer, &memory, invalidates && channel != 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_goes_by_rdma_on_both_sides() {
    let (mut gateway, mut client, mut server) = through_with(SmbDirect, SmbDirect, patient()).await;
    negotiate(&mut client, &mut server, 0x0311).await;
    let connection = client.connection();
    let (mut requests, mut by_rdma, mut bytes) = (0, 0, 0);
    for channel in [V1, V1_INVALIDATE] {
        for (index, size) in SIZES.into_iter().enumerate() {
            let (id, data) = (requests * 2 + 1, noise(size, requests));
            let parts = 1 + (index + requests as usize) % 5;
            let memory = Memory::to_fill(connection, size + 9, parts);
            let length = size as u32;
            submit(
                connection,
                read(id, id, length, channel, &memory.descriptors()),
            );
            serve(&mut server, &data, index.is_multiple_of(2)).await;
            let token = memory.invalidated_by(channel);
            let expected = (read_answer(id, &[], length), token);
            assert_eq!(received(connection).await, expected);
            assert!(memory.contents().await == filled(&data, size + 9), "{size}");
            let id = id + 1;
            let memory = Memory::holding(connection, &data, parts);
            let descriptors = memory.descriptors();
            submit(
                connection,
                write_by_rdma(id, id, length, channel, &descriptors),
            );
            serve(&mut server, &data, index.is_multiple_of(2)).await;
            let token = memory.invalidated_by(channel);
            let expected = (write_answer(id, length), token);
            assert_eq!(received(connection).await, expected);
            requests += 1;
            by_rdma += u64::from(size > 0);
            bytes += size;
        }
    }
    client.close().await;
    let closed = event(&mut gateway, "closed");
    // Each READ and WRITE counts once, whether one side or both use RDMA.
    assert_eq!(closed["reads_by_rdma"], by_rdma, "{closed}");
    assert_eq!(closed["bytes_read_by_rdma"], bytes, "{closed}");
    assert_eq!(closed["writes_by_rdma"], by_rdma, "{closed}");
    assert_eq!(closed["bytes_written_by_rdma"], bytes, "{closed}");
    let to_client = 128 + requests as usize * (80 + 81) + bytes;
    assert_eq!(closed["bytes_to_client"], to_client, "{closed}");
    // A WRITE without data has one byte in its place.
    let to_server = 104 + requests as usize * (113 + 112) + 2 + bytes;
    assert_eq!(closed["bytes_to_server"], to_server, "{closed}");
}

/// A client with RDMA may send a request without it.
#[tokio::test(flavor = "multi_thread")]
async fn data_in_messages_goes_by_rdma_to_the_server() {
    let (mut gateway, mut client, mut server) = through_with(SmbDirect, SmbDirect, patient()).await;
    negotiate(&mut client, &mut server, 0x0311).await;
    let (mut by_rdma, mut bytes) = (0, 0);
    for (size, id) in SIZES.into_iter().zip((1..).step_by(2)) {
        let data = noise(size, id);
        client.send(&read(id, id, size as u32, 0, &[])).await;
        serve(&mut server, &data, false).await;
        assert!(client.receive().await == Some(read_answer(id, &data, 0)));
        let id = id + 1;
        client.send(&write(id, id, &data)).await;
        serve(&mut server, &data, true).await;
        assert_eq!(client.receive().await, Some(write_answer(id, size as u32)));
        if size >= THRESHOLD {
            by_rdma += 1;
            bytes += size;
        }
    }
    client.close().await;
    let closed = event(&mut gateway, "closed");
    assert_eq!(closed["reads_by_rdma"], by_rdma, "{closed}");
    assert_eq!(closed["bytes_read_by_rdma"], bytes, "{closed}");
    assert_eq!(closed["writes_by_rdma"], by_rdma, "{closed}");
    assert_eq!(closed["bytes_written_by_rdma"], bytes, "{closed}");
}

/// With a dialect without RDMA, and in a compound, the server receives messages.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_gets_messages_where_it_cannot_get_rdma() {
    let (_gateway, mut client, mut server) = through_with(SmbDirect, SmbDirect, patient()).await;
    let data = noise(100_000, 1);
    for dialect in [None, Some(0x0210), Some(0x0311)] {
        if let Some(dialect) = dialect {
            negotiate(&mut client, &mut server, dialect).await;
        }
        let connection = client.connection();
        let to_fill = Memory::to_fill(connection, 100_000, 2);
        let holding = Memory::holding(connection, &data, 3);
        let requests = [
            read(1, 0, 100_000, V1, &to_fill.descriptors()),
            write_by_rdma(2, 0, 100_000, V1_INVALIDATE, &holding.descriptors()),
        ];
        let inline = [read(1, 0, 100_000, 0, &[]), write(2, 0, &data)];
        let answers = [read_answer(1, &data, 0), write_answer(2, 100_000)];
        let replies = [read_answer(1, &[], 100_000), write_answer(2, 100_000)];
        let token = holding.invalidated_by(V1_INVALIDATE);
        if dialect == Some(0x0311) {
            submit(connection, compound(&requests));
            assert!(server.receive().await == Some(compound(&inline)));
            submit(server.connection(), compound(&answers));
            assert_eq!(received(connection).await, (compound(&replies), token));
        } else {
            for (request, inline) in requests.into_iter().zip(inline) {
                submit(connection, request);
                assert!(server.receive().await == Some(inline));
            }
            for (answer, reply, token) in [
                (&answers[0], &replies[0], None),
                (&answers[1], &replies[1], token),
            ] {
                submit(server.connection(), answer.clone());
                assert_eq!(received(connection).await, (reply.clone(), token));
            }
        }
        assert!(to_fill.contents().await == data);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outstanding_requests_with_rdma_on_both_sides() {
    const REQUESTS: u64 = 300;
    let (_gateway, mut client, mut server) = through_with(SmbDirect, SmbDirect, patient()).await;
    negotiate(&mut client, &mut server, 0x0311).await;
    let connection = client.connection();
    let mut random = Rng::with_seed(1);
    let data: Vec<Vec<u8>> = (0..REQUESTS)
        .map(|id| noise(random.usize(..70_000), id))
        .collect();
    let mut memories = Vec::new();
    for (data, id) in data.iter().zip(0..) {
        let (length, parts) = (data.len() as u32, random.usize(1..=5));
        let (memory, request) = if id % 2 == 0 {
            let memory = Memory::to_fill(connection, data.len(), parts);
            let descriptors = memory.descriptors();
            let request = read(id, id, length, V1_INVALIDATE, &descriptors);
            (memory, request)
        } else {
            let memory = Memory::holding(connection, data, parts);
            let descriptors = memory.descriptors();
            let request = write_by_rdma(id, id, length, V1_INVALIDATE, &descriptors);
            (memory, request)
        };
        submit(connection, request);
        memories.push(Some(memory));
    }
    let serving = tokio::spawn({
        let data = data.clone();
        async move {
            for data in &data {
                serve(&mut server, data, true).await;
            }
            server
        }
    });
    for _ in 0..REQUESTS {
        let (answer, token) = received(connection).await;
        let id = u64_at(&answer, 24);
        let memory = memories[id as usize].take().expect("one answer to each");
        let data = &data[id as usize];
        let length = data.len() as u32;
        let expected = match id % 2 {
            0 => read_answer(id, &[], length),
            _ => write_answer(id, length),
        };
        assert_eq!(answer, expected);
        assert_eq!(token, memory.invalidated_by(V1_INVALIDATE));
        assert!(memory.contents().await == *data, "{id}");
    }
    drop(soon(serving).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_use_rdma_between_tcp_ends() {
    let mut listener = Server::bind(Tcp, patient()).await;
    let mut near_server = gateway(SmbDirect, Tcp, &listener.address().to_string());
    let mut near_client = gateway(Tcp, SmbDirect, &near_server.address);
    let mut client = End::connect(Tcp, &near_client.address).await;
    let mut server = listener.accept().await;
    negotiate(&mut client, &mut server, 0x0311).await;
    let sizes = SIZES.map(|size| [size; 3]).concat();
    let requests: Vec<Vec<u8>> = sizes
        .iter()
        .zip(0..)
        .flat_map(|(&size, id)| {
            let data = noise(size, id);
            [
                read(2 * id, id, size as u32, 0, &[]),
                write(2 * id + 1, id, &data),
            ]
        })
        .collect();
    let serving = tokio::spawn({
        let requests = requests.clone();
        async move {
            let mut random = Rng::with_seed(1);
            // Not more outstanding than a gateway allows for one connection.
            for batch in requests.chunks(3) {
                let mut answers = Vec::new();
                for request in batch {
                    assert!(server.receive().await.as_ref() == Some(request));
                    let (id, length) = (u64_at(request, 24), u32_at(request, 68));
                    answers.push(match u16_at(request, 12) {
                        READ => read_answer(id, &noise(length as usize, id), 0),
                        _ => write_answer(id, length),
                    });
                }
                random.shuffle(&mut answers);
                for answer in &answers {
                    server.send(answer).await;
                }
            }
            server
        }
    });
    let (mut from, mut to) = client.split();
    let mut answered = vec![false; requests.len()];
    let sending = tokio::spawn(async move {
        for request in &requests {
            to.write_u32(request.len() as u32).await.unwrap();
            to.write_all(request).await.unwrap();
        }
        to
    });
    for _ in 0..answered.len() {
        let length = soon(from.read_u32()).await.unwrap();
        let mut answer = vec![0; length as usize];
        soon(from.read_exact(&mut answer)).await.unwrap();
        let id = u64_at(&answer, 24);
        let size = sizes[id as usize / 2];
        let expected = match id % 2 {
            0 => read_answer(id, &noise(size, id), 0),
            _ => write_answer(id, size as u32),
        };
        assert!(answer == expected, "{id}");
        assert!(!std::mem::replace(&mut answered[id as usize], true));
    }
    let to = soon(sending).await.unwrap();
    let mut client = End::Tcp(from.reunite(to).unwrap());
    let mut server = soon(serving).await.unwrap();
    // Encrypted data is sent in messages, 8 MiB in each.
    for length in [8 * MIB + 52 + 112, MIB, 52] {
        let message = encrypted(length);
        client.send(&message).await;
        assert!(server.receive().await.as_ref() == Some(&message));
        server.send(&message).await;
        assert!(client.receive().await.as_ref() == Some(&message));
    }
    client.close().await;
    let by_rdma = || sizes.iter().filter(|&&size| size >= THRESHOLD);
    for gateway in [&mut near_client, &mut near_server] {
        let closed = event(gateway, "closed");
        assert_eq!(closed["reads_by_rdma"], by_rdma().count(), "{closed}");
        assert_eq!(closed["writes_by_rdma"], by_rdma().count(), "{closed}");
        let bytes: usize = by_rdma().sum();
        assert_eq!(closed["bytes_read_by_rdma"], bytes, "{closed}");
        assert_eq!(closed["bytes_written_by_rdma"], bytes, "{closed}");
    }
}
