//! Requests that are never forwarded: the connection ends with a reason, and others go on.

use smbdirect::BufferDescriptorV1;

use smbdirect_test::{
    messages::*,
    noise,
    peers::{
        End, Kind, Server, SmbDirect, Tcp,
        rdma::{Memory, negotiate, patient, submit},
    },
};

use super::{Bystander, Running, echo, event, gateway};

const SIGNING: &str = "turn signing off for this client";
const TRANSFORMS: &str = "turn RDMA transforms off on the client";
const BROKEN: &str = "the client breaks [MS-SMB2]";
const WRITE_LESS: &str = "have the client write less at once";
const BY_SMB_DIRECT: &str = "have the client connect by SMB Direct";

/// A gateway, its server, and a bystander.
struct Scene {
    gateway: Running,
    from: Kind,
    listener: Server,
    bystander: Bystander,
    refused: u64,
}

/// Descriptors of unregistered memory, which the gateway must not use.
fn nowhere(lengths: &[u32]) -> Vec<BufferDescriptorV1> {
    let descriptor = |&length| descriptor(0x1000, 0x1234_5678, length);
    lengths.iter().map(descriptor).collect()
}

impl Scene {
    async fn new(from: Kind, to: Kind) -> Self {
        let mut listener = Server::bind(to, patient()).await;
        let mut gateway = gateway(from, to, &listener.address().to_string());
        let bystander = Bystander::connect(from, &gateway.address, &mut listener).await;
        event(&mut gateway, "opened");
        Self {
            gateway,
            from,
            listener,
            bystander,
            refused: 0,
        }
    }

    /// Another client of the gateway, and its end at the server.
    async fn client(&mut self) -> (End, End) {
        let client = End::connect_with(self.from, &self.gateway.address, patient()).await;
        (client, self.listener.accept().await)
    }

    /// A new client sends a request between two that could be forwarded.
    async fn refuses(&mut self, request: Vec<u8>, reason: &str, cure: &str) {
        let (mut client, mut server) = self.client().await;
        client.send(&echo(1000)).await;
        assert_eq!(server.receive().await, Some(echo(1000)), "{reason}");
        self.refuses_on(client, server, request, reason, cure).await;
    }

    /// A client sends a request, and another after it.
    async fn refuses_on(
        &mut self,
        mut client: End,
        mut server: End,
        request: Vec<u8>,
        reason: &str,
        cure: &str,
    ) {
        let peer = client.local_addr().to_string();
        let opened = event(&mut self.gateway, "opened");
        assert_eq!(opened["peer"], peer);
        match &mut client {
            End::SmbDirect(connection) => {
                submit(connection, request);
                // The connection may be over.
                drop(connection.send(echo(1001)));
            }
            End::Tcp(_) => client.send(&request).await,
        }
        assert_eq!(server.receive().await, None, "{reason}");
        assert_eq!(client.receive().await, None, "{reason}");
        let refused = event(&mut self.gateway, "refused");
        assert_eq!(refused["reason"], reason);
        assert_eq!(refused["id"], opened["id"], "{reason}");
        assert_eq!(refused["peer"], peer, "{reason}");
        let says = refused["cure"].as_str().unwrap();
        assert!(says.starts_with(cure), "{reason}: {says}");
        let closed = event(&mut self.gateway, "closed");
        assert_eq!(closed["id"], opened["id"], "{reason}");
        assert_eq!(closed["ok"], false, "{reason}");
        assert_eq!(closed["requests_refused"], 1, "{reason}");
        let ended = format!("refused: {reason}; to cure it: {says}");
        assert_eq!(closed["ended"], ended);
        assert_eq!(closed["open"], 1, "{reason}");
        self.refused += 1;
        self.bystander.moves_a_message().await;
    }

