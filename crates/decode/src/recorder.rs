//! [`Recorder`], the writer of captures: the traffic of connections, with Ethernet, IP and TCP or UDP around it.

use std::{
    collections::HashMap,
    io::{self, Write},
    mem,
    net::SocketAddr,
    time::Duration,
};

use pcap_file::{
    DataLink, PcapError,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};

use crate::{
    frames::{Segment, TcpFlow, udp_frame},
    per_end::{PerEnd, Side},
};

/// Writes the traffic of connections to a pcap file, in which Wireshark recognises MPA, DDP, RDMAP and SMB Direct.
///
/// The datagrams of RoCE are the datagrams on the network, with the Identification of IPv4 that their ICRC covers. The
/// bytes of iWARP are the bytes of the socket. The packets around them are made here, because a program does not see
/// into which packets the network cut them. Times are since 1970 UTC.
///
/// ```
/// use std::time::Duration;
/// use smbdirect_decode::{Packets, PerEnd, Recorder, Side};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut file = Vec::new();
/// let mut recorder = Recorder::new(&mut file)?;
/// let ends = PerEnd(["10.0.0.1:40000".parse()?, "10.0.0.2:5445".parse()?]);
/// let request = [b"MPA ID Req Frame".as_slice(), &[0x40, 2, 0, 0]].concat();
/// recorder.bytes(Duration::from_secs(1), Side::A, ends, &request);
/// recorder.finish(Duration::from_secs(2))?;
/// // A handshake, the request, and the end of both directions.
/// let mut packets = Packets::new(file.as_slice())?;
/// for _ in 0..6 {
///     assert!(packets.next_packet()?.is_some());
/// }
/// # Ok(())
/// # }
/// ```
pub struct Recorder<W: Write> {
    /// The file. `None` after a failure.
    writer: Option<PcapWriter<W>>,
    /// The first write error.
    failure: Option<io::Error>,
    flows: HashMap<[SocketAddr; 2], Flow>,
}

/// One TCP connection.
struct Flow {
    tcp: TcpFlow,
    /// The bytes of the incomplete MPA frame of each end.
    pending: PerEnd<Vec<u8>>,
    /// Whether the startup frame of each end has passed.
    started: PerEnd<bool>,
}

/// The first sequence number of each end.
const FIRST: PerEnd<u32> = PerEnd([1_000_000, 2_000_000]);
/// The first bytes that the connecting end of MPA sends.
const MPA_REQUEST: &[u8] = b"MPA ID Req Frame";

impl<W: Write> Recorder<W> {
    /// Writes the head of the file.
    ///
    /// # Errors
    /// The head cannot be written.
    pub fn new(file: W) -> io::Result<Self> {
        let header = PcapHeader {
            snaplen: 1 << 18,
            datalink: DataLink::ETHERNET,
            ..PcapHeader::default()
        };
        Ok(Self {
            writer: Some(PcapWriter::with_header(file, header).map_err(reason)?),
            failure: None,
            flows: HashMap::new(),
        })
    }

    /// Records the next bytes that an end of a TCP connection sent. The ends of a connection are always given in the
    /// same order. The bytes of an incomplete MPA frame wait in memory, up to 64 KiB for each end.
    pub fn bytes(&mut self, time: Duration, from: Side, ends: PerEnd<SocketAddr>, bytes: &[u8]) {
        if self.writer.is_none() {
            return;
        }
        let known = self.flows.remove(&ends.0);
        let mut flow = match known {
            // An earlier connection used this port. In the middle of a frame the same bytes would
            // be payload.
            Some(flow) if flow.pending[from].is_empty() && bytes.starts_with(MPA_REQUEST) => {
                self.end(time, flow);
                self.begin(time, ends, from)
            }
            Some(flow) => flow,
            None => self.begin(time, ends, from),
        };
        // The peer acts on whole frames only, so packets of whole frames are in a true order.
        let pending = &mut flow.pending[from];
        pending.extend_from_slice(bytes);
        let mut written = 0;
        while let Some(length) = frame_length(&pending[written..], flow.started[from]) {
            flow.started[from] = true;
            let frame = &pending[written..written + length];
            self.payload(time, &mut flow.tcp, from, frame);
            written += length;
        }
        pending.drain(..written);
        self.flows.insert(ends.0, flow);
    }

    /// Records a datagram of RoCE, with the Identification of its IPv4 header.
    pub fn datagram(
        &mut self,
        time: Duration,
        from: SocketAddr,
        to: SocketAddr,
        identification: u16,
        datagram: &[u8],
    ) {
        self.write(time, &udp_frame(from, to, identification, datagram));
    }

    /// Ends all connections, and completes the file.
    ///
    /// # Errors
    /// The first write error. The file is incomplete.
    pub fn finish(mut self, time: Duration) -> io::Result<()> {
        for flow in mem::take(&mut self.flows).into_values() {
            self.end(time, flow);
        }
        if let Some(error) = self.failure {
            return Err(error);
        }
        let writer = self.writer.expect("there is no failure");
        writer.into_writer().flush()
    }

