//! The route to a server, and the packet sizes on it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use smbdirect_transport::text;

use crate::facts::{Interface, Path, Route};

/// Returns where packets to `address` leave this machine. Sends nothing.
pub(super) fn find(address: SocketAddr, interfaces: &[Interface]) -> Result<Route, String> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket looks up the route.
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(address)?;
        Ok::<_, io::Error>(socket.local_addr()?.ip())
    };
    let source = source().map_err(|error| text::plain(&error))?;
    let interface = interfaces
        .iter()
        .find(|each| each.addresses.contains(&source));
    Ok(Route {
        source,
        interface: interface.map(|each| each.name.clone()),
        mtu: interface.map(|each| each.mtu).filter(|&mtu| mtu > 0),
    })
}

/// Finds out which packets arrive. Blocks for at most a few times
/// [`PING_TIMEOUT`](ping::PING_TIMEOUT).
#[cfg(target_os = "linux")]
pub(super) fn measure(address: IpAddr, mtu: Option<u32>) -> Path {
    let (Some(mtu), IpAddr::V4(address)) = (mtu, address) else {
        return Path::default();
    };
    let mut path = Path::default();
    let Ok(pinger) = ping::Pinger::new(address) else {
        return path;
    };
    let answered = pinger.ping(ping::SHORT_BYTES) == ping::Echo::Answered;
    path.short_ping = Some(answered);
    if answered {
        let payload = (mtu as usize).saturating_sub(ping::HEADERS_BYTES);
        let echo = pinger.ping(payload.min(ping::MAX_PAYLOAD_BYTES));
        path.full_ping = Some(echo == ping::Echo::Answered);
        path.is_reported_too_large = echo == ping::Echo::TooLarge;
    }
    path.known_mtu = pinger.known_mtu();
    path
}

/// Measures nothing on other systems, because the socket options exist on Linux only.
#[cfg(not(target_os = "linux"))]
pub(super) fn measure(_: IpAddr, _: Option<u32>) -> Path {
    Path::default()
}

#[cfg(target_os = "linux")]
mod ping {
    //! ICMP echoes that must not be fragmented.

    use std::{
        io::{self, Read, Write},
        net::{Ipv4Addr, SocketAddrV4},
        time::{Duration, Instant},
    };

    use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery};
    use socket2::{Domain, Protocol, Socket, Type};

    /// Longest time to wait for an answer.
    pub(super) const PING_TIMEOUT: Duration = Duration::from_millis(700);
    /// Attempts at each size.
    const ATTEMPTS: u16 = 2;
    /// Headers of IPv4 and ICMP.
    pub(super) const HEADERS_BYTES: usize = 28;
    pub(super) const SHORT_BYTES: usize = 56;
    /// The largest payload of ICMP: the loopback interface has an MTU of 65536.
    pub(super) const MAX_PAYLOAD_BYTES: usize = 65_507;

    /// `EMSGSIZE`: a router has reported by ICMP that its next link takes smaller packets only.
    const TOO_LARGE: i32 = 90;

    /// The result of an echo.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Echo {
        Answered,
        /// A router has reported that it was too large.
        TooLarge,
        Lost,
    }

    pub(super) struct Pinger {
        socket: Socket,
        /// A raw socket receives IP headers, and echoes of other programs.
        is_raw: bool,
        identifier: u16,
    }

    impl Pinger {
        /// Opens a socket. A datagram socket needs a group that `net.ipv4.ping_group_range` allows,
        /// a raw one the rights of root.
        pub(super) fn new(address: Ipv4Addr) -> io::Result<Self> {
            let open = |kind| Socket::new(Domain::IPV4, kind, Some(Protocol::ICMPV4));
            let (socket, is_raw) = match open(Type::DGRAM) {
                Ok(socket) => (socket, false),
                Err(_) => (open(Type::RAW)?, true),
            };
            // Sends packets of the interface's MTU, also after an ICMP error that reported a smaller one.
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
            socket.connect(&SocketAddrV4::new(address, 0).into())?;
            Ok(Self {
                socket,
                is_raw,
                identifier: fastrand::u16(..),
            })
        }

        /// Sends an echo with this many bytes, and repeats it once if no answer arrives.
        pub(super) fn ping(&self, payload: usize) -> Echo {
            for attempt in 0..ATTEMPTS {
                // The size distinguishes this answer from a late answer to another echo.
                let sequence = (payload as u16) ^ (attempt << 14);
                match self.echo(payload, sequence) {
                    Ok(true) => return Echo::Answered,
                    Err(error) if error.raw_os_error() == Some(TOO_LARGE) => return Echo::TooLarge,
                    Ok(false) | Err(_) => {}
                }
            }
            Echo::Lost
        }

        fn echo(&self, payload: usize, sequence: u16) -> io::Result<bool> {
            let mut request = vec![0; 8 + payload];
            request[0] = 8;
            request[4..6].copy_from_slice(&self.identifier.to_be_bytes());
            request[6..8].copy_from_slice(&sequence.to_be_bytes());
            let sum = checksum(&request);
            request[2..4].copy_from_slice(&sum.to_be_bytes());
            (&self.socket).write_all(&request)?;
            let deadline = Instant::now() + PING_TIMEOUT;
            let mut buffer = vec![0; 65_536];
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(false);
                }
                self.socket.set_read_timeout(Some(left))?;
                let length = (&self.socket).read(&mut buffer)?;
                if self.is_answer(&buffer[..length], sequence) {
                    return Ok(true);
                }
            }
        }

        fn is_answer(&self, packet: &[u8], sequence: u16) -> bool {
            let packet = if self.is_raw {
                let header = packet
                    .first()
                    .map_or(0, |first| usize::from(first & 15) * 4);
                packet.get(header..).unwrap_or_default()
            } else {
                packet
            };
            let Some(&[kind, _, _, _, a, b, c, d]) = packet.first_chunk() else {
                return false;
            };
            // The kernel chooses the identifier of a datagram socket.
            let is_ours = !self.is_raw || [a, b] == self.identifier.to_be_bytes();
            kind == 0 && is_ours && [c, d] == sequence.to_be_bytes()
        }

        /// Returns the path MTU that the kernel knows.
        pub(super) fn known_mtu(&self) -> Option<u32> {
            sockopt::ip_mtu(&self.socket).ok()
        }
    }

    /// Returns the Internet checksum (RFC 1071).
    fn checksum(bytes: &[u8]) -> u16 {
        let words = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low)));
        let sum: u32 = words.sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        !((folded & 0xffff) + (folded >> 16)) as u16
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_message_with_its_checksum_sums_to_zero() {
            let mut request = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1, 7, 9, 0xff];
            let sum = checksum(&request);
            request[2..4].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(checksum(&request), 0);
        }
    }
}
