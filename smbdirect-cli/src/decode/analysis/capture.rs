//! Capture files: pcap and pcapng, read piece by piece.
//!
//! `pcap_file` finds the records. The head of a packet is read here, because that crate refuses a
//! packet that a snap length has cut, and takes every clock for one of nanoseconds.

use std::{
    io::{ErrorKind, Read},
    ops::Range,
    time::Duration,
};

use pcap_file::{
    PcapError, TsResolution,
    pcap::PcapParser,
    pcapng::{
        PcapNgParser,
        blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
    },
};
use thiserror::Error;

/// One packet of a capture.
#[derive(Debug)]
pub(crate) struct Packet<'a> {
    /// The number of the packet in the file, from 1.
    pub(crate) frame: u64,
    /// The time since 1970; 0 if the file does not say.
    pub(crate) time: Duration,
    /// The number of its link layer in the registry of tcpdump.org.
    pub(crate) link: u32,
    /// The captured bytes.
    pub(crate) data: &'a [u8],
    /// Bytes on the wire that are not in the file.
    pub(crate) missing: u32,
}

/// The reason why a file cannot be read, or not to its end.
#[derive(Debug, Error)]
pub(crate) enum CaptureError {
    #[error("it is empty")]
    Empty,
    #[error("it is neither pcap nor pcapng")]
    Unknown,
    #[error("it is compressed; unpack it first")]
    Compressed,
    #[error("it is cut short after packet {frame}")]
    Cut { frame: u64 },
    #[error("it is damaged after packet {frame}: {why}")]
    Damaged { frame: u64, why: PcapError },
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The packets of a file.
pub(crate) struct Packets<R> {
    input: R,
    buffer: Vec<u8>,
    /// The offset in the buffer of the next record.
    start: usize,
    ended: bool,
    format: Format,
    frame: u64,
}

enum Format {
    Pcap(PcapParser),
    PcapNg(Box<PcapNgParser>),
}

/// The place of a packet in the buffer, and its metadata.
struct Found {
    time: Duration,
    link: u32,
    data: Range<usize>,
    missing: u32,
}

/// Most bytes of a record: packets of 64 KiB and more with their options.
const MAX_RECORD_BYTES: usize = 16 << 20;
/// Most bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// Most interfaces of a section; real captures have a handful.
const MAX_INTERFACES: usize = 1024;
/// Most bytes of the description of a section or an interface.
const MAX_DESCRIPTION_BYTES: usize = 8192;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

impl<R: Read> Packets<R> {
    /// Reads the head of a file.
    ///
    /// # Errors
    /// It is no capture, or cannot be read.
    pub(crate) fn new(input: R) -> Result<Self, CaptureError> {
        let mut reader = Self {
            input,
            buffer: Vec::new(),
            start: 0,
            ended: false,
            format: Format::Pcap(
                PcapParser::new(EMPTY_PCAP)
                    .expect("the head of an empty capture is right")
                    .1,
            ),
            frame: 0,
        };
        reader.more()?;
        if reader.buffer.is_empty() {
            return Err(CaptureError::Empty);
        }
        if reader.buffer.starts_with(&GZIP) || reader.buffer.starts_with(&ZSTD) {
            return Err(CaptureError::Compressed);
        }
        if reader.buffer.starts_with(&SECTION_HEADER) {
            reader.format = Format::PcapNg(Box::new(reader.parsed(pcapng_head)?));
        } else {
            reader.format = Format::Pcap(reader.parsed(PcapParser::new)?);
        }
        Ok(reader)
    }

    /// Reads the head of the file when it is complete.
    fn parsed<T>(
        &mut self,
        parse: impl Fn(&[u8]) -> Result<(&[u8], T), PcapError>,
    ) -> Result<T, CaptureError> {
        loop {
            match parse(&self.buffer) {
                Ok((rest, parser)) => {
                    self.start = self.buffer.len() - rest.len();
                    return Ok(parser);
                }
                Err(PcapError::IncompleteBuffer)
                    if !self.ended && self.buffer.len() < MAX_RECORD_BYTES =>
                {
                    self.more()?;
                }
                Err(_) => return Err(CaptureError::Unknown),
            }
        }
    }

