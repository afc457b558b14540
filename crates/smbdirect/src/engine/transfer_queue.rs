//! RDMA Reads and Writes by buffer descriptors (3.1.4.5, 3.1.4.6).
//!
//! A transfer is split along the peer's descriptors into work requests, none longer than MaxReadWriteSize or the
//! limit of the provider. At most ORD reads are outstanding. The bytes of outstanding writes are also limited, so
//! that a message queued after them is sent soon.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::{error::TransferFault, event::TransferId};
use crate::{
    rdma::work::{RemoteAddress, Token},
    wire::BufferDescriptorV1,
};

/// Largest number of bytes in outstanding Writes. A single Write may be longer.
const WRITE_WINDOW_BYTES: u64 = 8 << 20;

/// A contiguous range of the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    at: RemoteAddress,
    length: u32,
}

/// The part of a transfer that has not been posted. Each piece is cut when it is posted: the peer
/// chooses the length of the pieces, and a list of all of them could be longer than the data.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pieces {
    /// The range of the current descriptor, of any length.
    first: Option<Piece>,
    /// The ranges of the further descriptors; usually there are none.
    rest: VecDeque<Piece>,
    max_piece: u32,
}

impl Pieces {
    const fn new(max_piece: u32) -> Self {
        Self {
            first: None,
            rest: VecDeque::new(),
            max_piece,
        }
    }

    fn push(&mut self, stretch: Piece) {
        match self.first {
            None => self.first = Some(stretch),
            Some(_) => self.rest.push_back(stretch),
        }
    }

    const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn next_length(&self) -> Option<u32> {
        let stretch = self.first.as_ref()?;
        Some(stretch.length.min(self.max_piece))
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let length = self.next_length()?;
        let stretch = self.first.as_mut()?;
        let at = stretch.at;
        if length == stretch.length {
            self.first = self.rest.pop_front();
        } else {
            stretch.length -= length;
            stretch.at.offset += u64::from(length);
        }
        Some(Piece { at, length })
    }
}

/// Splits `length` bytes at `offset` of the memory that `descriptors` describe into pieces of at
/// most `max_piece` bytes.
fn plan(
    descriptors: &[BufferDescriptorV1],
    mut offset: u64,
    length: usize,
    max_piece: u32,
) -> Result<Pieces, TransferFault> {
    //= SMBD-3.1.4.5-05
    let described = descriptors
        .iter()
        .map(|descriptor| u64::from(descriptor.length))
        .sum();
    let needed = offset.saturating_add(length as u64);
    if needed > described {
        return Err(TransferFault::BeyondDescriptors { needed, described });
    }
    if length > 0 && max_piece == 0 {
        return Err(TransferFault::Unsupported);
    }
    let mut pieces = Pieces::new(max_piece);
    let mut left = length as u64;
    for descriptor in descriptors {
        //= SMBD-3.1.4.5-01
        //= SMBD-3.1.4.6-01
        if offset >= u64::from(descriptor.length) {
            offset -= u64::from(descriptor.length);
            continue;
        }
        //= SMBD-3.1.4.5-02
        //= SMBD-3.1.4.5-03
        //= SMBD-3.1.4.6-02
        //= SMBD-3.1.4.6-03
        let in_this = left.min(u64::from(descriptor.length) - offset);
        let start = descriptor
            .offset
            .checked_add(offset)
            .ok_or(TransferFault::Wrap)?;
        start.checked_add(in_this).ok_or(TransferFault::Wrap)?;
        if in_this > 0 {
            let at = RemoteAddress {
                token: Token(descriptor.token),
                offset: start,
            };
            let length = in_this as u32;
            pieces.push(Piece { at, length });
        }
        left -= in_this;
        offset = 0;
        if left == 0 {
            break;
        }
    }
    Ok(pieces)
}

