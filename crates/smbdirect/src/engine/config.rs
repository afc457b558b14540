//! Local limits, timers and policy: [`Settings`] are filled in by the caller, and [`Config`] holds
//! settings that have been checked.

use std::{io, ops::Deref, time::Duration};

use thiserror::Error;

use crate::deadline::bounded;

/// The local settings of a connection, under the specification's names (3.1.1.1).
///
/// The default is the fastest choice that every known peer accepts. Change fields, then check them with
/// [`Config::new`]:
///
/// ```
/// use smbdirect::{Config, Settings};
///
/// let mut settings = Settings::windows();
/// settings.send_credit_target = 16;
/// let config = Config::new(settings)?;
/// assert_eq!(config.settings().max_send_size, 1364);
/// # Ok::<(), smbdirect::ConfigError>(())
/// ```
///
/// A stall of this process ends no connection: everything that has arrived is read before a timeout counts, and
/// after a stall the peer gets one more second, at most three times.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// SendCreditTarget: number of send credits to request from the peer; at least 1. The
    /// default is 255.
    pub send_credit_target: u16,
    /// ReceiveCreditMax: largest number of send credits to grant to the peer; at least 1. The default is
    /// 255.
    pub receive_credit_max: u16,
    /// MaxSendSize: largest single message to send, in bytes with its header; 128 or more. The
    /// default is 8136, the most that Windows takes.
    pub max_send_size: u32,
    /// MaxReceiveSize: largest single message to receive, in bytes with its header; 128 or more. The
    /// default is 8192.
    pub max_receive_size: u32,
    /// MaxFragmentedRecvSize: largest reassembled message to receive, in bytes; 131072 or more. The
    /// default is 1 MiB.
    pub max_fragmented_receive_size: u32,
    /// MaxReadWriteSize: largest RDMA Read or Write, in bytes; 65536 or more. The default is 8 MiB.
    pub max_read_write_size: u32,
    /// KeepaliveInterval: time without a message from the peer after which a keepalive is sent. The
    /// default is 120 s.
    pub keepalive_interval: Duration,
    /// Longest time to wait for the peer's answer to a keepalive. The default is 5 s.
    pub keepalive_response_timeout: Duration,
    /// Negotiation Timer of the connecting side: limits the look-up of a host name, connecting and negotiating
    /// together, for all addresses of the peer. The default is 120 s.
    pub active_negotiation_timeout: Duration,
    /// Negotiation Timer of the accepting side: limits the negotiation. The default is 5 s.
    pub passive_negotiation_timeout: Duration,
    /// Send Credit Grant Timer of Windows: longest time that messages may wait without a send
    /// credit before the connection ends. With `None` only the keepalive ends it. The
    /// default is 5 s.
    ///
    /// A peer of this library grants the credits for a message that has begun even if its application receives nothing
    /// (see [`receive_buffer`](Self::receive_buffer)), so only messages that have not begun wait for it. Linux, Windows
    /// and other peers do not promise that: if one of them pauses for longer than this time in the middle of a message,
    /// the connection ends. A longer time, or `None`, prevents that.
    pub credit_grant_timeout: Option<Duration>,
    /// Limit, in bytes, of the memory for messages that have arrived and wait for the application,
    /// and for messages that may still arrive on the granted credits. The default, `None`, means twice the memory
    /// that the credits need plus four messages of the largest size. One message more, of up to
    /// `max_fragmented_receive_size`, is not part of this limit: the message that is incomplete, or the message that was
    /// incomplete when the limit was reached.
    ///
    /// While the limit is reached, no credits are granted, except for the rest of a message that has begun. Sending then
    /// stops as well, because this end does not spend its last send credit on a message without a grant; see
    /// [`strict_last_credit`](Policy::strict_last_credit).
    pub receive_buffer: Option<usize>,
    /// Choices where the specification is silent or contradicts itself.
    pub policy: Policy,
}

/// Choices where the specification is silent or contradicts itself. Peers of every kind work with
/// the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// The wording of 3.1.5.1 and 3.1.5.8 to follow where the published wordings differ on the wire. The default
    /// is
    /// [`Revision::Current`].
    pub revision: Revision,
    /// Never spend the last send credit on a message that grants none. With `false` it is spent
    /// while the peer still holds credits, as Linux does. Two ends with `false` can block each
    /// other for ever if their upper layers are slow, so one of the two needs `true`. The default is `true`.
    pub strict_last_credit: bool,
    /// Ignore an empty message between the segments of a message instead of ending the connection.
    /// Linux before 2026 sends such messages. The default is `false`.
    pub tolerate_empty_in_sequence: bool,
}

