//! The TCP connection that takes the place of a connection of SMB Direct.

use std::{io::Write, net::SocketAddr, time::Duration};

use smbdirect_smb::frame;

use super::output::Output;
use crate::{
    frames::{Segment, TcpFlow},
    per_end::{PerEnd, Side},
    tcp::Position,
};

/// A TCP connection that is being written.
#[derive(Debug)]
pub(super) struct Flow {
    tcp: TcpFlow,
    ends: PerEnd<SocketAddr>,
    client: Side,
    has_begun: bool,
    /// Whole messages that one packet of an end has completed, and that are not written yet.
    pending: Option<Pending>,
    /// Bytes of each end that the other one has not acknowledged.
    unacknowledged: PerEnd<usize>,
    has_ended: PerEnd<bool>,
}

#[derive(Debug)]
struct Pending {
    from: Side,
    at: Position,
    bytes: Vec<u8>,
}

/// Bytes after which an end acknowledges at the latest, as receivers of TCP do.
const MAX_UNACKNOWLEDGED: usize = 64 << 10;
/// The largest gap, in bytes. A tool takes a larger one for another connection.
const MAX_GAP: u64 = 1 << 20;
/// Bytes of the option of a SYN, with its padding.
const SYN_OPTIONS: usize = 4;

impl Flow {
    /// Creates the connection with this number.
    pub(super) fn new(ends: PerEnd<SocketAddr>, client: Side, number: u32) -> Self {
        // Connections that use the same ports one after another begin far from each other.
        let first = number.wrapping_mul(0x9e37_79b9);
        Self {
            ends,
            tcp: TcpFlow::new(ends, PerEnd([first, first.rotate_left(16)])),
            client,
            has_begun: false,
            pending: None,
            unacknowledged: PerEnd::default(),
            has_ended: PerEnd::default(),
        }
    }

    /// Returns the addresses of the client and the server.
    pub(super) fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.ends[self.client], self.ends[!self.client])
    }

    /// Returns the bytes that are held.
    pub(super) fn held(&self) -> usize {
        self.pending
            .as_ref()
            .map_or(0, |pending| pending.bytes.len())
    }

    /// Writes a message of `length` bytes, of which the capture has the first ones. Returns whether it can be written.
    pub(super) fn message<W: Write>(
        &mut self,
        from: Side,
        at: Position,
        bytes: &[u8],
        length: usize,
        out: &mut Output<W>,
    ) -> bool {
        let Some(header) = frame::header(length) else {
            return false;
        };
        let is_cut = bytes.len() < length;
        let shares_packet = |pending: &Pending| {
            (pending.from, pending.at.frame) == (from, at.frame)
                && pending.bytes.len() < TcpFlow::MAX_SEGMENT
        };
        // A segment for each message is easier to read. Messages that one packet completes share one again where the
        // surplus does not pay for more.
        if let Some(pending) = &self.pending
            && (is_cut || !shares_packet(pending) || out.pays(1, TcpFlow::MAX_HEADERS))
        {
            self.flush(out);
        }
        if is_cut {
            self.cut(from, at.time, &[&header, bytes].concat(), length, out);
            return true;
        }
        let pending = self.pending.get_or_insert_with(|| Pending {
            from,
            at,
            bytes: Vec::new(),
        });
        pending.bytes.extend_from_slice(&header);
        pending.bytes.extend_from_slice(bytes);
        true
    }

    /// Writes what is held.
    pub(super) fn flush<W: Write>(&mut self, out: &mut Output<W>) {
        let Some(Pending { from, at, bytes }) = self.pending.take() else {
            return;
        };
        let time = at.time;
        self.begin(time, out);
        for part in bytes.chunks(TcpFlow::MAX_SEGMENT) {
            let frame = self.tcp.frame(from, Segment::Data(part));
            out.frame(time, &frame, frame.len());
            self.sent(from, part.len(), time, out);
        }
    }

    /// Writes a message of which the capture lacks the end: as segments that are cut, and a gap.
    fn cut<W: Write>(
        &mut self,
        from: Side,
        time: Duration,
        bytes: &[u8],
        length: usize,
        out: &mut Output<W>,
    ) {
        self.begin(time, out);
        let mut rest = length + frame::HEADER_LENGTH;
        for part in bytes.chunks(TcpFlow::MAX_SEGMENT) {
            let mut payload = part.to_vec();
            payload.resize(rest.min(TcpFlow::MAX_SEGMENT), 0);
            let frame = self.tcp.frame(from, Segment::Data(&payload));
            let missing = payload.len() - part.len();
            out.frame(time, &frame[..frame.len() - missing], frame.len());
            rest -= payload.len();
            self.sent(from, payload.len(), time, out);
        }
        self.tcp.skip(from, rest as u32);
    }

    /// Writes the handshake before the first message.
    fn begin<W: Write>(&mut self, time: Duration, out: &mut Output<W>) {
        let was_begun = std::mem::replace(&mut self.has_begun, true);
        if was_begun || !out.pays(3, TcpFlow::MAX_HEADERS + SYN_OPTIONS) {
            return;
        }
        for (from, segment) in TcpFlow::handshake(self.client) {
            let frame = self.tcp.frame(from, segment);
            out.frame(time, &frame, frame.len());
        }
    }

    /// Counts bytes that an end has sent, and acknowledges them if they are many.
    fn sent<W: Write>(&mut self, from: Side, bytes: usize, time: Duration, out: &mut Output<W>) {
        self.unacknowledged[!from] = 0;
        self.unacknowledged[from] += bytes;
        if self.unacknowledged[from] >= MAX_UNACKNOWLEDGED && out.pays(1, TcpFlow::MAX_HEADERS) {
            self.unacknowledged[from] = 0;
            let frame = self.tcp.frame(!from, Segment::Ack);
            out.frame(time, &frame, frame.len());
        }
    }

    /// Leaves a gap in the bytes of an end.
    pub(super) fn lost<W: Write>(&mut self, from: Side, bytes: u64, out: &mut Output<W>) {
        self.flush(out);
        if self.has_begun {
            self.tcp.skip(from, bytes.clamp(1, MAX_GAP) as u32);
        }
    }

    /// Ends the connection in a direction.
    pub(super) fn end<W: Write>(
        &mut self,
        from: Side,
        reset: bool,
        time: Duration,
        out: &mut Output<W>,
    ) {
        self.flush(out);
        let is_over = std::mem::replace(&mut self.has_ended[from], true);
        if !is_over && self.has_begun && out.pays(1, TcpFlow::MAX_HEADERS) {
            let segment = if reset { Segment::Reset } else { Segment::Fin };
            let frame = self.tcp.frame(from, segment);
            out.frame(time, &frame, frame.len());
        }
    }
}
