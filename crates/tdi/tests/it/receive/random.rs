//! Random clients, which must receive each byte once.

use super::*;

/// The next operation of a random client.
#[derive(Clone, Debug)]
enum Op {
    /// Another segment of this many bytes arrives, if it is wanted.
    Arrive(usize),
    /// The client submits a receive of this many bytes.
    Receive(usize),
    /// Events are handled, and a handler gives this answer and takes this many bytes.
    Poll(u8, usize),
    Resume,
    /// The client returns the oldest loan.
    Return,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..12_usize).prop_map(Op::Arrive),
        1 => (1..12_usize).prop_map(Op::Receive),
        5 => (0..6_u8, 0..9_usize).prop_map(|(answer, count)| Op::Poll(answer, count)),
        1 => Just(Op::Resume),
        1 => Just(Op::Return),
    ]
}

proptest! {
    /// Each byte is delivered once and in order, and each end of a TSDU at its place, for all ways in
    /// which a client takes data.
    //= TDI-RECV-02 test
    //= TDI-RECV-06 test
    //= TDI-RECV-08 test
    //= TDI-RECV-10 test
    //= TDI-RECV-11 test
    //= TDI-RECV-12 test
    //= TDI-RECV-13 test
    //= TDI-RECV-14 test
    //= TDI-CHN-03 test
    //= TDI-SEND-28 test
    #[test]
    fn each_byte_is_delivered_once(
        lengths in proptest::collection::vec(1..40_usize, 1..20),
        ops in proptest::collection::vec(op(), 1..300),
        lendable in prop_oneof![Just(0_usize), Just(200), Just(500)],
    ) {
        let mut inbound = lending(lendable);
        let total: usize = lengths.iter().sum();
        let sent: Vec<u8> = (0..total).map(|at| at as u8).collect();
        let ends: Vec<usize> = lengths
            .iter()
            .scan(0, |end, length| { *end += length; Some(*end) })
            .collect();
        let mut to_come: VecDeque<usize> = lengths.into();
        let (mut arrived, mut got, mut seen_ends) = (0, Vec::new(), Vec::new());
        let (mut posted, mut id) = (VecDeque::new(), 0);
        let mut loans = VecDeque::new();
        let mut refused = false;
        // At the end all data arrives and the client takes it. A chained TSDU that was not accepted
        // and was received in part is held for receives.
        let take = [Op::Return, Op::Resume, Op::Arrive(40), Op::Poll(0, 8), Op::Poll(0, 8)];
        let receive = [Op::Receive(40), Op::Arrive(40), Op::Poll(0, 8), Op::Poll(0, 8)];
        let end = std::iter::repeat_n(take, 2 * total + 300).flatten();
        let end = end.chain(std::iter::repeat_n(receive, 2 * total + 300).flatten());
        for op in ops.into_iter().chain(end) {
            match op {
                Op::Arrive(count) => {
                    let Some(left) = to_come.front_mut().filter(|_| inbound.wants_segment()) else {
                        continue;
                    };
                    let count = count.min(*left);
                    *left -= count;
                    let payload = Bytes::copy_from_slice(&sent[arrived..arrived + count]);
                    arrived += count;
                    // An empty segment occurs only inside a TSDU.
                    let remaining = *left;
                    inbound.handle_segment(payload, remaining, None);
                    if remaining == 0 {
                        to_come.pop_front();
                    }
                }
                Op::Receive(length) => {
                    id += 1;
                    posted.push_back(id);
                    inbound.receive(request(id, length, NORMAL));
                }
                Op::Resume => {
                    refused = false;
                    inbound.resume();
                }
                Op::Return => drop(loans.pop_front()),
                Op::Poll(answer, count) => match inbound.poll_event() {
                    None => {}
                    Some(ReceiveEvent::Completed(done)) => {
                        prop_assert_eq!(Some(done.id.0), posted.pop_front());
                        got.extend_from_slice(&done.buffer[..done.information]);
                        match done.status {
                            Status::SUCCESS => seen_ends.push(got.len()),
                            status => prop_assert_eq!(status, Status::BUFFER_OVERFLOW),
                        }
                        refused = false;
                    }
                    Some(ReceiveEvent::Indicate(seen)) => {
                        prop_assert!(!refused && posted.is_empty());
                        let count = count.min(seen.data.len());
                        got.extend_from_slice(&seen.data[..count]);
                        let all = count == seen.data.len();
                        if all && seen.flags.contains(ENTIRE) {
                            seen_ends.push(got.len());
                        }
                        inbound.answer(match answer {
                            0..=2 => Answer::Taken(count),
                            3 => {
                                id += 1;
                                posted.push_back(id);
                                Answer::TakenThenReceive(count, request(id, 5, NORMAL))
                            }
                            _ => {
                                // Indications continue if no other data has arrived.
                                refused = got.len() < arrived;
                                Answer::NotAccepted(count)
                            }
                        }).unwrap();
                    }
                    Some(ReceiveEvent::Chained(mut tsdu)) => {
                        prop_assert!(!refused && posted.is_empty() && lendable > 0);
                        if answer == 5 {
                            refused = true;
                            tsdu.advance(count.min(tsdu.len()));
                            inbound.answer_chained(Err(tsdu)).unwrap();
                            continue;
                        }
                        let mut copy = tsdu.clone();
                        got.extend_from_slice(&copy.copy_to_bytes(tsdu.len()));
                        seen_ends.push(got.len());
                        if answer > 1 {
                            loans.push_back(tsdu);
                        }
                        inbound.answer_chained(Ok(())).unwrap();
                    }
                    Some(other) => prop_assert!(false, "{:?}", other),
                },
            }
            prop_assert!(inbound.lent() <= lendable);
            prop_assert!(inbound.held() <= 1000 + 40 + 128);
        }
        prop_assert_eq!(got, sent);
        prop_assert_eq!(seen_ends, ends);
        prop_assert_eq!(inbound.held(), 0);
    }
}
