//! Two RoCE queue pairs on a network that loses, duplicates, reorders and damages datagrams. Every
//! byte of every message, Read and Write is compared, within a bounded virtual time.
//!
//! A run uses a fixed set of seeds. `SMBDIRECT_SWARM_SEEDS=10000` uses more of them, and
//! `SMBDIRECT_SWARM_SEED=17` repeats one that failed.

use std::{
    collections::{BTreeMap, VecDeque},
    env,
    net::SocketAddr,
    panic,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use smbdirect_rdma::{
    roce::{
        Psn, QueuePair, QueuePairSettings,
        icrc::{self, DatagramHeader, FlowIcrc},
        packet::{Opcode, Packet},
    },
    work::{
        Access, Completion, Disconnect, Inline, ProviderErrorKind, RemoteAddress, WorkId,
        WorkRequest,
    },
};

/// The number of seeds that a run uses by default.
const SEEDS: u64 = 150;
/// The longest virtual time of a scenario.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// The length of the regions, in bytes.
const REGION_BYTES: usize = 64 * 1024;
/// The longest Send, in bytes.
const MAX_SEND_BYTES: usize = 20_000;
/// The identifier of all receives.
const RECEIVE: WorkId = WorkId(1000);

//= ROCE-9.7.5-03 test
//= ROCE-9.7.5-10 test
//= ROCE-9.7.5-11 test
//= ROCE-9.7.6-01 test
#[test]
fn every_byte_arrives_over_a_bad_network() {
    run_seeds("every_byte_arrives_over_a_bad_network", |seed| {
        Scenario::draw(seed).play()
    });
}

/// One end writes to memory that it may not access, at any time. Both ends then end, each reports
/// which end was at fault, and all work of both completes.
//= ROCE-9.7.5-05 test
//= ROCE-9.7.5-15 test
//= ROCE-9.7.7-03 test
#[test]
fn a_fault_ends_both_ends_over_a_bad_network() {
    run_seeds("a_fault_ends_both_ends_over_a_bad_network", |seed| {
        Scenario::draw(seed).with_fault().play()
    });
}

/// Plays the scenarios of all seeds.
fn run_seeds(name: &str, play: impl Fn(u64) -> (Counts, Duration) + panic::RefUnwindSafe) {
    let number = |name| env::var(name).ok().map(|value| value.parse().expect(name));
    let seeds = match number("SMBDIRECT_SWARM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SMBDIRECT_SWARM_SEEDS").unwrap_or(SEEDS),
    };
    let (mut network, mut slowest) = (Counts::default(), Duration::ZERO);
    let most_given_up = seeds.end / 100;
    for seed in seeds {
        match panic::catch_unwind(|| play(seed)) {
            Ok((counts, time)) => {
                network.add(&counts);
                slowest = slowest.max(time);
            }
            Err(cause) => {
                eprintln!(
                    "replay: SMBDIRECT_SWARM_SEED={seed} cargo test -p smbdirect-rdma --test it {name}"
                );
                panic::resume_unwind(cause);
            }
        }
    }
    println!("{network:?}, slowest {slowest:?}");
    // Of eight seconds of retries, all are lost once in some thousand scenarios.
    assert!(network.given_up as u64 <= most_given_up);
}

/// What the network did.
#[derive(Debug, Default)]
struct Counts {
    delivered: usize,
    lost: usize,
    duplicated: usize,
    damaged: usize,
    notified: usize,
    /// The scenarios in which an end was not answered in all its retries.
    given_up: usize,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.damaged += other.damaged;
        self.notified += other.notified;
        self.given_up += other.given_up;
    }
}

/// The datagrams on their way, by time of arrival.
struct Network {
    on_their_way: BTreeMap<(Instant, usize), (usize, DatagramHeader, Bytes)>,
    sent: usize,
    /// The probabilities of the faults.
    loss: f64,
    duplication: f64,
    damage: f64,
    reordering: f64,
    /// The probability of the mark of congestion.
    marking: f64,
    delay: Duration,
    counts: Counts,
}

impl Network {
    fn send(
        &mut self,
        random: &mut Rng,
        now: Instant,
        to: usize,
        header: DatagramHeader,
        datagram: &[u8],
    ) {
        if random.f64() < self.loss {
            self.counts.lost += 1;
            return;
        }
        let copies = if random.f64() < self.duplication {
            2
        } else {
            1
        };
        self.counts.duplicated += copies - 1;
        for _ in 0..copies {
            let mut datagram = datagram.to_vec();
            if random.f64() < self.damage {
                self.counts.damaged += 1;
                let at = random.usize(..datagram.len());
                datagram[at] ^= 1 << random.u32(..8);
            }
            let late = random.f64() < self.reordering;
            let factor = if late { random.f64() * 10.0 } else { 1.0 };
            let arrival = now + self.delay.mul_f64(factor);
            self.sent += 1;
            self.on_their_way
                .insert((arrival, self.sent), (to, header, datagram.into()));
        }
    }
}

