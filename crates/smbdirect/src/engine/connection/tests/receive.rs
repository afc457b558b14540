use super::*;

/// Returns a segment of four bytes whose header `change` has altered.
fn with(change: fn(&mut DataTransfer)) -> Vec<u8> {
    let mut header = segment(1, 4, 0);
    change(&mut header);
    let mut bytes = vec![0; 28];
    bytes[0..2].copy_from_slice(&header.credits_requested.to_le_bytes());
    bytes[2..4].copy_from_slice(&header.credits_granted.to_le_bytes());
    bytes[8..12].copy_from_slice(&header.remaining_data_length.to_le_bytes());
    bytes[12..16].copy_from_slice(&header.data_offset.to_le_bytes());
    bytes[16..20].copy_from_slice(&header.data_length.to_le_bytes());
    bytes
}

#[test]
fn each_rule_for_a_single_message_is_checked() {
    let beyond = |data_offset, data_length, length| Violation::DataBeyondMessage {
        data_offset,
        data_length,
        length,
    };
    let above = |data_length, remaining_data_length| Violation::AboveMaxFragmentedSize {
        data_length,
        remaining_data_length,
        max_fragmented_size: 131_072,
    };
    for (message, violation) in [
        //= SMBD-3.1.5.8-01 test
        (vec![], Violation::DataTransferTooShort { length: 0 }),
        (
            with(|_| {})[..19].to_vec(),
            Violation::DataTransferTooShort { length: 19 },
        ),
        //= SMBD-3.1.5.8-02 test
        (
            with(|header| header.credits_requested = 0),
            Violation::WithoutCreditsRequested,
        ),
        //= SMBD-3.1.5.8-03 test
        (
            with(|header| header.data_offset = 23),
            Violation::DataOffsetAlignment(23),
        ),
        (
            with(|header| header.data_offset = 25),
            Violation::DataOffsetAlignment(25),
        ),
        //= SMBD-3.1.5.8-04 test
        (with(|header| header.data_offset = 32), beyond(32, 4, 28)),
        (with(|header| header.data_length = 5), beyond(24, 5, 28)),
        (
            with(|header| header.data_length = u32::MAX),
            beyond(24, u32::MAX, 28),
        ),
        //= SMBD-3.1.5.8-05 test
        (
            with(|header| header.remaining_data_length = 131_069),
            above(4, 131_069),
        ),
        (
            with(|header| {
                header.data_length = 0;
                header.remaining_data_length = u32::MAX;
            }),
            above(0, u32::MAX),
        ),
        (
            with(|header| header.credits_granted = u16::MAX),
            Violation::TooManyCredits {
                held: 10,
                granted: u16::MAX,
            },
        ),
    ] {
        let settings = Settings {
            max_fragmented_receive_size: 131_072,
            ..credits(10, 10)
        };
        for message in in_pieces(&message) {
            let mut bench = Bench::settled(settings.clone(), 10, 11);
            bench.hear_in_two(message, None);
            bench.ended(violation);
        }
    }
}

/// Returns a message in the ways a provider may deliver it: in one piece, or in two with every
/// possible length of the head.
fn in_pieces(message: &[u8]) -> Vec<[Bytes; 2]> {
    let bytes = Bytes::copy_from_slice(message);
    let cut = |at| [bytes.slice(..at), bytes.slice(at..)];
    let longest = bytes.len().min(Inline::CAPACITY);
    (0..=longest).map(cut).collect()
}

/// The payload is copied only if it is itself split between the two pieces.
#[test]
fn a_payload_delivered_apart_from_its_header_is_not_copied() {
    for (data_offset, data_length) in [
        (24, 40),
        (24, 0),
        (24, 4),
        (16, 8),
        (32, 16),
        (16, 20),
        (0, 64),
    ] {
        let header = DataTransfer {
            data_offset: 24,
            ..segment(1, data_length, 0)
        };
        let mut bytes = encoded(|out| header.encode(out));
        bytes[12..16].copy_from_slice(&u32::to_le_bytes(data_offset));
        bytes.extend(100..140);
        let bytes = Bytes::from(bytes);
        let place = data_offset as usize..(data_offset + data_length) as usize;
        for pieces in in_pieces(&bytes) {
            let (split, behind) = (pieces[0].len(), pieces[1].as_ptr());
            let mut bench = Bench::settled(credits(10, 10), 10, 10);
            bench.hear_in_two(pieces, None);
            let payloads = bench.events().into_iter().map(|event| match event {
                Event::Segment { payload, .. } => payload,
                other => panic!("{other:?}"),
            });
            let payloads: Vec<_> = payloads.collect();
            let expected = (data_length > 0).then(|| bytes.slice(place.clone()));
            assert_eq!(payloads, Vec::from_iter(expected));
            let counted = bench.engine.statistics();
            assert_eq!(counted.bytes_received, u64::from(data_length));
            // The two pieces are joined if the header is split or the payload begins in the head.
            let in_one = split == 0 || (20..=place.start).contains(&split);
            if let [payload] = &payloads[..] {
                let came = behind.wrapping_add(place.start.wrapping_sub(split));
                let shared = payload.as_ptr() == came;
                assert_eq!(shared, in_one, "{place:?}, split at {split}");
            }
            bench.still_up();
        }
    }
}

