//! The options that commands share: settings under the names of the specification, addresses,
//! units.

use std::{io::IsTerminal, path::PathBuf, sync::OnceLock, time::Duration};

use anyhow::Result;
use clap::{
    ArgAction, Args, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use smbdirect::{
    Config, ConfigError, Revision, Settings,
    rdma::{
        NetworkSettings,
        iwarp::{FpduAlignment, MpaCrc},
        software::network::MAX_DSCP,
    },
};
use smbdirect_transport::RdmaSettings;
pub(crate) use smbdirect_transport::{Address, Kind as Transport};
use tracing_subscriber::{
    EnvFilter, Registry, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

pub(crate) use crate::failure::usage;
use crate::{
    report,
    streams::{Lines, Stream},
};

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct CommonOptions {
    /// Kind of RDMA
    ///
    /// iwarp is software over TCP and runs anywhere; roce is RoCEv2 in software over UDP; verbs uses
    /// RDMA adapters through rdma-core (see `smbdirect devices`); loopback stays within the process
    #[arg(long, value_parser = one_of(&TRANSPORTS), default_value = "iwarp", value_name = "KIND")]
    pub(crate) transport: Transport,

    /// Print one JSON object per line, for programs
    #[arg(long)]
    pub(crate) json: bool,

    /// Log the events of each connection to stderr; twice: each message
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Capture the connection to FILE, for Wireshark
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,

    /// Set of settings to start from
    #[arg(long, value_enum, default_value_t, help_heading = SETTINGS)]
    profile: Profile,

    /// Send credits to ask the peer for
    #[arg(long, value_name = "N", help_heading = SETTINGS, value_parser = clap::value_parser!(u16).range(1..))]
    send_credit_target: Option<u16>,

    /// Maximum number of send credits to grant to the peer
    #[arg(long, value_name = "N", help_heading = SETTINGS, value_parser = clap::value_parser!(u16).range(1..))]
    receive_credit_max: Option<u16>,

    /// Largest single message to send, header included; 128 or more
    #[arg(long, value_name = "SIZE", help_heading = SETTINGS, value_parser = size)]
    max_send_size: Option<u32>,

    /// Largest single message to receive, header included; 128 or more
    #[arg(long, value_name = "SIZE", help_heading = SETTINGS, value_parser = size)]
    max_receive_size: Option<u32>,

    /// Largest message to reassemble from fragments; 128K or more
    #[arg(long, value_name = "SIZE", help_heading = SETTINGS, value_parser = size)]
    max_fragmented_size: Option<u32>,

    /// Maximum number of bytes to move by one RDMA Read or Write; 64K or more
    #[arg(long, value_name = "SIZE", help_heading = SETTINGS, value_parser = size)]
    max_read_write_size: Option<u32>,

    /// Silence after which a keepalive is sent
    #[arg(long, value_name = "SECONDS", help_heading = SETTINGS, value_parser = seconds)]
    keepalive_interval: Option<Duration>,

    /// Longest time that the peer may take to answer a keepalive
    #[arg(long, value_name = "SECONDS", help_heading = SETTINGS, value_parser = seconds)]
    keepalive_response_timeout: Option<Duration>,

    /// Longest time that messages may wait for a send credit
    #[arg(long, value_name = "SECONDS", help_heading = SETTINGS, value_parser = seconds)]
    credit_grant_timeout: Option<Duration>,

    /// Wording of [MS-SMBD] 3.1.5.1 and 3.1.5.8 to follow; with v2014, every message that carries payload is
    /// answered immediately, even if there are no credits to grant
    #[arg(long, value_parser = one_of(&WORDINGS), default_value = "current", value_name = "WORDING", help_heading = SETTINGS)]
    revision: Revision,

    /// CRC32C in iWARP frames; auto uses it if the peer runs this library too, or if the peer asks for it
    #[arg(long, visible_alias = "crc", value_parser = one_of(&CRCS), default_value = "auto", value_name = "WHEN", help_heading = SETTINGS)]
    pub(crate) mpa_crc: MpaCrc,

    /// Alignment of iWARP frames with TCP segments; auto means `runs` if CRC is on and the peer is not known to
    /// run this library, and `off` otherwise
    #[arg(long, value_parser = one_of(&ALIGNMENTS), default_value = "auto", value_name = "HOW", help_heading = SETTINGS)]
    mpa_alignment: FpduAlignment,

    /// MPA revision to connect with, without fallback. If it is not given, 2 is tried, and 1 if the peer closes or
    /// refuses that connection
    #[arg(long, value_name = "N", help_heading = SETTINGS, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) mpa_revision: Option<u8>,

    /// RDMA Reads of the peer to serve at the same time; iwarp rounds it up to a power of two
    /// [default: 32]
    #[arg(long, value_name = "N", help_heading = SETTINGS, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) ird: Option<u16>,

    /// RDMA Reads to have outstanding, if the peer serves as many [default: 32]
    #[arg(long, value_name = "N", help_heading = SETTINGS, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) ord: Option<u16>,

    /// UDP port of the listening end, with --transport roce; adapters and the kernel's rxe use only 4791
    /// [default: 4791]
    #[arg(long, value_name = "PORT", help_heading = SETTINGS, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) udp_port: Option<u16>,

    /// DSCP of the packets (RFC 2474), by which managed networks tell classes of traffic apart; 0 to 63
    #[arg(long, value_name = "N", help_heading = SETTINGS, value_parser = dscp())]
    dscp: Option<u8>,

    /// DSCP of congestion notification packets, with --transport roce; 0 to 63 [default: 48]
    #[arg(long, value_name = "N", help_heading = SETTINGS, value_parser = dscp())]
    cnp_dscp: Option<u8>,

    /// Network interface through which packets leave and arrive, as in eth0; with --transport verbs, the adapter that
    /// has it
    #[arg(long, value_name = "NAME", help_heading = SETTINGS)]
    interface: Option<String>,
}

/// Returns the parser of a DSCP.
fn dscp() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(..=i64::from(MAX_DSCP))
}

const SETTINGS: &str = "Connection settings";

/// Options of commands that connect.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectOptions {
    /// Longest time for connecting and negotiating
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, hide_short_help = true)]
    pub(crate) connect_timeout: Duration,
}

