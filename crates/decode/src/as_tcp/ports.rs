//! The ports of clients: no two connections at the same time have the same ends.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use smbdirect_smb::frame::PORT;

/// The ports that connections use.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// The client and the address of the server.
    taken: HashSet<(SocketAddr, IpAddr)>,
}

/// Maximum number of ports that are remembered.
const MAX_TAKEN: usize = 1 << 16;
/// Maximum number of ports that are tried for a connection.
const MAX_TRIES: u16 = 64;

impl Ports {
    /// Notes the ends of a packet of SMB over TCP, which keep their ports.
    pub(super) fn take_plain(&mut self, [from, to]: [SocketAddr; 2]) {
        let (client, server) = if to.port() == PORT {
            (from, to)
        } else {
            (to, from)
        };
        self.insert(client, server.ip());
    }

    /// Takes a port for a client: the wanted one, or if that is taken, one after it.
    pub(super) fn take(&mut self, client: SocketAddr, server: IpAddr) -> SocketAddr {
        let tries = (0..MAX_TRIES).map(|more| {
            let port = client.port().checked_add(more).unwrap_or(more + 1);
            SocketAddr::new(client.ip(), port)
        });
        let free = tries
            .into_iter()
            .find(|client| self.insert(*client, server));
        free.unwrap_or(client)
    }

    /// Returns the port of a connection that has ended.
    pub(super) fn release(&mut self, client: SocketAddr, server: IpAddr) {
        self.taken.remove(&(client, server));
    }

    fn insert(&mut self, client: SocketAddr, server: IpAddr) -> bool {
        if self.taken.len() >= MAX_TAKEN {
            self.taken.clear();
        }
        self.taken.insert((client, server))
    }
}
