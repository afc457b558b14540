//! The way of work to the adapter: memory is copied or registered when work is posted, and a flush
//! hands the queued entries to the driver in batches.

use std::{io, ptr};

use bytes::{Bytes, BytesMut};
use smbdirect::rdma::work::{Access, Completion, ProviderErrorKind, Token, WorkId, WorkRequest};
use tracing::debug;

use super::{
    Phase, VerbsQueuePair,
    batch::{Batch, MAX_BATCH, window_flags},
    work::{Operation, RegisteredBuffer, SendEntry, Source, request_length},
};
use crate::{
    ffi::{self, ibv_recv_wr, ibv_sge},
    ledger::Signal,
    memory::{OwnedRegion, Window},
};

/// Payloads up to this length are copied into a buffer of the pool, because registering them costs
/// more than copying.
const COPY_THRESHOLD_BYTES: usize = 64 << 10;
/// Over iWARP, Sends and Writes of at least this many bytes are signaled.
///
/// Linux' software iWARP sends longer unsignaled payloads from the posted buffer for as long as TCP
/// needs them, even after a later completion. The pool would reuse the buffer before that, and the
/// peer would receive the new contents.
const MIN_SIGNALED_BYTES: usize = 4096;

impl VerbsQueuePair {
    /// Posts a Receive to the adapter immediately. The adapter takes it before the connection is
    /// established too, and the peer may already rely on it.
    fn post_receive(&mut self, id: WorkId, length: u32) -> io::Result<()> {
        let slot = self.pool.take(length as usize)?;
        let mut element = ibv_sge {
            addr: slot.address(),
            // Some adapters take a length of 0 for 2 GiB, and others refuse a Receive without an
            // element. The ledger checks the received length against the posted one.
            length: length.max(1),
            lkey: slot.local_key(),
        };
        let mut request = ibv_recv_wr {
            wr_id: self.ledger.post_receive(length, (id, slot)),
            next: ptr::null_mut(),
            sg_list: &mut element,
            num_sge: 1,
        };
        let Some(qp) = &self.qp else { return Ok(()) };
        // SAFETY: the request and its element live until the call returns. The buffer they name is
        // in the ledger until the Receive completes or the queue pair is destroyed.
        let posted = unsafe { qp.post_receive(&mut request) };
        if posted.is_err() {
            self.ledger.retract_receive();
        }
        posted
    }

    /// Posts the flushed entries of the queue, as many as the adapter takes.
    pub(super) fn post_sends(&mut self) {
        if self.is_established
            && self.flushed > 0
            && !matches!(self.phase, Phase::Flushing(_) | Phase::Ended)
            && let Err(error) = self.try_post_sends()
        {
            let what = format!("the adapter takes no work: {error}");
            self.fail_connection(ProviderErrorKind::Local, what);
        }
    }

    fn try_post_sends(&mut self) -> io::Result<()> {
        while self.can_post() {
            let mut batch = Batch::new();
            while batch.len() < MAX_BATCH && self.can_post() {
                let entry = self.queue.pop_front().expect("flushed entries are queued");
                self.flushed -= 1;
                let last = batch.len() + 1 == MAX_BATCH
                    || self.next_cannot_follow()
                    || self.ledger.span() + 1 == self.send_depth;
                let signal = match entry.operation {
                    _ if entry.is_nothing() => Signal::Unposted,
                    Operation::Read { .. } | Operation::Bind(_) => Signal::Signaled,
                    _ if last || (self.is_iwarp && entry.length() >= MIN_SIGNALED_BYTES) => {
                        Signal::Signaled
                    }
                    _ => Signal::Unsignaled,
                };
                if signal != Signal::Unposted {
                    batch.add(&entry, signal, &self.regions);
                }
                let number = self.ledger.post_send(signal, entry);
                if signal != Signal::Unposted {
                    batch.number_last(number);
                }
            }
            self.complete_unposted();
            let Some(qp) = &self.qp else { break };
            if let Some(first) = batch.chain() {
                // SAFETY: the chain and its elements live until the call returns, and so do the
                // window and the region of a binding, which are in `regions`. The memory that the
                // requests name is in the ledger until they complete or the queue pair is
                // destroyed.
                unsafe { qp.post_send(first) }?;
            }
        }
        Ok(())
    }

