//! Tests of each rule of TdiBuildSend over a real connection.

use std::{sync::Arc, time::Duration};

use bytes::{Buf, Bytes};
use smbdirect::{Access, Message, Settings, Token, engine::Policy, rdma::provider::Provider};
use smbdirect_tdi::{
    Expedited, NoResponse, NonBlocking, SendFlags, SendOptions, Sending, ServiceFlags, Status,
};

use super::ends::{
    Ends, How, Recorder, credits, not_yet, over_providers, pattern, receive, settings,
    small_buffer, starving_settings, within,
};

const PLAIN: SendFlags = SendFlags::empty();
const PARTIAL: SendFlags = SendFlags::PARTIAL;
const EXPEDITED: SendFlags = SendFlags::EXPEDITED;
const NON_BLOCKING: SendFlags = SendFlags::NON_BLOCKING;
const HINT: SendFlags = SendFlags::NO_RESPONSE_EXPECTED;

over_providers! {
    expedited_sends_overtake_waiting_normal_sends;
    writes_keep_their_place_among_normal_sends;
    expedited_can_be_ignored;
    partial_sends_are_one_tsdu;
    each_combination_of_known_flags_is_accepted;
    non_blocking_sends_take_what_fits_or_are_refused;
    partly_taken_send_remains_one_tsdu;
    atomic_sends_take_all_or_nothing;
    non_blocking_sends_wait_without_a_send_buffer;
    tsdu_lengths_at_the_limit;
    empty_sends_only_end_a_tsdu;
    completions_return_buffers_and_chains_become_one_tsdu;
    dropped_send_future_still_sends;
    send_invalidates_a_token;
    no_response_expected_only_requests_credits;
    one_response_is_requested_at_a_time;
    two_ends_that_always_request_credits_become_silent;
    keepalives_never_split_a_message;
    force_send_grants_credits;
    queries_report_the_traffic;
}

async fn sizes(sending: Sending) -> (Status, usize) {
    let done = within(sending).await;
    (done.status, done.information)
}

/// Uses up the credits of the sender, so that further sends wait. Returns the sends in flight.
async fn starve(ends: &Ends) -> Vec<Sending> {
    let mut sendings = Vec::new();
    for number in 0..64_u8 {
        sendings.push(ends.here.send(vec![number; 1000], PLAIN));
    }
    // The sends stop when the memory of the receiver is full: it has posted no receive, and the sender has no credit.
    let (here, there) = (ends.here.connection(), ends.there.connection());
    let (here, there) = (here.unwrap(), there.unwrap());
    let is_starved = || {
        let held = ends.there.query_connection().unwrap().receive_buffer_held;
        let credits = (here.credits().send_credits, there.credits().receive_credits);
        held > 0 && credits == (0, 0)
    };
    within(async {
        // Every task that was ready has run between two looks.
        let mut looks = 0;
        while looks < 100 {
            looks = if is_starved() { looks + 1 } else { 0 };
            tokio::task::yield_now().await;
        }
    })
    .await;
    let sent = ends.here.query_connection().unwrap().transmitted_tsdus;
    assert!(sent < 60, "the sender never runs out of credits: {sent}");
    sendings
}

//= TDI-SEND-04 test
//= TDI-SEND-05 test
//= TDI-SEND-07 test
async fn expedited_sends_overtake_waiting_normal_sends(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let queued = starve(&ends).await;
    let begun = ends.here.query_connection().unwrap().transmitted_tsdus as usize;
    let expedited = [
        ends.here.send("e1", EXPEDITED),
        ends.here.send("e2", EXPEDITED),
        ends.here.send("e3", EXPEDITED),
    ];
    let mut order = Vec::new();
    for _ in 0..67 {
        let tsdu = ends.arrived().await;
        order.push(match tsdu.len() {
            2 => String::from_utf8(tsdu.into()).unwrap(),
            _ => tsdu[0].to_string(),
        });
    }
    for sending in queued.into_iter().chain(expedited) {
        assert_eq!(within(sending).await.status, Status::SUCCESS);
    }
    let first = order.iter().position(|name| name == "e1").unwrap();
    assert_eq!(order[first..first + 3], ["e1", "e2", "e3"]);
    // One message may have started to leave, and is not interrupted.
    assert!((begun..=begun + 1).contains(&first), "{begun} {first}");
    order.drain(first..first + 3);
    let normal: Vec<_> = (0..64).map(|number| number.to_string()).collect();
    assert_eq!(order, normal);
}

