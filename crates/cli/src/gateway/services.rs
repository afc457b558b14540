//! The services of a gateway: one for each table of the settings file, or one without.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    future::Future,
    net::TcpListener,
    sync::Arc,
    time::Duration,
};

use anyhow::{Error, Result, anyhow, bail};
use smbdirect_gateway::{
    Clients, Gateway as RunningGateway, Live, Protocol, ServerStatus, Service, Settings,
    observe::{self, Registry},
};
use smbdirect_transport::Kept;
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
    time::sleep,
};
use tracing::warn;

use super::{
    Gateway, Planned, build,
    file::{Given, OF_PROCESS, SettingsFile},
    listeners::Listeners,
    output::{self, Event},
    reload::{self, Difference},
    upgrade::{Knowledge, Predecessor, Successor},
};
use crate::{
    metrics, options,
    pcap::Capture,
    report::{self, Report},
    systemd::{Inherited, KEPT, Passed},
    transport,
};

/// Interval of the checks whether the interfaces of the listeners exist.
const INTERFACE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The services of a gateway. Dropping it ends them.
pub(super) struct Services {
    report: Report,
    file: Option<SettingsFile>,
    /// Whether the settings file names the services.
    has_tables: bool,
    running: BTreeMap<String, Running>,
    /// The ends of services that were removed and may still wait for answers.
    removed: Vec<watch::Sender<Stop>>,
    tasks: JoinSet<(String, Arc<Service>, Result<()>)>,
    registry: Arc<Registry>,
    /// The clients of all services, so that a client that uses two of them has the same server in both.
    clients: Arc<Clients>,
    /// Duplicates of the sockets of socket units, also of those that no service has now.
    of_units: Vec<Passed>,
    /// Whether this process has taken the place of another one.
    is_successor: bool,
    /// The process that has taken the place of this one, which learns of the end of this one by the end of a stream.
    successor: Option<Successor>,
}

/// A service that is not to end.
struct Running {
    service: Arc<Service>,
    /// The settings of the file that are in force.
    in_force: Given,
    /// The settings that do not change while the service runs.
    settings: Settings,
    stop: watch::Sender<Stop>,
    /// Ends when the service accepts no more clients.
    listens: oneshot::Receiver<Infallible>,
    /// Duplicates of the listening sockets.
    sockets: Vec<Passed>,
    /// Why another process cannot take its place, if it cannot.
    keeps_from_upgrade: Option<&'static str>,
    _capture: Option<Capture>,
}

/// How a service is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    No,
    /// Another process serves the clients that come now.
    WhenLeft,
    WhenAnswered,
    Now,
}

/// A service that listens and was not yet begun.
pub(super) struct Started {
    planned: Planned,
    settings: Settings,
    live: Live,
    listeners: Listeners,
}

impl Services {
    pub(super) fn new(report: Report, file: Option<SettingsFile>, has_tables: bool) -> Self {
        Self {
            report,
            file,
            has_tables,
            running: BTreeMap::new(),
            removed: Vec::new(),
            tasks: JoinSet::new(),
            registry: Arc::new(Registry::new(has_tables, metrics::of_program)),
            clients: Arc::default(),
            of_units: Vec::new(),
            is_successor: false,
            successor: None,
        }
    }

    /// Begins to serve, with what an earlier process knows.
    pub(super) fn begin_all(
        &mut self,
        started: Vec<Started>,
        knowledge: Knowledge,
        predecessor: Option<Predecessor>,
    ) {
        self.clients.remember(knowledge.clients);
        self.is_successor = predecessor.is_some();
        if let Some(predecessor) = predecessor {
            let clients = self.clients.clone();
            tokio::spawn(async move {
                predecessor.ended().await;
                clients.forget_earlier();
            });
        }
        let servers = knowledge.servers;
        let drained = servers.values().flatten().filter(|one| one.is_drained);
        let drained = drained.map(|one| &one.server);
        for server in drained.chain(&knowledge.drained) {
            self.clients.drain(server);
        }
        for (name, number) in knowledge.numbers {
            self.registry.number_after(&name, number);
        }
        observe::restore(knowledge.counters);
        for one in started {
            let states = servers.get(&one.planned.name);
            self.begin(one, states.map_or(&[], Vec::as_slice));
        }
    }