    /// Returns whether there is a flushed entry that the adapter can take now.
    fn can_post(&self) -> bool {
        let binds = self.flushed > 0 && matches!(self.queue[0].operation, Operation::Bind(_));
        self.flushed > 0
            && self.ledger.span() < self.send_depth
            && !(binds && self.rebinds_on_retransmit && self.ledger.sends() > 0)
    }

    /// Returns whether the entry that was just taken from the queue has to be signaled, because no
    /// entry follows it, or none that can be posted before it completes.
    fn next_cannot_follow(&self) -> bool {
        let mut flushed = self.queue.iter().take(self.flushed);
        match flushed.find(|entry| !entry.is_nothing()) {
            Some(next) => {
                self.rebinds_on_retransmit && matches!(next.operation, Operation::Bind(_))
            }
            None => true,
        }
    }

    /// Copies or registers the memory of `work` and queues it; Receives are posted immediately.
    ///
    /// # Errors
    /// The memory cannot be registered. The completions of what was not queued are returned.
    pub(super) fn enqueue(
        &mut self,
        work: WorkRequest,
    ) -> Result<(), (Vec<Completion>, io::Error)> {
        let flushed = |id, buffer| vec![Completion::Flushed { id, buffer }];
        let (id, operation) = match work {
            WorkRequest::Receive { id, length, count } => {
                for count in (1..=count).rev() {
                    let left = WorkRequest::Receive { id, length, count };
                    self.post_receive(id, length)
                        .map_err(|error| (left.flushed().collect(), error))?;
                }
                return Ok(());
            }
            WorkRequest::Send {
                id,
                header,
                payload,
                invalidate,
            } => {
                let source = self.source(header.as_slice(), payload);
                let source = source.map_err(|error| (flushed(id, None), error))?;
                (id, Operation::Send { source, invalidate })
            }
            WorkRequest::Write { id, data, to } => {
                let source = self.source(&[], data);
                let source = source.map_err(|error| (flushed(id, None), error))?;
                (id, Operation::Write { source, to })
            }
            WorkRequest::Read { id, from, into } => {
                let into = self.sink(into);
                let into = into.map_err(|(into, error)| (flushed(id, Some(into)), error))?;
                (id, Operation::Read { into, from })
            }
        };
        let id = Some(id);
        self.queue.push_back(SendEntry { id, operation });
        Ok(())
    }

    /// Returns the buffer of a Read, registered unless it is empty.
    fn sink(&self, into: BytesMut) -> Result<OwnedRegion<BytesMut>, (BytesMut, io::Error)> {
        match request_length(into.len()) {
            Ok(0) => Ok(OwnedRegion::unregistered(into)),
            Ok(_) => {
                // Over iWARP the response to a Read is a Write by the peer.
                let access = if self.is_iwarp {
                    ffi::IBV_ACCESS_LOCAL_WRITE | ffi::IBV_ACCESS_REMOTE_WRITE
                } else {
                    ffi::IBV_ACCESS_LOCAL_WRITE
                };
                OwnedRegion::of_buffer(&self.domain, into, access)
            }
            Err(error) => Err((into, error)),
        }
    }

