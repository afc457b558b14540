//! [`Request`]: a posted work request, and how it is cut into packets.
//!
//! A Write becomes one message per packet instead of one message of many packets. All of its datagrams then have
//! the same length, as have those of the next Write, and one system call sends many datagrams of the same length.
//! With a First packet, which is longer than the others by its RETH, each Write would need at least two calls. A
//! short Write is cut into parts of the same length, because a shorter last part would end the call.

use super::shared::PacketSink;
use crate::{
    roce::packet::{Bth, Extended, Ieth, Opcode, Reth},
    work::{Inline, RemoteAddress, Token, WorkRequest},
};

/// A posted Send, Write or Read, and its packets.
///
/// Packets are numbered from 0 by a sequence number of 64 bits, whose low 24 bits, added to the
/// starting PSN, are the PSN.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) work: WorkRequest,
    /// The sequence number of the first packet.
    pub(super) first: u64,
    /// The number of packets: those of the request, or those of the response to a Read.
    pub(super) packets: u64,
    /// The bytes of payload of each packet except the last one, which may have fewer.
    stride: usize,
}

/// The most packets of a Write whose packets have the same length. In a longer one, a shorter last packet
/// costs little.
const MAX_EQUAL_PACKETS: usize = 64;

/// The longest message, in bytes (IBTA 9.7.7).
pub(super) const MAX_MESSAGE_BYTES: u32 = 1 << 31;

impl Request {
    /// Creates a request whose first packet has the sequence number `first`.
    ///
    /// # Panics
    /// Panics if the message is longer than [`MAX_MESSAGE_BYTES`].
    pub(super) fn new(work: WorkRequest, first: u64, path_mtu: usize) -> Self {
        let length = length_of(&work);
        //= ROCE-9.7.7-01
        assert!(
            length <= MAX_MESSAGE_BYTES as usize,
            "RoCE messages have at most 2 GiB"
        );
        let packets = packets_of(length, path_mtu);
        Self {
            //= ROCE-SW-03
            stride: match work {
                WorkRequest::Write { .. } => stride_of(length, path_mtu),
                _ => path_mtu,
            },
            work,
            first,
            packets,
        }
    }

    /// Returns the sequence number after the last packet.
    pub(super) const fn end(&self) -> u64 {
        self.first + self.packets
    }

    /// Returns whether this is a Read.
    pub(super) const fn is_read(&self) -> bool {
        matches!(self.work, WorkRequest::Read { .. })
    }

    /// Returns the offset and the length of the payload of the packet `sequence`, in bytes.
    pub(super) fn payload_of(&self, sequence: u64) -> (usize, usize) {
        let offset = (sequence - self.first) as usize * self.stride;
        (offset, self.stride.min(length_of(&self.work) - offset))
    }

    /// Returns the opcode of the packet `sequence` of a Send or Write.
    pub(super) fn opcode_of(&self, sequence: u64) -> Opcode {
        let is_first = sequence == self.first;
        let is_last = sequence + 1 == self.end();
        //= ROCE-9.4-01
        match (&self.work, is_first, is_last) {
            (WorkRequest::Send { invalidate, .. }, true, true) => match invalidate {
                Some(_) => Opcode::SendOnlyInvalidate,
                None => Opcode::SendOnly,
            },
            (WorkRequest::Send { invalidate, .. }, false, true) => match invalidate {
                Some(_) => Opcode::SendLastInvalidate,
                None => Opcode::SendLast,
            },
            (WorkRequest::Send { .. }, true, false) => Opcode::SendFirst,
            (WorkRequest::Send { .. }, false, false) => Opcode::SendMiddle,
            //= ROCE-SW-03
            (WorkRequest::Write { .. }, ..) => Opcode::WriteOnly,
            (WorkRequest::Read { .. }, ..) => Opcode::ReadRequest,
            (WorkRequest::Receive { .. }, ..) => unreachable!("receives are not sent"),
        }
    }

