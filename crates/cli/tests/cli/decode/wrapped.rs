//! Link layers, tags and tunnels around iWARP and RoCE, and the names of what is not understood.

use pcap_file::DataLink;
use smbdirect_test::{
    decoded::{all as said, events},
    talk::{conversation, write_pcap},
};

use super::{
    captures::{capture, packets},
    decode,
    files::folder,
};

const ETHERNET: [u8; 12] = [2; 12];

fn hex(digits: &str) -> Vec<u8> {
    let digits = digits.replace(' ', "");
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// An IPv4 header without a checksum, and what is in it.
fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len() as u16).to_be_bytes();
    let head = [
        0x45, 0, length[0], length[1], 0, 1, 0x40, 0, 64, protocol, 0, 0,
    ];
    [&head, &[192, 0, 2, 1, 192, 0, 2, 2][..], payload].concat()
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u16).to_be_bytes();
    let head = [0x60, 0, 0, 0, length[0], length[1], next, 64];
    [&head[..], &[0xfd; 16], &[0xfe; 16], payload].concat()
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len() as u16;
    let fields = [50_000, port, length, 0].map(u16::to_be_bytes).concat();
    [&fields, payload].concat()
}

fn ethernet(number: u16, payload: &[u8]) -> Vec<u8> {
    [&ETHERNET[..], &number.to_be_bytes(), payload].concat()
}

fn in_ip(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(0x0800, &ipv4(protocol, payload))
}

fn in_udp(port: u16, head: &str, payload: &[u8]) -> Vec<u8> {
    in_ip(17, &udp(port, &[&hex(head), payload].concat()))
}

fn in_gre(head: &str, payload: &[u8]) -> Vec<u8> {
    in_ip(47, &[&hex(head), payload].concat())
}

/// Puts bytes between the addresses of Ethernet and its Ethertype.
fn tag(frame: &[u8], tag: &str) -> Vec<u8> {
    [&frame[..12], &hex(tag), &frame[12..]].concat()
}

/// Puts bytes between Ethernet, with this Ethertype, and the IP packet.
fn before_ip(frame: &[u8], number: u16, head: &str) -> Vec<u8> {
    ethernet(number, &[&hex(head), &frame[14..]].concat())
}

type Wrap = fn(&[u8]) -> Vec<u8>;

