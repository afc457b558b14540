//! Connecting, waking and ending, through the provider.

use std::{
    fmt,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::{BufMut, Bytes};

use super::{
    Loopback, LoopbackConfig, queue_pair::LoopbackQueuePair, staging::ZERO_COPY_THRESHOLD_BYTES,
};
use crate::{
    provider::{AcceptRequest, BoxFuture, ConnectRequest, Connected, Provider, QueuePair},
    work::{
        Completion, Disconnect, Inline, ProviderError, ProviderErrorKind, Token, WorkId,
        WorkRequest,
    },
};

/// Returns the output of a future that resolves in its first poll.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is pending"),
    }
}

/// Polls the future once and returns whether it is pending.
fn waits<T>(future: &mut BoxFuture<'_, T>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    future.as_mut().poll(&mut context).is_pending()
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn request(address: SocketAddr) -> ConnectRequest {
    ConnectRequest {
        address,
        private_data: Bytes::new(),
        receive: receive(0),
    }
}

fn receive(id: u64) -> WorkRequest {
    WorkRequest::Receive {
        id: WorkId(id),
        length: 64,
        count: 1,
    }
}

fn send(id: u64, payload: &'static str) -> WorkRequest {
    WorkRequest::Send {
        id: WorkId(id),
        header: Inline::new(),
        payload: Bytes::from(payload),
        invalidate: None,
    }
}

fn answer(peer_serves_reads: Option<u32>) -> AcceptRequest {
    AcceptRequest {
        private_data: Bytes::new(),
        receive: receive(0),
        peer_serves_reads,
    }
}

fn kind<T: fmt::Debug>(result: Result<T, ProviderError>) -> ProviderErrorKind {
    result.unwrap_err().kind
}

/// Connects two providers and returns the active and the passive end.
fn pair(active: &Loopback, passive: &Loopback, peer_serves_reads: Option<u32>) -> [Connected; 2] {
    let mut listener = now(passive.listen(address(0))).unwrap();
    let mut connect = active.connect(request(listener.local_addr()));
    assert!(waits(&mut connect));
    let incoming = now(listener.accept()).unwrap();
    let passive = now(incoming.accept(answer(peer_serves_reads))).unwrap();
    [now(connect).unwrap(), passive]
}

fn with_reads(outbound: u32, inbound: u32) -> LoopbackConfig {
    let mut config = LoopbackConfig::default();
    config.limits.max_outbound_reads = outbound;
    config.limits.max_inbound_reads = inbound;
    config
}

//= SMBD-3.1.4.6-05 test
#[test]
fn read_depths_are_the_lower_of_both_ends() {
    let active = Loopback::with_config(with_reads(8, 3));
    let passive = active.reconfigured(with_reads(5, 6));
    for (known, expected) in [(None, 3), (Some(2), 2), (Some(9), 3)] {
        let [a, p] = pair(&active, &passive, known).map(|end| end.limits);
        assert_eq!((a.max_outbound_reads, a.max_inbound_reads), (6, 3));
        assert_eq!((p.max_outbound_reads, p.max_inbound_reads), (expected, 6));
    }
}

#[test]
fn a_connection_needs_a_listener_in_the_same_address_space() {
    let loopback = Loopback::new();
    let here = now(loopback.listen(address(445))).unwrap();
    assert_eq!(here.local_addr(), address(445));
    let again = now(loopback.clone().listen(address(445)));
    assert_eq!(kind(again), ProviderErrorKind::InUse);
    let elsewhere = now(Loopback::new().connect(request(address(445))));
    assert_eq!(kind(elsewhere), ProviderErrorKind::Refused);
    drop(here);
    let any_address = now(loopback.listen(SocketAddr::from(([0, 0, 0, 0], 445)))).unwrap();
    assert!(waits(&mut loopback.connect(request(address(445)))));
    drop(any_address);
    let without_listener = now(loopback.connect(request(address(445))));
    assert_eq!(kind(without_listener), ProviderErrorKind::Refused);
}

#[test]
fn a_full_or_dropped_listener_refuses_requests() {
    let loopback = Loopback::with_config(LoopbackConfig {
        backlog: 2,
        ..LoopbackConfig::default()
    });
    let listener = now(loopback.listen(address(0))).unwrap();
    let to = listener.local_addr();
    let [mut one, mut two] = [(); 2].map(|()| loopback.connect(request(to)));
    assert!(waits(&mut one) && waits(&mut two));
    let full = now(loopback.connect(request(to)));
    assert_eq!(kind(full), ProviderErrorKind::Rejected);
    // Dropping a request makes room for another.
    drop(one);
    let mut three = loopback.connect(request(to));
    assert!(waits(&mut three));
    drop(listener);
    assert_eq!(kind(now(two)), ProviderErrorKind::Rejected);
    assert_eq!(kind(now(three)), ProviderErrorKind::Rejected);
}

#[test]
fn accepting_a_withdrawn_request_fails() {
    let loopback = Loopback::new();
    let mut listener = now(loopback.listen(address(0))).unwrap();
    let mut connect = loopback.connect(request(listener.local_addr()));
    assert!(waits(&mut connect));
    let incoming = now(listener.accept()).unwrap();
    drop(connect);
    let connected = now(incoming.accept(answer(None)));
    assert_eq!(kind(connected), ProviderErrorKind::Reset);
}

#[test]
fn private_data_has_at_most_200_bytes() {
    let loopback = Loopback::new();
    let long = ConnectRequest {
        private_data: Bytes::from_static(&[0; 201]),
        ..request(address(1))
    };
    assert_eq!(kind(now(loopback.connect(long))), ProviderErrorKind::Local);
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_waiting_end_is_woken_once() {
    let [mut a, mut p] = connected_pair();
    let [here, there] = [(); 2].map(|()| Arc::new(Count::default()));
    let [here_waker, there_waker] = [&here, &there].map(|count| Waker::from(count.clone()));
    let mut here_context = Context::from_waker(&here_waker);
    let mut there_context = Context::from_waker(&there_waker);
    let woken = || [&here, &there].map(|count| count.0.load(Ordering::Relaxed));
    assert!(a.poll_completion(&mut here_context).is_pending());
    assert!(p.poll_completion(&mut there_context).is_pending());
    a.post(send(1, "hello"));
    assert_eq!(woken(), [0, 0]);
    a.flush(&mut here_context, u64::MAX);
    assert_eq!(woken(), [0, 1], "the flushing end polls and is not woken");
    assert!(a.poll_completion(&mut here_context).is_ready());
    assert!(a.poll_completion(&mut here_context).is_pending());
    assert!(p.poll_completion(&mut there_context).is_ready());
    assert!(p.poll_completion(&mut there_context).is_pending());
    drop(a);
    assert_eq!(woken(), [1, 2]);
}

/// An end that polls with [`Waker::noop`] registers no waker, and is not woken by the other end.
#[test]
fn an_end_that_does_not_sleep_is_not_woken() {
    let [mut a, mut p] = connected_pair();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut awake = Context::from_waker(Waker::noop());
    let mut asleep = Context::from_waker(&waker);
    let woken = || count.0.load(Ordering::Relaxed);
    p.post(WorkRequest::Receive {
        id: WorkId(1),
        length: 100,
        count: 3,
    });
    p.flush(&mut asleep, u64::MAX);
    assert!(p.poll_completion(&mut asleep).is_pending());
    a.post(send(1, "first"));
    a.flush(&mut awake, u64::MAX);
    assert_eq!(woken(), 1, "a sleeping end is woken");
    while p.poll_completion(&mut awake).is_ready() {}
    a.post(send(2, "second"));
    a.flush(&mut awake, u64::MAX);
    assert_eq!(woken(), 1);
    assert!(p.needs_poll() && p.poll_completion(&mut awake).is_ready());
    assert!(p.poll_completion(&mut asleep).is_pending());
    drop(a);
    assert_eq!(woken(), 2);
}

fn connected_pair() -> [Box<dyn QueuePair>; 2] {
    let loopback = Loopback::new();
    pair(&loopback, &loopback, None).map(|end| end.queue_pair)
}

#[test]
fn a_long_send_must_fit_its_receive_and_is_freed_with_the_connection() {
    // The sender knows the receive before it flushes, or finds it only then.
    for (room, fits, known) in [
        (4095, false, false),
        (4095, false, true),
        (4096, true, false),
        (4096, true, true),
    ] {
        let [mut a, mut p] = connected_pair();
        let waker = Waker::from(Arc::new(Count::default()));
        let mut context = Context::from_waker(&waker);
        // This Send takes the receive that the connection started with.
        for end in [&mut a, &mut p] {
            end.post(send(0, "first"));
            end.flush(&mut context, u64::MAX);
        }
        let receive = WorkRequest::Receive {
            id: WorkId(1),
            length: room,
            count: 1,
        };
        p.post(receive);
        p.flush(&mut context, u64::MAX);
        while known && a.poll_completion(&mut context).is_ready() {}
        let payload = Bytes::from(vec![1; 4096]);
        a.post(WorkRequest::Send {
            id: WorkId(1),
            header: Inline::new(),
            payload: payload.clone(),
            invalidate: None,
        });
        a.flush(&mut context, u64::MAX);
        let mut ended = false;
        while let Poll::Ready(completion) = p.poll_completion(&mut context) {
            ended |= matches!(completion, Completion::Disconnected(Disconnect::Broken(_)));
            if let Completion::Received {
                id: WorkId(1),
                message,
                ..
            } = completion
            {
                assert!(fits && message == payload);
            }
        }
        assert_eq!(ended, !fits);
        drop(a);
        drop(p);
        assert!(payload.is_unique(), "no reference to the payload is left");
    }
}

#[test]
fn assembled_sends_are_flushed_when_the_other_end_is_gone() {
    let mut context = Context::from_waker(Waker::noop());
    let [mut a, mut p] = connected_pair();
    p.post(WorkRequest::Receive {
        id: WorkId(1),
        length: ZERO_COPY_THRESHOLD_BYTES as u32,
        count: 1,
    });
    p.flush(&mut context, u64::MAX);
    // After a poll this end knows two receives: the initial one and this one.
    assert!(a.poll_completion(&mut context).is_pending());
    let payload = Bytes::from(vec![1; ZERO_COPY_THRESHOLD_BYTES]);
    a.post(send(1, "copied"));
    a.post(WorkRequest::Send {
        id: WorkId(2),
        header: Inline::new(),
        payload: payload.clone(),
        invalidate: None,
    });
    a.post(send(3, "no receive is left for it"));
    drop(p);
    a.flush(&mut context, u64::MAX);
    for expected in [1, 2, 3, 0] {
        let completion = a.poll_completion(&mut context);
        let Poll::Ready(Completion::Flushed { id, buffer: None }) = completion else {
            panic!("{completion:?}");
        };
        assert_eq!(id, WorkId(expected));
    }
    let last = a.poll_completion(&mut context);
    assert!(matches!(last, Poll::Ready(Completion::Disconnected(_))));
    assert!(payload.is_unique(), "no reference to the payload is left");
}

/// Bytes of headers keep an end spinning as bytes of payloads do.
#[test]
fn header_bytes_count_as_moved() {
    let mut context = Context::from_waker(Waker::noop());
    let limits = LoopbackConfig::default().limits;
    for length in [0, 5, ZERO_COPY_THRESHOLD_BYTES] {
        let [mut a, mut p] = LoopbackQueuePair::pair([limits; 2]);
        p.post(WorkRequest::Receive {
            id: WorkId(0),
            length: u32::MAX,
            count: 1,
        });
        p.flush(&mut context, u64::MAX);
        a.post(WorkRequest::Send {
            id: WorkId(1),
            header: inline(b"header"),
            payload: vec![1; length].into(),
            invalidate: None,
        });
        a.flush(&mut context, u64::MAX);
        while p.poll_completion(&mut context).is_ready() {}
        let moved_bytes = 6 + length as u64;
        assert_eq!(
            [a.moved_bytes, p.moved_bytes],
            [[moved_bytes, 0], [0, moved_bytes]]
        );
    }
}

#[test]
#[should_panic(expected = "this connection does not support Send with Invalidate")]
fn posting_an_unsupported_invalidation_panics() {
    let active = Loopback::new();
    let mut config = LoopbackConfig::default();
    config.limits.send_with_invalidate = false;
    let [mut end, _peer] =
        pair(&active, &active.reconfigured(config), None).map(|end| end.queue_pair);
    end.post(WorkRequest::Send {
        id: WorkId(1),
        header: Inline::new(),
        payload: Bytes::new(),
        invalidate: Some(Token(0x100)),
    });
}

fn inline(bytes: &[u8]) -> Inline {
    Inline::build(|out| out.put_slice(bytes))
}
