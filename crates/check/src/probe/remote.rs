//! Gathers the facts about a server and the network to it. Probes that do not disturb each other run at the same
//! time.

use std::{net::SocketAddr, time::Duration};

use smbdirect::rdma::{iwarp::IwarpConfig, roce::Roce};
use smbdirect_smb::frame::PORT as SMB_PORT;
use smbdirect_smb2::Login;
use smbdirect_transport::{Address, resolve_within, text};
use tokio::task;

use super::{
    attempt::{self, Candidate},
    measure::measure,
    negotiate, route,
    session::{self, Over},
    tcp_port,
};
use crate::{
    facts::{
        Attempt, AttemptFault, Fabric, Ksmbd, Machine, Path, Remote, Session, Smb, SmbFault, Tcp,
    },
    settings::{Stage, Target},
};

/// Longest time for the name of the server.
const NAME_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum number of addresses of a server that are tried: each can take the longest time for TCP and RDMA CM.
const MAX_ADDRESSES: usize = 4;
/// The port of SMB Direct over iWARP.
const IWARP_PORT: u16 = Fabric::Iwarp.port();

/// Probes a server and the network to it.
pub(super) async fn gather(
    target: Target,
    machine: &Machine,
    progress: &(dyn Fn(Stage) + Sync),
) -> Remote {
    let mut remote = unprobed(&target);
    progress(Stage::Name);
    let host = Address {
        host: target.host.clone(),
        port: Some(SMB_PORT),
    };
    let mut addresses = match resolve_within(NAME_TIMEOUT, &host, SMB_PORT).await {
        Ok(addresses) => addresses,
        Err(error) => {
            remote.addresses = Err(text::plain(&error.why()));
            return remote;
        }
    };
    addresses.dedup();
    remote.addresses = Ok(addresses.iter().map(SocketAddr::ip).collect());
    // IPv4 first, because ksmbd listens for RDMA on IPv4 only.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.truncate(MAX_ADDRESSES);
    let (mut remote, address, candidates) =
        first_that_answers(remote, &addresses, &target, machine, progress).await;
    if let Some(login) = &target.login {
        progress(Stage::Session);
        remote.session = in_session(&remote, address, &candidates, login).await;
        // A server counts wrong passwords, and may lock the account.
        let session = remote.session.as_ref();
        let is_refused = session.is_some_and(|session| session.login.is_some());
        if let Some(wanted) = target.measure.as_ref().filter(|_| !is_refused) {
            let measuring = measure(
                &remote,
                address,
                &candidates,
                login,
                wanted,
                target.port,
                progress,
            );
            remote.measurement = Some(measuring.await);
        }
    }
    remote
}

/// Returns what is known of a server before it is probed.
fn unprobed(target: &Target) -> Remote {
    Remote {
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
        measurement: None,
    }
}

/// Probes the addresses of a server in their order, until it answers at one. If it answers at none, the facts are those
/// of the first. Returns the address and the candidates that were tried there, too.
async fn first_that_answers(
    remote: Remote,
    addresses: &[SocketAddr],
    target: &Target,
    machine: &Machine,
    progress: &(dyn Fn(Stage) + Sync),
) -> (Remote, SocketAddr, Vec<Candidate>) {
    let software = Software::new(target);
    let mut first = None;
    for &address in addresses {
        let mut remote = remote.clone();
        let port = target.port;
        let candidates = probe(&mut remote, address, port, &software, machine, progress).await;
        let answers = remote.tcp == Some(Tcp::Open)
            || remote.attempts.iter().any(|attempt| attempt.result.is_ok());
        let probed = (remote, address, candidates);
        if answers {
            return probed;
        }
        first.get_or_insert(probed);
    }
    first.expect("a name that resolves has an address")
}

/// The RDMA that every machine has.
struct Software {
    iwarp: IwarpConfig,
    roce: Roce,
}

impl Software {
    fn new(target: &Target) -> Self {
        let mut iwarp = attempt::iwarp_config();
        iwarp.tap.clone_from(&target.iwarp_tap);
        let mut roce = attempt::roce_config();
        roce.tap.clone_from(&target.roce_tap);
        let roce = Roce::new(roce);
        Self { iwarp, roce }
    }
}

/// Probes an address of a server without a login. Returns the candidates of the attempts, in their order.
async fn probe(
    remote: &mut Remote,
    address: SocketAddr,
    port: Option<u16>,
    software: &Software,
    machine: &Machine,
    progress: &(dyn Fn(Stage) + Sync),
) -> Vec<Candidate> {
    remote.address = Some(address.ip());
    let route = route::find(address, &machine.interfaces);
    let mtu = route.as_ref().ok().and_then(|route| route.mtu);
    let has_route = route.is_ok();
    remote.route = Some(route);
    if !has_route {
        return Vec::new();
    }
    let Software { iwarp, roce } = software;
    let (candidates, unavailable) = candidates(machine, port, iwarp, roce);
    let (over_iwarp, over_others) = candidates
        .into_iter()
        .partition(|candidate| candidate.fabric == Fabric::Iwarp);
    let measured = task::spawn_blocking(move || route::measure(address.ip(), mtu));
    let (by_iwarp, by_others, (tcp, smb, segment), measured) = tokio::join!(
        attempts(over_iwarp, address, roce, progress),
        attempts(over_others, address, roce, progress),
        over_tcp(address, progress),
        measured
    );
    remote.path = measured.unwrap_or_default();
    remote.path.segment = segment;
    let mut tried = [by_others, by_iwarp].concat();
    without_guesses(&mut tried);
    let (candidates, attempts): (Vec<_>, Vec<_>) = tried.into_iter().unzip();
    remote.attempts = [unavailable, attempts].concat();
    remote.tcp = Some(tcp);
    // Something that is not SMB listens on the port of SMB: software iWARP at the wrong port?
    if matches!(smb, Some(Err(_))) && !remote.attempts.iter().any(|attempt| attempt.result.is_ok())
    {
        let candidate = Candidate::software_iwarp(SMB_PORT, iwarp.clone());
        progress(candidate.stage());
        let attempt = attempt::attempt(&candidate, address).await;
        if attempt.result.is_ok() {
            remote.attempts.push(attempt);
        }
    }
    remote.smb = smb;
    candidates
}