/// Options of commands that accept connections.
#[derive(Clone, Debug, Args)]
pub(crate) struct AcceptOptions {
    /// How long a peer may take to negotiate after it has connected [default: 5]
    #[arg(long, value_name = "SECONDS", help_heading = SETTINGS, value_parser = seconds)]
    negotiation_timeout: Option<Duration>,
}

/// Default of MaxFragmentedSize for commands that move SMB: the longest message of a READ or WRITE of Samba's
/// default size, 8 MiB, with its header.
pub(crate) const SMB_MESSAGE_BYTES: u32 = (8 << 20) + (64 << 10);

impl AcceptOptions {
    /// Returns --negotiation-timeout, if it was given.
    pub(crate) const fn negotiation_timeout(&self) -> Option<Duration> {
        self.negotiation_timeout
    }
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Profile {
    /// The fastest settings that every known peer accepts
    #[default]
    Default,
    /// The settings of Windows
    Windows,
    /// The settings of the Linux client and ksmbd
    Linux,
}

/// A value of an option: its name, its help and its meaning.
pub(crate) type Named<T> = (&'static str, &'static str, T);

const TRANSPORTS: [Named<Transport>; 4] = [
    ("iwarp", "", Transport::Iwarp),
    ("roce", "", Transport::Roce),
    ("verbs", "", Transport::Verbs),
    ("loopback", "", Transport::Loopback),
];

const CRCS: [Named<MpaCrc>; 3] = [
    ("auto", "", MpaCrc::Auto),
    ("on", "", MpaCrc::On),
    ("off", "", MpaCrc::Off),
];

const ALIGNMENTS: [Named<FpduAlignment>; 4] = [
    ("auto", "", FpduAlignment::Auto),
    ("off", "", FpduAlignment::Off),
    (
        "single",
        "One frame per segment; each frame is written by itself",
        FpduAlignment::Single,
    ),
    (
        "runs",
        "One frame per segment; several frames are written at once, and segmentation offload separates them",
        FpduAlignment::Runs,
    ),
];

const WORDINGS: [Named<Revision>; 2] = [
    ("current", "The current wording", Revision::Current),
    ("v2014", "The wording of 2014", Revision::V2014),
];

/// Returns the parser of an option with these values.
pub(crate) fn one_of<T>(values: &'static [Named<T>]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let names = values.iter().map(|&(name, help, _)| {
        let value = PossibleValue::new(name);
        if help.is_empty() {
            value
        } else {
            value.help(help)
        }
    });
    PossibleValuesParser::new(names).map(|given| {
        let mut values = values.iter();
        let found = values.find(|(name, ..)| *name == given);
        found.expect("the parser accepts no other name").2
    })
}

