//! The RDMA connection manager of librdmacm: event channels, events and identifiers.

use std::{
    ffi::{c_int, c_void},
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    ptr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use smbdirect::rdma::software::network::{MAX_DSCP, traffic_class};
use socket2::{SockAddr, SockAddrStorage};
use tokio::io::{Interest, unix::AsyncFd};
use tracing::{Span, debug, error_span, field, trace};

use crate::{
    error::log_ffi_error,
    ffi::{
        self, Functions, Object, ibv_context, ibv_context_ops, rdma_cm_event, rdma_cm_id,
        rdma_conn_param, rdma_event_channel,
    },
};

/// An event of the connection manager.
pub(crate) struct CmEvent {
    /// The kind, one of `RDMA_CM_EVENT_*`.
    pub(crate) kind: u32,
    /// A negated error number or the peer's reason, depending on the kind.
    pub(crate) status: i32,
    /// The peer's private data, for connection requests and established connections.
    pub(crate) private_data: Bytes,
    /// A read depth, for connection requests and established connections.
    pub(crate) responder_resources: u8,
    /// The other read depth, for connection requests and established connections.
    pub(crate) initiator_depth: u8,
    /// The new identifier of a connection request, until [`CmId::of_request`] takes it.
    request: Option<Object<rdma_cm_id>>,
}

/// A channel on which the connection manager reports events. Its file descriptor is nonblocking.
pub(crate) struct EventChannel {
    channel: Object<rdma_event_channel>,
    functions: Arc<Functions>,
    /// The span of every log line about a connection on the channel. It is the span that is current
    /// when the channel is created.
    span: Span,
}

impl EventChannel {
    pub(crate) fn new(functions: Arc<Functions>) -> io::Result<Arc<Self>> {
        // SAFETY: the function takes no arguments.
        let channel = Object::new(unsafe { (functions.rdma_create_event_channel)() })?;
        let channel = Self {
            channel,
            functions,
            span: Span::current(),
        };
        set_nonblocking(channel.as_raw_fd())?;
        Ok(Arc::new(channel))
    }

    /// Returns the functions of the two libraries.
    pub(crate) const fn library(&self) -> &Arc<Functions> {
        &self.functions
    }

    /// Takes the next event, if there is one.
    pub(crate) fn next(&self) -> io::Result<Option<CmEvent>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives, and the out-parameter points to a pointer.
        if unsafe { (self.functions.rdma_get_cm_event)(self.channel.raw(), &mut raw) } != 0 {
            return read_error().map_or(Ok(None), Err);
        }
        // SAFETY: the library has set the pointer to an event, which is valid until it is
        // acknowledged below.
        let event = unsafe { CmEvent::read(raw) };
        // SAFETY: the event is acknowledged once and not used afterwards.
        let error = unsafe { (self.functions.rdma_ack_cm_event)(raw) };
        log_ffi_error(&self.span, "rdma_ack_cm_event", error);
        Ok(Some(event))
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel lives; the library set the field and does not change it.
        unsafe { (*self.channel.raw()).fd }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: identifiers hold their channel, so none is left, and each event is acknowledged as
        // soon as it is read.
        unsafe { (self.functions.rdma_destroy_event_channel)(self.channel.raw()) };
    }
}

impl CmEvent {
    /// Copies an event of the library.
    ///
    /// # Safety
    /// `raw` points to an event that is not acknowledged yet.
    unsafe fn read(raw: *const rdma_cm_event) -> Self {
        // SAFETY: the caller guarantees that the event is valid.
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
            read.request = Object::new(event.id).ok();
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
                // SAFETY: for these kinds of event `conn` is the valid member of the union, and it
                // holds the address and the length of the private data.
                let data = unsafe { std::slice::from_raw_parts(conn.private_data.cast(), length) };
                read.private_data = Bytes::copy_from_slice(data);
            }
        }
        read
    }
}

/// An event channel that is registered with a tokio runtime.
pub(crate) struct CmEvents {
    fd: AsyncFd<Arc<EventChannel>>,
}

