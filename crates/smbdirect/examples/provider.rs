//! A provider of one's own: it adds to another provider the count of what is posted.
//!
//! ```sh
//! cargo run --example provider
//! ```
//!
//! A provider implements three traits. `Provider` connects and listens, `ProviderListener` returns the peers that ask
//! for a connection, and `QueuePair` takes work requests and returns completions. `docs/providers.md` lists the rules,
//! and a test runs the whole suite of providers with this one.

use std::{
    error::Error,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::BytesMut;
use smbdirect::{
    Access, Config, Connection, Listener, Loopback, Provider, RegisterError, Token,
    rdma::{
        memory::{DeregisterError, Registration},
        provider::{
            Admission, BoxFuture, ConnectRequest, Connected, IncomingRequest, ProviderAttributes,
            ProviderListener, QueuePair, Usage,
        },
        work::{Completion, ProviderError, Room, Teardown, WorkRequest},
    },
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{} work requests were posted", run().await?);
    Ok(())
}

/// Exchanges a message over the provider, and returns the number of work requests that this took.
pub(crate) async fn run() -> Result<u64, Box<dyn Error>> {
    let provider = Counting::new(Loopback::new());
    let mut listener = Listener::bind(&provider, "127.0.0.1:0", Config::default()).await?;
    let connecting = Connection::connect(&provider, listener.local_addr(), Config::default());
    let (client, server) = tokio::join!(connecting, listener.accept());
    let (client, server) = (client?, server?);
    client.send("hello")?.await?;
    assert_eq!(server.recv().await?.into_bytes(), "hello");
    Ok(provider.posted())
}

/// A provider that counts the work requests of all its connections.
#[derive(Debug)]
pub(crate) struct Counting<P> {
    inner: P,
    posted: Arc<AtomicU64>,
}

impl<P: Provider> Counting<P> {
    pub(crate) fn new(inner: P) -> Self {
        Self {
            inner,
            posted: Arc::default(),
        }
    }

    pub(crate) fn posted(&self) -> u64 {
        self.posted.load(Ordering::Relaxed)
    }
}

impl<P: Provider> Provider for Counting<P> {
    fn attributes(&self) -> ProviderAttributes {
        ProviderAttributes {
            name: "counting",
            ..self.inner.attributes()
        }
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        Box::pin(async {
            let connected = self.inner.connect(request).await?;
            Ok(count(connected, &self.posted))
        })
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>> {
        Box::pin(async move {
            let inner = self.inner.listen(address).await?;
            let posted = self.posted.clone();
            Ok(Box::new(CountingListener { inner, posted }) as Box<dyn ProviderListener>)
        })
    }
}

#[derive(Debug)]
struct CountingListener {
    inner: Box<dyn ProviderListener>,
    posted: Arc<AtomicU64>,
}

impl ProviderListener for CountingListener {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn set_admission(&mut self, admission: Admission) {
        self.inner.set_admission(admission);
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<IncomingRequest, ProviderError>> {
        Box::pin(async {
            let mut incoming = self.inner.accept().await?;
            let (place, posted) = (incoming.place.take(), self.posted.clone());
            let mut counted = IncomingRequest::new(
                incoming.peer_addr,
                incoming.private_data.clone(),
                incoming.knows_read_depths,
                |answer| async move { Ok(count(incoming.accept(answer).await?, &posted)) },
            );
            counted.place = place;
            Ok(counted)
        })
    }
}

/// Puts the counter between a connection and its queue pair.
fn count(connected: Connected, posted: &Arc<AtomicU64>) -> Connected {
    Connected {
        queue_pair: Box::new(CountingQueuePair {
            inner: connected.queue_pair,
            posted: posted.clone(),
        }),
        ..connected
    }
}

#[derive(Debug)]
struct CountingQueuePair {
    inner: Box<dyn QueuePair>,
    posted: Arc<AtomicU64>,
}

impl QueuePair for CountingQueuePair {
    fn room(&self) -> Room {
        self.inner.room()
    }

    fn post(&mut self, work: WorkRequest) {
        self.posted.fetch_add(1, Ordering::Relaxed);
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

    // The trait has defaults for these three, which are for a provider without such abilities. What stands in front of
    // another queue pair passes them on: the driver of a connection computes the limit of a flush from `usage`, and ends
    // a connection that cannot change its runtime.

    fn busy_poll(&mut self) -> bool {
        self.inner.busy_poll()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn change_runtime(&mut self) -> bool {
        self.inner.change_runtime()
    }

    fn disconnect(&mut self, how: Teardown) {
        self.inner.disconnect(how);
    }

    fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        self.inner.register(buffer, access)
    }

    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        self.inner.deregister(token)
    }
}