const WRAPS: &[(&str, Wrap)] = &[
    ("ERSPAN I", |f| in_gre("0000 88be", f)),
    ("ERSPAN II", |f| {
        in_gre("1000 88be 00000007 10010064 00000000", f)
    }),
    ("ERSPAN III", |f| {
        in_gre("1000 22eb 00000007 20010064 00000001 0000 0000", f)
    }),
    ("ERSPAN III, subheader", |f| {
        in_gre(
            "1000 22eb 00000007 20010064 00000001 0000 0001 1011121314151617",
            f,
        )
    }),
    ("ERSPAN III of IP", |f| {
        in_gre("1000 22eb 00000007 20010064 00000001 0000 0800", &f[14..])
    }),
    ("ERSPAN over IPv6", |f| {
        ethernet(0x86dd, &ipv6(47, &[&hex("0000 88be"), f].concat()))
    }),
    ("VXLAN", |f| in_udp(4789, "08000000 00002a00", f)),
    ("VXLAN with a group", |f| {
        in_udp(4789, "88000005 00002a00", f)
    }),
    ("VXLAN of Linux", |f| in_udp(8472, "08000000 00002a00", f)),
    ("VXLAN-GPE of Ethernet", |f| {
        in_udp(4790, "0c000003 00002a00", f)
    }),
    ("VXLAN-GPE of IP", |f| {
        in_udp(4790, "0c000001 00002a00", &f[14..])
    }),
    ("VXLAN-GPE of NSH", |f| {
        let head = "0c000004 00002a00 0fc60103 000001ff 00000000 00000000 00000000 00000000";
        in_udp(4790, head, f)
    }),
    ("GENEVE", |f| in_udp(6081, "00006558 00002a00", f)),
    ("GENEVE with options", |f| {
        in_udp(6081, "03406558 00002a00 01020302 00000000 00000000", f)
    }),
    ("GENEVE of IP", |f| {
        in_udp(6081, "00000800 00002a00", &f[14..])
    }),
    ("GRE", |f| in_gre("0000 0800", &f[14..])),
    ("GRE with all fields", |f| {
        in_gre("b000 0800 00000000 00000005 00000006", &f[14..])
    }),
    ("GRE of Ethernet", |f| in_gre("2000 6558 00002a00", f)),
    ("GRE of PPTP", |f| {
        in_gre("3081 880b 00000000 00000000 00000000 ff03 0021", &f[14..])
    }),
    ("GRE in GRE", |f| {
        in_gre(
            "0000 0800",
            &ipv4(47, &[&hex("1000 0800 00000001"), &f[14..]].concat()),
        )
    }),
    ("IP in IP", |f| in_ip(4, &f[14..])),
    ("IP in IPv6", |f| ethernet(0x86dd, &ipv6(4, &f[14..]))),
    ("IP in IPv6 in IP", |f| in_ip(41, &ipv6(4, &f[14..]))),
    ("IP in IPv6 in IPv6", |f| {
        ethernet(0x86dd, &ipv6(41, &ipv6(4, &f[14..])))
    }),
    ("MPLS", |f| before_ip(f, 0x8847, "00010140")),
    ("MPLS, three labels", |f| {
        before_ip(f, 0x8847, "00010040 00010040 00010140")
    }),
    ("MPLS of Ethernet", |f| {
        ethernet(0x8847, &[&hex("00010140"), f].concat())
    }),
    ("MPLS of Ethernet, control word", |f| {
        ethernet(0x8847, &[&hex("00010140 00000005"), f].concat())
    }),
    ("MPLS in UDP", |f| in_udp(6635, "00010140", &f[14..])),
    ("MPLS in IP", |f| {
        in_ip(137, &[&hex("00010140"), &f[14..]].concat())
    }),
    ("EtherIP", |f| in_ip(97, &[&[0x30, 0], f].concat())),
    ("PPPoE", |f| before_ip(f, 0x8864, "1100 0001 0500 0021")),
    ("PPPoE in a VLAN", |f| {
        tag(&before_ip(f, 0x8864, "1100 0001 0500 0021"), "81000007")
    }),
    ("SNAP", |f| tag(f, "0200 aaaa03 000000")),
    ("SNAP in a VLAN", |f| tag(f, "81000005 0200 aaaa03 000000")),
    ("five VLANs", |f| {
        tag(f, "81000005 81000006 81000007 81000008 8100000a")
    }),
    ("eight VLANs of all kinds", |f| {
        tag(
            f,
            "88a80005 91000005 92000005 93000005 88a80005 91000005 81000005 81000006",
        )
    }),
    ("VN-Tag", |f| tag(f, "8926 80010002")),
    ("VN-Tag and VLAN", |f| tag(f, "8926 80010002 81000005")),
    ("Cisco metadata", |f| tag(f, "8909 0101 0001 0064")),
    ("E-Tag", |f| tag(f, "893f 000000010000")),
    ("HSR", |f| tag(f, "892f 0040 0001")),
    ("MACsec without encryption", |f| {
        [&tag(f, "88e5 0000 00000001")[..], &[0x5a; 16]].concat()
    }),
    ("provider backbone", |f| {
        ethernet(0x88e7, &[&[0, 0, 0, 1], f].concat())
    }),
    ("PPPoE in VXLAN in GRE", |f| {
        let inner = before_ip(f, 0x8864, "1100 0001 0500 0021");
        let tunnel = [&hex("08000000 00002a00")[..], &inner].concat();
        in_gre("0000 0800", &ipv4(17, &udp(4789, &tunnel)))
    }),
];

/// The captures of a connection over iWARP and of one over RoCE.
fn plain() -> [Vec<Vec<u8>>; 2] {
    let roce = capture("rxe-negotiate.pcap").expect("it is in the repository");
    let mut frames = packets(&roce);
    frames.retain(|frame| frame[12..14] == [8, 0]);
    // Without the padding of short frames.
    for frame in &mut frames {
        frame.truncate(14 + usize::from(u16::from_be_bytes([frame[16], frame[17]])));
    }
    [conversation().frames(), frames]
}

#[test]
fn tunnels_and_tags_are_peeled() {
    let (_folder, path) = folder();
    for frames in plain() {
        write_pcap(&path, DataLink::ETHERNET, &frames);
        let expected = said(&decode(&path, &["--json"]).succeeded());
        assert!(expected.len() > 20);
        for (name, wrap) in WRAPS {
            let wrapped: Vec<_> = frames.iter().map(|frame| wrap(frame)).collect();
            write_pcap(&path, DataLink::ETHERNET, &wrapped);
            let done = decode(&path, &["--json"]).succeeded();
            assert_eq!(said(&done), expected, "{name}");
        }
        // The mirror of a switch and the packets themselves.
        let both = frames
            .iter()
            .flat_map(|frame| [WRAPS[1].1(frame), frame.clone()]);
        write_pcap(&path, DataLink::ETHERNET, &both.collect::<Vec<_>>());
        let done = decode(&path, &["--json"]).succeeded();
        assert_eq!(said(&done), expected, "two forms");
    }
}

