//! [`NetworkSettings`], the settings of sockets for managed networks.

#[cfg(feature = "tokio")]
use std::{io, net};

#[cfg(feature = "tokio")]
use socket2::SockRef;

/// How the packets of a provider leave this machine. The defaults change nothing. Other values need Linux; on other
/// systems, connecting and listening fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct NetworkSettings {
    /// The DSCP in the IP headers (RFC 2474), by which networks tell classes of traffic apart; from 0 to 63. The
    /// default is 0.
    pub dscp: u8,
    /// The name of the network interface through which packets leave and arrive. The default, `None`, follows the
    /// routes of the system.
    pub interface: Option<String>,
}

/// The largest DSCP.
pub const MAX_DSCP: u8 = 63;
/// The ECN field ECT(0) of an IP header.
#[cfg(all(feature = "tokio", target_os = "linux"))]
pub(crate) const ECT_0: u8 = 0b10;

/// Returns the traffic class (the octet TOS of IPv4) with a DSCP and an ECN field of 0.
pub const fn traffic_class(dscp: u8) -> u8 {
    dscp << 2
}

#[cfg(feature = "tokio")]
impl NetworkSettings {
    /// Applies the settings to a socket that has no peer.
    ///
    /// # Errors
    /// The interface does not exist or may not be used, the DSCP is too large, or the system is not Linux.
    pub fn apply(&self, socket: &SockRef<'_>) -> io::Result<()> {
        self.apply_interface(socket)?;
        self.apply_dscp(socket)
    }

    /// Returns whether these settings are those of a socket that another process has created. Systems other than Linux
    /// have none.
    pub fn are_of(&self, socket: &net::TcpListener) -> bool {
        are_of(self, &SockRef::from(socket)).unwrap_or(false)
    }

    /// Applies the interface to a socket.
    ///
    /// # Errors
    /// The interface does not exist or may not be used, or the system is not Linux.
    pub(crate) fn apply_interface(&self, socket: &SockRef<'_>) -> io::Result<()> {
        let Some(interface) = &self.interface else {
            return Ok(());
        };
        bind_device(socket, interface).map_err(|error| {
            io::Error::new(error.kind(), format!("interface {interface}: {error}"))
        })
    }

    /// Applies the DSCP to a socket.
    ///
    /// # Errors
    /// The DSCP is too large, or the system is not Linux.
    pub(crate) fn apply_dscp(&self, socket: &SockRef<'_>) -> io::Result<()> {
        match self.dscp {
            0 => Ok(()),
            dscp @ 1..=MAX_DSCP => set_traffic_class(socket, traffic_class(dscp)),
            dscp => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a DSCP of {dscp}, the largest is {MAX_DSCP}"),
            )),
        }
    }
}

#[cfg(all(feature = "tokio", target_os = "linux"))]
fn bind_device(socket: &SockRef<'_>, interface: &str) -> io::Result<()> {
    socket.bind_device(Some(interface.as_bytes()))
}

#[cfg(all(feature = "tokio", not(target_os = "linux")))]
fn bind_device(_: &SockRef<'_>, _: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(feature = "tokio", target_os = "linux"))]
fn are_of(settings: &NetworkSettings, socket: &SockRef<'_>) -> io::Result<bool> {
    let interface = settings.interface.as_ref().map(String::as_bytes);
    let class = traffic_class(settings.dscp);
    Ok(socket.device()?.as_deref() == interface && socket.tos_v4()? == class.into())
}

#[cfg(all(feature = "tokio", not(target_os = "linux")))]
fn are_of(settings: &NetworkSettings, _: &SockRef<'_>) -> io::Result<bool> {
    Ok(*settings == NetworkSettings::default())
}

#[cfg(all(feature = "tokio", target_os = "linux"))]
fn set_traffic_class(socket: &SockRef<'_>, class: u8) -> io::Result<()> {
    if socket.domain()? == socket2::Domain::IPV6 {
        socket.set_tclass_v6(class.into())?;
    }
    // An IPv6 socket can have IPv4 peers.
    socket.set_tos_v4(class.into())
}

#[cfg(all(feature = "tokio", not(target_os = "linux")))]
fn set_traffic_class(_: &SockRef<'_>, _: u8) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, feature = "tokio", target_os = "linux"))]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::*;

    fn with(dscp: u8, interface: Option<&str>) -> NetworkSettings {
        NetworkSettings {
            dscp,
            interface: interface.map(str::to_owned),
        }
    }

    #[test]
    fn settings_are_applied_to_sockets_of_both_families() {
        for domain in [Domain::IPV4, Domain::IPV6] {
            for kind in [Type::STREAM, Type::DGRAM] {
                let Ok(socket) = Socket::new(domain, kind, None) else {
                    continue;
                };
                with(46, Some("lo")).apply(&SockRef::from(&socket)).unwrap();
                assert_eq!(socket.tos_v4().unwrap(), 46 << 2);
                if domain == Domain::IPV6 {
                    assert_eq!(socket.tclass_v6().unwrap(), 46 << 2);
                }
                assert_eq!(socket.device().unwrap().as_deref(), Some(&b"lo"[..]));
            }
        }
    }

    #[test]
    fn the_defaults_change_nothing() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        with(0, None).apply(&SockRef::from(&socket)).unwrap();
        assert_eq!(socket.tos_v4().unwrap(), 0);
        assert_eq!(socket.device().unwrap(), None);
    }

    #[test]
    fn a_socket_of_another_process_is_compared() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        with(46, Some("lo")).apply(&SockRef::from(&socket)).unwrap();
        let socket = net::TcpListener::from(socket);
        for (settings, are_of) in [
            (with(46, Some("lo")), true),
            (with(0, Some("lo")), false),
            (with(46, None), false),
        ] {
            assert_eq!(settings.are_of(&socket), are_of, "{settings:?}");
        }
    }

    #[test]
    fn errors_name_the_setting() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let apply = |settings: NetworkSettings| {
            let error = settings.apply(&SockRef::from(&socket)).unwrap_err();
            error.to_string()
        };
        assert!(apply(with(0, Some("missing0"))).starts_with("interface missing0: "));
        assert_eq!(apply(with(64, None)), "a DSCP of 64, the largest is 63");
    }
}