impl CommonOptions {
    /// Returns whether --max-fragmented-size and --profile were not given.
    pub(crate) fn is_default_fragmented_size(&self) -> bool {
        self.max_fragmented_size.is_none() && matches!(self.profile, Profile::Default)
    }

    /// Returns whether a profile, a size or a number of credits was given.
    pub(crate) fn has_sizes_or_credits(&self) -> bool {
        let sizes = [
            self.max_send_size,
            self.max_receive_size,
            self.max_fragmented_size,
            self.max_read_write_size,
        ];
        let credits = [self.send_credit_target, self.receive_credit_max];
        !matches!(self.profile, Profile::Default)
            || sizes.iter().any(Option::is_some)
            || credits.iter().any(Option::is_some)
    }

    /// Returns --credit-grant-timeout, if it was given.
    pub(crate) const fn given_credit_grant_timeout(&self) -> Option<Duration> {
        self.credit_grant_timeout
    }

    /// Returns the settings.
    ///
    /// # Errors
    /// A usage error that names the option.
    pub(crate) fn config(
        &self,
        connect: Option<&ConnectOptions>,
        accept: Option<&AcceptOptions>,
    ) -> Result<Config> {
        let mut settings = match self.profile {
            Profile::Default => Settings::default(),
            Profile::Windows => Settings::windows(),
            Profile::Linux => Settings::linux(),
        };
        set(&mut settings.max_send_size, self.max_send_size);
        set(&mut settings.max_receive_size, self.max_receive_size);
        set(
            &mut settings.max_fragmented_receive_size,
            self.max_fragmented_size,
        );
        set(&mut settings.max_read_write_size, self.max_read_write_size);
        set(&mut settings.send_credit_target, self.send_credit_target);
        set(&mut settings.receive_credit_max, self.receive_credit_max);
        set(&mut settings.keepalive_interval, self.keepalive_interval);
        set(
            &mut settings.keepalive_response_timeout,
            self.keepalive_response_timeout,
        );
        set(
            &mut settings.credit_grant_timeout,
            self.credit_grant_timeout.map(Some),
        );
        set(
            &mut settings.passive_negotiation_timeout,
            accept.and_then(|options| options.negotiation_timeout),
        );
        set(
            &mut settings.active_negotiation_timeout,
            connect.map(|options| options.connect_timeout),
        );
        settings.policy.revision = self.revision;
        Config::new(settings).map_err(|error| usage(in_options(&error)))
    }

    /// Returns the DSCP and the interface of the packets.
    pub(crate) fn network(&self) -> NetworkSettings {
        let mut network = NetworkSettings::default();
        set(&mut network.dscp, self.dscp);
        network.interface.clone_from(&self.interface);
        network
    }

    /// Returns the settings of RDMA, for an end that connects if `connect` is given.
    pub(crate) fn rdma(&self, connect: Option<&ConnectOptions>) -> RdmaSettings {
        let mut settings = RdmaSettings {
            kind: self.transport,
            ..RdmaSettings::default()
        };
        let iwarp = &mut settings.iwarp;
        iwarp.crc = self.mpa_crc;
        // If a revision was requested, there is no fallback.
        iwarp.fall_back = self.mpa_revision.is_none();
        set(&mut iwarp.revision, self.mpa_revision);
        set(&mut iwarp.ird, self.ird);
        set(&mut iwarp.ord, self.ord);
        iwarp.tuning.fpdu_alignment = self.mpa_alignment;
        let depth = |option: Option<u16>| option.and_then(|depth| u8::try_from(depth).ok());
        let roce = &mut settings.roce;
        set(&mut roce.ird, depth(self.ird));
        set(&mut roce.ord, depth(self.ord));
        set(&mut roce.udp_port, self.udp_port);
        roce.peer_udp_port = roce.udp_port;
        set(&mut roce.cnp_dscp, self.cnp_dscp);
        let network = self.network();
        settings.iwarp.network = network.clone();
        settings.roce.network = network.clone();
        #[cfg(target_os = "linux")]
        {
            let verbs = &mut settings.verbs;
            set(&mut verbs.ird, depth(self.ird));
            set(&mut verbs.ord, depth(self.ord));
            verbs.network = network;
        }
        if let Some(ConnectOptions { connect_timeout }) = connect {
            settings.iwarp.connect_timeout = *connect_timeout;
            // The provider gives up shortly before the Negotiation Timer, because its error gives more detail.
            settings.roce.connect_timeout = connect_timeout.mul_f64(0.99);
            #[cfg(target_os = "linux")]
            {
                settings.verbs.connect_timeout = *connect_timeout;
            }
        }
        settings
    }
}

