use super::*;

//= SMBD-3.1.5.1-01 test
//= SMBD-3.1.5.1-02 test
//= SMBD-3.1.5.1-04 test
//= SMBD-3.1.5.8-12 test
//= SMBD-3.1.5.9-10 test
#[test]
fn messages_wait_in_order_for_credits() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    for id in 1..=3 {
        bench.send(id, id as usize);
    }
    assert_eq!(bench.work(), []);
    assert_eq!(bench.engine.queued_messages(), 3);
    bench.hear(grant(3));
    let lengths: Vec<_> = bench.sent().iter().map(|sent| sent.data_length).collect();
    assert_eq!(lengths, [1, 2, 3]);
    bench.complete_sends();
    assert_eq!(bench.story(), ["sent 1", "sent 2", "sent 3"]);
}

//= SMBD-3.1.5.1-05 test
//= SMBD-3.1.5.1-07 test
#[test]
fn a_message_uses_a_credit_and_carries_all_available_grants() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    for _ in 0..4 {
        bench.hear(segment(0, 1, 0));
    }
    assert_eq!(bench.sent(), [], "no message of its own for four of ten");
    let before = bench.engine.credits();
    assert_eq!((before.receive_credits, before.granted), (10, 6));
    bench.send(1, 5);
    bench.send(2, 5);
    assert_eq!(bench.grants(), [4, 0]);
    let after = bench.engine.credits();
    assert_eq!(after.send_credits, before.send_credits - 2);
    assert_eq!((after.receive_credits, after.granted), (10, 10));
}

/// The wording of 2014 adds grants to the blocked message, and the current wording sets them when the message is
/// sent.
//= SMBD-3.1.5.1-05 test
//= SMBD-3.1.5.1-05b test
#[test]
fn a_blocked_message_carries_the_grants_that_accumulated() {
    for settings in both_wordings() {
        let mut bench = Bench::passive(settings, 10);
        bench.send(1, 5);
        bench.send(2, 5);
        for _ in 0..4 {
            bench.hear(segment(0, 1, 0));
            assert_eq!(
                bench.work(),
                [Did::Receives(1, 1024)],
                "no credit to leave with"
            );
        }
        bench.hear(grant(5));
        assert_eq!(bench.grants(), [5, 0]);
        let held = bench.engine.credits();
        assert_eq!((held.receive_credits, held.granted), (10, 10));
    }
}

//= SMBD-3.1.5.1-06 test
//= SMBD-3.1.5.1-06b test
//= SMBD-3.1.5.9-03 test
#[test]
fn the_last_credit_is_spent_only_with_a_grant() {
    for settings in both_wordings() {
        let mut bench = Bench::settled(settings, 10, 3);
        bench.room.receives = 0;
        bench.send(1, 5);
        bench.send(2, 5);
        assert_eq!(
            bench.grants(),
            [0],
            "the second of two credits needs no grant"
        );
        assert!(bench.engine.wants_receives());
        assert_eq!(bench.engine.queued_messages(), 1);
        bench.room.receives = 5;
        assert_eq!(bench.grants(), [1]);
        assert_eq!(bench.receives.len(), 11, "one beyond the target");
        assert!(!bench.engine.wants_receives());
    }
}

//= SMBD-3.1.5.1-06 test
#[test]
fn the_last_credit_needs_no_further_receive_if_one_can_be_granted() {
    let mut bench = Bench::settled(credits(10, 10), 10, 2);
    bench.hear(segment(0, 1, 0));
    bench.work();
    bench.send(1, 5);
    assert_eq!(bench.grants(), [1]);
    assert_eq!(bench.receives.len(), 10);
}

#[test]
fn the_lenient_policy_spends_the_last_credit_as_linux_does() {
    let weak = policy(|policy| policy.strict_last_credit = false);
    let mut bench = Bench::settled(weak, 2, 3);
    bench.room.receives = 0;
    for id in 1..=2 {
        bench.send(id, 5);
    }
    assert_eq!(bench.grants(), [0, 0]);
    bench.hear(grant(1));
    bench.send(3, 5);
    assert_eq!(bench.grants(), [0], "the peer still holds one");
    bench.hear(grant(1));
    bench.send(4, 5);
    assert_eq!(bench.sent(), [], "the peer could not answer");
    bench.room.receives = 5;
    assert_eq!(bench.grants(), [10]);
}

