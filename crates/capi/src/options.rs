//! Further settings, by name and value.

use std::{ffi::c_char, time::Duration};

use smbdirect::{
    Settings,
    rdma::{
        iwarp::{FpduAlignment, MpaCrc, SendBuffer},
        roce::cm::PathMtu,
    },
};
use smbdirect_transport::{Kind, RdmaSettings};

use crate::{pointers, status::Failure};

/// A setting by its name and value. Both are texts, which must stay valid until the call that uses the settings
/// returns. The names are those of the Rust interface, with the unit of a time at the end.
///
/// Every transport: `credit_grant_timeout_ms` (milliseconds, or never) is the longest time that a message which was
/// submitted waits for credits of the peer before the connection ends, 5000 by default, as in Windows.
///
/// "iwarp" and "roce": `ird` and `ord` (0 to 128), `connect_timeout_ms`, `accept_timeout_ms`, `close_timeout_ms`,
/// `max_half_open` (1 or more), `poll_window_us`.
///
/// "iwarp": `crc` (auto, on, off), `revision` (1, 2), `fall_back` (on, off), `max_fpdu` (bytes), `fpdu_alignment`
/// (auto, off, single, runs), `startup_probe` (on, off), `congestion_control` (a name of the system), `send_buffer`
/// (auto, system, bytes).
///
/// "roce": `udp_port` (1 to 65535) of this end and `peer_udp_port` of listeners to connect to, `path_mtu` (256, 512,
/// 1024, 2048, 4096), `max_in_flight` (bytes). Connections and listeners of one runtime with the same `udp_port` share
/// its socket. The first one decides `ird`, `ord`, `close_timeout_ms`, `max_half_open` and `max_in_flight` for it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smbdirect_option {
    /// The name, such as "udp_port".
    pub name: *const c_char,
    /// The value, such as "4791".
    pub value: *const c_char,
}

/// The settings that options change.
pub(crate) struct Changed {
    pub(crate) rdma: RdmaSettings,
    pub(crate) connection: Settings,
}

/// An option.
#[derive(Clone, Copy)]
struct Entry {
    name: &'static str,
    /// The values that are accepted, for the error message about any other value.
    values: &'static str,
    /// Sets the value, or returns `None` if it is not accepted.
    set: fn(&mut Changed, &str) -> Option<()>,
}

/// An [`Entry`], from its name, its values, the function that parses one, and its fields.
macro_rules! entry {
    ($name:literal, $values:expr, $parse:expr, $($($field:ident).+),+) => {
        Entry {
            name: $name,
            values: $values,
            set: |settings, value| {
                $(settings.$($field).+ = $parse(value)?;)+
                Some(())
            },
        }
    };
}

const SWITCH: &str = "on or off";
const COUNT: &str = "a number, 1 or more";
const READS: &str = "a number from 0 to 128";
const BYTES: &str = "a number of bytes, 1 or more";
const TIME_MS: &str = "a number of milliseconds, 1 or more";
const TIME_MS_OR_NEVER: &str = "never, or a number of milliseconds, 1 or more";
const WINDOW_US: &str = "a number of microseconds";
const PORT: &str = "a number from 1 to 65535";
const MAX_READS: u8 = 128;

/// The settings that every transport has.
const ANY: &[Entry] = &[entry!(
    "credit_grant_timeout_ms",
    TIME_MS_OR_NEVER,
    time_ms_or_never,
    connection.credit_grant_timeout
)];

/// The settings that iWARP and RoCE have.
#[rustfmt::skip]
const COMMON: &[Entry] = &[
    entry!("ird", READS, reads, rdma.iwarp.ird, rdma.roce.ird),
    entry!("ord", READS, reads, rdma.iwarp.ord, rdma.roce.ord),
    entry!("connect_timeout_ms", TIME_MS, time_ms, rdma.iwarp.connect_timeout, rdma.roce.connect_timeout),
    entry!("accept_timeout_ms", TIME_MS, time_ms, rdma.iwarp.accept_timeout, rdma.roce.accept_timeout),
    entry!("close_timeout_ms", TIME_MS, time_ms, rdma.iwarp.close_timeout, rdma.roce.close_timeout),
    entry!("max_half_open", COUNT, positive, rdma.iwarp.max_half_open, rdma.roce.max_half_open),
    entry!("poll_window_us", WINDOW_US, time_us, rdma.iwarp.tuning.poll_window, rdma.roce.poll_window),
];

/// The settings of iWARP alone.
#[rustfmt::skip]
const IWARP: &[Entry] = &[
    entry!("crc", "auto, on or off", crc, rdma.iwarp.crc),
    entry!("revision", "1 or 2", |value| choose(value, &[("1", 1), ("2", 2)]), rdma.iwarp.revision),
    entry!("fall_back", SWITCH, switch, rdma.iwarp.fall_back),
    entry!("max_fpdu", BYTES, |value| positive(value).map(Some), rdma.iwarp.tuning.max_fpdu),
    entry!("fpdu_alignment", "auto, off, single or runs", alignment, rdma.iwarp.tuning.fpdu_alignment),
    entry!("startup_probe", SWITCH, switch, rdma.iwarp.tuning.startup_probe),
    entry!("congestion_control", "a name", name, rdma.iwarp.tuning.congestion_control),
    entry!("send_buffer", "auto, system or a number of bytes", send_buffer, rdma.iwarp.tuning.send_buffer),
];

