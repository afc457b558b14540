//! The C objects of a queue pair: the queue pair itself, its completion queue, and the channel that
//! announces completions. All `unsafe` of `queue_pair` is here, except for the two calls that post
//! work, which rely on the ledger to keep memory alive.

use std::{
    ffi::{CStr, c_int},
    io,
    os::fd::{AsRawFd, RawFd},
    ptr,
    sync::Arc,
};

use smbdirect::rdma::work::ProviderError;
use tokio::io::unix::AsyncFd;
use tracing::debug;

use crate::{
    cm::{self, CmId},
    config::VerbsConfig,
    device::Device,
    error::{local_error, log_ffi_error, memory_limit_hint},
    ffi::{
        self, Functions, Object, ibv_comp_channel, ibv_cq, ibv_qp, ibv_qp_cap, ibv_qp_init_attr,
        ibv_recv_wr, ibv_send_wr, ibv_wc,
    },
    memory::Domain,
};

/// Send queue entries reserved for internal work: window bindings and startup probes.
pub(super) const RESERVED_SEND_ENTRIES: u32 = 32;

/// A queue pair of libibverbs. While it lives the adapter may execute posted work.
pub(super) struct Qp {
    qp: Object<ibv_qp>,
    id: Arc<CmId>,
    /// The protection domain outlives the queue pair.
    _domain: Arc<Domain>,
    /// The completion queue outlives the queue pair.
    _cq: Arc<Cq>,
}

impl Qp {
    /// Creates a queue pair as deep as `config` asks and the device allows, and one completion queue
    /// for both directions. Returns them with the depths that were requested. The device may provide more.
    pub(super) fn create(
        domain: &Arc<Domain>,
        id: &Arc<CmId>,
        config: &VerbsConfig,
        device: &Device,
    ) -> Result<(Self, Arc<Cq>, ibv_qp_cap), ProviderError> {
        let (most, completions) = (device.max_queue, device.max_completions);
        let (mut send, mut receive) = queue_depths(config, most, completions).ok_or_else(|| {
            local_error(&format!(
                "the device's queues hold only {most} requests and {completions} completions"
            ))
        })?;
        loop {
            let elements = device.send_elements();
            let error = match Self::with_depths(domain, id, send, receive, elements) {
                Ok(new) => return Ok(new),
                Err(error) => error,
            };
            // The device may have fewer free entries than its attributes promise.
            let (fewer_sends, fewer_receives) = (send / 2, receive / 2);
            if fewer_sends <= RESERVED_SEND_ENTRIES + 2 || fewer_receives < 4 {
                let what = format!(
                    "no queue pair can be made: {error}{}",
                    memory_limit_hint(&error)
                );
                return Err(local_error(&what));
            }
            id.span()
                .in_scope(|| debug!(%error, send, receive, "a smaller queue pair is tried"));
            (send, receive) = (fewer_sends, fewer_receives);
        }
    }

