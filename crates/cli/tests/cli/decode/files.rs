//! Files and packets: link types, formats, packet orders, missing packets and faults.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use etherparse::PacketBuilder;
use pcap_file::{
    DataLink, Endianness, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use serde_json::Value;
use tempfile::TempDir;

use smbdirect_test::{
    decoded::{broken, events, messages as said, names},
    talk::{I, R, RST, Talk, Transfer, block, conversation, write_pcap},
};

use super::{Decode, decode};
use crate::support::{Running, command, run};

/// Startup, negotiation, messages in both directions, and a regular end.
/// Messages of a conversation: four of the startup and the negotiation, and the others.
const MESSAGES: usize = 4 + 24;

pub(super) fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture");
    (folder, path)
}

#[test]
fn every_link_is_read() {
    let frames = conversation().frames();
    let (_folder, path) = folder();
    write_pcap(&path, DataLink::ETHERNET, &frames);
    let expected = said(&decode(&path, &["--json"]).succeeded());
    assert_eq!(expected.len(), MESSAGES);
    let with = |head: &[u8]| -> Vec<Vec<u8>> {
        let around = |frame: &Vec<u8>| [head, &frame[14..]].concat();
        frames.iter().map(around).collect()
    };
    let ethernet = [1; 12];
    let vlan = [&ethernet[..], &[0x81, 0, 0, 5, 8, 0]].concat();
    let two_vlans = [&ethernet[..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]].concat();
    let sll = [&[0; 14][..], &[8, 0]].concat();
    let sll2 = [&[8, 0][..], &[0; 18]].concat();
    for (name, datalink, frames) in [
        ("VLAN", DataLink::ETHERNET, with(&vlan)),
        ("two VLANs", DataLink::ETHERNET, with(&two_vlans)),
        ("cooked", DataLink::LINUX_SLL, with(&sll)),
        ("cooked v2", DataLink::from(276), with(&sll2)),
        ("raw", DataLink::RAW, with(&[])),
        ("raw as OpenBSD numbers it", DataLink::from(12), with(&[])),
        ("IPv4", DataLink::IPV4, with(&[])),
        ("loopback", DataLink::NULL, with(&[2, 0, 0, 0])),
        ("loopback of OpenBSD", DataLink::LOOP, with(&[0, 0, 0, 2])),
    ] {
        write_pcap(&path, datalink, &frames);
        let done = decode(&path, &["--json"]).succeeded();
        assert_eq!(said(&done), expected, "{name}");
    }
    // As a host passes packets to segmentation offload: without a length.
    let mut uncut = frames.clone();
    for frame in &mut uncut {
        frame[16..18].fill(0);
    }
    write_pcap(&path, DataLink::ETHERNET, &uncut);
    let done = decode(&path, &["--json"]).succeeded();
    assert_eq!(said(&done), expected, "without a length");
    let unknown = DataLink::from(147);
    write_pcap(&path, unknown, &frames);
    let done = decode(&path, &[]);
    done.failed(1, &format!("{} packets of link type 147 not", frames.len()))
        .one_line();
    let says = format!("{} packets of link type 147, not understood", frames.len());
    assert!(done.stdout.contains(&says), "{done:?}");
}

#[test]
fn ipv6_is_read() {
    let talk = conversation();
    let ends = [[0xfd; 16], [0xfe; 16]];
    let frame = |packet: &smbdirect_test::talk::Packet| {
        let (from, to) = (packet.way, 1 - packet.way);
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv6(ends[from], ends[to], 64)
            .tcp(talk.ports[from], talk.ports[to], packet.sequence, 65_535)
            .ack(packet.acknowledged);
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &packet.payload).unwrap();
        bytes
    };
    // Without the handshake, which has flags.
    let frames: Vec<_> = talk.packets[2..].iter().map(frame).collect();
    let (_folder, path) = folder();
    write_pcap(&path, DataLink::ETHERNET, &frames);
    let done = decode(&path, &["--json"]).succeeded();
    assert_eq!(said(&done), said(&talk.decoded(&["--json"])));
    let initiator = &events(&done, "stream")[0]["initiator"];
    assert_eq!(initiator, "[fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd]:40000");
}

