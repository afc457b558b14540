//! The mounts of the kernel's client: over TCP or RDMA, and why.

use std::net::IpAddr;

use super::{
    dialects,
    local::{has_client, is_usable},
};
use crate::{
    diagnosis::{About, RunOn, Section, Step},
    facts::{ClientConnection, Facts, Mount, Remote, Setting},
    fault::Fault,
};

/// SMB2_GLOBAL_CAP_MULTI_CHANNEL.
const MULTI_CHANNEL: u32 = 0x0000_0008;
/// A higher `rdma_readwrite_threshold` keeps ordinary reads and writes from using RDMA.
const MAX_THRESHOLD_BYTES: u64 = 65_536;

/// Returns the mounts; with a target, only the mounts of its server.
pub(super) fn section(facts: &Facts) -> Option<Section> {
    let steps: Vec<Step> = relevant(facts)
        .flat_map(|mount| steps(mount, facts))
        .collect();
    (!steps.is_empty()).then(|| Section {
        about: About::Mounts,
        title: "Mounts of this machine".into(),
        steps,
    })
}

/// Returns the mounts to diagnose.
pub(super) fn relevant(facts: &Facts) -> impl Iterator<Item = &Mount> {
    let mounts = facts.machine.client.mounts.iter();
    mounts.filter(|mount| match &facts.remote {
        None => true,
        Some(remote) => is_of(mount, remote),
    })
}

fn is_of(mount: &Mount, remote: &Remote) -> bool {
    let addresses = remote.addresses.as_deref().unwrap_or_default();
    let server = mount.source.trim_start_matches('/');
    let (server, share) = server.split_once('/').unwrap_or((server, ""));
    let same_server = mount
        .address
        .is_some_and(|address| addresses.contains(&address))
        || server.eq_ignore_ascii_case(&remote.host);
    let wanted = remote.share.as_deref();
    same_server && wanted.is_none_or(|wanted| wanted.eq_ignore_ascii_case(share))
}

fn steps(mount: &Mount, facts: &Facts) -> Vec<Step> {
    let first = if mount.is_rdma {
        over_rdma(mount, facts)
    } else {
        over_tcp(mount, facts)
    };
    let mut steps = vec![first];
    if mount.is_rdma {
        steps.extend(protection(mount));
        steps.extend(threshold(mount, facts));
    }
    steps.extend(not_asked(mount));
    steps
}

fn over_rdma(mount: &Mount, facts: &Facts) -> Step {
    let connection = mount.connection.as_ref();
    let status = connection.and_then(|connection| connection.transport_status.as_deref());
    let lost = connection.is_some_and(|connection| connection.is_disconnected);
    let evidence = format!("{} uses RDMA", mount.source);
    if lost || status.is_some_and(|status| !status.starts_with("CONNECTED")) {
        let status = status.unwrap_or("disconnected");
        let cause = "the connection is lost, and the client tries to connect again";
        let evidence = format!("{evidence}, transport status {status}");
        let step = Step::fault(&*mount.directory, evidence, Fault::MountLost, cause);
        // With a target, the other sections say what is wrong there.
        let step = if facts.remote.is_none() {
            let command = format!("smbdirect check {}", quoted(&mount.source));
            step.cure(RunOn::Here, command)
        } else {
            step
        };
        return step.cure(
            RunOn::Here,
            "sudo dmesg | grep -i -e cifs -e smbdirect | tail",
        );
    }
    let sizes = connection.and_then(|connection| {
        let (message, transfer) = (
            connection.max_fragmented_send_size?,
            connection.max_read_write_size?,
        );
        Some(format!(
            "; messages of up to {message} bytes, RDMA transfers of up to {transfer} bytes"
        ))
    });
    Step::ok(&*mount.directory, evidence + &sizes.unwrap_or_default())
}

/// Returns why a mount uses TCP.
fn over_tcp(mount: &Mount, facts: &Facts) -> Step {
    let connection = mount.connection.as_ref();
    let machine = &facts.machine;
    let evidence = format!("{} uses TCP", mount.source);
    let name = &*mount.directory;
    if let Some(dialect) = old_dialect(mount) {
        let cause = format!("it was mounted with SMB {dialect}, and SMB Direct needs 3.0 or later");
        return Step::fault(name, evidence, Fault::DialectBelow3, cause)
            .cure(RunOn::Here, remount(mount, "vers=3.1.1"));
    }
    if has_client(&machine.kernel, &machine.client) == Setting::Off {
        let cause = "this kernel's client has no SMB Direct (CONFIG_CIFS_SMB_DIRECT)";
        return Step::fault(name, evidence, Fault::MountOverTcp, cause).cure(
            RunOn::Here,
            format!(
                "smbdirect gateway 127.0.0.1:4451 {} --from tcp --to smbdirect",
                quoted(host(mount))
            ),
        );
    }
    let offers: Vec<IpAddr> = connection
        .and_then(|connection| connection.interfaces.as_deref())
        .unwrap_or_default()
        .iter()
        .filter(|interface| interface.is_rdma)
        .map(|interface| interface.address)
        .collect();
    let offer = match offers.first() {
        Some(address) => format!("; the server offers RDMA on {address}"),
        None => String::new(),
    };
    let mut cause = format!(
        "it was mounted without the option `rdma`, and the Linux client does not change to RDMA by \
         itself{offer}"
    );
    if !machine
        .adapters
        .iter()
        .any(|adapter| is_usable(adapter, machine))
    {
        cause += "; this machine has no usable RDMA adapter either, see below";
    }
    Step::fault(name, evidence, Fault::MountOverTcp, cause)
        .cure(RunOn::Here, remount(mount, "rdma"))
}

