//! Every diagnosis, from facts alone: of this machine and its mounts here, of a server
//! and of sessions in [`remote`].

mod remote;

use std::{net::IpAddr, time::Duration};

use super::diagnose;
use crate::{
    diagnosis::{Diagnosis, Outcome, State},
    facts::*,
    fault::Fault,
};

const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2));

/// A machine on which everything is right.
fn machine() -> Machine {
    let present = Module::Present;
    Machine {
        is_known: true,
        release: "7.2.13".into(),
        kernel: Kernel {
            config: Some("/proc/config.gz".into()),
            cifs_smb_direct: Setting::On,
            server_smb_direct: Setting::On,
            infiniband: Setting::On,
            address_translation: Setting::On,
            cifs: present,
            ksmbd: Module::Loadable,
            ib_core: present,
            rdma_cm: present,
            rdma_ucm: present,
            siw: present,
            rxe: present,
        },
        interfaces: vec![interface("eth0", 1500), interface("eth1", 1500)],
        adapters: vec![adapter("siw0", Fabric::Iwarp, "eth0")],
        ..Machine::default()
    }
}

fn interface(name: &str, mtu: u32) -> Interface {
    Interface {
        name: name.into(),
        is_up: true,
        mtu,
        hardware: String::new(),
        addresses: vec![IpAddr::from([10, 77, 0, 3])],
    }
}

fn adapter(name: &str, fabric: Fabric, interface: &str) -> Adapter {
    Adapter {
        name: name.into(),
        fabric,
        state: "ACTIVE".into(),
        interface: Some(interface.into()),
        max_send_elements: Some(6),
        unusable: None,
    }
}

fn smb() -> Smb {
    Smb {
        dialect: 0x0311,
        signing_required: false,
        multichannel: true,
        max_read_size: 8 << 20,
        max_write_size: 8 << 20,
    }
}

fn attempt(fabric: Fabric, result: Result<Reached, AttemptFault>) -> Attempt {
    Attempt {
        fabric,
        port: fabric.port(),
        by: "software iWARP".into(),
        result,
    }
}

fn reached() -> Reached {
    Reached {
        max_send_size: 1364,
        max_receive_size: 1364,
        max_fragmented_send_size: 173_910,
        max_read_write_size: 8 << 20,
        round_trip: Some(Duration::from_micros(43)),
        smb: Ok(smb()),
    }
}

/// A server and a network where everything is right.
fn remote() -> Remote {
    Remote {
        host: "server".into(),
        share: None,
        addresses: Ok(vec![SERVER]),
        address: Some(SERVER),
        route: Some(Ok(Route {
            source: IpAddr::from([10, 77, 0, 3]),
            interface: Some("eth0".into()),
            mtu: Some(1500),
        })),
        path: Path {
            known_mtu: Some(1500),
            segment: Some(1448),
            short_ping: Some(true),
            full_ping: Some(true),
            is_reported_too_large: false,
        },
        tcp: Some(Tcp::Open),
        smb: Some(Ok(smb())),
        attempts: vec![attempt(Fabric::Iwarp, Ok(reached()))],
        session: None,
        measurement: None,
    }
}

/// A session in which everything is right.
fn session() -> Session {
    Session {
        user: "lab".into(),
        is_kerberos: false,
        over: "TCP",
        login: None,
        is_encrypted: false,
        interfaces: Some(Ok(vec![ServerInterface {
            address: SERVER,
            is_rdma: true,
            speed: Some(1_000_000_000),
        }])),
        share: Some(Ok(false)),
    }
}

fn mount() -> Mount {
    Mount {
        source: "//server/share".into(),
        directory: "/mnt".into(),
        options: "rw,vers=3.1.1,rdma,username=lab".into(),
        address: Some(SERVER),
        is_rdma: true,
        connection: Some(ClientConnection {
            address: Some(SERVER),
            is_rdma: true,
            transport_status: Some("CONNECTED".into()),
            max_fragmented_send_size: Some(173_910),
            max_read_write_size: Some(1 << 20),
            dialect: 0x0311,
            capabilities: 0x4c,
            shares: vec![r"\\server\share".into()],
            interfaces: Some(Vec::new()),
            ..ClientConnection::default()
        }),
    }
}

