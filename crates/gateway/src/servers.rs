//! The servers of a gateway: which of them take clients, and which one a client goes to.

pub(crate) mod state;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use smbdirect_transport::Address;
use tokio::{sync::watch, task::AbortHandle, time::Instant};

use crate::{
    admission::clients::{ClientKey, Clients, Presence, Shared},
    live::{Balance, Check},
};
use state::{Change, Checked, NewClients, Seen, State};

/// The part of its share of clients that a server gets when it begins to take clients again.
const LEAST_WEIGHT: f64 = 0.05;

/// The servers of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    list: Mutex<Vec<Listed>>,
    /// Servers that the settings had before, while they have sessions. They are still checked.
    leaving: Mutex<Vec<Listed>>,
    /// The checks of each server, also of those that the settings had before.
    checks: Mutex<HashMap<String, Arc<Checks>>>,
    clients: Arc<Clients>,
}

/// A server that the settings have, and the task that checks it.
#[derive(Debug)]
struct Listed {
    server: Arc<Server>,
    check: Option<Check>,
    task: Option<AbortHandle>,
    /// The turn of the server: of those with equal loads, the one with the largest number is next.
    turn: f64,
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
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) name: String,
    sessions: AtomicU64,
    /// Answers to sessions, which are signs of life.
    answers: AtomicU64,
    /// What other services know of it, too.
    shared: Arc<Shared>,
    checks: Arc<Checks>,
    state: watch::Sender<State>,
}

/// How often checks saw each of [`Seen::ALL`].
type Checks = [AtomicU64; Seen::ALL.len()];

/// The state of one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The server, as the settings name it.
    pub server: String,
    /// Whether its checks succeed; true for a server that is not checked.
    pub is_up: bool,
    /// What its checks saw last, as far as it decides; [`Seen::Answers`] for a server that is not checked.
    #[serde(default)]
    pub state: Seen,
    /// Whether it takes no new clients, because an administrator wants that.
    pub is_drained: bool,
    /// Sessions that it has now.
    pub sessions: u64,
    /// Why the last check failed, if it did.
    pub fault: Option<String>,
    /// Seconds since it began to take clients again; `None` if it always did, or does not.
    #[serde(default)]
    pub seconds_up: Option<f64>,
    /// How often checks saw each of [`Seen::ALL`].
    #[serde(default)]
    pub checks: [u64; Seen::ALL.len()],
}

/// The connection of one client to one server. A drop ends it.
#[derive(Debug)]
pub(crate) struct Seat {
    servers: Arc<Servers>,
    pub(crate) server: Arc<Server>,
    /// Whether the client has other connections to this server.
    pub(crate) has_others: bool,
    /// The client, and its ClientGuid if that was known later.
    keys: Mutex<Vec<(ClientKey, Presence)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Servers {
    /// Creates an empty list, whose clients these are.
    pub(crate) fn of(clients: Arc<Clients>) -> Self {
        Self {
            clients,
            ..Self::default()
        }
    }

    /// Sets the servers, and how they are checked: `start` starts the task that checks a server. A server that stays
    /// keeps its state, and its sessions go on. One that does not stay is checked while it has sessions.
    pub(crate) fn set(
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
                    server: Arc::new(self.server(address.clone())),
                    check: None,
                    task: None,
                    turn: 0.0,
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

    fn server(&self, address: Address) -> Server {
        let name = address.to_string();
        Server {
            shared: self.clients.shared(&name),
            checks: lock(&self.checks).entry(name.clone()).or_default().clone(),
            name,
            address,
            sessions: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            state: watch::Sender::default(),
        }
    }

    /// Returns whether there is only one server, also of those that leave, so that nothing needs to be known about a client.
    pub(crate) fn is_one(&self) -> bool {
        let list = lock(&self.list);
        list.len() == 1 && lock(&self.leaving).is_empty()
    }

    /// Returns whether a server takes new clients.
    pub(crate) fn is_any_up(&self) -> bool {
        lock(&self.list)
            .iter()
            .any(|listed| listed.server.new_clients() == NewClients::Yes)
    }

    /// Returns the state of each server.
    pub(crate) fn status(&self) -> Vec<ServerStatus> {
        lock(&self.list)
            .iter()
            .map(|listed| listed.server.status())
            .collect()
    }

    /// Assumes the health that another process has found, until checks find something else. A server that is not checked
    /// here is up.
    pub(crate) fn assume(&self, states: &[ServerStatus]) {
        let list = lock(&self.list);
        for listed in list.iter() {
            let is_of = |status: &&ServerStatus| status.server == listed.server.name;
            if let (Some(status), Some(check)) = (states.iter().find(is_of), &listed.check) {
                listed.server.assume(status, check);
            }
        }
    }

    /// Forgets the connections at a server, because its sessions end, so that their clients go elsewhere if it is drained.
    pub(crate) fn release(&self, name: &str) {
        self.clients.lock().release(name);
    }

    /// Has the server with this name take no new clients, or take them again. Returns whether there is one.
    pub(crate) fn set_drained(&self, name: &str, is_drained: bool) -> bool {
        let list = lock(&self.list);
        let found = list.iter().find(|listed| listed.server.name == name);
        if let Some(listed) = found {
            listed.server.shared.is_drained.store(is_drained, Relaxed);
        }
        found.is_some()
    }

    /// Returns a seat for a client: at the server where it has connections or was last, or else at the one whose turn
    /// it is. Servers in `failed` are left out. `None` if no server takes the client.
    pub(crate) fn seat(
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
            // Connections that a client adds go where its sessions go on, also while that server takes no new clients.
            let has_others = connections > 0 && !server.is_given_up();
            let stays = has_others || (listed.is_some() && server.new_clients() == NewClients::Yes);
            (stays && !has_failed(server)).then(|| server.clone())
        });
        let server = match known {
            Some(server) => server,
            None => [NewClients::Yes, NewClients::IfNoOther]
                .into_iter()
                .find_map(|which| next(&mut list, balance, which, has_failed))?,
        };
        let is_of_service = |name: &str| list.iter().any(|listed| listed.server.name == name);
        let (presence, connections) = clients.enter(key, &server.name, is_of_service);
        server.sessions.fetch_add(1, Relaxed);
        server.shared.sessions.fetch_add(1, Relaxed);
        drop((clients, leaving, list));
        Some(Seat {
            servers: self.clone(),
            server,
            has_others: connections > 1,
            keys: Mutex::new(vec![(key, presence)]),
        })
    }
}

