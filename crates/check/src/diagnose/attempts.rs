//! Attempts to use SMB Direct: what worked, and why the others did not.

use smbdirect_transport::text;

use super::dialects;
use crate::{
    diagnosis::{RunOn, Step},
    facts::{Attempt, AttemptFault, Fabric, Reached, Remote, SmbFault, Tcp},
    fault::Fault,
};

/// Returns whether the attempt found SMB Direct where clients look for it, and an SMB server answered there.
pub(super) fn is_good(attempt: &Attempt) -> bool {
    let reached = attempt.result.as_ref().ok();
    let smb = reached.and_then(|reached| reached.smb.as_ref().ok());
    attempt.port == attempt.fabric.port() && smb.is_some_and(|smb| smb.dialect >= 0x0300)
}

/// Returns what an attempt is called in steps and verdicts.
pub(super) fn name(attempt: &Attempt) -> String {
    format!("{} {}", attempt.fabric.name(), attempt.port)
}

/// Returns the step for an attempt.
pub(super) fn step(attempt: &Attempt, remote: &Remote) -> Step {
    match &attempt.result {
        Ok(reached) if is_sink(attempt, reached, remote) => Step::ok(
            name(attempt),
            format!(
                "SMB Direct 1.0 by {}, without SMB: the path was measured with it",
                attempt.by
            ),
        ),
        Ok(reached) => worked(attempt, reached),
        Err(fault) => Step {
            attempt: Some((attempt.fabric, fault.clone())),
            ..failed(attempt, fault, remote)
        },
    }
}

/// Returns whether the path was measured with what answered.
fn is_sink(attempt: &Attempt, reached: &Reached, remote: &Remote) -> bool {
    let measurement = remote.measurement.as_ref();
    let has_path = measurement.is_some_and(|it| matches!(it.path, Some(Ok(_))));
    has_path && reached.smb.is_err() && attempt.port != attempt.fabric.port()
}

fn worked(attempt: &Attempt, reached: &Reached) -> Step {
    let name = name(attempt);
    let round_trip = match reached.round_trip {
        Some(time) => format!("; keepalive answered in {}", text::time(time)),
        None => "; no answer to a keepalive".into(),
    };
    let Reached {
        max_send_size,
        max_receive_size,
        max_fragmented_send_size,
        max_read_write_size,
        ..
    } = reached;
    let evidence = format!(
        "SMB Direct 1.0 by {}; maximum bytes: send {max_send_size}, receive {max_receive_size}, message \
         {max_fragmented_send_size}, RDMA transfer {max_read_write_size}{round_trip}",
        attempt.by
    );
    let expected = attempt.fabric.port();
    if attempt.port != expected {
        let cause = format!(
            "clients look for {} on port {expected} only, and this listener is on port {}",
            attempt.fabric.name(),
            attempt.port
        );
        return Step::fault(name, evidence, Fault::WrongPort, cause)
            .cure(RunOn::Server, format!("smbdirect gateway :{expected} UPSTREAM    # or the port setting of the server in use"));
    }
    match &reached.smb {
        Ok(smb) if smb.dialect < 0x0300 => dialects::too_old(name, smb.dialect),
        Ok(smb) => Step::ok(
            name,
            format!("{evidence}, SMB {}", dialects::name(smb.dialect)),
        ),
        Err(fault) => {
            let cause = match fault {
                SmbFault::Silent => {
                    "SMB Direct works, and nothing behind it answers SMB: is it a \
                                     `smbdirect listen`, or a gateway whose server hangs?"
                }
                SmbFault::HungUp => {
                    "SMB Direct works, and the connection ends at the first SMB \
                                     message: is the server behind the gateway gone?"
                }
                SmbFault::Other(_) => "SMB Direct works, but the answer is not SMB2",
            };
            let evidence = match fault {
                SmbFault::Other(what) => format!("{evidence}; {what}"),
                _ => evidence,
            };
            Step::fault(name, evidence, Fault::NoSmb, cause).cure(
                RunOn::Server,
                format!("ss -Hltnp 'sport = :{expected}'    # what listens there; a gateway's log names its server"),
            )
        }
    }
}

