//! The counters of a gateway: the sessions, why they ended, and the traffic of each and of all together. Events
//! and Prometheus show the same counters.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use serde::Serialize;
use smbdirect::metrics::{Family, Kind};
use smbdirect_smb::{
    Refusal, slow,
    smb2::{Command, Flags, Header, Protocol},
};
use tokio::time::sleep;

use crate::{
    admission::refused::Refused,
    figures::{
        times::{AnswerTimes, Times},
        waits::{Cause, Waited, Waits},
    },
    stop::{Direction, Side, Stop},
};

/// The counters of a gateway.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Sessions that ended by a fault.
    pub(crate) failed: AtomicU64,
    turned_away: ByCause<4>,
    ended: ByCause<10>,
    refused: ByCause<9>,
    pub(crate) traffic: Traffic,
}

/// The traffic of one session, or of all sessions.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    to_server: Forwarded,
    to_client: Forwarded,
    read_by_rdma: Moved,
    written_by_rdma: Moved,
    requests_passed: AtomicU64,
    requests_refused: AtomicU64,
    /// What the session waits for.
    waits: Waits,
    /// Times of all sessions.
    answer_times: AnswerTimes,
    think_waits: Times,
    network_waits: Times,
}

/// Messages forwarded in one direction.
#[derive(Debug, Default)]
struct Forwarded {
    messages: AtomicU64,
    /// Bytes of messages, including the data that moved by RDMA.
    bytes: AtomicU64,
    /// Messages that are neither a request with an answer nor a final answer: CANCEL, interim answers, notifications.
    unpaired: AtomicU64,
}

impl Forwarded {
    /// Returns the number of requests with an answer, or of final answers.
    fn paired(&self) -> u64 {
        let messages = self.messages.load(Relaxed);
        messages.saturating_sub(self.unpaired.load(Relaxed))
    }
}

/// Requests whose data moved by RDMA.
#[derive(Debug, Default)]
struct Moved {
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// The traffic of a session together with that of all sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionTraffic<'a> {
    pub(crate) session: &'a Traffic,
    pub(crate) all: &'a Traffic,
}