    fn finish(self) {
        let summary = self.gateway.terminate();
        assert_eq!(summary["requests_refused"], self.refused);
        assert_eq!(summary["failed"], self.refused);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_an_rdma_client_must_not_send() {
    for to in [Tcp, SmbDirect] {
        let mut scene = Scene::new(SmbDirect, to).await;
        let one = nowhere(&[4096]);
        let read = |channel| read(5, 0, 4096, channel, &one);
        let write = |channel| write_by_rdma(5, 0, 4096, channel, &one);
        for (request, reason, cure) in [
            (
                flagged(read(V1), SIGNED),
                "a signed READ with channel RDMA_V1",
                SIGNING,
            ),
            (
                flagged(write(V1_INVALIDATE), SIGNED),
                "a signed WRITE with channel RDMA_V1_INVALIDATE",
                SIGNING,
            ),
            (read(3), "a READ with channel RDMA_TRANSFORM", TRANSFORMS),
            (write(3), "a WRITE with channel RDMA_TRANSFORM", TRANSFORMS),
            // As Windows sends it: the descriptors follow the description of the transform.
            (
                with(other(read(3), &[1; 24]), 110, &[40, 0]),
                "a READ with channel RDMA_TRANSFORM",
                TRANSFORMS,
            ),
            (
                read(0xffff_ffff),
                "a READ with channel 4294967295",
                TRANSFORMS,
            ),
            (
                smbdirect_test::messages::read(5, 0, 4097, V1, &nowhere(&[4000, 96])),
                "a READ of 4097 bytes with descriptors for 4096",
                BROKEN,
            ),
            (
                write_by_rdma(5, 0, 1, V1_INVALIDATE, &[]),
                "a WRITE of 1 bytes with descriptors for 0",
                BROKEN,
            ),
            (
                with(other(write(V1), b"data"), 66, &[128, 0, 4, 0, 0, 0]),
                "a WRITE with a channel and with 4 bytes in the message",
                BROKEN,
            ),
            (
                write_by_rdma(5, 0, 0xff_ff90, V1, &nowhere(&[u32::MAX])),
                "a WRITE that takes a message of 16777216 bytes, a message over TCP has at most \
                 16777215",
                WRITE_LESS,
            ),
            (
                compound(&[echo(4), flagged(read(V1), SIGNED)]),
                "a signed READ with channel RDMA_V1",
                SIGNING,
            ),
            (
                compound(&[read(V1), read(V1)]),
                "a READ with MessageId 5, which another request still has",
                BROKEN,
            ),
            (
                compound(
                    &(0..8193)
                        .map(|id| smbdirect_test::messages::read(id, 0, 1, V1, &one))
                        .collect::<Vec<_>>(),
                ),
                "a compound with more than 8192 requests or 65536 descriptors to wait for",
                BROKEN,
            ),
        ] {
            scene.refuses(request, reason, cure).await;
        }
        scene.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_are_not_forwarded() {
    for (from, to) in [(SmbDirect, Tcp), (SmbDirect, SmbDirect), (Tcp, SmbDirect)] {
        let mut scene = Scene::new(from, to).await;
        let channel = match from {
            SmbDirect => V1,
            Tcp => 0,
        };
        let one = nowhere(&[4096]);
        let read = read(5, 0, 4096, channel, &one);
        let write = match from {
            SmbDirect => write_by_rdma(5, 0, 4096, channel, &one),
            Tcp => write(5, 0, &noise(4096, 1)),
        };
        let mut cases = vec![
            (
                with(echo(5), 4, &[65, 0]),
                "a malformed message: SMB2 header with StructureSize 65 instead of 64",
            ),
            (
                read[..111].to_vec(),
                "a malformed READ: request of 111 bytes, at least 112 are needed",
            ),
            (
                write[..64].to_vec(),
                "a malformed WRITE: request of 64 bytes, at least 112 are needed",
            ),
            (
                with(read.clone(), 64, &[48, 0]),
                "a malformed READ: READ request with StructureSize 48 instead of 49",
            ),
            (
                with(compound(&[echo(4), echo(5)]), 20, &[73, 0]),
                "a malformed ECHO: NextCommand 73 in an element of 140 bytes",
            ),
        ];
        match from {
            SmbDirect => cases.extend([
                (
                    with(read.clone(), 110, &[17, 0]),
                    "a malformed READ: ReadChannelInfo at offset 112 with 17 bytes lies outside \
                     the element",
                ),
                (
                    with(other(read.clone(), &[1]), 110, &[17, 0]),
                    "a malformed READ: 17 bytes of channel information are not an array of buffer \
                     descriptors",
                ),
                (
                    with(write, 104, &[113, 0]),
                    "a malformed WRITE: WriteChannelInfo at offset 113 with 16 bytes lies outside \
                     the element",
                ),
            ]),
            Tcp => cases.extend([
                (
                    with(write.clone(), 66, &[113, 0]),
                    "a malformed WRITE: the data at offset 113 with 4096 bytes lies outside the \
                     element",
                ),
                (
                    with(write, 66, &[111, 0]),
                    "a malformed WRITE: the data at offset 111 with 4096 bytes lies outside the \
                     element",
                ),
            ]),
        }
        for (request, reason) in cases {
            scene.refuses(request, reason, BROKEN).await;
        }
        scene.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn channel_over_tcp_is_not_forwarded() {
    let mut scene = Scene::new(Tcp, SmbDirect).await;
    let one = nowhere(&[4096]);
    for (request, reason) in [
        (
            read(5, 0, 4096, V1, &one),
            "a READ with channel RDMA_V1 over TCP",
        ),
        (
            write_by_rdma(5, 0, 4096, V1_INVALIDATE, &one),
            "a WRITE with channel RDMA_V1_INVALIDATE over TCP",
        ),
        (
            read(5, 0, 4096, 3, &one),
            "a READ with channel RDMA_TRANSFORM over TCP",
        ),
        // In a compound that arrives in several pieces.
        (
            compound(&[
                write(4, 0, &noise(300_000, 1)),
                flagged(read(5, 0, 4096, V1, &one), RELATED),
            ]),
            "a READ with channel RDMA_V1 over TCP",
        ),
    ] {
        scene.refuses(request, reason, BY_SMB_DIRECT).await;
    }
    scene.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn message_id_in_use_is_not_forwarded() {
    for (from, to) in [(SmbDirect, Tcp), (SmbDirect, SmbDirect), (Tcp, SmbDirect)] {
        for again in [
            echo(5),
            read(5, 0, 20_000, 0, &[]),
            compound(&[echo(4), echo(5)]),
        ] {
            let mut scene = Scene::new(from, to).await;
            let (mut client, mut server) = scene.client().await;
            negotiate(&mut client, &mut server, 0x0311).await;
            let memory = match &client {
                End::SmbDirect(connection) => {
                    let memory = Memory::to_fill(connection, 20_000, 1);
                    let request = read(5, 0, 20_000, V1, &memory.descriptors());
                    submit(connection, request);
                    Some(memory)
                }
                End::Tcp(_) => {
                    client.send(&read(5, 0, 20_000, 0, &[])).await;
                    None
                }
            };
            server.receive().await.unwrap();
            let command = match u16_at(&again, 12) {
                READ => "READ",
                _ => "ECHO",
            };
            let reason = format!("a {command} with MessageId 5, which another request still has");
            scene
                .refuses_on(client, server, again, &reason, BROKEN)
                .await;
            drop(memory);
            scene.finish();
        }
    }
}
