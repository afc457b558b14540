//! A server and the network to it: name, route, packet sizes, TCP, SMB Direct, SMB.

use super::{attempts, dialects, session};
use crate::{
    diagnosis::{About, RunOn, Section, Step},
    facts::{Machine, Path, Remote, Route, Smb, SmbFault, Tcp},
    fault::Fault,
};

/// Headers of IPv4 and TCP, without options.
const HEADERS_BYTES: u32 = 40;
/// TCP options of a segment, at most.
const MAX_OPTIONS_BYTES: u32 = 40;

/// Returns the section about the server.
pub(super) fn section(remote: &Remote, machine: &Machine) -> Section {
    let mut steps = vec![name(remote)];
    if let Some(found) = &remote.route {
        steps.push(route(remote, found, machine));
        if let Ok(found) = found {
            steps.extend(mtu(found, &remote.path, remote));
        }
    }
    if let Some(tcp) = &remote.tcp {
        steps.push(over_tcp(tcp, remote));
    }
    steps.extend(
        remote
            .attempts
            .iter()
            .map(|attempt| attempts::step(attempt, remote)),
    );
    steps.extend(protection(remote));
    Section {
        about: About::Remote,
        title: format!("Way to {}", remote.host),
        steps,
    }
}

fn name(remote: &Remote) -> Step {
    const NAME: &str = "name";
    let host = &remote.host;
    match &remote.addresses {
        Ok(addresses) => {
            let words: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            match words.join(", ") {
                same if same == *host => Step::ok("address", same),
                words => {
                    let first = remote.address.filter(|address| addresses[0] != *address);
                    let first =
                        first.map_or_else(String::new, |address| format!("; {address} is checked"));
                    Step::ok(NAME, format!("{host} is {words}{first}"))
                }
            }
        }
        Err(why) => {
            let cause = "the name has no address here: it is misspelled, or the DNS server does not know it";
            Step::fault(NAME, why.clone(), Fault::NameUnknown, cause).cure(
                RunOn::Here,
                format!("getent hosts {host}; cat /etc/resolv.conf"),
            )
        }
    }
}

fn route(remote: &Remote, route: &Result<Route, String>, machine: &Machine) -> Step {
    const NAME: &str = "route";
    let address = remote
        .address
        .map_or_else(String::new, |address| address.to_string());
    let found = match route {
        Ok(found) => found,
        Err(why) => {
            let cause = "this machine has no route to the address";
            return Step::fault(NAME, why.clone(), Fault::NoRoute, cause)
                .cure(RunOn::Here, format!("ip route get {address}; ip -br addr"));
        }
    };
    let Some(interface) = &found.interface else {
        return Step::ok(NAME, format!("from {}", found.source));
    };
    let mtu = found
        .mtu
        .map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
    let evidence = format!("by {interface} from {}{mtu}", found.source);
    let mut with_interface = machine
        .adapters
        .iter()
        .filter(|each| each.interface.is_some());
    let leads = with_interface
        .clone()
        .any(|each| each.interface.as_ref() == Some(interface));
    let other = with_interface.find(|each| each.interface.as_deref() != Some("lo"));
    match other {
        Some(other) if !leads && interface != "lo" => {
            let there = other.interface.as_deref().unwrap_or_default();
            let cause = format!(
                "the route leaves by {interface}, which has no RDMA adapter; {} is on {there}, so \
                 the kernel's client cannot use it for this address",
                other.name
            );
            Step::warning(NAME, evidence, Fault::RouteWithoutAdapter, cause)
                .cure(RunOn::Here, format!("sudo ip route replace {address} dev {there}    # or use the server's address in that network"))
        }
        _ => Step::ok(NAME, evidence),
    }
}

/// Compares the MTU of the interface with the packet sizes that the path and the server accept.
fn mtu(route: &Route, path: &Path, remote: &Remote) -> Option<Step> {
    const NAME: &str = "MTU";
    let mtu = route.mtu?;
    let interface = route.interface.as_deref().unwrap_or("DEVICE");
    let address = remote.address?;
    if path.is_reported_too_large {
        let known = path.known_mtu.filter(|&known| known < mtu);
        let known = known.map_or_else(|| "less".into(), |known| known.to_string());
        let cause = "a link on the way has a smaller MTU than this interface. Its router says so, \
                     and TCP adapts; RoCE may not connect";
        return Some(
            Step::warning(
                NAME,
                format!("{mtu} here, {known} on the way"),
                Fault::MtuDiffers,
                cause,
            )
            .cure(
                RunOn::Here,
                format!("tracepath -n {address}    # where it gets smaller"),
            ),
        );
    }
    if path.short_ping == Some(true) && path.full_ping == Some(false) {
        let cause = "packets of this interface's MTU are lost on the way: a switch or the server \
                     has a smaller one. Connections open, and stall at the first large transfer";
        let known = path.known_mtu.filter(|&known| known < mtu);
        let known = known.map_or_else(String::new, |known| {
            format!("; the MTU of the path is {known}")
        });
        let size = mtu.saturating_sub(28);
        return Some(
            Step::fault(
                NAME,
                format!("an ICMP echo of {mtu} bytes is not answered, but a short one is{known}"),
                Fault::MtuDiffers,
                cause,
            )
            .cure(RunOn::Here, format!("ping -M do -s {size} {address}    # smaller until it is answered"))
            .cure(RunOn::Here, format!("sudo ip link set {interface} mtu 1500    # or the larger MTU at every switch and at the server")),
        );
    }
    let smaller = path
        .segment
        .map(|segment| segment + HEADERS_BYTES)
        .filter(|&smallest| smallest + MAX_OPTIONS_BYTES < mtu && interface != "lo");
    if let Some(smaller) = smaller {
        let cause = "the server's interface has a smaller MTU than this one: TCP adapts, and RoCE \
                     may not connect; packets are smaller than they could be";
        let segment = smaller - HEADERS_BYTES;
        return Some(
            Step::warning(
                NAME,
                format!("{mtu} here, and the server takes TCP segments of {segment}"),
                Fault::MtuDiffers,
                cause,
            )
            .cure(
                RunOn::Server,
                format!("sudo ip link set DEVICE mtu {mtu}    # and at every switch between"),
            ),
        );
    }
    match (path.full_ping, path.short_ping) {
        (Some(true), _) => Some(Step::ok(
            NAME,
            format!("packets of {mtu} bytes arrive whole"),
        )),
        (_, Some(false)) => Some(Step::skipped(
            NAME,
            "the server does not answer ICMP echoes",
        )),
        _ => None,
    }
}

