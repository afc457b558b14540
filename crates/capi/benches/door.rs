//! The cost of the C interface: the same work through it and through the Rust interface, alternately.
//!
//! `cargo bench -p smbdirect-capi` prints medians and ratios. Both ends of each connection are in this process,
//! over iWARP on 127.0.0.1. The receiving end is the same Rust code for both.

use std::{
    cell::Cell,
    ffi::{CStr, CString, c_void},
    ptr,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use libc::iovec;
use smbdirect::{
    Access, BufferDescriptorV1, Config, Connection, Listener,
    rdma::iwarp::{Iwarp, IwarpConfig},
};
use smbdirect_capi::{
    buffer::smbdirect_buffer,
    connection::*,
    receive::*,
    region::smbdirect_buffer_descriptor,
    runtime::{smbdirect_runtime, smbdirect_runtime_new, smbdirect_runtime_run},
    send::*,
    status::smbdirect_error,
    transfer::*,
};
use tokio::runtime::{Builder, Runtime};

/// Number of turns of each side.
const TURNS: usize = 9;
/// Bytes of one bulk message or write.
const BULK: usize = 1 << 20;
/// Operations in flight.
const WINDOW: usize = 4;

/// The peer: an echo of short messages and a sink of long ones, on a thread of its own.
struct Peer {
    address: String,
    _runtime: Runtime,
}

impl Peer {
    fn start() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let provider = Iwarp::new(IwarpConfig::default());
        let any = "127.0.0.1:0";
        let bind = Listener::bind(&provider, any, Config::default());
        let mut listener = runtime.block_on(bind).unwrap();
        let address = listener.local_addr().to_string();
        runtime.spawn(async move {
            while let Ok(connection) = listener.accept().await {
                tokio::spawn(serve(connection));
            }
        });
        Self {
            address,
            _runtime: runtime,
        }
    }
}

/// Sends the descriptor of a registered buffer, then returns short messages, and answers the last message of a
/// series of long ones. The first byte of that message is 1.
async fn serve(connection: Connection) {
    let region = connection
        .register(BytesMut::zeroed(BULK), Access::REMOTE_WRITE)
        .unwrap();
    let mut descriptor = BytesMut::new();
    region.descriptor().encode(&mut descriptor);
    drop(connection.send(descriptor.freeze()));
    while let Ok(message) = connection.recv().await {
        let length = message.len();
        let bytes = message.into_bytes();
        if length < 1000 || bytes[0] == 1 {
            drop(connection.send(bytes.slice(..length.min(64))));
        }
    }
}

/// The two sides that are compared.
trait Side {
    fn echo(&mut self, count: usize);
    fn messages(&mut self, count: usize);
    fn writes(&mut self, count: usize);
}

struct Rust {
    runtime: Runtime,
    connection: Connection,
    descriptor: BufferDescriptorV1,
    bulk: Bytes,
    last: Bytes,
}

impl Rust {
    fn new(address: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let provider = Iwarp::new(IwarpConfig::default());
        let (connection, descriptor) = runtime.block_on(async {
            let connection = Connection::connect(&provider, address, Config::default())
                .await
                .unwrap();
            let message = connection.recv().await.unwrap().into_bytes();
            (
                connection,
                BufferDescriptorV1::from_bytes(&message).unwrap(),
            )
        });
        let mut last = vec![0; BULK];
        last[0] = 1;
        Self {
            runtime,
            connection,
            descriptor,
            bulk: vec![0; BULK].into(),
            last: last.into(),
        }
    }
}

impl Side for Rust {
    fn echo(&mut self, count: usize) {
        let Self {
            runtime,
            connection,
            ..
        } = self;
        runtime.block_on(async {
            for _ in 0..count {
                drop(connection.send(&[0u8; 64][..]).unwrap());
                connection.recv().await.unwrap();
            }
        });
    }

    fn messages(&mut self, count: usize) {
        let Self {
            runtime,
            connection,
            bulk,
            last,
            ..
        } = self;
        runtime.block_on(async {
            let mut flying = std::collections::VecDeque::new();
            for index in 0..count {
                let message = if index + 1 < count {
                    bulk.clone()
                } else {
                    last.clone()
                };
                flying.push_back(connection.send(message).unwrap());
                if flying.len() == WINDOW {
                    flying.pop_front().unwrap().await.unwrap();
                }
            }
            connection.recv().await.unwrap();
        });
    }

    fn writes(&mut self, count: usize) {
        let Self {
            runtime,
            connection,
            bulk,
            descriptor,
            ..
        } = self;
        runtime.block_on(async {
            let mut flying = std::collections::VecDeque::new();
            for _ in 0..count {
                flying.push_back(connection.write(&[*descriptor], 0, bulk.clone()));
                if flying.len() == WINDOW {
                    flying.pop_front().unwrap().await.unwrap();
                }
            }
            drop(connection.send(&[0u8; 64][..]).unwrap());
            connection.recv().await.unwrap();
        });
    }
}

struct C {
    runtime: *mut smbdirect_runtime,
    connection: *mut smbdirect_connection,
    descriptor: smbdirect_buffer_descriptor,
    bulk: Vec<u8>,
    last: Vec<u8>,
    /// Operations whose callbacks were not called. Callbacks have a pointer to it.
    flying: Box<Cell<usize>>,
}

unsafe extern "C" fn completed(
    _: *mut smbdirect_connection,
    error: *const smbdirect_error,
    _: *mut smbdirect_buffer,
    flying: *mut c_void,
) {
    assert!(error.is_null());
    // SAFETY: the argument is the counter, which lives as long as the side.
    let flying = unsafe { &*flying.cast::<Cell<usize>>() };
    flying.set(flying.get() - 1);
}