    /// Returns the source of a Send or Write: bytes that are copied if they are few, else
    /// registered in place.
    fn source(&mut self, header: &[u8], payload: Bytes) -> io::Result<Source> {
        request_length(header.len().saturating_add(payload.len()))?;
        let in_place =
            payload.len() > COPY_THRESHOLD_BYTES && (header.is_empty() || self.send_elements > 1);
        let registered = in_place
            .then(|| self.register_payload(payload.clone()))
            .flatten();
        let rest: &[u8] = if registered.is_some() { &[] } else { &payload };
        let length = header.len() + rest.len();
        if length == 0 {
            return Ok(Source {
                copied: None,
                registered,
            });
        }
        let mut slot = self.pool.take(length)?;
        slot.bytes_mut()[..header.len()].copy_from_slice(header);
        slot.bytes_mut()[header.len()..length].copy_from_slice(rest);
        let copied = Some((slot, length as u32));
        Ok(Source { copied, registered })
    }

    /// Registers a payload for reading by the adapter. Returns `None` if the adapter refuses, which
    /// happens with mapped files.
    fn register_payload(&self, payload: Bytes) -> Option<OwnedRegion<Bytes>> {
        OwnedRegion::of_payload(&self.domain, payload)
            .inspect_err(|(_, error)| {
                self.id
                    .span()
                    .in_scope(|| debug!(%error, "a payload is copied"));
            })
            .ok()
    }

    /// Registers a buffer, with a window if the peer is to invalidate it.
    pub(super) fn register_buffer(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<(OwnedRegion<BytesMut>, Option<Window>), (BytesMut, io::Error)> {
        if buffer.is_empty() {
            return Ok((OwnedRegion::unregistered(buffer), None));
        }
        let mut flags = window_flags(access);
        if access.contains(Access::REMOTE_WRITE) {
            // Verbs grant remote write access only together with local write access.
            flags |= ffi::IBV_ACCESS_LOCAL_WRITE;
        }
        // Without windows, software iWARP lets a peer invalidate plain regions.
        let invalidates_regions = self.is_iwarp && !self.has_windows;
        let windowed = access.contains(Access::REMOTE_INVALIDATE) && !invalidates_regions;
        let region_flags = if windowed {
            ffi::IBV_ACCESS_MW_BIND | flags & ffi::IBV_ACCESS_LOCAL_WRITE
        } else {
            flags
        };
        // The window is allocated first: if it fails, the buffer can be returned, which is not
        // certain once the buffer is registered.
        let window = match windowed.then(|| Window::new(&self.domain)).transpose() {
            Ok(window) => window,
            Err(error) => return Err((buffer, error)),
        };
        let buffer = OwnedRegion::of_buffer(&self.domain, buffer, region_flags)?;
        Ok((buffer, window))
    }

    /// Removes the queued binding of `token`, and returns whether it was still queued.
    pub(super) fn cancel_queued_binding(&mut self, token: Token) -> bool {
        let Some(index) = self.queue.iter().position(|entry| entry.binds(token)) else {
            return false;
        };
        self.queue.remove(index);
        self.flushed -= usize::from(index < self.flushed);
        self.internal_work -= 1;
        true
    }

    /// Returns the token of a buffer that was just registered.
    pub(super) fn token_of(
        &self,
        buffer: &OwnedRegion<BytesMut>,
        window: Option<&Window>,
    ) -> Token {
        match window {
            Some(window) => Token(window.remote_key()),
            None if buffer.is_registered() => Token(buffer.remote_key()),
            // An empty buffer needs no key of the adapter. No adapter gives keys below 0x100.
            None => (0..0x100)
                .map(Token)
                .find(|token| !self.regions.contains_key(token))
                .unwrap_or(Token(0)),
        }
    }

    /// Keeps a registered buffer under its token, and queues the binding of its window.
    pub(super) fn insert_region(
        &mut self,
        token: Token,
        buffer: OwnedRegion<BytesMut>,
        window: Option<Window>,
        access: Access,
    ) {
        let is_binding = window.is_some() && !matches!(self.phase, Phase::Ended);
        if is_binding {
            self.internal_work += 1;
            self.queue.push_back(SendEntry::bind(token));
        }
        self.regions.insert(
            token,
            RegisteredBuffer {
                window,
                buffer,
                access,
                is_binding,
                is_deregistered: false,
            },
        );
    }
}
