//! Tagged segments of DDP: RDMA Writes and Read Responses.

use smbdirect::rdma::iwarp::{ddp, rdmap::Opcode};

use super::{
    super::{
        event::{Broken, Detail, EventKind, Extra, Tagged, broken},
        per_end::Side,
    },
    EventSink, Placing, Segment, State,
};

impl State {
    /// Handles a segment of an RDMA Write or a Read Response.
    pub(super) fn tagged(
        &mut self,
        side: Side,
        header: ddp::Tagged,
        segment: Segment<'_>,
        mut faults: Vec<Broken>,
        sink: EventSink<'_>,
    ) {
        if let Some(sending) = &self.directions[side].sending {
            let number = sending.send.message_sequence_number;
            let how = format!("a tagged segment within message {number} of queue 0");
            faults.push(broken("DDP-10", how));
        }
        let (stag, offset) = (header.stag, header.tagged_offset);
        if offset.checked_add(segment.length.into()).is_none() {
            let how = format!("tagged offset 0x{offset:x} and {} bytes", segment.length);
            faults.push(broken("DDP-14", how));
        }
        let mut placing = Placing {
            opcode: segment.opcode,
            tagged: Tagged {
                stag,
                tagged_offset: offset,
                length: 0,
                segments: 0,
            },
            whole: self.directions[side].whole,
            began: self.directions[side].fpdu_began,
        };
        if let Some(before) = self.directions[side].placing {
            let is_same = before.opcode == segment.opcode && before.tagged.stag == stag;
            let next = before
                .tagged
                .tagged_offset
                .wrapping_add(before.tagged.length);
            if is_same && next == offset {
                placing = before;
            } else {
                let (rule, how) = if is_same {
                    (
                        "DDP-11",
                        format!("offset 0x{offset:x} where 0x{next:x} is next"),
                    )
                } else {
                    ("DDP-10", "a segment of another message".to_owned())
                };
                faults.push(broken(rule, how));
                self.finish_placing(side, Vec::new(), sink);
            }
        }
        if self.detail == Detail::Content {
            let part = Tagged {
                stag,
                tagged_offset: offset,
                length: segment.length.into(),
                segments: 1,
            };
            let extra = Extra::content(segment.payload.to_vec());
            let kind = operation(segment.opcode, part);
            self.emit(side, (kind, Vec::new(), extra), sink);
        }
        placing.tagged.length += u64::from(segment.length);
        placing.tagged.segments += 1;
        self.directions[side].placing = Some(placing);
        if header.last {
            self.check_response(side, &placing, &mut faults);
            self.finish_placing(side, faults, sink);
        } else if !faults.is_empty() {
            let note = "a segment of a message that continues";
            self.emit(side, (EventKind::Note { note }, faults), sink);
        }
    }

    /// Reports the Write or Read Response in progress.
    pub(super) fn finish_placing(&mut self, side: Side, faults: Vec<Broken>, sink: EventSink<'_>) {
        let Some(placing) = self.directions[side].placing.take() else {
            return;
        };
        if self.detail == Detail::Content {
            return;
        }
        let kind = operation(placing.opcode, placing.tagged);
        let extra = Extra::began(Some(placing.began));
        self.emit(side, (kind, faults, extra), sink);
    }

    /// Matches a Read Response with the oldest Read of the other end.
    fn check_response(&mut self, side: Side, placing: &Placing, faults: &mut Vec<Broken>) {
        if placing.opcode != Opcode::RdmaReadResponse {
            return;
        }
        let Some(reads) = &mut self.directions[!side].reads else {
            return;
        };
        let Some(request) = reads.pop_front() else {
            faults.push(broken("RDMAP-09", "no Read is outstanding"));
            return;
        };
        let found = placing.tagged;
        let (stag, offset) = (request.sink_stag, request.sink_tagged_offset);
        // The sink of a Read of length 0 is not checked.
        let is_empty = request.read_message_size == 0 && found.length == 0;
        if !placing.whole || is_empty {
            return;
        }
        if (found.stag, found.tagged_offset) != (stag, offset) {
            let how = format!(
                "STag 0x{:08x} and offset 0x{:x}, the Read names 0x{stag:08x} and 0x{offset:x}",
                found.stag, found.tagged_offset
            );
            faults.push(broken("RDMAP-08", how));
        }
        if found.length != u64::from(request.read_message_size) {
            let how = format!(
                "{} bytes, the Read asks for {}",
                found.length, request.read_message_size
            );
            faults.push(broken("RDMAP-06", how));
        }
    }
}

/// Returns the event of a Write or a Read Response, or of a part of it.
const fn operation(opcode: Opcode, tagged: Tagged) -> EventKind {
    match opcode {
        Opcode::RdmaReadResponse => EventKind::ReadResponse(tagged),
        _ => EventKind::Write(tagged),
    }
}
