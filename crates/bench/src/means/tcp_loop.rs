//! Plain TCP with one thread for all connections of an end: the thread waits for events and makes one
//! non-blocking system call on each ready connection in turn, as servers with one thread a core do.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream as Blocking,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use mio::{Events, Interest, Poll, Token, net::TcpStream};

use crate::{
    host,
    work::{Burst, Half, Link, Operation},
};

/// Bytes of the buffer that short messages of all connections are read into.
const BUFFER_BYTES: usize = 256 << 10;
/// Messages of this many bytes are read into memory of their own, as RDMA places them.
const MIN_PLACED_BYTES: u32 = 16 << 10;
/// Largest number of events that one wait returns.
const MAX_EVENTS: usize = 1024;
/// Time without an event after which the burst counts as stuck.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);
/// First byte of a message that is followed by others.
const MORE: u8 = 0;
/// First byte of the last message of a burst.
const LAST: u8 = 1;

/// All connections of one end. The last one carries requests where a burst has them.
#[derive(Debug)]
pub(crate) struct Loop {
    poll: Poll,
    events: Events,
    streams: Vec<TcpStream>,
    /// Requests, answers and the short messages that were received last.
    buffer: Vec<u8>,
    /// The memory of each connection: a message to send, or slots for long messages to receive.
    memory: Vec<Vec<u8>>,
    /// Longest message, and the number of slots for messages of reads.
    largest: u32,
    slots: u32,
}

/// One connection in a burst.
#[derive(Debug)]
struct Work {
    /// The next step.
    step: Step,
    /// Bytes of the current message that have moved.
    moved: usize,
    /// Where in the memory of the connection the next byte is received.
    offset: usize,
    /// Whether the message that moves is the last one.
    last: bool,
    /// Messages that have moved in this end's direction.
    messages: u64,
    /// Start of the current round trip.
    started: Instant,
    readable: bool,
    writable: bool,
}

/// The next step of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Sends messages until the time is over.
    Send,
    /// Receives messages until the last.
    Receive,
    /// Waits for the byte by which the other end acknowledges everything.
    AwaitEnd,
    /// Sends that byte.
    SendEnd,
    /// Sends a request.
    SendRequest,
    /// Receives the answer to a request.
    AwaitAnswer,
    /// Receives a request.
    AwaitRequest,
    /// Answers a request.
    SendAnswer,
    Done,
}

/// The result of a system call on a connection.
#[derive(Clone, Copy, Debug)]
enum Moved {
    Some(usize),
    /// The connection is not ready.
    None,
}

/// The state that all connections of a burst share.
struct Shared<'a> {
    burst: &'a Burst,
    /// A request that others follow, and the last one.
    requests: [Vec<u8>; 2],
    deadline: Instant,
}

