//! Bugs of registered memory, tested with the whole stack over iWARP on 127.0.0.1 and in one process.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use bytes::BytesMut;
use smbdirect::{
    Access, Connection, ConnectionError, MemoryRegion, Settings,
    rdma::{
        iwarp::{Iwarp, IwarpConfig, ddp::Header},
        provider::Provider,
    },
};
use tokio::task::yield_now;

use super::ends::{Ends, assert_nothing_outstanding, bytes, iwarp, listen, region};
use crate::peer::{Peer, within};

/// A registration was freed while it was in use, or its deregistration waited for a queue pair that
/// no longer existed. Expected: memory that the peer is reading is returned in time while the
/// connection is established, ending, or has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_27_deregistration_on_a_dying_connection() {
    for way in 0..4 {
        let (victim, memory, peer) = read_in_part().await;
        let buffer = match way {
            // The connection stays established until the idle timer expires.
            0 => within(memory.deregister()).await,
            // The connection ends during the deregistration.
            1 => {
                let deregistering = tokio::spawn(memory.deregister());
                yield_now().await;
                drop(victim);
                within(deregistering).await.unwrap()
            }
            // The peer vanishes during the deregistration.
            2 => {
                let deregistering = tokio::spawn(memory.deregister());
                yield_now().await;
                drop(peer);
                within(deregistering).await.unwrap()
            }
            // The connection has ended before.
            _ => {
                drop(peer);
                within(victim.closed()).await;
                within(memory.deregister()).await
            }
        };
        assert!(buffer.unwrap() == vec![0x5a; LARGE_BYTES], "{way}");
    }
}

/// Number of bytes that exceeds all buffers of a socket.
const LARGE_BYTES: usize = 64 << 20;

/// Returns a connection whose peer reads a large region and has received only its start.
async fn read_in_part() -> (Connection, MemoryRegion, Peer) {
    let mut impatient = Settings::default();
    impatient.keepalive_interval = Duration::from_secs(3);
    impatient.keepalive_response_timeout = Duration::from_secs(1);
    let mut iwarp = IwarpConfig::default();
    iwarp.close_timeout = Duration::from_millis(500);
    // An FPDU of one segment is copied, where segments are those of Ethernet.
    iwarp.tuning.max_fpdu = Some(65_536);
    let provider: Arc<dyn Provider> = Arc::new(Iwarp::new(iwarp));
    let buffer = BytesMut::from(&vec![0x5a; LARGE_BYTES][..]);
    let mut listener = listen(&provider, impatient).await;
    let mut peer = Peer::negotiated(listener.local_addr()).await;
    let victim = within(listener.accept()).await.unwrap();
    let memory = victim.register(buffer, Access::REMOTE_READ).unwrap();
    let descriptor = memory.descriptor();
    let request = peer.read_request(descriptor.token, descriptor.offset, LARGE_BYTES as u32);
    peer.say(&request).await;
    while !matches!(peer.hear().await.0, Header::Tagged(_)) {}
    (victim, memory, peer)
}

/// Expected: while a deregistration waits for bytes in flight, no more bytes of the memory are
/// sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_27_memory_that_leaves_after_its_end() {
    let (victim, memory, mut peer) = read_in_part().await;
    let mut deregistering = pin!(memory.deregister());
    let context = &mut Context::from_waker(Waker::noop());
    assert!(deregistering.as_mut().poll(context).is_pending());
    let taken = peer.end().await;
    assert!(taken < LARGE_BYTES / 2, "{taken} bytes left");
    assert!(within(deregistering).await.unwrap() == vec![0x5a; LARGE_BYTES]);
    let reason = within(victim.closed()).await;
    assert!(matches!(reason, ConnectionError::Provider(_)), "{reason}");
}

/// Expected: after a deregistration the peer cannot write to the memory any more, and its attempt
/// ends only the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_27_memory_that_is_taken_back_meanwhile() {
    const SIZE: usize = 4 << 20;
    for turns in [0, 1, 5, 50] {
        for write in [true, false] {
            let Ends { client, server, .. } = Ends::new(&iwarp(), Settings::default()).await;
            let (before, data) = (bytes(SIZE, 1), bytes(SIZE, 2));
            let memory = region(&client, &before);
            let descriptors = [memory.descriptor()];
            let use_it = || {
                let into = BytesMut::zeroed(SIZE);
                if write {
                    Err(server.write(&descriptors, 0, data.clone()))
                } else {
                    Ok(server.read(&descriptors, 0, into))
                }
            };
            let mut begun: Vec<_> = (0..8).map(|_| use_it()).collect();
            for _ in 0..turns {
                yield_now().await;
            }
            let after = within(memory.deregister()).await.unwrap();
            let fine = |at: usize| after[at] == before[at] || (write && after[at] == data[at]);
            assert!(after.len() == SIZE && (0..SIZE).all(fine));

            begun.push(use_it());
            drop(server.send("nobody is to read this"));
            for transfer in begun {
                match transfer {
                    Ok(reading) => {
                        let done = within(reading).await;
                        let buffer = done.map_or_else(|error| error.buffer, Some);
                        assert_eq!(buffer.expect("the buffer comes back").len(), SIZE);
                    }
                    Err(writing) => drop(within(writing).await),
                }
            }
            let reason = within(client.closed()).await;
            assert!(matches!(reason, ConnectionError::Provider(_)), "{reason}");
            within(server.closed()).await;
            // A message may overtake a Read, but not a Write.
            assert!(!write || within(client.recv()).await.is_err());
            assert_nothing_outstanding(&client);
            assert_nothing_outstanding(&server);
        }
    }
}
