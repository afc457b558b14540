//! What others see of the services that run: figures, sessions and servers, and what an administrator changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use serde::Serialize;
use serde_json::{Value, json};
use smbdirect::metrics::Family;
use smbdirect_gateway::Service;
use tokio::sync::Notify;

use crate::metrics::{Answer, Figures};

/// The services that run, also while they end.
pub(super) struct Registry {
    pub(super) has_tables: bool,
    pub(super) services: Mutex<BTreeMap<String, Arc<Service>>>,
    /// Whether all services end.
    pub(super) is_ending: AtomicBool,
    /// Notified when an administrator asks that all services end.
    pub(super) drain: Notify,
}

impl Registry {
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Service>>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an administrator asks by the control socket that all services end. Cancel-safe.
    pub(super) async fn drain_requested(&self) {
        self.drain.notified().await;
    }

    /// Forgets a service, unless another one has its name now.
    pub(super) fn remove(&self, name: &str, service: &Arc<Service>) {
        let mut services = self.lock();
        if services
            .get(name)
            .is_some_and(|other| Arc::ptr_eq(other, service))
        {
            services.remove(name);
        }
    }
}

impl Registry {
    /// Returns the sessions of all services.
    fn sessions(&self) -> Value {
        let services = self.lock();
        let of = |(name, service): (&String, &Arc<Service>)| {
            let with_service = |session| {
                json!(OfService {
                    service: name,
                    of: session
                })
            };
            service
                .sessions()
                .into_iter()
                .map(with_service)
                .collect::<Vec<_>>()
        };
        services.iter().flat_map(of).collect()
    }

    /// Returns the servers of all services.
    fn servers(&self) -> Value {
        let services = self.lock();
        let of = |(name, service): (&String, &Arc<Service>)| {
            let with_service = |server| {
                json!(OfService {
                    service: name,
                    of: server
                })
            };
            service
                .servers()
                .into_iter()
                .map(with_service)
                .collect::<Vec<_>>()
        };
        services.iter().flat_map(of).collect()
    }

    fn end_session(&self, service: Option<&str>, id: &str) -> Answer {
        let services = self.lock();
        let service = match service {
            Some(name) => services
                .get(name)
                .ok_or_else(|| format!("there is no service {name}"))?,
            None if services.len() > 1 => {
                return Err("there are several services; give SERVICE/ID".into());
            }
            None => services.values().next().ok_or("there is no service")?,
        };
        let number = id
            .parse()
            .map_err(|_| format!("{id} is not the number of a session"))?;
        if service.end_session(number) {
            Ok(json!({}))
        } else {
            Err(format!("there is no session {id}"))
        }
    }

    /// Lets a server take no new clients, or take them again, in all services that have it.
    fn drain_server(&self, server: &str, is_drained: bool) -> Answer {
        let services = self.lock();
        // Each service is asked.
        let found = services
            .values()
            .filter(|service| service.set_server_drained(server, is_drained));
        if found.count() > 0 {
            Ok(json!({}))
        } else {
            Err(format!("there is no server {server}"))
        }
    }
}

/// Something of a service.
#[derive(Serialize)]
struct OfService<'a, T> {
    service: &'a str,
    #[serde(flatten)]
    of: T,
}

impl Figures for Registry {
    fn title(&self) -> String {
        let services = self.lock();
        let title = |(name, service): (&String, &Arc<Service>)| {
            if self.has_tables {
                format!("{name}: {}", service.title())
            } else {
                service.title()
            }
        };
        let titles: Vec<_> = services.iter().map(title).collect();
        titles.join("; ")
    }

    fn is_ready(&self) -> bool {
        let services = self.lock();
        let mut all = services.values();
        !self.is_ending.load(Relaxed)
            && !services.is_empty()
            && all.all(|service| service.is_ready())
    }

    fn control(&self, change: bool, path: &str) -> Option<Answer> {
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        Some(match (change, &parts[..]) {
            (false, ["sessions"]) => Ok(self.sessions()),
            (false, ["servers"]) => Ok(self.servers()),
            (true, ["end", id]) => self.end_session(None, id),
            (true, ["end", service, id]) => self.end_session(Some(service), id),
            (true, ["drain", server]) => self.drain_server(server, true),
            (true, ["undrain", server]) => self.drain_server(server, false),
            (true, ["drain-all"]) => {
                self.drain.notify_one();
                Ok(json!({}))
            }
            _ => return None,
        })
    }

    fn families(&self) -> Vec<Family> {
        let services = self.lock();
        let mut families: Vec<Family> = Vec::new();
        for (name, service) in services.iter() {
            for mut family in service.families() {
                if self.has_tables {
                    let label = ("service", label(name));
                    family
                        .samples
                        .iter_mut()
                        .for_each(|sample| sample.labels.insert(0, label));
                }
                match families.iter_mut().find(|other| other.name == family.name) {
                    Some(other) => other.samples.extend(family.samples),
                    None => families.push(family),
                }
            }
        }
        families
    }
}

/// Returns the name as the value of a label, which lives as long as the process. Names are few, and each is kept once.
fn label(name: &str) -> &'static str {
    static LABELS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut labels = LABELS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = labels.get(name) {
        return known;
    }
    let label: &'static str = Box::leak(name.to_owned().into_boxed_str());
    labels.insert(label);
    label
}
