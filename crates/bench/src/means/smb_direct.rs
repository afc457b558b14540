//! Bursts over SMB Direct connections, written as a program that uses this library would be.

mod timed;

use std::{
    collections::VecDeque,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, BufferDescriptorV1, Config, Connection, Listener, MemoryRegion, Message, Reading,
    Settings, rdma::provider::Provider,
};
use tokio::{task::yield_now, time::timeout};

use crate::work::{Burst, Link, Operation, Smb, window};

/// One end of one connection, and the buffers for its bursts.
#[derive(Debug)]
pub(crate) struct End {
    connection: Connection,
    /// The bytes to send and write. Messages are slices of it, so this end copies nothing.
    source: Bytes,
    /// Copies of these bytes, at most one for each message of a burst, which are sent in turn. The
    /// in-process provider passes them without a copy, so both ends count references; with one
    /// buffer for all messages, that shared counter would dominate.
    sources: Vec<Bytes>,
    /// Memory that is registered for the peer.
    _regions: Vec<MemoryRegion>,
    /// The descriptors of the peer's memory.
    theirs: Option<Theirs>,
    /// Buffers to read into.
    buffers: Vec<BytesMut>,
}

/// The memory of the peer. Each buffer is for one direction, as the buffers that SMB registers are,
/// because memory that the peer may write to at any time has to be copied before it is sent.
#[derive(Clone, Copy, Debug)]
struct Theirs {
    to_read: BufferDescriptorV1,
    to_write: BufferDescriptorV1,
}

/// Returns the settings of both ends of a link.
pub(crate) fn config(smb: &Smb, link: &Link) -> Result<Config> {
    let mut settings = Settings::default();
    settings.send_credit_target = smb.send_credit_target;
    settings.receive_credit_max = smb.receive_credit_max;
    settings.max_send_size = smb.segment;
    settings.max_receive_size = smb.segment;
    settings.max_fragmented_receive_size = link.largest.max(1 << 17);
    settings.max_read_write_size = smb.max_read_write_size;
    // Between bursts a link is idle, and its keepalives must not disturb the bursts of others.
    settings.keepalive_interval = Duration::from_secs(3600);
    Ok(Config::new(settings)?)
}

/// Accepts the passive ends of a link.
pub(crate) async fn accept(mut listener: Listener, link: &Link) -> Result<Vec<End>> {
    let mut ends = Vec::new();
    for _ in 0..link.connections {
        let connection = timeout(STEP_TIMEOUT, listener.accept())
            .await
            .context("the other end does not connect")??;
        ends.push(End::new(connection, link).await?);
    }
    Ok(ends)
}

/// Connects the active ends of a link.
pub(crate) async fn connect(
    provider: &dyn Provider,
    address: SocketAddr,
    smb: &Smb,
    link: &Link,
) -> Result<Vec<End>> {
    let config = config(smb, link)?;
    let mut ends = Vec::new();
    for _ in 0..link.connections {
        let connection = Connection::connect(provider, address, config.clone())
            .await
            .with_context(|| format!("cannot connect to {address}"))?;
        ends.push(End::new(connection, link).await?);
    }
    Ok(ends)
}

/// Maximum number of copies of the bytes to send: as many as messages can be outstanding.
const MAX_SOURCES: usize = 256;

/// Returns an endless iterator of messages.
struct ToSend {
    messages: Vec<Message>,
    next: usize,
}

impl ToSend {
    fn next(&mut self) -> Message {
        let message = self.messages[self.next].clone();
        self.next = (self.next + 1) % self.messages.len();
        message
    }
}

/// Batches that are outstanding where one call sends several messages.
const OUTSTANDING_BATCHES: usize = 8;

/// Longest time of a step, which normally takes microseconds.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

