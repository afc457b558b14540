//! Connections of any RDMA provider, on whose queue pair the cases post by hand.

use std::{
    collections::VecDeque,
    future::poll_fn,
    net::{SocketAddr, TcpStream},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::rdma::{
    provider::{AcceptRequest, ConnectRequest, Connected, Provider, ProviderListener, QueuePair},
    work::{Completion, Inline, ProviderError, Teardown, WorkId, WorkRequest},
};
use tokio::{runtime::Runtime, time::timeout};

use crate::{
    outcome::{SkipReason, Verdict, fail, skip},
    peer::{Client, ClientAction, Link, Next, PeerFacts, PeerSettings, Server, Tcp, Timers, Watch},
};

/// Returns the facts that are assumed of every peer: the timers of the specification.
fn unknown(timers: Timers) -> PeerFacts {
    PeerFacts {
        settings: None,
        timers,
        prompt: Duration::from_secs(2),
        silence: Duration::from_millis(300),
        margin: Duration::from_secs(1),
        // Kernels round their timers to ticks.
        early: Duration::from_millis(250),
        late: Duration::from_secs(3),
        patience: Duration::from_secs(10),
    }
}

/// Starts a runtime with a thread of its own: RoCE acknowledges and retransmits while a case does
/// not wait for anything.
fn runtime() -> std::io::Result<Rc<Runtime>> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().map(Rc::new)
}

/// Returns the result of the future if it takes at most `limit`.
fn within<T>(runtime: &Runtime, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    runtime.block_on(async { timeout(limit, future).await.ok() })
}

/// The receive posted before connecting.
fn first_receive() -> WorkRequest {
    WorkRequest::Receive {
        id: WorkId(0),
        length: 512,
        count: 1,
    }
}

/// A server that listens on an address.
pub struct RdmaServer {
    provider: Arc<dyn Provider>,
    address: SocketAddr,
    runtime: Rc<Runtime>,
    watch: Option<Watch>,
    is_over_tcp: bool,
    /// What is known of the server. A caller that knows more than the defaults changes it.
    pub facts: PeerFacts,
}

impl RdmaServer {
    /// Creates the server at `address`, to which the provider connects.
    ///
    /// # Errors
    /// The runtime of the connections does not start.
    pub fn new(provider: Arc<dyn Provider>, address: SocketAddr) -> std::io::Result<Self> {
        Ok(Self {
            provider,
            address,
            runtime: runtime()?,
            watch: None,
            is_over_tcp: false,
            facts: unknown(Timers::SERVER),
        })
    }

    /// Observes the bytes of connections below RDMA, for a capture. The provider observes the bytes of its own
    /// connections.
    #[must_use]
    pub fn with_watch(mut self, watch: Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Declares that the server speaks iWARP over TCP, so that cases can send it bytes below RDMA. Without
    /// this call those cases are skipped.
    #[must_use]
    pub fn with_tcp(mut self) -> Self {
        self.is_over_tcp = true;
        self
    }

    fn try_connect(&self) -> Verdict<Result<Connected, ProviderError>> {
        let request = ConnectRequest {
            address: self.address,
            private_data: Bytes::new(),
            receive: first_receive(),
        };
        // The address has to be resolved, and the peer may be busy.
        let limit = self.facts.prompt * 3;
        match within(&self.runtime, limit, self.provider.connect(request)) {
            Some(connected) => Ok(connected),
            None => fail(
                "the connection is accepted",
                format!("no answer within {limit:?}"),
            ),
        }
    }
}

impl Server for RdmaServer {
    fn prepare(&mut self, _wish: &PeerSettings) -> Verdict {
        Ok(())
    }

    fn facts(&self) -> PeerFacts {
        self.facts.clone()
    }

    fn connect(&mut self) -> Verdict<Box<dyn Link>> {
        let started = Instant::now();
        match self.try_connect()? {
            Ok(connected) => Ok(Box::new(RdmaLink::new(
                connected,
                started,
                &self.facts,
                self.runtime.clone(),
            ))),
            Err(error) => fail("the connection is accepted", error.to_string()),
        }
    }

    fn connect_tcp(&mut self) -> Verdict<Tcp> {
        if !self.is_over_tcp {
            let name = self.provider.attributes().name;
            return skip(format!(
                "the case sends bytes below RDMA, which is not possible with {name}; use iwarp"
            ));
        }
        match TcpStream::connect_timeout(&self.address, self.facts.prompt * 3) {
            Ok(stream) => Ok(Tcp {
                stream,
                watch: self.watch.clone(),
            }),
            Err(error) => fail("the TCP connection is accepted", error.to_string()),
        }
    }
}

/// Clients that connect to a listener.
pub struct RdmaClient {
    listener: Box<dyn ProviderListener>,
    runtime: Rc<Runtime>,
    waiting: Box<dyn FnMut()>,
    /// Longest time to wait for the next connection.
    pub accept_timeout: Duration,
    /// What is known of the client. A caller that knows more than the defaults changes it.
    pub facts: PeerFacts,
}

impl RdmaClient {
    /// Listens on `address`. `waiting` is called each time before a connection is waited for.
    ///
    /// # Errors
    /// The address cannot be used, or the runtime of the connections does not start.
    pub fn listen(
        provider: &dyn Provider,
        address: SocketAddr,
        waiting: impl FnMut() + 'static,
    ) -> Result<Self, ProviderError> {
        let runtime = runtime().map_err(|error| {
            let kind = smbdirect::rdma::work::ProviderErrorKind::Local;
            ProviderError::new(kind, error.to_string())
        })?;
        let listener = runtime.block_on(provider.listen(address))?;
        Ok(Self {
            listener,
            runtime,
            waiting: Box::new(waiting),
            accept_timeout: Duration::from_secs(30),
            facts: unknown(Timers::CLIENT),
        })
    }

