//! How to connect: the settings of both peers and of the transport.

use std::{
    ffi::c_char,
    mem::{MaybeUninit, offset_of},
    net::SocketAddr,
    ptr, slice,
    time::Duration,
};

use smbdirect::{Config, ConnectFault, Settings, rdma::work::ProviderError};
use smbdirect_transport::{Kind, RdmaSettings, explain_connect, explain_listen};

use crate::{
    options::{self, Changed, smbdirect_option},
    pointers,
    status::{Failure, SMBDIRECT_ERROR_INVALID},
    transport,
};

/// The settings that suit every known peer and are the fastest among those.
pub const SMBDIRECT_PROFILE_DEFAULT: i32 = 0;
/// The settings of Windows.
pub const SMBDIRECT_PROFILE_WINDOWS: i32 = 1;
/// The settings of Linux.
pub const SMBDIRECT_PROFILE_LINUX: i32 = 2;

/// The settings of connections. Initialise them with smbdirect_settings_init(), then change fields. Later
/// versions of the library add fields at the end; `size` tells it which ones the program knows. In such a field 0 is
/// the default: a library that does not know the field takes the settings only then.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smbdirect_settings {
    /// sizeof(struct smbdirect_settings).
    pub size: usize,
    /// "iwarp" (iWARP in software, over TCP), "roce" (RoCEv2 in software, over UDP), "verbs" (RDMA adapters, on
    /// Linux) or "loopback" (within this process and runtime). NULL means "iwarp". The text must stay valid until
    /// the call that uses the settings returns.
    pub transport: *const c_char,
    /// SendCreditTarget: number of send credits to request from the peer; at least 1.
    pub send_credit_target: u16,
    /// ReceiveCreditMax: largest number of send credits to grant to the peer; at least 1.
    pub receive_credit_max: u16,
    /// MaxSendSize: largest single message to send, in bytes with its header; 128 or more.
    pub max_send_size: u32,
    /// MaxReceiveSize: largest single message to receive, in bytes with its header; 128 or more.
    pub max_receive_size: u32,
    /// MaxFragmentedRecvSize: largest reassembled message to receive, in bytes; 131072 or more.
    pub max_fragmented_receive_size: u32,
    /// MaxReadWriteSize: largest RDMA Read or Write, in bytes; 65536 or more.
    pub max_read_write_size: u32,
    /// KeepaliveInterval: milliseconds without a message after which the peer is asked for one.
    pub keepalive_interval_ms: u32,
    /// Longest time to wait for the answer to a keepalive, in milliseconds.
    pub keepalive_response_timeout_ms: u32,
    /// Longest time for connecting and negotiating together, in milliseconds.
    pub active_negotiation_timeout_ms: u32,
    /// Longest time for the negotiation of an accepted connection, in milliseconds.
    pub passive_negotiation_timeout_ms: u32,
    /// Time in microseconds that a receive polls before it sleeps, which shortens latency and costs a
    /// core. With 0 it sleeps immediately.
    pub busy_poll_us: u32,
    /// Further settings, `options_count` of them, or NULL. Of two with the same name the later one counts.
    pub options: *const smbdirect_option,
    /// Number of `options`.
    pub options_count: usize,
}

/// Size of the settings in the first version of the library.
const MIN_SIZE: usize = offset_of!(smbdirect_settings, options);

/// Limit of the size of the settings in later versions, so that a size that was never set is refused.
const MAX_SIZE: usize = 4096;

/// Returns whether the settings of a version of the library can have this size.
fn is_size(size: usize) -> bool {
    (MIN_SIZE..=MAX_SIZE).contains(&size) && size.is_multiple_of(align_of::<smbdirect_settings>())
}

