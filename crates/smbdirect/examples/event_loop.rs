//! The engine in an event loop of the program's own: no tokio, no task, no lock.
//!
//! The loop below does what the driver of this crate does: it moves work requests from the engine to the queue
//! pair and completions back, and passes the time. The two ends run on two threads and connect through the
//! in-process provider. The core builds without its default features:
//!
//! ```sh
//! cargo run -p smbdirect --no-default-features --example event_loop
//! ```

use std::{
    error::Error,
    future::Future,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

use bytes::Bytes;
use smbdirect::{
    Config, ConnectionError,
    engine::{Connection, Event, MessageId},
    rdma::{
        loopback::Loopback,
        provider::{
            AcceptRequest, ConnectRequest, Connected, Provider, ProviderListener, QueuePair,
        },
    },
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const REQUEST: &[u8] = b"a request";
const REPLY: &[u8] = b"a reply";

fn main() -> Result<()> {
    run()
}

/// Runs a client and a server, which exchange a request and a reply.
pub(crate) fn run() -> Result<()> {
    let provider = Arc::new(Loopback::new());
    let mut listener = block_on(provider.listen(SocketAddr::from(([127, 0, 0, 1], 5445))))?;
    let address = listener.local_addr();
    let server = thread::spawn(move || serve(&mut *listener));
    let client = ask(&*provider, address);
    server.join().expect("the server does not panic")?;
    client
}

/// Connects, sends the request, waits for the reply and closes the connection.
fn ask(provider: &dyn Provider, address: SocketAddr) -> Result<()> {
    let mut engine = Connection::active(Config::default(), Instant::now());
    let connected = block_on(provider.connect(ConnectRequest {
        address,
        private_data: Bytes::new(),
        receive: engine.negotiate_receive(),
    }))?;
    let mut end = End::new(engine, connected);
    end.wait_until_negotiated()?;
    end.send(REQUEST)?;
    assert_eq!(end.receive()?, REPLY);
    println!("the server has answered");
    end.engine.close();
    match end.receive() {
        Err(ConnectionError::Closed | ConnectionError::ClosedHere) => Ok(()),
        other => Err(format!("the connection did not close: {other:?}").into()),
    }
}

/// Accepts one client, answers its request, and waits until it has closed the connection.
fn serve(listener: &mut dyn ProviderListener) -> Result<()> {
    let incoming = block_on(listener.accept())?;
    let mut engine = Connection::passive(Config::default(), Instant::now());
    let connected = block_on(incoming.accept(AcceptRequest {
        private_data: Bytes::new(),
        receive: engine.negotiate_receive(),
        peer_serves_reads: None,
    }))?;
    let mut end = End::new(engine, connected);
    end.wait_until_negotiated()?;
    assert_eq!(end.receive()?, REQUEST);
    end.send(REPLY)?;
    match end.receive() {
        Err(ConnectionError::Closed | ConnectionError::ClosedHere) => Ok(()),
        other => Err(format!("the client did not close: {other:?}").into()),
    }
}

/// One end of a connection: the engine decides, and the queue pair executes.
struct End {
    engine: Connection,
    queue_pair: Box<dyn QueuePair>,
    waker: Waker,
}

impl End {
    fn new(mut engine: Connection, connected: Connected) -> Self {
        engine.handle_connected(connected.limits);
        Self {
            engine,
            queue_pair: connected.queue_pair,
            waker: this_thread(),
        }
    }

    /// The event loop: returns the next event of the engine, and parks the thread until there is one.
    fn next_event(&mut self) -> Event {
        let context = &mut Context::from_waker(&self.waker);
        loop {
            if let Some(event) = self.engine.poll_event() {
                return event;
            }
            let now = Instant::now();
            if self.engine.poll_timeout().is_some_and(|due| due <= now) {
                self.engine.handle_timeout(now);
            }
            while let Some(work) = self.engine.poll_work(now, self.queue_pair.room()) {
                self.queue_pair.post(work);
            }
            self.queue_pair.flush(context, u64::MAX);
            if let Some(event) = self.engine.poll_event() {
                return event;
            }
            match (
                self.queue_pair.poll_completion(context),
                self.engine.poll_timeout(),
            ) {
                (Poll::Ready(completion), _) => self.engine.handle_completion(now, completion),
                (Poll::Pending, _) if self.queue_pair.needs_poll() => {}
                (Poll::Pending, Some(due)) => thread::park_timeout(due - now.min(due)),
                (Poll::Pending, None) => thread::park(),
            }
        }
    }

    fn wait_until_negotiated(&mut self) -> std::result::Result<(), ConnectionError> {
        loop {
            match self.next_event() {
                Event::Negotiated(_) => return Ok(()),
                Event::Closed(error) => return self.end(error),
                _ => {}
            }
        }
    }

    fn send(&mut self, message: &'static [u8]) -> Result<()> {
        let message = Bytes::from_static(message);
        Ok(self.engine.send(MessageId::UNWATCHED, message, None)?)
    }

    /// Returns the next message. This program's messages fit into one segment each.
    fn receive(&mut self) -> std::result::Result<Bytes, ConnectionError> {
        loop {
            match self.next_event() {
                Event::Segment { payload, .. } => return Ok(payload),
                Event::Closed(error) => return self.end(error),
                _ => {}
            }
        }
    }

    /// Disconnects the queue pair after the engine has reported why the connection ended.
    fn end<T>(&mut self, error: ConnectionError) -> std::result::Result<T, ConnectionError> {
        self.queue_pair.disconnect(self.engine.teardown());
        Err(error)
    }
}

/// Waits for a future of the provider on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = this_thread();
    let context = &mut Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return output;
        }
        thread::park();
    }
}

/// Returns a waker that unparks this thread.
fn this_thread() -> Waker {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    Waker::from(Arc::new(Unpark(thread::current())))
}