/// TdiBuildWrite has no flags: its send does not overtake others.
//= TDI-SEND-32 test
async fn writes_keep_their_place_among_normal_sends(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let queued = starve(&ends).await;
    let written = ends.here.write(b"w");
    let last = ends.here.send("last", PLAIN);
    for number in 0..64_u8 {
        assert_eq!(ends.arrived().await[0], number);
    }
    assert_eq!(ends.arrived().await, "w");
    assert_eq!(ends.arrived().await, "last");
    for sending in queued.into_iter().chain([written, last]) {
        assert_eq!(within(sending).await.status, Status::SUCCESS);
    }
}

//= TDI-SEND-06 test
async fn expedited_can_be_ignored(provider: Arc<dyn Provider>) {
    let mut settings = starving_settings();
    settings.send.expedited = Expedited::Ignore;
    let ends = Ends::with(provider, settings).await;
    assert!(!ends.transport.info().local_priority_sends);
    let queued = starve(&ends).await;
    let expedited = ends.here.send("e", EXPEDITED);
    for number in 0..64_u8 {
        assert_eq!(ends.arrived().await[0], number);
    }
    assert_eq!(ends.arrived().await, "e");
    assert_eq!(within(expedited).await.status, Status::SUCCESS);
    drop(queued);
}

//= TDI-SEND-08 test
//= TDI-SEND-09 test
//= TDI-SEND-10 test
async fn partial_sends_are_one_tsdu(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let recorder = Recorder::new(How::Take);
    ends.remote.set_client(Some(recorder.clone()));
    let whole = pattern(200_000, 3);
    for part in [0..70_000, 70_000..70_001, 70_001..199_000] {
        let length = part.len();
        let done = sizes(ends.here.send(whole.slice(part), PARTIAL)).await;
        assert_eq!(done, (Status::SUCCESS, length));
    }
    assert_eq!(recorder.lines(), [""; 0], "nothing leaves before the end");
    // An expedited TSDU, whole or in parts, is sent in between.
    let expedited = ends.here.send("in be", EXPEDITED | PARTIAL);
    assert_eq!(sizes(expedited).await, (Status::SUCCESS, 5));
    assert_eq!(
        sizes(ends.here.send("tween", EXPEDITED)).await,
        (Status::SUCCESS, 5)
    );
    assert_eq!(recorder.wait_for_lines(1).await, ["receive 10."]);
    let last = ends.here.send(whole.slice(199_000..), PLAIN);
    assert_eq!(sizes(last).await, (Status::SUCCESS, 1000));
    recorder.has_taken(200_010).await;
    assert_eq!(recorder.data().slice(10..), whole);
    let lines = recorder.lines();
    let ends_at: Vec<_> = lines.iter().filter(|line| line.ends_with('.')).collect();
    assert_eq!(ends_at.len(), 2, "{lines:?}");
    assert!(lines.last().unwrap().ends_with('.'));
}

//= TDI-SEND-02 test
//= TDI-SEND-03 test
async fn each_combination_of_known_flags_is_accepted(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    for bits in 0..16_u32 {
        let flags = SendFlags::from_bits_retain(bits << 5);
        let text = format!("{flags:?}");
        let length = text.len();
        assert_eq!(
            sizes(ends.here.send(text.clone().into_bytes(), flags)).await,
            (Status::SUCCESS, length)
        );
        if flags.contains(PARTIAL) {
            let rest = flags - PARTIAL;
            assert_eq!(sizes(ends.here.send("!", rest)).await, (Status::SUCCESS, 1));
            assert_eq!(ends.arrived().await, text + "!");
        } else {
            assert_eq!(ends.arrived().await, text);
        }
    }
    for (bits, status) in [
        (0x0001, Status::INVALID_PARAMETER),
        (0x0400, Status::INVALID_PARAMETER),
        (0x8000_0000, Status::INVALID_PARAMETER),
        (0x0200, Status::NOT_SUPPORTED),
    ] {
        let flags = SendFlags::from_bits_retain(bits);
        assert_eq!(sizes(ends.here.send("x", flags)).await, (status, 0));
    }
}

