//! Sockets before they have a peer, and the socket options that they need.

#[cfg(any(target_os = "linux", target_os = "freebsd"))]
use std::os::fd::AsFd;
use std::{
    io,
    net::{self, SocketAddr},
};

#[cfg(target_os = "linux")]
use std::sync::LazyLock;

#[cfg(target_os = "linux")]
use nix::{
    getsockopt_impl, libc, setsockopt_impl, sockopt_impl,
    sys::{socket::getsockopt, utsname::uname},
};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};

use super::config::IwarpConfig;
use crate::iwarp::alignment::TcpState;
#[cfg(target_os = "linux")]
use crate::iwarp::alignment::Window;

/// Creates a listening socket. The sockets that it accepts inherit its congestion control.
pub(super) fn bind(address: SocketAddr, config: &IwarpConfig) -> io::Result<TcpListener> {
    let socket = new_socket(address, config)?;
    // The option is set as for tokio's own listeners, so that a restarted server can bind while old connections
    // linger.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    accept_ipv4(&socket, address);
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Makes a listener on `[::]` accept IPv4 peers too. On Windows and FreeBSD it does not accept them by default, and on
/// Linux `net.ipv6.bindv6only` decides.
fn accept_ipv4(socket: &TcpSocket, address: SocketAddr) {
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Without this option of the system the listener accepts IPv6 peers only.
        let _ = SockRef::from(socket).set_only_v6(false);
    }
}

/// Prepares a listening socket that was opened elsewhere.
pub(super) fn adopt(listener: net::TcpListener, config: &IwarpConfig) -> io::Result<TcpListener> {
    config.network.apply(&SockRef::from(&listener))?;
    set_congestion_control(&listener, config)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// The most connections that wait to be accepted, equal to tokio's own default.
const LISTEN_BACKLOG: u32 = 128;

/// Creates a socket without a peer, for the address family of `address`.
pub(super) fn new_socket(address: SocketAddr, config: &IwarpConfig) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    config.network.apply(&SockRef::from(&socket))?;
    set_congestion_control(&socket, config)?;
    Ok(socket)
}

/// Sets the congestion control of a socket, preferably before it has a peer. A connection keeps
/// some traits of the algorithm that it started with: Linux keeps pacing a connection that started
/// with bbr, with a timer for every few segments.
#[cfg(any(target_os = "linux", target_os = "freebsd"))]
pub(super) fn set_congestion_control(socket: &impl AsFd, config: &IwarpConfig) -> io::Result<()> {
    let Some(algorithm) = &config.tuning.congestion_control else {
        return Ok(());
    };
    let socket = SockRef::from(socket);
    let current = socket.tcp_congestion()?;
    let current = current.split(|&byte| byte == 0).next().unwrap_or_default();
    if current == algorithm.as_bytes() {
        return Ok(());
    }
    socket.set_tcp_congestion(algorithm.as_bytes())
}

/// Returns whether bbr controls the congestion of a connection. It then paces the connection.
#[cfg(any(target_os = "linux", target_os = "freebsd"))]
pub(super) fn is_controlled_by_bbr(socket: &impl AsFd) -> bool {
    let algorithm = SockRef::from(socket).tcp_congestion();
    algorithm.is_ok_and(|name| name.starts_with(b"bbr"))
}

/// Returns false, because this system does not report the algorithm.
#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
pub(super) fn is_controlled_by_bbr<S>(_: &S) -> bool {
    false
}

/// Returns an error if a congestion control is configured, because this system offers no choice.
#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
pub(super) fn set_congestion_control<S>(_: &S, config: &IwarpConfig) -> io::Result<()> {
    match config.tuning.congestion_control {
        Some(_) => Err(io::ErrorKind::Unsupported.into()),
        None => Ok(()),
    }
}

#[cfg(target_os = "linux")]
sockopt_impl!(
    /// `SO_RCVLOWAT`: the bytes that must have arrived before the reader is woken.
    ReceiveLowWater,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_RCVLOWAT,
    i32
);

/// The fields of `struct tcp_info` of Linux that the alignment of FPDUs depends on.
#[cfg(target_os = "linux")]
#[expect(unreachable_pub, reason = "the macro makes the option public")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TcpInfo {
    to_snd_mss: [u32; 4],
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    to_bytes_acked: [u32; 23],
    bytes_acked: u64,
    to_notsent_bytes: [u32; 4],
    notsent_bytes: u32,
    to_rcv_ooopack: [u32; 19],
    rcv_ooopack: u32,
    snd_wnd: u32,
}

#[cfg(target_os = "linux")]
sockopt_impl!(
    /// `TCP_INFO`: the state of a connection, up to the field `tcpi_snd_wnd`.
    TcpInfoUpToWindow,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    TcpInfo
);

/// Whether the kernel reports all fields of [`TcpInfo`]. Linux 5.4 added the last ones.
#[cfg(target_os = "linux")]
static REPORTS_WINDOW: LazyLock<bool> = LazyLock::new(|| {
    let Ok(system) = uname() else { return false };
    let release = system.release().to_string_lossy();
    let mut numbers = release
        .split(|digit: char| !digit.is_ascii_digit())
        .map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 4)
});

