//! Captures that are written as SMB2 over TCP: data that RDMA moved is in the messages, their order is kept, and what
//! the capture lacks is missing, and not made up.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::Duration,
};

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pcap_file::{
    DataLink,
    pcapng::{Block, PcapNgReader},
};
use smbdirect::rdma::{
    iwarp::{
        ddp::Untagged,
        rdmap::{Opcode, ReadRequest},
    },
    roce::packet::{Aeth, Extended, Opcode as Roce, Reth, Syndrome},
};
use smbdirect_decode::{AsTcp, AsTcpSummary, Packets};
use smbdirect_test::{
    messages::{
        END_OF_FILE, READ, RELATED, SIGNED, V1, V1_INVALIDATE, WRITE, compound, compressed,
        descriptor, encrypted, error, flagged, interim, put, read, read_answer, split, u16_at,
        u32_at, with, write, write_answer, write_by_rdma,
    },
    talk::{self, ACK, FIN, I, R, Talk, Transfer, pcap},
};

/// A packet that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    link: DataLink,
    time: Duration,
    bytes: Vec<u8>,
    length: u32,
}

/// The output for a capture, whose size is checked.
#[derive(Debug)]
struct Done {
    summary: AsTcpSummary,
    packets: Vec<Written>,
}

/// Writes a capture, and checks that the output is no longer than what was read and moved.
fn as_tcp(capture: &[u8]) -> Done {
    let mut packets = Packets::new(capture).unwrap();
    let mut output = Vec::new();
    let mut as_tcp = AsTcp::new(&[], &[], &mut output).unwrap();
    let mut read = 0;
    while let Some(packet) = packets.next_packet().unwrap() {
        as_tcp.packet(&packet).unwrap();
        // A block of pcapng, and Ethernet where it had none.
        read += packet.data.len() + 35 + 14;
    }
    let summary = as_tcp.finish().unwrap();
    // The head of the file, and an interface.
    let most = read + summary.put_back_bytes as usize + 100;
    assert!(output.len() <= most, "{} of {most} bytes", output.len());
    Done {
        summary,
        packets: packets_of(&output),
    }
}

fn packets_of(output: &[u8]) -> Vec<Written> {
    let mut reader = PcapNgReader::new(output).unwrap();
    let (mut packets, mut links) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(interface) => links.push(interface.linktype),
            Block::EnhancedPacket(packet) => packets.push(Written {
                link: links[packet.interface_id as usize],
                time: packet.timestamp,
                bytes: packet.data.to_vec(),
                length: packet.original_len,
            }),
            other => panic!("{other:?}"),
        }
    }
    packets
}

/// A message over TCP: its direction, its time and its bytes.
type Message = (usize, Duration, Vec<u8>);

impl Done {
    /// Returns the messages in their order. Checks each packet: addresses, ports, checksums, sequence numbers.
    fn messages(&self) -> Vec<Message> {
        let (messages, gaps) = self.messages_and_gaps();
        assert_eq!(gaps, 0, "{self:?}");
        messages
    }