    /// Returns what a later process has to know that takes over.
    pub(super) fn knowledge(&self) -> Knowledge {
        let servers = self.running.iter();
        Knowledge {
            servers: servers
                .map(|(name, running)| (name.clone(), running.service.servers()))
                .collect(),
            clients: self.clients.remembered(),
            drained: self.clients.drained(),
            numbers: self.registry.numbers_until(),
            counters: observe::counters(&*self.registry),
        }
    }

    /// Listens for the services of the command line or the file.
    ///
    /// # Errors
    /// One of them cannot listen.
    pub(super) async fn listen(
        &mut self,
        planned: Vec<Planned>,
        inherited: &mut Inherited,
    ) -> Result<Vec<Started>> {
        self.of_units = std::mem::take(&mut inherited.of_units);
        let is_of_service = |socket: &&Passed| {
            !self.has_tables || planned.iter().any(|one| one.name == socket.name)
        };
        // A reload may have removed the service, and may add it again.
        let other = self.of_units.iter().find(|socket| !is_of_service(socket));
        if let Some(other) = other.filter(|_| !inherited.kept.is_shared()) {
            return Err(anyhow!(
                "the service manager has passed a socket with the name {}, which no service has; set \
                 FileDescriptorName= of the socket unit to the name of a service",
                other.name
            ));
        }
        let mut started = Vec::new();
        for one in planned {
            let of_this = self.of_unit(&one.name)?;
            started.push(listen(one, of_this, &mut inherited.kept).await?);
        }
        Ok(started)
    }

    /// Returns duplicates of the sockets of socket units for this service.
    fn of_unit(&self, service: &str) -> Result<Vec<Passed>> {
        let of_service = |socket: &&Passed| !self.has_tables || socket.name == service;
        self.of_units
            .iter()
            .filter(of_service)
            .map(Passed::duplicate)
            .collect()
    }

    /// Begins to serve. The states of servers are those of an earlier process.
    fn begin(&mut self, started: Started, servers: &[ServerStatus]) {
        let Started {
            planned,
            settings,
            live,
            listeners,
        } = started;
        let Planned {
            name,
            options,
            given,
        } = planned;
        let over = match options.from {
            Protocol::SmbDirect => transport::listening_over(&options.options),
            Protocol::Tcp => String::new(),
        };
        let of = if self.has_tables {
            format!("{name}: ")
        } else {
            String::new()
        };
        for address in &listeners.addresses {
            self.report
                .line(format_args!("{of}listening on {address}{over}"));
            self.report.event(&Event::Listening {
                address: address.to_string(),
                transport: (options.from == Protocol::SmbDirect)
                    .then_some(options.options.transport),
                service: &name,
            });
        }
        if let Some(text) = build::lowered_limit(&settings, live.max_connections) {
            self.report.line(format_args!("{of}{text}"));
        }
        let show = output::Show::new(self.report, &name, self.has_tables);
        let service = Service::new(
            settings.clone(),
            live,
            listeners.rdma,
            listeners.addresses,
            move |event: &smbdirect_gateway::Event<'_>| show.show(event),
        );
        // A service that was removed may have the same name, and sessions.
        let service = service
            .numbered_after(self.registry.last_session(&name))
            .with_clients(self.clients.clone());
        let service = Arc::new(service);
        service.assume_servers(servers);
        let (stop, stopped) = watch::channel(Stop::No);
        let gateway = RunningGateway::new(service.clone(), listeners.listeners);
        let (listening, listens) = oneshot::channel();
        self.tasks.spawn(serve(
            name.clone(),
            service.clone(),
            gateway,
            stopped,
            listening,
        ));
        self.registry.add(&name, service.clone());
        let running = Running {
            service,
            in_force: given,
            settings,
            stop,
            listens,
            sockets: listeners.sockets,
            keeps_from_upgrade: options.keeps_from_upgrade(),
            _capture: listeners.capture,
        };
        self.running.insert(name, running);
    }

