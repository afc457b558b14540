//! Listening sockets that an earlier process has left for this one.

use std::net::{SocketAddr, TcpListener};

use smbdirect::rdma::NetworkSettings;
use socket2::SockRef;

/// Listening sockets that an earlier process has left for this one.
#[derive(Debug, Default)]
pub struct Kept {
    sockets: Vec<TcpListener>,
    is_shared: bool,
}

impl Kept {
    /// `is_shared` is whether the earlier process may still serve the sockets.
    pub const fn new(sockets: Vec<TcpListener>, is_shared: bool) -> Self {
        Self { sockets, is_shared }
    }

    /// Returns whether the earlier process may still serve the sockets.
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Takes the socket with this address and these settings, if there is one. Otherwise, unless they are shared, a
    /// socket whose address would prevent listening on this one ends, for every process that has it.
    pub(crate) fn take(
        &mut self,
        address: SocketAddr,
        network: &NetworkSettings,
    ) -> Option<TcpListener> {
        let is_it = |socket: &TcpListener| {
            has_address(socket, |own| own == address) && network.are_of(socket)
        };
        if let Some(at) = self.sockets.iter().position(is_it) {
            return Some(self.sockets.swap_remove(at));
        }
        if !self.is_shared {
            let prevents =
                |socket: &mut TcpListener| has_address(socket, |own| overlap(own, address));
            for socket in self.sockets.extract_if(.., prevents) {
                // A service manager may have a duplicate of it, which a close would not end.
                let _ = SockRef::from(&socket).shutdown(std::net::Shutdown::Both);
            }
        }
        None
    }
}

fn has_address(socket: &TcpListener, is: impl Fn(SocketAddr) -> bool) -> bool {
    socket.local_addr().is_ok_and(is)
}

/// Returns whether two sockets cannot listen on these addresses at the same time.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (is_any || one.ip() == other.ip())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn network(dscp: u8) -> NetworkSettings {
        let mut network = NetworkSettings::default();
        network.dscp = dscp;
        network
    }

    #[test]
    fn a_socket_that_prevents_another_one_ends() {
        for (is_shared, network) in [
            (false, network(0)),
            (true, network(0)),
            (false, network(46)),
        ] {
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            let stored = socket.try_clone().unwrap();
            let address = socket.local_addr().unwrap();
            let other = TcpListener::bind("127.0.0.1:0").unwrap();
            let other_address = other.local_addr().unwrap();
            let mut kept = Kept::new(vec![other, socket], is_shared);
            let wanted = if network.dscp == 0 {
                SocketAddr::from(([0, 0, 0, 0], address.port()))
            } else {
                address
            };
            assert!(kept.take(wanted, &network).is_none());
            // `stored` is what the service manager has.
            assert_eq!(TcpListener::bind(wanted).is_ok(), !is_shared);
            drop(stored);
            let default = NetworkSettings::default();
            let taken = kept.take(other_address, &default).unwrap();
            assert_eq!(taken.local_addr().unwrap(), other_address);
        }
    }
}