//= SMBD-3.1.5.1-08 test
#[test]
fn every_message_requests_the_target() {
    let mut bench = Bench::active(credits(77, 10), 10, 100);
    bench.send(1, 5000);
    bench.engine.prompt();
    bench.work();
    bench.hear(flagged(1));
    bench.send(2, 0);
    let sent = bench.sent();
    assert!(sent.iter().all(|header| header.credits_requested == 77));
}

//= SMBD-3.1.5.1-03 test
//= SMBD-3.1.5.1-14 test
//= SMBD-3.1.5.1-14b test
#[test]
fn a_prompt_sends_one_message_unless_another_is_sent() {
    for settings in both_wordings() {
        let mut bench = Bench::settled(settings, 10, 10);
        bench.engine.prompt();
        bench.engine.prompt();
        assert_eq!(bench.sent(), [grant(0)]);
        bench.engine.prompt();
        bench.send(1, 5);
        assert_eq!(bench.sent(), [segment(0, 5, 0)]);
    }
}

#[test]
fn several_blocked_prompts_send_one_message() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    for _ in 0..3 {
        bench.engine.prompt();
        assert_eq!(bench.work(), []);
    }
    bench.hear(grant(5));
    assert_eq!(bench.sent().len(), 1);
}

//= SMBD-3.1.4.2-01 test
//= SMBD-3.1.4.2-02 test
//= SMBD-3.1.5.4-02 test
#[test]
fn the_longest_message_is_accepted_and_one_byte_more_is_refused() {
    let mut bench = Bench::active(credits(10, 10), 10, 200);
    let too_large = vec![0; 131_073];
    let refused = bench.engine.send(MessageId(1), too_large, None);
    let (length, max) = (131_073, 131_072);
    assert_eq!(refused, Err(SendError::TooLong { length, max }));
    assert_eq!(bench.work(), []);
    bench.send(2, 131_072);
    assert_eq!(bench.sent().len(), 131_072_usize.div_ceil(1000));
    bench.still_up();
}

//= SMBD-3.1.5.4-03 test
//= SMBD-3.1.5.4-04 test
//= SMBD-3.1.5.4-05 test
//= SMBD-3.1.5.4-06 test
//= SMBD-3.1.5.4-07 test
//= SMBD-3.1.5.4-08 test
//= SMBD-3.1.5.4-12 test
//= SMBD-3.1.5.4-13 test
//= SMBD-3.1.5.1-13 test
#[test]
fn messages_are_cut_into_segments_of_the_largest_size() {
    for max_send_size in [128, 129, 200, 1364] {
        let payload = max_send_size as usize - 24;
        for length in [
            1,
            payload - 1,
            payload,
            payload + 1,
            2 * payload - 1,
            2 * payload,
            7 * payload + 3,
        ] {
            let mut bench = Bench::proposing(Settings {
                max_send_size,
                ..credits(10, 10)
            });
            let response = NegotiateResponse {
                max_receive_size: 8192,
                ..response(10, 100)
            };
            bench.hear_bytes(encoded(|out| response.encode(out)));
            bench.work();
            let content: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let message = content.clone();
            bench.engine.send(MessageId(1), message, None).unwrap();
            let mut seen = Vec::new();
            for did in bench.work() {
                let Did::Send(bytes, None) = did else {
                    panic!("{did:?}");
                };
                let header = DataTransfer::decode(&bytes).unwrap();
                assert!(bytes.len() <= max_send_size as usize);
                assert_eq!((header.data_offset, &bytes[20..24]), (24, &[0; 4][..]));
                seen.extend_from_slice(&bytes[header.payload()]);
                assert_eq!(header.remaining_data_length as usize, length - seen.len());
                assert!(header.remaining_data_length == 0 || bytes.len() == payload + 24);
            }
            assert_eq!(seen, content, "{length} bytes by {max_send_size}");
        }
    }
}

