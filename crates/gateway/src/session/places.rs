//! The places of a gateway: which clients are admitted, and which sessions are open.
//!
//! A client has a place from its TCP connection or connection request to its end. It is given back by the drop of one
//! guard, whatever ends the session.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::{
    admission::{
        refused::Refused,
        turned_away::{SinceLastLine, TurnedAway},
    },
    live::Live,
    session::state::SessionState,
};

/// The places of a gateway.
#[derive(Debug)]
pub(crate) struct Places {
    taken: Mutex<Taken>,
    /// The number of sessions that the memory is enough for.
    affordable: u64,
    turned_away: Mutex<TurnedAway>,
}

#[derive(Debug, Default)]
struct Taken {
    /// Places by client, of which those that negotiate have no session yet.
    by_client: HashMap<IpAddr, u64>,
    sessions: BTreeMap<u64, Arc<SessionState>>,
    /// The number of the last session before those of these places.
    before: u64,
    last_id: u64,
}

/// The place of one client. A drop gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    client: IpAddr,
    session: Option<u64>,
    /// The settings that it was given by.
    pub(crate) live: Arc<Live>,
    /// When the client connected.
    pub(crate) since: Instant,
}

impl Places {
    /// Returns places for at most this number of sessions.
    pub(crate) fn new(affordable: u64) -> Self {
        Self {
            taken: Mutex::default(),
            affordable,
            turned_away: Mutex::default(),
        }
    }

    /// Numbers the sessions after this number.
    pub(crate) fn numbered_after(self, before: u64) -> Self {
        let mut taken = self.taken();
        (taken.before, taken.last_id) = (before, before);
        drop(taken);
        self
    }

    /// Returns the largest number of sessions with these settings.
    pub(crate) fn most(&self, live: &Live) -> u64 {
        live.max_connections.min(self.affordable)
    }

    /// Checks that there is room for another session.
    fn check_room(&self, taken: &Taken, live: &Live) -> Result<(), Refused> {
        let (open, most) = (taken.sessions.len() as u64, self.most(live));
        if open < most {
            return Ok(());
        }
        Err(if most < live.max_connections {
            Refused::TooManyForMemory(open)
        } else {
            Refused::TooMany(open)
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a place for the client at `peer`, before anything is read from it.
    ///
    /// # Errors
    /// The client is turned away.
    pub(crate) fn admit(
        self: &Arc<Self>,
        live: &Arc<Live>,
        peer: SocketAddr,
    ) -> Result<Place, Refused> {
        let client = peer.ip();
        // The address of the client of a proxy is not known yet.
        let is_proxy = live.trusts_proxy(client);
        if !is_proxy && !live.permits(client) {
            return Err(Refused::Address);
        }
        let mut taken = self.taken();
        self.check_room(&taken, live)?;
        if !is_proxy {
            taken.check_client(live, client)?;
        }
        *taken.by_client.entry(client).or_default() += 1;
        drop(taken);
        Ok(Place {
            places: self.clone(),
            client,
            session: None,
            live: live.clone(),
            since: Instant::now(),
        })
    }

    /// Returns the sessions that are open, in the order of their beginning.
    pub(crate) fn sessions(&self) -> Vec<Arc<SessionState>> {
        self.taken().sessions.values().cloned().collect()
    }

    /// Returns the number of sessions that are open.
    pub(crate) fn open(&self) -> u64 {
        self.taken().sessions.len() as u64
    }

    /// Returns the number of sessions so far.
    pub(crate) fn total(&self) -> u64 {
        let taken = self.taken();
        taken.last_id - taken.before
    }

    /// Returns the number of the last session.
    pub(crate) fn last_id(&self) -> u64 {
        self.taken().last_id
    }

    /// Counts a client that is turned away. Returns what its line in the log says; `None` if there should be no line.
    pub(crate) fn count_turned_away(&self, client: IpAddr) -> Option<SinceLastLine> {
        let turned_away = self.turned_away.lock();
        let mut turned_away = turned_away.unwrap_or_else(PoisonError::into_inner);
        turned_away.count(client, Instant::now())
    }
}

impl Taken {
    fn check_client(&self, live: &Live, client: IpAddr) -> Result<(), Refused> {
        let Some(most) = live.max_connections_per_client else {
            return Ok(());
        };
        let open = self.by_client.get(&client).copied().unwrap_or(0);
        if open >= most {
            return Err(Refused::TooManyOfClient(open));
        }
        Ok(())
    }

    fn leave(&mut self, client: IpAddr) {
        if let Some(count) = self.by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

impl Place {
    /// Begins the session of this place.
    ///
    /// # Errors
    /// Meanwhile too many others have begun.
    pub(crate) fn begin(
        &mut self,
        live: &Live,
        state: impl FnOnce(u64) -> SessionState,
    ) -> Result<Arc<SessionState>, Refused> {
        let mut taken = self.places.taken();
        self.places.check_room(&taken, live)?;
        taken.last_id += 1;
        let id = taken.last_id;
        let state = Arc::new(state(id));
        taken.sessions.insert(id, state.clone());
        self.session = Some(id);
        Ok(state)
    }

    /// Gives the place to the client of a proxy, whose address is now known.
    ///
    /// # Errors
    /// The client is turned away.
    pub(crate) fn of_client(&mut self, live: &Live, client: IpAddr) -> Result<(), Refused> {
        if !live.permits(client) {
            return Err(Refused::Address);
        }
        let mut taken = self.places.taken();
        taken.check_client(live, client)?;
        taken.leave(self.client);
        *taken.by_client.entry(client).or_default() += 1;
        self.client = client;
        Ok(())
    }

    /// Ends the session, and returns the number of those that are still open.
    pub(crate) fn end(mut self) -> u64 {
        let mut taken = self.places.taken();
        if let Some(id) = self.session.take() {
            taken.sessions.remove(&id);
        }
        taken.sessions.len() as u64
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.leave(self.client);
        if let Some(id) = self.session {
            taken.sessions.remove(&id);
        }
    }
}