    fn messages_and_gaps(&self) -> (Vec<Message>, u64) {
        let (mut messages, mut gaps) = (Vec::new(), 0);
        let mut next: HashMap<[u16; 2], u32> = HashMap::new();
        let mut partial: HashMap<[u16; 2], Vec<u8>> = HashMap::new();
        for packet in &self.packets {
            let sliced = SlicedPacket::from_ethernet(&packet.bytes).unwrap();
            let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
                panic!("{packet:?}")
            };
            assert_eq!(packet.length as usize, packet.bytes.len(), "a whole packet");
            assert!(tcp.payload().len() <= 65_535);
            let header = tcp.to_header();
            let (sum, from) = match sliced.net.as_ref().unwrap() {
                NetSlice::Ipv4(ip) => {
                    let ip = ip.header().to_header();
                    assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
                    let from = IpAddr::from(ip.source);
                    (header.calc_checksum_ipv4(&ip, tcp.payload()), from)
                }
                NetSlice::Ipv6(ip) => {
                    let from = IpAddr::from(ip.header().source_addr());
                    let ip = ip.header().to_header();
                    (header.calc_checksum_ipv6(&ip, tcp.payload()), from)
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(sum.unwrap(), header.checksum);
            let ports = [header.source_port, header.destination_port];
            let way = usize::from(ports[0] == 445);
            assert_eq!(ports[1 - way], 445);
            let expected = next.entry(ports).or_insert(header.sequence_number);
            if *expected != header.sequence_number {
                gaps += u64::from(header.sequence_number.wrapping_sub(*expected));
                assert_eq!(partial.get(&ports).map_or(0, Vec::len), 0);
            }
            let extra = u32::from(header.syn) + u32::from(header.fin);
            *expected = header
                .sequence_number
                .wrapping_add(tcp.payload().len() as u32 + extra);
            if header.ack && gaps == 0 {
                let known = next.get(&[ports[1], ports[0]]);
                assert!(known.is_none_or(|next| *next == header.acknowledgment_number));
            }
            let bytes = partial.entry(ports).or_default();
            bytes.extend_from_slice(tcp.payload());
            while let Some(head) = bytes.first_chunk::<4>() {
                assert_eq!(head[0], 0);
                let length = u32::from_be_bytes(*head) as usize;
                if bytes.len() < 4 + length {
                    break;
                }
                let message = bytes[4..4 + length].to_vec();
                bytes.drain(..4 + length);
                // The last octet of the addresses of the tests is the end.
                let last = match from {
                    IpAddr::V4(from) => from.octets()[3],
                    IpAddr::V6(from) => from.octets()[15],
                };
                assert_eq!(usize::from(last), way + 1);
                messages.push((way, packet.time, message));
            }
        }
        assert!(partial.values().all(Vec::is_empty), "whole messages");
        (messages, gaps)
    }

    /// Returns the messages without times.
    fn bytes(&self) -> Vec<(usize, Vec<u8>)> {
        let messages = self.messages().into_iter();
        messages.map(|(way, _, bytes)| (way, bytes)).collect()
    }
}

/// Returns a READ response as a server over TCP sends it.
fn inline(answer: &[u8], data: &[u8]) -> Vec<u8> {
    let mut answer = answer[..80].to_vec();
    put(&mut answer, 66, &[80]);
    put(&mut answer, 68, &(data.len() as u32).to_le_bytes());
    put(&mut answer, 72, &[0; 4]);
    [&answer, data].concat()
}

/// Returns a WRITE request as a client over TCP sends it.
fn with_data(request: &[u8], data: &[u8]) -> Vec<u8> {
    let mut request = request[..112].to_vec();
    put(&mut request, 66, &112_u16.to_le_bytes());
    put(&mut request, 68, &(data.len() as u32).to_le_bytes());
    put(&mut request, 96, &[0; 12]);
    [&request, data].concat()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 / 3) as u8).collect()
}

/// A Data Transfer with a message.
fn transfer(payload: &[u8]) -> Transfer {
    Transfer {
        rest: [&[0; 4], payload].concat(),
        ..Transfer::of(payload.len() as u32, 0)
    }
}

/// Adds a message in a Data Transfer.
fn message(talk: &mut Talk, way: usize, payload: &[u8]) {
    talk.transfer(way, &transfer(payload));
}

/// Adds a Read of the server, and the response of the client.
fn fetch(talk: &mut Talk, number: u32, (token, address): (u32, u64), data: &[u8]) {
    request(talk, number, (token, address), data.len());
    talk.tagged(I, Opcode::RdmaReadResponse, true, (number, 0x70), data);
}

