//! Servers with invalid answers, and clients that disconnect during a transfer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use smbdirect::{BufferDescriptorV1, Connection, Token};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::sleep,
};

use smbdirect_test::{
    messages::*,
    noise,
    peers::{
        End, Kind, Server, SmbDirect, Tcp,
        rdma::{Memory, described, filled, negotiate, patient, received, submit},
        soon,
    },
};

use super::{Bystander, MEMORY, Running, echo, ended, event, through};

const MIB: usize = 1 << 20;

/// A gateway, its server, and a bystander.
struct Scene {
    gateway: Running,
    from: Kind,
    listener: Server,
    bystander: Bystander,
}

impl Scene {
    async fn new(from: Kind, to: Kind, memory: u64) -> Self {
        let mut listener = Server::bind(to, patient()).await;
        let gateway = Running::start(from, to, &listener.address().to_string(), memory);
        let bystander = Bystander::connect(from, &gateway.address, &mut listener).await;
        Self {
            gateway,
            from,
            listener,
            bystander,
        }
    }

    /// Another client of the gateway, and its end at the server, with dialect 3.1.1.
    async fn client(&mut self) -> (End, End) {
        let mut client = End::connect_with(self.from, &self.gateway.address, patient()).await;
        let mut server = self.listener.accept().await;
        negotiate(&mut client, &mut server, 0x0311).await;
        (client, server)
    }