/// Initialises the settings with a profile, one of the SMBDIRECT_PROFILE_ values. `size` is
/// sizeof(struct smbdirect_settings). Fields of a newer header than that of the library become 0.
///
/// Returns 0, or SMBDIRECT_ERROR_INVALID for an unknown profile or a size of no version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_settings_init(
    settings: *mut smbdirect_settings,
    size: usize,
    profile: i32,
) -> i32 {
    let base = match profile {
        SMBDIRECT_PROFILE_DEFAULT => Settings::default(),
        SMBDIRECT_PROFILE_WINDOWS => Settings::windows(),
        SMBDIRECT_PROFILE_LINUX => Settings::linux(),
        _ => return SMBDIRECT_ERROR_INVALID,
    };
    if settings.is_null() || !is_size(size) {
        return SMBDIRECT_ERROR_INVALID;
    }
    let milliseconds = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
    let initial = smbdirect_settings {
        size,
        transport: ptr::null(),
        send_credit_target: base.send_credit_target,
        receive_credit_max: base.receive_credit_max,
        max_send_size: base.max_send_size,
        max_receive_size: base.max_receive_size,
        max_fragmented_receive_size: base.max_fragmented_receive_size,
        max_read_write_size: base.max_read_write_size,
        keepalive_interval_ms: milliseconds(base.keepalive_interval),
        keepalive_response_timeout_ms: milliseconds(base.keepalive_response_timeout),
        active_negotiation_timeout_ms: milliseconds(base.active_negotiation_timeout),
        passive_negotiation_timeout_ms: milliseconds(base.passive_negotiation_timeout),
        busy_poll_us: 0,
        options: ptr::null(),
        options_count: 0,
    };
    let (bytes, known) = (
        ptr::from_ref(&initial).cast::<u8>(),
        size.min(size_of_val(&initial)),
    );
    let settings = settings.cast::<u8>();
    // SAFETY: the caller's memory has `size` bytes, of which the first ones are those of `initial`.
    unsafe {
        ptr::copy_nonoverlapping(bytes, settings, known);
        ptr::write_bytes(settings.add(known), 0, size - known);
    }
    0
}

/// The settings as the library uses them.
pub(crate) struct Prepared {
    pub(crate) rdma: RdmaSettings,
    pub(crate) config: Config,
    pub(crate) busy_poll: Duration,
}

impl Prepared {
    /// Checks the settings of a caller; null means the default ones.
    ///
    /// # Safety
    /// `settings` is null, or points to settings whose first field is their size.
    pub(crate) unsafe fn new(settings: *const smbdirect_settings) -> Result<Self, Failure> {
        if settings.is_null() {
            return Ok(Self {
                rdma: RdmaSettings::default(),
                config: Config::default(),
                busy_poll: Duration::ZERO,
            });
        }
        // SAFETY: the first field of any version of the settings is the size.
        let size = unsafe { settings.cast::<usize>().read() };
        if !is_size(size) {
            let message =
                format!("settings of {size} bytes: initialise them with smbdirect_settings_init()");
            return Err(Failure::invalid(message));
        }
        let mut given = MaybeUninit::<smbdirect_settings>::zeroed();
        let known = size.min(size_of_val(&given));
        // SAFETY: the settings have `size` bytes. Fields that the program does not know are zero.
        let (given, newer) = unsafe {
            let (from, to) = (settings.cast::<u8>(), given.as_mut_ptr().cast::<u8>());
            ptr::copy_nonoverlapping(from, to, known);
            let newer = slice::from_raw_parts(from.add(known), size - known);
            (given.assume_init(), newer)
        };
        if newer.iter().any(|&byte| byte != 0) {
            let message = format!(
                "the settings have fields after byte {known}, which this library does not know"
            );
            return Err(Failure::invalid(message));
        }
        let milliseconds = |value: u32| Duration::from_millis(value.into());
        let mut settings = Settings::default();
        settings.send_credit_target = given.send_credit_target;
        settings.receive_credit_max = given.receive_credit_max;
        settings.max_send_size = given.max_send_size;
        settings.max_receive_size = given.max_receive_size;
        settings.max_fragmented_receive_size = given.max_fragmented_receive_size;
        settings.max_read_write_size = given.max_read_write_size;
        settings.keepalive_interval = milliseconds(given.keepalive_interval_ms);
        settings.keepalive_response_timeout = milliseconds(given.keepalive_response_timeout_ms);
        settings.active_negotiation_timeout = milliseconds(given.active_negotiation_timeout_ms);
        settings.passive_negotiation_timeout = milliseconds(given.passive_negotiation_timeout_ms);
        let mut changed = Changed {
            rdma: RdmaSettings::default(),
            connection: settings,
        };
        if !given.transport.is_null() {
            // SAFETY: the text ends with a 0 byte.
            let name = unsafe { pointers::text(given.transport, "transport") }?;
            changed.rdma.kind = transport::kind(name)?;
        }
        // SAFETY: the array has this number of options, whose texts end with a 0 byte.
        unsafe { options::apply(given.options, given.options_count, &mut changed) }?;
        Ok(Self {
            rdma: changed.rdma,
            config: Config::new(changed.connection)?,
            busy_poll: Duration::from_micros(given.busy_poll_us.into()),
        })
    }