fn of_machine(change: impl FnOnce(&mut Machine)) -> Diagnosis {
    let mut machine = machine();
    change(&mut machine);
    diagnose(&Facts {
        machine,
        remote: None,
    })
}

fn of_remote(change: impl FnOnce(&mut Remote)) -> Diagnosis {
    let mut remote = remote();
    change(&mut remote);
    diagnose(&Facts {
        machine: machine(),
        remote: Some(remote),
    })
}

fn of_session(change: impl FnOnce(&mut Session)) -> Diagnosis {
    of_remote(|remote| {
        let mut session = session();
        change(&mut session);
        remote.share = Some("share".into());
        remote.session = Some(session);
    })
}

fn of_mount(change: impl FnOnce(&mut Mount)) -> Diagnosis {
    of_machine(|machine| {
        let mut mount = mount();
        change(&mut mount);
        machine.client.mounts = vec![mount];
    })
}

fn faults(answer: &Diagnosis) -> Vec<Fault> {
    answer.steps().filter_map(|step| step.fault).collect()
}

/// Checks the outcome and the faults, and that each has a cause and a cure.
#[track_caller]
fn is(answer: &Diagnosis, outcome: Outcome, expected: &[Fault]) {
    assert_eq!(faults(answer), expected, "{answer:#?}");
    assert_eq!(answer.outcome, outcome, "{answer:#?}");
    for step in answer.steps().filter(|step| step.fault.is_some()) {
        assert!(step.cause.is_some() && !step.cures.is_empty(), "{step:#?}");
    }
    assert!(!answer.verdict.is_empty());
}

#[test]
fn all_is_well() {
    is(&of_machine(|_| ()), Outcome::Works, &[]);
    is(&of_remote(|_| ()), Outcome::Works, &[]);
    is(&of_session(|_| ()), Outcome::Works, &[]);
    is(&of_mount(|_| ()), Outcome::Works, &[]);
    assert_eq!(of_remote(|_| ()).verdict, "SMB Direct works: iWARP 5445");
    let both = of_remote(|remote| {
        remote
            .attempts
            .insert(0, attempt(Fabric::Roce, Ok(reached())));
    });
    assert_eq!(both.verdict, "SMB Direct works: RoCE 445 and iWARP 5445");
}

#[test]
fn the_kernel() {
    let off = of_machine(|machine| machine.kernel.cifs_smb_direct = Setting::Off);
    is(&off, Outcome::DoesNot, &[Fault::KernelWithoutClient]);
    let no_cifs = of_machine(|machine| machine.kernel.cifs = Module::Missing);
    is(&no_cifs, Outcome::DoesNot, &[Fault::KernelWithoutClient]);
    // The running client is more reliable than a file.
    let runs = of_machine(|machine| {
        machine.kernel.cifs_smb_direct = Setting::Off;
        machine.client.smb_direct = Some(true);
    });
    is(&runs, Outcome::Works, &[]);
    let other = of_machine(|machine| machine.client.smb_direct = Some(false));
    is(&other, Outcome::DoesNot, &[Fault::KernelWithoutClient]);
    let unknown = of_machine(|machine| machine.kernel.cifs_smb_direct = Setting::Unknown);
    is(&unknown, Outcome::Unknown, &[]);
    let other_system = of_machine(|machine| machine.is_known = false);
    is(&other_system, Outcome::Unknown, &[]);
    if cfg!(target_os = "linux") {
        let evidence = &other_system.sections[0].steps[0].evidence;
        assert!(evidence.contains("mount /proc"), "{evidence}");
    }
    // On a machine that is not a server this is only a limit.
    let client = of_machine(|machine| machine.kernel.server_smb_direct = Setting::Off);
    is(&client, Outcome::Works, &[Fault::KernelWithoutServer]);
    let server = of_machine(|machine| {
        machine.kernel.server_smb_direct = Setting::Off;
        machine.server.ksmbd = Ksmbd::Running;
    });
    is(&server, Outcome::DoesNot, &[Fault::KernelWithoutServer]);
}

