//! Makes providers, connects and listens.

mod addresses;
mod explain;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, anyhow};
use smbdirect::{
    Config, Connection, ConnectionError, Listener,
    rdma::{
        iwarp::{Iwarp, IwarpConfig, IwarpTuning},
        loopback::Loopback,
        provider::Provider,
        roce::{Roce, RoceConfig},
    },
};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};
use tracing::{Span, debug, error_span, field};

use self::{
    addresses::accept_ipv4,
    explain::{explain_connect, explain_listen, explain_roce, explain_verbs, in_short, unanswered},
};
pub(crate) use self::{
    addresses::{Families, resolve, resolve_listen},
    explain::explain_end,
};
use crate::{
    options::{Address, CommonOptions, ConnectOptions, Transport, usage},
    pcap::Capture,
    report, resources,
};

/// Most connections that wait to be accepted, as tokio has.
const BACKLOG: u32 = 1024;

/// The providers of both ends of a connection within this process. A capture records the connecting
/// end.
pub(crate) struct Ends {
    pub(crate) active: Arc<dyn Provider>,
    pub(crate) passive: Arc<dyn Provider>,
}

/// Returns the providers for a command that is both ends.
///
/// # Errors
/// The transport cannot be captured, or the capture cannot be written.
pub(crate) fn both_ends(
    options: &CommonOptions,
    connect: &ConnectOptions,
) -> Result<(Ends, Option<Capture>)> {
    match options.transport {
        Transport::Iwarp => {
            let (active, capture) = iwarp(options, Some(connect), options.pcap.as_deref())?;
            let (passive, _) = iwarp(options, None, None)?;
            Ok((Ends { active, passive }, capture))
        }
        Transport::Roce => {
            let mut options = options.clone();
            options.udp_port = options.udp_port.or_else(free_udp_port);
            let (active, capture) = roce(&options, Some(connect))?;
            let passive = Arc::new(Roce::new(roce_config(&options)));
            Ok((Ends { active, passive }, capture))
        }
        Transport::Verbs => {
            let active = verbs(options, Some(connect), false)?;
            let passive = active.clone();
            Ok((Ends { active, passive }, None))
        }
        Transport::Loopback => {
            if options.pcap.is_some() {
                return Err(usage(
                    "--pcap cannot capture --transport loopback; use iwarp",
                ));
            }
            let provider = Arc::new(Loopback::new());
            let (active, passive) = (provider.clone(), provider);
            Ok((Ends { active, passive }, None))
        }
    }
}

/// Returns the provider for a command that is one end, at `address` or connecting to it. Without a
/// port in `address`, the kind of an adapter decides the port.
///
/// # Errors
/// The transport stays within the process or is missing, or the capture cannot be written.
pub(crate) fn one_end(
    options: &CommonOptions,
    connect: Option<&ConnectOptions>,
    address: &Address,
) -> Result<(Arc<dyn Provider>, Option<Capture>)> {
    accepting_end(options, connect, address, None)
}

/// Returns the same provider as [`one_end`]. It listens on `passed`, if the service manager has passed
/// a socket.
///
/// # Errors
/// Those of `one_end`, or RDMA adapters cannot listen on a socket.
pub(crate) fn accepting_end(
    options: &CommonOptions,
    connect: Option<&ConnectOptions>,
    address: &Address,
    passed: Option<std::net::TcpListener>,
) -> Result<(Arc<dyn Provider>, Option<Capture>)> {
    if passed.is_some() && options.transport != Transport::Iwarp {
        return Err(usage(
            "RDMA adapters do not listen on the socket of the service manager; disable the socket unit",
        ));
    }
    match options.transport {
        Transport::Iwarp => {
            let (mut config, capture) = captured(options, connect, options.pcap.as_deref())?;
            config.tuning.congestion_control = local_congestion_control(address).map(str::to_owned);
            let iwarp = Iwarp::new(config);
            let iwarp = match passed {
                Some(listener) => iwarp.with_listener(listener),
                None => iwarp,
            };
            Ok((Arc::new(iwarp), capture))
        }
        Transport::Roce => roce(options, connect),
        Transport::Verbs => Ok((verbs(options, connect, address.port.is_none())?, None)),
        Transport::Loopback => Err(usage(
            "--transport loopback stays within one process, so only `smbdirect demo` can use it; \
             leave it out for iwarp",
        )),
    }
}