//= SMBD-3.1.5.4-03 test
#[test]
fn an_empty_message_is_sent_as_a_header() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    bench.send(1, 0);
    let done = bench.work();
    assert_eq!(
        done,
        [Did::Send(encoded(|out| grant(10).encode(out)), None)]
    );
    bench.complete_sends();
    assert_eq!(bench.story(), ["sent 1"]);
}

//= SMBD-3.1.4.2-01 test
//= SMBD-3.1.5.4-09 test
//= SMBD-3.1.5.1-11 test
//= SMBD-3.1.5.1-12 test
#[test]
fn the_token_is_sent_with_the_first_segment_if_supported() {
    for (length, can) in [(0, true), (1000, true), (2500, true), (2500, false)] {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        bench.engine.limits.send_with_invalidate = can;
        let token = Some(Token(0x1234));
        let message = vec![0; length];
        bench.engine.send(MessageId(1), message, token).unwrap();
        bench.send(2, 10);
        let tokens: Vec<_> = bench
            .work()
            .into_iter()
            .map(|did| match did {
                Did::Send(_, token) => token,
                other => panic!("{other:?}"),
            })
            .collect();
        let mut expected = vec![None; length.div_ceil(1000).max(1) + 1];
        expected[0] = token.filter(|_| can);
        assert_eq!(tokens, expected);
    }
}

//= SMBD-3.1.4.2-03 test
//= SMBD-3.1.5.4-10 test
//= SMBD-3.1.5.4-11 test
#[test]
fn nothing_comes_between_the_segments_of_a_message() {
    let mut bench = Bench::settled(credits(10, 10), 10, 3);
    bench.send(1, 5000);
    let mut sent = bench.sent();
    // A grant, a prompt and a keepalive fall due while the message is partly sent.
    bench.engine.prompt();
    bench.engine.prompt_keepalive(bench.now);
    sent.extend(bench.sent());
    for _ in 0..9 {
        bench.hear(segment(0, 1, 0));
        sent.extend(bench.sent());
    }
    bench.hear(flagged(5));
    sent.extend(bench.sent());
    let remaining: Vec<_> = sent.iter().map(|sent| sent.remaining_data_length).collect();
    assert_eq!(remaining, [4000, 3000, 2000, 1000, 0]);
    assert!(sent.iter().all(|sent| sent.data_length == 1000));
}

//= SMBD-3.1.4.2-04 test
#[test]
fn a_message_is_reported_as_sent_with_its_last_segment() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    bench.send(1, 2500);
    bench.work();
    let ids = std::mem::take(&mut bench.sends);
    assert_eq!(ids.len(), 3);
    for (at, id) in ids.into_iter().enumerate() {
        assert_eq!(bench.story(), Vec::<String>::new(), "after {at}");
        bench.complete(Completion::Sent { id });
    }
    assert_eq!(bench.story(), ["sent 1"]);
}

#[test]
fn a_completion_covers_all_earlier_sends() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    for id in 1..=3 {
        bench.send(id, 2500);
    }
    bench
        .engine
        .send(MessageId::UNWATCHED, Message::from("a"), None)
        .unwrap();
    bench.work();
    let ids = std::mem::take(&mut bench.sends);
    let outstanding = |bench: &Bench| bench.engine.statistics().work_outstanding;
    assert_eq!((ids.len(), outstanding(&bench)), (10, 10));
    for (at, left, story) in [
        (1, 8, &[][..]),
        (6, 3, &["sent 1", "sent 2"]),
        (9, 0, &["sent 3"]),
    ] {
        bench.complete(Completion::Sent { id: ids[at] });
        assert_eq!(bench.story(), story);
        assert_eq!(outstanding(&bench), left);
    }
}

