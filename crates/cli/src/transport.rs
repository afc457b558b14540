//! The options about RDMA: the settings of its kind, and the capture of its traffic.

use std::{
    io,
    net::{self, Ipv4Addr, UdpSocket},
};

use anyhow::Result;
use smbdirect::rdma::roce::RoceConfig;
#[cfg(target_os = "linux")]
pub(crate) use smbdirect_transport::unavailable;
pub(crate) use smbdirect_transport::{
    Families, Rdma, RdmaSettings, canonical, check_transparent, close, connect_tcp, explain_end,
    listen_tcp, listen_tcp_all, listen_tcp_on, resolve_listen,
};
use socket2::SockRef;

use crate::{
    options::{Address, CommonOptions, ConnectOptions, Transport, usage},
    pcap::Capture,
};

/// Both ends of a connection within this process. A capture records the connecting end.
pub(crate) struct Ends {
    pub(crate) active: Rdma,
    pub(crate) passive: Rdma,
}

/// Returns both ends, for a command that runs both of them in this process.
///
/// # Errors
/// The transport cannot be captured, or the capture cannot be written.
pub(crate) fn both_ends(
    options: &CommonOptions,
    connect: &ConnectOptions,
) -> Result<(Ends, Option<Capture>)> {
    let mut options = options.clone();
    if options.transport == Transport::Roce {
        options.udp_port = options.udp_port.or_else(free_udp_port);
    }
    let (settings, capture) = captured(&options, Some(connect))?;
    let active = Rdma::new(settings)?;
    let passive = match options.transport {
        Transport::Iwarp | Transport::Roce => Rdma::new(options.rdma(None))?,
        Transport::Verbs | Transport::Loopback => active.clone(),
    };
    Ok((Ends { active, passive }, capture))
}

/// Returns RDMA for a command that is one end, at `address` or connecting to it.
///
/// # Errors
/// The transport stays within the process or is missing, or the capture cannot be written.
pub(crate) fn one_end(
    options: &CommonOptions,
    connect: Option<&ConnectOptions>,
    address: &Address,
) -> Result<(Rdma, Option<Capture>)> {
    check_kind(options)?;
    let (settings, capture) = captured(options, connect)?;
    Ok((Rdma::at(settings, address)?, capture))
}

/// Checks what [`one_end`] needs, without an address and without creating the capture.
///
/// # Errors
/// The errors of `one_end`.
pub(crate) fn check_one_end(
    options: &CommonOptions,
    connect: Option<&ConnectOptions>,
) -> Result<()> {
    check_kind(options)?;
    if options.pcap.is_some() && options.transport == Transport::Verbs {
        return Err(no_packets());
    }
    Rdma::new(options.rdma(connect))?;
    Ok(())
}

/// Checks that RDMA of this kind reaches another process.
fn check_kind(options: &CommonOptions) -> Result<()> {
    if options.transport == Transport::Loopback {
        return Err(usage(
            "--transport loopback stays within one process, so only `smbdirect demo` can use it; \
             without --transport, iWARP is used",
        ));
    }
    Ok(())
}

/// Returns a duplicate of a listening socket.
pub(crate) fn duplicate(listener: &tokio::net::TcpListener) -> io::Result<net::TcpListener> {
    Ok(SockRef::from(listener).try_clone()?.into())
}

fn no_packets() -> anyhow::Error {
    usage(
        "--pcap cannot capture --transport verbs: the adapters make the packets; \
         omit it, or capture with tcpdump where the kernel sees them",
    )
}

/// Returns the RDMA adapters.
///
/// # Errors
/// There are no adapters, or the options do not apply to them.
pub(crate) fn adapters(options: &CommonOptions, connect: &ConnectOptions) -> Result<Rdma> {
    let (settings, _) = captured(options, Some(connect))?;
    Ok(Rdma::new(settings)?)
}

/// Returns the settings of RDMA, and the capture of --pcap.
fn captured(
    options: &CommonOptions,
    connect: Option<&ConnectOptions>,
) -> Result<(RdmaSettings, Option<Capture>)> {
    let mut settings = options.rdma(connect);
    let Some(path) = &options.pcap else {
        return Ok((settings, None));
    };
    let create = || Capture::create(path);
    let capture = match options.transport {
        Transport::Iwarp => {
            let capture = create()?;
            settings.iwarp.tap = Some(capture.tap());
            capture
        }
        Transport::Roce => {
            let capture = create()?;
            settings.roce.tap = Some(capture.datagram_tap());
            capture
        }
        Transport::Verbs => return Err(no_packets()),
        Transport::Loopback => {
            return Err(usage(
                "--pcap cannot capture --transport loopback; use iwarp",
            ));
        }
    };
    Ok((settings, Some(capture)))
}

/// Returns a UDP port for a command that is both ends, if another program has that of RoCE.
fn free_udp_port() -> Option<u16> {
    let bind = |port| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
    if bind(RoceConfig::default().udp_port).is_ok() {
        return None;
    }
    Some(bind(0).ok()?.local_addr().ok()?.port())
}

/// Returns what follows the address of a listener: the UDP port of RoCE, which its port of SMB Direct is not.
pub(crate) fn listening_over(options: &CommonOptions) -> String {
    if options.transport == Transport::Roce {
        let udp_port = options.rdma(None).roce.udp_port;
        format!(" by RoCE, on UDP port {udp_port}")
    } else {
        String::new()
    }
}

/// Checks that `address` can be connected to.
///
/// # Errors
/// A usage error that names the missing argument.
pub(crate) fn check_connectable(address: &Address) -> Result<()> {
    if address.host.is_empty() {
        return Err(usage("the address to connect to has no host: HOST[:PORT]"));
    }
    if address.port == Some(0) {
        return Err(usage("port 0 cannot be connected to"));
    }
    Ok(())
}