impl End {
    async fn new(connection: Connection, link: &Link) -> Result<Self> {
        let mut end = Self {
            connection,
            source: Bytes::new(),
            sources: Vec::new(),
            _regions: Vec::new(),
            theirs: None,
            buffers: Vec::new(),
        };
        if link.largest > 0 {
            end.source = source(link.largest);
        }
        if link.rdma {
            let mut ours = BytesMut::with_capacity(2 * BufferDescriptorV1::LENGTH);
            for (access, slots) in [(Access::REMOTE_READ, 1), (Access::REMOTE_WRITE, link.slots)] {
                let buffer = BytesMut::from(&*end.source.repeat(slots as usize));
                let region = end.connection.register(buffer, access)?;
                region.descriptor().encode(&mut ours);
                end._regions.push(region);
            }
            end.connection.send(ours.freeze())?.await?;
            let message = timeout(STEP_TIMEOUT, end.connection.recv()).await??;
            let message = message.into_bytes();
            let (to_read, to_write) = message
                .split_at_checked(BufferDescriptorV1::LENGTH)
                .context("the other end registered one buffer, not two")?;
            end.theirs = Some(Theirs {
                to_read: BufferDescriptorV1::from_bytes(to_read)?,
                to_write: BufferDescriptorV1::from_bytes(to_write)?,
            });
        }
        Ok(end)
    }

    /// Runs this end's part of a burst. Returns the nanoseconds of each round trip.
    async fn burst(&mut self, burst: &Burst, active: bool) -> Result<Done> {
        let mut done = Done::default();
        if matches!(burst.kind, Operation::Send | Operation::Batch) {
            // An end that sends a single message and is idle afterwards must stay small.
            let most = match burst.seconds {
                Some(_) => MAX_SOURCES,
                None => MAX_SOURCES.min(burst.count.max(1) as usize),
            };
            while self.sources.len() < most {
                self.sources.push(Bytes::from_owner(self.source.clone()));
            }
        }
        match (burst.kind, active) {
            _ if burst.seconds.is_some() => done = self.timed(burst, active).await?,
            (Operation::Echo, true) => done.round_trips = self.echo(burst).await?,
            (Operation::Echo, false) => self.answer(burst).await?,
            (Operation::Send | Operation::Batch, _) => self.messages(burst, active).await?,
            (Operation::Write | Operation::WriteApart | Operation::Read, _) => {
                self.transfers(burst, active).await?;
            }
        }
        Ok(done)
    }

    /// Sends messages in one or both directions. The passive end acknowledges all of them at the end.
    async fn messages(&self, burst: &Burst, active: bool) -> Result<()> {
        match (active, burst.both) {
            (true, false) => self.send_all(burst).await?,
            (false, false) => self.receive_all(burst).await?,
            (_, true) => both(self.send_all(burst), self.receive_all(burst)).await?,
        }
        self.settle(active).await
    }

    /// RDMA in one or both directions. A message sent after the writes arrives when they are in
    /// place.
    async fn transfers(&mut self, burst: &Burst, active: bool) -> Result<()> {
        if active || burst.both {
            let more = |done| done < burst.count;
            match burst.kind {
                Operation::Read => self.read_while(burst, more).await?,
                _ => self.write_while(burst, more).await?,
            };
            drop(self.connection.send(END_MARK)?);
        }
        if !active || burst.both {
            self.marked().await?;
        }
        self.settle(active).await
    }

    async fn settle(&self, active: bool) -> Result<()> {
        if active {
            return self.marked().await;
        }
        // The runtime stops after the burst, so everything has to be sent before.
        Ok(self.connection.send(END_MARK)?.await?)
    }

    async fn marked(&self) -> Result<()> {
        let message = self.connection.recv().await?.into_bytes();
        ensure!(
            message == END_MARK,
            "the other end sent something else than the end of the burst"
        );
        Ok(())
    }

    async fn send_all(&self, burst: &Burst) -> Result<()> {
        if burst.kind == Operation::Batch {
            return self.send_batches(burst).await;
        }
        let mut messages = self.to_send(burst);
        let window = window(burst.size);
        let mut sending = VecDeque::with_capacity(window);
        for _ in 0..burst.count {
            if sending.len() == window {
                // Await half of them together, so that the next messages leave in one batch.
                finish(&mut sending, window / 2).await?;
            }
            sending.push_back(self.connection.send(messages.next())?);
        }
        let rest = sending.len();
        finish(&mut sending, rest).await
    }

    /// Sends the messages of a burst.
    fn to_send(&self, burst: &Burst) -> ToSend {
        let slices = self.sources.iter();
        let slices = slices.map(|source| source.slice(..burst.size as usize).into());
        ToSend {
            messages: slices.collect(),
            next: 0,
        }
    }

