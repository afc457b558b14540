//! Builds an iWARP connection packet by packet, and a capture of it.

use std::{fs::File, path::Path, time::Duration};

use etherparse::PacketBuilder;
use pcap_file::{
    DataLink,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use serde_json::Value;
use smbdirect::rdma::iwarp::{
    ddp::{Tagged, Untagged},
    mpa::{Enhanced, Fpdu, FrameKind, StartupFrame},
    rdmap::{Opcode, ReadRequest, TerminateCode},
};

use crate::support::{Done, run};

/// The directions: from the initiator, and from the responder.
pub(crate) const I: usize = 0;
pub(crate) const R: usize = 1;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// One packet of TCP.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) way: usize,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    pub(crate) flags: u8,
    pub(crate) payload: Vec<u8>,
}

/// Both ends of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Talk {
    pub(crate) packets: Vec<Packet>,
    sequence: [u32; 2],
    pub(crate) ports: [u16; 2],
    /// The sequence number of the next Send in each direction.
    pub(crate) number: [u32; 2],
    pub(crate) crc: bool,
    pub(crate) request: StartupFrame,
    pub(crate) reply: StartupFrame,
    /// The time before the last packet; the others are a millisecond apart.
    pub(crate) pause: Duration,
}

/// The fields of a Data Transfer; one payload byte by default.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) requested: u16,
    pub(crate) granted: u16,
    pub(crate) flags: u16,
    pub(crate) reserved: u16,
    pub(crate) remaining: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    /// The bytes after the 20 bytes of the header.
    pub(crate) rest: Vec<u8>,
}

impl Default for Transfer {
    fn default() -> Self {
        Self::of(1, 0)
    }
}