    /// Returns what the service manager shows.
    pub(super) fn state(&self) -> String {
        let services = self.running.values().map(|running| &running.service);
        let addresses = services.flat_map(|service| service.listening());
        let addresses: Vec<_> = addresses.map(ToString::to_string).collect();
        format!("listening on {}", addresses.join(", "))
    }

    /// Returns the listening sockets that this process has opened itself.
    pub(super) fn own_sockets(&self) -> impl Iterator<Item = &TcpListener> {
        let sockets = self.running.values().flat_map(|running| &running.sockets);
        sockets
            .filter(|one| one.name == KEPT)
            .map(|one| &one.socket)
    }

    /// Returns duplicates of the listening sockets, for a process that takes the place of this one.
    ///
    /// # Errors
    /// There can be no such process.
    pub(super) fn sockets(&self) -> Result<Vec<Passed>> {
        for (name, running) in &self.running {
            if let Some(why) = running.keeps_from_upgrade {
                bail!("service {name} {why}; restart it instead");
            }
        }
        let running = self.running.values().flat_map(|running| &running.sockets);
        let own = running.filter(|socket| socket.name == KEPT);
        own.chain(&self.of_units).map(Passed::duplicate).collect()
    }

    /// Reports the process that has taken the place of this one.
    pub(super) fn report_upgraded(&self, successor: &Successor) {
        let process = successor.id;
        let services = self.running.values().map(|running| &running.service);
        let open = services.map(|service| service.open()).sum();
        self.report.line(format_args!(
            "process {process} accepts new clients; {} of this process may continue",
            report::plural(open, "session")
        ));
        self.report.event(&Event::Upgraded { process, open });
    }

    /// Returns whether this process has taken the place of another one.
    pub(super) const fn is_successor(&self) -> bool {
        self.is_successor
    }

    /// Keeps the stream to the process that has taken the place of this one until this one ends.
    pub(super) fn keep_successor(&mut self, successor: Successor) {
        self.successor = Some(successor);
    }

    /// Returns what others see of the services.
    pub(super) fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    /// Waits until a service has ended by itself, and watches the interfaces of the listeners. Cancel-safe.
    ///
    /// # Errors
    /// The service accepts no more clients.
    pub(super) async fn ended(&mut self) -> Result<()> {
        let ended = loop {
            tokio::select! {
                Some(ended) = self.tasks.join_next() => break ended,
                () = sleep(INTERFACE_CHECK_INTERVAL) => self.watch_interfaces(),
            }
        };
        let Ok((name, service, result)) = ended else {
            return Err(anyhow!("a service has ended by a fault of this program"));
        };
        self.registry.remove(&name, &service);
        result
    }

    /// Names interfaces that were deleted, and whose listeners clients no longer reach, also if there is another interface
    /// with the name.
    fn watch_interfaces(&mut self) {
        let lost = self
            .running
            .iter()
            .find(|(_, running)| running.has_lost_interface());
        let was_deaf = self.registry.set_deaf(lost.is_some());
        if let Some((name, running)) = lost.filter(|_| !was_deaf) {
            let interface = running
                .settings
                .network
                .interface
                .as_deref()
                .unwrap_or_default();
            warn!(
                "interface {interface} was deleted, so no client reaches service {name}; reload (SIGHUP) when it is there again"
            );
        }
    }

