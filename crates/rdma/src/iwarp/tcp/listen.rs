//! The responder's side of the startup: accept TCP connections, read Requests, send Replies.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{Semaphore, mpsc, oneshot},
    task::JoinSet,
    time::sleep,
};
use tracing::{Instrument, Span, debug, field, warn};

use super::{
    config::{IwarpConfig, check_private_data},
    error::{cure, is_of_one_peer},
    queue_pair::IwarpQueuePair,
    socket::{FrameError, Socket, canonical},
};
use crate::{
    deadline::within,
    iwarp::{
        handshake::is_refused,
        mpa::{FrameKind, StartupError, StartupFrame},
        startup::{rejection, split_signature},
    },
    provider::{
        AcceptRequest, Admission, BoxFuture, Connected, IncomingRequest, Place, ProviderListener,
        connection_span,
    },
    runtime::{OwnedTask, Receiver},
    work::{ProviderError, ProviderErrorKind},
};

/// A listener that returns the peers whose Request has arrived.
#[derive(Debug)]
pub(super) struct IwarpListener {
    local_addr: SocketAddr,
    incoming: Receiver<IncomingRequest>,
    admission: Arc<OnceLock<Admission>>,
    stop: Option<oneshot::Sender<()>>,
    _task: OwnedTask,
}

/// Maximum number of peers whose Request has arrived and that wait to be accepted.
const BACKLOG: usize = 16;

impl IwarpListener {
    /// Creates a listener for this socket.
    ///
    /// # Errors
    /// The system does not tell the address of the socket.
    pub(super) fn new(listener: TcpListener, config: Arc<IwarpConfig>) -> io::Result<Self> {
        let local_addr = listener.local_addr()?;
        let (sender, incoming) = mpsc::channel(BACKLOG);
        let (stop, stopped) = oneshot::channel();
        let admission = Arc::default();
        let accepting = accept_all(listener, config, Arc::clone(&admission), sender, stopped);
        Ok(Self {
            local_addr,
            incoming: incoming.into(),
            admission,
            stop: Some(stop),
            _task: OwnedTask::spawn(accepting),
        })
    }
}

impl ProviderListener for IwarpListener {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<IncomingRequest, ProviderError>> {
        Box::pin(async move {
            self.incoming.recv().await.ok_or_else(|| {
                ProviderError::new(ProviderErrorKind::Local, "the listener has stopped")
            })
        })
    }

    fn set_admission(&mut self, admission: Admission) {
        // The first one stays.
        let _ = self.admission.set(admission);
    }

    fn stop(&mut self) -> bool {
        if let Some(stop) = self.stop.take() {
            // A task that has ended has stopped.
            let _ = stop.send(());
        }
        true
    }
}