#[test]
fn rdma_and_adapters() {
    for module in [Module::Missing, Module::Loadable, Module::Unknown] {
        let answer = of_machine(|machine| {
            machine.kernel.ib_core = module;
            machine.adapters.clear();
        });
        is(&answer, Outcome::DoesNot, &[Fault::NoRdmaCore]);
    }
    let no_cm = of_machine(|machine| machine.kernel.rdma_cm = Module::Missing);
    is(&no_cm, Outcome::DoesNot, &[Fault::NoRdmaCm]);
    let cm_later = of_machine(|machine| machine.kernel.rdma_cm = Module::Loadable);
    is(&cm_later, Outcome::Works, &[Fault::NoRdmaCm]);
    let none = of_machine(|machine| machine.adapters.clear());
    is(&none, Outcome::DoesNot, &[Fault::NoAdapter]);
    let down = of_machine(|machine| machine.adapters[0].state = "DOWN".into());
    is(&down, Outcome::DoesNot, &[Fault::AdapterDown]);
    let bare = of_machine(|machine| machine.interfaces[0].addresses.clear());
    is(&bare, Outcome::DoesNot, &[Fault::AdapterWithoutAddress]);
    let few = of_machine(|machine| machine.adapters[0].max_send_elements = Some(3));
    is(&few, Outcome::DoesNot, &[Fault::AdapterWithFewElements]);
    let other = of_machine(|machine| machine.adapters[0].unusable = Some("no reason".into()));
    is(&other, Outcome::DoesNot, &[Fault::AdapterUnusable]);
    // One good adapter is enough.
    let one_of_two = of_machine(|machine| {
        machine.adapters[0].state = "DOWN".into();
        machine
            .adapters
            .push(adapter("mlx5_0", Fabric::Roce, "eth1"));
    });
    is(&one_of_two, Outcome::Works, &[Fault::AdapterDown]);
}

#[test]
fn a_kernel_whose_siw_a_peer_can_stop_is_named() {
    let with = |release: &str| of_machine(|machine| machine.release = release.into());
    for release in [
        "5.2.21",
        "5.10.252",
        "6.12.75+deb13-amd64",
        "6.19.4",
        "7.0.0-rc1",
        "7.3.4",
        "",
        "6",
    ] {
        let answer = with(release);
        assert!(
            !answer.steps().any(|step| step.name == "siw"),
            "{release}: {answer:#?}"
        );
    }
    for (release, newer) in [
        ("5.3.1", "7.0"),
        ("5.15.201", "5.15.202"),
        ("6.12.74+deb13-amd64", "6.12.75"),
        ("6.17.13", "7.0"),
        ("6.19.3-arch1-1", "6.19.4"),
    ] {
        let answer = with(release);
        is(&answer, Outcome::Works, &[Fault::SiwNullPointer]);
        let step = answer.steps().find(|step| step.name == "siw").unwrap();
        let cure = format!("uname -r    # has to name {newer} or later");
        assert_eq!(step.cures[0].command, cure);
    }
    // The fixes of a distribution do not show in such a release.
    for release in [
        "6.1.0-41-amd64",
        "5.14.0-611.el9.x86_64",
        "6.8.0-88-generic",
        "6.19",
    ] {
        let answer = with(release);
        is(&answer, Outcome::Works, &[]);
        assert!(
            answer
                .steps()
                .any(|step| step.name == "siw" && step.state == State::Unknown)
        );
    }
    let other = of_machine(|machine| {
        machine.release = "6.12.74".into();
        machine.adapters[0].fabric = Fabric::Roce;
    });
    is(&other, Outcome::Works, &[]);
    let hardware = of_machine(|machine| {
        machine.release = "6.12.74".into();
        machine.kernel.siw = Module::Loadable;
    });
    is(&hardware, Outcome::Works, &[]);
}

