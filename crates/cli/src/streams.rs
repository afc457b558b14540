//! Writes lines to stdout, to stderr and to the journal.
//!
//! A short command writes directly, so that no result is lost. A service must not wait for the reader of its log, which
//! may be a stopped terminal, a full disk or a supervisor that hangs: after [`start_queue`] a thread of its own writes
//! the lines, from a queue with a limit. Lines that find the queue full, or that cannot be written, are lost and
//! counted, and the count is written when there is room again.

#[cfg(target_os = "linux")]
use std::os::unix::net::UnixDatagram;
use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// Maximum number of bytes that wait to be written.
const MAX_QUEUED_BYTES: usize = 1 << 20;
/// Longest time that the end of the command waits for its last lines to be written.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before another attempt to write to a stream that another process has made non-blocking.
const BLOCKED_PAUSE: Duration = Duration::from_millis(10);

/// A stream of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
    /// Each line is a datagram in the journal's native protocol.
    #[cfg(target_os = "linux")]
    Journal,
}

/// All streams.
const ALL: &[Stream] = &[
    Stream::Stdout,
    Stream::Stderr,
    #[cfg(target_os = "linux")]
    Stream::Journal,
];
/// Number of streams.
const STREAMS: usize = 3;

static QUEUE: OnceLock<Arc<Queue>> = OnceLock::new();
/// Lines that were lost since the command started.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The lines that wait for the thread that writes them.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    /// Notified when there is a line.
    filled: Condvar,
    /// Notified when every line was written.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<(Stream, Vec<u8>)>,
    bytes: usize,
    /// Lines of each stream that found the queue full.
    lost: [u64; STREAMS],
    /// Whether the thread is writing a line that it has taken from the queue.
    is_writing: bool,
}

/// Writes lines by a thread of its own from now on. It calls `report_lost` when a stream that has lost lines takes lines
/// again, with their number.
///
/// # Errors
/// The system starts no thread.
pub(crate) fn start_queue(report_lost: fn(Stream, u64)) -> io::Result<()> {
    let queue = Arc::new(Queue::default());
    let writer = queue.clone();
    let thread = thread::Builder::new().name("smbdirect-log".into());
    thread.spawn(move || writer.write_forever(report_lost))?;
    QUEUE.get_or_init(|| queue);
    Ok(())
}

/// Returns the number of lines that were lost since the command started.
pub(crate) fn lost() -> u64 {
    LOST.load(Relaxed)
}

/// Writes a line, which ends with its line feed, or queues it.
///
/// # Errors
/// The line cannot be written. There is no error if it is queued.
pub(crate) fn write(stream: Stream, line: &[u8]) -> io::Result<()> {
    if let Some(queue) = QUEUE.get() {
        queue.push(stream, line);
        return Ok(());
    }
    // Lines of two threads do not mix.
    static WRITES: [Mutex<()>; STREAMS] = [const { Mutex::new(()) }; STREAMS];
    let lock = WRITES[stream as usize].lock();
    let _lock = lock.unwrap_or_else(PoisonError::into_inner);
    write_all(stream, &mut { line })
}

#[cfg(target_os = "linux")]
static JOURNAL: OnceLock<UnixDatagram> = OnceLock::new();

/// The socket of the journal.
#[cfg(target_os = "linux")]
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// Opens the journal, and returns whether there is one.
#[cfg(target_os = "linux")]
pub(crate) fn open_journal() -> bool {
    let open = || {
        let socket = UnixDatagram::unbound()?;
        // The journal ignores an empty datagram.
        socket.send_to(&[], JOURNAL_SOCKET)?;
        Ok::<_, io::Error>(socket)
    };
    open().is_ok_and(|socket| JOURNAL.set(socket).is_ok())
}

/// Sends an entry to the journal.
#[cfg(target_os = "linux")]
fn send(entry: &[u8]) -> io::Result<()> {
    let socket = JOURNAL.get().ok_or(io::ErrorKind::NotConnected)?;
    socket.send_to(entry, JOURNAL_SOCKET).map(drop)
}

/// Waits until the queue is empty, for a limited time.
pub(crate) fn finish() {
    if let Some(queue) = QUEUE.get() {
        let is_busy = |waiting: &mut Waiting| waiting.is_writing || !waiting.lines.is_empty();
        let waiting = queue.lock();
        // A reader that does not take the last lines in time has lost them.
        drop(
            queue
                .written
                .wait_timeout_while(waiting, FINISH_TIMEOUT, is_busy),
        );
    }
}