    /// Sends the messages of a burst, several per call.
    async fn send_batches(&self, burst: &Burst) -> Result<()> {
        let mut source = self.to_send(burst);
        let window = window(burst.size);
        let (mut sending, mut messages) = (VecDeque::new(), Vec::new());
        let mut left = burst.count;
        while left > 0 {
            if sending.len() == OUTSTANDING_BATCHES {
                finish(&mut sending, OUTSTANDING_BATCHES / 2).await?;
            }
            let now = left.min((window / OUTSTANDING_BATCHES) as u64);
            messages.extend((0..now).map(|_| source.next()));
            sending.push_back(self.connection.send_many(&mut messages)?);
            left -= now;
        }
        let rest = sending.len();
        finish(&mut sending, rest).await
    }

    async fn receive_batches(&self, burst: &Burst) -> Result<()> {
        let (mut left, mut messages) = (burst.count, Vec::new());
        while left > 0 {
            let most = left.min(window(burst.size) as u64) as usize;
            left -= self.connection.recv_many(&mut messages, most).await? as u64;
            for message in messages.drain(..) {
                check_length(message.len(), burst)?;
            }
        }
        Ok(())
    }

    async fn receive_all(&self, burst: &Burst) -> Result<()> {
        if burst.kind == Operation::Batch {
            return self.receive_batches(burst).await;
        }
        for _ in 0..burst.count {
            let message = self.connection.recv().await?;
            check_length(message.len(), burst)?;
        }
        Ok(())
    }

    /// Writes while `more` returns true for the number of writes so far, and returns that number.
    async fn write_while(&self, burst: &Burst, more: impl Fn(u64) -> bool) -> Result<u64> {
        let theirs = self.theirs(burst)?;
        let data = self.source.slice(..burst.size as usize);
        let outstanding = burst.outstanding.max(1) as usize;
        let mut writing = VecDeque::with_capacity(outstanding);
        let slots = u64::from(burst.slots());
        let mut count = 0;
        while more(count) {
            if writing.len() == outstanding {
                finish(&mut writing, outstanding.div_ceil(2)).await?;
            }
            let offset = count % slots * u64::from(burst.size);
            writing.push_back(self.connection.write(&theirs, offset, data.clone()));
            count += 1;
        }
        let rest = writing.len();
        finish(&mut writing, rest).await?;
        Ok(count)
    }

    /// Reads while `more` returns true for the number of reads so far, and returns that number.
    async fn read_while(&mut self, burst: &Burst, more: impl Fn(u64) -> bool) -> Result<u64> {
        let theirs = self.theirs(burst)?;
        let outstanding = burst.outstanding.max(1) as usize;
        let mut reading = VecDeque::with_capacity(outstanding);
        let mut count = 0;
        while more(count) {
            if reading.len() == outstanding {
                self.finish_reads(&mut reading, outstanding.div_ceil(2))
                    .await?;
            }
            let mut buffer = self.buffers.pop().unwrap_or_default();
            buffer.resize(burst.size as usize, 0);
            reading.push_back(self.connection.read(&theirs, 0, buffer));
            count += 1;
        }
        let rest = reading.len();
        self.finish_reads(&mut reading, rest).await?;
        Ok(count)
    }

    /// Takes back the buffers of the first `number` reads, the last of them first.
    async fn finish_reads(&mut self, reading: &mut VecDeque<Reading>, number: usize) -> Result<()> {
        for operation in reading.drain(..number).rev() {
            self.buffers.push(operation.await?);
        }
        Ok(())
    }

    /// Returns the peer's memory that a burst uses.
    fn theirs(&self, burst: &Burst) -> Result<[BufferDescriptorV1; 1]> {
        let theirs = self
            .theirs
            .context("no memory is registered on this link")?;
        let theirs = match burst.kind {
            Operation::Read => theirs.to_read,
            _ => theirs.to_write,
        };
        let length = burst.size.checked_mul(burst.slots());
        let length = length.filter(|&length| length <= theirs.length);
        let length = length.context("the other end registered less")?;
        Ok([BufferDescriptorV1 { length, ..theirs }])
    }