#[test]
fn both_orders_and_clocks_of_pcap() {
    let frames = conversation().frames();
    let (_folder, path) = folder();
    for endianness in [Endianness::Big, Endianness::Little] {
        for ts_resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
            let header = PcapHeader {
                datalink: DataLink::ETHERNET,
                endianness,
                ts_resolution,
                ..PcapHeader::default()
            };
            let file = File::create(&path).unwrap();
            let mut writer = PcapWriter::with_header(file, header).unwrap();
            for (index, frame) in frames.iter().enumerate() {
                let time = Duration::from_micros(5_000_000 + 7 * index as u64);
                let packet = PcapPacket::new(time, frame.len() as u32, frame);
                writer.write_packet(&packet).unwrap();
            }
            drop(writer);
            let done = decode(&path, &["--json"]).succeeded();
            let lines = events(&done, "message");
            assert_eq!(lines.len(), MESSAGES);
            // The fourth packet is the first message.
            assert_eq!(lines[0]["frame"], 4);
            let seconds = lines[0]["seconds"].as_f64().unwrap();
            assert!((seconds - 21e-6).abs() < 1e-9, "{seconds}");
        }
    }
}

/// A file of one section, its interface with a clock of its own, packets of the new kind and one
/// of the simple kind last.
fn pcapng(frames: &[Vec<u8>], is_big: bool, resolution: u8) -> Vec<u8> {
    let short = |number: u16| {
        if is_big {
            number.to_be_bytes()
        } else {
            number.to_le_bytes()
        }
    };
    let word = |number: u32| {
        if is_big {
            number.to_be_bytes()
        } else {
            number.to_le_bytes()
        }
    };
    let section = [&word(0x1a2b_3c4d)[..], &short(1), &short(0), &[0xff; 8]].concat();
    let mut file = block(0x0a0d_0d0a, &section, is_big);
    let clock = [&short(9)[..], &short(1), &[resolution, 0, 0, 0], &[0; 4]].concat();
    let interface = [&short(1)[..], &short(0), &word(0), &clock].concat();
    file.extend(block(1, &interface, is_big));
    // A block of an unknown type.
    file.extend(block(0x0bad, &[1, 2, 3, 4], is_big));
    let (last, others) = frames.split_last().unwrap();
    for (index, frame) in others.iter().enumerate() {
        let length = word(frame.len() as u32);
        let head = [word(0), word(0), word(1000 + index as u32), length, length].concat();
        file.extend(block(6, &[&head, &frame[..]].concat(), is_big));
    }
    let simple = [&word(last.len() as u32)[..], last].concat();
    file.extend(block(3, &simple, is_big));
    file
}

#[test]
fn pcapng_is_read() {
    let talk = conversation();
    let expected = said(&talk.decoded(&["--json"]));
    let (_folder, path) = folder();
    for is_big in [false, true] {
        for (resolution, unit) in [(6, 1e-6), (9, 1e-9), (3, 1e-3), (0x8a, 1.0 / 1024.0)] {
            fs::write(&path, pcapng(&talk.frames(), is_big, resolution)).unwrap();
            let done = decode(&path, &["--json"]).succeeded();
            assert_eq!(said(&done), expected);
            let seconds = events(&done, "message")[0]["seconds"].as_f64().unwrap();
            assert!(
                (seconds - 3.0 * unit).abs() < 1e-9,
                "{resolution}: {seconds}"
            );
        }
    }
    // A second section in the other byte order, with another connection.
    let mut again = talk.clone();
    again.ports[I] += 1;
    let file = [
        pcapng(&talk.frames(), false, 6),
        pcapng(&again.frames(), true, 6),
    ];
    fs::write(&path, file.concat()).unwrap();
    let done = decode(&path, &["--json"]).succeeded();
    assert_eq!(events(&done, "stream").len(), 2);
    assert_eq!(events(&done, "message").len(), 2 * MESSAGES);
}

