//! Reads of one direction that wait for their response, which may come in pieces.
//!
//! A requester that lacks a packet of a response asks again from that packet on, so packets of a response can
//! arrive twice, and the last packet before others.

use std::collections::VecDeque;

use smbdirect::rdma::roce::packet::{Opcode, Reth};

use super::super::tcp::Position;

/// The response to a Read, as far as it is in the capture.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) reth: Reth,
    /// Bytes and packets of the response so far.
    pub(super) length: u64,
    pub(super) packets: u64,
    /// The first packet of the response in the capture.
    pub(super) began: Option<Position>,
    /// The index of the request, which its first packet shares.
    at: i64,
    /// The index after the last packet that it can have.
    limit: i64,
    received: Indices,
    /// The index after its last packet, once that packet was seen, and the position of that packet.
    end: Option<(i64, Position)>,
    /// Packets of the connection since then.
    waited: u32,
    /// Packets of the connection for which missing packets may be late.
    patience: u32,
}

/// Reads in the order of their requests.
#[derive(Debug, Default)]
pub(super) struct Reads {
    list: VecDeque<Read>,
}

/// The role of a packet in a response.
#[derive(Debug)]
pub(super) enum Response {
    /// A packet of a response that continues.
    Continues,
    /// The packet that completes a response.
    Completes(Read),
    Again,
    /// The request is not known.
    Unknown,
}

/// Maximum number of Reads outstanding in one direction: Responder Resources has 8 bits.
const MAX_READS: usize = 256;
/// Packets of the connection for which the missing packets of a response may be late.
const LATE_PACKETS: u32 = 64;
/// Packets of the connection for which the missing packets of a response may be late once the requester has asked
/// for them again. The responder may have other responses to send first.
const ASKED_AGAIN_PACKETS: u32 = 4096;

impl Reads {
    /// Adds a Read, and forgets the oldest one if there are too many.
    pub(super) fn push(&mut self, at: i64, limit: i64, reth: Reth) {
        self.list.push_back(Read {
            reth,
            length: 0,
            packets: 0,
            began: None,
            at,
            limit,
            received: Indices::default(),
            end: None,
            waited: 0,
            patience: LATE_PACKETS,
        });
        if self.list.len() > MAX_READS {
            self.list.pop_front();
        }
    }

    /// Learns the number of packets of each response, and returns the index after the last one.
    pub(super) fn limit(&mut self, packets: impl Fn(&Reth) -> i64) -> Option<i64> {
        for read in &mut self.list {
            read.limit = read.at + packets(&read.reth);
        }
        self.list.back().map(|read| read.limit)
    }

    /// Returns whether this packet of a response has been taken already.
    pub(super) fn has(&self, at: i64) -> Option<bool> {
        let read = self.list.iter().rfind(|read| read.covers(at))?;
        Some(read.received.contains(at))
    }

    /// Takes a packet of a response.
    pub(super) fn take(
        &mut self,
        at: i64,
        opcode: Opcode,
        length: u32,
        position: Position,
    ) -> Response {
        // The limit of an earlier Read may be too high.
        let Some(index) = self.list.iter().rposition(|read| read.covers(at)) else {
            return Response::Unknown;
        };
        let read = &mut self.list[index];
        if !read.received.insert(at) {
            return Response::Again;
        }
        read.waited = 0;
        read.began.get_or_insert(position);
        let ends = matches!(opcode, Opcode::ReadResponseLast | Opcode::ReadResponseOnly);
        read.length += u64::from(length);
        read.packets += 1;
        if ends {
            read.end = Some((at + 1, position));
        }
        match read.missing() {
            Some(0) => self
                .list
                .remove(index)
                .map_or(Response::Continues, Response::Completes),
            _ => Response::Continues,
        }
    }

    /// Returns the memory of a packet of a response.
    pub(super) fn part(&self, at: i64, is_last: bool, length: u32) -> Option<Reth> {
        let read = self.list.iter().rfind(|read| read.covers(at))?;
        Some(read.part(at, is_last, length))
    }

    /// Handles a repeated request for a response from this index on.
    pub(super) fn ask_again(&mut self, at: i64) {
        if let Some(read) = self.list.iter_mut().rfind(|read| read.covers(at)) {
            read.patience = ASKED_AGAIN_PACKETS;
        }
    }

