//! Probes, which gather facts about this machine ([`local`]) and about a server ([`remote`]).

mod adapters;
mod attempt;
mod interfaces;
mod kernel;
mod local;
mod measure;
mod mounts;
mod negotiate;
mod remote;
mod root;
mod route;
mod servers;
mod session;
mod tcp_port;

use crate::{
    facts::Facts,
    settings::{Settings, Stage},
};
use root::Root;

/// Probes what the settings name. Calls `progress` when a stage begins.
///
/// Each attempt to use SMB Direct is a complete, correct exchange, and disturbs no server. Do not drop the future before
/// it ends: an exchange that breaks off counts as a failure at the server.
pub async fn gather(settings: Settings, progress: &(dyn Fn(Stage) + Sync)) -> Facts {
    progress(Stage::Machine);
    let root = Root::new(settings.root);
    let reading = tokio::task::spawn_blocking(move || local::gather(&root));
    let mut machine = reading.await.expect("reading files does not panic");
    let remote = match settings.target {
        None => {
            machine.server.attempt = remote::own_ksmbd(&machine, progress).await;
            None
        }
        Some(target) => Some(remote::gather(target, &machine, progress).await),
    };
    Facts { machine, remote }
}