impl SessionTraffic<'_> {
    fn add(self, counter: fn(&Traffic) -> &AtomicU64, number: u64) {
        for traffic in [self.session, self.all] {
            counter(traffic).fetch_add(number, Relaxed);
        }
    }

    /// Counts a message by its length as forwarded, including the data that moved by RDMA for it.
    pub(crate) fn forwarded(self, direction: Direction, length: usize) {
        for traffic in [self.session, self.all] {
            let forwarded = traffic.in_direction(direction);
            forwarded.messages.fetch_add(1, Relaxed);
            forwarded.bytes.fetch_add(length as u64, Relaxed);
        }
    }

    /// Recognises two kinds of message by their first bytes: a request that has no answer, and a message of the
    /// server that is not the final answer to a request. All others are timed: from when they arrived, or now.
    pub(crate) fn received(self, direction: Direction, head: &[u8], arrived: Option<Instant>) {
        let waits = &self.session.waits;
        let Ok(header) = Header::decode(head) else {
            if matches!(
                Protocol::of(head),
                Protocol::Encrypted | Protocol::Compressed
            ) {
                waits.set_opaque();
            }
            return;
        };
        let is_unpaired = match direction {
            Direction::ToServer => header.command == Command::CANCEL,
            // A client always waits for changes of a directory, often without an end: the interim answer answers it.
            Direction::ToClient if header.command == Command::CHANGE_NOTIFY => {
                header.flags.contains(Flags::ASYNC) && !header.is_interim()
            }
            Direction::ToClient => header.is_interim() || header.message_id == NO_MESSAGE_ID,
        };
        if is_unpaired {
            for traffic in [self.session, self.all] {
                let forwarded = traffic.in_direction(direction);
                forwarded.unpaired.fetch_add(1, Relaxed);
            }
            return;
        }
        let now = arrived.unwrap_or_else(Instant::now);
        match direction {
            Direction::ToServer => waits.asked(&header, now, &self.all.think_waits),
            Direction::ToClient => waits.answered(&header, now, &self.all.answer_times),
        }
    }

    /// Notes that the message of the server that was received last was forwarded.
    pub(crate) fn delivered(self) {
        self.session.waits.delivered();
    }

    /// Waits for memory.
    pub(crate) async fn memory<T>(self, memory: impl Future<Output = T>) -> T {
        self.session.waits.during(Cause::Memory, None, memory).await
    }

    /// Waits until a message was sent: to the client, its network is what is waited for.
    pub(crate) async fn sent<T>(self, direction: Direction, sending: impl Future<Output = T>) -> T {
        match direction {
            Direction::ToServer => sending.await,
            Direction::ToClient => self.window(sending).await,
        }
    }

    /// Waits for a transfer to or from the client.
    pub(crate) async fn window<T>(self, transfer: impl Future<Output = T>) -> T {
        let times = Some(&self.all.network_waits);
        self.session
            .waits
            .during(Cause::Network, times, transfer)
            .await
    }

    /// Counts the data of a READ that moved by RDMA, if there was any.
    pub(crate) fn read_by_rdma(self, length: usize) {
        self.add(
            |traffic| &traffic.read_by_rdma.requests,
            u64::from(length > 0),
        );
        self.add(|traffic| &traffic.read_by_rdma.bytes, length as u64);
    }

    /// Counts the data of a WRITE that moved by RDMA, if there was any.
    pub(crate) fn written_by_rdma(self, length: usize) {
        self.add(
            |traffic| &traffic.written_by_rdma.requests,
            u64::from(length > 0),
        );
        self.add(|traffic| &traffic.written_by_rdma.bytes, length as u64);
    }

    /// Counts a message of the client that was forwarded unchanged.
    pub(crate) fn passed(self) {
        self.add(|traffic| &traffic.requests_passed, 1);
    }

    /// Counts a message of the client that was refused.
    pub(crate) fn refused(self) {
        self.add(|traffic| &traffic.requests_refused, 1);
    }
}

/// The MessageId of a notification ([MS-SMB2] 2.2.23.1), which belongs to no request.
const NO_MESSAGE_ID: u64 = u64::MAX;

/// Time without an answer after which the session of a TCP client that has finished sending ends.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);

