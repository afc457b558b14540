//! From options to the settings of the gateway, and the limits of the system for them.

use std::{collections::HashMap, net::IpAddr};

use anyhow::Result;
use smbdirect_gateway::{ClientAddress, Live, Protocol, Settings, connection_config};
use smbdirect_smb::frame;
use tracing::warn;

use super::{Gateway, Planned, cluster::Addresses};
use crate::{
    metrics::Endpoint,
    options::{SMB_MESSAGE_BYTES, Transport, usage},
    report, resources, transport,
};

/// Default port of SMB Direct by iWARP.
const IWARP_PORT: u16 = 5445;
/// Open files other than connections: standard streams, the runtime, metrics, captures.
const OTHER_FILES: u64 = 64;

impl Gateway {
    /// Checks what can be checked without the network. Names are not looked up, because they may have an address only
    /// later.
    pub(super) fn check(&self) -> Result<()> {
        self.listen()?;
        self.check_upstream()?;
        if let (Some(Endpoint::Path(metrics)), Some(control)) =
            (&self.metrics.metrics, &self.control)
            && metrics == control
        {
            return Err(usage(format!(
                "metrics and control have the same path, {}; give each one its own",
                control.display()
            )));
        }
        self.check_client_address()?;
        self.live(&self.settings()?)?;
        if self.options.pcap.is_some() && (self.from, self.to) == (Protocol::Tcp, Protocol::Tcp) {
            return Err(usage(
                "--pcap cannot capture this gateway: both sides are TCP",
            ));
        }
        transport::check_one_end(&self.options, Some(&self.connect))
    }

    /// Checks that the gateway can have the address of its clients, if that is wanted.
    fn check_client_address(&self) -> Result<()> {
        if self.clients.client_address != ClientAddress::Transparent {
            return Ok(());
        }
        if self.to != Protocol::Tcp {
            return Err(usage(
                "--client-address transparent is for servers on TCP: --to tcp",
            ));
        }
        transport::check_transparent().map_err(|error| {
            usage(format!(
                "--client-address transparent is not permitted: {}; it needs CAP_NET_ADMIN or CAP_NET_RAW \
                 (AmbientCapabilities= of the unit), and Linux",
                report::plain(&error)
            ))
        })
    }

    /// Checks that each server can be connected to, and is there once.
    fn check_upstream(&self) -> Result<()> {
        let default_port = match (self.to, self.options.transport) {
            (Protocol::Tcp, _) | (_, Transport::Roce) => Some(frame::PORT),
            (_, Transport::Iwarp) => Some(IWARP_PORT),
            // The kind of the adapter decides.
            _ => None,
        };
        let mut known = HashMap::new();
        for upstream in self.upstream()?.all() {
            transport::check_connectable(upstream)
                .map_err(|error| usage(format!("upstream: {error}")))?;
            let server = (one_host(&upstream.host), upstream.port.or(default_port));
            if let Some(first) = known.insert(server, upstream) {
                return Err(usage(format!(
                    "upstream: {first} and {upstream} are the same server; name it once"
                )));
            }
        }
        Ok(())
    }

    /// Returns the settings that can change while the gateway runs.
    ///
    /// # Errors
    /// There is not enough memory for one connection.
    pub(super) fn live(&self, settings: &Settings) -> Result<Live> {
        if settings.affordable_connections() == 0 {
            let needed = report::bytes(2 * settings.memory_of_one());
            return Err(usage(format!(
                "--memory is too small: one connection needs {needed}; raise it, or lower \
                 --max-fragmented-size"
            )));
        }
        let (clients, servers) = (&self.clients, self.upstream()?.all());
        Ok(Live {
            balance: self.servers.balance,
            check: self.servers.check(servers.len()),
            allow: clients.allow.clone(),
            deny: clients.deny.clone(),
            trusted_proxies: clients.trusted_proxies.clone(),
            max_connections: self.max_connections,
            max_connections_per_client: clients.max_connections_per_client,
            stall_limit: self.stall_limit,
            drain_timeout: self.drain_timeout.0,
            ..Live::new(servers.to_vec())
        })
    }