/// Sets a field to the value of an option that was given.
fn set<T>(field: &mut T, option: Option<T>) {
    if let Some(value) = option {
        *field = value;
    }
}

/// Starts logging to stderr, or to the journal with fields if stderr is the journal, at the level of `-v` or
/// `RUST_LOG`.
pub(crate) fn start_tracing(verbose: u8) {
    let (filter, handle) = reload::Layer::new(filter(verbose));
    let registry = tracing_subscriber::registry().with(filter);
    #[cfg(target_os = "linux")]
    if crate::systemd::logs_to_journal()
        && let Some(journal) = crate::journal::Journal::open()
    {
        registry.with(journal).init();
        let _ = FILTER.set(handle);
        return;
    }
    let lines = fmt::layer()
        .with_writer(|| Lines(Stream::Stderr))
        .with_ansi(std::io::stderr().is_terminal() && report::colour_wanted());
    registry.with(lines).init();
    let _ = FILTER.set(handle);
}

/// The filter of the log, which [`set_verbosity`] changes.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Changes what is logged, as `-v` does.
pub(crate) fn set_verbosity(verbose: u8) {
    if let Some(handle) = FILTER.get() {
        let changed = handle.reload(filter(verbose));
        changed.expect("the subscriber lives as long as the process");
    }
}

fn filter(verbose: u8) -> EnvFilter {
    match verbose {
        0 => EnvFilter::try_from_default_env()
            .unwrap_or_else(|_| EnvFilter::new(format!("warn,{}=info", report::CONNECTIONS))),
        1 => EnvFilter::new("smbdirect=debug,info"),
        _ => EnvFilter::new("smbdirect=trace,info"),
    }
}

/// Translates a library error to the names of the options.
fn in_options(error: &ConfigError) -> String {
    let option = |setting: &str| match setting {
        "max_fragmented_receive_size" => "--max-fragmented-size".into(),
        "active_negotiation_timeout" => "--connect-timeout".into(),
        "passive_negotiation_timeout" => "--negotiation-timeout".into(),
        setting => format!("--{}", setting.replace('_', "-")),
    };
    match error {
        ConfigError::TooSmall {
            setting,
            value,
            minimum,
        } => format!(
            "{} {value} is too small; the minimum is {minimum}",
            option(setting)
        ),
        ConfigError::ZeroDuration { setting } => format!("{} must not be zero", option(setting)),
        error => error.to_string(),
    }
}

/// The settings of each profile.
const PROFILES: &str = "\x1b[1m\x1b[4mSettings by --profile:\x1b[0m
                             default   windows     linux
  --send-credit-target           255       255       255
  --receive-credit-max           255       255       255
  --max-send-size               8136      1364      1364
  --max-receive-size            8192      8192      1364
  --max-fragmented-size      1048576   1048576    173910
  --max-read-write-size      8388608   8388608   8388608
  --keepalive-interval           120       120       120";

/// Returns `help`, followed by the settings of each profile.
pub(crate) fn with_profiles(help: &str) -> String {
    format!("{help}\n\n{PROFILES}")
}

/// Parses a number that is not zero.
pub(crate) fn at_least_one(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| "expected a number of at least 1".into())
}

/// Parses a size in bytes, with K, M or G for the binary multiples.
pub(crate) fn size(text: &str) -> Result<u32, String> {
    let bytes = large_size(text)?;
    u32::try_from(bytes).map_err(|_| "the maximum is 4294967295 bytes".into())
}

