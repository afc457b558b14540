//! The sums over the events of a capture.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use smbdirect::rdma::roce::packet::{Opcode, Syndrome};

use super::{
    counts::Counts,
    event::{Event, EventKind, Repeated, RocePacket},
    rules::rule_text,
};

/// The sums over events. It serialises to the last JSON object that `smbdirect decode --json` prints.
#[derive(Debug, Default, Serialize)]
#[serde(tag = "event", rename = "summary")]
pub struct Summary {
    /// Counts of the whole capture, from [`Streams::counts`](super::Streams::counts).
    #[serde(flatten)]
    pub counts: Counts,
    /// Streams.
    pub streams: u64,
    /// How many messages of each name.
    pub messages: BTreeMap<&'static str, u64>,
    /// Payload bytes of Data Transfers.
    pub payload_bytes: u64,
    /// Bytes of RDMA Writes.
    pub written_bytes: u64,
    /// Bytes of RDMA Read Responses.
    pub read_bytes: u64,
    /// Bytes that the capture lacks.
    pub missing_bytes: u64,
    /// Packets of RoCE that the capture lacks.
    pub missing_packets: u64,
    /// The fewest send credits of both ends, by stream.
    #[serde(serialize_with = "values")]
    pub lowest_credits: BTreeMap<u32, LowestCredits>,
    /// Packets of RoCE, by stream.
    #[serde(serialize_with = "values")]
    pub roce: BTreeMap<u32, RoceTotals>,
    /// Each broken rule.
    #[serde(serialize_with = "values")]
    pub broken: BTreeMap<&'static str, BrokenRule>,
}

/// The fewest send credits that each end of a stream had after one of its messages.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LowestCredits {
    /// The number of the stream.
    pub stream: u32,
    /// The lowest credits of the initiator.
    pub initiator: Option<u32>,
    /// The lowest credits of the responder.
    pub responder: Option<u32>,
}

/// The packets of a RoCE connection.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RoceTotals {
    /// The number of the stream.
    pub stream: u32,
    /// All packets except the packets of the communication manager.
    pub packets: u64,
    /// Positive acknowledgements without data.
    pub acks: u64,
    /// Negative acknowledgements.
    pub naks: u64,
    /// Negative acknowledgements for lack of a posted receive.
    pub rnr_naks: u64,
    /// Packets that their sender sent again.
    pub sent_again: u64,
    /// Packets that the network mirrored more than once.
    pub captured_again: u64,
    /// Packets that are not in the capture.
    pub missing: u64,
    /// Packets that were damaged or cannot be decoded.
    pub bad: u64,
}

/// The number of times that a rule was broken, and the place of the first.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BrokenRule {
    /// The id of the rule in `specs`.
    pub rule: &'static str,
    /// The text of the rule in `specs`.
    pub text: &'static str,
    /// How often it was broken.
    pub times: u64,
    /// The stream where it was broken first.
    pub stream: u32,
    /// The packet by which it was broken first.
    pub frame: u64,
    /// The end that broke it first, as [`Event::sender`] names it.
    pub by: &'static str,
}

/// Maximum number of streams that the summary lists; a hostile capture can have any number of them.
pub const MAX_SUMMARISED: usize = 1000;

impl Summary {
    /// Counts one event.
    pub fn count(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Stream { .. } => self.streams += 1,
            EventKind::DataTransfer(transfer) => {
                self.payload_bytes += u64::from(transfer.data_length);
            }
            EventKind::Write(tagged) => self.written_bytes += tagged.length,
            EventKind::ReadResponse(tagged) => self.read_bytes += tagged.length,
            EventKind::RoceWrite(region) => self.written_bytes += region.length,
            EventKind::RoceReadResponse(region) => self.read_bytes += region.length,
            EventKind::Gap { bytes } => self.missing_bytes += bytes,
            _ => {}
        }
        self.count_roce(event);
        if let Some(name) = event.kind.name() {
            *self.messages.entry(name).or_default() += 1;
        }
        self.count_credits(event);
        for broken in &event.broken {
            let rule = self
                .broken
                .entry(broken.rule)
                .or_insert_with(|| BrokenRule {
                    rule: broken.rule,
                    text: rule_text(broken.rule),
                    times: 0,
                    stream: event.stream,
                    frame: event.position.frame,
                    by: event.sender(),
                });
            rule.times += 1;
        }
    }

    /// Counts the packets of a RoCE connection.
    fn count_roce(&mut self, event: &Event) {
        let is_roce = matches!(
            event.kind,
            EventKind::Packet(_) | EventKind::MissingPackets { .. } | EventKind::BadPacket { .. }
        );
        let is_known = self.roce.contains_key(&event.stream);
        if !is_roce || !is_known && self.roce.len() >= MAX_SUMMARISED {
            return;
        }
        let totals = self.roce.entry(event.stream).or_default();
        totals.stream = event.stream;
        match &event.kind {
            EventKind::Packet(packet) => totals.count(packet),
            EventKind::MissingPackets { packets } => {
                totals.missing += packets;
                self.missing_packets += packets;
            }
            _ => {
                totals.packets += 1;
                totals.bad += 1;
            }
        }
    }

    /// Keeps the send credits that the sender has left, if it never had fewer.
    fn count_credits(&mut self, event: &Event) {
        let is_known = self.lowest_credits.contains_key(&event.stream);
        let has_room = is_known || self.lowest_credits.len() < MAX_SUMMARISED;
        let Some(is_initiator) = event.is_from_initiator() else {
            return;
        };
        if let (EventKind::DataTransfer(_), Some(credits), true) =
            (&event.kind, event.credits[event.from], has_room)
        {
            let lowest = self.lowest_credits.entry(event.stream).or_default();
            lowest.stream = event.stream;
            let lowest = if is_initiator {
                &mut lowest.initiator
            } else {
                &mut lowest.responder
            };
            *lowest = Some(lowest.map_or(credits, |lowest| lowest.min(credits)));
        }
    }
}

impl RoceTotals {
    fn count(&mut self, packet: &RocePacket) {
        let is_of_cm = packet.bth.opcode == Opcode::UdSendOnly;
        self.packets += u64::from(!is_of_cm);
        match packet.repeated {
            Repeated::No => {}
            Repeated::SentAgain => self.sent_again += 1,
            Repeated::CapturedAgain => {
                self.captured_again += 1;
                return;
            }
        }
        match packet.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::Ack { .. }) if packet.length == 0 => self.acks += 1,
            Some(Syndrome::Nak(_)) => self.naks += 1,
            Some(Syndrome::RnrNak { .. }) => self.rnr_naks += 1,
            _ => {}
        }
    }
}

fn values<K, V: Serialize, S: Serializer>(
    map: &BTreeMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(map.values())
}
