//! [`Status`]: how a request ended, as TDI says it.

use std::{error::Error, fmt, io};

/// Says each status once: its name, its number, what it means here.
macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)+) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($value);)+

            /// The name after `STATUS_`, if TDI has one for this number.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

/// An NTSTATUS, with the values that requests of TDI end with.
///
/// The two highest bits have the severity. What is called "success" in TDI is more than
/// [`SUCCESS`](Self::SUCCESS): ask [`is_success`](Self::is_success), or for what is an error,
/// [`is_error`](Self::is_error). Between the two stand warnings.
///
/// ```
/// use smbdirect::tdi::{Severity, Status};
///
/// assert!(Status::RECEIVE_PARTIAL.is_success());
/// assert_eq!(Status::BUFFER_OVERFLOW.severity(), Severity::Warning);
/// assert_eq!(Status::DEVICE_NOT_READY.to_string(), "STATUS_DEVICE_NOT_READY");
/// let error = std::io::Error::from(Status::DEVICE_NOT_READY);
/// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

/// The two highest bits of a [`Status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// It is done.
    Success,
    /// It is done, and there is something to say about it.
    Informational,
    /// It is done as far as was possible.
    Warning,
    /// It is not done.
    Error,
}

//= TDI-STATUS-01
statuses! {
    /// It is done.
    SUCCESS = 0x0000_0000;
    /// It is accepted and will be completed. A handler: the buffer is kept for now.
    PENDING = 0x0000_0103;
    /// A receive has only a part of its TSDU; the rest comes later.
    RECEIVE_PARTIAL = 0x4000_000F;
    /// The data received was expedited. SMB Direct has no such data.
    RECEIVE_EXPEDITED = 0x4000_0010;
    /// A part of a TSDU was received, and it was expedited. SMB Direct has no such data.
    RECEIVE_PARTIAL_EXPEDITED = 0x4000_0011;
    /// Set aside for indications; not used.
    EVENT_DONE = 0x4000_0012;
    /// Set aside for indications; not used.
    EVENT_PENDING = 0x4000_0013;
    /// The buffer was full before the TSDU was at its end; the rest is kept. A warning.
    BUFFER_OVERFLOW = 0x8000_0005;
    /// Flags, length or another argument cannot be.
    INVALID_PARAMETER = 0xC000_000D;
    /// The object does not take such requests.
    INVALID_DEVICE_REQUEST = 0xC000_0010;
    /// A handler has supplied a request.
    MORE_PROCESSING_REQUIRED = 0xC000_0016;
    /// Another has the address open, and the two do not share it.
    SHARING_VIOLATION = 0xC000_0043;
    /// Memory or another resource of this end ran out.
    INSUFFICIENT_RESOURCES = 0xC000_009A;
    /// A non-blocking send found no room in the send buffer.
    DEVICE_NOT_READY = 0xC000_00A3;
    /// Time ran out.
    IO_TIMEOUT = 0xC000_00B5;
    /// There is no such thing on this transport.
    NOT_SUPPORTED = 0xC000_00BB;
    /// Nobody listens at the remote address.
    REMOTE_NOT_LISTENING = 0xC000_00BC;
    /// There is no way to the remote address.
    BAD_NETWORK_PATH = 0xC000_00BE;
    /// The request was cancelled before it had an effect.
    CANCELLED = 0xC000_0120;
    /// This end disconnected.
    LOCAL_DISCONNECT = 0xC000_013B;
    /// The peer disconnected.
    REMOTE_DISCONNECT = 0xC000_013C;
    /// The peer ran out of a resource.
    REMOTE_RESOURCES = 0xC000_013D;
    /// The link failed.
    LINK_FAILED = 0xC000_013E;
    /// The link gave no answer in time.
    LINK_TIMEOUT = 0xC000_013F;
    /// The endpoint is not connected, or not any more.
    INVALID_CONNECTION = 0xC000_0140;
    /// The address object is not usable.
    INVALID_ADDRESS = 0xC000_0141;
    /// The object is in a state in which it does not take this request.
    INVALID_DEVICE_STATE = 0xC000_0184;
    /// A part of the address cannot be.
    INVALID_ADDRESS_COMPONENT = 0xC000_0207;
    /// There is no free address.
    TOO_MANY_ADDRESSES = 0xC000_0209;
    /// The address is in use.
    ADDRESS_ALREADY_EXISTS = 0xC000_020A;
    /// The address object was closed.
    ADDRESS_CLOSED = 0xC000_020B;
    /// The connection was disconnected.
    CONNECTION_DISCONNECTED = 0xC000_020C;
    /// The peer reset the connection.
    CONNECTION_RESET = 0xC000_020D;
    /// A handler does not take the data now.
    DATA_NOT_ACCEPTED = 0xC000_021B;
    /// The peer, or a handler, does not want the connection.
    CONNECTION_REFUSED = 0xC000_0236;
    /// The connection ended in good order.
    GRACEFUL_DISCONNECT = 0xC000_0237;
    /// The endpoint is associated with an address already.
    ADDRESS_ALREADY_ASSOCIATED = 0xC000_0238;
    /// The endpoint is not associated with an address.
    ADDRESS_NOT_ASSOCIATED = 0xC000_0239;
    /// What `TDI_INVALID_CONNECTION` stands for; requests end with
    /// [`INVALID_CONNECTION`](Self::INVALID_CONNECTION).
    CONNECTION_INVALID = 0xC000_023A;
    /// The endpoint has a connection.
    CONNECTION_ACTIVE = 0xC000_023B;
    /// The network cannot be reached.
    NETWORK_UNREACHABLE = 0xC000_023C;
    /// The host cannot be reached.
    HOST_UNREACHABLE = 0xC000_023D;
    /// The protocol is not there on the host.
    PROTOCOL_UNREACHABLE = 0xC000_023E;
    /// The port is not there on the host.
    PORT_UNREACHABLE = 0xC000_023F;
    /// The request was ended together with another.
    REQUEST_ABORTED = 0xC000_0240;
    /// The connection was aborted from this end.
    CONNECTION_ABORTED = 0xC000_0241;
}

