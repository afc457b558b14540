//! What a session shows: a line for each thing that happens, as text or as a JSON object.

use std::{
    fmt,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
};

use bitflags::Flags;
use serde::Serialize;
use smbdirect::{
    Connection,
    tdi::{ConnectionInfo, EndpointState, ProviderInfo, ProviderStatistics, Status},
};

use crate::report::{self, NegotiatedReport, Report};

/// Something that happened.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event {
    Listening {
        address: String,
    },
    Connected {
        address: SocketAddr,
        transport: &'static str,
        /// Most bytes of a TSDU to send.
        max_tsdu: usize,
        negotiated: NegotiatedReport,
    },
    /// An offer that was accepted came to nothing.
    NotConnected {
        address: SocketAddr,
        status: Name,
    },
    /// A command, where nobody has typed it.
    Command {
        command: String,
    },
    /// A request with a completion, as it was submitted.
    Request {
        id: u64,
        request: &'static str,
        flags: String,
        bytes: Option<usize>,
        #[serde(flatten)]
        result: Outcome,
    },
    Completed {
        id: u64,
        #[serde(flatten)]
        result: Outcome,
    },
    /// A request that is done by the call.
    Done {
        request: &'static str,
        #[serde(flatten)]
        result: Outcome,
    },
    Indicated {
        flags: String,
        indicated: usize,
        available: usize,
        tsdu_offset: usize,
        tsdu_length: usize,
        data: Data,
        answer: String,
    },
    Chained {
        tsdu_length: usize,
        data: Data,
        answer: String,
    },
    SendPossible {
        available: usize,
    },
    Invalidated {
        token: u32,
    },
    Disconnected {
        flags: String,
        status: Name,
        cause: String,
    },
    /// Nothing will be offered on the address any more.
    Error {
        status: Name,
    },
    Info {
        version: u32,
        max_send_size: usize,
        service_flags: String,
        local_priority_sends: bool,
        minimum_lookahead_data: usize,
        maximum_lookahead_data: usize,
    },
    Statistics {
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
    },
    Connection {
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
        /// None without a connection, as those below.
        send_credits: Option<u16>,
        granted_credits: Option<u16>,
        /// How often the peer was asked for a sign of life, which brings credits.
        keepalives_sent: Option<u64>,
    },
}

/// A status by its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name(pub(super) Status);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Name {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// What became of a request.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) status: Name,
    /// Bytes taken from, or put into, its buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) information: Option<usize>,
    /// What was received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Data>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) invalidated_token: Option<u32>,
    /// With an expectation: whether it was met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expected: Option<bool>,
}

impl Outcome {
    pub(super) const fn new(status: Status) -> Self {
        Self {
            status: Name(status),
            information: None,
            data: None,
            invalidated_token: None,
            expected: None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        match (&self.data, self.information) {
            (Some(data), Some(bytes)) => write!(f, ", {bytes} B: {data}")?,
            (None, Some(bytes)) => write!(f, ", {bytes} B taken")?,
            _ => {}
        }
        if let Some(token) = self.invalidated_token {
            write!(f, ", token {token:#x} invalidated")?;
        }
        match self.expected {
            Some(true) => f.write_str(", as expected"),
            Some(false) => f.write_str(", not as expected"),
            None => Ok(()),
        }
    }
}

/// The beginning of some bytes, as text.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Data(String);

/// Characters that are shown.
const SHOWN: usize = 32;

impl Data {
    /// More bytes than that are not looked at.
    pub(super) const ENOUGH: usize = SHOWN + 1;

