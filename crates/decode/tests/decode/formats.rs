//! Files of pcap and pcapng with everything that no reader of packets needs, right or wrong.

use smbdirect_test::{
    decoded::{events, messages as said},
    talk::{block, conversation},
};

use super::{Decode, decode};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;

/// Numbers in one byte order.
#[derive(Clone, Copy)]
struct Order {
    is_big: bool,
}

impl Order {
    fn word(self, number: u32) -> [u8; 4] {
        if self.is_big {
            number.to_be_bytes()
        } else {
            number.to_le_bytes()
        }
    }

    fn short(self, number: u16) -> [u8; 2] {
        if self.is_big {
            number.to_be_bytes()
        } else {
            number.to_le_bytes()
        }
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        block(kind, body, self.is_big)
    }

    fn option(self, code: u16, value: &[u8]) -> Vec<u8> {
        let padding = vec![0; value.len().next_multiple_of(4) - value.len()];
        let head = [self.short(code), self.short(value.len() as u16)].concat();
        [&head, value, &padding].concat()
    }

    fn section(self, options: &[u8]) -> Vec<u8> {
        let head = [
            &self.word(0x1a2b_3c4d)[..],
            &self.short(1),
            &self.short(0),
            &[0xff; 8],
        ];
        self.block(SECTION, &[&head.concat(), options].concat())
    }

    fn interface(self, options: &[u8]) -> Vec<u8> {
        let head = [self.short(1), self.short(0), [0, 0], [0, 0]].concat();
        self.block(INTERFACE, &[&head, options].concat())
    }

    fn packet(self, interface: u32, time: u32, frame: &[u8], options: &[u8]) -> Vec<u8> {
        let length = frame.len() as u32;
        let head = [interface, 0, time, length, length]
            .map(|word| self.word(word))
            .concat();
        let padding = vec![0; frame.len().next_multiple_of(4) - frame.len()];
        self.block(6, &[&head, frame, &padding, options].concat())
    }
}

const LITTLE: Order = Order { is_big: false };
const BIG: Order = Order { is_big: true };

/// The position of the options.
#[derive(Clone, Copy, Debug)]
enum Of {
    Section,
    Interface,
    Packet,
}

#[test]
fn options_that_nobody_needs_are_passed_over() {
    let talk = conversation();
    let expected = said(&talk.decoded());
    let end = [0; 4];
    let option = |code, value: &[u8]| LITTLE.option(code, value);
    let long = vec![b'x'; 9000];
    let longest = option(1, &vec![b'x'; 65_535]).repeat(20);
    for (name, options) in [
        ("a comment", option(1, b"comment")),
        ("a long comment", option(1, &long)),
        ("many long comments", longest),
        ("Latin-1", option(1, b"f\xfcr")),
        ("Latin-1 in the second string", option(2, b"f\xfcr")),
        ("Latin-1 in the third string", option(3, b"f\xfcr")),
        ("Latin-1 in the fourth string", option(4, b"\xfcber")),
        ("a name with NUL", option(2, b"eth0\0")),
        ("an empty comment", option(1, b"")),
        ("an address of 4 bytes", option(4, &[0; 4])),
        ("a speed of 4 bytes", option(8, &[0; 4])),
        ("a time zone of 4 bytes", option(10, &[0; 4])),
        ("a time zone of 1 byte", option(10, &[1])),
        ("an empty filter", option(11, b"")),
        ("a filter of another kind", option(11, b"\x09host \xe9")),
        ("an FCS length of 4 bytes", option(13, &[0; 4])),
        ("a resolution of 4 bytes", option(9, &[9, 0, 0, 0])),
        ("an offset of 4 bytes", option(14, &[0; 4])),
        ("an unknown option", option(999, b"zz")),
        ("a custom option", option(2988, b"\0\0\x7e\xd9\xfc")),
        ("a short custom option", option(2989, b"\0")),
        (
            "an option that is longer than its block",
            [&option(2, b"eth0"), &[1, 0, 0xff, 0xff][..]].concat(),
        ),
        ("an option without its value", vec![1, 0, 9, 0]),
        ("half an option", vec![1, 0]),
    ] {
        for of in [Of::Section, Of::Interface, Of::Packet] {
            for tail in [&[][..], &end, &[0, 0, 0, 0, 9, 0, 1, 0, 0x83, 0, 0, 0]] {
                let options = [&options, tail].concat();
                let given = |wanted: bool| if wanted { &options[..] } else { &[] };
                let mut file = LITTLE.section(given(matches!(of, Of::Section)));
                file.extend(LITTLE.interface(given(matches!(of, Of::Interface))));
                for (index, frame) in talk.frames().iter().enumerate() {
                    let wanted = matches!(of, Of::Packet) && index == 7;
                    file.extend(LITTLE.packet(0, 1000 * index as u32, frame, given(wanted)));
                }
                let done = decode(&file).succeeded();
                assert_eq!(said(&done), expected, "{name} of {of:?}");
                let seconds = events(&done, "message")[0]["seconds"].as_f64().unwrap();
                // The bytes after a damaged option may be an option.
                let is_unclear = tail.len() == 12 && name.contains("option");
                assert!(
                    is_unclear || (seconds - 0.003).abs() < 1e-9,
                    "{name}: {seconds}"
                );
            }
        }
    }
}

