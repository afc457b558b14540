//! Clients that disconnect during a request: the session ends, and its resources are released.

use tokio::io::AsyncWriteExt;

use smbdirect_test::peers::rdma::{Memory, described, negotiate, patient, submit};

use super::{
    End, Kind,
    Kind::{SmbDirect, Tcp},
    Server, event, gateway, soon, summary,
};
use crate::{messages::*, support::noise};

const MIB: usize = 1 << 20;

/// A client requests more than the gateway has memory for, and disconnects.
async fn leaves_with_requests_waiting(from: Kind, memory: &str, requests: u64) {
    let mut listener = Server::bind(SmbDirect, patient()).await;
    let address = listener.address().to_string();
    let mut gateway = gateway(from, SmbDirect, &address, &["--memory", memory]);
    for round in 0..2 {
        let mut client = End::connect_with(from, &gateway.address, patient()).await;
        let mut server = listener.accept().await;
        negotiate(&mut client, &mut server, 0x0311).await;
        for id in 0..requests {
            client.send(&read(id, 0, 8 << 20, 0, &[])).await;
        }
        // The server has one request and does not answer; the others wait.
        let (channel, _) = described(&server.receive().await.unwrap());
        assert_eq!(channel, V1_INVALIDATE);
        match (client, round % 2) {
            (End::SmbDirect(connection), 0) => connection.abort(),
            (client, _) => client.close().await,
        }
        let closed = event(&mut gateway, "closed");
        assert_eq!(closed["open"], 0, "{closed}");
        // At most one later request has been forwarded.
        while server.receive().await.is_some() {}
    }
    let mut client = End::connect_with(from, &gateway.address, patient()).await;
    let mut server = listener.accept().await;
    negotiate(&mut client, &mut server, 0x0311).await;
    client.send(&read(1, 0, 8 << 20, 0, &[])).await;
    let (_, memory) = described(&server.receive().await.unwrap());
    let data = noise(8 * MIB, 1);
    drop(server.connection().write(&memory, 0, data.clone()));
    server.send(&read_answer(1, &[], 8 << 20)).await;
    assert!(client.receive().await == Some(read_answer(1, &data, 0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_rdma_leaves_while_its_requests_wait_for_memory() {
    leaves_with_requests_waiting(SmbDirect, "68M", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_rdma_leaves_while_its_requests_wait_for_memory() {
    leaves_with_requests_waiting(Tcp, "35M", 5).await;
}

/// The gateway tracks a limited number of requests. Beyond the limit it receives nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_leaves_with_as_many_requests_as_the_gateway_remembers() {
    let mut listener = Server::bind(Tcp, patient()).await;
    let address = listener.address().to_string();
    let mut gateway = gateway(SmbDirect, Tcp, &address, &[]);
    for round in 0..2 {
        let client = End::connect_with(SmbDirect, &gateway.address, patient()).await;
        let mut server = listener.accept().await;
        let connection = client.connection();
        let memory = Memory::to_fill(connection, 8 * MIB, 1);
        let descriptors = memory.descriptors();
        for id in 0..10_000 {
            submit(connection, read(id, 0, 8 << 20, V1, &descriptors));
        }
        for id in 0..8192 {
            let request = server.receive().await;
            assert_eq!(request, Some(read(id, 0, 8 << 20, 0, &[])));
        }
        match round {
            0 => connection.abort(),
            _ => soon(connection.close()).await.unwrap(),
        }
        let closed = event(&mut gateway, "closed");
        assert_eq!(closed["messages_to_server"], 8192, "{closed}");
        assert_eq!(server.receive().await, None);
    }
}

/// The client has closed its sending side, and waits for data that the gateway has no memory for yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_no_more_gets_the_answers_that_wait_for_memory() {
    const READS: u64 = 5;
    let mut listener = Server::bind(SmbDirect, patient()).await;
    let address = listener.address().to_string();
    let mut gateway = gateway(Tcp, SmbDirect, &address, &["--memory", "35M"]);
    let mut client = End::connect(Tcp, &gateway.address).await;
    let mut server = listener.accept().await;
    negotiate(&mut client, &mut server, 0x0311).await;
    for id in 0..READS {
        client.send(&read(id, 0, 8 << 20, 0, &[])).await;
    }
    client.stream().shutdown().await.unwrap();
    let data = noise(8 * MIB, 1);
    for id in 0..READS {
        let (_, memory) = described(&server.receive().await.unwrap());
        drop(server.connection().write(&memory, 0, data.clone()));
        server.send(&read_answer(id, &[], 8 << 20)).await;
        assert!(client.receive().await == Some(read_answer(id, &data, 0)));
    }
    assert_eq!(client.receive().await, None);
    let closed = event(&mut gateway, "closed");
    assert_eq!(closed["ended"], "closed by the client");
}

#[tokio::test(flavor = "multi_thread")]
async fn terminated_gateway_does_not_wait_for_answers() {
    for (from, to) in [(SmbDirect, Tcp), (SmbDirect, SmbDirect), (Tcp, SmbDirect)] {
        let mut listener = Server::bind(to, patient()).await;
        let address = listener.address().to_string();
        let gateway = gateway(from, to, &address, &["--memory", "68M"]);
        let mut client = End::connect_with(from, &gateway.address, patient()).await;
        let mut server = listener.accept().await;
        negotiate(&mut client, &mut server, 0x0311).await;
        // The server has some of them, and some wait for memory.
        let memory = match &client {
            End::SmbDirect(connection) => {
                let memory = Memory::holding(connection, &noise(8 * MIB, 1), 2);
                for id in 0..5 {
                    let descriptors = memory.descriptors();
                    submit(connection, write_by_rdma(id, 0, 8 << 20, V1, &descriptors));
                }
                Some(memory)
            }
            End::Tcp(_) => {
                for id in 0..5 {
                    client.send(&read(id, 0, 8 << 20, 0, &[])).await;
                }
                None
            }
        };
        server.receive().await.unwrap();
        let done = gateway.terminate().succeeded();
        assert_eq!(summary(&done)["failed"], 0);
        assert_eq!(client.receive().await, None);
        while server.receive().await.is_some() {}
        drop(memory);
    }
}
