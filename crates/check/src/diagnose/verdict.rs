//! The verdict: one sentence, and the outcome that becomes the exit status.

use smbdirect_transport::text::plural;

use super::{attempts, local, mounts};
use crate::{
    diagnosis::{About, Diagnosis, Outcome, Section, State, Step},
    facts::{AttemptFault, Fabric, Facts, Ksmbd, Machine, Module, Remote, Setting},
    fault::Fault,
};

/// Draws the verdict from the facts and the steps.
pub(super) fn conclude(facts: &Facts, sections: Vec<Section>) -> Diagnosis {
    let (outcome, verdict) = match &facts.remote {
        Some(remote) => of_remote(remote, facts, &sections),
        None => of_machine(facts, &sections),
    };
    let (outcome, verdict) = match mounts_over_tcp(facts, &sections) {
        Some(verdict) => (Outcome::DoesNot, verdict),
        None => (outcome, verdict),
    };
    Diagnosis {
        outcome,
        verdict,
        sections,
        speed: None,
    }
}

/// Returns the verdict for mounts that do not use RDMA. If there are any, the diagnosis is about them.
fn mounts_over_tcp(facts: &Facts, sections: &[Section]) -> Option<String> {
    let relevant: Vec<_> = mounts::relevant(facts).collect();
    let faulty: Vec<&Step> = sections
        .iter()
        .flat_map(|section| &section.steps)
        .filter(|step| step.state == State::Fault)
        .filter(|step| relevant.iter().any(|mount| mount.directory == step.name))
        .collect();
    let first = faulty.first()?;
    let cause = first.cause.as_deref().unwrap_or_default();
    let others = match faulty.len() {
        1 => String::new(),
        number => format!(" ({} of {} mounts)", number, relevant.len()),
    };
    Some(match first.fault {
        Some(Fault::MountLost) => {
            format!("The mount {} has lost RDMA: {cause}{others}", first.name)
        }
        _ => format!("The mount {} uses TCP because {cause}{others}", first.name),
    })
}

fn of_remote(remote: &Remote, facts: &Facts, sections: &[Section]) -> (Outcome, String) {
    let steps = &sections[0].steps;
    let mut good: Vec<String> = remote
        .attempts
        .iter()
        .filter(|each| attempts::is_good(each))
        .map(attempts::name)
        .collect();
    good.dedup();
    let stalls = fault_in(steps, |step| step.fault == Some(Fault::MtuDiffers));
    if !good.is_empty() {
        if let Some(step) = stalls {
            let cause = step.cause.as_deref().unwrap_or_default();
            return (
                Outcome::DoesNot,
                format!("SMB Direct connects and will stall: {cause}"),
            );
        }
        let mut verdict = format!("SMB Direct works: {}", good.join(" and "));
        if let Some(why) = no_mount(&facts.machine) {
            verdict += &format!("; this machine's kernel cannot mount by it: {why}");
        }
        let others = sections
            .iter()
            .filter(|section| section.about != About::Client);
        let limits = others.flat_map(|section| &section.steps);
        let limits = limits.filter(|step| step.state == State::Warning).count();
        if limits > 0 {
            verdict += &format!("; {}", plural(limits as u64, "limit"));
        }
        return (Outcome::Works, verdict);
    }
    if remote.addresses.is_err() {
        let why = format!(
            "SMB Direct cannot be checked: {} has no address",
            remote.host
        );
        return (Outcome::Unknown, why);
    }
    let by_rdma = steps.iter().filter(|step| step.state == State::Fault);
    // The reason why SMB Direct itself failed explains more than a reason about TCP.
    let by_rdma = by_rdma.max_by_key(|step| weight(step));
    match by_rdma {
        Some(step) => {
            let cause = step.cause.as_deref().unwrap_or_default();
            (
                Outcome::DoesNot,
                format!("SMB Direct does not work, {}: {cause}", step.name),
            )
        }
        None => (
            Outcome::Unknown,
            "SMB Direct cannot be checked: no attempt could be made".into(),
        ),
    }
}

