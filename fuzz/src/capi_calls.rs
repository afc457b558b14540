//! Calls of libsmbdirect in any order, with valid and invalid arguments: connections of one runtime with each other.
//!
//! The library makes the allocations, so a run with AddressSanitizer finds misuse of memory.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::{
    collections::BTreeSet,
    ffi::{CStr, c_void},
    io::{Read, Write},
    mem::{MaybeUninit, size_of},
    os::{fd::FromRawFd, unix::net::UnixStream},
    ptr, slice,
    sync::{Mutex, PoisonError},
};

use libc::iovec;
use smbdirect_capi::{
    buffer::*, connection::*, listener::*, query::*, receive::*, region::*, runtime::*, send::*,
    settings::*, status::*, stream::*, transfer::*,
};

use crate::input::Input;

/// Maximum number of calls of one input, because each may take milliseconds.
const MAX_CALLS: usize = 300;
/// Number of handles of each kind.
const SLOTS: usize = 3;
/// Length of the memory that is sent, in bytes.
const MEMORY_BYTES: usize = 200_000;
/// The value of every byte that is sent.
const FILL: u8 = 7;

/// Makes calls, and checks that each succeeds or fails with a status code and a text, that messages have the
/// bytes that were sent, that every operation that was started calls its callback once, that every
/// handle can be freed at any moment, and that none is lost.
pub fn capi_calls(data: &[u8]) {
    capi_calls_that_succeed(data);
}

/// Does the same, and returns the names of the calls that succeeded at least once.
pub fn capi_calls_that_succeed(data: &[u8]) -> BTreeSet<&'static str> {
    // The handles of the process are counted, so inputs of several threads run one after the other.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let handles = smbdirect_capi::live_handles();
    let mut input = Input::new(data);
    let transport = input.pick(&[c"loopback", c"iwarp"]);
    let mut world = World::new(transport);
    if !input.is_odd() {
        world.connect();
    }
    for _ in 0..MAX_CALLS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    let succeeded = std::mem::take(&mut world.succeeded);
    drop(world);
    assert_eq!(smbdirect_capi::live_handles(), handles, "a handle is lost");
    succeeded
}

/// Operations whose callbacks are outstanding.
#[derive(Default)]
struct Outstanding {
    operations: BTreeSet<usize>,
    next: usize,
    /// Buffers that callbacks returned.
    returned: Vec<*mut smbdirect_buffer>,
}

/// The argument of a callback: the number of its operation, and the set of those that are outstanding.
struct Ticket {
    number: usize,
    outstanding: *mut Outstanding,
}

impl Outstanding {
    /// Calls a function that starts an operation, and keeps its ticket if the function succeeds.
    fn start(&mut self, call: impl FnOnce(smbdirect_callback, *mut c_void) -> i32) -> i32 {
        self.next += 1;
        let number = self.next;
        self.operations.insert(number);
        let ticket = Ticket {
            number,
            outstanding: self,
        };
        let ticket: *mut Ticket = Box::into_raw(Box::new(ticket));
        let status = call(Some(completed), ticket.cast());
        if status != 0 {
            // SAFETY: the ticket was made above, and a function that fails does not keep it.
            drop(unsafe { Box::from_raw(ticket) });
            assert!(
                self.operations.remove(&number),
                "a callback after a failure"
            );
        }
        status
    }
}

unsafe extern "C" fn completed(
    _: *mut smbdirect_connection,
    error: *const smbdirect_error,
    buffer: *mut smbdirect_buffer,
    user_data: *mut c_void,
) {
    // SAFETY: the ticket came from `start`, and the set outlives the connections. The error is valid during
    // the call.
    unsafe {
        let ticket = Box::from_raw(user_data.cast::<Ticket>());
        let outstanding = &mut *ticket.outstanding;
        assert!(
            outstanding.operations.remove(&ticket.number),
            "a second callback"
        );
        if !buffer.is_null() {
            outstanding.returned.push(buffer);
        }
        if let Some(error) = error.as_ref() {
            check_error(error.code.into(), error);
        }
    }
}

fn check_error(status: i64, error: &smbdirect_error) {
    assert!(
        status < 0 && status != i64::from(SMBDIRECT_ERROR_INTERNAL),
        "{status}"
    );
    assert_eq!(i64::from(error.code), status);
    // SAFETY: the text of an error ends with a 0 byte.
    let text = unsafe { CStr::from_ptr(error.message.as_ptr()) };
    assert!(text.to_str().is_ok_and(|text| !text.is_empty()), "{text:?}");
    // SAFETY: the text of a status code is static.
    let name = unsafe { CStr::from_ptr(smbdirect_strerror(error.code)) };
    assert_ne!(name, c"unknown status code");
}

