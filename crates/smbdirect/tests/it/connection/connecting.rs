//! Making and refusing connections.

use std::{future::poll_fn, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use smbdirect::{
    Access, BufferDescriptorV1, Config, ConnectError, ConnectFault, Connection, ConnectionError,
    IncomingListener, Listener, Message, SendError, Settings,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        provider::{AcceptRequest, Provider, ProviderListener},
        work::{Completion, Inline, ProviderErrorKind, WorkId, WorkRequest},
    },
    wire::{NegotiateResponse, Status},
};
use smbdirect_test::within;
use tokio::time::timeout;

use super::{Pair, pair};

over_every_provider! {
    connect_returns_what_failed addresses_are_tried_in_turn a_listener_takes_new_settings a_listener_is_a_stream
    every_call_converts_to_an_io_error each_connection_has_a_number
    each_peer_is_refused_or_accepted_with_settings
    the_acceptor_may_speak_first
    an_address_is_free_when_its_listener_is_dropped
}

/// The owner of an `IncomingListener` refuses a peer, drops one, and accepts one with its own settings.
async fn each_peer_is_refused_or_accepted_with_settings(provider: Arc<dyn Provider>) {
    let address = "127.0.0.1:0";
    let mut listener = IncomingListener::bind(&*provider, address).await.unwrap();
    let address = listener.local_addr();
    for refuses in [true, false] {
        let deciding = async {
            let incoming = listener.accept().await.unwrap();
            assert!(incoming.peer_addr().ip().is_loopback());
            if refuses {
                incoming.refuse();
            } else {
                drop(incoming);
            }
        };
        let connecting = Connection::connect(&*provider, address, Config::default());
        let (result, ()) = within(async { tokio::join!(connecting, deciding) }).await;
        let Err(ConnectError {
            fault: ConnectFault::Provider(error),
            ..
        }) = result
        else {
            panic!("a refused peer got a connection");
        };
        assert_eq!(error.kind, ProviderErrorKind::Rejected);
    }
    for max_read_write_size in [1 << 20, 2 << 20] {
        let mut settings = Settings::default();
        settings.max_read_write_size = max_read_write_size;
        let config = Config::new(settings);
        let accepting = async {
            let incoming = listener.accept().await.unwrap();
            incoming.accept(config.unwrap()).await
        };
        let connecting = Connection::connect(&*provider, address, Config::default());
        let (client, server) = within(async { tokio::join!(connecting, accepting) }).await;
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(client.negotiated().max_read_write_size, max_read_write_size);
        within(client.send("message").unwrap()).await.unwrap();
        let message = within(server.recv()).await.unwrap();
        assert_eq!(message.into_bytes(), "message");
    }
}

/// Accepts an RDMA connection, refuses the negotiation, and waits for the peer to disconnect.
async fn refuse_negotiation(listener: &mut dyn ProviderListener, status: Status) {
    let incoming = listener.accept().await.unwrap();
    let accepting = incoming.accept(AcceptRequest {
        private_data: Bytes::new(),
        receive: WorkRequest::Receive {
            id: WorkId(0),
            length: 512,
            count: 1,
        },
        peer_serves_reads: None,
    });
    let mut queue_pair = accepting.await.unwrap().queue_pair;
    loop {
        let completion = poll_fn(|context| {
            queue_pair.flush(context, u64::MAX);
            queue_pair.poll_completion(context)
        });
        match completion.await {
            Completion::Received { .. } => {
                let mut refusal = Vec::new();
                NegotiateResponse::refusal(status).encode(&mut refusal);
                queue_pair.post(WorkRequest::Send {
                    id: WorkId(1),
                    header: Inline::new(),
                    payload: refusal.into(),
                    invalidate: None,
                });
            }
            Completion::Disconnected(_) => return,
            _ => {}
        }
    }
}

//= SMBD-3.1.4.1-08 test
//= SMBD-3.1.4.1-10 test
async fn connect_returns_what_failed(provider: Arc<dyn Provider>) {
    let address = "127.0.0.1:0".parse().unwrap();
    let mut listener = provider.listen(address).await.unwrap();
    let address = listener.local_addr();
    let status = Status::INSUFFICIENT_RESOURCES;
    let connecting = Connection::connect(&*provider, address, Config::default());
    let refusing = refuse_negotiation(&mut *listener, status);
    let (result, ()) = within(async { tokio::join!(connecting, refusing) }).await;
    let refused = ConnectionError::Refused(status);
    let error = result.unwrap_err();
    assert_eq!(error.address, Some(address));
    assert_eq!(error.fault, ConnectFault::Negotiation(refused));
    // The port is free again, and no process listens on it.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let connecting = Connection::connect(&*provider, address, Config::default());
    let Err(ConnectError {
        fault: ConnectFault::Provider(error),
        ..
    }) = within(connecting).await
    else {
        panic!("a process listens on {address}");
    };
    assert_eq!(error.kind, ProviderErrorKind::Refused);
}

