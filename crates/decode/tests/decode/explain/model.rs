//! A client and a server on a path, as a capture at the client shows them. Everything takes a known time.

use std::time::Duration;

use pcap_file::{
    DataLink,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use smbdirect::rdma::iwarp::rdmap::Opcode;
use smbdirect_test::{
    messages::{
        CREATE, NEGOTIATE, SIGNED, SUCCESS, V1, answer, descriptor, encrypted, flagged, header,
        negotiated, other, put, read, read_answer,
    },
    talk::{self, I, R, Talk, Transfer},
};

/// What the ends do, and what is wrong with them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) requests: u32,
    pub(super) outstanding: usize,
    pub(super) bytes: u32,
    /// Whether the data is in messages, and whether those are signed.
    pub(super) in_messages: bool,
    pub(super) signed: bool,
    /// Whether requests and responses are encrypted; the data is in messages then.
    pub(super) encrypted: bool,
    /// Whether the requests open files instead.
    pub(super) is_metadata: bool,
    /// From a response to the next request.
    pub(super) thought: Duration,
    /// For each request, one after the other.
    pub(super) server: Duration,
    /// In one direction.
    pub(super) path: Duration,
    /// A pause within the data of every request.
    pub(super) pause: Duration,
    /// Each so-manieth request loses a packet of its data, which comes after this time.
    pub(super) lost: (u32, Duration),
    /// How often a packet of the data is sent before the capture ends without its arrival.
    pub(super) black_holes: u32,
    /// Bytes of data that the server sends in a round trip, because its congestion window is so large.
    pub(super) window: usize,
    /// SMB2 credits that the server grants at first.
    pub(super) smb2_credits: u16,
    /// SMB2 credits that the client asks for in each request; 0 are those that the request needs.
    pub(super) asked_credits: u16,
    /// Send credits that the server grants at first.
    pub(super) send_credits: u16,
}

/// A copy of 2 GB/s with four requests of 256 KiB outstanding, and nothing wrong.
pub(super) const HEALTHY: Run = Run {
    requests: 60,
    outstanding: 4,
    bytes: 256 << 10,
    in_messages: false,
    signed: false,
    encrypted: false,
    is_metadata: false,
    thought: Duration::from_micros(20),
    server: Duration::from_micros(60),
    path: Duration::from_micros(10),
    pause: Duration::ZERO,
    lost: (0, Duration::ZERO),
    black_holes: 0,
    window: usize::MAX,
    smb2_credits: 512,
    asked_credits: 512,
    send_credits: 255,
};

/// Bytes in one packet.
const SEGMENT: usize = 16 << 10;
/// Nanoseconds that a byte takes on the wire.
const NANOS_PER_BYTE: f64 = 0.5;

/// The packets of a connection, and their times in nanoseconds.
#[derive(Debug)]
pub(super) struct Model {
    talk: Talk,
    times: Vec<u64>,
    /// Packets that never arrive.
    lost: Vec<usize>,
    pub(super) now: u64,
    message_id: u64,
    server_free: u64,
    wire_free: u64,
    /// Nanoseconds from the client to the server and back.
    round_trip: u64,
    /// Bytes of data since the server has waited for its congestion window.
    in_flight: usize,
}

impl Model {
    /// Connects and negotiates.
    pub(super) fn new(run: &Run) -> Self {
        let mut talk = Talk::started();
        talk.send(
            I,
            &talk::request([0x100, 0x100, 0, 255], [8192, 1 << 20, 1 << 20]),
        );
        let credits = run.send_credits;
        talk.send(
            R,
            &talk::response(
                [0x100, 0x100, 0x100, 0, 255, credits],
                [0, 1 << 20, 8192, 1 << 20, 1 << 20],
            ),
        );
        let round_trip = 2 * nanos(run.path);
        let mut model = Self {
            talk,
            round_trip,
            times: Vec::new(),
            lost: Vec::new(),
            now: 0,
            message_id: 1,
            server_free: 0,
            wire_free: 0,
            in_flight: 0,
        };
        let round_trip = round_trip + 1000;
        for index in 0..model.talk.packets.len() as u64 {
            model.times.push(1000 + round_trip * index);
        }
        let negotiate = with_credits(other(header(NEGOTIATE, 0), &[0; 40]), 1, 1);
        let granted = with_credits(negotiated(0x0311), 1, run.smb2_credits);
        model.now = 10 * round_trip;
        model.message(I, &negotiate, 255, model.now);
        model.message(R, &granted, 1, model.now + round_trip);
        model.now += 2 * round_trip;
        model
    }

