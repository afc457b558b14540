//! What the events of a capture add up to: the counts of the last line.

use std::collections::BTreeMap;

use serde::Serialize;
use smbdirect::rdma::roce::packet::{Opcode, Syndrome};
use smbdirect_decode::{Event, Repeated, RocePacket, Sender, What};

/// What all events that were shown add up to.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) streams: u64,
    /// The fewest send credits of the initiator and of the responder, by stream.
    pub(super) lowest_credits: BTreeMap<u32, [Option<u32>; 2]>,
    /// How many messages of each name.
    pub(super) messages: BTreeMap<&'static str, u64>,
    /// Payload bytes of Data Transfers.
    pub(super) payload_bytes: u64,
    /// Bytes of RDMA Writes.
    pub(super) written_bytes: u64,
    /// Bytes of RDMA Read Responses.
    pub(super) read_bytes: u64,
    /// Bytes that the capture lacks.
    pub(super) missing_bytes: u64,
    /// Packets of RoCE, by stream.
    pub(super) roce: BTreeMap<u32, RoceTotals>,
    /// For each broken rule, how often, and where first.
    pub(super) broken: BTreeMap<&'static str, BrokenRule>,
}

/// The packets of a RoCE connection.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct RoceTotals {
    pub(super) packets: u64,
    /// Positive acknowledgements without data.
    pub(super) acks: u64,
    pub(super) naks: u64,
    pub(super) rnr_naks: u64,
    pub(super) sent_again: u64,
    /// Packets that the network mirrored more than once.
    pub(super) captured_again: u64,
    /// Packets that are not in the capture.
    pub(super) missing: u64,
    /// Packets that were damaged or cannot be decoded.
    pub(super) bad: u64,
}

/// How often a rule was broken, and where first.
#[derive(Clone, Copy, Debug)]
pub(super) struct BrokenRule {
    pub(super) times: u64,
    pub(super) stream: u32,
    pub(super) frame: u64,
    pub(super) by: Sender,
}

/// Most streams that the summary lists; a hostile capture can have any number of them.
pub(super) const MAX_SUMMARISED: usize = 1000;

impl Summary {
    /// Counts one event.
    pub(super) fn count(&mut self, event: &Event) {
        match &event.what {
            What::Stream { .. } => self.streams += 1,
            What::DataTransfer(transfer) => self.payload_bytes += u64::from(transfer.data_length),
            What::Write(tagged) => self.written_bytes += tagged.length,
            What::ReadResponse(tagged) => self.read_bytes += tagged.length,
            What::RoceWrite(region) => self.written_bytes += region.length,
            What::RoceReadResponse { length, .. } => self.read_bytes += length,
            What::Gap(bytes) => self.missing_bytes += bytes,
            _ => {}
        }
        self.count_roce(event);
        if let Some(name) = event.what.name() {
            *self.messages.entry(name).or_default() += 1;
        }
        self.count_credits(event);
        for broken in &event.broken {
            let rule = self.broken.entry(broken.rule).or_insert(BrokenRule {
                times: 0,
                stream: event.stream,
                frame: event.place.frame,
                by: event.from,
            });
            rule.times += 1;
        }
    }

    /// Counts the packets of a RoCE connection.
    fn count_roce(&mut self, event: &Event) {
        let is_known = self.roce.contains_key(&event.stream);
        if !is_known && self.roce.len() >= MAX_SUMMARISED {
            return;
        }
        let of = |roce: &mut BTreeMap<u32, RoceTotals>, add: &dyn Fn(&mut RoceTotals)| {
            add(roce.entry(event.stream).or_default());
        };
        match &event.what {
            What::Packet(packet) => of(&mut self.roce, &|totals| totals.count(packet)),
            What::MissingPackets(packets) => {
                of(&mut self.roce, &|totals| totals.missing += packets);
            }
            What::BadPacket { .. } => of(&mut self.roce, &|totals| {
                totals.packets += 1;
                totals.bad += 1;
            }),
            _ => {}
        }
    }

    /// Keeps the send credits that the sender has left, if it never had fewer.
    fn count_credits(&mut self, event: &Event) {
        let sender = match event.from {
            Sender::Initiator => 0,
            Sender::Responder => 1,
            Sender::A | Sender::B => return,
        };
        let (What::DataTransfer(_), Some(credits)) = (&event.what, event.credits[sender]) else {
            return;
        };
        let is_known = self.lowest_credits.contains_key(&event.stream);
        if is_known || self.lowest_credits.len() < MAX_SUMMARISED {
            let lowest = &mut self.lowest_credits.entry(event.stream).or_default()[sender];
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
