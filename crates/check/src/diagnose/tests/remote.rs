//! A server and the network to it, and sessions there.

use super::{attempt, is, of_remote, of_session, reached, smb};
use crate::{diagnosis::Outcome, facts::*, fault::Fault};

#[test]
fn name_route_and_mtu() {
    let unknown = of_remote(|remote| {
        *remote = Remote {
            addresses: Err("name or service not known".into()),
            address: None,
            route: None,
            path: Path::default(),
            tcp: None,
            smb: None,
            attempts: Vec::new(),
            ..remote.clone()
        };
    });
    is(&unknown, Outcome::Unknown, &[Fault::NameUnknown]);
    let no_route = of_remote(|remote| {
        remote.route = Some(Err("network is unreachable".into()));
        remote.path = Path::default();
        remote.tcp = None;
        remote.smb = None;
        remote.attempts.clear();
    });
    is(&no_route, Outcome::DoesNot, &[Fault::NoRoute]);
    let elsewhere = of_remote(|remote| {
        let route = remote.route.as_mut().unwrap().as_mut().unwrap();
        route.interface = Some("eth1".into());
    });
    is(&elsewhere, Outcome::Works, &[Fault::RouteWithoutAdapter]);
    let lost = of_remote(|remote| remote.path.full_ping = Some(false));
    is(&lost, Outcome::DoesNot, &[Fault::MtuDiffers]);
    let told = of_remote(|remote| {
        remote.path.full_ping = Some(false);
        remote.path.is_reported_too_large = true;
    });
    is(&told, Outcome::Works, &[Fault::MtuDiffers]);
    let jumbo =
        of_remote(|remote| remote.route.as_mut().unwrap().as_mut().unwrap().mtu = Some(9000));
    is(&jumbo, Outcome::Works, &[Fault::MtuDiffers]);
    let no_echo = of_remote(|remote| {
        remote.path.short_ping = Some(false);
        remote.path.full_ping = None;
    });
    is(&no_echo, Outcome::Works, &[]);
}

#[test]
fn ports() {
    let fails = |tcp: Tcp, fault: AttemptFault, ping: bool| {
        of_remote(|remote| {
            remote.smb = (tcp == Tcp::Open).then(|| Ok(smb()));
            remote.tcp = Some(tcp.clone());
            remote.path.short_ping = Some(ping);
            remote.path.full_ping = ping.then_some(true);
            remote.attempts = vec![attempt(Fabric::Iwarp, Err(fault.clone()))];
        })
    };
    let answer = fails(Tcp::Open, AttemptFault::Refused, true);
    is(&answer, Outcome::DoesNot, &[Fault::PortRefused]);
    let answer = fails(Tcp::Open, AttemptFault::Dropped, true);
    is(&answer, Outcome::DoesNot, &[Fault::PortDropped]);
    let why = || "no route to host".to_owned();
    let answer = fails(Tcp::Open, AttemptFault::Unreachable(why()), true);
    is(&answer, Outcome::DoesNot, &[Fault::PortRejected]);
    let answer = fails(Tcp::Dropped, AttemptFault::Dropped, false);
    is(
        &answer,
        Outcome::DoesNot,
        &[Fault::HostSilent, Fault::HostSilent],
    );
    let answer = fails(Tcp::Dropped, AttemptFault::Dropped, true);
    is(
        &answer,
        Outcome::DoesNot,
        &[Fault::PortDropped, Fault::PortDropped],
    );
    let answer = fails(Tcp::Refused, AttemptFault::Refused, true);
    is(
        &answer,
        Outcome::DoesNot,
        &[Fault::PortRefused, Fault::PortRefused],
    );
    for (ping, expected) in [(true, Fault::PortRejected), (false, Fault::HostSilent)] {
        let (tcp, fault) = (Tcp::Unreachable(why()), AttemptFault::Unreachable(why()));
        let answer = fails(tcp, fault, ping);
        is(&answer, Outcome::DoesNot, &[expected, expected]);
    }
    // TCP 445 is not needed if SMB Direct works.
    let answer = of_remote(|remote| {
        remote.tcp = Some(Tcp::Dropped);
        remote.smb = None;
    });
    is(&answer, Outcome::Works, &[]);
}