    fn with_depths(
        domain: &Arc<Domain>,
        id: &Arc<CmId>,
        send: u32,
        receive: u32,
        send_elements: u32,
    ) -> io::Result<(Self, Arc<Cq>, ibv_qp_cap)> {
        let cq = Cq::new(id, send + receive)?;
        let cap = ibv_qp_cap {
            max_send_wr: send,
            max_recv_wr: receive,
            max_send_sge: send_elements,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: cq.cq.raw(),
            recv_cq: cq.cq.raw(),
            srq: ptr::null_mut(),
            cap,
            qp_type: ffi::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let create = id.functions().rdma_create_qp;
        // SAFETY: the domain and the completion queue belong to the identifier's device, and
        // outlive the queue pair, which holds both.
        if unsafe { create(id.raw(), domain.raw(), &mut attributes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the identifier lives, and the call above has set the field.
        let qp = Object::new(unsafe { (*id.raw()).qp })?;
        let qp = Self {
            qp,
            id: id.clone(),
            _domain: domain.clone(),
            _cq: cq.clone(),
        };
        // The library stores the depths it provides in `attributes.cap`. They may be larger; only
        // what was requested is used.
        Ok((qp, cq, cap))
    }

    /// Returns the addresses of the C objects, by which asynchronous events name them.
    pub(super) fn objects(&self) -> [usize; 2] {
        [self.qp.raw() as usize, self._cq.cq.raw() as usize]
    }

    /// Posts a chain of send work requests.
    ///
    /// # Safety
    /// The chain and its elements are valid until the call returns. The memory that they name
    /// lives until the requests have completed or the queue pair is dropped.
    pub(super) unsafe fn post_send(&self, first: &mut ibv_send_wr) -> io::Result<()> {
        let post = self.id.ops().post_send.ok_or(io::ErrorKind::Unsupported)?;
        let mut bad = ptr::null_mut();
        // SAFETY: the caller keeps the promise above; the function belongs to the queue pair's
        // device.
        check_driver(unsafe { post(self.qp.raw(), first, &mut bad) })
    }

    /// Posts a chain of receive work requests.
    ///
    /// # Safety
    /// As for [`post_send`](Self::post_send).
    pub(super) unsafe fn post_receive(&self, first: &mut ibv_recv_wr) -> io::Result<()> {
        let post = self.id.ops().post_recv.ok_or(io::ErrorKind::Unsupported)?;
        let mut bad = ptr::null_mut();
        // SAFETY: the caller keeps the promise of `post_send`; the function belongs to the queue
        // pair's device.
        check_driver(unsafe { post(self.qp.raw(), first, &mut bad) })
    }
}

/// Returns the depths of the send queue and the receive queue on a device that holds `most`
/// requests in each queue and `completions` completions. Returns `None` if the send queue would
/// have room for internal work only.
fn queue_depths(config: &VerbsConfig, most: u32, completions: u32) -> Option<(u32, u32)> {
    let send = config
        .send_queue
        .max(1)
        .saturating_add(RESERVED_SEND_ENTRIES)
        .min(most);
    let receive = config.receive_queue.max(1).min(most);
    let (send, receive) = match send.checked_add(receive) {
        Some(both) if both <= completions => (send, receive),
        _ => (completions / 2, completions / 2),
    };
    (send > RESERVED_SEND_ENTRIES && receive > 0).then_some((send, receive))
}

/// Converts the result of a driver's function, which is an error number or its negative.
fn check_driver(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the queue pair was created on this identifier and is destroyed once.
        unsafe { (self.id.functions().rdma_destroy_qp)(self.id.raw()) };
    }
}

/// Returns libibverbs' text for the status of a completion.
pub(super) fn status_text(functions: &Functions, status: u32) -> String {
    // SAFETY: the function takes any number and returns a C string that is never freed.
    let text = unsafe { CStr::from_ptr((functions.ibv_wc_status_str)(status)) };
    text.to_string_lossy().into_owned()
}

/// A completion queue. Each event read from its channel is acknowledged immediately.
pub(super) struct Cq {
    cq: Object<ibv_cq>,
    channel: Arc<CompletionChannel>,
}

impl Cq {
    fn new(id: &Arc<CmId>, entries: u32) -> io::Result<Arc<Self>> {
        let channel = Arc::new(CompletionChannel::new(id)?);
        cm::set_nonblocking(channel.as_raw_fd())?;
        let entries = c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (create, raw_channel) = (id.functions().ibv_create_cq, channel.channel.raw());
        // SAFETY: the channel belongs to the same device and outlives the queue, which holds it.
        let cq = unsafe { create(id.context(), entries, ptr::null_mut(), raw_channel, 0) };
        let cq = Object::new(cq)?;
        Ok(Arc::new(Self { cq, channel }))
    }

    /// Registers the channel with the current runtime.
    pub(super) fn register_channel(&self) -> io::Result<AsyncFd<Arc<CompletionChannel>>> {
        // SAFETY: the channel keeps its file descriptor open while it lives, and always returns
        // the same one.
        unsafe { cm::register(self.channel.clone()) }
    }

    /// Takes completions and returns their number.
    pub(super) fn poll(&self, completions: &mut [ibv_wc]) -> io::Result<usize> {
        let poll = self
            .channel
            .id
            .ops()
            .poll_cq
            .ok_or(io::ErrorKind::Unsupported)?;
        let most = completions.len() as c_int;
        // SAFETY: the slice has room for `most` completions; the function belongs to the queue's
        // device.
        let count = unsafe { poll(self.cq.raw(), most, completions.as_mut_ptr()) };
        match usize::try_from(count) {
            Ok(count) if count <= completions.len() => Ok(count),
            _ => Err(io::Error::from_raw_os_error(count.wrapping_abs())),
        }
    }

    /// Arms the notification: the next completion produces an event on the channel.
    pub(super) fn arm(&self) -> io::Result<()> {
        let arm = self
            .channel
            .id
            .ops()
            .req_notify_cq
            .ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the function belongs to the queue's device.
        check_driver(unsafe { arm(self.cq.raw(), 0) })
    }

    /// Takes an event from the channel and returns whether there was one.
    pub(super) fn take_event(&self) -> io::Result<bool> {
        let functions = self.channel.id.functions();
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives, and both out-parameters point to pointers.
        let result = unsafe {
            (functions.ibv_get_cq_event)(self.channel.channel.raw(), &mut cq, &mut context)
        };
        if result == 0 {
            // SAFETY: this is the only queue of the channel, and one event was taken.
            unsafe { (functions.ibv_ack_cq_events)(self.cq.raw(), 1) };
            return Ok(true);
        }
        cm::read_error().map_or(Ok(false), Err)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: the queue pair holds its completion queue, so it is already destroyed; every
        // event is acknowledged.
        let error = unsafe { (self.channel.id.functions().ibv_destroy_cq)(self.cq.raw()) };
        log_ffi_error(self.channel.id.span(), "ibv_destroy_cq", error);
    }
}

/// The channel on which a completion queue announces completions.
pub(super) struct CompletionChannel {
    channel: Object<ibv_comp_channel>,
    id: Arc<CmId>,
}

impl CompletionChannel {
    fn new(id: &Arc<CmId>) -> io::Result<Self> {
        // SAFETY: the identifier keeps its device open, so the context is valid.
        let channel = unsafe { (id.functions().ibv_create_comp_channel)(id.context()) };
        Ok(Self {
            channel: Object::new(channel)?,
            id: id.clone(),
        })
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the library set the field when it created the channel and does not change it.
        unsafe { (*self.channel.raw()).fd }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: the completion queue holds its channel, so it is already destroyed.
        let error = unsafe { (self.id.functions().ibv_destroy_comp_channel)(self.channel.raw()) };
        log_ffi_error(self.id.span(), "ibv_destroy_comp_channel", error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_depths_stay_within_the_device() {
        const RESERVED: u32 = RESERVED_SEND_ENTRIES;
        let config = VerbsConfig::default();
        let depths = |most, completions| queue_depths(&config, most, completions);
        assert_eq!(depths(1 << 14, 1 << 15), Some((512 + RESERVED, 512)));
        assert_eq!(depths(128, 1 << 15), Some((128, 128)));
        assert_eq!(depths(1 << 14, 200), Some((100, 100)));
        assert_eq!(
            depths(RESERVED + 1, 1 << 15),
            Some((RESERVED + 1, RESERVED + 1))
        );
        // The send queue has no room for a Send.
        for (most, completions) in [
            (0, 0),
            (0, 1 << 15),
            (RESERVED, 1 << 15),
            (1 << 14, 2 * RESERVED),
        ] {
            assert_eq!(depths(most, completions), None, "{most} {completions}");
        }
        let config = VerbsConfig {
            send_queue: u32::MAX,
            receive_queue: u32::MAX,
            ..config
        };
        let most = i32::MAX as u32;
        let half = most / 2;
        assert_eq!(queue_depths(&config, most, most), Some((half, half)));
        let config = VerbsConfig {
            send_queue: 0,
            receive_queue: 0,
            ..config
        };
        assert_eq!(
            queue_depths(&config, 1 << 14, 1 << 15),
            Some((RESERVED + 1, 1))
        );
    }
}