/// Returns the server whose turn it is, of those that take new clients in this way.
fn next(
    list: &mut [Listed],
    balance: Balance,
    which: NewClients,
    has_failed: impl Fn(&Arc<Server>) -> bool,
) -> Option<Arc<Server>> {
    let now = Instant::now();
    let mut able: Vec<_> = list
        .iter_mut()
        .filter(|listed| listed.server.new_clients() == which && !has_failed(&listed.server))
        .map(|listed| (listed.server.weight(now), listed))
        .collect();
    let mut total = 0.0;
    for (weight, listed) in &mut able {
        listed.turn += *weight;
        total += *weight;
    }
    let load = |weight: f64, server: &Server| match balance {
        Balance::RoundRobin => 0.0,
        Balance::LeastConnections => (server.shared.sessions.load(Relaxed) as f64 + 1.0) / weight,
    };
    // The first of several that are equal.
    let best = able.into_iter().min_by(|(weight, one), (of_other, other)| {
        let loads = load(*weight, &one.server).total_cmp(&load(*of_other, &other.server));
        loads.then(other.turn.total_cmp(&one.turn))
    });
    let (_, listed) = best?;
    listed.turn -= total;
    Some(listed.server.clone())
}

impl Server {
    /// Returns whether it gets clients that have no sessions there.
    fn new_clients(&self) -> NewClients {
        if self.is_drained() {
            NewClients::No
        } else {
            self.state.borrow().new_clients()
        }
    }

    fn is_given_up(&self) -> bool {
        self.state.borrow().is_given_up
    }

    /// Returns whether an administrator wants that it takes no new clients.
    pub(crate) fn is_drained(&self) -> bool {
        self.shared.is_drained.load(Relaxed)
    }

    /// Assumes that the server answers, because it is no longer checked.
    fn is_assumed_up(&self) {
        self.state.send_modify(|state| {
            *state = State {
                is_known: state.is_known,
                ..State::default()
            }
        });
    }

    /// Notes that a session has connected to it.
    pub(crate) fn is_reached(&self) {
        self.state.send_if_modified(|state| {
            state.is_known = true;
            false
        });
    }

    /// Counts an answer to a session.
    pub(crate) fn has_answered(&self) {
        self.answers.fetch_add(1, Relaxed);
    }

    /// Returns the number of answers to its sessions.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Relaxed)
    }

    /// Assumes the state that another process has found, with the settings of this one.
    fn assume(&self, status: &ServerStatus, check: &Check) {
        let age = status
            .seconds_up
            .and_then(|up| Duration::try_from_secs_f64(up).ok());
        self.state.send_replace(State {
            seen: if status.is_up {
                Seen::Answers
            } else {
                status.state
            },
            is_known: true,
            up_since: age.and_then(|age| Instant::now().checked_sub(age)),
            slow_start: check.slow_start,
            fault: status.fault.clone(),
            ..State::default()
        });
    }

    /// Returns the part of its share of new clients that the server gets.
    fn weight(&self, now: Instant) -> f64 {
        let state = self.state.borrow();
        let Some(since) = state.up_since.filter(|_| !state.slow_start.is_zero()) else {
            return 1.0;
        };
        let part = (now - since).as_secs_f64() / state.slow_start.as_secs_f64();
        part.clamp(LEAST_WEIGHT, 1.0)
    }

    /// Records the result of a check. Returns what changes by it.
    pub(crate) fn checked(&self, check: &Check, checked: Checked) -> Vec<Change> {
        if let Some(seen) = checked.seen {
            self.checks[seen as usize].fetch_add(1, Relaxed);
        }
        let mut changes = Vec::new();
        self.state.send_if_modified(|state| {
            changes = state.checked(check, checked);
            !changes.is_empty()
        });
        changes
    }

    /// Waits until the server is given up.
    pub(crate) async fn given_up(&self) {
        let mut state = self.state.subscribe();
        // The sender lives as long as this value.
        let _ = state.wait_for(|state| state.is_given_up).await;
    }

    fn status(&self) -> ServerStatus {
        let state = self.state.borrow();
        ServerStatus {
            server: self.name.clone(),
            is_up: state.is_up(),
            state: state.seen,
            is_drained: self.is_drained(),
            sessions: self.sessions.load(Relaxed),
            fault: state.fault.clone(),
            seconds_up: state.up_since.map(|since| since.elapsed().as_secs_f64()),
            checks: self.checks.each_ref().map(|count| count.load(Relaxed)),
        }
    }
}