//= TDI-SEND-14 test
//= TDI-SEND-15 test
//= TDI-SEND-16 test
//= TDI-SEND-17 test
//= TDI-SEND-18 test
//= TDI-SEND-20 test
async fn non_blocking_sends_take_what_fits_or_are_refused(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, small_buffer()).await;
    let recorder = Recorder::new(How::Take);
    ends.local.set_client(Some(recorder.clone()));
    let data = pattern(200_000, 1);
    let full = |length| sizes(ends.here.send(data.slice(..length), NON_BLOCKING));
    let queued = starve(&ends).await;
    // Nothing leaves until the peer takes data.
    assert_eq!(full(200_000).await, (Status::SUCCESS, 200_000));
    assert_eq!(full(150_000).await, (Status::SUCCESS, 150_000));
    // The bytes that fit are taken.
    assert_eq!(full(60_000).await, (Status::SUCCESS, 50_000));
    let information = ends.here.query_connection().unwrap();
    assert_eq!(information.send_buffer_available, 0);
    // Without room each send is refused, and one event follows for all refusals.
    for flags in [PLAIN, NON_BLOCKING, PLAIN] {
        assert_eq!(full(10_000).await, (Status::DEVICE_NOT_READY, 0));
        assert_eq!(
            ends.here.try_send("x", flags),
            Err(Status::DEVICE_NOT_READY)
        );
    }
    // A blocking send waits.
    let waiting = ends.here.send(data.slice(..10_000), PLAIN);
    not_yet(ends.here.send_possible()).await;
    assert_eq!(recorder.lines(), [""; 0]);
    let possible = async {
        let available = within(ends.here.send_possible()).await.unwrap();
        assert!(available > 0);
    };
    let receive_all = async {
        for sending in queued {
            assert_eq!(ends.arrived().await.len(), 1000);
            assert_eq!(sizes(sending).await, (Status::SUCCESS, 1000));
        }
        assert_eq!(ends.arrived().await, data);
        assert_eq!(ends.arrived().await, data.slice(..150_000));
        let mut joined = data.slice(..50_000).to_vec();
        joined.extend_from_slice(&data[..10_000]);
        assert_eq!(ends.arrived().await, joined);
    };
    tokio::join!(possible, receive_all);
    assert_eq!(sizes(waiting).await, (Status::SUCCESS, 10_000));
    let told = recorder.wait_for_lines(1).await;
    assert!(told[0].starts_with("send possible "), "{told:?}");
    // Without a refusal there is no event.
    assert_eq!(full(1000).await, (Status::SUCCESS, 1000));
    assert_eq!(ends.arrived().await.len(), 1000);
    assert_eq!(recorder.lines().len(), 1);
    let statistics = ends.transport.statistics();
    assert_eq!(statistics.resources[0].maximum_used, 400_000);
    assert_eq!(statistics.resources[0].exhausted, 6);
}

//= TDI-SEND-15 test
//= TDI-SEND-21 test
async fn partly_taken_send_remains_one_tsdu(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, small_buffer()).await;
    let data = pattern(200_000, 9);
    assert_eq!(ends.here.try_send(data.clone(), PLAIN), Ok(200_000));
    assert_eq!(
        ends.here.try_send(data.slice(..100_000), PLAIN),
        Ok(100_000)
    );
    let client = async {
        let mut rest = data.clone();
        let mut takes = 0;
        while !rest.is_empty() {
            match ends.here.try_send(rest.clone(), PLAIN) {
                Ok(taken) => {
                    rest.advance(taken);
                    takes += 1;
                }
                Err(status) => {
                    assert_eq!(status, Status::DEVICE_NOT_READY);
                    within(ends.here.send_possible()).await.unwrap();
                }
            }
        }
        assert!(takes > 1, "the send is taken in pieces");
    };
    let peer = async {
        for length in [200_000, 100_000, 200_000] {
            assert_eq!(ends.arrived().await, data.slice(..length));
        }
    };
    tokio::join!(client, peer);
}

