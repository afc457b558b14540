//! A peer that closes the connection in the middle of a message. Each call that receives reports it.

use std::io;

use smbdirect::{
    Config, Connection, ConnectionError, Iwarp, IwarpConfig, Listener,
    wire::{DataTransfer, Flags},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::peer::{Peer, within};

const MISSING: u32 = 5000;
const TRUNCATED: ConnectionError = ConnectionError::Truncated { missing: MISSING };
/// The frames of the whole message, and of the begin of the one that is cut, whose length is 5011.
const FRAMES: &[u8] = b"\0\0\0\x05whole\0\0\x13\x93first bytes";

/// Returns a connection whose peer has sent the message "whole" and the first bytes of another one, and has closed the
/// connection.
async fn cut() -> Connection {
    let provider = Iwarp::new(IwarpConfig::default());
    let bound = Listener::bind(&provider, "127.0.0.1:0", Config::default());
    let mut listener = bound.await.unwrap();
    let mut peer = Peer::negotiated(listener.local_addr()).await;
    let connection = within(listener.accept()).await.unwrap();
    for (payload, remaining_data_length) in [(&b"whole"[..], 0), (b"first bytes", MISSING)] {
        let header = DataTransfer {
            credits_requested: 255,
            credits_granted: 1,
            flags: Flags::empty(),
            remaining_data_length,
            data_offset: 24,
            data_length: payload.len() as u32,
        };
        let transfer = peer.transfer(header, payload);
        peer.say(&transfer).await;
    }
    peer.stream.shutdown().await.unwrap();
    assert_eq!(within(connection.closed()).await, ConnectionError::Closed);
    connection
}

#[tokio::test]
async fn a_cut_message_is_an_error_of_each_call_that_receives() {
    let connection = cut().await;
    let whole = within(connection.recv()).await.unwrap();
    assert_eq!(whole.into_bytes(), "whole");
    for _ in 0..2 {
        assert_eq!(within(connection.recv()).await.unwrap_err(), TRUNCATED);
    }
    let error = io::Error::from(TRUNCATED);
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);

    let connection = cut().await;
    let mut messages = Vec::new();
    assert_eq!(within(connection.recv_many(&mut messages, 9)).await, Ok(1));
    let end = within(connection.recv_many(&mut messages, 9)).await;
    assert_eq!((messages.len(), end), (1, Err(TRUNCATED)));

    let connection = cut().await;
    for (payload, remaining) in [("whole", 0), ("first bytes", MISSING)] {
        let segment = within(connection.recv_segment()).await.unwrap();
        let expected = (payload.as_bytes(), remaining);
        assert_eq!((&segment.payload[..], segment.remaining), expected);
    }
    let end = within(connection.recv_segment()).await;
    assert_eq!(end.unwrap_err(), TRUNCATED);
}

#[tokio::test]
async fn a_cut_message_is_an_error_of_a_stream() {
    let mut stream = cut().await.into_stream();
    let mut read = Vec::new();
    let error = within(stream.read_to_end(&mut read)).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(read, FRAMES);
}

/// A program that reads a socket finds the end within a frame.
#[cfg(unix)]
#[tokio::test]
async fn a_cut_message_ends_a_socket_within_a_frame() {
    let socket = std::os::unix::net::UnixStream::from(cut().await.into_stream_fd().unwrap());
    socket.set_nonblocking(true).unwrap();
    let mut socket = tokio::net::UnixStream::from_std(socket).unwrap();
    let mut read = Vec::new();
    within(socket.read_to_end(&mut read)).await.unwrap();
    assert_eq!(read, FRAMES);
}