impl Loop {
    /// Takes over connected streams.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn new(streams: Vec<Blocking>, link: &Link) -> Result<Self> {
        let poll = Poll::new()?;
        let mut all = Vec::new();
        for (stream, index) in streams.into_iter().zip(0..) {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(&mut stream, Token(index), interest)?;
            all.push(stream);
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(MAX_EVENTS),
            buffer: vec![0; BUFFER_BYTES],
            memory: vec![Vec::new(); all.len()],
            largest: link.largest,
            slots: link.slots,
            streams: all,
        })
    }

    /// Runs one timed burst on all connections.
    ///
    /// # Errors
    /// A connection fails, or nothing happens for a long time.
    pub(crate) fn burst(&mut self, burst: &Burst, active: bool) -> Result<Half> {
        let (started, cpu) = (Instant::now(), host::thread_cpu());
        let length = Duration::try_from_secs_f64(burst.seconds.unwrap_or(0.0))?.min(STALL_TIMEOUT);
        ensure!(burst.size <= self.largest, "the link has shorter messages");
        let request = super::smb_direct::source(burst.request.unwrap_or(1));
        let shared = Shared {
            burst,
            requests: [MORE, LAST].map(|first| [&[first], &request[1..]].concat()),
            deadline: started + length,
        };
        let bulk = self.streams.len() - usize::from(burst.request.is_some());
        let length = burst.size as usize * self.memory_places(burst, active);
        for memory in &mut self.memory[..bulk] {
            memory.resize(length, 0);
        }
        let mut work: Vec<_> = (0..self.streams.len())
            .map(|index| Work::new(active, index >= bulk, started))
            .collect();
        let mut half = Half::default();
        let mut open = work.len();
        while open > 0 {
            self.wait(&mut work)?;
            let ends = self.streams.iter_mut().zip(&mut self.memory);
            for (work, (stream, memory)) in work.iter_mut().zip(ends) {
                if !work.can_move() {
                    continue;
                }
                let memory = if memory.is_empty() {
                    &mut self.buffer
                } else {
                    memory
                };
                work.advance(stream, memory, &shared, &mut half.round_trips)?;
                open -= usize::from(work.step == Step::Done);
            }
        }
        if active {
            half.seconds = started.elapsed().as_secs_f64();
        } else {
            half.arrived = work[..bulk].iter().map(|work| work.messages).collect();
        }
        let own = host::thread_cpu().zip(cpu);
        half.cpu = own.map(|(after, before)| (after - before).as_secs_f64());
        Ok(half)
    }

    /// Returns how many messages each connection has memory of its own for.
    fn memory_places(&self, burst: &Burst, active: bool) -> usize {
        match burst.kind {
            _ if active => 1,
            _ if burst.size < MIN_PLACED_BYTES => 0,
            Operation::Read => self.slots as usize,
            _ => 1,
        }
    }

    /// Takes the events that are there, and waits for one if no connection can do anything.
    fn wait(&mut self, work: &mut [Work]) -> Result<()> {
        let ready = work.iter().any(Work::can_move);
        let timeout = if ready { Duration::ZERO } else { STALL_TIMEOUT };
        let waiting = Instant::now();
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            result => result.context("plain TCP")?,
        }
        // Windows may end a wait early without an event.
        ensure!(
            ready || !self.events.is_empty() || waiting.elapsed() < STALL_TIMEOUT,
            "a burst of plain TCP does not end"
        );
        for event in &self.events {
            let work = &mut work[event.token().0];
            work.readable |= event.is_readable() || event.is_error();
            work.writable |= event.is_writable() || event.is_error();
        }
        Ok(())
    }
}

impl Work {
    fn new(active: bool, asks: bool, started: Instant) -> Self {
        Self {
            step: match (active, asks) {
                (true, false) => Step::Send,
                (false, false) => Step::Receive,
                (true, true) => Step::SendRequest,
                (false, true) => Step::AwaitRequest,
            },
            moved: 0,
            offset: 0,
            last: false,
            messages: 0,
            started,
            // Edge-triggered events that an earlier burst has taken are not reported again.
            readable: true,
            writable: true,
        }
    }

    /// Returns whether the next step may succeed.
    fn can_move(&self) -> bool {
        match self.step {
            Step::Send | Step::SendEnd | Step::SendRequest | Step::SendAnswer => self.writable,
            Step::Receive | Step::AwaitEnd | Step::AwaitAnswer | Step::AwaitRequest => {
                self.readable
            }
            Step::Done => false,
        }
    }