/// A published wording of 3.1.5.1, Sending Upper Layer Messages, and 3.1.5.8, Receiving a Data
/// Transfer Message.
///
/// The two wordings differ in the moment at which credits are counted and flags are cleared. That is
/// not visible on the wire, and the engine satisfies both by building header and grant when it
/// sends. The only visible difference is the answer to a message that arrives while no message waits
/// to be sent:
///
/// | received message | `Current` | `V2014` |
/// |---|---|---|
/// | requests a response | answered | answered |
/// | carries payload | answered if there are credits to grant | answered immediately, even with no credits to grant |
/// | is empty and requests no response | answered if there are credits to grant | the same |
///
/// In the last row the wording of 2014 requires an answer in every case. Two ends that follow it
/// would exchange empty messages without end, so `V2014` deviates from it there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Revision {
    /// The present wording. It is at least as old as 2018, and version 16.0 of 2025 still has it.
    #[default]
    Current,
    /// The wording of 2014.
    V2014,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            revision: Revision::Current,
            strict_last_credit: true,
            tolerate_empty_in_sequence: false,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            send_credit_target: 255,
            receive_credit_max: 255,
            // Windows refuses more than 8136.
            max_send_size: 8136,
            max_receive_size: 8192,
            max_fragmented_receive_size: 1 << 20,
            max_read_write_size: 8 << 20,
            keepalive_interval: Duration::from_secs(120),
            keepalive_response_timeout: Duration::from_secs(5),
            active_negotiation_timeout: Duration::from_secs(120),
            passive_negotiation_timeout: Duration::from_secs(5),
            credit_grant_timeout: Some(Duration::from_secs(5)),
            receive_buffer: None,
            policy: Policy::default(),
        }
    }
}

impl Settings {
    /// Returns the settings of Windows (product notes 3 and 8 of the specification).
    ///
    /// ```
    /// # use smbdirect::{Config, Settings};
    /// // A test of how a peer copes with the short messages of Windows.
    /// let config = Config::new(Settings::windows())?;
    /// assert_eq!(config.settings().max_send_size, 1364);
    /// # Ok::<(), smbdirect::ConfigError>(())
    /// ```
    pub fn windows() -> Self {
        Self {
            max_send_size: 1364,
            ..Self::default()
        }
    }

    /// Returns the settings of the Linux client and ksmbd since 2026.
    ///
    /// ```
    /// # use smbdirect::{Config, Settings};
    /// // Linux takes upper-layer messages of up to 173,910 bytes; the default is 1 MiB.
    /// let config = Config::new(Settings::linux())?;
    /// assert_eq!(config.settings().max_fragmented_receive_size, 173_910);
    /// # Ok::<(), smbdirect::ConfigError>(())
    /// ```
    pub fn linux() -> Self {
        Self {
            max_send_size: 1364,
            max_receive_size: 1364,
            max_fragmented_receive_size: 173_910,
            ..Self::default()
        }
    }
}

/// Settings that have been checked; [`settings`](Self::settings) returns them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config(Settings);

/// Why settings were refused: a value contradicts the specification or another setting.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number is below its minimum.
    #[error("{setting} is {value}, at least {minimum} is needed")]
    TooSmall {
        /// Name of the setting.
        setting: &'static str,
        /// The value of the setting.
        value: u64,
        /// The smallest legal value.
        minimum: u64,
    },
    /// A duration is zero.
    #[error("{setting} is zero")]
    ZeroDuration {
        /// Name of the setting.
        setting: &'static str,
    },
}

