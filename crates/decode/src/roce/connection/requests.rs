//! Requests in order: Sends, Writes and Reads.

use smbdirect::rdma::roce::packet::{Extended, Opcode, Reth};

use super::{
    super::{
        super::{
            event::{Broken, Detail, EventKind, Extra, Region, broken},
            out::Out,
            per_end::{PerEnd, Side},
            smb::{Context, SmbDirect},
            tcp::Position,
        },
        datagram::Packet,
        order::Held,
        reads::response_packets,
        recognise::{Recognised, is_initiator, recognise},
    },
    Connection, Sending, Upper,
};

/// Sends after which a connection that shows no message of SMB Direct is given up.
const MAX_UNKNOWN_SENDS: u64 = 256;

impl Connection {
    /// Handles the next request of a direction.
    pub(super) fn request(&mut self, side: Side, at: i64, held: Held, out: &mut Out<'_>) {
        let Held {
            packet, position, ..
        } = held;
        let is_initiator = is_initiator(&packet);
        let initiator = is_initiator.map(|is_initiator| if is_initiator { side } else { !side });
        if self.is_smb_direct() {
            self.learn_initiator(initiator, out);
        }
        match packet.bth.opcode {
            Opcode::SendFirst
            | Opcode::SendMiddle
            | Opcode::SendLast
            | Opcode::SendLastImmediate
            | Opcode::SendLastInvalidate
            | Opcode::SendOnly
            | Opcode::SendOnlyImmediate
            | Opcode::SendOnlyInvalidate => {
                self.finish_writing(side, position, out);
                self.send(side, at, &packet, position, out);
            }
            Opcode::WriteFirst
            | Opcode::WriteMiddle
            | Opcode::WriteLast
            | Opcode::WriteLastImmediate
            | Opcode::WriteOnly
            | Opcode::WriteOnlyImmediate => {
                self.finish_sending(side, position, out);
                self.write(side, &packet, position, out);
            }
            Opcode::ReadRequest => {
                self.finish_writing(side, position, out);
                self.finish_sending(side, position, out);
                self.read(side, at, &packet, position, out);
            }
            _ => {
                let note = "an atomic operation, which SMB Direct does not use";
                self.emit(side, position, EventKind::Note { note }, Vec::new(), out);
            }
        }
    }

    /// Handles a loss in a direction.
    pub(super) fn lost(&mut self, side: Side, position: Position, out: &mut Out<'_>) {
        self.directions[side].sending = None;
        self.directions[side].whole = false;
        self.finish_writing(side, position, out);
        self.smb.lost(side);
    }

