//! tokio with a length before each message, for comparison: the usual way for an asynchronous program to use TCP.

use std::{future::poll_fn, pin::Pin, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_sink::Sink;
use tokio::net::TcpStream;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::{
    smb_direct::{Spinning, source},
    tcp,
};
use crate::work::{Burst, Operation};

pub(crate) type Frames = Framed<TcpStream, LengthDelimitedCodec>;

/// Frames a connection with a write buffer as large as a batch of plain TCP.
pub(crate) fn framed(stream: TcpStream, largest: u32) -> Frames {
    let codec = LengthDelimitedCodec::builder()
        .max_frame_length(largest.max(64) as usize)
        .new_codec();
    let mut framed = Framed::with_capacity(stream, codec, tcp::BATCH_BYTES);
    framed.set_backpressure_boundary(tcp::BATCH_BYTES);
    framed
}

/// Runs one burst on the connection of a link, in a task as SMB Direct bursts do. Returns the
/// nanoseconds of each round trip.
pub(crate) async fn burst(all: &mut Vec<Frames>, burst: Burst, active: bool) -> Result<Vec<u64>> {
    let (Some(mut frames), true) = (all.pop(), all.is_empty()) else {
        bail!("framed TCP is measured with one connection")
    };
    let _spinning = burst.busy.then(Spinning::start);
    let task = tokio::spawn(async move {
        let round_trips = one(&mut frames, &burst, active).await;
        (frames, round_trips)
    });
    let (frames, round_trips) = task.await?;
    all.push(frames);
    round_trips
}

async fn one(frames: &mut Frames, burst: &Burst, active: bool) -> Result<Vec<u64>> {
    let source = source(burst.size);
    let mut round_trips = Vec::new();
    match (burst.kind, active) {
        (Operation::Echo, true) => {
            for _ in 0..burst.count {
                let started = Instant::now();
                feed(frames, source.clone()).await?;
                flush(frames).await?;
                next(frames).await?;
                round_trips.push(started.elapsed().as_nanos() as u64);
            }
        }
        (Operation::Echo, false) => {
            for _ in 0..burst.count {
                let frame = next(frames).await?;
                feed(frames, frame.freeze()).await?;
                flush(frames).await?;
            }
        }
        (_, true) => {
            for _ in 0..burst.count {
                feed(frames, source.clone()).await?;
            }
            flush(frames).await?;
            next(frames).await?;
        }
        (_, false) => {
            for _ in 0..burst.count {
                let frame = next(frames).await?;
                ensure!(frame.len() == source.len(), "a frame has another length");
            }
            feed(frames, Bytes::from_static(b"!")).await?;
            flush(frames).await?;
        }
    }
    Ok(round_trips)
}

async fn feed(frames: &mut Frames, frame: Bytes) -> Result<()> {
    poll_fn(|context| Sink::<Bytes>::poll_ready(Pin::new(&mut *frames), context)).await?;
    Ok(Pin::new(frames).start_send(frame)?)
}

async fn flush(frames: &mut Frames) -> Result<()> {
    Ok(poll_fn(|context| Sink::<Bytes>::poll_flush(Pin::new(&mut *frames), context)).await?)
}

async fn next(frames: &mut Frames) -> Result<BytesMut> {
    let next = poll_fn(|context| Pin::new(&mut *frames).poll_next(context)).await;
    Ok(next.context("the connection ended")??)
}