    /// Writes the TCP handshake; `first` is the end that connected.
    fn begin(&mut self, time: Duration, ends: PerEnd<SocketAddr>, first: Side) -> Flow {
        let mut tcp = TcpFlow::new(ends, FIRST);
        for (from, segment) in TcpFlow::handshake(first) {
            self.write(time, &tcp.frame(from, segment));
        }
        Flow {
            tcp,
            pending: PerEnd::default(),
            started: PerEnd::default(),
        }
    }

    fn end(&mut self, time: Duration, mut flow: Flow) {
        for from in [Side::A, Side::B] {
            self.payload(time, &mut flow.tcp, from, &flow.pending[from]);
        }
        for from in [Side::A, Side::B] {
            self.write(time, &flow.tcp.frame(from, Segment::Fin));
        }
    }

    fn payload(&mut self, time: Duration, tcp: &mut TcpFlow, from: Side, bytes: &[u8]) {
        for segment in bytes.chunks(TcpFlow::MAX_SEGMENT) {
            self.write(time, &tcp.frame(from, Segment::Data(segment)));
        }
    }

    /// Writes a frame.
    fn write(&mut self, time: Duration, frame: &[u8]) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let packet = PcapPacket::new(time, frame.len() as u32, frame);
        if let Err(error) = writer.write_packet(&packet) {
            self.failure = Some(reason(error));
            self.writer = None;
        }
    }
}

