//! The iWARP provider over TCP sockets of tokio: startup frames, then a [`Stream`] and its socket.
//!
//! A queue pair has no task. It reads and writes when it is polled, in bulk, and a read or write
//! that came out short tells that the socket is drained or full, without another system call.
//!
//! A listener has one task that accepts, and in it one for each peer whose Request has not come:
//! so a peer that is stuck hinders nobody, and dropping the listener ends them all.

#[cfg(any(target_os = "linux", target_os = "freebsd"))]
use std::os::fd::AsFd;
use std::{
    fmt,
    future::{Future, poll_fn},
    hint::cold_path,
    io::{self, IoSlice, IoSliceMut, Read},
    mem,
    net::{Shutdown, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
#[cfg(target_os = "linux")]
use nix::{libc, setsockopt_impl, sockopt_impl, sys::socket::setsockopt};
use socket2::SockRef;
use tokio::{
    io::Interest,
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Handle,
    sync::{Semaphore, mpsc},
    task::{AbortHandle, JoinSet, unconstrained, yield_now},
    time::{self, Sleep, sleep, timeout},
};
use tracing::{Instrument, Span, debug, field, warn};

use super::{
    low_water::{self, LowWater},
    mpa::{self, Fpdu, FrameKind, StartupError, StartupFrame},
    rdmap::Terminate,
    send_buffer::SendBuffer,
    startup::{Agreement, MpaCrc, ReplyFault, Wishes, rejection, unmarked},
    stream::{Stream, StreamConfig},
};
use crate::rdma::{
    adaptive_spin::AdaptiveSpin,
    memory::{DeregisterError, RegisterError, Registration},
    provider::{
        Answer, BoxFuture, ConnectRequest, Connected, Incoming, Listener, Provider, QueuePair,
        Teardown, connection_span,
    },
    work::{
        Access, Completion, Disconnect, Limits, ProviderError, ProviderErrorKind, Room, Token,
        WorkRequest,
    },
};

/// How [`Iwarp`] makes connections.
#[derive(Clone, Debug)]
pub struct IwarpConfig {
    /// When FPDUs carry a CRC.
    pub crc: MpaCrc,
    /// RDMA Reads of a peer's that are served at once; rounded up to a power of two, at most 128.
    pub ird: u16,
    /// RDMA Reads to have outstanding; at most 128, and never more than the peer serves.
    pub ord: u16,
    /// The MPA revision to connect with: 2, or 1 for peers without RFC 6581.
    pub revision: u8,
    /// Whether to connect once more, with revision 1, where a peer hangs up on revision 2.
    pub fall_back: bool,
    /// How long to wait for TCP to connect, and then for the Reply.
    pub connect_timeout: Duration,
    /// How long a peer may take for its Request.
    pub accept_timeout: Duration,
    /// How long the work in hand and the peer's FIN may take after a graceful disconnect, and the
    /// peer's FIN after a refusal.
    pub close_timeout: Duration,
    /// Peers of one listener that have connected and not sent their Request; more wait unaccepted.
    pub max_half_open: usize,
    /// The longest FPDU to send, for peers that are known to take longer ones than a TCP segment
    /// holds; at most 65536. `None` is so long towards an end of ours, and stays within the TCP
    /// segment towards others, as cards may need it.
    pub max_fpdu: Option<u32>,
    /// Whether each FPDU is a TCP segment of its own, whatever `max_fpdu` says. `None` does so
    /// where CRCs are on and the peer is not known to be an end of ours: Linux siw takes an FPDU
    /// for broken if the border between two segments cuts its CRC. It needs Linux on this side, and a
    /// path whose segments do not become shorter while FPDUs are under way.
    pub fpdu_per_segment: Option<bool>,
    /// Whether an initiator whose first FPDUs are not answered sends up to three RDMA Writes of
    /// length 0 in the first second, unless the peer is known to be an end of ours: Linux siw may
    /// overlook the first FPDU until more bytes come.
    pub startup_probe: bool,
    /// How long an end looks for more, behind 16 KiB or more, before it sleeps; zero has
    /// it sleep at once. It costs CPU time, mostly where it gains: an end that turns out to look in
    /// vain does so ever more seldom, down to one time in 64. To be woken takes microseconds
    /// on a machine of one's own, and a hundred times as long in some virtual ones.
    pub spin_window: Duration,
    /// The congestion control of TCP, by the operating system's name of it; `None` is the
    /// system's own choice. Only Linux and FreeBSD have several to choose from; an
    /// algorithm that is not there, or not allowed, fails `connect` and `listen`.
    pub congestion_control: Option<String>,
    /// How much of what is sent the operating system keeps until it is acknowledged.
    pub send_buffer: SendBuffer,
    /// Sees all bytes of all connections.
    pub tap: Option<Arc<dyn Tap>>,
}

impl Default for IwarpConfig {
    fn default() -> Self {
        //= MPA-30
        Self {
            crc: MpaCrc::Auto,
            ird: 32,
            ord: 32,
            revision: 2,
            fall_back: true,
            connect_timeout: Duration::from_secs(10),
            accept_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            max_half_open: 64,
            max_fpdu: None,
            fpdu_per_segment: None,
            startup_probe: true,
            spin_window: Duration::from_micros(100),
            congestion_control: None,
            send_buffer: SendBuffer::Auto,
            tap: None,
        }
    }
}

impl IwarpConfig {
    const fn wishes(&self) -> Wishes {
        Wishes {
            crc: self.crc,
            ird: self.ird,
            ord: self.ord,
        }
    }
}

/// Sees the bytes of connections, startup frames included, to write captures.
pub trait Tap: Send + Sync + fmt::Debug {
    /// `bytes` were taken by the socket, or came from it, next in their direction.
    fn bytes(&self, direction: Direction, local: SocketAddr, remote: SocketAddr, bytes: &[u8]);

    /// One system call moved `count` bytes of FPDUs, or 0 where the socket was full or empty.
    /// [`bytes`](Self::bytes) shows them, in one piece or several.
    fn call(&self, direction: Direction, count: usize) {
        let _ = (direction, count);
    }
}

/// Which way bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the peer.
    Sent,
    /// From the peer.
    Received,
}

/// iWARP in software, over TCP.
#[derive(Clone, Debug, Default)]
pub struct Iwarp {
    config: Arc<IwarpConfig>,
}

impl Iwarp {
    /// A provider that makes connections in the way of `config`.
    pub fn new(config: IwarpConfig) -> Self {
        Self {
            config: Arc::new(config),
        }
    }
}

/// The most private data that every known peer takes beside our own additions.
const MAX_PRIVATE_DATA: usize = 200;

impl Provider for Iwarp {
    fn name(&self) -> &'static str {
        "iwarp"
    }

    fn default_port(&self) -> u16 {
        5445
    }

    fn limits(&self) -> Limits {
        // What is told of them outside the frames is to be the same.
        let wishes = self.config.wishes();
        Stream::limits_of(wishes.ord().into(), wishes.ird().into())
    }

    fn is_iwarp(&self) -> bool {
        true
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        Box::pin(async move {
            check_private_data(&request.private_data)?;
            let config = &self.config;
            let first = initiate(config, &request, config.revision).await;
            let (socket, agreement) = match first {
                //= MPA-32
                Err(Refusal::OfRevision(error)) if config.revision == 2 && config.fall_back => {
                    debug!(%error, "trying MPA revision 1");
                    initiate(config, &request, 1).await
                }
                other => other,
            }
            .map_err(Refusal::into_error)?;
            //= MPA-06
            let private_data = agreement.private_data.clone();
            Ok(socket.connected(config, true, &agreement, request.receive, private_data))
        })
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn Listener>, ProviderError>> {
        Box::pin(async move {
            let failed = |error| failure("listening", &error);
            let listener = bind(address, &self.config).map_err(failed)?;
            let local_address = listener.local_addr().map_err(failed)?;
            let (sender, incoming) = mpsc::channel(16);
            let task = tokio::spawn(accept_all(listener, self.config.clone(), sender));
            let listener = IwarpListener {
                local_address,
                incoming,
                task: task.abort_handle(),
            };
            Ok(Box::new(listener) as Box<dyn Listener>)
        })
    }
}

fn check_private_data(private_data: &Bytes) -> Result<(), ProviderError> {
    //= MPA-04
    if private_data.len() > MAX_PRIVATE_DATA {
        let what = format!(
            "{} bytes of private data, at most {MAX_PRIVATE_DATA} can be sent",
            private_data.len()
        );
        return Err(ProviderError::new(ProviderErrorKind::Local, what));
    }
    Ok(())
}

/// Why an initiator has no connection.
enum Refusal {
    /// The peer may not know this revision of MPA.
    OfRevision(ProviderError),
    Other(ProviderError),
}

impl Refusal {
    fn into_error(self) -> ProviderError {
        let (Self::OfRevision(error) | Self::Other(error)) = self;
        error
    }
}

/// Connects and exchanges startup frames of one revision.
async fn initiate(
    config: &IwarpConfig,
    request: &ConnectRequest,
    revision: u8,
) -> Result<(Socket, Agreement), Refusal> {
    let late = |_| {
        let what = format!("{} did not answer in time", request.address);
        Refusal::Other(ProviderError::new(ProviderErrorKind::TimedOut, what))
    };
    let failed = |error| Refusal::Other(not_connected(&error));
    let connecting = unconnected(request.address, config)
        .map_err(failed)?
        .connect(request.address);
    let stream = timeout(config.connect_timeout, connecting)
        .await
        .map_err(late)?
        .map_err(failed)?;
    let socket = Socket::new(stream, config).map_err(failed)?;
    let frame = config.wishes().request(revision, &request.private_data);
    //= MPA-30
    let reply = timeout(config.connect_timeout, async {
        socket.write_frame(&frame).await?;
        socket.read_frame(FrameKind::Reply).await
    })
    .await
    .map_err(late)?
    .map_err(|fault| match fault {
        FrameFault::Silent(error) => Refusal::OfRevision(error),
        FrameFault::Lost(error) => Refusal::Other(error),
        FrameFault::Malformed(error) => Refusal::Other(malformed(error)),
    })?;
    let agreement = config.wishes().agree(&frame, &reply).map_err(|fault| {
        if let Some(code) = fault.terminate_code() {
            let mut fpdu = Vec::new();
            let ulpdu = Terminate::new(code, None).ulpdu();
            Fpdu::encode(&[&ulpdu], frame.crc || reply.crc, &mut fpdu);
            socket.write_last(&fpdu);
        }
        let what = fault.to_string();
        match fault {
            ReplyFault::Revision(_) => {
                Refusal::OfRevision(ProviderError::new(ProviderErrorKind::Refused, what))
            }
            ReplyFault::Rejected(_) => {
                Refusal::Other(ProviderError::new(ProviderErrorKind::Refused, what))
            }
            _ => Refusal::Other(ProviderError::new(ProviderErrorKind::Protocol, what)),
        }
    })?;
    Ok((socket, agreement))
}

/// Waits for peers whose Request has come.
#[derive(Debug)]
struct IwarpListener {
    local_address: SocketAddr,
    incoming: mpsc::Receiver<Incoming>,
    task: AbortHandle,
}

impl Listener for IwarpListener {
    fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<Incoming, ProviderError>> {
        Box::pin(async move {
            self.incoming.recv().await.ok_or_else(|| {
                ProviderError::new(ProviderErrorKind::Local, "the listener has stopped")
            })
        })
    }
}

impl Drop for IwarpListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts TCP connections and reads their Requests side by side.
async fn accept_all(
    listener: TcpListener,
    config: Arc<IwarpConfig>,
    incoming: mpsc::Sender<Incoming>,
) {
    let mut half_open = JoinSet::new();
    let refused = Arc::new(Semaphore::new(config.max_half_open));
    loop {
        tokio::select! {
            Some(_) = half_open.join_next() => {}
            //= MPA-31
            //= SEC-07
            accepted = listener.accept(), if half_open.len() < config.max_half_open.max(1) => {
                match accepted {
                    Ok((stream, peer)) => {
                        let (incoming, refused) = (incoming.clone(), refused.clone());
                        let responding = respond(stream, config.clone(), incoming, refused);
                        half_open.spawn(responding.instrument(connection_span(peer)));
                    }
                    Err(error) => {
                        // Too many open files, say: the peers already here may end meanwhile.
                        warn!(%error, "accepting a TCP connection failed");
                        sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
    }
}

/// Reads the Request of a peer and hands it to the listener.
async fn respond(
    stream: TcpStream,
    config: Arc<IwarpConfig>,
    incoming: mpsc::Sender<Incoming>,
    refused: Arc<Semaphore>,
) {
    let Ok(socket) = Socket::new(stream, &config) else {
        return;
    };
    let remote_address = socket.remote;
    Span::current().record("local", field::display(socket.local));
    //= MPA-30
    let frame = timeout(config.accept_timeout, socket.read_frame(FrameKind::Request)).await;
    let request = match frame {
        Ok(Ok(request)) => request,
        Ok(Err(fault)) => {
            debug!(error = %fault.to_error(), "no MPA Request");
            //= MPA-13
            if let FrameFault::Malformed(StartupError::EnhancedMissing) = fault {
                socket.say(&rejection(None));
                socket.see_off(config.close_timeout).await;
            }
            return;
        }
        Err(_) => {
            debug!("no MPA Request in time");
            return;
        }
    };
    //= MPA-16
    if request.markers || request.rejected {
        debug!("an MPA Request that cannot be granted");
        socket.say(&rejection(Some(&request)));
        return socket.see_off(config.close_timeout).await;
    }
    let (private_data, _) = unmarked(&request);
    let knows_read_depths = request.enhanced.is_some();
    let unanswered = Unanswered {
        socket: Some(socket),
        request,
        config,
        refused,
    };
    let request = Incoming {
        remote_address,
        private_data,
        knows_read_depths,
        answer: Box::new(move |answer| Box::pin(unanswered.accept(answer))),
    };
    // If the listener is gone, the peer is turned away with what is dropped here.
    let _ = incoming.send(request).await;
}

/// A peer that waits for a Reply; dropping it turns the peer away.
struct Unanswered {
    socket: Option<Socket>,
    request: StartupFrame,
    config: Arc<IwarpConfig>,
    /// Peers of this listener that may be seen off at once.
    refused: Arc<Semaphore>,
}

impl Unanswered {
    async fn accept(mut self, answer: Answer) -> Result<Connected, ProviderError> {
        check_private_data(&answer.private_data)?;
        let socket = self.socket.take().expect("it is answered once");
        let config = &self.config;
        let (reply, agreement) = config.wishes().answer(
            &self.request,
            &answer.private_data,
            answer.peer_serves_reads,
        );
        let late =
            |_| ProviderError::new(ProviderErrorKind::TimedOut, "the MPA Reply cannot be sent");
        timeout(config.accept_timeout, socket.write_frame(&reply))
            .await
            .map_err(late)?
            .map_err(|fault| fault.to_error())?;
        Ok(socket.connected(config, false, &agreement, answer.receive, Bytes::new()))
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else {
            return;
        };
        socket.say(&rejection(Some(&self.request)));
        // Where nobody can wait, or too many are waited for, TCP ends at once.
        if let (Ok(runtime), Ok(permit)) = (
            Handle::try_current(),
            self.refused.clone().try_acquire_owned(),
        ) {
            let patience = self.config.close_timeout;
            runtime.spawn(async move {
                socket.see_off(patience).await;
                drop(permit);
            });
        }
    }
}

/// Reads from a peer that was refused, before it is closed all the same.
const MAX_READS_OF_REFUSED: usize = 64;

/// A TCP connection and those who look at it.
struct Socket {
    stream: TcpStream,
    local: SocketAddr,
    remote: SocketAddr,
    tap: Option<Arc<dyn Tap>>,
}

/// Why there is no startup frame.
enum FrameFault {
    /// The peer hung up before it said anything.
    Silent(ProviderError),
    Lost(ProviderError),
    Malformed(StartupError),
}

impl FrameFault {
    fn to_error(&self) -> ProviderError {
        match self {
            Self::Silent(error) | Self::Lost(error) => error.clone(),
            Self::Malformed(error) => malformed(*error),
        }
    }
}

fn malformed(error: StartupError) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Protocol, error.to_string())
}

impl Socket {
    fn new(stream: TcpStream, config: &IwarpConfig) -> io::Result<Self> {
        //= MPA-28
        stream.set_nodelay(true)?;
        // A route may have another, and some systems' listeners do not hand on theirs.
        control_congestion(&stream, config)?;
        let (local, remote) = (stream.local_addr()?, stream.peer_addr()?);
        config
            .send_buffer
            .apply(&SockRef::from(&stream), local, remote);
        Ok(Self {
            local,
            remote,
            stream,
            tap: config.tap.clone(),
        })
    }

    /// Reads a startup frame and no byte more: what follows belongs to the stream.
    async fn read_frame(&self, kind: FrameKind) -> Result<StartupFrame, FrameFault> {
        //= MPA-08
        //= SEC-06
        let mut bytes = Vec::new();
        loop {
            let missing = match StartupFrame::decode(kind, &bytes) {
                Ok(frame) => {
                    self.show(Direction::Received, &bytes);
                    return Ok(frame);
                }
                Err(StartupError::Incomplete { needed }) => needed - bytes.len(),
                Err(error) => return Err(FrameFault::Malformed(error)),
            };
            let mut more = vec![0; missing];
            let read = match self.stream.readable().await {
                Ok(()) => self.stream.try_read(&mut more),
                Err(error) => Err(error),
            };
            let lost = match read {
                Ok(0) => failure("the startup", &io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    bytes.extend_from_slice(&more[..count]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => failure("the startup", &error),
            };
            return Err(match bytes.is_empty() {
                true => FrameFault::Silent(lost),
                false => FrameFault::Lost(lost),
            });
        }
    }

    async fn write_frame(&self, frame: &StartupFrame) -> Result<(), FrameFault> {
        let mut bytes = Vec::with_capacity(frame.encoded_length());
        frame.encode(&mut bytes);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let written = match self.stream.writable().await {
                //= MPA-05
                Ok(()) => self.stream.try_write(rest),
                Err(error) => Err(error),
            };
            match written {
                Ok(count) => {
                    self.show(Direction::Sent, &rest[..count]);
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(FrameFault::Silent(failure("the startup", &error))),
            }
        }
        Ok(())
    }

    /// Sends a frame, if there is room.
    fn say(&self, frame: &StartupFrame) {
        let mut bytes = Vec::with_capacity(frame.encoded_length());
        frame.encode(&mut bytes);
        self.write_once(&bytes);
    }

    /// Waits for a peer that was refused to hang up. It is to have read the refusal by then: siw
    /// takes a FIN right behind one for a failure of its own, and TCP takes back what it has sent
    /// where it is closed with bytes unread.
    async fn see_off(self, patience: Duration) {
        //= MPA-37
        let mut rest = [0; 4096];
        let until_it_hangs_up = async {
            for _ in 0..MAX_READS_OF_REFUSED {
                match self
                    .stream
                    .readable()
                    .await
                    .map(|()| self.stream.try_read(&mut rest))
                {
                    Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(Ok(1..)) => {}
                    _ => return,
                }
            }
        };
        // A peer that does not hang up is not waited for any longer.
        let _ = timeout(patience, until_it_hangs_up).await;
    }

    /// Writes once, if there is room, and says that there will be no more.
    fn write_last(&self, bytes: &[u8]) {
        self.write_once(bytes);
        self.shut_down();
    }

    fn write_once(&self, bytes: &[u8]) {
        if let Ok(count) = SockRef::from(&self.stream).send(bytes) {
            self.show(Direction::Sent, &bytes[..count]);
        }
    }

    fn shut_down(&self) {
        // It fails where the connection is gone, which is as good.
        let _ = SockRef::from(&self.stream).shutdown(Shutdown::Write);
    }

    /// Has the connection end by RST: the peer is to see that this was no end in good order.
    fn reset(&self) {
        // It fails where the connection is gone, which is as good.
        let _ = self.stream.set_zero_linger();
    }

    /// Has the socket wake its reader for so many bytes. To lower it wakes the reader, where they are
    /// there.
    #[cfg(target_os = "linux")]
    fn set_low_water(&self, bytes: usize) {
        // Where it fails, the reader is woken for each byte.
        let _ = setsockopt(&self.stream, ReceiveLowWater, &(bytes as i32));
    }

    /// Elsewhere a socket may tell that it is ready before so many bytes are there.
    #[cfg(not(target_os = "linux"))]
    fn set_low_water(&self, _bytes: usize) {}

    fn show(&self, direction: Direction, bytes: &[u8]) {
        if let Some(tap) = &self.tap
            && !bytes.is_empty()
        {
            cold_path();
            tap.bytes(direction, self.local, self.remote, bytes);
        }
    }

    fn count(&self, direction: Direction, count: Option<usize>) {
        if let Some(tap) = &self.tap {
            cold_path();
            tap.call(direction, count.unwrap_or(0));
        }
    }

    /// One read into both slices. A short one clears the socket's readiness on the way, within
    /// `try_io` so that bytes which come at this moment set it again. An `eager` one minds no
    /// readiness.
    fn read(&self, slices: [&mut [u8]; 2], eager: bool) -> io::Result<usize> {
        let [first, second] = slices;
        let room = first.len() + second.len();
        let mut count = None;
        let mut once = || {
            let socket = SockRef::from(&self.stream);
            let read = if first.is_empty() {
                (&*socket).read(second)?
            } else {
                (&*socket).read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(second)])?
            };
            count = Some(read);
            match read {
                0 => Ok(()),
                read if read < room => Err(io::ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            }
        };
        let outcome = match eager {
            true => once(),
            false => self.stream.try_io(Interest::READABLE, once),
        };
        self.count(Direction::Received, count);
        let Some(count) = count else {
            return outcome.map(|()| 0);
        };
        let placed = count.min(first.len());
        self.show(Direction::Received, &first[..placed]);
        self.show(Direction::Received, &second[..count - placed]);
        Ok(count)
    }

    /// One write of what the machine has to say next.
    fn write_of(&self, machine: &Stream, whole: bool) -> io::Result<usize> {
        let mut few = [IoSlice::new(&[]); FEW_SLICES];
        let count = machine.transmit_slices(&mut few);
        if count < few.len() {
            return self.write(&few[..count], whole);
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = machine.transmit_slices(&mut slices);
        self.write(&slices[..count], whole)
    }

    /// One write of all slices, as [`read`](Self::read) reads; `whole` if they are an FPDU that is to
    /// be a segment.
    fn write(&self, slices: &[IoSlice<'_>], whole: bool) -> io::Result<usize> {
        //= MPA-35
        let flags = if whole { MSG_EOR } else { 0 };
        let mut count = None;
        let outcome = self.stream.try_io(Interest::WRITABLE, || {
            let socket = SockRef::from(&self.stream);
            let written = match slices {
                [slice] => socket.send_with_flags(slice, flags)?,
                slices => socket.send_vectored_with_flags(slices, flags)?,
            };
            count = Some(written);
            if written < slices.iter().map(|slice| slice.len()).sum() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        self.count(Direction::Sent, count);
        let Some(count) = count else {
            return outcome.map(|()| 0);
        };
        if self.tap.is_some() {
            cold_path();
            let mut rest = count;
            for slice in slices {
                let shown = slice.len().min(rest);
                self.show(Direction::Sent, &slice[..shown]);
                rest -= shown;
            }
        }
        Ok(count)
    }

    /// The connection that this socket carries from now on.
    fn connected(
        self,
        config: &IwarpConfig,
        initiator: bool,
        agreement: &Agreement,
        receive: WorkRequest,
        private_data: Bytes,
    ) -> Connected {
        let (local_address, remote_address) = (self.local, self.remote);
        //= MPA-35
        let aligned = config
            .fpdu_per_segment
            .unwrap_or(agreement.crc && !agreement.own_kind);
        //= MPA-27
        let fixed = match config.max_fpdu {
            _ if aligned => None,
            None if agreement.own_kind => Some(u32::MAX),
            chosen => chosen,
        };
        let mut machine = Stream::new(&StreamConfig {
            initiator,
            crc: agreement.crc,
            max_fpdu: fixed.map_or_else(|| self.max_fpdu(aligned), mpa::max_fpdu),
            one_fpdu_a_write: aligned,
            max_outbound_reads: agreement.ord,
            max_inbound_reads: agreement.ird,
            ready_to_receive: agreement.ready_to_receive,
        });
        machine.post(receive);
        debug!(
            %local_address, %remote_address, crc = agreement.crc, ird = agreement.ird,
            ord = agreement.ord, "iWARP connection"
        );
        let queue_pair = IwarpQueuePair {
            machine,
            socket: Some(self),
            aligned,
            follow_mss: fixed.is_none(),
            next_mss: 0,
            eager: false,
            received: 0,
            low_water: LowWater::new(),
            low_water_timer: None,
            adaptive_spin: AdaptiveSpin::new(config.spin_window),
            nudges: match config.startup_probe && initiator && !agreement.own_kind {
                true => &NUDGES,
                false => &[],
            },
            nudge_timer: None,
            broken_pipe: None,
            closing: Closing::No,
            close_timeout: config.close_timeout,
            deadline: None,
            span: Span::current(),
        };
        Connected {
            queue_pair: Box::new(queue_pair),
            remote_address,
            local_address,
            private_data,
        }
    }

    /// The longest FPDU that a TCP segment holds now, or at any time if it has to be whole in one.
    fn max_fpdu(&self, aligned: bool) -> usize {
        // 1460 is Ethernet's.
        let mss = SockRef::from(&self.stream).tcp_mss().unwrap_or(1460);
        //= MPA-35
        let options = if aligned { TCP_OPTIONS_THAT_COME } else { 0 };
        mpa::max_fpdu(mss.saturating_sub(options))
    }
}

#[cfg(target_os = "linux")]
sockopt_impl!(
    /// SO_RCVLOWAT.
    ReceiveLowWater,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_RCVLOWAT,
    i32
);

/// One end of a connection.
struct IwarpQueuePair {
    machine: Stream,
    /// Gone once nothing is to be said or heard any more.
    socket: Option<Socket>,
    /// Whether each FPDU is a TCP segment of its own.
    aligned: bool,
    /// Whether FPDUs follow the size of TCP segments.
    follow_mss: bool,
    /// When to look at the size again, in bytes sent.
    next_mss: u64,
    /// Whether the next read does not wait until the runtime has seen the socket ready.
    eager: bool,
    /// Bytes read.
    received: u64,
    low_water: LowWater,
    /// Ends a sleep for more than one byte.
    low_water_timer: Option<Pin<Box<Sleep>>>,
    adaptive_spin: AdaptiveSpin,
    /// How long to wait for an answer before each of the nudges to come.
    nudges: &'static [Duration],
    nudge_timer: Option<Pin<Box<Sleep>>>,
    /// Why nothing can be written. The peer's last words may still be there to be read.
    broken_pipe: Option<ProviderError>,
    closing: Closing,
    close_timeout: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    /// The span of every log line.
    span: Span,
}

/// How far a graceful disconnect is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// Work is being finished.
    Draining,
    /// FIN is sent, the peer's has not come.
    Finished,
    /// The stream broke and the peer was told.
    Settled,
}

/// The size of TCP segments is looked at before the first FPDU, and again after so many bytes, which
/// is no more than may wait for the socket at once; where FPDUs must fit, at each turn.
const NEXT_MSS: u64 = 256 * 1024;
/// TCP segments carry so many bytes less than their size at times: selective acknowledgements of
/// what came out of order are options of up to four blocks.
const TCP_OPTIONS_THAT_COME: u32 = 36;
/// How long to wait for an answer to the first FPDU before each startup_probe. A healthy peer answers
/// sooner, and a Linux server gives up after 5 seconds.
const NUDGES: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(800),
];
/// Slices in one write. Large FPDUs take two each.
const SLICES: usize = 256;
/// The same where there is little to write: to fill in more would take longer than to send it.
const FEW_SLICES: usize = 4;
/// Writes in one call, so that others have their turn.
const WRITES: usize = 16;
/// The same where a write is one FPDU.
const SINGLE_WRITES: usize = 256;
/// Reads in one call without a completion. The smallest FPDUs come by the ten thousand in one.
const READS: usize = 4;
/// Linux' flag for: let no later bytes join this segment, not even when it is sent again. What fits
/// a segment is taken as a whole or not at all, but where the kernel runs out of memory.
const MSG_EOR: i32 = if cfg!(target_os = "linux") { 0x80 } else { 0 };

impl IwarpQueuePair {
    fn write(&mut self, context: &mut Context<'_>) {
        let writes = if self.aligned { SINGLE_WRITES } else { WRITES };
        if let (true, Some(socket)) = (self.follow_mss, &self.socket)
            && (self.aligned || self.machine.transmitted_bytes() >= self.next_mss)
        {
            self.next_mss = self.machine.transmitted_bytes() + NEXT_MSS;
            self.machine.set_max_fpdu(socket.max_fpdu(self.aligned));
        }
        for _ in 0..writes {
            if self.machine.prepare() == 0 || self.machine.has_ended() {
                return;
            }
            let (Some(socket), None) = (&self.socket, &self.broken_pipe) else {
                return;
            };
            if !ready(&socket.stream, Interest::WRITABLE, context) {
                return;
            }
            match socket.write_of(&self.machine, self.aligned) {
                Ok(count) => self.machine.transmitted(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => self.broken_pipe = Some(failure("sending", &error)),
            }
        }
        if self.machine.prepare() > 0 {
            give_way(context);
        }
    }

    /// Whether the peer may have overlooked the first FPDU.
    fn is_overlooked(&self) -> bool {
        !self.nudges.is_empty() && self.machine.is_unanswered()
    }

    /// Has a peer that overlooked the first FPDU look again.
    #[cold]
    fn startup_probe(&mut self, context: &mut Context<'_>) {
        while let [after, later @ ..] = self.nudges
            && self.machine.is_unanswered()
        {
            let timer = self
                .nudge_timer
                .get_or_insert_with(|| Box::pin(sleep(*after)));
            if timer.as_mut().poll(context).is_pending() {
                return;
            }
            self.span
                .in_scope(|| debug!("the peer is silent, and gets an RDMA Write of length 0"));
            (self.nudges, self.nudge_timer) = (later, None);
            self.machine.startup_probe();
            self.write(context);
        }
    }

    /// Reads once, without waiting for readiness if `eager`; false if there was nothing.
    fn read(&mut self, context: &mut Context<'_>, eager: bool) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        if !eager && !ready(&socket.stream, Interest::READABLE, context) {
            return false;
        }
        self.read_at_once(eager)
    }

    /// The same where the socket is ready, or it is not asked.
    fn read_at_once(&mut self, eager: bool) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        let slices = self.machine.receive_slices();
        if slices.iter().all(|slice| slice.is_empty()) {
            return false;
        }
        match socket.read(slices, eager) {
            Ok(0) => self.end_of_file(),
            Ok(count) => {
                self.machine.received(count);
                self.received += count as u64;
            }
            // Gives the memory back.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.machine.received(0);
                // Readiness is taken back, and is to be asked for once more.
                return !eager;
            }
            Err(error) => self.machine.handle_loss(failure("receiving", &error)),
        }
        true
    }

    /// Sees to it that the socket wakes this end for as many bytes as are worth it.
    fn sleep_for_much(&mut self, context: &mut Context<'_>) {
        let before = self.low_water.mark();
        let owed = self.machine.owed_bytes();
        let came = self.low_water.sleeps(self.received, owed);
        let after = self.low_water.mark();
        if before == 1 && after == 1 {
            return;
        }
        let timer = self
            .low_water_timer
            .get_or_insert_with(|| Box::pin(sleep(low_water::PATIENCE)));
        if came || before == 1 {
            timer
                .as_mut()
                .reset(time::Instant::now() + low_water::PATIENCE);
        }
        if timer.as_mut().poll(context).is_ready() {
            self.low_water.give_up();
        }
        let mark = self.low_water.mark();
        if let Some(socket) = &self.socket
            && mark != before
        {
            socket.set_low_water(mark);
        }
    }

    #[cold]
    fn end_of_file(&mut self) {
        // A reset that a write has met is an end of file to the reads behind it.
        match self.broken_pipe.take() {
            Some(error) => self.machine.handle_loss(error),
            None => self.machine.handle_end(),
        }
    }

    /// What comes after the end: the Terminate goes out if it can, and the socket is closed. A
    /// socket that said one stays until the queue pair is dropped: closed with bytes unread, TCP
    /// would take it back.
    fn settle(&mut self) {
        if self.machine.has_ended() {
            self.settle_ended();
        }
    }

    #[cold]
    fn settle_ended(&mut self) {
        let Some(socket) = &self.socket else { return };
        if self.machine.prepare() == 0 {
            if self.closing != Closing::Settled {
                if self.machine.is_broken() {
                    socket.reset();
                }
                self.socket = None;
            }
            return;
        }
        while self.machine.prepare() > 0 {
            match socket.write_of(&self.machine, self.aligned) {
                Ok(count) => self.machine.transmitted(count),
                Err(_) => self.machine.give_up_transmitting(),
            }
        }
        socket.shut_down();
        self.closing = Closing::Settled;
    }

    /// The next step of a graceful disconnect.
    #[cold]
    fn close(&mut self, context: &mut Context<'_>) {
        if self.closing == Closing::Draining && self.machine.is_drained() {
            //= RDMAP-22
            if let Some(socket) = &self.socket {
                socket.shut_down();
            }
            self.machine.finish();
            self.closing = Closing::Finished;
        }
        if matches!(self.closing, Closing::Draining | Closing::Finished) {
            let deadline = self
                .deadline
                .get_or_insert_with(|| Box::pin(sleep(self.close_timeout)));
            if deadline.as_mut().poll(context).is_ready() {
                self.machine.end(Disconnect::Local);
            }
        }
    }
}

impl QueuePair for IwarpQueuePair {
    fn limits(&self) -> Limits {
        self.machine.limits()
    }

    fn room(&self) -> Room {
        self.machine.room()
    }

    fn post(&mut self, work: WorkRequest) {
        self.machine.post(work);
    }

    fn flush(&mut self, context: &mut Context<'_>) {
        self.write(context);
        if self.is_overlooked() {
            self.startup_probe(context);
        }
        self.settle();
        let sent = self.machine.transmitted_bytes();
        self.adaptive_spin.flushed(sent, self.received);
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        let mut reads = 0;
        // Whoever polls next has not said that it will poll again.
        let mut eager = mem::take(&mut self.eager);
        loop {
            self.settle();
            if self.machine.has_completion() {
                // In one move to the place where the caller has it.
                return match self.machine.poll_completion() {
                    Some(completion) => Poll::Ready(completion),
                    None => Poll::Pending,
                };
            }
            if self.machine.has_ended() {
                return Poll::Pending;
            }
            self.write(context);
            if self.machine.has_completion() {
                continue;
            }
            if reads == READS {
                give_way(context);
                return Poll::Pending;
            }
            let eager = mem::take(&mut eager);
            if self.read(context, eager) {
                reads += 1;
                continue;
            }
            if eager && self.broken_pipe.is_none() && self.closing == Closing::No {
                // Who looks without being told will look again. To be told was asked for the last
                // time there was nothing, and if the task was told since, it asks once more.
                return Poll::Pending;
            }
            if let Some(error) = self.broken_pipe.take() {
                self.machine.handle_loss(error);
            }
            if self.is_overlooked() {
                self.startup_probe(context);
            }
            if self.closing != Closing::No {
                self.close(context);
            }
            if !self.machine.has_ended() {
                let sent = self.machine.transmitted_bytes();
                if self
                    .adaptive_spin
                    .goes_on(sent, self.received, Instant::now)
                {
                    give_way(context);
                }
                self.sleep_for_much(context);
                return Poll::Pending;
            }
        }
    }

    fn has_completion(&self) -> bool {
        let sent = self.machine.transmitted_bytes();
        self.machine.has_completion()
            || self.closing != Closing::No
            || self.broken_pipe.is_some()
            || self.machine.has_ended()
            // Whether to watch is decided where a poll finds nothing.
            || self.adaptive_spin.flows(sent, self.received)
    }

    fn busy_poll(&mut self) -> bool {
        let quiet = !self.machine.has_completion()
            && !self.machine.has_ended()
            && self.closing == Closing::No
            && self.broken_pipe.is_none()
            && self.machine.prepare() == 0;
        // Mostly there is nothing, and to know that takes no more than the read.
        self.eager = !quiet || self.read_at_once(true);
        self.eager
    }

    fn disconnect(&mut self, how: Teardown) {
        match how {
            Teardown::Graceful if self.closing == Closing::No => {
                self.machine.close();
                self.closing = Closing::Draining;
            }
            Teardown::Graceful => {}
            Teardown::Abort => {
                if let Some(socket) = &self.socket
                    && !self.machine.has_ended()
                {
                    socket.reset();
                }
                self.machine.end(Disconnect::Local);
            }
        }
    }

    fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        self.machine.memory().register(buffer, access)
    }

    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        self.machine.memory().deregister(token)
    }
}

/// A queue pair that is dropped without a disconnect is aborted.
impl Drop for IwarpQueuePair {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket
            && self.closing == Closing::No
            && !self.machine.has_ended()
        {
            socket.reset();
        }
    }
}

impl fmt::Debug for IwarpQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IwarpQueuePair")
            .field("remote", &self.socket.as_ref().map(|socket| socket.remote))
            .field("limits", &self.machine.limits())
            .finish_non_exhaustive()
    }
}

