//! The result of a negotiation, as reports show it.

use serde::Serialize;
use smbdirect::Negotiated;

/// The result of a negotiation, to be serialised.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct NegotiatedReport {
    /// `1.0`
    version: &'static str,
    max_send_size: u32,
    max_receive_size: u32,
    max_fragmented_send_size: u32,
    max_fragmented_receive_size: u32,
    max_read_write_size: u32,
    keepalive_interval: f64,
}

impl From<Negotiated> for NegotiatedReport {
    fn from(negotiated: Negotiated) -> Self {
        Self {
            version: VERSION,
            max_send_size: negotiated.max_send_size,
            max_receive_size: negotiated.max_receive_size,
            max_fragmented_send_size: negotiated.max_fragmented_send_size,
            max_fragmented_receive_size: negotiated.max_fragmented_receive_size,
            max_read_write_size: negotiated.max_read_write_size,
            keepalive_interval: negotiated.keepalive_interval.as_secs_f64(),
        }
    }
}

/// The version of the protocol ([MS-SMBD] 2.2.2) that every negotiation agrees on: there is no other.
pub const VERSION: &str = "1.0";