    fn send(
        &mut self,
        side: Side,
        at: i64,
        packet: &Packet,
        position: Position,
        out: &mut Out<'_>,
    ) {
        let opcode = packet.bth.opcode;
        let is_first = matches!(
            opcode,
            Opcode::SendFirst
                | Opcode::SendOnly
                | Opcode::SendOnlyImmediate
                | Opcode::SendOnlyInvalidate
        );
        if is_first {
            self.finish_sending(side, position, out);
        }
        let this = &mut self.directions[side];
        let is_headless = !is_first && this.sending.is_none() && this.whole;
        let mut sending = this.sending.take().unwrap_or_else(|| Sending {
            whole: is_first,
            ..Sending::default()
        });
        if is_headless {
            self.out_of_sequence(side, "a packet of a Send that has not begun", position, out);
        }
        sending.began.get_or_insert(position);
        let send = &mut sending.send;
        if sending.whole && send.head.len() as u64 == send.length {
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
        self.message(side, at, sending, position, out);
    }

    /// Handles a complete Send.
    fn message(
        &mut self,
        side: Side,
        at: i64,
        mut sending: Sending,
        position: Position,
        out: &mut Out<'_>,
    ) {
        self.directions[side].sends += 1;
        let recognised = sending.whole.then(|| recognise(&sending.send)).flatten();
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
        };
        let mut faults = Vec::new();
        let kind = self.smb.message(send, &mut context, &mut faults);
        self.learn_initiator(context.initiator, out);
        let extra = Extra {
            began: sending.began,
            content: sending.send.head,
            ..Extra::default()
        };
        self.emit_with(side, position, kind, faults, extra, out);
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
    fn finish_sending(&mut self, side: Side, position: Position, out: &mut Out<'_>) {
        if self.directions[side].sending.take().is_some() {
            self.out_of_sequence(side, "a Send without its last packet", position, out);
            self.smb.lost(side);
        }
    }

    /// Reports a packet that does not fit the one before it. If the capture lacks something, that
    /// may be the reason.
    fn out_of_sequence(
        &mut self,
        side: Side,
        note: &'static str,
        position: Position,
        out: &mut Out<'_>,
    ) {
        let faults = if self.directions[side].whole {
            vec![broken("ROCE-9.7.4-01", note)]
        } else {
            Vec::new()
        };
        self.emit(side, position, EventKind::Note { note }, faults, out);
    }

    fn write(&mut self, side: Side, packet: &Packet, position: Position, out: &mut Out<'_>) {
        let reth = packet.extended.reth();
        if reth.is_some() {
            self.finish_writing(side, position, out);
        } else if self.directions[side].writing.is_none() && self.directions[side].whole {
            self.out_of_sequence(
                side,
                "a packet of a Write that has not begun",
                position,
                out,
            );
        }
        let detail = self.detail;
        let this = &mut self.directions[side];
        let writing = this.writing.get_or_insert(Region {
            reth,
            length: 0,
            packets: 0,
        });
        this.written.began.get_or_insert(position);
        let part = writing.reth.map(|reth| Reth {
            virtual_address: reth.virtual_address.wrapping_add(writing.length),
            length: packet.length,
            ..reth
        });
        writing.length += u64::from(packet.length);
        writing.packets += 1;
        if detail == Detail::Content {
            let kind = EventKind::RoceWrite(Region::of(part, packet.length));
            self.part(side, kind, &packet.head, position, out);
        }
        if packet.bth.opcode.ends_message() {
            self.end_writing(side, position, out);
        }
    }

    /// Reports a Write after its last packet.
    fn end_writing(&mut self, side: Side, position: Position, out: &mut Out<'_>) {
        let Some(region) = self.directions[side].writing.take() else {
            return;
        };
        let announced = region.reth.map(|reth| u64::from(reth.length));
        let faults = match announced {
            Some(announced) if announced != region.length && self.directions[side].whole => {
                let how = format!("{} bytes of {announced} announced", region.length);
                vec![broken("ROCE-9.7.4-06", how)]
            }
            _ => Vec::new(),
        };
        self.written(side, position, region, faults, out);
    }

    /// Reports a packet of a Write or of a Read response, with its data.
    pub(super) fn part(
        &mut self,
        side: Side,
        kind: EventKind,
        content: &[u8],
        position: Position,
        out: &mut Out<'_>,
    ) {
        let extra = Extra {
            content: content.to_vec(),
            ..Extra::default()
        };
        self.emit_with(side, position, kind, Vec::new(), extra, out);
    }

    /// Reports a Write.
    fn written(
        &mut self,
        side: Side,
        position: Position,
        region: Region,
        faults: Vec<Broken>,
        out: &mut Out<'_>,
    ) {
        let extra = std::mem::take(&mut self.directions[side].written);
        if self.detail == Detail::Content {
            return;
        }
        self.emit_with(
            side,
            position,
            EventKind::RoceWrite(region),
            faults,
            extra,
            out,
        );
    }

    /// Reports a Write without its last packet.
    fn finish_writing(&mut self, side: Side, position: Position, out: &mut Out<'_>) {
        if let Some(region) = self.directions[side].writing.take() {
            let faults = if self.directions[side].whole {
                vec![broken("ROCE-9.7.4-01", "a Write without its last packet")]
            } else {
                Vec::new()
            };
            self.written(side, position, region, faults, out);
        }
    }

    fn read(
        &mut self,
        side: Side,
        at: i64,
        packet: &Packet,
        position: Position,
        out: &mut Out<'_>,
    ) {
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
        self.emit(
            side,
            position,
            EventKind::RoceReadRequest(reth),
            Vec::new(),
            out,
        );
    }
}
