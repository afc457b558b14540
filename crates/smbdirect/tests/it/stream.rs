//! A connection as a stream of frames.

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use smbdirect::{
    Config, Connection, ConnectionError, Listener, Settings, rdma::loopback::Loopback,
};
use smbdirect_test::within;
use tokio::time::timeout;

/// Returns the program's end of a stream, and the connection of the peer.
async fn stream() -> (UnixStream, Connection) {
    stream_with(Config::default()).await
}

/// Returns a stream whose connection has these settings.
async fn stream_with(config: Config) -> (UnixStream, Connection) {
    let provider = Arc::new(Loopback::new());
    let address = "127.0.0.1:0";
    let mut listener = Listener::bind(&*provider, address, Config::default())
        .await
        .unwrap();
    let address = listener.local_addr();
    let (client, server) = tokio::join!(
        Connection::connect(&*provider, address, config),
        listener.accept()
    );
    let stream = UnixStream::from(client.unwrap().into_stream_fd().unwrap());
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    stream
        .set_write_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    (stream, server.unwrap())
}

fn frame(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_be_bytes(), message].concat()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 / 7) as u8).collect()
}

/// Runs `program` on a thread of its own, as the calls of a program block.
async fn blocking<T: Send + 'static>(program: impl FnOnce() -> T + Send + 'static) -> T {
    within(tokio::task::spawn_blocking(program)).await.unwrap()
}

#[tokio::test]
async fn frames_and_messages_keep_their_borders_and_order() {
    let (mut stream, server) = stream().await;
    let lengths = [1, 4, 5, 1364, 100_000, 1_000_000, 2];
    let program = blocking(move || {
        // In one piece, in single bytes, and cut within the header.
        let all: Vec<u8> = lengths
            .iter()
            .flat_map(|length| frame(&bytes(*length)))
            .collect();
        let (first, rest) = all.split_at(11);
        for byte in first {
            stream.write_all(&[*byte]).unwrap();
        }
        stream.write_all(rest).unwrap();
        let mut echo = vec![0; all.len()];
        stream.read_exact(&mut echo).unwrap();
        assert!(echo == all, "the echo differs");
    });
    let peer = async {
        for length in lengths {
            let message = server.recv().await.unwrap().into_bytes();
            assert!(message == bytes(length), "a message of {length} B differs");
            server.send(message).unwrap().await.unwrap();
        }
    };
    within(async { tokio::join!(program, peer) }).await;
}

#[tokio::test]
async fn frames_before_the_close_arrive_and_close_the_connection() {
    let (mut stream, server) = stream().await;
    blocking(move || {
        for number in 0..100u8 {
            // Empty frames and keepalives of NetBIOS do not count as messages.
            stream.write_all(&[0x85, 0, 0, 0, 0, 0, 0, 0]).unwrap();
            stream.write_all(&frame(&[number; 5000])).unwrap();
        }
    })
    .await;
    for number in 0..100u8 {
        let message = within(server.recv()).await.unwrap().into_bytes();
        assert!(message == vec![number; 5000]);
    }
    let end = within(server.recv()).await.unwrap_err();
    assert_eq!(end, ConnectionError::Closed);
}