    /// Counts a packet of the connection, and returns a response whose end was seen and whose missing packets
    /// have not arrived, with their number.
    pub(super) fn tick(&mut self) -> Option<(Read, u64, Position)> {
        let ended = self.list.iter_mut().filter(|read| read.end.is_some());
        let mut is_late = false;
        for read in ended {
            read.waited += 1;
            is_late |= read.waited > read.patience;
        }
        if is_late {
            self.incomplete(|read| read.waited > read.patience)
        } else {
            None
        }
    }

    /// Returns the first response whose end was seen, at the end of the capture.
    pub(super) fn last(&mut self) -> Option<(Read, u64, Position)> {
        self.incomplete(|_| true)
    }

    fn incomplete(&mut self, is_late: impl Fn(&Read) -> bool) -> Option<(Read, u64, Position)> {
        let index = self
            .list
            .iter()
            .position(|read| read.end.is_some() && is_late(read))?;
        let read = self.list.remove(index)?;
        let (missing, (_, position)) = (read.missing()?, read.end?);
        Some((read, missing, position))
    }
}

impl Read {
    fn covers(&self, at: i64) -> bool {
        (self.at..self.limit).contains(&at)
    }

    /// Returns the memory of a packet with `length` bytes. All packets but the last have the same length.
    fn part(&self, at: i64, is_last: bool, length: u32) -> Reth {
        let start = if is_last {
            self.reth.length.saturating_sub(length).into()
        } else {
            u64::try_from(at - self.at).unwrap_or(0) * u64::from(length)
        };
        Reth {
            virtual_address: self.reth.virtual_address.wrapping_add(start),
            length,
            ..self.reth
        }
    }

    /// Returns the number of packets that are missing before the last one, once that was seen.
    fn missing(&self) -> Option<u64> {
        let (end, _) = self.end?;
        let all = u64::try_from(end - self.at).ok()?;
        Some(all.saturating_sub(self.packets))
    }
}

/// A set of indices.
#[derive(Debug, Default)]
struct Indices {
    /// Ranges in ascending order, none of which touches the next.
    ranges: Vec<(i64, i64)>,
}

/// Maximum number of ranges of a set. Real responses arrive nearly in order.
const MAX_RANGES: usize = 64;

impl Indices {
    fn contains(&self, at: i64) -> bool {
        let mut ranges = self.ranges.iter();
        ranges.any(|&(start, end)| (start..end).contains(&at))
    }

    /// Adds an index. Returns false if it was there, or if there are too many ranges.
    fn insert(&mut self, at: i64) -> bool {
        // Most packets follow the last one.
        if let Some((_, end)) = self.ranges.last_mut()
            && *end == at
        {
            *end += 1;
            return true;
        }
        let index = self.ranges.partition_point(|&(_, end)| end < at);
        let is_full = self.ranges.len() >= MAX_RANGES;
        match self.ranges.get_mut(index) {
            Some((start, end)) if (*start..*end).contains(&at) => return false,
            Some((_, end)) if *end == at => *end += 1,
            Some((start, _)) if *start == at + 1 => *start = at,
            _ if is_full => return false,
            _ => self.ranges.insert(index, (at, at + 1)),
        }
        if let [(_, end), (start, behind)] = *self.ranges.get(index..index + 2).unwrap_or_default()
            && end == start
        {
            self.ranges[index].1 = behind;
            self.ranges.remove(index + 1);
        }
        true
    }
}

/// Returns the largest and, if the path MTU is known, the real number of packets of a response.
pub(super) fn response_packets(reth: &Reth, mtu: Option<u32>) -> (i64, Option<i64>) {
    const LEAST_MTU: u32 = 256;
    let packets = |mtu| i64::from(reth.length.div_ceil(mtu).max(1));
    (packets(mtu.unwrap_or(LEAST_MTU)), mtu.map(packets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_a_set_in_any_order() {
        let orders = [
            [0, 1, 2, 3, 4, 5],
            [5, 4, 3, 2, 1, 0],
            [0, 2, 4, 5, 3, 1],
            [3, 0, 5, 1, 4, 2],
        ];
        for order in orders {
            let mut indices = Indices::default();
            for at in order {
                assert!(!indices.contains(at));
                assert!(indices.insert(at));
                assert!(!indices.insert(at), "{order:?}");
                assert!(indices.contains(at));
            }
            assert_eq!(indices.ranges, [(0, 6)], "{order:?}");
        }
    }

    #[test]
    fn a_set_is_bounded() {
        let mut indices = Indices::default();
        let added = (0..1000).filter(|at| indices.insert(at * 2)).count();
        assert_eq!((added, indices.ranges.len()), (MAX_RANGES, MAX_RANGES));
    }
}
