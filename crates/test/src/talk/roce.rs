//! A RoCE connection made up packet by packet, and the capture of it.

use bytes::{Bytes, BytesMut};
use pcap_file::DataLink;
use smbdirect::rdma::roce::{
    Psn,
    icrc::{self, DatagramHeader, IpHeader},
    packet::{Aeth, Bth, Extended, Ieth, NakCode, Opcode, Packet, Reth, Syndrome, UDP_PORT},
};

use super::{I, R, REQUEST, RESPONSE, Transfer, pcap, request, response};

/// Both ends of a connection. The requests of each direction have PSNs of their own.
#[derive(Clone, Debug)]
pub struct Talk {
    pub frames: Vec<Vec<u8>>,
    pub psn: [u32; 2],
    pub queue_pairs: [u32; 2],
    pub is_ipv6: bool,
    /// The Identification of the next packet of each direction.
    identification: [u16; 2],
}

/// The payload of a packet that is not the last of its message, in bytes.
pub const MTU: usize = 1024;

impl Talk {
    #[allow(
        clippy::new_without_default,
        reason = "a connection without data is no default"
    )]
    pub fn new() -> Self {
        Self {
            frames: Vec::new(),
            psn: [0xff_fffe, 0x10],
            queue_pairs: [0x11, 0x22],
            is_ipv6: false,
            identification: [7, 9000],
        }
    }

    /// After the negotiation, which the capture has.
    pub fn established() -> Self {
        let mut talk = Self::new();
        talk.negotiate();
        talk
    }

    pub fn negotiate(&mut self) {
        self.send(I, &request(REQUEST.0, REQUEST.1));
        self.send(R, &response(RESPONSE.0, RESPONSE.1));
    }

    /// Adds a packet in a direction.
    pub fn packet(&mut self, way: usize, opcode: Opcode, psn: u32, rest: (Extended, &[u8])) {
        let frame = self.frame(way, opcode, psn, rest);
        self.frames.push(frame);
    }

    /// A packet in a direction, with Ethernet, IP and UDP around it.
    pub fn frame(
        &mut self,
        way: usize,
        opcode: Opcode,
        psn: u32,
        (extended, payload): (Extended, &[u8]),
    ) -> Vec<u8> {
        let bth = Bth {
            ack_request: opcode.ends_message() && !opcode.is_response(),
            ..Bth::new(opcode, self.queue_pairs[1 - way], Psn::new(psn))
        };
        let packet = Packet {
            bth,
            extended,
            payload: Bytes::copy_from_slice(payload),
        };
        let mut datagram = BytesMut::new();
        packet.encode(&mut datagram);
        let header = self.header(way);
        icrc::append(&header, &mut datagram, 0);
        ethernet(&header, &datagram)
    }

    fn header(&mut self, way: usize) -> DatagramHeader {
        let identification = self.identification[way];
        self.identification[way] += 1;
        let four = |way: usize| [10, 0, 0, 1 + way as u8].into();
        let six = |way: usize| [0xfd00, 0, 0, 0, 0, 0, 0, 1 + way as u16].into();
        let ip = if self.is_ipv6 {
            IpHeader::V6 {
                source: six(way),
                destination: six(1 - way),
            }
        } else {
            IpHeader::V4 {
                source: four(way),
                destination: four(1 - way),
                identification,
                flags: IpHeader::DONT_FRAGMENT,
            }
        };
        DatagramHeader {
            ip,
            source_port: 0xc123,
            destination_port: UDP_PORT,
        }
    }

    /// Adds a Send in as many packets as it needs, without its acknowledgement, and returns its
    /// first PSN.
    pub fn send_alone(&mut self, way: usize, message: &[u8], token: Option<u32>) -> u32 {
        let first = self.psn[way];
        let packets: Vec<_> = message.chunks(MTU).collect();
        let last = packets.len() - 1;
        for (index, payload) in packets.into_iter().enumerate() {
            let opcode = match (index, index == last, token) {
                (0, true, None) => Opcode::SendOnly,
                (0, true, Some(_)) => Opcode::SendOnlyInvalidate,
                (0, false, _) => Opcode::SendFirst,
                (_, false, _) => Opcode::SendMiddle,
                (_, true, None) => Opcode::SendLast,
                (_, true, Some(_)) => Opcode::SendLastInvalidate,
            };
            let extended = match token {
                Some(r_key) if index == last => Extended::Ieth(Ieth { r_key }),
                _ => Extended::Plain,
            };
            let psn = self.next(way, 1);
            self.packet(way, opcode, psn, (extended, payload));
        }
        first
    }

    /// Adds a Send and its acknowledgement.
    pub fn send(&mut self, way: usize, message: &[u8]) {
        self.send_alone(way, message, None);
        self.acknowledge(1 - way);
    }

    pub fn transfer(&mut self, way: usize, transfer: &Transfer) {
        self.send(way, &transfer.bytes());
    }

    /// Takes the next PSNs of a direction.
    pub fn next(&mut self, way: usize, packets: u32) -> u32 {
        let psn = self.psn[way];
        self.psn[way] = (psn + packets) & 0xff_ffff;
        psn
    }

    /// Adds the acknowledgement, by this direction, of everything that the other has sent.
    pub fn acknowledge(&mut self, way: usize) {
        let psn = self.psn[1 - way].wrapping_sub(1);
        self.answer(way, psn, Syndrome::Ack { credit: 31 });
    }

    pub fn answer(&mut self, way: usize, psn: u32, syndrome: Syndrome) {
        let aeth = Extended::Aeth(Aeth {
            syndrome,
            message_sequence_number: 3,
        });
        self.packet(way, Opcode::Acknowledge, psn & 0xff_ffff, (aeth, &[]));
    }

    pub fn nak(&mut self, way: usize, psn: u32, code: NakCode) {
        self.answer(way, psn, Syndrome::Nak(code));
    }

    /// Adds a Read by a direction, and returns its first PSN.
    pub fn read(&mut self, way: usize, length: u32) -> u32 {
        let packets = length.div_ceil(MTU as u32).max(1);
        let psn = self.next(way, packets);
        let reth = Extended::Reth(Reth {
            virtual_address: 0x1000,
            r_key: 0xabc,
            length,
        });
        self.packet(way, Opcode::ReadRequest, psn, (reth, &[]));
        psn
    }

    /// Adds the packets of a response to a Read of the other direction.
    pub fn respond(&mut self, way: usize, psn: u32, length: usize) {
        let data = vec![5; length];
        let packets: Vec<_> = data.chunks(MTU).collect();
        let last = packets.len() - 1;
        for (index, payload) in packets.into_iter().enumerate() {
            let opcode = match (index, index == last) {
                (0, true) => Opcode::ReadResponseOnly,
                (0, false) => Opcode::ReadResponseFirst,
                (_, false) => Opcode::ReadResponseMiddle,
                (_, true) => Opcode::ReadResponseLast,
            };
            let aeth = Extended::Aeth(Aeth {
                syndrome: Syndrome::Ack { credit: 31 },
                message_sequence_number: 3,
            });
            let extended = match opcode {
                Opcode::ReadResponseMiddle => Extended::Plain,
                _ => aeth,
            };
            let psn = (psn + index as u32) & 0xff_ffff;
            self.packet(way, opcode, psn, (extended, payload));
        }
    }

    /// Adds a Write of a direction.
    pub fn write(&mut self, way: usize, length: usize) {
        let data = vec![6; length];
        let packets: Vec<_> = data.chunks(MTU).collect();
        let last = packets.len() - 1;
        for (index, payload) in packets.into_iter().enumerate() {
            let opcode = match (index, index == last) {
                (0, true) => Opcode::WriteOnly,
                (0, false) => Opcode::WriteFirst,
                (_, false) => Opcode::WriteMiddle,
                (_, true) => Opcode::WriteLast,
            };
            let extended = match index {
                0 => Extended::Reth(Reth {
                    virtual_address: 0x2000,
                    r_key: 0xdef,
                    length: length as u32,
                }),
                _ => Extended::Plain,
            };
            let psn = self.next(way, 1);
            self.packet(way, opcode, psn, (extended, payload));
        }
        self.acknowledge(1 - way);
    }

    /// Returns the capture of it.
    pub fn capture(&self) -> Vec<u8> {
        pcap(DataLink::ETHERNET, &self.frames)
    }
}