#[test]
fn smb_direct_itself() {
    for (fault, expected) in [
        (AttemptFault::NotIwarp, Fault::NotSmbDirect),
        (AttemptFault::Unanswered, Fault::NegotiationSilent),
        (
            AttemptFault::Rejected("turned away".into()),
            Fault::ListenerGone,
        ),
        (
            AttemptFault::Incompatible("the peer wants MPA markers".into()),
            Fault::MpaRefused,
        ),
        (
            AttemptFault::Lost("the peer hung up".into()),
            Fault::NegotiationSilent,
        ),
        (
            AttemptFault::Silent("time ran out".into()),
            Fault::NegotiationSilent,
        ),
        (
            AttemptFault::NegotiationRefused("0xc00000bb".into()),
            Fault::NegotiationRefused,
        ),
        (
            AttemptFault::NegotiationBroken("no credits".into()),
            Fault::NegotiationBroken,
        ),
    ] {
        let answer = of_remote(|remote| remote.attempts[0].result = Err(fault.clone()));
        is(&answer, Outcome::DoesNot, &[expected]);
    }
    // If no SMB server answers on the port, the program need not be ksmbd.
    let answer = of_remote(|remote| {
        remote.attempts[0].result = Err(AttemptFault::Rejected("turned away".into()));
        remote.tcp = Some(Tcp::Refused);
        remote.smb = None;
    });
    is(
        &answer,
        Outcome::DoesNot,
        &[Fault::PortRefused, Fault::MpaRefused],
    );
    let refused = attempt(Fabric::Roce, Err(AttemptFault::Refused));
    let answer = of_remote(|remote| remote.attempts = vec![refused.clone()]);
    is(&answer, Outcome::DoesNot, &[Fault::CmRefused]);
    let nothing = attempt(Fabric::Roce, Err(AttemptFault::NoAdapter));
    let answer = of_remote(|remote| remote.attempts = vec![nothing.clone()]);
    is(&answer, Outcome::Unknown, &[]);
    let local = attempt(Fabric::Iwarp, Err(AttemptFault::Local("no memory".into())));
    let answer = of_remote(|remote| remote.attempts = vec![local.clone()]);
    is(&answer, Outcome::Unknown, &[]);
    // Software RoCE needs a UDP port that another program has.
    let taken = attempt(Fabric::Roce, Err(AttemptFault::Local("rxe has it".into())));
    let answer = of_remote(|remote| remote.attempts.insert(0, taken.clone()));
    is(&answer, Outcome::Works, &[]);
    let both = attempt(Fabric::Roce, Ok(reached()));
    let answer = of_remote(|remote| remote.attempts.insert(0, both.clone()));
    is(&answer, Outcome::Works, &[]);
    assert_eq!(answer.verdict, "SMB Direct works: RoCE 445 and iWARP 5445");
    // Of two transports that fail alike, the verdict names iWARP, which needs no adapter.
    let answer = of_remote(|remote| {
        remote.attempts = vec![
            attempt(Fabric::Roce, Err(AttemptFault::Dropped)),
            attempt(Fabric::Iwarp, Err(AttemptFault::Refused)),
        ];
    });
    is(
        &answer,
        Outcome::DoesNot,
        &[Fault::PortDropped, Fault::PortRefused],
    );
    assert!(answer.verdict.contains("iWARP 5445"), "{}", answer.verdict);
    let answer = of_remote(|remote| {
        remote.attempts = vec![
            attempt(Fabric::Roce, Err(AttemptFault::Refused)),
            attempt(Fabric::Iwarp, Err(AttemptFault::Dropped)),
        ];
    });
    assert!(answer.verdict.contains("a firewall"), "{}", answer.verdict);
    let answer = of_remote(|remote| {
        remote.attempts = vec![
            attempt(
                Fabric::Roce,
                Err(AttemptFault::Rejected("reason 28".into())),
            ),
            attempt(Fabric::Iwarp, Err(AttemptFault::Refused)),
        ];
    });
    assert!(answer.verdict.contains("RoCE 445"), "{}", answer.verdict);
    // One transport that works is enough.
    let answer = of_remote(|remote| remote.attempts.push(refused));
    is(&answer, Outcome::Works, &[]);
}

