//! [`Device`]: the provider, settings, open ports and counters that all objects of a transport
//! share.

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use smbdirect::{Config, IncomingListener, Provider};

use super::port::{Port, Share, open_status};
use crate::{
    protocol::{Cause, Counters, ProviderStatistics, ReceiveSettings, SendSettings, Status},
    session::Session,
};

/// The settings of a transport, which apply to all of its connections.
#[derive(Clone, Debug)]
pub struct TransportSettings {
    /// The values that SMB Direct negotiates.
    pub config: Config,
    /// The settings of sends. Its `max_tsdu` is MaxSendSize of the transport; the limit of a
    /// connection can be smaller.
    pub send: SendSettings,
    /// The settings of receives.
    pub receive: ReceiveSettings,
    /// The time-out of a connect that does not specify its own.
    pub connect_timeout: Duration,
    /// The longest time for which an offer waits to be accepted or rejected.
    pub offer_timeout: Duration,
}

impl TransportSettings {
    /// Returns the defaults for connections that negotiate `config`: TSDUs as long as `config` can
    /// reassemble, a send buffer for two of them, and a connect time-out of one minute.
    pub fn new(config: Config) -> Self {
        let max_tsdu = config.max_fragmented_receive_size as usize;
        let offer_timeout = config.passive_negotiation_timeout;
        let receive = ReceiveSettings::default();
        Self {
            config,
            send: SendSettings::new(max_tsdu),
            receive: ReceiveSettings {
                lendable: receive.receive_buffer / 2,
                ..receive
            },
            connect_timeout: Duration::from_secs(60),
            offer_timeout,
        }
    }
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

/// The state that the handles of a transport and its objects share.
pub(crate) struct Device {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) settings: TransportSettings,
    pub(crate) start_time: SystemTime,
    ports: tokio::sync::Mutex<HashMap<SocketAddr, Weak<Port>>>,
    counters: Arc<Counters>,
    /// Connections that have not ended, whose figures the counters do not include yet.
    sessions: Mutex<Vec<Weak<Session>>>,
}

impl Device {
    pub(crate) fn new(provider: Arc<dyn Provider>, settings: TransportSettings) -> Self {
        Self {
            provider,
            settings,
            start_time: SystemTime::now(),
            ports: tokio::sync::Mutex::default(),
            counters: Arc::default(),
            sessions: Mutex::default(),
        }
    }

    /// Returns the port of `address`: the one that is open, if both share it, or a new one.
    pub(crate) async fn open_port(
        &self,
        address: SocketAddr,
        share: Share,
    ) -> Result<Arc<Port>, Status> {
        let mut ports = self.ports.lock().await;
        ports.retain(|_, port| port.strong_count() > 0);
        if let Some(port) = ports.get(&address).and_then(Weak::upgrade) {
            //= TDI-ADDR-01
            if share != Share::Shared || port.share != Share::Shared {
                return Err(Status::SHARING_VIOLATION);
            }
            return Ok(port);
        }
        let listener = IncomingListener::bind(&*self.provider, address).await;
        let listener = listener.map_err(|error| open_status(&error))?;
        let port = Port::open(self.counters.clone(), listener, share);
        ports.insert(port.local_addr, Arc::downgrade(&port));
        Ok(port)
    }

    fn lock_sessions(&self) -> MutexGuard<'_, Vec<Weak<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the counters under their lock.
    pub(crate) fn count(&self, add: impl FnOnce(&mut ProviderStatistics)) {
        self.counters.count(add);
    }

    pub(crate) fn session_started(&self, session: &Arc<Session>) {
        self.lock_sessions().push(Arc::downgrade(session));
    }

    /// Adds the figures of a connection that has ended to the counters.
    pub(crate) fn session_ended(&self, session: &Session, cause: &Cause) {
        let is_other = |known: &Weak<Session>| !std::ptr::eq(known.as_ptr(), session);
        self.lock_sessions().retain(is_other);
        self.count(|counters| {
            session.add_to(counters);
            counters.add_end(cause);
        });
    }

    /// Returns the counters, including the figures of connections that have not ended.
    pub(crate) fn statistics(&self) -> ProviderStatistics {
        let mut statistics = self.counters.get();
        let sessions = self.lock_sessions();
        for session in sessions.iter().filter_map(Weak::upgrade) {
            session.add_to(&mut statistics);
        }
        statistics
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use smbdirect::Loopback;

    use super::*;

    #[tokio::test]
    async fn closed_ports_are_forgotten() {
        let device = Device::new(Arc::new(Loopback::new()), TransportSettings::default());
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = device.open_port(any_port, Share::Exclusive).await.unwrap();
        let second = device.open_port(any_port, Share::Exclusive).await.unwrap();
        assert_eq!(device.ports.lock().await.len(), 2);
        drop(first);
        let third = device.open_port(any_port, Share::Exclusive).await.unwrap();
        let open: Vec<_> = [&second, &third].map(|port| port.local_addr).into();
        let ports = device.ports.lock().await;
        assert_eq!(ports.len(), 2);
        assert!(open.iter().all(|address| ports.contains_key(address)));
    }
}