/// Parses a size that may be 4 GiB and more.
pub(crate) fn large_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((end, 'k' | 'K')) => (&text[..end], 10),
        Some((end, 'm' | 'M')) => (&text[..end], 20),
        Some((end, 'g' | 'G')) => (&text[..end], 30),
        _ => (text, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a size is a number of bytes, as in 8136, 64K, 1M or 1G".into());
    }
    let number = digits.parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("the maximum is {} bytes", u64::MAX))
}

/// Parses a time in seconds that is not zero; fractions are allowed.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match seconds_or_zero(text)? {
        Duration::ZERO => Err("it must be more than zero".into()),
        duration => Ok(duration),
    }
}

/// Parses a time in seconds; fractions are allowed.
pub(crate) fn seconds_or_zero(text: &str) -> Result<Duration, String> {
    let plain = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse::<f64>().ok().filter(|_| plain);
    let seconds = seconds.ok_or("a time is a number of seconds, as in 5 or 0.25")?;
    if seconds > MAX_SECONDS {
        return Err(format!("the maximum is {MAX_SECONDS} seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Longest time in seconds, ten years; clocks overflow far beyond it.
const MAX_SECONDS: f64 = 315_360_000.0;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        common: CommonOptions,
    }

    #[test]
    fn the_settings_of_each_profile_are_shown() {
        let profiles = [Settings::default(), Settings::windows(), Settings::linux()];
        for (option, value) in [
            (
                "--send-credit-target",
                (|s| s.send_credit_target.into()) as fn(&Settings) -> u64,
            ),
            ("--receive-credit-max", |s| s.receive_credit_max.into()),
            ("--max-send-size", |s| s.max_send_size.into()),
            ("--max-receive-size", |s| s.max_receive_size.into()),
            ("--max-fragmented-size", |s| {
                s.max_fragmented_receive_size.into()
            }),
            ("--max-read-write-size", |s| s.max_read_write_size.into()),
            ("--keepalive-interval", |s| s.keepalive_interval.as_secs()),
        ] {
            let row = profiles
                .each_ref()
                .map(|profile| value(profile).to_string());
            let mut lines = PROFILES.lines().map(str::split_ascii_whitespace);
            let found = lines.find_map(|mut words| (words.next() == Some(option)).then_some(words));
            assert!(found.expect(option).eq(row.iter()), "{option}: {row:?}");
        }
    }

    #[test]
    fn both_wordings_can_be_chosen() {
        for (arguments, revision) in [
            (&["smbdirect"][..], Revision::Current),
            (&["smbdirect", "--revision", "current"], Revision::Current),
            (&["smbdirect", "--revision", "v2014"], Revision::V2014),
        ] {
            let command = Command::try_parse_from(arguments).expect("the option is known");
            let config = command.common.config(None, None).unwrap();
            assert_eq!(config.policy.revision, revision, "{arguments:?}");
        }
    }

    #[test]
    fn the_settings_of_the_network_reach_every_transport() {
        let arguments = "smbdirect --dscp 46 --interface eth7 --cnp-dscp 40";
        let command = Command::try_parse_from(arguments.split(' ')).expect("the options are known");
        let settings = command.common.rdma(None);
        assert_eq!(settings.iwarp.network.dscp, 46);
        assert_eq!(settings.iwarp.network.interface.as_deref(), Some("eth7"));
        assert_eq!(settings.roce.network, settings.iwarp.network);
        assert_eq!(settings.roce.cnp_dscp, 40);
        #[cfg(target_os = "linux")]
        assert_eq!(settings.verbs.network, settings.iwarp.network);
        for option in ["--dscp", "--cnp-dscp"] {
            assert!(Command::try_parse_from(["smbdirect", option, "64"]).is_err());
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("1364", 1364),
            ("64K", 65_536),
            ("64k", 65_536),
            ("8M", 8 << 20),
            ("3G", 3 << 30),
            ("4294967295", u32::MAX),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "-1",
            "+1",
            "1.5M",
            "1 K",
            "1KK",
            "4G",
            "4294967296",
            "0x10",
            "1T",
            "1é",
            "99999999999999999999G",
            "18446744073709551615G",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, milliseconds) in [("1", 1000), ("0.25", 250), ("120", 120_000), (".5", 500)] {
            assert_eq!(
                seconds(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in [
            "",
            "0",
            "0.0",
            "-1",
            "+1",
            "1s",
            "nan",
            "inf",
            "1e9",
            "1e-12",
            ".",
            "400000000",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