/// Whether the socket is ready, or is in error; if not, the context is woken when it is. It does not
/// ask the runtime for how much the task has done in this turn: one that sends and never pauses would
/// find no socket ready any more, and there are limits of our own to what is done in one call.
fn ready(stream: &TcpStream, interest: Interest, context: &mut Context<'_>) -> bool {
    // Mostly it was seen to be ready, and nobody has to be told.
    if stream.try_io(interest, || Ok(())).is_ok() {
        return true;
    }
    let once = pin!(unconstrained(poll_fn(|context| match interest {
        Interest::READABLE => stream.poll_read_ready(context),
        _ => stream.poll_write_ready(context),
    })));
    once.poll(context).is_ready()
}

/// Goes on later, when others had their turn. A task that merely wakes itself has the runtime
/// look at its sockets only now and then, which starves those who wait for one.
fn give_way(context: &mut Context<'_>) {
    let once = pin!(yield_now());
    // It is never done at once.
    let _ = once.poll(context);
}

/// A socket that listens. Those that it accepts begin with its congestion control.
fn bind(address: SocketAddr, config: &IwarpConfig) -> io::Result<TcpListener> {
    let socket = unconnected(address, config)?;
    // As tokio binds: a server that starts again is not to wait for connections of its past.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Connections that wait to be accepted, as many as behind tokio's own listeners.
const BACKLOG: u32 = 128;

/// A socket of the kind of `address`, that has no peer.
fn unconnected(address: SocketAddr, config: &IwarpConfig) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    control_congestion(&socket, config)?;
    Ok(socket)
}

