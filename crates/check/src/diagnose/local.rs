//! The ability of this machine to use SMB Direct, as a client and as a server.

use crate::{
    diagnosis::{About, RunOn, Section, State, Step},
    facts::{
        Adapter, AttemptFault, Client, Fabric, Facts, Kernel, Ksmbd, Machine, Module, Setting,
    },
    fault::Fault,
};

/// Scatter/gather elements of a Send that the kernel's SMB Direct needs.
pub(super) const MIN_SEND_ELEMENTS: u32 = 6;

/// Returns the sections about this machine: the kernel's client, and without a target the server.
pub(super) fn sections(facts: &Facts) -> Vec<Section> {
    let machine = &facts.machine;
    if !machine.is_known {
        let evidence = if cfg!(target_os = "linux") {
            "/proc/sys/kernel/osrelease cannot be read, so nothing is known of its own SMB Direct; mount /proc"
        } else {
            "it is not Linux: its own SMB Direct cannot be examined from here"
        };
        return vec![Section {
            about: About::Client,
            title: "This machine".into(),
            steps: vec![Step::unknown("system", evidence)],
        }];
    }
    let mut client = vec![kernel_client(machine)];
    client.extend(rdma(machine));
    let mut sections = vec![Section {
        about: About::Client,
        title: format!("Linux client of this machine ({})", machine.release),
        steps: client,
    }];
    match facts.remote {
        None => sections.push(Section {
            about: About::Server,
            title: "Linux server of this machine".into(),
            steps: server(machine),
        }),
        Some(_) => sections[0].steps.iter_mut().for_each(as_warning),
    }
    sections
}

/// Makes a fault of this machine a warning when the target is a server, because software iWARP does not need that
/// step.
fn as_warning(step: &mut Step) {
    if step.state == State::Fault {
        step.state = State::Warning;
    }
}

/// Whether the kernel's client has SMB Direct.
fn kernel_client(machine: &Machine) -> Step {
    const NAME: &str = "kernel";
    let Machine { kernel, client, .. } = machine;
    let from = kernel.config.as_deref().unwrap_or("no file");
    let lacks = |evidence: String| {
        let cause = "the kernel's SMB client was built without SMB Direct, so the mount option \
                     `rdma` fails";
        Step::fault(NAME, evidence, Fault::KernelWithoutClient, cause)
            .cure(RunOn::Here, "scripts/config -e CIFS_SMB_DIRECT && make modules    # in the kernel's source, or take a kernel that has it")
            .cure(RunOn::Here, "smbdirect gateway 127.0.0.1:4451 SERVER --from tcp --to smbdirect    # without another kernel")
    };
    match has_client(kernel, client) {
        Setting::Off if client.smb_direct == Some(false) => {
            lacks("/proc/fs/cifs/DebugData does not name SMB_DIRECT".into())
        }
        Setting::Off if kernel.cifs_smb_direct == Setting::Off => {
            lacks(format!("CONFIG_CIFS_SMB_DIRECT is not set in {from}"))
        }
        Setting::Off => lacks("there is no module cifs".into()),
        Setting::On if client.smb_direct == Some(true) => Step::ok(
            NAME,
            "the SMB client has SMB Direct (/proc/fs/cifs/DebugData)",
        ),
        Setting::On => Step::ok(
            NAME,
            format!(
                "CONFIG_CIFS_SMB_DIRECT is set in {from}, cifs is {}",
                word(kernel.cifs)
            ),
        ),
        Setting::Unknown => Step::unknown(
            NAME,
            "there is no kernel configuration in /proc/config.gz, /boot or /lib/modules; after \
             `modprobe cifs`, /proc/fs/cifs/DebugData shows whether the client has SMB Direct",
        ),
    }
}

/// Returns whether the client has SMB Direct. The running client is the most reliable source.
pub(super) fn has_client(kernel: &Kernel, client: &Client) -> Setting {
    match client.smb_direct {
        Some(true) => Setting::On,
        Some(false) => Setting::Off,
        None if kernel.cifs == Module::Missing => Setting::Off,
        None => kernel.cifs_smb_direct,
    }
}

const fn word(module: Module) -> &'static str {
    match module {
        Module::Present => "present",
        Module::Loadable => "a module that a mount loads",
        Module::Missing => "missing",
        Module::Unknown => "in an unknown state",
    }
}