#[test]
fn links_with_tags_of_their_own_are_read() {
    let (_folder, path) = folder();
    let frames = &plain()[0];
    write_pcap(&path, DataLink::ETHERNET, frames);
    let expected = said(&decode(&path, &["--json"]).succeeded());
    for (link, head) in [
        (9, "ff03 0021"),
        (9, "21"),
        (50, "ff03 0021"),
        (51, "1100 0001 0500 0021"),
        (104, "0f00 0800"),
        (113, "0000 0001 0006 020202020202 0000 8100 0005 0800"),
        (
            113,
            "0000 0001 0006 020202020202 0000 0004 aaaa03 000000 0800",
        ),
        (219, "00010140"),
    ] {
        let with = |frame: &Vec<u8>| [&hex(head), &frame[14..]].concat();
        let frames: Vec<_> = frames.iter().map(with).collect();
        write_pcap(&path, DataLink::from(link), &frames);
        let done = decode(&path, &["--json"]).succeeded();
        assert_eq!(said(&done), expected, "{link}, {head}");
    }
}

/// A mirror may cut packets without saying so in the file.
#[test]
fn a_mirror_that_cuts_packets_leaves_their_headers() {
    let (_folder, path) = folder();
    let frames = &plain()[0];
    let cut = |frame: &Vec<u8>| {
        let inner = &frame[..frame.len().min(200)];
        WRAPS[1].1(inner)
    };
    write_pcap(
        &path,
        DataLink::ETHERNET,
        &frames.iter().map(cut).collect::<Vec<_>>(),
    );
    let done = decode(&path, &["--json"]).succeeded();
    let messages = events(&done, "message").len();
    write_pcap(&path, DataLink::ETHERNET, frames);
    let whole = decode(&path, &["--json"]).succeeded();
    assert_eq!(messages, events(&whole, "message").len());
}

#[test]
fn what_is_not_understood_is_named() {
    let (_folder, path) = folder();
    let frame = plain()[0][0].clone();
    let deep = (0..40).fold(frame.clone(), |inner, _| {
        ethernet(0x0800, &ipv4(4, &inner[14..]))
    });
    for (link, frame, says) in [
        (
            200,
            frame.clone(),
            "17 packets of link type 200 not understood",
        ),
        (
            1,
            in_gre("0000 0042", &frame),
            "17 packets of GRE protocol 0x0042 not understood",
        ),
        (
            1,
            in_gre("4000 0800", &frame),
            "GRE with routes of protocol 0x0800",
        ),
        (1, ethernet(0x88cc, &frame), "Ethertype 0x88cc"),
        (1, tag(&frame, "81000005 4242"), "Ethertype 0x4242"),
        (1, in_ip(132, &frame), "IP protocol 132"),
        (1, in_ip(50, &frame), "IP protocol 50"),
        (1, in_udp(2152, "30ff", &frame), "UDP port 2152"),
        (
            1,
            in_udp(4790, "0c000009 00002a00", &frame),
            "VXLAN protocol 0x0009",
        ),
        (
            1,
            in_udp(6081, "00004242 00002a00", &frame),
            "GENEVE protocol 0x4242",
        ),
        (
            1,
            before_ip(&frame, 0x8864, "1100 0001 0500 c021"),
            "PPP protocol 0xc021",
        ),
        (1, tag(&frame, "0200 424203"), "LLC service 0x0042"),
        (
            1,
            tag(&frame, "0200 aaaa03 000000 4242"),
            "SNAP protocol 0x4242",
        ),
        (
            1,
            in_gre("1000 22eb 00000001 70010064", &frame),
            "ERSPAN version 0x0007",
        ),
        (1, tag(&frame, "88e5 0c00 00000001"), "encrypted MACsec"),
        (1, deep, "more than 32 headers"),
    ] {
        write_pcap(&path, DataLink::from(link), &vec![frame; 17]);
        let done = decode(&path, &[]);
        done.failed(1, says).one_line();
        let says = says.trim_end_matches(" not understood");
        assert_eq!(
            done.stdout.contains(says),
            !says.starts_with("UDP"),
            "{done:?}"
        );
    }
    // Next to a connection, too, and for programs.
    let mut frames = plain()[0].clone();
    frames.push(in_gre("0000 0042", &frame));
    write_pcap(&path, DataLink::ETHERNET, &frames);
    let done = decode(&path, &["--json"]).succeeded();
    let named = &events(&done, "summary")[0]["not_understood"];
    assert_eq!(named["GRE protocol 0x0042"], 1);
}

/// Whatever is cut off, nothing panics and nothing hangs.
#[test]
fn cut_headers_are_no_packets() {
    let (_folder, path) = folder();
    let frame = plain()[0][3].clone();
    let cut = WRAPS.iter().flat_map(|(_, wrap)| {
        let whole = wrap(&frame);
        (0..whole.len())
            .step_by(3)
            .map(move |length| whole[..length].to_vec())
    });
    let frames: Vec<_> = cut.collect();
    write_pcap(&path, DataLink::ETHERNET, &frames);
    let done = decode(&path, &["--json"]);
    assert_eq!(events(&done, "summary")[0]["packets"], frames.len());
}