//= TDI-SEND-16 test
async fn atomic_sends_take_all_or_nothing(provider: Arc<dyn Provider>) {
    let mut settings = small_buffer();
    settings.send.non_blocking = NonBlocking::Atomic;
    let ends = Ends::with(provider, settings).await;
    let data = pattern(200_000, 4);
    assert_eq!(ends.here.try_send(data.clone(), PLAIN), Ok(200_000));
    assert_eq!(
        ends.here.try_send(data.slice(..150_000), PLAIN),
        Ok(150_000)
    );
    assert_eq!(
        ends.here.try_send(data.clone(), PLAIN),
        Err(Status::DEVICE_NOT_READY)
    );
    assert_eq!(ends.here.try_send(data.slice(..50_000), PLAIN), Ok(50_000));
    let again = async {
        while ends.here.try_send(data.clone(), PLAIN) != Ok(200_000) {
            within(ends.here.send_possible()).await.unwrap();
        }
    };
    let peer = async {
        for length in [200_000, 150_000, 50_000, 200_000] {
            assert_eq!(ends.arrived().await, data.slice(..length));
        }
    };
    tokio::join!(again, peer);
}

//= TDI-SEND-19 test
async fn non_blocking_sends_wait_without_a_send_buffer(provider: Arc<dyn Provider>) {
    let mut settings = small_buffer();
    settings.send.high_water = 0;
    settings.send.low_water = 0;
    let ends = Ends::with(provider, settings).await;
    let service = ends.transport.info().service_flags;
    assert!(!service.contains(ServiceFlags::INTERNAL_BUFFERING));
    let data = pattern(200_000, 5);
    let mut sendings = Vec::new();
    for _ in 0..4 {
        sendings.push(ends.here.send(data.clone(), NON_BLOCKING));
    }
    assert_eq!(ends.here.try_send("last", PLAIN), Ok(4));
    // A part does not complete before its TSDU.
    let part = ends.here.send("pa", PARTIAL);
    let rest = ends.here.send("rt", PLAIN);
    not_yet(async { sendings.pop().unwrap().await }).await;
    for _ in 0..4 {
        assert_eq!(ends.arrived().await, data);
    }
    assert_eq!(ends.arrived().await, "last");
    assert_eq!(ends.arrived().await, "part");
    assert_eq!(sizes(part).await, (Status::SUCCESS, 2));
    assert_eq!(sizes(rest).await, (Status::SUCCESS, 2));
    for sending in sendings {
        assert_eq!(sizes(sending).await, (Status::SUCCESS, 200_000));
    }
}

//= TDI-SEND-22 test
//= TDI-SEND-23 test
async fn tsdu_lengths_at_the_limit(provider: Arc<dyn Provider>) {
    let mut small = Settings::default();
    small.max_fragmented_receive_size = 131_072;
    let mut settings = settings(small);
    // The limit of the peer is smaller than that of the transport.
    settings.send.max_tsdu = 1 << 20;
    settings.send.high_water = 2 << 20;
    let ends = Ends::with(provider, settings).await;
    assert_eq!(ends.transport.info().max_send_size, 1 << 20);
    let max = ends.here.max_tsdu().unwrap();
    assert_eq!(max, 131_072);
    let data = pattern(max + 1, 8);
    for flags in [PLAIN, PARTIAL, NON_BLOCKING, EXPEDITED] {
        let done = sizes(ends.here.send(data.clone(), flags)).await;
        assert_eq!(done, (Status::INVALID_PARAMETER, 0), "{flags:?}");
    }
    assert_eq!(
        sizes(ends.here.send(data.slice(1..), PLAIN)).await,
        (Status::SUCCESS, max)
    );
    assert_eq!(ends.arrived().await, data.slice(1..));
    // The part that exceeds the limit is refused, and the TSDU is unchanged.
    assert_eq!(
        sizes(ends.here.send(data.slice(..max), PARTIAL)).await,
        (Status::SUCCESS, max)
    );
    for flags in [PLAIN, PARTIAL] {
        assert_eq!(
            sizes(ends.here.send("x", flags)).await,
            (Status::INVALID_PARAMETER, 0)
        );
    }
    assert_eq!(sizes(ends.here.send("", PLAIN)).await, (Status::SUCCESS, 0));
    assert_eq!(ends.arrived().await, data.slice(..max));
}

