//! Requests in order: Sends, Writes and Reads.

use smbdirect::rdma::roce::packet::{Extended, Reth};

use super::{
    super::{
        super::{
            event::{Broken, Detail, EventKind, Extra, Region, broken},
            out::Out,
            per_end::{PerEnd, Side},
            smb::{Context, SmbDirect},
            tcp::Position,
        },
        datagram::{Packet, Part, begins_send},
        reads::response_packets,
        recognise::{Recognised, is_initiator, recognise},
    },
    Connection, Sending, Upper,
};

/// Sends after which a connection that shows no message of SMB Direct is given up.
const MAX_UNKNOWN_SENDS: u64 = 256;

impl Connection {
    /// Handles the next request of a direction.
    pub(super) fn request(&mut self, side: Side, at: i64, packet: Packet, out: &mut Out<'_>) {
        self.check(side, &packet);
        let is_initiator = is_initiator(&packet);
        let initiator = is_initiator.map(|is_initiator| if is_initiator { side } else { !side });
        if self.is_smb_direct() {
            self.learn_initiator(initiator, out);
        }
        match Part::of(packet.bth.opcode) {
            Part::Send => {
                self.finish_writing(side, out);
                self.send(side, at, &packet, out);
            }
            Part::Write => {
                self.finish_sending(side, out);
                self.write(side, &packet, out);
            }
            Part::ReadRequest => {
                self.finish_writing(side, out);
                self.finish_sending(side, out);
                self.read(side, at, &packet, out);
            }
            Part::ReadResponse | Part::Datagram | Part::Other => {
                let note = "an atomic operation, which SMB Direct does not use";
                self.emit(side, EventKind::Note { note }, out);
            }
        }
    }

    /// Handles a loss in a direction.
    pub(super) fn lost(&mut self, side: Side, out: &mut Out<'_>) {
        self.directions[side].sending = None;
        self.directions[side].whole = false;
        self.finish_writing(side, out);
        self.smb.lost(side);
    }

    fn send(&mut self, side: Side, at: i64, packet: &Packet, out: &mut Out<'_>) {
        let opcode = packet.bth.opcode;
        let is_first = begins_send(opcode);
        if is_first {
            self.finish_sending(side, out);
        }
        let this = &mut self.directions[side];
        let is_headless = !is_first && this.sending.is_none() && this.whole;
        let mut sending = this.sending.take().unwrap_or_else(|| {
            let mut sending = Sending::default();
            sending.send.whole = is_first;
            sending
        });
        if is_headless {
            self.out_of_sequence(side, "a packet of a Send that has not begun", out);
        }
        sending.began.get_or_insert(out.position);
        let send = &mut sending.send;
        if send.whole && send.head.len() as u64 == send.length {
            let room = self.detail.max_send_bytes().saturating_sub(send.head.len());
            let kept = packet.head.len().min(room);
            send.head.extend_from_slice(&packet.head[..kept]);
        }
        send.length += u64::from(packet.length);
        if !opcode.ends_message() {
            self.directions[side].sending = Some(sending);
            return;
        }
        if let Extended::Ieth(ieth) = packet.extended {
            send.invalidated = Some(ieth.r_key);
        }
        self.message(side, at, sending, out);
    }

    /// Handles a complete Send.
    fn message(&mut self, side: Side, at: i64, mut sending: Sending, out: &mut Out<'_>) {
        self.directions[side].sends += 1;
        let recognised = sending
            .send
            .whole
            .then(|| recognise(&sending.send))
            .flatten();
        if !self.decide(side, recognised, out) {
            return;
        }
        let is_initiator = recognised.and_then(Recognised::is_initiator);
        let initiator = is_initiator.map(|is_initiator| if is_initiator { side } else { !side });
        self.learn_initiator(initiator, out);
        let negotiates = matches!(
            recognised,
            Some(Recognised::NegotiateRequest | Recognised::NegotiateResponse)
        );
        if negotiates && !self.directions[side].whole {
            // It is the first message of its direction. Earlier packets in the capture belong to a connection
            // that has ended.
            if at > 0 && recognised == Some(Recognised::NegotiateRequest) {
                self.smb = SmbDirect::default();
            }
            self.directions[side].whole = true;
        }
        let send = &mut sending.send;
        // Without the first message, only its fields show a negotiation.
        send.message_sequence_number = if negotiates { 1 } else { 2 };
        let mut context = Context {
            side,
            initiator: self.initiator,
            whole: PerEnd(self.directions.each_ref().map(|state| state.whole)),
            is_ordered: false,
        };
        let mut faults = Vec::new();
        let kind = self.smb.message(send, &mut context, &mut faults);
        self.learn_initiator(context.initiator, out);
        let extra = Extra {
            began: sending.began,
            content: sending.send.head,
            ..Extra::default()
        };
        self.emit(side, (kind, faults, extra), out);
    }