    /// Returns the address of the listener, with its actual port.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }
}

impl Client for RdmaClient {
    fn accept(&mut self, _wish: &PeerSettings, _errand: ClientAction) -> Verdict<Box<dyn Link>> {
        (self.waiting)();
        let called = Instant::now();
        let until = called + self.accept_timeout;
        let incoming = loop {
            let left = until.saturating_duration_since(Instant::now());
            match within(&self.runtime, left, self.listener.accept()) {
                Some(Ok(incoming)) => break incoming,
                // The peer was not an SMB Direct client, or it had disconnected already.
                Some(Err(_)) => {}
                None => {
                    let limit = self.accept_timeout;
                    return skip(SkipReason::NoClient(limit));
                }
            }
        };
        // A client whose settings are known was started for this call, and its timers with it.
        let started = if self.facts.is_strict() {
            called
        } else {
            Instant::now()
        };
        let answer = AcceptRequest {
            private_data: Bytes::new(),
            receive: first_receive(),
            peer_serves_reads: None,
        };
        let accepted = within(&self.runtime, self.facts.prompt, incoming.accept(answer));
        match accepted {
            Some(Ok(connected)) => Ok(Box::new(RdmaLink::new(
                connected,
                started,
                &self.facts,
                self.runtime.clone(),
            ))),
            Some(Err(error)) => fail("an RDMA connection", error.to_string()),
            None => fail("an RDMA connection", "nothing after the request"),
        }
    }

    fn facts(&self) -> PeerFacts {
        self.facts.clone()
    }
}

/// Longest time that this end waits for the peer to take part in a graceful end.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// One connection. Posted messages are sent when the case next waits for a received one.
pub(crate) struct RdmaLink {
    queue_pair: Box<dyn QueuePair>,
    runtime: Rc<Runtime>,
    prompt: Duration,
    last_id: u64,
    connected: Instant,
    arrived: VecDeque<Bytes>,
    is_over: bool,
}

impl RdmaLink {
    fn new(
        connected: Connected,
        started: Instant,
        facts: &PeerFacts,
        runtime: Rc<Runtime>,
    ) -> Self {
        Self {
            queue_pair: connected.queue_pair,
            runtime,
            prompt: facts.prompt,
            last_id: 0,
            connected: started,
            arrived: VecDeque::new(),
            is_over: false,
        }
    }

    fn next_id(&mut self) -> WorkId {
        self.last_id += 1;
        WorkId(self.last_id)
    }

    /// Drives the queue pair until `look` returns a value, for at most `limit`.
    fn wait<T>(&mut self, limit: Duration, look: impl Fn(&mut Self) -> Option<T>) -> Option<T> {
        // Without a wait there is no flush.
        if let Some(found) = look(self) {
            return Some(found);
        }
        let runtime = self.runtime.clone();
        let waiting = poll_fn(|context| {
            self.turn(context);
            look(self).map_or(Poll::Pending, Poll::Ready)
        });
        within(&runtime, limit, waiting)
    }

    fn turn(&mut self, context: &mut Context<'_>) {
        self.queue_pair.flush(context, u64::MAX);
        while let Poll::Ready(completion) = self.queue_pair.poll_completion(context) {
            match completion {
                Completion::Received { message, .. } => self.arrived.push_back(message),
                Completion::Disconnected(_) => self.is_over = true,
                _ => {}
            }
        }
        if self.queue_pair.needs_poll() {
            context.waker().wake_by_ref();
        }
    }
}

impl Link for RdmaLink {
    fn send(&mut self, message: &[u8]) -> Verdict {
        let has_room = self.wait(self.prompt, |link| {
            (link.is_over || link.queue_pair.room().sends > 0).then_some(())
        });
        if has_room.is_none() {
            let limit = self.prompt;
            return fail(
                "the peer takes messages that it has granted credits for",
                format!("it took none for {limit:?}"),
            );
        }
        if self.is_over {
            return Ok(());
        }
        let id = self.next_id();
        self.queue_pair.post(WorkRequest::Send {
            id,
            header: Inline::new(),
            payload: Bytes::copy_from_slice(message),
            invalidate: None,
        });
        Ok(())
    }

    fn flush(&mut self) {
        self.wait(Duration::from_millis(1), |_| None::<()>);
    }

    fn next(&mut self, limit: Duration) -> Next {
        let next = self.wait(limit, |link| match link.arrived.pop_front() {
            Some(message) => Some(Next::Message(message)),
            None => link.is_over.then_some(Next::End),
        });
        next.unwrap_or(Next::Silence)
    }

    fn post_receives(&mut self, count: u16, length: u32) {
        // The receive queue holds more than the credits that a case grants.
        let room = self.queue_pair.room().receives as u32;
        let count = u32::from(count).min(room);
        if count > 0 && !self.is_over {
            let id = self.next_id();
            self.queue_pair
                .post(WorkRequest::Receive { id, length, count });
        }
    }

    fn disconnect(&mut self) {
        self.queue_pair.disconnect(Teardown::Graceful);
        self.wait(DISCONNECT_TIMEOUT, |link| link.is_over.then_some(()));
    }

    fn connected(&self) -> Instant {
        self.connected
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl Drop for RdmaLink {
    fn drop(&mut self) {
        if !self.is_over {
            self.queue_pair.disconnect(Teardown::Abort);
            self.wait(Duration::from_millis(100), |link| {
                link.is_over.then_some(())
            });
        }
    }
}