/// Returns the state of a connection; `None` if the system does not report all of it.
#[cfg(target_os = "linux")]
pub(super) fn tcp_state(socket: &impl AsFd) -> Option<TcpState> {
    if !*REPORTS_WINDOW {
        return None;
    }
    let info = getsockopt(socket, TcpInfoUpToWindow).ok()?;
    Some(TcpState {
        segment: info.snd_mss,
        window: Some(Window {
            bytes: info.snd_wnd,
            acknowledged: info.bytes_acked,
            all_acknowledged: info.unacked == 0 && info.notsent_bytes == 0,
            out_of_order: info.rcv_ooopack,
        }),
    })
}

/// Returns `None`, because this system has no such report.
#[cfg(not(target_os = "linux"))]
pub(super) fn tcp_state<S>(_: &S) -> Option<TcpState> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use socket2::SockRef;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::{NetworkSettings, iwarp::IwarpTuning};

    /// Packets have the DSCP from the first one on, so accepted sockets inherit it from the listener.
    #[tokio::test]
    async fn both_ends_of_a_connection_have_the_dscp_and_the_interface() {
        let network = NetworkSettings {
            dscp: 26,
            interface: Some("lo".into()),
        };
        let config = IwarpConfig {
            network,
            ..IwarpConfig::default()
        };
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let address: SocketAddr = address.parse().unwrap();
            let Ok(listener) = bind(address, &config) else {
                assert!(address.is_ipv6(), "a machine without IPv6");
                continue;
            };
            let mut to = listener.local_addr().unwrap();
            if address.ip().is_unspecified() {
                to.set_ip(net::Ipv4Addr::LOCALHOST.into());
            }
            let connecting = new_socket(to, &config).unwrap().connect(to);
            let (stream, accepted) = tokio::join!(connecting, listener.accept());
            for stream in [stream.unwrap(), accepted.unwrap().0] {
                let socket = SockRef::from(&stream);
                let class = if to.is_ipv6() {
                    socket.tclass_v6()
                } else {
                    socket.tos_v4()
                };
                assert_eq!(class.unwrap(), 26 << 2, "{address}");
                assert_eq!(socket.device().unwrap().as_deref(), Some(&b"lo"[..]));
            }
        }
    }

    #[tokio::test]
    async fn the_state_of_a_connection_has_its_segment_size_and_its_window() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = bind(any, &IwarpConfig::default()).unwrap();
        let socket = new_socket(any, &IwarpConfig::default()).unwrap();
        let connecting = socket.connect(listener.local_addr().unwrap());
        let mut ours = connecting.await.unwrap();
        let (mut theirs, _) = listener.accept().await.unwrap();
        let Some(before) = tcp_state(&ours) else {
            assert!(!*REPORTS_WINDOW);
            return;
        };
        let mss = SockRef::from(&ours).tcp_mss().unwrap();
        assert_eq!(before.segment, mss);
        let before = before.window.unwrap();
        assert!(
            before.all_acknowledged && before.bytes >= 1000,
            "{before:?}"
        );
        ours.write_all(&[7; 1000]).await.unwrap();
        theirs.read_exact(&mut [0; 1000]).await.unwrap();
        theirs.write_all(&[8]).await.unwrap();
        ours.read_exact(&mut [0]).await.unwrap();
        let after = tcp_state(&ours).unwrap().window.unwrap();
        assert_eq!(after.acknowledged - before.acknowledged, 1000);
        assert!(after.all_acknowledged, "{after:?}");
        assert_eq!(after.out_of_order, 0);
    }

    // The algorithm is set before the connection exists, because Linux keeps pacing a connection that started
    // with bbr.
    #[tokio::test]
    async fn connections_start_with_the_configured_congestion_control() {
        let congestion = |socket: SockRef<'_>| {
            let name = socket.tcp_congestion().unwrap();
            String::from_utf8(name).unwrap().replace('\0', "")
        };
        // Every user may select this algorithm.
        let config = IwarpConfig {
            tuning: IwarpTuning {
                congestion_control: Some("reno".into()),
                ..IwarpTuning::default()
            },
            ..IwarpConfig::default()
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = bind(any, &config).unwrap();
        let address = listener.local_addr().unwrap();
        let socket = new_socket(address, &config).unwrap();
        assert_eq!(congestion((&socket).into()), "reno");
        let ours = socket.connect(address).await.unwrap();
        let (theirs, _) = listener.accept().await.unwrap();
        for stream in [&ours, &theirs] {
            assert_eq!(congestion(stream.into()), "reno");
        }
    }

    #[tokio::test]
    async fn bbr_is_recognised() {
        let socket = new_socket(
            SocketAddr::from(([127, 0, 0, 1], 0)),
            &IwarpConfig::default(),
        );
        let socket = socket.unwrap();
        let allowed = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
        let allowed = std::fs::read_to_string(allowed).unwrap();
        assert!(
            allowed.contains("reno"),
            "every user may select reno: {allowed}"
        );
        for algorithm in allowed.split_whitespace() {
            SockRef::from(&socket)
                .set_tcp_congestion(algorithm.as_bytes())
                .unwrap();
            assert_eq!(is_controlled_by_bbr(&socket), algorithm == "bbr");
        }
    }
}