    /// Sets the port of the client.
    pub(super) fn with_port(mut self, port: u16) -> Self {
        self.talk.ports[0] = port;
        self
    }

    /// Gives the packets since the last call this time.
    fn stamp(&mut self, time: u64) {
        self.times.resize(self.talk.packets.len(), time);
    }

    pub(super) fn message(&mut self, way: usize, payload: &[u8], granted: u16, time: u64) {
        let transfer = Transfer {
            requested: 255,
            granted,
            rest: [&[0; 4], payload].concat(),
            ..Transfer::of(payload.len() as u32, 0)
        };
        self.talk.transfer(way, &transfer);
        self.stamp(time);
    }

    pub(super) fn acknowledge(&mut self, way: usize, time: u64) {
        self.talk.packet(way, talk::ACK, &[]);
        self.stamp(time);
    }

    /// Takes a MessageId.
    pub(super) fn take_id(&mut self) -> u64 {
        self.message_id += 1;
        self.message_id - 1
    }

    /// Ends the connection by a RST of the server.
    pub(super) fn reset(&mut self) {
        self.talk.packet(R, talk::RST | talk::ACK, &[]);
        self.stamp(self.now);
    }

    /// Adds what the ends do.
    pub(super) fn add(&mut self, run: &Run) {
        let mut ready = vec![self.now; run.outstanding];
        for index in 0..run.requests {
            ready.sort_unstable();
            ready[0] = self.request(run, index, ready[0]);
        }
        self.now = ready.into_iter().max().unwrap_or(self.now);
    }

    /// Adds a request at a time. Returns when the client can send the next.
    fn request(&mut self, run: &Run, index: u32, at: u64) -> u64 {
        let id = self.message_id;
        let charge = (run.bytes.div_ceil(1 << 16)).max(1) as u16;
        self.message_id += u64::from(charge);
        let token = 0x1000 + (id as u32);
        let request = if run.is_metadata {
            other(header(CREATE, id), &[0; 57])
        } else if run.in_messages {
            read(id, 0, run.bytes, 0, &[])
        } else {
            read(id, 0, run.bytes, V1, &[descriptor(0, token, run.bytes)])
        };
        let sealed = |message: Vec<u8>| {
            if run.encrypted {
                encrypted(52 + message.len())
            } else {
                message
            }
        };
        let flags = if run.signed { SIGNED } else { 0 };
        // The client grants a credit for each message that it gets; the server spends none on data by RDMA.
        let granted = if run.in_messages { 64 } else { 1 };
        self.message(
            I,
            &sealed(flagged(
                with_credits(request, charge, run.asked_credits.max(charge)),
                flags,
            )),
            granted,
            at,
        );
        let path = nanos(run.path);
        self.acknowledge(R, at + 2 * path + 1000);
        let served = (at + path).max(self.server_free) + nanos(run.server);
        self.server_free = served;
        let mut time = (served + path).max(self.wire_free);
        if !run.is_metadata && !run.in_messages {
            time = self.data(run, index, token, time);
        }
        let response = if run.is_metadata {
            answer(CREATE, id, SUCCESS)
        } else if run.in_messages {
            read_answer(id, &vec![7; run.bytes as usize], 0)
        } else {
            read_answer(id, &[], run.bytes)
        };
        time = self.response(
            &sealed(flagged(with_credits(response, charge, charge), flags)),
            time + 2000,
        );
        self.wire_free = time;
        time + nanos(run.thought)
    }

    /// Adds the data of a request by RDMA Write. Returns when its last byte arrives.
    fn data(&mut self, run: &Run, index: u32, token: u32, mut time: u64) -> u64 {
        let (every, delay) = run.lost;
        let is_lossy = every > 0 && index.is_multiple_of(every);
        let mut offset = 0;
        while offset < run.bytes as usize {
            let length = SEGMENT.min(run.bytes as usize - offset);
            let last = offset + length == run.bytes as usize;
            let place = (token, offset as u64);
            time += (length as f64 * NANOS_PER_BYTE) as u64;
            if self.in_flight >= run.window {
                self.in_flight = 0;
                time += 2 * nanos(run.path);
            }
            self.in_flight += length;
            if offset == SEGMENT {
                time += nanos(run.pause);
            }
            self.talk
                .tagged(R, Opcode::RdmaWrite, last, place, &vec![7; length]);
            self.stamp(time);
            if is_lossy && last {
                time = self.lose(delay, run.black_holes, time);
            }
            self.acknowledge(I, time + 1000);
            offset += length;
        }
        time
    }