fn failed(attempt: &Attempt, fault: &AttemptFault, remote: &Remote) -> Step {
    let name = name(attempt);
    // A server has SMB Direct over the transports that its adapters have; one is enough.
    if remote.attempts.iter().any(is_good) {
        match fault {
            AttemptFault::Refused => return Step::skipped(name, "the server does not have it"),
            AttemptFault::Dropped => return Step::skipped(name, "no answer"),
            AttemptFault::Unreachable(why) => return Step::skipped(name, why.clone()),
            _ => {}
        }
    }
    let by = &attempt.by;
    let port = attempt.port;
    match fault {
        AttemptFault::Refused => refused(name, attempt),
        AttemptFault::Dropped if is_silent(remote) => host_silent(name, "no answer", remote),
        AttemptFault::Unreachable(why) if is_silent(remote) => host_silent(name, why, remote),
        AttemptFault::Dropped => dropped(name, attempt),
        AttemptFault::Unreachable(why) => unreachable(name, attempt, why),
        AttemptFault::NotIwarp => {
            let cause = "a TCP service that is not SMB Direct has this port";
            not_iwarp(name, port, fault, Fault::NotSmbDirect, cause)
        }
        AttemptFault::Unanswered => {
            let cause = "the listener hangs or turns this machine away, or the service on this port is not SMB Direct";
            not_iwarp(name, port, fault, Fault::NegotiationSilent, cause)
        }
        AttemptFault::Rejected(why) if may_have_no_listener(attempt, remote) => {
            listener_gone(name, why)
        }
        AttemptFault::Rejected(why) | AttemptFault::Incompatible(why) => {
            rejected(name, attempt, why, remote)
        }
        AttemptFault::Silent(why) | AttemptFault::Lost(why) => {
            let cause = match fault {
                AttemptFault::Silent(_) => {
                    "the RDMA connection is established, but the negotiation of SMB Direct got no answer: \
                     it is another RDMA service, or the server hangs"
                }
                _ => {
                    "the server ended the RDMA connection during the negotiation of SMB Direct: \
                     it is another RDMA service, or the server is shutting down"
                }
            };
            let evidence = format!("by {by}: {why}");
            Step::fault(name, evidence, Fault::NegotiationSilent, cause)
                .cure(
                    RunOn::ServerLinux,
                    "sudo dmesg | grep -i -e ksmbd -e smbdirect | tail",
                )
                .cure(
                    RunOn::Here,
                    format!("smbdirect ping {}:{port} -vv", remote.host),
                )
        }
        AttemptFault::NegotiationRefused(status) => {
            let cause = "the server does not accept the sizes, credits or versions of this end";
            let evidence = format!("the Negotiate Response has status {status}");
            Step::fault(name, evidence, Fault::NegotiationRefused, cause).cure(
                RunOn::Here,
                format!(
                    "smbdirect ping {}:{port} --profile windows    # with the sizes of Windows",
                    remote.host
                ),
            )
        }
        AttemptFault::NegotiationBroken(why) => {
            let cause = "the server's answer breaks the specification, so every client has to \
                         refuse it";
            Step::fault(name, why.clone(), Fault::NegotiationBroken, cause)
                .cure(RunOn::Here, format!("smbdirect ping {}:{port} --pcap broken.pcap; smbdirect decode broken.pcap --broken", remote.host))
        }
        AttemptFault::NoAdapter => {
            Step::skipped(name, "no adapter of this machine has a route to the server")
        }
        AttemptFault::Local(why) => Step::unknown(name, format!("by {by}: {why}")),
    }
}

fn unreachable(name: String, attempt: &Attempt, why: &str) -> Step {
    let cause = "the way to this port is closed: a firewall rejects it, or there is no machine at this address";
    allow(Step::fault(name, why, Fault::PortRejected, cause), attempt)
}

fn not_iwarp(
    name: String,
    port: u16,
    what: &AttemptFault,
    fault: Fault,
    cause: &'static str,
) -> Step {
    let evidence = format!("TCP port {port} is open, but {what}");
    Step::fault(name, evidence, fault, cause).cure(
        RunOn::Server,
        format!("ss -Hltnp 'sport = :{port}'    # what listens there"),
    )
}

fn refused(name: String, attempt: &Attempt) -> Step {
    let port = attempt.port;
    let kind = attempt.fabric.name();
    let fault = match attempt.fabric {
        Fabric::Iwarp => Fault::PortRefused,
        _ => Fault::CmRefused,
    };
    let cause = match attempt.fabric {
        Fabric::Iwarp => "no server listens there, or a firewall resets connections",
        _ => "no server listens there by RDMA",
    };
    let step = Step::fault(name, AttemptFault::Refused.to_string(), fault, cause);
    let step = match attempt.fabric {
        Fabric::Iwarp => step.cure(
            RunOn::Server,
            format!("ss -Hltn 'sport = :{port}'; rdma link"),
        ),
        _ => step.cure(RunOn::ServerLinux, "rdma link; rdma resource show cm_id"),
    };
    step.cure(RunOn::Ksmbd, format!("sudo ksmbd.control -s && sleep 1 && sudo ksmbd.mountd    # after the RDMA device ({kind}) is there"))
        .cure(RunOn::Samba, format!("smbdirect gateway :{port} 127.0.0.1:445"))
        .cure(RunOn::Windows, "Enable-NetAdapterRdma -Name *; Get-SmbServerNetworkInterface")
}

