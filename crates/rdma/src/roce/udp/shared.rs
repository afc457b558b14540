//! A socket with its endpoint, shared by queue pairs, listeners and the tasks of the socket.
//!
//! ```text
//!   runtime A: queue pairs, listeners, task ──> Shared ──┐
//!                                                        ├──> Common: endpoint, buffers, UDP socket
//!   runtime B: queue pairs, listeners, task ──> Shared ──┘
//! ```
//!
//! Each runtime that uses the socket has a descriptor of its own for it and a task that drives it. Any of the
//! tasks receives for all connections and runs all timers, so a runtime that ends or is not polled stops no
//! connection of another runtime.

use std::{
    collections::HashMap,
    io, mem,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak},
    task::Waker,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tokio::{
    runtime,
    sync::{Notify, mpsc, oneshot},
    time::timeout,
};
use tracing::debug;

use super::{
    config::RoceConfig,
    receiver::{BLOCKS, Group, Receiver},
    socket::{Bound, Socket},
    tap::DatagramTap,
};
use crate::{
    roce::{
        cm::PathMtu,
        endpoint::{ConnectionId, Endpoint, EndpointEvent, Path, Transmit},
    },
    software::{arena::ARENAS, direction::Direction, pool::Account},
    work::ProviderError,
};

/// A socket with its endpoint, which belongs to no runtime.
#[derive(Debug)]
pub(super) struct Common {
    bound: Arc<Bound>,
    core: Mutex<Core>,
    receiver: Mutex<Receiver>,
    /// Counts the memory of messages that have readers.
    account: Account,
    tap: Option<Arc<dyn DatagramTap>>,
}

/// A socket with its endpoint, as one runtime uses it.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) socket: Socket,
    /// Wakes the task of the socket, which then looks at the timers and at `Core::blocked`.
    pub(super) attention: Notify,
    pub(super) common: Arc<Common>,
}

/// The endpoint, and the tasks that wait for it.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) endpoint: Endpoint,
    waiting: HashMap<ConnectionId, Waiting>,
    listeners: HashMap<u16, mpsc::UnboundedSender<Request>>,
    /// The datagrams of the group that is sent.
    out: BytesMut,
    /// The group in `out` that the socket did not take.
    blocked: Option<Transmit>,
    /// The last error of a send whose datagrams were lost, and their destination.
    send_error: Option<(SocketAddr, io::Error)>,
    /// The first owners to wake after the lock is released. Further owners are in `notices`, which allocates.
    woken: [Option<Waker>; 2],
    /// The notices to deliver after the lock is released, because a receiver may use the socket
    /// immediately.
    notices: Vec<Notice>,
    /// The time at which the tasks of the socket run timers next.
    armed: Option<Instant>,
    /// The number of queue pairs, listeners and attempts to connect.
    pub(super) users: usize,
    /// The runtimes that have a task for the socket.
    pub(super) drivers: Vec<(runtime::Id, Weak<Shared>)>,
}

/// A message for a task, to be delivered without the lock.
#[derive(Debug)]
enum Notice {
    Completions(Waker),
    Established(oneshot::Sender<Established>, Established),
    Request(mpsc::UnboundedSender<Request>, Request),
}

impl Notice {
    /// Delivers the notice. Returns the connection of a request whose listener was dropped. Other
    /// receivers that were dropped abandon the connection themselves.
    fn give(self) -> Option<ConnectionId> {
        match self {
            Self::Completions(owner) => owner.wake(),
            Self::Established(sender, result) => drop(sender.send(result)),
            Self::Request(listener, request) => {
                return listener.send(request).err().map(|failed| failed.0.id);
            }
        }
        None
    }
}

/// The tasks that wait for something on a connection.
#[derive(Debug, Default)]
struct Waiting {
    /// The task of the owner, which waits for completions.
    owner: Option<Waker>,
    /// The attempt to connect or to accept.
    establishing: Option<oneshot::Sender<Established>>,
}

/// The result of connecting or accepting: the private data of the answer, or the reason and the path
/// MTU that the peer asks for instead.
pub(super) type Established = Result<Bytes, (ProviderError, Option<PathMtu>)>;