/// Returns the RDMA adapters.
///
/// # Errors
/// There are none, or the options do not go with them.
pub(crate) fn adapters(
    options: &CommonOptions,
    connect: &ConnectOptions,
) -> Result<Arc<dyn Provider>> {
    verbs(options, Some(connect), false)
}

#[cfg(target_os = "linux")]
fn verbs(
    options: &CommonOptions,
    connect: Option<&ConnectOptions>,
    any_port: bool,
) -> Result<Arc<dyn Provider>> {
    use smbdirect_verbs::{Verbs, VerbsConfig};

    if options.pcap.is_some() {
        return Err(usage(
            "--pcap cannot capture --transport verbs: the adapters make the packets; \
             leave it out, or capture with tcpdump where the kernel sees them",
        ));
    }
    let default = VerbsConfig::default();
    let depth = |option: Option<u16>| option.and_then(|depth| u8::try_from(depth).ok());
    let config = VerbsConfig {
        ird: depth(options.ird).unwrap_or(default.ird),
        ord: depth(options.ord).unwrap_or(default.ord),
        connect_timeout: connect.map_or(default.connect_timeout, |options| options.connect_timeout),
        port_by_device: any_port,
        ..default
    };
    let verbs = Verbs::new(config).map_err(|why| unavailable(&why))?;
    Ok(Arc::new(verbs))
}

/// Explains why there is no RDMA, without error numbers.
#[cfg(target_os = "linux")]
pub(crate) fn unavailable(why: &smbdirect_verbs::Unavailable) -> anyhow::Error {
    let text = why.to_string();
    let code = text.split_once(" (os error ");
    let rest = code.and_then(|(before, code)| Some((before, code.split_once(')')?.1)));
    match rest {
        Some((before, after)) => anyhow!("{before}{after}"),
        None => anyhow!(text),
    }
}

#[cfg(not(target_os = "linux"))]
fn verbs(_: &CommonOptions, _: Option<&ConnectOptions>, _: bool) -> Result<Arc<dyn Provider>> {
    Err(anyhow!(
        "RDMA adapters are used through rdma-core, which is for Linux; leave --transport out for iwarp"
    ))
}

fn iwarp(
    options: &CommonOptions,
    connect: Option<&ConnectOptions>,
    pcap: Option<&Path>,
) -> Result<(Arc<dyn Provider>, Option<Capture>)> {
    let (config, capture) = captured(options, connect, pcap)?;
    Ok((Arc::new(Iwarp::new(config)), capture))
}

/// Returns the configuration of iWARP, with the options for connecting and capturing.
fn captured(
    options: &CommonOptions,
    connect: Option<&ConnectOptions>,
    pcap: Option<&Path>,
) -> Result<(IwarpConfig, Option<Capture>)> {
    let mut config = iwarp_config(options);
    if let Some(options) = connect {
        config.connect_timeout = options.connect_timeout;
    }
    let mut capture = None;
    if let Some(path) = pcap {
        let started = Capture::create(path)?;
        config.tap = Some(started.tap());
        capture = Some(started);
    }
    Ok((config, capture))
}

/// Returns the provider of RoCE, and the capture.
fn roce(
    options: &CommonOptions,
    connect: Option<&ConnectOptions>,
) -> Result<(Arc<dyn Provider>, Option<Capture>)> {
    let mut config = roce_config(options);
    if let Some(connect) = connect {
        // The provider gives up shortly before the Negotiation Timer, because its error says more.
        config.connect_timeout = connect.connect_timeout.mul_f64(0.99);
    }
    let capture = options.pcap.as_deref().map(Capture::create).transpose()?;
    config.tap = capture.as_ref().map(Capture::datagram_tap);
    Ok((Arc::new(Roce::new(config)), capture))
}

