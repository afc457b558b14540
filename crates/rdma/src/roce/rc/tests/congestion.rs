//! Congestion: marks, congestion notification packets (CNPs), and what both do to requests and responses.

use super::*;
use crate::roce::rc::congestion::CongestionStatistics;

/// Returns a CNP of the peer.
fn cnp() -> Packet {
    let mut bth = Bth::new(Opcode::CongestionNotification, 0x11, Psn::new(0));
    bth.becn = true;
    Packet {
        bth,
        extended: Extended::Plain,
        payload: Bytes::from_static(&[0; 16]),
    }
}

impl End {
    /// Passes a packet that arrives with the mark of congestion.
    fn handle_marked(&mut self, packet: &Packet) {
        self.handle(packet);
        self.queue_pair.handle_mark(self.now, packet.bth.opcode);
    }

    /// Returns the number of packets of each opcode that are to be sent.
    fn count(&mut self, opcode: Opcode) -> usize {
        let opcodes = self.opcodes();
        opcodes.iter().filter(|(other, _)| *other == opcode).count()
    }
}

//= ROCE-A17.9-02 test
//= ROCE-A17.9.3-01 test
#[test]
fn a_marked_packet_is_answered_with_a_cnp_before_anything_else() {
    let mut end = End::new();
    end.post_receives(4, 1000);
    end.handle_marked(&plain(Opcode::SendOnly, 0, 10));
    assert!(end.queue_pair.has_packet());
    let packets = end.packets();
    let opcodes = [packets[0].bth.opcode, packets[1].bth.opcode];
    assert_eq!(
        opcodes,
        [Opcode::CongestionNotification, Opcode::Acknowledge]
    );
    // The bytes are those of a recorded CNP of an adapter for queue pair 0x22.
    let mut bytes = BytesMut::new();
    packets[0].encode(&mut bytes);
    let mut expected = vec![0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0x22];
    expected.resize(28, 0);
    assert_eq!(bytes, expected);
    // Another mark within 50 microseconds causes none, and neither does a mark on a CNP.
    end.now += Duration::from_micros(49);
    end.handle_marked(&plain(Opcode::SendOnly, 1, 10));
    assert_eq!(end.opcodes(), [(Opcode::Acknowledge, 1)]);
    end.now += Duration::from_micros(1);
    end.handle_marked(&cnp());
    assert_eq!(end.opcodes(), []);
    end.handle_marked(&plain(Opcode::SendOnly, 2, 10));
    assert_eq!(end.count(Opcode::CongestionNotification), 1);
    let expected = CongestionStatistics {
        marked: 3,
        notifications_sent: 2,
        notifications_received: 1,
    };
    assert_eq!(end.queue_pair.congestion(), expected);
}

#[test]
fn an_ended_queue_pair_sends_no_cnp() {
    let mut end = End::new();
    end.post_receives(1, 1000);
    end.handle_marked(&plain(Opcode::SendOnly, 0, 10));
    end.queue_pair.end(Disconnect::Local);
    end.queue_pair.handle_mark(end.now, Opcode::SendOnly);
    assert_eq!(end.opcodes(), []);
}

//= ROCE-SW-09 test
#[test]
fn a_cnp_halves_the_window_of_requests_once_in_a_round_trip() {
    let mut end = End::new();
    end.post_send(1, 1000 * MTU, None);
    assert_eq!(end.packets().len(), 64);
    end.handle(&cnp());
    // The second CNP is about the same packets.
    end.handle(&cnp());
    for (acknowledged, expected) in [(30, 0), (31, 0), (32, 1), (40, 8), (62, 22)] {
        end.handle_ack(acknowledged, ACK);
        assert_eq!(end.packets().len(), expected, "{acknowledged}");
    }
    // All packets of that round trip are acknowledged, so the next CNP counts.
    end.handle_ack(63, ACK);
    let before = end.packets().len();
    end.handle(&cnp());
    end.handle_ack(64, ACK);
    assert_eq!((before > 0, end.packets().len()), (true, 0));
}

#[test]
fn a_cnp_without_requests_in_flight_leaves_the_window() {
    let mut end = End::new();
    for _ in 0..10 {
        end.handle(&cnp());
    }
    end.post_send(1, 1000 * MTU, None);
    assert_eq!(end.packets().len(), 64);
}

