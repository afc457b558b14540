//! Registered buffers, and reads and writes of the peer's memory.

use bytes::{Bytes, BytesMut};

use super::{Connection, MemoryRegion, Reading, RegisterAllError, Writing};
use crate::{
    rdma::{
        memory::{RegisterError, Registration},
        work::Access,
    },
    wire::BufferDescriptorV1,
};

impl Connection {
    /// Registers `buffer` for the peer, with the rights in `access` (3.1.4.3).
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use bytes::BytesMut;
    /// # use smbdirect::Access;
    /// let region = client.register(BytesMut::zeroed(1 << 20), Access::REMOTE_WRITE)?;
    /// client.send(region.descriptor().to_bytes())?.await?; // The peer may write from now on.
    /// let buffer = region.deregister().await?; // It no longer may.
    /// assert_eq!(buffer.len(), 1 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the connection has ended or is closing, or if the provider refuses the registration. The error returns
    /// the buffer.
    pub fn register(
        &self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.shared().with(|state| {
            //= SMBD-3.1.4.3-03
            let registration = state.register(buffer, access)?;
            Ok(self.region(registration))
        })
    }

    /// Registers buffers that form one range for the peer, either all or none of them (3.1.4.3). Each
    /// becomes a region of its own, in order, and the list of their descriptors is the range. To register
    /// a buffer of 4 GiB or more, split it and pass the parts to this method.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use bytes::BytesMut;
    /// # use smbdirect::Access;
    /// let buffers = [BytesMut::zeroed(4), BytesMut::zeroed(4)];
    /// let mut regions = client.register_all(buffers, Access::REMOTE_WRITE)?;
    /// let range: Vec<_> = regions.iter().map(|region| region.descriptor()).collect();
    /// server.write(&range, 2, "data").await?; // The end of the first buffer, and the begin of the second.
    /// server.send("written")?.await?;
    ///
    /// client.recv().await?;
    /// assert_eq!(regions.remove(0).deregister().await?, "\0\0da");
    /// assert_eq!(regions.remove(0).deregister().await?, "ta\0\0");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if one of the buffers cannot be registered. The registrations made by this call are then
    /// ended, and the error returns the buffers.
    pub fn register_all(
        &self,
        buffers: impl IntoIterator<Item = BytesMut>,
        access: Access,
    ) -> Result<Vec<MemoryRegion>, RegisterAllError> {
        // The iterator is the caller's code and may call the connection: run it without the lock.
        let buffers: Vec<_> = buffers.into_iter().collect();
        self.shared().with(|state| {
            let mut rest = buffers.into_iter();
            let mut registered: Vec<Registration> = Vec::new();
            //= SMBD-3.1.4.3-02
            while let Some(buffer) = rest.next() {
                match state.register(buffer, access) {
                    Ok(registration) => registered.push(registration),
                    Err(error) => {
                        let index = registered.len();
                        //= SMBD-3.1.4.3-04
                        let mut buffers: Vec<_> = registered
                            .iter()
                            .filter_map(|registration| state.withdraw(registration.address.token))
                            .collect();
                        buffers.push(error.buffer);
                        buffers.extend(rest);
                        return Err(RegisterAllError {
                            buffers,
                            index,
                            reason: error.reason,
                        });
                    }
                }
            }
            Ok(registered
                .into_iter()
                .map(|registration| self.region(registration))
                .collect())
        })
    }

    fn region(&self, registration: Registration) -> MemoryRegion {
        MemoryRegion::new(self.shared().clone(), registration)
    }

    /// Fills `into` by RDMA Read (3.1.4.6), from `offset` bytes into the range of the peer's descriptors.
    /// This call submits the read, and reads finish in the order of the calls. The future resolves to the
    /// filled buffer.
    ///
    /// A read that is longer than MaxReadWriteSize is done in several operations. A descriptor of memory
    /// that the peer has not registered, or has deregistered, ends the connection, as RDMA requires. A
    /// range outside the descriptors is refused here.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use bytes::BytesMut;
    /// # use smbdirect::Access;
    /// let region = client.register(BytesMut::from("some data"), Access::REMOTE_READ)?;
    /// let descriptors = [region.descriptor()]; // The client sends them in a message.
    /// let data = server.read(&descriptors, 5, BytesMut::zeroed(4)).await?;
    /// assert_eq!(data, "data");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future drops the buffer once the read is over. It does not recall the read.
    ///
    /// # Errors
    /// The future resolves to the fault, with the buffer.
    pub fn read(&self, from: &[BufferDescriptorV1], offset: u64, into: BytesMut) -> Reading {
        self.shared().with(|state| {
            let index = state.submit_read(from, offset, into);
            Reading::new(self.shared().clone(), index)
        })
    }

    /// Writes `data` by RDMA Write (3.1.4.5) into the peer's memory, from `offset` bytes into the range of
    /// its descriptors `to`. This call submits the write. The future resolves when `data` was sent, in the sense of
    /// [`send`](Self::send). It is in place before the peer receives any message that is sent after this call.
    ///
    /// A write that is longer than MaxReadWriteSize is done in several operations. A descriptor of memory
    /// that the peer has not registered, or has deregistered, ends the connection, as RDMA requires. The
    /// future may have resolved by then: [`recv`](Self::recv) and [`closed`](Self::closed) return the
    /// error.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use bytes::BytesMut;
    /// # use smbdirect::Access;
    /// let region = client.register(BytesMut::zeroed(9), Access::REMOTE_WRITE)?;
    /// let descriptors = [region.descriptor()]; // The client sends them in a message.
    /// server.write(&descriptors, 0, "some ").await?;
    /// server.write(&descriptors, 5, "data").await?;
    /// server.send("written")?.await?;
    ///
    /// client.recv().await?;
    /// assert_eq!(region.deregister().await?, "some data");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future does not recall the write.
    ///
    /// # Errors
    /// The future resolves to the fault.
    pub fn write(&self, to: &[BufferDescriptorV1], offset: u64, data: impl Into<Bytes>) -> Writing {
        let data = data.into();
        self.shared().with(|state| {
            let index = state.submit_write(to, offset, data);
            Writing::new(self.shared().clone(), index)
        })
    }
}