/// Puts Ethernet, IP and UDP around a packet.
pub fn ethernet(header: &DatagramHeader, datagram: &[u8]) -> Vec<u8> {
    let udp_length = (8 + datagram.len()) as u16;
    let mut frame = vec![2; 12];
    match header.ip {
        IpHeader::V4 {
            source,
            destination,
            identification,
            flags,
        } => {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + udp_length).to_be_bytes());
            frame.extend(identification.to_be_bytes());
            frame.extend(flags.to_be_bytes());
            frame.extend([64, 17, 0, 0]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
        }
        IpHeader::V6 {
            source,
            destination,
        } => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(udp_length.to_be_bytes());
            frame.extend([17, 64]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
        }
    }
    for field in [header.source_port, header.destination_port, udp_length, 0] {
        frame.extend(field.to_be_bytes());
    }
    frame.extend_from_slice(datagram);
    frame
}

/// Computes the ICRC of a frame of IPv4 again.
pub fn right_icrc(frame: &mut [u8]) {
    let address = |at: usize| {
        let octets: [u8; 4] = frame[at..at + 4].try_into().unwrap();
        octets.into()
    };
    let header = DatagramHeader {
        ip: IpHeader::V4 {
            source: address(26),
            destination: address(30),
            identification: u16::from_be_bytes([frame[18], frame[19]]),
            flags: u16::from_be_bytes([frame[20], frame[21]]),
        },
        source_port: u16::from_be_bytes([frame[34], frame[35]]),
        destination_port: u16::from_be_bytes([frame[36], frame[37]]),
    };
    let end = frame.len() - 4;
    let value = icrc::icrc(&header, &[&frame[42..end]]);
    frame[end..].copy_from_slice(&value);
}