/// The RDMA stack and the adapters.
fn rdma(machine: &Machine) -> Vec<Step> {
    let kernel = &machine.kernel;
    let mut steps = Vec::new();
    if kernel.ib_core != Module::Present {
        steps.push(no_core(kernel));
        return steps;
    }
    if let Some(step) = no_cm(kernel) {
        steps.push(step);
    }
    if machine.adapters.is_empty() {
        let evidence = "/sys/class/infiniband is empty";
        let cause = "the kernel has no RDMA device: no adapter, or its module is not loaded";
        let step = Step::fault("adapter", evidence, Fault::NoAdapter, cause);
        steps.push(with_software_adapters(step, machine));
        return steps;
    }
    steps.extend(machine.adapters.iter().map(|each| adapter(each, machine)));
    steps.extend(siw_null_pointer(machine));
    if let Some(why) = &machine.verbs_missing {
        let evidence = format!("user space cannot use the adapters: {why}");
        steps.push(Step::skipped("libibverbs", evidence));
    }
    steps
}

fn no_core(kernel: &Kernel) -> Step {
    const NAME: &str = "RDMA";
    match kernel.ib_core {
        Module::Loadable => {
            let cause = "ib_core is not loaded, so there is no RDMA device";
            let evidence = "ib_core is a module, and not loaded";
            Step::fault(NAME, evidence, Fault::NoRdmaCore, cause)
                .cure(RunOn::Here, "sudo modprobe ib_core && sudo modprobe rdma_cm && sudo modprobe rdma_ucm && sudo modprobe ib_uverbs")
        }
        Module::Missing => {
            let evidence = match (kernel.infiniband, &kernel.config) {
                (Setting::Off, Some(config)) => format!("CONFIG_INFINIBAND is not set in {config}"),
                _ => "the kernel has no module ib_core".into(),
            };
            let cause = "the kernel was built without RDMA";
            Step::fault(NAME, evidence, Fault::NoRdmaCore, cause).cure(
                RunOn::Here,
                "scripts/config -e INFINIBAND -e INFINIBAND_ADDR_TRANS && make    # in the kernel's source; distributions ship it, clouds and containers often do not",
            )
        }
        _ => {
            let cause = "ib_core is not loaded, so there is no RDMA device; it is unknown whether the kernel has that module";
            let evidence = "there is no /sys/class/infiniband";
            Step::fault(NAME, evidence, Fault::NoRdmaCore, cause)
                .cure(RunOn::Here, "sudo modprobe ib_core")
        }
    }
}

/// Returns a fault if the connection manager is not there. The kernel's SMB loads it by itself.
fn no_cm(kernel: &Kernel) -> Option<Step> {
    const NAME: &str = "rdma_cm";
    let step = match (kernel.rdma_cm, kernel.address_translation) {
        (Module::Present | Module::Unknown, _) => return None,
        (Module::Loadable, _) => Step::warning(
            NAME,
            "rdma_cm is a module, and not loaded",
            Fault::NoRdmaCm,
            "the kernel's client and server load it themselves; programs such as `smbdirect \
             --transport verbs` need it loaded",
        ),
        (Module::Missing, _) => Step::fault(
            NAME,
            "the kernel has no rdma_cm",
            Fault::NoRdmaCm,
            "RDMA connections to IP addresses need the connection manager \
             (CONFIG_INFINIBAND_ADDR_TRANS)",
        ),
    };
    Some(step.cure(
        RunOn::Here,
        "sudo modprobe rdma_cm && sudo modprobe rdma_ucm",
    ))
}

fn with_software_adapters(step: Step, machine: &Machine) -> Step {
    let interface = machine
        .interfaces
        .iter()
        .find(|each| each.name != "lo" && each.is_up);
    let interface = interface.map_or("eth0", |each| &*each.name);
    let mut step = step;
    let kernel = &machine.kernel;
    // If the configuration is unknown, the command itself shows it.
    if kernel.rxe != Module::Missing {
        step = step.cure(
            RunOn::Here,
            format!("sudo rdma link add rxe0 type rxe netdev {interface}    # software RoCE"),
        );
    }
    if kernel.siw != Module::Missing {
        step = step.cure(
            RunOn::Here,
            format!("sudo rdma link add siw0 type siw netdev {interface}    # software iWARP"),
        );
    }
    step.cure(RunOn::Here, "lspci -k | grep -iA3 -e mellanox -e chelsio -e e810 -e x722    # is there an adapter, and which driver has it?")
}

