//! Connections made up packet by packet: links, losses, faults, and what is not in the capture.

use pcap_file::{
    DataLink,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use smbdirect::rdma::roce::packet::{Extended, NakCode, Opcode, Reth, Syndrome, UDP_PORT};

use smbdirect_test::{
    decoded::{all as everything, broken, events, messages as said, names},
    talk::{
        I, R, Transfer, pcap,
        roce::{MTU, Talk, right_icrc},
    },
};

use super::{Decode, decode, packets};

/// A negotiation, messages of one and of several packets, a Write, a Read, and an invalidation.
fn conversation() -> Talk {
    let mut talk = Talk::established();
    exchange(&mut talk);
    talk
}

fn exchange(talk: &mut Talk) {
    for number in 0..4 {
        talk.transfer(I, &Transfer::of(100 + number, 0));
        talk.transfer(R, &Transfer::of(1100 + number, 0));
    }
    talk.transfer(I, &Transfer::of(90, 0));
    let psn = talk.read(R, 3000);
    talk.respond(I, psn, 3000);
    talk.write(R, 2500);
    talk.send_alone(R, &Transfer::of(50, 0).bytes(), Some(0xabc));
    talk.acknowledge(I);
}

const MESSAGES: [&str; 15] = [
    "Negotiate Request",
    "Negotiate Response",
    "Data Transfer",
    "Data Transfer",
    "Data Transfer",
    "Data Transfer",
    "Data Transfer",
    "Data Transfer",
    "Data Transfer",
    "Data Transfer",
    "Data Transfer",
    "RDMA Read Request",
    "RDMA Read Response",
    "RDMA Write",
    "Data Transfer",
];

#[test]
fn a_connection_is_read_on_every_link() {
    let talk = conversation();
    let done = talk.decoded().succeeded();
    assert_eq!(names(&done), MESSAGES);
    let expected = said(&done);
    assert_eq!(expected[12]["length"], 3000);
    assert_eq!(expected[12]["packets"], 3);
    assert_eq!(expected[13]["length"], 2500);
    assert_eq!(expected[14]["invalidated"], 0xabc);
    // 10 granted, 5 spent, 5 granted again.
    assert_eq!(expected[14]["initiator_credits"], 10);
    let with = |head: &[u8]| -> Vec<Vec<u8>> {
        let around = |frame: &Vec<u8>| [head, &frame[14..]].concat();
        talk.frames.iter().map(around).collect()
    };
    let vlan = [&[1; 12][..], &[0x81, 0, 0, 5, 8, 0]].concat();
    for (name, datalink, frames) in [
        ("VLAN", DataLink::ETHERNET, with(&vlan)),
        (
            "cooked",
            DataLink::LINUX_SLL,
            with(&[&[0; 14][..], &[8, 0]].concat()),
        ),
        (
            "cooked v2",
            DataLink::from(276),
            with(&[&[8, 0][..], &[0; 18]].concat()),
        ),
        ("raw", DataLink::RAW, with(&[])),
    ] {
        let done = decode(&pcap(datalink, &frames)).succeeded();
        assert_eq!(said(&done), expected, "{name}");
    }
    let mut six = Talk::new();
    six.is_ipv6 = true;
    six.negotiate();
    exchange(&mut six);
    let done = six.decoded().succeeded();
    assert_eq!(said(&done), expected, "IPv6");
    let packets = events(&done, "packet");
    assert!(packets.iter().all(|packet| packet["icrc"] == true));
    // RoCEv1 has the same packets, after a header like IPv6's instead of IP and UDP.
    let mut v1 = six.frames.clone();
    for frame in &mut v1 {
        frame.drain(54..62);
        let length = (frame.len() - 54) as u16;
        frame[12..14].copy_from_slice(&[0x89, 0x15]);
        frame[18..20].copy_from_slice(&length.to_be_bytes());
        frame[20] = 0x1b;
    }
    let done = decode(&pcap(DataLink::ETHERNET, &v1)).succeeded();
    assert_eq!(said(&done), expected, "RoCEv1");
    let summary = events(&done, "summary").pop().unwrap();
    assert_eq!(summary["rocev1_packets"], v1.len());
}

#[test]
fn a_wrong_icrc_is_a_broken_rule() {
    for is_ipv6 in [false, true] {
        let mut talk = Talk::new();
        talk.is_ipv6 = is_ipv6;
        talk.negotiate();
        let psn = talk.send_alone(I, &Transfer::of(9, 0).bytes(), None);
        *talk.frames.last_mut().unwrap().last_mut().unwrap() ^= 1;
        // It was damaged on its way, so its sender sends it again.
        talk.psn[I] = psn;
        talk.transfer(I, &Transfer::of(9, 0));
        let done = talk.decoded();
        assert_eq!(broken(&done), ["ROCE-A17.3.3-04"]);
        let expected = [
            "Negotiate Request",
            "Negotiate Response",
            "RoCE packet",
            "Data Transfer",
        ];
        assert_eq!(names(&done), expected);
        let summary = events(&done, "summary").pop().unwrap();
        assert_eq!(summary["roce_wrong_icrc"], 1);
        let lines = events(&done, "message");
        assert!(lines[3]["initiator_credits"].is_u64(), "nothing was lost");
    }
}

#[test]
fn what_cannot_be_decoded_is_a_broken_rule() {
    // The byte of the packet, its new value, and the rule.
    for (at, value, rule) in [
        (1, 0x03, "ROCE-9.2.1-02"),
        (12, 0x45, "ROCE-9.7.5-01"),
        (12, 0x65, "ROCE-9.7.5-01"),
    ] {
        let mut talk = Talk::established();
        talk.acknowledge(R);
        let frame = talk.frames.last_mut().unwrap();
        frame[14 + 28 + at] = value;
        right_icrc(frame);
        let done = talk.decoded();
        assert_eq!(broken(&done), [rule]);
    }
    for (length, rule) in [(18, "ROCE-9.2.1-04"), (16, "ROCE-9.2.1-03")] {
        let mut talk = Talk::established();
        talk.acknowledge(R);
        let frame = talk.frames.last_mut().unwrap();
        frame.truncate(14 + 28 + length);
        frame.resize(14 + 28 + length, 0);
        if length == 18 {
            frame[14 + 28] = Opcode::SendOnly as u8;
        }
        let ip_length = (28 + length) as u16;
        frame[16..18].copy_from_slice(&ip_length.to_be_bytes());
        frame[38..40].copy_from_slice(&(ip_length - 20).to_be_bytes());
        right_icrc(frame);
        let done = talk.decoded();
        assert_eq!(broken(&done), [rule], "{done:?}");
    }
}

#[test]
fn naks_are_counted() {
    let mut talk = Talk::established();
    for code in [
        NakCode::PsnSequenceError,
        NakCode::InvalidRequest,
        NakCode::RemoteAccessError,
        NakCode::RemoteOperationalError,
    ] {
        let psn = talk.psn[I];
        talk.nak(R, psn, code);
    }
    talk.answer(R, 1, Syndrome::RnrNak { timer: 12 });
    let done = talk.decoded().succeeded();
    let totals = &events(&done, "summary")[0]["roce"][0];
    assert_eq!(
        (&totals["naks"], &totals["rnr_naks"]),
        (&4.into(), &1.into())
    );
}

/// A packet is lost before the capture: the receiver drops those after it, and its sender goes back.
#[test]
fn packets_that_are_sent_again_count_once() {
    let expected = said(&conversation().decoded());
    let mut talk = Talk::established();
    let lost = talk.psn[I];
    for number in 0..4 {
        talk.send_alone(I, &Transfer::of(100 + number, 0).bytes(), None);
    }
    let missing = talk.frames.len() - 4;
    talk.frames.remove(missing);
    talk.nak(R, lost, NakCode::PsnSequenceError);
    talk.psn[I] = lost;
    for number in 0..4 {
        talk.send_alone(I, &Transfer::of(100 + number, 0).bytes(), None);
    }
    talk.acknowledge(R);
    let done = talk.decoded().succeeded();
    let lines: Vec<_> = said(&done)
        .into_iter()
        .filter(|line| line["message"] == "Data Transfer")
        .collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0]["data_length"], expected[2]["data_length"]);
    let again = events(&done, "sent_again");
    assert_eq!(again.len(), 1, "{done:?}");
    assert_eq!(again[0]["packets"], 3);
    assert_eq!(events(&done, "missing_packets").len(), 0);
    assert!(lines[3]["initiator_credits"].is_u64());
}