impl Status {
    /// What the two highest bits say.
    pub const fn severity(self) -> Severity {
        //= TDI-STATUS-02
        match self.0 >> 30 {
            0 => Severity::Success,
            1 => Severity::Informational,
            2 => Severity::Warning,
            _ => Severity::Error,
        }
    }

    /// Whether it is done, with or without something to say about it.
    pub const fn is_success(self) -> bool {
        matches!(self.severity(), Severity::Success | Severity::Informational)
    }

    /// Whether it is not done. A warning is neither this nor a success.
    pub const fn is_error(self) -> bool {
        matches!(self.severity(), Severity::Error)
    }

    const fn kind(self) -> io::ErrorKind {
        use io::ErrorKind;
        match self {
            Self::DEVICE_NOT_READY => ErrorKind::WouldBlock,
            Self::IO_TIMEOUT | Self::LINK_TIMEOUT => ErrorKind::TimedOut,
            Self::CANCELLED => ErrorKind::Interrupted,
            Self::CONNECTION_REFUSED | Self::REMOTE_NOT_LISTENING | Self::PORT_UNREACHABLE => {
                ErrorKind::ConnectionRefused
            }
            Self::CONNECTION_RESET
            | Self::REMOTE_DISCONNECT
            | Self::CONNECTION_DISCONNECTED
            | Self::LINK_FAILED => ErrorKind::ConnectionReset,
            Self::CONNECTION_ABORTED | Self::LOCAL_DISCONNECT | Self::REQUEST_ABORTED => {
                ErrorKind::ConnectionAborted
            }
            Self::INVALID_CONNECTION | Self::CONNECTION_INVALID => ErrorKind::NotConnected,
            Self::NETWORK_UNREACHABLE | Self::BAD_NETWORK_PATH => ErrorKind::NetworkUnreachable,
            Self::HOST_UNREACHABLE => ErrorKind::HostUnreachable,
            Self::ADDRESS_ALREADY_EXISTS | Self::SHARING_VIOLATION => ErrorKind::AddrInUse,
            Self::INVALID_ADDRESS
            | Self::INVALID_ADDRESS_COMPONENT
            | Self::TOO_MANY_ADDRESSES
            | Self::ADDRESS_CLOSED => ErrorKind::AddrNotAvailable,
            Self::INVALID_PARAMETER => ErrorKind::InvalidInput,
            Self::INSUFFICIENT_RESOURCES | Self::REMOTE_RESOURCES => ErrorKind::OutOfMemory,
            Self::NOT_SUPPORTED | Self::INVALID_DEVICE_REQUEST => ErrorKind::Unsupported,
            _ => ErrorKind::Other,
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "STATUS_{name}"),
            None => write!(f, "NTSTATUS 0x{:08X}", self.0),
        }
    }
}