impl From<ConfigError> for io::Error {
    fn from(error: ConfigError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

impl Config {
    /// Checks each setting and the relations between them. A duration above a hundred years, such
    /// as [`Duration::MAX`], is reduced to a hundred years.
    ///
    /// ```
    /// # use smbdirect::{Config, Settings};
    /// let mut settings = Settings::default();
    /// settings.max_receive_size = 100;
    /// let error = Config::new(settings).unwrap_err();
    /// assert_eq!(error.to_string(), "max_receive_size is 100, at least 128 is needed");
    /// ```
    ///
    /// # Errors
    /// Returns the first setting that is invalid.
    pub fn new(mut settings: Settings) -> Result<Self, ConfigError> {
        let at_least = |setting, value: u64, minimum: u64| {
            if value < minimum {
                return Err(ConfigError::TooSmall {
                    setting,
                    value,
                    minimum,
                });
            }
            Ok(())
        };
        at_least("send_credit_target", settings.send_credit_target.into(), 1)?;
        at_least("receive_credit_max", settings.receive_credit_max.into(), 1)?;
        at_least("max_send_size", settings.max_send_size.into(), 128)?;
        at_least("max_receive_size", settings.max_receive_size.into(), 128)?;
        at_least(
            "max_fragmented_receive_size",
            settings.max_fragmented_receive_size.into(),
            131_072,
        )?;
        at_least(
            "max_read_write_size",
            settings.max_read_write_size.into(),
            65_536,
        )?;
        if let Some(bytes) = settings.receive_buffer {
            at_least(
                "receive_buffer",
                bytes as u64,
                needed_for_credits(&settings) as u64,
            )?;
        }
        for (setting, duration) in [
            ("keepalive_interval", Some(settings.keepalive_interval)),
            (
                "keepalive_response_timeout",
                Some(settings.keepalive_response_timeout),
            ),
            (
                "active_negotiation_timeout",
                Some(settings.active_negotiation_timeout),
            ),
            (
                "passive_negotiation_timeout",
                Some(settings.passive_negotiation_timeout),
            ),
            ("credit_grant_timeout", settings.credit_grant_timeout),
        ] {
            if duration == Some(Duration::ZERO) {
                return Err(ConfigError::ZeroDuration { setting });
            }
        }
        for duration in [
            &mut settings.keepalive_interval,
            &mut settings.keepalive_response_timeout,
            &mut settings.active_negotiation_timeout,
            &mut settings.passive_negotiation_timeout,
        ]
        .into_iter()
        .chain(&mut settings.credit_grant_timeout)
        {
            *duration = bounded(*duration);
        }
        Ok(Self(settings))
    }

    /// Returns the limit, in bytes, of the memory for received and expected messages: the setting
    /// `receive_buffer` or its default.
    ///
    /// ```
    /// # use smbdirect::{Config, Settings};
    /// let mut settings = Settings::default();
    /// settings.receive_credit_max = 30; // For a server with very many clients.
    /// let small = Config::new(settings)?;
    /// assert_eq!(Config::default().receive_buffer(), 8_404_992);
    /// assert_eq!(small.receive_buffer(), 4_718_592);
    /// # Ok::<(), smbdirect::ConfigError>(())
    /// ```
    pub fn receive_buffer(&self) -> usize {
        let default =
            || needed_for_credits(&self.0) * 2 + self.0.max_fragmented_receive_size as usize * 4;
        self.0.receive_buffer.unwrap_or_else(default)
    }

    /// Returns the checked settings.
    ///
    /// ```
    /// # use smbdirect::Config;
    /// let config = Config::default();
    /// assert_eq!(config.settings().keepalive_interval.as_secs(), 120);
    /// ```
    pub const fn settings(&self) -> &Settings {
        &self.0
    }

    /// Returns the settings, as a base for changed settings.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use smbdirect::Config;
    /// # let config = Config::default();
    /// let mut settings = config.into_settings();
    /// settings.keepalive_interval = Duration::from_secs(10);
    /// let config = Config::new(settings)?;
    /// # Ok::<(), smbdirect::ConfigError>(())
    /// ```
    pub fn into_settings(self) -> Settings {
        self.0
    }
}

/// Returns the bytes of the largest number of receives that can be posted: one for each credit that
/// can be granted, one for the rule of the last credit, and one in reserve.
fn needed_for_credits(settings: &Settings) -> usize {
    (usize::from(settings.receive_credit_max) + 2) * settings.max_receive_size as usize
}

#[doc(hidden)]
impl Deref for Config {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_valid_and_within_the_limits_of_windows() {
        for settings in [Settings::default(), Settings::windows(), Settings::linux()] {
            let config = Config::new(settings).unwrap();
            assert!((1029..=8136).contains(&config.max_send_size));
            assert!(config.max_receive_size > 128);
            assert!(config.max_fragmented_receive_size > 131_072);
        }
    }

    #[test]
    fn each_minimum_is_accepted_and_one_less_is_refused() {
        let ok = |settings| Config::new(settings).is_ok();
        let base = Settings::default;
        assert!(ok(Settings {
            send_credit_target: 1,
            receive_credit_max: 1,
            ..base()
        }));
        assert!(!ok(Settings {
            send_credit_target: 0,
            ..base()
        }));
        assert!(!ok(Settings {
            receive_credit_max: 0,
            ..base()
        }));
        for (size, legal) in [(127, false), (128, true)] {
            assert_eq!(
                ok(Settings {
                    max_send_size: size,
                    ..base()
                }),
                legal
            );
            assert_eq!(
                ok(Settings {
                    max_receive_size: size,
                    ..base()
                }),
                legal
            );
        }
        for (size, legal) in [(131_071, false), (131_072, true)] {
            assert_eq!(
                ok(Settings {
                    max_fragmented_receive_size: size,
                    ..base()
                }),
                legal
            );
        }
        for (size, legal) in [(65_535, false), (65_536, true)] {
            assert_eq!(
                ok(Settings {
                    max_read_write_size: size,
                    ..base()
                }),
                legal
            );
        }
        assert!(!ok(Settings {
            keepalive_interval: Duration::ZERO,
            ..base()
        }));
        assert!(!ok(Settings {
            credit_grant_timeout: Some(Duration::ZERO),
            ..base()
        }));
        assert!(ok(Settings {
            credit_grant_timeout: None,
            ..base()
        }));
        let needed = 257 * 8192;
        assert!(ok(Settings {
            receive_buffer: Some(needed),
            ..base()
        }));
        assert!(!ok(Settings {
            receive_buffer: Some(needed - 1),
            ..base()
        }));
    }

    /// The values of Windows are in product notes 3, 4 and 8, those of Linux in its source code.
    #[test]
    fn profiles_have_the_values_of_windows_and_linux() {
        let sizes = |settings: Settings| {
            (
                settings.max_send_size,
                settings.max_receive_size,
                settings.max_fragmented_receive_size,
                settings.max_read_write_size,
            )
        };
        let ours = (8136, 8192, 1_048_576, 8_388_608);
        assert_eq!(sizes(Settings::default()), ours);
        assert_eq!(sizes(Settings::windows()), (1364, ours.1, ours.2, ours.3));
        assert_eq!(sizes(Settings::linux()), (1364, 1364, 173_910, ours.3));
        for settings in [Settings::default(), Settings::windows(), Settings::linux()] {
            let credits = (settings.send_credit_target, settings.receive_credit_max);
            assert_eq!(credits, (255, 255));
            let keepalive = (
                settings.keepalive_interval,
                settings.keepalive_response_timeout,
            );
            assert_eq!(keepalive, (SECOND * 120, SECOND * 5));
            let negotiation = (
                settings.active_negotiation_timeout,
                settings.passive_negotiation_timeout,
            );
            assert_eq!(negotiation, (SECOND * 120, SECOND * 5));
            assert_eq!(settings.credit_grant_timeout, Some(SECOND * 5));
            assert_eq!(settings.policy, Policy::default());
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn durations_are_limited_to_a_hundred_years() {
        let century = SECOND * 100 * 365 * 24 * 60 * 60;
        for (asked, expected) in [
            (Duration::MAX, century),
            (century + SECOND, century),
            (century - SECOND, century - SECOND),
        ] {
            let settings = Settings {
                keepalive_interval: asked,
                credit_grant_timeout: Some(asked),
                ..Settings::default()
            };
            let settings = Config::new(settings).unwrap().into_settings();
            assert_eq!(settings.keepalive_interval, expected);
            assert_eq!(settings.credit_grant_timeout, Some(expected));
        }
    }

    #[test]
    fn default_receive_buffer_holds_the_credits_twice_and_four_messages() {
        let buffer = |settings| Config::new(settings).unwrap().receive_buffer();
        let settings = Settings {
            receive_credit_max: 10,
            max_receive_size: 1000,
            max_fragmented_receive_size: 200_000,
            ..Settings::default()
        };
        assert_eq!(buffer(settings.clone()), 2 * 12 * 1000 + 4 * 200_000);
        let chosen = Settings {
            receive_buffer: Some(12_345),
            ..settings
        };
        assert_eq!(buffer(chosen), 12_345);
    }
}