/// The reads and writes that have not finished.
#[derive(Debug, Default)]
pub(super) struct TransferQueue {
    reads: VecDeque<Read>,
    /// Number of `reads`, from the front, that are known to be posted completely.
    reads_posted: usize,
    /// Number of outstanding Read requests.
    reads_in_flight: u32,
    writes: VecDeque<Write>,
    writes_posted: usize,
    /// Lengths of the outstanding Write requests, oldest first.
    write_lengths: VecDeque<u32>,
    write_bytes_in_flight: u64,
    /// Read and Write requests that were ever posted.
    posted: u64,
}

#[derive(Debug)]
struct Read {
    id: TransferId,
    pieces: Pieces,
    /// The part of the buffer whose Read requests have completed.
    done: BytesMut,
    /// The part of the buffer for which no Read has been posted.
    rest: BytesMut,
    in_flight: u32,
}

#[derive(Debug)]
struct Write {
    id: TransferId,
    pieces: Pieces,
    rest: Bytes,
    in_flight: u32,
    sequence: u64,
}

/// A transfer that has finished or failed.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) id: TransferId,
    pub(super) buffer: Option<BytesMut>,
}

impl TransferQueue {
    /// Starts a read that fills `into`. An error returns the buffer.
    pub(super) fn read(
        &mut self,
        id: TransferId,
        descriptors: &[BufferDescriptorV1],
        offset: u64,
        into: BytesMut,
        max_piece: u32,
    ) -> Result<(), (TransferFault, BytesMut)> {
        match plan(descriptors, offset, into.len(), max_piece) {
            Ok(pieces) => {
                let done = BytesMut::new();
                self.reads.push_back(Read {
                    id,
                    pieces,
                    done,
                    rest: into,
                    in_flight: 0,
                });
                Ok(())
            }
            Err(fault) => Err((fault, into)),
        }
    }

