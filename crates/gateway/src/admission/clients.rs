//! The clients of a gateway, and the servers they go to.
//!
//! All connections of one client go to the same server, so that multichannel and durable handles work. A client is
//! recognised by the ClientGuid of its NEGOTIATE, or by its address if it has none.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use serde::{Deserialize, Serialize};
use smbdirect_smb::smb2::{Command, Header};
use tokio::time::Instant;

/// Maximum number of clients that are remembered after their last connection.
const MAX_CLIENTS: usize = 65_536;

/// Something by which a client is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum ClientKey {
    /// ClientGuid of the NEGOTIATE request of the client.
    Guid([u8; 16]),
    /// Address of the client, if the ClientGuid is zero or unknown.
    Address(IpAddr),
}

impl ClientKey {
    /// Number of bytes of a first message that [`of_first_message`](Self::of_first_message) needs.
    pub(crate) const HEAD: usize = Header::LENGTH + 28;

    /// Returns the ClientGuid of an SMB2 NEGOTIATE request ([MS-SMB2] 2.2.3). `None` for another message, and for a
    /// ClientGuid of zeros, which clients of SMB 2.0.2 send.
    pub(crate) fn of_first_message(head: &[u8]) -> Option<Self> {
        let header = Header::decode(head).ok()?;
        if header.command != Command::NEGOTIATE || header.is_response() {
            return None;
        }
        let guid = head.get(Header::LENGTH + 12..Self::HEAD)?;
        let guid: [u8; 16] = guid.try_into().ok()?;
        (guid != [0; 16]).then_some(Self::Guid(guid))
    }
}

/// Which servers clients have, or had last. Services that share it send a client to the same server, where both have it, count
/// the sessions of a server together, and drain it together.
#[derive(Debug, Default)]
pub struct Clients {
    clients: Mutex<HashMap<ClientKey, Client>>,
    /// What services share about a server, by its name in the settings.
    servers: Mutex<HashMap<String, Arc<Shared>>>,
}

/// What services share about a server.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Sessions in all services.
    pub(crate) sessions: AtomicU64,
    /// Whether an administrator wants that it takes no new clients.
    pub(crate) is_drained: AtomicBool,
}

/// The servers of a client: the one to which it went last is the last. Those that it has left have no connections, and
/// are forgotten when it goes to another server of the same service.
type Client = Vec<AtServer>;

#[derive(Debug)]
struct AtServer {
    /// The server, as the settings name it.
    server: String,
    /// Each connection has a clone.
    connections: Presence,
    /// Whether it has connections of an earlier process, whose sessions go on.
    has_earlier: bool,
    last_seen: Instant,
}

/// A connection of a client at a server. As long as the value exists it counts as one, unless its count was given up for a
/// new one meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Presence(Arc<()>);

impl AtServer {
    fn connections(&self) -> u64 {
        let own = Arc::strong_count(&self.connections.0) - 1;
        own as u64 + u64::from(self.has_earlier)
    }
}

/// A client and its server, for another process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Remembered {
    client: ClientKey,
    server: String,
    #[serde(default)]
    has_connections: bool,
}

impl Clients {
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked(self.clients.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns what services share about a server.
    pub(crate) fn shared(&self, server: &str) -> Arc<Shared> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        // A server that no service has any more is forgotten, unless it is to be drained when it comes back.
        servers
            .retain(|_, shared| Arc::strong_count(shared) > 1 || shared.is_drained.load(Relaxed));
        servers.entry(server.to_owned()).or_default().clone()
    }

    /// Drains a server in all services, because an administrator has drained it in the previous process.
    pub fn drain(&self, server: &str) {
        self.shared(server).is_drained.store(true, Relaxed);
    }