#[test]
fn the_order_of_packets_does_not_matter() {
    let talk = conversation();
    let expected = said(&talk.decoded(&["--json"]));
    let check = |name: &str, change: &dyn Fn(&mut Talk)| {
        let mut changed = talk.clone();
        change(&mut changed);
        let done = changed.decoded(&["--json"]).succeeded();
        assert_eq!(said(&done), expected, "{name}");
        assert_eq!(events(&done, "gap").len(), 0, "{name}");
    };
    // After the handshake, the first data packet is number 3.
    check("every packet twice", &|talk| {
        talk.packets = talk
            .packets
            .iter()
            .flat_map(|p| [p.clone(), p.clone()])
            .collect();
    });
    check("neighbours swapped", &|talk| {
        talk.packets[3..].chunks_mut(2).for_each(<[_]>::reverse);
    });
    check("eight packets backwards", &|talk| {
        talk.packets[3..].chunks_mut(8).for_each(<[_]>::reverse);
    });
    check("a packet lost and sent again at the end", &|talk| {
        let lost = talk.packets.remove(7);
        talk.packets.push(lost);
    });
    check("each byte in a packet of its own", &|talk| {
        let mut packets = Vec::new();
        for packet in &talk.packets {
            if packet.payload.is_empty() {
                packets.push(packet.clone());
            }
            for (at, &byte) in packet.payload.iter().enumerate() {
                let mut packet = packet.clone();
                packet.sequence = packet.sequence.wrapping_add(at as u32);
                packet.payload = vec![byte];
                packets.push(packet);
            }
        }
        talk.packets = packets;
    });
    check("packets that overlap", &|talk| {
        let mut packets = talk.packets.clone();
        for way in [I, R] {
            let mut before: Vec<u8> = Vec::new();
            for packet in packets.iter_mut().filter(|packet| packet.way == way) {
                let own = packet.payload.clone();
                let tail = before.len().min(9);
                if !own.is_empty() {
                    let overlap = before[before.len() - tail..].to_vec();
                    packet.sequence = packet.sequence.wrapping_sub(tail as u32);
                    packet.payload = [overlap, own.clone()].concat();
                    before = own;
                }
            }
        }
        talk.packets = packets;
    });
}

#[test]
fn sequence_numbers_wrap_around() {
    let expected = said(&conversation().decoded(&["--json"]));
    for start in [u32::MAX, u32::MAX - 20, u32::MAX - 500, i32::MAX as u32] {
        let mut talk = Talk::new().at([start, start.wrapping_sub(100)]);
        talk.start();
        talk.negotiate();
        for number in 0..12 {
            talk.transfer(I, &Transfer::of(100 + number, 0));
            talk.transfer(R, &Transfer::of(1000, 0));
        }
        let done = talk.decoded(&["--json"]).succeeded();
        assert_eq!(said(&done), expected, "{start}");
    }
}

#[test]
fn missing_packets_are_reported_and_lose_only_themselves() {
    let whole = conversation();
    // The frames of the startup and the negotiation are 3 to 6; then come the messages.
    for lost in 7..20 {
        let mut talk = whole.clone();
        let bytes = talk.packets.remove(lost).payload.len();
        let done = talk.decoded(&["--json"]).succeeded();
        let gaps = events(&done, "gap");
        assert_eq!(gaps.len(), 1, "{lost}: {}", done.stdout);
        assert_eq!(gaps[0]["bytes"], bytes as u64, "{lost}");
        assert_eq!(names(&done).len(), MESSAGES - 1, "{lost}");
        // From here on the credits are unknown.
        let last = events(&done, "message").pop().unwrap();
        assert_eq!(last["initiator_credits"], Value::Null);
        let text = talk.decoded(&[]).succeeded().stdout;
        let says = format!("-- {} bytes of this direction are not in the capture", {
            if bytes > 999 {
                "1,048".to_owned()
            } else {
                bytes.to_string()
            }
        });
        assert!(text.contains(&says), "{says}: {text}");
    }
}