#[test]
fn packets_that_the_capture_lacks_are_counted() {
    let whole = conversation();
    // The frames of the negotiation are 0 to 3.
    for lost in 4..whole.frames.len() - 2 {
        let mut talk = whole.clone();
        talk.frames.remove(lost);
        let done = talk.decoded().succeeded();
        assert_eq!(broken(&done), [""; 0]);
        let count = names(&done).len();
        assert!(count >= MESSAGES.len() - 1, "{lost}: {done:?}");
        let missing: u64 = events(&done, "missing_packets")
            .iter()
            .map(|line| line["packets"].as_u64().unwrap())
            .sum();
        // An acknowledgement is not missed. A Read request counts as its response, three packets.
        assert!(missing <= 3, "{lost}: {missing}");
    }
}

#[test]
fn a_network_that_mirrors_packets_twice_changes_nothing() {
    let talk = conversation();
    let expected = said(&talk.decoded());
    let mut twice = talk.clone();
    twice.frames = talk
        .frames
        .iter()
        .flat_map(|frame| [frame.clone(), frame.clone()])
        .collect();
    let done = twice.decoded().succeeded();
    assert_eq!(said(&done), expected);
    let totals = &events(&done, "summary")[0]["roce"][0];
    assert_eq!(totals["sent_again"], 0);
    assert!(totals["captured_again"].as_u64().unwrap() + 4 > talk.frames.len() as u64);
}

