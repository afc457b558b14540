//! The segmentation of messages: each segment is framed as an FPDU.

use std::ops::Range;

use bytes::Bytes;

use super::{
    ddp::{Tagged, Untagged},
    mpa::Fpdu,
    outgoing::Outgoing,
    rdmap::{Opcode, QUEUE_SEND},
};
use crate::work::{Token, WorkRequest};

/// Payloads of at least this length are sent as slices of their own, and shorter ones are copied
/// after their header. A slice of its own costs about as much as copying this many bytes.
const COPY_THRESHOLD_BYTES: usize = 2048;

/// Cuts messages into segments and frames them.
#[derive(Debug)]
pub(super) struct Segments {
    pub(super) outgoing: Outgoing,
    /// The longest FPDU to make, in bytes.
    pub(super) max_fpdu: usize,
    /// The message sequence number of the next Send.
    pub(super) next_send: u32,
}

impl Segments {
    /// Makes the next FPDU of `work`. Returns how many bytes of the work are then in FPDUs, or `None`
    /// if all are.
    pub(super) fn push_work(&mut self, work: &WorkRequest, sent: u32) -> Option<u32> {
        let begin = sent as usize;
        match work {
            WorkRequest::Send {
                header: inline,
                payload,
                invalidate,
                ..
            } => {
                let inline = inline.as_slice();
                let split = inline.len();
                let (end, rest) = self.cut(begin, split + payload.len(), Untagged::LENGTH);
                let header = self.send_header(*invalidate, sent, rest.is_none());
                let first = &inline[begin.min(split)..end.min(split)];
                let range = begin.max(split) - split..end.max(split) - split;
                self.push(&header.encode(), first, payload, range);
                rest
            }
            WorkRequest::Write { data, to, .. } => {
                let (end, rest) = self.cut(begin, data.len(), Tagged::LENGTH);
                let header = Tagged {
                    last: rest.is_none(),
                    rdmap_control: Opcode::RdmaWrite.control(),
                    stag: to.token.0,
                    // If the address wraps, the peer refuses it.
                    tagged_offset: to.offset.wrapping_add(u64::from(sent)),
                };
                let range = begin..end;
                self.push(&header.encode(), &[], data, range);
                rest
            }
            WorkRequest::Receive { .. } | WorkRequest::Read { .. } => {
                unreachable!("only Sends and Writes are cut into segments")
            }
        }
    }

    /// Makes one FPDU of a Send if it fits one and is short enough to be copied, as most Sends are.
    /// Returns whether it made one.
    #[inline(always)]
    pub(super) fn try_push_short(&mut self, work: &WorkRequest) -> bool {
        let WorkRequest::Send {
            header: inline,
            payload,
            invalidate,
            ..
        } = work
        else {
            return false;
        };
        let inline = inline.as_slice();
        let length = inline.len() + payload.len();
        let is_short =
            length <= self.capacity(Untagged::LENGTH) && payload.len() < COPY_THRESHOLD_BYTES;
        if is_short {
            let header = self.send_header(*invalidate, 0, true);
            self.outgoing
                .push_copied(&header.encode(), [inline, payload]);
        }
        is_short
    }

    /// Returns the header of the next segment of a Send.
    fn send_header(&mut self, invalidate: Option<Token>, sent: u32, last: bool) -> Untagged {
        let opcode = match invalidate {
            Some(_) => Opcode::SendInvalidate,
            None => Opcode::Send,
        };
        let message_sequence_number = self.next_send;
        //= DDP-04
        if last {
            self.next_send = self.next_send.wrapping_add(1);
        }
        Untagged {
            last,
            rdmap_control: opcode.control(),
            rsvd_ulp: invalidate.map_or(0, |token| token.0),
            queue_number: QUEUE_SEND,
            message_sequence_number,
            message_offset: sent,
        }
    }

    /// Returns the most payload bytes of an FPDU with a DDP header of `header_length` bytes.
    const fn capacity(&self, header_length: usize) -> usize {
        self.max_fpdu - Fpdu::HEADER_LENGTH - header_length - Fpdu::CRC_LENGTH
    }

    /// Returns the end of the segment that begins at `begin` in a message of `total` bytes. The second value is
    /// the same position, or `None` if this is the last segment.
    pub(super) fn cut(
        &self,
        begin: usize,
        total: usize,
        header_length: usize,
    ) -> (usize, Option<u32>) {
        let end = total.min(begin + self.capacity(header_length));
        //= DDP-09
        (end, (end < total).then_some(end as u32))
    }

    /// Makes one FPDU, whose payload is `first` and then the bytes `range` of `payload`.
    pub(super) fn push<const N: usize>(
        &mut self,
        header: &[u8; N],
        first: &[u8],
        payload: &Bytes,
        range: Range<usize>,
    ) {
        //= PERF-02
        if range.len() < COPY_THRESHOLD_BYTES {
            self.outgoing.push_copied(header, [first, &payload[range]]);
        } else {
            self.outgoing
                .push_shared(header, first, payload.slice(range));
        }
    }
}