#[test]
fn boundaries_are_found_again_within_a_stream() {
    for crc in [false, true] {
        let mut talk = Talk::new();
        talk.request.crc = crc;
        talk.start();
        talk.negotiate();
        let first = talk.packets.len();
        for _ in 0..9 {
            talk.transfer(I, &Transfer::of(1000, 0));
        }
        // FPDUs that do not begin with packets.
        let start = talk.packets[first].clone();
        let bytes: Vec<u8> = talk
            .packets
            .drain(first..)
            .flat_map(|p| p.payload)
            .collect();
        for (index, piece) in bytes.chunks(700).enumerate() {
            let mut packet = start.clone();
            packet.sequence = packet.sequence.wrapping_add(700 * index as u32);
            packet.payload = piece.to_vec();
            talk.packets.push(packet);
        }
        // 1024 bytes and their frame make 1052; the packet with bytes 1400 to 2100 has the tail
        // of the second and the head of the third.
        talk.packets.remove(first + 2);
        let done = talk.decoded(&["--json"]).succeeded();
        assert_eq!(events(&done, "gap").len(), 1);
        assert_eq!(events(&done, "in_step").len(), 1, "{}", done.stdout);
        let found = names(&done);
        // The header of the second is captured, and nothing of the third.
        assert_eq!(found.len(), 4 + 8, "{found:?}");
        // From the middle on, without anything before.
        talk.packets.drain(..first + 3);
        let done = talk.decoded(&["--json"]).succeeded();
        assert!(names(&done).len() >= 5, "{}", done.stdout);
        assert_eq!(events(&done, "stream")[0]["from_start"], false);
        assert_eq!(events(&done, "stream")[0]["initiator"], "10.0.0.1:40000");
    }
}

#[test]
fn a_snap_length_leaves_the_headers() {
    let whole = conversation();
    let frames = whole.frames();
    let (_folder, path) = folder();
    let header = PcapHeader {
        snaplen: 2000,
        datalink: DataLink::ETHERNET,
        ..PcapHeader::default()
    };
    let cut_to = |length: usize| {
        let mut writer = PcapWriter::with_header(File::create(&path).unwrap(), header).unwrap();
        for frame in &frames {
            let kept = &frame[..frame.len().min(length)];
            let packet = PcapPacket::new(Duration::from_secs(1), frame.len() as u32, kept);
            writer.write_packet(&packet).unwrap();
        }
    };
    // Addresses and ports, and nothing of the payload.
    cut_to(54);
    decode(&path, &[]).failed(1, "of TCP cut by the snap length");
    cut_to(128);
    let done = decode(&path, &["--json"]).succeeded();
    let expected = said(&whole.decoded(&["--json"]));
    let expected: Vec<_> = expected.iter().map(|line| &line["data_length"]).collect();
    let found = said(&done);
    let found: Vec<_> = found.iter().map(|line| &line["data_length"]).collect();
    assert_eq!(found, expected);
    let text = decode(&path, &[]).succeeded().stdout;
    assert!(
        text.contains("24 packets of TCP cut by the snap length"),
        "{text}"
    );
}

#[test]
fn a_port_used_again_is_another_stream() {
    let mut talk = conversation();
    let mut again = Talk::new().at([77_777, 88_888]);
    again.start();
    again.packet(R, RST, &[]);
    talk.packets.extend(again.packets);
    let done = talk.decoded(&["--json"]).succeeded();
    assert_eq!(events(&done, "stream").len(), 2);
    let closed = events(&done, "closed");
    let resets: Vec<_> = closed.iter().map(|line| line["reset"] == true).collect();
    assert_eq!(resets, [false, false, true, true]);
}

#[test]
fn other_ports_are_known_by_their_beginning_or_by_name() {
    let mut talk = conversation();
    talk.ports = [40_000, 9000];
    assert_eq!(
        names(&talk.decoded(&["--json"]).succeeded()).len(),
        MESSAGES
    );
    talk.packets.drain(..8);
    let done = talk.decoded(&[]);
    done.failed(1, "give --port").one_line();
    let done = talk.decoded(&["--json", "--port", "9000"]).succeeded();
    assert!(names(&done).len() > 20, "{}", done.stdout);
    assert_eq!(broken(&done), [""; 0]);
}

