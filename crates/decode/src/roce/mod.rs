//! RoCE: packets of UDP port 4791, their reliable connections, and the messages on those.
//!
//! ```text
//! datagram     BTH, extended headers, ICRC  -> packets
//! flows        queue pairs, CM, addresses   -> reliable connections of two queue pairs
//! order        both directions              -> requests in the order of their PSNs, and gaps
//! connection   Sends, Writes, Reads         -> SMB Direct messages, events
//! ```
//!
//! A packet names only the queue pair that it goes to. If the capture has the messages of the
//! communication manager (CM), they name both queue pairs of a connection. Otherwise, [`flows`]
//! finds the two directions of a connection by their addresses and by the PSNs that one direction
//! sends and the other acknowledges, and [`recognise`] decides whether they carry SMB Direct.

mod cm;
mod communication_ids;
mod connection;
mod datagram;
mod flows;
mod order;
mod reads;
mod recognise;

pub(super) use flows::Roce;
