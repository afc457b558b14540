//! What a capture says: packets, the TCP connections in them, iWARP and SMB Direct on those, and
//! which rules were broken.
//!
//! ```text
//! capture   pcap, pcapng            -> packets
//! packet    link, IP, TCP           -> segments
//! tcp       both directions         -> bytes and gaps, in a possible order
//! framing   MPA                     -> startup frames and FPDUs, in step again behind a gap
//! messages  DDP, RDMAP              -> Sends, Writes, Reads, Terminates
//! smb       [MS-SMBD]               -> negotiation, Data Transfers, credits
//! streams   all of it, in one order -> events
//! ```
//!
//! A capture says what it likes: nothing here panics on it, and what is kept of a connection, and
//! of all of them, is bounded. A rule is held against a peer only where all that it depends on was
//! seen.

mod capture;
mod event;
mod framing;
mod messages;
mod packet;
mod rules;
mod smb;
mod streams;
mod tcp;

pub(crate) use capture::{CaptureError, Packets};
pub(crate) use event::{ByRdma, DataTransfer, Event, Payload, Sender, Tagged, What};
pub(crate) use rules::text;
pub(crate) use streams::{Counts, Streams};
