//! The handshake of a TCP connection, and SYNs that do not belong to it.

use super::{
    super::{packet::Segment, per_end::Side},
    Another, Candidate, Connection,
    reassembly::{MAX_WINDOW, Position},
};

impl Connection {
    /// Decides whether a packet is of another connection between the same ends.
    pub(crate) fn another(
        &mut self,
        side: Side,
        segment: &Segment<'_>,
        position: Position,
    ) -> Another {
        let candidate = self.candidate.take_if(|candidate| {
            let first = candidate.head.sequence.wrapping_add(1);
            let is_outside = self.streams[candidate.side].base.is_some_and(|_| {
                let at = self.streams[candidate.side].offset(first);
                !(-MAX_WINDOW..=self.streams[candidate.side].edge()).contains(&at)
            });
            let answered = segment.head.acknowledged == Some(first) && side != candidate.side;
            match candidate.head.acknowledged {
                None if answered => segment.head.syn || is_outside,
                None => {
                    is_outside
                        && side == candidate.side
                        && !segment.head.syn
                        && segment.head.sequence == first
                }
                Some(number) => is_outside && answered && segment.head.sequence == number,
            }
        });
        if let Some(candidate) = candidate {
            return Another::Yes(Some((candidate.head, candidate.position)));
        }
        if !segment.head.syn || segment.head.rst {
            return Another::No;
        }
        let this = &self.streams[side];
        let at = this.offset(segment.head.sequence.wrapping_add(1));
        if self.ended || self.reset.is_some() {
            // Without data, the same number may belong to another attempt.
            return if this.first == Some(at) && self.has_data {
                Another::Stray
            } else {
                Another::Yes(None)
            };
        }
        let is_known = this.base.is_none() || this.may_begin(at);
        if is_known || (self.started && this.first.is_none() && (-MAX_WINDOW..=0).contains(&at)) {
            return Another::No;
        }
        self.candidate = Some(Candidate {
            side,
            head: segment.head,
            position,
        });
        Another::Stray
    }

    /// Learns from a SYN where the directions begin.
    pub(super) fn handshake(&mut self, side: Side, segment: &Segment<'_>) {
        self.streams[side].scale = Some(segment.head.window_scale);
        if self.started {
            return;
        }
        let first = segment.head.sequence.wrapping_add(1);
        let this = &mut self.streams[side];
        this.first = Some(this.offset(first));
        self.initiator = Some(side);
        if let Some(number) = segment.head.acknowledged {
            self.initiator = Some(!side);
            let other = &mut self.streams[!side];
            other.begin(number);
            let at = other.offset(number);
            if other.may_begin(at) {
                other.first = Some(at);
            }
        }
    }
}
