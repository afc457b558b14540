//! Builds an iWARP connection packet by packet, and a capture of it.

pub mod roce;

use std::{fs, path::Path, time::Duration};

use etherparse::PacketBuilder;
use pcap_file::{
    DataLink,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use smbdirect::rdma::iwarp::{
    ddp::{Tagged, Untagged},
    mpa::{Enhanced, Fpdu, FrameKind, StartupFrame},
    rdmap::{Opcode, ReadRequest, TerminateCode},
};

/// The directions: from the initiator, and from the responder.
pub const I: usize = 0;
pub const R: usize = 1;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

/// One packet of TCP.
#[derive(Clone, Debug)]
pub struct Packet {
    pub way: usize,
    pub sequence: u32,
    pub acknowledged: u32,
    pub flags: u8,
    pub payload: Vec<u8>,
}

/// Both ends of a connection.
#[derive(Clone, Debug)]
pub struct Talk {
    pub packets: Vec<Packet>,
    sequence: [u32; 2],
    pub ports: [u16; 2],
    /// The sequence number of the next Send in each direction.
    pub number: [u32; 2],
    pub crc: bool,
    pub request: StartupFrame,
    pub reply: StartupFrame,
}

/// The fields of a Data Transfer; one payload byte by default.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub requested: u16,
    pub granted: u16,
    pub flags: u16,
    pub reserved: u16,
    pub remaining: u32,
    pub offset: u32,
    pub length: u32,
    /// The bytes after the 20 bytes of the header.
    pub rest: Vec<u8>,
}

impl Default for Transfer {
    fn default() -> Self {
        Self::of(1, 0)
    }
}

impl Transfer {
    /// A segment with `length` bytes of payload, and more to come.
    pub fn of(length: u32, remaining: u32) -> Self {
        Self {
            requested: 10,
            granted: 1,
            flags: 0,
            reserved: 0,
            remaining,
            offset: 24,
            length,
            rest: [vec![0; 4], vec![7; length as usize]].concat(),
        }
    }