fn request(talk: &mut Talk, number: u32, (token, address): (u32, u64), length: usize) {
    let request = ReadRequest {
        sink_stag: number,
        sink_tagged_offset: 0x70,
        read_message_size: length as u32,
        source_stag: token,
        source_tagged_offset: address,
    };
    let head = Untagged {
        last: true,
        rdmap_control: Opcode::RdmaReadRequest.control(),
        rsvd_ulp: 0,
        queue_number: 1,
        message_sequence_number: number,
        message_offset: 0,
    };
    talk.fpdu(R, &head.encode(), &request.encode());
}

#[test]
fn a_read_response_has_the_data_that_rdma_has_moved() {
    let mut talk = Talk::established();
    let data = bytes(3000);
    // Two descriptors, and the Writes in another order.
    let memory = [descriptor(0x100, 5, 1000), descriptor(0x900, 6, 3000)];
    let asks = read(3, 0, 4000, V1, &memory);
    let answer = read_answer(3, &[], 3000);
    message(&mut talk, I, &asks);
    talk.tagged(R, Opcode::RdmaWrite, true, (6, 0x900), &data[1000..]);
    talk.tagged(R, Opcode::RdmaWrite, false, (5, 0x100), &data[..600]);
    talk.tagged(
        R,
        Opcode::RdmaWrite,
        true,
        (5, 0x100 + 600),
        &data[600..1000],
    );
    message(&mut talk, R, &interim(READ, 3));
    message(&mut talk, R, &answer);
    talk.packet(I, FIN | ACK, &[]);
    talk.packet(R, FIN | ACK, &[]);
    let done = as_tcp(&talk.capture());
    let expected = [
        (I, asks),
        (R, interim(READ, 3)),
        (R, inline(&answer, &data)),
    ];
    assert_eq!(done.bytes(), expected);
    let summary = AsTcpSummary {
        connections: 1,
        messages: 3,
        put_back_bytes: 3000,
        ..AsTcpSummary::default()
    };
    assert_eq!(done.summary, summary);
    // Handshake, three messages, and the end of each direction.
    assert_eq!(done.packets.len(), 3 + 3 + 2);
    let frames = talk.packets.len() as u64;
    let times: Vec<_> = done.messages().iter().map(|(_, time, _)| *time).collect();
    let at = |index: u64| Duration::from_millis(1_000_000 + index);
    assert_eq!(times, [at(7), at(frames - 4), at(frames - 3)]);
}

#[test]
fn a_write_request_waits_for_its_data_and_the_rest_waits_with_it() {
    let mut talk = Talk::established();
    let (one, other) = (bytes(2000), bytes(70_000));
    let first = write_by_rdma(1, 0, 2000, V1_INVALIDATE, &[descriptor(0x40, 9, 2000)]);
    let second = write_by_rdma(2, 2000, 70_000, V1, &[descriptor(0, 10, 70_000)]);
    message(&mut talk, I, &first);
    message(&mut talk, I, &second);
    message(&mut talk, I, &read(3, 0, 4, 0, &[]));
    message(&mut talk, R, &read_answer(3, b"data", 0));
    // The server reads the second one first, and the first one in two parts.
    for (index, part) in other.chunks(35_000).enumerate() {
        fetch(
            &mut talk,
            1 + index as u32,
            (10, 35_000 * index as u64),
            part,
        );
    }
    message(&mut talk, R, &write_answer(2, 70_000));
    fetch(&mut talk, 3, (9, 0x40 + 1000), &one[1000..]);
    fetch(&mut talk, 4, (9, 0x40), &one[..1000]);
    message(&mut talk, R, &write_answer(1, 2000));
    let expected = [
        (I, with_data(&first, &one)),
        (I, with_data(&second, &other)),
        (I, read(3, 0, 4, 0, &[])),
        (R, read_answer(3, b"data", 0)),
        (R, write_answer(2, 70_000)),
        (R, write_answer(1, 2000)),
    ];
    assert_eq!(as_tcp(&talk.capture()).bytes(), expected);
}