//= TDI-SEND-29 test
//= TDI-SEND-30 test
async fn empty_sends_only_end_a_tsdu(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let service = ends.transport.info().service_flags;
    assert!(service.contains(ServiceFlags::NO_ZERO_LENGTH));
    for flags in [PLAIN, PARTIAL, EXPEDITED, NON_BLOCKING, HINT] {
        assert_eq!(
            sizes(ends.here.send("", flags)).await,
            (Status::INVALID_PARAMETER, 0)
        );
    }
    ends.here.send("open", PARTIAL).await.result().unwrap();
    assert_eq!(
        sizes(ends.here.send("", PARTIAL)).await,
        (Status::SUCCESS, 0)
    );
    // No TSDU of the other class is open.
    assert_eq!(
        sizes(ends.here.send("", EXPEDITED)).await,
        (Status::INVALID_PARAMETER, 0)
    );
    assert_eq!(sizes(ends.here.send("", PLAIN)).await, (Status::SUCCESS, 0));
    assert_eq!(ends.arrived().await, "open");
    ends.here
        .send("thrown away", PARTIAL)
        .await
        .result()
        .unwrap();
    assert!(ends.here.discard_partial(PLAIN));
    assert!(!ends.here.discard_partial(PLAIN));
    ends.here.write(b"whole").await.result().unwrap();
    assert_eq!(ends.arrived().await, "whole");
}

//= TDI-SEND-24 test
//= TDI-SEND-25 test
//= TDI-SEND-31 test
//= TDI-SEND-32 test
async fn completions_return_buffers_and_chains_become_one_tsdu(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let parts = [Bytes::new(), Bytes::from_static(b"a"), pattern(50_000, 2)];
    let chain: Message = parts.iter().cloned().collect();
    let done = within(ends.here.send(chain, PLAIN)).await;
    assert_eq!((done.status, done.information), (Status::SUCCESS, 50_001));
    let whole: Bytes = parts.concat().into();
    assert_eq!(done.buffer.into_bytes(), whole);
    assert_eq!(ends.arrived().await, whole);
    let vector = vec![7; 30];
    let address = vector.as_ptr();
    let done = within(ends.here.send(Bytes::from(vector), PLAIN)).await;
    let back = done.buffer.into_bytes();
    assert_eq!(
        back.as_ptr(),
        address,
        "the buffer is the one of the caller"
    );
    assert_eq!(ends.arrived().await, back);
    let done = within(ends.here.write(b"plain")).await;
    assert_eq!((done.status, done.information), (Status::SUCCESS, 5));
    assert_eq!(ends.arrived().await, "plain");
}

//= TDI-SEND-33 test
async fn dropped_send_future_still_sends(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    for number in 0..100_u8 {
        drop(ends.here.send(vec![number; 3000], PLAIN));
    }
    for number in 0..100_u8 {
        assert_eq!(ends.arrived().await, vec![number; 3000]);
    }
}

async fn send_invalidates_a_token(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let there = ends.there.connection().unwrap();
    let region = there
        .register(pattern(4096, 0).into(), Access::all())
        .unwrap();
    let token = region.token();
    let options = SendOptions {
        invalidate: Some(token),
        ..SendOptions::default()
    };
    let refused = ends.here.send_with("not with a part", PARTIAL, options);
    assert_eq!(sizes(refused).await, (Status::INVALID_PARAMETER, 0));
    let done = ends.here.send_with(pattern(20_000, 0), PLAIN, options);
    let receiving = ends
        .there
        .receive(vec![0; 30_000][..].into(), Default::default());
    let received = within(receiving).await;
    assert_eq!(
        (received.status, received.information),
        (Status::SUCCESS, 20_000)
    );
    assert_eq!(received.invalidated_token, Some(token));
    assert_eq!(sizes(done).await, (Status::SUCCESS, 20_000));
    assert_ne!(token, Token(0));
    region.deregister().await.unwrap();
}