/// Time between two attempts to accept a connection after one failed.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The interval of log lines about connections that cannot be accepted.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Accepts TCP connections and reads their Requests concurrently. After a stop, it ends when it has read those of
/// the connections that were accepted before.
async fn accept_all(
    listener: TcpListener,
    config: Arc<IwarpConfig>,
    admission: Arc<OnceLock<Admission>>,
    incoming: mpsc::Sender<IncomingRequest>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut half_open = JoinSet::new();
    let (mut logged, mut failures) = (None::<Instant>, 0);
    // A peer that is refused after its Request was passed on holds a permit until it closes the
    // connection or `close_timeout` has passed.
    let drain_permits = Arc::new(Semaphore::new(config.max_half_open));
    loop {
        let accepted = tokio::select! {
            Some(_) = half_open.join_next() => continue,
            _ = &mut stopped => break,
            //= MPA-31
            //= SEC-07
            accepted = listener.accept(), if half_open.len() < config.max_half_open.max(1) => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let peer = canonical(peer);
                let place = match admission.get().map(|admission| admission.admit(peer)) {
                    // It is refused before anything is read, and holds nothing.
                    Some(None) => continue,
                    Some(place) => place,
                    None => None,
                };
                let half = HalfOpen {
                    stream,
                    place,
                    config: config.clone(),
                    drain_permits: drain_permits.clone(),
                };
                let reading = half.read_request(incoming.clone());
                half_open.spawn(reading.instrument(connection_span(peer)));
            }
            // The peer has ended the connection already. A pause would delay other peers.
            Err(error) if is_of_one_peer(&error) => {
                debug!(%error, "a peer ended its TCP connection before it was accepted");
            }
            Err(error) => {
                failures += 1;
                if logged.is_none_or(|logged| logged.elapsed() > LOG_INTERVAL) {
                    let cure = cure(&error);
                    warn!(%error, cure, failures, "accepting a TCP connection failed");
                    (logged, failures) = (Some(Instant::now()), 0);
                }
                // Other connections may end meanwhile, and free the resources that this one needs.
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while half_open.join_next().await.is_some() {}
}

/// A TCP connection whose peer has not sent its Request.
struct HalfOpen {
    stream: TcpStream,
    place: Option<Place>,
    config: Arc<IwarpConfig>,
    drain_permits: Arc<Semaphore>,
}

impl HalfOpen {
    /// Reads the Request of the peer and hands the peer to the listener.
    async fn read_request(self, incoming: mpsc::Sender<IncomingRequest>) {
        let Self {
            stream,
            place,
            config,
            drain_permits,
        } = self;
        let Ok(socket) = Socket::new(stream, &config) else {
            return;
        };
        let peer_addr = socket.remote;
        Span::current().record("local", field::display(socket.local));
        //= MPA-30
        let frame = within(config.accept_timeout, socket.read_frame(FrameKind::Request)).await;
        let request = match frame {
            Some(Ok(request)) => request,
            Some(Err(error)) => {
                debug!(error = %error.to_error(), "no MPA Request");
                //= MPA-13
                if let FrameError::Malformed(StartupError::EnhancedMissing) = error {
                    socket.try_send_frame(&rejection(None));
                    socket.drain_until_close(config.close_timeout).await;
                }
                return;
            }
            None => {
                debug!("no MPA Request in time");
                return;
            }
        };
        //= MPA-16
        if is_refused(&request) {
            debug!("an MPA Request that cannot be granted");
            socket.try_send_frame(&rejection(Some(&request)));
            return socket.drain_until_close(config.close_timeout).await;
        }
        let (private_data, _) = split_signature(&request);
        let knows_read_depths = request.enhanced.is_some();
        let pending_reply = PendingReply {
            socket: Some(socket),
            request,
            config,
            drain_permits,
        };
        let accept = move |answer| pending_reply.accept(answer);
        let mut request = IncomingRequest::new(peer_addr, private_data, knows_read_depths, accept);
        request.place = place;
        // If the listener is gone, the request is dropped here, which refuses the peer.
        let _ = incoming.send(request).await;
    }
}

/// A peer that waits for a Reply. Dropping this value refuses the peer.
struct PendingReply {
    socket: Option<Socket>,
    request: StartupFrame,
    config: Arc<IwarpConfig>,
    /// Bounds how many refused peers of this listener are drained concurrently.
    drain_permits: Arc<Semaphore>,
}

impl PendingReply {
    /// Sends the Reply and returns the connection.
    async fn accept(mut self, answer: AcceptRequest) -> Result<Connected, ProviderError> {
        check_private_data(&answer.private_data)?;
        let socket = self.socket.take().expect("a peer is answered only once");
        let config = &self.config;
        let (reply, agreement) = config.preferences().answer(
            &self.request,
            &answer.private_data,
            answer.peer_serves_reads,
        );
        let timed_out =
            || ProviderError::new(ProviderErrorKind::TimedOut, "the MPA Reply cannot be sent");
        within(config.accept_timeout, socket.write_frame(&reply))
            .await
            .ok_or_else(timed_out)?
            .map_err(|error| error.to_error())?;
        Ok(IwarpQueuePair::connected(
            socket,
            config,
            false,
            &agreement,
            answer.receive,
            Bytes::new(),
        ))
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else {
            return;
        };
        socket.try_send_frame(&rejection(Some(&self.request)));
        // Without a runtime, or with too many refused peers, TCP is closed immediately.
        if let (Ok(runtime), Ok(permit)) = (
            Handle::try_current(),
            self.drain_permits.clone().try_acquire_owned(),
        ) {
            let close_timeout = self.config.close_timeout;
            runtime.spawn(async move {
                socket.drain_until_close(close_timeout).await;
                drop(permit);
            });
        }
    }
}
