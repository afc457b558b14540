//! The servers of a gateway: which of them take clients, and which one a client goes to.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use smbdirect_transport::Address;
use tokio::{sync::watch, task::AbortHandle, time::Instant};

use super::{
    clients::{ClientKey, Clients, Shared},
    live::{Balance, Check},
};

/// The part of its share of clients that a server gets when it begins to take clients again.
const LEAST_WEIGHT: f64 = 0.05;

/// The servers of a gateway.
#[derive(Debug, Default)]
pub(super) struct Servers {
    list: Mutex<Vec<Listed>>,
    /// Servers that the settings had before, while they have sessions. They are still checked.
    leaving: Mutex<Vec<Listed>>,
    clients: Arc<Clients>,
}

/// A server that the settings have, and the task that checks it.
#[derive(Debug)]
struct Listed {
    server: Arc<Server>,
    check: Option<Check>,
    task: Option<AbortHandle>,
    /// Its turn among the others by round robin: the server with the largest number is next.
    turn: f64,
    /// The number of its last turn, which decides between servers with equal loads.
    last_turn: u64,
}

impl Listed {
    fn has_sessions(&self) -> bool {
        self.server.sessions.load(Relaxed) > 0
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// One server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: Address,
    pub(super) name: String,
    sessions: AtomicU64,
    /// What other services know of it, too.
    shared: Arc<Shared>,
    health: watch::Sender<Health>,
}

/// Why a check of a server failed.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) text: String,
    /// Whether it is a fault of this machine, which says nothing about the server.
    pub(super) is_own: bool,
}

/// What the checks of a server have found.
#[derive(Clone, Debug)]
struct Health {
    is_up: bool,
    /// Results in a row that differ from `is_up`.
    contrary: u32,
    /// Whether anything is known. If not, the first check alone decides.
    is_known: bool,
    /// When it began to take clients again, if it was down.
    up_since: Option<Instant>,
    slow_start: Duration,
    /// The reason of the last failure.
    fault: Option<String>,
}

/// The state of one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The server, as the settings name it.
    pub server: String,
    /// Whether its checks succeed; true for a server that is not checked.
    pub is_up: bool,
    /// Whether it takes no new clients, because an administrator wants that.
    pub is_drained: bool,
    /// Sessions that it has now.
    pub sessions: u64,
    /// Why the last check failed, if it did.
    pub fault: Option<String>,
}