//= TDI-SEND-12 test
//= TDI-SEND-13 test
async fn no_response_expected_only_requests_credits(provider: Arc<dyn Provider>) {
    for policy in [
        NoResponse::Ignore,
        NoResponse::WhenLowOnCredits,
        NoResponse::Always,
    ] {
        let mut settings = settings(credits(64));
        settings.send.no_response = policy;
        let ends = Ends::with(provider.clone(), settings).await;
        let here = ends.here.connection().unwrap();
        for number in 0..8_u8 {
            let data = pattern(10_000, number);
            let done = sizes(ends.here.send(data.clone(), HINT)).await;
            assert_eq!(done, (Status::SUCCESS, 10_000));
            assert_eq!(ends.arrived().await, data);
        }
        let asked = here.stats().keepalives_sent;
        match policy {
            NoResponse::Always => assert!(asked > 0),
            _ => assert_eq!(asked, 0, "enough credits are left"),
        }
        // This TSDU leaves few credits, so credits are requested once, at its end.
        let before = here.stats().keepalives_sent;
        let payload = here.negotiated().max_send_size as usize - 24;
        let segments = usize::from(here.credits().send_credits) - 4;
        let data = pattern(segments * payload, 1);
        let done = ends.here.send(data.clone(), HINT);
        assert_eq!(ends.arrived().await, data);
        assert_eq!(within(done).await.status, Status::SUCCESS);
        let asked = here.stats().keepalives_sent - before;
        assert_eq!(asked, u64::from(policy != NoResponse::Ignore), "{policy:?}");
    }
}

/// The runtime of the peer stands still while five TSDUs are sent, so that the peer answers none of them.
//= TDI-SEND-13 test
async fn one_response_is_requested_at_a_time(provider: Arc<dyn Provider>) {
    let mut settings = settings(credits(64));
    settings.send.no_response = NoResponse::Always;
    let ends = Ends::apart(provider, settings).await;
    let (here, to) = (ends.here.clone(), ends.remote.local_addr());
    let (connected, is_connected) = tokio::sync::oneshot::channel();
    let (stop, is_stopped) = std::sync::mpsc::channel();
    let sender = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async { within(here.connect(to, None)).await.unwrap() });
        connected.send(()).unwrap();
        is_stopped.recv().unwrap();
        runtime.block_on(async {
            for _ in 0..5 {
                assert_eq!(sizes(here.send("x", HINT)).await, (Status::SUCCESS, 1));
            }
        });
        runtime
    });
    within(ends.there.listen(None)).await.unwrap();
    is_connected.await.unwrap();
    stop.send(()).unwrap();
    let runtime = sender.join().unwrap();
    assert_eq!(ends.here.connection().unwrap().stats().keepalives_sent, 1);
    for _ in 0..5 {
        assert_eq!(ends.arrived().await, "x");
    }
    runtime.shutdown_background();
}

/// Both ends request a response after each TSDU.
//= TDI-SEND-13 test
async fn two_ends_that_always_request_credits_become_silent(provider: Arc<dyn Provider>) {
    let mut settings = settings(Settings::default());
    settings.send.no_response = NoResponse::Always;
    let ends = Ends::with(provider, settings).await;
    for _ in 0..5 {
        ends.here.send("hey", HINT).await.result().unwrap();
        ends.there.send("ho", HINT).await.result().unwrap();
        assert_eq!(ends.arrived().await, "hey");
        assert_eq!(receive(&ends.here, 9).await, "ho");
    }
    let said = || {
        let connections = [&ends.here, &ends.there].map(|end| end.connection().unwrap());
        connections.map(|connection| connection.stats().empty_sent)
    };
    let mut before = said();
    within(async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = said();
            if now == before {
                return;
            }
            before = now;
        }
    })
    .await;
    assert!(before.iter().all(|&empty| empty <= 12), "{before:?}");
}