impl CmEvents {
    /// Registers the channel with the current runtime.
    pub(crate) fn new(channel: Arc<EventChannel>) -> io::Result<Self> {
        // SAFETY: the channel keeps its file descriptor open while it lives, and always returns the
        // same one.
        let fd = unsafe { register(channel)? };
        Ok(Self { fd })
    }

    /// Waits for the next event.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub(crate) async fn next(&self) -> io::Result<CmEvent> {
        loop {
            let mut ready = self.fd.readable().await?;
            match self.fd.get_ref().next()? {
                Some(event) => return Ok(event),
                None => ready.clear_ready(),
            }
        }
    }

    /// Returns the next event, or `Pending` and wakes the task when there is one.
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

/// The read depths that the two ends exchange when they connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadDepths {
    /// RDMA Reads by the peer that this end serves concurrently.
    pub(crate) inbound: u8,
    /// RDMA Reads that this end can have outstanding.
    pub(crate) outbound: u8,
}

/// An identifier of the connection manager, which is to RDMA what a socket is to TCP.
pub(crate) struct CmId {
    id: Object<rdma_cm_id>,
    channel: Arc<EventChannel>,
}

impl CmId {
    pub(crate) fn new(channel: Arc<EventChannel>) -> io::Result<Self> {
        let mut raw = ptr::null_mut();
        let create = channel.functions.rdma_create_id;
        // SAFETY: the channel lives, and the out-parameter points to a pointer.
        check(unsafe {
            create(
                channel.channel.raw(),
                &mut raw,
                ptr::null_mut(),
                ffi::RDMA_PS_TCP,
            )
        })?;
        let id = Object::new(raw)?;
        Ok(Self { id, channel })
    }

    /// Takes the identifier of a connection request, which is on the channel of the listener.
    /// Dropping the identifier rejects the request.
    pub(crate) fn of_request(event: &mut CmEvent, listens_on: Arc<EventChannel>) -> Option<Self> {
        let id = event.request.take()?;
        let channel = listens_on;
        Some(Self { id, channel })
    }

    /// Moves the identifier to a channel of its own, created in the current span.
    pub(crate) fn migrate(mut self) -> io::Result<Self> {
        let channel = EventChannel::new(self.channel.functions.clone())?;
        let migrate = channel.functions.rdma_migrate_id;
        // SAFETY: identifier and channel live, and every event of the identifier is acknowledged.
        check(unsafe { migrate(self.raw(), channel.channel.raw()) })?;
        self.channel = channel;
        Ok(self)
    }

    /// Creates the span of a connection from the addresses of its identifier.
    pub(crate) fn connection_span(&self) -> Span {
        let (peer, local) = (self.peer_addr().ok(), self.local_addr().ok());
        // The level is the level of the connection span of `smbdirect`: a filter that passes a line of the log
        // passes its span too.
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

    /// Returns the identifier in the library's own type.
    pub(crate) fn raw(&self) -> *mut rdma_cm_id {
        self.id.raw()
    }

    /// Returns the context of the device that the identifier is bound to, or null if it is not
    /// bound.
    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: the library sets the field when it binds the identifier, before the identifier is
        // shared.
        unsafe { (*self.raw()).verbs }
    }

    /// Returns the functions of the device's driver.
    ///
    /// # Panics
    /// Panics if the identifier is not bound.
    pub(crate) fn ops(&self) -> &ibv_context_ops {
        let context = self.context();
        assert!(!context.is_null(), "the identifier is bound to a device");
        // SAFETY: the library keeps a device open while an identifier is bound to it.
        unsafe { &(*context).ops }
    }

    /// Returns the number of the device's port that the identifier is bound to.
    pub(crate) fn port(&self) -> u8 {
        // SAFETY: the library sets the field when it binds the identifier, before the identifier is
        // shared.
        unsafe { (*self.raw()).port_num }
    }