#[test]
fn messages_wait_for_a_full_send_queue() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    bench.send(1, 3000);
    bench.room.sends = 0;
    assert_eq!(bench.work(), []);
    bench.room.sends = 1;
    let remaining: Vec<_> = (0..3)
        .map(|_| {
            let work = bench.engine.poll_work(bench.now, bench.room).unwrap();
            let Did::Send(bytes, None) = bench.post(work) else {
                panic!("a send was due");
            };
            DataTransfer::decode(&bytes).unwrap().remaining_data_length
        })
        .collect();
    assert_eq!(remaining, [2000, 1000, 0]);
}

//= SMBD-3.1.5.1-15 test
#[test]
fn the_last_credit_makes_ready_only_if_a_credit_can_be_granted_with_it() {
    let mut bench = Bench::settled(credits(10, 10), 10, 3);
    bench.engine.set_unread(usize::MAX);
    assert!(bench.engine.is_ready());
    bench.send(1, 5);
    assert_eq!(bench.grants(), [0]);
    assert!(!bench.engine.is_ready(), "one credit, and none to grant");
    bench.hear(grant(1));
    assert!(bench.engine.is_ready());
    bench.send(2, 5);
    assert_eq!(bench.grants(), [0]);
    assert!(!bench.engine.is_ready());
    bench.engine.set_unread(0);
    assert!(bench.engine.is_ready());
    bench.send(3, 5);
    assert_eq!(bench.grants(), [1]);
}

//= SMBD-3.1.5.9-11 test
#[test]
fn a_full_buffer_grants_what_a_begun_message_needs_and_no_more() {
    let mut bench = Bench::settled(credits(10, 3), 3, 10);
    bench.engine.set_unread(usize::MAX);
    let asking = |data_length, remaining| DataTransfer {
        credits_requested: 3,
        ..segment(0, data_length, remaining)
    };
    bench.hear(asking(1000, 4500));
    bench.hear(asking(1000, 3500));
    assert_eq!(bench.grants(), Vec::<u16>::new(), "the peer has a credit");
    bench.hear(asking(1000, 2500));
    assert_eq!(bench.grants(), [3], "for 2500 bytes");
    bench.hear(asking(1000, 1500));
    bench.hear(asking(1000, 500));
    bench.hear(asking(500, 0));
    assert_eq!(bench.grants(), Vec::<u16>::new(), "the message is whole");
    assert_eq!(bench.engine.credits().receive_credits, 0);
    bench.engine.set_unread(0);
    assert_eq!(bench.grants(), [3]);
}

/// A peer that places its payload over the header needs one segment less than others for the same message. It gets no
/// credit that could begin another message.
//= SMBD-3.1.5.9-11 test
#[test]
fn a_payload_over_the_header_leaves_no_owed_credit() {
    let mut bench = Bench::settled(credits(10, 3), 3, 10);
    bench.engine.set_unread(usize::MAX);
    let asking = |data_length, remaining| DataTransfer {
        credits_requested: 3,
        data_offset: 0,
        ..segment(0, data_length, remaining)
    };
    for remaining in [4096, 3072, 2048] {
        bench.hear_bytes(over_the_header(&asking(1024, remaining)));
    }
    assert_eq!(bench.grants(), [2], "for 2048 bytes");
    bench.hear_bytes(over_the_header(&asking(1024, 1024)));
    bench.hear_bytes(over_the_header(&asking(1024, 0)));
    let held = bench.engine.credits();
    assert_eq!((held.granted, held.receive_credits), (0, 0));
}

/// Returns a message of the largest size, whose payload begins at its first byte.
fn over_the_header(header: &DataTransfer) -> Vec<u8> {
    let whole = DataTransfer {
        data_offset: 24,
        ..*header
    };
    let mut bytes = encoded(|out| whole.encode(out));
    bytes[12..16].fill(0);
    bytes.resize(header.data_length as usize, 0);
    bytes
}

#[test]
fn ready_means_a_credit_and_an_empty_queue() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    assert!(!bench.engine.is_ready());
    bench.hear(grant(1));
    assert!(bench.engine.is_ready());
    bench.send(1, 5);
    assert!(!bench.engine.is_ready());
    bench.work();
    assert!(!bench.engine.is_ready());
}