#[tokio::test]
async fn messages_before_the_peers_close_are_read_before_the_end() {
    let (mut stream, server) = stream().await;
    for number in 0..100u8 {
        drop(server.send(vec![number; 3000]).unwrap());
    }
    let closing = tokio::spawn(async move { server.close().await });
    let read = blocking(move || {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    })
    .await;
    let expected: Vec<u8> = (0..100u8)
        .flat_map(|number| frame(&[number; 3000]))
        .collect();
    assert!(read == expected, "{} B of {}", read.len(), expected.len());
    within(closing).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_reader_that_stops_holds_the_peer_back() {
    let (stream, server) = stream().await;
    let sending = async {
        for _ in 0..10_000 {
            server
                .send(Bytes::from(vec![7; 64 * 1024]))
                .unwrap()
                .await
                .unwrap();
        }
    };
    // Without backpressure 640 MB would be sent in this time.
    let held_back = timeout(Duration::from_secs(2), sending).await;
    assert!(held_back.is_err(), "the peer sent everything");
    drop(stream);
}

/// The length of a frame has 24 bits, and that of a message 32.
#[tokio::test]
async fn message_that_is_too_long_for_a_frame_aborts_the_connection() {
    let longest = 0xFF_FFFF;
    let mut settings = Settings::default();
    settings.max_fragmented_receive_size = longest + 1;
    for (length, fits) in [(longest, true), (longest + 1, false)] {
        let (mut stream, server) = stream_with(Config::new(settings.clone()).unwrap()).await;
        drop(server.send(vec![7; length as usize]).unwrap());
        let read = blocking(move || {
            let mut header = [0; 4];
            stream.read_exact(&mut header).map(|()| (header, stream))
        });
        let read = read.await.ok().map(|(header, _stream)| header);
        assert_eq!(read, fits.then(|| length.to_be_bytes()));
        if !fits {
            let end = within(server.closed()).await;
            assert!(!matches!(end, ConnectionError::TimedOut(_)), "{end}");
        }
    }
}

#[tokio::test]
async fn invalid_frame_closes_the_connection_after_the_frames_before_it() {
    let too_long = 0x00FF_FFFFu32.to_be_bytes();
    let cut_off = [0, 0, 0];
    for header in [&[0x81, 0, 0, 1][..], &[0x85, 0, 0, 1], &too_long, &cut_off] {
        let (mut stream, server) = stream().await;
        stream.write_all(&frame(b"before it")).unwrap();
        stream.write_all(header).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let message = within(server.recv()).await.unwrap();
        assert_eq!(message.into_bytes(), "before it");
        let end = within(server.recv()).await.unwrap_err();
        assert_eq!(end, ConnectionError::Closed);
        let read = blocking(move || stream.read_to_end(&mut Vec::new()));
        assert_eq!(read.await.unwrap(), 0);
    }
}

/// The close of a socket with unread data makes the other end report a reset instead of the end of the stream.
#[tokio::test]
async fn frames_before_the_close_arrive_although_the_program_has_not_read_everything() {
    for greetings in [1, 1000] {
        let (mut stream, server) = stream().await;
        for _ in 0..greetings {
            drop(server.send(vec![8; 3000]).unwrap());
        }
        let program = blocking(move || {
            stream.read_exact(&mut [0]).unwrap();
            for number in 0..20u8 {
                stream.write_all(&frame(&vec![number; 500_000])).unwrap();
            }
        });
        let peer = async {
            for number in 0..20u8 {
                let message = within(server.recv()).await.unwrap().into_bytes();
                assert!(message == vec![number; 500_000]);
            }
            let end = within(server.recv()).await.unwrap_err();
            assert_eq!(end, ConnectionError::Closed);
        };
        tokio::join!(program, peer);
    }
}

/// A peer that sends more than the receive buffer takes would get no credits if its messages were kept.
#[tokio::test]
async fn frames_before_the_close_reach_a_peer_that_sends_all_the_time() {
    let (mut stream, server) = stream().await;
    let has_written = Arc::new(AtomicBool::new(false));
    let written = has_written.clone();
    let writing = blocking(move || {
        stream.read_exact(&mut [0; 100]).unwrap();
        for number in 0..20u8 {
            stream.write_all(&frame(&vec![number; 500_000])).unwrap();
        }
        written.store(true, Ordering::Relaxed);
    });
    let sending = async {
        let mut sent = 0;
        while server.ready().await.is_ok() {
            // If the program read nothing and the receive buffer were full, no credits would come either way.
            if sent < 100 || has_written.load(Ordering::Relaxed) {
                if server.send(vec![1; 5000]).is_err() {
                    break;
                }
                sent += 1;
            }
            tokio::task::yield_now().await;
        }
    };
    let receiving = async {
        for number in 0..20u8 {
            let message = within(server.recv()).await.unwrap().into_bytes();
            assert!(message == vec![number; 500_000]);
        }
        let end = within(server.recv()).await.unwrap_err();
        assert_eq!(end, ConnectionError::Closed);
    };
    tokio::join!(writing, sending, receiving);
}

#[test]
fn frames_arrive_after_the_runtime_has_ended() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    for closes in [true, false] {
        let ended = runtime();
        let (mut program, server) = ended.block_on(stream());
        // No task moves these frames, because the runtime does not run.
        for number in 0..10u8 {
            program.write_all(&frame(&[number; 5000])).unwrap();
        }
        let program = (!closes).then_some(program);
        drop(ended);
        runtime().block_on(async {
            for number in 0..10u8 {
                let message = within(server.recv()).await.unwrap().into_bytes();
                assert!(message == vec![number; 5000]);
            }
            let end = within(server.recv()).await.unwrap_err();
            assert_eq!(end, ConnectionError::Closed);
        });
        if let Some(mut program) = program {
            assert_eq!(program.read(&mut [0]).unwrap(), 0);
        }
    }
}