/// A request of a peer, for a listener.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: ConnectionId,
    pub(super) path: Path,
    pub(super) path_mtu: PathMtu,
    pub(super) private_data: Bytes,
}

/// The most groups of datagrams that one call receives or sends, so that other tasks can run.
pub(super) const MAX_GROUPS_PER_CALL: usize = 64;

/// The bytes of received datagrams after which acknowledgements are sent, even if more have arrived. With a lower
/// limit, acknowledgements would cost more system calls. With a higher one, the sender could use up its window
/// before an acknowledgement arrives.
const MAX_BYTES_PER_ANSWER: usize = 100_000;

/// The most calls that receive before timers are run. Together they take as much as the receive buffer of the
/// system can hold.
const MAX_RECEIVES_BEFORE_TIMERS: usize = 2048;

impl Common {
    /// Binds a socket.
    pub(super) fn bind(address: SocketAddr, config: &RoceConfig) -> io::Result<Self> {
        let bound = Bound::new(address, config)?;
        let receive_buffer = bound.receive_buffer().unwrap_or_default();
        let endpoint = Endpoint::new(config.endpoint(receive_buffer));
        let account = endpoint.account().clone();
        let core = Core {
            endpoint,
            waiting: HashMap::new(),
            listeners: HashMap::new(),
            out: BytesMut::new(),
            blocked: None,
            send_error: None,
            woken: [const { None }; 2],
            notices: Vec::new(),
            armed: None,
            users: 0,
            drivers: Vec::new(),
        };
        Ok(Self {
            bound: Arc::new(bound),
            core: Mutex::new(core),
            receiver: Mutex::new(Receiver::new(account.clone())),
            account,
            tap: config.tap.clone(),
        })
    }

