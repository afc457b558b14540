//! Judges the findings of a session, and the security that a server requires before a session.

use std::net::IpAddr;

use super::settings;
use crate::{
    diagnosis::{About, RunOn, Section, Step},
    facts::{Remote, ServerInterface, Session, Smb},
    fault::Fault,
};

/// SMB Direct of Linux reassembles this many bytes.
const LINUX_FRAGMENTED_BYTES: u32 = 173_910;

/// Returns the section about the session, if there was one.
pub(super) fn section(remote: &Remote) -> Option<Section> {
    let session = remote.session.as_ref()?;
    let title = format!("Session of {} over {}", session.user, session.over);
    let mut steps = Vec::new();
    match &session.login {
        // The reason names its cure, or the log of the server does.
        Some(why) if session.is_kerberos => {
            let cause = "there is no ticket for the server, or the server refuses it";
            let step = Step::fault("login", why.clone(), Fault::LoginFailed, cause);
            steps.push(
                step.cure(RunOn::Here, format!("kinit {}", session.user))
                    .cure(
                        RunOn::Here,
                        "timedatectl    # clocks may differ by 5 minutes",
                    )
                    .cure(
                        RunOn::Samba,
                        "sudo net ads testjoin; sudo net ads keytab list",
                    ),
            );
        }
        Some(why) => {
            let cause = "the server refuses the account or requires encryption other than AES-128, or the session failed";
            let step = Step::fault("login", why.clone(), Fault::LoginFailed, cause);
            steps.push(
                step.cure(
                    RunOn::Ksmbd,
                    format!("sudo ksmbd.adduser -a {}", session.user),
                )
                .cure(RunOn::Samba, format!("sudo smbpasswd -a {}", session.user)),
            );
        }
        None => steps.push(Step::ok("login", "accepted")),
    }
    steps.extend(interfaces(session, remote.address));
    match &session.share {
        Some(Err(why)) => {
            let share = remote.share.as_deref().unwrap_or_default();
            let cause = format!("the server does not let this account use the share {share}");
            let step = Step::fault("share", why.clone(), Fault::ShareUnknown, cause);
            steps.push(step.cure(
                RunOn::Here,
                format!("smbclient -L {} -U {}", remote.host, session.user),
            ));
        }
        Some(Ok(true)) => steps.push(encryption("the share demands encryption")),
        Some(Ok(false)) => steps.push(Step::ok("share", "demands no encryption")),
        None => {}
    }
    if session.is_encrypted {
        steps.push(encryption("the server demands encryption of the session"));
    }
    Some(Section {
        about: About::Session,
        title,
        steps,
    })
}

/// The interfaces that the server offers: how Windows finds SMB Direct.
fn interfaces(session: &Session, address: Option<IpAddr>) -> Option<Step> {
    const NAME: &str = "interfaces";
    let list = match session.interfaces.as_ref()? {
        Ok(list) => list,
        Err(why) => {
            let cause = "the server does not list its interfaces, because multichannel is turned off there, \
                         so Windows clients never try SMB Direct";
            let evidence = format!("FSCTL_QUERY_NETWORK_INTERFACE_INFO: {why}");
            let step = Step::warning(NAME, evidence, Fault::MultichannelOff, cause);
            return Some(with_multichannel(step));
        }
    };
    let words: Vec<String> = list.iter().map(describe).collect();
    let evidence = if words.is_empty() {
        "the server lists none".into()
    } else {
        words.join(", ")
    };
    if !list.iter().any(|each| each.is_rdma) {
        let cause = "no interface is RDMA_CAPABLE, so Windows clients never try SMB Direct: the \
                     server knows no RDMA device behind its interfaces (a bridge, VLAN or bond can hide it)";
        return Some(
            Step::warning(NAME, evidence, Fault::NotRdmaCapable, cause)
                .cure(RunOn::ServerLinux, "rdma link    # the netdev of the RDMA device needs the address that clients use")
                .cure(RunOn::Samba, samba_rdma("ADDRESS"))
                .cure(RunOn::Windows, "Enable-NetAdapterRdma -Name *; Get-SmbServerNetworkInterface"),
        );
    }
    let address = address?;
    let this = list.iter().find(|each| each.address == address);
    let cause = match this {
        Some(this) if this.is_rdma => return Some(Step::ok(NAME, evidence)),
        Some(_) => format!("the server offers RDMA, but not on {address}, which clients use"),
        None => format!(
            "the server does not list {address}; clients go to the addresses that it lists, if they \
             can reach them"
        ),
    };
    Some(
        Step::warning(NAME, evidence, Fault::NotAdvertised, cause)
            .cure(RunOn::Ksmbd, settings::ksmbd("interfaces", "DEVICE"))
            .cure(RunOn::Samba, samba_rdma(&address.to_string()))
            .cure(RunOn::WindowsClient, "Get-SmbMultichannelConnection"),
    )
}