fn no_error() -> smbdirect_error {
    smbdirect_error {
        code: 0,
        message: [0; 252],
    }
}

/// The handles of one input. All of them are null or live.
struct World {
    runtime: *mut smbdirect_runtime,
    settings: smbdirect_settings,
    listener: *mut smbdirect_listener,
    address: [std::ffi::c_char; SMBDIRECT_ADDRESS_LENGTH],
    connections: [*mut smbdirect_connection; SLOTS],
    buffers: [*mut smbdirect_buffer; SLOTS],
    regions: [*mut smbdirect_region; SLOTS],
    descriptors: Vec<smbdirect_buffer_descriptor>,
    streams: Vec<UnixStream>,
    /// A stream was used. A frame that was written in part makes the next one wrong, so that messages can have
    /// other bytes.
    has_streamed: bool,
    outstanding: Box<Outstanding>,
    succeeded: BTreeSet<&'static str>,
    /// Memory that is lent to the library, and never changes.
    memory: Box<[u8]>,
    /// Memory for results.
    results: Box<[u8]>,
}

/// Most bytes of settings: those of a program whose header is later than the library.
const MAX_SETTINGS_BYTES: usize = 4096;

/// The settings of a later header, which the library takes if the further fields are zero.
#[repr(C)]
struct LaterSettings {
    settings: smbdirect_settings,
    further: [u8; MAX_SETTINGS_BYTES],
}

impl World {
    fn new(transport: &'static CStr) -> Self {
        let (mut runtime, mut listener) = (ptr::null_mut(), ptr::null_mut());
        let mut address = [0; SMBDIRECT_ADDRESS_LENGTH];
        let mut settings = MaybeUninit::<smbdirect_settings>::uninit();
        // SAFETY: all pointers are valid during the calls, and the settings are initialised by the first.
        let settings = unsafe {
            let size = size_of::<smbdirect_settings>();
            assert_eq!(smbdirect_settings_init(settings.as_mut_ptr(), size, 0), 0);
            let mut settings = settings.assume_init();
            settings.transport = transport.as_ptr();
            settings.send_credit_target = 4;
            settings.receive_credit_max = 4;
            let none = ptr::null_mut();
            let status = smbdirect_runtime_new(1, None, 0, none, &mut runtime, ptr::null_mut());
            assert_eq!(status, 0);
            let any = c"127.0.0.1:0".as_ptr();
            let status = smbdirect_listen(runtime, any, &settings, &mut listener, ptr::null_mut());
            assert_eq!(status, 0);
            let (text, length) = (address.as_mut_ptr(), address.len());
            assert_eq!(
                smbdirect_listener_address(listener, text, length, ptr::null_mut()),
                0
            );
            settings
        };
        Self {
            runtime,
            settings,
            listener,
            address,
            connections: [ptr::null_mut(); SLOTS],
            buffers: [ptr::null_mut(); SLOTS],
            regions: [ptr::null_mut(); SLOTS],
            descriptors: Vec::new(),
            streams: Vec::new(),
            has_streamed: false,
            outstanding: Box::default(),
            succeeded: BTreeSet::new(),
            memory: vec![FILL; MEMORY_BYTES].into(),
            results: vec![0; MEMORY_BYTES].into(),
        }
    }

    /// Connects the first two connections with each other.
    fn connect(&mut self) {
        let [client, server, _] = &mut self.connections;
        let error = ptr::null_mut();
        // SAFETY: all pointers are valid during the calls, and the slots are empty.
        unsafe {
            let address = self.address.as_ptr();
            let status =
                smbdirect_connect_start(self.runtime, address, &self.settings, client, error);
            assert_eq!(status, 0);
            assert_eq!(smbdirect_accept(self.listener, 10_000, server, error), 0);
            assert_eq!(smbdirect_connect_finish(*client, 10_000, error), 0);
        }
    }