/// The Negotiation Timer covers the time before there is an RDMA connection.
//= SMBD-3.1.4.1-06 test
#[tokio::test]
async fn connecting_takes_no_longer_than_the_negotiation_timer() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = Settings::default();
    settings.active_negotiation_timeout = Duration::from_millis(50);
    let config = Config::new(settings);
    let mut iwarp = IwarpConfig::default();
    iwarp.connect_timeout = Duration::MAX;
    let provider = Iwarp::new(iwarp);
    let address = silent.local_addr().unwrap();
    let connecting = Connection::connect(&provider, address, config.unwrap());
    // The error differs from the error for a peer that does not negotiate.
    let error = within(connecting).await.unwrap_err();
    assert!(
        matches!(&error, ConnectError { fault: ConnectFault::Provider(error), .. } if error.kind == ProviderErrorKind::TimedOut),
        "{error:?}"
    );
}

//= SMBD-3.1.7.2-03 test
//= SMBD-3.1.7.2-07 test
async fn the_acceptor_may_speak_first(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    drop(server.send("welcome").unwrap());
    assert_eq!(within(client.recv()).await.unwrap().into_bytes(), "welcome");
}

async fn an_address_is_free_when_its_listener_is_dropped(provider: Arc<dyn Provider>) {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let bind = async |address| Listener::bind(&*provider, address, Config::default()).await;
    let first = bind(any).await.unwrap();
    let address = first.local_addr();
    drop(first);
    // Peers may be in any state of their connection.
    for _ in 0..20 {
        let mut listener = bind(address).await.unwrap();
        let connecting = Connection::connect(&*provider, address, Config::default());
        let (connected, accepted) = tokio::join!(connecting, listener.accept());
        let (connected, _accepted) = (connected.unwrap(), accepted.unwrap());
        let connecting = Connection::connect(&*provider, address, Config::default());
        let _ = timeout(Duration::from_micros(100), connecting).await;
        drop(listener);
        connected.keepalive().await.unwrap();
    }
    let incoming = IncomingListener::bind(&*provider, address).await.unwrap();
    drop(incoming);
    // A listener may be dropped elsewhere, while its runtime runs or after it has ended.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for ends in [false, true] {
        let other = provider.clone();
        let listening = async move { Listener::bind(&*other, address, Config::default()).await };
        let listener = within(runtime.spawn(listening)).await.unwrap().unwrap();
        drop(listener);
        drop(bind(address).await.unwrap());
        if ends {
            break;
        }
    }
    runtime.shutdown_background();
}

/// A host name is looked up, and each of several addresses is tried.
async fn addresses_are_tried_in_turn(provider: Arc<dyn Provider>) {
    let bound = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unused = bound.local_addr().unwrap();
    drop(bound);
    // An address of the documentation, which no machine has.
    let elsewhere: SocketAddr = "192.0.2.1:0".parse().unwrap();
    let here: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let is_loopback = provider.attributes().name == "loopback";
    // Loopback has every address.
    let candidates = if is_loopback {
        [here, here]
    } else {
        [elsewhere, here]
    };
    let bound = Listener::bind(&*provider, &candidates[..], Config::default());
    let mut listener = within(bound).await.unwrap();
    let address = listener.local_addr();
    assert_eq!(address.ip(), here.ip());
    let both = [unused, address];
    let named = format!("localhost:{}", address.port());
    let connecting = async {
        let of_slice = Connection::connect(&*provider, &both[..], Config::default()).await;
        let of_name = Connection::connect(&*provider, named, Config::default()).await;
        let port = address.port();
        let of_pair = Connection::connect(&*provider, ("127.0.0.1", port), Config::default()).await;
        [of_slice, of_name, of_pair].map(|connected| connected.unwrap().peer_addr())
    };
    let accepting = async {
        for _ in 0..3 {
            listener.accept().await.unwrap();
        }
    };
    let (connected, ()) = within(async { tokio::join!(connecting, accepting) }).await;
    assert_eq!(connected, [address; 3]);

    let none: &[SocketAddr] = &[];
    let failures = [
        (
            Connection::connect(&*provider, none, Config::default()).await,
            ProviderErrorKind::Local,
        ),
        (
            Connection::connect(&*provider, "a.invalid:5445", Config::default()).await,
            ProviderErrorKind::Address,
        ),
    ];
    for (failed, kind) in failures {
        let Err(ConnectError {
            fault: ConnectFault::Provider(error),
            ..
        }) = failed
        else {
            panic!("{failed:?}");
        };
        assert_eq!(error.kind, kind, "{error}");
    }
    let failed = Connection::connect(&*provider, &[unused][..], Config::default()).await;
    let Err(ConnectError {
        fault: ConnectFault::Provider(error),
        ..
    }) = failed
    else {
        panic!("{failed:?}");
    };
    assert_eq!(error.kind, ProviderErrorKind::Refused, "{error}");
}