#[test]
fn elements_of_compounds_have_their_data_and_lead_to_the_next() {
    let mut talk = Talk::established();
    let data = bytes(13);
    let request = compound(&[
        write_by_rdma(1, 0, 13, V1, &[descriptor(0, 1, 13)]),
        flagged(read(2, 0, 13, V1, &[descriptor(0, 2, 13)]), RELATED),
        flagged(write(3, 0, b"inline"), RELATED),
    ]);
    let answer = compound(&[
        write_answer(1, 13),
        read_answer(2, &[], 13),
        write_answer(3, 6),
    ]);
    message(&mut talk, I, &request);
    fetch(&mut talk, 1, (1, 0), &data);
    talk.tagged(R, Opcode::RdmaWrite, true, (2, 0), &data);
    message(&mut talk, R, &answer);
    let written = as_tcp(&talk.capture()).bytes();
    let [(I, request), (R, answer)] = &written[..] else {
        panic!("{written:?}")
    };
    let request = split(request);
    assert_eq!(request[0][112..125], data);
    assert_eq!((request[0].len(), u32_at(&request[0], 68)), (128, 13));
    assert_eq!(
        u32_at(&request[1], 100),
        V1,
        "a READ request stays as it is"
    );
    assert_eq!(request[2][112..], *b"inline");
    let answer = split(answer);
    assert_eq!(answer[1][80..93], data);
    assert_eq!((u32_at(&answer[1], 68), u32_at(&answer[1], 72)), (13, 0));
    assert_eq!((answer.len(), u16_at(&answer[2], 12)), (3, WRITE));
}

#[test]
fn a_request_whose_data_did_not_move_or_was_not_seen_stays_as_it_is() {
    let mut talk = Talk::established();
    let refused = write_by_rdma(1, 0, 8, V1, &[descriptor(0, 1, 8)]);
    let partial = write_by_rdma(2, 0, 8, V1, &[descriptor(0, 2, 8)]);
    let messages = [
        (I, refused),
        (R, error(WRITE, 1, 0xc000_0022)),
        (I, partial),
        (R, write_answer(2, 8)),
        (I, read(3, 0, 10, V1, &[descriptor(0, 3, 10)])),
        (R, read_answer(3, &[], 10)),
        (I, read(4, 0, 10, V1, &[descriptor(0, 4, 10)])),
        (R, error(READ, 4, END_OF_FILE)),
    ];
    for (index, (way, bytes)) in messages.iter().enumerate() {
        match index {
            3 => fetch(&mut talk, 1, (2, 0), b"1234"),
            5 => talk.tagged(R, Opcode::RdmaWrite, true, (3, 2), b"23456789"),
            _ => {}
        }
        message(&mut talk, *way, bytes);
    }
    let done = as_tcp(&talk.capture());
    assert_eq!(done.bytes(), messages);
    // The refused one needs no data.
    assert_eq!(
        (done.summary.without_data, done.summary.put_back_bytes),
        (2, 0)
    );
}

#[test]
fn signed_encrypted_and_compressed_messages_keep_their_bytes() {
    let mut talk = Talk::established();
    let asks = flagged(read(1, 0, 5, V1, &[descriptor(0, 1, 5)]), SIGNED);
    let answer = flagged(read_answer(1, &[], 5), SIGNED);
    message(&mut talk, I, &asks);
    talk.tagged(R, Opcode::RdmaWrite, true, (1, 0), b"12345");
    message(&mut talk, R, &answer);
    message(&mut talk, I, &encrypted(300));
    message(&mut talk, R, &compressed(301));
    let expected = [
        (I, asks),
        // The signature of the answer is left.
        (R, inline(&answer, b"12345")),
        (I, encrypted(300)),
        (R, compressed(301)),
    ];
    assert_eq!(as_tcp(&talk.capture()).bytes(), expected);
}