/// Gives a socket its congestion control, best before it has a peer. A connection that began with
/// another may keep some of it: Linux goes on pacing what began with bbr, with a timer for every
/// few segments.
#[cfg(any(target_os = "linux", target_os = "freebsd"))]
fn control_congestion(socket: &impl AsFd, config: &IwarpConfig) -> io::Result<()> {
    let Some(algorithm) = &config.congestion_control else {
        return Ok(());
    };
    let socket = SockRef::from(socket);
    let has = socket.tcp_congestion()?;
    let has = has.split(|&byte| byte == 0).next().unwrap_or_default();
    if has == algorithm.as_bytes() {
        return Ok(());
    }
    socket.set_tcp_congestion(algorithm.as_bytes())
}

#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
fn control_congestion<S>(_: &S, config: &IwarpConfig) -> io::Result<()> {
    match config.congestion_control {
        Some(_) => Err(io::ErrorKind::Unsupported.into()),
        None => Ok(()),
    }
}

/// Why TCP does not connect. A listener that goes away meanwhile resets, and refuses as well.
fn not_connected(error: &io::Error) -> ProviderError {
    let mut failure = failure("connecting", error);
    if failure.kind == ProviderErrorKind::Reset {
        failure.kind = ProviderErrorKind::Refused;
    }
    failure
}

