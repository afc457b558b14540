//! Makes providers, connects and listens, and explains why that failed.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use smbdirect::{
    Config, ConnectError, Connection, ConnectionError, Listener,
    rdma::{
        iwarp::{Iwarp, IwarpConfig, IwarpTuning},
        loopback::Loopback,
        provider::Provider,
        roce::{Roce, RoceConfig},
        work::{ProviderError, ProviderErrorKind},
    },
};

use socket2::{Domain, SockRef, Socket, Type};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};
use tracing::{Span, debug, error_span, field};

use crate::{
    options::{Address, CommonOptions, ConnectOptions, Transport, usage},
    pcap::Capture,
    report, resources,
};

/// Most connections that wait to be accepted, as tokio has.
const BACKLOG: u32 = 1024;

/// Longest time for the TCP connection that tells an unreachable host from another service.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

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

/// The address families that a listener without a host accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    /// IPv6 and IPv4, by one IPv6 socket, where the system has IPv6.
    Both,
    /// IPv4 only.
    Ipv4,
}

impl Families {
    /// Returns the families that a listener of the provider called `provider` accepts.
    ///
    /// RDMA adapters stay with IPv4: some refuse IPv4 peers on an IPv6 listener.
    pub(crate) fn of(provider: &str) -> Self {
        match provider {
            "verbs" => Self::Ipv4,
            _ => Self::Both,
        }
    }