/// Returns how much a fault explains. A fault explains more, the later the step at which the attempt failed. Of
/// two refusals the verdict uses the last, which comes from iWARP.
fn weight(step: &Step) -> u8 {
    // Most servers without RoCE refuse or drop an attempt over RoCE, so such a failure explains nothing.
    let is_iwarp = matches!(step.attempt, Some((Fabric::Iwarp, _)));
    let nothing_listens = matches!(step.attempt, Some((_, AttemptFault::Refused)));
    match step.fault {
        Some(Fault::WrongPort) => 9,
        Some(Fault::DialectBelow3) => 8,
        Some(Fault::NegotiationBroken | Fault::NegotiationRefused | Fault::NoSmb) => 7,
        Some(Fault::NegotiationSilent) => 6,
        Some(Fault::ListenerGone | Fault::MpaRefused) => 5,
        Some(Fault::CmRefused) if !nothing_listens => 5,
        Some(Fault::NotSmbDirect) => 4,
        Some(Fault::HostSilent | Fault::NoRoute) => 3,
        Some(Fault::PortDropped | Fault::PortRejected) if is_iwarp => 3,
        Some(Fault::PortDropped | Fault::PortRejected) => 2,
        Some(Fault::PortRefused | Fault::CmRefused) => 2,
        _ => 1,
    }
}

fn fault_in(steps: &[Step], wanted: impl Fn(&Step) -> bool) -> Option<&Step> {
    let mut faults = steps.iter().filter(|step| step.state == State::Fault);
    faults.find(|step| wanted(step))
}

/// Returns why the kernel of this machine cannot mount with RDMA, if that is known.
fn no_mount(machine: &Machine) -> Option<&'static str> {
    if !machine.is_known {
        return None;
    }
    if local::has_client(&machine.kernel, &machine.client) == Setting::Off {
        return Some("its SMB client has no SMB Direct");
    }
    let usable = machine
        .adapters
        .iter()
        .any(|each| local::is_usable(each, machine));
    (!usable).then_some("it has no usable RDMA adapter")
}

/// Returns that mounts use RDMA, for the end of a verdict.
fn in_use(facts: &Facts, sections: &[Section]) -> String {
    let number = mounts::relevant(facts).count() as u64;
    if number == 0 {
        return String::new();
    }
    let about_mounts = sections
        .iter()
        .filter(|section| section.about == About::Mounts);
    let mut steps = about_mounts.flat_map(|section| &section.steps);
    let limits = if steps.any(|step| step.state == State::Warning) {
        ", with limits"
    } else {
        ""
    };
    let mounts = plural(number, "mount");
    format!("; RDMA is used by {mounts}{limits}")
}

fn of_machine(facts: &Facts, sections: &[Section]) -> (Outcome, String) {
    let machine = &facts.machine;
    if !machine.is_known {
        return (
            Outcome::Unknown,
            "This machine cannot be checked; name a server to check the way to it".into(),
        );
    }
    let adapters: Vec<String> = machine
        .adapters
        .iter()
        .filter(|each| local::is_usable(each, machine))
        .map(|each| {
            format!(
                "{} {} by {}",
                each.fabric.name(),
                each.fabric.port(),
                each.name
            )
        })
        .collect();
    let client = local::has_client(&machine.kernel, &machine.client);
    let serves = machine.server.ksmbd == Ksmbd::Running;
    let server_fault = sections
        .iter()
        .filter(|section| section.about == About::Server)
        .find_map(|section| fault_in(&section.steps, |_| true));
    if let Some(step) = server_fault {
        let cause = step.cause.as_deref().unwrap_or_default();
        return (
            Outcome::DoesNot,
            format!("This machine serves no SMB Direct: {cause}"),
        );
    }
    let cm_missing = machine.kernel.rdma_cm == Module::Missing;
    match (client, adapters.is_empty() || cm_missing) {
        (Setting::On, false) => {
            let too = if serves { " and server" } else { "" };
            let adapters = adapters.join(", ");
            let mounts = in_use(facts, sections);
            let verdict = format!("SMB Direct works here as client{too}: {adapters}{mounts}");
            (Outcome::Works, verdict)
        }
        (Setting::Unknown, false) if serves => {
            let adapters = adapters.join(", ");
            (
                Outcome::Works,
                format!("SMB Direct works here as server: {adapters}"),
            )
        }
        (Setting::Unknown, false) => (
            Outcome::Unknown,
            "It is unknown whether this kernel's client has SMB Direct; there is an adapter".into(),
        ),
        _ => {
            let steps = sections.iter().flat_map(|section| &section.steps);
            let causes: Vec<&str> = steps
                .filter(|step| step.state == State::Fault)
                .filter_map(|step| step.cause.as_deref())
                .collect();
            let first = causes.first().copied().unwrap_or("no RDMA");
            let more = match causes.len() {
                0 | 1 => String::new(),
                number => format!(" (and {})", plural(number as u64 - 1, "more fault")),
            };
            (
                Outcome::DoesNot,
                format!("SMB Direct does not work here: {first}{more}"),
            )
        }
    }
}