#[test]
fn a_message_in_fragments_is_whole_and_another_protocol_is_left_out() {
    let mut talk = Talk::established();
    let long = write(1, 0, &bytes(200_000));
    let mut rest = &long[..];
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.len().min(1000));
        rest = after;
        let transfer = Transfer {
            rest: [&[0; 4], part].concat(),
            ..Transfer::of(part.len() as u32, rest.len() as u32)
        };
        talk.transfer(I, &transfer);
    }
    message(&mut talk, I, b"another protocol");
    message(&mut talk, R, &write_answer(1, 200_000));
    let done = as_tcp(&talk.capture());
    assert_eq!(done.bytes(), [(I, long), (R, write_answer(1, 200_000))]);
    assert_eq!(done.summary.not_smb, 1);
}

#[test]
fn small_messages_of_one_packet_take_no_more_room_than_they_took() {
    let mut talk = Talk::started();
    let first = talk.packets.len();
    talk.negotiate();
    let small = write_answer(1, 1);
    for _ in 0..300 {
        message(&mut talk, I, &small[..65]);
    }
    for _ in 0..300 {
        message(&mut talk, R, &small);
    }
    // A packet for all that an end sends.
    let joined: Vec<_> = [I, R]
        .map(|way| {
            let packets = talk.packets[first..]
                .iter()
                .filter(|packet| packet.way == way);
            packets
                .flat_map(|packet| packet.payload.clone())
                .collect::<Vec<u8>>()
        })
        .into();
    let mut packed = Talk::started();
    packed.say(I, &joined[I]);
    packed.say(R, &joined[R]);
    let done = as_tcp(&packed.capture());
    assert_eq!(done.bytes().len(), 600);
}

/// Returns the capture of a connection without some of its packets.
fn without(talk: &Talk, lost: &[usize]) -> Vec<u8> {
    let frames = talk.frames().into_iter().enumerate();
    let kept = frames.filter(|(index, _)| !lost.contains(index));
    let kept: Vec<_> = kept.map(|(_, frame)| frame).collect();
    pcap(DataLink::ETHERNET, &kept)
}

#[test]
fn a_gap_stays_a_gap_and_no_byte_is_made_up() {
    let mut talk = Talk::established();
    let answer = read_answer(1, &[], 3000);
    let data = bytes(3000);
    message(
        &mut talk,
        I,
        &read(1, 0, 3000, V1, &[descriptor(0, 5, 3000)]),
    );
    let lost = talk.packets.len();
    for (index, part) in data.chunks(1000).enumerate() {
        let place = (5, 1000 * index as u64);
        talk.tagged(R, Opcode::RdmaWrite, index == 2, place, part);
    }
    message(&mut talk, R, &answer);
    // After the gap, data is put back again.
    message(&mut talk, I, &read(2, 0, 4, V1, &[descriptor(0, 6, 4)]));
    talk.tagged(R, Opcode::RdmaWrite, true, (6, 0), b"late");
    message(&mut talk, R, &read_answer(2, &[], 4));
    message(&mut talk, I, &write(3, 0, b"end"));
    let done = as_tcp(&without(&talk, &[lost + 1]));
    let (messages, gap) = done.messages_and_gaps();
    assert_eq!(gap, u64::from(talk.packets[lost + 1].payload.len() as u32));
    assert_eq!(messages.len(), 5);
    assert_eq!(messages[1].2, answer);
    assert_eq!(messages[3].2, inline(&read_answer(2, &[], 4), b"late"));
    assert_eq!((done.summary.without_data, done.summary.gaps), (1, 1));
}

#[test]
fn memory_that_was_used_again_in_a_gap_has_no_data_of_another_request() {
    let mut talk = Talk::established();
    let stale = write_by_rdma(1, 0, 4, V1, &[descriptor(0, 5, 4)]);
    message(&mut talk, I, &stale);
    // The answer, and a request with the same memory, are lost.
    let lost = talk.packets.len();
    message(&mut talk, R, &write_answer(1, 4));
    message(
        &mut talk,
        I,
        &write_by_rdma(2, 0, 4, V1, &[descriptor(0, 5, 4)]),
    );
    fetch(&mut talk, 1, (5, 0), b"of 2");
    message(&mut talk, R, &write_answer(2, 4));
    message(&mut talk, I, &write(3, 0, b"end"));
    message(&mut talk, R, &write_answer(3, 3));
    let done = as_tcp(&without(&talk, &[lost, lost + 1]));
    let (messages, _) = done.messages_and_gaps();
    assert_eq!(messages[0].2, stale);
    assert_eq!(done.summary.put_back_bytes, 0);
}