/// A Read whose response loses a packet is asked for again from there.
/// The CM and data: before and after a router, in a VLAN, or three times; with a delay.
#[test]
fn copies_of_packets_are_ignored_and_counted() {
    let mut frames = packets("rxe-negotiate.pcap");
    frames.retain(|frame| frame[23] == 17 && frame[36..38] == UDP_PORT.to_be_bytes());
    let all = |frames: &[Vec<u8>]| {
        let done = decode(&pcap(DataLink::ETHERNET, frames)).succeeded();
        let summary = events(&done, "summary").pop().unwrap();
        let mut lines = everything(&done);
        lines.retain(|line| line["event"] != "packet");
        (lines, summary["roce"][0].clone())
    };
    let (expected, plain) = all(&frames);
    type Copies = fn(&[u8]) -> Vec<Vec<u8>>;
    let copies: [(&str, Copies); 4] = [
        ("copy", |frame| vec![frame.to_vec()]),
        ("two copies", |frame| vec![frame.to_vec(); 2]),
        ("VLAN", |frame| {
            vec![[&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat()]
        }),
        ("router", |frame| {
            let mut frame = frame.to_vec();
            frame[15] = 0x63;
            frame[22] -= 1;
            vec![frame]
        }),
    ];
    for (name, copies) in copies {
        for delay in [0, 1, 9] {
            let mut mixed = Vec::new();
            for index in 0..frames.len() + delay {
                mixed.extend(frames.get(index).cloned());
                if let Some(frame) = index.checked_sub(delay).map(|index| &frames[index]) {
                    mixed.extend(copies(frame));
                }
            }
            let (lines, totals) = all(&mixed);
            assert_eq!(lines, expected, "{name}, {delay} late");
            let again = (mixed.len() - frames.len()) as u64;
            assert_eq!(totals["captured_again"], again, "{name}, {delay} late");
            assert_eq!(totals["sent_again"], 0, "{name}, {delay} late");
        }
    }
    // With another Identification it was sent again.
    let request = frames.iter().position(|frame| frame[42] == 0x64).unwrap();
    let mut again = frames[request].clone();
    again[18] ^= 1;
    right_icrc(&mut again);
    frames.splice(request + 1..request + 1, [again.clone(), again]);
    let (lines, totals) = all(&frames);
    assert_eq!(lines.len(), expected.len() + 1);
    assert!(lines.iter().any(|line| line["again"] == true));
    assert_eq!(totals["captured_again"], 1);
    assert_eq!(totals["packets"], plain["packets"]);
}

#[test]
fn a_read_can_be_asked_for_again() {
    let mut talk = Talk::established();
    let psn = talk.read(R, 4 * MTU as u32);
    talk.respond(I, psn, 4 * MTU);
    let first = talk.frames.len() - 4;
    talk.frames.remove(first + 1);
    talk.psn[R] = psn + 1;
    talk.read(R, 3 * MTU as u32);
    talk.respond(I, psn + 1, 3 * MTU);
    let done = talk.decoded().succeeded();
    let lines = events(&done, "message");
    let responses: Vec<_> = lines
        .iter()
        .filter(|line| line["message"] == "RDMA Read Response")
        .collect();
    assert_eq!(responses.len(), 1, "{done:?}");
    assert_eq!(responses[0]["length"], 4 * MTU);
    assert_eq!(events(&done, "missing_packets").len(), 0);
}

/// A host whose network card cuts datagrams sees several packets in one.
#[test]
fn packets_that_a_network_card_cuts_are_read() {
    for (sends, has_acknowledgement) in [(5, false), (1, true), (4, true)] {
        let mut talk = Talk::new();
        // The PSNs of the two directions are far from each other.
        talk.psn[R] = 0x80_0000;
        talk.negotiate();
        let start = talk.frames.len();
        for number in 0..sends {
            let length = if number == 4 { 60 } else { 100 };
            talk.send_alone(I, &Transfer::of(length, 0).bytes(), None);
        }
        if has_acknowledgement {
            talk.acknowledge(I);
        }
        talk.acknowledge(R);
        let expected = said(&talk.decoded());
        let end = talk.frames.len() - 1;
        join(&mut talk, start, end);
        let done = talk.decoded().succeeded();
        assert_eq!(said(&done), expected);
        assert_eq!(names(&done).len(), 2 + sends);
        no_length_breaks_a_rule(&talk.frames);
    }
}

/// Some senders do not count the Identifications of the datagrams that a network card cuts.
#[test]
fn joined_packets_may_have_the_same_identification() {
    let mut talk = Talk::established();
    let start = talk.frames.len();
    for _ in 0..3 {
        talk.send_alone(I, &Transfer::of(100, 0).bytes(), None);
    }
    let identification = [talk.frames[start][18], talk.frames[start][19]];
    for frame in &mut talk.frames[start..] {
        frame[18..20].copy_from_slice(&identification);
        right_icrc(frame);
    }
    let end = talk.frames.len();
    join(&mut talk, start, end);
    talk.acknowledge(R);
    let done = talk.decoded().succeeded();
    assert_eq!(names(&done).len(), 5, "{done:?}");
    // What is damaged in a joined datagram can be damaged by joining.
    let joined = &mut talk.frames[start];
    let last = joined.len() - 1;
    joined[last] ^= 1;
    assert_eq!(broken(&talk.decoded()), [""; 0]);
}

/// Whatever packets a capture lacks, no rule is said to be broken.
#[test]
fn no_missing_packet_breaks_a_rule() {
    let mut talk = conversation();
    // Its last packet has 8 bytes, fewer than a header.
    talk.transfer(R, &Transfer::of(MTU as u32 - 24 + 8, 0));
    exchange(&mut talk);
    let frames = talk.frames;
    for start in 0..frames.len() {
        for missing in [1, 2, 3, 5, 8, usize::MAX] {
            let end = start.saturating_add(missing).min(frames.len());
            let lacking = [&frames[..start], &frames[end..]].concat();
            let later = frames[start..end].to_vec();
            for rest in [lacking, later] {
                if !rest.is_empty() {
                    let done = decode(&pcap(DataLink::ETHERNET, &rest));
                    assert_eq!(broken(&done), [""; 0], "{start} to {end}");
                }
            }
        }
    }
}

/// Joins the datagrams of some frames.
fn join(talk: &mut Talk, start: usize, end: usize) {
    let mut joined = talk.frames[start].clone();
    for frame in &talk.frames[start + 1..end] {
        joined.extend_from_slice(&frame[42..]);
    }
    let ip_length = (joined.len() - 14) as u16;
    joined[16..18].copy_from_slice(&ip_length.to_be_bytes());
    joined[38..40].copy_from_slice(&(ip_length - 20).to_be_bytes());
    talk.frames.splice(start..end, [joined]);
}

/// Returns a capture of the frames whose packets have at most this many bytes.
fn cut_to(frames: &[Vec<u8>], length: usize) -> Vec<u8> {
    let header = PcapHeader {
        datalink: DataLink::ETHERNET,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for frame in frames {
        let kept = frame.len().min(length);
        let time = std::time::Duration::from_secs(1);
        let packet = PcapPacket::new(time, frame.len() as u32, &frame[..kept]);
        writer.write_packet(&packet).unwrap();
    }
    writer.into_writer()
}

#[test]
fn a_capture_that_cuts_packets_shows_their_headers() {
    let talk = conversation();
    let done = decode(&cut_to(&talk.frames, 96)).succeeded();
    assert_eq!(names(&done), MESSAGES);
    let lengths: Vec<_> = said(&done)
        .iter()
        .map(|line| line["data_length"].clone())
        .collect();
    let whole = said(&talk.decoded());
    let expected: Vec<_> = whole
        .iter()
        .map(|line| line["data_length"].clone())
        .collect();
    assert_eq!(lengths, expected);
    let packets = events(&done, "packet");
    assert!(packets.iter().any(|packet| packet["icrc"].is_null()));
}

#[test]
fn no_length_of_cut_packets_breaks_a_rule() {
    no_length_breaks_a_rule(&conversation().frames);
}

/// Cuts the frames to each length, and checks that decode makes up neither a broken rule nor a field.
fn no_length_breaks_a_rule(frames: &[Vec<u8>]) {
    let longest = frames.iter().map(Vec::len).max().unwrap();
    for length in (14..120).chain((120..longest).step_by(50)) {
        let done = decode(&cut_to(frames, length));
        let summary = events(&done, "summary").pop().unwrap();
        assert_eq!(summary["broken"], serde_json::json!([]), "{length}");
        for packet in events(&done, "packet") {
            let is_zero = packet["reth"]["length"] == 0;
            assert!(!is_zero, "{length}: {packet}");
        }
    }
}

/// Other protocols over RoCE are counted, and not shown.
#[test]
fn other_protocols_are_not_shown() {
    let mut talk = Talk::new();
    for number in 0..40_u8 {
        talk.send(I, &[number; 60]);
        talk.write(R, 100);
    }
    let done = talk.decoded();
    let summary = events(&done, "summary").pop().unwrap();
    assert_eq!(summary["roce_other_connections"], 1, "{summary}");
    assert!(names(&done).is_empty());
    // An opcode that needs no connection, and an undefined one.
    let mut talk = Talk::established();
    talk.packet(
        R,
        Opcode::CongestionNotification,
        0,
        (Extended::Plain, &[0; 16]),
    );
    talk.transfer(I, &Transfer::default());
    let done = talk.decoded().succeeded();
    let summary = events(&done, "summary").pop().unwrap();
    assert_eq!(summary["roce_congestion_notifications"], 1);
}

/// Packets with the mark of congestion, and the answer to them, are shown in their connection.
#[test]
fn signs_of_congestion_are_shown() {
    for is_ipv6 in [false, true] {
        let mut talk = Talk::new();
        talk.is_ipv6 = is_ipv6;
        talk.negotiate();
        talk.transfer(I, &Transfer::default());
        let transfer = talk.frames.len() - 2;
        // The ECN field is in the second byte of both IP headers: in IPv6 it is in bits 4 and 5.
        talk.frames[transfer][15] |= if is_ipv6 { 0x30 } else { 0x03 };
        let notification = (Extended::Plain, &[0; 16][..]);
        talk.packet(R, Opcode::CongestionNotification, 0, notification);
        let done = talk.decoded().succeeded();
        let packets = events(&done, "packet");
        let marked: Vec<_> = packets
            .iter()
            .filter(|packet| packet["congestion_marked"] == true)
            .map(|packet| packet["opcode"].clone())
            .collect();
        assert_eq!(marked, [Opcode::SendOnly as u8]);
        let last = packets.last().unwrap();
        assert_eq!(
            (&last["opcode"], &last["from"]),
            (&0x81.into(), &"responder".into())
        );
        let summary = events(&done, "summary").pop().unwrap();
        assert_eq!(summary["roce_congestion_marked"], 1);
        assert_eq!(summary["roce_congestion_notifications"], 1);
        assert_eq!(broken(&done), Vec::<String>::new());
    }
}

/// The rules of SMB Direct are checked as over iWARP.
#[test]
fn the_rules_of_smb_direct_are_checked() {
    let mut talk = Talk::established();
    talk.transfer(I, &Transfer::default());
    let transfer = Transfer {
        requested: 0,
        ..Transfer::default()
    };
    talk.transfer(R, &transfer);
    let done = talk.decoded();
    assert_eq!(broken(&done), ["SMBD-3.1.5.8-02"]);
    let mut talk = Talk::established();
    for _ in 0..11 {
        talk.transfer(I, &Transfer::empty(0));
    }
    // Only the file orders the two directions, so a grant can have been before the message.
    let done = talk.decoded();
    assert_eq!(broken(&done), [""; 0]);
    assert_eq!(
        events(&done, "message").pop().unwrap()["initiator_credits"],
        0
    );
}

/// The packets of a message follow each other, and have the announced bytes.
#[test]
fn the_rules_of_roce_are_checked() {
    fn part(talk: &mut Talk, opcode: Opcode, extended: Extended, length: usize) {
        let psn = talk.next(R, 1);
        talk.packet(R, opcode, psn, (extended, &vec![0; length]));
    }
    fn write(length: u32) -> Extended {
        Extended::Reth(Reth {
            virtual_address: 1,
            r_key: 2,
            length,
        })
    }
    /// A rule, and what breaks it.
    type Case = (&'static str, fn(&mut Talk));
    let cases: [Case; 7] = [
        ("ROCE-9.7.4-01", |talk| {
            part(talk, Opcode::SendLast, Extended::Plain, 30);
        }),
        ("ROCE-9.7.4-01", |talk| {
            part(talk, Opcode::SendFirst, Extended::Plain, MTU);
            part(talk, Opcode::SendFirst, Extended::Plain, MTU);
        }),
        ("ROCE-9.7.4-01", |talk| {
            part(talk, Opcode::SendFirst, Extended::Plain, MTU);
            part(talk, Opcode::WriteOnly, write(4), 4);
        }),
        ("ROCE-9.7.4-01", |talk| {
            part(talk, Opcode::WriteMiddle, Extended::Plain, MTU);
        }),
        ("ROCE-9.7.4-01", |talk| {
            part(talk, Opcode::WriteFirst, write(2000), MTU);
            talk.read(R, 100);
        }),
        ("ROCE-9.7.4-06", |talk| {
            part(talk, Opcode::WriteFirst, write(2000), MTU);
            part(talk, Opcode::WriteLast, Extended::Plain, 975);
        }),
        ("ROCE-9.7.4-04", |talk| {
            let psn = talk.read(R, 2000);
            talk.respond(I, psn, 1999);
        }),
    ];
    for (index, (rule, say)) in cases.into_iter().enumerate() {
        let mut talk = Talk::established();
        say(&mut talk);
        let done = talk.decoded();
        assert_eq!(broken(&done), [rule], "case {index}: {done:?}");
        // In a capture with gaps, the missing packet may be in a gap.
        let mut talk = Talk::established();
        talk.next(R, 1);
        say(&mut talk);
        if rule != "ROCE-9.7.4-04" {
            let done = talk.decoded();
            assert_eq!(broken(&done), [""; 0], "case {index}: {done:?}");
        }
    }
}