/// A stream as a writer, which takes each call of `write` as a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines(pub(crate) Stream);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write(self.0, line).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, stream: Stream, line: &[u8]) {
        let mut waiting = self.lock();
        // A line longer than the limit goes alone.
        if waiting.bytes > 0 && waiting.bytes + line.len() > MAX_QUEUED_BYTES {
            waiting.lost[stream as usize] += 1;
            LOST.fetch_add(1, Relaxed);
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back((stream, line.to_vec()));
        self.filled.notify_one();
    }

    fn write_forever(&self, report_lost: fn(Stream, u64)) {
        let mut losses = Losses::default();
        let mut is_torn = [false; STREAMS];
        loop {
            let (stream, line) = self.next();
            let is_torn = &mut is_torn[stream as usize];
            let mut line = &line[..];
            let begin = if *is_torn { &b"\n"[..] } else { b"" };
            let written = write_all(stream, &mut { begin }).and_then(|()| {
                *is_torn = false;
                let length = line.len();
                write_all(stream, &mut line).inspect_err(|_| *is_torn = line.len() < length)
            });
            losses.written(stream, &written);
            let due = losses.due(&mut self.lock());
            for (stream, lines) in due {
                report_lost(stream, lines);
            }
        }
    }

    /// Waits for the next line, and takes it.
    fn next(&self) -> (Stream, Vec<u8>) {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        loop {
            if let Some((stream, line)) = waiting.lines.pop_front() {
                waiting.bytes -= line.len();
                waiting.is_writing = true;
                return (stream, line);
            }
            self.written.notify_all();
            waiting = self
                .filled
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The lines that were lost and that no line has counted yet.
#[derive(Debug, Default)]
struct Losses {
    lines: [u64; STREAMS],
    /// Streams whose last line could not be written.
    fails: [bool; STREAMS],
}

impl Losses {
    /// Takes note of how the writing of a line has ended.
    fn written(&mut self, stream: Stream, result: &io::Result<()>) {
        self.fails[stream as usize] = result.is_err();
        if result.is_err() {
            self.lines[stream as usize] += 1;
            LOST.fetch_add(1, Relaxed);
        }
    }

    /// Returns the numbers of lost lines that can be written now, by stream. They come after the lines that were in the
    /// queue when the others found it full, also if nothing more is written to their stream.
    fn due(&mut self, waiting: &mut Waiting) -> Vec<(Stream, u64)> {
        if waiting.bytes >= MAX_QUEUED_BYTES / 2 {
            return Vec::new();
        }
        let of_stream = |&stream: &Stream| {
            let lines = &mut self.lines[stream as usize];
            *lines += std::mem::take(&mut waiting.lost[stream as usize]);
            let is_due = *lines > 0 && !self.fails[stream as usize];
            is_due.then(|| (stream, std::mem::take(lines)))
        };
        ALL.iter().filter_map(of_stream).collect()
    }
}

/// Writes the bytes, and waits while another process has made the stream non-blocking and its reader is slow. After a
/// failure, `line` is what was not written.
fn write_all(stream: Stream, line: &mut &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match write_some(stream, line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => *line = &line[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(BLOCKED_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes without the buffer of the standard library, which would keep a part of a line that failed.
#[cfg(unix)]
fn write_some(stream: Stream, line: &[u8]) -> io::Result<usize> {
    match stream {
        Stream::Stdout => Ok(rustix::io::write(io::stdout(), line)?),
        Stream::Stderr => Ok(rustix::io::write(io::stderr(), line)?),
        #[cfg(target_os = "linux")]
        Stream::Journal => send(line).map(|()| line.len()),
    }
}

#[cfg(not(unix))]
fn write_some(stream: Stream, line: &[u8]) -> io::Result<usize> {
    match stream {
        Stream::Stdout => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(line).and_then(|()| stdout.flush())?;
        }
        Stream::Stderr => io::stderr().write_all(line)?,
    }
    Ok(line.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_counts_what_it_loses() {
        let queue = Queue::default();
        let line = vec![b'x'; MAX_QUEUED_BYTES / 4];
        for _ in 0..7 {
            queue.push(Stream::Stderr, &line);
        }
        queue.push(Stream::Stdout, b"short\n");
        let mut waiting = queue.lock();
        assert_eq!((waiting.lines.len(), waiting.lost), (4, [1, 3, 0]));
        waiting.lines.clear();
        waiting.bytes = 0;
        drop(waiting);
        let long = vec![b'x'; MAX_QUEUED_BYTES + 1];
        queue.push(Stream::Stderr, &long);
        assert_eq!(queue.next(), (Stream::Stderr, long), "it goes alone");
    }

    #[test]
    fn lost_lines_are_counted_when_their_stream_takes_lines() {
        let (mut losses, mut waiting) = (Losses::default(), Waiting::default());
        waiting.bytes = MAX_QUEUED_BYTES;
        waiting.lost = [2, 1, 0];
        losses.written(Stream::Stderr, &Ok(()));
        assert_eq!(losses.due(&mut waiting), [], "there is no room");
        waiting.bytes = 0;
        // Standard error has filled the queue, and nothing more is written to standard output.
        losses.written(Stream::Stderr, &Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(losses.due(&mut waiting), [(Stream::Stdout, 2)]);
        assert_eq!(losses.due(&mut waiting), []);
        losses.written(Stream::Stderr, &Ok(()));
        assert_eq!(losses.due(&mut waiting), [(Stream::Stderr, 2)]);
    }
}
