//! The engine by hand, one end of a connection: what it does first, and to the unit.

use std::time::{Duration, Instant};

use bytes::Bytes;
use smbdirect::{
    Config, Settings, Violation,
    engine::{Connection, ConnectionError, Event, MessageId},
    rdma::work::{Completion, Limits, Room, WorkRequest},
    wire::{DataTransfer, Flags, NegotiateRequest, NegotiateResponse, Status},
};

const SECOND: Duration = Duration::from_secs(1);

/// One end, and what it has posted.
struct End {
    engine: Connection,
    now: Instant,
    receives: Vec<WorkRequest>,
    sends: Vec<WorkRequest>,
}

impl End {
    fn new(role: fn(Config, Instant) -> Connection, settings: Settings) -> Self {
        let now = Instant::now();
        let mut engine = role(Config::new(settings).unwrap(), now);
        let receives = vec![engine.negotiate_receive()];
        engine.handle_connected(Limits {
            max_send_queue: 1000,
            max_receive_queue: 1000,
            max_outbound_reads: 16,
            max_inbound_reads: 16,
            max_transfer: u32::MAX,
            send_with_invalidate: true,
        });
        Self {
            engine,
            now,
            receives,
            sends: Vec::new(),
        }
    }

    /// An initiator to which `response` has come.
    fn answered(settings: Settings, response: &NegotiateResponse) -> Self {
        let mut end = Self::new(Connection::active, settings);
        end.work();
        assert_eq!(end.sends.len(), 1, "the Negotiate Request");
        end.hear(|out| response.encode(out));
        end.work();
        end
    }

    /// An acceptor to which `request` has come.
    fn asked(settings: Settings, request: &NegotiateRequest) -> Self {
        let mut end = Self::new(Connection::passive, settings);
        end.hear(|out| request.encode(out));
        end.work();
        assert_eq!(end.sends.len(), 1, "the Negotiate Response");
        end
    }

    fn work(&mut self) {
        let room = Room {
            sends: 100,
            receives: 1000,
        };
        while let Some(work) = self.engine.poll_work(self.now, room) {
            match work {
                WorkRequest::Receive { .. } => self.receives.push(work),
                work => self.sends.push(work),
            }
        }
    }

    /// A message of the peer's takes the oldest receive.
    fn hear(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let id = self.receives.remove(0).id();
        let mut message = Vec::new();
        write(&mut message);
        let completion = Completion::Received {
            id,
            message: Bytes::from(message),
            invalidated: None,
        };
        self.engine.handle_completion(self.now, completion);
    }

    fn wait(&mut self, duration: Duration) {
        self.now += duration;
        self.engine.handle_timeout(self.now);
        self.work();
    }

    /// When a timer runs out.
    fn due(&self) -> Option<Duration> {
        Some(self.engine.poll_timeout()?.duration_since(self.now))
    }