#[test]
fn filters_select_a_stream_and_its_violations() {
    let talk = conversation();
    let mut other = Talk::established();
    other.ports = [40_001, 5445];
    let transfer = Transfer {
        requested: 0,
        ..Transfer::default()
    };
    other.transfer(I, &transfer);
    let (_folder, path) = folder();
    let mut frames = talk.frames();
    frames.extend(other.frames());
    write_pcap(&path, DataLink::ETHERNET, &frames);
    let all = decode(&path, &["--json"]);
    assert_eq!(all.status.code(), Some(1), "{all:?}");
    decode(&path, &["--json", "--stream", "1"]).succeeded();
    let second = decode(&path, &["--json", "--stream", "2", "--broken"]);
    assert_eq!(second.status.code(), Some(1));
    let kinds: Vec<_> = second
        .json()
        .iter()
        .map(|line| line["event"].clone())
        .collect();
    assert_eq!(kinds, ["stream", "message", "summary"], "{}", second.stdout);
    decode(&path, &["--stream", "3"])
        .failed(1, "no such stream")
        .one_line();
}

#[test]
fn unreadable_files_are_errors_of_one_line() {
    let (folder, path) = folder();
    let talk = conversation();
    write_pcap(&path, DataLink::ETHERNET, &talk.frames());
    let good = fs::read(&path).unwrap();
    let check = |bytes: &[u8], says: &str| {
        fs::write(&path, bytes).unwrap();
        let done = decode(&path, &[]);
        done.failed(1, says).one_line();
        done
    };
    check(b"", "it is empty");
    check(
        b"no capture at all, but long enough to be one",
        "neither pcap nor pcapng",
    );
    check(&good[..20], "neither pcap nor pcapng");
    for compressed in [
        &[0x1f, 0x8b, 8, 0][..],
        b"\xfd7zXZ\0",
        b"BZh9",
        b"\x04\x22\x4d\x18",
    ] {
        check(compressed, "it is compressed; unpack it first");
    }
    let cut = check(&good[..good.len() - 5], "it is cut short after packet");
    assert!(cut.stdout.contains("Data Transfer"), "{cut:?}");
    let mut damaged = good.clone();
    damaged[24 + 8..][..4].copy_from_slice(&[0xff; 4]);
    check(&damaged, "after packet 0");
    let mut ng = pcapng(&talk.frames(), false, 6);
    let length = ng.len();
    ng[length - 1] ^= 1;
    check(&ng, "it is damaged after packet");
    check(&good[..24], "no packet of TCP");
    decode(folder.path(), &[])
        .failed(1, "it is a directory")
        .one_line();
    decode(Path::new("/nowhere/at/all"), &[])
        .failed(1, "cannot read the capture /nowhere/at/all: no such file")
        .one_line();
    run(&["decode"]).failed(2, "<FILE>");
    run(&["decode", "x", "--port", "0"]).failed(2, "--port");
    run(&["decode", "x", "--stream", "0"]).failed(2, "at least 1");
}

#[test]
fn roce_without_smb_direct_is_named() {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([1; 4], [2; 4], 64)
        .udp(50_000, 4791);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[0; 32]).unwrap();
    let (_folder, path) = folder();
    write_pcap(&path, DataLink::ETHERNET, &[frame.clone(), frame]);
    let done = decode(&path, &[]);
    done.failed(1, "2 packets of RoCE, most with a wrong ICRC")
        .one_line();
}

