//! A batch of send work requests in the form of C, chained for one call to the driver.

use std::{collections::HashMap, ffi::c_int};

use smbdirect::rdma::work::{Access, Token};

use super::work::{Operation, RegisteredBuffer, SendEntry};
use crate::{
    ffi::{self, ibv_send_wr, ibv_sge},
    ledger::Signal,
};

/// Work requests posted by one call to the driver, and completions taken by one call.
pub(super) const MAX_BATCH: usize = 16;

/// Send work requests in the form of C, each chained to the next.
pub(super) struct Batch {
    requests: [ibv_send_wr; MAX_BATCH],
    sges: [[ibv_sge; 2]; MAX_BATCH],
    count: usize,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            requests: Default::default(),
            sges: Default::default(),
            count: 0,
        }
    }

    /// Returns the number of requests.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// Adds the request of `entry`. `regions` holds the buffer of a binding.
    pub(super) fn add(
        &mut self,
        entry: &SendEntry,
        signal: Signal,
        regions: &HashMap<Token, RegisteredBuffer>,
    ) {
        let request = &mut self.requests[self.count];
        let elements = &mut self.sges[self.count];
        let mut count = 0;
        let mut push = |address: u64, length: u32, lkey: u32| {
            elements[count] = ibv_sge {
                addr: address,
                length,
                lkey,
            };
            count += 1;
        };
        if signal == Signal::Signaled {
            request.send_flags = ffi::IBV_SEND_SIGNALED;
        }
        match &entry.operation {
            Operation::Send { source, invalidate } => {
                request.opcode = ffi::IBV_WR_SEND;
                if let Some(token) = invalidate {
                    request.opcode = ffi::IBV_WR_SEND_WITH_INV;
                    request.invalidate_rkey = token.0;
                    // The user-space library of Linux' software iWARP reads the token here.
                    request.rdma.rkey = token.0;
                }
                source.elements(&mut push);
            }
            Operation::Write { source, to } => {
                request.opcode = ffi::IBV_WR_RDMA_WRITE;
                request.rdma.remote_addr = to.offset;
                request.rdma.rkey = to.token.0;
                source.elements(&mut push);
            }
            Operation::Read { into, from } => {
                request.opcode = ffi::IBV_WR_RDMA_READ;
                request.rdma.remote_addr = from.offset;
                request.rdma.rkey = from.token.0;
                push(into.address(), into.length() as u32, into.local_key());
            }
            Operation::Bind(token) => set_binding(request, &regions[token]),
        }
        request.num_sge = count as c_int;
        self.count += 1;
    }

    /// Sets the number of the request that was added last.
    pub(super) fn number_last(&mut self, number: u64) {
        self.requests[self.count - 1].wr_id = number;
    }

    /// Chains the requests and returns the first, if there is one.
    pub(super) fn chain(&mut self) -> Option<&mut ibv_send_wr> {
        for i in 0..self.count {
            self.requests[i].sg_list = self.sges[i].as_mut_ptr();
            if i > 0 {
                self.requests[i - 1].next = &mut self.requests[i];
            }
        }
        (self.count > 0).then(|| &mut self.requests[0])
    }
}

/// Makes `request` bind the window of `region` to its memory.
///
/// The driver dereferences the pointers to the window and to the memory region while the request
/// is posted. Both live until then, because a queued binding keeps its buffer registered.
fn set_binding(request: &mut ibv_send_wr, region: &RegisteredBuffer) {
    request.opcode = ffi::IBV_WR_BIND_MW;
    let window = region.window.as_ref().expect("a binding has a window");
    request.bind_mw.mw = window.raw();
    request.bind_mw.rkey = window.remote_key();
    let info = &mut request.bind_mw.bind_info;
    info.mr = region.buffer.raw().expect("a binding has a memory region");
    info.addr = region.buffer.address();
    info.length = region.buffer.length() as u64;
    info.mw_access_flags = window_flags(region.access) as u32;
}

/// Returns the flags of what a peer may do.
pub(super) const fn window_flags(access: Access) -> c_int {
    let mut flags = 0;
    if access.contains(Access::REMOTE_READ) {
        flags |= ffi::IBV_ACCESS_REMOTE_READ;
    }
    if access.contains(Access::REMOTE_WRITE) {
        flags |= ffi::IBV_ACCESS_REMOTE_WRITE;
    }
    flags
}