    /// Decides what the connection carries. Returns whether it may be SMB Direct.
    fn decide(&mut self, side: Side, recognised: Option<Recognised>, out: &mut Out<'_>) -> bool {
        match self.upper {
            Upper::SmbDirect => true,
            Upper::Other => false,
            Upper::Undecided => {
                if recognised.is_some() {
                    self.expect(None, out);
                    return true;
                }
                let sends: u64 = self.directions.iter().map(|state| state.sends).sum();
                let is_initiator = self.initiator == Some(side) && self.directions[side].whole;
                if is_initiator || sends > MAX_UNKNOWN_SENDS {
                    self.upper = Upper::Other;
                    self.waiting = Vec::new();
                }
                false
            }
        }
    }

    /// Reports a Send that did not end.
    fn finish_sending(&mut self, side: Side, out: &mut Out<'_>) {
        if self.directions[side].sending.take().is_some() {
            self.out_of_sequence(side, "a Send without its last packet", out);
            self.smb.lost(side);
        }
    }

    /// Reports a packet that does not fit the one before it. If the capture lacks something, that
    /// may be the reason.
    fn out_of_sequence(&mut self, side: Side, note: &'static str, out: &mut Out<'_>) {
        let faults = if self.directions[side].whole {
            vec![broken("ROCE-9.7.4-01", note)]
        } else {
            Vec::new()
        };
        self.emit(side, (EventKind::Note { note }, faults), out);
    }

    fn write(&mut self, side: Side, packet: &Packet, out: &mut Out<'_>) {
        let reth = packet.extended.reth();
        if reth.is_some() {
            self.finish_writing(side, out);
        } else if self.directions[side].writing.is_none() && self.directions[side].whole {
            self.out_of_sequence(side, "a packet of a Write that has not begun", out);
        }
        let this = &mut self.directions[side];
        let writing = this.writing.get_or_insert(Region {
            reth,
            length: 0,
            packets: 0,
        });
        this.written.get_or_insert(out.position);
        let part = writing.reth.map(|reth| Reth {
            virtual_address: reth.virtual_address.wrapping_add(writing.length),
            length: packet.length,
            ..reth
        });
        writing.length += u64::from(packet.length);
        writing.packets += 1;
        let (whole, length) = (this.whole, writing.length);
        let announced = writing.reth.map(|reth| u64::from(reth.length));
        if self.detail == Detail::Content {
            let kind = EventKind::RoceWrite(Region::of(part, packet.length));
            self.part(side, kind, packet, out);
        }
        if packet.bth.opcode.ends_message() {
            let mut faults = Vec::new();
            if let Some(announced) = announced.filter(|&announced| whole && announced != length) {
                let how = format!("{length} bytes of {announced} announced");
                faults.push(broken("ROCE-9.7.4-06", how));
            }
            self.written(side, faults, out);
        }
    }

    /// Reports a packet of a Write or of a Read response, with its data.
    pub(super) fn part(&mut self, side: Side, kind: EventKind, packet: &Packet, out: &mut Out<'_>) {
        let extra = Extra::content(packet.head.clone());
        self.emit(side, (kind, Vec::new(), extra), out);
    }

    /// Reports a Write or a Read response as a whole, unless each of its packets was reported with its data.
    pub(super) fn moved(
        &mut self,
        side: Side,
        kind: EventKind,
        faults: Vec<Broken>,
        began: Option<Position>,
        out: &mut Out<'_>,
    ) {
        if self.detail != Detail::Content {
            self.emit(side, (kind, faults, Extra::began(began)), out);
        }
    }

    /// Reports the Write in progress.
    fn written(&mut self, side: Side, faults: Vec<Broken>, out: &mut Out<'_>) {
        let began = self.directions[side].written.take();
        if let Some(region) = self.directions[side].writing.take() {
            self.moved(side, EventKind::RoceWrite(region), faults, began, out);
        }
    }

    /// Reports a Write without its last packet.
    fn finish_writing(&mut self, side: Side, out: &mut Out<'_>) {
        let this = &self.directions[side];
        let mut faults = Vec::new();
        if this.writing.is_some() && this.whole {
            faults.push(broken("ROCE-9.7.4-01", "a Write without its last packet"));
        }
        self.written(side, faults, out);
    }

    fn read(&mut self, side: Side, at: i64, packet: &Packet, out: &mut Out<'_>) {
        let Extended::Reth(reth) = packet.extended else {
            return;
        };
        let (most, packets) = response_packets(&reth, self.mtu);
        let this = &mut self.directions[side];
        match packets {
            Some(packets) => this.requests.skip(packets - 1, 0),
            None => this.requests.skip(0, most - 1),
        }
        this.reads.push(at, at + most, reth);
        self.emit(side, EventKind::RoceReadRequest(reth), out);
    }
}