#[test]
fn a_negotiate_message_in_two_pieces_is_accepted() {
    for message in in_pieces(&encoded(|out| request(10).encode(out))) {
        let mut bench = Bench::listening(credits(10, 10));
        bench.hear_in_two(message, None);
        bench.work();
        bench.still_up();
    }
    for message in in_pieces(&encoded(|out| response(10, 10).encode(out))) {
        let mut bench = Bench::proposing(credits(10, 10));
        bench.hear_in_two(message, None);
        bench.work();
        bench.still_up();
    }
}

//= SMBD-3.1.5.8-16 test
//= SMBD-3.1.5.8-18 test
//= SMBD-3.1.5.8-19 test
#[test]
fn a_segment_that_does_not_continue_its_message_ends_the_connection() {
    for second in [
        grant(0),
        segment(0, 3, 0),
        segment(0, 5, 1),
        segment(0, 6, 0),
    ] {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.hear(segment(0, 3, 5));
        bench.hear(second);
        bench.ended(Violation::ReassemblyMismatch {
            data_length: second.data_length,
            remaining_data_length: second.remaining_data_length,
            expected: 5,
        });
    }
}

#[test]
fn an_empty_message_between_segments_can_be_tolerated() {
    let tolerant = policy(|policy| policy.tolerate_empty_in_sequence = true);
    let mut bench = Bench::settled(tolerant, 10, 10);
    bench.hear(segment(0, 3, 5));
    bench.hear(grant(2));
    bench.hear(segment(0, 5, 0));
    assert_eq!(bench.story(), ["segment 3+5", "segment 5+0"]);
    assert_eq!(bench.engine.credits().send_credits, 11);
}

//= SMBD-3.1.5.8-13 test
//= SMBD-3.1.5.8-14 test
//= SMBD-3.1.5.8-17 test
//= SMBD-3.1.5.8-21 test
//= SMBD-3.1.5.8-22 test
#[test]
fn segments_of_any_size_are_reported_and_empty_messages_are_not() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    for header in [
        segment(0, 0, 9),
        segment(0, 1, 8),
        segment(0, 0, 8),
        segment(0, 8, 0),
        grant(1),
        segment(0, 2, 0),
    ] {
        bench.hear(header);
    }
    assert_eq!(
        bench.story(),
        [
            "segment 0+9",
            "segment 1+8",
            "segment 0+8",
            "segment 8+0",
            "segment 2+0"
        ]
    );
    let counted = bench.engine.statistics();
    assert_eq!(counted.messages_received, 2);
    assert_eq!((counted.segments_received, counted.empty_received), (3, 3));
    assert_eq!(counted.bytes_received, 11);
}

#[test]
fn bytes_after_the_payload_and_payloads_in_the_header_are_accepted() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    let mut trailing = encoded(|out| segment(0, 4, 0).encode(out));
    trailing.extend(b"data and junk");
    bench.hear_bytes(trailing);
    let mut overlapping = encoded(|out| grant(0).encode(out));
    overlapping[12] = 8;
    overlapping[16] = 12;
    bench.hear_bytes(overlapping.clone());
    let payloads: Vec<_> = bench
        .events()
        .into_iter()
        .map(|event| match event {
            Event::Segment { payload, .. } => payload,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(payloads, [&b"data"[..], &overlapping[8..20]]);
}

//= SMBD-3.1.5.8-15 test
//= SMBD-3.1.5.8-17 test
#[test]
fn an_invalidated_token_is_reported_with_the_last_segment() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    let message = |header: DataTransfer| {
        let mut bytes = encoded(|out| header.encode(out));
        bytes.resize(bytes.len() + header.data_length as usize, 0);
        bytes
    };
    bench.hear_invalidating(message(segment(0, 3, 4)), Some(Token(9)));
    bench.hear(segment(0, 4, 0));
    bench.hear_invalidating(message(grant(0)), Some(Token(10)));
    let tokens: Vec<_> = bench
        .events()
        .into_iter()
        .map(|event| match event {
            Event::Segment { invalidated, .. } => invalidated,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tokens, [None, Some(Token(9)), Some(Token(10))]);
    assert_eq!(bench.engine.statistics().tokens_invalidated, 2);
}

//= SMBD-3.1.5.5-02 test
#[test]
fn every_message_restarts_the_idle_timer() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.wait(100 * SECOND);
    assert_eq!(bench.due(), Some(20 * SECOND));
    bench.hear(segment(0, 1, 0));
    assert_eq!(bench.due(), Some(IDLE));
}

//= SMBD-3.1.5.5-02 test
#[test]
fn an_invalid_message_restarts_the_idle_timer_too() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.engine.prompt_keepalive(bench.now);
    bench.work();
    bench.hear_bytes(vec![0; 19]);
    let story = bench.story();
    assert_eq!((story.len(), story[0].as_str()), (2, "answered"));
}

#[test]
fn messages_after_the_end_are_ignored() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.hear_bytes(vec![]);
    bench.ended(Violation::DataTransferTooShort { length: 0 });
    bench.hear(segment(0, 1, 0));
    bench.hear_bytes(vec![]);
    bench.wait(IDLE * 2);
    assert!(bench.events().is_empty() && bench.work().is_empty());
}
