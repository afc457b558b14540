//! Tests of sinks, streams, writers and events over real connections.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_sink::Sink;
use smbdirect::{Message, rdma::provider::Provider};
use smbdirect_tdi::{
    Cause, DisconnectFlags, Event, Events, ReceiveFlags, SendFlags, Status, TransportSettings,
    Tsdus,
};

use super::ends::{
    Ends, How, Recorder, credits, loopback, not_yet, over_providers, pattern, receive, settings,
    small_buffer, starving_settings, turns, within,
};

const PLAIN: SendFlags = SendFlags::empty();

over_providers! {
    stream_yields_each_tsdu_in_order;
    stream_takes_data_after_receives_and_before_handlers;
    sink_sends_each_item_as_one_tsdu;
    sink_is_not_ready_beyond_its_backlog;
    writer_assembles_parts_into_one_tsdu;
    writer_is_refused_while_a_partial_tsdu_is_open;
    events_are_delivered_as_a_stream;
    full_event_stream_holds_data_and_resumes;
}

async fn next(tsdus: &mut Tsdus) -> Option<Message> {
    within(poll_fn(|context| Pin::new(&mut *tsdus).poll_next(context))).await
}

async fn event(events: &mut Events) -> Event {
    let next = poll_fn(|context| Pin::new(&mut *events).poll_next(context));
    within(next).await.expect("the stream does not end")
}

async fn send<S: Sink<Bytes, Error = Status> + Unpin>(
    sink: &mut S,
    item: Bytes,
) -> Result<(), Status> {
    poll_fn(|context| Pin::new(&mut *sink).poll_ready(context)).await?;
    Pin::new(sink).start_send(item)
}

async fn flush<S: Sink<Bytes, Error = Status> + Unpin>(sink: &mut S) -> Result<(), Status> {
    within(poll_fn(|context| Pin::new(&mut *sink).poll_flush(context))).await
}

async fn close<S: Sink<Bytes, Error = Status> + Unpin>(sink: &mut S) -> Result<(), Status> {
    within(poll_fn(|context| Pin::new(&mut *sink).poll_close(context))).await
}

async fn stream_yields_each_tsdu_in_order(provider: Arc<dyn Provider>) {
    let mut small = settings(credits(8));
    // This is more than fits. TSDUs that are not taken wait at the sender and arrive later.
    small.receive.receive_buffer = 20_000;
    small.receive.lendable = 0;
    let ends = Ends::with(provider, small).await;
    let mut tsdus = ends.there.tsdus().unwrap();
    assert_eq!(
        ends.there.tsdus().unwrap_err(),
        Status::INVALID_DEVICE_STATE
    );
    let sent: Vec<_> = (0..100_u8)
        .map(|number| pattern(usize::from(number) * 300 + 1, number))
        .collect();
    for tsdu in &sent {
        drop(ends.here.send(tsdu.clone(), PLAIN));
    }
    let release = ends.here.disconnect(DisconnectFlags::RELEASE, None);
    let mut kept = Vec::new();
    while let Some(tsdu) = next(&mut tsdus).await {
        kept.push(tsdu);
    }
    within(release).await.unwrap();
    assert_eq!(
        within(ends.there.disconnected()).await,
        Some(Cause::RemoteDisconnect)
    );
    let got: Vec<_> = kept.into_iter().map(Message::into_bytes).collect();
    assert_eq!(got, sent);
}

async fn stream_takes_data_after_receives_and_before_handlers(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let recorder = Recorder::new(How::Take);
    ends.remote.set_client(Some(recorder.clone()));
    let mut tsdus = ends.there.tsdus().unwrap();
    let receiving = ends
        .there
        .receive(BytesMut::zeroed(9), ReceiveFlags::empty());
    for words in ["one", "two", "three"] {
        drop(ends.here.send(words, PLAIN));
    }
    assert_eq!(next(&mut tsdus).await.unwrap().into_bytes(), "two");
    assert_eq!(&within(receiving).await.into_data().unwrap()[..], b"one");
    assert_eq!(recorder.lines(), [""; 0]);
    drop(tsdus);
    assert_eq!(recorder.wait_for_lines(1).await, ["receive 5."]);
    // The stream takes the rest of a TSDU that a handler has started.
    recorder.answer(How::Refuse);
    drop(ends.here.send("four", PLAIN));
    recorder.wait_for_lines(2).await;
    let mut tsdus = ends.there.tsdus().unwrap();
    assert_eq!(next(&mut tsdus).await.unwrap().into_bytes(), "four");
}