/// The connection of one client to one server. A drop ends it.
#[derive(Debug)]
pub(super) struct Seat {
    servers: Arc<Servers>,
    pub(super) server: Arc<Server>,
    /// Whether the client has other connections to this server.
    pub(super) has_others: bool,
    /// The client, and its ClientGuid if that was known later.
    keys: Mutex<Vec<ClientKey>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Servers {
    /// Creates an empty list, whose clients these are.
    pub(super) fn of(clients: Arc<Clients>) -> Self {
        Self {
            clients,
            ..Self::default()
        }
    }

    /// Sets the servers, and how they are checked: `start` starts the task that checks a server. A server that stays
    /// keeps its state, and its sessions go on. One that does not stay is checked while it has sessions.
    pub(super) fn set(
        &self,
        addresses: &[Address],
        check: Option<Check>,
        start: impl Fn(Arc<Server>, Check) -> AbortHandle,
    ) {
        let mut list = lock(&self.list);
        let mut leaving = lock(&self.leaving);
        let mut before = std::mem::take(&mut *list);
        before.append(&mut leaving);
        for address in addresses {
            let kept = before
                .iter()
                .position(|listed| listed.server.address == *address);
            let mut listed = match kept {
                Some(index) => before.swap_remove(index),
                None => Listed {
                    server: Arc::new(Server::new(address.clone(), &self.clients)),
                    check: None,
                    task: None,
                    turn: 0.0,
                    last_turn: 0,
                },
            };
            if listed.check != check {
                if let Some(task) = listed.task.take() {
                    task.abort();
                }
                if check.is_none() {
                    listed.server.is_assumed_up();
                }
                listed.task = check.map(|check| start(listed.server.clone(), check));
                listed.check = check;
            }
            list.push(listed);
        }
        before.retain(Listed::has_sessions);
        *leaving = before;
    }

    /// Returns whether there is only one server, also of those that leave, so that nothing needs to be known about a client.
    pub(super) fn is_one(&self) -> bool {
        let list = lock(&self.list);
        list.len() == 1 && lock(&self.leaving).is_empty()
    }

    /// Returns whether a client could be served.
    pub(super) fn is_any_up(&self) -> bool {
        lock(&self.list)
            .iter()
            .any(|listed| listed.server.takes_clients())
    }

    /// Returns the state of each server.
    pub(super) fn status(&self) -> Vec<ServerStatus> {
        lock(&self.list)
            .iter()
            .map(|listed| listed.server.status())
            .collect()
    }

    /// Assumes the health that another process has found, until checks find something else. A server that is not checked
    /// here is up.
    pub(super) fn assume(&self, states: &[ServerStatus]) {
        let list = lock(&self.list);
        for listed in list.iter().filter(|listed| listed.check.is_some()) {
            let is_of = |state: &&ServerStatus| state.server == listed.server.name;
            if let Some(state) = states.iter().find(is_of) {
                listed.server.assume(state);
            }
        }
    }

    /// Forgets the connections at a server, because its sessions end, so that their clients go elsewhere if it is drained.
    pub(super) fn release(&self, name: &str) {
        self.clients.lock().release(name);
    }

    /// Has the server with this name take no new clients, or take them again. Returns whether there is one.
    pub(super) fn set_drained(&self, name: &str, is_drained: bool) -> bool {
        let list = lock(&self.list);
        let found = list.iter().find(|listed| listed.server.name == name);
        if let Some(listed) = found {
            listed.server.shared.is_drained.store(is_drained, Relaxed);
        }
        found.is_some()
    }

    /// Returns a seat for a client: at the server where it has connections or was last, or else at the one whose turn
    /// it is. Servers in `failed` are left out. `None` if no server takes the client.
    pub(super) fn seat(
        self: &Arc<Self>,
        balance: Balance,
        key: ClientKey,
        failed: &[Arc<Server>],
    ) -> Option<Seat> {
        let has_failed = |server: &Arc<Server>| failed.iter().any(|one| Arc::ptr_eq(one, server));
        let mut list = lock(&self.list);
        let leaving = lock(&self.leaving);
        let mut clients = self.clients.lock();
        let known = clients.servers(key).find_map(|(name, connections)| {
            let is_named = |listed: &&Listed| listed.server.name == name;
            let listed = list.iter().find(is_named);
            let server = &listed.or_else(|| leaving.iter().find(is_named))?.server;
            // Connections that a client adds go where the others are, also while that server is drained.
            let has_others = connections > 0 && server.is_up();
            let stays = has_others || (listed.is_some() && server.takes_clients());
            (stays && !has_failed(server)).then(|| server.clone())
        });
        let server = match known {
            Some(server) => server,
            None => next(&mut list, balance, has_failed)?,
        };
        let is_of_service = |name: &str| list.iter().any(|listed| listed.server.name == name);
        let has_others = clients.enter(key, &server.name, is_of_service) > 1;
        server.sessions.fetch_add(1, Relaxed);
        server.shared.sessions.fetch_add(1, Relaxed);
        drop((clients, leaving, list));
        Some(Seat {
            servers: self.clone(),
            server,
            has_others,
            keys: Mutex::new(vec![key]),
        })
    }
}

/// Returns the server whose turn it is.
fn next(
    list: &mut [Listed],
    balance: Balance,
    has_failed: impl Fn(&Arc<Server>) -> bool,
) -> Option<Arc<Server>> {
    let now = Instant::now();
    let mut able: Vec<_> = list
        .iter_mut()
        .filter(|listed| listed.server.takes_clients() && !has_failed(&listed.server))
        .map(|listed| (listed.server.weight(now), listed))
        .collect();
    if balance == Balance::RoundRobin {
        let total: f64 = able.iter().map(|(weight, _)| weight).sum();
        for (weight, listed) in &mut able {
            listed.turn += *weight;
        }
        // The first of several with the largest number.
        let best = able
            .into_iter()
            .rev()
            .max_by(|(_, one), (_, other)| one.turn.total_cmp(&other.turn));
        let (_, listed) = best?;
        listed.turn -= total;
        return Some(listed.server.clone());
    }
    // With equal loads, the server whose last turn is longest ago is next.
    let turns = 1 + able.iter().map(|(_, listed)| listed.last_turn).max()?;
    let load =
        |weight: f64, server: &Server| (server.shared.sessions.load(Relaxed) as f64 + 1.0) / weight;
    let best = able
        .into_iter()
        .min_by(|(weight, one), (other_weight, other)| {
            let loads = load(*weight, &one.server).total_cmp(&load(*other_weight, &other.server));
            loads.then(one.last_turn.cmp(&other.last_turn))
        });
    let (_, listed) = best?;
    listed.last_turn = turns;
    Some(listed.server.clone())
}

impl Server {
    fn new(address: Address, clients: &Clients) -> Self {
        let name = address.to_string();
        Self {
            shared: clients.shared(&name),
            name,
            address,
            sessions: AtomicU64::new(0),
            health: watch::Sender::new(Health::assumed()),
        }
    }