#[test]
fn a_message_that_is_cut_is_cut_in_the_output_too() {
    let mut talk = Talk::established();
    let long = write(1, 0, &bytes(1000));
    message(&mut talk, I, &long);
    message(&mut talk, R, &write_answer(1, 1000));
    let cut: Vec<_> = talk
        .frames()
        .into_iter()
        .map(|frame| (frame.len(), frame))
        .collect();
    let header = pcap_file::pcap::PcapHeader {
        datalink: DataLink::ETHERNET,
        ..Default::default()
    };
    let mut writer = pcap_file::pcap::PcapWriter::with_header(Vec::new(), header).unwrap();
    for (index, (length, frame)) in cut.iter().enumerate() {
        let kept = &frame[..frame.len().min(320)];
        let time = Duration::from_millis(index as u64);
        let packet = pcap_file::pcap::PcapPacket::new(time, *length as u32, kept);
        writer.write_packet(&packet).unwrap();
    }
    let done = as_tcp(&writer.into_writer());
    let data: Vec<_> = done
        .packets
        .iter()
        .filter(|packet| packet.length > 100)
        .collect();
    let (request, answer) = (data[0], data[1]);
    assert_eq!(request.length as usize, 54 + 4 + long.len());
    let known = request.bytes.len() - 58;
    assert!((112..long.len()).contains(&known), "{known}");
    assert_eq!(request.bytes[58..], long[..known]);
    assert_eq!(answer.bytes[58..], write_answer(1, 1000));
}

#[test]
fn smb_over_tcp_is_copied_as_it_is_and_iwarp_on_its_port_is_not() {
    let mut plain = Talk::new();
    plain.ports = [40_000, 445];
    let request = write(1, 0, b"data");
    let framed = [&(request.len() as u32).to_be_bytes()[..], &request].concat();
    plain.say(I, &framed);
    plain.packet(I, FIN | ACK, &[]);
    let mut over = Talk::established();
    message(&mut over, I, &request);
    message(&mut over, R, &write_answer(1, 4));
    let mut on_its_port = over.clone();
    on_its_port.ports = [40_001, 445];
    let all = [plain.frames(), over.frames(), on_its_port.frames()].concat();
    let done = as_tcp(&pcap(DataLink::ETHERNET, &all));
    let copied: Vec<_> = done.packets[..5]
        .iter()
        .map(|packet| &packet.bytes)
        .collect();
    assert_eq!(copied, plain.frames().iter().collect::<Vec<_>>());
    assert_eq!(done.summary.connections, 2);
    // The handshake on the port of SMB over TCP comes before it is known what it is for.
    assert_eq!(done.summary.copied_packets, 5 + 3);
    // Of another link type: the IP packet on Ethernet, because libpcap reads no file with two link types.
    let bare: Vec<_> = plain
        .frames()
        .iter()
        .map(|frame| frame[14..].to_vec())
        .collect();
    let done = as_tcp(&pcap(DataLink::RAW, &bare));
    assert_eq!(done.packets.len(), bare.len());
    for (packet, bare) in done.packets.iter().zip(&bare) {
        assert_eq!(
            (packet.link, &packet.bytes[14..]),
            (DataLink::ETHERNET, &bare[..])
        );
        assert_eq!(packet.bytes[12..14], [8, 0]);
    }
}

