//! The analysis of a capture: packets, their TCP connections, iWARP and SMB Direct on those, or
//! their RoCE connections and SMB Direct on those, and broken rules.
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
//! silence   credits and time        -> ends that grant nothing
//! streams   all of it, in one order -> events
//! ```
//!
//! A capture can contain anything: nothing here panics on it, and the state of each connection and
//! of all together is bounded. A rule is only checked where everything that it depends on was
//! captured.

mod capture;
mod event;
mod framing;
mod messages;
mod packet;
mod peel;
mod roce;
mod rules;
mod silence;
mod smb;
mod streams;
mod tcp;

pub(crate) use capture::{CaptureError, Packets};
pub(crate) use event::{
    ByRdma, DataTransfer, End, Event, Icrc, Payload, Region, Repeated, RocePacket, Sender, Tagged,
    What,
};
pub(crate) use peel::OTHER_UDP;
pub(crate) use rules::text;
pub(crate) use streams::{Counts, Streams};
