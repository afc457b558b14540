//! Tests of the driver over a queue pair whose completions the test scripts.

use std::{
    collections::VecDeque,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{runtime::Builder, task::yield_now};

use super::{
    Condition, Driver, Shared, State, now,
    schedule::{MAX_BURST_COUNT, POLL_BYTES},
};
use crate::{
    engine::{self, Config, MessageId, TransferId},
    rdma::{
        memory::{DeregisterError, RegisterError, Registration},
        provider::{Connected, QueuePair, Usage},
        work::{
            Access, Completion, Disconnect, Limits, Room, Teardown, Token, WorkId, WorkRequest,
        },
    },
    wire::{BufferDescriptorV1, DataTransfer, Flags, NegotiateResponse, Status, VERSION_1_0},
};

mod deadlines;
mod stalls;

/// A queue pair that records posted work and returns the completions that the test scripts.
#[derive(Debug, Default)]
struct Script(Arc<Mutex<Lists>>);

#[derive(Debug, Default)]
struct Lists {
    posted: VecDeque<WorkRequest>,
    done: VecDeque<Completion>,
    /// Calls of `poll_completion`.
    polls: usize,
    /// After the scripted completions, the queue pair always returns one more completion, which has no effect.
    endless: bool,
    /// Bytes of memory that received messages keep in use.
    lent: usize,
}

impl Lists {
    fn next(&mut self) -> Option<Completion> {
        let nothing = || Completion::Sent { id: NO_WORK };
        let next = self.done.pop_front();
        next.or_else(|| self.endless.then(nothing))
    }
}

/// A Send that the engine has not posted.
const NO_WORK: WorkId = WorkId(1);

const LIMITS: Limits = Limits {
    max_send_queue: 100,
    max_receive_queue: 1000,
    max_outbound_reads: 16,
    max_inbound_reads: 0,
    max_transfer: u32::MAX,
    send_with_invalidate: false,
    packet_bytes: None,
};

impl QueuePair for Script {
    fn room(&self) -> Room {
        Room {
            sends: 100,
            receives: 1000,
        }
    }

    fn post(&mut self, work: WorkRequest) {
        self.0.lock().unwrap().posted.push_back(work);
    }

    fn flush(&mut self, _: &mut Context<'_>, _: u64) {}

    fn poll_completion(&mut self, _: &mut Context<'_>) -> Poll<Completion> {
        let mut lists = self.0.lock().unwrap();
        lists.polls += 1;
        lists.next().map_or(Poll::Pending, Poll::Ready)
    }

    fn needs_poll(&self) -> bool {
        let lists = self.0.lock().unwrap();
        lists.endless || !lists.done.is_empty()
    }

    fn busy_poll(&mut self) -> bool {
        self.needs_poll()
    }

    fn usage(&self) -> Usage {
        Usage {
            lent: self.0.lock().unwrap().lent,
            ..Usage::default()
        }
    }

    fn disconnect(&mut self, _: Teardown) {}

    fn register(&mut self, _: BytesMut, _: Access) -> Result<Registration, RegisterError> {
        unreachable!("nothing is registered")
    }

    fn deregister(&mut self, _: Token) -> Result<BytesMut, DeregisterError> {
        unreachable!("nothing is registered")
    }
}

/// Returns a negotiated connection whose peer requests 10 credits, and the lists of its queue pair.
fn established() -> (Arc<Shared>, Arc<Mutex<Lists>>) {
    established_with(10)
}

/// Returns a negotiated connection whose peer requests `credits_requested` credits, and the lists of its
/// queue pair.
fn established_with(credits_requested: u16) -> (Arc<Shared>, Arc<Mutex<Lists>>) {
    let (config, script) = (Config::default(), Script::default());
    let lists = script.0.clone();
    let mut engine = engine::Connection::active(config, now());
    let receive = engine.negotiate_receive().id();
    engine.handle_connected(LIMITS);
    let mut message = Vec::new();
    let response = NegotiateResponse {
        min_version: VERSION_1_0,
        max_version: VERSION_1_0,
        negotiated_version: VERSION_1_0,
        credits_requested,
        credits_granted: 10,
        status: Status::SUCCESS,
        max_read_write_size: 1 << 20,
        preferred_send_size: 1024,
        max_receive_size: 1024,
        max_fragmented_size: 131_072,
    };
    response.encode(&mut message);
    let connected = Connected {
        queue_pair: Box::new(script),
        limits: LIMITS,
        is_zero_copy: false,
        poll_window: Duration::ZERO,
        peer_addr: "192.0.2.1:5445".parse().unwrap(),
        local_addr: "192.0.2.2:1024".parse().unwrap(),
        private_data: Bytes::new(),
    };
    let shared = Shared::new(engine, connected);
    shared.with(|state| state.drive(now()));
    lists.lock().unwrap().done.extend([Completion::Received {
        id: receive,
        message: message.into(),
        invalidated: None,
    }]);
    shared.with(|state| {
        state.drive(now());
        assert!(state.negotiated.is_some(), "{:?}", state.closed);
    });
    lists.lock().unwrap().posted.clear();
    (shared, lists)
}

/// Submits a message to the engine without flushing it.
fn queue_message(state: &mut State, message: &'static str) {
    let id = MessageId(state.sends.insert() as u64);
    state.engine.send(id, message, None).unwrap();
}

/// Sends a message, which gives the peer its credits.
fn give_credits(shared: &Shared) {
    shared.with(|state| {
        queue_message(state, "credits");
        state.drive(now());
    });
}

fn is_receive(work: &WorkRequest) -> bool {
    matches!(work, WorkRequest::Receive { .. })
}

/// A busy-poll returns a message before it posts the receives that replace those the message consumed.
/// The receives are posted with the reply, or by the driver task.
#[test]
fn reply_flushes_the_work_that_busy_poll_left() {
    let (shared, lists) = established();
    let send = || {
        shared.with(|state| {
            state.schedule.message_arrived(0);
            queue_message(state, "reply");
            state.submitted(1, 5);
        });
        let posted = lists.lock().unwrap().posted.split_off(0);
        let receives = posted.iter().filter(|work| is_receive(work)).count();
        (receives, posted.len() - receives)
    };
    assert_eq!(send(), (0, 1), "the message gives the peer its credits");
    lists.lock().unwrap().done.push_back(segment(0));
    shared.with(|state| {
        state.busy_poll = Duration::from_secs(60);
        // This has the effect of a run of the driver task.
        state.wake_pending = false;
    });
    let context = &mut Context::from_waker(Waker::noop());
    let found = shared.busy_poll(context, Condition::Message, |state| state.take_message(0));
    assert!(found.is_ready() && lists.lock().unwrap().posted.is_empty());
    shared.with(|state| assert!(state.wake_pending, "there may be no reply"));
    assert_eq!(send(), (1, 1));
}

/// Takes a message, or notices the end of the connection.
fn message_or_end(state: &mut State) -> Option<()> {
    let message = state.take_message(0).map(|_| ());
    message.or_else(|| state.error().map(|_| ()))
}

/// Returns a received segment of one byte.
fn segment(remaining_data_length: u32) -> Completion {
    segment_with(0, remaining_data_length)
}

fn segment_with(credits_granted: u16, remaining_data_length: u32) -> Completion {
    let mut message = Vec::new();
    DataTransfer {
        data_offset: DataTransfer::PAYLOAD_OFFSET,
        data_length: 1,
        remaining_data_length,
        ..DataTransfer::empty(10, credits_granted, Flags::empty())
    }
    .encode(&mut message);
    message.push(b'?');
    Completion::Received {
        id: WorkId(0),
        message: message.into(),
        invalidated: None,
    }
}

/// Counts its wake-ups.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A change wakes only the futures that wait for it, and the end of the connection wakes all of them.
#[test]
fn each_change_wakes_the_futures_that_wait_for_it() {
    let (shared, lists) = established();
    give_credits(&shared);
    let wake_ups = |act: &dyn Fn(&mut State)| {
        let conditions = [Condition::Message, Condition::Segment, Condition::End];
        let woken = conditions.map(|condition| {
            let count = Arc::new(Count::default());
            let waker = Waker::from(count.clone());
            let mut waiting = Box::pin(shared.wait(condition, |_| None::<()>));
            let polled = waiting.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            (waiting, count)
        });
        shared.with(act);
        woken.map(|(_, count)| count.0.load(Ordering::Relaxed))
    };
    let receive = |remaining| {
        lists.lock().unwrap().done.push_back(segment(remaining));
        move |state: &mut State| state.drive(now())
    };
    assert_eq!(
        wake_ups(&receive(1)),
        [0, 1, 0],
        "the first part of a message"
    );
    assert_eq!(wake_ups(&receive(0)), [1, 1, 0], "the last part");
    assert_eq!(wake_ups(&State::abort), [1, 1, 1]);
}

/// A future that is dropped while it waits leaves no waker behind.
#[test]
fn a_dropped_future_leaves_no_waker() {
    let (shared, _lists) = established();
    let count = Arc::new(Count::default());
    for condition in [Condition::Ready, Condition::Keepalive, Condition::End] {
        for _ in 0..3 {
            let waker = Waker::from(count.clone());
            let context = &mut Context::from_waker(&waker);
            let mut waiting = pin!(shared.wait(condition, |_| None::<()>));
            assert!(waiting.as_mut().poll(context).is_pending());
            assert!(waiting.as_mut().poll(context).is_pending());
            assert_eq!(
                Arc::strong_count(&count),
                3,
                "the test, the context and one waker"
            );
        }
    }
    assert_eq!(Arc::strong_count(&count), 1);
}

/// Messages keep much memory in use. Only when no completion is left does that make the next short message a copy,
/// because the memory may be that of messages which were not taken.
#[test]
fn memory_in_use_is_judged_when_no_completion_is_left() {
    for (count, limit, drained, copies) in [
        (2, 1, true, false),
        (1, 1, true, true),
        (1, 1, false, false),
        (1, 2, false, true),
    ] {
        let (shared, lists) = established();
        give_credits(&shared);
        let mut first: Vec<_> = (0..=count).map(|_| segment(0)).collect();
        let Completion::Received { message, .. } = &first[1] else {
            unreachable!("it is a message");
        };
        let place = message.as_ptr_range().end;
        let later = first.split_off(count);
        let push = |segments| {
            let mut lists = lists.lock().unwrap();
            lists.lent = 1 << 20;
            lists.done.extend::<Vec<Completion>>(segments);
        };
        shared.with(|state| {
            let context = &mut Context::from_waker(Waker::noop());
            push(first);
            assert_eq!(state.take_completions(now(), context, limit, drained), 1);
            push(later);
            state.take_completions(now(), context, 1, true);
            assert!(state.take_message(0).is_some());
            let second = state.take_message(0).unwrap().into_bytes();
            let copied = second.as_ptr_range().end != place;
            assert_eq!(copied, copies, "{limit} of {count}, {drained}");
        });
    }
}

/// A busy-poll takes a message even if an earlier poll has taken as much as one poll may.
#[test]
fn busy_poll_is_a_poll_of_its_own() {
    let (shared, lists) = established();
    give_credits(&shared);
    shared.with(|state| {
        state.schedule.message_arrived(POLL_BYTES);
        state.busy_poll = Duration::from_nanos(1);
    });
    lists.lock().unwrap().done.push_back(segment(0));
    let context = &mut Context::from_waker(Waker::noop());
    let found = shared.busy_poll(context, Condition::Message, |state| state.take_message(0));
    assert!(found.is_ready());
}

/// The spin takes all completions one by one: the rest of a message, or the end of the connection.
#[test]
fn busy_poll_takes_what_has_completed_before_it_sleeps() {
    let flushed = Completion::Flushed {
        id: WorkId(0),
        buffer: None,
    };
    let ended = Completion::Disconnected(Disconnect::Remote);
    for done in [[segment(1), segment(0)], [flushed, ended]] {
        let (shared, lists) = established();
        give_credits(&shared);
        shared.with(|state| state.busy_poll = Duration::from_secs(60));
        lists.lock().unwrap().done.extend(done);
        let context = &mut Context::from_waker(Waker::noop());
        assert!(
            shared
                .busy_poll(context, Condition::Message, message_or_end)
                .is_ready()
        );
    }
}

/// A spin does not poll for completions if the queue pair reports that there are none.
#[test]
fn busy_poll_polls_only_if_something_may_have_completed() {
    let (shared, lists) = established();
    give_credits(&shared);
    shared.with(|state| state.busy_poll = Duration::from_nanos(1));
    for (done, polls) in [(None, 0), (Some(Completion::Sent { id: NO_WORK }), 1)] {
        let mut told = lists.lock().unwrap();
        (told.polls, told.done) = (0, done.into_iter().collect());
        drop(told);
        let context = &mut Context::from_waker(Waker::noop());
        let found = shared.busy_poll(context, Condition::Message, |state| state.take_message(0));
        assert!(found.is_pending());
        assert_eq!(lists.lock().unwrap().polls, polls);
    }
}

/// A sender does not poll for completions if the queue pair reports that there are none, because an empty poll
/// takes as long as sending a message. It takes all completions that are available.
#[test]
fn sender_polls_only_if_something_may_have_completed() {
    let (shared, lists) = established();
    let send = || {
        lists.lock().unwrap().polls = 0;
        shared.with(|state| {
            state.schedule.message_arrived(0);
            queue_message(state, "message");
            state.submitted(1, 7);
        });
    };
    send();
    assert_eq!(lists.lock().unwrap().polls, 0);
    let sent = |work: &WorkRequest| match work {
        WorkRequest::Send { id, .. } => Some(Completion::Sent { id: *id }),
        _ => None,
    };
    let mut told = lists.lock().unwrap();
    let done: Vec<_> = told.posted.iter().filter_map(sent).collect();
    told.done.extend(done);
    drop(told);
    send();
    let told = lists.lock().unwrap();
    assert_eq!((told.polls, told.done.len()), (1, 0));
}

/// A sender that never pauses keeps the driver task from running, and takes completions itself. The clock is
/// paused, so that a slow machine does not count as a pause.
#[tokio::test(start_paused = true)]
async fn sender_that_never_pauses_takes_completions() {
    let (shared, lists) = established();
    lists.lock().unwrap().polls = 0;
    shared.with(|state| {
        for _ in 0..MAX_BURST_COUNT + 2 {
            queue_message(state, "message");
            state.submitted(1, 7);
        }
    });
    assert!(lists.lock().unwrap().polls > 0);
}

/// Futures can take messages and return their memory before every arrived message is processed.
#[test]
fn a_poll_ends_after_some_bytes_of_messages() {
    const LENGTH: usize = 1000;
    let (shared, lists) = established_with(255);
    give_credits(&shared);
    let mut message = Vec::new();
    DataTransfer {
        data_offset: DataTransfer::PAYLOAD_OFFSET,
        data_length: LENGTH as u32,
        ..DataTransfer::empty(255, 0, Flags::empty())
    }
    .encode(&mut message);
    message.resize(message.len() + LENGTH, b'?');
    let message = Bytes::from(message);
    let arrival = || Completion::Received {
        id: WorkId(0),
        message: message.clone(),
        invalidated: None,
    };
    let arrivals = std::iter::repeat_with(arrival).take(255);
    lists.lock().unwrap().done.extend(arrivals);
    let cost = shared.with(|state| {
        state.drive(now());
        state.inbox.cost()
    });
    let left = lists.lock().unwrap().done.len();
    let each = cost / (255 - left);
    assert!(
        (POLL_BYTES..POLL_BYTES + each).contains(&cost),
        "{cost} in {each}"
    );
    shared.with(|state| state.drive(now()));
    assert!(lists.lock().unwrap().done.is_empty());
}

/// Futures can start further reads before every finished read is processed.
#[test]
fn a_poll_ends_after_some_bytes_of_reads() {
    for (length, taken) in [
        (POLL_BYTES, 1),
        (POLL_BYTES / 2, 2),
        (POLL_BYTES / 2 - 1, 3),
        (1024, 10),
    ] {
        let (shared, lists) = established();
        shared.with(|state| {
            for _ in 0..10 {
                let place = state.transfers.insert();
                let from = BufferDescriptorV1 {
                    offset: 0,
                    token: 7,
                    length: length as u32,
                };
                let into = BytesMut::zeroed(length);
                let id = TransferId(place as u64);
                state.engine.read(id, &[from], 0, into).unwrap();
            }
            state.drive(now());
        });
        let mut told = lists.lock().unwrap();
        let Lists { posted, done, .. } = &mut *told;
        for work in posted.drain(..) {
            if let WorkRequest::Read { id, into, .. } = work {
                done.push_back(Completion::Read { id, buffer: into });
            }
        }
        assert_eq!(done.len(), 10);
        drop(told);
        for left in [10 - taken, 10_usize.saturating_sub(2 * taken)] {
            shared.with(|state| state.drive(now()));
            assert_eq!(lists.lock().unwrap().done.len(), left, "of {length} bytes");
        }
    }
}

/// `block_on` may return as soon as a caller has left work to the driver task. The task runs in the next `block_on`.
#[test]
fn work_that_a_caller_leaves_outlives_block_on() {
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.unwrap();
    let lists = runtime.block_on(async {
        let (shared, lists) = established();
        give_credits(&shared);
        Driver::spawn(shared.clone());
        yield_now().await;
        lists.lock().unwrap().endless = true;
        shared.with(|state| {
            queue_message(state, "message");
            state.drive(now());
        });
        let mut told = lists.lock().unwrap();
        (told.endless, told.polls) = (false, 0);
        drop(told);
        lists
    });
    assert_eq!(lists.lock().unwrap().polls, 0);
    runtime.block_on(yield_now());
    assert!(lists.lock().unwrap().polls > 0);
}
