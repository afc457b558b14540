//! Hostile peers over RoCE: a scripted peer that speaks correct RoCEv2 and attacks, and a flood of packets
//! from elsewhere.

use std::{
    collections::VecDeque,
    net::{SocketAddr, UdpSocket as StdUdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, MemoryRegion, Settings,
    rdma::{
        provider::Provider,
        roce::{
            ConnectParameters, ConnectionId, Endpoint, EndpointEvent, EndpointSettings, Path, Psn,
            Roce, RoceConfig,
            cm::PathMtu,
            icrc::{self, DatagramHeader},
            packet::{Bth, Extended, Ieth, Opcode, Packet, Reth},
        },
        work::{Completion, Inline, WorkId, WorkRequest},
    },
    wire::{DataTransfer, NegotiateResponse},
};
use tokio::{
    net::UdpSocket,
    time::{sleep, timeout},
};

use super::{
    Attacker, Scene, empty, exchange_during,
    peer::{negotiate_request, within},
    region, resident, segment, spent,
};

/// The payload of a packet between sockets of one machine, whose interface has a large MTU.
const PATH_MTU: usize = 4096;
/// The queue pair of the CM.
const GENERAL_SERVICES_QUEUE_PAIR: u32 = 1;
/// The time between two checks of the endpoint's timers.
const TICK: Duration = Duration::from_millis(2);

/// A scripted peer: the endpoint of this library, with a socket that only the test reads.
pub(crate) struct RocePeer {
    socket: UdpSocket,
    endpoint: Endpoint,
    id: ConnectionId,
    path: Path,
    /// The messages that have arrived.
    messages: VecDeque<Bytes>,
    /// The Sends that were posted, and those that are acknowledged.
    posted: u64,
    acknowledged: u64,
    /// The queue pair of the victim, and the PSN that it expects next.
    queue_pair: u32,
    next_psn: Psn,
    /// Every datagram that was sent to the queue pair of the victim, if the test records them.
    recorded: Option<Vec<Vec<u8>>>,
    credits: u32,
}

impl RocePeer {
    /// Receives what has arrived, runs the timers, and sends what is due.
    fn pump(&mut self) {
        let now = Instant::now();
        let mut buffer = [0; 9000];
        while let Ok(length) = self.socket.try_recv(&mut buffer) {
            self.endpoint
                .handle_datagram(now, self.path, &buffer[..length]);
        }
        self.endpoint.handle_timeout(now);
        self.endpoint.flush(self.id);
        let mut out = BytesMut::new();
        while let Some(transmit) = self.endpoint.poll_transmit(now, 1, &mut out) {
            // A datagram that the system does not take is lost.
            let _ = self.socket.try_send_to(&out, transmit.path.remote);
            let (bth, ..) = Packet::split(&out).unwrap();
            if bth.destination_qp != GENERAL_SERVICES_QUEUE_PAIR {
                self.queue_pair = bth.destination_qp;
                if !bth.opcode.is_response() {
                    self.next_psn = bth.psn.add(1);
                }
                if let Some(recorded) = &mut self.recorded {
                    recorded.push(out.to_vec());
                }
            }
            out.clear();
        }
        while let Some(completion) = self.endpoint.poll_completion(self.id) {
            match completion {
                Completion::Received { message, .. } => {
                    self.messages.push_back(message);
                    self.endpoint.post(self.id, receives(1));
                }
                Completion::Sent { id } => self.acknowledged = id.0,
                _ => {}
            }
        }
    }

    /// Pumps until `done` returns something.
    async fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        within(async {
            loop {
                self.pump();
                if let Some(result) = done(self) {
                    return result;
                }
                let _ = timeout(TICK, self.socket.readable()).await;
            }
        })
        .await
    }

    fn post_send(&mut self, message: Vec<u8>) {
        self.posted += 1;
        let work = WorkRequest::Send {
            id: WorkId(self.posted),
            header: Inline::new(),
            payload: message.into(),
            invalidate: None,
        };
        self.endpoint.post(self.id, work);
    }

    /// Returns a datagram for the queue pair of the victim with any headers and content.
    fn forged(&self, opcode: Opcode, psn: Psn, extended: Extended, payload: &[u8]) -> Vec<u8> {
        let mut bth = Bth::new(opcode, self.queue_pair, psn);
        bth.ack_request = true;
        let packet = Packet {
            bth,
            extended,
            payload: Bytes::copy_from_slice(payload),
        };
        let mut out = BytesMut::new();
        packet.encode(&mut out);
        let header = DatagramHeader::between(self.path.local, self.path.remote).unwrap();
        icrc::append(&header, &mut out, 0);
        out.to_vec()
    }

    /// Sends a packet with the PSN that the victim expects next.
    async fn say(&mut self, opcode: Opcode, extended: Extended, payload: &[u8], packets: u32) {
        let datagram = self.forged(opcode, self.next_psn, extended, payload);
        self.next_psn = self.next_psn.add(packets);
        self.throw(&datagram).await;
    }

    async fn throw(&self, datagram: &[u8]) {
        within(self.socket.send_to(datagram, self.path.remote))
            .await
            .unwrap();
    }
}