    /// Makes one call, and checks its result.
    fn step(&mut self, input: &mut Input<'_>) {
        let mut error = no_error();
        let slot = input.up_to(SLOTS as u8 - 1);
        let (name, status) = match input.up_to(4) {
            0 => self.establish(slot, input, &mut error),
            1 => self.message(slot, input, &mut error),
            2 => self.register(slot, input, &mut error),
            3 => self.transfer(slot, input, &mut error),
            _ => self.other(slot, input, &mut error),
        };
        match status {
            0.. => drop(self.succeeded.insert(name)),
            ..0 => check_error(status, &error),
        }
    }

    fn establish(
        &mut self,
        slot: usize,
        input: &mut Input<'_>,
        error: *mut smbdirect_error,
    ) -> (&'static str, i64) {
        let timeout_ms = timeout(input);
        let address = match input.byte() {
            0 => c"127.0.0.1:1".as_ptr(),
            1 => c":no port:".as_ptr(),
            2 => ptr::null(),
            _ => self.address.as_ptr(),
        };
        let mut later = LaterSettings {
            settings: self.settings,
            further: [0; MAX_SETTINGS_BYTES],
        };
        let settings = &mut later.settings;
        match input.byte() {
            0 => settings.size = input.length(MAX_SETTINGS_BYTES),
            1 => settings.max_send_size = input.any(),
            2 => settings.send_credit_target = input.any(),
            3 => settings.max_fragmented_receive_size = input.any(),
            4 => settings.transport = c"of another world".as_ptr(),
            _ => {}
        }
        let settings = (&raw const later).cast();
        let connection = &mut self.connections[slot];
        // SAFETY: handles are live or null, a slot that gets a handle is empty, texts are static or live as long as this
        // value, and the settings have as many bytes as their size says.
        let (name, status) = unsafe {
            match input.up_to(5) {
                0 if connection.is_null() => (
                    "connect_start",
                    smbdirect_connect_start(self.runtime, address, settings, connection, error),
                ),
                1 if connection.is_null() => (
                    "connect",
                    smbdirect_connect(
                        self.runtime,
                        address,
                        settings,
                        timeout_ms,
                        connection,
                        error,
                    ),
                ),
                2 if connection.is_null() => (
                    "accept",
                    smbdirect_accept(self.listener, timeout_ms, connection, error),
                ),
                3 => {
                    smbdirect_connection_free(*connection);
                    *connection = ptr::null_mut();
                    ("connection_free", 0)
                }
                4 => ("close", smbdirect_close(*connection, timeout_ms, error)),
                _ => (
                    "connect_finish",
                    smbdirect_connect_finish(*connection, timeout_ms, error),
                ),
            }
        };
        (name, status.into())
    }

    fn message(
        &mut self,
        slot: usize,
        input: &mut Input<'_>,
        error: *mut smbdirect_error,
    ) -> (&'static str, i64) {
        let timeout_ms = timeout(input);
        let connection = self.connections[slot];
        let kind = input.up_to(5);
        let memory = if kind < 3 {
            self.memory.as_ptr()
        } else {
            self.results.as_ptr()
        };
        let part = iovec {
            iov_base: memory.cast_mut().cast(),
            iov_len: length(input),
        };
        let parts = [part; 2];
        let (iov, count) = match input.byte() {
            0 => (parts.as_ptr(), -1),
            1 => (ptr::null(), 2),
            2 => (parts.as_ptr(), 0),
            // The library limits the number before it looks at the parts.
            3 => (parts.as_ptr(), i32::MAX),
            4..100 => (parts.as_ptr(), 2),
            _ => (parts.as_ptr(), 1),
        };
        let token = self.token(input);
        // SAFETY: handles are live or null. The memory that is lent does not change, and the memory for
        // results is used by nothing else.
        unsafe {
            match kind {
                0 => (
                    "send",
                    smbdirect_send(connection, iov, count, timeout_ms, error).into(),
                ),
                1 => {
                    let status = smbdirect_send_and_invalidate(
                        connection, iov, count, token, timeout_ms, error,
                    );
                    ("send_and_invalidate", status.into())
                }
                2 => {
                    let token = if input.is_odd() {
                        &raw const token
                    } else {
                        ptr::null()
                    };
                    let status = self.outstanding.start(|callback, ticket| {
                        smbdirect_send_start(connection, iov, count, token, callback, ticket, error)
                    });
                    ("send_start", status.into())
                }
                3 | 4 => {
                    let mut invalidated = 0;
                    let length =
                        smbdirect_recv(connection, iov, count, timeout_ms, &mut invalidated, error);
                    ("recv", length)
                }
                _ => {
                    let mut message = ptr::null_mut();
                    let status =
                        smbdirect_recv_message(connection, timeout_ms, &mut message, error);
                    let length = smbdirect_message_length(message);
                    if length > 0 {
                        let data = smbdirect_message_data(message).cast::<u8>();
                        let is_sent = slice::from_raw_parts(data, length)
                            .iter()
                            .all(|byte| *byte == FILL);
                        assert!(is_sent || self.has_streamed);
                    }
                    smbdirect_message_invalidated(message, &mut 0);
                    smbdirect_message_free(message);
                    ("recv_message", status.into())
                }
            }
        }
    }