    /// Makes one system call, and continues with the next step if the call completes this one.
    fn advance(
        &mut self,
        stream: &mut TcpStream,
        memory: &mut [u8],
        shared: &Shared<'_>,
        round_trips: &mut Vec<u64>,
    ) -> Result<()> {
        match self.step {
            Step::Send | Step::SendRequest => {
                if self.moved == 0 {
                    self.started = Instant::now();
                    self.last = self.started >= shared.deadline;
                }
                memory[0] = [MORE, LAST][usize::from(self.last)];
                let (message, next) = match (self.step, self.last) {
                    (Step::Send, false) => (&*memory, Step::Send),
                    (Step::Send, true) => (&*memory, Step::AwaitEnd),
                    _ => (
                        &shared.requests[usize::from(self.last)][..],
                        Step::AwaitAnswer,
                    ),
                };
                if self.write(stream, message)? {
                    self.step = next;
                }
            }
            Step::Receive => self.receive(stream, memory, shared.burst.size as usize)?,
            Step::AwaitEnd => {
                if self.read(stream, &mut memory[..1])? {
                    self.step = Step::Done;
                }
            }
            Step::SendEnd => {
                if self.write(stream, &[LAST])? {
                    self.step = Step::Done;
                }
            }
            Step::AwaitAnswer => {
                if self.read(stream, &mut memory[..shared.requests[0].len()])? {
                    round_trips.push(self.started.elapsed().as_nanos() as u64);
                    self.step = if self.last {
                        Step::Done
                    } else {
                        Step::SendRequest
                    };
                }
            }
            Step::AwaitRequest => {
                let first = self.moved == 0;
                if self.read(stream, &mut memory[..shared.requests[0].len()])? {
                    self.step = Step::SendAnswer;
                }
                if first && self.readable {
                    self.last = memory[0] == LAST;
                }
            }
            Step::SendAnswer => {
                if self.write(stream, &shared.requests[usize::from(self.last)])? {
                    self.step = if self.last {
                        Step::Done
                    } else {
                        Step::AwaitRequest
                    };
                }
            }
            Step::Done => {}
        }
        Ok(())
    }

    /// Writes more of a message, and returns whether the message is complete.
    fn write(&mut self, stream: &mut TcpStream, message: &[u8]) -> Result<bool> {
        match moved(stream.write(&message[self.moved..]))? {
            Moved::None => {
                self.writable = false;
                return Ok(false);
            }
            Moved::Some(bytes) => self.moved += bytes,
        }
        Ok(self.is_whole(message.len()))
    }

    /// Reads more of a message, and returns whether the message is complete.
    fn read(&mut self, stream: &mut TcpStream, message: &mut [u8]) -> Result<bool> {
        let length = message.len();
        match moved(stream.read(&mut message[self.moved..]))? {
            Moved::None => {
                self.readable = false;
                return Ok(false);
            }
            Moved::Some(bytes) => self.moved += bytes,
        }
        Ok(self.is_whole(length))
    }

    fn is_whole(&mut self, length: usize) -> bool {
        let whole = self.moved == length;
        if whole {
            self.moved = 0;
        }
        whole
    }

    /// Takes bytes of messages of `size` bytes, and checks the first byte of each. Long messages have
    /// their slots in `memory`.
    fn receive(&mut self, stream: &mut TcpStream, memory: &mut [u8], size: usize) -> Result<()> {
        let mut at = if size < MIN_PLACED_BYTES as usize {
            0
        } else {
            self.offset
        };
        let most = memory.len().min(at + BUFFER_BYTES);
        let Moved::Some(bytes) = moved(stream.read(&mut memory[at..most]))? else {
            self.readable = false;
            return Ok(());
        };
        let bytes = at + bytes;
        self.offset = bytes % memory.len();
        while at < bytes {
            if self.moved == 0 {
                self.last = memory[at] == LAST;
            }
            let step = (size - self.moved).min(bytes - at);
            (at, self.moved) = (at + step, self.moved + step);
            if self.is_whole(size) {
                self.messages += 1;
                if self.last {
                    ensure!(at == bytes, "bytes follow the last message");
                    self.step = Step::SendEnd;
                }
            }
        }
        Ok(())
    }
}

/// Distinguishes a connection that is not ready from a broken one.
fn moved(result: io::Result<usize>) -> Result<Moved> {
    match result {
        Ok(0) => Err(io::Error::from(ErrorKind::UnexpectedEof)).context("plain TCP"),
        Ok(bytes) => Ok(Moved::Some(bytes)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Moved::None),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Moved::Some(0)),
        Err(error) => Err(error).context("plain TCP"),
    }
}