    /// Starts a write of `data`; `sequence` is its number in the common sequence of messages and
    /// writes.
    pub(super) fn write(
        &mut self,
        id: TransferId,
        descriptors: &[BufferDescriptorV1],
        offset: u64,
        data: Bytes,
        max_piece: u32,
        sequence: u64,
    ) -> Result<(), TransferFault> {
        let pieces = plan(descriptors, offset, data.len(), max_piece)?;
        self.writes.push_back(Write {
            id,
            pieces,
            rest: data,
            in_flight: 0,
            sequence,
        });
        Ok(())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// Returns the number of Read and Write requests that were ever posted.
    pub(super) const fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns whether a part of a read or write has not been posted. It may have to wait for earlier
    /// reads or writes.
    pub(super) fn are_unposted(&self) -> bool {
        let reads = self.reads.iter().skip(self.reads_posted);
        let mut writes = self.writes.iter().skip(self.writes_posted);
        reads.into_iter().any(|read| !read.pieces.is_empty())
            || writes.any(|write| !write.pieces.is_empty())
    }

    /// Returns the next Read to post, if fewer than `max_outbound_reads` are outstanding.
    pub(super) fn next_read(
        &mut self,
        max_outbound_reads: u32,
    ) -> Option<(RemoteAddress, BytesMut)> {
        //= SMBD-3.1.4.6-05
        if self.reads_in_flight >= max_outbound_reads {
            return None;
        }
        while self.reads.get(self.reads_posted)?.pieces.is_empty() {
            self.reads_posted += 1;
        }
        let read = self.reads.get_mut(self.reads_posted)?;
        //= SMBD-3.1.4.6-04
        let piece = read.pieces.next()?;
        let into = read.rest.split_to(piece.length as usize);
        read.in_flight += 1;
        self.posted += 1;
        self.reads_in_flight += 1;
        Some((piece.at, into))
    }

    /// Returns the sequence number of the next write to post. Messages and writes share one sequence.
    pub(super) fn write_sequence(&mut self) -> Option<u64> {
        while self.writes.get(self.writes_posted)?.pieces.is_empty() {
            self.writes_posted += 1;
        }
        self.writes
            .get(self.writes_posted)
            .map(|write| write.sequence)
    }

    /// Returns the next Write to post, if it fits in the write window or no Write is outstanding.
    pub(super) fn next_write(&mut self) -> Option<(RemoteAddress, Bytes)> {
        self.write_sequence()?;
        let write = self.writes.get_mut(self.writes_posted)?;
        let length = write.pieces.next_length()?;
        let in_flight = self.write_bytes_in_flight;
        if in_flight > 0 && in_flight + u64::from(length) > WRITE_WINDOW_BYTES {
            return None;
        }
        //= SMBD-3.1.4.5-04
        let piece = write.pieces.next()?;
        let data = write.rest.split_to(length as usize);
        write.in_flight += 1;
        self.posted += 1;
        self.write_lengths.push_back(length);
        self.write_bytes_in_flight += u64::from(length);
        Some((piece.at, data))
    }

    /// Handles the return of a Read, completed or flushed. Requests return in the order they were
    /// posted.
    pub(super) fn read_returned(&mut self, buffer: BytesMut) {
        let read = self
            .reads
            .iter_mut()
            .find(|read| read.in_flight > 0)
            .expect("a Read completed that was posted");
        read.done.unsplit(buffer);
        read.in_flight -= 1;
        self.reads_in_flight -= 1;
    }

    /// Handles the return of a Write, completed or flushed.
    pub(super) fn write_returned(&mut self) {
        let write = self
            .writes
            .iter_mut()
            .find(|write| write.in_flight > 0)
            .expect("a Write completed that was posted");
        write.in_flight -= 1;
        let length = self
            .write_lengths
            .pop_front()
            .expect("each posted Write has a length");
        self.write_bytes_in_flight -= u64::from(length);
    }

    /// Removes and returns the oldest read or write if it is complete.
    pub(super) fn poll_done(&mut self) -> Option<Done> {
        if self
            .reads
            .front()
            .is_some_and(|read| read.pieces.is_empty() && read.in_flight == 0)
        {
            return self.pop_read();
        }
        let finished = |write: &Write| write.pieces.is_empty() && write.in_flight == 0;
        if self.writes.front().is_some_and(finished) {
            return self.pop_write();
        }
        None
    }

    /// Removes and returns the oldest read or write if it has no outstanding request, complete or
    /// not. Called after the end of the connection.
    pub(super) fn poll_abandoned(&mut self) -> Option<Done> {
        if self.reads.front().is_some_and(|read| read.in_flight == 0) {
            return self.pop_read();
        }
        if self
            .writes
            .front()
            .is_some_and(|write| write.in_flight == 0)
        {
            return self.pop_write();
        }
        None
    }

    fn pop_read(&mut self) -> Option<Done> {
        let mut read = self.reads.pop_front()?;
        self.reads_posted = self.reads_posted.saturating_sub(1);
        read.done.unsplit(read.rest);
        Some(Done {
            id: read.id,
            buffer: Some(read.done),
        })
    }

    fn pop_write(&mut self) -> Option<Done> {
        let write = self.writes.pop_front()?;
        self.writes_posted = self.writes_posted.saturating_sub(1);
        Some(Done {
            id: write.id,
            buffer: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn descriptor(offset: u64, token: u32, length: u32) -> BufferDescriptorV1 {
        BufferDescriptorV1 {
            offset,
            token,
            length,
        }
    }

    fn planned(
        descriptors: &[BufferDescriptorV1],
        offset: u64,
        length: usize,
        max_piece: u32,
    ) -> Vec<(u32, u64, u32)> {
        let pieces = plan(descriptors, offset, length, max_piece).unwrap();
        pieces
            .map(|piece| (piece.at.token.0, piece.at.offset, piece.length))
            .collect()
    }

    //= SMBD-3.1.4.5-01 test
    //= SMBD-3.1.4.5-02 test
    //= SMBD-3.1.4.5-03 test
    //= SMBD-3.1.4.6-01 test
    //= SMBD-3.1.4.6-02 test
    //= SMBD-3.1.4.6-03 test
    #[test]
    fn a_transfer_is_split_along_the_descriptors() {
        // The two descriptors that Windows uses for 1 MiB.
        let windows = [descriptor(0x1000, 1, 0xfffc0), descriptor(0x9000, 2, 0x40)];
        let all = 1 << 20;
        assert_eq!(
            planned(&windows, 0, all, 8 << 20),
            [(1, 0x1000, 0xfffc0), (2, 0x9000, 0x40)]
        );
        assert_eq!(
            planned(&windows, 0xfffc0, 0x40, 8 << 20),
            [(2, 0x9000, 0x40)]
        );
        assert_eq!(
            planned(&windows, 0xfffbf, 2, 8 << 20),
            [(1, 0x100fbf, 1), (2, 0x9000, 1)]
        );
        assert_eq!(
            planned(&windows, 16, 16, 8 << 20),
            [(1, 0x1010, 16)],
            "trimmed at both ends"
        );
        assert_eq!(planned(&windows, all as u64, 0, 8 << 20), []);
        let cut = planned(&[descriptor(0, 7, 10)], 1, 9, 4);
        assert_eq!(cut, [(7, 1, 4), (7, 5, 4), (7, 9, 1)]);
        let holes = [
            descriptor(0, 1, 0),
            descriptor(5, 2, 3),
            descriptor(0, 3, 0),
            descriptor(9, 4, 3),
        ];
        assert_eq!(
            planned(&holes, 0, 6, 100),
            [(2, 5, 3), (4, 9, 3)],
            "empty ones are skipped"
        );
    }

    #[test]
    fn an_empty_transfer_needs_no_request_and_no_memory() {
        let one = [descriptor(0, 1, 100)];
        assert_eq!(planned(&one, 10, 0, 8), []);
        assert_eq!(
            planned(&[], 0, 0, 0),
            [],
            "not even from a peer that has no RDMA"
        );
    }

    #[test]
    fn a_write_larger_than_the_window_is_posted_alone() {
        let wide = WRITE_WINDOW_BYTES as u32 + 1;
        let all = [descriptor(0, 1, u32::MAX)];
        let mut transfers = TransferQueue::default();
        let data = Bytes::from(vec![0; wide as usize + 1]);
        transfers
            .write(TransferId(1), &all, 0, data, wide, 0)
            .unwrap();
        assert_eq!(transfers.next_write().unwrap().1.len(), wide as usize);
        assert!(transfers.next_write().is_none());
        transfers.write_returned();
        assert_eq!(transfers.next_write().unwrap().1.len(), 1);
    }

    #[test]
    fn the_pieces_take_memory_per_descriptor_only() {
        let one = [descriptor(0, 1, u32::MAX)];
        let mut pieces = plan(&one, 0, u32::MAX as usize, 1).unwrap();
        assert!(pieces.first.is_some() && pieces.rest.is_empty());
        assert_eq!(pieces.nth(1000).unwrap().at.offset, 1000);
    }

    //= SMBD-3.1.4.5-05 test
    #[test]
    fn a_transfer_beyond_the_descriptors_is_refused() {
        let one = [descriptor(0, 1, 100)];
        for (offset, length) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 1)] {
            let error = plan(&one, offset, length, 10).unwrap_err();
            assert!(matches!(
                error,
                TransferFault::BeyondDescriptors { described: 100, .. }
            ));
        }
        let high = [descriptor(u64::MAX - 4, 1, 100)];
        assert_eq!(plan(&high, 0, 10, 100), Err(TransferFault::Wrap));
        assert_eq!(plan(&high, 10, 1, 100), Err(TransferFault::Wrap));
        assert!(plan(&high, 0, 4, 100).is_ok());
        assert_eq!(plan(&one, 0, 1, 0), Err(TransferFault::Unsupported));
        let mut transfers = TransferQueue::default();
        let buffer = BytesMut::zeroed(101);
        let (_, buffer) = transfers
            .read(TransferId(1), &one, 0, buffer, 10)
            .unwrap_err();
        assert_eq!(buffer.len(), 101);
        assert!(transfers.is_idle());
    }

    //= SMBD-3.1.4.6-04 test
    //= SMBD-3.1.4.6-05 test
    #[test]
    fn reads_stay_within_ord_and_return_the_whole_buffer() {
        let mut transfers = TransferQueue::default();
        let buffer: BytesMut = (0..10).collect();
        let pointer = buffer.as_ptr();
        transfers
            .read(TransferId(1), &[descriptor(0, 1, 10)], 0, buffer, 3)
            .unwrap();
        transfers
            .read(
                TransferId(2),
                &[descriptor(0, 1, 10)],
                0,
                BytesMut::zeroed(2),
                3,
            )
            .unwrap();
        let mut outstanding = VecDeque::new();
        for _ in 0..2 {
            outstanding.push_back(transfers.next_read(2).unwrap().1);
        }
        assert!(transfers.next_read(2).is_none());
        let mut done = Vec::new();
        while let Some(piece) = outstanding.pop_front() {
            transfers.read_returned(piece);
            outstanding.extend(transfers.next_read(2).map(|(_, into)| into));
            done.extend(std::iter::from_fn(|| transfers.poll_done()));
        }
        let lengths: Vec<_> = done
            .iter()
            .map(|done| (done.id.0, done.buffer.as_ref().unwrap().len()))
            .collect();
        assert_eq!(lengths, [(1, 10), (2, 2)]);
        assert_eq!(
            done[0].buffer.as_ref().unwrap().as_ptr(),
            pointer,
            "it was never copied"
        );
        assert!(transfers.is_idle());
    }

    //= SMBD-3.1.4.5-04 test
    #[test]
    fn writes_stay_within_the_window() {
        let mut transfers = TransferQueue::default();
        let data = Bytes::from(vec![0; 20 << 20]);
        transfers
            .write(
                TransferId(1),
                &[descriptor(0, 1, 20 << 20)],
                0,
                data,
                3 << 20,
                0,
            )
            .unwrap();
        let mut posted = 0;
        while transfers.next_write().is_some() {
            posted += 1;
        }
        assert_eq!(posted, 2);
        for _ in 0..7 {
            transfers.write_returned();
            while transfers.next_write().is_some() {
                posted += 1;
            }
        }
        assert_eq!(posted, 7);
        assert_eq!(transfers.poll_done().unwrap().id, TransferId(1));
        assert!(transfers.is_idle());
    }

    #[test]
    fn an_empty_transfer_is_complete_immediately() {
        let mut transfers = TransferQueue::default();
        transfers
            .read(TransferId(1), &[], 0, BytesMut::new(), 1)
            .unwrap();
        transfers
            .write(TransferId(2), &[], 0, Bytes::new(), 1, 0)
            .unwrap();
        assert_eq!(transfers.poll_done().unwrap().id, TransferId(1));
        assert_eq!(transfers.poll_done().unwrap().id, TransferId(2));
        assert!(transfers.poll_done().is_none());
    }

    proptest! {
        #[test]
        fn pieces_cover_exactly_the_requested_bytes(
            lengths in proptest::collection::vec(0_u32..50, 0..6),
            from in 0_u64..200, length in 0_usize..200, max_piece in 1_u32..60,
        ) {
            let descriptors: Vec<_> = (0..).zip(&lengths)
                .map(|(i, &length)| descriptor(1000 * u64::from(i), i, length)).collect();
            let flat: Vec<_> = descriptors.iter()
                .flat_map(|d| (0..u64::from(d.length)).map(|at| (d.token, d.offset + at))).collect();
            match plan(&descriptors, from, length, max_piece) {
                Ok(pieces) => {
                    let pieces: Vec<_> = pieces.collect();
                    prop_assert!(pieces.iter().all(|p| p.length > 0 && p.length <= max_piece));
                    let walked: Vec<_> = pieces.iter()
                        .flat_map(|p| (0..u64::from(p.length)).map(|at| (p.at.token.0, p.at.offset + at)))
                        .collect();
                    prop_assert_eq!(&walked[..], &flat[from as usize..][..length]);
                }
                Err(_) => prop_assert!(from as usize + length > flat.len()),
            }
        }
    }
}