#[test]
fn roce_has_the_port_of_the_client_and_its_data() {
    for is_ipv6 in [false, true] {
        let mut talk = talk::roce::Talk::new();
        talk.is_ipv6 = is_ipv6;
        talk.negotiate();
        let asks = read(1, 0, 2500, V1, &[descriptor(0x2000, 0xdef, 2500)]);
        talk.transfer(I, &transfer(&asks));
        talk.write(R, 2500);
        talk.transfer(R, &transfer(&read_answer(1, &[], 2500)));
        let stores = write_by_rdma(2, 0, 2100, V1, &[descriptor(0x1000, 0xabc, 2100)]);
        talk.transfer(I, &transfer(&stores));
        let psn = talk.read(R, 2100);
        talk.respond(I, psn, 2100);
        talk.transfer(R, &transfer(&write_answer(2, 2100)));
        let done = as_tcp(&talk.capture());
        let expected = [
            (I, asks),
            (R, inline(&read_answer(1, &[], 2500), &[6; 2500])),
            (I, with_data(&stores, &[5; 2100])),
            (R, write_answer(2, 2100)),
        ];
        assert_eq!(done.bytes(), expected, "IPv6: {is_ipv6}");
    }
}

/// Two processors may put packets into a capture in another order than they were sent.
#[test]
fn data_that_is_later_in_the_file_than_the_answer_is_put_back() {
    let mut talk = talk::roce::Talk::established();
    let stores = write_by_rdma(2, 0, 2100, V1, &[descriptor(0x1000, 0xabc, 2100)]);
    talk.transfer(I, &transfer(&stores));
    let psn = talk.read(R, 2100);
    talk.respond(I, psn, 2100);
    let last = talk.frames.pop().unwrap();
    talk.transfer(R, &transfer(&write_answer(2, 2100)));
    talk.frames.push(last);
    let expected = [
        (I, with_data(&stores, &[5; 2100])),
        (R, write_answer(2, 2100)),
    ];
    assert_eq!(as_tcp(&talk.capture()).bytes(), expected);
}

#[test]
fn a_response_that_lies_about_its_length_makes_no_data() {
    let mut talk = talk::roce::Talk::established();
    let length = 8 << 20;
    let stores = write_by_rdma(1, 0, length, V1, &[descriptor(0x1000, 0xabc, length)]);
    talk.transfer(I, &transfer(&stores));
    let reth = Extended::Reth(Reth {
        virtual_address: 0x1000,
        r_key: 0xabc,
        length,
    });
    let psn = talk.next(R, 1);
    talk.packet(R, Roce::ReadRequest, psn, (reth, &[]));
    let aeth = Extended::Aeth(Aeth {
        syndrome: Syndrome::Ack { credit: 31 },
        message_sequence_number: 3,
    });
    talk.packet(I, Roce::ReadResponseOnly, psn, (aeth, b"x"));
    talk.transfer(R, &transfer(&write_answer(1, length)));
    let done = as_tcp(&talk.capture());
    assert!(done.bytes().contains(&(I, stores)));
    assert_eq!(done.summary.put_back_bytes, 0);
}

#[test]
fn the_client_is_found_when_the_capture_begins_later() {
    // Nothing but the messages shows which end it is.
    let mut talk = talk::roce::Talk::new();
    talk.transfer(R, &transfer(&write_answer(1, 4)));
    talk.transfer(I, &transfer(&write(2, 0, b"data")));
    let done = as_tcp(&talk.capture());
    assert_eq!(
        done.bytes(),
        [(R, write_answer(1, 4)), (I, write(2, 0, b"data"))]
    );
    // An encrypted one has an end at the port of the server.
    let mut talk = Talk::established();
    let begins = talk.packets.len();
    message(&mut talk, R, &encrypted(100));
    message(&mut talk, I, &encrypted(101));
    let done = as_tcp(&without(&talk, &(0..begins).collect::<Vec<_>>()));
    assert_eq!(done.bytes(), [(R, encrypted(100)), (I, encrypted(101))]);
}

