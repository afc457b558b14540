//! Captures of real ends, in which `interop/slow` induced one cause each.

use std::{fs::File, ops::Range, path::Path};

use flate2::read::GzDecoder;
use smbdirect_decode::{Cause, Explain, Explanation, Limit, Packet, Packets, Phase};

use super::{causes, seconds};

/// Explains a committed capture.
fn explained(name: &str) -> Explanation {
    explained_without(name, 1.0..1.0)
}

/// Explains a committed capture without the packets of a part of its time.
fn explained_without(name: &str, part: Range<f64>) -> Explanation {
    let mut times = Vec::new();
    each_packet(name, |packet| times.push(packet.time));
    let (first, last) = (times[0], times[times.len() - 1]);
    let mut explain = Explain::new(&[], &[]);
    each_packet(name, |packet| {
        let at = (packet.time - first).as_secs_f64() / (last - first).as_secs_f64();
        if !part.contains(&at) {
            explain.packet(packet);
        }
    });
    explain.finish()
}

/// Explains the first bytes of each packet of a committed capture.
fn explained_cut(name: &str, length: usize) -> Explanation {
    let mut explain = Explain::new(&[], &[]);
    each_packet(name, |packet| {
        let (data, rest) = packet.data.split_at(packet.data.len().min(length));
        explain.packet(&Packet {
            data,
            missing: packet.missing + rest.len() as u32,
            ..*packet
        });
    });
    explain.finish()
}

/// FPDUs are longer than packets in some of them, so the headers of most answers are cut.
#[test]
fn packets_that_are_cut_show_the_same_cause_or_none() {
    for (name, cause) in CAPTURES {
        for length in [128, 256, 320] {
            let cut = explained_cut(name, length);
            let named = causes(&cut);
            let case = format!("{name} at {length}: {:#?} {:?}", cut.verdict, cut.unseen);
            if let Some(first) = named.first() {
                assert_eq!(first, cause, "{case}");
            } else {
                assert_eq!(cut.verdict.limit, None, "{case}");
                assert!(!cut.unseen.is_empty(), "{case}");
            }
        }
    }
}

fn each_packet(name: &str, mut take: impl FnMut(&Packet<'_>)) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let file = File::open(folder.join(format!("{name}.pcap.gz"))).unwrap();
    let mut packets = Packets::new(GzDecoder::new(file)).unwrap();
    while let Some(packet) = packets.next_packet().unwrap() {
        take(&packet);
    }
}

/// A part of each capture is missing, as if tcpdump had dropped its packets.
#[test]
fn the_time_of_dropped_packets_is_not_seen() {
    for name in ["one-outstanding", "small-requests", "roce-loss"] {
        let explanation = explained_without(name, 0.5..0.7);
        let connection = &explanation.connections[0];
        let share = seconds(&explanation, 0, Phase::Unseen) / connection.seconds;
        // After the gap it lasts until the next request.
        assert!((0.19..0.5).contains(&share), "{name}: {connection:#?}");
        let sum: f64 = connection.phases.iter().map(|phase| phase.seconds).sum();
        assert!((sum - connection.seconds).abs() < 1e-6, "{name}");
    }
}

const CAPTURES: &[(&str, Cause)] = &[
    ("one-outstanding", Cause::OneOutstanding),
    ("threshold", Cause::Threshold),
    ("small-requests", Cause::SmallRequests),
    ("smb2-credits", Cause::Smb2Credits),
    ("signing", Cause::Signing),
    ("send-credits", Cause::SendCredits),
    ("slow-server", Cause::SlowServer),
    // Whether its disk or its processor is slow is not in a capture. That it pauses within messages is, and is said, too.
    ("busy-core", Cause::SlowServer),
    ("delay", Cause::Delay),
    ("delay-far", Cause::Delay),
    ("loss", Cause::Loss),
    ("loss-far", Cause::Delay),
    // It was made at the receiver, which sees nothing of a packet that never arrives.
    ("mtu-black-hole", Cause::NoAnswer),
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
        for index in 0..explanation.connections.len() {
            let unseen = seconds(&explanation, index, Phase::Unseen);
            // All packets are there, but some acknowledgements are before the packets that they acknowledge.
            let all = explanation.connections[index].seconds;
            assert!(unseen < 0.01 * all, "{name}: {unseen}");
        }
    }
}

/// One lost packet in a thousand on a path of 10 ms costs a repetition each time; why the sender waits for acknowledgements
/// after that is not in the capture. One in a hundred on a short path costs by its repetition.
#[test]
fn what_a_loss_costs_depends_on_the_path() {
    for (name, phase, at_least) in [
        ("loss-far", Phase::Path, 0.3),
        ("loss", Phase::Retransmission, 0.4),
        ("delay-far", Phase::Path, 0.3),
    ] {
        let explanation = explained(name);
        let all = explanation.connections[0].seconds;
        let share = |phase| seconds(&explanation, 0, phase) / all;
        assert!(share(phase) > at_least, "{name}: {explanation:#?}");
    }
    let verdict = explained("loss-far").verdict;
    assert!(
        verdict.causes[0].figures.contains("packets sent again"),
        "{verdict:#?}"
    );
    let lost = explained("loss-far").connections[0].path.sent_again;
    assert!((5..40).contains(&lost), "{lost}");
}