/// One end, its expectations of the other, and the work that it is still to post.
struct End {
    queue_pair: QueuePair,
    /// The headers of the datagrams that it sends.
    header: DatagramHeader,
    flow: FlowIcrc,
    work: VecDeque<WorkRequest>,
    /// The identifiers of outstanding Sends, Writes and Reads, and the data of the Reads.
    sends: VecDeque<WorkId>,
    writes: VecDeque<WorkId>,
    reads: VecDeque<(WorkId, Vec<u8>)>,
    /// The messages that are to arrive here.
    messages: VecDeque<Vec<u8>>,
    source: RemoteAddress,
    sink: RemoteAddress,
    /// The content of the source, and of the sink in the end.
    source_content: Vec<u8>,
    sink_content: Vec<u8>,
    /// The kind of the error that broke the connection.
    broken: Option<ProviderErrorKind>,
}

struct Scenario {
    random: Rng,
    network: Network,
    ends: [End; 2],
    start: Instant,
    now: Instant,
    max_datagrams: usize,
    /// How much work is posted at a time.
    burst: usize,
    /// The end that breaks a rule.
    offender: Option<usize>,
}

impl Scenario {
    fn draw(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let percent = |random: &mut Rng, most: u32| f64::from(random.u32(..=most)) / 100.0;
        let path_mtu = 256 << random.usize(..5);
        // The first PSNs are often about to wrap.
        let psns = [0, 1].map(|_| Psn::new(0xff_ffff - random.u32(..200)));
        let depths = [0, 1].map(|_| random.u32(1..=8));
        let max_in_flight = path_mtu * random.usize(2..300);
        let ends = [0, 1].map(|own: usize| {
            let settings = QueuePairSettings {
                local_qpn: 0x100 + own as u32,
                remote_qpn: 0x101 - own as u32,
                send_psn: psns[own],
                expected_psn: psns[1 - own],
                path_mtu,
                responder_resources: depths[1 - own],
                initiator_depth: depths[own],
                retry_count: 7,
                rnr_retry_count: 7,
                ack_timeout: Duration::from_secs(1),
                target_ack_delay: Duration::ZERO,
                max_in_flight,
            };
            End::new(&settings, own, random.bool(), &mut random)
        });
        let now = Instant::now();
        let mut scenario = Self {
            network: Network {
                on_their_way: BTreeMap::new(),
                sent: 0,
                loss: percent(&mut random, 20),
                duplication: percent(&mut random, 10),
                damage: percent(&mut random, 5),
                reordering: percent(&mut random, 20),
                marking: percent(&mut random, 50),
                delay: Duration::from_micros(random.u64(1..500)),
                counts: Counts::default(),
            },
            ends,
            start: now,
            now,
            max_datagrams: random.usize(1..=64),
            burst: random.usize(1..10),
            offender: None,
            random,
        };
        for own in 0..2 {
            scenario.draw_work(own);
        }
        scenario
    }

    /// Adds a Write to an address that the peer did not register, at any place of the work.
    fn with_fault(mut self) -> Self {
        let own = self.random.usize(..2);
        let at = self.random.usize(..=self.ends[own].work.len());
        let id = WorkId(0);
        let to = RemoteAddress {
            token: 0x50.into(),
            offset: 0,
        };
        let data = vec![1; self.random.usize(1..2000)].into();
        let end = &mut self.ends[own];
        let writes = |work: &&WorkRequest| matches!(work, WorkRequest::Write { .. });
        let before = end.work.iter().take(at).filter(writes).count();
        end.writes.insert(before, id);
        end.work.insert(at, WorkRequest::Write { id, data, to });
        self.offender = Some(own);
        self
    }