#[test]
fn blocks_that_nobody_needs_are_passed_over() {
    let talk = conversation();
    let expected = said(&talk.decoded());
    for order in [LITTLE, BIG] {
        let blocks = [
            (
                "names",
                order.block(4, b"\0\x01\0\x09\x0a\0\0\x01srv\xfc\0\0\0\0"),
            ),
            ("statistics of no interface", order.block(5, &[9; 12])),
            ("a journal", order.block(9, b"__REALTIME_TIMESTAMP=1\n")),
            ("secrets of 20 MB", order.block(10, &vec![b'k'; 20 << 20])),
            ("a custom block", order.block(0x0bad, b"\0\0\x7e\xd9hello")),
            ("an unknown block", order.block(0x4242, b"z")),
            ("an empty block", order.block(0x8000_0001, b"")),
            (
                "two lengths",
                [order.word(4), order.word(16), *b"abcd", order.word(7)].concat(),
            ),
            ("interfaces", order.interface(&[]).repeat(70_000)),
        ];
        for (name, other) in blocks {
            let mut file = [order.section(&[]), order.interface(&[])].concat();
            for (index, frame) in talk.frames().iter().enumerate() {
                if index == 7 {
                    file.extend(&other);
                }
                let last = if name == "interfaces" && index > 7 {
                    70_000
                } else {
                    0
                };
                file.extend(order.packet(last, index as u32, frame, &[]));
            }
            let done = decode(&file).succeeded();
            assert_eq!(said(&done), expected, "{name}");
            // Cut within the other block.
            let start = file
                .windows(other.len().min(64))
                .position(|part| other.starts_with(part));
            let cut = start.unwrap() + other.len() - 1;
            if name != "interfaces" {
                decode(&file[..cut]).failed("cut short after packet 7");
            }
        }
    }
}

#[test]
fn every_packet_may_have_its_own_interface_section_and_kind() {
    let talk = conversation();
    let expected = said(&talk.decoded());
    let frames = talk.frames();
    let mut files = [Vec::new(), LITTLE.section(&[]), LITTLE.section(&[])];
    files[2].extend(LITTLE.interface(&[]));
    for (index, frame) in frames.iter().enumerate() {
        let order = [LITTLE, BIG][index % 2];
        let time = 1000 * index as u32;
        files[0].extend(order.section(&[]));
        files[0].extend(order.interface(&[]));
        files[0].extend(order.packet(0, time, frame, &[]));
        // Packets with timestamps of two clocks, alternately.
        let nanoseconds = index % 2 == 1;
        let clock = LITTLE.option(9, &[if nanoseconds { 9 } else { 6 }]);
        files[1].extend(LITTLE.interface(&clock));
        let time = if nanoseconds { time * 1000 } else { time };
        files[1].extend(LITTLE.packet(index as u32, time, frame, &[]));
        // The old kind of block, with a number of lost packets after the number of the interface.
        let mut old = LITTLE.packet(5 << 16, 1000 * index as u32, frame, &[]);
        old[..4].copy_from_slice(&LITTLE.word(2));
        files[2].extend(old);
    }
    for (index, file) in files.iter().enumerate() {
        let done = decode(file).succeeded();
        assert_eq!(said(&done), expected, "{index}");
        let seconds = events(&done, "message")[0]["seconds"].as_f64().unwrap();
        assert!((seconds - 0.003).abs() < 1e-9, "{index}: {seconds}");
    }
}

