//! Capture files: pcap and pcapng, read piece by piece.
//!
//! Only the blocks of packets, interfaces and sections are examined, and of an interface only its
//! link type, snap length and clock. Nothing else in a file can make it unreadable.

use std::{
    io::{ErrorKind, Read},
    ops::Range,
    time::Duration,
};

use pcap_parser::{
    OptionCode, PcapError, PcapHeader, nom, parse_option_be, parse_option_le, parse_pcap_header,
    parse_unknownblock_be, parse_unknownblock_le,
};
use thiserror::Error;

/// One packet of a capture.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The number of the packet in the file, from 1.
    pub frame: u64,
    /// The time since 1970; 0 if the file has no time.
    pub time: Duration,
    /// The number of its link layer in the registry of tcpdump.org.
    pub link: u32,
    /// The captured bytes.
    pub data: &'a [u8],
    /// Bytes on the wire that are not in the file.
    pub missing: u32,
}

/// The reason why a file cannot be read, or not to its end.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The file has no bytes.
    #[error("it is empty")]
    Empty,
    /// The file has another format.
    #[error("it is neither pcap nor pcapng; `editcap` converts other captures")]
    Unknown,
    /// The file is compressed.
    #[error("it is compressed; unpack it first")]
    Compressed,
    /// The file ends within a packet.
    #[error("it is cut short after packet {frame}")]
    Cut {
        /// The number of the last whole packet.
        frame: u64,
    },
    /// A record of the file has no valid form.
    #[error("it is damaged after packet {frame}: {why}")]
    Damaged {
        /// The number of the last packet before the damage.
        frame: u64,
        /// The reason, in words.
        why: &'static str,
    },
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The packets of a file.
pub struct Packets<R> {
    input: R,
    buffer: Vec<u8>,
    /// The offset in the buffer of the next record.
    start: usize,
    /// Bytes after `start` that are not needed; some may not be in the buffer.
    skip: usize,
    ended: bool,
    format: Format,
    frame: u64,
}

enum Format {
    Pcap(Pcap),
    PcapNg(Section),
}

/// The format of the records of a pcap file.
struct Pcap {
    link: u32,
    is_big: bool,
    /// Nanoseconds per unit of the fraction of a second.
    unit: u64,
    /// Bytes before the data of a packet.
    head_length: usize,
}

/// A section of a pcapng file.
#[derive(Default)]
struct Section {
    is_big: bool,
    interfaces: Vec<Interface>,
}

struct Interface {
    link: u32,
    /// Maximum number of bytes of a packet; 0 if there is no limit.
    snap_length: u32,
    units_per_second: u128,
    /// Seconds to add to each timestamp.
    offset: i64,
}

/// The place of a packet in the buffer, and its metadata.
struct Found {
    time: Duration,
    link: u32,
    data: Range<usize>,
    missing: u32,
}

/// The length of a record and the packet in it; `None` if the buffer does not have all of it.
type Record = Result<Option<(usize, Option<Found>)>, &'static str>;

/// Maximum number of bytes of a record that is kept: packets of 64 KiB and more with their options.
const MAX_RECORD_BYTES: usize = 16 << 20;
/// Maximum number of bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// Maximum number of interfaces of a section. A file that was merged from others can have one for each packet.
const MAX_INTERFACES: usize = 1 << 20;
/// The first bytes of files of gzip, zstd, xz, bzip2 and lz4.
const COMPRESSED: [&[u8]; 5] = [
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ",
    b"BZh",
    b"\x04\x22\x4d\x18",
];
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

impl<R: Read> Packets<R> {
    /// Reads the head of a file.
    ///
    /// # Errors
    /// The file is not a capture, or cannot be read.
    pub fn new(input: R) -> Result<Self, CaptureError> {
        let mut reader = Self {
            input,
            buffer: Vec::new(),
            start: 0,
            skip: 0,
            ended: false,
            format: Format::PcapNg(Section::default()),
            frame: 0,
        };
        while reader.buffer.len() < PCAP_HEADER_LENGTH && !reader.ended {
            reader.more()?;
        }
        if reader.buffer.is_empty() {
            return Err(CaptureError::Empty);
        }
        if COMPRESSED
            .iter()
            .any(|magic| reader.buffer.starts_with(magic))
        {
            return Err(CaptureError::Compressed);
        }
        if !reader.buffer.starts_with(&SECTION_HEADER) {
            reader.format = Format::Pcap(Pcap::new(&reader.buffer).ok_or(CaptureError::Unknown)?);
            reader.start = PCAP_HEADER_LENGTH;
        } else if order(&reader.buffer).is_none() {
            return Err(CaptureError::Unknown);
        }
        Ok(reader)
    }