#[test]
fn the_text_explains_itself() {
    let mut talk = Talk::established();
    talk.transfer(I, &Transfer::of(100, 50));
    let mut answer = Transfer::empty(0);
    answer.flags = 1;
    talk.transfer(R, &answer);
    let done = talk.decoded(&[]);
    assert_eq!(done.status.code(), Some(1));
    let expected = "
stream 1: 10.0.0.1:40000 (initiator) and 10.0.0.2:5445 (responder)
                                             Credits Credits         Remaining   Data   Data credits  held
  frame       time stream    message       Requested Granted  Flags DataLength Offset Length    by I  by R
      4   0.003000      1 I> MPA Request        Revision 2, IRD 2, ORD 2
      5   0.004000      1 <R MPA Reply          Revision 2, IRD 2, ORD 2
      6   0.005000      1 I> Negotiate Request  MinVersion 0x0100, MaxVersion 0x0100, CreditsRequested 10, PreferredSendSize 1364, MaxReceiveSize 8192, MaxFragmentedSize 1048576
      7   0.006000      1 <R Negotiate Response MinVersion 0x0100, MaxVersion 0x0100, NegotiatedVersion 0x0100, CreditsRequested 10, CreditsGranted 10, Status 0x00000000, MaxReadWriteSize 1048576, PreferredSendSize 1364, MaxReceiveSize 1364, MaxFragmentedSize 1048576
      8   0.007000      1 I> Data Transfer        10       1 0x0000         50     24    100       9     1
      9   0.008000      1 <R Data Transfer        10       0 0x0001          0      0      0       9     0  RESPONSE_REQUESTED
                       broken: SMBD-3.1.5.1-06 by the responder: the last send credit, with CreditsGranted 0

6 messages in 1 stream, 9 packets
        2 Data Transfer, 100 B
        1 MPA Reply
        1 MPA Request
        1 Negotiate Request
        1 Negotiate Response
stream 1: the fewest send credits, initiator 9, responder 0
1 rule was broken
  SMBD-3.1.5.1-06  1 time, first by the responder of stream 1 in frame 9: The last send credit is not spent on a message that grants nothing.
";
    assert_eq!(done.stdout, expected);
}

#[test]
fn smb_over_tcp_alone_has_a_verdict_and_a_cure() {
    let (_folder, path) = folder();
    let mut talk = Talk::new();
    talk.ports = [40_000, 445];
    talk.say(I, &[1; 100]);
    talk.say(R, &[2; 1000]);
    write_pcap(&path, DataLink::ETHERNET, &talk.frames());
    let done = decode(&path, &["--explain"]).succeeded();
    for says in [
        "1. 100 %  RDMA is not used: all of SMB goes over TCP, port 445.",
        "1100 bytes by TCP to and from port 445, frames 4 to 5; none by SMB Direct",
        "smbdirect check SERVER",
    ] {
        assert!(done.stdout.contains(says), "{says}: {}", done.stdout);
    }
    assert!(!done.stdout.contains("longest"), "{}", done.stdout);
}

#[test]
fn its_help_explains_it() {
    let done = run(&["decode", "--help"]).succeeded();
    for says in [
        "Examples:\n  smbdirect decode ",
        "In the lines:",
        "With --json:",
    ] {
        assert!(done.stdout.contains(says), "{says}: {}", done.stdout);
    }
    let short = |line: &str| line.chars().count() <= 100;
    assert!(done.stdout.lines().all(short), "{}", done.stdout);
    let all = run(&["--help"]).succeeded();
    assert!(all.stdout.contains("\n  decode "), "{}", all.stdout);
}

#[test]
fn packets_from_stdin_are_shown_immediately() {
    let (_folder, path) = folder();
    write_pcap(&path, DataLink::ETHERNET, &conversation().frames());
    let expected = decode(&path, &[]).succeeded().stdout;
    let bytes = fs::read(&path).unwrap();
    let mut command = command(&["decode", "-"]);
    command.stdin(Stdio::piped());
    let mut running = Running::new(command);
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    running.write(first);
    // The stream, and the messages of the startup and the negotiation.
    let mut shown = String::new();
    for _ in 0..5 {
        shown += &running.line();
    }
    running.write(rest);
    running.close_stdin();
    let done = running.finish().succeeded();
    assert_eq!(shown + &done.stdout, expected);
}

#[test]
fn stdin_that_is_no_capture_is_refused() {
    run(&["decode", "-"]).failed(1, "cannot read the capture stdin: it is empty");
}
