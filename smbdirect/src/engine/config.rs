//! Local limits, timers and policy: [`Settings`] to fill in, [`Config`] once they are checked.

use std::{ops::Deref, time::Duration};

use thiserror::Error;

/// What one end brings to a connection, under the specification's names (3.1.1.1).
///
/// The default is the fastest that every known peer accepts. Change fields by update syntax and
/// have them checked by [`Config::new`]:
///
/// ```
/// use smbdirect::{Config, Settings};
///
/// let config = Config::new(Settings { send_credit_target: 16, ..Settings::windows() })?;
/// assert_eq!(config.max_send_size, 1364);
/// # Ok::<(), smbdirect::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// SendCreditTarget: send credits to ask the peer for; at least 1.
    pub send_credit_target: u16,
    /// ReceiveCreditMax: most send credits to give the peer; at least 1.
    pub receive_credit_max: u16,
    /// MaxSendSize: largest single message to send, in bytes with its header; 128 or more.
    pub max_send_size: u32,
    /// MaxReceiveSize: largest single message to receive, in bytes with its header; 128 or more.
    pub max_receive_size: u32,
    /// MaxFragmentedRecvSize: largest reassembled message to receive, in bytes; 131072 or more.
    pub max_fragmented_receive_size: u32,
    /// MaxReadWriteSize: most bytes to move by one RDMA Read or Write; 65536 or more.
    pub max_read_write_size: u32,
    /// KeepaliveInterval: silence after which the peer is asked for a sign of life.
    pub keepalive_interval: Duration,
    /// How long the peer may take to give the sign of life.
    pub keepalive_response_timeout: Duration,
    /// Negotiation Timer of the connecting side: covers connecting and negotiating.
    pub active_negotiation_timeout: Duration,
    /// Negotiation Timer of the accepting side.
    pub passive_negotiation_timeout: Duration,
    /// Send Credit Grant Timer of Windows: how long messages may wait without a send credit.
    /// `None` leaves it to the keepalive.
    pub credit_grant_timeout: Option<Duration>,
    /// Most bytes of memory for messages that arrived and were not taken, and for those that may
    /// still arrive on the credits given. Once it is full no credits are given any more, and since
    /// the last send credit is never spent without giving one, sending comes to a halt too.
    /// `None` takes twice what the credits need and four messages of the largest size. A message
    /// that is incomplete counts extra, up to `max_fragmented_receive_size`.
    pub receive_buffer: Option<usize>,
    /// Where the specification leaves a choice, or contradicts itself.
    pub policy: Policy,
}

/// Choices that are not on the wire; the defaults are what the digest of the field recommends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which wording of 3.1.5.1 and 3.1.5.8 to follow where they differ on the wire.
    pub revision: Revision,
    /// When an idle end gives credits by an empty message.
    pub grant_policy: GrantPolicy,
    /// Never spend the last send credit on a message that grants none. `false` is what Linux
    /// does: it spends it while the peer still holds credits. Two such ends can block each other
    /// for good where their upper layers are slow, so one of them has to keep the rule.
    pub strict_last_credit: bool,
    /// Answer a keepalive with a keepalive, as the text of 3.1.5.8 has it. Two such ends never
    /// fall silent; for experiments only.
    pub literal_keepalive_echo: bool,
    /// Ignore an empty message between the segments of a message instead of ending the
    /// connection. Linux before 2026 sends such.
    pub tolerate_empty_in_sequence: bool,
    /// Refuse every version range but 0x0100 to 0x0100, as Windows Server 2012 does.
    pub strict_windows_versions: bool,
    /// Refuse a PreferredSendSize above 8136, as Windows Server 2012 R2 does.
    pub windows_8136_limit: bool,
}