async fn sink_sends_each_item_as_one_tsdu(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    for flags in [
        SendFlags::PARTIAL,
        SendFlags::NON_BLOCKING,
        SendFlags::all(),
    ] {
        assert_eq!(
            ends.here.sink(flags, 1).unwrap_err(),
            Status::INVALID_PARAMETER
        );
    }
    let mut sink = ends
        .here
        .sink(SendFlags::NO_RESPONSE_EXPECTED, 1 << 20)
        .unwrap();
    for number in 0..10_u8 {
        send(&mut sink, vec![number; 1000].into()).await.unwrap();
    }
    flush(&mut sink).await.unwrap();
    // An item that cannot be sent is an error of the next call, and affects nothing else.
    send(&mut sink, Bytes::new()).await.unwrap();
    assert_eq!(flush(&mut sink).await, Err(Status::INVALID_PARAMETER));
    send(&mut sink, "last".into()).await.unwrap();
    for number in 0..10_u8 {
        assert_eq!(ends.arrived().await, vec![number; 1000]);
    }
    close(&mut sink).await.unwrap();
    assert_eq!(ends.arrived().await, "last");
    assert_eq!(
        within(ends.here.disconnected()).await,
        Some(Cause::LocalDisconnect)
    );
    send(&mut sink, "too late".into()).await.unwrap();
    assert_eq!(flush(&mut sink).await, Err(Status::INVALID_CONNECTION));
}

async fn sink_is_not_ready_beyond_its_backlog(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let mut sink = ends.here.sink(PLAIN, 10_000).unwrap();
    let mut count = 0;
    loop {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match Pin::new(&mut sink).poll_ready(&mut context) {
            Poll::Ready(ready) => ready.unwrap(),
            Poll::Pending => {
                // Some items may still be in flight.
                let ready = pin!(poll_fn(|context| Pin::new(&mut sink).poll_ready(context)));
                let later = tokio::time::timeout(std::time::Duration::from_millis(50), ready);
                if later.await.is_err() {
                    break;
                }
                continue;
            }
        }
        Pin::new(&mut sink)
            .start_send(pattern(4000, count))
            .unwrap();
        count += 1;
        assert!(count < 100, "the sink accepts items without limit");
    }
    let drain = async {
        for number in 0..count {
            assert_eq!(ends.arrived().await, pattern(4000, number));
        }
    };
    let (flushed, ()) = tokio::join!(flush(&mut sink), drain);
    flushed.unwrap();
}

async fn writer_assembles_parts_into_one_tsdu(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    for flags in [SendFlags::PARTIAL, SendFlags::NON_BLOCKING] {
        assert_eq!(
            ends.here.begin_tsdu(flags).unwrap_err(),
            Status::INVALID_PARAMETER
        );
    }
    let mut first = ends.here.begin_tsdu(PLAIN).unwrap();
    let mut second = ends.here.begin_tsdu(SendFlags::EXPEDITED).unwrap();
    assert!(first.is_empty());
    first.push("fir").unwrap();
    second.push("sec").unwrap();
    drop(ends.here.send("in between", PLAIN));
    first.push("st").unwrap();
    second.push("ond").unwrap();
    assert_eq!((first.len(), first.is_empty()), (5, false));
    let mut forgotten = ends.here.begin_tsdu(PLAIN).unwrap();
    forgotten.push("never sent").unwrap();
    drop(forgotten);
    assert_eq!(within(second.finish()).await.result(), Ok(6));
    assert_eq!(within(first.finish()).await.result(), Ok(5));
    // The task passes on no TSDU before this future waits.
    for words in ["second", "in between", "first"] {
        assert_eq!(ends.arrived().await, words);
    }
    let mut long = ends.here.begin_tsdu(PLAIN).unwrap();
    let max = ends.here.max_tsdu().unwrap();
    long.push(pattern(max, 0)).unwrap();
    assert_eq!(long.push("x"), Err(Status::INVALID_PARAMETER));
    assert_eq!(within(long.finish()).await.result(), Ok(max));
    assert_eq!(ends.arrived().await.len(), max);
    let empty = ends.here.begin_tsdu(PLAIN).unwrap().finish();
    assert_eq!(within(empty).await.status, Status::INVALID_PARAMETER);
}

