//! Gathers the facts of the way to a server. Probes that do not disturb each other run at the same
//! time.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use smbdirect::rdma::{
    iwarp::IwarpConfig,
    roce::{Roce, RoceConfig},
};
use tokio::{net::lookup_host, task, time::timeout};

use super::{
    facts::{Attempt, AttemptFault, Fabric, Ksmbd, Machine, Path, Smb, SmbFault, Tcp, Way},
    path,
    rdma::{self, Candidate},
    session::{self, Account, Over},
    tcp,
};

/// Longest time for the name of the server.
const NAME_TIMEOUT: Duration = Duration::from_secs(8);
/// The port of SMB over TCP.
const SMB_PORT: u16 = 445;
/// The port of SMB Direct over iWARP.
const IWARP_PORT: u16 = Fabric::Iwarp.port();

/// What to probe.
pub(super) struct Target {
    pub(super) host: String,
    /// A port to try in addition to those that clients use.
    pub(super) port: Option<u16>,
    pub(super) share: Option<String>,
    pub(super) account: Option<Account>,
    pub(super) iwarp: IwarpConfig,
    pub(super) roce: RoceConfig,
}

/// Called with the name of each step that begins.
pub(super) type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// Probes the way to a server.
pub(super) async fn gather(target: Target, machine: &Machine, progress: &Progress) -> Way {
    let mut way = Way {
        host: target.host.clone(),
        share: target.share.clone(),
        addresses: Err(String::new()),
        address: None,
        route: None,
        path: Path::default(),
        tcp: None,
        smb: None,
        attempts: Vec::new(),
        session: None,
    };
    progress("name");
    way.addresses = resolve(&target.host).await;
    let Some(address) = way.addresses.as_ref().ok().and_then(|all| preferred(all)) else {
        return way;
    };
    way.address = Some(address);
    let route = path::route(address, &machine.interfaces);
    let mtu = route.as_ref().ok().and_then(|route| route.mtu);
    let has_route = route.is_ok();
    way.route = Some(route);
    if !has_route {
        return way;
    }
    let roce = Roce::new(target.roce.clone());
    let (candidates, unavailable) = candidates(machine, &target, &roce);
    let (over_iwarp, over_others) = candidates
        .into_iter()
        .partition(|candidate| candidate.fabric == Fabric::Iwarp);
    let measured = task::spawn_blocking(move || path::measure(address, mtu));
    let (by_iwarp, by_others, (tcp, smb, segment), measured) = tokio::join!(
        attempts(over_iwarp, address, &roce, progress),
        attempts(over_others, address, &roce, progress),
        over_tcp(SocketAddr::new(address, SMB_PORT), progress),
        measured
    );
    way.path = measured.unwrap_or_default();
    way.path.segment = segment;
    let mut tried = [by_others, by_iwarp].concat();
    without_guesses(&mut tried);
    let (candidates, attempts): (Vec<_>, Vec<_>) = tried.into_iter().unzip();
    way.attempts = [unavailable, attempts].concat();
    way.tcp = Some(tcp);
    // Something that is not SMB listens on the port of SMB: software iWARP at the wrong port?
    if matches!(smb, Some(Err(_))) && !way.attempts.iter().any(|attempt| attempt.result.is_ok()) {
        progress("iWARP on port 445");
        let candidate = Candidate::software_iwarp(SMB_PORT, target.iwarp.clone());
        let attempt = rdma::attempt(&candidate, address).await;
        if attempt.result.is_ok() {
            way.attempts.push(attempt);
        }
    }
    way.smb = smb;
    if let Some(account) = &target.account {
        progress("session");
        way.session = in_session(&way, address, &candidates, account).await;
    }
    way
}

/// Tries this machine's own ksmbd over software iWARP: only an attempt tells whether its listener,
/// which the kernel keeps open, still accepts.
pub(super) async fn own_ksmbd(machine: &Machine, progress: &Progress) -> Option<Attempt> {
    if machine.server.ksmbd != Ksmbd::Running || !machine.server.listens.contains(&IWARP_PORT) {
        return None;
    }
    let adapters = machine
        .adapters
        .iter()
        .filter(|adapter| adapter.fabric == Fabric::Iwarp);
    let mut addresses = adapters.filter_map(|adapter| {
        let name = adapter.interface.as_ref().filter(|name| *name != "lo")?;
        let interface = machine.interfaces.iter().find(|each| each.name == *name)?;
        interface.addresses.iter().find(|address| address.is_ipv4())
    });
    let address = *addresses.next()?;
    progress("ksmbd of this machine");
    let candidate = Candidate::software_iwarp(IWARP_PORT, rdma::iwarp_config());
    Some(rdma::attempt(&candidate, address).await)
}

async fn resolve(host: &str) -> Result<Vec<IpAddr>, String> {
    match timeout(NAME_TIMEOUT, lookup_host((host, SMB_PORT))).await {
        Ok(Ok(found)) => {
            let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
            addresses.dedup();
            if addresses.is_empty() {
                Err("it has no addresses".into())
            } else {
                Ok(addresses)
            }
        }
        Ok(Err(error)) => {
            let text = error.to_string();
            let text = text
                .strip_prefix("failed to lookup address information: ")
                .unwrap_or(&text);
            Err(crate::report::plain(&text))
        }
        Err(_) => Err(format!("no answer within {} s", NAME_TIMEOUT.as_secs())),
    }
}

