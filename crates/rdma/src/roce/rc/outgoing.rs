//! Packets as they leave a queue pair: as values, or as a run of datagrams in one buffer.

use bytes::{Bytes, BytesMut};

use super::shared::PacketSink;
use crate::roce::{
    icrc::FlowIcrc,
    packet::{Bth, Extended, ICRC_LENGTH, Packet, pad_count},
};

/// Takes one packet as a value.
impl PacketSink for Option<Packet> {
    fn push(&mut self, bth: &Bth, extended: &Extended, parts: [&[u8]; 2]) {
        let payload = match parts {
            [one, []] | [[], one] => Bytes::copy_from_slice(one),
            parts => parts.concat().into(),
        };
        *self = Some(Packet {
            bth: *bth,
            extended: *extended,
            payload,
        });
    }
}

/// A run of datagrams of the same length, one after the other, the last of which may be shorter.
#[derive(Debug)]
pub(super) struct Run<'a> {
    flow: &'a mut FlowIcrc,
    max_datagrams: usize,
    out: &'a mut BytesMut,
    /// The length of `out` before the run.
    start: usize,
    datagrams: usize,
    /// The length of each datagram except the last; 0 before the first.
    segment_length: usize,
    /// Whether the last datagram was shorter than the others.
    is_finished: bool,
}

/// The most bytes of one run, which is sent by one call. Such a call takes at most 65507 bytes over IPv4.
const MAX_RUN_BYTES: usize = 65_000;

impl<'a> Run<'a> {
    /// Creates an empty run of at most `max_datagrams`, which is appended to `out`.
    pub(super) fn new(flow: &'a mut FlowIcrc, max_datagrams: usize, out: &'a mut BytesMut) -> Self {
        Self {
            flow,
            max_datagrams,
            start: out.len(),
            out,
            datagrams: 0,
            segment_length: 0,
            is_finished: false,
        }
    }

    /// Returns the greatest length of the next datagram, in bytes; 0 if the run is complete.
    pub(super) fn max_length(&self) -> usize {
        let used = self.out.len() - self.start;
        if self.is_finished || self.datagrams >= self.max_datagrams {
            0
        } else if self.datagrams == 0 {
            MAX_RUN_BYTES
        } else {
            self.segment_length.min(MAX_RUN_BYTES - used)
        }
    }

    /// Returns the length of each datagram except the last, or `None` if the run is empty.
    pub(super) fn segment_length(&self) -> Option<usize> {
        (self.datagrams > 0).then_some(self.segment_length)
    }
}

impl PacketSink for Run<'_> {
    fn push(&mut self, bth: &Bth, extended: &Extended, [first, second]: [&[u8]; 2]) {
        let pad = pad_count(first.len() + second.len());
        let start = self.out.len();
        self.out.extend_from_slice(&bth.encode(pad));
        let mut bytes = [0; Extended::MAX_LENGTH];
        let length = extended.encode(&mut bytes);
        self.out.extend_from_slice(&bytes[..length]);
        self.out.extend_from_slice(first);
        self.out.extend_from_slice(second);
        self.out.extend_from_slice(&[0; 3][..pad]);
        // The kernel numbers the datagrams of a run from 0.
        let icrc = self.flow.icrc(self.datagrams as u16, &self.out[start..]);
        self.out.extend_from_slice(&icrc);
        let length = self.out.len() - start;
        debug_assert_eq!(
            length,
            pad + Bth::LENGTH
                + extended.layout().length()
                + first.len()
                + second.len()
                + ICRC_LENGTH
        );
        self.datagrams += 1;
        if self.segment_length == 0 {
            self.segment_length = length;
        }
        self.is_finished = length < self.segment_length;
    }
}