fn dropped(name: String, attempt: &Attempt) -> Step {
    let evidence = match attempt.fabric {
        Fabric::Iwarp => "no answer to TCP",
        _ => "no answer to RDMA CM",
    };
    let cause = match attempt.fabric {
        Fabric::Iwarp => {
            "the server answers on other ports, so a firewall drops the packets to this one"
        }
        _ => {
            "a firewall drops RoCE (UDP port 4791), or the server has no RDMA adapter in this \
              network"
        }
    };
    allow(
        Step::fault(name, evidence, Fault::PortDropped, cause),
        attempt,
    )
}

/// Returns whether nothing at all was answered.
pub(super) fn is_silent(remote: &Remote) -> bool {
    use AttemptFault::{Dropped, NoAdapter, Unreachable};
    let silent =
        |result: &Result<_, _>| matches!(result, Err(Dropped | NoAdapter | Unreachable(_)));
    remote.path.short_ping != Some(true)
        && matches!(remote.tcp, None | Some(Tcp::Dropped | Tcp::Unreachable(_)))
        && remote
            .attempts
            .iter()
            .all(|attempt| silent(&attempt.result))
}

/// Returns the step for a server that answers nothing.
pub(super) fn host_silent(name: impl Into<String>, evidence: &str, remote: &Remote) -> Step {
    let cause = "the server answers nothing at all: it is off, the address is another machine's, \
                 or a firewall drops everything";
    let address = remote
        .address
        .map_or_else(|| remote.host.clone(), |address| address.to_string());
    Step::fault(name, evidence, Fault::HostSilent, cause).cure(
        RunOn::Here,
        format!("ping -c 3 {address}; ip route get {address}; ip neigh show {address}"),
    )
}

/// Adds how to open a firewall.
pub(super) fn allow(step: Step, attempt: &Attempt) -> Step {
    let ports = match attempt.fabric {
        Fabric::Iwarp => format!("tcp dport {}", attempt.port),
        _ => "udp dport 4791".into(),
    };
    let port = ports
        .replace("tcp dport ", "tcp/")
        .replace("udp dport ", "udp/");
    let (protocol, number) = port.split_once('/').unwrap_or(("tcp", &port));
    step.cure(RunOn::ServerLinux, format!("sudo nft insert rule inet filter input {ports} accept    # or: sudo firewall-cmd --add-port={number}/{protocol}"))
        .cure(RunOn::Windows, format!("New-NetFirewallRule -DisplayName 'SMB Direct' -Direction Inbound -Protocol {} -LocalPort {number} -Action Allow", protocol.to_uppercase()))
}

/// Returns whether a server that refuses an RDMA connection may have lost its listener: it answers SMB
/// over TCP, and Linux siw refuses for a listener that is gone.
fn may_have_no_listener(attempt: &Attempt, remote: &Remote) -> bool {
    attempt.fabric == Fabric::Iwarp && matches!(remote.smb, Some(Ok(_)))
}

fn listener_gone(name: String, why: &str) -> Step {
    let cause = "nothing accepts behind the port. ksmbd closes its RDMA listener for good after eleven \
                 failed negotiations; a gateway refuses in the same way while it is at its limit of \
                 connections";
    Step::fault(name, format!("MPA: {why}"), Fault::ListenerGone, cause)
        .cure(
            RunOn::Ksmbd,
            "sudo ksmbd.control -s && sleep 1 && sudo ksmbd.mountd    # all connections end",
        )
        .cure(
            RunOn::ServerLinux,
            "sudo dmesg | grep -i -e ksmbd -e smbdirect | tail",
        )
}

fn rejected(name: String, attempt: &Attempt, why: &str, remote: &Remote) -> Step {
    match attempt.fabric {
        Fabric::Iwarp => {
            let cause = "the iWARP listener refused the connection before SMB Direct began: it has \
                         reached its limit of connections, or needs other MPA options";
            Step::fault(name, format!("MPA: {why}"), Fault::MpaRefused, cause).cure(
                RunOn::Here,
                format!(
                    "smbdirect ping {}:{} --mpa-revision 1",
                    remote.host, attempt.port
                ),
            )
        }
        _ => {
            let cause = "the listener refused the RDMA connection: it does not accept the limits of this \
                         end, or had no receive posted";
            Step::fault(name, format!("RDMA CM: {why}"), Fault::CmRefused, cause).cure(
                RunOn::ServerLinux,
                "sudo dmesg | grep -i -e ksmbd -e smbdirect | tail",
            )
        }
    }
}