#[test]
fn servers_of_this_machine() {
    let serves = |change: fn(&mut Machine)| {
        of_machine(|machine| {
            machine.server.ksmbd = Ksmbd::Running;
            machine.server.listens = vec![445, 5445];
            change(machine);
        })
    };
    is(&serves(|_| ()), Outcome::Works, &[]);
    let stopped = serves(|machine| machine.server.ksmbd = Ksmbd::Stopped);
    is(&stopped, Outcome::Works, &[Fault::KsmbdStopped]);
    let deaf = serves(|machine| machine.server.listens = vec![445]);
    is(&deaf, Outcome::DoesNot, &[Fault::KsmbdNotListening]);
    let cures = |answer: &Diagnosis| -> Vec<String> {
        let cures = answer.steps().flat_map(|step| &step.cures);
        cures.map(|cure| cure.command.clone()).collect()
    };
    // Only a new device gets a listener.
    let again = "sudo rdma link delete siw0 && sudo rdma link add siw0 type siw netdev eth0";
    assert!(cures(&deaf)[0].starts_with(again), "{deaf:#?}");
    let owner = |machine: &mut Machine| {
        machine.server.iwarp_port_owner = Some("nc (process 98)".into());
    };
    let taken = serves(owner);
    is(&taken, Outcome::DoesNot, &[Fault::KsmbdNotListening]);
    assert!(cures(&taken)[0].contains("ss -Hltnp"), "{taken:#?}");
    assert!(cures(&taken)[1].starts_with(again), "{taken:#?}");
    // A gateway may have the port instead of ksmbd.
    let gateway = serves(|machine| {
        machine.server.iwarp_port_owner = Some("smbdirect (process 98)".into());
        machine.server.programs = vec!["smbdirect".into()];
    });
    is(&gateway, Outcome::Works, &[]);
    // The programs of other users are not visible, but their answers on the port are.
    let foreign = serves(|machine| {
        machine.server.attempt = Some(attempt(Fabric::Iwarp, Err(AttemptFault::NotIwarp)));
    });
    is(&foreign, Outcome::DoesNot, &[Fault::KsmbdNotListening]);
    let not_started = serves(|machine| machine.server.ksmbd = Ksmbd::NotStarted);
    is(&not_started, Outcome::DoesNot, &[Fault::KsmbdNotListening]);
    for (fault, expected) in [
        (
            AttemptFault::Rejected("turned away".into()),
            Fault::ListenerGone,
        ),
        (
            AttemptFault::Incompatible("the peer wants MPA markers".into()),
            Fault::NegotiationSilent,
        ),
        (
            AttemptFault::Silent("time ran out".into()),
            Fault::NegotiationSilent,
        ),
    ] {
        let answer = of_machine(|machine| {
            machine.server.ksmbd = Ksmbd::Running;
            machine.server.listens = vec![5445];
            machine.server.attempt = Some(attempt(Fabric::Iwarp, Err(fault.clone())));
        });
        is(&answer, Outcome::DoesNot, &[expected]);
    }
    // An attempt that does not reach ksmbd tells nothing about ksmbd.
    let aside = serves(|machine| {
        machine.server.attempt = Some(attempt(Fabric::Iwarp, Err(AttemptFault::Refused)));
    });
    is(&aside, Outcome::Works, &[]);
    let alone = serves(|machine| machine.server.ksmbd_multichannel = Some(false));
    is(&alone, Outcome::Works, &[Fault::MultichannelOff]);
    let samba = of_machine(|machine| machine.server.programs = vec!["smbd".into()]);
    is(&samba, Outcome::Works, &[Fault::SambaAlone]);
    let gateway = of_machine(|machine| {
        machine.server.programs = vec!["smbd".into(), "smbdirect".into()];
        machine.server.listens = vec![5445];
    });
    is(&gateway, Outcome::Works, &[]);
}