    /// Returns how many bytes of memory the readers of messages keep in use.
    pub(super) fn lent_bytes(&self) -> usize {
        self.account.in_use(&[&BLOCKS, &ARENAS])
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        // A call that panics does not leave the endpoint in a state that harms other connections.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Returns a socket for the current runtime.
    pub(super) fn new(common: Arc<Common>) -> io::Result<Self> {
        Ok(Self {
            socket: Socket::new(common.bound.clone())?,
            attention: Notify::new(),
            common,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.common.lock()
    }

    /// Changes the endpoint by `change`, sends what it then has to send, and passes on its events.
    pub(super) fn with_core<T>(&self, change: impl FnOnce(&mut Core, Instant) -> T) -> T {
        let now = Instant::now();
        let mut core = self.lock();
        let result = change(&mut core, now);
        self.pump(&mut core, now);
        let woken = mem::take(&mut core.woken);
        let notices = mem::take(&mut core.notices);
        drop(core);
        woken.into_iter().flatten().for_each(Waker::wake);
        for request in notices.into_iter().filter_map(Notice::give) {
            self.reject(request);
        }
        result
    }

    /// Rejects a request that no listener takes any more.
    #[cold]
    fn reject(&self, request: ConnectionId) {
        self.with_core(|core, now| core.endpoint.release(now, request));
    }

    /// Sends what the endpoint has to send, collects its events, and wakes the task of the socket if
    /// it has to do more.
    fn pump(&self, core: &mut Core, now: Instant) {
        let mut is_complete = false;
        for _ in 0..MAX_GROUPS_PER_CALL {
            if !self.send_group(core, now) {
                is_complete = core.blocked.is_none();
                break;
            }
        }
        core.collect_notices(now);
        let next = core.endpoint.poll_timeout();
        let is_earlier = match (next, core.armed) {
            (Some(next), Some(armed)) => next < armed,
            (next, None) => next.is_some(),
            (None, Some(_)) => false,
        };
        if is_earlier || !is_complete {
            core.wake_drivers();
        }
    }

    /// Sends one group of datagrams. Returns whether there may be another one.
    fn send_group(&self, core: &mut Core, now: Instant) -> bool {
        let transmit = match core.blocked.take() {
            Some(transmit) => transmit,
            None => {
                core.out.clear();
                let max_segments = self.socket.max_segments();
                match core
                    .endpoint
                    .poll_transmit(now, max_segments, &mut core.out)
                {
                    Some(transmit) => transmit,
                    None => return false,
                }
            }
        };
        match self.socket.send(&transmit, &core.out) {
            Ok(()) => {
                self.show_sent(&transmit, &core.out);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                core.blocked = Some(transmit);
                false
            }
            Err(error) => {
                // The datagrams count as lost, and are sent again.
                debug!(peer = %transmit.path.remote, %error, "sending datagrams failed");
                core.send_error = Some((transmit.path.remote, error));
                true
            }
        }
    }

    /// Receives datagrams that have arrived and processes them. Returns whether there were any.
    pub(super) fn receive(&self, skip_readiness_check: bool) -> bool {
        // The task that holds the receiver also receives for this caller.
        let receiver = match self.common.receiver.try_lock() {
            Ok(receiver) => receiver,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        self.receive_into(receiver, skip_readiness_check)
    }

    fn receive_into(
        &self,
        mut receiver: MutexGuard<'_, Receiver>,
        skip_readiness_check: bool,
    ) -> bool {
        let Ok(groups) = receiver.receive(&self.socket, skip_readiness_check) else {
            return false;
        };
        let mut groups = groups.peekable();
        let has_any = groups.peek().is_some();
        while groups.peek().is_some() {
            self.with_core(|core, now| {
                let mut processed = 0;
                while processed < MAX_BYTES_PER_ANSWER
                    && let Some(group) = groups.next()
                {
                    processed += group.len();
                    self.process(core, now, &group);
                }
            });
        }
        has_any
    }

    /// Passes a group of datagrams to the endpoint.
    fn process(&self, core: &mut Core, now: Instant, group: &Group<'_>) {
        for datagram in group.datagrams() {
            let identification = core.endpoint.handle_datagram_in(
                group.block(),
                group.is_marked,
                now,
                group.path,
                datagram,
            );
            if let (Some(tap), Some(identification)) = (&self.common.tap, identification) {
                let Path { local, remote } = group.path;
                tap.datagram(Direction::Received, local, remote, identification, datagram);
            }
        }
    }

    /// Receives until nothing has arrived, or until the limit of one call is reached.
    pub(super) fn receive_all(&self) {
        for _ in 0..MAX_GROUPS_PER_CALL {
            if !self.receive(false) {
                break;
            }
        }
        while let Some(peer) = self.socket.next_unreachable() {
            self.with_core(|core, now| core.endpoint.handle_unreachable(now, peer));
        }
    }

    /// Removes the task of this runtime from the tasks of the socket.
    pub(super) fn leave(&self, core: &mut Core) {
        core.drivers
            .retain(|(_, other)| !std::ptr::eq(other.as_ptr(), self));
    }

    /// Receives everything that has arrived, including datagrams that the runtime has not noticed yet. Deadlines
    /// are checked after this call, because they may have passed while this process did not run.
    pub(super) fn receive_everything(&self) {
        for _ in 0..MAX_RECEIVES_BEFORE_TIMERS {
            let receiver = self.common.receiver.lock();
            if !self.receive_into(receiver.unwrap_or_else(PoisonError::into_inner), true) {
                break;
            }
        }
    }

    /// Runs the timers that are due.
    pub(super) fn run_timers(&self) {
        let next = self.lock().endpoint.poll_timeout();
        if next.is_some_and(|next| next <= Instant::now()) {
            self.receive_everything();
        }
        self.with_core(|core, now| core.endpoint.handle_timeout(now));
    }

    /// Waits for the end of connecting or accepting. Returns `None` if it does not come in time.
    pub(super) async fn wait_for(
        &self,
        limit: Duration,
        mut established: oneshot::Receiver<Established>,
    ) -> Option<Established> {
        match timeout(limit, &mut established).await {
            Ok(result) => result.ok(),
            Err(_) => {
                self.receive_everything();
                established.try_recv().ok()
            }
        }
    }

    /// Shows sent datagrams to the tap.
    fn show_sent(&self, transmit: &Transmit, datagrams: &[u8]) {
        let Some(tap) = &self.common.tap else { return };
        let Path { local, remote } = transmit.path;
        for (index, datagram) in datagrams.chunks(transmit.segment_size).enumerate() {
            let identification = if local.is_ipv4() { index as u16 } else { 0 };
            tap.datagram(Direction::Sent, local, remote, identification, datagram);
        }
    }
}

impl Core {
    /// Returns whether the socket was full when datagrams were last sent.
    pub(super) const fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Takes the last error of sending, if it was about datagrams to `remote`.
    pub(super) fn take_send_error(&mut self, remote: SocketAddr) -> Option<io::Error> {
        let known = self.send_error.take_if(|(to, _)| *to == remote);
        known.map(|(_, error)| error)
    }

    /// Wakes the tasks of the socket.
    pub(super) fn wake_drivers(&self) {
        for shared in self
            .drivers
            .iter()
            .filter_map(|(_, shared)| shared.upgrade())
        {
            shared.attention.notify_one();
        }
    }

    /// Returns the time at which the tasks of the socket run timers next.
    pub(super) fn arm(&mut self) -> Option<Instant> {
        self.armed = self.endpoint.poll_timeout();
        self.armed
    }

    /// Returns a future for the end of connecting or accepting.
    pub(super) fn wait_until_established(
        &mut self,
        id: ConnectionId,
    ) -> oneshot::Receiver<Established> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.entry(id).or_default().establishing = Some(sender);
        receiver
    }

    /// Wakes `waker` when the connection has completions.
    pub(super) fn wake_owner(&mut self, id: ConnectionId, waker: &Waker) {
        let waiting = self.waiting.entry(id).or_default();
        match &mut waiting.owner {
            Some(owner) => owner.clone_from(waker),
            None => waiting.owner = Some(waker.clone()),
        }
    }

    /// Removes the tasks that wait for a connection.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        self.waiting.remove(&id);
    }

    /// Begins to pass requests for `port` to `requests`.
    pub(super) fn add_listener(
        &mut self,
        port: u16,
        requests: mpsc::UnboundedSender<Request>,
    ) -> Result<u16, ProviderError> {
        let port = self.endpoint.listen(port)?;
        self.listeners.insert(port, requests);
        Ok(port)
    }

    /// Stops passing requests for `port` to its listener.
    pub(super) fn remove_listener(&mut self, port: u16) {
        self.listeners.remove(&port);
        self.endpoint.unlisten(port);
    }

    /// Turns the events of the endpoint into notices.
    fn collect_notices(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                EndpointEvent::Requested {
                    id,
                    port,
                    path,
                    path_mtu,
                    private_data,
                } => {
                    let request = Request {
                        id,
                        path,
                        path_mtu,
                        private_data,
                    };
                    match self.listeners.get(&port) {
                        Some(listener) => {
                            self.notices
                                .push(Notice::Request(listener.clone(), request));
                        }
                        None => self.endpoint.release(now, id),
                    }
                }
                EndpointEvent::Connected { id, private_data } => {
                    self.finish_establishing(id, Ok(private_data));
                }
                EndpointEvent::Failed {
                    id,
                    error,
                    path_mtu,
                } => self.finish_establishing(id, Err((error, path_mtu))),
                EndpointEvent::Ready { id } => {
                    let waiting = self.waiting.get_mut(&id);
                    if let Some(owner) = waiting.and_then(|waiting| waiting.owner.take()) {
                        match self.woken.iter_mut().find(|place| place.is_none()) {
                            Some(place) => *place = Some(owner),
                            None => self.notices.push(Notice::Completions(owner)),
                        }
                    }
                }
            }
        }
    }

    fn finish_establishing(&mut self, id: ConnectionId, result: Established) {
        let waiting = self.waiting.get_mut(&id);
        if let Some(sender) = waiting.and_then(|waiting| waiting.establishing.take()) {
            self.notices.push(Notice::Established(sender, result));
        }
    }
}