impl Seat {
    /// Adds what the client is recognised by as well. A client that has connections to another server keeps them.
    pub(crate) fn add_key(&self, key: ClientKey) {
        let list = lock(&self.servers.list);
        let mut clients = self.servers.clients.lock();
        let is_of_service = |name: &str| list.iter().any(|listed| listed.server.name == name);
        let is_elsewhere = clients.servers(key).any(|(name, connections)| {
            connections > 0 && name != self.server.name && is_of_service(name)
        });
        if !is_elsewhere {
            let (presence, _) = clients.enter(key, &self.server.name, is_of_service);
            lock(&self.keys).push((key, presence));
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
        for (key, presence) in lock(&self.keys).drain(..) {
            clients.leave(key, &self.server.name, presence);
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

    fn see(server: &Server, seen: Seen) -> Vec<Change> {
        let checked = Checked {
            seen: Some(seen),
            fault: None,
            answers: [0, 0],
        };
        server.checked(&Check::default(), checked)
    }

    fn see_all(server: &Server, all: &[Seen]) {
        for &seen in all {
            see(server, seen);
        }
    }

    const FAILS: [Seen; 4] = [Seen::Answers, Seen::Silent, Seen::Silent, Seen::Silent];
    const RETURNS: [Seen; 2] = [Seen::Answers, Seen::Answers];

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
        let seat = servers.seat(LEAST, client(1), &[]).unwrap();
        let a = seat.server.clone();
        see_all(&a, &FAILS);
        a.given_up().await;
        let again = servers.seat(LEAST, client(1), &[]).unwrap();
        assert_eq!(again.server.name, "b");
        drop(seat);
        see_all(&named(&servers, "b"), &FAILS);
        assert!(!servers.is_any_up());
        assert!(servers.seat(LEAST, client(2), &[]).is_none());
        see_all(&a, &RETURNS);
        assert!(servers.is_any_up());
    }

    /// A server that closes connections, or whose name server is silent, gets clients that no other server takes.
    #[tokio::test]
    async fn a_server_that_may_be_well_is_tried_if_no_other_is() {
        for seen in [Seen::Closes, Seen::Nameless] {
            let servers = servers(&["a", "b"]);
            let old = servers.seat(LEAST, client(1), &[]).unwrap();
            see_all(&old.server, &[seen; 3]);
            assert!(!old.server.is_given_up());
            let added = servers.seat(LEAST, client(1), &[]).unwrap();
            assert_eq!(added.server.name, "a", "its sessions go on there");
            for number in 2..5 {
                let new = servers.seat(LEAST, client(number), &[]).unwrap();
                assert_eq!(new.server.name, "b", "{seen:?}");
            }
            see_all(&named(&servers, "b"), &FAILS);
            let new = servers.seat(LEAST, client(5), &[]).unwrap();
            assert_eq!(new.server.name, "a");
            assert!(!servers.is_any_up());
        }
    }

    #[tokio::test]
    async fn a_session_that_has_connected_says_more_than_the_first_check() {
        let servers = servers(&["a", "b"]);
        let b = named(&servers, "b");
        b.is_reached();
        b.is_assumed_up();
        assert!(see(&b, Seen::Silent).is_empty());
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
        see_all(&named(&before, "a"), &FAILS);
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
        assert!(see(&named(&after, "b"), Seen::Silent).is_empty());
        // It comes back as if this process had seen it fail.
        let a = named(&after, "a");
        assert!(see(&a, Seen::Answers).is_empty());
        assert_eq!(see(&a, Seen::Answers), [Change::Up]);
        // One that is not checked here is up.
        after.set(&addresses, None, sleeping);
        after.assume(&before.status());
        assert!(after.status().iter().all(|state| state.is_up));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_back_gets_clients_slowly() {
        for balance in [LEAST, Balance::RoundRobin] {
            let servers = servers(&["a", "b"]);
            let a = named(&servers, "a");
            see_all(&a, &FAILS);
            see_all(&a, &RETURNS);
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
        see_all(&named(&servers, "a"), &FAILS);
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
