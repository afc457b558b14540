//! Two ends of a connection, and a client that records its events.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Config, Settings, Token,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        provider::Provider,
    },
};
use smbdirect_tdi::{
    Address, Answer, Cause, ChainedTsdu, Client, ConnectAnswer, DisconnectFlags, Endpoint,
    Indication, IndicationFlags, Offer, ReceiveCompletion, ReceiveFlags, ReceiveRequest, RequestId,
    Share, Status, Transport, TransportSettings,
};
pub(crate) use smbdirect_test::within;
use tokio::{runtime::Builder, sync::Notify, time::timeout};

/// Runs each test over every provider that needs no RDMA device.
macro_rules! over_providers {
    ($($(#[$meta:meta])* $name:ident;)+) => {
        mod in_process {
            $($(#[$meta])* #[tokio::test] async fn $name() {
                super::$name(crate::endpoint::ends::loopback()).await;
            })+
        }
        mod over_tcp {
            $($(#[$meta])* #[tokio::test] async fn $name() {
                super::$name(crate::endpoint::ends::iwarp()).await;
            })+
        }
    };
}
pub(crate) use over_providers;

pub(crate) fn loopback() -> Arc<dyn Provider> {
    Arc::new(Loopback::new())
}

pub(crate) fn iwarp() -> Arc<dyn Provider> {
    Arc::new(Iwarp::new(IwarpConfig::default()))
}

/// Asserts that a future does not resolve for a while.
pub(crate) async fn not_yet<T>(future: impl Future<Output = T>) {
    let early = timeout(Duration::from_millis(50), future).await;
    assert!(early.is_err(), "too early");
}

/// Settings with `count` credits in each direction.
pub(crate) fn credits(count: u16) -> Settings {
    let mut changed = Settings::default();
    changed.send_credit_target = count;
    changed.receive_credit_max = count;
    changed
}

/// Settings with which a receiver that takes no data stops the sender after a few messages.
pub(crate) fn starving() -> Settings {
    let mut changed = credits(4);
    changed.max_send_size = 1024;
    changed.max_receive_size = 1024;
    changed.receive_buffer = Some(16 << 10);
    changed.credit_grant_timeout = None;
    changed
}

pub(crate) fn settings(settings: Settings) -> TransportSettings {
    TransportSettings::new(Config::new(settings).unwrap())
}

/// Like [`starving`], with a TDI receive buffer that the first data fills.
pub(crate) fn starving_settings() -> TransportSettings {
    let mut settings = settings(starving());
    settings.receive.receive_buffer = 1;
    settings.receive.lendable = 0;
    settings
}

/// Like [`starving_settings`], with a send buffer for two TSDUs of 200,000 bytes.
pub(crate) fn small_buffer() -> TransportSettings {
    let mut settings = starving_settings();
    settings.send.max_tsdu = 200_000;
    settings.send.high_water = 400_000;
    settings.send.low_water = 100_000;
    settings
}

pub(crate) fn transport(provider: &Arc<dyn Provider>, settings: TransportSettings) -> Transport {
    Transport::new(provider.clone(), settings).unwrap()
}

pub(crate) fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Two endpoints, with their addresses and their transport.
pub(crate) struct Ends {
    pub(crate) transport: Transport,
    pub(crate) here: Endpoint,
    pub(crate) there: Endpoint,
    pub(crate) local: Address,
    pub(crate) remote: Address,
}

impl Ends {
    /// Two endpoints that are associated and not connected.
    pub(crate) async fn apart(provider: Arc<dyn Provider>, settings: TransportSettings) -> Self {
        let transport = transport(&provider, settings);
        let remote = transport.open_address(any_port(), Share::Exclusive);
        let remote = remote.await.unwrap();
        let local = transport.open_any_address();
        let (here, there) = (transport.open_endpoint(()), transport.open_endpoint(()));
        here.associate(&local).unwrap();
        there.associate(&remote).unwrap();
        Self {
            transport,
            here,
            there,
            local,
            remote,
        }
    }

    pub(crate) async fn connect(&self) {
        let listen = self.there.listen(None);
        let connect = self.here.connect(self.remote.local_addr(), None);
        within(connect).await.unwrap();
        within(listen).await.unwrap();
    }

    pub(crate) async fn with(provider: Arc<dyn Provider>, settings: TransportSettings) -> Self {
        let ends = Self::apart(provider, settings).await;
        ends.connect().await;
        ends
    }

    pub(crate) async fn new(provider: Arc<dyn Provider>) -> Self {
        Self::with(provider, TransportSettings::default()).await
    }

    /// Receives the next TSDU at `there`.
    pub(crate) async fn arrived(&self) -> Bytes {
        receive(&self.there, 2 << 20).await
    }
}

/// Receives a whole TSDU of at most `most` bytes.
pub(crate) async fn receive(endpoint: &Endpoint, most: usize) -> Bytes {
    let receiving = endpoint.receive(BytesMut::zeroed(most), ReceiveFlags::empty());
    let completion = within(receiving).await;
    assert_eq!(completion.status, Status::SUCCESS);
    completion.into_data().unwrap().freeze()
}

/// The answer of the handlers of a [`Recorder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Take all indicated bytes.
    Take,
    /// Take at most this many bytes of each indication.
    TakeSome(usize),
    /// Take at most this many bytes, and receive the rest into a request of this length.
    ThenReceive(usize, usize),
    /// Do not accept the data.
    Refuse,
    /// Panic.
    Panic,
}

/// A client that records its events as lines of text, and answers as the test has set.
pub(crate) struct Recorder {
    state: Mutex<State>,
    changed: Notify,
    pub(crate) chained: AtomicBool,
    pub(crate) accepting: Mutex<Option<ConnectAnswer>>,
}

struct State {
    lines: Vec<String>,
    data: Vec<u8>,
    kept: Vec<ChainedTsdu>,
    keep: bool,
    how: How,
}

impl Recorder {
    pub(crate) fn new(how: How) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                lines: Vec::new(),
                data: Vec::new(),
                kept: Vec::new(),
                keep: false,
                how,
            }),
            changed: Notify::new(),
            chained: AtomicBool::new(false),
            accepting: Mutex::default(),
        })
    }

    /// A client with a chained handler, which keeps the TSDUs if `keep` is set.
    pub(crate) fn chained(keep: bool) -> Arc<Self> {
        let recorder = Self::new(How::Take);
        recorder.chained.store(true, Ordering::Relaxed);
        recorder.state.lock().unwrap().keep = keep;
        recorder
    }

    pub(crate) fn answer(&self, how: How) {
        self.state.lock().unwrap().how = how;
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.state.lock().unwrap().lines.clone()
    }

    /// Returns all bytes that were taken.
    pub(crate) fn data(&self) -> Bytes {
        self.state.lock().unwrap().data.clone().into()
    }

    pub(crate) fn kept(&self) -> Vec<ChainedTsdu> {
        std::mem::take(&mut self.state.lock().unwrap().kept)
    }

    /// Waits until there are `count` lines, and returns all lines.
    pub(crate) async fn wait_for_lines(&self, count: usize) -> Vec<String> {
        within(self.until(|state| state.lines.len() >= count)).await;
        self.lines()
    }

    pub(crate) async fn has_taken(&self, count: usize) {
        within(self.until(|state| state.data.len() >= count)).await;
    }

    async fn until(&self, is_there: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_there(&self.state.lock().unwrap()) {
                return;
            }
            changed.await;
        }
    }

    fn tell(&self, line: String) {
        let how = {
            let mut state = self.state.lock().unwrap();
            state.lines.push(line);
            state.how
        };
        self.changed.notify_waiters();
        assert_ne!(how, How::Panic, "the test has set `Panic`");
    }
}

