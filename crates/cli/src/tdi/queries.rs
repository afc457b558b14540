//! The answers to the queries of a session: `info`, `statistics` and `connection`.

use std::fmt;

use bitflags::Flags;
use serde::Serialize;
use smbdirect::tdi::{ConnectionInfo, EndpointState, ProviderInfo, ProviderStatistics};

/// Returns the names of flags with `|` between them, `0` if none is set.
pub(super) fn names<F: Flags<Bits = u32>>(flags: F) -> String {
    let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
    match names.is_empty() {
        true => "0".into(),
        false => names.join("|"),
    }
}

/// The answer to `info`: the properties of the transport.
#[derive(Debug, Serialize)]
pub(super) struct Info {
    version: u32,
    max_send_size: usize,
    service_flags: String,
    local_priority_sends: bool,
    minimum_lookahead_data: usize,
    maximum_lookahead_data: usize,
}

impl From<&ProviderInfo> for Info {
    fn from(info: &ProviderInfo) -> Self {
        Self {
            version: info.version,
            max_send_size: info.max_send_size,
            service_flags: names(info.service_flags),
            local_priority_sends: info.local_priority_sends,
            minimum_lookahead_data: info.minimum_lookahead_data,
            maximum_lookahead_data: info.maximum_lookahead_data,
        }
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expedited = match self.local_priority_sends {
            true => "overtake at this end",
            false => "are normal sends",
        };
        writeln!(
            f,
            "provider   version {:#06x}, MaxSendSize {} B",
            self.version, self.max_send_size
        )?;
        writeln!(f, "services   {}", self.service_flags)?;
        writeln!(f, "expedited  sends {expedited}")?;
        write!(
            f,
            "look-ahead {} B to {} B",
            self.minimum_lookahead_data, self.maximum_lookahead_data
        )
    }
}

/// The answer to `statistics`: the counters of the transport.
#[derive(Debug, Serialize)]
pub(super) struct Statistics {
    open_connections: u64,
    local_disconnects: u64,
    remote_disconnects: u64,
    link_failures: u64,
    session_timeouts: u64,
    packets_sent: u64,
    packets_received: u64,
    data_frames_sent: u64,
    data_frame_bytes_sent: u64,
    data_frames_received: u64,
    data_frame_bytes_received: u64,
    send_buffer_maximum_used: u64,
    send_buffer_exhausted: u64,
    receive_buffer_maximum_used: u64,
    receive_buffer_exhausted: u64,
}

impl From<&ProviderStatistics> for Statistics {
    fn from(statistics: &ProviderStatistics) -> Self {
        let [send, receive] = &statistics.resources;
        Self {
            open_connections: statistics.open_connections,
            local_disconnects: statistics.local_disconnects,
            remote_disconnects: statistics.remote_disconnects,
            link_failures: statistics.link_failures,
            session_timeouts: statistics.session_timeouts,
            packets_sent: statistics.packets_sent,
            packets_received: statistics.packets_received,
            data_frames_sent: statistics.data_frames_sent,
            data_frame_bytes_sent: statistics.data_frame_bytes_sent,
            data_frames_received: statistics.data_frames_received,
            data_frame_bytes_received: statistics.data_frame_bytes_received,
            send_buffer_maximum_used: send.maximum_used,
            send_buffer_exhausted: send.exhausted,
            receive_buffer_maximum_used: receive.maximum_used,
            receive_buffer_exhausted: receive.exhausted,
        }
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "endpoints  {} open; disconnects: {} local, {} remote, {} by the link, {} by time",
            self.open_connections,
            self.local_disconnects,
            self.remote_disconnects,
            self.link_failures,
            self.session_timeouts
        )?;
        writeln!(
            f,
            "sent       {} messages, {} of them with {} B; buffer: {} B at most, full {} times",
            self.packets_sent,
            self.data_frames_sent,
            self.data_frame_bytes_sent,
            self.send_buffer_maximum_used,
            self.send_buffer_exhausted
        )?;
        write!(
            f,
            "received   {} messages, {} of them with {} B; buffer: {} B at most, full {} times",
            self.packets_received,
            self.data_frames_received,
            self.data_frame_bytes_received,
            self.receive_buffer_maximum_used,
            self.receive_buffer_exhausted
        )
    }
}

/// The answer to `connection`: the state of the endpoint and of its connection.
#[derive(Debug, Serialize)]
pub(super) struct Connection {
    state: String,
    transmitted_tsdus: u64,
    transmitted_bytes: u64,
    received_tsdus: u64,
    received_bytes: u64,
    send_buffer_size: usize,
    send_buffer_available: usize,
    receive_buffer_size: usize,
    receive_buffer_held: usize,
    unreliable: bool,
    /// `None` without a connection.
    send_credits: Option<u16>,
    /// `None` without a connection.
    granted_credits: Option<u16>,
    /// Number of keepalives sent, whose answers bring credits; `None` without a connection.
    keepalives_sent: Option<u64>,
}

impl Connection {
    pub(super) fn new(info: &ConnectionInfo, connection: Option<&smbdirect::Connection>) -> Self {
        let credits = connection.map(smbdirect::Connection::credits);
        Self {
            state: state(info.state),
            transmitted_tsdus: info.transmitted_tsdus,
            transmitted_bytes: info.transmitted_bytes,
            received_tsdus: info.received_tsdus,
            received_bytes: info.received_bytes,
            send_buffer_size: info.send_buffer_size,
            send_buffer_available: info.send_buffer_available,
            receive_buffer_size: info.receive_buffer_size,
            receive_buffer_held: info.receive_buffer_held,
            unreliable: info.unreliable,
            send_credits: credits.map(|credits| credits.send_credits),
            granted_credits: credits.map(|credits| credits.granted),
            keepalives_sent: connection.map(|connection| connection.stats().keepalives_sent),
        }
    }
}

fn state(state: EndpointState) -> String {
    format!("{state:?}").to_lowercase()
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unreliable = match self.unreliable {
            true => ", unreliable",
            false => "",
        };
        writeln!(f, "connection {}{unreliable}", self.state)?;
        writeln!(
            f,
            "sent       {} TSDUs, {} B; buffer: {} of {} B free",
            self.transmitted_tsdus,
            self.transmitted_bytes,
            self.send_buffer_available,
            self.send_buffer_size
        )?;
        write!(
            f,
            "received   {} TSDUs, {} B; buffer: {} of {} B held",
            self.received_tsdus,
            self.received_bytes,
            self.receive_buffer_held,
            self.receive_buffer_size
        )?;
        if let (Some(credits), Some(asked)) = (self.send_credits, self.keepalives_sent) {
            write!(
                f,
                "\ncredits    {credits} to send with; answers asked for: {asked}"
            )?;
        }
        Ok(())
    }
}
