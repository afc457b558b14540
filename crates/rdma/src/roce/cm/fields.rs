//! Fields that several CM messages share: timeouts, the path MTU, service IDs and reject reasons.

use std::{fmt, time::Duration};

/// A timeout of the CM: 4.096 µs times 2 to the power of a number of 5 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmTimeout(u8);

impl CmTimeout {
    /// The longest timeout: 2.4 hours.
    pub const MAX: Self = Self(0x1f);
    /// The unit of timeouts in nanoseconds: 4.096 µs.
    const UNIT_NANOSECONDS: u64 = 4096;

    /// Creates a timeout from the low 5 bits of `exponent`.
    pub const fn from_exponent(exponent: u8) -> Self {
        Self(exponent & 0x1f)
    }

    /// Returns the shortest timeout that is not shorter than `duration`.
    pub fn at_least(duration: Duration) -> Self {
        (0..Self::MAX.0)
            .map(Self)
            .find(|timeout| timeout.duration() >= duration)
            .unwrap_or(Self::MAX)
    }

    /// Returns the exponent, from 0 to 31.
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// Returns the timeout as a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(Self::UNIT_NANOSECONDS << self.0)
    }
}

/// The path MTU: the most bytes of payload in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes, which fits a packet of Ethernet with an MTU of 1500.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    Mtu4096,
}

impl PathMtu {
    /// Every path MTU, in ascending order.
    pub const ALL: [Self; 5] = [
        Self::Mtu256,
        Self::Mtu512,
        Self::Mtu1024,
        Self::Mtu2048,
        Self::Mtu4096,
    ];

    /// Returns the number of bytes.
    pub const fn bytes(self) -> usize {
        256 << self as usize
    }

    /// Returns the code on the wire: 1 for 256 bytes, up to 5 for 4096.
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the path MTU with this code on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// Returns the largest path MTU whose packets fit an IP packet of `interface_mtu` bytes, or 256 bytes if none
    /// does.
    pub fn of_interface(interface_mtu: usize, ipv6: bool) -> Self {
        let ip = if ipv6 { 40 } else { 20 };
        // UDP, BTH, the longest extended header (RETH), and the ICRC.
        let headers = ip + 8 + 12 + 16 + 4;
        let fits = |mtu: &Self| mtu.bytes() + headers <= interface_mtu;
        Self::ALL
            .into_iter()
            .rev()
            .find(fits)
            .unwrap_or(Self::Mtu256)
    }
}

/// Returns whether `number` can belong to a connected queue pair. The number has 24 bits. 0 and 1 belong to
/// management, and the highest number to multicast groups.
pub(super) const fn is_queue_pair(number: u32) -> bool {
    2 <= number && number < 0xff_ffff
}

/// Returns whether a partition key names the default partition, the only one that this library uses.
pub(super) const fn is_default_partition(key: u16) -> bool {
    key & 0x7fff == 0x7fff
}

/// A service ID, which distinguishes the services of one machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The prefix of the RDMA CM for the port space of TCP (annex A11).
    const RDMA_TCP: u64 = 0x0000_0000_0106_0000;

    /// Returns the service ID of a port.
    pub const fn of_port(port: u16) -> Self {
        //= ROCE-A11-01
        Self(Self::RDMA_TCP | port as u64)
    }

    /// Returns the port, if this is a service ID of the RDMA CM for the port space of TCP.
    pub const fn port(self) -> Option<u16> {
        if self.0 & !0xffff == Self::RDMA_TCP {
            Some(self.0 as u16)
        } else {
            None
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId(0x{:016x})", self.0)
    }
}

/// The kind of message that an MRA acknowledges or a REJ rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// A REQ.
    Request,
    /// A REP.
    Reply,
    /// Another message: in a REJ no particular one, in an MRA a LAP.
    Other,
}

impl MessageKind {
    /// Returns the code on the wire, of 2 bits.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Reply => 1,
            Self::Other => 2,
        }
    }

    /// Returns the kind with this code of 2 bits.
    pub(super) const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Request,
            1 => Self::Reply,
            _ => Self::Other,
        }
    }
}

/// The reason of a REJ (12.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// No queue pair is available.
    pub const NO_QUEUE_PAIR: Self = Self(1);
    /// No resources are available.
    pub const NO_RESOURCES: Self = Self(3);
    /// The other end did not answer in time.
    pub const TIMEOUT: Self = Self(4);
    /// The request asks for something unsupported.
    pub const UNSUPPORTED: Self = Self(5);
    /// The communication ID is not known.
    pub const INVALID_COMMUNICATION_ID: Self = Self(6);
    /// No consumer offers the service.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The transport service type is not supported.
    pub const INVALID_TRANSPORT_TYPE: Self = Self(9);
    /// The queue pair of the request belongs to an older connection.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The path MTU is not supported.
    pub const INVALID_PATH_MTU: Self = Self(26);
    /// There are too few resources for the peer's RDMA Reads.
    pub const INSUFFICIENT_RESPONDER_RESOURCES: Self = Self(27);
    /// The consumer rejected the request.
    pub const CONSUMER: Self = Self(28);

    /// Returns the reason in words.
    pub const fn text(self) -> &'static str {
        match self.0 {
            1 => "no queue pair is available",
            2 => "no EE context is available",
            3 => "no resources are available",
            4 => "timeout",
            5 => "the request is not supported",
            6 => "invalid communication ID",
            7 => "invalid communication instance",
            8 => "nothing listens on the service ID",
            9 => "invalid transport service type",
            10 => "stale connection",
            11 => "the RDC does not exist",
            12 => "the primary remote port GID was rejected",
            13 => "the primary remote port LID was rejected",
            14 => "invalid service level",
            15 => "invalid traffic class",
            16 => "the hop limit was rejected",
            17 => "the packet rate was rejected",
            18..=23 => "the alternate path was rejected",
            24 => "the CM is redirected",
            25 => "the port is redirected",
            26 => "invalid path MTU",
            27 => "insufficient responder resources",
            28 => "the consumer rejected the connection",
            29 => "the RNR retry count was rejected",
            30 => "duplicate local communication ID",
            31 => "invalid class version",
            32 => "invalid flow label",
            33 => "invalid alternate flow label",
            _ => "unknown reason",
        }
    }
}

impl fmt::Debug for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RejectReason({}: {})", self.0, self.text())
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (reason {})", self.text(), self.0)
    }
}