impl Client for Recorder {
    fn connect(&self, address: &Address, offer: &Offer) -> ConnectAnswer {
        assert!(address.local_addr().ip().is_loopback());
        assert!(offer.peer_addr.ip().is_loopback());
        self.tell("connect".into());
        let answer = self.accepting.lock().unwrap().take();
        answer.unwrap_or(ConnectAnswer::Refuse)
    }

    fn accept_completed(&self, _: &Endpoint, result: Result<(), Status>) {
        self.tell(format!("accepted {result:?}"));
    }

    fn takes_chained(&self) -> bool {
        self.chained.load(Ordering::Relaxed)
    }

    fn chained_receive(&self, _: &Endpoint, tsdu: ChainedTsdu) -> Result<(), ChainedTsdu> {
        self.tell(format!("chained {}", tsdu.len()));
        let mut state = self.state.lock().unwrap();
        if state.how == How::Refuse {
            return Err(tsdu);
        }
        state
            .data
            .extend_from_slice(&tsdu.clone().into_message().into_bytes());
        if state.keep {
            state.kept.push(tsdu);
        }
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }

    fn receive(&self, _: &Endpoint, indication: Indication) -> Answer {
        let Indication { flags, data, .. } = &indication;
        let end = if flags.contains(IndicationFlags::ENTIRE_MESSAGE) {
            "."
        } else {
            ""
        };
        self.tell(format!("receive {}{end}", data.len()));
        let mut state = self.state.lock().unwrap();
        let (count, answer) = match state.how {
            How::Take | How::Panic => (data.len(), Answer::Taken(data.len())),
            How::TakeSome(most) => {
                let count = most.min(data.len());
                (count, Answer::Taken(count))
            }
            How::ThenReceive(most, length) => {
                let count = most.min(data.len());
                let request = ReceiveRequest {
                    id: RequestId(77),
                    buffer: BytesMut::zeroed(length).into(),
                    flags: ReceiveFlags::NORMAL,
                };
                (count, Answer::TakenThenReceive(count, request))
            }
            How::Refuse => (0, Answer::NotAccepted(0)),
        };
        state.data.extend_from_slice(&data[..count]);
        drop(state);
        self.changed.notify_waiters();
        answer
    }