    /// Draws the work of an end, and its expected effects at the other.
    fn draw_work(&mut self, own: usize) {
        let random = &mut self.random;
        let (one, two) = self.ends.split_at_mut(1);
        let (end, peer) = match own {
            0 => (&mut one[0], &mut two[0]),
            _ => (&mut two[0], &mut one[0]),
        };
        let (mut written, mut receives) = (0, 0);
        for id in 1..=random.u64(5..40) {
            let id = WorkId(id);
            let work = match random.u32(..3) {
                0 => {
                    let message = bytes(random, MAX_SEND_BYTES);
                    let split = message.len().min(random.usize(..=32));
                    peer.messages.push_back(message.clone());
                    end.sends.push_back(id);
                    receives += 1;
                    WorkRequest::Send {
                        id,
                        header: Inline::build(|out| {
                            bytes::BufMut::put_slice(out, &message[..split]);
                        }),
                        payload: Bytes::from(message).slice(split..),
                        invalidate: None,
                    }
                }
                1 => {
                    let data = bytes(random, (REGION_BYTES - written).min(9000));
                    peer.sink_content[written..written + data.len()].copy_from_slice(&data);
                    let to = past(peer.sink, written);
                    written += data.len();
                    end.writes.push_back(id);
                    let data = data.into();
                    WorkRequest::Write { id, data, to }
                }
                _ => {
                    let at = random.usize(..REGION_BYTES);
                    let length = random.usize(..=(REGION_BYTES - at).min(30_000));
                    let data = peer.source_content[at..at + length].to_vec();
                    end.reads.push_back((id, data));
                    let (from, into) = (past(peer.source, at), BytesMut::zeroed(length));
                    WorkRequest::Read { id, from, into }
                }
            };
            end.work.push_back(work);
        }
        peer.queue_pair.post(WorkRequest::Receive {
            id: RECEIVE,
            length: MAX_SEND_BYTES as u32,
            count: receives + 1,
        });
    }

    /// Plays the scenario, and returns what the network did and the virtual time that it took.
    fn play(mut self) -> (Counts, Duration) {
        loop {
            for own in 0..2 {
                self.step(own);
            }
            let arrival = self.network.on_their_way.keys().next().map(|key| key.0);
            let timeouts = self.ends.iter().map(|end| end.queue_pair.poll_timeout());
            let next = timeouts.chain([arrival]).flatten().min();
            let gave_up = |end: &End| end.broken == Some(ProviderErrorKind::Reset);
            if self.ends.iter().any(gave_up) {
                self.network.counts.given_up += 1;
                return (self.network.counts, self.now - self.start);
            }
            let is_over = match self.offender {
                Some(_) => self.ends.iter().all(|end| end.broken.is_some()),
                None => next.is_none() && self.ends.iter().all(|end| end.work.is_empty()),
            };
            if is_over {
                break;
            }
            let Some(next) = next else { continue };
            self.now = self.now.max(next);
            assert!(self.now - self.start < TIME_LIMIT, "it takes too long");
            self.deliver();
            for end in &mut self.ends {
                end.queue_pair.handle_timeout(self.now);
            }
        }
        for (own, end) in self.ends.iter_mut().enumerate() {
            match self.offender {
                None => end.finish(),
                Some(offender) => end.finish_broken(own == offender),
            }
        }
        (self.network.counts, self.now - self.start)
    }

    /// Posts some work of an end, sends what it has to send, and checks its completions.
    fn step(&mut self, own: usize) {
        let end = &mut self.ends[own];
        for _ in 0..self.random.usize(..=self.burst) {
            if end.broken.is_some() {
                break;
            }
            let Some(work) = end.work.pop_front() else {
                break;
            };
            end.queue_pair.post(work);
        }
        let mut out = BytesMut::new();
        loop {
            out.clear();
            if end
                .queue_pair
                .poll_notification(&mut end.flow, &mut out)
                .is_some()
            {
                self.network
                    .send(&mut self.random, self.now, 1 - own, end.header, &out);
                out.clear();
            }
            let count = self.random.usize(1..=self.max_datagrams);
            let queue_pair = &mut end.queue_pair;
            let run = queue_pair.poll_datagrams(self.now, &mut end.flow, count, &mut out);
            let Some(length) = run else { break };
            for (datagram, at) in out.chunks(length).zip(0..) {
                let header = end.header.with_identification(at);
                self.network
                    .send(&mut self.random, self.now, 1 - own, header, datagram);
            }
        }
        assert!(!end.queue_pair.has_packet());
        end.check_completions();
    }

    /// Delivers what has arrived by now.
    fn deliver(&mut self) {
        while let Some(entry) = self.network.on_their_way.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, header, datagram) = entry.remove();
            // The receiver does not see the Identification.
            let unknown = header.with_identification(0);
            if icrc::solve(&unknown, &datagram).is_none() || !icrc::verify(&header, &datagram) {
                continue;
            }
            self.network.counts.delivered += 1;
            let packet = Packet::decode(&datagram).unwrap();
            let queue_pair = &mut self.ends[to].queue_pair;
            assert_eq!(packet.bth.destination_qp, 0x100 + to as u32);
            queue_pair.handle_packet(self.now, &packet);
            let opcode = packet.bth.opcode;
            self.network.counts.notified += usize::from(opcode == Opcode::CongestionNotification);
            if self.random.f64() < self.network.marking {
                queue_pair.handle_mark(self.now, opcode);
            }
        }
    }
}

