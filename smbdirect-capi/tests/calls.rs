//! Random sequences of calls: each succeeds or fails with a status code, every operation that was started calls
//! its callback once, and every handle can be freed at any moment.
//!
//! `SMBDIRECT_CALLS_SEED` and `SMBDIRECT_CALLS_SEQUENCES` choose other sequences.

use std::{
    collections::BTreeSet,
    env,
    ffi::{CStr, CString, c_void},
    mem::{MaybeUninit, size_of},
    ptr,
};

use fastrand::Rng;
use libc::iovec;
use smbdirect_capi::{
    buffer::*, connection::*, listener::*, query::*, receive::*, region::*, runtime::*, send::*,
    settings::*, status::*, transfer::*,
};

/// Number of handles of each kind.
const SLOTS: usize = 3;
/// Number of the kinds of calls.
const KINDS: usize = 22;

/// Operations whose callbacks are outstanding, and the memory that they were lent.
#[derive(Default)]
struct Outstanding {
    operations: BTreeSet<usize>,
    next: usize,
    /// Buffers that callbacks returned.
    returned: Vec<*mut smbdirect_buffer>,
}

/// What a callback gets: its number, and where to strike it out.
struct Ticket {
    number: usize,
    outstanding: *mut Outstanding,
}

impl Outstanding {
    fn start(&mut self) -> *mut c_void {
        self.next += 1;
        self.operations.insert(self.next);
        let ticket = Ticket {
            number: self.next,
            outstanding: self,
        };
        Box::into_raw(Box::new(ticket)).cast()
    }

    /// Takes back the ticket of an operation that was not started.
    fn withdraw(&mut self, ticket: *mut c_void) {
        // SAFETY: the ticket came from `start`, and the library does not use it.
        let ticket = unsafe { Box::from_raw(ticket.cast::<Ticket>()) };
        assert!(self.operations.remove(&ticket.number));
    }
}

unsafe extern "C" fn completed(
    _: *mut smbdirect_connection,
    error: *const smbdirect_error,
    buffer: *mut smbdirect_buffer,
    user_data: *mut c_void,
) {
    // SAFETY: the ticket came from `start`, and the state outlives the connections. The error is valid
    // during the call.
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
            check_error(error.code, error);
        }
    }
}

fn check_error(status: i32, error: &smbdirect_error) {
    assert!(status < 0 && status != SMBDIRECT_ERROR_INTERNAL && error.code == status);
    // SAFETY: the text of an error ends with a 0 byte.
    let text = unsafe { CStr::from_ptr(error.message.as_ptr()) };
    assert!(!text.to_bytes().is_empty());
}

/// The handles of one sequence.
struct World {
    runtime: *mut smbdirect_runtime,
    settings: smbdirect_settings,
    _transport: CString,
    listener: *mut smbdirect_listener,
    address: CString,
    connections: [*mut smbdirect_connection; SLOTS],
    buffers: [*mut smbdirect_buffer; SLOTS],
    regions: [*mut smbdirect_region; SLOTS],
    descriptors: Vec<smbdirect_buffer_descriptor>,
    outstanding: Box<Outstanding>,
    memory: Box<[u8]>,
    /// Number of calls of each kind that succeeded.
    succeeded: [u64; KINDS],
}

impl World {
    fn new(transport: &str) -> Self {
        let transport = CString::new(transport).unwrap();
        let mut runtime = ptr::null_mut();
        let mut listener = ptr::null_mut();
        let mut text = [0; SMBDIRECT_ADDRESS_LENGTH];
        let any = c"127.0.0.1:0".as_ptr();
        let none = ptr::null_mut();
        // SAFETY: all pointers are valid during the calls.
        unsafe {
            assert_eq!(
                smbdirect_runtime_new(1, None, 0, none, &mut runtime, ptr::null_mut()),
                0
            );
            let mut settings = MaybeUninit::uninit();
            let size = size_of::<smbdirect_settings>();
            assert_eq!(smbdirect_settings_init(settings.as_mut_ptr(), size, 0), 0);
            let mut settings = settings.assume_init();
            settings.transport = transport.as_ptr();
            settings.send_credit_target = 4;
            settings.receive_credit_max = 4;
            let listened =
                smbdirect_listen(runtime, any, &settings, &mut listener, ptr::null_mut());
            assert_eq!(listened, 0);
            let length = text.len();
            let told =
                smbdirect_listener_address(listener, text.as_mut_ptr(), length, ptr::null_mut());
            assert_eq!(told, 0);
            Self {
                runtime,
                settings,
                _transport: transport,
                listener,
                address: CStr::from_ptr(text.as_ptr()).to_owned(),
                connections: [ptr::null_mut(); SLOTS],
                buffers: [ptr::null_mut(); SLOTS],
                regions: [ptr::null_mut(); SLOTS],
                descriptors: Vec::new(),
                outstanding: Box::default(),
                memory: vec![7; 200_000].into(),
                succeeded: [0; KINDS],
            }
        }
    }

