//! Both ends of a connection in one process, which move a file in three ways: in messages, by RDMA Read from memory that a
//! message advertises, and by RDMA Write to such memory. It shows how a program moves data by the library.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Result, anyhow};
use bytes::{Bytes, BytesMut};
use serde::Serialize;
use smbdirect::{Access, BufferDescriptorV1, Config, Connection, Listener, MemoryRegion};
use tokio::{time::timeout, try_join};

use crate::{
    failure::{Kind, OfKind},
    transport,
};

/// A way to move the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Method {
    Messages,
    RdmaRead,
    RdmaWrite,
}

/// Bytes of a message or of an RDMA operation, if both ends take as many.
const PIECE_BYTES: usize = 1 << 20;

/// Both ends of one connection. The client has the memory, and the server reads and writes it, as in SMB.
pub(super) struct Pair {
    pub(super) client: Connection,
    pub(super) server: Connection,
}

impl Pair {
    /// Connects the ends over an address of this machine.
    pub(super) async fn connect(
        address: IpAddr,
        ends: &transport::Ends,
        config: Config,
        limit: Duration,
    ) -> Result<Self> {
        let address = SocketAddr::new(address, 0);
        let listener = Listener::bind(&**ends.passive.provider(), address, config.clone()).await;
        let mut listener = listener
            .map_err(|error| anyhow!("cannot listen on {address}: {error}"))
            .of_kind(Kind::Listen)?;
        let address = listener.local_addr();
        let connecting = async {
            let provider = &**ends.active.provider();
            let connected = Connection::connect(provider, address, config).await;
            connected
                .map_err(|error| anyhow!("cannot connect to {address}: {error}"))
                .of_kind(Kind::Connect)
        };
        let accepting = async { Ok(listener.accept().await?) };
        let both = timeout(limit, async { try_join!(connecting, accepting) });
        let late = |_| anyhow!("the two ends did not connect in time; try again with -v");
        let (client, server) = both.await.map_err(late)??;
        Ok(Self { client, server })
    }

    /// Returns the longest piece of a file that both ends move.
    pub(super) fn piece_bytes(&self) -> usize {
        let negotiated = self.client.negotiated();
        let most = negotiated.max_read_write_size;
        PIECE_BYTES.min(most.min(negotiated.max_fragmented_send_size) as usize)
    }

    /// Moves a piece of a file from one end to the other, and returns what arrived.
    pub(super) async fn move_piece(&self, piece: BytesMut, method: Method) -> Result<Bytes> {
        let length = piece.len();
        Ok(match method {
            Method::Messages => {
                let sending = self.client.send(piece)?;
                let (message, _) = try_join!(self.server.recv(), sending)?;
                message.into_bytes()
            }
            Method::RdmaRead => {
                let region = self.advertise(piece, Access::REMOTE_READ).await?;
                let memory = self.advertised().await?;
                let into = BytesMut::zeroed(length);
                let data = self.server.read(&[memory], 0, into).await?;
                self.invalidate(memory, region).await?;
                data.freeze()
            }
            Method::RdmaWrite => {
                let empty = BytesMut::zeroed(length);
                let region = self.advertise(empty, Access::REMOTE_WRITE).await?;
                let memory = self.advertised().await?;
                self.server.write(&[memory], 0, piece).await?;
                self.invalidate(memory, region).await?.freeze()
            }
        })
    }

    /// The client lends memory, and tells the server where it is.
    async fn advertise(&self, memory: BytesMut, access: Access) -> Result<MemoryRegion> {
        let access = access | Access::REMOTE_INVALIDATE;
        let region = self.client.register(memory, access);
        let region =
            region.map_err(|error| anyhow!("memory cannot be registered: {}", error.reason))?;
        let mut descriptor = BytesMut::new();
        region.descriptor().encode(&mut descriptor);
        self.client.send(descriptor)?.await?;
        Ok(region)
    }

    /// The server learns where the memory is.
    async fn advertised(&self) -> Result<BufferDescriptorV1> {
        let message = self.server.recv().await?;
        Ok(BufferDescriptorV1::from_bytes(&message.into_bytes())?)
    }

    /// The server has used the memory, and ends its registration by Send with Invalidate. Returns the memory.
    async fn invalidate(
        &self,
        memory: BufferDescriptorV1,
        region: MemoryRegion,
    ) -> Result<BytesMut> {
        let done = self.server.send_and_invalidate("done", memory.token.into());
        done?.await?;
        self.client.recv().await?;
        Ok(region.deregister().await?)
    }
}