impl Attacker for RocePeer {
    /// The UDP port that the listener receives on.
    type Place = u16;

    fn providers() -> ([Arc<dyn Provider>; 2], u16) {
        let probe = StdUdpSocket::bind("127.0.0.1:0").unwrap();
        let udp_port = probe.local_addr().unwrap().port();
        let mut config = RoceConfig::default();
        config.udp_port = udp_port;
        config.peer_udp_port = udp_port;
        let provider = || -> Arc<dyn Provider> { Arc::new(Roce::new(config.clone())) };
        ([provider(), provider()], udp_port)
    }

    async fn negotiated(address: SocketAddr, udp_port: u16) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let path = Path {
            local: socket.local_addr().unwrap(),
            remote: SocketAddr::new(address.ip(), udp_port),
        };
        let mut endpoint = Endpoint::new(EndpointSettings::default());
        let parameters = ConnectParameters {
            path,
            path_mtu: PathMtu::Mtu4096,
            port: address.port(),
            private_data: Bytes::new(),
            receive: receives(255),
        };
        let id = endpoint.connect(Instant::now(), parameters).unwrap();
        let mut peer = Self {
            socket,
            endpoint,
            id,
            path,
            messages: VecDeque::new(),
            posted: 0,
            acknowledged: 0,
            queue_pair: 0,
            next_psn: Psn::new(0),
            recorded: None,
            credits: 0,
        };
        peer.until(|peer| match peer.endpoint.poll_event() {
            Some(EndpointEvent::Connected { .. }) => Some(()),
            Some(EndpointEvent::Failed { error, .. }) => panic!("{error}"),
            _ => None,
        })
        .await;
        peer.post_send(negotiate_request());
        let response = peer.until(|peer| peer.messages.pop_front()).await;
        let response = NegotiateResponse::decode(&response).unwrap();
        peer.credits = response.credits_granted.into();
        peer
    }

    fn credits(&self) -> u32 {
        self.credits
    }

    fn transfer(&mut self, header: DataTransfer, payload: &[u8]) {
        self.credits -= 1;
        let mut message = Vec::new();
        header.encode(&mut message);
        message.extend_from_slice(payload);
        self.post_send(message);
    }

    async fn flush(&mut self) {
        self.until(|peer| (peer.acknowledged == peer.posted).then_some(()))
            .await;
    }

    async fn await_credits(&mut self, credits: u32) {
        self.until(|peer| {
            while let Some(message) = peer.messages.pop_front() {
                let header = DataTransfer::decode(&message).unwrap();
                peer.credits += u32::from(header.credits_granted);
            }
            (peer.credits >= credits).then_some(())
        })
        .await;
    }
}