    /// Reads the settings again. A file with a fault changes nothing. Settings that can change take effect in sessions
    /// that begin later, and a setting that needs a restart has no effect until then. If the future is dropped, services that
    /// the file has no longer may have ended, and those that it adds have not begun.
    pub(super) async fn reload(&mut self) {
        let Some(file) = &self.file else {
            warn!(
                "SIGHUP: the gateway was started without --config, so there is no file to read again"
            );
            return;
        };
        let name = file.name();
        let change = match self.prepare(file).await {
            Ok(change) => change,
            Err(error) => {
                warn!("the settings were not changed: {error:#}");
                return;
            }
        };
        let reloaded = self.apply(change).await;
        let mut parts = Vec::new();
        for (what, names) in [
            ("changed", &reloaded.changed),
            ("added", &reloaded.added),
            ("removed", &reloaded.removed),
        ] {
            if !names.is_empty() {
                parts.push(format!("{what} {}", names.join(", ")));
            }
        }
        if parts.is_empty() {
            parts.push("nothing has changed".into());
        }
        self.report
            .line(format_args!("{name} read again: {}", parts.join("; ")));
        if !reloaded.needs_restart.is_empty() {
            warn!(
                "these settings need a restart to change: {}",
                reloaded.needs_restart.join(", ")
            );
        }
        self.report.event(&Event::Reloaded {
            changed: &reloaded.changed,
            needs_restart: &reloaded.needs_restart,
            added: &reloaded.added,
            removed: &reloaded.removed,
        });
    }

    /// Reads the file, and prepares the change: new services listen already.
    async fn prepare(&self, file: &SettingsFile) -> Result<Change> {
        let (has_tables, planned) = reload::plan(file)?;
        if has_tables != self.has_tables {
            return Err(anyhow!(
                "tables `[[service]]` in place of a single service, or the reverse, need a restart"
            ));
        }
        let names: BTreeSet<_> = planned.iter().map(|one| one.name.clone()).collect();
        // A service whose interface was deleted begins again.
        let ends = |(name, running): &(&String, &Running)| {
            !names.contains(*name) || running.has_lost_interface()
        };
        let removed = self
            .running
            .iter()
            .filter(ends)
            .map(|(name, _)| name.clone());
        let mut change = Change {
            removed: removed.collect(),
            ..Change::default()
        };
        let mut new = Vec::new();
        for one in planned {
            let running = self.running.get(&one.name);
            let Some(running) = running.filter(|_| !change.removed.contains(&one.name)) else {
                new.push(one);
                continue;
            };
            let difference = reload::difference(file, &running.in_force, &one.given)?;
            let gateway: Gateway = file.options(&difference.in_force)?;
            change.verbose = gateway.options.verbose;
            let live = gateway.live(&running.settings)?;
            change.changed.push((one.name, difference, live));
        }
        let running = self.running.values();
        build::limit_memory(&mut new, running.map(|one| one.settings.memory).sum());
        // A service that is removed leaves its sockets to those that have its addresses.
        let removed = change
            .removed
            .iter()
            .filter_map(|name| self.running.get(name));
        let left = removed.flat_map(|running| &running.sockets);
        let left = left.filter_map(|one| one.socket.try_clone().ok());
        let kept = &mut Kept::new(left.collect(), true);
        for one in new {
            change.verbose = one.options.options.verbose;
            let of_unit = self.of_unit(&one.name)?;
            change.added.push(listen(one, of_unit, kept).await?);
        }
        Ok(change)
    }

    /// Changes what runs.
    async fn apply(&mut self, change: Change) -> Reloaded {
        let mut reloaded = Reloaded {
            removed: change.removed,
            ..Reloaded::default()
        };
        options::set_verbosity(change.verbose);
        let with_service = |service: &str, keys: Vec<String>| -> Vec<String> {
            let of_service = |key: String| {
                if self.has_tables && !OF_PROCESS.contains(&key.as_str()) {
                    format!("{service}.{key}")
                } else {
                    key
                }
            };
            keys.into_iter().map(of_service).collect()
        };
        for (name, difference, live) in change.changed {
            reloaded
                .changed
                .extend(with_service(&name, difference.changed));
            let needs_restart = with_service(&name, difference.needs_restart);
            reloaded.needs_restart.extend(needs_restart);
            if let Some(running) = self.running.get_mut(&name) {
                running.service.set_live(live);
                running.in_force = difference.in_force;
            }
        }
        // Settings of the process are in the difference of each service.
        for list in [&mut reloaded.changed, &mut reloaded.needs_restart] {
            let unique: BTreeSet<_> = std::mem::take(list).into_iter().collect();
            list.extend(unique);
        }
        for name in &reloaded.removed {
            if let Some(running) = self.running.remove(name) {
                running.stop.send_replace(Stop::WhenAnswered);
                self.removed.retain(|stop| !stop.is_closed());
                self.removed.push(running.stop);
                // A service that is added may have its address, and takes the clients from here on.
                let _ = running.listens.await;
            }
        }
        for started in change.added {
            reloaded.added.push(started.planned.name.clone());
            self.begin(started, &[]);
        }
        self.registry.set_deaf(false);
        reloaded
    }