    /// Returns the servers that take no new clients because an administrator wants that, also those that no service has.
    pub fn drained(&self) -> Vec<String> {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let drained = servers
            .iter()
            .filter(|(_, shared)| shared.is_drained.load(Relaxed));
        drained.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the clients and their servers. Those that have connections and those that were seen last are the last.
    pub fn remembered(&self) -> Vec<Remembered> {
        let locked = self.lock();
        let mut clients: Vec<_> = locked.0.iter().collect();
        clients.sort_by_cached_key(|(_, client)| (!has_left(client), last_seen(client)));
        let of_client = |(&client, at): (&ClientKey, &Client)| {
            let remembered = |at: &AtServer| Remembered {
                client,
                server: at.server.clone(),
                has_connections: at.connections() > 0,
            };
            at.iter().map(remembered).collect::<Vec<_>>()
        };
        clients.into_iter().flat_map(of_client).collect()
    }

    /// Remembers clients of another process, whose connections there count until [`forget_earlier`](Self::forget_earlier).
    pub fn remember(&self, clients: impl IntoIterator<Item = Remembered>) {
        let mut locked = self.lock();
        for one in clients {
            locked.at(one.client, &one.server).has_earlier = one.has_connections;
        }
    }

    /// Forgets the connections of the other process, because it has ended.
    pub fn forget_earlier(&self) {
        let mut locked = self.lock();
        let all = locked.0.values_mut().flatten();
        all.for_each(|at| at.has_earlier = false);
    }
}

/// The clients, while no other thread changes them.
pub(crate) struct Locked<'a>(MutexGuard<'a, HashMap<ClientKey, Client>>);

impl Locked<'_> {
    /// Returns the servers of a client and the number of its connections there: first where it has connections, and of those
    /// and of the others the last one first.
    pub(crate) fn servers(&self, key: ClientKey) -> impl Iterator<Item = (&str, u64)> {
        let of = move |has_connections| {
            let at = self.0.get(&key).into_iter().flatten().rev();
            at.filter(move |at| (at.connections() > 0) == has_connections)
        };
        of(true)
            .chain(of(false))
            .map(|at| (at.server.as_str(), at.connections()))
    }

    /// Forgets the connections of all clients at a server, because they end.
    pub(crate) fn release(&mut self, server: &str) {
        for at in self.0.values_mut().flatten() {
            if at.server == server {
                (at.connections, at.has_earlier) = (Presence::default(), false);
            }
        }
    }

    /// Counts a connection of a client at a server, and returns how many it has there. It is forgotten at servers of
    /// the same service where it has none.
    pub(crate) fn enter(
        &mut self,
        key: ClientKey,
        server: &str,
        is_of_service: impl Fn(&str) -> bool,
    ) -> (Presence, u64) {
        let at = self.at(key, server);
        let entered = (at.connections.clone(), at.connections());
        let client = self.0.get_mut(&key).into_iter();
        client.for_each(|client| {
            client.retain(|at| at.connections() > 0 || !is_of_service(&at.server));
        });
        entered
    }

    /// Ends a connection of a client at a server.
    pub(crate) fn leave(&mut self, key: ClientKey, server: &str, presence: Presence) {
        drop(presence);
        let client = self.0.get_mut(&key).into_iter().flatten();
        for at in client.filter(|at| at.server == server) {
            at.last_seen = Instant::now();
        }
    }

    /// Returns a client at a server, which becomes its last one.
    fn at(&mut self, key: ClientKey, server: &str) -> &mut AtServer {
        if self.0.len() >= MAX_CLIENTS && !self.0.contains_key(&key) {
            self.forget_some();
        }
        let client = self.0.entry(key).or_default();
        let known = client.iter().position(|at| at.server == server);
        let at = match known {
            Some(index) => client.remove(index),
            None => AtServer {
                server: server.to_owned(),
                connections: Presence::default(),
                has_earlier: false,
                last_seen: Instant::now(),
            },
        };
        client.push(at);
        client.last_mut().expect("one was pushed")
    }

    /// Forgets the half of the clients without connections that was seen longest ago.
    fn forget_some(&mut self) {
        let without = self.0.values().filter(|client| has_left(client));
        let mut times: Vec<_> = without.map(last_seen).collect();
        times.sort_unstable();
        let middle = times.get(times.len() / 2).copied();
        let is_kept = |client: &Client| middle.is_some_and(|middle| last_seen(client) > middle);
        self.0
            .retain(|_, client| !has_left(client) || is_kept(client));
    }
}

fn has_left(client: &Client) -> bool {
    client.iter().all(|at| at.connections() == 0)
}