const fn receives(count: u32) -> WorkRequest {
    WorkRequest::Receive {
        id: WorkId(0),
        length: 8192,
        count,
    }
}

const fn reth(r_key: u32, virtual_address: u64, length: u32) -> Extended {
    Extended::Reth(Reth {
        virtual_address,
        r_key,
        length,
    })
}

/// Each violation ends the connection that it arrives on, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_violation_ends_only_its_connection() {
    /// The words of the reason, and the packet: opcode, extended headers, length of the payload.
    type Crime = (&'static str, Opcode, Extended, usize);
    let packets = |token: u32, offset: u64| -> Vec<Crime> {
        let ieth = |r_key| Extended::Ieth(Ieth { r_key });
        vec![
            ("token", Opcode::SendOnlyInvalidate, ieth(0x1234), 20),
            ("access", Opcode::SendOnlyInvalidate, ieth(token), 20),
            ("access", Opcode::WriteOnly, reth(token, offset, 1), 1),
            ("token", Opcode::WriteOnly, reth(token ^ 1, offset, 1), 1),
            (
                "4294967295 bytes",
                Opcode::WriteOnly,
                reth(token, offset, u32::MAX),
                8,
            ),
            (
                "4294967295 bytes",
                Opcode::ReadRequest,
                reth(token, offset, u32::MAX),
                0,
            ),
            (
                "outside",
                Opcode::ReadRequest,
                reth(token, offset, 1 << 20),
                0,
            ),
            ("wrap", Opcode::ReadRequest, reth(token, u64::MAX, 2), 0),
            ("SendMiddle", Opcode::SendMiddle, Extended::Plain, PATH_MTU),
            ("SendLast", Opcode::SendLast, Extended::Plain, 1),
            (
                "WriteMiddle",
                Opcode::WriteMiddle,
                Extended::Plain,
                PATH_MTU,
            ),
            ("payload", Opcode::SendFirst, Extended::Plain, PATH_MTU - 4),
            ("payload", Opcode::SendOnly, Extended::Plain, PATH_MTU + 4),
            ("payload", Opcode::ReadRequest, reth(token, offset, 1), 4),
        ]
    };
    for index in 0..packets(0, 0).len() {
        let mut scene = Scene::<RocePeer>::new(Settings::default()).await;
        let region = region(&scene.victim, 4096, Access::REMOTE_READ);
        let MemoryPlace { token, offset } = place(&region);
        let (words, opcode, extended, length) = packets(token, offset).swap_remove(index);
        scene.peer.say(opcode, extended, &vec![0; length], 1).await;
        scene.assert_ends(words).await;
        within(region.deregister()).await.unwrap();
        assert_eq!(scene.victim.stats().receives_outstanding, 0);
    }
}

/// The fields of a descriptor that an attacker learns.
struct MemoryPlace {
    token: u32,
    offset: u64,
}

fn place(region: &MemoryRegion) -> MemoryPlace {
    let descriptor = region.descriptor();
    MemoryPlace {
        token: descriptor.token,
        offset: descriptor.offset,
    }
}

/// The violations of SMB Direct, more Reads than were granted, and Sends without a receive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn greed_ends_only_its_connection() {
    for (greed, words) in [
        ("credits", "credits"),
        ("Reads", "Reads"),
        ("receives", "no send credit"),
    ] {
        let mut scene = Scene::<RocePeer>::new(Settings::default()).await;
        let region = region(&scene.victim, 64 << 20, Access::REMOTE_READ);
        let peer = &mut scene.peer;
        match greed {
            "credits" => {
                peer.transfer(empty(255, 65_535), &[]);
                peer.transfer(empty(255, 65_535), &[]);
                peer.pump();
            }
            "Reads" => {
                let MemoryPlace { token, offset } = place(&region);
                for _ in 0..100 {
                    let extended = reth(token, offset, 64 << 20);
                    let packets = (64 << 20) / PATH_MTU as u32;
                    peer.say(Opcode::ReadRequest, extended, &[], packets).await;
                }
            }
            _ => {
                for _ in 0..300 {
                    peer.credits = 1;
                    peer.transfer(segment(8, 0), &[0; 8]);
                }
                // They do not fit the window.
                for _ in 0..250 {
                    peer.pump();
                    sleep(TICK).await;
                }
            }
        }
        scene.assert_ends(words).await;
        within(region.deregister()).await.unwrap();
    }
}

