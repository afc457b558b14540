//! Providers that fail in the ways that no network does on demand.

use std::{future::pending, net::SocketAddr, pin::Pin, time::Duration};

use futures_core::Stream;
use smbdirect::{
    Config, ConnectError, ConnectFault, Connection, IncomingListener, Listener, Loopback, Settings,
    rdma::{
        provider::{
            BoxFuture, ConnectRequest, Connected, IncomingRequest, Provider, ProviderAttributes,
            ProviderListener,
        },
        work::{ProviderError, ProviderErrorKind},
    },
};
use smbdirect_test::within;
use tokio::time::{Instant, sleep};

/// A provider whose peers do not answer at port 0, and fail with one of these errors at each other port.
#[derive(Debug)]
struct Failing;

const KINDS: [ProviderErrorKind; 4] = [
    ProviderErrorKind::TimedOut,
    ProviderErrorKind::Local,
    ProviderErrorKind::Refused,
    ProviderErrorKind::Protocol,
];

impl Failing {
    fn error(address: SocketAddr) -> ProviderError {
        let kind = KINDS[usize::from(address.port())];
        ProviderError::new(kind, format!("{kind:?}"))
    }
}

impl Provider for Failing {
    fn attributes(&self) -> ProviderAttributes {
        Loopback::new().attributes()
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        Box::pin(async move {
            if request.address.port() == 0 {
                return pending().await;
            }
            Err(Self::error(request.address))
        })
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>> {
        Box::pin(async move { Err(Self::error(address)) })
    }
}

fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
    let address = |&port| SocketAddr::from(([192, 0, 2, 1], port));
    ports.iter().map(address).collect()
}

async fn connect(ports: &[u16], config: Config) -> ProviderError {
    let addresses = addresses(ports);
    match Connection::connect(&Failing, &addresses[..], config).await {
        Err(ConnectError {
            fault: ConnectFault::Provider(error),
            ..
        }) => error,
        other => panic!("{other:?}"),
    }
}

//= SMBD-3.1.4.1-06 test
#[tokio::test(start_paused = true)]
async fn several_addresses_take_no_longer_than_the_negotiation_timer() {
    let mut settings = Settings::default();
    settings.active_negotiation_timeout = Duration::from_secs(60);
    let config = Config::new(settings).unwrap();
    let begun = Instant::now();
    let error = connect(&[0, 0, 0], config.clone()).await;
    assert_eq!(error.kind, ProviderErrorKind::TimedOut, "{error}");
    assert_eq!(begun.elapsed().as_secs(), 60);
    // What has failed before says more than that the time is over.
    let error = connect(&[2, 0], config).await;
    assert_eq!(error.kind, ProviderErrorKind::Refused, "{error}");
}

#[tokio::test]
async fn the_error_of_several_addresses_is_the_one_that_says_most() {
    for (ports, expected) in [
        (&[1, 2, 3, 1][..], ProviderErrorKind::Refused),
        (&[2, 1], ProviderErrorKind::Refused),
        (&[3, 1], ProviderErrorKind::Protocol),
    ] {
        let error = connect(ports, Config::default()).await;
        assert_eq!(error.kind, expected, "{ports:?}");
    }
    let error = connect(&[], Config::default()).await;
    assert_eq!(error.kind, ProviderErrorKind::Local, "{error}");
    let listening = IncomingListener::bind(&Failing, &addresses(&[3, 2])[..]).await;
    assert_eq!(listening.unwrap_err().kind, ProviderErrorKind::Refused);
}

/// A provider that cannot listen any more after the first peer, which it accepts late.
#[derive(Debug)]
struct Once(Loopback);

#[derive(Debug)]
struct OnceListener {
    inner: Box<dyn ProviderListener>,
    has_accepted: bool,
}

impl Provider for Once {
    fn attributes(&self) -> ProviderAttributes {
        self.0.attributes()
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        self.0.connect(request)
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>> {
        Box::pin(async move {
            let inner = self.0.listen(address).await?;
            let listener = OnceListener {
                inner,
                has_accepted: false,
            };
            Ok(Box::new(listener) as Box<dyn ProviderListener>)
        })
    }
}

impl ProviderListener for OnceListener {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<IncomingRequest, ProviderError>> {
        Box::pin(async {
            if self.has_accepted {
                let what = "the device is gone";
                return Err(ProviderError::new(ProviderErrorKind::Local, what));
            }
            let incoming = self.inner.accept().await?;
            self.has_accepted = true;
            let (peer_addr, private_data) = (incoming.peer_addr, incoming.private_data.clone());
            Ok(IncomingRequest::new(
                peer_addr,
                private_data,
                true,
                |answer| async move {
                    sleep(Duration::from_millis(100)).await;
                    incoming.accept(answer).await
                },
            ))
        })
    }
}

/// A peer that negotiates when the listener fails does not become an item after the error.
#[tokio::test]
async fn nothing_follows_the_error_of_a_listener() {
    let provider = Once(Loopback::new());
    let bound = Listener::bind(&provider, "127.0.0.1:0", Config::default());
    let mut listener = bound.await.unwrap();
    let connecting = Connection::connect(&provider, listener.local_addr(), Config::default());
    let items = async {
        let mut next = async || {
            std::future::poll_fn(|context| Pin::new(&mut listener).poll_next(context)).await
        };
        (next().await, next().await)
    };
    let (connected, (error, end)) = within(async { tokio::join!(connecting, items) }).await;
    assert_eq!(&*error.unwrap().unwrap_err().what, "the device is gone");
    assert!(end.is_none(), "{end:?}");
    connected.unwrap_err();
    assert!(within(listener.accept()).await.is_err());
}
