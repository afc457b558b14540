//! Many clients with many outstanding requests and little memory: all requests complete.

use bytes::BytesMut;
use fastrand::Rng;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};

use smbdirect_test::peers::rdma::{Memory, described, negotiate, patient, received, reply, submit};

use super::{
    End, Kind,
    Kind::{SmbDirect, Tcp},
    Server, event, gateway, soon,
};
use crate::{messages::*, support::noise};

const REQUESTS: u64 = 24;
const CLIENTS: u64 = 4;

/// The data of a request. Those with an even MessageId are READs.
fn data(client: u64, id: u64) -> Vec<u8> {
    let mut random = Rng::with_seed(client * REQUESTS + id);
    let size = match id % 5 {
        0 => random.usize(..8 << 20),
        1 => random.usize(..300_000),
        _ => random.usize(..20_000),
    };
    noise(size, client * REQUESTS + id)
}

async fn asks_by_rdma(client: End, number: u64) {
    let connection = client.connection();
    let mut memories = Vec::new();
    for id in 0..REQUESTS {
        let data = data(number, id);
        let length = data.len() as u32;
        let memory = match id % 2 {
            0 => Memory::to_fill(connection, data.len(), 3),
            _ => Memory::holding(connection, &data, 3),
        };
        let descriptors = memory.descriptors();
        submit(
            connection,
            match id % 2 {
                0 => read(id, id, length, V1_INVALIDATE, &descriptors),
                _ => write_by_rdma(id, id, length, V1_INVALIDATE, &descriptors),
            },
        );
        memories.push(Some(memory));
    }
    for _ in 0..REQUESTS {
        let (answer, token) = received(connection).await;
        let id = u64_at(&answer, 24);
        let (data, memory) = (data(number, id), memories[id as usize].take().unwrap());
        let length = data.len() as u32;
        assert_eq!(
            answer,
            match id % 2 {
                0 => read_answer(id, &[], length),
                _ => write_answer(id, length),
            }
        );
        assert_eq!(token, memory.invalidated_by(V1_INVALIDATE));
        assert!(memory.contents().await == data, "{number} {id}");
    }
    client.close().await;
}

async fn asks_by_tcp(client: End, number: u64) {
    let (mut from, mut to) = client.split();
    let sending = tokio::spawn(async move {
        for id in 0..REQUESTS {
            let data = data(number, id);
            let request = match id % 2 {
                0 => read(id, id, data.len() as u32, 0, &[]),
                _ => write(id, id, &data),
            };
            to.write_u32(request.len() as u32).await.unwrap();
            to.write_all(&request).await.unwrap();
        }
        to
    });
    let mut answered = vec![false; REQUESTS as usize];
    for _ in 0..REQUESTS {
        let length = soon(from.read_u32()).await.unwrap();
        let mut answer = vec![0; length as usize];
        soon(from.read_exact(&mut answer)).await.unwrap();
        let id = u64_at(&answer, 24);
        let data = data(number, id);
        let expected = match id % 2 {
            0 => read_answer(id, &data, 0),
            _ => write_answer(id, data.len() as u32),
        };
        assert!(answer == expected, "{number} {id}");
        assert!(!std::mem::replace(&mut answered[id as usize], true));
    }
    drop(soon(sending).await.unwrap());
}

/// Answers each request on arrival, by RDMA where the gateway has requested it.
async fn answers(mut server: End, number: u64) {
    for _ in 0..REQUESTS {
        let request = server.receive().await.unwrap();
        let id = u64_at(&request, 24);
        let data = data(number, id);
        let length = data.len() as u32;
        let (channel, memory) = described(&request);
        let answer = match (u16_at(&request, 12), channel) {
            (READ, 0) => {
                assert_eq!(request, read(id, id, length, 0, &[]));
                read_answer(id, &data, 0)
            }
            (READ, _) => {
                drop(server.connection().write(&memory, 0, data));
                read_answer(id, &[], length)
            }
            (_, 0) => {
                assert!(request == write(id, id, &data), "{number} {id}");
                write_answer(id, length)
            }
            _ => {
                let into = BytesMut::zeroed(data.len());
                let reading = server.connection().read(&memory, 0, into);
                assert!(soon(reading).await.unwrap() == data, "{number} {id}");
                write_answer(id, length)
            }
        };
        match channel {
            0 => server.send(&answer).await,
            _ => reply(server.connection(), answer, &memory, true),
        }
    }
    // The client closes when it has all of its answers.
    assert_eq!(server.receive().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_with_many_requests_and_little_memory_all_get_through() {
    // Memory for this number of connections, and little more.
    for (from, to, memory) in [
        (SmbDirect, Tcp, "140M"),
        (Tcp, SmbDirect, "140M"),
        (SmbDirect, SmbDirect, "272M"),
    ] {
        all_get_through(from, to, memory).await;
    }
}

async fn all_get_through(from: Kind, to: Kind, memory: &str) {
    let mut listener = Server::bind(to, patient()).await;
    let address = listener.address().to_string();
    let mut gateway = gateway(from, to, &address, &["--memory", memory]);
    let mut ends = JoinSet::new();
    for number in 0..CLIENTS {
        let mut client = End::connect_with(from, &gateway.address, patient()).await;
        let mut server = listener.accept().await;
        negotiate(&mut client, &mut server, 0x0311).await;
        match from {
            SmbDirect => ends.spawn(asks_by_rdma(client, number)),
            Tcp => ends.spawn(asks_by_tcp(client, number)),
        };
        ends.spawn(answers(server, number));
    }
    while let Some(end) = soon(ends.join_next()).await {
        end.unwrap();
    }
    for _ in 0..CLIENTS {
        let closed = event(&mut gateway, "closed");
        assert_eq!(closed["ended"], "closed by the client");
        assert_eq!(closed["messages_to_client"], 1 + REQUESTS, "{closed}");
    }
}