/// The settings of RoCE alone.
#[rustfmt::skip]
const ROCE: &[Entry] = &[
    entry!("udp_port", PORT, positive, rdma.roce.udp_port),
    entry!("peer_udp_port", PORT, positive, rdma.roce.peer_udp_port),
    entry!("path_mtu", "256, 512, 1024, 2048 or 4096", path_mtu, rdma.roce.path_mtu),
    entry!("max_in_flight", BYTES, positive, rdma.roce.max_in_flight),
];

/// Sets what the options of a caller say.
///
/// # Errors
/// The transport has no such setting, or the value is not one of it.
///
/// # Safety
/// `options` is valid for reads of `count` values, whose texts end with a 0 byte, or `count` is 0.
pub(crate) unsafe fn apply(
    options: *const smbdirect_option,
    count: usize,
    settings: &mut Changed,
) -> Result<(), Failure> {
    // SAFETY: the caller's array has `count` values.
    for option in unsafe { pointers::array(options, count, "options") }? {
        // SAFETY: the texts end with a 0 byte.
        let (name, value) = unsafe {
            (
                pointers::text(option.name, "the name of an option")?,
                pointers::text(option.value, "the value of an option")?,
            )
        };
        set(settings, name, value)?;
    }
    Ok(())
}

/// Returns the settings that a transport has.
fn entries(kind: Kind) -> Vec<Entry> {
    match kind {
        Kind::Iwarp => [ANY, COMMON, IWARP].concat(),
        Kind::Roce => [ANY, COMMON, ROCE].concat(),
        Kind::Verbs | Kind::Loopback => ANY.to_vec(),
    }
}

fn set(settings: &mut Changed, name: &str, value: &str) -> Result<(), Failure> {
    let kind = settings.rdma.kind;
    let entries = entries(kind);
    let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
        let names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
        // The name of the caller is last: a long text loses its end.
        let message = format!("{} has {}, not {name:?}", kind.name(), names.join(", "));
        return Err(Failure::invalid(message));
    };
    let done = (entry.set)(settings, value);
    // Likewise.
    done.ok_or_else(|| Failure::invalid(format!("{name} is {}, not {value:?}", entry.values)))
}

/// Returns the value of a name.
fn choose<T: Copy>(text: &str, values: &[(&str, T)]) -> Option<T> {
    let found = values.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value)
}

fn switch(text: &str) -> Option<bool> {
    choose(text, &[("on", true), ("off", false)])
}