    /// Returns how a connection ended, after the bystander's connection has moved a message.
    async fn ended(&mut self) -> String {
        let closed = event(&mut self.gateway, "closed");
        assert_eq!(closed["open"], 1, "{closed}");
        self.bystander.moves_a_message().await;
        closed["ended"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_over_tcp_that_cannot_be_right_ends_its_connection() {
    let mut scene = Scene::new(SmbDirect, Tcp, MEMORY).await;
    let good = read_answer(5, &noise(4096, 1), 0);
    for (answer, says) in [
        (
            with(good.clone(), 68, &4097_u32.to_le_bytes()),
            "a malformed answer to READ: the data at offset 80 with 4097 bytes lies outside the \
             element",
        ),
        (
            with(good.clone(), 66, &[81]),
            "a malformed answer to READ: the data at offset 81 with 4096 bytes lies outside the \
             element",
        ),
        (
            with(good.clone(), 66, &[79]),
            "a malformed answer to READ: the data at offset 79 with 4096 bytes lies outside the \
             element",
        ),
        (
            with(good.clone(), 68, &[0xff; 4]),
            "a malformed answer to READ: the data at offset 80 with 4294967295 bytes lies outside \
             the element",
        ),
        (
            read_answer(5, &noise(4097, 1), 0),
            "4097 bytes of data for a READ of 4096",
        ),
        (
            with(good.clone(), 64, &[16, 0]),
            "a malformed answer to READ: READ response with StructureSize 16 instead of 17",
        ),
        (
            good[..79].to_vec(),
            "a malformed answer to READ: READ response of 79 bytes, at least 80 are needed",
        ),
        (
            with(good.clone(), 4, &[65, 0]),
            "a malformed answer: SMB2 header with StructureSize 65 instead of 64",
        ),
        (
            good[..63].to_vec(),
            "a malformed answer: SMB2 header of 63 bytes, at least 64 are needed",
        ),
        (
            flagged(good.clone(), SIGNED),
            "a signed answer to requests that were not signed",
        ),
        (
            encrypted(200),
            "an encrypted answer to a client that does not encrypt",
        ),
        (
            compressed(200),
            "a compressed answer to a client that did not ask for one",
        ),
        (
            with(
                compound(&[answer(ECHO, 4, SUCCESS), good.clone()]),
                20,
                &[73, 0],
            ),
            "a malformed answer to ECHO: NextCommand 73 in an element of 4240 bytes",
        ),
        (
            compound(&[answer(ECHO, 4, SUCCESS), read_answer(5, &noise(4097, 1), 0)]),
            "4097 bytes of data for a READ of 4096",
        ),
    ] {
        let (mut client, mut server) = scene.client().await;
        let memory = Memory::to_fill(client.connection(), 8192, 2);
        let request = read(5, 0, 4096, V1_INVALIDATE, &memory.descriptors());
        submit(client.connection(), request);
        assert_eq!(server.receive().await, Some(read(5, 0, 4096, 0, &[])));
        server.send(&answer).await;
        assert_eq!(client.receive().await, None, "{says}");
        assert_eq!(server.receive().await, None, "{says}");
        assert!(memory.contents().await == filled(&[], 8192), "{says}");
        assert_eq!(scene.ended().await, format!("server: {says}"));
    }
}

/// The client may understand them, and the answer is still outstanding.
/// What arrives at a socket that is closed is answered by a reset, which destroys what is on the way.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_answer_of_a_server_arrives_at_a_client_that_goes_on_sending() {
    let (mut gateway, mut client, mut server) = through(Tcp, Tcp).await;
    client.send(&echo(1)).await;
    server.receive().await.unwrap();
    let last = other(answer(ECHO, 1, 0), &noise(4 * MIB, 1));
    let answering = async {
        server.send(&last).await;
        server.stream().shutdown().await.unwrap();
    };
    let (mut answers, mut requests) = client.split();
    let sending = tokio::spawn(async move {
        let message = other(header(ECHO, 2), &[0; 4096]);
        let frame = [&(message.len() as u32).to_be_bytes(), &message[..]].concat();
        while requests.write_all(&frame).await.is_ok() {}
    });
    let taking = async {
        let mut taken = vec![0; 4 + last.len()];
        // Not faster than the requests come.
        for part in taken.chunks_mut(64 << 10) {
            sleep(Duration::from_millis(2)).await;
            answers.read_exact(part).await.unwrap();
        }
        assert!(taken[4..] == last);
    };
    soon(async { tokio::join!(answering, taking) }).await;
    assert_eq!(ended(&mut gateway), "closed by the server");
    soon(sending).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unexpected_answer_is_ignored() {
    let mut scene = Scene::new(SmbDirect, Tcp, MEMORY).await;
    let (client, mut server) = scene.client().await;
    let connection = client.connection();
    let memory = Memory::to_fill(connection, 4096, 2);
    let request = read(5, 0, 4096, V1_INVALIDATE, &memory.descriptors());
    submit(connection, request);
    server.receive().await.unwrap();
    let data = noise(4096, 1);
    for answer in [
        read_answer(6, &data, 0),
        read_answer(u64::MAX, &noise(100_000, 2), 0),
        write_answer(5, 4096),
        error(ECHO, 5, END_OF_FILE),
        compound(&[read_answer(7, &data, 0), write_answer(8, 1)]),
    ] {
        server.send(&answer).await;
        assert!(received(connection).await == (answer, None));
    }
    let answer = read_answer(5, &data, 0);
    server.send(&answer).await;
    let token = memory.invalidated_by(V1_INVALIDATE);
    let expected = (read_answer(5, &[], 4096), token);
    assert_eq!(received(connection).await, expected);
    // The second answer matches no request.
    server.send(&answer).await;
    assert!(received(connection).await == (answer, None));
    assert!(memory.contents().await == data);
}

/// What a server with RDMA does with a READ of 20,000 bytes to make the gateway end it.
type Fault = fn(&Connection, &[BufferDescriptorV1]);

fn write(server: &Connection, to: BufferDescriptorV1, length: usize) {
    drop(server.write(&[to], 0, Bytes::from(vec![7; length])));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_by_rdma_that_cannot_be_right_ends_its_connection() {
    let faults: [(Fault, &str); 10] = [
        (
            |server, _| submit(server, read_answer(5, &[], 20_001)),
            "server: 20001 bytes of data for a READ of 20000",
        ),
        (
            |server, _| submit(server, read_answer(5, b"data", 4)),
            "server: a READ answered with 4 bytes in the message and 4 by RDMA",
        ),
        (
            |server, _| submit(server, flagged(read_answer(5, &[], 4), SIGNED)),
            "server: a signed answer to requests that were not signed",
        ),
        (
            |server, _| {
                let elements = [answer(ECHO, 4, SUCCESS), read_answer(5, &[], 4)];
                submit(server, compound(&elements));
            },
            "server: the answer to a READ that was no compound came in one",
        ),
        (
            |server, _| submit(server, with(read_answer(5, &[], 4), 64, &[16, 0])),
            "server: a malformed answer to READ: READ response with StructureSize 16 instead of 17",
        ),
        (
            |server, _| submit(server, encrypted(100)),
            "server: an encrypted answer to a client that does not encrypt",
        ),
        // Beyond the memory, memory without the right to read, and unregistered memory.
        (
            |server, memory| {
                let length = memory[0].length + 1;
                let longer = BufferDescriptorV1 {
                    length,
                    ..memory[0]
                };
                write(server, longer, length as usize);
            },
            "server: ",
        ),
        (
            |server, memory| drop(server.read(memory, 0, BytesMut::zeroed(100))),
            "server: ",
        ),
        (
            |server, memory| {
                let token = memory[0].token ^ 1;
                let other = BufferDescriptorV1 { token, ..memory[0] };
                write(server, other, 100);
            },
            "server: ",
        ),
        (
            |server, memory| {
                let token = Token(memory[0].token ^ 1);
                let answer = read_answer(5, &[], 4);
                drop(server.send_and_invalidate(answer, token).unwrap());
            },
            "server: ",
        ),
    ];
    for from in [Tcp, SmbDirect] {
        let mut scene = Scene::new(from, SmbDirect, MEMORY).await;
        for (index, (fault, says)) in faults.iter().enumerate() {
            let (mut client, mut server) = scene.client().await;
            client.send(&read(5, 0, 20_000, 0, &[])).await;
            let (_, memory) = described(&server.receive().await.unwrap());
            fault(server.connection(), &memory);
            assert_eq!(client.receive().await, None, "{index}: {says}");
            assert_eq!(server.receive().await, None, "{index}: {says}");
            let ended = scene.ended().await;
            match *says {
                // The reason contains the error of the RDMA operation.
                "server: " => assert!(ended.starts_with(says), "{index}: {ended}"),
                says => assert_eq!(ended, says),
            }
        }
    }
}

/// The server may use the memory of a request until it has answered, and not after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_writes_after_its_answer_ends_its_connection() {
    let mut scene = Scene::new(Tcp, SmbDirect, MEMORY).await;
    let (mut client, mut server) = scene.client().await;
    client.send(&read(5, 0, 20_000, 0, &[])).await;
    let (_, memory) = described(&server.receive().await.unwrap());
    let data = noise(20_000, 1);
    drop(server.connection().write(&memory, 0, data.clone()));
    server.send(&read_answer(5, &[], 20_000)).await;
    assert!(client.receive().await == Some(read_answer(5, &data, 0)));
    write(server.connection(), memory[0], 20_000);
    assert_eq!(client.receive().await, None);
    let ended = scene.ended().await;
    assert!(ended.starts_with("server: "), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_disconnects_during_rdma_write_affects_no_other() {
    for goes in [false, true] {
        let mut scene = Scene::new(SmbDirect, Tcp, MEMORY).await;
        let (client, mut server) = scene.client().await;
        let connection = client.connection();
        let memory = Memory::to_fill(connection, 8 * MIB, 2);
        let request = read(5, 0, 8 << 20, V1_INVALIDATE, &memory.descriptors());
        submit(connection, request);
        server.receive().await.unwrap();
        let answer = read_answer(5, &noise(8 * MIB, 1), 0);
        let stream = server.stream();
        stream.write_u32(answer.len() as u32).await.unwrap();
        stream.write_all(&answer[..3 * MIB]).await.unwrap();
        if goes {
            // Its connection is over.
            connection.abort();
        } else {
            drop(memory);
        }
        // The server may see the disconnect before it has sent everything.
        let _ = stream.write_all(&answer[3 * MIB..]).await;
        assert_eq!(server.receive().await, None);
        let ended = scene.ended().await;
        assert!(!ended.starts_with("server"), "{ended}");
    }
}

/// Lengths of the WRITEs of a client that disconnects; together they exceed all buffers on the way.
const LONG: u32 = 16_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn client_that_disconnects_during_rdma_read_causes_no_wrong_write() {
    for goes in [false, true] {
        let mut scene = Scene::new(SmbDirect, Tcp, 72 << 20).await;
        let (client, mut server) = scene.client().await;
        let connection = client.connection();
        let data: Vec<Vec<u8>> = (0..4).map(|id| noise(LONG as usize, id)).collect();
        let mut memories = Vec::new();
        for (data, id) in data.iter().zip(0..) {
            let memory = Memory::holding(connection, data, 2);
            let request = write_by_rdma(id, 0, LONG, V1, &memory.descriptors());
            submit(connection, request);
            memories.push(memory);
        }
        // The first has begun to arrive.
        let mut beginning = vec![0; 4 + 112 + 1000];
        server.stream().read_exact(&mut beginning).await.unwrap();
        let expected = smbdirect_test::messages::write(0, 0, &data[0]);
        assert!(beginning[4..] == expected[..112 + 1000]);
        if goes {
            connection.abort();
        } else {
            drop(memories);
        }
        let mut rest = Vec::new();
        soon(server.stream().read_to_end(&mut rest)).await.unwrap();
        let arrived = [beginning, rest].concat();
        let all: Vec<u8> = data
            .iter()
            .zip(0..)
            .flat_map(|(data, id)| {
                let message = smbdirect_test::messages::write(id, 0, data);
                [&(message.len() as u32).to_be_bytes()[..], &message].concat()
            })
            .collect();
        assert!(arrived.len() < all.len());
        assert!(all.starts_with(&arrived), "{goes}");
        let ended = scene.ended().await;
        assert!(!ended.starts_with("server"), "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn write_from_missing_memory_is_not_forwarded() {
    for to in [Tcp, SmbDirect] {
        let mut scene = Scene::new(SmbDirect, to, MEMORY).await;
        for length in [1, 100_000, 8 << 20] {
            let (mut client, mut server) = scene.client().await;
            let connection = client.connection();
            // The first part is registered, the second is not.
            let memory = Memory::holding(connection, &noise(length as usize / 2, 1), 1);
            let mut descriptors = memory.descriptors();
            descriptors.push(descriptor(0x5000, 0x1234_5678, length));
            let request = write_by_rdma(5, 0, length, V1, &descriptors);
            submit(connection, request);
            assert_eq!(server.receive().await, None, "{length}");
            assert_eq!(client.receive().await, None, "{length}");
            let ended = scene.ended().await;
            assert!(ended.starts_with("client: "), "{ended}");
        }
    }
}
