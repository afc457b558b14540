//! Copies in user space, found by addresses: bytes that are sent from the caller's memory, or received
//! directly into their place, were not copied.

use std::{
    io::IoSlice,
    net::SocketAddr,
    ops::Range,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use smbdirect::{
    Config, Connection, Listener,
    rdma::{
        iwarp::{Iwarp, IwarpConfig, Stream, StreamConfig, mpa},
        loopback::Loopback,
        memory::{DeregisterError, RegisterError, Registration},
        provider::{self, BoxFuture, ConnectRequest, Connected, Provider, QueuePair},
        work::{
            Access, Completion, Inline, ProviderError, RemoteAddress, Room, Teardown, Token,
            WorkId, WorkRequest,
        },
    },
};
use tokio::runtime::Builder;

use crate::units::{
    Unit,
    connection::{Connections, Traffic},
    content,
    engine::{Engines, Step},
};

/// Payloads of at least this many bytes are not copied when they are sent.
const MIN_UNCOPIED_BYTES: usize = 2048;

fn place(bytes: &[u8]) -> Range<usize> {
    let start = bytes.as_ptr() as usize;
    start..start + bytes.len()
}

/// Returns how many bytes of `slices` are inside `within`.
fn bytes_within(slices: &[IoSlice<'_>], within: &Range<usize>) -> usize {
    slices
        .iter()
        .map(|slice| place(slice))
        .filter(|slice| within.start <= slice.start && slice.end <= within.end)
        .map(|slice| slice.len())
        .sum()
}

fn stream(initiator: bool, max_fpdu: usize) -> Stream {
    Stream::new(&StreamConfig {
        initiator,
        crc: true,
        max_fpdu,
        one_fpdu_a_write: false,
        max_backlog: 512 * 1024,
        max_outbound_reads: 4,
        max_inbound_reads: 4,
        ready_to_receive: None,
    })
}

fn register(stream: &mut Stream, memory: BytesMut, access: Access) -> RemoteAddress {
    let registered = stream.memory().register(memory, access);
    registered.expect("the first registration succeeds").address
}

/// Takes all output of `stream`, and returns it with the number of its bytes inside `within`.
fn take_output(stream: &mut Stream, within: &Range<usize>) -> (Vec<u8>, usize) {
    let (mut output, mut in_place) = (Vec::new(), 0);
    while stream.prepare() > 0 {
        let mut slices = [IoSlice::new(&[]); 64];
        let count = stream.transmit_slices(&mut slices);
        in_place += bytes_within(&slices[..count], within);
        let before = output.len();
        for slice in &slices[..count] {
            output.extend_from_slice(slice);
        }
        let taken = output.len() - before;
        stream.transmitted(taken);
    }
    (output, in_place)
}

/// The longest FPDU between two ends of this stack, and for a network with an MTU of 9000 bytes.
const MAX_FPDUS: [u32; 2] = [u32::MAX, 8960];

//= PERF-02 test
#[test]
fn large_payloads_are_sent_without_a_copy() {
    let _alone = crate::alone();
    for max_fpdu in MAX_FPDUS.map(mpa::max_fpdu) {
        for length in [MIN_UNCOPIED_BYTES, 8112, 64 << 10, 1 << 20] {
            let data = content(length);
            let within = place(&data);
            let id = WorkId(1);
            let works = [
                WorkRequest::Send {
                    id,
                    header: Inline::build(|out| bytes::BufMut::put_bytes(out, 1, 24)),
                    payload: data.clone(),
                    invalidate: None,
                },
                WorkRequest::Write {
                    id,
                    data: data.clone(),
                    to: RemoteAddress {
                        token: Token(7),
                        offset: 0,
                    },
                },
            ];
            for work in works {
                let what = format!("{work:?}");
                let mut sender = stream(true, max_fpdu);
                sender.post(work);
                let (_, in_place) = take_output(&mut sender, &within);
                // The last segment may be short.
                assert!(
                    in_place + MIN_UNCOPIED_BYTES > length
                        && (length > MIN_UNCOPIED_BYTES || in_place == length),
                    "{in_place} of {length} bytes by {max_fpdu}: {}",
                    &what[..what.len().min(40)]
                );
            }
        }
    }
}

//= PERF-02 test
#[test]
fn read_responses_are_sent_without_a_copy() {
    let _alone = crate::alone();
    for length in [MIN_UNCOPIED_BYTES, 64 << 10, 1 << 20] {
        let memory = BytesMut::from(&content(length)[..]);
        let within = place(&memory);
        let max_fpdu = mpa::max_fpdu(u32::MAX);
        let (mut reader, mut source) = (stream(true, max_fpdu), stream(false, max_fpdu));
        let from = register(&mut source, memory, Access::REMOTE_READ);
        let into = BytesMut::zeroed(length);
        let target = place(&into);
        let id = WorkId(1);
        reader.post(WorkRequest::Read { id, from, into });
        source.handle_bytes(&take_output(&mut reader, &target).0);
        let (answer, in_place) = take_output(&mut source, &within);
        assert!(
            in_place + MIN_UNCOPIED_BYTES > length,
            "{in_place} of {length} bytes"
        );
        reader.handle_bytes(&answer);
        let Some(Completion::Read { buffer, .. }) = reader.poll_completion() else {
            panic!("nothing was read");
        };
        assert_eq!(place(&buffer), target, "the buffer is the caller's");
        assert!(buffer == content(length), "the data is the same");
    }
}

/// After the header of a long tagged segment has arrived, its payload is received into the tagged buffer.
//= PERF-03 test
#[test]
fn long_tagged_payloads_are_received_in_place() {
    let _alone = crate::alone();
    let length = 1 << 20;
    let max_fpdu = mpa::max_fpdu(u32::MAX);
    let (mut writer, mut target) = (stream(true, max_fpdu), stream(false, max_fpdu));
    let memory = BytesMut::zeroed(length);
    let within = place(&memory);
    let to = register(&mut target, memory, Access::REMOTE_WRITE);
    let data = content(length);
    writer.post(WorkRequest::Write {
        id: WorkId(1),
        data: data.clone(),
        to,
    });
    let (output, _) = take_output(&mut writer, &place(&data));
    let (mut rest, mut in_place) = (&output[..], 0);
    // A socket that first returns a few bytes of each FPDU, and then the rest.
    while !rest.is_empty() {
        let [direct, staging] = target.receive_slices();
        let count = if direct.is_empty() {
            let count = rest.len().min(64);
            staging[..count].copy_from_slice(&rest[..count]);
            count
        } else {
            let slice = place(direct);
            assert!(within.start <= slice.start && slice.end <= within.end);
            in_place += direct.len();
            let (now, later) = rest.split_at(direct.len());
            direct.copy_from_slice(now);
            // The CRC follows the payload.
            let trailer = later.len().min(4);
            staging[..trailer].copy_from_slice(&later[..trailer]);
            direct.len() + trailer
        };
        target.received(count);
        rest = &rest[count..];
    }
    let fpdus = length.div_ceil(max_fpdu - 64);
    assert!(
        in_place + fpdus * 128 + (16 << 10) > length,
        "{in_place} of {length} bytes"
    );
    let written = target.memory().deregister(to.token).unwrap();
    assert!(written == data, "the data is the same");
}

#[test]
fn engine_passes_payloads_on_without_a_copy() {
    let _alone = crate::alone();
    let mut engines = Engines::new(64 << 10, 1364, Step::Receive);
    for _ in 0..10 {
        engines.feed();
        let came: Vec<_> = engines
            .receiver
            .incoming
            .iter()
            .map(|message| place(message))
            .collect();
        let mut passed_on = Vec::new();
        engines.receive(|payload| passed_on.push(place(payload)));
        assert_eq!(came.len(), passed_on.len());
        for (came, passed_on) in came.iter().zip(passed_on) {
            assert!(came.start < passed_on.start && passed_on.end == came.end);
        }
    }
}

/// A provider that records the addresses of the messages that its connecting end receives.
#[derive(Debug)]
struct Watched<P> {
    provider: P,
    messages: Arc<Mutex<Vec<Range<usize>>>>,
}

impl<P: Provider> Provider for Watched<P> {
    fn attributes(&self) -> provider::ProviderAttributes {
        self.provider.attributes()
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        Box::pin(async move {
            let connected = self.provider.connect(request).await?;
            let queue_pair = Box::new(WatchedQueuePair {
                queue_pair: connected.queue_pair,
                messages: self.messages.clone(),
            });
            Ok(Connected {
                queue_pair,
                ..connected
            })
        })
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn provider::ProviderListener>, ProviderError>> {
        self.provider.listen(address)
    }
}

#[derive(Debug)]
struct WatchedQueuePair {
    queue_pair: Box<dyn QueuePair>,
    messages: Arc<Mutex<Vec<Range<usize>>>>,
}

impl QueuePair for WatchedQueuePair {
    fn room(&self) -> Room {
        self.queue_pair.room()
    }

    fn post(&mut self, work: WorkRequest) {
        self.queue_pair.post(work);
    }

    fn flush(&mut self, context: &mut Context<'_>, until: u64) {
        self.queue_pair.flush(context, until);
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        let completion = self.queue_pair.poll_completion(context);
        if let Poll::Ready(Completion::Received { message, .. }) = &completion {
            self.messages.lock().unwrap().push(place(message));
        }
        completion
    }

    fn needs_poll(&self) -> bool {
        self.queue_pair.needs_poll()
    }

    fn disconnect(&mut self, how: Teardown) {
        self.queue_pair.disconnect(how);
    }

    fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        self.queue_pair.register(buffer, access)
    }

    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        self.queue_pair.deregister(token)
    }
}

/// Asserts that a message is copied at most once, out of the staging memory of the provider, and that
/// segments of at least `min_zero_copy` bytes are not copied at all.
fn assert_messages_stay_where_the_provider_put_them(
    provider: impl Provider + 'static,
    lengths: &[usize],
    min_zero_copy: usize,
) {
    let messages = Arc::default();
    let provider = Arc::new(Watched {
        provider,
        messages: Arc::clone(&messages),
    });
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let address = "127.0.0.1:0";
        let config = Config::default();
        let mut listener = Listener::bind(&*provider, address, config.clone())
            .await
            .unwrap();
        let (receiver, sender) = tokio::join!(
            Connection::connect(&*provider, listener.local_addr(), config),
            listener.accept(),
        );
        let (receiver, sender) = (receiver.unwrap(), sender.unwrap());
        for &length in lengths {
            for _ in 0..100 {
                let data: Bytes = content(length);
                drop(sender.send(data.clone()).unwrap());
                let mut message = receiver.recv().await.unwrap();
                assert!(message.clone().into_bytes() == data, "the data is the same");
                let mut messages = messages.lock().unwrap();
                while message.has_remaining() {
                    let part = message.chunk().len();
                    let taken = place(message.chunk());
                    let as_it_was = bytes_within(&[IoSlice::new(message.chunk())], &place(&data));
                    let as_it_came =
                        |came: &Range<usize>| came.start < taken.start && taken.end == came.end;
                    if part < min_zero_copy {
                        let received = messages.iter().any(as_it_came);
                        assert!(
                            received && as_it_was == 0,
                            "{part} of {length} bytes are copied once"
                        );
                    } else {
                        assert_eq!(as_it_was, part, "a part of {length} bytes was copied");
                    }
                    message.advance(part);
                }
                messages.clear();
            }
        }
    });
}

