//! Random sends compared with a model of two FIFO queues.

use super::*;

/// An operation of the model.
#[derive(Clone, Debug)]
enum Op {
    Send { length: usize, flags: SendFlags },
    HandOver,
    Sent,
    Discard(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(e, p, b)| {
        let mut flags = NONE;
        flags.set(E, e);
        flags.set(P, p);
        flags.set(B, b);
        flags
    });
    prop_oneof![
        6 => (0..=10_usize, flags).prop_map(|(length, flags)| Op::Send { length, flags }),
        3 => Just(Op::HandOver),
        3 => Just(Op::Sent),
        1 => any::<bool>().prop_map(Op::Discard),
    ]
}

/// Two FIFO queues of strings, and the strings that are being assembled.
#[derive(Default)]
struct Model {
    queues: [VecDeque<Vec<u8>>; 2],
    open: [Option<Vec<u8>>; 2],
}

proptest! {
    /// Accepted sends leave as the intended TSDUs in the promised order, each request has one
    /// completion, and each refusal is followed by an event.
    //= TDI-SEND-04 test
    //= TDI-SEND-05 test
    //= TDI-SEND-07 test
    //= TDI-SEND-09 test
    //= TDI-SEND-15 test
    //= TDI-SEND-17 test
    //= TDI-SEND-26 test
    //= TDI-SEND-28 test
    #[test]
    fn random_sends_match_two_fifo_queues(
        ops in proptest::collection::vec(op(), 1..200),
        high_water in 16..40_usize,
        low_water in 0..16_usize,
        atomic: bool,
    ) {
        let mut sends = Sends::with(SendSettings {
            high_water,
            low_water,
            non_blocking: if atomic { NonBlocking::Atomic } else { NonBlocking::Partial },
            ..settings()
        });
        let mut model = Model::default();
        let (mut byte, mut started) = (0_u8, 0);
        let mut pending = std::collections::BTreeMap::new();
        let mut refused = false;
        // At the end the complete TSDUs leave, then the open ones are completed and leave too.
        let leave = std::iter::repeat_n([Op::HandOver, Op::Sent], 200).flatten();
        let last = [NONE, E].map(|flags| Op::Send { length: 0, flags });
        let end = leave.clone().chain(last).chain(leave);
        for op in ops.into_iter().chain(end) {
            match op {
                Op::Send { length, flags } => {
                    let data: Vec<u8> = (0..length).map(|at| byte.wrapping_add(at as u8)).collect();
                    let class = usize::from(flags.contains(E));
                    let room = sends.outbound.available();
                    let done = sends.submit(|request| {
                        request.buffer = data.clone().into();
                        request.flags = flags;
                    });
                    let open = model.open[class].as_ref().map_or(0, Vec::len);
                    let fits = open + length <= 8 && (length > 0 || model.open[class].is_some());
                    let taken = match done {
                        None => {
                            prop_assert!(!flags.contains(B));
                            pending.insert(sends.last, length);
                            length
                        }
                        Some(SendCompletion { status, information, buffer, .. }) => {
                            prop_assert_eq!(buffer.into_bytes(), &data[..]);
                            let expected = match room {
                                _ if !fits => (Status::INVALID_PARAMETER, 0),
                                _ if length <= room => (SUCCESS, length),
                                room if room > 0 && !atomic => (SUCCESS, room),
                                _ => (Status::DEVICE_NOT_READY, 0),
                            };
                            prop_assert_eq!((status, information), expected);
                            refused |= status == Status::DEVICE_NOT_READY;
                            if status.is_error() {
                                continue;
                            }
                            information
                        }
                    };
                    prop_assert!(fits);
                    byte = byte.wrapping_add(taken as u8);
                    let mut whole = model.open[class].take().unwrap_or_default();
                    whole.extend_from_slice(&data[..taken]);
                    if taken == length && !flags.contains(P) { model.queues[class].push_back(whole) } else { model.open[class] = Some(whole) }
                }
                Op::HandOver => {
                    let expected = match model.queues[1].pop_front() {
                        Some(tsdu) => Some(tsdu),
                        None => model.queues[0].pop_front(),
                    };
                    let tsdu = sends.next().map(|tsdu| tsdu.message.into_bytes().to_vec());
                    started += usize::from(tsdu.is_some());
                    prop_assert_eq!(tsdu, expected);
                }
                Op::Sent if started > 0 => {
                    started -= 1;
                    sends.outbound.tsdu_sent();
                }
                Op::Sent => {}
                Op::Discard(expedited) => {
                    let there = model.open[usize::from(expedited)].take().is_some();
                    let flags = if expedited { E } else { NONE };
                    prop_assert_eq!(sends.outbound.discard_partial(flags), there);
                }
            }
            for event in sends.events() {
                match event {
                    SendEvent::Completed(done) => {
                        let length = pending.remove(&done.id.0);
                        prop_assert!(length.is_some(), "{} is completed twice", done.id.0);
                        match done.status {
                            SUCCESS => prop_assert_eq!(Some(done.information), length),
                            status => prop_assert_eq!(status, Status::CANCELLED),
                        }
                    }
                    SendEvent::SendPossible { available } => {
                        prop_assert!(refused, "no send was refused");
                        prop_assert!(available > 0);
                        prop_assert_eq!(available, sends.outbound.available());
                        refused = false;
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert!(sends.outbound.buffered() <= high_water);
        }
        prop_assert!(pending.is_empty(), "{:?} are not completed", pending);
        prop_assert!(!refused, "no event followed a refusal");
        prop_assert_eq!(sends.outbound.buffered(), 0);
        prop_assert_eq!(sends.outbound.poll_timeout(), None);
    }
}