async fn writer_is_refused_while_a_partial_tsdu_is_open(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    ends.here
        .send("raw ", SendFlags::PARTIAL)
        .await
        .result()
        .unwrap();
    let mut writer = ends.here.begin_tsdu(PLAIN).unwrap();
    writer.push("written").unwrap();
    let refused = within(writer.finish()).await;
    assert_eq!(refused.status, Status::INVALID_DEVICE_STATE);
    assert_eq!(refused.buffer.into_bytes(), "written");
    let mut sink = ends.here.sink(PLAIN, 10).unwrap();
    send(&mut sink, "sunk".into()).await.unwrap();
    assert_eq!(flush(&mut sink).await, Err(Status::INVALID_DEVICE_STATE));
    // No TSDU of the other class is open.
    let mut writer = ends.here.begin_tsdu(SendFlags::EXPEDITED).unwrap();
    writer.push("written").unwrap();
    assert_eq!(within(writer.finish()).await.result(), Ok(7));
    drop(ends.here.send("end", PLAIN));
    assert_eq!(ends.arrived().await, "written");
    assert_eq!(ends.arrived().await, "raw end");
}

async fn events_are_delivered_as_a_stream(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let mut events = ends.remote.events(10);
    let there = ends.there.connection().unwrap();
    let region = there
        .register(pattern(10, 0).into(), smbdirect::Access::all())
        .unwrap();
    drop(ends.here.send("hello", PLAIN));
    let Event::Tsdu { endpoint, tsdu } = event(&mut events).await else {
        panic!("the event is a TSDU");
    };
    assert_eq!(tsdu.into_bytes(), "hello");
    endpoint
        .send("hello yourself", PLAIN)
        .await
        .result()
        .unwrap();
    assert_eq!(receive(&ends.here, 100).await, "hello yourself");
    let here = ends.here.connection().unwrap();
    let token = region.token();
    drop(here.send_and_invalidate("", token).unwrap());
    assert!(matches!(
        event(&mut events).await,
        Event::Invalidated { token: told, .. } if told == token
    ));
    drop(region);
    within(ends.here.disconnect(DisconnectFlags::RELEASE, None))
        .await
        .unwrap();
    let last = event(&mut events).await;
    assert!(
        matches!(
            &last,
            Event::Disconnect {
                cause: Cause::RemoteDisconnect,
                ..
            }
        ),
        "{last:?}"
    );
    // After the stream was dropped, data is not accepted and can be received.
    drop(events);
    ends.connect().await;
    drop(ends.here.send("later", PLAIN));
    within(async {
        while ends.there.query_connection().unwrap().receive_buffer_held == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(ends.arrived().await, "later");
}

async fn full_event_stream_holds_data_and_resumes(provider: Arc<dyn Provider>) {
    for lendable in [0, 30_000, 4 << 20] {
        let mut small: TransportSettings = settings(credits(8));
        small.receive.lendable = lendable;
        let ends = Ends::with(provider.clone(), small).await;
        let mut events = ends.remote.events(2);
        let sent: Vec<_> = (0..40_u8)
            .map(|number| pattern(usize::from(number) * 1000 + 1, number))
            .collect();
        for tsdu in &sent {
            drop(ends.here.send(tsdu.clone(), PLAIN));
        }
        not_yet(ends.there.disconnected()).await;
        for tsdu in &sent {
            let Event::Tsdu { tsdu: got, .. } = event(&mut events).await else {
                panic!("a TSDU is next");
            };
            assert_eq!(got.into_bytes(), tsdu);
        }
    }
}

#[tokio::test]
async fn second_stream_is_refused_and_keeps_the_first_waker() {
    let ends = Ends::new(loopback()).await;
    let mut tsdus = ends.there.tsdus().unwrap();
    let waiting =
        tokio::spawn(
            async move { poll_fn(|context| Pin::new(&mut tsdus).poll_next(context)).await },
        );
    turns(20).await;
    let second = ends.there.tsdus().unwrap_err();
    assert_eq!(second, Status::INVALID_DEVICE_STATE);
    turns(20).await;
    drop(ends.here.send("for the first", PLAIN));
    let tsdu = within(waiting).await.unwrap().unwrap();
    assert_eq!(tsdu.into_bytes(), "for the first");
}

#[tokio::test]
async fn stream_takes_a_tsdu_of_which_the_start_is_held() {
    let mut small = settings(credits(8));
    small.receive.receive_buffer = 1000;
    small.receive.lendable = 0;
    let ends = Ends::with(loopback(), small).await;
    // Without a handler the start of the TSDU is held, and it fills the receive buffer.
    let data = pattern(500_000, 1);
    drop(ends.here.send(data.clone(), PLAIN));
    turns(200).await;
    let mut tsdus = ends.there.tsdus().unwrap();
    let tsdu = within(poll_fn(|context| Pin::new(&mut tsdus).poll_next(context)));
    assert_eq!(tsdu.await.unwrap().into_bytes(), data);
}

#[tokio::test]
async fn events_do_not_join_parts_of_two_connections() {
    let mut small = settings(credits(8));
    small.receive.lendable = 0;
    small.receive.maximum_lookahead = 1000;
    let ends = Ends::with(loopback(), small).await;
    let mut events = ends.remote.events(1);
    // The queue has room for one TSDU, so of the next one only the start is gathered.
    drop(ends.here.send("waits", PLAIN));
    drop(ends.here.send(pattern(3000, 1), PLAIN));
    turns(200).await;
    within(ends.there.disconnect(DisconnectFlags::ABORT, None))
        .await
        .unwrap();
    within(ends.here.disconnected()).await;
    ends.connect().await;
    let receiving = ends
        .there
        .receive(BytesMut::zeroed(2000), ReceiveFlags::empty());
    let data = pattern(5000, 2);
    drop(ends.here.send(data.clone(), PLAIN));
    let beginning = within(receiving).await;
    assert_eq!(beginning.status, Status::BUFFER_OVERFLOW);
    let mut got = Vec::new();
    while got.len() < 2 {
        let next = poll_fn(|context| Pin::new(&mut events).poll_next(context));
        if let Event::Tsdu { tsdu, .. } = within(next).await.unwrap() {
            got.push(tsdu.into_bytes());
        }
    }
    assert_eq!(got[0], "waits");
    assert_eq!(got[1], data.slice(2000..));
}

#[tokio::test]
async fn sink_can_be_closed_again_after_a_failed_close() {
    let ends = Ends::new(loopback()).await;
    let mut sink = ends.here.sink(PLAIN, 1000).unwrap();
    let half = ends.here.send("half", SendFlags::PARTIAL).await;
    half.result().unwrap();
    let close = poll_fn(|context| Sink::<Bytes>::poll_close(Pin::new(&mut sink), context));
    assert_eq!(within(close).await, Err(Status::INVALID_PARAMETER));
    drop(ends.here.send("and half", PLAIN));
    for _ in 0..2 {
        let close = poll_fn(|context| Sink::<Bytes>::poll_close(Pin::new(&mut sink), context));
        assert_eq!(within(close).await, Ok(()));
    }
    assert_eq!(ends.arrived().await, "halfand half");
}

#[tokio::test]
async fn sink_counts_the_bytes_of_items_that_were_not_sent() {
    let ends = Ends::new(loopback()).await;
    let mut sink = ends.here.sink(PLAIN, 10).unwrap();
    for _ in 0..2 {
        // No item is sent before this future waits.
        for (length, is_ready) in [(4, true), (5, true), (1, false)] {
            Pin::new(&mut sink).start_send(pattern(length, 0)).unwrap();
            let mut context = Context::from_waker(std::task::Waker::noop());
            let ready = Pin::new(&mut sink).poll_ready(&mut context);
            assert_eq!(ready.is_ready(), is_ready, "{length} more");
        }
        flush(&mut sink).await.unwrap();
    }
}

//= TDI-CHN-05 test
#[tokio::test]
async fn tsdus_that_wait_in_the_stream_count_as_lent() {
    let ends = Ends::new(loopback()).await;
    let mut events = ends.remote.events(2);
    let data = pattern(10_000, 0);
    for _ in 0..2 {
        ends.here.send(data.clone(), PLAIN).await.result().unwrap();
    }
    within(ends.here.disconnect(DisconnectFlags::RELEASE, None))
        .await
        .unwrap();
    within(ends.there.disconnected()).await.unwrap();
    let received = ends.transport.statistics().resources[1];
    // Each costs 128 bytes in addition to its data.
    assert_eq!(received.maximum_used, 20_256);
    for _ in 0..2 {
        let Event::Tsdu { tsdu, .. } = event(&mut events).await else {
            panic!("the event is a TSDU");
        };
        assert_eq!(tsdu.into_bytes(), data);
    }
}

//= TDI-SEND-17 test
#[tokio::test]
async fn events_include_send_possible() {
    let ends = Ends::with(loopback(), small_buffer()).await;
    let mut events = ends.local.events(1);
    let data = pattern(200_000, 0);
    for _ in 0..2 {
        assert_eq!(ends.here.try_send(data.clone(), PLAIN), Ok(200_000));
    }
    let refused = ends.here.try_send(data.clone(), PLAIN);
    assert_eq!(refused, Err(Status::DEVICE_NOT_READY));
    for _ in 0..2 {
        assert_eq!(ends.arrived().await, data);
    }
    let event = event(&mut events).await;
    assert!(
        matches!(
            event,
            Event::SendPossible {
                available: 300_000..,
                ..
            }
        ),
        "{event:?}"
    );
}
