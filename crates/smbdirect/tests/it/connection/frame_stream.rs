//! A connection as a stream of frames for tokio.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use smbdirect::{
    Config, Connection, ConnectionError, FrameStream, Listener, Settings, rdma::provider::Provider,
};
use smbdirect_test::within;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy, split},
    time::timeout,
};

use super::{Pair, few_credits, pair, pair_with, send_until_refused};

over_every_provider! {
    frames_are_messages_in_both_directions
    a_copy_through_two_streams_has_every_byte
    the_end_of_one_stream_is_the_end_of_the_other
    abandoned_reads_and_writes_lose_nothing
    what_is_no_frame_is_an_error
    a_lost_connection_is_an_error
    a_write_after_the_end_fails_at_once
    a_frame_that_cannot_be_sent_is_reported_with_its_cause
    nothing_is_read_after_a_message_that_is_too_long_for_a_frame
    a_dropped_stream_discards_what_was_not_read
}

fn frame(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_be_bytes(), message].concat()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 / 7) as u8).collect()
}

async fn ends(provider: Arc<dyn Provider>) -> (FrameStream, Connection) {
    let Pair { client, server, .. } = pair(provider).await;
    (client.into_stream(), server)
}

async fn frames_are_messages_in_both_directions(provider: Arc<dyn Provider>) {
    let (mut stream, peer) = ends(provider).await;
    let messages = [&b"a"[..], b"longer", &bytes(100_000)];
    // Two frames in one write, with a keepalive of NetBIOS between them, and one byte by byte.
    let written = [frame(messages[0]), vec![0x85, 0, 0, 0], frame(messages[1])].concat();
    stream.write_all(&written).await.unwrap();
    for byte in frame(b"slow") {
        stream.write_all(&[byte]).await.unwrap();
    }
    for expected in [messages[0], messages[1], b"slow"] {
        assert_eq!(within(peer.recv()).await.unwrap().into_bytes(), expected);
    }
    for message in messages {
        drop(peer.send(Bytes::copy_from_slice(message)).unwrap());
    }
    for message in messages {
        let mut read = vec![0; message.len() + 4];
        within(stream.read_exact(&mut read)).await.unwrap();
        assert!(read == frame(message), "{} bytes", message.len());
    }
    assert_eq!(stream.connection().peer_addr(), peer.local_addr());
}

/// One task reads and one writes on each side.
async fn a_copy_through_two_streams_has_every_byte(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    let echo = tokio::spawn(async move {
        let (mut read, mut write) = split(server.into_stream());
        copy(&mut read, &mut write).await
    });
    let (mut read, mut write) = split(client.into_stream());
    let frames: Vec<u8> = (1..200)
        .flat_map(|number| frame(&bytes(number * number)))
        .collect();
    let sent = frames.clone();
    let writing = tokio::spawn(async move {
        write.write_all(&sent).await?;
        write.flush().await?;
        Ok::<_, io::Error>(write)
    });
    let mut back = vec![0; frames.len()];
    within(read.read_exact(&mut back)).await.unwrap();
    assert!(back == frames, "the frames differ");
    let mut write = within(writing).await.unwrap().unwrap();
    write.shutdown().await.unwrap();
    let copied = within(echo).await.unwrap().unwrap();
    assert_eq!(copied, frames.len() as u64);
}

async fn the_end_of_one_stream_is_the_end_of_the_other(provider: Arc<dyn Provider>) {
    for drops in [false, true] {
        let Pair { client, server, .. } = pair(provider.clone()).await;
        let (mut stream, mut other) = (client.into_stream(), server.into_stream());
        stream.write_all(&frame(b"last words")).await.unwrap();
        if drops {
            drop(stream);
        } else {
            stream.shutdown().await.unwrap();
            assert_eq!(within(stream.read(&mut [0; 9])).await.unwrap(), 0);
        }
        let mut all = Vec::new();
        within(other.read_to_end(&mut all)).await.unwrap();
        assert_eq!(all, frame(b"last words"));
        assert_eq!(other.connection().error(), Some(ConnectionError::Closed));
        let error = other.write_all(&frame(b"too late")).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}

/// The peer has few credits and reads late, so that each call waits, is abandoned and repeated.
async fn abandoned_reads_and_writes_lose_nothing(provider: Arc<dyn Provider>) {
    let mut settings = Settings::default();
    settings.send_credit_target = 2;
    settings.receive_credit_max = 2;
    let config = Config::new(settings).unwrap();
    let mut listener = Listener::bind(&*provider, "127.0.0.1:0", config.clone())
        .await
        .unwrap();
    let connecting = Connection::connect(&*provider, listener.local_addr(), config);
    let (client, server) = within(async { tokio::join!(connecting, listener.accept()) }).await;
    let (mut stream, peer) = (client.unwrap().into_stream(), server.unwrap());
    let frames: Vec<u8> = (1..40)
        .flat_map(|number| frame(&bytes(number * 700)))
        .collect();
    let echo = tokio::spawn(async move {
        while let Ok(message) = peer.recv().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let _ = peer.send(message);
        }
    });
    let (mut written, mut read) = (0, Vec::new());
    let mut buffer = [0; 1000];
    within(async {
        while read.len() < frames.len() {
            let end = frames.len().min(written + 5000);
            let short = Duration::from_micros(200);
            if let Ok(count) = timeout(short, stream.write(&frames[written..end])).await {
                written += count.unwrap();
            }
            let _ = timeout(short, stream.flush()).await;
            if let Ok(count) = timeout(short, stream.read(&mut buffer)).await {
                read.extend_from_slice(&buffer[..count.unwrap()]);
            }
        }
    })
    .await;
    assert!(read == frames, "the frames differ");
    drop(stream);
    within(echo).await.unwrap();
}