impl Transfer {
    /// A segment with `length` bytes of payload, and more to come.
    pub(crate) fn of(length: u32, remaining: u32) -> Self {
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

    /// Without a payload.
    pub(crate) fn empty(granted: u16) -> Self {
        Self {
            granted,
            offset: 0,
            rest: Vec::new(),
            ..Self::of(0, 0)
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
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
pub(crate) fn request(shorts: [u16; 4], longs: [u32; 3]) -> Vec<u8> {
    let shorts = shorts.iter().flat_map(|field| field.to_le_bytes());
    let longs = longs.iter().flat_map(|field| field.to_le_bytes());
    shorts.chain(longs).collect()
}

/// A Negotiate Response: three versions, Reserved, two kinds of credits; Status and four sizes.
pub(crate) fn response(shorts: [u16; 6], longs: [u32; 5]) -> Vec<u8> {
    let shorts = shorts.iter().flat_map(|field| field.to_le_bytes());
    let longs = longs.iter().flat_map(|field| field.to_le_bytes());
    shorts.chain(longs).collect()
}

pub(crate) const REQUEST: ([u16; 4], [u32; 3]) = ([0x100, 0x100, 0, 10], [1364, 8192, 1 << 20]);
pub(crate) const RESPONSE: ([u16; 6], [u32; 5]) = (
    [0x100, 0x100, 0x100, 0, 10, 10],
    [0, 1 << 20, 1364, 1364, 1 << 20],
);

impl Talk {
    /// Returns a TCP connection without data.
    pub(crate) fn new() -> Self {
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
            pause: Duration::ZERO,
        };
        for (way, flags) in [(I, SYN), (R, SYN | ACK), (I, ACK)] {
            talk.packet(way, flags, &[]);
        }
        talk
    }

    /// Returns a connection after the startup frames.
    pub(crate) fn started() -> Self {
        let mut talk = Self::new();
        talk.start();
        talk
    }

    /// Returns a connection after the negotiation.
    pub(crate) fn established() -> Self {
        let mut talk = Self::started();
        talk.negotiate();
        talk
    }

    /// Sets the first sequence numbers, before any data.
    pub(crate) fn at(mut self, sequence: [u32; 2]) -> Self {
        self.packets.clear();
        self.sequence = sequence;
        for (way, flags) in [(I, SYN), (R, SYN | ACK), (I, ACK)] {
            self.packet(way, flags, &[]);
        }
        self
    }

    pub(crate) fn packet(&mut self, way: usize, flags: u8, payload: &[u8]) {
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

    pub(crate) fn say(&mut self, way: usize, bytes: &[u8]) {
        self.packet(way, ACK, bytes);
    }

    pub(crate) fn startup(&mut self, way: usize, frame: &StartupFrame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.say(way, &bytes);
    }

    pub(crate) fn start(&mut self) {
        let (request, reply) = (self.request.clone(), self.reply.clone());
        self.startup(I, &request);
        self.startup(R, &reply);
        self.crc = request.crc || reply.crc;
    }

    pub(crate) fn negotiate(&mut self) {
        self.send(I, &request(REQUEST.0, REQUEST.1));
        self.send(R, &response(RESPONSE.0, RESPONSE.1));
    }

    pub(crate) fn fpdu(&mut self, way: usize, header: &[u8], payload: &[u8]) {
        let mut bytes = Vec::new();
        Fpdu::encode(&[header, payload], self.crc, &mut bytes);
        self.say(way, &bytes);
    }

    /// The header of the next Send, or of another message like it.
    pub(crate) fn header(&mut self, way: usize, opcode: Opcode) -> Untagged {
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

    pub(crate) fn send(&mut self, way: usize, message: &[u8]) {
        let header = self.header(way, Opcode::Send);
        self.fpdu(way, &header.encode(), message);
    }

    pub(crate) fn transfer(&mut self, way: usize, transfer: &Transfer) {
        self.send(way, &transfer.bytes());
    }

    pub(crate) fn invalidate(&mut self, way: usize, transfer: &Transfer, token: u32) {
        let header = Untagged {
            rsvd_ulp: token,
            ..self.header(way, Opcode::SendInvalidate)
        };
        self.fpdu(way, &header.encode(), &transfer.bytes());
    }

    pub(crate) fn tagged(
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
    pub(crate) fn read(&mut self, way: usize, number: u32, length: u32) {
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

    pub(crate) fn terminate(&mut self, way: usize, code: TerminateCode) {
        let terminate = smbdirect::rdma::iwarp::rdmap::Terminate::new(code, None);
        self.fpdu(way, &terminate.ulpdu(), &[]);
    }

    /// The packets, each with Ethernet and IPv4 around it.
    pub(crate) fn frames(&self) -> Vec<Vec<u8>> {
        self.packets
            .iter()
            .map(|packet| self.frame(packet))
            .collect()
    }

    pub(crate) fn frame(&self, packet: &Packet) -> Vec<u8> {
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

    /// Decodes its capture.
    pub(crate) fn decoded(&self, arguments: &[&str]) -> Done {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made.pcap");
        write_paused(&path, DataLink::ETHERNET, &self.frames(), self.pause);
        decode(&path, arguments)
    }
}

pub(crate) fn write_pcap(path: &Path, datalink: DataLink, frames: &[Vec<u8>]) {
    write_paused(path, datalink, frames, Duration::ZERO);
}

/// Writes a capture with a pause before the last frame.
fn write_paused(path: &Path, datalink: DataLink, frames: &[Vec<u8>], pause: Duration) {
    let header = PcapHeader {
        snaplen: 1 << 18,
        datalink,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(File::create(path).unwrap(), header).unwrap();
    for (index, frame) in frames.iter().enumerate() {
        let mut time = Duration::from_millis(1_000_000 + index as u64);
        if index + 1 == frames.len() {
            time += pause;
        }
        let packet = PcapPacket::new(time, frame.len() as u32, frame);
        writer.write_packet(&packet).unwrap();
    }
}

pub(crate) fn decode(path: &Path, arguments: &[&str]) -> Done {
    run(&[&["decode", path.to_str().unwrap()], arguments].concat())
}

/// The objects of a kind.
pub(crate) fn events(done: &Done, kind: &str) -> Vec<Value> {
    let is = |line: &Value| line["event"] == kind;
    done.json().into_iter().filter(is).collect()
}

/// The names of the messages, in order.
pub(crate) fn names(done: &Done) -> Vec<String> {
    let name = |line: &Value| line["message"].as_str().unwrap().to_owned();
    events(done, "message").iter().map(name).collect()
}

/// Returns the violated rules, each once.
pub(crate) fn broken(done: &Done) -> Vec<String> {
    let summary = events(done, "summary").pop().expect("a summary");
    let rules = summary["broken"].as_array().unwrap();
    let rule = |rule: &Value| rule["rule"].as_str().unwrap().to_owned();
    rules.iter().map(rule).collect()
}