async fn a_listener_is_a_stream(provider: Arc<dyn Provider>) {
    let mut listener = Listener::bind(&*provider, "127.0.0.1:0", Config::default())
        .await
        .unwrap();
    let connecting = Connection::connect(&*provider, listener.local_addr(), Config::default());
    let next = poll_fn(|context| Pin::new(&mut listener).poll_next(context));
    let (client, server) = within(async { tokio::join!(connecting, next) }).await;
    let (client, server) = (client.unwrap(), server.unwrap().unwrap());
    assert_eq!(client.local_addr(), server.peer_addr());
}

/// A program with one type of error uses `?` on every call.
async fn every_call_converts_to_an_io_error(provider: Arc<dyn Provider>) {
    async fn program(provider: &dyn Provider) -> io::Result<()> {
        let mut listener = Listener::bind(provider, "127.0.0.1:0", Config::default()).await?;
        let at = listener.local_addr();
        let config = Config::new(Settings::default())?;
        let client = Connection::connect(provider, at, config).await?;
        let server = listener.accept().await?;
        client.send(String::from("a string"))?.await?;
        client.send([1, 2, 3])?.await?;
        client.send(b"array")?.await?;
        client.try_send(vec![4])?.await?;
        for expected in [&b"a string"[..], &[1, 2, 3], b"array", &[4]] {
            assert_eq!(server.recv().await?.into_bytes(), expected);
        }
        let region = client.register(BytesMut::zeroed(8), Access::REMOTE_WRITE)?;
        let to = [BufferDescriptorV1::from_bytes(
            &region.descriptor().to_bytes(),
        )?];
        server.write(&to, 0, vec![1; 4]).await?;
        server.write(&to, 4, "text").await?;
        server.send("written")?.await?;
        client.recv().await?;
        assert_eq!(region.deregister().await?, &b"\x01\x01\x01\x01text"[..]);
        client.close().await?;
        server.close().await?;
        Ok(())
    }
    within(program(&*provider)).await.unwrap();
    // A function that sends and receives can return one error of this library, too.
    async fn ask(connection: &Connection) -> Result<Message, SendError> {
        connection.send("question")?.await?;
        Ok(connection.recv().await?)
    }
    let Pair { client, server, .. } = pair(provider).await;
    server.abort();
    let error = io::Error::from(within(ask(&client)).await.unwrap_err());
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

async fn each_connection_has_a_number(provider: Arc<dyn Provider>) {
    let one = pair(provider.clone()).await;
    let other = pair(provider).await;
    let numbers = [&one.client, &one.server, &other.client, &other.server].map(Connection::id);
    for (at, number) in numbers.iter().enumerate() {
        assert!(!numbers[..at].contains(number), "{numbers:?}");
    }
    assert_eq!(one.client.clone().id(), one.client.id());
}

/// New settings are those of the peers that connect from now on.
async fn a_listener_takes_new_settings(provider: Arc<dyn Provider>) {
    let mut listener = Listener::bind(&*provider, "127.0.0.1:0", Config::default())
        .await
        .unwrap();
    let address = listener.local_addr();
    let mut sizes = Vec::new();
    for size in [1 << 20, 1 << 18, 1 << 19] {
        let mut settings = Settings::default();
        settings.max_fragmented_receive_size = size;
        let config = Config::new(settings);
        listener.set_config(config.unwrap());
        let connecting = Connection::connect(&*provider, address, Config::default());
        let (client, server) = within(async { tokio::join!(connecting, listener.accept()) }).await;
        let (client, _server) = (client.unwrap(), server.unwrap());
        sizes.push(client.negotiated().max_fragmented_send_size);
    }
    assert_eq!(sizes, [1 << 20, 1 << 18, 1 << 19]);
}

/// All clients connect in one poll, before the listener can accept the first.
#[tokio::test]
async fn as_many_clients_connect_at_once_as_there_are() {
    let provider = Loopback::new();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(&provider, any, Config::default())
        .await
        .unwrap();
    let address = listener.local_addr();
    let mut connecting = tokio::task::JoinSet::new();
    for _ in 0..500 {
        let provider = provider.clone();
        connecting.spawn(async move {
            let connecting = Connection::connect(&provider, address, Config::default());
            connecting.await.map(drop)
        });
    }
    for _ in 0..500 {
        within(listener.accept()).await.unwrap();
    }
    for connected in within(connecting.join_all()).await {
        connected.unwrap();
    }
}
