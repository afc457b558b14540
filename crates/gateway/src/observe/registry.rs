//! What others see of the services that run: figures, sessions and servers, and what an administrator changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use serde::Serialize;
use serde_json::{Value, json};
use smbdirect::metrics::{Family, Kind, Sample, Value as Figure};
use tokio::sync::Notify;

use super::{
    past,
    source::{Answer, Figures},
};
use crate::{Seen, Service, SessionStatus, Waited};

/// The services that run, also while they end.
pub struct Registry {
    /// Whether the services have names, which are labels of their figures.
    has_tables: bool,
    services: Mutex<Services>,
    /// The numbers of the last sessions of services that have ended, here or in an earlier process.
    numbers: Mutex<BTreeMap<String, u64>>,
    /// Whether a listener has lost its network interface.
    is_deaf: AtomicBool,
    /// Whether all services end.
    is_ending: AtomicBool,
    /// Notified when an administrator asks that all services end.
    drain: Notify,
    /// Returns the figures of the program that runs the services.
    of_program: fn() -> Vec<Family>,
}

/// The services by their names. One that was removed and one that was added since may have the same name; the last one is
/// that which takes clients.
type Services = BTreeMap<String, Vec<Arc<Service>>>;

impl Registry {
    /// Returns an empty registry. Figures have the name of their service if `has_tables`; `of_program` returns those of the
    /// program.
    #[must_use]
    pub fn new(has_tables: bool, of_program: fn() -> Vec<Family>) -> Self {
        Self {
            has_tables,
            services: Mutex::default(),
            numbers: Mutex::default(),
            is_deaf: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            drain: Notify::new(),
            of_program,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Services> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whether a listener has lost its network interface, so that the gateway is not ready. Returns what was said
    /// before.
    pub fn set_deaf(&self, is_deaf: bool) -> bool {
        self.is_deaf.swap(is_deaf, Relaxed)
    }

    /// Says that all services end, so that the gateway is not ready.
    pub fn set_ending(&self) {
        self.is_ending.store(true, Relaxed);
    }

    /// Waits until an administrator asks by the control socket that all services end. Cancel-safe.
    pub async fn drain_requested(&self) {
        self.drain.notified().await;
    }

    /// Adds a service.
    pub fn add(&self, name: &str, service: Arc<Service>) {
        let mut services = self.lock();
        services.entry(name.to_owned()).or_default().push(service);
    }

    fn numbers(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers the sessions of services with this name after the number.
    pub fn number_after(&self, name: &str, number: u64) {
        let mut numbers = self.numbers();
        let last = numbers.entry(name.to_owned()).or_default();
        *last = number.max(*last);
    }

    /// Returns the number of the last session of services with this name.
    pub fn last_session(&self, name: &str) -> u64 {
        let services = self.lock();
        let of_name = services.get(name).into_iter().flatten();
        let numbers = of_name.map(|service| service.last_session());
        let ended = self.numbers().get(name).copied();
        numbers.chain(ended).max().unwrap_or(0)
    }

    /// Returns the numbers after which a process that takes the place of this one numbers the sessions of each service.
    pub fn numbers_until(&self) -> BTreeMap<String, u64> {
        for (name, service) in each(&self.lock()) {
            self.number_after(name, service.numbers_until());
        }
        self.numbers().clone()
    }

    /// Forgets a service. Its counters and the numbers of its sessions stay.
    pub fn remove(&self, name: &str, service: &Arc<Service>) {
        self.number_after(name, service.last_session());
        let mut services = self.lock();
        past::keep(&self.families_of(name, service));
        let servers = std::iter::once((name, service));
        past::keep(&server_families(self.has_tables, servers));
        if let Some(of_name) = services.get_mut(name) {
            of_name.retain(|other| !Arc::ptr_eq(other, service));
            if of_name.is_empty() {
                services.remove(name);
            }
        }
    }

    /// Returns the figures of a service, with its name if services have names.
    fn families_of(&self, name: &str, service: &Service) -> Vec<Family> {
        let mut families = service.families();
        if self.has_tables {
            let label = ("service", label(name));
            let samples = families.iter_mut().flat_map(|family| &mut family.samples);
            samples.for_each(|sample| sample.labels.insert(0, label));
        }
        families
    }

    /// Returns what each service has, with the name of the service.
    fn of_all<T: Serialize>(&self, list: impl Fn(&Service) -> Vec<T>) -> Value {
        let services = self.lock();
        let with_service = |(service, of)| json!(OfService { service, of });
        each(&services)
            .flat_map(|(name, service)| list(service).into_iter().map(move |one| (name, one)))
            .map(with_service)
            .collect()
    }

    fn end_session(&self, service: Option<&str>, id: &str) -> Answer {
        let services = self.lock();
        let of_name = match service {
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
        if of_name.iter().any(|service| service.end_session(number)) {
            Ok(json!({}))
        } else {
            Err(format!("there is no session {id}"))
        }
    }

    /// Ends the sessions of a server in all services.
    fn end_sessions(&self, server: &str) -> Answer {
        let services = self.lock();
        let mut is_known = false;
        let mut ended = 0_u64;
        for (_, service) in each(&services) {
            is_known |= service.servers().iter().any(|one| one.server == server);
            ended += service.end_sessions_of(server);
        }
        // A server that the settings do not have any more may have sessions.
        if is_known || ended > 0 {
            Ok(json!({ "ended": ended }))
        } else {
            Err(format!("there is no server {server}"))
        }
    }

    /// Lets a server take no new clients, or take them again, in all services that have it.
    fn drain_server(&self, server: &str, is_drained: bool) -> Answer {
        let services = self.lock();
        // Each service is asked.
        let found =
            each(&services).filter(|(_, service)| service.set_server_drained(server, is_drained));
        if found.count() > 0 {
            Ok(json!({}))
        } else {
            Err(format!("there is no server {server}"))
        }
    }
}

/// Returns each service with its name.
fn each(services: &Services) -> impl Iterator<Item = (&str, &Arc<Service>)> {
    services.iter().flat_map(|(name, of_name)| {
        let name = name.as_str();
        of_name.iter().map(move |service| (name, service))
    })
}

/// An object of an answer with the name of its service.
#[derive(Serialize)]
struct OfService<'a, T> {
    service: &'a str,
    #[serde(flatten)]
    of: T,
}

impl Figures for Registry {
    fn title(&self) -> String {
        let services = self.lock();
        let title = |(name, service): (&str, &Arc<Service>)| {
            if self.has_tables {
                format!("{name}: {}", service.title())
            } else {
                service.title()
            }
        };
        let titles: Vec<_> = each(&services).map(title).collect();
        titles.join("; ")
    }

    fn waited(&self) -> HashMap<u64, Waited> {
        let services = self.lock();
        let sessions = each(&services).flat_map(|(_, service)| service.sessions());
        let of = |session: SessionStatus| {
            let connections = session.connections.into_iter().flatten();
            connections.filter_map(move |id| Some((id, session.waited?)))
        };
        sessions.flat_map(of).collect()
    }

    fn is_ready(&self) -> bool {
        let services = self.lock();
        let mut all = services.values().filter_map(|of_name| of_name.last());
        !self.is_ending.load(Relaxed)
            && !self.is_deaf.load(Relaxed)
            && !services.is_empty()
            && all.all(|service| service.is_ready())
    }

    fn control(&self, change: bool, path: &str) -> Option<Answer> {
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        Some(match (change, &parts[..]) {
            (false, ["sessions"]) => Ok(self.of_all(Service::sessions)),
            (false, ["servers"]) => Ok(self.of_all(Service::servers)),
            (true, ["end", id]) => self.end_session(None, id),
            (true, ["end", service, id]) => self.end_session(Some(service), id),
            (true, ["end-all", server]) => self.end_sessions(server),
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
        let mut families = (self.of_program)();
        for (name, service) in each(&services) {
            for family in self.families_of(name, service) {
                match families.iter_mut().find(|other| other.name == family.name) {
                    Some(other) => add_samples(other, family.samples),
                    None => families.push(family),
                }
            }
        }
        let last = services.iter();
        let last = last.filter_map(|(name, of_name)| Some((name.as_str(), of_name.last()?)));
        families.extend(server_families(self.has_tables, last));
        families
    }
}

/// Returns the figures of the servers of each service.
fn server_families<'a>(
    has_tables: bool,
    services: impl Iterator<Item = (&'a str, &'a Arc<Service>)>,
) -> [Family; 4] {
    let (mut up, mut drained, mut sessions, mut checks) = (vec![], vec![], vec![], vec![]);
    for (name, service) in services {
        let service_label = has_tables.then(|| ("service", label(name)));
        for status in service.servers() {
            let server = ("server", label(&status.server));
            let labels = |more: Option<(&'static str, &'static str)>| -> Vec<_> {
                let labels = service_label.into_iter().chain([server]);
                labels.chain(more).collect()
            };
            up.push((labels(None), f64::from(u8::from(status.is_up))));
            drained.push((labels(None), f64::from(u8::from(status.is_drained))));
            sessions.push((labels(None), status.sessions as f64));
            for (seen, count) in Seen::ALL.iter().zip(status.checks) {
                checks.push((labels(Some(("seen", seen.label()))), count as f64));
            }
        }
    }
    let family = Family::labelled;
    [
        family(
            "smbdirect_gateway_server_up",
            "1 if the server gets new clients as far as its checks decide, and 0 if not.",
            Kind::Gauge,
            up,
        ),
        family(
            "smbdirect_gateway_server_drained",
            "1 if an administrator has drained the server.",
            Kind::Gauge,
            drained,
        ),
        family(
            "smbdirect_gateway_server_sessions",
            "Sessions that the server has now.",
            Kind::Gauge,
            sessions,
        ),
        family(
            "smbdirect_gateway_server_checks_total",
            "Checks of the server, by what they saw.",
            Kind::Counter,
            checks,
        ),
    ]
}

/// Adds samples to a family. Two services with the same name have one sample, their sum.
fn add_samples(family: &mut Family, samples: Vec<Sample>) {
    for sample in samples {
        let same = |other: &&mut Sample| other.labels == sample.labels;
        match family.samples.iter_mut().find(same) {
            Some(other) => other.value = sum(other.value, sample.value),
            None => family.samples.push(sample),
        }
    }
}

fn sum(one: Figure, other: Figure) -> Figure {
    match (one, other) {
        (Figure::Number(one), Figure::Number(other)) => Figure::Number(one + other),
        (Figure::Histogram(mut times), Figure::Histogram(other)) => {
            times.count += other.count;
            times.sum += other.sum;
            for (bucket, more) in times.buckets.iter_mut().zip(other.buckets) {
                *bucket += more;
            }
            Figure::Histogram(times)
        }
        (one, _) => one,
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