fn adapter(adapter: &Adapter, machine: &Machine) -> Step {
    let name = adapter.name.clone();
    let interface = adapter.interface.as_deref();
    let found = machine
        .interfaces
        .iter()
        .find(|each| Some(&*each.name) == interface);
    let at = interface.map_or_else(String::new, |name| format!(" on {name}"));
    let kind = adapter.fabric.name();
    let kind_at = format!("{kind}{at}");
    if interface == Some("lo") {
        let evidence = format!("{kind_at}: for connections within this machine");
        return Step::skipped(name, evidence);
    }
    if !adapter.is_active() {
        let cable = interface.unwrap_or("DEVICE");
        let cause = "the port of the adapter is not active: the interface is down, or there is no \
                     link (InfiniBand also needs a subnet manager)";
        return Step::fault(
            name,
            format!("{kind_at}, state {}", adapter.state),
            Fault::AdapterDown,
            cause,
        )
        .cure(
            RunOn::Here,
            format!("sudo ip link set {cable} up; rdma link"),
        );
    }
    if let Some(step) = few_elements(adapter, &kind_at) {
        return step;
    }
    if let Some(why) = &adapter.unusable {
        return Step::fault(name.clone(), kind_at, Fault::AdapterUnusable, why.clone())
            .cure(RunOn::Here, format!("ibv_devinfo -v -d {name}"));
    }
    if let Some(found) = found.filter(|found| found.addresses.is_empty()) {
        let cause = "RDMA connections go to IP addresses, and the interface of the adapter has \
                     none";
        return Step::fault(
            name,
            format!("{kind_at}, active"),
            Fault::AdapterWithoutAddress,
            cause,
        )
        .cure(
            RunOn::Here,
            format!("sudo ip addr add ADDRESS/24 dev {}", found.name),
        );
    }
    let addresses = found.map(|found| {
        let v4 = found.addresses.iter().find(|address| address.is_ipv4());
        v4.or_else(|| found.addresses.first())
    });
    let address = addresses
        .flatten()
        .map_or_else(String::new, |address| format!(" {address}"));
    let mtu = found.map_or_else(String::new, |found| format!(", MTU {}", found.mtu));
    Step::ok(
        name,
        format!(
            "{kind}, active{at}{address}{mtu}, port {}",
            adapter.fabric.port()
        ),
    )
}

/// Returns a fault if a Send of the adapter gathers too little.
fn few_elements(adapter: &Adapter, kind_at: &str) -> Option<Step> {
    let name = &adapter.name;
    let most = adapter.max_send_elements?;
    if most >= MIN_SEND_ELEMENTS {
        return None;
    }
    let cause = format!(
        "a Send takes {most} pieces of memory and the kernel's SMB Direct needs \
         {MIN_SEND_ELEMENTS} (Intel X722 has 3)"
    );
    let evidence = format!("{kind_at}, max_send_sge {most}");
    let step = Step::fault(&**name, evidence, Fault::AdapterWithFewElements, cause);
    Some(
        step.cure(
            RunOn::Here,
            format!("ibv_devinfo -v -d {name} | grep max_sge    # newer firmware may have more"),
        )
        .cure(
            RunOn::Here,
            "sudo rdma link add rxe0 type rxe netdev DEVICE    # software RoCE in its place",
        ),
    )
}

/// The stable series that have the fix of CVE-2026-23242, each with its first release that has it. Linux 7.0 has it from
/// the beginning.
const SIW_FIXES: [(u32, u32, u32); 7] = [
    (5, 10, 252),
    (5, 15, 202),
    (6, 1, 165),
    (6, 6, 128),
    (6, 12, 75),
    (6, 18, 14),
    (6, 19, 4),
];

/// Returns a step if a device of siw is in use and the release of the kernel is older than the fix of CVE-2026-23242.
fn siw_null_pointer(machine: &Machine) -> Option<Step> {
    const NAME: &str = "siw";
    let is_iwarp = |each: &Adapter| each.fabric == Fabric::Iwarp;
    if machine.kernel.siw != Module::Present || !machine.adapters.iter().any(is_iwarp) {
        return None;
    }
    let release = &machine.release;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let (series, patch) = ((number()?, number()?), number().unwrap_or(0));
    if !((5, 3)..(7, 0)).contains(&series) {
        return None;
    }
    // Distributions that add fixes themselves keep the first release of a series: 6.1.0-41-amd64, 5.14.0-611.el9.
    if patch == 0 {
        let why = format!("Linux {release} may have CVE-2026-23242: its distribution says whether");
        return Some(Step::unknown(NAME, why));
    }
    let fix = SIW_FIXES.iter().find(|fix| (fix.0, fix.1) == series);
    if fix.is_some_and(|fix| patch >= fix.2) {
        return None;
    }
    let newer = fix.map_or_else(|| "7.0".into(), |(a, b, c)| format!("{a}.{b}.{c}"));
    let cause = "malformed data of a peer can stop this machine (CVE-2026-23242)";
    let step = Step::warning(
        NAME,
        format!("Linux {release}"),
        Fault::SiwNullPointer,
        cause,
    );
    Some(step.cure(
        RunOn::Here,
        format!("uname -r    # has to name {newer} or later"),
    ))
}

