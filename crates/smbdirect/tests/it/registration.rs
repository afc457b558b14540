//! Registration and deregistration that the provider refuses (3.1.4.3, 3.1.4.4).

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::BytesMut;
use smbdirect::{
    Access, BufferDescriptorV1, Config, Connection, Listener,
    rdma::{
        loopback::Loopback,
        memory::{DeregisterError, RegisterError, RegisterFault, Registration},
        provider::{self, BoxFuture, ConnectRequest, Connected, Provider, QueuePair},
        work::{Completion, ProviderError, Room, Teardown, Token, WorkRequest},
    },
};
use smbdirect_test::within;

/// The registrations that were made.
type Registered = Arc<Mutex<Vec<Registration>>>;

/// A loopback provider whose connecting end refuses to register a buffer of one byte, and to deregister a
/// buffer of two bytes.
#[derive(Debug)]
struct Refusing {
    inner: Loopback,
    registered: Registered,
}

impl Provider for Refusing {
    fn attributes(&self) -> provider::ProviderAttributes {
        self.inner.attributes()
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        Box::pin(async {
            let mut connected = self.inner.connect(request).await?;
            connected.queue_pair = Box::new(RefusingPair {
                inner: connected.queue_pair,
                registered: self.registered.clone(),
            });
            Ok(connected)
        })
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn provider::ProviderListener>, ProviderError>> {
        self.inner.listen(address)
    }
}

#[derive(Debug)]
struct RefusingPair {
    inner: Box<dyn QueuePair>,
    registered: Registered,
}

impl QueuePair for RefusingPair {
    fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        if buffer.len() == 1 {
            let reason = RegisterFault::Provider(12);
            return Err(RegisterError { buffer, reason });
        }
        let registration = self.inner.register(buffer, access)?;
        self.registered.lock().unwrap().push(registration);
        Ok(registration)
    }

    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        let buffer = self.inner.deregister(token)?;
        if buffer.len() == 2 {
            return Err(DeregisterError::Unknown);
        }
        Ok(buffer)
    }

    fn room(&self) -> Room {
        self.inner.room()
    }

    fn post(&mut self, work: WorkRequest) {
        self.inner.post(work);
    }

    fn flush(&mut self, context: &mut Context<'_>, until: u64) {
        self.inner.flush(context, until);
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        self.inner.poll_completion(context)
    }

    fn needs_poll(&self) -> bool {
        self.inner.needs_poll()
    }

    fn disconnect(&mut self, how: Teardown) {
        self.inner.disconnect(how);
    }
}

/// Returns both ends of such a connection, the registrations of the first, and the listener.
async fn pair() -> (Connection, Connection, Registered, Listener) {
    let registered = Registered::default();
    let provider = Arc::new(Refusing {
        inner: Loopback::new(),
        registered: registered.clone(),
    });
    let address = "127.0.0.1:0";
    let config = Config::default();
    let mut listener = Listener::bind(&*provider, address, config.clone())
        .await
        .unwrap();
    let (client, server) = tokio::join!(
        Connection::connect(&*provider, listener.local_addr(), config),
        listener.accept()
    );
    (client.unwrap(), server.unwrap(), registered, listener)
}

//= SMBD-3.1.4.3-03 test
//= SMBD-3.1.4.3-04 test
#[tokio::test]
async fn register_all_registers_all_buffers_or_none() {
    // `index` is the position of the buffer that is refused.
    for index in 0..4 {
        let (client, server, registered, _listener) = pair().await;
        let length = |at| if at == index { 1 } else { 100 };
        let buffers: Vec<_> = (0..4)
            .map(|at| BytesMut::from(&vec![at as u8; length(at)][..]))
            .collect();
        let error = client
            .register_all(buffers.clone(), Access::REMOTE_READ)
            .unwrap_err();
        assert_eq!(error.buffers, buffers);
        assert_eq!(error.index, index);
        assert_eq!(error.reason, RegisterFault::Provider(12));
        assert_eq!(client.stats().regions, 0);

        // Even a peer that knows the tokens cannot read the buffers.
        let were = registered.lock().unwrap().clone();
        assert_eq!(were.len(), index);
        if let Some(Registration { address, length }) = were.last() {
            let descriptor = BufferDescriptorV1 {
                offset: address.offset,
                token: address.token.0,
                length: *length,
            };
            let read = server.read(&[descriptor], 0, BytesMut::zeroed(100));
            within(read).await.unwrap_err();
        }
    }
}

/// The provider also refuses to deregister the first buffer: it is lost, and no other buffer is.
//= SMBD-3.1.4.3-04 test
#[tokio::test]
async fn register_all_loses_only_a_buffer_that_cannot_be_deregistered() {
    let (client, _server, _, _listener) = pair().await;
    let buffers = [2, 3, 1, 4].map(BytesMut::zeroed);
    let error = client.register_all(buffers, Access::REMOTE_READ);
    let error = error.unwrap_err();
    let lengths: Vec<_> = error.buffers.iter().map(BytesMut::len).collect();
    assert_eq!((lengths, error.index), (vec![3, 1, 4], 2));
    assert_eq!(client.stats().regions, 0);
}

//= SMBD-3.1.4.4-02 test
#[tokio::test]
async fn failed_deregistration_is_reported() {
    let (client, _server, _, _listener) = pair().await;
    let regions = client.register_all(
        [2, 3].map(BytesMut::zeroed),
        Access::REMOTE_READ | Access::REMOTE_WRITE,
    );
    let [bad, good] = <[_; 2]>::try_from(regions.unwrap()).unwrap();
    let error = within(bad.deregister()).await.unwrap_err();
    assert_eq!(error, DeregisterError::Unknown);
    assert_eq!(within(good.deregister()).await.unwrap().len(), 3);
    assert_eq!(client.stats().regions, 0);
}
