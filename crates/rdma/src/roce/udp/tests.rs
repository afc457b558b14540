//! The DSCP, the ECN field and the interface of packets, as another socket of this machine sees them.

use std::{
    io::IoSliceMut,
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg};
use socket2::SockRef;
use tokio::time::sleep;

use super::*;
use crate::{
    provider::{AcceptRequest, Provider},
    roce::{
        ConnectParameters, Endpoint, EndpointEvent, EndpointSettings, Path,
        cm::PathMtu,
        packet::{Opcode, Packet},
    },
    software::network::NetworkSettings,
    work::{Inline, ProviderErrorKind, WorkId, WorkRequest},
};

/// A peer that sends every datagram with the mark of congestion, and sees the traffic class of those that arrive.
struct Marker {
    socket: UdpSocket,
    endpoint: Endpoint,
    path: Path,
    /// The datagrams that have arrived: opcode and traffic class.
    arrived: Vec<(Opcode, u8)>,
}

/// ECN field CE.
const CONGESTION_EXPERIENCED: u32 = 0b11;

impl Marker {
    fn new(udp_port: u16) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let options = SockRef::from(&socket);
        options.set_tos_v4(CONGESTION_EXPERIENCED).unwrap();
        options.set_recv_tos_v4(true).unwrap();
        let path = Path {
            local: socket.local_addr().unwrap(),
            remote: SocketAddr::from(([127, 0, 0, 1], udp_port)),
        };
        Self {
            socket,
            endpoint: Endpoint::new(EndpointSettings::default()),
            path,
            arrived: Vec::new(),
        }
    }

    /// Receives what has arrived, and sends what is due.
    fn pump(&mut self) {
        let now = Instant::now();
        let mut buffer = [0; 9000];
        loop {
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let mut control = nix::cmsg_space!(u8);
            let file = self.socket.as_raw_fd();
            let flags = MsgFlags::MSG_DONTWAIT;
            let message = recvmsg::<SockaddrIn>(file, &mut parts, Some(&mut control), flags);
            let Ok(message) = message else { break };
            let class = message.cmsgs().unwrap().find_map(|one| match one {
                ControlMessageOwned::Ipv4Tos(class) => Some(class),
                _ => None,
            });
            let length = message.bytes;
            let datagram = &buffer[..length];
            let opcode = Packet::split(datagram).unwrap().0.opcode;
            self.arrived.push((opcode, class.unwrap()));
            self.endpoint.handle_datagram(now, self.path, datagram);
        }
        self.endpoint.handle_timeout(now);
        let mut out = BytesMut::new();
        while let Some(transmit) = self.endpoint.poll_transmit(now, 1, &mut out) {
            self.socket.send_to(&out, transmit.path.remote).unwrap();
            out.clear();
        }
    }
}

fn receive() -> WorkRequest {
    WorkRequest::Receive {
        id: WorkId(0),
        length: 1000,
        count: 1,
    }
}

fn free_port() -> u16 {
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    probe.local_addr().unwrap().port()
}

//= ROCE-A17.9-01 test
//= ROCE-A17.9-02 test
#[tokio::test]
async fn marked_packets_are_answered_with_cnps_of_their_own_dscp() {
    for (dscp, cnp_dscp) in [(0, None), (26, Some(40)), (0, Some(0))] {
        let mut config = RoceConfig {
            udp_port: free_port(),
            network: NetworkSettings {
                dscp,
                interface: Some("lo".into()),
            },
            ..RoceConfig::default()
        };
        config.cnp_dscp = cnp_dscp.unwrap_or(config.cnp_dscp);
        let mut marker = Marker::new(config.udp_port);
        let roce = Roce::new(config.clone());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut listener = roce.listen(any).await.unwrap();
        let parameters = ConnectParameters {
            path: marker.path,
            path_mtu: PathMtu::Mtu1024,
            port: listener.local_addr().port(),
            private_data: Bytes::new(),
            receive: receive(),
        };
        let id = marker.endpoint.connect(Instant::now(), parameters).unwrap();
        let accepting = tokio::spawn(async move {
            let request = listener.accept().await.unwrap();
            let answer = AcceptRequest {
                private_data: Bytes::new(),
                receive: receive(),
                peer_serves_reads: None,
            };
            request.accept(answer).await.unwrap()
        });
        let began = Instant::now();
        let mut is_connected = false;
        while !marker
            .arrived
            .iter()
            .any(|(opcode, _)| *opcode == Opcode::Acknowledge)
        {
            assert!(began.elapsed() < Duration::from_secs(10));
            marker.pump();
            if let Some(EndpointEvent::Connected { .. }) = marker.endpoint.poll_event() {
                is_connected = true;
                let send = WorkRequest::Send {
                    id: WorkId(1),
                    header: Inline::new(),
                    payload: Bytes::from_static(b"marked"),
                    invalidate: None,
                };
                marker.endpoint.post(id, send);
                marker.endpoint.flush(id);
            }
            sleep(Duration::from_millis(1)).await;
        }
        assert!(is_connected);
        let class = dscp << 2;
        let cnp_class = cnp_dscp.unwrap_or(48) << 2;
        let expected = [
            (Opcode::UdSendOnly, class),
            (Opcode::CongestionNotification, cnp_class),
            (Opcode::Acknowledge, class | 0b10),
        ];
        marker.arrived.dedup();
        assert_eq!(marker.arrived, expected);
        drop(accepting.await.unwrap());
    }
}

#[tokio::test]
async fn an_interface_that_does_not_exist_is_named() {
    let config = RoceConfig {
        udp_port: 0,
        network: NetworkSettings {
            dscp: 0,
            interface: Some("missing0".into()),
        },
        ..RoceConfig::default()
    };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let error = Roce::new(config).listen(any).await.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Local);
    assert!(error.what.contains("interface missing0"), "{error}");
}