    /// Returns the address to bind for every address of the machine.
    fn every_address(self) -> IpAddr {
        match self == Self::Both && is_dual_stack() {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}

/// Has an IPv6 listener accept IPv4 peers too, as the library does for its own. On Linux `net.ipv6.bindv6only`
/// decides.
fn accept_ipv4(socket: SockRef<'_>) {
    if cfg!(not(target_os = "linux")) {
        // Without this option of the system the listener accepts IPv6 peers only.
        let _ = socket.set_only_v6(false);
    }
}

/// Returns whether an IPv6 listener of this system accepts IPv4 peers too.
fn is_dual_stack() -> bool {
    let probe = || {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        accept_ipv4(SockRef::from(&socket));
        socket.bind(&SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0).into())?;
        Ok::<_, io::Error>(!socket.only_v6()?)
    };
    probe().unwrap_or(false)
}

/// Returns the address to listen on for `address`; without a host, every address of `families`.
///
/// # Errors
/// A name that has no address.
pub(crate) async fn resolve_listen(
    address: &Address,
    default_port: u16,
    families: Families,
) -> Result<SocketAddr> {
    if address.host.is_empty() {
        let port = address.port.unwrap_or(default_port);
        return Ok(SocketAddr::new(families.every_address(), port));
    }
    let resolved = resolve(address, default_port).await?;
    let first = resolved.first().copied();
    first.with_context(|| format!("{address} has no addresses"))
}

/// Returns the addresses that `address` stands for.
///
/// # Errors
/// A name that has none.
pub(crate) async fn resolve(address: &Address, default_port: u16) -> Result<Vec<SocketAddr>> {
    let port = address.port.unwrap_or(default_port);
    let host = address.host.as_str();
    let addresses = tokio::net::lookup_host((host, port)).await;
    let addresses = addresses.map_err(|error| {
        let why = report::printable(&error.to_string());
        let why = why.strip_prefix("failed to lookup address information: ");
        match why {
            Some(why) => anyhow!("`{host}` has no address: {why}; check the name"),
            None => anyhow!("`{host}` has no address: {error}; check the name"),
        }
    })?;
    Ok(addresses.collect())
}

async fn explain_connect(
    error: &ConnectError,
    address: SocketAddr,
    limit: Duration,
) -> anyhow::Error {
    match error {
        ConnectError::Provider(error) if error.kind == ProviderErrorKind::TimedOut => {
            explain_silence(address, limit).await
        }
        ConnectError::Provider(error) => explain_provider(error, address),
        ConnectError::Negotiation(ConnectionError::TimedOut(_)) => anyhow!(
            "{address} answers as iWARP but did not negotiate SMB Direct within {}; \
             is it an SMB Direct listener?",
            report::time(limit)
        ),
        ConnectError::Negotiation(ConnectionError::Provider(error)) => {
            anyhow!(
                "{address} hung up during the negotiation of SMB Direct: {error}; its log may say why"
            )
        }
        ConnectError::Negotiation(ConnectionError::Closed(_)) => {
            anyhow!("{address} hung up during the negotiation of SMB Direct; its log may say why")
        }
        ConnectError::Negotiation(error) => {
            anyhow!("SMB Direct was not negotiated with {address}: {error}")
        }
        error => anyhow!("no SMB Direct connection to {address}: {error}"),
    }
}

/// Explains why there is no connection through an adapter.
fn explain_verbs(error: &ConnectError, address: SocketAddr) -> anyhow::Error {
    match error {
        ConnectError::Provider(error) => {
            let what = in_short(error);
            match error.kind {
                ProviderErrorKind::Refused if what == "connection refused" => anyhow!(
                    "nothing listens on {address} ({what}); start `smbdirect listen` there, \
                     or check the port: 445 is for InfiniBand and RoCE, 5445 for iWARP"
                ),
                ProviderErrorKind::Address => anyhow!(
                    "{address} cannot be reached by RDMA: {what}; `smbdirect devices` tells what \
                     there is, `ip route get {}` where it goes",
                    address.ip()
                ),
                ProviderErrorKind::TimedOut => anyhow!(
                    "{address} did not answer by RDMA: {what}; is there an adapter of the same \
                     kind, and the same network?"
                ),
                _ => explain_provider(error, address),
            }
        }
        ConnectError::Negotiation(error) => anyhow!(
            "SMB Direct was not negotiated with {address}: {error}; is it an SMB Direct listener?"
        ),
        error => anyhow!("no SMB Direct connection to {address}: {error}"),
    }
}

/// Explains why there is no connection over RoCE in software.
fn explain_roce(error: &ConnectError, address: SocketAddr) -> anyhow::Error {
    match error {
        ConnectError::Provider(error) => {
            let what = in_short(error);
            match error.kind {
                ProviderErrorKind::Refused if what == "connection refused" => anyhow!(
                    "nothing listens on {address} by RoCE ({what}); start `smbdirect listen \
                     --transport roce` there, or check the port: 445 is for RoCE, 5445 for iWARP"
                ),
                ProviderErrorKind::Refused if what.starts_with("connection refused") => anyhow!(
                    "no RoCE listener answers on {} ({what}); start `smbdirect listen --transport \
                     roce` there, check --udp-port at both ends, or have the firewall there admit the port",
                    address.ip()
                ),
                ProviderErrorKind::TimedOut => anyhow!(
                    "{what}; check the address, and that firewalls pass that UDP port in both \
                     directions, or give it more time by --connect-timeout"
                ),
                ProviderErrorKind::Address => explain_provider(error, address),
                _ => anyhow!("no RDMA connection to {address}: {what}"),
            }
        }
        ConnectError::Negotiation(error) => anyhow!(
            "SMB Direct was not negotiated with {address}: {error}; is it an SMB Direct listener?"
        ),
        error => anyhow!("no SMB Direct connection to {address}: {error}"),
    }
}

fn explain_provider(error: &ProviderError, address: SocketAddr) -> anyhow::Error {
    let what = in_short(error);
    match error.kind {
        ProviderErrorKind::Refused if what == "connection refused" => anyhow!(
            "nothing listens on {address} ({what}); start `smbdirect listen` there, or check the port \
             and --transport: this end uses iWARP"
        ),
        ProviderErrorKind::Refused => anyhow!("{address} turned the connection away: {what}"),
        ProviderErrorKind::Address => {
            anyhow!("{address} cannot be reached: {what}; check the address and the route to it")
        }
        ProviderErrorKind::Reset => no_iwarp(address),
        // The peer answered with something other than an MPA Reply.
        ProviderErrorKind::Protocol if what.contains("MPA frame") => no_iwarp(address),
        ProviderErrorKind::Protocol => {
            anyhow!("{address} does not speak iWARP as it should: {what}; check the port")
        }
        _ => anyhow!("no RDMA connection to {address}: {what}"),
    }
}

/// Returns the message of a provider without the words that the sentence around it repeats.
fn in_short(error: &ProviderError) -> String {
    let what = &*error.what;
    let what = ["connecting: ", "listening: "]
        .iter()
        .find_map(|prefix| what.strip_prefix(prefix))
        .unwrap_or(what);
    report::plain(&what)
}

fn no_iwarp(address: SocketAddr) -> anyhow::Error {
    anyhow!("{address} accepts TCP but does not answer as iWARP; is it an SMB Direct listener?")
}

/// Explains a timeout: whether TCP connects tells an unreachable host from another service.
async fn explain_silence(address: SocketAddr, limit: Duration) -> anyhow::Error {
    let probe = timeout(limit.min(PROBE_TIMEOUT), TcpStream::connect(address)).await;
    if let Ok(Ok(_)) = probe {
        return no_iwarp(address);
    }
    unanswered(address, limit)
}

fn unanswered(address: SocketAddr, limit: Duration) -> anyhow::Error {
    let limit = report::time(limit);
    anyhow!(
        "{address} did not answer within {limit}; check the address and firewalls between, \
         or give it more by --connect-timeout"
    )
}

fn explain_listen(text: &str, address: SocketAddr) -> anyhow::Error {
    let cure = if text.contains("UDP port") {
        "stop that, or remove the rxe device (rdma link delete) if it is one; or listen on one address each, or \
         on another UDP port by --udp-port, and connect with the same option"
    } else if text.contains("in use") {
        "another program listens there; stop it, or give another port as ADDR"
    } else if text.contains("permission") {
        "ports below 1024 need administrator rights; give a higher one as ADDR"
    } else if text.contains("assign") {
        "it is no address of this machine; leave the host out to listen on all of them"
    } else {
        "give another address as ADDR"
    };
    anyhow!("cannot listen on {address}: {text}; {cure}")
}

/// Explains why a connection ended, and what to try.
pub(crate) fn explain_end(error: &ConnectionError) -> String {
    match error {
        ConnectionError::TimedOut(_) => {
            format!("{error}; the peer or the network between is stuck")
        }
        error => error.to_string(),
    }
}

/// Closes a connection gracefully, and stops waiting after `limit`.
pub(crate) async fn close(connection: &Connection, limit: Duration) {
    let closed = timeout(limit, connection.close()).await;
    connection_span(connection).in_scope(|| match closed {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "the connection did not end well"),
        Err(_) => debug!("the connection does not end"),
    });
}