fn last_seen(client: &Client) -> Option<Instant> {
    client.iter().map(|at| at.last_seen).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_service(_: &str) -> bool {
        true
    }

    fn servers(clients: &Clients, key: ClientKey) -> Vec<(String, u64)> {
        let locked = clients.lock();
        let servers = locked.servers(key);
        servers
            .map(|(name, number)| (name.to_owned(), number))
            .collect()
    }

    #[test]
    fn few_clients_are_remembered() {
        let (clients, mut stay) = (Clients::default(), Vec::new());
        for number in 0..MAX_CLIENTS as u32 + 10 {
            let key = ClientKey::Address(IpAddr::from(number.to_be_bytes()));
            let mut locked = clients.lock();
            let (presence, connections) = locked.enter(key, "a", of_service);
            assert_eq!(connections, 1);
            if number > 5 {
                locked.leave(key, "a", presence);
            } else {
                stay.push(presence);
            }
        }
        let remembered = clients.remembered().len();
        assert!(
            (MAX_CLIENTS / 2..=MAX_CLIENTS).contains(&remembered),
            "{remembered}"
        );
        let of = |number: u32| {
            let key = ClientKey::Address(IpAddr::from(number.to_be_bytes()));
            servers(&clients, key)
        };
        for number in 0..5 {
            assert_eq!(of(number), [("a".to_owned(), 1)], "it has a connection");
        }
        assert!(of(10).is_empty(), "it was seen longest ago");
        assert_eq!(of(MAX_CLIENTS as u32), [("a".to_owned(), 0)]);
    }

    #[test]
    fn a_client_has_a_server_in_each_service() {
        let clients = Clients::default();
        let key = ClientKey::Guid([1; 16]);
        let of_files = |server: &str| ["a", "b"].contains(&server);
        let of_others = |server: &str| server == "c";
        let enter = |server, of: &dyn Fn(&str) -> bool| clients.lock().enter(key, server, of).0;
        let at_a = enter("a", &of_files);
        let at_c = enter("c", &of_others);
        assert_eq!(
            servers(&clients, key),
            [("c".to_owned(), 1), ("a".to_owned(), 1)]
        );
        // It goes to another server while it has a connection at the first, and once more when it has none.
        let at_b = enter("b", &of_files);
        assert_eq!(servers(&clients, key).len(), 3);
        clients.lock().leave(key, "a", at_a);
        clients.lock().leave(key, "b", at_b);
        assert_eq!(
            servers(&clients, key)[0],
            ("c".to_owned(), 1),
            "it has a connection"
        );
        clients.lock().release("c");
        clients.lock().leave(key, "c", at_c);
        let _at_b = enter("b", &of_files);
        assert_eq!(
            servers(&clients, key),
            [("b".to_owned(), 1), ("c".to_owned(), 0)]
        );
    }

    /// Connections that an administrator ends do not take new ones with them, however late they close.
    #[test]
    fn a_connection_counts_until_it_or_its_count_ends() {
        let (clients, key) = (Clients::default(), ClientKey::Guid([1; 16]));
        let enter = || clients.lock().enter(key, "a", of_service);
        let old = [enter(), enter(), enter()];
        assert_eq!(old[2].1, 3);
        clients.lock().release("a");
        let (_new, connections) = enter();
        assert_eq!(connections, 1);
        for (presence, _) in old {
            clients.lock().leave(key, "a", presence);
        }
        assert_eq!(servers(&clients, key), [("a".to_owned(), 1)]);
    }

    #[test]
    fn another_process_remembers_them() {
        let clients = Clients::default();
        let keys = [
            ClientKey::Guid([7; 16]),
            ClientKey::Address([10, 0, 0, 1].into()),
        ];
        let mut connections = Vec::new();
        for key in keys {
            clients.lock().enter(key, "a", of_service);
            connections.push(clients.lock().enter(key, "b", of_service));
        }
        let text = serde_json::to_string(&clients.remembered()).unwrap();
        let other = Clients::default();
        other.remember(serde_json::from_str::<Vec<Remembered>>(&text).unwrap());
        for connections in [1, 0] {
            for key in keys {
                let expected = [("b".to_owned(), connections)];
                assert_eq!(servers(&other, key), expected);
            }
            other.forget_earlier();
        }
    }
}