    pub(super) fn new(bytes: &[u8]) -> Self {
        let beginning = &bytes[..bytes.len().min(SHOWN)];
        let text = report::printable(&String::from_utf8_lossy(beginning));
        let dots = if bytes.len() > SHOWN { "..." } else { "" };
        Self(format!("{text}{dots}"))
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

/// The names of flags, `0` if there are none.
pub(super) fn names<F: Flags<Bits = u32>>(flags: F) -> String {
    let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
    match names.is_empty() {
        true => "0".into(),
        false => names.join("|"),
    }
}

impl Event {
    pub(super) fn info(info: &ProviderInfo) -> Self {
        Self::Info {
            version: info.version,
            max_send_size: info.max_send_size,
            service_flags: names(info.service_flags),
            local_priority_sends: info.local_priority_sends,
            minimum_lookahead_data: info.minimum_lookahead_data,
            maximum_lookahead_data: info.maximum_lookahead_data,
        }
    }

    pub(super) const fn statistics(statistics: &ProviderStatistics) -> Self {
        let [send, receive] = &statistics.resources;
        Self::Statistics {
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

    pub(super) fn connection(info: &ConnectionInfo, connection: Option<&Connection>) -> Self {
        let credits = connection.map(Connection::credits);
        Self::Connection {
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

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening { address } => write!(f, "listening on {address}"),
            Self::Connected {
                address,
                transport,
                max_tsdu,
                ..
            } => write!(
                f,
                "connected with {address} over {transport}, TSDUs of up to {max_tsdu} B"
            ),
            Self::NotConnected { address, status } => {
                write!(f, "{address} was accepted and did not make it: {status}")
            }
            Self::Command { command } => write!(f, "> {command}"),
            Self::Request {
                id,
                request,
                flags,
                bytes,
                result,
            } => {
                write!(f, "#{id} {request}")?;
                if flags != "0" {
                    write!(f, " {flags}")?;
                }
                if let Some(bytes) = bytes {
                    write!(f, " {bytes} B")?;
                }
                write!(f, " -> {result}")
            }
            Self::Completed { id, result } => write!(f, "#{id} completed {result}"),
            Self::Done { request, result } => write!(f, "{request} -> {result}"),
            Self::Indicated {
                flags,
                indicated,
                available,
                tsdu_offset,
                tsdu_length,
                data,
                answer,
            } => {
                // That one is in all of them.
                let flags = flags.replace("|AT_DISPATCH_LEVEL", "");
                let end = tsdu_offset + indicated;
                write!(f, "indicated {indicated} of {available} B ({flags}), ")?;
                write!(
                    f,
                    "TSDU {tsdu_offset}..{end} of {tsdu_length}: {data} -> {answer}"
                )
            }
            Self::Chained {
                tsdu_length,
                data,
                answer,
            } => write!(f, "lent a TSDU of {tsdu_length} B: {data} -> {answer}"),
            Self::SendPossible { available } => write!(f, "event: send possible, {available} B"),
            Self::Invalidated { token } => write!(f, "event: token {token:#x} invalidated"),
            Self::Disconnected { flags, cause, .. } => {
                write!(f, "event: disconnected ({flags}): {cause}")
            }
            Self::Error { status } => write!(f, "event: error {status}"),
            Self::Info { .. } | Self::Statistics { .. } | Self::Connection { .. } => {
                self.fmt_query(f)
            }
        }
    }
}

impl Event {
    /// The answers to queries, several lines each.
    fn fmt_query(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Info {
                version,
                max_send_size,
                service_flags,
                local_priority_sends,
                minimum_lookahead_data,
                maximum_lookahead_data,
            } => {
                let expedited = match local_priority_sends {
                    true => "overtake at this end",
                    false => "are normal sends",
                };
                writeln!(
                    f,
                    "provider   version {version:#06x}, MaxSendSize {max_send_size} B"
                )?;
                writeln!(f, "services   {service_flags}")?;
                writeln!(f, "expedited  sends {expedited}")?;
                write!(
                    f,
                    "look-ahead {minimum_lookahead_data} B to {maximum_lookahead_data} B"
                )
            }
            Self::Statistics {
                open_connections,
                local_disconnects,
                remote_disconnects,
                link_failures,
                session_timeouts,
                packets_sent,
                packets_received,
                data_frames_sent,
                data_frame_bytes_sent,
                data_frames_received,
                data_frame_bytes_received,
                send_buffer_maximum_used,
                send_buffer_exhausted,
                receive_buffer_maximum_used,
                receive_buffer_exhausted,
            } => {
                writeln!(
                    f,
                    "endpoints  {open_connections} open; disconnects: {local_disconnects} local, \
                     {remote_disconnects} remote, {link_failures} by the link, {session_timeouts} \
                     by time"
                )?;
                writeln!(
                    f,
                    "sent       {packets_sent} messages, {data_frames_sent} of them with \
                     {data_frame_bytes_sent} B; buffer: {send_buffer_maximum_used} B at most, full \
                     {send_buffer_exhausted} times"
                )?;
                write!(
                    f,
                    "received   {packets_received} messages, {data_frames_received} of them with \
                     {data_frame_bytes_received} B; buffer: {receive_buffer_maximum_used} B at \
                     most, full {receive_buffer_exhausted} times"
                )
            }
            Self::Connection {
                state,
                transmitted_tsdus,
                transmitted_bytes,
                received_tsdus,
                received_bytes,
                send_buffer_size,
                send_buffer_available,
                receive_buffer_size,
                receive_buffer_held,
                unreliable,
                send_credits,
                keepalives_sent,
                ..
            } => {
                let unreliable = match unreliable {
                    true => ", unreliable",
                    false => "",
                };
                writeln!(f, "connection {state}{unreliable}")?;
                writeln!(
                    f,
                    "sent       {transmitted_tsdus} TSDUs, {transmitted_bytes} B; buffer: \
                     {send_buffer_available} of {send_buffer_size} B free"
                )?;
                write!(
                    f,
                    "received   {received_tsdus} TSDUs, {received_bytes} B; buffer: \
                     {receive_buffer_held} of {receive_buffer_size} B held"
                )?;
                if let (Some(credits), Some(asked)) = (send_credits, keepalives_sent) {
                    write!(
                        f,
                        "\ncredits    {credits} to send with; answers asked for: {asked}"
                    )?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Where the lines of a session go.
#[derive(Debug)]
pub(super) struct Lines {
    report: Report,
    /// Number of the peer, where there can be several.
    peer: Option<u64>,
    /// Somebody types commands, and is to see where.
    prompts: bool,
    /// The prompt stands on the line that is to be written.
    prompted: AtomicBool,
}

#[derive(Serialize)]
struct OfPeer<'a> {
    #[serde(flatten)]
    event: &'a Event,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<u64>,
}

impl Lines {
    pub(super) const fn new(report: Report, peer: Option<u64>, prompts: bool) -> Self {
        Self {
            report,
            peer,
            prompts,
            prompted: AtomicBool::new(false),
        }
    }

    pub(super) fn show(&self, event: &Event) {
        let prompted = self.prompted.load(Ordering::Relaxed);
        let back = if prompted { "\r" } else { "" };
        match self.peer {
            None => self.report.line(format_args!("{back}{event}")),
            Some(peer) => {
                let text = event.to_string();
                for line in text.lines() {
                    self.report.line(format_args!("{back}peer {peer}: {line}"));
                }
            }
        }
        let peer = self.peer;
        self.report.event(&OfPeer { event, peer });
        if prompted {
            self.report.prompt(PROMPT);
        }
    }

    /// Help, which is for people only.
    pub(super) fn help(&self, text: &str) {
        self.report.line(text);
    }

    /// Asks for a command, if somebody types them.
    pub(super) fn prompt(&self) {
        if self.prompts && !self.prompted.swap(true, Ordering::Relaxed) {
            self.report.prompt(PROMPT);
        }
    }

    /// A command was typed.
    pub(super) fn typed(&self) {
        self.prompted.store(false, Ordering::Relaxed);
    }
}

const PROMPT: &str = "> ";

#[cfg(test)]
mod tests {
    use smbdirect::tdi::{SendFlags, ServiceFlags};

    use super::*;

    #[test]
    fn flags_have_their_names() {
        assert_eq!(names(SendFlags::empty()), "0");
        assert_eq!(
            names(SendFlags::PARTIAL | SendFlags::EXPEDITED),
            "EXPEDITED|PARTIAL"
        );
        assert_eq!(
            names(ServiceFlags::SMB_DIRECT),
            "CONNECTION_MODE|ERROR_FREE_DELIVERY|DELAYED_ACCEPTANCE|INTERNAL_BUFFERING|\
             NO_ZERO_LENGTH|MESSAGE_MODE"
        );
    }

    #[test]
    fn data_is_short_and_does_not_move_the_cursor() {
        assert_eq!(Data::new(b"hello").to_string(), "\"hello\"");
        assert_eq!(
            Data::new(b"\x1b[2J\xff").to_string(),
            "\"\u{fffd}[2J\u{fffd}\""
        );
        assert_eq!(
            Data::new(&[b'x'; 33]).to_string(),
            format!("\"{}...\"", "x".repeat(32))
        );
    }

    #[test]
    fn a_request_and_its_completion_are_lines() {
        let request = Event::Request {
            id: 3,
            request: "send",
            flags: names(SendFlags::PARTIAL),
            bytes: Some(5),
            result: Outcome::new(Status::PENDING),
        };
        assert_eq!(request.to_string(), "#3 send PARTIAL 5 B -> STATUS_PENDING");
        let completed = Event::Completed {
            id: 3,
            result: Outcome {
                information: Some(5),
                ..Outcome::new(Status::SUCCESS)
            },
        };
        assert_eq!(
            completed.to_string(),
            "#3 completed STATUS_SUCCESS, 5 B taken"
        );
        assert_eq!(
            serde_json::to_string(&OfPeer {
                event: &completed,
                peer: Some(1)
            })
            .unwrap(),
            "{\"event\":\"completed\",\"id\":3,\"status\":\"STATUS_SUCCESS\",\"information\":5,\
             \"peer\":1}"
        );
    }
}