/// Tries this machine's own ksmbd over software iWARP: only an attempt shows whether its listener, which the
/// kernel keeps open, still accepts connections.
pub(super) async fn own_ksmbd(
    machine: &Machine,
    progress: &(dyn Fn(Stage) + Sync),
) -> Option<Attempt> {
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
    progress(Stage::Ksmbd);
    let candidate = Candidate::software_iwarp(IWARP_PORT, attempt::iwarp_config());
    Some(attempt::attempt(&candidate, (address, IWARP_PORT).into()).await)
}

/// Returns the attempts to make, and those that cannot be made: the adapters of this machine, software RoCE if none
/// of them is for RoCE, software iWARP, and both at `port`.
fn candidates(
    machine: &Machine,
    port: Option<u16>,
    iwarp: &IwarpConfig,
    roce: &Roce,
) -> (Vec<Candidate>, Vec<Attempt>) {
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
    candidates.push(Candidate::software_iwarp(IWARP_PORT, iwarp.clone()));
    if let Some(port) = port.filter(|port| ![IWARP_PORT, SMB_PORT].contains(port)) {
        candidates.push(Candidate::software_iwarp(port, iwarp.clone()));
        candidates.push(Candidate::software_roce(port, roce));
    }
    (candidates, unavailable)
}

/// Makes the attempts in sequence. Returns each with its candidate.
async fn attempts(
    candidates: Vec<Candidate>,
    address: SocketAddr,
    roce: &Roce,
    progress: &(dyn Fn(Stage) + Sync),
) -> Vec<(Candidate, Attempt)> {
    let mut tried = Vec::new();
    for candidate in candidates {
        progress(candidate.stage());
        let attempt = attempt::attempt(&candidate, address).await;
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
            let attempt = attempt::attempt(&other, address).await;
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
    progress: &(dyn Fn(Stage) + Sync),
) -> (Tcp, Option<Result<Smb, SmbFault>>, Option<u32>) {
    progress(Stage::Tcp);
    let (tcp, stream) = tcp_port::connect(address, tcp_port::CONNECT_TIMEOUT).await;
    let Some(stream) = stream else {
        return (tcp, None, None);
    };
    let segment = tcp_port::segment(&stream);
    let smb = negotiate::over_tcp(stream).await;
    (tcp, Some(smb), segment)
}

/// Logs in, over TCP if that works, else over SMB Direct.
async fn in_session(
    remote: &Remote,
    address: SocketAddr,
    candidates: &[Candidate],
    login: &Login,
) -> Option<Session> {
    let over = match &remote.smb {
        Some(Ok(_)) => Over::Tcp(address),
        _ => {
            let works = |attempt: &Attempt| attempt.result.as_ref().is_ok_and(|it| it.smb.is_ok());
            let good = remote.attempts.iter().find(|attempt| works(attempt))?;
            let candidate = candidates
                .iter()
                .find(|candidate| (candidate.port, &candidate.by) == (good.port, &good.by))?;
            Over::SmbDirect(attempt::open(candidate, address).await.ok()?)
        }
    };
    let session = session::query(&over, &remote.host, remote.share.as_deref(), login).await;
    if let Over::SmbDirect(connection) = &over {
        attempt::leave(connection).await;
    }
    Some(session)
}

#[cfg(test)]
mod tests {
    use smbdirect::{Config, Listener, rdma::iwarp::Iwarp};

    use super::*;

    #[tokio::test]
    async fn the_address_that_answers_is_probed() {
        let provider = Iwarp::new(IwarpConfig::default());
        let bound = Listener::bind(&provider, "127.0.0.1:0", Config::default()).await;
        let mut listener = bound.unwrap();
        let target = Target {
            host: "server".into(),
            port: Some(listener.local_addr().port()),
            share: None,
            login: None,
            measure: None,
            iwarp_tap: None,
            roce_tap: None,
        };
        let accepting = tokio::spawn(async move {
            let connection = listener.accept().await.unwrap();
            connection.closed().await;
        });
        let machine = Machine::default();
        // No machine has the first address.
        let addresses = [[255; 4], [127, 0, 0, 1]].map(|ip| SocketAddr::from((ip, SMB_PORT)));
        let probed = first_that_answers(unprobed(&target), &addresses, &target, &machine, &|_| ());
        let (remote, address, _) = probed.await;
        assert_eq!(address, addresses[1]);
        assert_eq!(remote.address, Some(address.ip()));
        accepting.await.unwrap();
        let nowhere = [addresses[0]; 2];
        let probed = first_that_answers(unprobed(&target), &nowhere, &target, &machine, &|_| ());
        let (remote, address, _) = probed.await;
        assert_eq!(address, addresses[0]);
        assert!(matches!(remote.route, Some(Err(_))), "{remote:?}");
    }
}