    /// Returns whether the identifier is bound to an iWARP device.
    pub(crate) fn is_iwarp(&self) -> bool {
        let context = self.context();
        // SAFETY: a context that is not null belongs to an open device, which has a description.
        !context.is_null()
            && unsafe { (*(*context).device).transport_type } == ffi::IBV_TRANSPORT_IWARP
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        // SAFETY: the identifier lives, and the field always holds a socket address.
        let storage = unsafe { (*self.raw()).route.addr.src_storage };
        address(&storage)
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        // SAFETY: the identifier lives, and the field always holds a socket address.
        let storage = unsafe { (*self.raw()).route.addr.dst_storage };
        address(&storage)
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let address = SockAddr::from(address);
        let place = address.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the address lives until the call returns, and the function does not write to it.
        check(unsafe { (self.functions().rdma_bind_addr)(self.raw(), place) })
    }

    pub(crate) fn listen(&self, backlog: c_int) -> io::Result<()> {
        // SAFETY: the identifier lives.
        check(unsafe { (self.functions().rdma_listen)(self.raw(), backlog) })
    }

    /// Sets the DSCP of the packets of connections. An identifier that listens passes it on.
    pub(crate) fn set_dscp(&self, dscp: u8) -> io::Result<()> {
        if dscp == 0 {
            return Ok(());
        }
        if dscp > MAX_DSCP {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut class = traffic_class(dscp);
        let place = (&raw mut class).cast::<c_void>();
        let set = self.functions().rdma_set_option;
        let (level, name) = (ffi::RDMA_OPTION_ID, ffi::RDMA_OPTION_ID_TOS);
        // SAFETY: the option is a byte, which lives until the call returns.
        check(unsafe { set(self.raw(), level, name, place, size_of_val(&class)) })
    }

    /// Finds the device on the route to `address`, from the address `source` if it is given.
    pub(crate) fn resolve_address(
        &self,
        source: Option<SocketAddr>,
        address: SocketAddr,
        limit: Duration,
    ) -> io::Result<()> {
        let place = |address: &SockAddr| address.as_ptr().cast_mut().cast::<c_void>();
        let (source, address) = (source.map(SockAddr::from), SockAddr::from(address));
        let from = source.as_ref().map_or(ptr::null_mut(), place);
        let resolve = self.functions().rdma_resolve_addr;
        // SAFETY: both addresses live until the call returns, and the function does not write to them.
        check(unsafe { resolve(self.raw(), from, place(&address), milliseconds(limit)) })
    }

    pub(crate) fn resolve_route(&self, limit: Duration) -> io::Result<()> {
        let resolve = self.functions().rdma_resolve_route;
        // SAFETY: the identifier lives.
        check(unsafe { resolve(self.raw(), milliseconds(limit)) })
    }

    /// Requests a connection. On Linux' software iWARP the call blocks until TCP is connected.
    pub(crate) fn connect(&self, depths: ReadDepths, private_data: &[u8]) -> io::Result<()> {
        let mut parameters = parameters(depths, private_data);
        // SAFETY: the parameters and the private data live until the call returns.
        check(unsafe { (self.functions().rdma_connect)(self.raw(), &mut parameters) })
    }

    /// Accepts a connection request.
    pub(crate) fn accept(&self, depths: ReadDepths, private_data: &[u8]) -> io::Result<()> {
        let mut parameters = parameters(depths, private_data);
        // SAFETY: the parameters and the private data live until the call returns.
        check(unsafe { (self.functions().rdma_accept)(self.raw(), &mut parameters) })
    }

    /// Rejects a connection request.
    pub(crate) fn reject(&self) {
        // SAFETY: the identifier lives, and a null pointer with length 0 means no private data.
        let result = unsafe { (self.functions().rdma_reject)(self.raw(), ptr::null(), 0) };
        if let Err(error) = check(result) {
            self.span()
                .in_scope(|| debug!(%error, "rdma_reject failed: the peer may be gone"));
        }
    }

    /// Disconnects. A failure is only logged, because it means that there is no connection.
    pub(crate) fn disconnect(&self) {
        // SAFETY: the identifier lives.
        if let Err(error) = check(unsafe { (self.functions().rdma_disconnect)(self.raw()) }) {
            self.span().in_scope(|| trace!(%error, "rdma_disconnect"));
        }
    }
}

#[cfg(test)]
impl CmId {
    /// Returns a fake identifier whose fields are all zero and that is bound to no device.
    pub(crate) fn fake(functions: Functions) -> Arc<Self> {
        Self::fake_at(functions, -1)
    }

