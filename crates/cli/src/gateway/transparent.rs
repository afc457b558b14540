//! `client-address = "transparent"`: whether the gateway may have the address of a client, and whether the answers of the
//! servers come back to it.

use anyhow::Result;
use smbdirect_gateway::Network;

use super::{Gateway, Kind, Planned, cluster::ClientAddress};
use crate::{
    options::{Address, usage},
    report, transport,
};

/// Services whose servers have to send their answers to clients to this machine.
#[derive(Debug, Default)]
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "only Linux can be asked")
)]
pub(super) struct Transparent(Vec<Answers>);

/// The answers of the servers of a service.
#[derive(Debug)]
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "only Linux can be asked")
)]
struct Answers {
    servers: Vec<Address>,
    allow: Vec<Network>,
}

impl Gateway {
    /// Checks that the gateway can have the address of its clients, if that is wanted.
    pub(super) fn check_client_address(&self) -> Result<()> {
        if !self.is_transparent() {
            return Ok(());
        }
        if self.to != Kind::Tcp {
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

    fn is_transparent(&self) -> bool {
        self.clients.client_address == ClientAddress::Transparent
    }
}

impl Transparent {
    /// Returns the transparent ones of these services.
    pub(super) fn of(planned: &[Planned]) -> Self {
        let all = planned.iter().map(|one| &one.options);
        let transparent = all.filter(|options| options.is_transparent());
        let answers = transparent.map(|options| Answers {
            servers: options
                .upstream
                .iter()
                .flat_map(|all| all.all().to_vec())
                .collect(),
            allow: options.clients.allow.clone(),
        });
        Self(answers.collect())
    }

    /// Logs which routes are missing for the answers of servers. A name that has no address now is passed over.
    #[cfg(target_os = "linux")]
    pub(super) async fn warn_of_missing_routes(self) {
        use std::io;

        use smbdirect_smb::frame;
        use smbdirect_transport::missing_routes;
        use tokio::task::spawn_blocking;
        use tracing::{debug, warn};

        let mut said = std::collections::BTreeSet::new();
        for Answers { servers, allow } in self.0 {
            let networks: Vec<_> = allow.iter().map(Network::prefix).collect();
            for server in servers {
                let found =
                    tokio::time::timeout(LOOK_UP_LIMIT, transport::resolve(&server, frame::PORT));
                for address in found.await.ok().and_then(Result::ok).unwrap_or_default() {
                    let networks = networks.clone();
                    // A router may have very many routes to list.
                    let found = spawn_blocking(move || missing_routes(address, &networks)).await;
                    let missing = match found.map_err(io::Error::from).flatten() {
                        Ok(Some(missing)) => missing,
                        Ok(None) => continue,
                        Err(error) => {
                            debug!(%address, %error, "the routes cannot be checked");
                            continue;
                        }
                    };
                    // Servers behind one interface need the same.
                    if said.insert(missing.commands.clone()) {
                        warn!("--client-address transparent: {missing}");
                    }
                }
            }
        }
    }

    /// Only Linux can be transparent.
    #[cfg(not(target_os = "linux"))]
    pub(super) async fn warn_of_missing_routes(self) {
        drop(self);
    }
}

/// Longest time for looking up the name of a server. A connection has more.
#[cfg(target_os = "linux")]
const LOOK_UP_LIMIT: std::time::Duration = std::time::Duration::from_secs(2);