/// The peer requests 1 GiB by Reads, and receives nothing, neither the data nor the messages of the victim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_that_requests_reads_and_receives_nothing_costs_little() {
    let mut scene = Scene::<RocePeer>::new(Settings::default()).await;
    let served = region(&scene.victim, 64 << 20, Access::REMOTE_READ);
    let MemoryPlace { token, offset } = place(&served);
    let before = resident();
    for _ in 0..16 {
        let packets = (64 << 20) / PATH_MTU as u32;
        let extended = reth(token, offset, 64 << 20);
        scene
            .peer
            .say(Opcode::ReadRequest, extended, &[], packets)
            .await;
    }
    for _ in 0..500 {
        drop(scene.victim.send(vec![0; 8000]).unwrap());
    }
    scene.assert_others_live().await;
    let grown = resident().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes");
    // Neither an acknowledgement nor a credit arrives. Which of them is detected first depends on the time that
    // the data took.
    let reason = within(scene.victim.closed()).await.to_string();
    let expected = ["acknowledge", "Send Credit Grant Timer"];
    assert!(
        expected.iter().any(|words| reason.contains(words)),
        "{reason}"
    );
    scene.assert_others_live().await;
    let calm = spent();
    sleep(Duration::from_secs(1)).await;
    let busy = spent() - calm;
    assert!(
        busy < Duration::from_millis(200),
        "{busy:?} of CPU time after the end"
    );
    assert_eq!(within(served.deregister()).await.unwrap().len(), 64 << 20);
}

/// The peer sends the first packet of a message and then nothing: the victim uses no CPU time, and its idle
/// timer ends the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_message_ends_with_the_idle_timer() {
    let mut settings = Settings::default();
    settings.keepalive_interval = Duration::from_secs(1);
    settings.keepalive_response_timeout = Duration::from_secs(1);
    let mut scene = Scene::<RocePeer>::new(settings).await;
    let half = vec![7; PATH_MTU];
    scene
        .peer
        .say(Opcode::SendFirst, Extended::Plain, &half, 1)
        .await;
    let calm = spent();
    sleep(Duration::from_millis(500)).await;
    let busy = spent() - calm;
    assert!(
        busy < Duration::from_millis(150),
        "{busy:?} of CPU time while idle"
    );
    scene.assert_ends("Idle").await;
}

/// Everything that the peer has sent arrives again: damaged, cut short, in another order, and unchanged. It
/// has no effect, except that duplicates are acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replayed_reordered_and_truncated_packets_have_no_effect() {
    let mut scene = Scene::<RocePeer>::new(Settings::default()).await;
    scene.peer.recorded = Some(Vec::new());
    for round in 0..50_u8 {
        scene.peer.await_credits(1).await;
        // Two packets each.
        let payload = vec![round; 6000];
        scene.peer.transfer(segment(6000, 0), &payload);
        scene.peer.flush().await;
        let message = within(scene.victim.recv()).await.unwrap().into_bytes();
        assert_eq!(message, payload);
    }
    let recorded = scene.peer.recorded.take().unwrap();
    assert!(recorded.len() >= 100, "{} packets", recorded.len());
    let mut random = fastrand::Rng::with_seed(24);
    for _ in 0..20 {
        let mut packets = recorded.clone();
        random.shuffle(&mut packets);
        for packet in packets.iter_mut() {
            match random.u8(..4) {
                0 => {}
                1 => packet.truncate(random.usize(..packet.len())),
                2 => {
                    let at = random.usize(..packet.len());
                    packet[at] ^= random.u8(1..);
                }
                _ => packet.extend_from_slice(&[0; 4]),
            }
            scene.peer.throw(packet).await;
        }
        scene.peer.pump();
    }
    scene.assert_others_live().await;
    // The connection continues where it was interrupted, and nothing arrived twice.
    scene.peer.await_credits(1).await;
    scene.peer.transfer(segment(4, 0), b"last");
    scene.peer.flush().await;
    let message = within(scene.victim.recv()).await.unwrap().into_bytes();
    assert_eq!(message, "last");
}