    /// Loses the last packet, and sends it again. Returns when it arrives.
    fn lose(&mut self, delay: Duration, black_holes: u32, time: u64) -> u64 {
        let packet = self.talk.packets.last().unwrap().clone();
        let mut arrives = time;
        // The capture shows each attempt: it is at the sender.
        for attempt in 0..=black_holes {
            self.lost.push(self.talk.packets.len() - 1);
            arrives += nanos(delay) << attempt;
            self.talk.packets.push(packet.clone());
            self.stamp(arrives);
        }
        if black_holes > 0 {
            self.lost.push(self.talk.packets.len() - 1);
        }
        arrives
    }

    fn response(&mut self, message: &[u8], mut time: u64) -> u64 {
        const PIECE: usize = 8000;
        let mut rest = message;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(PIECE));
            rest = after;
            let transfer = Transfer {
                requested: 255,
                granted: 1,
                rest: [&[0; 4], piece].concat(),
                ..Transfer::of(piece.len() as u32, rest.len() as u32)
            };
            time += (piece.len() as f64 * NANOS_PER_BYTE) as u64;
            self.talk.transfer(R, &transfer);
            self.stamp(time);
            self.acknowledge(I, time + 500);
        }
        time
    }

    /// Returns the time of the last packet.
    pub(super) fn elapsed(&self) -> u64 {
        self.now
    }

    /// Returns the capture.
    pub(super) fn capture(&self) -> Vec<u8> {
        let header = PcapHeader {
            snaplen: 1 << 18,
            datalink: DataLink::ETHERNET,
            ts_resolution: pcap_file::TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        let mut order: Vec<_> = (0..self.times.len()).collect();
        order.sort_by_key(|&index| self.times[index]);
        let mut arrived = Arrived::default();
        for index in order {
            let mut packet = self.talk.packets[index].clone();
            if packet.flags & talk::SYN == 0 {
                // The server acknowledges what has arrived there.
                let lag = if packet.way == R { self.round_trip } else { 0 };
                let until = arrived.until(1 - packet.way, self.times[index].saturating_sub(lag));
                packet.acknowledged = until.unwrap_or(packet.acknowledged);
            }
            if !self.lost.contains(&index) {
                arrived.take(&packet, self.times[index]);
            }
            let frame = self.talk.frame(&packet);
            let time = Duration::from_secs(1000) + Duration::from_nanos(self.times[index]);
            let packet = PcapPacket::new(time, frame.len() as u32, &frame);
            writer.write_packet(&packet).unwrap();
        }
        writer.into_writer()
    }
}

/// The sequence number up to which each direction has arrived, and the packets after a hole.
#[derive(Debug, Default)]
struct Arrived {
    next: [Option<u32>; 2],
    /// Each such number, and its time.
    past: [Vec<(u64, u32)>; 2],
    early: [Vec<(u32, u32)>; 2],
}

impl Arrived {
    fn until(&self, way: usize, time: u64) -> Option<u32> {
        let past = &self.past[way];
        let later = past.partition_point(|&(then, _)| then <= time);
        let (_, next) = past.get(later.checked_sub(1)?)?;
        Some(*next)
    }

    fn take(&mut self, packet: &talk::Packet, time: u64) {
        let way = packet.way;
        let is_syn = packet.flags & talk::SYN != 0;
        let end = packet.sequence + packet.payload.len() as u32 + u32::from(is_syn);
        let next = self.next[way].get_or_insert(packet.sequence);
        self.early[way].push((packet.sequence, end));
        self.early[way].sort_unstable();
        for &(start, end) in &self.early[way] {
            if start <= *next {
                *next = end.max(*next);
            }
        }
        let next = *next;
        self.past[way].push((time, next));
        self.early[way].retain(|&(_, end)| end > next);
    }
}

fn with_credits(mut message: Vec<u8>, charge: u16, credits: u16) -> Vec<u8> {
    put(&mut message, 6, &charge.to_le_bytes());
    put(&mut message, 14, &credits.to_le_bytes());
    message
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