fn over_tcp(tcp: &Tcp, remote: &Remote) -> Step {
    const NAME: &str = "TCP 445";
    let some_work = remote.attempts.iter().any(attempts::is_good);
    match (tcp, &remote.smb) {
        (Tcp::Open, Some(Ok(smb))) if smb.dialect < 0x0300 => {
            dialects::too_old(NAME.into(), smb.dialect)
        }
        (Tcp::Open, Some(Ok(smb))) => {
            let multichannel = if smb.multichannel {
                ", multichannel"
            } else {
                ""
            };
            let evidence = format!("SMB {}{multichannel}", dialects::name(smb.dialect));
            if smb.multichannel {
                return Step::ok(NAME, evidence);
            }
            let cause = "the server does not offer multichannel, and Windows clients find SMB \
                         Direct only by it; Linux clients do not need it";
            let evidence = format!("{evidence}, no multichannel");
            session::with_multichannel(Step::warning(NAME, evidence, Fault::MultichannelOff, cause))
        }
        (Tcp::Open, Some(Err(fault))) => {
            let (what, fault, cause) = match fault {
                SmbFault::HungUp => (
                    "the connection ends at the first SMB message",
                    Fault::NoSmb,
                    "the server turns this machine away or has no SMB2, or the service on this port is not SMB",
                ),
                SmbFault::Silent => (
                    "no answer to SMB2 NEGOTIATE",
                    Fault::NoSmb,
                    "the server hangs, or the service on this port is not SMB",
                ),
                SmbFault::Other(what) => (
                    what.as_str(),
                    Fault::NotSmbDirect,
                    "what listens on port 445 is not an SMB2 server",
                ),
            };
            Step::warning(NAME, what, fault, cause).cure(
                RunOn::Server,
                "ss -Hltnp 'sport = :445'    # what listens there; its log names clients that it refuses",
            )
        }
        (Tcp::Open, None) => Step::ok(NAME, "open"),
        // Windows begins with TCP; the Linux client with `rdma` does not need it.
        (Tcp::Refused, _) if some_work => Step::skipped(
            NAME,
            "refused; Linux mounts with `rdma` do not need it, Windows begins with it",
        ),
        (Tcp::Dropped, _) if some_work => Step::skipped(
            NAME,
            "no answer; Linux mounts with `rdma` do not need it, Windows begins with it",
        ),
        (Tcp::Unreachable(why), _) if some_work => Step::skipped(NAME, why.clone()),
        (Tcp::Refused, _) => {
            let cause = "no SMB server listens on TCP, or a firewall resets connections";
            Step::fault(NAME, "connection refused", Fault::PortRefused, cause).cure(
                RunOn::Server,
                "ss -Hltn 'sport = :445'; systemctl status smbd ksmbd",
            )
        }
        (Tcp::Dropped, _) if attempts::is_silent(remote) => {
            attempts::host_silent(NAME, "no answer", remote)
        }
        (Tcp::Unreachable(why), _) if attempts::is_silent(remote) => {
            attempts::host_silent(NAME, why, remote)
        }
        (Tcp::Dropped, _) => firewall(NAME, "no answer", Fault::PortDropped),
        (Tcp::Unreachable(why), _) => firewall(NAME, why, Fault::PortRejected),
    }
}

fn firewall(name: &str, evidence: &str, fault: Fault) -> Step {
    let cause = match fault {
        Fault::PortDropped => "a firewall drops the packets to this port",
        _ => "a firewall rejects this port, or there is no machine at this address",
    };
    Step::fault(name, evidence, fault, cause)
        .cure(RunOn::ServerLinux, "sudo nft insert rule inet filter input tcp dport 445 accept    # or: sudo firewall-cmd --add-service=samba")
        .cure(RunOn::Windows, "Enable-NetFirewallRule -DisplayGroup 'File and Printer Sharing'")
}

/// Signing and sizes, from NEGOTIATE alone.
fn protection(remote: &Remote) -> Vec<Step> {
    let direct = remote.attempts.iter().find_map(|attempt| {
        let reached = attempt.result.as_ref().ok()?;
        Some((reached.smb.as_ref().ok()?, reached.max_fragmented_send_size))
    });
    let tcp = remote.smb.as_ref().and_then(|smb| smb.as_ref().ok());
    let smb: Option<&Smb> = direct.map(|(smb, _)| smb).or(tcp);
    let Some(smb) = smb.filter(|smb| smb.dialect >= 0x0300) else {
        return Vec::new();
    };
    let session = remote.session.as_ref();
    let encrypts = session
        .is_some_and(|session| session.is_encrypted || matches!(session.share, Some(Ok(true))));
    let mut steps: Vec<Step> = session::signing(smb).into_iter().collect();
    if let Some((_, size)) = direct {
        steps.extend(session::fragmented(
            smb,
            size,
            smb.signing_required || encrypts,
        ));
    }
    steps
}
