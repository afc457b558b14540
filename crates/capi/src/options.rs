//! The settings of the software providers, by name and value.

use std::{ffi::c_char, time::Duration};

use smbdirect::rdma::{
    iwarp::{FpduAlignment, IwarpConfig, MpaCrc, SendBuffer},
    roce::{RoceConfig, cm::PathMtu},
};
use smbdirect_transport::{Kind, RdmaSettings};

use crate::{pointers, status::Failure};

/// A setting of the transport, by its name and value. Both are texts, which must stay valid until the call that uses
/// the settings returns. The names are those of the Rust interface, with the unit of a time at the end.
///
/// "iwarp" and "roce": `ird` and `ord` (0 to 128), `connect_timeout_ms`, `accept_timeout_ms`, `close_timeout_ms`,
/// `max_half_open` (1 or more), `poll_window_us`.
///
/// "iwarp": `crc` (auto, on, off), `revision` (1, 2), `fall_back` (on, off), `max_fpdu` (bytes), `fpdu_alignment`
/// (auto, off, single, runs), `startup_probe` (on, off), `congestion_control` (a name of the system), `send_buffer`
/// (auto, system, bytes).
///
/// "roce": `udp_port` (1 to 65535) of this end and `peer_udp_port` of listeners to connect to, `path_mtu` (256, 512,
/// 1024, 2048, 4096), `max_in_flight` (bytes).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smbdirect_option {
    /// The name, such as "udp_port".
    pub name: *const c_char,
    /// The value, such as "4791".
    pub value: *const c_char,
}

/// A setting of the provider with the settings `T`.
struct Entry<T> {
    name: &'static str,
    /// The values that are accepted, for the error message about any other value.
    values: &'static str,
    /// Sets the value, or returns `None` if it is not accepted.
    set: fn(&mut T, &str) -> Option<()>,
}

const SWITCH: &str = "on or off";
const COUNT: &str = "a number, 1 or more";
const READS: &str = "a number from 0 to 128";
const BYTES: &str = "a number of bytes, 1 or more";
const TIME_MS: &str = "a number of milliseconds, 1 or more";
const WINDOW_US: &str = "a number of microseconds";
const PORT: &str = "a number from 1 to 65535";
const MAX_READS: u16 = 128;

/// The settings of iWARP.
const IWARP: &[Entry<IwarpConfig>] = &[
    entry("crc", "auto, on or off", |config, value| {
        config.crc = choose(
            value,
            &[
                ("auto", MpaCrc::Auto),
                ("on", MpaCrc::On),
                ("off", MpaCrc::Off),
            ],
        )?;
        Some(())
    }),
    entry("ird", READS, |config, value| {
        config.ird = reads(value)?;
        Some(())
    }),
    entry("ord", READS, |config, value| {
        config.ord = reads(value)?;
        Some(())
    }),
    entry("revision", "1 or 2", |config, value| {
        config.revision = choose(value, &[("1", 1), ("2", 2)])?;
        Some(())
    }),
    entry("fall_back", SWITCH, |config, value| {
        config.fall_back = switch(value)?;
        Some(())
    }),
    entry("connect_timeout_ms", TIME_MS, |config, value| {
        config.connect_timeout = time_ms(value)?;
        Some(())
    }),
    entry("accept_timeout_ms", TIME_MS, |config, value| {
        config.accept_timeout = time_ms(value)?;
        Some(())
    }),
    entry("close_timeout_ms", TIME_MS, |config, value| {
        config.close_timeout = time_ms(value)?;
        Some(())
    }),
    entry("max_half_open", COUNT, |config, value| {
        config.max_half_open = positive::<u32>(value)? as usize;
        Some(())
    }),
    entry("max_fpdu", BYTES, |config, value| {
        config.tuning.max_fpdu = Some(positive(value)?);
        Some(())
    }),
    entry(
        "fpdu_alignment",
        "auto, off, single or runs",
        |config, value| {
            config.tuning.fpdu_alignment = choose(
                value,
                &[
                    ("auto", FpduAlignment::Auto),
                    ("off", FpduAlignment::Off),
                    ("single", FpduAlignment::Single),
                    ("runs", FpduAlignment::Runs),
                ],
            )?;
            Some(())
        },
    ),
    entry("startup_probe", SWITCH, |config, value| {
        config.tuning.startup_probe = switch(value)?;
        Some(())
    }),
    entry("poll_window_us", WINDOW_US, |config, value| {
        config.tuning.poll_window = time_us(value)?;
        Some(())
    }),
    entry("congestion_control", "a name", |config, value| {
        config.tuning.congestion_control = (!value.is_empty()).then(|| value.to_owned());
        config.tuning.congestion_control.as_ref().map(|_| ())
    }),
    entry(
        "send_buffer",
        "auto, system or a number of bytes",
        |config, value| {
            let named = choose(
                value,
                &[("auto", SendBuffer::Auto), ("system", SendBuffer::System)],
            );
            config.tuning.send_buffer = match named {
                Some(named) => named,
                None => SendBuffer::Bytes(positive(value)?),
            };
            Some(())
        },
    ),
];