    /// The Data Transfer messages posted since the last look.
    fn said(&mut self) -> Vec<DataTransfer> {
        let sends = std::mem::take(&mut self.sends).into_iter();
        sends
            .map(|send| match send {
                WorkRequest::Send {
                    header, payload, ..
                } => {
                    let message = [header.as_slice(), &payload].concat();
                    DataTransfer::decode(&message).unwrap()
                }
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn receive_lengths(&self) -> Vec<u32> {
        let lengths = self.receives.iter().map(|receive| match *receive {
            WorkRequest::Receive { length, .. } => length,
            _ => unreachable!("only receives are kept there"),
        });
        lengths.collect()
    }
}

fn settings() -> Settings {
    Settings {
        send_credit_target: 10,
        receive_credit_max: 10,
        max_send_size: 1364,
        max_receive_size: 8192,
        ..Settings::default()
    }
}

fn request() -> NegotiateRequest {
    NegotiateRequest {
        min_version: 0x0100,
        max_version: 0x0100,
        credits_requested: 10,
        preferred_send_size: 1000,
        max_receive_size: 1000,
        max_fragmented_size: 131_072,
    }
}

fn response() -> NegotiateResponse {
    NegotiateResponse {
        min_version: 0x0100,
        max_version: 0x0100,
        negotiated_version: 0x0100,
        credits_requested: 10,
        credits_granted: 10,
        status: Status::SUCCESS,
        max_read_write_size: 1 << 20,
        preferred_send_size: 1000,
        max_receive_size: 1000,
        max_fragmented_size: 131_072,
    }
}

//= SMBD-3.1.4.1-07 test
//= SMBD-3.1.7.2-04 test
#[test]
fn the_first_receive_has_512_bytes() {
    for role in [Connection::active, Connection::passive] {
        assert_eq!(End::new(role, settings()).receive_lengths(), [512]);
    }
}

/// Whatever was left over from the beginning would be said, or change what is said.
//= SMBD-3.1.4.1-03 test
//= SMBD-3.1.4.1-05 test
//= SMBD-3.1.5.5-01 test
//= SMBD-3.1.7.2-05 test
//= SMBD-3.1.7.2-06 test
#[test]
fn a_new_connection_has_nothing_to_say_and_the_first_message_is_plain() {
    let mut active = End::answered(settings(), &response());
    let mut passive = End::asked(settings(), &request());
    for end in [&mut active, &mut passive] {
        end.work();
        assert_eq!(end.sends.len(), 1, "what it negotiated with");
        end.sends.clear();
        assert_eq!(end.engine.credits().send_credit_target, 10);
        let negotiated = end.engine.negotiated().unwrap();
        assert_eq!(negotiated.max_fragmented_receive_size, 1 << 20);
        assert_eq!(negotiated.keepalive_interval, 120 * SECOND);
    }
    passive.hear(|out| DataTransfer::empty(10, 10, Flags::empty()).encode(out));
    passive.work();
    assert_eq!(passive.said(), []);
    for end in [&mut active, &mut passive] {
        end.engine.send(MessageId(1), "plain".into(), None).unwrap();
        end.work();
        let [message] = end.said()[..] else {
            panic!("one message");
        };
        assert_eq!(message.flags, Flags::empty());
        assert_eq!((message.data_length, message.remaining_data_length), (5, 0));
    }
    // Nothing of an older message, and no token.
    passive.hear(|out| {
        let header = DataTransfer {
            data_offset: 24,
            data_length: 3,
            ..DataTransfer::empty(10, 0, Flags::empty())
        };
        header.encode(out);
        out.extend_from_slice(b"one");
    });
    let events = std::iter::from_fn(|| passive.engine.poll_event());
    let segments = events.filter_map(|event| match event {
        Event::Segment {
            payload,
            remaining,
            invalidated,
        } => Some((payload, remaining, invalidated)),
        _ => None,
    });
    assert_eq!(Vec::from_iter(segments), [("one".into(), 0, None)]);
}

//= SMBD-3.1.5.7-07 test
#[test]
fn the_acceptor_may_send_as_much_as_we_receive_and_no_byte_more() {
    for (preferred_send_size, legal) in [(8191, true), (8192, true), (8193, false)] {
        let response = NegotiateResponse {
            preferred_send_size,
            ..response()
        };
        let end = End::answered(settings(), &response);
        assert_eq!(end.engine.negotiated().is_some(), legal);
        let violation = Violation::ResponsePreferredSendSize {
            preferred_send_size,
            max_receive_size: 8192,
        };
        let expected = (!legal).then_some(ConnectionError::Violation(violation));
        assert_eq!(end.engine.error(), expected.as_ref());
    }
}

//= SMBD-3.1.5.7-03 test
#[test]
fn the_acceptor_receives_128_bytes_at_least() {
    for (max_receive_size, legal) in [(127, false), (128, true), (129, true)] {
        let response = NegotiateResponse {
            max_receive_size,
            ..response()
        };
        let end = End::answered(settings(), &response);
        assert_eq!(end.engine.negotiated().is_some(), legal);
        let violation = Violation::ResponseMaxReceiveSize(max_receive_size);
        let expected = (!legal).then_some(ConnectionError::Violation(violation));
        assert_eq!(end.engine.error(), expected.as_ref());
    }
}

//= SMBD-3.1.5.7-10 test
//= SMBD-3.1.5.7-14 test
#[test]
fn the_initiator_begins_with_what_it_was_given() {
    let response = NegotiateResponse {
        credits_requested: 8,
        credits_granted: 7,
        max_fragmented_size: 140_000,
        ..response()
    };
    let end = End::answered(settings(), &response);
    let credits = end.engine.credits();
    assert_eq!(credits.send_credits, 7);
    assert_eq!(credits.receive_credit_target, 8);
    let negotiated = end.engine.negotiated().unwrap();
    assert_eq!(negotiated.protocol, 0x0100);
    assert_eq!(negotiated.max_fragmented_send_size, 140_000);
}

//= SMBD-3.1.5.6-12 test
//= SMBD-3.1.5.7-16 test
#[test]
fn both_roles_begin_to_wait_for_a_sign_of_life() {
    let mut active = End::answered(settings(), &response());
    // The initiator's first credits leave by themselves after a moment.
    active.wait(active.due().unwrap());
    let passive = End::asked(settings(), &request());
    assert!((119 * SECOND..=120 * SECOND).contains(&active.due().unwrap()));
    assert_eq!(passive.due(), Some(120 * SECOND));
}

//= SMBD-3.1.5.9-07 test
#[test]
fn every_receive_is_as_long_as_was_agreed() {
    for mut end in [
        End::answered(settings(), &response()),
        End::asked(settings(), &request()),
    ] {
        assert_eq!(end.receive_lengths(), [1000; 10]);
        // Those that take the place of used ones, too.
        end.engine.send(MessageId(1), "x".into(), None).unwrap();
        end.work();
        for _ in 0..5 {
            end.hear(|out| DataTransfer::empty(10, 1, Flags::empty()).encode(out));
        }
        end.work();
        assert_eq!(end.receive_lengths(), [1000; 10]);
    }
}

/// While the provider had no room, the time that the timer was set to went by.
//= SMBD-3.1.5.1-10 test
#[test]
fn a_question_that_leaves_late_gives_the_answer_its_whole_time() {
    let mut end = End::answered(settings(), &response());
    end.sends.clear();
    end.engine.prompt_keepalive(end.now);
    end.now += 3 * SECOND;
    end.work();
    let [question] = end.said()[..] else {
        panic!("one message");
    };
    assert_eq!(question.flags, Flags::RESPONSE_REQUESTED);
    assert_eq!(end.due(), Some(5 * SECOND));
}