    /// Makes one random call.
    fn step(&mut self, random: &mut Rng) {
        let mut error: smbdirect_error = blank();
        let connection = self.connections[random.usize(..SLOTS)];
        let slot = random.usize(..SLOTS);
        let timeout_ms = random.i32(0..3);
        let length = [0, 1, 100, 9000, 150_000][random.usize(..5)];
        let part = iovec {
            iov_base: self.memory.as_mut_ptr().cast(),
            iov_len: length,
        };
        let descriptors = &self.descriptors[..self.descriptors.len().min(2)];
        let (first, count) = (descriptors.as_ptr(), descriptors.len());
        let data = self.memory.as_mut_ptr().cast::<c_void>();
        let error_out = &raw mut error;
        // SAFETY: handles are live or null, and lent memory lives as long as this value.
        let kind = random.usize(..KINDS);
        let status = unsafe {
            match kind {
                0..3 if self.connections[slot].is_null() => smbdirect_connect_start(
                    self.runtime,
                    self.address.as_ptr(),
                    &self.settings,
                    &mut self.connections[slot],
                    error_out,
                ),
                3 if self.connections[slot].is_null() => {
                    let out = &mut self.connections[slot];
                    smbdirect_accept(self.listener, timeout_ms, out, error_out)
                }
                4 => smbdirect_connect_finish(connection, timeout_ms, error_out),
                5 => smbdirect_send(connection, &part, 1, timeout_ms, error_out),
                6 => {
                    let token = descriptors.first().map_or(9, |descriptor| descriptor.token);
                    smbdirect_send_and_invalidate(
                        connection, &part, 1, token, timeout_ms, error_out,
                    )
                }
                7 | 8 => {
                    let ticket = self.outstanding.start();
                    let none = ptr::null();
                    let status = smbdirect_send_start(
                        connection,
                        &part,
                        1,
                        none,
                        Some(completed),
                        ticket,
                        error_out,
                    );
                    if status != 0 {
                        self.outstanding.withdraw(ticket);
                    }
                    status
                }
                9 | 10 => {
                    let none = ptr::null_mut();
                    smbdirect_recv(connection, &part, 1, timeout_ms, none, error_out).min(1) as i32
                }
                11 => {
                    let mut message = ptr::null_mut();
                    let status =
                        smbdirect_recv_message(connection, timeout_ms, &mut message, error_out);
                    let received = smbdirect_message_length(message);
                    assert!(received == 0 || !smbdirect_message_data(message).is_null());
                    smbdirect_message_free(message);
                    status
                }
                12 if self.regions[slot].is_null() => {
                    if self.buffers[slot].is_null() {
                        self.buffers[slot] = smbdirect_buffer_new(length);
                    }
                    let status = smbdirect_register(
                        connection,
                        &mut self.buffers[slot],
                        random.u32(..9),
                        &mut self.regions[slot],
                        error_out,
                    );
                    if status == 0 {
                        let mut descriptor = smbdirect_buffer_descriptor {
                            offset: 0,
                            token: 0,
                            length: 0,
                        };
                        smbdirect_region_descriptor(self.regions[slot], &mut descriptor, error_out);
                        self.descriptors.insert(0, descriptor);
                    }
                    status
                }
                13 if self.buffers[slot].is_null() => {
                    let out = &mut self.buffers[slot];
                    smbdirect_deregister(self.regions[slot], timeout_ms, out, error_out)
                }
                14 => {
                    smbdirect_region_free(self.regions[slot]);
                    self.regions[slot] = ptr::null_mut();
                    0
                }
                15 => {
                    let ticket = self.outstanding.start();
                    let status = smbdirect_read_start(
                        connection,
                        first,
                        count,
                        random.u64(..3),
                        &mut self.buffers[slot],
                        Some(completed),
                        ticket,
                        error_out,
                    );
                    if status != 0 {
                        self.outstanding.withdraw(ticket);
                    }
                    status
                }
                16 => {
                    let ticket = self.outstanding.start();
                    let status = smbdirect_write_start(
                        connection,
                        first,
                        count,
                        random.u64(..3),
                        data,
                        length,
                        Some(completed),
                        ticket,
                        error_out,
                    );
                    if status != 0 {
                        self.outstanding.withdraw(ticket);
                    }
                    status
                }
                17 => smbdirect_service(connection, error_out).min(0),
                18 => smbdirect_runtime_run(self.runtime, timeout_ms, error_out),
                19 if random.u8(..8) == 0 => smbdirect_close(connection, timeout_ms, error_out),
                20 if random.u8(..8) == 0 => smbdirect_abort(connection, error_out),
                21 if random.u8(..8) == 0 => {
                    let at = slot;
                    smbdirect_connection_free(self.connections[at]);
                    self.connections[at] = ptr::null_mut();
                    0
                }
                _ => smbdirect_get_fd(connection, error_out).min(0),
            }
        };
        match status {
            0.. => self.succeeded[kind] += 1,
            ..0 => check_error(status, &error),
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
            for buffer in self
                .buffers
                .into_iter()
                .chain(self.outstanding.returned.drain(..))
            {
                smbdirect_buffer_free(buffer);
            }
        }
        assert!(
            self.outstanding.operations.is_empty(),
            "an operation without a callback"
        );
    }
}

fn blank() -> smbdirect_error {
    smbdirect_error {
        code: 0,
        message: [0; 252],
    }
}

#[test]
fn random_calls_fail_with_status_codes_only() {
    let number = |name, default| {
        let text = env::var(name).ok();
        text.map_or(default, |text| text.parse::<u64>().unwrap())
    };
    let mut succeeded = [0; KINDS];
    let first = number("SMBDIRECT_CALLS_SEED", 1);
    for seed in first..first + number("SMBDIRECT_CALLS_SEQUENCES", 100) {
        let mut random = Rng::with_seed(seed);
        let transport = if seed % 2 == 0 { "iwarp" } else { "loopback" };
        println!("seed {seed}: {transport}");
        let mut world = World::new(transport);
        for _ in 0..random.usize(10..300) {
            world.step(&mut random);
        }
        for (sum, count) in succeeded.iter_mut().zip(world.succeeded) {
            *sum += count;
        }
    }
    println!("calls of each kind that succeeded: {succeeded:?}");
    assert!(succeeded.iter().all(|count| *count > 0), "{succeeded:?}");
}
