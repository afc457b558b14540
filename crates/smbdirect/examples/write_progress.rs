//! An RDMA Write of 1 GiB that shows its progress:
//!
//! ```sh
//! cargo run --release --example write_progress -- listen 127.0.0.1:5445 &
//! cargo run --release --example write_progress -- connect 127.0.0.1:5445
//! ```
//!
//! The listening end registers the memory and sends its descriptor; the connecting end writes it in pieces, several of
//! them at once. A third argument is another number of bytes.

use std::{collections::VecDeque, error::Error, time::Instant};

use bytes::{Bytes, BytesMut};
use smbdirect::{Access, BufferDescriptorV1, Config, Connection, Iwarp, IwarpConfig, Listener};

const GIB: usize = 1 << 30;
/// Bytes of one RDMA Write, after which there is progress to show.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces in flight, so that the network does not idle while this program handles a completion.
const MAX_IN_FLIGHT: usize = 8;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let provider = Iwarp::new(IwarpConfig::default());
    let length = arguments.get(2).map_or(Ok(GIB), |length| length.parse())?;
    match (arguments.first().map(String::as_str), arguments.get(1)) {
        (Some("listen"), Some(address)) => {
            let mut listener = Listener::bind(&provider, address, Config::default()).await?;
            serve(listener.accept().await?, length).await
        }
        (Some("connect"), Some(address)) => {
            let connection = Connection::connect(&provider, address, Config::default()).await?;
            let begin = Instant::now();
            let written = write(&connection, |done, total| {
                print!("\r{:3} %", done * 100 / total);
            });
            let written = written.await?;
            let seconds = begin.elapsed().as_secs_f64();
            println!(
                "\r{written} bytes, {:.0} MB/s",
                written as f64 / 1e6 / seconds
            );
            Ok(connection.close().await?)
        }
        _ => Err("give `listen ADDRESS:PORT [BYTES]` or `connect ADDRESS:PORT`".into()),
    }
}

/// Registers `length` bytes, and waits until the peer has written them.
pub(crate) async fn serve(connection: Connection, length: usize) -> Result<(), Box<dyn Error>> {
    let region = connection.register(BytesMut::zeroed(length), Access::REMOTE_WRITE)?;
    connection.send(region.descriptor().to_bytes())?.await?;

    // The data of the writes is in place before a message that was sent after them arrives.
    connection.recv().await?;
    let memory = region.deregister().await?;
    assert!(memory.iter().all(|&byte| byte == 0xab));
    connection.closed().await;
    Ok(())
}

/// Writes the whole memory of the peer, and calls `progress` after each piece with the bytes that are done and their
/// total. Returns the total.
pub(crate) async fn write(
    connection: &Connection,
    mut progress: impl FnMut(usize, usize),
) -> Result<usize, Box<dyn Error>> {
    let descriptor = BufferDescriptorV1::from_bytes(&connection.recv().await?.into_bytes())?;
    let total = descriptor.length as usize;
    // Each piece is the same bytes here. A slice of `Bytes` is not a copy.
    let source = Bytes::from(vec![0xab; PIECE_BYTES.min(total)]);
    let mut in_flight = VecDeque::new();
    let (mut begun, mut done) = (0, 0);
    while done < total {
        while begun < total && in_flight.len() < MAX_IN_FLIGHT {
            let piece = source.slice(..source.len().min(total - begun));
            let length = piece.len();
            in_flight.push_back((length, connection.write(&[descriptor], begun as u64, piece)));
            begun += length;
        }
        // Writes finish in the order in which they began.
        if let Some((length, writing)) = in_flight.pop_front() {
            writing.await?;
            done += length;
            progress(done, total);
        }
    }
    connection.send("written")?.await?;
    Ok(total)
}
