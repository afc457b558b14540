//! The file that is written: pcapng with one interface, of Ethernet. Programs on libpcap, such as Zeek and tcpdump, read
//! only files with one link type.
//!
//! The output is no longer than the packets that were read and the data that RDMA moved, whatever a capture contains. A
//! message takes the place of the packet that completed it, and data that is put back that of the packets that moved it.
//! Handshakes and acknowledgements, which only make the output easier to read, are written as long as the bytes read
//! exceed the bytes written.

use std::{
    borrow::Cow,
    io::{self, Write},
    time::Duration,
};

use pcap_file::{
    DataLink,
    pcapng::{
        Block, PcapNgWriter,
        blocks::{
            enhanced_packet::EnhancedPacketBlock,
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
        },
    },
};

use super::{AsTcpSummary, ports::Ports};
use crate::recorder::reason;

/// A pcapng file that is being written.
pub(super) struct Output<W: Write> {
    writer: PcapNgWriter<W>,
    /// Bytes that were read and have no place in the output.
    surplus: u64,
    failure: Option<io::Error>,
    pub(super) ports: Ports,
    pub(super) summary: AsTcpSummary,
}

/// The value of `if_tsresol` for nanoseconds.
const NANOSECONDS: u8 = 9;
/// Bytes of a packet in pcapng in addition to its own, at most.
pub(super) const PACKET_OVERHEAD: usize = 32 + 3;

impl<W: Write> Output<W> {
    /// Writes the head of a file.
    ///
    /// # Errors
    /// The head cannot be written.
    pub(super) fn new(output: W) -> io::Result<Self> {
        let mut output = Self {
            writer: PcapNgWriter::new(output).map_err(reason)?,
            surplus: 0,
            failure: None,
            ports: Ports::default(),
            summary: AsTcpSummary::default(),
        };
        output.block(&Block::InterfaceDescription(InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![InterfaceDescriptionOption::IfTsResol(NANOSECONDS)],
        }));
        output.check()?;
        Ok(output)
    }

    /// Returns the first write error.
    ///
    /// # Errors
    /// Something could not be written.
    pub(super) fn check(&mut self) -> io::Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Flushes the file, and returns what was written.
    ///
    /// # Errors
    /// Something could not be written.
    pub(super) fn finish(mut self) -> io::Result<AsTcpSummary> {
        self.check()?;
        self.writer.get_mut().flush()?;
        Ok(self.summary)
    }

    /// Counts bytes that were read and have no place in the output.
    pub(super) const fn earn(&mut self, bytes: usize) {
        self.surplus = self.surplus.saturating_add(bytes as u64);
    }

    /// Pays for packets that are not needed, of this number of bytes each. Returns whether they may be written.
    pub(super) const fn pays(&mut self, packets: usize, bytes: usize) -> bool {
        let price = (packets * (PACKET_OVERHEAD + bytes)) as u64;
        let has_enough = price <= self.surplus;
        if has_enough {
            self.surplus -= price;
        }
        has_enough
    }

    /// Writes an Ethernet frame of which the capture has `data`, and which had `length` bytes.
    pub(super) fn frame(&mut self, time: Duration, data: &[u8], length: usize) {
        // A stamp has 64 bits.
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.block(&Block::EnhancedPacket(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(nanos),
            original_len: u32::try_from(length).unwrap_or(u32::MAX),
            data: Cow::Borrowed(data),
            options: Vec::new(),
        }));
    }

    fn block(&mut self, block: &Block<'_>) {
        if self.failure.is_some() {
            return;
        }
        if let Err(error) = self.writer.write_block(block) {
            self.failure = Some(reason(error));
        }
    }
}