/// A TSDU stays open and another is being sent while both ends send keepalives continuously. The
/// receiver would end the connection at an empty message inside a message.
//= TDI-SEND-08 test
async fn keepalives_never_split_a_message(provider: Arc<dyn Provider>) {
    let mut policy = Policy::default();
    policy.tolerate_empty_in_sequence = false;
    let mut nervous = credits(4);
    nervous.keepalive_interval = Duration::from_millis(2);
    nervous.keepalive_response_timeout = Duration::from_secs(20);
    nervous.policy = policy;
    nervous.max_send_size = 256;
    nervous.max_receive_size = 256;
    let ends = Ends::with(provider, settings(nervous)).await;
    let data = pattern(100_000, 6);
    for _ in 0..3 {
        ends.here
            .send(data.slice(..40_000), PARTIAL)
            .await
            .result()
            .unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        ends.here.force_send().unwrap();
        let rest = ends.here.send(data.slice(40_000..), PLAIN | HINT);
        assert_eq!(ends.arrived().await, data);
        assert_eq!(sizes(rest).await, (Status::SUCCESS, 60_000));
    }
    let asked = ends.here.connection().unwrap().stats().keepalives_sent;
    assert!(asked > 0, "no keepalive was sent");
}

async fn force_send_grants_credits(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let here = ends.here.connection().unwrap();
    let before = here.stats().empty_sent;
    ends.here.force_send().unwrap();
    within(async {
        while here.stats().empty_sent == before {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The receiving client sees no event.
    drop(ends.here.send("after", PLAIN));
    assert_eq!(ends.arrived().await, "after");
}

//= TDI-QUERY-02 test
async fn queries_report_the_traffic(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let info = ends.transport.info();
    assert_eq!(info.version, 0x0200);
    assert_eq!(info.service_flags, ServiceFlags::SMB_DIRECT);
    assert_eq!(
        (info.max_connection_user_data, info.max_datagram_size),
        (0, 0)
    );
    assert_eq!(info.minimum_lookahead_data, 128);
    assert_eq!(info.number_of_resources, 2);
    assert!(info.start_time.elapsed().unwrap() < Duration::from_secs(60));
    assert!(info.local_priority_sends);
    ends.here
        .send(pattern(10_000, 0), PLAIN)
        .await
        .result()
        .unwrap();
    assert_eq!(ends.arrived().await.len(), 10_000);
    let here = ends.here.query_connection().unwrap();
    assert_eq!(
        (here.transmitted_tsdus, here.transmitted_bytes),
        (1, 10_000)
    );
    assert_eq!(here.send_buffer_size, 2 << 20);
    assert_eq!(here.send_buffer_available, 2 << 20);
    let there = ends.there.query_connection().unwrap();
    assert_eq!((there.received_tsdus, there.received_bytes), (1, 10_000));
    assert_eq!((there.receive_buffer_held, there.unreliable), (0, false));
    assert!(ends.here.ideal_backlog() > 100_000);
    let both = ends.transport.statistics();
    assert_eq!(
        (both.open_connections, both.connections_after_no_retry),
        (2, 2)
    );
    assert_eq!((both.data_frames_sent, both.data_frames_received), (2, 2));
    assert_eq!(both.data_frame_bytes_sent, 10_000);
    assert!(both.packets_sent >= 2);
    within(ends.here.disconnect(Default::default(), None))
        .await
        .unwrap();
    within(ends.there.disconnected()).await.unwrap();
    assert!(ends.here.query_connection().unwrap().unreliable);
    let after = ends.transport.statistics();
    // The counts stay after the connections have ended.
    assert_eq!(
        (after.data_frames_sent, after.data_frame_bytes_received),
        (2, 10_000)
    );
    assert_eq!(after.local_disconnects, 1);
    assert_eq!(after.remote_disconnects + after.link_failures, 1);
    let Ends {
        transport,
        here,
        there,
        ..
    } = ends;
    drop((here, there));
    assert_eq!(transport.statistics().open_connections, 0);
}
