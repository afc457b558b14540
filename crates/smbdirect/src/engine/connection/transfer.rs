//! RDMA Reads and Writes of a connection, from the call to the event that reports their end
//! (3.1.4.5, 3.1.4.6).

use bytes::{Bytes, BytesMut};

use super::{Connection, Kind, Role};
use crate::{
    engine::{
        error::TransferFault,
        event::{Event, TransferId},
        timer::Timer,
        transfer_queue::Done,
    },
    rdma::work::WorkRequest,
    wire::BufferDescriptorV1,
};

impl Connection {
    /// Starts a read that fills `into` from the peer's memory, beginning `offset` bytes into the
    /// memory that `descriptors` describe (3.1.4.6). Reads finish in the order they were started.
    ///
    /// # Errors
    /// Returns the fault and the buffer. Nothing was posted.
    pub fn read(
        &mut self,
        id: TransferId,
        descriptors: &[BufferDescriptorV1],
        offset: u64,
        into: BytesMut,
    ) -> Result<(), (TransferFault, BytesMut)> {
        self.touch();
        let max_piece = match self.max_piece() {
            Ok(_) if self.limits.max_outbound_reads == 0 && !into.is_empty() => {
                return Err((TransferFault::Unsupported, into));
            }
            Ok(max_piece) => max_piece,
            Err(fault) => return Err((fault, into)),
        };
        self.transfers
            .read(id, descriptors, offset, into, max_piece)?;
        self.finish_transfers();
        Ok(())
    }

    /// Starts a write of `data` to the peer's memory, beginning `offset` bytes into the memory that
    /// `descriptors` describe (3.1.4.5). The data is in place before the peer receives any message
    /// sent after this call.
    ///
    /// # Errors
    /// Returns the fault. Nothing was posted.
    pub fn write(
        &mut self,
        id: TransferId,
        descriptors: &[BufferDescriptorV1],
        offset: u64,
        data: Bytes,
    ) -> Result<(), TransferFault> {
        self.touch();
        let max_piece = self.max_piece()?;
        let (length, sequence) = (data.len() as u64, self.sequence());
        self.transfers
            .write(id, descriptors, offset, data, max_piece, sequence)?;
        self.statistics.bytes_written += length;
        self.finish_transfers();
        Ok(())
    }

    fn max_piece(&self) -> Result<u32, TransferFault> {
        match &self.role {
            Role::Established(negotiated) if !self.closing => {
                Ok(negotiated.max_read_write_size.min(self.limits.max_transfer))
            }
            _ => Err(self.unusable().into()),
        }
    }

    pub(super) fn post_write(&mut self) -> Option<WorkRequest> {
        let (to, data) = self.transfers.next_write()?;
        self.statistics.work_outstanding += 1;
        Some(WorkRequest::Write {
            id: self.work_id(Kind::Write),
            data,
            to,
        })
    }

    pub(super) fn post_read(&mut self) -> Option<WorkRequest> {
        let (from, into) = self.transfers.next_read(self.limits.max_outbound_reads)?;
        self.statistics.work_outstanding += 1;
        Some(WorkRequest::Read {
            id: self.work_id(Kind::Read),
            from,
            into,
        })
    }

    #[inline(never)]
    pub(super) fn read_done(&mut self, buffer: BytesMut) {
        self.timers.stop(Timer::Close);
        self.statistics.work_outstanding -= 1;
        self.statistics.reads += 1;
        self.statistics.bytes_read += buffer.len() as u64;
        self.transfers.read_returned(buffer);
        self.finish_transfers();
    }

    #[inline(never)]
    pub(super) fn write_done(&mut self) {
        self.timers.stop(Timer::Close);
        self.statistics.work_outstanding -= 1;
        self.statistics.writes += 1;
        self.transfers.write_returned();
        self.finish_transfers();
    }

    /// Reports the transfers that are complete.
    fn finish_transfers(&mut self) {
        while let Some(done) = self.transfers.poll_done() {
            self.transfer_done(done, true);
        }
        if matches!(self.role, Role::Closed(_)) {
            self.abandon_transfers();
        }
    }

    /// Reports as failed the transfers that can no longer complete and have no work request posted,
    /// including those whose last Read was flushed.
    pub(super) fn abandon_transfers(&mut self) {
        while let Some(done) = self.transfers.poll_abandoned() {
            self.transfer_done(done, false);
        }
    }

    fn transfer_done(&mut self, Done { id, buffer }: Done, completed: bool) {
        let event = Event::TransferDone {
            id,
            buffer,
            completed,
        };
        if completed || matches!(self.role, Role::Closed(_)) {
            self.events.push_back(event);
        } else {
            self.abandoned.push(event);
        }
    }
}