/// Returns a UDP port for a command that is both ends, if another program has that of RoCE.
fn free_udp_port() -> Option<u16> {
    let bind = |port| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
    if bind(RoceConfig::default().udp_port).is_ok() {
        return None;
    }
    Some(bind(0).ok()?.local_addr().ok()?.port())
}

/// Returns the configuration of RoCE.
pub(crate) fn roce_config(options: &CommonOptions) -> RoceConfig {
    let default = RoceConfig::default();
    let depth = |option: Option<u16>| option.and_then(|depth| u8::try_from(depth).ok());
    let udp_port = options.udp_port.unwrap_or(default.udp_port);
    RoceConfig {
        ird: depth(options.ird).unwrap_or(default.ird),
        ord: depth(options.ord).unwrap_or(default.ord),
        udp_port,
        peer_udp_port: udp_port,
        ..default
    }
}

/// Congestion control without pacing, for connections within this machine.
const UNPACED: &str = "reno";

/// Returns the congestion control of a connection within this machine, where pacing by bbr would
/// take more CPU time than everything else. `None` leaves it to the system: for other connections,
/// and where the system does not let a socket choose.
fn local_congestion_control(address: &Address) -> Option<&'static str> {
    let ip = match address.host.as_str() {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        host => host.parse::<IpAddr>(),
    };
    ip.ok().filter(IpAddr::is_loopback)?;
    let socket = TcpSocket::new_v4().ok()?;
    set_congestion_control(&socket, UNPACED).ok()?;
    Some(UNPACED)
}

#[cfg(target_os = "linux")]
fn set_congestion_control(socket: &TcpSocket, algorithm: &str) -> io::Result<()> {
    SockRef::from(socket).set_tcp_congestion(algorithm.as_bytes())
}

#[cfg(not(target_os = "linux"))]
fn set_congestion_control(_: &TcpSocket, _: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Creates a socket to connect to `address` or to listen on it. A connection within this machine is
/// not paced.
fn tcp_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if address.ip().is_loopback() {
        // Where the system refuses, the connection is slower.
        let _ = set_congestion_control(&socket, UNPACED);
    }
    Ok(socket)
}

/// Returns the configuration of iWARP.
pub(crate) fn iwarp_config(options: &CommonOptions) -> IwarpConfig {
    let default = IwarpConfig::default();
    IwarpConfig {
        crc: options.mpa_crc.into(),
        // A revision that was asked for has no fallback.
        fall_back: options.mpa_revision.is_none(),
        revision: options.mpa_revision.unwrap_or(default.revision),
        ird: options.ird.unwrap_or(default.ird),
        ord: options.ord.unwrap_or(default.ord),
        tuning: IwarpTuning {
            fpdu_alignment: options.mpa_alignment.into(),
            ..default.tuning
        },
        ..default
    }
}

/// Checks that `address` can be connected to.
///
/// # Errors
/// A usage error that says what it lacks.
pub(crate) fn check_connectable(address: &Address) -> Result<()> {
    if address.host.is_empty() {
        return Err(usage("the address to connect to has no host: HOST[:PORT]"));
    }
    if address.port == Some(0) {
        return Err(usage("port 0 cannot be connected to"));
    }
    Ok(())
}

/// Connects to the first address of `address` that answers.
///
/// # Errors
/// The last address failed: the reason, and what to try.
pub(crate) async fn connect(
    provider: &dyn Provider,
    address: &Address,
    config: &Config,
    options: &ConnectOptions,
) -> Result<Connection> {
    let mut last = None;
    for address in resolve(address, provider.default_port()).await? {
        let fault = match Connection::connect(provider, address, config.clone()).await {
            Ok(connection) => return Ok(connection),
            Err(error) if provider.name() == "verbs" => explain_verbs(&error, address),
            Err(error) if provider.name() == "roce" => explain_roce(&error, address),
            Err(error) => explain_connect(&error, address, options.connect_timeout).await,
        };
        peer_span(address).in_scope(|| debug!("{fault:#}"));
        last = Some(fault);
    }
    Err(last.unwrap_or_else(|| anyhow!("{address} has no addresses")))
}

