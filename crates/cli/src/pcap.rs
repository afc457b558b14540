//! `--pcap`: the traffic of a connection, as a capture with Ethernet, IP and TCP or UDP around it.
//!
//! The datagrams of RoCE are the datagrams on the network, with the Identification of IPv4 that their ICRC
//! covers. The bytes of iWARP are the bytes of the socket. The packets around them are made here, because a
//! program does not see into which packets the network cut them. Wireshark recognises MPA, DDP, RDMAP and SMB
//! Direct in the file.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, BufWriter, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow};
use bytes::BytesMut;
use pcap_file::{
    DataLink,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use smbdirect::rdma::{Direction, iwarp::Tap, roce::DatagramTap};
use smbdirect_decode::{PerEnd, Segment, Side, TcpFlow, udp_frame};

use crate::report::plain;

/// A capture file being written. Dropping it completes the file.
#[derive(Debug)]
pub(crate) struct Capture {
    shared: Arc<Shared>,
    path: PathBuf,
}

/// The first failure of a capture that has ended.
static INCOMPLETE: Mutex<Option<anyhow::Error>> = Mutex::new(None);

/// Checks that all captures that have ended are complete.
///
/// # Errors
/// The first incomplete one, with the reason.
pub(crate) fn complete() -> Result<()> {
    let mut incomplete = INCOMPLETE.lock().unwrap_or_else(PoisonError::into_inner);
    incomplete.take().map_or(Ok(()), Err)
}

/// The file, and the first write error, which `pcap_file` does not pass on.
struct Output {
    file: BufWriter<File>,
    failure: Option<io::Error>,
}

impl Output {
    fn keep<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            self.failure.get_or_insert(error);
            kind.into()
        })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.file.write(bytes);
        self.keep(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.file.flush();
        self.keep(result)
    }
}

struct Shared(Mutex<State>);

struct State {
    /// The file; `None` after a failure or at the end.
    writer: Option<PcapWriter<Output>>,
    /// The first write error.
    failure: Option<String>,
    flows: HashMap<(SocketAddr, SocketAddr), Flow>,
}

/// One TCP connection, whose end A is the local one.
struct Flow {
    tcp: TcpFlow,
    /// The bytes of the incomplete MPA frame of each end.
    pending: PerEnd<BytesMut>,
    /// Whether the startup frame of each end has passed.
    started: PerEnd<bool>,
}

/// The first sequence number of each end.
const FIRST: PerEnd<u32> = PerEnd([1_000_000, 2_000_000]);
/// The first bytes that the connecting end of MPA sends.
const MPA_REQUEST: &[u8] = b"MPA ID Req Frame";

impl Capture {
    /// Creates the file, and replaces an existing one.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let failed = || format!("cannot write the capture {}", path.display());
        let file = File::create(path)
            .map_err(|error| anyhow!(plain(&error)))
            .with_context(failed)?;
        let header = PcapHeader {
            snaplen: 1 << 18,
            datalink: DataLink::ETHERNET,
            ..PcapHeader::default()
        };
        let output = Output {
            file: BufWriter::new(file),
            failure: None,
        };
        let writer = PcapWriter::with_header(output, header).with_context(failed)?;
        let state = State {
            writer: Some(writer),
            failure: None,
            flows: HashMap::new(),
        };
        Ok(Self {
            shared: Arc::new(Shared(Mutex::new(state))),
            path: path.to_owned(),
        })
    }

    /// Returns the tap that the provider of iWARP passes its bytes to.
    pub(crate) fn tap(&self) -> Arc<dyn Tap> {
        self.shared.clone()
    }

    /// Returns the tap that the provider of RoCE passes its datagrams to.
    pub(crate) fn datagram_tap(&self) -> Arc<dyn DatagramTap> {
        self.shared.clone()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let mut state = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        let flows = std::mem::take(&mut state.flows);
        for mut flow in flows.into_values() {
            state.end(&mut flow);
        }
        state.finish();
        if let Some(why) = state.failure.take() {
            let path = self.path.display();
            INCOMPLETE
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(anyhow!("the capture {path} is incomplete: {why}"));
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").finish_non_exhaustive()
    }
}

impl Tap for Shared {
    fn bytes(&self, direction: Direction, local: SocketAddr, remote: SocketAddr, bytes: &[u8]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = match direction {
            Direction::Sent => Side::A,
            Direction::Received => Side::B,
        };
        state.bytes(from, (local, remote), bytes);
    }
}

impl DatagramTap for Shared {
    fn datagram(
        &self,
        direction: Direction,
        local: SocketAddr,
        remote: SocketAddr,
        identification: u16,
        datagram: &[u8],
    ) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, to) = match direction {
            Direction::Sent => (local, remote),
            Direction::Received => (remote, local),
        };
        state.write(&udp_frame(from, to, identification, datagram));
    }
}

