//! Scripted peers that speak correct iWARP or RoCE and attack: time and memory stay bounded, at most the
//! attacked connection ends, and no other connection is affected.

use std::{
    fs,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use smbdirect::{
    Access, Config, Connection, Listener, MemoryRegion, Settings,
    rdma::{
        iwarp::{Iwarp, ddp::Tagged, rdmap::Opcode},
        provider::Provider,
    },
    wire::{DataTransfer, Flags},
};
use tokio::{
    net::TcpStream,
    sync::{Mutex, MutexGuard},
    time::sleep,
};

use self::{
    peer::{Peer, fpdu, within},
    roce::RocePeer,
};

#[path = "hostile/cut.rs"]
mod cut;
#[allow(dead_code, reason = "what only the regression tests say")]
mod peer;
#[path = "hostile/roce.rs"]
mod roce;

/// Makes the tests run one at a time, because they measure the process.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Returns a field of a file such as `/proc/self/stat`, or `None` where there is no such file.
fn field(file: &str, index: usize) -> Option<usize> {
    // Under Wine the file exists, but it describes another process.
    if cfg!(windows) {
        return None;
    }
    let text = fs::read_to_string(file).ok()?;
    let fields = text.rsplit(") ").next()?;
    fields.split_whitespace().nth(index)?.parse().ok()
}

/// Returns the bytes of memory in use, or 0 where the system does not report them.
fn resident() -> usize {
    field("/proc/self/statm", 1).unwrap_or(0) * 4096
}

/// Returns the CPU time of all threads, or zero where the system does not report it.
fn spent() -> Duration {
    // User and system time in hundredths of a second. The index counts from the field of the state.
    let ticks = |index| field("/proc/self/stat", index).unwrap_or(0) as u64;
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// A scripted peer that has negotiated SMB Direct.
trait Attacker: Sized {
    /// The facts about the listener that a peer needs besides its address.
    type Place: Copy;

    /// Returns the providers of an ordinary client and of the listener.
    fn providers() -> ([Arc<dyn Provider>; 2], Self::Place);

    /// Connects to a listener and negotiates.
    async fn negotiated(address: SocketAddr, place: Self::Place) -> Self;

    /// Returns the send credits of the peer.
    fn credits(&self) -> u32;

    /// Queues a Data Transfer, which spends a credit.
    fn transfer(&mut self, header: DataTransfer, payload: &[u8]);

    /// Sends what is queued.
    async fn flush(&mut self);

    /// Waits until the peer holds this many credits.
    async fn await_credits(&mut self, credits: u32);
}

/// A scripted peer over iWARP, with the FPDUs that it sends next.
struct IwarpPeer {
    peer: Peer,
    queued: Vec<u8>,
}

impl Attacker for IwarpPeer {
    type Place = ();

    fn providers() -> ([Arc<dyn Provider>; 2], ()) {
        let provider: Arc<dyn Provider> = Arc::new(Iwarp::default());
        ([provider.clone(), provider], ())
    }

    async fn negotiated(address: SocketAddr, (): ()) -> Self {
        Self {
            peer: Peer::negotiated(address).await,
            queued: Vec::new(),
        }
    }

    fn credits(&self) -> u32 {
        self.peer.credits
    }

    fn transfer(&mut self, header: DataTransfer, payload: &[u8]) {
        let fpdu = self.peer.transfer(header, payload);
        self.queued.extend(fpdu);
    }

    async fn flush(&mut self) {
        let bytes = std::mem::take(&mut self.queued);
        self.peer.say(&bytes).await;
    }

    async fn await_credits(&mut self, credits: u32) {
        self.peer.await_credits(credits).await;
    }
}

/// A listener with an ordinary connection and a connection of a scripted peer.
struct Scene<P> {
    victim: Connection,
    peer: P,
    good: [Connection; 2],
    _listener: Listener,
    _alone: MutexGuard<'static, ()>,
}

impl<P: Attacker> Scene<P> {
    async fn new(settings: Settings) -> Self {
        let alone = ALONE.lock().await;
        let ([connecting, listening], place) = P::providers();
        let config = Config::new(settings).unwrap();
        let address = "127.0.0.1:0";
        let mut listener = Listener::bind(&*listening, address, config.clone())
            .await
            .unwrap();
        let address = listener.local_addr();
        let (one, other) = tokio::join!(
            Connection::connect(&*connecting, address, config),
            listener.accept()
        );
        let good = [one.unwrap(), other.unwrap()];
        let (peer, victim) = tokio::join!(P::negotiated(address, place), listener.accept());
        Self {
            victim: victim.unwrap(),
            peer,
            good,
            _listener: listener,
            _alone: alone,
        }
    }

    /// Asserts that the ordinary connection carries messages.
    async fn assert_others_live(&self) {
        let [one, other] = &self.good;
        for _ in 0..10 {
            drop(one.send("still there?").unwrap());
            within(other.recv()).await.unwrap();
        }
    }

    async fn assert_ends(&mut self, words: &str) {
        let reason = within(self.victim.closed()).await;
        assert!(reason.to_string().contains(words), "{reason}");
        self.assert_others_live().await;
    }
}

fn write(stag: u32, tagged_offset: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    let header = Tagged {
        last,
        rdmap_control: Opcode::RdmaWrite.control(),
        stag,
        tagged_offset,
    };
    fpdu(&[&header.encode(), payload])
}

fn empty(credits_requested: u16, credits_granted: u16) -> DataTransfer {
    DataTransfer::empty(credits_requested, credits_granted, Flags::empty())
}

fn segment(data_length: u32, remaining_data_length: u32) -> DataTransfer {
    DataTransfer {
        data_offset: 24,
        data_length,
        remaining_data_length,
        ..empty(255, 0)
    }
}

fn region(connection: &Connection, length: usize, access: Access) -> MemoryRegion {
    connection
        .register(BytesMut::zeroed(length), access)
        .unwrap()
}

/// Runs the tests that every transport passes.
macro_rules! over_each_transport {
    ($($test:ident),*) => {
        mod over_iwarp {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test::<super::IwarpPeer>().await;
            })*
        }

        mod over_roce {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test::<super::RocePeer>().await;
            })*
        }
    };
}

