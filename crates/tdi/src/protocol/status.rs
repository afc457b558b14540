//! [`Status`]: the result of a request, as an NTSTATUS of TDI.

use std::{error::Error, fmt, io};

/// Defines a constant for each status and the function that returns its name.
macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)+) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($value);)+

            /// Returns the name without `STATUS_`, if TDI has one for this value.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

/// An NTSTATUS, with the values with which requests of TDI complete.
///
/// The two highest bits are the severity. TDI has more successful values than
/// [`SUCCESS`](Self::SUCCESS), so test with [`is_success`](Self::is_success) and
/// [`is_error`](Self::is_error). A warning is neither.
///
/// ```
/// use smbdirect_tdi::{Severity, Status};
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
    /// The request succeeded.
    Success,
    /// The request succeeded, and the status has additional information.
    Informational,
    /// The request succeeded in part.
    Warning,
    /// The request failed.
    Error,
}

//= TDI-STATUS-01
statuses! {
    /// The request succeeded.
    SUCCESS = 0x0000_0000;
    /// The request was accepted and will complete later. A handler that returns it keeps the buffer.
    PENDING = 0x0000_0103;
    /// A receive has returned a part of its TSDU; the rest will follow.
    RECEIVE_PARTIAL = 0x4000_000F;
    /// The received data was expedited. SMB Direct has no such data.
    RECEIVE_EXPEDITED = 0x4000_0010;
    /// A part of a TSDU was received, and it was expedited. SMB Direct has no such data.
    RECEIVE_PARTIAL_EXPEDITED = 0x4000_0011;
    /// The value is reserved for indications and not used here.
    EVENT_DONE = 0x4000_0012;
    /// The value is reserved for indications and not used here.
    EVENT_PENDING = 0x4000_0013;
    /// The buffer was full before the end of the TSDU, and the rest is kept. This is a warning.
    BUFFER_OVERFLOW = 0x8000_0005;
    /// The flags, the length or another argument is invalid.
    INVALID_PARAMETER = 0xC000_000D;
    /// The object does not support this kind of request.
    INVALID_DEVICE_REQUEST = 0xC000_0010;
    /// A handler has returned a request.
    MORE_PROCESSING_REQUIRED = 0xC000_0016;
    /// The address is open already, and one of the two openers does not share it.
    SHARING_VIOLATION = 0xC000_0043;
    /// This end has no memory, or lacks another resource.
    INSUFFICIENT_RESOURCES = 0xC000_009A;
    /// A non-blocking send found no room in the send buffer.
    DEVICE_NOT_READY = 0xC000_00A3;
    /// A time-out expired.
    IO_TIMEOUT = 0xC000_00B5;
    /// This transport does not support the request.
    NOT_SUPPORTED = 0xC000_00BB;
    /// There is no listener at the remote address.
    REMOTE_NOT_LISTENING = 0xC000_00BC;
    /// There is no route to the remote address.
    BAD_NETWORK_PATH = 0xC000_00BE;
    /// The request was cancelled.
    CANCELLED = 0xC000_0120;
    /// This end disconnected.
    LOCAL_DISCONNECT = 0xC000_013B;
    /// The peer disconnected.
    REMOTE_DISCONNECT = 0xC000_013C;
    /// The peer lacks a resource.
    REMOTE_RESOURCES = 0xC000_013D;
    /// The link failed.
    LINK_FAILED = 0xC000_013E;
    /// The link did not respond in time.
    LINK_TIMEOUT = 0xC000_013F;
    /// The endpoint is not connected.
    INVALID_CONNECTION = 0xC000_0140;
    /// The address object cannot be used for this request.
    INVALID_ADDRESS = 0xC000_0141;
    /// The state of the object does not allow the request.
    INVALID_DEVICE_STATE = 0xC000_0184;
    /// A part of the address is invalid.
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
    /// A handler does not accept the data.
    DATA_NOT_ACCEPTED = 0xC000_021B;
    /// The peer, or a handler, refused the connection.
    CONNECTION_REFUSED = 0xC000_0236;
    /// The connection was closed in an orderly way.
    GRACEFUL_DISCONNECT = 0xC000_0237;
    /// The endpoint is already associated with an address.
    ADDRESS_ALREADY_ASSOCIATED = 0xC000_0238;
    /// The endpoint is not associated with an address.
    ADDRESS_NOT_ASSOCIATED = 0xC000_0239;
    /// The value of `TDI_INVALID_CONNECTION`. Requests complete with
    /// [`INVALID_CONNECTION`](Self::INVALID_CONNECTION) instead.
    CONNECTION_INVALID = 0xC000_023A;
    /// The endpoint has a connection or a pending request for one.
    CONNECTION_ACTIVE = 0xC000_023B;
    /// The network cannot be reached.
    NETWORK_UNREACHABLE = 0xC000_023C;
    /// The host cannot be reached.
    HOST_UNREACHABLE = 0xC000_023D;
    /// The host does not support the protocol.
    PROTOCOL_UNREACHABLE = 0xC000_023E;
    /// The host does not serve the port.
    PORT_UNREACHABLE = 0xC000_023F;
    /// The request was ended because another request ended.
    REQUEST_ABORTED = 0xC000_0240;
    /// The connection was aborted by this end.
    CONNECTION_ABORTED = 0xC000_0241;
}

impl Status {
    /// Returns the severity, which is in the two highest bits.
    pub const fn severity(self) -> Severity {
        //= TDI-STATUS-02
        match self.0 >> 30 {
            0 => Severity::Success,
            1 => Severity::Informational,
            2 => Severity::Warning,
            _ => Severity::Error,
        }
    }

    /// Returns whether the request succeeded, with or without additional information.
    pub const fn is_success(self) -> bool {
        matches!(self.severity(), Severity::Success | Severity::Informational)
    }

    /// Returns whether the request failed. A warning is neither an error nor a success.
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
    fn statuses_have_the_values_of_tdi() {
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
    fn each_status_maps_to_an_io_error_kind() {
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