/// Returns the dialect of a mount if it is below 3.
fn old_dialect(mount: &Mount) -> Option<String> {
    let negotiated = mount
        .connection
        .as_ref()
        .map(|connection| connection.dialect);
    if let Some(dialect) = negotiated.filter(|&dialect| dialect > 0) {
        return (dialect < 0x0300).then(|| dialects::name(dialect));
    }
    let version = mount.value("vers")?;
    version.starts_with(['1', '2']).then(|| version.to_owned())
}

fn host(mount: &Mount) -> &str {
    let server = mount.source.trim_start_matches('/');
    server.split('/').next().unwrap_or(server)
}

/// Returns the commands that mount again with an additional option.
fn remount(mount: &Mount, option: &str) -> String {
    let user = quoted(mount.value("username").unwrap_or("USER"));
    let (source, directory) = (quoted(&mount.source), quoted(&mount.directory));
    format!(
        "sudo umount {directory} && sudo mount -t cifs {source} {directory} -o {option},username={user}"
    )
}

/// Returns text as one word of a shell command. Others may have chosen the names of mounts.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Signing and encryption, with which the client does not use RDMA Read and Write.
fn protection(mount: &Mount) -> Option<Step> {
    let connection = mount.connection.as_ref();
    let encrypted = mount.has("seal") || connection.is_some_and(|each| each.is_encrypted);
    let signed = mount.has("sign") || connection.is_some_and(|each| each.is_signed);
    let (fault, what, option) = match (encrypted, signed) {
        (true, _) => (Fault::Encryption, "encrypts", "seal"),
        (false, true) => (Fault::Signing, "signs", "sign"),
        (false, false) => return None,
    };
    let cause = format!(
        "the session {what}, so the Linux client moves all data in messages instead of by RDMA Read \
         and Write"
    );
    let asked = match (mount.has(option), fault) {
        (true, _) => format!("mounted with `{option}`"),
        // The kernel does not list the option `sign` in /proc/mounts.
        (false, Fault::Signing) => "mounted with `sign`, or the server demands it".into(),
        (false, _) => "the server demands it".into(),
    };
    let step = Step::warning(&*mount.directory, asked, fault, cause);
    let mounted_again = format!("{}    # without `{option}`", remount(mount, "rdma"));
    Some(match (mount.has(option), fault) {
        (true, _) => step.cure(RunOn::Here, mounted_again),
        (false, Fault::Signing) => {
            let step = step.cure(RunOn::Here, mounted_again);
            super::session::without_protection(step, fault)
        }
        (false, _) => super::session::without_protection(step, fault),
    })
}

fn threshold(mount: &Mount, facts: &Facts) -> Option<Step> {
    let bytes = facts.machine.client.threshold_bytes?;
    (bytes > MAX_THRESHOLD_BYTES).then(|| {
        let cause = "smaller reads and writes go in messages, not by RDMA";
        let evidence = format!("rdma_readwrite_threshold is {bytes} bytes");
        Step::warning(&*mount.directory, evidence, Fault::Threshold, cause).cure(
            RunOn::Here,
            "echo 4096 | sudo tee /proc/fs/cifs/rdma_readwrite_threshold    # then mount again",
        )
    })
}

/// The client has no interfaces if it did not ask, or if the server did not answer.
fn not_asked(mount: &Mount) -> Option<Step> {
    let connection: &ClientConnection = mount.connection.as_ref()?;
    if connection.interfaces.is_some() || connection.dialect < 0x0300 {
        return None;
    }
    let server_has_it = connection.capabilities & MULTI_CHANNEL != 0;
    let step = Step::warning(
        &*mount.directory,
        "the client has no list of the server's interfaces",
        Fault::NoInterfacesAsked,
        if server_has_it {
            "the client did not ask for it, so it opens no channels on other interfaces"
        } else {
            "the server does not offer multichannel, so no client learns its interfaces"
        },
    );
    Some(if server_has_it {
        step.cure(
            RunOn::Here,
            remount(mount, "rdma,multichannel,max_channels=2"),
        )
    } else {
        super::session::with_multichannel(step)
    })
}
