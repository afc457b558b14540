//! A slow receiver loses nothing: its application pauses for longer than every credit timer.

use std::{net::UdpSocket, sync::Arc, time::Duration};

use smbdirect::{
    Connection, ConnectionError, Roce, RoceConfig, Settings, TrySendError, engine::Expired,
    rdma::provider::Provider,
};
use smbdirect_test::within;
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{Pair, bytes, pair_with};

over_every_provider! {
    a_pause_of_the_receiver_loses_nothing
    a_pause_loses_nothing_of_a_stream
    several_senders_wait_for_a_slow_receiver
    messages_that_are_given_up_are_no_graceful_end
}

const CREDIT_GRANT_TIMEOUT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(1200);

/// Returns settings with a short Send Credit Grant Timer and a small receive buffer.
fn impatient() -> Settings {
    let mut settings = Settings::default();
    settings.credit_grant_timeout = Some(CREDIT_GRANT_TIMEOUT);
    settings.send_credit_target = 20;
    settings.receive_credit_max = 20;
    settings.receive_buffer = Some(30 * 8192);
    settings
}

/// Receives `count` messages of `length` bytes.
async fn receive(connection: &Connection, count: usize, length: usize) {
    for number in 0..count {
        let message = within(connection.recv()).await;
        let message = message.unwrap_or_else(|error| panic!("message {number}: {error}"));
        assert!(message.into_bytes() == bytes(length), "message {number}");
    }
}

/// Both ends send until they are not ready, and take messages only after the pause.
async fn a_pause_of_the_receiver_loses_nothing(provider: Arc<dyn Provider>) {
    const COUNT: usize = 20;
    for length in [1, 8112, 8113, 100_000, 1 << 20] {
        let Pair { client, server, .. } =
            pair_with(provider.clone(), impatient(), impatient()).await;
        let send = |connection: Connection| async move {
            for _ in 0..COUNT {
                connection.ready().await.unwrap();
                drop(connection.send(bytes(length)).unwrap());
            }
        };
        let senders = [&client, &server].map(|end| tokio::spawn(send(end.clone())));
        for end in [&client, &server] {
            assert!(timeout(PAUSE, end.closed()).await.is_err(), "{length} B");
        }
        let (a, b) = (
            receive(&client, COUNT, length),
            receive(&server, COUNT, length),
        );
        tokio::join!(a, b);
        for sender in senders {
            within(sender).await.unwrap();
        }
        within(client.close()).await.unwrap();
    }
}

async fn a_pause_loses_nothing_of_a_stream(provider: Arc<dyn Provider>) {
    const COUNT: usize = 20;
    let length = 300_000;
    let Pair { client, server, .. } = pair_with(provider, impatient(), impatient()).await;
    let writer = tokio::spawn(async move {
        let mut stream = client.into_stream();
        for _ in 0..COUNT {
            stream.write_u32(length as u32).await.unwrap();
            stream.write_all(&bytes(length)).await.unwrap();
        }
        stream.shutdown().await.unwrap();
    });
    assert!(timeout(PAUSE, server.closed()).await.is_err());
    receive(&server, COUNT, length).await;
    within(writer).await.unwrap();
}

/// A sender that does not wait for `ready` is ended by its timer. The receiver gets what was sent, and sees that more was
/// to come, also if the last message that arrived is whole.
async fn messages_that_are_given_up_are_no_graceful_end(provider: Arc<dyn Provider>) {
    for length in [8112, 100_000] {
        let Pair { client, server, .. } =
            pair_with(provider.clone(), impatient(), impatient()).await;
        let message = bytes(length);
        let send = |_| client.send(message.clone()).unwrap();
        let sendings: Vec<_> = (0..100).map(send).collect();
        let starved = ConnectionError::TimedOut(Expired::SendCreditGrant);
        assert_eq!(within(client.closed()).await, starved, "{length} B");
        let mut sent = 0;
        for sending in sendings {
            sent += usize::from(within(sending).await.is_ok());
        }
        assert!(sent < 100);
        receive(&server, sent, length).await;
        let end = loop {
            match within(server.recv()).await {
                Ok(received) => assert!(received.into_bytes() == message),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(end, ConnectionError::Provider(_)),
            "{length} B: {end}"
        );
        assert!(end.is_retryable());
    }
}

async fn several_senders_wait_for_a_slow_receiver(provider: Arc<dyn Provider>) {
    const SENDERS: usize = 8;
    let length = 100_000;
    let Pair { client, server, .. } = pair_with(provider, impatient(), impatient()).await;
    let send = |connection: Connection| async move {
        for _ in 0..5 {
            let mut message = bytes(length).into();
            while let Err(error) = connection.try_send(message) {
                let TrySendError::NotReady(back) = error else {
                    panic!("{error}");
                };
                message = back;
                connection.ready().await.unwrap();
            }
        }
    };
    let senders = [(); SENDERS].map(|()| tokio::spawn(send(client.clone())));
    assert!(timeout(PAUSE, server.closed()).await.is_err());
    receive(&server, 5 * SENDERS, length).await;
    for sender in senders {
        within(sender).await.unwrap();
    }
}

#[tokio::test]
async fn a_pause_loses_nothing_over_roce() {
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = probe.local_addr().unwrap().port();
    drop(probe);
    let mut config = RoceConfig::default();
    (config.udp_port, config.peer_udp_port) = (port, port);
    let provider: Arc<dyn Provider> = Arc::new(Roce::new(config));
    a_pause_of_the_receiver_loses_nothing(provider.clone()).await;
    a_pause_loses_nothing_of_a_stream(provider).await;
}
