//! Packets of TCP that change nothing, those that are late in the file, and shorter copies.

use smbdirect_test::{
    decoded::{all as said, events, names},
    talk::{ACK, FIN, I, Packet, R, RST, SYN, Talk, Transfer, conversation, pcap},
};

use super::{Decode, decode};

/// The packet before which strays are put: a Data Transfer of the initiator.
const MIDDLE: usize = 15;

/// Returns a packet from `way` with numbers relative to those that are next in the middle.
fn stray(talk: &Talk, way: usize, flags: u8, sequence: i64, acknowledged: i64) -> Packet {
    let next = &talk.packets[MIDDLE];
    assert!(next.way == I && !next.payload.is_empty());
    let numbers = match way {
        I => [next.sequence, next.acknowledged],
        _ => [next.acknowledged, next.sequence],
    };
    Packet {
        way,
        sequence: numbers[0].wrapping_add(sequence as u32),
        acknowledged: numbers[1].wrapping_add(acknowledged as u32),
        flags,
        payload: Vec::new(),
    }
}

const FAR: i64 = 0x2000_0000;

#[test]
fn stray_packets_change_nothing() {
    let whole = conversation();
    let expected = said(&whole.decoded().succeeded());
    let check = |name: &str, change: &dyn Fn(&mut Talk)| {
        let mut talk = whole.clone();
        change(&mut talk);
        let done = talk.decoded().succeeded();
        assert_eq!(said(&done), expected, "{name}");
    };
    for (name, flags, sequence) in [
        ("RST after the window", RST, FAR),
        ("RST just after the window", RST, 65_536 + 2000),
        ("RST in the window", RST, 1),
        ("RST before the window", RST, -5000),
        ("RST with acknowledgement", RST | ACK, FAR),
        ("FIN after the window", FIN | ACK, FAR),
        ("FIN before the window", FIN | ACK, -5000),
        ("FIN within a segment", FIN | ACK, 7),
        ("SYN after the window", SYN, FAR),
        ("SYN in the window", SYN, 500),
        ("SYN at the next number", SYN, 0),
        ("SYN before the next number", SYN, -1),
        ("SYN and acknowledgement", SYN | ACK, FAR),
        ("keepalive", ACK, -1),
    ] {
        for way in [I, R] {
            let one = stray(&whole, way, flags, sequence, 0);
            check(name, &|talk| talk.packets.insert(MIDDLE, one.clone()));
            // The challenge of RFC 5961, and the stray packet once more.
            let challenge = stray(&whole, 1 - way, ACK, 0, 0);
            check(name, &|talk| {
                let more = [one.clone(), challenge.clone(), one.clone()];
                talk.packets.splice(MIDDLE..MIDDLE, more);
            });
        }
    }
    for (name, sequence) in [("after", FAR), ("just after", 80_000), ("before", -FAR)] {
        for way in [I, R] {
            let mut one = stray(&whole, way, ACK, sequence, 0);
            one.payload = b"garbage!".to_vec();
            check(name, &|talk| talk.packets.insert(MIDDLE, one.clone()));
            check("more of them", &|talk| {
                let more = (0..20).map(|number| {
                    let sequence = one.sequence.wrapping_add(number * 99_999);
                    Packet {
                        sequence,
                        ..one.clone()
                    }
                });
                talk.packets.splice(MIDDLE..MIDDLE, more);
            });
            check("after the end", &|talk| talk.packets.push(one.clone()));
        }
    }
    check("an acknowledgement of what was not sent", &|talk| {
        talk.packets.insert(MIDDLE, stray(&whole, I, ACK, 0, FAR));
    });
    check("data with such an acknowledgement", &|talk| {
        let far = &mut talk.packets[MIDDLE].acknowledged;
        *far = far.wrapping_add(FAR as u32);
    });
}

