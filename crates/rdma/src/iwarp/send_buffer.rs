//! The size of the send buffer of the operating system.

use std::{fs, net::SocketAddr};

use socket2::SockRef;

/// The size of the send buffer of each connection (`SO_SNDBUF`): the most sent bytes that the
/// operating system keeps until the peer acknowledges them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendBuffer {
    /// The system's default, except for a peer with the same IP address, which is usually on the same machine:
    /// there the buffer is 1 MiB, because more bytes in flight cost time and gain nothing.
    ///
    /// Linux doubles the requested size. So 1 MiB is requested only where the buffer could grow
    /// beyond 2 MiB and a request of 1 MiB is permitted.
    #[default]
    Auto,
    /// The system's default. Linux lets it grow with the connection, up to several MiB.
    System,
    /// The buffer has this many bytes for the whole life of a connection. Linux doubles the value to account for
    /// its own overhead, and limits it to `net.core.wmem_max`. If the system refuses, its default stays.
    Bytes(u32),
}

/// The send buffer towards a peer with the same IP address. Half of this size delays long messages. Linux would
/// grow the buffer to 4 MiB, which include its own overhead. With that size, RDMA Writes cost 18 to 29 % more CPU
/// time if both ends share a core.
const SAME_HOST_BYTES: u32 = 1024 * 1024;

/// The limits of the system on send buffers, in bytes; 0 if they are unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    /// The largest size that may be requested. Linux doubles it.
    max_requested: u32,
    /// The size up to which Linux grows a buffer whose size was not requested.
    max_grown: u32,
}

impl SendBuffer {
    /// Sets the send buffer of a connected socket. A failure is logged and otherwise ignored.
    pub(super) fn apply(self, socket: &SockRef<'_>, local: SocketAddr, remote: SocketAddr) {
        if let Some(size) = self.size(local, remote, Limits::of_system)
            && let Err(error) = socket.set_send_buffer_size(size as usize)
        {
            tracing::debug!(size, %error, "the send buffer stays as it is");
        }
    }

    /// Returns the size to request, if any.
    fn size(
        self,
        local: SocketAddr,
        remote: SocketAddr,
        limits: impl FnOnce() -> Limits,
    ) -> Option<u32> {
        match self {
            Self::Auto if local.ip() == remote.ip() => {
                let Limits {
                    max_requested,
                    max_grown,
                } = limits();
                (max_requested >= SAME_HOST_BYTES && max_grown > 2 * SAME_HOST_BYTES)
                    .then_some(SAME_HOST_BYTES)
            }
            Self::Auto | Self::System => None,
            Self::Bytes(size) => Some(size),
        }
    }
}

impl Limits {
    /// Reads the limits of this system.
    fn of_system() -> Self {
        if !cfg!(target_os = "linux") {
            return Self::default();
        }
        let last = |path| {
            let text = fs::read_to_string(path).ok()?;
            text.split_whitespace().next_back()?.parse().ok()
        };
        Self {
            max_requested: last("/proc/sys/net/core/wmem_max").unwrap_or(0),
            // The file holds the minimum, the default and the maximum.
            max_grown: last("/proc/sys/net/ipv4/tcp_wmem").unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    const MIB: u32 = 1024 * 1024;

    fn at(address: impl Into<IpAddr>, port: u16) -> SocketAddr {
        SocketAddr::new(address.into(), port)
    }

    #[test]
    fn buffers_to_the_same_address_are_bounded_where_the_system_would_grow_them() {
        let v4 = |last| Ipv4Addr::new(192, 0, 2, last);
        let v6 = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        let same = (at(v4(1), 5445), at(v4(1), 50_000));
        let same_v6 = (at(v6(1), 5445), at(v6(1), 50_000));
        let other = (at(v4(1), 5445), at(v4(2), 5445));
        let other_v6 = (at(v6(1), 5445), at(v6(2), 5445));
        let limits = |max_requested, max_grown| Limits {
            max_requested,
            max_grown,
        };
        // The limits of Linux 6.18, of older kernels, of a system with small buffers, and unknown
        // limits.
        let current = limits(4 * MIB, 4 * MIB);
        let older = limits(212_992, 4 * MIB);
        let small = limits(4 * MIB, 2 * MIB);
        let unknown = Limits::default();
        use SendBuffer::{Auto, Bytes, System};
        for (choice, (local, remote), limits, expected) in [
            (Auto, same, current, Some(MIB)),
            (Auto, same_v6, current, Some(MIB)),
            (Auto, same, limits(MIB, 2 * MIB + 1), Some(MIB)),
            (Auto, same, limits(MIB - 1, 4 * MIB), None),
            (Auto, same, older, None),
            (Auto, same, small, None),
            (Auto, same, unknown, None),
            (Auto, other, current, None),
            (Auto, other_v6, current, None),
            (System, same, current, None),
            (System, other, current, None),
            (Bytes(65_536), same, current, Some(65_536)),
            (Bytes(65_536), other, unknown, Some(65_536)),
        ] {
            let size = choice.size(local, remote, || limits);
            assert_eq!(size, expected, "{choice:?} to {remote} with {limits:?}");
        }
    }
}
