//! SMB Direct over a socket of the program's own: the engine, the startup of MPA and the iWARP stream, all without
//! I/O, over a `TcpStream` of the standard library. No tokio, no task, no provider.
//!
//! ```sh
//! cargo run -p smbdirect --no-default-features --example sans_io
//! ```
//!
//! `docs/sans-io.md` explains the loop. Any other transport that delivers bytes in order works in the same way.

use std::{
    error::Error,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::{
    Config, ConnectionError,
    engine::{Connection, Event, MessageId},
    rdma::iwarp::{
        Stream,
        handshake::{Established, HandshakeConfig, Initiator, Responder},
    },
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    run()
}

/// Runs a server and a client, which exchange a request and a reply.
pub(crate) fn run() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || serve(listener.accept()?.0));
    let client = ask(TcpStream::connect(address)?);
    server.join().expect("the server does not panic")?;
    client
}

/// The initiator: sends the Request of MPA and reads the Reply, then sends a message and waits for the answer.
fn ask(mut socket: TcpStream) -> Result<()> {
    let mut initiator = Initiator::new(&HandshakeConfig::default(), &Bytes::new());
    socket.write_all(&initiator.request())?;
    let established = loop {
        let bytes = read_some(&mut socket)?;
        if let Some(established) = initiator.handle_bytes(&bytes)? {
            break established;
        }
    };
    let engine = Connection::active(Config::default(), Instant::now());
    let mut end = End::new(socket, established, engine);
    while !matches!(end.next_event()?, Event::Negotiated(_)) {}
    end.send("a request")?;
    println!("the server has answered {:?}", end.receive()?);
    end.close()
}

/// The responder: reads the Request of MPA and sends the Reply, then answers a message.
fn serve(mut socket: TcpStream) -> Result<()> {
    let mut responder = Responder::new(&HandshakeConfig::default());
    let request = loop {
        let bytes = read_some(&mut socket)?;
        if let Some(request) = responder.handle_bytes(&bytes)? {
            break request;
        }
    };
    let (reply, established) = request.accept(&Bytes::new(), None);
    socket.write_all(&reply)?;
    let engine = Connection::passive(Config::default(), Instant::now());
    let mut end = End::new(socket, established, engine);
    assert_eq!(end.receive()?, "a request");
    end.send("a reply")?;
    match end.receive() {
        Err(ConnectionError::Closed | ConnectionError::ClosedHere) => Ok(()),
        other => Err(format!("the client did not close: {other:?}").into()),
    }
}

/// One end of a connection: the engine decides, the stream speaks iWARP, and the socket carries its bytes.
struct End {
    socket: TcpStream,
    stream: Stream,
    engine: Connection,
}

impl End {
    fn new(socket: TcpStream, established: Established, mut engine: Connection) -> Self {
        let stream = established.into_stream(engine.negotiate_receive());
        engine.handle_connected(stream.limits());
        Self {
            socket,
            stream,
            engine,
        }
    }

    /// Moves work, completions and bytes until the engine has an event.
    fn next_event(&mut self) -> io::Result<Event> {
        loop {
            let now = Instant::now();
            if self.engine.poll_timeout().is_some_and(|due| due <= now) {
                self.engine.handle_timeout(now);
            }
            while let Some(completion) = self.stream.poll_completion() {
                self.engine.handle_completion(now, completion);
            }
            while let Some(work) = self.engine.poll_work(now, self.stream.room()) {
                self.stream.post(work);
            }
            self.write()?;
            if let Some(event) = self.engine.poll_event() {
                return Ok(event);
            }
            if !self.stream.has_completion() {
                self.read(now)?;
            }
        }
    }

    /// Writes what the stream has to send. Two ends that both block in a long write wait for each other: for bulk
    /// data in both directions, make the socket non-blocking and wait until it can be read or written.
    fn write(&mut self) -> io::Result<()> {
        while self.stream.prepare() > 0 {
            let mut slices = [IoSlice::new(&[]); 16];
            let count = self.stream.transmit_slices(&mut slices);
            match self.socket.write_vectored(&slices[..count]) {
                Ok(written) => self.stream.transmitted(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once, and waits for bytes until the next timer of the engine is due.
    fn read(&mut self, now: Instant) -> io::Result<()> {
        let due = self.engine.poll_timeout();
        // A socket takes no timeout of zero.
        let left = due.map(|due| (due - now.min(due)).max(Duration::from_millis(1)));
        self.socket.set_read_timeout(left)?;
        let mut slices = self.stream.receive_slices().map(IoSliceMut::new);
        match self.socket.read_vectored(&mut slices) {
            Ok(0) => self.stream.handle_end(),
            Ok(count) => self.stream.received(count),
            Err(error) if is_no_failure(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn send(&mut self, message: &'static str) -> Result<()> {
        Ok(self.engine.send(MessageId::UNWATCHED, message, None)?)
    }

    /// Returns the next message. The messages of this program fit into one segment each.
    fn receive(&mut self) -> std::result::Result<Bytes, ConnectionError> {
        loop {
            match self.next_event() {
                Ok(Event::Segment { payload, .. }) => return Ok(payload),
                Ok(Event::Closed(error)) => return Err(error),
                Ok(_) => {}
                Err(_) => return Err(ConnectionError::Aborted),
            }
        }
    }

    /// Closes the connection after everything was sent.
    fn close(mut self) -> Result<()> {
        self.engine.close();
        match self.receive() {
            Err(ConnectionError::Closed | ConnectionError::ClosedHere) => {}
            other => return Err(format!("the connection did not close: {other:?}").into()),
        }
        self.stream.close();
        self.write()?;
        self.stream.finish();
        self.socket.shutdown(std::net::Shutdown::Write)?;
        Ok(())
    }
}

/// Reads the next bytes of a startup frame.
fn read_some(socket: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 1024];
    let count = loop {
        match socket.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result?,
        }
    };
    bytes.truncate(count);
    if bytes.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// Whether no bytes arrived in time, or a signal interrupted the wait.
fn is_no_failure(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}