    /// Returns the failure of an attempt to connect that took `elapsed`, with the text of the command for the same
    /// fault.
    pub(crate) async fn explained(
        &self,
        error: ConnectFault,
        address: SocketAddr,
        elapsed: Duration,
    ) -> Failure {
        let negotiation = self.config.active_negotiation_timeout;
        // That time is for connecting, too.
        let is_negotiation =
            elapsed >= negotiation || matches!(error, ConnectFault::Negotiation(_));
        let (limit, setting) = match self.rdma.kind {
            _ if is_negotiation => (negotiation, "active_negotiation_timeout_ms"),
            Kind::Roce => (self.rdma.roce.connect_timeout, "connect_timeout_ms"),
            _ => (self.rdma.iwarp.connect_timeout, "connect_timeout_ms"),
        };
        let text = explain_connect(self.rdma.kind, &error, address, limit).await;
        Failure::from(error).explained(&text, setting)
    }

    /// Returns the failure of an attempt to listen, likewise.
    pub(crate) fn explained_listen(&self, error: ProviderError, address: SocketAddr) -> Failure {
        let text = explain_listen(&error, self.rdma.kind, address);
        Failure::from(error).explained(&text, "")
    }
}

#[cfg(test)]
mod tests {
    use smbdirect::rdma::work::ProviderErrorKind::{
        self, InUse, PortUnreachable, Refused, TimedOut,
    };

    use super::*;
    use crate::status::smbdirect_error;

    const OWNER: &str = "process 4194304 (a-long-name-of-)";

    fn prepared(kind: Kind) -> Prepared {
        // SAFETY: null means the default settings.
        let mut prepared = unsafe { Prepared::new(ptr::null()) }.unwrap();
        prepared.rdma.kind = kind;
        prepared
    }

    fn address() -> SocketAddr {
        "[2001:db8:1111:2222:3333:4444:5555:6666]:65535"
            .parse()
            .unwrap()
    }

    /// Returns what a program is told about an attempt to connect that took so long.
    async fn told(
        prepared: &Prepared,
        kind: ProviderErrorKind,
        what: &str,
        elapsed: Duration,
    ) -> String {
        let error = ProviderError::new(kind, what.to_owned());
        let failure = prepared.explained(error.into(), address(), elapsed).await;
        smbdirect_error::new(&failure).text()
    }

    #[tokio::test]
    async fn the_longest_texts_have_their_cure() {
        let roce = prepared(Kind::Roce);
        let (address, second) = (address(), Duration::from_secs(1));
        let silent = format!("{address} did not answer");
        let taken =
            format!("{silent}; {OWNER} has UDP port 65535, so only this library can be reached");
        let refused = format!(
            "{silent}; this system refused to send packets there: Cannot assign requested address (os error 99)"
        );
        let more_time = "give it more time (connect_timeout_ms)";
        for (kind, what, cure) in [
            (TimedOut, &*taken, more_time),
            (TimedOut, &*refused, more_time),
            (
                PortUnreachable,
                "connection refused: UDP port 65535 is unreachable there",
                "have the firewall there admit it",
            ),
            (
                Refused,
                "no listener on port 65535",
                "445 is for RoCE, 5445 for iWARP",
            ),
        ] {
            let text = told(&roce, kind, what, second).await;
            assert!(text.contains(cure), "{text}");
        }
        let error = ProviderError::new(InUse, format!("listening: {OWNER} has UDP port 65535"));
        let failure = roce.explained_listen(error.with_os_error(Some(libc::EADDRINUSE)), address);
        let text = smbdirect_error::new(&failure).text();
        assert!(
            text.ends_with("at both ends (udp_port, peer_udp_port)"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn the_timer_that_ended_the_attempt_is_named() {
        let mut iwarp = prepared(Kind::Iwarp);
        iwarp.rdma.iwarp.connect_timeout = Duration::from_millis(20);
        let mut settings = Settings::default();
        settings.active_negotiation_timeout = Duration::from_secs(3);
        iwarp.config = Config::new(settings).unwrap();
        for (elapsed, limit, setting) in [
            (1, "20.0 ms", "connect"),
            (3, "3.00 s", "active_negotiation"),
        ] {
            let text = told(&iwarp, TimedOut, "no", Duration::from_secs(elapsed)).await;
            assert!(
                text.contains(&format!("did not answer within {limit};")),
                "{text}"
            );
            assert!(text.ends_with(&format!("({setting}_timeout_ms)")), "{text}");
        }
    }
}