#[test]
fn mounts() {
    let over_tcp = of_mount(|mount| mount.is_rdma = false);
    is(&over_tcp, Outcome::DoesNot, &[Fault::MountOverTcp]);
    let verdict = "The mount /mnt uses TCP because it was mounted without the option `rdma`";
    assert!(
        over_tcp.verdict.starts_with(verdict),
        "{}",
        over_tcp.verdict
    );
    let old = of_mount(|mount| {
        mount.is_rdma = false;
        mount.connection.as_mut().unwrap().dialect = 0x0210;
    });
    is(&old, Outcome::DoesNot, &[Fault::DialectBelow3]);
    let lost = of_mount(|mount| {
        mount.connection.as_mut().unwrap().transport_status = Some("DISCONNECTED".into());
    });
    is(&lost, Outcome::DoesNot, &[Fault::MountLost]);
    let sealed = of_mount(|mount| mount.options += ",seal");
    is(&sealed, Outcome::Works, &[Fault::Encryption]);
    let signed = of_mount(|mount| mount.connection.as_mut().unwrap().is_signed = true);
    is(&signed, Outcome::Works, &[Fault::Signing]);
    let not_asked = of_mount(|mount| mount.connection.as_mut().unwrap().interfaces = None);
    is(&not_asked, Outcome::Works, &[Fault::NoInterfacesAsked]);
    let threshold = of_machine(|machine| {
        machine.client.mounts = vec![mount()];
        machine.client.threshold_bytes = Some(1 << 20);
    });
    is(&threshold, Outcome::Works, &[Fault::Threshold]);
    // A kernel without SMB Direct explains the mount.
    let kernel = of_machine(|machine| {
        machine.client.smb_direct = Some(false);
        machine.client.mounts = vec![Mount {
            is_rdma: false,
            ..mount()
        }];
    });
    is(
        &kernel,
        Outcome::DoesNot,
        &[Fault::MountOverTcp, Fault::KernelWithoutClient],
    );
    assert!(
        kernel.verdict.contains("no SMB Direct"),
        "{}",
        kernel.verdict
    );
}

#[test]
fn only_mounts_of_the_target_matter() {
    let mut elsewhere = mount();
    elsewhere.is_rdma = false;
    elsewhere.source = "//other/share".into();
    elsewhere.address = Some(IpAddr::from([192, 0, 2, 1]));
    let mut machine = machine();
    machine.client.mounts = vec![elsewhere.clone()];
    let mut facts = Facts {
        machine,
        remote: Some(remote()),
    };
    is(&diagnose(&facts), Outcome::Works, &[]);
    facts.machine.client.mounts = vec![Mount {
        address: Some(SERVER),
        ..elsewhere
    }];
    is(&diagnose(&facts), Outcome::DoesNot, &[Fault::MountOverTcp]);
}

/// With a target, each cure cures: none of them is another examination.
#[test]
fn no_cure_of_a_target_is_to_check() {
    let mut machine = machine();
    machine.kernel = Kernel::default();
    machine.adapters.clear();
    machine.client = Client::default();
    let lost = ClientConnection {
        is_disconnected: true,
        ..mount().connection.unwrap()
    };
    machine.client.mounts = vec![Mount {
        connection: Some(lost),
        ..mount()
    }];
    let answer = diagnose(&Facts {
        machine,
        remote: Some(remote()),
    });
    let cures: Vec<_> = answer.steps().flat_map(|step| &step.cures).collect();
    assert!(!cures.is_empty(), "{answer:?}");
    for cure in cures {
        assert!(
            !cure.command.contains("smbdirect check"),
            "{}",
            cure.command
        );
    }
}

#[test]
fn names_of_mounts_cannot_add_commands() {
    let answer = of_mount(|mount| {
        mount.is_rdma = false;
        mount.directory = "/mnt/a b; it's $(reboot)".into();
    });
    let cures: Vec<&str> = answer
        .steps()
        .flat_map(|step| &step.cures)
        .map(|cure| &*cure.command)
        .collect();
    let quoted = r"'/mnt/a b; it'\''s $(reboot)'";
    assert!(cures.iter().any(|cure| cure.contains(quoted)), "{cures:?}");
    assert!(
        cures
            .iter()
            .all(|cure| !cure.replace(quoted, "").contains("reboot"))
    );
}

#[test]
fn every_fault_is_named_by_a_test() {
    // The tests above name all faults; this finds one that was added without a test.
    let source = concat!(include_str!("tests.rs"), include_str!("tests/remote.rs"));
    for fault in Fault::ALL {
        let name = format!("Fault::{fault:?}");
        assert!(source.contains(&name), "{name} has no test");
    }
}