/// A published wording of 3.1.5.1, Sending Upper Layer Messages, and 3.1.5.8, Receiving a Data
/// Transfer Message.
///
/// They differ in when credits are counted and in what is cleared when, of which nothing shows on
/// the wire: header and grant of a message are made as it leaves, which satisfies both. What shows
/// is the answer to a message that arrives while nothing waits to be sent:
///
/// | the message | `Current` | `V2014` |
/// |---|---|---|
/// | asks for an answer | answered | answered |
/// | brings payload | answered if there are credits to give, as [`GrantPolicy`] says | answered at once, even with no credits to give |
/// | is empty and asks for nothing | answered if there are credits to give | the same |
///
/// In the last row the wording of 2014 wants an answer as well. Two ends that follow it there
/// never fall silent, so that row is not followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Revision {
    /// The wording since 2018 at the latest, up to version 16.0 of 2025.
    #[default]
    Current,
    /// The wording of 2014.
    V2014,
}

/// When an end that has nothing to send gives credits by an empty message: 3.1.5.9 leaves it open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GrantPolicy {
    /// When the peer is down to a quarter of what it asked for, or 64 can be given at once.
    #[default]
    Hysteresis,
    /// After each message that used a credit.
    Eager,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            revision: Revision::Current,
            grant_policy: GrantPolicy::Hysteresis,
            strict_last_credit: true,
            literal_keepalive_echo: false,
            tolerate_empty_in_sequence: false,
            strict_windows_versions: false,
            windows_8136_limit: false,
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
    /// What Windows uses (product notes 3 and 8 of the specification).
    pub fn windows() -> Self {
        Self {
            max_send_size: 1364,
            ..Self::default()
        }
    }

    /// What the Linux client and ksmbd use since 2026.
    pub fn linux() -> Self {
        Self {
            max_send_size: 1364,
            max_receive_size: 1364,
            max_fragmented_receive_size: 173_910,
            ..Self::default()
        }
    }
}

const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Settings that have been checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config(Settings);

/// Settings that contradict the specification or each other.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A number is below what the protocol needs.
    #[error("{setting} is {value}, at least {minimum} is needed")]
    TooSmall {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: u64,
        /// The smallest that is legal.
        minimum: u64,
    },
    /// A time-out is zero.
    #[error("{setting} is zero")]
    ZeroDuration {
        /// The setting.
        setting: &'static str,
    },
}

impl Config {
    /// Checks each field and the relations between them. Durations of more than a century,
    /// [`Duration::MAX`] say, become one.
    ///
    /// # Errors
    /// The first setting that cannot be used.
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
        // Later is no time that an `Instant` could hold.
        for duration in [
            &mut settings.keepalive_interval,
            &mut settings.keepalive_response_timeout,
            &mut settings.active_negotiation_timeout,
            &mut settings.passive_negotiation_timeout,
        ]
        .into_iter()
        .chain(&mut settings.credit_grant_timeout)
        {
            *duration = CENTURY.min(*duration);
        }
        Ok(Self(settings))
    }

    /// Bytes that untaken and possible messages may take together.
    pub fn receive_buffer(&self) -> usize {
        let generous =
            || needed_for_credits(&self.0) * 2 + self.0.max_fragmented_receive_size as usize * 4;
        self.0.receive_buffer.unwrap_or_else(generous)
    }

    /// The settings, to make others from.
    pub fn into_settings(self) -> Settings {
        self.0
    }
}

/// Bytes for every receive that the credits can make us post: one more than the most granted,
/// for the last-credit rule, and one in reserve.
fn needed_for_credits(settings: &Settings) -> usize {
    (usize::from(settings.receive_credit_max) + 2) * settings.max_receive_size as usize
}

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
    fn every_profile_is_legal_and_stays_in_the_safe_ranges() {
        for settings in [Settings::default(), Settings::windows(), Settings::linux()] {
            let config = Config::new(settings).unwrap();
            assert!((1029..=8136).contains(&config.max_send_size));
            assert!(config.max_receive_size > 128);
            assert!(config.max_fragmented_receive_size > 131_072);
        }
    }

    #[test]
    fn each_limit_to_the_unit() {
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

    /// The figures of Windows are in product notes 3, 4 and 8, those of Linux in its sources.
    #[test]
    fn the_profiles_are_those_of_windows_and_linux() {
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
    fn for_ever_is_a_hundred_years() {
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
    fn the_receive_buffer_is_twice_what_credits_need_and_four_messages() {
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