/// Lengths in bytes of messages that are one segment by the default settings.
const ONE_SEGMENT: [usize; 6] = [
    1,
    64,
    1340,
    MIN_UNCOPIED_BYTES - 1,
    MIN_UNCOPIED_BYTES,
    8112,
];

#[test]
fn messages_of_one_segment_are_copied_once_over_iwarp() {
    let _alone = crate::alone();
    let provider = Iwarp::new(IwarpConfig::default());
    assert_messages_stay_where_the_provider_put_them(provider, &ONE_SEGMENT, usize::MAX);
}

#[test]
fn messages_are_copied_once_or_not_at_all_over_loopback() {
    let _alone = crate::alone();
    let lengths = [&ONE_SEGMENT[..], &[64 << 10, 1 << 20]].concat();
    assert_messages_stay_where_the_provider_put_them(Loopback::new(), &lengths, MIN_UNCOPIED_BYTES);
}

/// The assembly of a message allocates nothing, or memory that is used again.
#[test]
fn message_of_many_segments_allocates_little() {
    let _alone = crate::alone();
    let length = 1 << 20;
    let provider: Arc<dyn Provider> = Arc::new(Iwarp::new(IwarpConfig::default()));
    let mut connections =
        Connections::new([provider.clone(), provider], 8136, Traffic::Send(length));
    connections.stream(16, 2);
    let counted = allocation_counter::measure(|| connections.stream(16, 2));
    let allocated = counted.bytes_total / 16;
    assert!(
        allocated < length as u64 * 5 / 4,
        "{allocated} bytes allocated for a message of {length}"
    );
}