impl Error for Status {}

impl From<Status> for io::Error {
    fn from(status: Status) -> Self {
        Self::new(status.kind(), status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= TDI-STATUS-01 test
    #[test]
    fn the_numbers_are_those_of_tdi() {
        for (name, value) in [
            ("SUCCESS", 0),
            ("PENDING", 0x103),
            ("RECEIVE_PARTIAL", 0x4000_000F),
            ("RECEIVE_EXPEDITED", 0x4000_0010),
            ("RECEIVE_PARTIAL_EXPEDITED", 0x4000_0011),
            ("EVENT_DONE", 0x4000_0012),
            ("EVENT_PENDING", 0x4000_0013),
            ("BUFFER_OVERFLOW", 0x8000_0005),
            ("INVALID_PARAMETER", 0xC000_000D),
            ("INVALID_DEVICE_REQUEST", 0xC000_0010),
            ("MORE_PROCESSING_REQUIRED", 0xC000_0016),
            ("SHARING_VIOLATION", 0xC000_0043),
            ("INSUFFICIENT_RESOURCES", 0xC000_009A),
            ("DEVICE_NOT_READY", 0xC000_00A3),
            ("IO_TIMEOUT", 0xC000_00B5),
            ("NOT_SUPPORTED", 0xC000_00BB),
            ("REMOTE_NOT_LISTENING", 0xC000_00BC),
            ("BAD_NETWORK_PATH", 0xC000_00BE),
            ("CANCELLED", 0xC000_0120),
            ("LOCAL_DISCONNECT", 0xC000_013B),
            ("REMOTE_DISCONNECT", 0xC000_013C),
            ("REMOTE_RESOURCES", 0xC000_013D),
            ("LINK_FAILED", 0xC000_013E),
            ("LINK_TIMEOUT", 0xC000_013F),
            ("INVALID_CONNECTION", 0xC000_0140),
            ("INVALID_ADDRESS", 0xC000_0141),
            ("INVALID_DEVICE_STATE", 0xC000_0184),
            ("INVALID_ADDRESS_COMPONENT", 0xC000_0207),
            ("TOO_MANY_ADDRESSES", 0xC000_0209),
            ("ADDRESS_ALREADY_EXISTS", 0xC000_020A),
            ("ADDRESS_CLOSED", 0xC000_020B),
            ("CONNECTION_DISCONNECTED", 0xC000_020C),
            ("CONNECTION_RESET", 0xC000_020D),
            ("DATA_NOT_ACCEPTED", 0xC000_021B),
            ("CONNECTION_REFUSED", 0xC000_0236),
            ("GRACEFUL_DISCONNECT", 0xC000_0237),
            ("ADDRESS_ALREADY_ASSOCIATED", 0xC000_0238),
            ("ADDRESS_NOT_ASSOCIATED", 0xC000_0239),
            ("CONNECTION_INVALID", 0xC000_023A),
            ("CONNECTION_ACTIVE", 0xC000_023B),
            ("NETWORK_UNREACHABLE", 0xC000_023C),
            ("HOST_UNREACHABLE", 0xC000_023D),
            ("PROTOCOL_UNREACHABLE", 0xC000_023E),
            ("PORT_UNREACHABLE", 0xC000_023F),
            ("REQUEST_ABORTED", 0xC000_0240),
            ("CONNECTION_ABORTED", 0xC000_0241),
        ] {
            assert_eq!(Status(value).name(), Some(name));
            assert_eq!(Status(value).to_string(), format!("STATUS_{name}"));
            assert_eq!(format!("{:?}", Status(value)), format!("STATUS_{name}"));
        }
        assert_eq!(Status(0xC000_0001).name(), None);
        assert_eq!(Status(0xC000_0001).to_string(), "NTSTATUS 0xC0000001");
    }

    //= TDI-STATUS-02 test
    #[test]
    fn the_two_highest_bits_are_the_severity() {
        for (status, severity, success, error) in [
            (Status::SUCCESS, Severity::Success, true, false),
            (Status::PENDING, Severity::Success, true, false),
            (Status(0x3FFF_FFFF), Severity::Success, true, false),
            (
                Status::RECEIVE_PARTIAL,
                Severity::Informational,
                true,
                false,
            ),
            (Status(0x7FFF_FFFF), Severity::Informational, true, false),
            (Status::BUFFER_OVERFLOW, Severity::Warning, false, false),
            (Status(0xBFFF_FFFF), Severity::Warning, false, false),
            (Status::DEVICE_NOT_READY, Severity::Error, false, true),
            (Status(0xFFFF_FFFF), Severity::Error, false, true),
        ] {
            assert_eq!(status.severity(), severity, "{status}");
            assert_eq!(
                (status.is_success(), status.is_error()),
                (success, error),
                "{status}"
            );
        }
    }

    #[test]
    fn each_has_its_kind_of_io_error() {
        use io::ErrorKind::*;
        for (status, kind) in [
            (Status::DEVICE_NOT_READY, WouldBlock),
            (Status::IO_TIMEOUT, TimedOut),
            (Status::LINK_TIMEOUT, TimedOut),
            (Status::CANCELLED, Interrupted),
            (Status::CONNECTION_REFUSED, ConnectionRefused),
            (Status::REMOTE_NOT_LISTENING, ConnectionRefused),
            (Status::PORT_UNREACHABLE, ConnectionRefused),
            (Status::CONNECTION_RESET, ConnectionReset),
            (Status::REMOTE_DISCONNECT, ConnectionReset),
            (Status::CONNECTION_DISCONNECTED, ConnectionReset),
            (Status::LINK_FAILED, ConnectionReset),
            (Status::CONNECTION_ABORTED, ConnectionAborted),
            (Status::LOCAL_DISCONNECT, ConnectionAborted),
            (Status::REQUEST_ABORTED, ConnectionAborted),
            (Status::INVALID_CONNECTION, NotConnected),
            (Status::CONNECTION_INVALID, NotConnected),
            (Status::NETWORK_UNREACHABLE, NetworkUnreachable),
            (Status::BAD_NETWORK_PATH, NetworkUnreachable),
            (Status::HOST_UNREACHABLE, HostUnreachable),
            (Status::ADDRESS_ALREADY_EXISTS, AddrInUse),
            (Status::SHARING_VIOLATION, AddrInUse),
            (Status::INVALID_ADDRESS, AddrNotAvailable),
            (Status::INVALID_ADDRESS_COMPONENT, AddrNotAvailable),
            (Status::TOO_MANY_ADDRESSES, AddrNotAvailable),
            (Status::ADDRESS_CLOSED, AddrNotAvailable),
            (Status::INVALID_PARAMETER, InvalidInput),
            (Status::INSUFFICIENT_RESOURCES, OutOfMemory),
            (Status::REMOTE_RESOURCES, OutOfMemory),
            (Status::NOT_SUPPORTED, Unsupported),
            (Status::INVALID_DEVICE_REQUEST, Unsupported),
            (Status::CONNECTION_ACTIVE, Other),
            (Status(0xC000_0001), Other),
        ] {
            let error = io::Error::from(status);
            assert_eq!(
                (error.kind(), error.to_string()),
                (kind, status.to_string())
            );
        }
    }
}
