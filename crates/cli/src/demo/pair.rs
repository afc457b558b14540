//! Both ends of a connection in one process, which move a file three ways and compare every byte: in messages, by RDMA
//! Read from memory that a message advertises, and by RDMA Write to such memory. It shows how a program moves data by the
//! library.

use std::{
    fs::File,
    io::Read as _,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::{Result, anyhow, ensure};
use bytes::BytesMut;
use indicatif::ProgressBar;
use serde::Serialize;
use smbdirect::{Access, BufferDescriptorV1, Config, Connection, Listener};
use tokio::{task::block_in_place, time::timeout, try_join};

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

    /// Moves the file from one end to the other, which has it too, and compares.
    pub(super) async fn move_file(
        &self,
        path: &Path,
        method: Method,
        bar: &ProgressBar,
    ) -> Result<()> {
        let negotiated = self.client.negotiated();
        let most = negotiated.max_read_write_size;
        let most = most.min(negotiated.max_fragmented_send_size) as usize;
        let open = || Pieces::open(path, most.min(PIECE_BYTES));
        let (here, there) = (open()?, open()?);
        match method {
            Method::Messages => try_join!(self.send(here), self.compare(there, bar)),
            Method::RdmaRead => try_join!(self.lend(here), self.read(there, bar)),
            Method::RdmaWrite => try_join!(self.fill(here, bar), self.write(there)),
        }?;
        Ok(())
    }

    /// The client sends the file in messages.
    async fn send(&self, mut file: Pieces) -> Result<()> {
        let mut before = None;
        while let Some(piece) = file.next()? {
            let sending = self.client.send(piece)?;
            // One more is under way meanwhile.
            if let Some(before) = before.replace(sending) {
                before.await?;
            }
        }
        if let Some(last) = before {
            last.await?;
        }
        Ok(())
    }

    /// The server compares the messages.
    async fn compare(&self, mut file: Pieces, bar: &ProgressBar) -> Result<()> {
        while let Some(piece) = file.next()? {
            let message = self.server.recv().await?;
            same(&message.into_bytes(), &piece, bar)?;
        }
        Ok(())
    }

    /// The client lends the file in its memory.
    async fn lend(&self, mut file: Pieces) -> Result<()> {
        while let Some(piece) = file.next()? {
            self.used(piece, Access::REMOTE_READ).await?;
        }
        Ok(())
    }

    /// The server reads the memory, and compares.
    async fn read(&self, mut file: Pieces, bar: &ProgressBar) -> Result<()> {
        while let Some(piece) = file.next()? {
            let memory = BufferDescriptorV1::from_bytes(&self.server.recv().await?.into_bytes())?;
            let into = BytesMut::zeroed(piece.len());
            let data = self.server.read(&[memory], 0, into).await?;
            let done = self.server.send_and_invalidate("read", memory.token.into());
            done?.await?;
            same(&data, &piece, bar)?;
        }
        Ok(())
    }

    /// The client lends empty memory, and compares what the server has written.
    async fn fill(&self, mut file: Pieces, bar: &ProgressBar) -> Result<()> {
        while let Some(piece) = file.next()? {
            let memory = BytesMut::zeroed(piece.len());
            let data = self.used(memory, Access::REMOTE_WRITE).await?;
            same(&data, &piece, bar)?;
        }
        Ok(())
    }

    /// The server writes the file to the memory.
    async fn write(&self, mut file: Pieces) -> Result<()> {
        while let Some(piece) = file.next()? {
            let memory = BufferDescriptorV1::from_bytes(&self.server.recv().await?.into_bytes())?;
            // The message is sent after the write, so it arrives when the data is in place.
            let writing = self.server.write(&[memory], 0, piece);
            let done = self
                .server
                .send_and_invalidate("written", memory.token.into());
            writing.await?;
            done?.await?;
        }
        Ok(())
    }

    /// Advertises memory of the client, and returns it when the server has used it and ended its registration.
    async fn used(&self, memory: BytesMut, access: Access) -> Result<BytesMut> {
        let access = access | Access::REMOTE_INVALIDATE;
        let region = self.client.register(memory, access);
        let region =
            region.map_err(|error| anyhow!("memory cannot be registered: {}", error.reason))?;
        let mut descriptor = BytesMut::new();
        region.descriptor().encode(&mut descriptor);
        self.client.send(descriptor)?.await?;
        // With Send with Invalidate, this message has ended the registration already.
        self.client.recv().await?;
        Ok(region.deregister().await?)
    }
}

fn same(arrived: &[u8], expected: &[u8], bar: &ProgressBar) -> Result<()> {
    ensure!(
        arrived == expected,
        "other bytes arrived than were sent, or the file changed meanwhile"
    );
    bar.inc(arrived.len() as u64);
    Ok(())
}

/// A file in pieces of one length, the last of which may be shorter.
struct Pieces {
    file: File,
    bytes: usize,
}

impl Pieces {
    fn open(path: &Path, bytes: usize) -> Result<Self> {
        let file = File::open(path).of_kind(Kind::File)?;
        Ok(Self { file, bytes })
    }

    fn next(&mut self) -> Result<Option<BytesMut>> {
        let mut piece = Vec::with_capacity(self.bytes);
        let mut part = (&mut self.file).take(self.bytes as u64);
        let read = block_in_place(|| part.read_to_end(&mut piece)).of_kind(Kind::File)?;
        Ok((read > 0).then(|| BytesMut::from(&piece[..])))
    }
}