    /// Returns a fake identifier whose channel has this file descriptor.
    pub(crate) fn fake_at(mut functions: Functions, fd: RawFd) -> Arc<Self> {
        unsafe extern "C" fn destroy_channel(raw: *mut rdma_event_channel) {
            // SAFETY: `fake_at` allocated the channel, and it is destroyed once.
            drop(unsafe { Box::from_raw(raw) });
        }
        unsafe extern "C" fn destroy_id(raw: *mut rdma_cm_id) -> c_int {
            // SAFETY: `fake_at` allocated the identifier, and it is destroyed once.
            drop(unsafe { Box::from_raw(raw.cast::<std::mem::MaybeUninit<rdma_cm_id>>()) });
            0
        }
        functions.rdma_destroy_event_channel = destroy_channel;
        functions.rdma_destroy_id = destroy_id;
        let channel = Arc::new(EventChannel {
            channel: Object::new(Box::into_raw(Box::new(rdma_event_channel { fd }))).unwrap(),
            functions: Arc::new(functions),
            span: Span::current(),
        });
        let place = Box::new(std::mem::MaybeUninit::<rdma_cm_id>::zeroed());
        let id = Object::new(Box::into_raw(place).cast()).unwrap();
        Arc::new(Self { id, channel })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: all objects of the connection hold the identifier, so they are already released.
        let error = unsafe { (self.channel.functions.rdma_destroy_id)(self.raw()) };
        log_ffi_error(self.span(), "rdma_destroy_id", error);
    }
}

/// Retransmissions of a packet that the peer does not acknowledge: the maximum of the protocol.
const MAX_RETRIES: u8 = 7;

/// Returns the parameters of a connection request or its acceptance.
fn parameters(depths: ReadDepths, private_data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: u8::try_from(private_data.len()).expect("its length was checked"),
        responder_resources: depths.inbound,
        initiator_depth: depths.outbound,
        flow_control: 0,
        retry_count: MAX_RETRIES,
        // Credits guarantee a posted Receive for each Send. A Send without one is an error of the
        // sender, so there are no retries for a missing Receive.
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    }
}

/// Converts an address of C.
fn address(storage: &ffi::sockaddr_storage) -> io::Result<SocketAddr> {
    let mut copy = SockAddrStorage::zeroed();
    let length = copy.size_of();
    assert_eq!(length as usize, size_of_val(storage));
    // SAFETY: both types are the `sockaddr_storage` of C, and their lengths were compared above.
    unsafe { *copy.view_as::<ffi::sockaddr_storage>() = *storage };
    // SAFETY: the whole storage is initialised, and its family determines the type of the address.
    let address = unsafe { SockAddr::new(copy, length) };
    let error = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "an address of an unknown family",
        )
    };
    address.as_socket().ok_or_else(error)
}

/// Returns `limit` in milliseconds, as the C functions take it. A longer limit becomes the largest `c_int`.
fn milliseconds(limit: Duration) -> c_int {
    c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX)
}

/// Converts the result of a function that returns -1 and sets `errno` if it fails.
fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the error of a function that reads from a nonblocking descriptor, or `None` if there is nothing to read.
pub(crate) fn read_error() -> Option<io::Error> {
    let error = io::Error::last_os_error();
    let waits = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind());
    (!waits).then_some(error)
}

/// Registers a descriptor for reading with the current runtime.
///
/// # Safety
/// `fd` keeps its descriptor open while it lives, and always returns the same one.
pub(crate) unsafe fn register<T: AsRawFd>(fd: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: the promise is the same.
    let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    fd.map_err(io::Error::from)
}

/// Makes an open file descriptor nonblocking.
pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor belongs to an object of the caller, which keeps it open until the call
    // returns.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
    Ok(())
}