    fn register(
        &mut self,
        slot: usize,
        input: &mut Input<'_>,
        error: *mut smbdirect_error,
    ) -> (&'static str, i64) {
        let (kind, timeout_ms) = (input.up_to(4), timeout(input));
        let (buffer, region) = (&mut self.buffers[slot], &mut self.regions[slot]);
        // SAFETY: handles are live or null, and a slot that gets a handle is empty.
        let (name, status) = unsafe {
            match kind {
                0 if region.is_null() => {
                    if buffer.is_null() {
                        *buffer = smbdirect_buffer_new(length(input));
                    }
                    let connection = self.connections[input.up_to(SLOTS as u8 - 1)];
                    let access = input.byte().into();
                    let status = smbdirect_register(connection, buffer, access, region, error);
                    assert_eq!(
                        status == 0,
                        buffer.is_null(),
                        "the buffer is handed over on success"
                    );
                    if status == 0 {
                        let mut descriptor = smbdirect_buffer_descriptor {
                            offset: 0,
                            token: 0,
                            length: 0,
                        };
                        smbdirect_region_descriptor(*region, &mut descriptor, error);
                        self.descriptors.insert(0, descriptor);
                    }
                    ("register", status)
                }
                1 if buffer.is_null() => {
                    let status = smbdirect_deregister(*region, timeout_ms, buffer, error);
                    assert_eq!(
                        status == 0,
                        !buffer.is_null(),
                        "the buffer is returned on success"
                    );
                    ("deregister", status)
                }
                2 => {
                    smbdirect_region_free(*region);
                    *region = ptr::null_mut();
                    ("region_free", 0)
                }
                3 => {
                    smbdirect_buffer_free(*buffer);
                    *buffer = ptr::null_mut();
                    ("buffer_free", 0)
                }
                _ => {
                    let length = smbdirect_buffer_length(*buffer);
                    if length > 0 {
                        let data = smbdirect_buffer_data(*buffer).cast::<u8>();
                        let bytes = slice::from_raw_parts_mut(data, length);
                        assert!(bytes.iter().all(|byte| [0, FILL].contains(byte)));
                        bytes.fill(FILL);
                    }
                    ("buffer_data", 0)
                }
            }
        };
        (name, status.into())
    }

    fn transfer(
        &mut self,
        slot: usize,
        input: &mut Input<'_>,
        error: *mut smbdirect_error,
    ) -> (&'static str, i64) {
        let connection = self.connections[slot];
        let descriptors = match input.byte() {
            0 => slice::from_ref(&smbdirect_buffer_descriptor {
                offset: u64::MAX - 1,
                token: 0x1000,
                length: u32::MAX,
            }),
            _ => &self.descriptors[..self.descriptors.len().min(2)],
        };
        let (first, count) = match input.byte() {
            0 => (descriptors.as_ptr(), 0),
            1 => (ptr::null(), 1),
            2 => (descriptors.as_ptr(), usize::MAX),
            _ => (descriptors.as_ptr(), descriptors.len()),
        };
        let offset = match input.byte() {
            0 => input.any(),
            byte => u64::from(byte % 3),
        };
        let (length, timeout_ms) = (length(input), timeout(input));
        let (data, results) = (
            self.memory.as_ptr().cast(),
            self.results.as_mut_ptr().cast(),
        );
        // SAFETY: handles are live or null. The memory that is lent does not change, and the memory for
        // results is used by nothing else.
        let (name, status) = unsafe {
            match input.up_to(3) {
                0 => (
                    "read",
                    smbdirect_read(
                        connection, first, count, offset, results, length, timeout_ms, error,
                    ),
                ),
                1 => (
                    "write",
                    smbdirect_write(
                        connection, first, count, offset, data, length, timeout_ms, error,
                    ),
                ),
                2 => {
                    let buffer = &raw mut self.buffers[input.up_to(SLOTS as u8 - 1)];
                    let status = self.outstanding.start(|callback, ticket| {
                        smbdirect_read_start(
                            connection, first, count, offset, buffer, callback, ticket, error,
                        )
                    });
                    ("read_start", status)
                }
                _ => {
                    let status = self.outstanding.start(|callback, ticket| {
                        smbdirect_write_start(
                            connection, first, count, offset, data, length, callback, ticket, error,
                        )
                    });
                    ("write_start", status)
                }
            }
        };
        (name, status.into())
    }

