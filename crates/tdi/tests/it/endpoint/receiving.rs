//! Tests of indications, receives and held data over a real connection.

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use smbdirect::rdma::provider::Provider;
use smbdirect_tdi::{
    Client, Inbound, ReceiveEvent, ReceiveFlags, ReceiveSettings, SendFlags, Status,
    TransportSettings,
};

use super::ends::{
    Ends, How, Recorder, credits, loopback, not_yet, over_providers, pattern, receive, settings,
    starving, turns, within,
};

const PLAIN: SendFlags = SendFlags::empty();

over_providers! {
    each_handler_answer_receives_all_data;
    pending_receives_suppress_indications;
    data_is_held_until_it_is_received;
    receives_honor_flags_and_lengths;
    lent_tsdus_are_counted_until_returned;
    tsdu_longer_than_all_buffers_arrives;
    full_receive_buffer_withholds_credits;
}

//= TDI-RECV-10 test
//= TDI-RECV-11 test
//= TDI-RECV-12 test
//= TDI-RECV-14 test
async fn each_handler_answer_receives_all_data(provider: Arc<dyn Provider>) {
    let data = pattern(20_000, 1);
    for how in [
        How::Take,
        How::TakeSome(1),
        How::TakeSome(100),
        How::TakeSome(5000),
        How::ThenReceive(0, 100),
        How::ThenReceive(50, 7000),
        How::ThenReceive(100_000, 3),
        How::ThenReceive(10, 100_000),
    ] {
        let ends = Ends::with(provider.clone(), settings(credits(8))).await;
        let recorder = Recorder::new(how);
        ends.remote.set_client(Some(recorder.clone()));
        for length in [20_000, 1, 4096, 129] {
            drop(ends.here.send(data.slice(..length), PLAIN));
        }
        recorder.has_taken(24_226).await;
        let expected = [20_000, 1, 4096, 129]
            .map(|length| data.slice(..length))
            .concat();
        assert_eq!(recorder.data(), expected, "{how:?}");
        let lines = recorder.lines();
        let wrong = |line: &&String| {
            line.starts_with("completed")
                && !line.starts_with("completed 77 STATUS_SUCCESS")
                && !line.starts_with("completed 77 STATUS_BUFFER_OVERFLOW")
        };
        assert_eq!(lines.iter().find(wrong), None);
    }
}

//= TDI-RECV-06 test
//= TDI-RECV-08 test
async fn pending_receives_suppress_indications(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let recorder = Recorder::new(How::Take);
    ends.remote.set_client(Some(recorder.clone()));
    let (first, second) = (
        ends.there
            .receive(BytesMut::zeroed(100), ReceiveFlags::NORMAL),
        ends.there
            .receive(BytesMut::zeroed(100), ReceiveFlags::empty()),
    );
    for words in ["one", "two", "three"] {
        drop(ends.here.send(words, PLAIN));
    }
    assert_eq!(&within(second).await.into_data().unwrap()[..], b"two");
    assert_eq!(&within(first).await.into_data().unwrap()[..], b"one");
    assert_eq!(recorder.wait_for_lines(1).await, ["receive 5."]);
}