impl State {
    fn bytes(&mut self, from: Side, ends: (SocketAddr, SocketAddr), bytes: &[u8]) {
        if self.writer.is_none() {
            return;
        }
        let known = self.flows.remove(&ends);
        let mut flow = match known {
            // An earlier connection used this port. In the middle of a frame the same bytes would
            // be payload.
            Some(mut flow) if flow.pending[from].is_empty() && bytes.starts_with(MPA_REQUEST) => {
                self.end(&mut flow);
                self.begin(ends, from)
            }
            Some(flow) => flow,
            None => self.begin(ends, from),
        };
        // The peer acts on whole frames only, so packets of whole frames are in a true order.
        flow.pending[from].extend_from_slice(bytes);
        while let Some(length) = frame_length(&flow.pending[from], flow.started[from]) {
            flow.started[from] = true;
            let frame = flow.pending[from].split_to(length);
            self.payload(&mut flow.tcp, from, &frame);
        }
        self.flows.insert(ends, flow);
    }

    /// Writes the TCP handshake; `first` is the end that connected.
    fn begin(&mut self, (local, remote): (SocketAddr, SocketAddr), first: Side) -> Flow {
        let mut flow = Flow {
            tcp: TcpFlow::new(PerEnd([local, remote]), FIRST),
            pending: PerEnd::default(),
            started: PerEnd::default(),
        };
        for (from, segment) in TcpFlow::handshake(first) {
            self.write(&flow.tcp.frame(from, segment));
        }
        flow
    }

    fn end(&mut self, flow: &mut Flow) {
        for from in [Side::A, Side::B] {
            let rest = std::mem::take(&mut flow.pending[from]);
            self.payload(&mut flow.tcp, from, &rest);
        }
        for from in [Side::A, Side::B] {
            self.write(&flow.tcp.frame(from, Segment::Fin));
        }
    }

    fn payload(&mut self, tcp: &mut TcpFlow, from: Side, bytes: &[u8]) {
        for segment in bytes.chunks(TcpFlow::MAX_SEGMENT) {
            self.write(&tcp.frame(from, Segment::Data(segment)));
        }
    }

    /// Writes a frame.
    fn write(&mut self, bytes: &[u8]) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let packet = PcapPacket::new(now, bytes.len() as u32, bytes);
        if let Err(error) = writer.write_packet(&packet) {
            // The error of pcap_file has less detail than the write error.
            self.failure = Some(plain(&error));
            self.finish();
        }
    }

    /// Flushes the file, and writes nothing from now on.
    fn finish(&mut self) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        let mut output = writer.into_writer();
        // The failure is recorded with the others.
        let _ = output.flush();
        if let Some(error) = output.failure {
            self.failure = Some(plain(&error));
        }
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

    const FIN: u8 = 0x01;
    const SYN: u8 = 0x02;
    const PSH: u8 = 0x08;
    const ACK: u8 = 0x10;

    /// Returns sequence numbers and payloads by source port, and checks each checksum.
    fn read_back(path: &Path) -> Vec<(u16, u32, u32, u8, Vec<u8>)> {
        let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
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
            let file = tempfile::NamedTempFile::new().unwrap();
            let capture = Capture::create(file.path()).unwrap();
            let tap = capture.datagram_tap();
            tap.datagram(Direction::Sent, local, remote, 7, &[1; 40]);
            tap.datagram(Direction::Received, local, remote, 0xfffe, &[2; 4136]);
            drop(capture);
            let mut reader = PcapReader::new(File::open(file.path()).unwrap()).unwrap();
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
            let file = tempfile::NamedTempFile::new().unwrap();
            let capture = Capture::create(file.path()).unwrap();
            let tap = capture.tap();
            let request = [MPA_REQUEST, &[0x40, 2, 0, 4], b"data"].concat();
            let fpdus = [&fpdu(0xffff)[..], &fpdu(0), &fpdu(5)].concat();
            let (start, rest) = fpdus.split_at(1001);
            tap.bytes(Direction::Received, local, remote, &request);
            tap.bytes(Direction::Sent, local, remote, b"MPA ID Rep Frame");
            tap.bytes(Direction::Received, local, remote, start);
            tap.bytes(Direction::Sent, local, remote, &[0x40, 2, 0, 0]);
            tap.bytes(Direction::Received, local, remote, rest);
            tap.bytes(Direction::Sent, local, remote, &fpdu(9)[..7]);
            drop(capture);
            tap.bytes(Direction::Sent, local, remote, b"too late");
            let packets = read_back(file.path());
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
        let file = tempfile::NamedTempFile::new().unwrap();
        let capture = Capture::create(file.path()).unwrap();
        for _ in 0..2 {
            let request = [MPA_REQUEST, &[0x40, 2, 0, 0]].concat();
            let tap = capture.tap();
            tap.bytes(Direction::Sent, local, remote, &request);
        }
        drop(capture);
        let flags = read_back(file.path()).into_iter().map(|packet| packet.3);
        let one = [SYN, SYN | ACK, ACK, PSH | ACK, FIN | ACK, FIN | ACK];
        assert_eq!(flags.collect::<Vec<_>>(), [one, one].concat());
    }
}