    fn other(
        &mut self,
        slot: usize,
        input: &mut Input<'_>,
        error: *mut smbdirect_error,
    ) -> (&'static str, i64) {
        let connection = self.connections[slot];
        let timeout_ms = timeout(input);
        // SAFETY: handles are live or null, and a descriptor from the library belongs to this value.
        let (name, status) = unsafe {
            match input.up_to(9) {
                0 | 1 => (
                    "runtime_run",
                    smbdirect_runtime_run(self.runtime, timeout_ms, error),
                ),
                2 | 3 => ("service", smbdirect_service(connection, error)),
                4 => (
                    "keepalive",
                    smbdirect_keepalive(connection, timeout_ms, &mut 0, error),
                ),
                5 => {
                    let mut info = MaybeUninit::<smbdirect_connection_info>::zeroed().assume_init();
                    info.size = match input.byte() {
                        0 => input.length(1000),
                        _ => size_of::<smbdirect_connection_info>(),
                    };
                    ("query", smbdirect_query(connection, &mut info, error))
                }
                6 if input.up_to(7) == 0 => ("abort", smbdirect_abort(connection, error)),
                7 if self.streams.len() < SLOTS => {
                    let mut descriptor = -1;
                    let status = smbdirect_stream(connection, &mut descriptor, error);
                    if status == 0 {
                        let stream = UnixStream::from_raw_fd(descriptor);
                        stream.set_nonblocking(true).unwrap();
                        self.streams.push(stream);
                        self.has_streamed = true;
                    }
                    ("stream", status)
                }
                8 => {
                    self.use_stream(input);
                    ("use_stream", 0)
                }
                _ => ("get_fd", smbdirect_get_fd(connection, error)),
            }
        };
        (name, status.into())
    }

    /// Writes a frame, right or wrong, to a stream, reads from it, or closes it.
    fn use_stream(&mut self, input: &mut Input<'_>) {
        let at = input.up_to(SLOTS as u8 - 1);
        let Some(stream) = self.streams.get_mut(at) else {
            return;
        };
        let length = length(input).min(0xff_ffff);
        let mut header = (length as u32).to_be_bytes();
        // Errors are those of a connection that is over, or of a full socket.
        match input.up_to(4) {
            0 => {
                let _ = stream.read(&mut self.results);
            }
            1 => drop(self.streams.swap_remove(at)),
            kind => {
                header[0] = if kind == 2 { input.byte() } else { 0 };
                let _ = stream.write(&header);
                let _ = stream.write(&self.memory[..length]);
            }
        }
    }

    /// Returns the token of a registration, or an arbitrary one.
    fn token(&self, input: &mut Input<'_>) -> u32 {
        match self.descriptors.first() {
            Some(descriptor) if input.byte() > 0 => descriptor.token,
            _ => input.any(),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: every handle is freed once. The order is another one than that of creation.
        unsafe {
            smbdirect_runtime_free(self.runtime);
            for connection in self.connections {
                smbdirect_connection_free(connection);
            }
            for region in self.regions {
                smbdirect_region_free(region);
            }
            smbdirect_listener_free(self.listener);
            let returned = self.outstanding.returned.drain(..);
            for buffer in self.buffers.into_iter().chain(returned) {
                smbdirect_buffer_free(buffer);
            }
        }
        let outstanding = &self.outstanding.operations;
        assert!(
            std::thread::panicking() || outstanding.is_empty(),
            "operations without a callback: {outstanding:?}"
        );
    }
}

/// Returns a time that calls wait, in milliseconds: mostly none.
fn timeout(input: &mut Input<'_>) -> i32 {
    match input.byte() {
        ..200 => 0,
        200..255 => 1,
        255 => 20,
    }
}

/// Returns the length of a message or buffer, in bytes.
fn length(input: &mut Input<'_>) -> usize {
    input.pick(&[0, 1, 100, 1300, 9000, 70_000, 150_000])
}