/// The settings of RoCE.
const ROCE: &[Entry<RoceConfig>] = &[
    entry("ird", READS, |config, value| {
        config.ird = reads(value)? as u8;
        Some(())
    }),
    entry("ord", READS, |config, value| {
        config.ord = reads(value)? as u8;
        Some(())
    }),
    entry("udp_port", PORT, |config, value| {
        config.udp_port = positive(value)?;
        Some(())
    }),
    entry("peer_udp_port", PORT, |config, value| {
        config.peer_udp_port = positive(value)?;
        Some(())
    }),
    entry(
        "path_mtu",
        "256, 512, 1024, 2048 or 4096",
        |config, value| {
            config.path_mtu = Some(choose(
                value,
                &[
                    ("256", PathMtu::Mtu256),
                    ("512", PathMtu::Mtu512),
                    ("1024", PathMtu::Mtu1024),
                    ("2048", PathMtu::Mtu2048),
                    ("4096", PathMtu::Mtu4096),
                ],
            )?);
            Some(())
        },
    ),
    entry("connect_timeout_ms", TIME_MS, |config, value| {
        config.connect_timeout = time_ms(value)?;
        Some(())
    }),
    entry("accept_timeout_ms", TIME_MS, |config, value| {
        config.accept_timeout = time_ms(value)?;
        Some(())
    }),
    entry("close_timeout_ms", TIME_MS, |config, value| {
        config.close_timeout = time_ms(value)?;
        Some(())
    }),
    entry("max_half_open", COUNT, |config, value| {
        config.max_half_open = positive::<u32>(value)? as usize;
        Some(())
    }),
    entry("max_in_flight", BYTES, |config, value| {
        config.max_in_flight = positive::<u32>(value)? as usize;
        Some(())
    }),
    entry("poll_window_us", WINDOW_US, |config, value| {
        config.poll_window = time_us(value)?;
        Some(())
    }),
];

const fn entry<T>(
    name: &'static str,
    values: &'static str,
    set: fn(&mut T, &str) -> Option<()>,
) -> Entry<T> {
    Entry { name, values, set }
}

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
    settings: &mut RdmaSettings,
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

fn set(settings: &mut RdmaSettings, name: &str, value: &str) -> Result<(), Failure> {
    let kind = settings.kind;
    match kind {
        Kind::Iwarp => set_in(IWARP, kind, &mut settings.iwarp, name, value),
        Kind::Roce => set_in(ROCE, kind, &mut settings.roce, name, value),
        Kind::Verbs | Kind::Loopback => set_in(&[], kind, &mut (), name, value),
    }
}

fn set_in<T>(
    table: &[Entry<T>],
    kind: Kind,
    config: &mut T,
    name: &str,
    value: &str,
) -> Result<(), Failure> {
    let Some(entry) = table.iter().find(|entry| entry.name == name) else {
        let names: Vec<_> = table.iter().map(|entry| entry.name).collect();
        let known = match &names[..] {
            [] => "it has none".to_owned(),
            names => format!("there are {}", names.join(", ")),
        };
        let message = format!("{} has no setting {name:?}: {known}", kind.name());
        return Err(Failure::invalid(message));
    };
    let done = (entry.set)(config, value);
    done.ok_or_else(|| Failure::invalid(format!("{name} is {value:?}, not {}", entry.values)))
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

fn reads(text: &str) -> Option<u16> {
    let number = u16::try_from(number(text)?).ok()?;
    (number <= MAX_READS).then_some(number)
}

fn time_ms(text: &str) -> Option<Duration> {
    positive(text).map(|number: u32| Duration::from_millis(number.into()))
}

fn time_us(text: &str) -> Option<Duration> {
    number(text).map(|number| Duration::from_micros(number.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(kind: Kind) -> RdmaSettings {
        RdmaSettings {
            kind,
            ..RdmaSettings::default()
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
            let before = format!("{:?}", changed.iwarp);
            set(&mut changed, name, value).unwrap();
            assert_ne!(format!("{:?}", changed.iwarp), before, "{name}");
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
            let before = format!("{:?}", changed.roce);
            set(&mut changed, name, value).unwrap();
            assert_ne!(format!("{:?}", changed.roce), before, "{name}");
        }
    }

    #[test]
    fn errors_name_what_is_possible() {
        for (kind, name, value, message) in [
            (
                Kind::Iwarp,
                "crc",
                "yes",
                "crc is \"yes\", not auto, on or off",
            ),
            (
                Kind::Iwarp,
                "ird",
                "129",
                "ird is \"129\", not a number from 0 to 128",
            ),
            (
                Kind::Iwarp,
                "ird",
                "+1",
                "ird is \"+1\", not a number from 0 to 128",
            ),
            (
                Kind::Iwarp,
                "send_buffer",
                "0",
                "send_buffer is \"0\", not auto, system or a number of bytes",
            ),
            (
                Kind::Roce,
                "udp_port",
                "65536",
                "udp_port is \"65536\", not a number from 1 to 65535",
            ),
            (
                Kind::Roce,
                "connect_timeout_ms",
                "",
                "connect_timeout_ms is \"\", not a number of milliseconds, 1 or more",
            ),
            (
                Kind::Roce,
                "crc",
                "on",
                "roce has no setting \"crc\": there are ird, ord, udp_port, peer_udp_port, path_mtu, \
                 connect_timeout_ms, accept_timeout_ms, close_timeout_ms, max_half_open, \
                 max_in_flight, poll_window_us",
            ),
            (
                Kind::Loopback,
                "ird",
                "1",
                "loopback has no setting \"ird\": it has none",
            ),
        ] {
            let failure = set(&mut settings(kind), name, value).unwrap_err();
            assert_eq!(failure.to_string(), message);
            assert!(message.len() < 252, "{message}");
        }
    }
}