/// Returns the address to probe: IPv4 first, because ksmbd listens for RDMA on IPv4 only.
fn preferred(addresses: &[IpAddr]) -> Option<IpAddr> {
    let v4 = addresses.iter().find(|address| address.is_ipv4());
    v4.or_else(|| addresses.first()).copied()
}

/// Returns what to try, and what cannot be tried: the adapters of this machine, software RoCE if none
/// of them is for RoCE, software iWARP, and both at the port of the target.
fn candidates(machine: &Machine, target: &Target, roce: &Roce) -> (Vec<Candidate>, Vec<Attempt>) {
    let mut candidates = Vec::new();
    let mut unavailable = Vec::new();
    let mut adapter = |candidates: &mut Vec<Candidate>, fabric: Fabric| {
        let mut active = machine.adapters.iter().filter(|adapter| {
            adapter.fabric == fabric && adapter.is_active() && adapter.unusable.is_none()
        });
        let Some(adapter) = active.next() else {
            return false;
        };
        match Candidate::adapter(fabric, &adapter.name) {
            Ok(candidate) => candidates.push(candidate),
            Err(why) => unavailable.push(Attempt {
                fabric,
                port: fabric.port(),
                by: adapter.name.clone(),
                result: Err(AttemptFault::Local(why)),
            }),
        }
        true
    };
    let by_roce = adapter(&mut candidates, Fabric::Roce);
    // The kernel chooses the adapter on the route, so one candidate is enough for RoCE and InfiniBand.
    if !by_roce && !adapter(&mut candidates, Fabric::InfiniBand) {
        candidates.push(Candidate::software_roce(Fabric::Roce.port(), roce));
    }
    adapter(&mut candidates, Fabric::Iwarp);
    candidates.push(Candidate::software_iwarp(IWARP_PORT, target.iwarp.clone()));
    let other = target
        .port
        .filter(|&port| port != IWARP_PORT && port != SMB_PORT);
    if let Some(port) = other {
        candidates.push(Candidate::software_iwarp(port, target.iwarp.clone()));
        candidates.push(Candidate::software_roce(port, roce));
    }
    (candidates, unavailable)
}

/// Makes attempts, one after the other. Returns each with its candidate.
async fn attempts(
    candidates: Vec<Candidate>,
    address: IpAddr,
    roce: &Roce,
    progress: &Progress,
) -> Vec<(Candidate, Attempt)> {
    let mut tried = Vec::new();
    for candidate in candidates {
        progress(&format!(
            "{} on port {}",
            candidate.fabric.name(),
            candidate.port
        ));
        let attempt = rdma::attempt(&candidate, address).await;
        let other = match attempt.result {
            // RoCE and InfiniBand on the port of iWARP: clients do not find it.
            Err(AttemptFault::Refused) if candidate.fabric != Fabric::Iwarp => Some(Candidate {
                port: IWARP_PORT,
                ..candidate.clone()
            }),
            // The route to the server has no adapter.
            Err(AttemptFault::NoAdapter) if candidate.fabric != Fabric::Iwarp => {
                Some(Candidate::software_roce(candidate.port, roce))
            }
            _ => None,
        };
        tried.push((candidate, attempt));
        if let Some(other) = other {
            let attempt = rdma::attempt(&other, address).await;
            tried.extend(Some((other, attempt)).filter(|(_, attempt)| attempt.result.is_ok()));
        }
    }
    tried
}

/// Removes failures of one transport at a port where another transport works, or that software RoCE
/// was tried at only because the target names the port.
fn without_guesses(tried: &mut Vec<(Candidate, Attempt)>) {
    let works: Vec<u16> = tried
        .iter()
        .filter(|(_, attempt)| attempt.result.is_ok())
        .map(|(candidate, _)| candidate.port)
        .collect();
    tried.retain(|(candidate, attempt)| {
        let is_guess = candidate.port != candidate.fabric.port()
            && (candidate.fabric != Fabric::Iwarp || works.contains(&candidate.port));
        attempt.result.is_ok() || !is_guess
    });
}

async fn over_tcp(
    address: SocketAddr,
    progress: &Progress,
) -> (Tcp, Option<Result<Smb, SmbFault>>, Option<u32>) {
    progress("TCP on port 445");
    let (tcp, stream) = tcp::connect(address, tcp::CONNECT_TIMEOUT).await;
    let Some(stream) = stream else {
        return (tcp, None, None);
    };
    let segment = tcp::segment(&stream);
    let smb = super::smb::over_tcp(stream).await;
    (tcp, Some(smb), segment)
}

/// Logs in, over TCP if that works, else over SMB Direct.
async fn in_session(
    way: &Way,
    address: IpAddr,
    candidates: &[Candidate],
    account: &Account,
) -> Option<super::facts::Session> {
    let over = match &way.smb {
        Some(Ok(_)) => Over::Tcp(SocketAddr::new(address, SMB_PORT)),
        _ => {
            let works = |attempt: &Attempt| attempt.result.as_ref().is_ok_and(|it| it.smb.is_ok());
            let good = way.attempts.iter().find(|attempt| works(attempt))?;
            let candidate = candidates
                .iter()
                .find(|candidate| (candidate.port, &candidate.by) == (good.port, &good.by))?;
            Over::SmbDirect(rdma::open(candidate, address).await.ok()?)
        }
    };
    let connection = match &over {
        Over::SmbDirect(connection) => Some(connection.clone()),
        Over::Tcp(_) => None,
    };
    let host = address.to_string();
    let session = session::query(over, &host, way.share.as_deref(), account).await;
    if let Some(connection) = connection {
        rdma::leave(&connection).await;
    }
    Some(session)
}