#[test]
fn late_packets_are_of_the_same_connection() {
    let whole = conversation();
    let mut reset = Talk::established();
    reset.transfer(I, &Transfer::of(100, 0));
    reset.transfer(R, &Transfer::of(1000, 0));
    reset.transfer(I, &Transfer::of(100, 0));
    reset.packet(I, RST | ACK, &[]);
    let check = |name: &str, talk: &Talk, order: &dyn Fn(&mut Vec<Packet>)| {
        let expected = said(&talk.decoded().succeeded());
        let mut changed = talk.clone();
        order(&mut changed.packets);
        let done = changed.decoded().succeeded();
        assert_eq!(said(&done), expected, "{name}");
    };
    for distance in [1, 2, 5, 20] {
        for (name, moved) in [
            ("SYN", vec![0]),
            ("answer to the SYN", vec![1]),
            ("both", vec![0, 1]),
            ("handshake", vec![0, 1, 2]),
            ("handshake and request", vec![0, 1, 2, 3]),
            ("first packets of the initiator", vec![0, 2, 3]),
        ] {
            check(name, &whole, &|packets| {
                let late: Vec<_> = moved.iter().map(|&at| packets[at].clone()).collect();
                let mut at = 0..;
                packets.retain(|_| !moved.contains(&at.next().unwrap()));
                packets.splice(distance..distance, late);
            });
        }
    }
    check("one direction after the other", &whole, &|packets| {
        packets.sort_by_key(|packet| packet.way);
    });
    let last = reset.packets.len() - 1;
    for early in 1..4 {
        check("RST before data", &reset, &|packets| {
            packets[last - early..].rotate_right(1);
        });
    }
    check("data after a RST", &reset, &|packets| {
        let mut data = packets[last].clone();
        (data.flags, data.payload) = (ACK, b"late".to_vec());
        packets.push(data);
    });
    check("everything twice", &reset, &|packets| {
        *packets = packets
            .iter()
            .flat_map(|p| [p.clone(), p.clone()])
            .collect();
    });
    // A RST is reported when no packet that was sent before it can follow, or at the end.
    check("other connections after it", &reset, &|packets| {
        let mut other = packets[0].clone();
        for number in 0..200_u32 {
            other.sequence = number.wrapping_mul(0x0123_4567);
            packets.push(other.clone());
        }
    });
}

#[test]
fn a_reset_ends_the_stream() {
    let mut talk = conversation();
    let mut reset = stray(&talk, I, RST, 0, 0);
    reset.acknowledged = 0;
    let expected = names(&talk.decoded());
    talk.packets.truncate(MIDDLE);
    talk.packets.push(reset);
    let done = talk.decoded().succeeded();
    let names = names(&done);
    assert!(names.len() > 8 && expected.starts_with(&names), "{names:?}");
    let closed = events(&done, "closed");
    assert_eq!(closed.len(), 2);
    assert!(closed.iter().all(|line| line["reset"] == true));
}

/// Another connection between the same ends, also without a part of its handshake, and also if the capture lacks
/// the end of the earlier connection.
#[test]
fn another_connection_is_another_stream() {
    let first = conversation();
    let end = first.packets.len() - 2;
    for kept in [end, end + 2] {
        for lost in [None, Some(0), Some(1)] {
            let mut second = Talk::new().at([0x3000_0000, 0x5000_0000]);
            second.start();
            second.negotiate();
            second.transfer(I, &Transfer::of(5, 0));
            let expected = 28 + names(&second.decoded()).len();
            let mut talk = first.clone();
            talk.packets.truncate(kept);
            if let Some(lost) = lost {
                second.packets.remove(lost);
            }
            talk.packets.append(&mut second.packets);
            let done = talk.decoded().succeeded();
            let with = (kept, lost, events(&done, "gap").len());
            assert_eq!(with, (kept, lost, 0), "{done:?}");
            // After a whole connection, a SYN has to say that there is another one.
            if kept == end || lost != Some(0) {
                assert_eq!(events(&done, "stream").len(), 2, "{kept} {lost:?}");
                assert_eq!(names(&done).len(), expected, "{kept} {lost:?}");
            }
        }
    }
}

#[test]
fn half_open_connections_push_out_no_live_one() {
    let talk = conversation();
    let expected = said(&talk.decoded().succeeded());
    for answered in [false, true] {
        let mut frames = talk.frames();
        let mut scan = talk.clone();
        let mut scanned = Vec::new();
        // The silence of more packets would break a rule.
        for port in 0..2200 {
            scan.ports[I] = 10_000 + port;
            scanned.push(scan.frame(&talk.packets[0]));
            if answered {
                scanned.push(scan.frame(&talk.packets[1]));
            }
        }
        for at in [MIDDLE, 1] {
            frames.splice(at..at, scanned.iter().cloned());
        }
        let done = decode(&pcap(pcap_file::DataLink::ETHERNET, &frames)).succeeded();
        assert_eq!(said(&done), expected);
    }
}

#[test]
fn a_shorter_copy_of_a_packet_takes_nothing_away() {
    let talk = conversation();
    let expected = said(&talk.decoded().succeeded());
    for length in [54, 60, 90, 110] {
        for early in [0, 1, 5] {
            let frames = talk.frames();
            let mut mixed: Vec<_> = frames[..early].to_vec();
            for (index, frame) in frames.iter().enumerate() {
                if let Some(next) = frames.get(index + early) {
                    mixed.push(next[..next.len().min(length)].to_vec());
                    mixed.push(frame.clone());
                } else {
                    mixed.push(frame.clone());
                }
            }
            let done = decode(&pcap(pcap_file::DataLink::ETHERNET, &mixed)).succeeded();
            assert_eq!(said(&done), expected, "{length}, {early} before");
        }
    }
}
