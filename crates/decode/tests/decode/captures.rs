//! Captures of Linux with gaps.

use pcap_file::DataLink;
use smbdirect_test::{decoded::names, talk::pcap};

use super::{decode, packets};

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
            decode(&pcap(DataLink::ETHERNET, &some))
                .breaks_no_rule(&format!("{name}, seed {seed}"));
        }
        // Also with one direction alone.
        let port = |packet: &[u8]| [packet[34], packet[35]] == 5445_u16.to_be_bytes();
        for responder in [false, true] {
            let of_one = |packet: &&Vec<u8>| port(packet) == responder;
            let some: Vec<_> = whole.iter().filter(of_one).cloned().collect();
            let decoded = decode(&pcap(DataLink::ETHERNET, &some));
            decoded.breaks_no_rule(&format!("{name}, responder {responder}"));
            assert!(names(&decoded).len() > 20, "{name}");
        }
    }
}