    /// Returns the next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// The file ends within a packet, or contains what cannot be read.
    pub(crate) fn next(&mut self) -> Result<Option<Packet<'_>>, CaptureError> {
        loop {
            let rest = &self.buffer[self.start..];
            if rest.is_empty() && self.ended {
                return Ok(None);
            }
            let record = match &mut self.format {
                Format::Pcap(parser) => pcap_record(parser, rest),
                Format::PcapNg(parser) => pcapng_record(parser, rest),
            };
            match record {
                Ok((length, found)) => {
                    let start = self.start;
                    self.start += length;
                    let Some(found) = found else { continue };
                    self.frame += 1;
                    return Ok(Some(Packet {
                        frame: self.frame,
                        time: found.time,
                        link: found.link,
                        data: &self.buffer[start + found.data.start..start + found.data.end],
                        missing: found.missing,
                    }));
                }
                Err(PcapError::IncompleteBuffer) if rest.len() < MAX_RECORD_BYTES => {
                    if self.ended {
                        return Err(CaptureError::Cut { frame: self.frame });
                    }
                    self.more()?;
                }
                Err(PcapError::IncompleteBuffer) => {
                    let why = PcapError::InvalidField("a record of more than 16 MiB");
                    return Err(CaptureError::Damaged {
                        frame: self.frame,
                        why,
                    });
                }
                Err(why) => {
                    let frame = self.frame;
                    return Err(CaptureError::Damaged { frame, why });
                }
            }
        }
    }