impl Traffic {
    const fn in_direction(&self, direction: Direction) -> &Forwarded {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    /// Returns whether the server has answered as many requests as it received. The contents of encrypted
    /// messages are unknown, so each of them counts as a request or an answer.
    pub(crate) fn is_answered(&self) -> bool {
        let requests = self.to_server.paired();
        self.to_client.paired() >= requests
    }

    /// Waits until no message has gone to the client for [`ANSWER_TIMEOUT`].
    pub(crate) async fn silence(&self) {
        let answers = &self.to_client.messages;
        loop {
            let before = answers.load(Relaxed);
            sleep(ANSWER_TIMEOUT).await;
            if answers.load(Relaxed) == before {
                return;
            }
        }
    }

    /// Returns what the session has waited for; `None` if its messages cannot be recognised.
    pub(crate) fn waited(&self) -> Option<Waited> {
        self.waits.waited()
    }

    /// Returns the histograms of what sessions wait for, besides memory, with their causes.
    pub(crate) const fn wait_times(&self) -> [(&'static str, &Times); 2] {
        [
            (slow::Cause::Think.slug(), &self.think_waits),
            (slow::Cause::Network.slug(), &self.network_waits),
        ]
    }

    pub(crate) fn carried(&self) -> Carried {
        let now = |counter: &AtomicU64| counter.load(Relaxed);
        Carried {
            messages_to_server: now(&self.to_server.messages),
            bytes_to_server: now(&self.to_server.bytes),
            messages_to_client: now(&self.to_client.messages),
            bytes_to_client: now(&self.to_client.bytes),
            reads_by_rdma: now(&self.read_by_rdma.requests),
            bytes_read_by_rdma: now(&self.read_by_rdma.bytes),
            writes_by_rdma: now(&self.written_by_rdma.requests),
            bytes_written_by_rdma: now(&self.written_by_rdma.bytes),
            requests_passed: now(&self.requests_passed),
            requests_refused: now(&self.requests_refused),
        }
    }

    /// Returns the metrics of messages and requests.
    fn families(&self) -> Vec<Family> {
        let directions =
            |to_server, to_client| [("to_server", to_server), ("to_client", to_client)];
        let commands = |read, write| [("read", read), ("write", write)];
        vec![
            labelled(
                "smbdirect_gateway_messages_total",
                "SMB messages forwarded, by direction.",
                "direction",
                directions(&self.to_server.messages, &self.to_client.messages),
            ),
            labelled(
                "smbdirect_gateway_bytes_total",
                "Bytes forwarded, by direction, including the data that moved by RDMA.",
                "direction",
                directions(&self.to_server.bytes, &self.to_client.bytes),
            ),
            labelled(
                "smbdirect_gateway_requests_translated_total",
                "READ and WRITE requests whose data moved by RDMA, by command.",
                "command",
                commands(&self.read_by_rdma.requests, &self.written_by_rdma.requests),
            ),
            labelled(
                "smbdirect_gateway_rdma_bytes_total",
                "Data of READ and WRITE requests that moved by RDMA, by command.",
                "command",
                commands(&self.read_by_rdma.bytes, &self.written_by_rdma.bytes),
            ),
            counter(
                "smbdirect_gateway_requests_passed_total",
                "Messages of clients that were forwarded unchanged.",
                &self.requests_passed,
            ),
            self.answer_times.family(),
        ]
    }
}

/// The traffic so far. Bytes include the SMB messages and the data that moved by RDMA.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Carried {
    /// SMB messages forwarded to the server.
    pub messages_to_server: u64,
    /// Bytes forwarded to the server.
    pub bytes_to_server: u64,
    /// SMB messages forwarded to the client.
    pub messages_to_client: u64,
    /// Bytes forwarded to the client.
    pub bytes_to_client: u64,
    /// READ requests whose data moved by RDMA.
    pub reads_by_rdma: u64,
    /// Data of READ requests that moved by RDMA.
    pub bytes_read_by_rdma: u64,
    /// WRITE requests whose data moved by RDMA.
    pub writes_by_rdma: u64,
    /// Data of WRITE requests that moved by RDMA.
    pub bytes_written_by_rdma: u64,
    /// Messages of the client that were forwarded unchanged.
    pub requests_passed: u64,
    /// Requests that cannot be translated.
    pub requests_refused: u64,
}

/// Counts by cause.
#[derive(Debug)]
struct ByCause<const N: usize> {
    causes: [&'static str; N],
    counts: [AtomicU64; N],
}

impl<const N: usize> ByCause<N> {
    const fn new(causes: [&'static str; N]) -> Self {
        Self {
            causes,
            counts: [const { AtomicU64::new(0) }; N],
        }
    }

    fn count(&self, cause: &'static str) {
        let index = self.causes.iter().position(|&known| known == cause);
        self.counts[index.expect("each cause is in the list")].fetch_add(1, Relaxed);
    }

    fn family(&self, name: &'static str, help: &'static str) -> Family {
        let values = self.causes.iter().copied().zip(&self.counts);
        labelled(name, help, "cause", values)
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            failed: AtomicU64::new(0),
            turned_away: ByCause::new([
                "too_many",
                "too_many_of_client",
                "not_allowed",
                "gateway_itself",
            ]),
            ended: ByCause::new([
                "closed_by_client",
                "closed_by_server",
                "closed_here",
                "client_failed",
                "server_failed",
                "server_unreachable",
                "refused",
                "ended_by_administrator",
                "fault_of_gateway",
                "turned_away",
            ]),
            refused: ByCause::new([
                "signed",
                "channel",
                "no_rdma",
                "malformed",
                "beyond_descriptors",
                "data_and_channel",
                "too_long",
                "too_many",
                "repeated",
            ]),
            traffic: Traffic::default(),
        }
    }
}

impl Counters {
    /// Counts the end of a session.
    pub(crate) fn ended(&self, stop: &Stop) {
        self.ended.count(match stop {
            Stop::Closed(Side::Client) => "closed_by_client",
            Stop::Closed(Side::Server) => "closed_by_server",
            Stop::Here => "closed_here",
            Stop::Ended => "ended_by_administrator",
            Stop::Fault(_) => "fault_of_gateway",
            Stop::NotAdmitted(_) => "turned_away",
            Stop::Failed(Side::Client, _) => "client_failed",
            Stop::Failed(Side::Server, _) => "server_failed",
            Stop::Unreachable(_) => "server_unreachable",
            Stop::Refused(refusal) => {
                self.refused.count(refusal_cause(refusal));
                "refused"
            }
        });
    }

