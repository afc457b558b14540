//! A connected TCP socket: startup frames as futures, FPDUs without waiting.

use std::{
    io::{self, IoSlice, IoSliceMut, Read},
    net::{IpAddr, Shutdown, SocketAddr},
    sync::Arc,
    time::Duration,
};

#[cfg(target_os = "linux")]
use nix::sys::socket::setsockopt;
use socket2::{SockRef, TcpKeepalive};
use tokio::{io::Interest, net::TcpStream};

#[cfg(target_os = "linux")]
use super::options::ReceiveLowWater;
use super::{
    config::IwarpConfig,
    options::{is_controlled_by_bbr, set_congestion_control, tcp_state},
    tap::Tap,
};
use crate::{
    deadline::within,
    iwarp::{
        alignment::TcpState,
        handshake::malformed,
        mpa::{self, FrameKind, StartupError, StartupFrame},
        stream::Stream,
    },
    runtime::MSG_NOSIGNAL,
    software::cold_path,
    software::direction::Direction,
    software::os_error::os_error,
    work::ProviderError,
};

/// The most reads from a refused peer before the connection is closed.
const MAX_DRAIN_READS: usize = 64;
/// The time between two probes of the peer's window.
const WINDOW_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// The most slices in one write. A large FPDU takes two.
const MAX_SLICES_PER_WRITE: usize = 256;
/// The number of slices that is tried first, because preparing [`MAX_SLICES_PER_WRITE`] slices
/// takes longer than sending a few small FPDUs.
const SMALL_WRITE_SLICES: usize = 4;
/// The most bytes that wait for the socket, and therefore the most bytes of one write.
///
/// Between two cores of one machine with reno and cubic, RDMA is 3 to 17 % faster than with
/// [`MAX_BACKLOG_BBR`].
const MAX_BACKLOG: usize = 1024 * 1024;
/// [`MAX_BACKLOG`] with bbr, which paces the connection. With 1 MiB, RDMA of 64 KiB has a third of the
/// rate over a veth pair.
const MAX_BACKLOG_BBR: usize = 512 * 1024;
/// The flag that keeps Linux from appending later bytes to the last segment of a write, even when it
/// retransmits the segment. If the send buffer is full, Linux accepts a write up to a multiple of the
/// segment size, unless the kernel runs out of memory.
const MSG_EOR: i32 = if cfg!(target_os = "linux") { 0x80 } else { 0 };

/// A TCP connection, its addresses and the observer of its bytes.
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    tap: Option<Arc<dyn Tap>>,
}

/// The reason why no startup frame was exchanged.
pub(super) enum FrameError {
    /// The connection was lost before the peer sent a byte, or while this end sent a frame.
    BeforeFirstByte(ProviderError),
    /// The connection was lost within the frame.
    Lost(ProviderError),
    /// The bytes are not the expected frame.
    Malformed(StartupError),
}

impl FrameError {
    /// Returns the error for the caller of the provider.
    pub(super) fn to_error(&self) -> ProviderError {
        match self {
            Self::BeforeFirstByte(error) | Self::Lost(error) => error.clone(),
            Self::Malformed(error) => malformed(*error),
        }
    }
}

/// Returns the IPv4 address of a connection that an IPv6 listener accepted for IPv4, so that a peer has the same
/// address in logs and for the upper layer, independent of the listener that accepted it. Other addresses are
/// unchanged.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // An IPv6 address keeps its scope.
        IpAddr::V6(_) => address,
    }
}

impl Socket {
    /// Sets the options of a connected socket.
    pub(super) fn new(stream: TcpStream, config: &IwarpConfig) -> io::Result<Self> {
        //= MPA-28
        stream.set_nodelay(true)?;
        // A route may set another algorithm, and on some systems accepted sockets do not inherit the algorithm of
        // the listener.
        set_congestion_control(&stream, config)?;
        config.network.apply_dscp(&SockRef::from(&stream))?;
        let local = canonical(stream.local_addr()?);
        let remote = canonical(stream.peer_addr()?);
        config
            .tuning
            .send_buffer
            .apply(&SockRef::from(&stream), local, remote);
        Ok(Self {
            local,
            remote,
            stream,
            tap: config.tap.clone(),
        })
    }

