//! Moves the messages of one connection between the program's TCP connection and SMB Direct.

use std::{
    fs,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use smbdirect::Connection;
use smbdirect_smb::frame::{self, HEADER_LENGTH};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpStream, tcp::OwnedReadHalf},
    sync::watch,
    time::sleep,
};
use tracing::{debug, warn};

/// Longest time without a message from the server after the program has shut down its sending side. SMB Direct has no half
/// close, so the server does not know that no further request follows.
const HALF_CLOSE_IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Longest time without a message from the server after the program has shut down its sending side, if as many
/// messages have arrived as the program has sent, so that each request has its answer.
const ANSWERED_IDLE_LIMIT: Duration = Duration::from_secs(1);

/// Intervals of the checks whether a program that has shut down its sending side has closed its socket.
const FIRST_CHECK_INTERVAL: Duration = Duration::from_millis(1);
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which processes that outlive the program keep their connections.
const LEFT_BEHIND_LIMIT: Duration = Duration::from_secs(5);

/// Number of bytes of the program's stream that are read ahead.
const READ_AHEAD_BYTES: usize = 64 << 10;

const CUT_OFF: &str = "it closed the connection in the middle of a message";

/// Moves messages until both directions have ended, and closes the connection. `end` becomes true when the program has
/// ended.
pub(super) async fn relay(
    connection: &Connection,
    socket: TcpStream,
    mut end: watch::Receiver<bool>,
) {
    let ends = (socket.peer_addr(), socket.local_addr());
    let is_open = || match ends {
        (Ok(program), Ok(own)) => has_owner(program, own),
        _ => false,
    };
    let (from, to) = socket.into_split();
    let counts = [const { AtomicU64::new(0) }; 2];
    let [sent, received] = &counts;
    let sending = async {
        if let Err(error) = send_messages(connection, from, sent).await {
            warn!(peer = %connection.peer_addr(), %error, "the program's stream ends");
            return;
        }
        half_closed(sent, received, is_open).await;
    };
    let receiving = async {
        let mut socket = Some(to);
        // An error is the end of the connection, which the program sees as the end of the stream.
        while let Ok(message) = connection.recv().await {
            received.fetch_add(1, Ordering::Relaxed);
            let Some(open) = &mut socket else { continue };
            let Some(header) = frame::header(message.len()) else {
                let bytes = message.len();
                warn!(peer = %connection.peer_addr(), bytes, "a message is too long for SMB over TCP");
                socket = None;
                continue;
            };
            let mut frame = Buf::chain(&header[..], message);
            if let Err(error) = open.write_all_buf(&mut frame).await {
                debug!(peer = %connection.peer_addr(), %error, "the program has closed its socket");
                // The data that the program has written before is still sent. That needs credits, and therefore
                // room for messages.
                socket = None;
            }
        }
    };
    let left_behind = async {
        // The sender lives as long as the broker.
        let _ = end.wait_for(|end| *end).await;
        sleep(LEFT_BEHIND_LIMIT).await;
        while !is_open() {
            // The program has ended, and its last messages are sent.
            sleep(MAX_CHECK_INTERVAL).await;
        }
        warn!(peer = %connection.peer_addr(), "the program has ended; a connection that it left open is closed");
    };
    tokio::select! {
        () = sending => {}
        () = receiving => {}
        () = left_behind => {}
    }
    connection.start_close();
    while connection.recv().await.is_ok() {}
}

/// Sends the messages that the program writes, until its stream ends.
async fn send_messages(
    connection: &Connection,
    from: OwnedReadHalf,
    sent: &AtomicU64,
) -> Result<()> {
    let most = connection.negotiated().max_fragmented_send_size;
    let mut socket = BufReader::with_capacity(READ_AHEAD_BYTES, from);
    while let Some(message) = next_message(&mut socket, most).await? {
        // An error means that the connection is over, which the other direction reports.
        if connection.ready().await.is_err() || connection.send(message).is_err() {
            std::future::pending::<()>().await;
        }
        sent.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads the next message of the program, which may pause at any place, as with TCP. Returns `None` if the program has
/// closed its socket between two messages.
///
/// # Errors
/// The program breaks the protocol, or sends a message of more than `most` bytes.
async fn next_message(socket: &mut BufReader<OwnedReadHalf>, most: u32) -> Result<Option<Bytes>> {
    // An error means that the program has closed its socket with unread data in it.
    while socket.fill_buf().await.is_ok_and(|bytes| !bytes.is_empty()) {
        let mut header = [0; HEADER_LENGTH];
        socket.read_exact(&mut header).await.context(CUT_OFF)?;
        let length = frame::message_length(header)?;
        ensure!(
            length <= most,
            "a message of {length} bytes is too long: the server takes at most {most}"
        );
        if length > 0 {
            let length = length as usize;
            let mut message = BytesMut::with_capacity(length).limit(length);
            while message.has_remaining_mut() {
                ensure!(socket.read_buf(&mut message).await? > 0, CUT_OFF);
            }
            return Ok(Some(message.into_inner().freeze()));
        }
    }
    Ok(None)
}

/// Waits until a program that sends no more has closed its socket, or the server has sent nothing for a long time.
async fn half_closed(sent: &AtomicU64, received: &AtomicU64, is_open: impl Fn() -> bool) {
    let mut interval = FIRST_CHECK_INTERVAL;
    let mut idle = Duration::ZERO;
    let mut before = received.load(Ordering::Relaxed);
    while is_open() {
        sleep(interval).await;
        let now = received.load(Ordering::Relaxed);
        idle = if now == before {
            idle + interval
        } else {
            Duration::ZERO
        };
        before = now;
        interval = (interval * 4).min(MAX_CHECK_INTERVAL);
        let limit = if now < sent.load(Ordering::Relaxed) {
            HALF_CLOSE_IDLE_LIMIT
        } else {
            ANSWERED_IDLE_LIMIT
        };
        if idle >= limit {
            return;
        }
    }
}

/// Returns whether a process has the socket at `program` that is connected to `own`. TCP does not show a peer
/// whether the whole socket was closed or only its sending side.
fn has_owner(program: SocketAddr, own: SocketAddr) -> bool {
    let ends = [program, own].map(|end| format!(":{:04X}", end.port()));
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let sockets = fs::read_to_string(table).unwrap_or_default();
        sockets.lines().any(|line| {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            // The number of an inode is 0 for a socket without descriptors.
            matches!(words[..], [_, from, to, _, _, _, _, _, _, inode, ..]
                if from.ends_with(&ends[0]) && to.ends_with(&ends[1]) && inode != "0")
        })
    })
}
