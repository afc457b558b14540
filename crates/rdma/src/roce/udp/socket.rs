//! The UDP socket of an endpoint: its options, and sending and receiving in groups.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

#[cfg(target_os = "linux")]
use nix::{
    libc,
    sys::socket::{
        setsockopt,
        sockopt::{RcvBufForce, ReceiveTimestampns},
    },
};
use quinn_udp::{EcnCodepoint, RecvMeta, UdpSocketState};
use socket2::{Domain, Protocol, SockRef, Socket as RawSocket, Type};
use tokio::{io::Interest, net::UdpSocket};

#[cfg(target_os = "linux")]
use super::dscp;
use super::{address::for_socket, config::RoceConfig};
use crate::{
    roce::endpoint::{Traffic, Transmit},
    software::network::MAX_DSCP,
};

/// A bound UDP socket, which belongs to no runtime.
#[derive(Debug)]
pub(super) struct Bound {
    socket: std::net::UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    /// The DSCP of the packets of queue pairs and of the CM.
    dscp: u8,
    /// The DSCP of congestion notification packets.
    cnp_dscp: u8,
}

/// A bound UDP socket as one runtime uses it.
#[derive(Debug)]
pub(super) struct Socket {
    /// Another descriptor of the same socket, because a descriptor belongs to one runtime.
    io: UdpSocket,
    bound: Arc<Bound>,
}

/// The size to ask for the receive buffer of the operating system, in bytes. Without privileges, Linux limits the
/// size to `net.core.rmem_max`.
const BUFFER_BYTES: usize = 4 << 20;

impl Bound {
    /// Binds a socket to `address`.
    pub(super) fn new(address: SocketAddr, config: &RoceConfig) -> io::Result<Self> {
        let socket = RawSocket::new(
            Domain::for_address(address),
            Type::DGRAM,
            Some(Protocol::UDP),
        )?;
        config.network.apply(&SockRef::from(&socket))?;
        socket.bind(&address.into())?;
        enlarge_receive_buffer(&socket);
        socket.set_nonblocking(true)?;
        let socket: std::net::UdpSocket = socket.into();
        //= ROCE-UDP-02
        let state = state_of(&socket)?;
        // Without this option, only a timeout would show that the peer's port is unreachable.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = state.enable_transport_errors((&socket).into());
        let local = socket.local_addr()?;
        Ok(Self {
            socket,
            state,
            local,
            dscp: config.network.dscp,
            cnp_dscp: config.cnp_dscp.min(MAX_DSCP),
        })
    }

    /// Returns the DSCP of datagrams.
    const fn dscp(&self, traffic: Traffic) -> u8 {
        match traffic {
            Traffic::CongestionNotification => self.cnp_dscp,
            Traffic::QueuePair | Traffic::ConnectionManager => self.dscp,
        }
    }

    /// Returns the size of the receive buffer of the operating system, in bytes.
    pub(super) fn receive_buffer(&self) -> io::Result<usize> {
        SockRef::from(&self.socket).recv_buffer_size()
    }
}

impl Socket {
    /// Returns the socket for the current runtime.
    pub(super) fn new(bound: Arc<Bound>) -> io::Result<Self> {
        let io = UdpSocket::from_std(bound.socket.try_clone()?)?;
        Ok(Self { io, bound })
    }

    /// Returns the address that the socket is bound to.
    pub(super) fn local(&self) -> SocketAddr {
        self.bound.local
    }

    /// Returns the most datagrams that one call sends.
    pub(super) fn max_segments(&self) -> usize {
        self.bound.state.max_gso_segments()
    }

    /// Sends one group of datagrams.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the socket is full. Any other error means that the datagrams are
    /// lost.
    pub(super) fn send(&self, transmit: &Transmit, datagrams: &[u8]) -> io::Result<()> {
        let local = transmit.path.local.ip();
        let message = quinn_udp::Transmit {
            destination: for_socket(transmit.path.remote, self.local()),
            ecn: transmit
                .traffic
                .is_ecn_capable()
                .then_some(EcnCodepoint::Ect0),
            contents: datagrams,
            segment_size: Some(transmit.segment_size),
            src_ip: self.local().ip().is_unspecified().then_some(local),
        };
        let dscp = self.bound.dscp(transmit.traffic);
        self.io.try_io(Interest::WRITABLE, || {
            match self.try_send(&message, dscp) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
                // The call may report the ICMP error of another peer instead of sending. An error that concerns
                // these datagrams occurs again.
                Err(_) => self.try_send(&message, dscp),
                sent => sent,
            }
        })
    }

    /// Sends one group of datagrams with a DSCP.
    fn try_send(&self, message: &quinn_udp::Transmit<'_>, dscp: u8) -> io::Result<()> {
        // The library that sends groups sets the whole traffic class, and its DSCP to 0.
        #[cfg(target_os = "linux")]
        if dscp != 0 {
            let sent = dscp::send(&self.io, message, dscp);
            let is_unsupported =
                |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL));
            if !sent.as_ref().is_err_and(is_unsupported) {
                return sent;
            }
            // A device may lack the offload for groups. The library then makes groups of one datagram.
        }
        #[cfg(not(target_os = "linux"))]
        let _ = dscp;
        self.bound.state.try_send((&self.io).into(), message)
    }

    /// Receives groups of datagrams without waiting, and returns their number. With
    /// `skip_readiness_check`, asks the system without asking the runtime first.
    pub(super) fn receive(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
        skip_readiness_check: bool,
    ) -> io::Result<usize> {
        let mut receive = || self.bound.state.recv((&self.io).into(), buffers, metas);
        if skip_readiness_check {
            receive()
        } else {
            self.io.try_io(Interest::READABLE, receive)
        }
    }

    /// Waits until there are datagrams or errors.
    pub(super) async fn ready(&self, writable: bool) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::ERROR;
        let interest = if writable {
            interest | Interest::WRITABLE
        } else {
            interest
        };
        self.io.ready(interest).await.map(drop)
    }

    /// Returns `None`: only Linux reports unreachable ports.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) const fn next_unreachable(&self) -> Option<IpAddr> {
        None
    }

    /// Returns the next address whose system reported a port as unreachable.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn next_unreachable(&self) -> Option<IpAddr> {
        self.io
            .try_io(Interest::ERROR, || {
                loop {
                    let error = self.bound.state.recv_transport_error((&self.io).into())?;
                    let Some(error) = error else {
                        return Err(io::ErrorKind::WouldBlock.into());
                    };
                    if let (quinn_udp::TransportErrorPayload::Unreachable, Some(peer)) =
                        (error.payload, error.addr)
                    {
                        // The system does not report the port.
                        return Ok(peer.ip().to_canonical());
                    }
                }
            })
            .ok()
    }
}