/// Parses a number without a sign.
fn number(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Parses a number that is not 0 and fits.
fn positive<T: TryFrom<u32>>(text: &str) -> Option<T> {
    number(text)
        .filter(|&number| number > 0)
        .and_then(|number| T::try_from(number).ok())
}

fn reads<T: From<u8>>(text: &str) -> Option<T> {
    let number = u8::try_from(number(text)?).ok()?;
    (number <= MAX_READS).then(|| number.into())
}

fn time_ms(text: &str) -> Option<Duration> {
    positive(text).map(|number: u32| Duration::from_millis(number.into()))
}

fn time_ms_or_never(text: &str) -> Option<Option<Duration>> {
    match text {
        "never" => Some(None),
        _ => time_ms(text).map(Some),
    }
}

fn time_us(text: &str) -> Option<Duration> {
    number(text).map(|number| Duration::from_micros(number.into()))
}

fn crc(text: &str) -> Option<MpaCrc> {
    let values = [
        ("auto", MpaCrc::Auto),
        ("on", MpaCrc::On),
        ("off", MpaCrc::Off),
    ];
    choose(text, &values)
}

fn alignment(text: &str) -> Option<FpduAlignment> {
    let values = [
        ("auto", FpduAlignment::Auto),
        ("off", FpduAlignment::Off),
        ("single", FpduAlignment::Single),
        ("runs", FpduAlignment::Runs),
    ];
    choose(text, &values)
}

/// Returns the name of a congestion control, which only the system knows.
fn name(text: &str) -> Option<Option<String>> {
    (!text.is_empty()).then(|| Some(text.to_owned()))
}

fn send_buffer(text: &str) -> Option<SendBuffer> {
    let values = [("auto", SendBuffer::Auto), ("system", SendBuffer::System)];
    choose(text, &values).or_else(|| positive(text).map(SendBuffer::Bytes))
}

fn path_mtu(text: &str) -> Option<Option<PathMtu>> {
    let values = [
        ("256", PathMtu::Mtu256),
        ("512", PathMtu::Mtu512),
        ("1024", PathMtu::Mtu1024),
        ("2048", PathMtu::Mtu2048),
        ("4096", PathMtu::Mtu4096),
    ];
    choose(text, &values).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::smbdirect_error;

    fn settings(kind: Kind) -> Changed {
        Changed {
            rdma: RdmaSettings {
                kind,
                ..RdmaSettings::default()
            },
            connection: Settings::default(),
        }
    }

    #[test]
    fn each_setting_of_every_transport_has_an_effect() {
        for (name, value) in [
            ("credit_grant_timeout_ms", "77"),
            ("credit_grant_timeout_ms", "never"),
        ] {
            for kind in [Kind::Iwarp, Kind::Roce, Kind::Verbs, Kind::Loopback] {
                let mut changed = settings(kind);
                set(&mut changed, name, value).unwrap();
                assert_ne!(changed.connection, Settings::default(), "{name}");
            }
        }
    }

    #[test]
    fn each_setting_of_iwarp_has_an_effect() {
        for (name, value) in [
            ("crc", "off"),
            ("ird", "7"),
            ("ord", "0"),
            ("revision", "1"),
            ("fall_back", "off"),
            ("connect_timeout_ms", "77"),
            ("accept_timeout_ms", "77"),
            ("close_timeout_ms", "77"),
            ("max_half_open", "3"),
            ("max_fpdu", "1024"),
            ("fpdu_alignment", "runs"),
            ("startup_probe", "off"),
            ("poll_window_us", "0"),
            ("congestion_control", "reno"),
            ("send_buffer", "100000"),
        ] {
            let mut changed = settings(Kind::Iwarp);
            let before = format!("{:?}", changed.rdma.iwarp);
            set(&mut changed, name, value).unwrap();
            assert_ne!(format!("{:?}", changed.rdma.iwarp), before, "{name}");
        }
    }

    #[test]
    fn each_setting_of_roce_has_an_effect() {
        for (name, value) in [
            ("ird", "7"),
            ("ord", "0"),
            ("udp_port", "14791"),
            ("peer_udp_port", "14791"),
            ("path_mtu", "512"),
            ("connect_timeout_ms", "77"),
            ("accept_timeout_ms", "77"),
            ("close_timeout_ms", "77"),
            ("max_half_open", "3"),
            ("max_in_flight", "99999"),
            ("poll_window_us", "0"),
        ] {
            let mut changed = settings(Kind::Roce);
            let before = format!("{:?}", changed.rdma.roce);
            set(&mut changed, name, value).unwrap();
            assert_ne!(format!("{:?}", changed.rdma.roce), before, "{name}");
        }
    }

    #[test]
    fn errors_name_what_is_possible() {
        for (kind, name, value, message) in [
            (
                Kind::Iwarp,
                "crc",
                "yes",
                "crc is auto, on or off, not \"yes\"",
            ),
            (
                Kind::Iwarp,
                "ird",
                "129",
                "ird is a number from 0 to 128, not \"129\"",
            ),
            (
                Kind::Iwarp,
                "ird",
                "+1",
                "ird is a number from 0 to 128, not \"+1\"",
            ),
            (
                Kind::Iwarp,
                "send_buffer",
                "0",
                "send_buffer is auto, system or a number of bytes, not \"0\"",
            ),
            (
                Kind::Roce,
                "udp_port",
                "65536",
                "udp_port is a number from 1 to 65535, not \"65536\"",
            ),
            (
                Kind::Roce,
                "connect_timeout_ms",
                "",
                "connect_timeout_ms is a number of milliseconds, 1 or more, not \"\"",
            ),
            (
                Kind::Roce,
                "crc",
                "on",
                "roce has credit_grant_timeout_ms, ird, ord, connect_timeout_ms, \
                 accept_timeout_ms, close_timeout_ms, max_half_open, poll_window_us, udp_port, \
                 peer_udp_port, path_mtu, max_in_flight, not \"crc\"",
            ),
            (
                Kind::Loopback,
                "ird",
                "1",
                "loopback has credit_grant_timeout_ms, not \"ird\"",
            ),
        ] {
            let failure = set(&mut settings(kind), name, value).unwrap_err();
            assert_eq!(failure.to_string(), message);
        }
    }

    #[test]
    fn names_and_values_of_any_length_leave_room_for_what_is_possible() {
        let long = "x".repeat(1000);
        for kind in [Kind::Iwarp, Kind::Roce, Kind::Verbs] {
            let entries = entries(kind);
            let unknown = set(&mut settings(kind), &long, "1").unwrap_err();
            let told = smbdirect_error::new(&unknown).text();
            for entry in &entries {
                assert!(told.contains(entry.name), "{told}");
                if entry.name != "congestion_control" {
                    let wrong = set(&mut settings(kind), entry.name, &long).unwrap_err();
                    let told = smbdirect_error::new(&wrong).text();
                    assert!(told.contains(entry.values), "{told}");
                }
            }
            assert!(told.ends_with("xxx"), "{told}");
        }
    }
}
