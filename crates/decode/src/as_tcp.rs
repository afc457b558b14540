//! Writes the SMB traffic of a capture as SMB2 over TCP, for tools that do not read SMB Direct.
//!
//! ```text
//! moves       READ, WRITE, RDMA      -> the data of requests
//! put_back    messages and data      -> messages as over TCP
//! connection  events                 -> messages in their order
//! flow        messages               -> segments of TCP
//! ports       connections            -> a port of its own for each client
//! output      segments, packets      -> pcapng
//! ```
//!
//! A message is written once all of it is known. Data is put back only if the capture has all of it; otherwise the
//! message stays as it is, and nothing is made up. Bytes that the capture lacks are missing in the sequence numbers, too.

mod connection;
mod flow;
mod moves;
mod output;
mod ports;
mod put_back;

use std::{
    collections::HashMap,
    io::{self, Write},
};

use serde::Serialize;

use self::{
    connection::Connection,
    output::{Output, PACKET_OVERHEAD},
};
use crate::{
    capture::Packet,
    counts::Counts,
    event::{Detail, Event, EventKind},
    packet::as_ethernet,
    streams::Streams,
};

/// Reads a capture, and writes it as SMB2 over TCP.
///
/// ```
/// use smbdirect_decode::{AsTcp, Packets};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = "../smbdirect/tests/captures/siw-negotiate.pcap";
/// let mut packets = Packets::new(std::fs::File::open(path)?)?;
/// let mut as_tcp = AsTcp::new(&[], &[], Vec::new())?;
/// while let Some(packet) = packets.next_packet()? {
///     as_tcp.packet(&packet)?;
/// }
/// let summary = as_tcp.finish()?;
/// assert_eq!(summary.connections, 1);
/// # Ok(())
/// # }
/// ```
pub struct AsTcp<W: Write> {
    streams: Streams,
    connections: HashMap<u32, Connection>,
    held: usize,
    /// The connections with messages that the current packet has completed.
    touched: Vec<u32>,
    out: Output<W>,
}

/// What was written. It serialises to the JSON object that `smbdirect decode --as-tcp --json` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename = "as_tcp")]
pub struct AsTcpSummary {
    /// Connections of SMB Direct.
    pub connections: u64,
    /// SMB messages of those connections.
    pub messages: u64,
    /// Bytes that RDMA moved and that were put back into messages.
    pub put_back_bytes: u64,
    /// READ responses and WRITE requests that stayed as they were, because the capture lacks their data.
    pub without_data: u64,
    /// Gaps in the connections.
    pub gaps: u64,
    /// Messages over SMB Direct that are not of SMB, and were left out.
    pub not_smb: u64,
    /// Packets of SMB over TCP that were copied.
    pub copied_packets: u64,
}

/// Maximum number of connections that are kept. Beyond it, the connection without events for the longest time is ended.
const MAX_CONNECTIONS: usize = 8192;
/// Maximum number of bytes that all connections hold. A connection that exceeds it gives up what it waits for.
const MAX_HELD_BYTES: usize = 256 << 20;

impl<W: Write> AsTcp<W> {
    /// Follows connections to the ports of SMB Direct and to `ports`, and RoCE on its UDP port and on `udp_ports`.
    ///
    /// # Errors
    /// The head of the output cannot be written.
    pub fn new(ports: &[u16], udp_ports: &[u16], output: W) -> io::Result<Self> {
        Ok(Self {
            streams: Streams::new(ports, udp_ports).with_detail(Detail::Content),
            connections: HashMap::new(),
            held: 0,
            touched: Vec::new(),
            out: Output::new(output)?,
        })
    }

    /// Returns the counts up to now.
    pub const fn counts(&self) -> &Counts {
        self.streams.counts()
    }

    /// Takes the next packet.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn packet(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        self.with_streams(|streams, sink| streams.packet(packet, sink));
        self.flush();
        if let Some(ends) = self.streams.plain_packet() {
            self.out.ports.take_plain(ends);
            self.out.summary.copied_packets += 1;
            let frame = as_ethernet(packet);
            let length = frame.len() + packet.missing as usize;
            self.out.frame(packet.time, &frame, length);
        } else if self.streams.is_without_data() {
            self.out.earn(packet.data.len() + PACKET_OVERHEAD);
        }
        self.out.check()
    }

    /// Ends the capture, and writes what waits.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(mut self) -> io::Result<AsTcpSummary> {
        self.with_streams(Streams::finish);
        self.flush();
        let mut connections: Vec<_> = self.connections.into_iter().collect();
        connections.sort_unstable_by_key(|(number, _)| *number);
        for (_, mut connection) in connections {
            connection.finish(&mut self.out);
        }
        self.out.finish()
    }

    fn with_streams(&mut self, run: impl FnOnce(&mut Streams, crate::Sink<'_>)) {
        let mut streams = std::mem::take(&mut self.streams);
        run(&mut streams, &mut |event| self.event(&event));
        self.streams = streams;
    }

    /// Writes the messages that the current packet has completed.
    fn flush(&mut self) {
        for number in self.touched.drain(..) {
            if let Some(connection) = self.connections.get_mut(&number) {
                self.held -= connection.held();
                connection.flush(&mut self.out);
                self.held += connection.held();
            }
        }
    }

    fn event(&mut self, event: &Event) {
        if let EventKind::Stream { ends, .. } = event.kind {
            if self.connections.len() >= MAX_CONNECTIONS {
                self.make_room();
            }
            let connection = Connection::new(event.stream, ends);
            self.connections.insert(event.stream, connection);
            self.out.summary.connections += 1;
            return;
        }
        let Some(connection) = self.connections.get_mut(&event.stream) else {
            return;
        };
        self.held -= connection.held();
        connection.event(event, &mut self.out);
        let is_over = connection.has_ended();
        if is_over || self.held + connection.held() > MAX_HELD_BYTES {
            connection.finish(&mut self.out);
        }
        self.held += connection.held();
        if connection.has_pending() && self.touched.last() != Some(&event.stream) {
            self.touched.push(event.stream);
        }
        if is_over {
            connection.release(&mut self.out);
            self.connections.remove(&event.stream);
        }
    }

    /// Ends the half of the connections that has been without events for longer.
    fn make_room(&mut self) {
        let mut seen: Vec<_> = self
            .connections
            .iter()
            .map(|(number, connection)| (connection.seen, *number))
            .collect();
        let half = seen.len() / 2;
        seen.select_nth_unstable(half);
        seen[..half].sort_unstable();
        for (_, number) in &seen[..half] {
            if let Some(mut connection) = self.connections.remove(number) {
                self.held -= connection.held();
                connection.finish(&mut self.out);
                connection.release(&mut self.out);
            }
        }
    }
}