    /// Appends the bytes that one read returns, so that a pipe delivers packets as they come.
    fn more(&mut self) -> Result<(), CaptureError> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let had = self.buffer.len();
        self.buffer.resize(had + READ_BYTES, 0);
        let read = loop {
            match self.input.read(&mut self.buffer[had..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(had + *read.as_ref().unwrap_or(&0));
        self.ended = read? == 0;
        Ok(())
    }
}

/// An empty capture.
const EMPTY_PCAP: &[u8] = &[
    0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0,
];

fn pcap_record(parser: &PcapParser, rest: &[u8]) -> Result<(usize, Option<Found>), PcapError> {
    let (behind, packet) = parser.next_raw_packet(rest)?;
    let header = parser.header();
    let nanoseconds = match header.ts_resolution {
        TsResolution::MicroSecond => u64::from(packet.ts_frac) * 1000,
        TsResolution::NanoSecond => u64::from(packet.ts_frac),
    };
    let time = Duration::from_secs(packet.ts_sec.into()) + Duration::from_nanos(nanoseconds);
    let length = rest.len() - behind.len();
    let found = Found {
        time,
        // The upper half may contain the length of a checksum after the frames.
        link: u32::from(header.datalink) & 0xffff,
        data: length - packet.data.len()..length,
        missing: packet.orig_len.saturating_sub(packet.incl_len),
    };
    Ok((length, Some(found)))
}

fn pcapng_head(bytes: &[u8]) -> Result<(&[u8], PcapNgParser), PcapError> {
    check_block(bytes, false, 0)?;
    PcapNgParser::new(bytes)
}

/// Returns the length of the next block, and the packet in it.
fn pcapng_record(
    parser: &mut PcapNgParser,
    rest: &[u8],
) -> Result<(usize, Option<Found>), PcapError> {
    let is_big = parser.section().endianness.is_big();
    check_block(rest, is_big, parser.interfaces().len())?;
    let (behind, block) = parser.next_raw_block(rest)?;
    let length = rest.len() - behind.len();
    let body = &block.body;
    let word = |at: usize| {
        let bytes = body.get(at..).and_then(|bytes| bytes.first_chunk());
        bytes
            .map(|&bytes| number(bytes, is_big))
            .ok_or(PcapError::InvalidField(
                "a block is shorter than its fields",
            ))
    };
    let (interface, captured, original, start) = match block.type_ {
        ENHANCED_PACKET => (word(0)?, word(12)?, word(16)?, 20),
        OLD_PACKET => {
            let interface = body.get(..2).map_or(0, |bytes| match is_big {
                true => u16::from_be_bytes([bytes[0], bytes[1]]),
                false => u16::from_le_bytes([bytes[0], bytes[1]]),
            });
            (interface.into(), word(12)?, word(16)?, 20)
        }
        SIMPLE_PACKET => {
            let original = word(0)?;
            let snap_length = parser.interfaces().first().map_or(0, |first| first.snaplen);
            let captured = match snap_length {
                0 => original,
                snap_length => original.min(snap_length),
            };
            (0, captured, original, 4)
        }
        _ => return Ok((length, None)),
    };
    let description = parser
        .interfaces()
        .get(interface as usize)
        .ok_or(PcapError::InvalidInterfaceId(interface))?;
    let data = start..start + captured as usize;
    if data.end > body.len() {
        return Err(PcapError::InvalidField("a packet is longer than its block"));
    }
    let time = match block.type_ {
        SIMPLE_PACKET => Duration::ZERO,
        _ => time(description, u64::from(word(4)?) << 32 | u64::from(word(8)?)),
    };
    let found = Found {
        time,
        link: u32::from(description.linktype),
        data: BLOCK_HEAD + data.start..BLOCK_HEAD + data.end,
        missing: original.saturating_sub(captured),
    };
    Ok((length, Some(found)))
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Bytes of type and length before the body of a block.
const BLOCK_HEAD: usize = 8;

/// Checks a block, so that the state of the parser stays bounded.
fn check_block(rest: &[u8], is_big: bool, interfaces: usize) -> Result<(), PcapError> {
    let Some((head, _)) = rest.split_first_chunk::<12>() else {
        return Ok(());
    };
    let word = |at: usize, is_big| {
        let bytes = [head[at], head[at + 1], head[at + 2], head[at + 3]];
        number(bytes, is_big)
    };
    let (length, is_interface) = match word(0, is_big) {
        // A section has a byte order of its own.
        SECTION => (word(4, word(8, true) == BYTE_ORDER_MAGIC), false),
        INTERFACE => (word(4, is_big), true),
        _ => return Ok(()),
    };
    if length as usize > MAX_DESCRIPTION_BYTES {
        return Err(PcapError::InvalidField("a description that is too long"));
    }
    if is_interface && interfaces >= MAX_INTERFACES {
        return Err(PcapError::InvalidField("too many interfaces"));
    }
    Ok(())
}

const fn number(bytes: [u8; 4], is_big: bool) -> u32 {
    match is_big {
        true => u32::from_be_bytes(bytes),
        false => u32::from_le_bytes(bytes),
    }
}

/// Returns the time of a timestamp by the clock of its interface; microseconds if it does not say.
fn time(interface: &InterfaceDescriptionBlock<'_>, stamp: u64) -> Duration {
    let (mut units_per_second, mut offset) = (1_000_000_u64, 0);
    for option in &interface.options {
        match *option {
            InterfaceDescriptionOption::IfTsResol(resolution) => {
                let (base, power): (u64, _) = match resolution & 0x80 {
                    0 => (10, resolution),
                    _ => (2, resolution & 0x7f),
                };
                units_per_second = base.checked_pow(power.into()).unwrap_or(u64::MAX);
            }
            InterfaceDescriptionOption::IfTsOffset(seconds) => offset = seconds,
            _ => {}
        }
    }
    let seconds = (stamp / units_per_second).saturating_add(offset);
    let rest = u128::from(stamp % units_per_second) * 1_000_000_000 / u128::from(units_per_second);
    Duration::new(seconds, rest as u32)
}