    /// Reads a startup frame and no byte more, because later bytes belong to the stream.
    pub(super) async fn read_frame(&self, kind: FrameKind) -> Result<StartupFrame, FrameError> {
        //= MPA-08
        //= SEC-06
        let mut bytes = Vec::new();
        loop {
            let missing = match StartupFrame::decode(kind, &bytes) {
                Ok(frame) => {
                    self.tap_bytes(Direction::Received, &bytes);
                    return Ok(frame);
                }
                Err(StartupError::Incomplete { needed }) => needed - bytes.len(),
                Err(error) => return Err(FrameError::Malformed(error)),
            };
            let mut more = vec![0; missing];
            let read = match self.stream.readable().await {
                Ok(()) => self.stream.try_read(&mut more),
                Err(error) => Err(error),
            };
            let lost = match read {
                Ok(0) => os_error("the startup", &io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    bytes.extend_from_slice(&more[..count]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => os_error("the startup", &error),
            };
            return Err(if bytes.is_empty() {
                FrameError::BeforeFirstByte(lost)
            } else {
                FrameError::Lost(lost)
            });
        }
    }

    /// Writes a startup frame.
    pub(super) async fn write_frame(&self, frame: &StartupFrame) -> Result<(), FrameError> {
        let mut bytes = Vec::with_capacity(frame.encoded_length());
        frame.encode(&mut bytes);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let written = match self.stream.writable().await {
                //= MPA-05
                Ok(()) => self.stream.try_write(rest),
                Err(error) => Err(error),
            };
            match written {
                Ok(count) => {
                    self.tap_bytes(Direction::Sent, &rest[..count]);
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    return Err(FrameError::BeforeFirstByte(os_error("the startup", &error)));
                }
            }
        }
        Ok(())
    }

    /// Writes as much of a startup frame as the socket accepts without waiting.
    pub(super) fn try_send_frame(&self, frame: &StartupFrame) {
        let mut bytes = Vec::with_capacity(frame.encoded_length());
        frame.encode(&mut bytes);
        self.try_write(&bytes);
    }

    /// Reads from a refused peer until it closes the connection, until `close_timeout` is over, or
    /// [`MAX_DRAIN_READS`] times. The peer must be able to read the refusal before this end closes:
    /// siw treats a FIN directly after a refusal as a failure of its own, and TCP discards sent data
    /// if it is closed with bytes unread.
    pub(super) async fn drain_until_close(self, close_timeout: Duration) {
        //= MPA-37
        let mut discarded = [0; 4096];
        let until_peer_closes = async {
            for _ in 0..MAX_DRAIN_READS {
                match self
                    .stream
                    .readable()
                    .await
                    .map(|()| self.stream.try_read(&mut discarded))
                {
                    Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(Ok(1..)) => {}
                    _ => return,
                }
            }
        };
        // The connection is closed in either case.
        let _ = within(close_timeout, until_peer_closes).await;
    }

    /// Writes what the socket accepts without waiting, and sends FIN.
    pub(super) fn write_and_shut_down(&self, bytes: &[u8]) {
        self.try_write(bytes);
        self.shut_down();
    }

    /// Writes what the socket accepts without waiting. Errors are ignored.
    fn try_write(&self, bytes: &[u8]) {
        if let Ok(count) = SockRef::from(&self.stream).send_with_flags(bytes, MSG_NOSIGNAL) {
            self.tap_bytes(Direction::Sent, &bytes[..count]);
        }
    }

    /// Sends FIN.
    pub(super) fn shut_down(&self) {
        // This fails only if the connection is gone already.
        let _ = SockRef::from(&self.stream).shutdown(Shutdown::Write);
    }

    /// Moves the socket to the current runtime.
    pub(super) fn change_runtime(self) -> io::Result<Self> {
        let stream = TcpStream::from_std(self.stream.into_std()?)?;
        Ok(Self { stream, ..self })
    }

    /// Returns how many bytes the peer has acknowledged, or 0 if the system does not report this.
    pub(super) fn acknowledged_bytes(&self) -> u64 {
        let window = tcp_state(&self.stream).and_then(|state| state.window);
        window.map_or(0, |window| window.acknowledged)
    }

    /// Returns whether the peer has acknowledged everything, as far as the system reports it.
    pub(super) fn is_all_acknowledged(&self) -> bool {
        let window = tcp_state(&self.stream).and_then(|state| state.window);
        window.is_none_or(|window| window.all_acknowledged)
    }

    /// Makes closing the socket send RST, which tells the peer that this is not a graceful end.
    pub(super) fn reset(&self) {
        // This fails only if the connection is gone already.
        let _ = self.stream.set_zero_linger();
    }

    /// Makes the socket wake its reader only when `bytes` bytes have arrived. Lowering the value
    /// wakes the reader if that many bytes have arrived already.
    #[cfg(target_os = "linux")]
    pub(super) fn set_low_water(&self, bytes: usize) {
        // If this fails, the reader is woken as soon as any byte arrives.
        let _ = setsockopt(&self.stream, ReceiveLowWater, &(bytes as i32));
    }

    /// Does nothing: on other systems a socket may report that it is readable before the low-water
    /// mark is reached.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn set_low_water(&self, _bytes: usize) {}

    /// Passes `bytes` to the tap, if there is one.
    fn tap_bytes(&self, direction: Direction, bytes: &[u8]) {
        if let Some(tap) = &self.tap
            && !bytes.is_empty()
        {
            cold_path();
            tap.bytes(direction, self.local, self.remote, bytes);
        }
    }

    /// Reports one system call to the tap, if there is one.
    fn tap_call(&self, direction: Direction, count: Option<usize>) {
        if let Some(tap) = &self.tap {
            cold_path();
            tap.call(direction, count.unwrap_or(0));
        }
    }

    /// Reads once into both slices and returns the number of bytes. A short read clears the
    /// socket's readiness. That happens within `try_io`, so that bytes which arrive at this moment
    /// set it again. With `skip_readiness_check` the readiness is neither checked nor cleared.
    pub(super) fn read(
        &self,
        slices: [&mut [u8]; 2],
        skip_readiness_check: bool,
    ) -> io::Result<usize> {
        let [first, second] = slices;
        let room = first.len() + second.len();
        let mut count = None;
        let mut once = || {
            let socket = SockRef::from(&self.stream);
            let read = if first.is_empty() {
                (&*socket).read(second)?
            } else {
                (&*socket).read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(second)])?
            };
            count = Some(read);
            match read {
                0 => Ok(()),
                read if read < room => Err(io::ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            }
        };
        let outcome = if skip_readiness_check {
            once()
        } else {
            self.stream.try_io(Interest::READABLE, once)
        };
        self.tap_call(Direction::Received, count);
        let Some(count) = count else {
            return outcome.map(|()| 0);
        };
        let placed = count.min(first.len());
        self.tap_bytes(Direction::Received, &first[..placed]);
        self.tap_bytes(Direction::Received, &second[..count - placed]);
        Ok(count)
    }