    async fn echo(&self, burst: &Burst) -> Result<Vec<u64>> {
        let message = self.source.slice(..burst.size as usize);
        let mut round_trips = Vec::with_capacity(burst.count as usize);
        for _ in 0..burst.count {
            let started = Instant::now();
            let sending = self.connection.send(message.clone())?;
            let echo = self.connection.recv().await?.into_bytes();
            round_trips.push(started.elapsed().as_nanos() as u64);
            drop(sending);
            check_length(echo.len(), burst)?;
        }
        Ok(round_trips)
    }

    async fn answer(&self, burst: &Burst) -> Result<()> {
        let mut last = None;
        for _ in 0..burst.count {
            let message = self.connection.recv().await?;
            last = Some(self.connection.send(message)?);
        }
        match last {
            Some(last) => Ok(last.await?),
            None => Ok(()),
        }
    }
}

/// A message that ends a burst. No other message of a burst has these bytes.
const END_MARK: &[u8] = b"over, and all of it is here";

/// Returns the bytes that the messages of a burst are made of.
pub(crate) fn source(length: u32) -> Bytes {
    let mut bytes = vec![0; length as usize];
    fastrand::Rng::with_seed(u64::from(length)).fill(&mut bytes);
    bytes.into()
}

fn check_length(length: usize, burst: &Burst) -> Result<()> {
    ensure!(
        length == burst.size as usize,
        "a message of {length} bytes arrived, {} were sent",
        burst.size
    );
    Ok(())
}

/// Awaits the first `number` outstanding operations, by waiting for the last of them.
async fn finish<F, E>(outstanding: &mut VecDeque<F>, number: usize) -> Result<()>
where
    F: Future<Output = Result<(), E>> + Unpin,
    E: std::error::Error + Send + Sync + 'static,
{
    let Some(last) = number.checked_sub(1) else {
        return Ok(());
    };
    let last = outstanding
        .get_mut(last)
        .expect("`number` operations are outstanding");
    last.await?;
    // Operations finish in order. A failed one has ended the connection, and the next call reports
    // it.
    outstanding.drain(..number);
    Ok(())
}

/// Runs sending and receiving concurrently.
async fn both(
    sending: impl Future<Output = Result<()>>,
    receiving: impl Future<Output = Result<()>>,
) -> Result<()> {
    tokio::try_join!(sending, receiving).map(|_| ())
}

/// The result of one connection.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Messages, writes or reads of a timed burst, at the end that counts them.
    pub(crate) arrived: Option<u64>,
    pub(crate) round_trips: Vec<u64>,
}

/// Runs one burst on all connections of a link, each in a task of its own: waking the future that
/// block_on() runs costs two system calls.
pub(crate) async fn burst(ends: &mut Vec<End>, burst: &Burst, active: bool) -> Result<Vec<Done>> {
    let _spinning = burst.busy.then(Spinning::start);
    // A task that busy-polls one connection keeps its thread from the others.
    let busy_poll = if burst.busy && ends.len() == 1 {
        BUSY_POLL_TIME
    } else {
        Duration::ZERO
    };
    let mut tasks = Vec::new();
    let last = ends.len() - 1;
    for (index, mut end) in ends.drain(..).enumerate() {
        let mut burst = *burst;
        // The other connections move data.
        burst.request = burst.request.filter(|_| index == last);
        end.connection.set_busy_poll(busy_poll);
        tasks.push(tokio::spawn(async move {
            let done = within(end.burst(&burst, active)).await;
            (end, done)
        }));
    }
    // The order stays: the last connection of both ends is the same one in the next burst as well.
    let mut all = Vec::new();
    for task in tasks {
        let (end, done) = task.await?;
        ends.push(end);
        all.push(done?);
    }
    Ok(all)
}

/// Time that a busy end polls for a message itself before it yields to the runtime, which does not
/// sleep either.
const BUSY_POLL_TIME: Duration = Duration::from_micros(30);

/// Runs `work`, and fails if it takes longer than [`BURST_TIMEOUT`].
async fn within<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match timeout(BURST_TIMEOUT, work).await {
        Ok(done) => done,
        Err(_) => bail!("a burst does not end"),
    }
}

/// Longest time of a burst.
const BURST_TIMEOUT: Duration = Duration::from_secs(30);

/// Keeps the runtime from sleeping, so that it polls its sockets continuously.
pub(crate) struct Spinning(Arc<AtomicBool>);

impl Spinning {
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                yield_now().await;
            }
        });
        Self(stop)
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
