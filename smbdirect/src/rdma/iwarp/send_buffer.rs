//! How much of what is sent waits in the operating system to be acknowledged.

use std::{fs, net::SocketAddr};

use socket2::SockRef;

/// How many bytes of what is sent the operating system keeps until they are acknowledged
/// (`SO_SNDBUF`), for each connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendBuffer {
    /// The system's choice; but 1 MiB towards a peer at the same IP address, as both ends on one
    /// machine mostly have. Linux takes that twice, so it is asked for where the buffer would grow beyond 2 MiB
    /// and 1 MiB is allowed. More under way between such two costs time and gains nothing.
    #[default]
    Auto,
    /// The system's choice. Linux lets it grow with the connection, up to several MiB.
    System,
    /// So many, from the beginning of a connection to its end. Linux takes twice as much, for its own
    /// needs as well, and no more than `net.core.wmem_max` allows. Where the system refuses, its choice
    /// stays.
    Bytes(u32),
}

/// What both ends at one IP address are given. With half as much, long messages wait; with the 4 MiB that
/// Linux grows to, as it counts, RDMA Writes cost 18 to 29 % more where both ends share a core.
const NEAR: u32 = 1024 * 1024;

/// How large the system lets a send buffer be, in bytes; 0 if it does not tell.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    /// The most that may be asked for. It takes the double then,
    asked_for: u32,
    /// and lets one that was not asked for grow to this.
    grown: u32,
}

impl SendBuffer {
    /// Gives a connected socket its send buffer. One that cannot be had keeps nobody from talking.
    pub(super) fn apply(self, socket: &SockRef<'_>, local: SocketAddr, remote: SocketAddr) {
        if let Some(size) = self.size(local, remote, Limits::of_the_system)
            && let Err(error) = socket.set_send_buffer_size(size as usize)
        {
            tracing::debug!(size, %error, "the send buffer stays as it is");
        }
    }

    /// What to ask for, if anything.
    fn size(
        self,
        local: SocketAddr,
        remote: SocketAddr,
        limits: impl FnOnce() -> Limits,
    ) -> Option<u32> {
        match self {
            Self::Auto if local.ip() == remote.ip() => {
                let Limits { asked_for, grown } = limits();
                (asked_for >= NEAR && grown > 2 * NEAR).then_some(NEAR)
            }
            Self::Auto | Self::System => None,
            Self::Bytes(size) => Some(size),
        }
    }
}

impl Limits {
    fn of_the_system() -> Self {
        if !cfg!(target_os = "linux") {
            return Self::default();
        }
        let last = |path| {
            let text = fs::read_to_string(path).ok()?;
            text.split_whitespace().next_back()?.parse().ok()
        };
        Self {
            asked_for: last("/proc/sys/net/core/wmem_max").unwrap_or(0),
            // Least, first and most.
            grown: last("/proc/sys/net/ipv4/tcp_wmem").unwrap_or(0),
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
    fn two_ends_at_one_address_are_bounded_where_the_system_would_not() {
        let v4 = |last| Ipv4Addr::new(192, 0, 2, last);
        let v6 = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        let near = (at(v4(1), 5445), at(v4(1), 50_000));
        let near_v6 = (at(v6(1), 5445), at(v6(1), 50_000));
        let far = (at(v4(1), 5445), at(v4(2), 5445));
        let far_v6 = (at(v6(1), 5445), at(v6(2), 5445));
        let limits = |asked_for, grown| Limits { asked_for, grown };
        // Linux 6.18, and kernels before; a system that grows nothing large, and one that tells nothing.
        let today = limits(4 * MIB, 4 * MIB);
        let before = limits(212_992, 4 * MIB);
        let small = limits(4 * MIB, 2 * MIB);
        let silent = Limits::default();
        use SendBuffer::{Auto, Bytes, System};
        for (choice, (local, remote), limits, expected) in [
            (Auto, near, today, Some(MIB)),
            (Auto, near_v6, today, Some(MIB)),
            (Auto, near, limits(MIB, 2 * MIB + 1), Some(MIB)),
            (Auto, near, limits(MIB - 1, 4 * MIB), None),
            (Auto, near, before, None),
            (Auto, near, small, None),
            (Auto, near, silent, None),
            (Auto, far, today, None),
            (Auto, far_v6, today, None),
            (System, near, today, None),
            (System, far, today, None),
            (Bytes(65_536), near, today, Some(65_536)),
            (Bytes(65_536), far, silent, Some(65_536)),
        ] {
            let size = choice.size(local, remote, || limits);
            assert_eq!(size, expected, "{choice:?} to {remote} with {limits:?}");
        }
    }
}