async fn what_is_no_frame_is_an_error(provider: Arc<dyn Provider>) {
    for header in [[1, 0, 0, 1], [0x85, 0, 0, 1], [0, 0xFF, 0xFF, 0xFF]] {
        let (mut stream, peer) = ends(provider.clone()).await;
        stream.write_all(&header).await.unwrap();
        let error = stream.flush().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        drop(stream);
        assert_eq!(within(peer.closed()).await, ConnectionError::Closed);
    }
    let (mut stream, peer) = ends(provider).await;
    stream.write_all(&frame(b"whole")).await.unwrap();
    stream.write_all(&frame(b"cut off")[..6]).await.unwrap();
    let error = stream.shutdown().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    assert_eq!(within(peer.recv()).await.unwrap().into_bytes(), "whole");
    assert_eq!(within(peer.closed()).await, ConnectionError::Closed);
}

async fn a_lost_connection_is_an_error(provider: Arc<dyn Provider>) {
    let (mut stream, peer) = ends(provider).await;
    peer.abort();
    let error = within(stream.read(&mut [0; 9])).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

/// Also a write of a part of a frame, which sends nothing.
async fn a_write_after_the_end_fails_at_once(provider: Arc<dyn Provider>) {
    for how in ["abort", "start_close", "shutdown"] {
        let (mut stream, _peer) = ends(provider.clone()).await;
        stream.write_all(&[0, 0]).await.unwrap();
        match how {
            "abort" => stream.connection().abort(),
            "start_close" => stream.connection().start_close(),
            _ => drop(stream.shutdown().await),
        }
        let expected = if how == "abort" {
            io::ErrorKind::ConnectionAborted
        } else {
            io::ErrorKind::NotConnected
        };
        for part in [&[0][..], &[0, 1], b"\0\x01x"] {
            let error = within(stream.write(part)).await.unwrap_err();
            assert_eq!(error.kind(), expected, "{how}: {error}");
        }
    }
}

/// A clone ends the connection between the two steps of a write, in some of the attempts. What was taken is reported,
/// and then the error of the connection, at every write.
async fn a_frame_that_cannot_be_sent_is_reported_with_its_cause(provider: Arc<dyn Provider>) {
    for attempt in 0..100 {
        let (mut stream, _peer) = ends(provider.clone()).await;
        let connection = stream.connection().clone();
        let aborting = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(attempt));
            connection.abort();
        });
        let whole = frame(b"short");
        let mut at = 0;
        let error = within(async {
            loop {
                match stream.write(&whole[at..]).await {
                    Ok(count) => at = (at + count) % whole.len(),
                    Err(error) => break error,
                }
            }
        })
        .await;
        aborting.join().unwrap();
        let again = within(stream.write(&whole[at..])).await.unwrap_err();
        for error in [error, again] {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted, "{error}");
        }
    }
}

async fn nothing_is_read_after_a_message_that_is_too_long_for_a_frame(provider: Arc<dyn Provider>) {
    let mut settings = Settings::default();
    settings.max_fragmented_receive_size = 17 << 20;
    let Pair { client, server, .. } = pair_with(provider, settings, Settings::default()).await;
    drop(server.send(bytes(0x100_0000)).unwrap());
    drop(server.send("more").unwrap());
    let mut stream = client.into_stream();
    for _ in 0..3 {
        let error = within(stream.read(&mut [0; 9])).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted, "{error}");
    }
}

/// Untaken messages leave no room for the credits of the peer, and so the close would not end.
async fn a_dropped_stream_discards_what_was_not_read(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair_with(provider, few_credits(), few_credits()).await;
    send_until_refused(&server).await;
    let clone = client.clone();
    let mut stream = client.into_stream();
    stream.write_all(&frame(&bytes(60_000))).await.unwrap();
    drop(stream);
    assert_eq!(within(server.recv()).await.unwrap().len(), 60_000);
    assert_eq!(within(clone.closed()).await, ConnectionError::ClosedHere);
}