#[test]
fn clocks_of_any_resolution_and_offset_are_read() {
    let talk = conversation();
    let expected = said(&talk.decoded());
    for resolution in [0, 1, 20, 0x7f, 0x80, 0xc0, 0xff] {
        for offset in [0, -1, i64::MIN, i64::MAX] {
            let clock = LITTLE.option(9, &[resolution]);
            let clock = [clock, LITTLE.option(14, &offset.to_le_bytes())].concat();
            let mut file = [LITTLE.section(&[]), LITTLE.interface(&clock)].concat();
            for frame in talk.frames() {
                file.extend(LITTLE.packet(0, 77, &frame, &[]));
            }
            let done = decode(&file).succeeded();
            assert_eq!(said(&done), expected, "{resolution} {offset}");
        }
    }
}

/// The format of Kuznetzov's tcpdump has 8 bytes more in the head of each packet.
#[test]
fn every_kind_of_pcap_is_read() {
    let talk = conversation();
    let expected = said(&talk.decoded());
    for (magic, unit, more) in [
        (0xa1b2_c3d4, 1, 0),
        (0xa1b2_3c4d, 1000, 0),
        (0xa1b2_cd34, 1, 8),
    ] {
        for order in [LITTLE, BIG] {
            let words = [0x1234_5678, 7, 68, 0x2400_0001].map(|word| order.word(word));
            let versions = [order.short(2), order.short(3)].concat();
            let mut file = [&order.word(magic)[..], &versions, &words.concat()].concat();
            for (index, frame) in talk.frames().iter().enumerate() {
                let length = frame.len() as u32;
                // More microseconds than a second has, and less bytes than there are.
                let fraction = (2_000_000 + 1000 * index as u32) * unit;
                let head = [5, fraction, length, length - 1].map(|word| order.word(word));
                file.extend([&head.concat()[..], &vec![9; more], frame].concat());
            }
            let done = decode(&file).succeeded();
            assert_eq!(said(&done), expected, "{magic:x}");
            let seconds = events(&done, "message")[0]["seconds"].as_f64().unwrap();
            assert!((seconds - 0.003).abs() < 1e-9, "{seconds}");
        }
    }
}

#[test]
fn damaged_blocks_are_errors() {
    let head = [LITTLE.section(&[]), LITTLE.interface(&[])].concat();
    let frame = conversation().frames().swap_remove(0);
    let mut long = LITTLE.packet(0, 0, &frame, &[]);
    long[20..24].copy_from_slice(&LITTLE.word(5000));
    for (block, says) in [
        (long, "a packet that is longer than its block"),
        (
            LITTLE.packet(1, 0, &frame, &[]),
            "an interface that is not described",
        ),
        (LITTLE.block(6, &[0; 8]), "shorter than its fields"),
        (LITTLE.block(INTERFACE, &[0; 4]), "shorter than its fields"),
        (
            [LITTLE.word(6), LITTLE.word(8)].concat(),
            "shorter than its head",
        ),
        (
            [LITTLE.word(6), LITTLE.word(u32::MAX)].concat(),
            "cut short after packet 1",
        ),
        (
            LITTLE.block(SECTION, &[0; 16]),
            "a section without a byte order",
        ),
    ] {
        let file = [&head[..], &LITTLE.packet(0, 0, &frame, &[]), &block].concat();
        let done = decode(&file);
        done.failed(says);
        done.failed("after packet 1");
    }
}
