//! How to connect: the settings of both peers and of the transport.

use std::{ffi::c_char, ptr, time::Duration};

use smbdirect::{Config, Settings};

use crate::{
    pointers,
    status::{Failure, SMBDIRECT_ERROR_INVALID},
};

/// The settings that suit every known peer and are the fastest among those.
pub const SMBDIRECT_PROFILE_DEFAULT: i32 = 0;
/// The settings of Windows.
pub const SMBDIRECT_PROFILE_WINDOWS: i32 = 1;
/// The settings of Linux.
pub const SMBDIRECT_PROFILE_LINUX: i32 = 2;

/// The settings of connections. Initialise them with smbdirect_settings_init(), then change fields. Later
/// versions of the library add fields at the end; `size` tells it which ones the program knows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smbdirect_settings {
    /// sizeof(struct smbdirect_settings).
    pub size: usize,
    /// "iwarp" (software iWARP over TCP), "verbs" (RDMA adapters, on Linux) or "loopback" (within this
    /// process and runtime). NULL means "iwarp". The text must stay valid until the call that uses the
    /// settings returns.
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
}

/// Initialises the settings with a profile, one of the SMBDIRECT_PROFILE_ values. `size` is
/// sizeof(struct smbdirect_settings).
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
    if settings.is_null() || size != size_of::<smbdirect_settings>() {
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
    };
    // SAFETY: the caller's memory has the size of the settings, and is valid for a write.
    unsafe { settings.write(initial) };
    0
}

/// The settings as the library uses them.
pub(crate) struct Prepared {
    pub(crate) transport: String,
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
                transport: "iwarp".to_owned(),
                config: Config::default(),
                busy_poll: Duration::ZERO,
            });
        }
        // SAFETY: the first field of any version of the settings is the size.
        let size = unsafe { settings.cast::<usize>().read() };
        if size != size_of::<smbdirect_settings>() {
            let message =
                format!("settings of {size} bytes: initialise them with smbdirect_settings_init()");
            return Err(Failure::invalid(message));
        }
        // SAFETY: the settings have all fields of this version.
        let given = unsafe { &*settings };
        let transport = if given.transport.is_null() {
            "iwarp"
        } else {
            // SAFETY: the text ends with a 0 byte.
            unsafe { pointers::text(given.transport, "transport") }?
        };
        let milliseconds = |value: u32| Duration::from_millis(value.into());
        let config = Config::new(Settings {
            send_credit_target: given.send_credit_target,
            receive_credit_max: given.receive_credit_max,
            max_send_size: given.max_send_size,
            max_receive_size: given.max_receive_size,
            max_fragmented_receive_size: given.max_fragmented_receive_size,
            max_read_write_size: given.max_read_write_size,
            keepalive_interval: milliseconds(given.keepalive_interval_ms),
            keepalive_response_timeout: milliseconds(given.keepalive_response_timeout_ms),
            active_negotiation_timeout: milliseconds(given.active_negotiation_timeout_ms),
            passive_negotiation_timeout: milliseconds(given.passive_negotiation_timeout_ms),
            ..Settings::default()
        })?;
        Ok(Self {
            transport: transport.to_owned(),
            config,
            busy_poll: Duration::from_micros(given.busy_poll_us.into()),
        })
    }
}