    /// Counts a client that is turned away.
    pub(crate) fn turn_away(&self, why: &Refused) {
        self.turned_away.count(match why {
            Refused::TooMany(_) | Refused::TooManyForMemory(_) => "too_many",
            Refused::TooManyOfClient(_) => "too_many_of_client",
            Refused::Address => "not_allowed",
            Refused::Itself => "gateway_itself",
        });
    }

    /// Returns the number of clients that were turned away.
    pub(crate) fn turned_away(&self) -> u64 {
        self.turned_away
            .counts
            .iter()
            .map(|count| count.load(Relaxed))
            .sum()
    }

    /// Returns the metrics of sessions, of which there were `total`, `open` are open and `most` may be open at the
    /// same time, and of traffic.
    pub(crate) fn families(&self, (total, open, most): (u64, u64, u64)) -> Vec<Family> {
        let gauge = |name, help, value: u64| Family::single(name, help, Kind::Gauge, value as f64);
        let mut families = vec![
            Family::single(
                "smbdirect_gateway_sessions_total",
                "Client connections accepted.",
                Kind::Counter,
                total as f64,
            ),
            gauge(
                "smbdirect_gateway_sessions_active",
                "Sessions that are open now.",
                open,
            ),
            gauge(
                "smbdirect_gateway_sessions_max",
                "Sessions that may be open at the same time.",
                most,
            ),
            self.ended.family(
                "smbdirect_gateway_sessions_ended_total",
                "Sessions that have ended, by cause.",
            ),
            self.turned_away.family(
                "smbdirect_gateway_turned_away_total",
                "Clients that were turned away, by cause.",
            ),
            self.refused.family(
                "smbdirect_gateway_requests_refused_total",
                "Requests that cannot be translated, each of which ended its session, by cause.",
            ),
        ];
        families.extend(self.traffic.families());
        families
    }
}

const fn refusal_cause(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Signed { .. } => "signed",
        Refusal::Channel { .. } => "channel",
        Refusal::NoRdma { .. } => "no_rdma",
        Refusal::BeyondDescriptors { .. } => "beyond_descriptors",
        Refusal::DataAndChannel { .. } => "data_and_channel",
        Refusal::TooLong { .. } => "too_long",
        Refusal::TooMany { .. } => "too_many",
        Refusal::Repeated { .. } => "repeated",
        // Malformed, Header, and variants to come.
        _ => "malformed",
    }
}

fn counter(name: &'static str, help: &'static str, count: &AtomicU64) -> Family {
    Family::single(name, help, Kind::Counter, count.load(Relaxed) as f64)
}

/// Returns a counter for each value of a label.
fn labelled<'a>(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    values: impl IntoIterator<Item = (&'static str, &'a AtomicU64)>,
) -> Family {
    let sample =
        |(value, count): (_, &AtomicU64)| (vec![(label, value)], count.load(Relaxed) as f64);
    Family::labelled(name, help, Kind::Counter, values.into_iter().map(sample))
}