    /// Stops listening, and lets the sessions go on until they or the drain timeout have ended, or until `earlier`
    /// resolves, because another process has taken the place of this one. [`end`](Self::end) follows.
    pub(super) async fn be_succeeded(&mut self, earlier: impl Future<Output = ()>) {
        self.of_units.clear();
        for running in self.running.values_mut() {
            running.sockets.clear();
            running.stop.send_replace(Stop::WhenLeft);
        }
        tokio::select! {
            () = async { while self.tasks.join_next().await.is_some() {} } => {}
            () = earlier => {}
        }
    }

    /// Ends all services: first the sessions whose requests are answered, and all of them after the drain timeout or
    /// when `urgent` resolves.
    pub(super) async fn end(mut self, urgent: impl Future<Output = ()>) {
        let running = self.running.values().map(|running| &running.stop);
        // A service that was removed may still wait for answers.
        let stops: Vec<_> = running.chain(&self.removed).cloned().collect();
        let stop_all = |stop| {
            for sender in &stops {
                sender.send_replace(stop);
            }
        };
        self.registry.set_ending();
        // With the last duplicate of a socket, it listens no more.
        self.of_units.clear();
        self.running
            .values_mut()
            .for_each(|running| running.sockets.clear());
        stop_all(Stop::WhenAnswered);
        tokio::select! {
            () = async { while self.tasks.join_next().await.is_some() {} } => return,
            () = urgent => stop_all(Stop::Now),
        }
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Running {
    /// Returns whether the interface of a listening socket was deleted.
    fn has_lost_interface(&self) -> bool {
        let network = &self.settings.network;
        let of_interface = self.sockets.iter().filter(|_| network.interface.is_some());
        let mut of_interface = of_interface.map(|passed| &passed.socket);
        of_interface.any(|socket| !network.are_of(socket))
    }
}

/// Listens for a service.
async fn listen(planned: Planned, passed: Vec<Passed>, kept: &mut Kept) -> Result<Started> {
    let settings = planned.options.settings()?;
    Ok(Started {
        live: planned.options.live(&settings)?,
        listeners: Listeners::open(&planned.options, passed, kept).await?,
        settings,
        planned,
    })
}

/// Serves until the service is to end.
async fn serve(
    name: String,
    service: Arc<Service>,
    mut gateway: RunningGateway,
    mut stop: watch::Receiver<Stop>,
    listens: oneshot::Sender<Infallible>,
) -> (String, Arc<Service>, Result<()>) {
    let mut later = stop.clone();
    let result = tokio::select! {
        served = gateway.serve() => served.map(|never| match never {}).map_err(Error::new),
        _ = stop.wait_for(|&stop| stop > Stop::No) => Ok(()),
    };
    if result.is_ok() {
        tokio::select! {
            () = gateway.be_succeeded(), if *later.borrow() == Stop::WhenLeft => {}
            _ = stop.wait_for(|&stop| stop > Stop::WhenLeft) => {}
        }
        gateway.stop_listening().await;
        drop(listens);
        gateway
            .end(async {
                if later.wait_for(|&stop| stop == Stop::Now).await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
            .await;
    }
    (name, service, result)
}

/// A change that is prepared.
#[derive(Default)]
struct Change {
    changed: Vec<(String, Difference, Live)>,
    added: Vec<Started>,
    removed: Vec<String>,
    verbose: u8,
}

/// What a reload has changed.
#[derive(Debug, Default)]
struct Reloaded {
    changed: Vec<String>,
    needs_restart: Vec<String>,
    added: Vec<String>,
    removed: Vec<String>,
}