/// Prepares a socket for groups of datagrams and their ECN fields.
pub(super) fn state_of(socket: &std::net::UdpSocket) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new(socket.into())?;
    // The library asks for time stamps, which leave no room for the ECN field of a group of datagrams.
    #[cfg(target_os = "linux")]
    let _ = setsockopt(socket, ReceiveTimestampns, &false);
    Ok(state)
}

/// Makes the receive buffer of a socket as large as the system permits.
fn enlarge_receive_buffer(socket: &RawSocket) {
    // A failure is ignored: with a smaller buffer, more packets are lost and sent again.
    #[cfg(target_os = "linux")]
    if setsockopt(socket, RcvBufForce, &BUFFER_BYTES).is_ok() {
        return;
    }
    let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
}

/// The capabilities of this machine's UDP sockets for RoCEv2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The most datagrams that one system call sends (GSO); 1 if there is no such offload.
    pub send_segments: usize,
    /// The most datagrams that one buffer receives (GRO); 1 if there is no such offload.
    pub receive_segments: usize,
    /// The size of the receive buffer of the operating system, in bytes.
    pub receive_buffer: usize,
    /// Whether datagrams leave with the IPv4 Identification that the ICRC needs. `None` if this
    /// process may not open a raw socket to look at it.
    pub identification: Option<bool>,
    /// Why UDP port 4791 cannot be bound, with the owner of the port if it is known.
    pub port_taken: Option<String>,
}

/// Finds out what UDP sockets of this machine can do for RoCEv2. Sends one datagram to this machine
/// itself, if raw sockets are permitted.
///
/// # Errors
/// Returns an error if no UDP socket can be made.
pub fn capabilities() -> io::Result<Capabilities> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let socket = RawSocket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.bind(&any.into())?;
    enlarge_receive_buffer(&socket);
    let socket: std::net::UdpSocket = socket.into();
    let state = UdpSocketState::new((&socket).into())?;
    let port = crate::roce::packet::UDP_PORT;
    let bound = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
    let port_taken = bound.err().map(|error| match super::port_owner(port) {
        Some(owner) => format!("{owner} has it"),
        None => error.to_string(),
    });
    Ok(Capabilities {
        send_segments: state.max_gso_segments(),
        receive_segments: state.gro_segments(),
        receive_buffer: SockRef::from(&socket).recv_buffer_size()?,
        identification: identification_is_zero(),
        port_taken,
    })
}

/// Returns whether a datagram of a socket with the options of this provider has the Identification 0
/// and is not fragmented. A raw socket receives the datagram with its IP header.
fn identification_is_zero() -> Option<bool> {
    use std::io::Read;

    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut raw = RawSocket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).ok()?;
    raw.bind(&SocketAddr::new(local, 0).into()).ok()?;
    raw.set_read_timeout(Some(std::time::Duration::from_millis(200)))
        .ok()?;
    let receiver = std::net::UdpSocket::bind((local, 0)).ok()?;
    let sender = std::net::UdpSocket::bind((local, 0)).ok()?;
    let state = UdpSocketState::new((&sender).into()).ok()?;
    let destination = receiver.local_addr().ok()?;
    let source = sender.local_addr().ok()?.port().to_be_bytes();
    let message = quinn_udp::Transmit {
        destination,
        ecn: None,
        contents: &[0; 8],
        segment_size: None,
        src_ip: None,
    };
    state.try_send((&sender).into(), &message).ok()?;
    let mut packet = [0; 256];
    // Other datagrams of this machine may come first.
    for _ in 0..64 {
        let length = raw.read(&mut packet).ok()?;
        let header = packet.get(..length).filter(|packet| packet.len() >= 28)?;
        let at = usize::from(header[0] & 0x0f) * 4;
        if header.get(at..at + 2) == Some(&source) {
            return Some(header[4..8] == [0, 0, 0x40, 0]);
        }
    }
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    //= ROCE-UDP-02 test
    #[test]
    fn datagrams_have_the_identification_that_the_icrc_covers() {
        let capabilities = capabilities().unwrap();
        assert!(capabilities.send_segments >= 1 && capabilities.receive_segments >= 1);
        assert!(capabilities.receive_buffer > 64 * 1024);
        match capabilities.identification {
            Some(is_zero) => assert!(is_zero, "the ICRC of IPv4 datagrams would be wrong"),
            None => println!("skipped: raw sockets are not permitted"),
        }
    }
}