/// Returns whether an adapter can carry SMB Direct of the kernel.
pub(super) fn is_usable(each: &Adapter, machine: &Machine) -> bool {
    each.fabric != Fabric::Other && adapter(each, machine).state == State::Ok
}

/// The servers of this machine, if there are any.
fn server(machine: &Machine) -> Vec<Step> {
    let Machine { kernel, server, .. } = machine;
    let mut steps = Vec::new();
    let runs = |program: &str| server.programs.iter().any(|each| each == program);
    let gateway = server.listens.contains(&Fabric::Iwarp.port()) && runs("smbdirect");
    if gateway {
        steps.push(Step::ok("gateway", "smbdirect listens on port 5445"));
    }
    if runs("smbd") && !gateway && server.ksmbd == Ksmbd::Absent {
        let cause = "Samba has no SMB Direct";
        let step = Step::warning("Samba", "smbd is running", Fault::SambaAlone, cause);
        steps.push(step.cure(
            RunOn::Here,
            "smbdirect gateway :5445 127.0.0.1:445    # SMB Direct in front of Samba",
        ));
    }
    steps.push(ksmbd(machine, kernel));
    steps
}

fn ksmbd(machine: &Machine, kernel: &Kernel) -> Step {
    const NAME: &str = "ksmbd";
    let server = &machine.server;
    let lacks = kernel.server_smb_direct == Setting::Off;
    let from = kernel.config.as_deref().unwrap_or_default();
    if lacks && (server.ksmbd != Ksmbd::Absent || kernel.ksmbd != Module::Missing) {
        let cause = "the kernel's SMB server was built without SMB Direct";
        let evidence = format!("CONFIG_SMB_SERVER_SMBDIRECT is not set in {from}");
        let state = match server.ksmbd {
            Ksmbd::Running => State::Fault,
            _ => State::Warning,
        };
        return Step {
            state,
            ..Step::fault(NAME, evidence, Fault::KernelWithoutServer, cause)
        }
        .cure(RunOn::Here, "scripts/config -e SMB_SERVER_SMBDIRECT && make modules    # in the kernel's source, or take a kernel that has it")
        .cure(RunOn::Here, "smbdirect gateway :5445 127.0.0.1:445    # without another kernel");
    }
    match server.ksmbd {
        Ksmbd::Absent => Step::skipped(
            NAME,
            "not loaded; this machine does not serve files by ksmbd",
        ),
        Ksmbd::Stopped => Step::warning(
            NAME,
            "loaded, and its daemon does not run",
            Fault::KsmbdStopped,
            "ksmbd.mountd has not been started, or has ended",
        )
        .cure(
            RunOn::Here,
            "sudo ksmbd.mountd    # or: sudo systemctl start ksmbd",
        ),
        Ksmbd::NotStarted => not_started(machine),
        Ksmbd::Running => running(machine),
    }
}

/// Returns the step for a ksmbd whose daemon runs without the kernel's part.
fn not_started(machine: &Machine) -> Step {
    let cause = "the kernel's server could not listen when ksmbd.mountd started: another program \
                 had TCP port 5445 or 445";
    let evidence = "ksmbd.mountd runs, and the kernel's server has not started";
    let owner = machine.server.iwarp_port_owner.as_ref();
    let evidence = match owner {
        Some(owner) => format!("{evidence}; {owner} listens on port 5445"),
        None => evidence.into(),
    };
    Step::fault("ksmbd", evidence, Fault::KsmbdNotListening, cause)
        .cure(RunOn::Here, "sudo dmesg | grep -i ksmbd | tail -5    # why it did not start")
        .cure(RunOn::Here, PORT_OWNER)
        .cure(
            RunOn::Here,
            "sudo reboot    # after that: until a reboot the kernel keeps the port, and restarting ksmbd does not help",
        )
}

/// Names the program that has the port of iWARP.
const PORT_OWNER: &str =
    "sudo ss -Hltnp 'sport = :5445'    # the program to stop, or to start later";