fn describe(interface: &ServerInterface) -> String {
    let kind = if interface.is_rdma { "RDMA" } else { "no RDMA" };
    match interface.speed {
        Some(speed) => format!("{} {kind} {} Mbit/s", interface.address, speed / 1_000_000),
        None => format!("{} {kind}", interface.address),
    }
}

fn encryption(evidence: &str) -> Step {
    let cause = "with encryption, clients on Linux and on Windows before Windows 11 and Server 2022 move data \
                 in messages instead of by RDMA Read and Write; newer Windows still uses RDMA, and encrypts \
                 the data";
    without_protection(
        Step::warning("encryption", evidence, Fault::Encryption, cause),
        Fault::Encryption,
    )
}

/// Returns a warning if the server requires signing.
pub(super) fn signing(smb: &Smb) -> Option<Step> {
    smb.signing_required.then(|| {
        let cause = "with signing, clients on Linux and on Windows before Server 2022 move data in messages \
                     instead of by RDMA Read and Write";
        without_protection(
            Step::warning(
                "signing",
                "the server requires signing",
                Fault::Signing,
                cause,
            ),
            Fault::Signing,
        )
    })
}

/// Returns a warning if a client that signs or encrypts could send more than fits in a message.
pub(super) fn fragmented(smb: &Smb, max_fragmented_size: u32, protected: bool) -> Option<Step> {
    let too_large = smb.max_write_size > max_fragmented_size;
    (too_large && protected && max_fragmented_size <= LINUX_FRAGMENTED_BYTES).then(|| {
        let evidence = format!(
            "MaxFragmentedSize {max_fragmented_size}, and the server takes writes of {}",
            smb.max_write_size
        );
        let cause = "with signing or encryption a write goes in one message, and one that does not \
                     fit ends the connection";
        Step::warning("message size", evidence, Fault::FragmentedSize, cause)
            .cure(RunOn::Ksmbd, settings::ksmbd("smb2 max write", "65536"))
            .cure(RunOn::Here, "mount ... -o rdma,rsize=65536,wsize=65536")
    })
}

/// Adds advice to turn signing or encryption off, for a trusted network.
pub(super) fn without_protection(step: Step, fault: Fault) -> Step {
    match fault {
        Fault::Encryption => step
            .cure(RunOn::Ksmbd, settings::ksmbd("smb3 encryption", "auto"))
            .cure(RunOn::Samba, settings::samba("server smb encrypt", "default"))
            .cure(RunOn::Windows, "Set-SmbServerConfiguration -EncryptData $false; Set-SmbShare -Name SHARE -EncryptData $false"),
        _ => step
            .cure(RunOn::Ksmbd, settings::ksmbd("server signing", "auto"))
            .cure(RunOn::Samba, settings::samba("server signing", "default"))
            .cure(RunOn::Windows, "Set-SmbServerConfiguration -RequireSecuritySignature $false"),
    }
}

/// Adds how to turn multichannel on.
pub(super) fn with_multichannel(step: Step) -> Step {
    const KEY: &str = "server multi channel support";
    step.cure(RunOn::Ksmbd, settings::ksmbd(KEY, "yes"))
        .cure(RunOn::Samba, settings::samba(KEY, "yes"))
        .cure(
            RunOn::Windows,
            "Set-SmbServerConfiguration -EnableMultiChannel $true",
        )
}

/// Returns the command that makes Samba offer RDMA on an address, where a gateway listens.
fn samba_rdma(address: &str) -> String {
    let value = format!("lo \"{address};capability=RDMA,speed=10000000000\"");
    settings::samba("interfaces", &value)
}
