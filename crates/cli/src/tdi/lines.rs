//! The lines that a session shows, one for each event, as text or as a JSON object.

use std::{
    fmt,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
};

use serde::Serialize;
use smbdirect::tdi::Status;

use super::queries;
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
    /// An offer that was accepted, and whose connection failed.
    NotConnected {
        address: SocketAddr,
        status: Name,
    },
    /// A command that was not typed.
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
    /// A request without a completion.
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
    /// The address failed, and gets no more offers.
    Error {
        status: Name,
    },
    Info(queries::Info),
    Statistics(queries::Statistics),
    Connection(queries::Connection),
}

/// A status, shown by its name.
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

/// The result of a request.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) status: Name,
    /// Bytes taken from its buffer, or put into it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) information: Option<usize>,
    /// The beginning of what was received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Data>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) invalidated_token: Option<u32>,
    /// With an expectation, whether it was met.
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
const MAX_CHARACTERS: usize = 32;

impl Data {
    /// Bytes that [`Data::new`] reads at most.
    pub(super) const MAX_BYTES: usize = MAX_CHARACTERS + 1;

    pub(super) fn new(bytes: &[u8]) -> Self {
        let beginning = &bytes[..bytes.len().min(MAX_CHARACTERS)];
        let text = report::printable(&String::from_utf8_lossy(beginning));
        let dots = if bytes.len() > MAX_CHARACTERS {
            "..."
        } else {
            ""
        };
        Self(format!("{text}{dots}"))
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
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
                write!(
                    f,
                    "{address} was accepted, but the connection failed: {status}"
                )
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
                // Every indication has this flag.
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
            Self::Info(info) => info.fmt(f),
            Self::Statistics(statistics) => statistics.fmt(f),
            Self::Connection(connection) => connection.fmt(f),
        }
    }
}

/// Prints the lines of a session.
#[derive(Debug)]
pub(super) struct Lines {
    report: Report,
    /// The number of the peer, if there can be several.
    peer: Option<u64>,
    /// Whether to print a prompt.
    prompts: bool,
    /// Whether the current line is a prompt.
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

    /// Prints help, as text only.
    pub(super) fn help(&self, text: &str) {
        self.report.line(text);
    }

    /// Prints the prompt, if commands are typed.
    pub(super) fn prompt(&self) {
        if self.prompts && !self.prompted.swap(true, Ordering::Relaxed) {
            self.report.prompt(PROMPT);
        }
    }

    /// Notes that a line was typed, which ends the prompt.
    pub(super) fn typed(&self) {
        self.prompted.store(false, Ordering::Relaxed);
    }
}

const PROMPT: &str = "> ";

#[cfg(test)]
mod tests {
    use smbdirect::tdi::{SendFlags, ServiceFlags};

    use super::{super::queries::names, *};

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
