//! The settings of the iWARP provider.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::tap::Tap;
use crate::{
    iwarp::{
        alignment::FpduAlignment,
        send_buffer::SendBuffer,
        startup::{MpaCrc, MpaPreferences},
    },
    software::network::NetworkSettings,
    work::{ProviderError, ProviderErrorKind},
};

/// The settings of [`Iwarp`](super::Iwarp). Begin with the defaults, and change fields:
///
/// ```
/// use smbdirect_rdma::iwarp::{Iwarp, IwarpConfig};
///
/// let mut config = IwarpConfig::default();
/// config.ird = 64;
/// config.tuning.startup_probe = false;
/// let provider = Iwarp::new(config);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IwarpConfig {
    /// Selects the connections whose FPDUs carry a CRC. The default is [`MpaCrc::Auto`].
    pub crc: MpaCrc,
    /// IRD: the most RDMA Reads that a peer may have outstanding, rounded up to a power of two; at
    /// most 128. The default is 32.
    pub ird: u16,
    /// ORD: the most RDMA Reads that this end has outstanding; at most 128, and never more than
    /// the peer serves. The default is 32.
    pub ord: u16,
    /// The MPA revision to connect with: 2, or 1 for peers without RFC 6581. The default is 2.
    pub revision: u8,
    /// Whether to connect again with revision 1 if a peer closes or refuses a connection of
    /// revision 2. The default is true.
    pub fall_back: bool,
    /// The longest time to wait for TCP to connect, and then again for the Reply. After each of the first three
    /// stalls of this process, the peer gets one more second. The default is 10 s.
    pub connect_timeout: Duration,
    /// The longest time to wait for the Request of a peer that has connected. The default is 5 s.
    pub accept_timeout: Duration,
    /// The longest time without progress after a graceful disconnect, until posted work is finished and the
    /// peer's FIN has arrived. Progress is 64 KiB in this time. The timeout also bounds the wait for the peer's
    /// FIN after a refusal. The default is 5 s.
    pub close_timeout: Duration,
    /// The most peers of one listener that may have connected without having sent their Request.
    /// Further connections wait in the backlog of the operating system. The default is 64.
    pub max_half_open: usize,
    /// The DSCP and the interface of the packets.
    pub network: NetworkSettings,
    /// The settings for a particular network or peer.
    pub tuning: IwarpTuning,
    /// An observer of all bytes of all connections. The default is none.
    #[doc(hidden)]
    pub tap: Option<Arc<dyn Tap>>,
}

/// The settings of [`IwarpConfig`] that tune the provider for a network or a peer. The defaults suit all known
/// peers; change one only after a measurement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IwarpTuning {
    /// The longest FPDU to send, in bytes, for peers that accept FPDUs longer than a TCP segment;
    /// at most 65536. `None` uses 65536 towards a peer that is this library, and the size of a TCP
    /// segment towards any other peer, because adapters may require that. The default is
    /// `None`.
    pub max_fpdu: Option<u32>,
    /// How FPDUs are aligned with TCP segments (RFC 5044, sections 4.5 and 5.1). Where FPDUs are
    /// aligned, none is longer than a TCP segment, regardless of `max_fpdu`. The default is
    /// [`FpduAlignment::Auto`].
    pub fpdu_alignment: FpduAlignment,
    /// Whether an initiator whose first FPDUs are not answered sends up to three RDMA Writes of
    /// length 0 within the first second, unless the peer is known to be this library. Linux siw
    /// may overlook the first FPDU until more bytes arrive. The default is true.
    pub startup_probe: bool,
    /// How long a connection polls for more bytes before it sleeps, once at least 16 KiB have moved since its
    /// last sleep. With zero it sleeps immediately.
    ///
    /// Polling costs CPU time. Each time that polling finds nothing, the connection polls less often, down to one
    /// in 64 opportunities. A wake-up takes microseconds on bare metal, and about a hundred times as long in some
    /// virtual machines. The default is 100 µs.
    pub poll_window: Duration,
    /// The TCP congestion control algorithm, by the operating system's name for it; `None` keeps
    /// the system's default. Only Linux and FreeBSD support the choice. `connect` and `listen` fail
    /// if the algorithm is missing or not permitted. The default is `None`.
    pub congestion_control: Option<String>,
    /// The size of the operating system's send buffer. The default is [`SendBuffer::Auto`].
    pub send_buffer: SendBuffer,
}

impl Default for IwarpTuning {
    fn default() -> Self {
        Self {
            max_fpdu: None,
            fpdu_alignment: FpduAlignment::Auto,
            startup_probe: true,
            poll_window: Duration::from_micros(100),
            congestion_control: None,
            send_buffer: SendBuffer::Auto,
        }
    }
}

impl Default for IwarpConfig {
    fn default() -> Self {
        //= MPA-30
        Self {
            crc: MpaCrc::Auto,
            ird: 32,
            ord: 32,
            revision: 2,
            fall_back: true,
            connect_timeout: Duration::from_secs(10),
            accept_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            max_half_open: 64,
            network: NetworkSettings::default(),
            tuning: IwarpTuning::default(),
            tap: None,
        }
    }
}

impl IwarpConfig {
    /// Returns the settings for the negotiation.
    pub(super) const fn preferences(&self) -> MpaPreferences {
        MpaPreferences {
            crc: self.crc,
            ird: self.ird,
            ord: self.ord,
        }
    }
}

/// The most bytes of private data that every known peer accepts, in addition to the bytes that this library adds.
const MAX_PRIVATE_DATA: usize = 200;

/// Returns an error if `private_data` is longer than a startup frame may carry.
pub(super) fn check_private_data(private_data: &Bytes) -> Result<(), ProviderError> {
    //= MPA-04
    if private_data.len() > MAX_PRIVATE_DATA {
        let what = format!(
            "{} bytes of private data, at most {MAX_PRIVATE_DATA} can be sent",
            private_data.len()
        );
        return Err(ProviderError::new(ProviderErrorKind::Local, what));
    }
    Ok(())
}