    fn is_up(&self) -> bool {
        self.health.borrow().is_up
    }

    fn takes_clients(&self) -> bool {
        self.is_up() && !self.shared.is_drained.load(Relaxed)
    }

    /// Assumes that the server is up, because it is no longer checked.
    fn is_assumed_up(&self) {
        self.health.send_modify(|health| {
            *health = Health {
                is_known: health.is_known,
                ..Health::assumed()
            }
        });
    }

    /// Notes that a session has connected to it.
    pub(super) fn is_reached(&self) {
        self.health.send_if_modified(|health| {
            health.is_known = true;
            false
        });
    }

    /// Assumes the health that another process has found.
    fn assume(&self, state: &ServerStatus) {
        self.health.send_replace(Health {
            is_up: state.is_up,
            is_known: true,
            fault: state.fault.clone(),
            ..Health::assumed()
        });
    }

    /// Returns the part of its share of new clients that the server gets.
    fn weight(&self, now: Instant) -> f64 {
        let health = self.health.borrow();
        let Some(since) = health.up_since.filter(|_| !health.slow_start.is_zero()) else {
            return 1.0;
        };
        let part = (now - since).as_secs_f64() / health.slow_start.as_secs_f64();
        part.clamp(LEAST_WEIGHT, 1.0)
    }

    /// Records the result of a check. Returns whether the server has gone up or down by it.
    pub(super) fn checked(&self, check: &Check, result: Result<(), Fault>) -> bool {
        let is_success = result.is_ok();
        let is_own = result.as_ref().is_err_and(|fault| fault.is_own);
        let mut has_changed = false;
        self.health.send_if_modified(|health| {
            health.fault = result.err().map(|fault| fault.text);
            if is_own {
                return false;
            }
            health.slow_start = check.slow_start;
            let is_first = !std::mem::replace(&mut health.is_known, true);
            if is_success == health.is_up {
                health.contrary = 0;
                return false;
            }
            health.contrary += 1;
            let needed = if is_success { check.rise } else { check.fall };
            if health.contrary < needed && !is_first {
                return false;
            }
            health.is_up = is_success;
            health.contrary = 0;
            health.up_since = is_success.then(Instant::now);
            has_changed = true;
            true
        });
        has_changed
    }

    /// Waits until the server is down.
    pub(super) async fn down(&self) {
        let mut health = self.health.subscribe();
        // The sender lives as long as this value.
        let _ = health.wait_for(|health| !health.is_up).await;
    }

