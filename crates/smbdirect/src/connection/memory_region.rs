//! Buffers that the peer can read or write.

use std::sync::Arc;

use bytes::BytesMut;

use crate::{
    driver::{Condition, Shared},
    rdma::{
        memory::{DeregisterError, Registration},
        work::Token,
    },
    wire::BufferDescriptorV1,
};

/// A buffer that is registered for the peer (3.1.4.3). Dropping it ends the registration.
#[derive(Debug)]
pub struct MemoryRegion {
    shared: Arc<Shared>,
    registration: Registration,
    /// Whether the registration still has to be ended.
    owned: bool,
}

impl MemoryRegion {
    pub(super) fn new(shared: Arc<Shared>, registration: Registration) -> Self {
        Self {
            shared,
            registration,
            owned: true,
        }
    }

    /// Returns the descriptor that the peer needs to use the buffer. Send it in a message of the upper
    /// layer.
    ///
    /// ```no_run
    /// # async fn example(region: smbdirect::MemoryRegion, connection: smbdirect::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// connection.send(region.descriptor().to_bytes())?.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn descriptor(&self) -> BufferDescriptorV1 {
        let Registration { address, length } = self.registration;
        //= SMBD-3.1.4.3-05
        BufferDescriptorV1 {
            offset: address.offset,
            token: address.token.0,
            length,
        }
    }

    /// Returns the token that the peer can invalidate.
    ///
    /// ```no_run
    /// # async fn example(region: smbdirect::MemoryRegion, connection: smbdirect::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// if connection.recv().await?.invalidated_token() == Some(region.token()) {
    ///     println!("the peer has ended its access");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub const fn token(&self) -> Token {
        self.registration.address.token
    }

    /// Ends the registration (3.1.4.4), and returns the buffer when no queued work reads from it any
    /// more. The peer loses its access with the first poll of the future. A registration that the peer
    /// has invalidated is ended the same way.
    ///
    /// ```no_run
    /// # async fn example(region: smbdirect::MemoryRegion) -> Result<(), Box<dyn std::error::Error>> {
    /// let buffer = region.deregister().await?;
    /// println!("{} bytes, which the peer cannot access any more", buffer.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future also ends the registration, even if it was never polled, and drops the buffer.
    ///
    /// # Errors
    /// Fails if the buffer was lost when the runtime stopped.
    pub async fn deregister(mut self) -> Result<BytesMut, DeregisterError> {
        let token = self.token();
        let shared = self.shared.clone();
        let result = shared
            .wait(Condition::Release, |state| state.deregister(token))
            .await;
        self.owned = false;
        result
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.owned {
            let token = self.token();
            self.shared.with(|state| state.orphan(token));
        }
    }
}