    /// Returns the next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// The file ends within a packet, or contains data that cannot be read.
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>, CaptureError> {
        loop {
            let skipped = self.skip.min(self.buffer.len() - self.start);
            self.start += skipped;
            self.skip -= skipped;
            let rest = &self.buffer[self.start..];
            let frame = self.frame;
            if rest.is_empty() && self.ended && self.skip == 0 {
                return Ok(None);
            }
            let record = match &mut self.format {
                _ if self.skip > 0 => Ok(None),
                Format::Pcap(pcap) => Ok(pcap.record(rest)),
                Format::PcapNg(section) => section.record(rest),
            };
            match record.map_err(|why| CaptureError::Damaged { frame, why })? {
                Some((length, found)) => {
                    let start = self.start;
                    self.skip = length;
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
                None if self.ended => return Err(CaptureError::Cut { frame }),
                None if rest.len() >= MAX_RECORD_BYTES => {
                    let why = "a record of more than 16 MiB";
                    return Err(CaptureError::Damaged { frame, why });
                }
                None => self.more()?,
            }
        }
    }

    /// Appends the bytes that one read returns, so that a pipe delivers packets as they arrive.
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

const PCAP_HEADER_LENGTH: usize = 24;

impl Pcap {
    /// Reads the header of a file.
    fn new(bytes: &[u8]) -> Option<Self> {
        let mut header = *bytes.first_chunk::<PCAP_HEADER_LENGTH>()?;
        // Kuznetzov's tcpdump writes longer heads. The parser supports this block in one byte order only.
        let is_modified = matches!(
            header,
            [0x34, 0xcd, 0xb2, 0xa1, ..] | [0xa1, 0xb2, 0xcd, 0x34, ..]
        );
        if is_modified && header[0] == 0xa1 {
            header[2..4].copy_from_slice(&[0xc3, 0xd4]);
        }
        let (_, header): (_, PcapHeader) = parse_pcap_header(&header).ok()?;
        Some(Self {
            // The upper half may contain the length of a checksum after the frames.
            link: header.network.0 as u32 & 0xffff,
            is_big: header.is_bigendian(),
            unit: [1000, 1][usize::from(header.is_nanosecond_precision())],
            head_length: if is_modified { 24 } else { 16 },
        })
    }

    fn record(&self, rest: &[u8]) -> Option<(usize, Option<Found>)> {
        let word = |at| word(rest, at, self.is_big);
        let (captured, original) = (word(8)?, word(12)?);
        let length = self.head_length.checked_add(captured as usize)?;
        rest.get(..length)?;
        let fraction = Duration::from_nanos(u64::from(word(4)?) * self.unit);
        let found = Found {
            time: Duration::from_secs(word(0)?.into()) + fraction,
            link: self.link,
            data: self.head_length..length,
            missing: original.saturating_sub(captured),
        };
        Some((length, Some(found)))
    }
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Bytes of type and length before the body of a block.
const BLOCK_HEAD: usize = 8;
const MIN_BLOCK_LENGTH: u32 = 12;

impl Section {
    fn record(&mut self, rest: &[u8]) -> Record {
        let Some(kind) = word(rest, 0, self.is_big) else {
            return Ok(None);
        };
        if kind == SECTION {
            // A section has a byte order of its own.
            if rest.len() < MIN_BLOCK_LENGTH as usize {
                return Ok(None);
            }
            self.is_big = order(rest).ok_or("a section without a byte order")?;
            self.interfaces.clear();
        }
        let length = match word(rest, 4, self.is_big) {
            None => return Ok(None),
            Some(..MIN_BLOCK_LENGTH) => return Err("a block that is shorter than its head"),
            Some(length) => length as usize,
        };
        if ![INTERFACE, OLD_PACKET, SIMPLE_PACKET, ENHANCED_PACKET].contains(&kind) {
            return Ok(Some((length, None)));
        }
        let block = if self.is_big {
            parse_unknownblock_be(rest)
        } else {
            parse_unknownblock_le(rest)
        };
        let block = match block {
            Ok((_, block)) => block,
            Err(nom::Err::Incomplete(_)) => return Ok(None),
            Err(_) => return Err("a block that cannot be read"),
        };
        if block.block_len1 != block.block_len2 {
            return Err("a block with two lengths");
        }
        let found = match kind {
            INTERFACE => {
                self.interface(block.data)?;
                None
            }
            _ => Some(self.packet(kind, block.data)?),
        };
        Ok(Some((length, found)))
    }

    fn interface(&mut self, body: &[u8]) -> Result<(), &'static str> {
        if self.interfaces.len() >= MAX_INTERFACES {
            return Err("too many interfaces");
        }
        let mut interface = Interface {
            link: self.short(body)?,
            snap_length: word(body, 4, self.is_big).ok_or(SHORT_BLOCK)?,
            units_per_second: 1_000_000,
            offset: 0,
        };
        let parse = if self.is_big {
            parse_option_be::<PcapError<&[u8]>>
        } else {
            parse_option_le::<PcapError<&[u8]>>
        };
        let mut options = &body[8..];
        while let Ok((rest, option)) = parse(options) {
            options = rest;
            match (option.code, option.value.get(..option.len.into())) {
                (OptionCode::EndOfOpt, _) => break,
                (OptionCode::IfTsresol, Some(&[resolution])) => {
                    let (base, power): (u128, _) = match resolution & 0x80 {
                        0 => (10, resolution),
                        _ => (2, resolution & 0x7f),
                    };
                    interface.units_per_second = base.saturating_pow(power.into());
                }
                (OptionCode::IfTsoffset, Some(value)) => {
                    if let Ok(value) = <[u8; 8]>::try_from(value) {
                        interface.offset = if self.is_big {
                            i64::from_be_bytes(value)
                        } else {
                            i64::from_le_bytes(value)
                        };
                    }
                }
                _ => {}
            }
        }
        self.interfaces.push(interface);
        Ok(())
    }

    /// Returns the first two bytes of a body as a number.
    fn short(&self, body: &[u8]) -> Result<u32, &'static str> {
        let word = word(body, 0, self.is_big).ok_or(SHORT_BLOCK)?;
        Ok(if self.is_big {
            word >> 16
        } else {
            word & 0xffff
        })
    }

    fn packet(&self, kind: u32, body: &[u8]) -> Result<Found, &'static str> {
        let word = |at| word(body, at, self.is_big).ok_or(SHORT_BLOCK);
        let (interface, start) = match kind {
            SIMPLE_PACKET => (0, 4),
            OLD_PACKET => (self.short(body)?, 20),
            _ => (word(0)?, 20),
        };
        let interface = self.interfaces.get(interface as usize);
        let interface = interface.ok_or("a packet of an interface that is not described")?;
        let (time, captured, original) = match kind {
            SIMPLE_PACKET => {
                let original = word(0)?;
                let limit = interface.snap_length.wrapping_sub(1).saturating_add(1);
                let captured = original.min(limit).min((body.len() - start) as u32);
                (Duration::ZERO, captured, original)
            }
            _ => {
                let stamp = u64::from(word(4)?) << 32 | u64::from(word(8)?);
                (interface.time(stamp), word(12)?, word(16)?)
            }
        };
        let data = start..start + captured as usize;
        if data.end > body.len() {
            return Err("a packet that is longer than its block");
        }
        Ok(Found {
            time,
            link: interface.link,
            data: BLOCK_HEAD + data.start..BLOCK_HEAD + data.end,
            missing: original.saturating_sub(captured),
        })
    }
}

const SHORT_BLOCK: &str = "a block that is shorter than its fields";

impl Interface {
    /// Returns the time of a timestamp by the clock of the interface.
    fn time(&self, stamp: u64) -> Duration {
        let stamp = u128::from(stamp);
        let seconds = (stamp / self.units_per_second) as i128 + i128::from(self.offset);
        // The remainder is less than 2^64, so the product does not overflow.
        let rest = stamp % self.units_per_second * 1_000_000_000 / self.units_per_second;
        match u64::try_from(seconds) {
            Ok(seconds) => Duration::new(seconds, rest as u32),
            Err(_) => Duration::ZERO,
        }
    }
}

/// Returns whether a section is big-endian, if its header is valid.
fn order(section: &[u8]) -> Option<bool> {
    const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
    [false, true]
        .into_iter()
        .find(|&is_big| word(section, BLOCK_HEAD, is_big) == Some(BYTE_ORDER_MAGIC))
}

fn word(bytes: &[u8], at: usize, is_big: bool) -> Option<u32> {
    let &bytes = bytes.get(at..)?.first_chunk()?;
    Some(if is_big {
        u32::from_be_bytes(bytes)
    } else {
        u32::from_le_bytes(bytes)
    })
}