/// Creates a span for the command's log lines about a connection, with the name and the fields of
/// the library's span. Do not connect in it: the library's span would be its child, and each line
/// would name the connection twice.
pub(crate) fn connection_span(connection: &Connection) -> Span {
    let span = peer_span(connection.remote_address());
    span.record("local", field::display(connection.local_address()));
    span
}

/// Creates the span of a connection of which only the peer is known.
pub(crate) fn peer_span(peer: SocketAddr) -> Span {
    error_span!("connection", %peer, local = field::Empty)
}

/// Returns what follows the address of a listener: the UDP port of RoCE, which its port of SMB Direct is not.
pub(crate) fn listening_over(options: &CommonOptions) -> String {
    match options.transport {
        Transport::Roce => {
            let udp_port = options
                .udp_port
                .unwrap_or_else(|| RoceConfig::default().udp_port);
            format!(" by RoCE, on UDP port {udp_port}")
        }
        _ => String::new(),
    }
}

/// Listens on `address`; without a host, on every address of the machine.
///
/// # Errors
/// The reason, and what to try.
pub(crate) async fn listen(
    provider: Arc<dyn Provider>,
    address: &Address,
    config: &Config,
) -> Result<Listener> {
    let families = Families::of(provider.name());
    let address = resolve_listen(address, provider.default_port(), families).await?;
    Listener::bind(&*provider, address, config.clone())
        .await
        .map_err(|error| explain_listen(&in_short(&error), address))
}

/// Connects by plain TCP to the first address of `address` that answers.
///
/// # Errors
/// The last address failed: the reason, and what to try.
pub(crate) async fn connect_tcp(
    address: &Address,
    default_port: u16,
    limit: Duration,
) -> Result<TcpStream> {
    let mut last = None;
    for address in resolve(address, default_port).await? {
        let connecting = async { tcp_socket(address)?.connect(address).await };
        let fault = match timeout(limit, connecting).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => anyhow!(
                "nothing listens on {address} ({}); start the server there, or check the port",
                report::plain(&error)
            ),
            Ok(Err(error)) => anyhow!(
                "{address} cannot be reached: {}; {}",
                report::plain(&error),
                resources::cure(&error).unwrap_or("check the address and the route to it")
            ),
            Err(_) => unanswered(address, limit),
        };
        last = Some(fault);
    }
    Err(last.unwrap_or_else(|| anyhow!("{address} has no addresses")))
}

/// Listens on `address` for plain TCP; without a host, on every address of the machine.
///
/// # Errors
/// The reason, and what to try.
pub(crate) async fn listen_tcp(address: &Address, default_port: u16) -> Result<TcpListener> {
    let address = resolve_listen(address, default_port, Families::Both).await?;
    let bind = || {
        let socket = tcp_socket(address)?;
        // As tokio does, so that a server can start again while old connections are in TIME_WAIT.
        #[cfg(not(windows))]
        socket.set_reuseaddr(true)?;
        if address.is_ipv6() && address.ip().is_unspecified() {
            accept_ipv4(SockRef::from(&socket));
        }
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bind().map_err(|error: io::Error| explain_listen(&report::plain(&error), address))
}

/// Closes a connection gracefully, and stops waiting after `limit`. A peer that has not answered in time does not
/// answer the end either, so that a connection that timed out ends in the background.
pub(crate) async fn close(connection: &Connection, limit: Duration) {
    if matches!(connection.error(), Some(ConnectionError::TimedOut(_))) {
        return;
    }
    let closed = timeout(limit, connection.close()).await;
    connection_span(connection).in_scope(|| match closed {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "the connection did not end well"),
        Err(_) => debug!("the connection does not end"),
    });
}