#[test]
fn the_wrong_port() {
    let answer = of_remote(|remote| {
        let mut at_445 = attempt(Fabric::Iwarp, Ok(reached()));
        at_445.port = 445;
        remote.smb = Some(Err(SmbFault::HungUp));
        remote.attempts = vec![attempt(Fabric::Iwarp, Err(AttemptFault::Refused)), at_445];
    });
    let expected = [Fault::NoSmb, Fault::PortRefused, Fault::WrongPort];
    is(&answer, Outcome::DoesNot, &expected);
    assert!(
        answer.verdict.contains("on port 5445 only"),
        "{}",
        answer.verdict
    );
}

#[test]
fn smb_behind() {
    for fault in [
        SmbFault::HungUp,
        SmbFault::Silent,
        SmbFault::Other("?".into()),
    ] {
        let answer = of_remote(|remote| {
            remote.attempts[0].result = Ok(Reached {
                smb: Err(fault.clone()),
                ..reached()
            });
        });
        is(&answer, Outcome::DoesNot, &[Fault::NoSmb]);
    }
    let old = Smb {
        dialect: 0x0210,
        ..smb()
    };
    let answer = of_remote(|remote| {
        remote.smb = Some(Ok(old.clone()));
        remote.attempts[0].result = Ok(Reached {
            smb: Ok(old),
            ..reached()
        });
    });
    is(
        &answer,
        Outcome::DoesNot,
        &[Fault::DialectBelow3, Fault::DialectBelow3],
    );
    let single = of_remote(|remote| {
        remote.smb = Some(Ok(Smb {
            multichannel: false,
            ..smb()
        }));
    });
    is(&single, Outcome::Works, &[Fault::MultichannelOff]);
}

#[test]
fn signing_and_sizes() {
    let demanding = Smb {
        signing_required: true,
        ..smb()
    };
    let answer = of_remote(|remote| {
        remote.attempts[0].result = Ok(Reached {
            smb: Ok(demanding.clone()),
            ..reached()
        });
    });
    is(
        &answer,
        Outcome::Works,
        &[Fault::Signing, Fault::FragmentedSize],
    );
    let small = Smb {
        max_write_size: 65_536,
        ..demanding
    };
    let answer = of_remote(|remote| {
        remote.attempts[0].result = Ok(Reached {
            smb: Ok(small),
            ..reached()
        });
    });
    is(&answer, Outcome::Works, &[Fault::Signing]);
}

#[test]
fn sessions() {
    let login = of_session(|session| {
        session.login = Some("refused".into());
        session.interfaces = None;
        session.share = None;
    });
    is(&login, Outcome::Works, &[Fault::LoginFailed]);
    let share = of_session(|session| session.share = Some(Err("refused".into())));
    is(&share, Outcome::Works, &[Fault::ShareUnknown]);
    let sealed = of_session(|session| session.share = Some(Ok(true)));
    is(
        &sealed,
        Outcome::Works,
        &[Fault::FragmentedSize, Fault::Encryption],
    );
    let off = of_session(|session| session.interfaces = Some(Err("not supported".into())));
    is(&off, Outcome::Works, &[Fault::MultichannelOff]);
    let list = |address: [u8; 4], is_rdma| {
        Some(Ok(vec![ServerInterface {
            address: address.into(),
            is_rdma,
            speed: None,
        }]))
    };
    let plain = of_session(|session| session.interfaces = list([10, 77, 0, 2], false));
    is(&plain, Outcome::Works, &[Fault::NotRdmaCapable]);
    let none = of_session(|session| session.interfaces = Some(Ok(Vec::new())));
    is(&none, Outcome::Works, &[Fault::NotRdmaCapable]);
    let elsewhere = of_session(|session| session.interfaces = list([10, 88, 0, 2], true));
    is(&elsewhere, Outcome::Works, &[Fault::NotAdvertised]);
}