#[test]
fn fields_of_a_request_that_rdma_cannot_serve_stay() {
    // RDMA_TRANSFORM, data beside the channel, no data, and descriptors that hold too little.
    let requests = [
        read(1, 0, 8, 3, &[descriptor(0, 1, 8)]),
        write_by_rdma(2, 0, 8, 3, &[descriptor(0, 2, 8)]),
        write_by_rdma(3, 0, 0, V1, &[descriptor(0, 3, 8)]),
        write_by_rdma(4, 0, 8, V1, &[descriptor(0, 4, 4)]),
        with(write(5, 0, b"12345678"), 96, &1_u32.to_le_bytes()),
    ];
    let mut talk = Talk::established();
    for (index, request) in requests.iter().enumerate() {
        let number = 1 + index as u32;
        message(&mut talk, I, request);
        fetch(&mut talk, number, (number, 0), b"1234");
        let answer = error(u16_at(request, 12), number.into(), 0xc000_000d);
        message(&mut talk, R, &answer);
    }
    let written = as_tcp(&talk.capture()).bytes();
    let asked = written.iter().filter(|(way, _)| *way == I);
    assert!(asked.map(|(_, bytes)| bytes).eq(&requests));
}

#[test]
fn connections_with_the_same_ports_stay_apart() {
    // Queue pairs whose numbers stand for one port, and SMB over TCP from the port of a client of iWARP.
    let mut frames = Vec::new();
    for pairs in [[0x11, 0x22], [0x4011, 0x23]] {
        let mut talk = talk::roce::Talk::new();
        talk.queue_pairs = pairs;
        talk.negotiate();
        talk.transfer(I, &transfer(&write(1, 0, b"data")));
        talk.transfer(R, &transfer(&write_answer(1, 4)));
        frames.push(talk.frames);
    }
    let mut over = Talk::established();
    message(&mut over, I, &write(1, 0, b"data"));
    message(&mut over, R, &write_answer(1, 4));
    let mut plain = Talk::new();
    plain.ports = [over.ports[0], 445];
    frames.extend([plain.frames(), over.frames()]);
    let done = as_tcp(&pcap(DataLink::ETHERNET, &frames.concat()));
    let mut clients = BTreeSet::new();
    for packet in &done.packets {
        let sliced = SlicedPacket::from_ethernet(&packet.bytes).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else {
            panic!("{packet:?}")
        };
        clients.extend((tcp.destination_port() == 445).then_some(tcp.source_port()));
    }
    assert_eq!(
        (clients.len(), done.messages().len()),
        (4, 6),
        "{clients:?}"
    );
}

/// Damaged packets, in any order, some of them twice or lost: no panic, and `as_tcp` checks the size of the output.
#[test]
fn damaged_captures_have_no_more_bytes_than_were_read() {
    let talks: Vec<Vec<Vec<u8>>> = ["siw-small.pcap", "rxe-small.pcap", "siw-bigmsg.pcap"]
        .map(crate::packets)
        .into();
    let rounds = std::env::var("SMBDIRECT_FUZZ_ITERATIONS").ok();
    let rounds = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(150);
    for round in 0..rounds {
        let mut random = fastrand::Rng::with_seed(round);
        let mut frames = talks[random.usize(..talks.len())].clone();
        let begins = random.usize(..frames.len() / 2);
        frames.drain(..begins * random.usize(..2));
        for _ in 0..random.usize(..20) {
            let (one, other) = (random.usize(..frames.len()), random.usize(..frames.len()));
            match random.u8(..5) {
                0 => frames.swap(one, other),
                1 => drop(frames.remove(one)),
                2 => frames.insert(one, frames[other].clone()),
                _ => {
                    let frame = &mut frames[one];
                    let at = random.usize(..frame.len());
                    frame[at] = random.u8(..);
                    // A damaged packet of RoCE is ignored, so its checksum is made right.
                    if frame[23] == 17 && frame.len() > 60 && random.bool() {
                        talk::roce::right_icrc(frame);
                    }
                }
            }
        }
        as_tcp(&pcap(DataLink::ETHERNET, &frames));
    }
}
