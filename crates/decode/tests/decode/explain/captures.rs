//! Captures of real ends, in which `interop/slow` induced one cause each.

use std::{fs::File, path::Path};

use flate2::read::GzDecoder;
use smbdirect_decode::{Cause, Explain, Explanation, Limit, Packets};

use super::causes;

/// Explains a committed capture.
fn explained(name: &str) -> Explanation {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let file = File::open(folder.join(name).with_extension("pcap.gz")).unwrap();
    let mut packets = Packets::new(GzDecoder::new(file)).unwrap();
    let mut explain = Explain::new(&[], &[]);
    while let Some(packet) = packets.next_packet().unwrap() {
        explain.packet(&packet);
    }
    explain.finish()
}

const CAPTURES: &[(&str, Cause)] = &[
    ("one-outstanding", Cause::OneOutstanding),
    ("threshold", Cause::Threshold),
    ("small-requests", Cause::SmallRequests),
    ("smb2-credits", Cause::Smb2Credits),
    ("signing", Cause::Signing),
    ("send-credits", Cause::SendCredits),
    ("slow-server", Cause::SlowServer),
    ("busy-core", Cause::BusyServer),
    ("delay", Cause::Delay),
    ("loss", Cause::Loss),
    ("mtu-black-hole", Cause::MtuBlackHole),
    ("roce-loss", Cause::Loss),
];

#[test]
fn the_cause_of_each_capture_is_named_first() {
    for (name, cause) in CAPTURES {
        let explanation = explained(name);
        let named = causes(&explanation);
        assert_eq!(
            named.first(),
            Some(cause),
            "{name}: {:#?}",
            explanation.verdict
        );
        for connection in &explanation.connections {
            let sum: f64 = connection.phases.iter().map(|phase| phase.seconds).sum();
            assert!((sum - connection.seconds).abs() < 1e-6, "{name}");
        }
    }
}

/// The path carries 200 Mbit/s and is full, with one packet in a thousand lost in the second capture.
#[test]
fn nothing_is_wrong_with_a_copy_that_fills_its_path() {
    for name in ["full-path", "full-path-loss"] {
        let explanation = explained(name);
        let verdict = &explanation.verdict;
        assert_eq!(causes(&explanation), [], "{name}: {verdict:#?}");
        assert_eq!(verdict.limit, Limit::Wire, "{name}");
        assert!(verdict.limit_share > 0.85, "{name}: {verdict:#?}");
        let rate = verdict.bytes as f64 / verdict.seconds;
        assert!(rate > 20e6, "{name}: {rate}");
    }
    let lost = &explained("full-path-loss").connections[0].path;
    assert!(lost.sent_again >= 10, "{lost:?}");
}