/// The receiver acknowledged a packet after 20 ms, when its copy was on the way: its timestamp shows that nothing was lost.
#[test]
fn a_packet_that_was_sent_again_too_early_is_no_loss() {
    let explanation = explained("late-receiver");
    let named = causes(&explanation);
    assert!(!named.contains(&Cause::Loss), "{named:?}");
    assert_eq!(seconds(&explanation, 0, Phase::Retransmission), 0.0);
    assert_eq!(explanation.connections[0].path.sent_again, 1);
    assert!(seconds(&explanation, 0, Phase::Window) > 0.02);
}

/// The path carries 200 Mbit/s and is full, with one packet in a thousand lost in the second capture.
#[test]
fn nothing_is_wrong_with_a_copy_that_fills_its_path() {
    for name in ["full-path", "full-path-loss"] {
        let explanation = explained(name);
        let verdict = &explanation.verdict;
        assert_eq!(causes(&explanation), [], "{name}: {verdict:#?}");
        assert_eq!(verdict.limit, Some(Limit::Wire), "{name}");
        assert!(verdict.limit_share > 0.85, "{name}: {verdict:#?}");
        let rate = verdict.bytes as f64 / verdict.seconds;
        assert!(rate > 20e6, "{name}: {rate}");
    }
    let lost = &explained("full-path-loss").connections[0].path;
    assert!(lost.sent_again >= 10, "{lost:?}");
}

/// The guests share processors with others, which are slow for them.
const SLOW_GUESTS: [Cause; 4] = [
    Cause::Think,
    Cause::BusyServer,
    Cause::BusyClient,
    Cause::SlowServer,
];

/// The name of a case of `interop/causes`, the ends where it was captured, the induced cause if there is one, and other
/// causes that are true.
type Case = (
    &'static str,
    &'static [&'static str],
    Option<Cause>,
    &'static [Cause],
);

/// Captures between Linux kernels.
const KERNELS: &[Case] = &[
    ("think", BOTH, Some(Cause::Think), &[]),
    ("think-read", &["server"], Some(Cause::Think), &[]),
    (
        "one-outstanding",
        &["client"],
        Some(Cause::OneOutstanding),
        &SLOW_GUESTS,
    ),
    ("metadata", BOTH, Some(Cause::Metadata), &SLOW_GUESTS),
    (
        "threshold",
        &["client"],
        Some(Cause::Threshold),
        &SLOW_GUESTS,
    ),
    ("signing", BOTH, Some(Cause::Signing), &SLOW_GUESTS),
    ("delay", &["client"], Some(Cause::Delay), &[]),
    ("delay-write", BOTH, Some(Cause::Delay), &[]),
    ("delay-metadata", BOTH, Some(Cause::Delay), &[]),
    ("loss", BOTH, Some(Cause::Loss), &[Cause::Delay]),
    ("loss-write", BOTH, Some(Cause::Loss), &[Cause::Delay]),
    // At the receiver nothing of a packet that never arrives is seen.
    (
        "mtu-black-hole",
        &["server"],
        Some(Cause::MtuBlackHole),
        &[],
    ),
    (
        "mtu-black-hole-write",
        &["client"],
        Some(Cause::MtuBlackHole),
        &[],
    ),
    ("window-of-client", BOTH, Some(Cause::Window), &[]),
    ("window-of-server", BOTH, Some(Cause::Window), &[]),
    // A send buffer is not in a capture.
    ("send-buffer-of-client", BOTH, Some(Cause::Delay), &[]),
    ("send-buffer-of-server", BOTH, Some(Cause::Delay), &[]),
    ("reconnects", &["client"], Some(Cause::Reconnects), &[]),
    ("login", BOTH, Some(Cause::Login), &[Cause::Delay]),
    // The first connection was not answered for 5 s, and has no data.
    ("full-path", BOTH, None, &[Cause::Login]),
    ("busy-server", &["client"], Some(Cause::BusyServer), &[]),
];
const BOTH: &[&str] = &["client", "server"];

#[test]
fn kernels_with_one_cause_each_show_it_or_none() {
    for (name, ends, induced, others) in KERNELS {
        for end in *ends {
            let name = format!("kernel/{name}-{end}");
            for length in [usize::MAX, 320, 256, 128] {
                let explanation = explained_cut(&name, length);
                let named = causes(&explanation);
                let case = format!("{name} at {length}: {named:?} {:?}", explanation.unseen);
                let first = named.first();
                let is_true = |first| induced.as_ref() == Some(first) || others.contains(first);
                assert!(first.is_none_or(is_true), "{case}");
                let is_named = induced.is_none_or(|induced| named.contains(&induced));
                assert!(length != usize::MAX || is_named, "{case}");
            }
        }
    }
}
