//! The connection manager: event channels, identifiers, and what it tells of them.

use std::{
    ffi::{c_int, c_void},
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    ptr::{self, NonNull},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use socket2::{SockAddr, SockAddrStorage};
use tokio::io::{Interest, unix::AsyncFd};
use tracing::{Span, debug, error_span, field, trace};

use crate::{
    error::log_ffi_error,
    ffi::{
        self, Functions, ibv_context, ibv_context_ops, rdma_cm_event, rdma_cm_id, rdma_conn_param,
        rdma_event_channel,
    },
};

/// What the connection manager told.
#[derive(Debug)]
pub(crate) struct CmEvent {
    /// One of `RDMA_CM_EVENT_*`.
    pub(crate) kind: u32,
    /// Depends on the kind: an error number, negated, or the peer's reason.
    pub(crate) status: i32,
    /// Of connection requests and established connections, as is what follows.
    pub(crate) private_data: Bytes,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    /// Of connection requests: the new identifier, which nobody owns yet.
    request: Option<NonNull<rdma_cm_id>>,
}

// SAFETY: the identifier in it belongs to no thread.
unsafe impl Send for CmEvent {}

/// Where the connection manager puts events. It does not block.
pub(crate) struct EventChannel {
    raw: NonNull<rdma_event_channel>,
    functions: Arc<Functions>,
    /// The span of every log line about a connection on the channel. It is the span that is current
    /// when the channel is created.
    span: Span,
}

// SAFETY: librdmacm is thread-safe, and a channel belongs to no thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    pub(crate) fn new(functions: Arc<Functions>) -> io::Result<Arc<Self>> {
        // SAFETY: it takes nothing.
        let raw = unsafe { (functions.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = Self {
            raw,
            functions,
            span: Span::current(),
        };
        set_nonblocking(channel.as_raw_fd())?;
        Ok(Arc::new(channel))
    }

    pub(crate) const fn library(&self) -> &Arc<Functions> {
        &self.functions
    }

    /// The next event, if there is one.
    pub(crate) fn next(&self) -> io::Result<Option<CmEvent>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives, and the place is one for a pointer.
        if unsafe { (self.functions.rdma_get_cm_event)(self.raw.as_ptr(), &mut raw) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the library made the event, and it stays as it is until acknowledged below.
        let event = unsafe { CmEvent::read(raw) };
        // SAFETY: it is acknowledged once, and nothing of it is looked at afterwards.
        let error = unsafe { (self.functions.rdma_ack_cm_event)(raw) };
        log_ffi_error(&self.span, "rdma_ack_cm_event", error);
        Ok(Some(event))
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the library filled it in and does not change it.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: identifiers hold their channel, so none is left, and events are acknowledged as
        // soon as they are read.
        unsafe { (self.functions.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

impl CmEvent {
    /// # Safety
    /// `raw` is an event that was not acknowledged.
    unsafe fn read(raw: *const rdma_cm_event) -> Self {
        // SAFETY: the caller's promise.
        let event = unsafe { &*raw };
        let mut read = Self {
            kind: event.event,
            status: event.status,
            private_data: Bytes::new(),
            responder_resources: 0,
            initiator_depth: 0,
            request: None,
        };
        if event.event == ffi::RDMA_CM_EVENT_CONNECT_REQUEST {
            read.request = NonNull::new(event.id);
        }
        if matches!(
            event.event,
            ffi::RDMA_CM_EVENT_CONNECT_REQUEST | ffi::RDMA_CM_EVENT_ESTABLISHED
        ) {
            let conn = &event.conn;
            read.responder_resources = conn.responder_resources;
            read.initiator_depth = conn.initiator_depth;
            if !conn.private_data.is_null() {
                let length = usize::from(conn.private_data_len);
                // SAFETY: of these kinds of event the union has this member, and it says where the
                // private data are and how many.
                let data = unsafe { std::slice::from_raw_parts(conn.private_data.cast(), length) };
                read.private_data = Bytes::copy_from_slice(data);
            }
        }
        read
    }
}

/// A channel in a runtime of tokio.
pub(crate) struct CmEvents {
    fd: AsyncFd<Arc<EventChannel>>,
}

impl CmEvents {
    pub(crate) fn new(channel: Arc<EventChannel>) -> io::Result<Self> {
        // SAFETY: the channel has its file descriptor open as long as it lives, and no other.
        let fd = unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) };
        Ok(Self {
            fd: fd.map_err(io::Error::from)?,
        })
    }

    /// Waits for the next event. Dropping the future loses none.
    pub(crate) async fn next(&self) -> io::Result<CmEvent> {
        loop {
            let mut ready = self.fd.readable().await?;
            match self.fd.get_ref().next()? {
                Some(event) => return Ok(event),
                None => ready.clear_ready(),
            }
        }
    }

    /// The next event; `Pending` wakes the context when there is one.
    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<io::Result<CmEvent>> {
        loop {
            let mut ready = std::task::ready!(self.fd.poll_read_ready(context))?;
            match self.fd.get_ref().next()? {
                Some(event) => return Poll::Ready(Ok(event)),
                None => ready.clear_ready(),
            }
        }
    }
}

/// What both ends say when they connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadDepths {
    /// RDMA Reads of the peer's to serve at once.
    pub(crate) inbound: u8,
    /// RDMA Reads of ours to have outstanding.
    pub(crate) outbound: u8,
}

/// An identifier of the connection manager: a socket, so to speak.
pub(crate) struct CmId {
    raw: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: librdmacm is thread-safe, and an identifier belongs to no thread.
unsafe impl Send for CmId {}
// SAFETY: as above; what is read of it here does not change once the identifier is bound.
unsafe impl Sync for CmId {}

impl CmId {
    pub(crate) fn new(channel: Arc<EventChannel>) -> io::Result<Self> {
        let mut raw = ptr::null_mut();
        let create = channel.functions.rdma_create_id;
        // SAFETY: the channel lives, and the place is one for a pointer.
        check(unsafe {
            create(
                channel.raw.as_ptr(),
                &mut raw,
                ptr::null_mut(),
                ffi::RDMA_PS_TCP,
            )
        })?;
        let raw = NonNull::new(raw).expect("there is one where it succeeds");
        Ok(Self { raw, channel })
    }

    /// Takes the identifier of a connection request, which is on the channel of the listener.
    /// Dropping it rejects the request.
    pub(crate) fn of_request(event: &mut CmEvent, listens_on: Arc<EventChannel>) -> Option<Self> {
        let raw = event.request.take()?;
        Some(Self {
            raw,
            channel: listens_on,
        })
    }

    /// Moves the identifier to a channel of its own, created in the current span.
    pub(crate) fn migrate(mut self) -> io::Result<Self> {
        let channel = EventChannel::new(self.channel.functions.clone())?;
        let migrate = channel.functions.rdma_migrate_id;
        // SAFETY: both live, and no event of the identifier is unacknowledged.
        check(unsafe { migrate(self.raw(), channel.raw.as_ptr()) })?;
        self.channel = channel;
        Ok(self)
    }

    /// Creates the span of a connection from the addresses of its identifier.
    pub(crate) fn connection_span(&self) -> Span {
        let (peer, local) = (self.remote_address().ok(), self.local_address().ok());
        // The same level as the span that the library creates, for the same reason.
        error_span!(
            "connection",
            peer = peer.map(field::display),
            local = local.map(field::display)
        )
    }

    /// Returns the span of every log line about the identifier.
    pub(crate) fn span(&self) -> &Span {
        &self.channel.span
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.channel.functions
    }

    pub(crate) fn channel(&self) -> &Arc<EventChannel> {
        &self.channel
    }

    pub(crate) fn raw(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    /// The device it is bound to; null before it is.
    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: the library sets it when it binds the identifier, while nobody else has it.
        unsafe { (*self.raw.as_ptr()).verbs }
    }

    /// The device's functions.
    ///
    /// # Panics
    /// If it is not bound.
    pub(crate) fn ops(&self) -> &ibv_context_ops {
        let context = self.context();
        assert!(!context.is_null(), "the identifier is bound to a device");
        // SAFETY: the library keeps a device open that an identifier is bound to.
        unsafe { &(*context).ops }
    }

    /// The device's port it is bound to.
    pub(crate) fn port(&self) -> u8 {
        // SAFETY: as for the context.
        unsafe { (*self.raw.as_ptr()).port_num }
    }

    /// Whether the device is one for iWARP.
    pub(crate) fn is_iwarp(&self) -> bool {
        let context = self.context();
        // SAFETY: a context that is not null is one of an open device.
        !context.is_null()
            && unsafe { (*(*context).device).transport_type } == ffi::IBV_TRANSPORT_IWARP
    }

    pub(crate) fn local_address(&self) -> io::Result<SocketAddr> {
        // SAFETY: the library keeps a socket address there.
        let storage = unsafe { (*self.raw.as_ptr()).route.addr.src_storage };
        address(&storage)
    }

    pub(crate) fn remote_address(&self) -> io::Result<SocketAddr> {
        // SAFETY: as above.
        let storage = unsafe { (*self.raw.as_ptr()).route.addr.dst_storage };
        address(&storage)
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let address = SockAddr::from(address);
        let place = address.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the address lives until the call returns, which does not write to it.
        check(unsafe { (self.functions().rdma_bind_addr)(self.raw(), place) })
    }

    pub(crate) fn listen(&self, backlog: c_int) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { (self.functions().rdma_listen)(self.raw(), backlog) })
    }

    pub(crate) fn resolve_address(&self, address: SocketAddr, limit: Duration) -> io::Result<()> {
        let address = SockAddr::from(address);
        let place = address.as_ptr().cast_mut().cast::<c_void>();
        let resolve = self.functions().rdma_resolve_addr;
        // SAFETY: the address lives until the call returns, which does not write to it.
        check(unsafe { resolve(self.raw(), ptr::null_mut(), place, milliseconds(limit)) })
    }

    pub(crate) fn resolve_route(&self, limit: Duration) -> io::Result<()> {
        let resolve = self.functions().rdma_resolve_route;
        // SAFETY: the identifier lives.
        check(unsafe { resolve(self.raw(), milliseconds(limit)) })
    }

    /// Asks the peer for a connection. Over iWARP in software it blocks until TCP has one.
    pub(crate) fn connect(&self, depths: ReadDepths, private_data: &[u8]) -> io::Result<()> {
        let mut parameters = parameters(depths, private_data);
        // SAFETY: parameters and private data live until the call returns.
        check(unsafe { (self.functions().rdma_connect)(self.raw(), &mut parameters) })
    }

    pub(crate) fn accept(&self, depths: ReadDepths, private_data: &[u8]) -> io::Result<()> {
        let mut parameters = parameters(depths, private_data);
        // SAFETY: as above.
        check(unsafe { (self.functions().rdma_accept)(self.raw(), &mut parameters) })
    }

    pub(crate) fn reject(&self) {
        // SAFETY: no private data are sent.
        let result = unsafe { (self.functions().rdma_reject)(self.raw(), ptr::null(), 0) };
        if let Err(error) = check(result) {
            self.span()
                .in_scope(|| debug!(%error, "rdma_reject failed: the peer may be gone"));
        }
    }

    /// Ends the connection. It fails where there is none any more, which is as good.
    pub(crate) fn disconnect(&self) {
        // SAFETY: the identifier lives.
        if let Err(error) = check(unsafe { (self.functions().rdma_disconnect)(self.raw()) }) {
            self.span().in_scope(|| trace!(%error, "rdma_disconnect"));
        }
    }
}

#[cfg(test)]
impl CmId {
    /// An identifier of nothing, made of places that nobody looks into.
    pub(crate) fn fake(functions: Functions) -> Arc<Self> {
        Self::fake_at(functions, -1)
    }

    /// The same, whose events come by `fd`.
    pub(crate) fn fake_at(mut functions: Functions, fd: RawFd) -> Arc<Self> {
        unsafe extern "C" fn destroy_channel(raw: *mut rdma_event_channel) {
            // SAFETY: it was made below, and is destroyed once.
            drop(unsafe { Box::from_raw(raw) });
        }
        unsafe extern "C" fn destroy_id(raw: *mut rdma_cm_id) -> c_int {
            // SAFETY: it was made below, and is destroyed once.
            drop(unsafe { Box::from_raw(raw.cast::<std::mem::MaybeUninit<rdma_cm_id>>()) });
            0
        }
        functions.rdma_destroy_event_channel = destroy_channel;
        functions.rdma_destroy_id = destroy_id;
        let channel = Arc::new(EventChannel {
            raw: NonNull::from(Box::leak(Box::new(rdma_event_channel { fd }))),
            functions: Arc::new(functions),
            span: Span::current(),
        });
        let place = Box::new(std::mem::MaybeUninit::<rdma_cm_id>::zeroed());
        let raw = NonNull::from(Box::leak(place)).cast();
        Arc::new(Self { raw, channel })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: whatever stands on the identifier holds it, so nothing is left.
        let error = unsafe { (self.channel.functions.rdma_destroy_id)(self.raw.as_ptr()) };
        log_ffi_error(self.span(), "rdma_destroy_id", error);
    }
}

/// How often a packet is sent again that was not acknowledged: the most there is.
const RETRIES: u8 = 7;

fn parameters(depths: ReadDepths, private_data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: u8::try_from(private_data.len()).expect("its length was checked"),
        responder_resources: depths.inbound,
        initiator_depth: depths.outbound,
        flow_control: 0,
        retry_count: RETRIES,
        // Credits see to it that there is a Receive for each Send. A peer that sends without one
        // is not waited for.
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    }
}

fn address(storage: &ffi::sockaddr_storage) -> io::Result<SocketAddr> {
    let mut copy = SockAddrStorage::zeroed();
    let length = copy.size_of();
    assert_eq!(length as usize, size_of_val(storage));
    // SAFETY: both are what C calls a `sockaddr_storage`, of this length.
    unsafe { *copy.view_as::<ffi::sockaddr_storage>() = *storage };
    // SAFETY: the storage is initialised throughout; its family says what is in it.
    let address = unsafe { SockAddr::new(copy, length) };
    let error = || io::Error::new(io::ErrorKind::InvalidData, "an address of a strange family");
    address.as_socket().ok_or_else(error)
}

fn milliseconds(limit: Duration) -> c_int {
    c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX)
}

/// The result of a function that gives -1 and `errno`.
fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the caller's object has it open until the call returns.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
    Ok(())
}