    /// Writes the next bytes of `machine` in one system call and returns how many were written.
    pub(super) fn write_from(&self, machine: &Stream) -> io::Result<usize> {
        let mut first_slices = [IoSlice::new(&[]); SMALL_WRITE_SLICES];
        let count = machine.transmit_slices(&mut first_slices);
        if count < first_slices.len() {
            return self.write(&first_slices[..count], 0);
        }
        let mut slices = [IoSlice::new(&[]); MAX_SLICES_PER_WRITE];
        let count = machine.transmit_slices(&mut slices);
        self.write(&slices[..count], 0)
    }

    /// Writes the next record of `machine`, of `length` bytes, in one system call and returns how many
    /// bytes were written. TCP appends nothing to its last segment.
    pub(super) fn write_record(&self, machine: &Stream, length: usize) -> io::Result<usize> {
        //= MPA-35
        let mut first_slices = [IoSlice::new(&[]); SMALL_WRITE_SLICES];
        let count = machine.record_slices(&mut first_slices, length);
        if count < first_slices.len() {
            return self.write(&first_slices[..count], MSG_EOR);
        }
        let mut slices = [IoSlice::new(&[]); MAX_SLICES_PER_WRITE];
        let count = machine.record_slices(&mut slices, length);
        self.write(&slices[..count], MSG_EOR)
    }