//= TDI-RECV-11 test
//= TDI-RECV-12 test
//= TDI-ADDR-02 test
async fn data_is_held_until_it_is_received(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    // The address has no handlers.
    drop(ends.here.send("one", PLAIN));
    assert_eq!(ends.arrived().await, "one");
    drop(ends.here.send("two", PLAIN));
    within(async {
        while ends.there.query_connection().unwrap().receive_buffer_held == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // A new handler is shown the held data, and does not accept it.
    let recorder = Recorder::new(How::Refuse);
    ends.remote.set_client(Some(recorder.clone()));
    assert_eq!(recorder.wait_for_lines(1).await, ["receive 3."]);
    drop(ends.here.send("three", PLAIN));
    // No data is indicated until a receive completes.
    assert_eq!(ends.arrived().await, "two");
    assert_eq!(recorder.wait_for_lines(2).await[1], "receive 5.");
    recorder.answer(How::Take);
    ends.there.resume().unwrap();
    recorder.has_taken(5).await;
    assert_eq!(recorder.data(), "three");
    assert_eq!(recorder.lines().len(), 3);
}

//= TDI-RECV-01 test
//= TDI-RECV-02 test
//= TDI-RECV-04 test
//= TDI-RECV-05 test
//= TDI-RECV-09 test
async fn receives_honor_flags_and_lengths(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let post = |length, flags| ends.there.receive(BytesMut::zeroed(length), flags);
    let expedited = within(post(10, ReceiveFlags::EXPEDITED)).await;
    assert_eq!(expedited.status, Status::NOT_SUPPORTED);
    let strange = within(post(10, ReceiveFlags::from_bits_retain(0x8000))).await;
    assert_eq!(strange.status, Status::INVALID_PARAMETER);
    drop(ends.here.send("abcdefghij", PLAIN));
    within(async {
        while ends.there.query_connection().unwrap().receive_buffer_held == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let peek = within(post(4, ReceiveFlags::PEEK)).await;
    assert_eq!(
        (peek.status, peek.information),
        (Status::RECEIVE_PARTIAL, 4)
    );
    let peek = within(post(40, ReceiveFlags::PEEK)).await;
    assert_eq!(
        (peek.status, &peek.buffer[..10]),
        (Status::SUCCESS, &b"abcdefghij"[..])
    );
    let both = ReceiveFlags::NORMAL | ReceiveFlags::EXPEDITED;
    let part = within(post(4, both)).await;
    assert_eq!(
        (part.status, &part.buffer[..]),
        (Status::BUFFER_OVERFLOW, &b"abcd"[..])
    );
    let rest = within(post(40, both)).await;
    assert_eq!((rest.status, rest.information), (Status::SUCCESS, 6));
    assert_eq!(rest.buffer.len(), 40);
    let none = within(post(0, both)).await;
    assert_eq!((none.status, none.information), (Status::SUCCESS, 0));
    drop(ends.here.send("plain", PLAIN));
    let read = within(ends.there.read(BytesMut::zeroed(10))).await;
    assert_eq!(read.into_data(), Ok(b"plain"[..].into()));
}

//= TDI-CHN-01 test
//= TDI-CHN-03 test
//= TDI-CHN-04 test
//= TDI-CHN-05 test
//= TDI-CHN-06 test
async fn lent_tsdus_are_counted_until_returned(provider: Arc<dyn Provider>) {
    let mut small = settings(credits(16));
    small.receive.receive_buffer = 100_000;
    small.receive.lendable = 50_000;
    let ends = Ends::with(provider, small).await;
    let recorder = Recorder::chained(true);
    ends.remote.set_client(Some(recorder.clone()));
    let data = pattern(20_000, 1);
    for _ in 0..3 {
        drop(ends.here.send(data.clone(), PLAIN));
    }
    recorder.has_taken(60_000).await;
    let lines = recorder.lines();
    assert_eq!(lines[..2], ["chained 20000", "chained 20000"]);
    // The lending limit is reached, so the third TSDU is copied.
    assert!(lines[2].starts_with("receive "), "{lines:?}");
    let mut kept = recorder.kept();
    assert_eq!(kept.len(), 2);
    let mut copy = kept[1].clone();
    assert_eq!(copy.copy_to_bytes(20_000), data);
    assert_eq!(kept[1].len(), 20_000);
    kept.clear();
    drop(copy);
    // Memory that was returned is lent again.
    drop(ends.here.send(data.clone(), PLAIN));
    recorder.has_taken(80_000).await;
    assert_eq!(recorder.lines().last().unwrap(), "chained 20000");
    drop(recorder.kept());
    // A TSDU that is not accepted is held for a receive.
    recorder.answer(How::Refuse);
    drop(ends.here.send("refused", PLAIN));
    let before = recorder.lines().len();
    recorder.wait_for_lines(before.max(1)).await;
    assert_eq!(ends.arrived().await, "refused");
    recorder.answer(How::Take);
    drop(ends.here.send("again", PLAIN));
    recorder.has_taken(80_005).await;
    assert_eq!(
        recorder.data(),
        [&data[..], &data, &data, &data, b"again"].concat()
    );
}

//= TDI-CHN-04 test
//= TDI-RECV-17 test
async fn tsdu_longer_than_all_buffers_arrives(provider: Arc<dyn Provider>) {
    let mut small = settings(credits(4));
    small.receive.receive_buffer = 2000;
    small.receive.lendable = 2000;
    let ends = Ends::with(provider, small).await;
    let data = pattern(1 << 20, 3);
    let recorder = Recorder::chained(false);
    ends.remote.set_client(Some(recorder.clone()));
    drop(ends.here.send(data.clone(), PLAIN));
    recorder.has_taken(data.len()).await;
    assert_eq!(recorder.data(), data);
    assert!(
        recorder
            .lines()
            .iter()
            .all(|line| line.starts_with("receive"))
    );
    // The same with a receive.
    let receiving = ends
        .there
        .receive(BytesMut::zeroed(1 << 20), ReceiveFlags::empty());
    drop(ends.here.send(data.clone(), PLAIN));
    assert_eq!(within(receiving).await.into_data().unwrap(), data);
}

//= TDI-RECV-17 test
async fn full_receive_buffer_withholds_credits(provider: Arc<dyn Provider>) {
    let mut small: TransportSettings = settings(starving());
    small.receive.receive_buffer = 10_000;
    small.receive.lendable = 0;
    let ends = Ends::with(provider, small).await;
    let recorder = Recorder::new(How::Refuse);
    ends.remote.set_client(Some(recorder.clone()));
    let sendings: Vec<_> = (0..100)
        .map(|number| ends.here.send(vec![number; 900], PLAIN))
        .collect();
    not_yet(async {
        for sending in sendings {
            sending.await;
        }
    })
    .await;
    let there = ends.there.query_connection().unwrap();
    assert!(there.unreliable, "its receive buffer is full");
    // The limit can be exceeded by one message and its cost.
    assert!(there.receive_buffer_held <= 10_000 + 900 + 128, "{there:?}");
    let here = ends.here.connection().unwrap();
    assert!(here.stats().messages_sent < 60);
    assert_eq!(recorder.lines().len(), 1);
    for number in 0..100 {
        assert_eq!(receive(&ends.there, 1000).await, vec![number; 900]);
    }
    assert!(ends.transport.statistics().resources[1].exhausted > 0);
}

//= TDI-CHN-06 test
#[tokio::test]
async fn unaccepted_chained_tsdu_goes_to_a_new_copying_handler() {
    let ends = Ends::new(loopback()).await;
    let first = Recorder::chained(false);
    first.answer(How::Refuse);
    ends.remote.set_client(Some(first.clone()));
    drop(ends.here.send("one", PLAIN));
    drop(ends.here.send("two", PLAIN));
    assert_eq!(first.wait_for_lines(1).await, ["chained 3"]);
    let second = Recorder::new(How::Take);
    ends.remote.set_client(Some(second.clone()));
    second.has_taken(6).await;
    assert_eq!(second.lines(), ["receive 3.", "receive 3."]);
}

#[test]
fn tiny_segments_are_joined() {
    let mut inbound = Inbound::new(ReceiveSettings {
        lendable: 1 << 20,
        ..ReceiveSettings::default()
    })
    .unwrap();
    let data = pattern(100_000, 1);
    for at in 0..data.len() {
        inbound.handle_segment(data.slice(at..=at), data.len() - at - 1, None);
    }
    let Some(ReceiveEvent::Chained(mut tsdu)) = inbound.poll_event() else {
        panic!("the TSDU is lent");
    };
    let (mut pieces, mut got) = (0, Vec::new());
    while tsdu.has_remaining() {
        let piece = tsdu.chunk();
        got.extend_from_slice(piece);
        let length = piece.len();
        tsdu.advance(length);
        pieces += 1;
    }
    assert_eq!(got, data);
    assert!(pieces < 1000, "{pieces} pieces");
}

/// A client that asks for whole TSDUs and has no handler for them.
struct Unprepared;

impl Client for Unprepared {
    fn takes_chained(&self) -> bool {
        true
    }
}

//= TDI-ADDR-02 test
#[tokio::test]
async fn tsdu_without_a_chained_handler_is_held_for_receives() {
    let ends = Ends::new(loopback()).await;
    ends.remote.set_client(Some(Arc::new(Unprepared)));
    drop(ends.here.send("held", PLAIN));
    within(async {
        while ends.there.query_connection().unwrap().receive_buffer_held == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    turns(20).await;
    assert_eq!(ends.arrived().await, "held");
}