impl End {
    fn new(settings: &QueuePairSettings, own: usize, is_ipv4: bool, random: &mut Rng) -> Self {
        let mut queue_pair = QueuePair::new(settings);
        let source_content = random_bytes(random, REGION_BYTES);
        let memory = queue_pair.memory();
        let buffer = BytesMut::from(&source_content[..]);
        let source = memory.register(buffer, Access::REMOTE_READ).unwrap();
        let sink = memory.register(BytesMut::zeroed(REGION_BYTES), Access::REMOTE_WRITE);
        let hosts = if is_ipv4 {
            ["10.0.0.1", "10.0.0.2"]
        } else {
            ["::1", "::2"]
        };
        let [from, to] = [own, 1 - own]
            .map(|end| SocketAddr::new(hosts[end].parse().unwrap(), 4791 + end as u16));
        let header = DatagramHeader::between(from, to).unwrap();
        Self {
            queue_pair,
            header,
            flow: FlowIcrc::new(&header),
            work: VecDeque::new(),
            sends: VecDeque::new(),
            writes: VecDeque::new(),
            reads: VecDeque::new(),
            messages: VecDeque::new(),
            source: source.address,
            sink: sink.unwrap().address,
            source_content,
            sink_content: vec![0; REGION_BYTES],
            broken: None,
        }
    }

    fn check_completions(&mut self) {
        while let Some(completion) = self.queue_pair.poll_completion() {
            match completion {
                Completion::Received { message, .. } => {
                    let expected = self.messages.pop_front().expect("it was sent");
                    assert!(message == expected, "{} bytes", message.len());
                }
                Completion::Sent { id } => while self.sends.pop_front().unwrap() != id {},
                Completion::Written { id } => assert_eq!(self.writes.pop_front(), Some(id)),
                Completion::Read { id, buffer } => {
                    let (expected, data) = self.reads.pop_front().unwrap();
                    assert_eq!(id, expected);
                    assert!(buffer == data, "{} bytes", buffer.len());
                }
                Completion::Flushed { id, buffer } => self.note_flushed(id, buffer.as_ref()),
                Completion::Disconnected(Disconnect::Broken(error)) => {
                    self.broken = Some(error.kind);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn note_flushed(&mut self, id: WorkId, buffer: Option<&BytesMut>) {
        if id == RECEIVE {
            return;
        }
        if let Some(buffer) = buffer {
            let (expected, data) = self.reads.pop_front().unwrap();
            assert_eq!((id, buffer.len()), (expected, data.len()));
            return;
        }
        let mut queues = [&mut self.sends, &mut self.writes].into_iter();
        let queue = queues.find(|queue| queue.front() == Some(&id));
        queue.expect("it is the oldest of its kind").pop_front();
    }

    /// Checks how the connection broke, and that all work that was posted has completed.
    fn finish_broken(&mut self, is_offender: bool) {
        let expected = if is_offender {
            ProviderErrorKind::Terminated
        } else {
            ProviderErrorKind::Protocol
        };
        assert_eq!(self.broken, Some(expected));
        // The work that was not posted is left.
        let left = self.sends.len() + self.writes.len() + self.reads.len();
        assert_eq!(left, self.work.len());
    }

    /// Checks that all work of this end has completed.
    fn finish(&mut self) {
        assert!(self.queue_pair.is_drained());
        assert_eq!(self.broken, None);
        assert!(self.messages.is_empty() && self.sends.is_empty());
        assert!(self.writes.is_empty() && self.reads.is_empty());
        let memory = self.queue_pair.memory();
        let sink = memory.deregister(self.sink.token).unwrap();
        assert!(sink == self.sink_content, "a Write went astray");
        let source = memory.deregister(self.source.token).unwrap();
        assert!(source == self.source_content);
        self.queue_pair.end(Disconnect::Local);
        let last = std::iter::from_fn(|| self.queue_pair.poll_completion()).last();
        assert!(matches!(
            last,
            Some(Completion::Disconnected(Disconnect::Local))
        ));
    }
}

/// Returns up to `most` random bytes: often few, sometimes none.
fn bytes(random: &mut Rng, most: usize) -> Vec<u8> {
    let most = if random.bool() { most } else { most.min(600) };
    let length = random.usize(..=most);
    random_bytes(random, length)
}

fn random_bytes(random: &mut Rng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

fn past(address: RemoteAddress, bytes: usize) -> RemoteAddress {
    RemoteAddress {
        offset: address.offset + bytes as u64,
        ..address
    }
}