/// A mark on a response shrinks the window, which bounds the responses that this end requests.
//= ROCE-SW-09 test
#[test]
fn a_mark_on_a_response_shrinks_the_next_read() {
    for (is_marked, expected) in [(false, 64), (true, 32)] {
        let mut end = End::new();
        end.post_read(1, 128 * MTU);
        assert_eq!(end.opcodes(), [(Opcode::ReadRequest, 0)]);
        let response = |index| {
            let opcode = match index {
                0 => Opcode::ReadResponseFirst,
                63 => Opcode::ReadResponseLast,
                _ => Opcode::ReadResponseMiddle,
            };
            let aeth = Aeth {
                syndrome: ACK,
                message_sequence_number: 1,
            };
            let extended = match opcode {
                Opcode::ReadResponseMiddle => Extended::Plain,
                _ => Extended::Aeth(aeth),
            };
            packet(opcode, index, extended, &[0; MTU])
        };
        for index in 0..64 {
            if is_marked && index == 0 {
                end.handle_marked(&response(index));
            } else {
                end.handle(&response(index));
            }
        }
        let packets = end.packets();
        let request = packets.iter().find_map(|packet| packet.extended.reth());
        assert_eq!(request.unwrap().length as usize, expected * MTU);
    }
}

/// Registers memory and lets the peer request a Read of it.
fn reading(end: &mut End, packets: usize) -> RemoteAddress {
    let memory = end.queue_pair.memory();
    let buffer = BytesMut::zeroed(packets * MTU);
    let region = memory.register(buffer, Access::REMOTE_READ).unwrap();
    let length = (packets * MTU) as u32;
    end.handle(&rdma(Opcode::ReadRequest, 0, region.address, length, 0));
    region.address
}

//= ROCE-SW-08 test
#[test]
fn responses_get_a_window_after_a_cnp() {
    let mut end = End::new();
    reading(&mut end, 256);
    // Without congestion there is no limit.
    for index in 0..40 {
        let response = end.queue_pair.poll_packet(end.now).unwrap();
        assert_eq!(super::index(response.bth.psn), index);
    }
    end.handle(&cnp());
    let mut bursts = Vec::new();
    loop {
        bursts.push(end.packets().len());
        assert!(!end.queue_pair.is_drained() || bursts.iter().sum::<usize>() == 216);
        if end.queue_pair.is_drained() {
            break;
        }
        // A round trip of 1 ms is assumed.
        let before = end.now;
        end.wait();
        assert_eq!(end.now - before, Duration::from_millis(1));
    }
    assert_eq!(bursts, [32, 48, 56, 60, 20]);
    assert_eq!(end.queue_pair.poll_timeout(), None);
}

//= ROCE-SW-08 test
#[test]
fn responses_get_a_window_after_a_repeated_read() {
    let mut end = End::new();
    let address = reading(&mut end, 200);
    assert_eq!(end.packets().len(), 200);
    let length = 200 * MTU as u32;
    end.handle(&rdma(Opcode::ReadRequest, 0, address, length, 0));
    assert_eq!(end.packets().len(), 32);
    end.wait();
    assert_eq!(end.packets().len(), 33);
    // The acknowledgement of a Send waits for the responses before it.
    end.post_receives(1, 1000);
    end.handle(&plain(Opcode::SendOnly, 200, 1));
    assert_eq!(end.opcodes(), []);
    let mut rest = Vec::new();
    while !end.queue_pair.is_drained() {
        end.wait();
        rest.extend(end.opcodes());
    }
    assert_eq!(rest.len(), 200 - 65 + 1);
    assert_eq!(rest.last(), Some(&(Opcode::Acknowledge, 200)));
}

/// An end that ends its connection while responses wait runs no timer.
#[test]
fn the_end_of_a_connection_ends_the_wait_of_responses() {
    let mut end = End::new();
    reading(&mut end, 256);
    end.queue_pair.poll_packet(end.now).unwrap();
    end.handle(&cnp());
    assert_eq!(end.packets().len(), 32);
    assert!(end.queue_pair.poll_timeout().is_some());
    end.queue_pair.end(Disconnect::Local);
    assert_eq!(end.queue_pair.poll_timeout(), None);
    assert_eq!(end.opcodes(), []);
}