/// Returns the error of the file behind an error of `pcap_file`.
pub(crate) fn reason(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

/// Returns the length of the MPA frame at the front of `bytes`, if it is complete: a startup frame,
/// or after it an FPDU.
fn frame_length(bytes: &[u8], started: bool) -> Option<usize> {
    let length_at = |at: usize| {
        let field = bytes.get(at..at + 2)?;
        Some(usize::from(u16::from_be_bytes([field[0], field[1]])))
    };
    let length = if started {
        (2 + length_at(0)?).next_multiple_of(4) + 4
    } else {
        20 + length_at(18)?
    };
    (bytes.len() >= length).then_some(length)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use pcap_file::pcap::PcapReader;

    use super::*;

    const NOW: Duration = Duration::from_secs(1);
    const FIN: u8 = 0x01;
    const SYN: u8 = 0x02;
    const PSH: u8 = 0x08;
    const ACK: u8 = 0x10;

    /// Returns sequence numbers and payloads by source port, and checks each checksum.
    fn read_back(file: &[u8]) -> Vec<(u16, u32, u32, u8, Vec<u8>)> {
        let mut reader = PcapReader::new(file).unwrap();
        let mut packets = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            let sliced = SlicedPacket::from_ethernet(&packet.data).unwrap();
            let Some(TransportSlice::Tcp(tcp)) = sliced.transport else {
                panic!("TCP")
            };
            let sum = match sliced.net.unwrap() {
                NetSlice::Ipv4(ip) => {
                    let header = ip.header().to_header();
                    assert_eq!(header.calc_header_checksum(), header.header_checksum);
                    let sum = tcp.to_header().calc_checksum_ipv4(&header, tcp.payload());
                    sum.unwrap()
                }
                NetSlice::Ipv6(ip) => {
                    let header = ip.header().to_header();
                    let sum = tcp.to_header().calc_checksum_ipv6(&header, tcp.payload());
                    sum.unwrap()
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(sum, tcp.checksum());
            let flags = tcp.slice()[13] & 0x1f;
            packets.push((
                tcp.source_port(),
                tcp.sequence_number(),
                tcp.acknowledgment_number(),
                flags,
                tcp.payload().to_vec(),
            ));
        }
        packets
    }

    #[test]
    fn datagrams_are_written_as_they_were_sent() {
        for (local, remote) in [
            ("127.0.0.1:4791", "127.0.0.2:50000"),
            ("[::1]:4791", "[::2]:4791"),
        ] {
            let (local, remote): (SocketAddr, SocketAddr) =
                (local.parse().unwrap(), remote.parse().unwrap());
            let mut file = Vec::new();
            let mut recorder = Recorder::new(&mut file).unwrap();
            recorder.datagram(NOW, local, remote, 7, &[1; 40]);
            recorder.datagram(NOW, remote, local, 0xfffe, &[2; 4136]);
            recorder.finish(NOW).unwrap();
            let mut reader = PcapReader::new(&file[..]).unwrap();
            let expected = [(local, remote, 7, 40), (remote, local, 0xfffe, 4136)];
            for (from, to, identification, length) in expected {
                let packet = reader.next_packet().unwrap().unwrap();
                let sliced = SlicedPacket::from_ethernet(&packet.data).unwrap();
                let Some(TransportSlice::Udp(udp)) = sliced.transport else {
                    panic!("UDP")
                };
                assert_eq!(
                    (udp.source_port(), udp.destination_port()),
                    (from.port(), to.port())
                );
                assert_eq!(udp.payload().len(), length);
                if let Some(NetSlice::Ipv4(ip)) = sliced.net {
                    let header = ip.header();
                    assert_eq!(header.identification(), identification);
                    assert!(header.dont_fragment());
                    assert_eq!(IpAddr::from(header.source_addr()), from.ip());
                    assert_eq!(IpAddr::from(header.destination_addr()), to.ip());
                }
            }
            assert!(reader.next_packet().is_none());
        }
    }

    /// Returns an FPDU with `length` bytes of payload.
    fn fpdu(length: u16) -> Vec<u8> {
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.resize((2 + usize::from(length)).next_multiple_of(4) + 4, 7);
        bytes
    }

    #[test]
    fn bytes_come_back_in_order_with_a_handshake_around_them() {
        for (local, remote) in [
            ("127.0.0.1:1", "127.0.0.1:2"),
            ("[::1]:1", "[::1]:2"),
            ("[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.2]:2"),
        ] {
            let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
            let mut file = Vec::new();
            let mut recorder = Recorder::new(&mut file).unwrap();
            let ends = PerEnd([local, remote]);
            let request = [MPA_REQUEST, &[0x40, 2, 0, 4], b"data"].concat();
            let fpdus = [&fpdu(0xffff)[..], &fpdu(0), &fpdu(5)].concat();
            let (start, rest) = fpdus.split_at(1001);
            recorder.bytes(NOW, Side::B, ends, &request);
            recorder.bytes(NOW, Side::A, ends, b"MPA ID Rep Frame");
            recorder.bytes(NOW, Side::B, ends, start);
            recorder.bytes(NOW, Side::A, ends, &[0x40, 2, 0, 0]);
            recorder.bytes(NOW, Side::B, ends, rest);
            recorder.bytes(NOW, Side::A, ends, &fpdu(9)[..7]);
            recorder.finish(NOW).unwrap();
            let packets = read_back(&file);
            let (them, us) = (2, 1);
            assert_eq!(
                packets[..3].iter().map(|p| (p.0, p.3)).collect::<Vec<_>>(),
                [(them, SYN), (us, SYN | ACK), (them, ACK)]
            );
            let lengths: Vec<_> = packets.iter().map(|packet| packet.4.len()).collect();
            let mut next = HashMap::new();
            let mut streams: HashMap<u16, Vec<u8>> = HashMap::new();
            for (port, sequence, acknowledged, flags, payload) in packets {
                let expected = *next.entry(port).or_insert(sequence);
                assert_eq!(sequence, expected);
                if flags & ACK != 0 {
                    assert_eq!(Some(&acknowledged), next.get(&(3 - port)));
                }
                let extra = u32::from(flags & (SYN | FIN) != 0);
                next.insert(port, sequence + payload.len() as u32 + extra);
                streams.entry(port).or_default().extend(payload);
            }
            let reply = [&b"MPA ID Rep Frame"[..], &[0x40, 2, 0, 0], &fpdu(9)[..7]].concat();
            assert_eq!(streams[&us], reply);
            assert_eq!(streams[&them], [request, fpdus].concat());
            let lengths: Vec<_> = lengths.into_iter().filter(|&length| length > 0).collect();
            assert_eq!(lengths, [24, 20, 65_495, 65_544 - 65_495, 8, 12, 7]);
        }
    }

    #[test]
    fn a_port_used_again_is_a_connection_of_its_own() {
        let (local, remote) = ("1.1.1.1:1".parse().unwrap(), "1.1.1.1:2".parse().unwrap());
        let ends = PerEnd([local, remote]);
        let mut file = Vec::new();
        let mut recorder = Recorder::new(&mut file).unwrap();
        for _ in 0..2 {
            let request = [MPA_REQUEST, &[0x40, 2, 0, 0]].concat();
            recorder.bytes(NOW, Side::A, ends, &request);
        }
        recorder.finish(NOW).unwrap();
        let flags = read_back(&file).into_iter().map(|packet| packet.3);
        let one = [SYN, SYN | ACK, ACK, PSH | ACK, FIN | ACK, FIN | ACK];
        assert_eq!(flags.collect::<Vec<_>>(), [one, one].concat());
    }

    /// A disk that takes the head of a file and no more.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_failure_is_told_at_the_end() {
        let (local, remote) = ("1.1.1.1:1".parse().unwrap(), "1.1.1.1:2".parse().unwrap());
        let mut recorder = Recorder::new(Full(7)).unwrap();
        for from in [Side::A, Side::B] {
            recorder.bytes(NOW, from, PerEnd([local, remote]), MPA_REQUEST);
        }
        let error = recorder.finish(NOW).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
