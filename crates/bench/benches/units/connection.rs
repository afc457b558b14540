//! The handle: messages through two connections on one thread, over a provider.

use std::{collections::VecDeque, fmt::Debug, sync::Arc};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, BufferDescriptorV1, Config, Connection, Listener, MemoryRegion, Settings,
    rdma::{loopback::Loopback, provider::Provider},
};
use tokio::runtime::{Builder, Runtime};

use super::{Case, Done, Unit, content};

/// The operation on a connection, with its length in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Traffic {
    Send(usize),
    Read(usize),
    Write(usize),
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (word, traffic) in [
        ("send-64", Traffic::Send(64)),
        ("send-8112", Traffic::Send(8112)),
        ("write-1048576", Traffic::Write(1 << 20)),
        ("read-1048576", Traffic::Read(1 << 20)),
    ] {
        let name = format!("loopback/{word}");
        cases.push(Case::new(name, "message", move || {
            let provider: Arc<dyn Provider> = Arc::new(Loopback::new());
            Connections::new([provider.clone(), provider], 8136, traffic)
        }));
    }
    cases
}

/// Bytes in a batch.
const BATCH: usize = 4 << 20;
/// Largest number of messages in a batch.
const MOST: usize = 2048;
/// Outstanding messages or transfers.
const WINDOW: usize = 256;

/// Two connected ends, each with its task, on the calling thread.
#[derive(Debug)]
pub(crate) struct Connections {
    runtime: Runtime,
    pub(crate) client: Connection,
    pub(crate) server: Connection,
    traffic: Traffic,
    data: Bytes,
    /// Buffers of Reads that wait for the next.
    buffers: Vec<BytesMut>,
    descriptor: [BufferDescriptorV1; 1],
    _region: MemoryRegion,
    _listener: Listener,
}

impl Connections {
    /// Two ends whose Data Transfers have at most `segment` bytes; the client, which sends and
    /// reads and writes, has the first provider, and the server the second.
    pub(crate) fn new(providers: [Arc<dyn Provider>; 2], segment: u32, traffic: Traffic) -> Self {
        let [connecting, accepting] = providers;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let mut settings = Settings::default();
        settings.max_send_size = segment;
        let config = Config::new(settings).expect("the settings are legal");
        let (Traffic::Send(length) | Traffic::Read(length) | Traffic::Write(length)) = traffic;
        let (client, server, listener, region) = runtime.block_on(async {
            let address = "127.0.0.1:0";
            let listener = Listener::bind(&*accepting, address, config.clone()).await;
            let mut listener = listener.expect("a free port");
            let (client, server) = tokio::join!(
                Connection::connect(&*connecting, listener.local_addr(), config),
                listener.accept(),
            );
            let (client, server) = (client.expect("it listens"), server.expect("one came"));
            // Memory that may also be written is copied for each Read.
            let access = match traffic {
                Traffic::Read(_) => Access::REMOTE_READ,
                _ => Access::REMOTE_WRITE,
            };
            let region = server.register(BytesMut::zeroed(length.max(1)), access);
            (client, server, listener, region.expect("the first of them"))
        });
        Self {
            runtime,
            client,
            server,
            traffic,
            data: content(length),
            buffers: Vec::new(),
            descriptor: [region.descriptor()],
            _region: region,
            _listener: listener,
        }
    }
}

impl Connections {
    /// Moves `count` messages or transfers, of which up to `window` are outstanding, and waits for
    /// the last.
    pub(crate) fn stream(&mut self, count: usize, window: usize) {
        let Self {
            runtime,
            client,
            server,
            traffic,
            data,
            buffers,
            descriptor,
            ..
        } = self;
        runtime.block_on(async {
            match traffic {
                Traffic::Send(_) => {
                    let sending = async {
                        let mut outstanding = VecDeque::with_capacity(window);
                        for _ in 0..count {
                            if outstanding.len() == window {
                                finish(outstanding.pop_front()).await;
                            }
                            let sending = client.send(data.clone());
                            outstanding.push_back(sending.expect("the connection is there"));
                        }
                        while !outstanding.is_empty() {
                            finish(outstanding.pop_front()).await;
                        }
                    };
                    let receiving = async {
                        for _ in 0..count {
                            let message = server.recv().await.expect("a message");
                            assert_eq!(message.len(), data.len());
                        }
                    };
                    tokio::join!(sending, receiving);
                }
                Traffic::Write(_) => {
                    let mut outstanding = VecDeque::with_capacity(window);
                    for _ in 0..count {
                        if outstanding.len() == window {
                            finish(outstanding.pop_front()).await;
                        }
                        outstanding.push_back(client.write(descriptor, 0, data.clone()));
                    }
                    // A message after the last Write: when it arrives, the Writes are complete.
                    drop(client.send("done").expect("the connection is there"));
                    server.recv().await.expect("a message");
                }
                Traffic::Read(length) => {
                    buffers.resize_with(window, || BytesMut::zeroed(*length));
                    let mut outstanding = VecDeque::with_capacity(window);
                    for _ in 0..count {
                        if outstanding.len() == window {
                            buffers.push(finish(outstanding.pop_front()).await);
                        }
                        let into = buffers.pop().expect("as many as may be outstanding");
                        outstanding.push_back(client.read(descriptor, 0, into));
                    }
                    while !outstanding.is_empty() {
                        buffers.push(finish(outstanding.pop_front()).await);
                    }
                }
            }
        });
    }
}

/// The result of the oldest outstanding operation.
async fn finish<T, E: Debug>(oldest: Option<impl Future<Output = Result<T, E>>>) -> T {
    let oldest = oldest.expect("some are outstanding");
    oldest.await.expect("the connection is there")
}

impl Unit for Connections {
    fn feed(&mut self) {}

    fn run(&mut self) -> Done {
        let count = (BATCH / self.data.len()).clamp(1, MOST);
        self.stream(count, WINDOW.min(count));
        Done {
            items: count as u64,
            bytes: (count * self.data.len()) as u64,
        }
    }
}
