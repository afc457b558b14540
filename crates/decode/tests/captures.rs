//! Captures of Linux, decoded by the library.

use std::{fs, path::Path, time::Duration};

use pcap_file::{
    DataLink,
    pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter},
};
use serde_json::Value;
use smbdirect_decode::{Event, Packets, Streams, Summary};

/// The events of a capture, and its summary, as JSON.
struct Decoded {
    events: Vec<Value>,
    summary: Value,
}

impl Decoded {
    /// Decodes a whole capture.
    fn of(capture: &[u8]) -> Self {
        let (mut events, mut summary) = (Vec::new(), Summary::default());
        let mut sink = |event: Event| {
            summary.count(&event);
            events.push(serde_json::to_value(event).unwrap());
        };
        let mut packets = Packets::new(capture).unwrap();
        let mut streams = Streams::new(&[], &[]);
        while let Some(packet) = packets.next_packet().unwrap() {
            streams.packet(&packet, &mut sink);
        }
        streams.finish(&mut sink);
        summary.counts = streams.counts().clone();
        let summary = serde_json::to_value(summary).unwrap();
        Self { events, summary }
    }

    /// Returns how many events are of a kind.
    fn count(&self, kind: &str) -> usize {
        let is = |event: &&Value| event["event"] == kind;
        self.events.iter().filter(is).count()
    }

    /// Asserts that there are messages of SMB Direct, and that none breaks a rule.
    #[track_caller]
    fn breaks_no_rule(&self, case: &str) {
        assert_eq!(self.summary["broken"], Value::Array(Vec::new()), "{case}");
        assert!(self.count("message") > 0, "{case}");
        for event in &self.events {
            let broken = event["broken"].as_array();
            assert!(broken.is_none_or(Vec::is_empty), "{case}: {event}");
        }
    }
}

/// The packets of a committed capture.
fn packets(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../smbdirect/tests/captures");
    let file = fs::File::open(folder.join(name)).unwrap();
    let mut reader = PcapReader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        packets.push(packet.unwrap().data.into_owned());
    }
    packets
}

/// Returns a capture of these packets, which are a millisecond apart.
fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
    let header = PcapHeader {
        snaplen: 1 << 18,
        datalink: DataLink::ETHERNET,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (index, packet) in packets.iter().enumerate() {
        let time = Duration::from_millis(1_000_000 + index as u64);
        let packet = PcapPacket::new(time, packet.len() as u32, packet);
        writer.write_packet(&packet).unwrap();
    }
    writer.into_writer()
}

/// Neither missing packets nor the order of packets is reported as a violation.
#[test]
fn capture_with_gaps_reports_no_violation() {
    for name in [
        "siw-negotiate-crc.pcap",
        "siw-small.pcap",
        "siw-bigmsg.pcap",
    ] {
        let whole = packets(name);
        for seed in 0..12 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut some = whole.clone();
            match seed % 4 {
                0 => some.retain(|_| random.u8(..20) > 0),
                1 => some.retain(|_| random.u8(..3) > 0),
                2 => some
                    .chunks_mut(8)
                    .for_each(|packets| random.shuffle(packets)),
                _ => drop(some.drain(..random.usize(..whole.len() / 2))),
            }
            Decoded::of(&capture(&some)).breaks_no_rule(&format!("{name}, seed {seed}"));
        }
        // Also with one direction alone.
        let port = |packet: &[u8]| [packet[34], packet[35]] == 5445_u16.to_be_bytes();
        for responder in [false, true] {
            let of_one = |packet: &&Vec<u8>| port(packet) == responder;
            let some: Vec<_> = whole.iter().filter(of_one).cloned().collect();
            let decoded = Decoded::of(&capture(&some));
            decoded.breaks_no_rule(&format!("{name}, responder {responder}"));
            assert!(decoded.count("message") > 20, "{name}");
        }
    }
}