/// Returns a fault if ksmbd has no listener on a device of software iWARP.
fn not_listening(machine: &Machine) -> Option<Step> {
    let server = &machine.server;
    let mut of_iwarp = machine
        .adapters
        .iter()
        .filter(|each| each.fabric == Fabric::Iwarp && is_usable(each, machine));
    let adapter = of_iwarp.next()?;
    if machine.kernel.siw != Module::Present {
        return None;
    }
    let is_gateway = server.programs.iter().any(|each| each == "smbdirect");
    let owner = server.iwarp_port_owner.as_ref().filter(|_| !is_gateway);
    let attempt = server.attempt.as_ref().map(|attempt| &attempt.result);
    let is_foreign = matches!(
        attempt,
        Some(Err(AttemptFault::NotIwarp | AttemptFault::Unanswered))
    );
    let evidence = match owner {
        Some(owner) => format!("running, and {owner} listens on TCP port 5445"),
        None if is_foreign => {
            "running, and what listens on TCP port 5445 does not answer as iWARP".into()
        }
        None if server.listens.contains(&Fabric::Iwarp.port()) => return None,
        None => "running, and nothing listens on TCP port 5445".into(),
    };
    let cause = "ksmbd has no RDMA listener on the device: another program had the port when the \
                 device was created";
    let mut step = Step::fault("ksmbd", evidence, Fault::KsmbdNotListening, cause);
    if owner.is_some() || is_foreign {
        step = step.cure(RunOn::Here, PORT_OWNER);
    }
    let interface = adapter.interface.as_deref().unwrap_or("DEVICE");
    let name = &adapter.name;
    Some(step.cure(
        RunOn::Here,
        format!("sudo rdma link delete {name} && sudo rdma link add {name} type siw netdev {interface}    # creates the listener; a restart of ksmbd does not"),
    ))
}

fn running(machine: &Machine) -> Step {
    const NAME: &str = "ksmbd";
    let server = &machine.server;
    // The listeners of RoCE and InfiniBand are not in any file; those of software iWARP are TCP's.
    let listens = server.listens.contains(&Fabric::Iwarp.port());
    if let Some(step) = not_listening(machine) {
        return step;
    }
    let attempt = server.attempt.as_ref().map(|attempt| &attempt.result);
    if let Some(Err(fault)) = attempt
        && is_reached(fault)
    {
        return refuses(fault);
    }
    if server.ksmbd_multichannel == Some(false) {
        return super::session::with_multichannel(Step::warning(
            NAME,
            "running, `server multi channel support` is off in ksmbd.conf",
            Fault::MultichannelOff,
            "Windows clients find SMB Direct only by multichannel",
        ));
    }
    let answers = match (attempt, listens) {
        (Some(Ok(_)), _) => ", answers SMB Direct on port 5445 (iWARP)",
        (_, true) => ", listens on port 5445 (iWARP)",
        (_, false) => "",
    };
    Step::ok(NAME, format!("running{answers}"))
}

/// Returns whether an attempt of this machine reached its ksmbd. Otherwise it tells nothing:
/// software iWARP binds its sockets to an interface, and connections within the machine do not pass
/// it.
const fn is_reached(fault: &AttemptFault) -> bool {
    use AttemptFault::{
        Incompatible, Lost, NegotiationBroken, NegotiationRefused, Rejected, Silent,
    };
    matches!(
        fault,
        Incompatible(_)
            | Lost(_)
            | NegotiationBroken(_)
            | NegotiationRefused(_)
            | Rejected(_)
            | Silent(_)
    )
}

/// Returns the step for a ksmbd that does not serve this machine itself.
fn refuses(fault: &AttemptFault) -> Step {
    const NAME: &str = "ksmbd";
    const AGAIN: &str = "sudo ksmbd.control -s && sleep 1 && sudo ksmbd.mountd";
    match fault {
        AttemptFault::Rejected(why) => Step::fault(
            NAME,
            format!("running, and refuses connections on port 5445: {why}"),
            Fault::ListenerGone,
            "ksmbd has closed its RDMA listener, as it does after eleven failed negotiations, and \
             the port still answers",
        )
        .cure(RunOn::Here, AGAIN),
        fault => Step::fault(
            NAME,
            format!("running, and the negotiation on port 5445 fails: {fault}"),
            Fault::NegotiationSilent,
            "ksmbd does not negotiate SMB Direct with this machine itself",
        )
        .cure(RunOn::Here, AGAIN)
        .cure(
            RunOn::Here,
            "sudo dmesg | grep -i -e ksmbd -e smbdirect | tail",
        ),
    }
}
