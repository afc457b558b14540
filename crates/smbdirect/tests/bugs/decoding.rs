//! Bugs in decoding: an implementation trusted fields of a header that the peer wrote.

use bytes::Bytes;
use smbdirect::{
    Access, ConnectionError, Settings, Violation,
    rdma::work::Token,
    wire::{DataTransfer, Flags},
};

use crate::fabric::{Active, Faults, Pair, Passive, Who, content, same_credits};

/// Returns a Data Transfer that the encoder of this library would refuse.
fn transfer(data_offset: u32, data_length: u32, remaining: u32, length: usize) -> Bytes {
    let mut bytes = vec![0; 20];
    bytes[0] = 10;
    bytes[8..12].copy_from_slice(&remaining.to_le_bytes());
    bytes[12..16].copy_from_slice(&data_offset.to_le_bytes());
    bytes[16..20].copy_from_slice(&data_length.to_le_bytes());
    bytes.resize(length, 0x5a);
    bytes.into()
}

/// Returns the error of an established end that receives `message`; the network breaks after it.
fn verdict(settings: &Settings, message: Bytes) -> (ConnectionError, Pair) {
    let faults = Faults::default();
    let mut pair = Pair::established(1, settings.clone(), settings.clone(), faults);
    pair.inject(Passive, message);
    pair.run();
    pair.assert_all_returned();
    (pair.passive.closed.clone().expect("it is over"), pair)
}

/// Offset and length of the payload were not compared with the length of the message, so bytes
/// after the receive buffer reached the upper layer. Expected: for all combinations around the
/// edges of a message, and sums that wrap in 32 bits, the payload is inside the message or the
/// connection ends.
#[test]
fn bug_09_payload_outside_the_message() {
    let edges = |length: u32| {
        let near = (0..=64).chain(length.saturating_sub(2)..=length + 2);
        near.chain([
            0x7fff_ffff,
            0x8000_0000,
            u32::MAX - 31,
            u32::MAX - 7,
            u32::MAX,
        ])
    };
    let mut inside = 0;
    for length in [20, 24, 28, 100, 1364] {
        for offset in edges(length) {
            for data_length in edges(length) {
                let message = transfer(offset, data_length, 0, length as usize);
                let legal = offset % 8 == 0
                    && u64::from(offset) + u64::from(data_length) <= u64::from(length);
                let decoded = DataTransfer::decode(&message);
                assert_eq!(decoded.is_ok(), legal, "{offset} {data_length} {length}");
                if let Ok(header) = decoded {
                    assert_eq!(message[header.payload()].len(), data_length as usize);
                    inside += 1;
                }
            }
        }
    }
    assert!(inside > 100);

    let settings = same_credits(10);
    for (offset, data_length) in [(24, 77), (104, 0), (u32::MAX - 7, 16), (8, u32::MAX)] {
        let (closed, pair) = verdict(&settings, transfer(offset, data_length, 0, 100));
        assert!(matches!(
            closed,
            ConnectionError::Violation(Violation::DataBeyondMessage { .. })
        ));
        assert_eq!(pair.passive.engine.statistics().messages_received, 0);
    }
}

/// The length that a message claims was not compared with the negotiated limit. Expected: one byte
/// above the limit, or a sum that wraps, ends the connection.
#[test]
fn bug_10_remaining_length_beyond_the_limit() {
    for settings in [same_credits(10), Settings::linux()] {
        let max = settings.max_fragmented_receive_size;
        for (data_length, remaining) in [
            (76, max - 75),
            (0, max + 1),
            (76, u32::MAX - 75),
            (1, u32::MAX),
            (0, u32::MAX),
        ] {
            let message = transfer(24, data_length, remaining, 100);
            let (closed, pair) = verdict(&settings, message);
            let expected = Violation::AboveMaxFragmentedSize {
                data_length,
                remaining_data_length: remaining,
                max_fragmented_size: max,
            };
            assert_eq!(closed, expected.into());
            assert_eq!(pair.passive.engine.statistics().segments_received, 0);
        }
        let (closed, pair) = verdict(&settings, transfer(24, 76, max - 76, 100));
        assert!(matches!(closed, ConnectionError::Provider(_)), "{closed}");
        assert_eq!(pair.passive.engine.statistics().segments_received, 1);
    }
}

/// A message that was too short left the connection neither established nor closed, and its buffer
/// was used after it had been freed. Expected: it ends the connection in every state, and all
/// receives, work requests and buffers are returned once.
#[test]
fn bug_11_short_message_in_any_state() {
    let mut violations = 0;
    for who in Who::BOTH {
        for steps in 0..150 {
            let faults = Faults {
                completion_delay: [10; 4],
                send_queue: 6,
                max_transfer: 2000,
                ..Faults::default()
            };
            let mut pair = Pair::new(steps, same_credits(3), same_credits(3), faults);
            let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
            let memory = pair.register(Active, 1, 9000, all);
            let spare = pair.register(Active, 2, 100, all);
            let mut begun = false;
            for _ in 0..steps {
                if pair.is_open() && !std::mem::replace(&mut begun, true) {
                    for end in Who::BOTH {
                        pair.send(end, 9000);
                    }
                    pair.read(Passive, &[memory], 0, content(1, 9000));
                    pair.write(Passive, &[memory], 0, content(1, 9000));
                    pair.send_invalidating(Passive, 3000, Some(Token(spare.token)));
                    pair.keepalive(Active);
                }
                pair.step();
            }
            if pair.end(who).closed.is_some() {
                break;
            }
            let mut message = Vec::new();
            DataTransfer::empty(3, 1, Flags::empty()).encode(&mut message);
            message.truncate(steps as usize % 20);
            pair.inject(who, message.into());
            let closed = pair.end(who).closed.clone();
            violations += usize::from(matches!(closed, Some(ConnectionError::Violation(_))));
            pair.run();
            // Without a posted receive the message does not arrive; the network breaks anyway.
            let fine = matches!(
                pair.end(who).closed,
                Some(ConnectionError::Violation(_) | ConnectionError::Provider(_))
            );
            assert!(fine, "{who:?} after {steps}: {:?}", pair.end(who).closed);
            pair.assert_all_returned();
        }
    }
    assert!(violations > 250, "{violations}");
}