fn ok(status: i64, error: &smbdirect_error) -> i64 {
    // SAFETY: the text of an error ends with a 0 byte.
    let text = unsafe { CStr::from_ptr(error.message.as_ptr()) };
    assert!(status >= 0, "{}", text.to_string_lossy());
    status
}

fn blank() -> smbdirect_error {
    smbdirect_error {
        code: 0,
        message: [0; 252],
    }
}

fn part(bytes: &[u8]) -> iovec {
    iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

impl C {
    fn new(address: &str) -> Self {
        let address = CString::new(address).unwrap();
        let mut error = blank();
        let (mut runtime, mut connection) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: all pointers are valid during the calls.
        unsafe {
            let none = ptr::null_mut();
            smbdirect_runtime_new(1, None, 0, none, &mut runtime, &mut error);
            let settings = ptr::null();
            let text = address.as_ptr();
            let status =
                smbdirect_connect(runtime, text, settings, 10_000, &mut connection, &mut error);
            ok(status.into(), &error);
        }
        let mut last = vec![0; BULK];
        last[0] = 1;
        let mut side = Self {
            runtime,
            connection,
            descriptor: smbdirect_buffer_descriptor {
                offset: 0,
                token: 0,
                length: 0,
            },
            bulk: vec![0; BULK],
            last,
            flying: Box::default(),
        };
        let mut encoded = [0; 16];
        side.receive(&mut encoded);
        let decoded = BufferDescriptorV1::from_bytes(&encoded).unwrap();
        side.descriptor = smbdirect_buffer_descriptor {
            offset: decoded.offset,
            token: decoded.token,
            length: decoded.length,
        };
        side
    }

    fn receive(&self, into: &mut [u8]) {
        let mut error = blank();
        let room = part(into);
        let none = ptr::null_mut();
        // SAFETY: all pointers are valid during the call.
        let status = unsafe { smbdirect_recv(self.connection, &room, 1, 60_000, none, &mut error) };
        ok(status, &error);
    }

    fn send(&self, bytes: &[u8]) {
        let mut error = blank();
        let message = part(bytes);
        // SAFETY: all pointers are valid during the call.
        let status = unsafe { smbdirect_send(self.connection, &message, 1, 60_000, &mut error) };
        ok(status.into(), &error);
    }

    /// Lets the connection work until fewer operations than `limit` are in flight.
    fn drain(&self, limit: usize) {
        let mut error = blank();
        while self.flying.get() >= limit {
            // SAFETY: the handles are live.
            unsafe {
                if smbdirect_service(self.connection, &mut error) == 0 {
                    smbdirect_runtime_run(self.runtime, 60_000, &mut error);
                }
            }
        }
    }
}

impl Side for C {
    fn echo(&mut self, count: usize) {
        let mut room = [0; 64];
        for _ in 0..count {
            self.send(&[0; 64]);
            self.receive(&mut room);
        }
    }

    fn messages(&mut self, count: usize) {
        for index in 0..count {
            let bytes = if index + 1 < count {
                &self.bulk
            } else {
                &self.last
            };
            let mut error = blank();
            let message = part(bytes);
            self.flying.set(self.flying.get() + 1);
            let counter = (&raw const *self.flying).cast_mut().cast();
            // SAFETY: the memory lives longer than the operation.
            let status = unsafe {
                smbdirect_send_start(
                    self.connection,
                    &message,
                    1,
                    ptr::null(),
                    Some(completed),
                    counter,
                    &mut error,
                )
            };
            ok(status.into(), &error);
            self.drain(WINDOW);
        }
        self.drain(1);
        self.receive(&mut [0; 64]);
    }

    fn writes(&mut self, count: usize) {
        for _ in 0..count {
            let mut error = blank();
            self.flying.set(self.flying.get() + 1);
            let counter = (&raw const *self.flying).cast_mut().cast();
            // SAFETY: the memory lives longer than the operation.
            let status = unsafe {
                smbdirect_write_start(
                    self.connection,
                    &self.descriptor,
                    1,
                    0,
                    self.bulk.as_ptr().cast(),
                    BULK,
                    Some(completed),
                    counter,
                    &mut error,
                )
            };
            ok(status.into(), &error);
            self.drain(WINDOW);
        }
        self.drain(1);
        self.echo(1);
    }
}

/// Measures both sides alternately, and prints the median of each and of their ratio.
fn compare(name: &str, rust: &mut dyn Side, c: &mut dyn Side, work: impl Fn(&mut dyn Side)) {
    let time = |side: &mut dyn Side| {
        let started = Instant::now();
        work(side);
        started.elapsed()
    };
    let mut turns: Vec<(Duration, Duration)> = (0..TURNS).map(|_| (time(rust), time(c))).collect();
    let mut ratios: Vec<f64> = turns
        .iter()
        .map(|(rust, c)| rust.as_secs_f64() / c.as_secs_f64())
        .collect();
    ratios.sort_by(f64::total_cmp);
    turns.sort();
    println!(
        "{name:<16} speed of C / Rust: median {:.2}, least {:.2}, most {:.2}; Rust {:?} a turn",
        ratios[TURNS / 2],
        ratios[0],
        ratios[TURNS - 1],
        turns[TURNS / 2].0
    );
}

fn main() {
    let peer = Peer::start();
    let mut rust = Rust::new(&peer.address);
    let mut c = C::new(&peer.address);
    compare("64 B echo", &mut rust, &mut c, |side| side.echo(5000));
    compare("1 MiB messages", &mut rust, &mut c, |side| {
        side.messages(300);
    });
    compare("1 MiB writes", &mut rust, &mut c, |side| side.writes(300));
}