over_each_transport!(
    short_messages_in_much_padding_use_little_memory,
    long_message_in_single_bytes_uses_little_memory
);

/// A message of one byte does not keep the padding that arrived with it in memory.
async fn short_messages_in_much_padding_use_little_memory<P: Attacker>() {
    let mut scene = Scene::<P>::new(Settings::default()).await;
    let before = resident();
    // Bytes after the payload are legal.
    let padding = vec![0; 8192 - 20];
    let peer = &mut scene.peer;
    for round in 0..600 {
        peer.await_credits(33).await;
        peer.transfer(segment(1, 0), &padding[..8192 - 24]);
        if round % 2 == 0 {
            for _ in 0..32 {
                peer.transfer(empty(255, 1), &padding);
            }
        }
        peer.flush().await;
    }
    within(async {
        while scene.victim.stats().messages_received < 600 {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let grown = resident().saturating_sub(before);
    assert!(grown < 40 << 20, "{grown} bytes for 600");
    for _ in 0..600 {
        assert_eq!(within(scene.victim.recv()).await.unwrap().len(), 1);
    }
    scene.assert_others_live().await;
}

/// The peer requests 4 GiB, 32 reads at a time, and receives nothing, neither the read data nor the
/// messages of the victim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_that_requests_reads_and_receives_nothing_costs_little() {
    let mut settings = Settings::default();
    settings.keepalive_interval = Duration::from_secs(2);
    settings.keepalive_response_timeout = Duration::from_secs(1);
    let mut scene = Scene::<IwarpPeer>::new(settings).await;
    let served = region(&scene.victim, 64 << 20, Access::REMOTE_READ);
    let descriptor = served.descriptor();
    let before = (resident(), spent());
    for _ in 0..16 {
        let peer = &mut scene.peer.peer;
        let request = peer.read_request(descriptor.token, descriptor.offset, descriptor.length);
        peer.say(&request).await;
    }
    for _ in 0..500 {
        drop(scene.victim.send(vec![0; 8000]).unwrap());
    }
    sleep(Duration::from_millis(500)).await;
    let grown = resident().saturating_sub(before.0);
    assert!(grown < 24 << 20, "{grown} bytes");
    let calm = spent();
    sleep(Duration::from_secs(1)).await;
    let busy = spent() - calm;
    assert!(
        busy < Duration::from_millis(200),
        "{busy:?} of CPU time while idle"
    );
    scene.assert_others_live().await;
    scene.assert_ends("Idle").await;
    assert_eq!(within(served.deregister()).await.unwrap().len(), 64 << 20);
}

/// The peer sends half an FPDU and then nothing: the victim uses no CPU time, and its idle timer ends the
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_an_fpdu_ends_with_the_idle_timer() {
    let mut settings = Settings::default();
    settings.keepalive_interval = Duration::from_secs(1);
    settings.keepalive_response_timeout = Duration::from_secs(1);
    let mut scene = Scene::<IwarpPeer>::new(settings).await;
    let target = region(&scene.victim, 60_000, Access::REMOTE_WRITE);
    let bytes = write(
        target.descriptor().token,
        target.descriptor().offset,
        true,
        &[7; 60_000],
    );
    scene.peer.peer.say(&bytes[..30_000]).await;
    let calm = spent();
    sleep(Duration::from_secs(1)).await;
    let busy = spent() - calm;
    assert!(
        busy < Duration::from_millis(200),
        "{busy:?} of CPU time while idle"
    );
    scene.assert_ends("Idle").await;
    assert_eq!(within(target.deregister()).await.unwrap().len(), 60_000);
}

/// The peer sends the FPDUs that take the most work for their bytes. It goes on until others have exchanged messages.
#[tokio::test(flavor = "current_thread")]
async fn flood_of_empty_writes_does_not_delay_others() {
    let Scene {
        victim,
        peer: IwarpPeer { mut peer, .. },
        good,
        _listener,
        _alone,
    } = Scene::<IwarpPeer>::new(Settings::default()).await;
    let target = region(&victim, 4096, Access::REMOTE_WRITE);
    let descriptor = target.descriptor();
    let before = resident();
    let stream = peer.stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    let enough = Arc::new(AtomicBool::new(false));
    let is_enough = Arc::clone(&enough);
    let flood = std::thread::spawn(move || {
        use std::io::Write;
        let mut bytes = Vec::new();
        for index in 0..20_000 {
            bytes.extend(write(0, 0, true, &[]));
            bytes.extend(write(
                descriptor.token,
                descriptor.offset,
                index % 2 == 0,
                &[1],
            ));
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1) || !is_enough.load(Relaxed) {
            (&stream).write_all(&bytes).unwrap();
        }
        stream
    });
    exchange_during(&flood, &good, &enough).await;
    let stream = flood.join().unwrap();
    stream.set_nonblocking(true).unwrap();
    peer.stream = TcpStream::from_std(stream).unwrap();
    let goodbye = peer.transfer(segment(4, 0), b"last");
    peer.say(&goodbye).await;
    assert_eq!(within(victim.recv()).await.unwrap().into_bytes(), "last");
    let grown = resident().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes");
}

/// Exchanges messages until a thread has ended, which waits until they are `enough`.
async fn exchange_during<T>(flood: &JoinHandle<T>, ends: &[Connection; 2], enough: &AtomicBool) {
    let mut count = 0;
    while !flood.is_finished() {
        drop(ends[0].send("still there?").unwrap());
        within(ends[1].recv()).await.unwrap();
        count += 1;
        enough.store(count >= 1000, Relaxed);
    }
}

/// Each violation ends the connection that it arrives on, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_violation_ends_only_its_connection() {
    type Crime = fn(&mut Peer, &MemoryRegion) -> Vec<u8>;
    let crimes: &[(&str, Crime)] = &[
        ("token", |peer, _| {
            peer.send(Opcode::SendInvalidate, 0x1234, &[0; 20])
        }),
        ("access", |peer, region| {
            peer.send(Opcode::SendInvalidate, region.token().0, &[0; 20])
        }),
        ("access", |_, region| {
            write(region.token().0, region.descriptor().offset, true, &[1])
        }),
        ("outside", |peer, region| {
            peer.read_request(region.token().0, region.descriptor().offset, u32::MAX)
        }),
        ("wrap", |peer, region| {
            peer.read_request(region.token().0, u64::MAX, 2)
        }),
        ("Reads", |peer, _| {
            (0..129).flat_map(|_| peer.read_request(0, 0, 0)).collect()
        }),
        ("credits", |peer, _| {
            let mut bytes = peer.transfer(empty(255, 65_535), &[]);
            bytes.extend(peer.transfer(empty(255, 65_535), &[]));
            bytes
        }),
        ("", |_, _| b"GET / HTTP/1.1\r\n\r\n".repeat(10_000)),
        ("receive", |peer, _| {
            let mut bytes = Vec::new();
            for _ in 0..300 {
                peer.credits = 1;
                bytes.extend(peer.transfer(segment(8, 0), &[0; 8]));
            }
            bytes
        }),
    ];
    for (words, crime) in crimes {
        let mut scene = Scene::<IwarpPeer>::new(Settings::default()).await;
        let region = region(&scene.victim, 4096, Access::REMOTE_READ);
        let bytes = crime(&mut scene.peer.peer, &region);
        scene.peer.peer.say(&bytes).await;
        scene.assert_ends(words).await;
        within(region.deregister()).await.unwrap();
        assert_eq!(scene.victim.stats().receives_outstanding, 0);
    }
}

/// The peer sends a long message in segments of one byte, changes its requested credits with each, and
/// grants thousands of credits.
async fn long_message_in_single_bytes_uses_little_memory<P: Attacker>() {
    let mut scene = Scene::<P>::new(Settings::default()).await;
    let before = resident();
    let peer = &mut scene.peer;
    let length = 100_000_u32;
    let mut sent = 0;
    while sent < length {
        peer.await_credits(2).await;
        while peer.credits() > 1 && sent < length {
            sent += 1;
            let header = DataTransfer {
                credits_requested: if sent % 2 == 0 { 65_535 } else { 1 },
                credits_granted: u16::from(sent % 64 == 0),
                ..segment(1, length - sent)
            };
            peer.transfer(header, &[sent as u8]);
        }
        peer.flush().await;
    }
    let message = within(scene.victim.recv()).await.unwrap().into_bytes();
    assert_eq!(message.len(), length as usize);
    assert!(
        (1..)
            .zip(&message)
            .all(|(i, &byte): (u32, _)| byte == i as u8)
    );
    let grown = resident().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes");
    scene.assert_others_live().await;
}