    /// Writes all slices in one system call and returns the number of bytes. A short write clears
    /// the socket's readiness.
    fn write(&self, slices: &[IoSlice<'_>], flags: i32) -> io::Result<usize> {
        let flags = MSG_NOSIGNAL | flags;
        let mut count = None;
        let outcome = self.stream.try_io(Interest::WRITABLE, || {
            let socket = SockRef::from(&self.stream);
            let written = match slices {
                [slice] => socket.send_with_flags(slice, flags)?,
                slices => socket.send_vectored_with_flags(slices, flags)?,
            };
            count = Some(written);
            if written < slices.iter().map(|slice| slice.len()).sum() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        self.tap_call(Direction::Sent, count);
        let Some(count) = count else {
            return outcome.map(|()| 0);
        };
        if self.tap.is_some() {
            cold_path();
            let mut rest = count;
            for slice in slices {
                let shown = slice.len().min(rest);
                self.tap_bytes(Direction::Sent, &slice[..shown]);
                rest -= shown;
            }
        }
        Ok(count)
    }

    /// Returns the most bytes that should wait for this socket.
    pub(super) fn max_backlog(&self) -> usize {
        if is_controlled_by_bbr(&self.stream) {
            MAX_BACKLOG_BBR
        } else {
            MAX_BACKLOG
        }
    }

    /// Returns the longest FPDU, in bytes, that fits the current size of a TCP segment.
    pub(super) fn max_fpdu(&self) -> usize {
        mpa::max_fpdu(max_segment_size(&self.stream))
    }

    /// Returns the state of the connection that the alignment of FPDUs depends on.
    pub(super) fn tcp_state(&self) -> TcpState {
        tcp_state(&self.stream).unwrap_or_else(|| TcpState {
            segment: max_segment_size(&self.stream),
            window: None,
        })
    }

    /// Makes TCP probe the window of the peer while all sent data is acknowledged. If the segment that opens the
    /// window is lost, nothing else would report the open window. Returns whether this call enabled the probes.
    pub(super) fn start_probing(&self) -> bool {
        let socket = SockRef::from(&self.stream);
        if socket.keepalive().unwrap_or(true) {
            return false;
        }
        let probes = TcpKeepalive::new()
            .with_time(WINDOW_PROBE_INTERVAL)
            .with_interval(WINDOW_PROBE_INTERVAL);
        // If this fails, the wait ends later.
        let _ = socket.set_tcp_keepalive(&probes);
        true
    }

    /// Ends what [`start_probing`](Self::start_probing) started.
    pub(super) fn stop_probing(&self) {
        let _ = SockRef::from(&self.stream).set_keepalive(false);
    }
}

/// The maximum segment size of TCP over IPv4 on Ethernet, in bytes, for systems that do not report the maximum
/// segment size of a connection.
const ETHERNET_MSS: u32 = 1460;

/// Returns the current maximum segment size of a connection, in bytes.
#[cfg(unix)]
fn max_segment_size(stream: &TcpStream) -> u32 {
    SockRef::from(stream).tcp_mss().unwrap_or(ETHERNET_MSS)
}

/// Returns the maximum segment size on Ethernet, because the socket library of this system has no option that
/// returns the size of a connection. A larger FPDU is legal: TCP cuts it into segments.
#[cfg(not(unix))]
fn max_segment_size(_: &TcpStream) -> u32 {
    ETHERNET_MSS
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{super::options::bind, *};
    use crate::iwarp::{IwarpTuning, send_buffer::SendBuffer};

    #[tokio::test]
    async fn sockets_have_the_configured_send_buffer() {
        const MIB: usize = 1024 * 1024;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = bind(any, &IwarpConfig::default()).unwrap();
        let connect = async || {
            TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap()
        };
        let size = |stream: &TcpStream| SockRef::from(stream).send_buffer_size().unwrap();
        // Linux sets twice the requested size, up to a maximum, which the largest request yields.
        let stream = connect().await;
        let system_default = size(&stream);
        let largest = SockRef::from(&stream).set_send_buffer_size(i32::MAX as usize);
        largest.unwrap();
        let largest = size(&stream);
        // `Auto` requests nothing if the system does not show how far buffers grow.
        let grown = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap_or_default();
        let grown = grown.split_whitespace().nth(2);
        let grown: usize = grown.map_or(0, |most| most.parse().unwrap());
        let bounded = largest >= 2 * MIB && grown > 2 * MIB;
        for (send_buffer, expected) in [
            (SendBuffer::Bytes(65_536), largest.min(131_072)),
            (SendBuffer::Bytes(u32::MAX), largest),
            (SendBuffer::System, system_default),
            (
                SendBuffer::Auto,
                if bounded { 2 * MIB } else { system_default },
            ),
        ] {
            let config = IwarpConfig {
                tuning: IwarpTuning {
                    send_buffer,
                    ..IwarpTuning::default()
                },
                ..IwarpConfig::default()
            };
            let socket = Socket::new(connect().await, &config).unwrap();
            assert_eq!(size(&socket.stream), expected, "{send_buffer:?}");
        }
    }
}