    fn status(&self) -> ServerStatus {
        let health = self.health.borrow();
        ServerStatus {
            server: self.name.clone(),
            is_up: health.is_up,
            is_drained: self.shared.is_drained.load(Relaxed),
            sessions: self.sessions.load(Relaxed),
            fault: health.fault.clone(),
        }
    }
}

impl Health {
    const fn assumed() -> Self {
        Self {
            is_up: true,
            contrary: 0,
            is_known: false,
            up_since: None,
            slow_start: Duration::ZERO,
            fault: None,
        }
    }
}

impl Seat {
    /// Adds what the client is recognised by as well. A client that has connections to another server keeps them.
    pub(super) fn add_key(&self, key: ClientKey) {
        let list = lock(&self.servers.list);
        let mut clients = self.servers.clients.lock();
        let is_of_service = |name: &str| list.iter().any(|listed| listed.server.name == name);
        let is_elsewhere = clients.servers(key).any(|(name, connections)| {
            connections > 0 && name != self.server.name && is_of_service(name)
        });
        if !is_elsewhere {
            clients.enter(key, &self.server.name, is_of_service);
            lock(&self.keys).push(key);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.server.shared.sessions.fetch_sub(1, Relaxed);
        if self.server.sessions.fetch_sub(1, Relaxed) == 1 {
            lock(&self.servers.leaving).retain(Listed::has_sessions);
        }
        let mut clients = self.servers.clients.lock();
        for key in &*lock(&self.keys) {
            clients.leave(*key, &self.server.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(names: &[&str]) -> Arc<Servers> {
        let servers = Arc::new(Servers::default());
        let addresses: Vec<_> = names.iter().map(|name| name.parse().unwrap()).collect();
        servers.set(&addresses, None, |_, _| unreachable!("nothing is checked"));
        servers
    }

    /// Returns two services with the same servers and clients.
    fn two_services() -> (Arc<Clients>, [Arc<Servers>; 2]) {
        let clients = Arc::new(Clients::default());
        let services = [["a", "b", "c"], ["c", "b", "a"]].map(|names| {
            let servers = Arc::new(Servers::of(clients.clone()));
            let addresses = names.map(|name| name.parse().unwrap());
            servers.set(&addresses, None, |_, _| unreachable!());
            servers
        });
        (clients, services)
    }

    fn client(number: u8) -> ClientKey {
        ClientKey::Guid([number; 16])
    }

    fn named(servers: &Servers, name: &str) -> Arc<Server> {
        let list = lock(&servers.list);
        let found = list.iter().find(|listed| listed.server.name == name);
        found.unwrap().server.clone()
    }

    fn fault(is_own: bool) -> Result<(), Fault> {
        let text = "it did not answer".into();
        Err(Fault { text, is_own })
    }

    fn fail(server: &Server, check: &Check) {
        server.checked(check, Ok(()));
        for _ in 0..check.fall {
            server.checked(check, fault(false));
        }
    }

    const LEAST: Balance = Balance::LeastConnections;

    #[tokio::test]
    async fn new_clients_are_shared_equally() {
        for balance in [LEAST, Balance::RoundRobin] {
            let servers = servers(&["a", "b", "c"]);
            let seats: Vec<_> = (0..30)
                .map(|number| servers.seat(balance, client(number), &[]).unwrap())
                .collect();
            for name in ["a", "b", "c"] {
                let count = seats.iter().filter(|seat| seat.server.name == name).count();
                assert_eq!(count, 10, "{balance:?} {name}");
            }
            drop(seats);
            assert!(servers.status().iter().all(|status| status.sessions == 0));
        }
        // Short connections one after the other are shared too.
        let servers = servers(&["a", "b"]);
        let names: Vec<_> = (0..4)
            .map(|number| {
                servers
                    .seat(LEAST, client(number), &[])
                    .unwrap()
                    .server
                    .name
                    .clone()
            })
            .collect();
        assert_eq!(names, ["a", "b", "a", "b"]);
    }

    #[tokio::test]
    async fn all_connections_of_a_client_go_to_one_server() {
        let servers = servers(&["a", "b"]);
        let first = servers.seat(LEAST, client(1), &[]).unwrap();
        assert!(!first.has_others);
        for _ in 0..5 {
            let seat = servers.seat(LEAST, client(1), &[]).unwrap();
            assert!(seat.has_others);
            assert_eq!(seat.server.name, first.server.name);
        }
        let name = first.server.name.clone();
        drop(first);
        let _others: Vec<_> = (2..8)
            .map(|number| servers.seat(LEAST, client(number), &[]))
            .collect();
        let again = servers.seat(LEAST, client(1), &[]).unwrap();
        assert_eq!(again.server.name, name, "it finds its durable handles");
    }

    #[tokio::test]
    async fn a_server_that_fails_loses_its_clients() {
        let servers = servers(&["a", "b"]);
        let check = Check::default();
        let seat = servers.seat(LEAST, client(1), &[]).unwrap();
        let a = seat.server.clone();
        assert!(!a.checked(&check, Ok(())));
        assert!(!a.checked(&check, fault(false)));
        assert!(!a.checked(&check, Ok(())));
        fail(&a, &check);
        a.down().await;
        let again = servers.seat(LEAST, client(1), &[]).unwrap();
        assert_eq!(again.server.name, "b");
        drop(seat);
        fail(&named(&servers, "b"), &check);
        assert!(!servers.is_any_up());
        assert!(servers.seat(LEAST, client(2), &[]).is_none());
        assert!(!a.checked(&check, Ok(())));
        assert!(a.checked(&check, Ok(())));
        assert!(servers.is_any_up());
    }

    #[tokio::test]
    async fn the_first_check_of_a_server_decides() {
        let servers = servers(&["a", "b"]);
        let check = Check::default();
        let a = named(&servers, "a");
        assert!(!a.checked(&check, fault(true)));
        assert!(a.checked(&check, fault(false)));
        assert!(!a.is_up());
        assert!(!a.checked(&check, Ok(())));
        assert!(a.checked(&check, Ok(())));
        assert!(!a.checked(&check, fault(false)));
        assert!(a.is_up());
        // A session that has connected says more.
        let b = named(&servers, "b");
        b.is_reached();
        b.is_assumed_up();
        assert!(!b.checked(&check, fault(false)));
    }

    #[tokio::test]
    async fn the_sessions_of_all_services_count() {
        let (clients, services) = two_services();
        let seats: Vec<_> = (0..9)
            .map(|number| {
                let service = &services[usize::from(number) % 2];
                service.seat(LEAST, client(number), &[]).unwrap()
            })
            .collect();
        for name in ["a", "b", "c"] {
            let count = seats.iter().filter(|seat| seat.server.name == name).count();
            assert_eq!(count, 3, "{name}");
        }
        drop(seats);
        assert_eq!(clients.shared("a").sessions.load(Relaxed), 0);
        // It is drained in all services, also in one that is added.
        services[0].set_drained("a", true);
        let added = Servers::of(clients);
        added.set(&["a".parse().unwrap()], None, |_, _| unreachable!());
        assert!(!added.is_any_up());
    }

    #[tokio::test]
    async fn services_send_a_client_to_one_server() {
        let (clients, services) = two_services();
        for number in 0..9 {
            let seats = [0, 1].map(|service: usize| {
                let service = &services[(service + usize::from(number)) % 2];
                service.seat(LEAST, client(number), &[]).unwrap()
            });
            assert_eq!(seats[0].server.name, seats[1].server.name);
            assert!(seats[1].has_others);
        }
        // Also while the server is drained, if it has connections of the client by the other service.
        let first = services[0].seat(LEAST, client(1), &[]).unwrap();
        services
            .iter()
            .for_each(|servers| assert!(servers.set_drained(&first.server.name, true)));
        let channel = services[1].seat(LEAST, client(1), &[]).unwrap();
        assert_eq!(channel.server.name, first.server.name);
        drop((first, channel));
        // A service with other servers has its own.
        let others = Arc::new(Servers::of(clients));
        others.set(&["d".parse().unwrap()], None, |_, _| unreachable!());
        let before = services[0].seat(LEAST, client(2), &[]).unwrap();
        let other = others.seat(LEAST, client(2), &[]).unwrap();
        assert_eq!(other.server.name, "d");
        let channel = services[1].seat(LEAST, client(2), &[]).unwrap();
        assert_eq!(channel.server.name, before.server.name);
    }

    #[tokio::test]
    async fn states_of_another_process_are_assumed() {
        let before = servers(&["a", "b", "c"]);
        fail(&named(&before, "a"), &Check::default());
        before.set_drained("b", true);
        let after = Servers::default();
        let sleeping = |_, _| tokio::spawn(std::future::pending::<()>()).abort_handle();
        let addresses = ["b", "d", "a"].map(|name| name.parse().unwrap());
        after.set(&addresses, Some(Check::default()), sleeping);
        after.assume(&before.status());
        let states: Vec<_> = after
            .status()
            .into_iter()
            .map(|state| (state.server, state.is_up, state.is_drained))
            .collect();
        let expected = [("b", true, false), ("d", true, false), ("a", false, false)];
        assert_eq!(
            states,
            expected.map(|(name, up, drained)| (name.to_owned(), up, drained))
        );
        assert!(!named(&after, "b").checked(&Check::default(), fault(false)));
        // It comes back as if this process had seen it fail.
        let a = named(&after, "a");
        assert!(!a.checked(&Check::default(), Ok(())));
        assert!(a.checked(&Check::default(), Ok(())));
        // One that is not checked here is up.
        after.set(&addresses, None, sleeping);
        after.assume(&before.status());
        assert!(after.status().iter().all(|state| state.is_up));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_back_gets_clients_slowly() {
        for balance in [LEAST, Balance::RoundRobin] {
            let servers = servers(&["a", "b"]);
            let check = Check::default();
            let a = named(&servers, "a");
            fail(&a, &check);
            a.checked(&check, Ok(()));
            a.checked(&check, Ok(()));
            let mut seats = Vec::new();
            let part = |seats: &mut Vec<Seat>| {
                let from = seats.len();
                for number in from..from + 100 {
                    let key = client(u8::try_from(number).unwrap());
                    seats.push(servers.seat(balance, key, &[]).unwrap());
                }
                seats[from..]
                    .iter()
                    .filter(|seat| seat.server.name == "a")
                    .count()
            };
            let first = part(&mut seats);
            assert!((1..=10).contains(&first), "{balance:?}: {first} of 100");
            tokio::time::advance(Duration::from_secs(61)).await;
            let later = part(&mut seats);
            assert!(later >= 49, "{balance:?}: {later} of 100");
        }
    }

    #[tokio::test]
    async fn a_drained_server_keeps_its_clients() {
        let servers = servers(&["a", "b"]);
        let seat = servers.seat(LEAST, client(1), &[]).unwrap();
        let name = seat.server.name.clone();
        assert!(servers.set_drained(&name, true));
        assert!(!servers.set_drained("nobody", true));
        let channel = servers.seat(LEAST, client(1), &[]).unwrap();
        assert_eq!(
            channel.server.name, name,
            "a channel of a session that is open"
        );
        for number in 2..6 {
            let other = servers.seat(LEAST, client(number), &[]).unwrap();
            assert_ne!(other.server.name, name);
        }
        // Its sessions end, and the first client that comes back finds others that have not.
        servers.release(&name);
        let moved = servers.seat(LEAST, client(1), &[]).unwrap();
        assert_ne!(moved.server.name, name);
        drop((seat, channel, moved));
        let moved = servers.seat(LEAST, client(1), &[]).unwrap();
        assert_ne!(moved.server.name, name);
    }

    #[tokio::test]
    async fn a_client_whose_server_does_not_answer_goes_to_the_next() {
        let servers = servers(&["a", "b"]);
        let seat = servers.seat(LEAST, client(1), &[]).unwrap();
        let failed = [seat.server.clone()];
        drop(seat);
        let next = servers.seat(LEAST, client(1), &failed).unwrap();
        assert_ne!(next.server.name, failed[0].name);
        let both = [failed[0].clone(), next.server.clone()];
        assert!(servers.seat(LEAST, client(2), &both).is_none());
    }

    #[tokio::test]
    async fn a_reload_keeps_the_state_of_servers_that_stay() {
        let servers = servers(&["a", "b"]);
        fail(&named(&servers, "a"), &Check::default());
        servers.set_drained("b", true);
        let addresses = ["b", "a", "c"].map(|name| name.parse().unwrap());
        servers.set(&addresses, None, |_, _| unreachable!());
        let seat = servers.seat(LEAST, client(1), &[]).unwrap();
        assert_eq!(seat.server.name, "c");
        servers.set(&addresses[..2], None, |_, _| unreachable!());
        assert!(
            servers.seat(LEAST, client(1), &[]).is_some(),
            "its others go on"
        );
        assert!(servers.seat(LEAST, client(2), &[]).is_none());
        assert_eq!(servers.status().len(), 2);
    }

    /// Neither a name server that is away nor a full table of descriptors ends the sessions of every server.
    #[tokio::test]
    async fn a_fault_of_this_machine_says_nothing_about_a_server() {
        let servers = servers(&["a", "b"]);
        let check = Check::default();
        let a = named(&servers, "a");
        for _ in 0..10 {
            assert!(!a.checked(&check, fault(true)));
        }
        assert!(a.is_up());
        assert_eq!(
            servers.status()[0].fault.as_deref(),
            Some("it did not answer")
        );
        fail(&a, &check);
        for _ in 0..10 {
            assert!(!a.checked(&check, fault(true)));
        }
        assert!(!a.is_up());
    }

    #[tokio::test]
    async fn a_server_that_was_removed_is_checked_while_it_has_sessions() {
        let servers = servers(&["a", "b"]);
        let seat = servers.seat(LEAST, client(1), &[]).unwrap();
        let address = seat.server.address.clone();
        let both = ["b".parse().unwrap(), address];
        let check = Some(Check::default());
        let sleeping = |_, _| tokio::spawn(std::future::pending::<()>()).abort_handle();
        servers.set(&both[..1], check, sleeping);
        assert_eq!(lock(&servers.leaving).len(), 1);
        servers.set(&both, check, sleeping);
        let again = servers.seat(LEAST, client(1), &[]).unwrap();
        assert!(
            Arc::ptr_eq(&again.server, &seat.server),
            "it comes back with its state"
        );
        assert!(lock(&servers.leaving).is_empty());
        servers.set(&both[..1], check, sleeping);
        drop(seat);
        assert_eq!(lock(&servers.leaving).len(), 1);
        drop(again);
        assert!(lock(&servers.leaving).is_empty(), "its last session ends");
    }

    #[tokio::test]
    async fn a_new_server_gets_no_more_than_its_part() {
        let servers = servers(&["a", "b"]);
        let names = |from: u8| -> Vec<String> {
            let seats = (from..from + 6).map(|number| servers.seat(LEAST, client(number), &[]));
            seats
                .map(|seat| seat.unwrap().server.name.clone())
                .collect()
        };
        names(1);
        let addresses = ["a", "b", "c"].map(|name| name.parse().unwrap());
        servers.set(&addresses, None, |_, _| unreachable!());
        let later = names(10);
        let of_new = later.iter().filter(|name| *name == "c").count();
        assert_eq!(of_new, 2, "{later:?}");
    }

    #[test]
    fn a_client_that_begins_with_smb1_is_recognised_later() {
        let servers = servers(&["a", "b"]);
        let old = ClientKey::Address([10, 0, 0, 1].into());
        let first = servers.seat(LEAST, old, &[]).unwrap();
        first.add_key(client(1));
        let channel = servers.seat(LEAST, client(1), &[]).unwrap();
        assert!(Arc::ptr_eq(&first.server, &channel.server));
        drop((first, channel));
        for key in [old, client(1)] {
            let clients = servers.clients.lock();
            assert!(
                clients
                    .servers(key)
                    .all(|(_, connections)| connections == 0)
            );
        }
    }
}