    /// The message without a payload.
    pub fn empty(granted: u16) -> Self {
        Self {
            granted,
            offset: 0,
            rest: Vec::new(),
            ..Self::of(0, 0)
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [self.requested, self.granted, self.flags, self.reserved] {
            bytes.extend(field.to_le_bytes());
        }
        for field in [self.remaining, self.offset, self.length] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(&self.rest);
        bytes
    }
}

/// A Negotiate Request, field by field: versions, Reserved, credits, and the three sizes.
pub fn request(shorts: [u16; 4], longs: [u32; 3]) -> Vec<u8> {
    let shorts = shorts.iter().flat_map(|field| field.to_le_bytes());
    let longs = longs.iter().flat_map(|field| field.to_le_bytes());
    shorts.chain(longs).collect()
}

/// A Negotiate Response: three versions, Reserved, two kinds of credits; Status and four sizes.
pub fn response(shorts: [u16; 6], longs: [u32; 5]) -> Vec<u8> {
    let shorts = shorts.iter().flat_map(|field| field.to_le_bytes());
    let longs = longs.iter().flat_map(|field| field.to_le_bytes());
    shorts.chain(longs).collect()
}

pub const REQUEST: ([u16; 4], [u32; 3]) = ([0x100, 0x100, 0, 10], [1364, 8192, 1 << 20]);
pub const RESPONSE: ([u16; 6], [u32; 5]) = (
    [0x100, 0x100, 0x100, 0, 10, 10],
    [0, 1 << 20, 1364, 1364, 1 << 20],
);

impl Talk {
    /// Returns a TCP connection without data.
    #[allow(
        clippy::new_without_default,
        reason = "a connection without data is no default"
    )]
    pub fn new() -> Self {
        let enhanced = Some(Enhanced {
            ird: 2,
            ord: 2,
            ..Enhanced::default()
        });
        let frame = |kind| StartupFrame {
            enhanced,
            ..StartupFrame::new(kind, 2)
        };
        let mut talk = Self {
            packets: Vec::new(),
            sequence: [1000, 2000],
            ports: [40_000, 5445],
            number: [1, 1],
            crc: false,
            request: frame(FrameKind::Request),
            reply: frame(FrameKind::Reply),
        };
        for (way, flags) in [(I, SYN), (R, SYN | ACK), (I, ACK)] {
            talk.packet(way, flags, &[]);
        }
        talk
    }

    /// Returns a connection after the startup frames.
    pub fn started() -> Self {
        let mut talk = Self::new();
        talk.start();
        talk
    }

    /// Returns a connection after the negotiation.
    pub fn established() -> Self {
        let mut talk = Self::started();
        talk.negotiate();
        talk
    }

    /// Sets the first sequence numbers, before any data.
    pub fn at(mut self, sequence: [u32; 2]) -> Self {
        self.packets.clear();
        self.sequence = sequence;
        for (way, flags) in [(I, SYN), (R, SYN | ACK), (I, ACK)] {
            self.packet(way, flags, &[]);
        }
        self
    }

    pub fn packet(&mut self, way: usize, flags: u8, payload: &[u8]) {
        self.packets.push(Packet {
            way,
            sequence: self.sequence[way],
            acknowledged: self.sequence[1 - way],
            flags,
            payload: payload.to_vec(),
        });
        let extra = u32::from(flags & (SYN | FIN) != 0);
        self.sequence[way] = self.sequence[way].wrapping_add(payload.len() as u32 + extra);
    }

    pub fn say(&mut self, way: usize, bytes: &[u8]) {
        self.packet(way, ACK, bytes);
    }

    pub fn startup(&mut self, way: usize, frame: &StartupFrame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.say(way, &bytes);
    }

    pub fn start(&mut self) {
        let (request, reply) = (self.request.clone(), self.reply.clone());
        self.startup(I, &request);
        self.startup(R, &reply);
        self.crc = request.crc || reply.crc;
    }

    pub fn negotiate(&mut self) {
        self.send(I, &request(REQUEST.0, REQUEST.1));
        self.send(R, &response(RESPONSE.0, RESPONSE.1));
    }

    pub fn fpdu(&mut self, way: usize, header: &[u8], payload: &[u8]) {
        let mut bytes = Vec::new();
        Fpdu::encode(&[header, payload], self.crc, &mut bytes);
        self.say(way, &bytes);
    }

    /// The header of the next Send, or of another message like it.
    pub fn header(&mut self, way: usize, opcode: Opcode) -> Untagged {
        let number = self.number[way];
        self.number[way] += 1;
        Untagged {
            last: true,
            rdmap_control: opcode.control(),
            rsvd_ulp: 0,
            queue_number: opcode.queue_number(),
            message_sequence_number: number,
            message_offset: 0,
        }
    }

    pub fn send(&mut self, way: usize, message: &[u8]) {
        let header = self.header(way, Opcode::Send);
        self.fpdu(way, &header.encode(), message);
    }

    pub fn transfer(&mut self, way: usize, transfer: &Transfer) {
        self.send(way, &transfer.bytes());
    }

    pub fn invalidate(&mut self, way: usize, transfer: &Transfer, token: u32) {
        let header = Untagged {
            rsvd_ulp: token,
            ..self.header(way, Opcode::SendInvalidate)
        };
        self.fpdu(way, &header.encode(), &transfer.bytes());
    }

    pub fn tagged(
        &mut self,
        way: usize,
        opcode: Opcode,
        last: bool,
        (stag, tagged_offset): (u32, u64),
        payload: &[u8],
    ) {
        let header = Tagged {
            last,
            rdmap_control: opcode.control(),
            stag,
            tagged_offset,
        };
        self.fpdu(way, &header.encode(), payload);
    }

    /// Requests `length` bytes into STag 5, offset 0x100.
    pub fn read(&mut self, way: usize, number: u32, length: u32) {
        let request = ReadRequest {
            sink_stag: 5,
            sink_tagged_offset: 0x100,
            read_message_size: length,
            source_stag: 6,
            source_tagged_offset: 0x200,
        };
        let header = Untagged {
            last: true,
            rdmap_control: Opcode::RdmaReadRequest.control(),
            rsvd_ulp: 0,
            queue_number: 1,
            message_sequence_number: number,
            message_offset: 0,
        };
        self.fpdu(way, &header.encode(), &request.encode());
    }

    pub fn terminate(&mut self, way: usize, code: TerminateCode) {
        let terminate = smbdirect::rdma::iwarp::rdmap::Terminate::new(code, None);
        self.fpdu(way, &terminate.ulpdu(), &[]);
    }

    /// The packets, each with Ethernet and IPv4 around it.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        self.packets
            .iter()
            .map(|packet| self.frame(packet))
            .collect()
    }

    pub fn frame(&self, packet: &Packet) -> Vec<u8> {
        let addresses = [[10, 0, 0, 1], [10, 0, 0, 2]];
        let (from, to) = (packet.way, 1 - packet.way);
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(addresses[from], addresses[to], 64)
            .tcp(self.ports[from], self.ports[to], packet.sequence, 65_535);
        let builder = match packet.flags & ACK {
            0 => builder,
            _ => builder.ack(packet.acknowledged),
        };
        let builder = if packet.flags & SYN != 0 {
            builder.syn()
        } else {
            builder
        };
        let builder = if packet.flags & FIN != 0 {
            builder.fin()
        } else {
            builder
        };
        let builder = if packet.flags & RST != 0 {
            builder.rst()
        } else {
            builder
        };
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &packet.payload).unwrap();
        bytes
    }

    /// Returns the capture of it.
    pub fn capture(&self) -> Vec<u8> {
        pcap(DataLink::ETHERNET, &self.frames())
    }
}

/// Returns a capture of packets that are a millisecond apart.
pub fn pcap(datalink: DataLink, frames: &[Vec<u8>]) -> Vec<u8> {
    let header = PcapHeader {
        snaplen: 1 << 18,
        datalink,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (index, frame) in frames.iter().enumerate() {
        let time = Duration::from_millis(1_000_000 + index as u64);
        let packet = PcapPacket::new(time, frame.len() as u32, frame);
        writer.write_packet(&packet).unwrap();
    }
    writer.into_writer()
}

/// Writes such a capture to a file.
pub fn write_pcap(path: &Path, datalink: DataLink, frames: &[Vec<u8>]) {
    fs::write(path, pcap(datalink, frames)).unwrap();
}

/// A connection with some messages in both directions, and its end.
pub fn conversation() -> Talk {
    let mut talk = Talk::established();
    for number in 0..12 {
        talk.transfer(I, &Transfer::of(100 + number, 0));
        talk.transfer(R, &Transfer::of(1000, 0));
    }
    talk.packet(I, FIN | ACK, &[]);
    talk.packet(R, FIN | ACK, &[]);
    talk
}

/// A block of pcapng.
pub fn block(kind: u32, body: &[u8], is_big: bool) -> Vec<u8> {
    let word = |number: u32| {
        if is_big {
            number.to_be_bytes()
        } else {
            number.to_le_bytes()
        }
    };
    let padding = vec![0; body.len().next_multiple_of(4) - body.len()];
    let length = word((12 + body.len() + padding.len()) as u32);
    [&word(kind), &length, body, &padding, &length].concat()
}