    /// Adds the packet `sequence` of a Send or Write to `sink`.
    pub(super) fn push(
        &self,
        bth: &Bth,
        (offset, length): (usize, usize),
        sink: &mut impl PacketSink,
    ) {
        match &self.work {
            WorkRequest::Send {
                header,
                payload,
                invalidate,
                ..
            } => {
                let extended = match invalidate {
                    Some(Token(r_key)) if bth.opcode.ends_message() => {
                        Extended::Ieth(Ieth { r_key: *r_key })
                    }
                    _ => Extended::Plain,
                };
                sink.push(bth, &extended, parts(header, payload, offset, length));
            }
            WorkRequest::Write { data, to, .. } => {
                let extended = Extended::Reth(reth(*to, offset, length));
                sink.push(bth, &extended, [&data[offset..offset + length], &[]]);
            }
            WorkRequest::Read { .. } | WorkRequest::Receive { .. } => {
                unreachable!("only Sends and Writes have payloads")
            }
        }
    }
}

/// Returns the RETH for `length` bytes that begin `offset` bytes after an address.
pub(super) fn reth(address: RemoteAddress, offset: usize, length: usize) -> Reth {
    Reth {
        // If the address wraps, the peer refuses it.
        virtual_address: address.offset.wrapping_add(offset as u64),
        r_key: address.token.0,
        length: length as u32,
    }
}

/// Returns the number of packets of a message of `length` bytes.
pub(super) const fn packets_of(length: usize, path_mtu: usize) -> u64 {
    if length == 0 {
        return 1;
    }
    length.div_ceil(path_mtu) as u64
}

/// Returns the bytes of payload of each packet of a Write except the last one.
const fn stride_of(length: usize, path_mtu: usize) -> usize {
    if length <= path_mtu || length > MAX_EQUAL_PACKETS * path_mtu {
        return path_mtu;
    }
    length.div_ceil(length.div_ceil(path_mtu))
}

/// Returns the number of bytes that `work` sends or reads.
fn length_of(work: &WorkRequest) -> usize {
    match work {
        WorkRequest::Send {
            header, payload, ..
        } => header.len() + payload.len(),
        WorkRequest::Write { data, .. } => data.len(),
        WorkRequest::Read { into, .. } => into.len(),
        WorkRequest::Receive { .. } => unreachable!("receives are not sent"),
    }
}

/// Returns `length` bytes at `offset` in a header and the payload after it.
fn parts<'a>(header: &'a Inline, payload: &'a [u8], offset: usize, length: usize) -> [&'a [u8]; 2] {
    let header = header.as_slice();
    let (start, end) = (offset, offset + length);
    let split = header.len();
    [
        &header[start.min(split)..end.min(split)],
        &payload[start.max(split) - split..end.max(split) - split],
    ]
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::work::WorkId;

    fn write(length: usize, path_mtu: usize) -> Request {
        let work = WorkRequest::Write {
            id: WorkId(1),
            data: Bytes::from(vec![0; length]),
            to: RemoteAddress {
                token: Token(1),
                offset: 0,
            },
        };
        Request::new(work, 5, path_mtu)
    }

    /// Payloads that have the same length after padding give datagrams of the same length.
    //= ROCE-SW-03 test
    #[test]
    fn the_packets_of_a_short_write_have_the_same_length() {
        for (length, path_mtu, expected) in [
            (0, 4096, vec![0]),
            (1, 4096, vec![1]),
            (4096, 4096, vec![4096]),
            (4097, 4096, vec![2049, 2048]),
            (8112, 4096, vec![4056, 4056]),
            (8112, 1024, vec![1014; 8]),
            (16_384, 4096, vec![4096; 4]),
            (64 * 256 - 1, 256, [vec![256; 63], vec![255]].concat()),
            (64 * 256 + 1, 256, [vec![256; 64], vec![1]].concat()),
        ] {
            let request = write(length, path_mtu);
            let payloads = (5..request.end()).map(|sequence| request.payload_of(sequence));
            let payloads: Vec<_> = payloads.collect();
            let lengths: Vec<_> = payloads.iter().map(|(_, length)| *length).collect();
            assert_eq!(lengths, expected, "{length}");
            let mut next = 0;
            for (offset, length) in payloads {
                assert_eq!(offset, next);
                next += length;
            }
            assert_eq!(next, length);
        }
    }

    #[test]
    fn each_packet_of_a_write_has_a_payload() {
        for path_mtu in [256, 512, 1024, 2048, 4096] {
            for packets in 2..=MAX_EQUAL_PACKETS {
                for length in [(packets - 1) * path_mtu + 1, packets * path_mtu] {
                    let stride = stride_of(length, path_mtu);
                    assert!(stride <= path_mtu && stride * (packets - 1) < length);
                    assert!(stride * packets >= length);
                }
            }
        }
    }
}