/// An attacker on another socket knows everything but the port of the peer: the queue pair, the PSN, and a token
/// with its address. Nothing that it sends has an effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_from_another_socket_have_no_effect() {
    let mut scene = Scene::<RocePeer>::new(Settings::default()).await;
    let target = region(&scene.victim, 4096, Access::REMOTE_WRITE);
    let MemoryPlace { token, offset } = place(&target);
    scene.peer.pump();
    let attacker = StdUdpSocket::bind("127.0.0.1:0").unwrap();
    let (here, victim) = (attacker.local_addr().unwrap(), scene.peer.path.remote);
    let honest = std::mem::replace(&mut scene.peer.path.local, here);
    for distance in [0, 1, 2, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
        let psn = scene.peer.next_psn.add(distance);
        for (opcode, extended, length) in [
            (Opcode::SendOnly, Extended::Plain, 24),
            (Opcode::SendMiddle, Extended::Plain, PATH_MTU),
            (Opcode::WriteOnly, reth(token, offset, 8), 8),
            (Opcode::ReadRequest, reth(token, offset, 0), 0),
        ] {
            let payload = vec![0xee; length];
            let datagram = scene.peer.forged(opcode, psn, extended, &payload);
            attacker.send_to(&datagram, victim).unwrap();
        }
    }
    scene.peer.path.local = honest;
    scene.assert_others_live().await;
    scene.peer.transfer(segment(4, 0), b"last");
    scene.peer.flush().await;
    let message = within(scene.victim.recv()).await.unwrap().into_bytes();
    assert_eq!(message, "last");
    let memory = within(target.deregister()).await.unwrap();
    assert_eq!(memory, vec![0; 4096]);
}

/// A flood of datagrams: garbage, packets for queue pairs that do not exist, connection requests that are
/// cut off, and duplicates of the peer's own packets. Other connections go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_datagrams_does_not_stop_others() {
    let mut scene = Scene::<RocePeer>::new(Settings::default()).await;
    scene.peer.pump();
    let before = resident();
    let behind = scene.peer.next_psn.add(u32::MAX);
    let stranger = scene.peer.queue_pair ^ 0x55;
    let mut unknown = scene
        .peer
        .forged(Opcode::SendOnly, behind, Extended::Plain, &[1; 64]);
    unknown[5..8].copy_from_slice(&stranger.to_be_bytes()[1..]);
    let datagrams = [
        b"GET / HTTP/1.1\r\n\r\n".repeat(10),
        vec![0; 300],
        vec![],
        unknown,
        scene
            .peer
            .forged(Opcode::SendOnly, behind, Extended::Plain, &[1; 64]),
    ];
    let (remote, socket) = (scene.peer.path.remote, scene.peer.socket);
    let socket = socket.into_std().unwrap();
    let enough = Arc::new(AtomicBool::new(false));
    let is_enough = Arc::clone(&enough);
    let flood = std::thread::spawn(move || {
        let began = Instant::now();
        let mut sent = 0_u64;
        while began.elapsed() < Duration::from_secs(1) || sent < 10_000 || !is_enough.load(Relaxed)
        {
            for datagram in &datagrams {
                // The system may drop what the victim does not read in time.
                let _ = socket.send_to(datagram, remote);
                sent += 1;
            }
        }
        sent
    });
    exchange_during(&flood, &scene.good, &enough).await;
    eprintln!("{} datagrams", flood.join().unwrap());
    let grown = resident().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes");
}