    fn receive_completed(&self, _: &Endpoint, completion: ReceiveCompletion) {
        let ReceiveCompletion {
            id,
            status,
            information,
            buffer,
            ..
        } = completion;
        self.tell(format!("completed {} {status} {information}", id.0));
        let mut state = self.state.lock().unwrap();
        state.data.extend_from_slice(&buffer[..information]);
        drop(state);
        self.changed.notify_waiters();
    }

    fn send_possible(&self, _: &Endpoint, available: usize) {
        self.tell(format!("send possible {available}"));
    }

    fn invalidated(&self, _: &Endpoint, token: Token) {
        self.tell(format!("invalidated {token}"));
    }

    fn disconnect(&self, _: &Endpoint, flags: DisconnectFlags, cause: &Cause) {
        assert_eq!(flags, DisconnectFlags::ABORT);
        self.tell(format!("disconnect: {cause}"));
    }

    fn error(&self, status: Status) {
        self.tell(format!("error {status}"));
    }
}

/// Returns bytes that differ by position and by `seed`.
pub(crate) fn pattern(length: usize, seed: u8) -> Bytes {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

/// Runs a test that could hang with a lock held, so that it fails instead of hanging.
pub(crate) fn in_time(test: impl Future<Output = ()> + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test);
        done.send(()).unwrap();
    });
    let over = is_done.recv_timeout(Duration::from_secs(30));
    over.expect("the test neither hangs nor panics");
}

/// Yields to the other tasks of the runtime `count` times.
pub(crate) async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// Waits until `flag` is set.
pub(crate) async fn is_set(flag: &AtomicBool) {
    within(async {
        while !flag.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
