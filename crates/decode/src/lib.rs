//! Decodes captures of SMB Direct: pcap and pcapng files of iWARP on TCP, and of RoCE.
//!
//! Each packet is given to [`Streams`], which emits an [`Event`] for each message, with the send credits that
//! both ends hold after it and the rules that it breaks. Events serialise to the JSON objects that
//! `smbdirect decode --json` prints; a [`Summary`] counts them.
//!
//! ```
//! use smbdirect_decode::{Packets, Streams};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = "../smbdirect/tests/captures/siw-negotiate.pcap";
//! let mut packets = Packets::new(std::fs::File::open(path)?)?;
//! let mut streams = Streams::new(&[], &[]);
//! let mut names = Vec::new();
//! while let Some(packet) = packets.next_packet()? {
//!     streams.packet(&packet, &mut |event| names.extend(event.kind.name()));
//! }
//! streams.finish(&mut |event| names.extend(event.kind.name()));
//! assert_eq!(names[..2], ["MPA Request", "MPA Reply"]);
//! # Ok(())
//! # }
//! ```
//!
//! The modules, from packets to events:
//!
//! ```text
//! capture   pcap, pcapng            -> packets
//! peel      links, tags, tunnels    -> TCP, UDP or RoCEv1
//! packet    TCP or UDP              -> segments, or packets of RoCE
//! tcp       both directions         -> bytes and gaps, in a possible order
//! framing   MPA                     -> startup frames and FPDUs, in step again after a gap
//! messages  DDP, RDMAP              -> Sends, Writes, Reads, Terminates
//! roce      BTH, PSNs, CM           -> Sends, Writes, Reads, NAKs, from packets of RoCE
//! smb       [MS-SMBD]               -> negotiation, Data Transfers, credits
//! streams   all of it, in one order -> events
//! summary   events                  -> their counts
//! assembly  Data Transfers          -> SMB messages
//! explain   packets                 -> where the time went, and the causes
//! as_tcp    packets                 -> a capture of SMB2 over TCP, with the data that RDMA moved
//! recorder  bytes, datagrams        -> a capture
//! frames    bytes                   -> packets of captures
//! ```
//!
//! A capture can contain anything: nothing here panics on it, and the state of each connection and
//! of all together is bounded. A rule is only checked where everything that it depends on was
//! captured.
#![forbid(unsafe_code)]

mod as_tcp;
mod assembly;
mod capture;
mod counts;
mod event;
mod explain;
mod fields;
mod frames;
mod framing;
mod messages;
mod names;
mod out;
mod packet;
mod peel;
mod per_end;
mod recorder;
mod roce;
mod rules;
mod smb;
mod streams;
mod summary;
mod tcp;

pub use as_tcp::{AsTcp, AsTcpSummary};
pub use capture::{CaptureError, Packet, Packets};
pub use counts::{Counts, RoceCounts};
pub use event::{
    Broken, ByRdma, DataTransfer, End, Event, EventKind, Icrc, Payload, Region, Repeated,
    RocePacket, Tagged,
};
pub use explain::{
    Cause, CauseReport, ConnectionReport, Evidence, Explain, Explanation, InMessages, Limit,
    PathReport, Phase, PhaseReport, RequestReport, Verdict,
};
pub use out::Sink;
pub use peel::OTHER_UDP;
pub use per_end::{PerEnd, Side};
pub use recorder::Recorder;
pub use rules::rule_text;
pub use streams::Streams;
pub use summary::{BrokenRule, LowestCredits, MAX_SUMMARISED, RoceTotals, Summary};
pub use tcp::{Position, Recovery, TcpPacket};