    /// Returns the settings that do not change while the gateway runs.
    ///
    /// The longest message holds a READ or WRITE of Samba's default size, so that two gateways in a row can
    /// forward the messages of clients that sign or encrypt.
    pub(super) fn settings(&self) -> Result<Settings> {
        let config = self
            .options
            .config(Some(&self.connect), Some(&self.accept))?;
        let mut settings = config.into_settings();
        if self.options.is_default_fragmented_size() {
            settings.max_fragmented_receive_size = SMB_MESSAGE_BYTES;
        }
        Ok(Settings {
            from: self.from,
            to: self.to,
            client_address: self.clients.client_address,
            network: self.options.network(),
            config: connection_config(settings)?,
            connect_timeout: self.connect.connect_timeout,
            memory: self.memory,
        })
    }

    /// Returns the addresses to listen on.
    pub(super) fn listen(&self) -> Result<&Addresses> {
        let missing = || usage("listen is missing; give an address");
        self.listen.as_ref().ok_or_else(missing)
    }

    /// Returns the servers.
    pub(super) fn upstream(&self) -> Result<&Addresses> {
        let missing = || usage("upstream is missing; give an address");
        self.upstream.as_ref().ok_or_else(missing)
    }

    /// Returns why another process cannot take the place of this service, if it cannot.
    pub(super) fn keeps_from_upgrade(&self) -> Option<&'static str> {
        let transport = self.options.transport;
        let has_rdma = |protocol| protocol == Protocol::SmbDirect;
        if self.options.pcap.is_some() {
            return Some("has --pcap, which is the capture of one process");
        }
        if has_rdma(self.from) && transport != Transport::Iwarp {
            return Some("listens by RoCE or adapters, which have no socket to pass on");
        }
        // The packets of all connections have the UDP port of this process.
        (has_rdma(self.to) && transport == Transport::Roce)
            .then_some("connects by RoCE, whose UDP port only one process can have")
    }
}

/// Returns one text for all ways to write a host.
fn one_host(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().to_string(),
        Err(_) => host.trim_end_matches('.').to_ascii_lowercase(),
    }
}

/// Returns what a person should know if the memory is enough for fewer connections than a service may have.
pub(super) fn lowered_limit(settings: &Settings, wanted: u64) -> Option<String> {
    let possible = settings.affordable_connections();
    (possible < wanted).then(|| {
        let memory = report::bytes(settings.memory);
        let needed = report::bytes(2 * settings.memory_of_one());
        format!(
            "at most {possible} of the {wanted} connections of --max-connections, because --memory {memory} is enough for no \
             more: each one needs {needed}"
        )
    })
}

/// Keeps --memory of all services together below the limit of the control group, beyond which the kernel would kill this
/// process. `used` bytes are those of services that run already.
pub(super) fn limit_memory(planned: &mut [Planned], used: u64) {
    let Some(limit) = resources::memory_limit() else {
        return;
    };
    let most = (limit.bytes / 4 * 3).saturating_sub(used);
    let all = planned.iter().map(|one| one.options.memory);
    let all = all.fold(0, u64::saturating_add);
    if all <= most {
        return;
    }
    warn!(
        "--memory is {}, but the memory limit in {} is {}; using {}, which leaves the rest for the program itself",
        report::bytes(all),
        limit.file,
        report::bytes(limit.bytes),
        report::bytes(most)
    );
    for one in planned {
        let memory = &mut one.options.memory;
        *memory = (u128::from(*memory) * u128::from(most) / u128::from(all)) as u64;
    }
}

/// Raises the limit of open files, and names it if it is too low for all connections.
pub(super) fn raise_open_files(planned: &[Planned]) -> Result<()> {
    let mut connections: u64 = 0;
    for one in planned {
        let possible = one.options.settings()?.affordable_connections();
        connections = connections.saturating_add(possible.min(one.options.max_connections));
    }
    let Some(limit) = resources::raise_open_files() else {
        return Ok(());
    };
    let needed = connections.saturating_mul(2).saturating_add(OTHER_FILES);
    if limit < needed {
        warn!(
            "--max-connections {connections} needs {needed} open files, and the limit is {limit}; raise \
             RLIMIT_NOFILE (`ulimit -n`, LimitNOFILE= of the unit)"
        );
    }
    Ok(())
}
