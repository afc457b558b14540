//! Plain TCP, for comparison: the same sizes by blocking system calls, or by non-blocking ones that
//! spin.

use std::{
    hint,
    io::{self, ErrorKind, IoSlice, Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};

use crate::{
    host,
    work::{Burst, Half, Operation},
};

/// Bytes of one system call where messages are batched.
pub(crate) const BATCH_BYTES: usize = 256 << 10;
/// Slices of one system call (IOV_MAX of Linux).
const MAX_SLICES: usize = 1024;
/// Time without progress after which a connection counts as stuck.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Prepares a connection: TCP_NODELAY, as every RDMA over TCP has.
///
/// # Errors
/// The system refuses.
pub(crate) fn prepare(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STALL_TIMEOUT))?;
    stream.set_write_timeout(Some(STALL_TIMEOUT))?;
    Ok(stream)
}

/// Runs one burst on all connections of a link, each in a thread of its own if there are several.
pub(crate) fn burst(streams: &[TcpStream], burst: &Burst, active: bool) -> Result<Half> {
    for stream in streams {
        stream.set_nonblocking(burst.busy)?;
    }
    let source = super::smb_direct::source(burst.size);
    let (started, cpu) = (Instant::now(), host::thread_cpu());
    let mut half = Half::default();
    let mut others = Duration::ZERO;
    if let [stream] = streams {
        let one = one(stream, burst, active, &source)?;
        others += one.others;
        half.round_trips = one.round_trips;
    } else {
        thread::scope(|scope| -> Result<()> {
            let work = |stream| {
                let one = one(stream, burst, active, &source)?;
                Ok::<_, anyhow::Error>((one, host::thread_cpu().unwrap_or_default()))
            };
            let threads: Vec<_> = streams
                .iter()
                .map(|stream| scope.spawn(move || work(stream)))
                .collect();
            for thread in threads {
                let done = thread.join().map_err(|_| anyhow!("a thread panicked"))?;
                let (one, cpu) = done?;
                others += one.others + cpu;
                half.round_trips.extend(one.round_trips);
            }
            Ok(())
        })?;
    }
    half.seconds = started.elapsed().as_secs_f64();
    let own = host::thread_cpu().zip(cpu);
    half.cpu = own.map(|(after, before)| (after - before + others).as_secs_f64());
    Ok(half)
}

/// The result of one connection.
#[derive(Default)]
struct One {
    round_trips: Vec<u64>,
    /// CPU time of threads that this thread started.
    others: Duration,
}

fn one(stream: &TcpStream, burst: &Burst, active: bool, source: &[u8]) -> Result<One> {
    let mut one = One::default();
    match (burst.kind, active, burst.both) {
        (Operation::Echo, true, _) => one.round_trips = echo(stream, burst, source)?,
        (Operation::Echo, false, _) => answer(stream, burst)?,
        (_, true, false) => {
            send_all(stream, burst, source)?;
            receive(stream, 1, burst)?;
        }
        (_, false, false) => {
            receive(stream, burst.bytes(), burst)?;
            write(stream, ACKNOWLEDGED, burst)?;
        }
        (_, active, true) => {
            // One thread cannot block on both directions.
            let expected = burst.bytes() + u64::from(active);
            one.others = thread::scope(|scope| -> Result<Duration> {
                let receiving = scope.spawn(|| {
                    receive(stream, expected, burst)?;
                    Ok::<_, anyhow::Error>(host::thread_cpu().unwrap_or_default())
                });
                send_all(stream, burst, source)?;
                receiving.join().map_err(|_| anyhow!("a thread panicked"))?
            })?;
            if !active {
                write(stream, ACKNOWLEDGED, burst)?;
            }
        }
    }
    Ok(one)
}

/// The byte by which the passive end acknowledges everything.
const ACKNOWLEDGED: &[u8] = b"!";

fn send_all(stream: &TcpStream, burst: &Burst, source: &[u8]) -> Result<()> {
    if burst.kind != Operation::Batch {
        for _ in 0..burst.count {
            write(stream, source, burst)?;
        }
        return Ok(());
    }
    let slices = (BATCH_BYTES / source.len().max(1)).clamp(1, MAX_SLICES);
    let mut left = burst.count;
    while left > 0 {
        let now = left.min(slices as u64);
        let mut batch = [IoSlice::new(source); MAX_SLICES];
        write_batch(stream, &mut batch[..now as usize], burst)?;
        left -= now;
    }
    Ok(())
}

fn write(mut stream: &TcpStream, mut bytes: &[u8], burst: &Burst) -> Result<()> {
    while !bytes.is_empty() {
        let written = again(burst, || stream.write(bytes))?;
        ensure!(written > 0, "the connection accepts no more data");
        bytes = &bytes[written..];
    }
    Ok(())
}

fn write_batch(mut stream: &TcpStream, mut batch: &mut [IoSlice<'_>], burst: &Burst) -> Result<()> {
    while !batch.is_empty() {
        let written = again(burst, || stream.write_vectored(batch))?;
        ensure!(written > 0, "the connection accepts no more data");
        IoSlice::advance_slices(&mut batch, written);
    }
    Ok(())
}

fn receive(mut stream: &TcpStream, bytes: u64, burst: &Burst) -> Result<()> {
    let mut buffer = vec![0; BATCH_BYTES.min(bytes as usize)];
    let mut left = bytes;
    while left > 0 {
        let most = buffer.len().min(left as usize);
        let read = again(burst, || stream.read(&mut buffer[..most]))?;
        ensure!(read > 0, "the connection ended");
        left -= read as u64;
    }
    Ok(())
}

fn echo(stream: &TcpStream, burst: &Burst, source: &[u8]) -> Result<Vec<u64>> {
    let mut round_trips = Vec::with_capacity(burst.count as usize);
    let mut buffer = vec![0; burst.size as usize];
    for _ in 0..burst.count {
        let started = Instant::now();
        write(stream, source, burst)?;
        read_exactly(stream, &mut buffer, burst)?;
        round_trips.push(started.elapsed().as_nanos() as u64);
    }
    Ok(round_trips)
}

fn answer(stream: &TcpStream, burst: &Burst) -> Result<()> {
    let mut buffer = vec![0; burst.size as usize];
    for _ in 0..burst.count {
        read_exactly(stream, &mut buffer, burst)?;
        write(stream, &buffer, burst)?;
    }
    Ok(())
}

fn read_exactly(mut stream: &TcpStream, buffer: &mut [u8], burst: &Burst) -> Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        let read = again(burst, || stream.read(&mut buffer[filled..]))?;
        ensure!(read > 0, "the connection ended");
        filled += read;
    }
    Ok(())
}

/// Repeats a system call that a signal interrupted and, if the ends busy-poll, one that would block. If they do
/// not busy-poll, the call itself blocks.
fn again(burst: &Burst, mut call: impl FnMut() -> io::Result<usize>) -> Result<usize> {
    let mut turns = 0_u32;
    let mut since = None;
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if burst.busy && error.kind() == ErrorKind::WouldBlock => {
                hint::spin_loop();
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(1 << 16) {
                    let since = since.get_or_insert_with(Instant::now);
                    ensure!(since.elapsed() < STALL_TIMEOUT, "a burst does not end");
                }
            }
            result => return result.context("plain TCP"),
        }
    }
}