/// An error of the operating system in our words.
#[cold]
fn failure(doing: &str, error: &io::Error) -> ProviderError {
    use io::ErrorKind as Kind;
    let kind = match error.kind() {
        Kind::ConnectionRefused => ProviderErrorKind::Refused,
        Kind::TimedOut => ProviderErrorKind::TimedOut,
        Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::BrokenPipe
        | Kind::NotConnected
        | Kind::UnexpectedEof => ProviderErrorKind::Reset,
        Kind::AddrInUse => ProviderErrorKind::InUse,
        Kind::AddrNotAvailable
        | Kind::HostUnreachable
        | Kind::NetworkUnreachable
        | Kind::NetworkDown
        | Kind::InvalidInput => ProviderErrorKind::Address,
        _ => ProviderErrorKind::Local,
    };
    ProviderError::new(kind, format!("{doing}: {error}"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::rdma::work::WorkId;

    // A connection that is made with bbr and changes to another goes on pacing.
    #[tokio::test]
    async fn connections_begin_with_the_congestion_control_that_is_asked_for() {
        let congestion = |socket: SockRef<'_>| {
            let name = socket.tcp_congestion().unwrap();
            String::from_utf8(name).unwrap().replace('\0', "")
        };
        // Everybody may use it.
        let config = IwarpConfig {
            congestion_control: Some("reno".into()),
            ..IwarpConfig::default()
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = bind(any, &config).unwrap();
        let address = listener.local_addr().unwrap();
        let socket = unconnected(address, &config).unwrap();
        assert_eq!(congestion((&socket).into()), "reno");
        let ours = socket.connect(address).await.unwrap();
        let (theirs, _) = listener.accept().await.unwrap();
        for stream in [&ours, &theirs] {
            assert_eq!(congestion(stream.into()), "reno");
        }
    }

    #[tokio::test]
    async fn sockets_have_the_send_buffer_that_is_asked_for() {
        const MIB: usize = 1024 * 1024;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = bind(any, &IwarpConfig::default()).unwrap();
        let connect = async || {
            TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap()
        };
        let size = |stream: &TcpStream| SockRef::from(stream).send_buffer_size().unwrap();
        // Linux takes twice as much as it is asked for, and this is the most.
        let stream = connect().await;
        let of_the_system = size(&stream);
        let largest = SockRef::from(&stream).set_send_buffer_size(i32::MAX as usize);
        largest.unwrap();
        let largest = size(&stream);
        // Where the system hides what it grows to, nothing is asked for.
        let grown = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap_or_default();
        let grown = grown.split_whitespace().nth(2);
        let grown: usize = grown.map_or(0, |most| most.parse().unwrap());
        let bounded = largest >= 2 * MIB && grown > 2 * MIB;
        for (send_buffer, expected) in [
            (SendBuffer::Bytes(65_536), largest.min(131_072)),
            (SendBuffer::Bytes(u32::MAX), largest),
            (SendBuffer::System, of_the_system),
            (
                SendBuffer::Auto,
                if bounded { 2 * MIB } else { of_the_system },
            ),
        ] {
            let config = IwarpConfig {
                send_buffer,
                ..IwarpConfig::default()
            };
            let socket = Socket::new(connect().await, &config).unwrap();
            assert_eq!(size(&socket.stream), expected, "{send_buffer:?}");
        }
    }

    #[tokio::test]
    async fn a_congestion_control_that_is_not_there_is_an_error() {
        let config = IwarpConfig {
            congestion_control: Some("telepathy".into()),
            ..IwarpConfig::default()
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let other = Iwarp::default().listen(address).await.unwrap();
        let iwarp = Iwarp::new(config);
        assert!(iwarp.listen(address).await.is_err());
        let request = ConnectRequest {
            address: other.local_address(),
            private_data: Bytes::new(),
            receive: WorkRequest::Receive {
                id: WorkId(0),
                length: 1,
                count: 1,
            },
        };
        let failed = iwarp.connect(request).await.unwrap_err();
        assert_eq!(failed.kind, ProviderErrorKind::Local);
    }
}
