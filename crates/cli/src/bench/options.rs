//! The options of `smbdirect bench`, and what they choose to measure.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use smbdirect::{
    Config,
    rdma::{iwarp::MpaCrc, provider::Provider},
};

use smbdirect_bench::{
    Awake, Choice, Cores, Effort, EndSettings, MAX_MESSAGE_BYTES, Placement, Smb, Subject,
    check_congestion_control, congestion_control, time_of_a_burst,
};

use crate::{
    options::{
        Address, CommonOptions, ConnectOptions, Named, Transport, at_least_one, one_of, seconds,
        size, usage, with_profiles,
    },
    report, transport,
};

/// Measure bandwidth, message rate and round trips, next to plain TCP
///
/// Without ADDR both ends are on this machine, each in a thread that is pinned to a core. With ADDR
/// the other end is a `smbdirect bench --serve` there. All rows are measured alternately, in short
/// bursts, on the same cores, and the table shows medians. A message counts once all of it
/// has been received; its parts stay where they arrived and are not copied together. A write counts
/// when the far end has received a message that was sent after it.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Bench {
    /// The other end: HOST[:PORT], default port 5446; with --serve the address to listen on
    #[arg(value_name = "ADDR")]
    pub(super) address: Option<Address>,

    /// Serve as the other end for a bench that runs elsewhere
    #[arg(long, conflicts_with = "what")]
    pub(super) serve: bool,

    /// With --serve, end after the first bench
    #[arg(long, requires = "serve")]
    pub(super) once: bool,

    /// What to measure [default: all but connections]
    #[arg(long, value_parser = one_of(&SUBJECTS), value_name = "WHAT", value_delimiter = ',')]
    pub(super) what: Vec<Subject>,

    /// Sizes of messages, up to 8M
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "64,1K,8K,64K,1M", value_parser = size)]
    pub(super) sizes: Vec<u32>,

    /// Sizes of segments [default: 8136,1364]
    ///
    /// They are MaxSendSize and MaxReceiveSize of both ends
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size)]
    pub(super) segment: Vec<u32>,

    /// RDMA operations to have outstanding
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "16", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(super) outstanding: Vec<u32>,

    /// Move data in both directions at the same time
    #[arg(long)]
    pub(super) both: bool,

    /// Numbers of connections that work at the same time [default: 1]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) connections: Vec<u32>,

    /// Where the ends run [default: two-cores, or same-core where there is one; free with ADDR]
    #[arg(long, hide_short_help = true, value_parser = one_of(&PLACEMENTS), value_name = "WHERE")]
    pub(super) placement: Option<Placement>,

    /// Congestion control of all TCP connections [default: the system's]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub(super) congestion_control: Option<String>,

    /// Busy-poll: the ends never sleep
    #[arg(long, hide_short_help = true)]
    pub(super) busy_poll: bool,

    /// Keep the cores of the ends from halting, by idle-priority threads that spin
    #[arg(long, hide_short_help = true)]
    pub(super) keep_awake: bool,

    /// Measure SMB Direct only, without TCP and others
    #[arg(long)]
    pub(super) alone: bool,

    /// Samples of each row
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub(super) rounds: u64,

    /// Length of a burst [default: at most 0.25, chosen so that the whole measurement takes less than half a minute]
    #[arg(long, hide_short_help = true, value_name = "SECONDS", value_parser = seconds)]
    pub(super) time: Option<Duration>,

    #[command(flatten)]
    pub(super) connect: ConnectOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect bench                          both ends on this machine
  smbdirect bench --what write,read --sizes 64K,1M,8M --outstanding 1,8,32
  smbdirect bench --serve :5446            on one machine
  smbdirect bench HOST                     on another, or in a second process of the same one

  smbdirect bench --what send --segment 1364 --placement same-core --mpa-crc off
  smbdirect bench --what connections --connections 1,8,64,512
  smbdirect bench --transport roce         RoCEv2 in software, next to TCP
  smbdirect bench --serve --transport verbs
  smbdirect bench --transport verbs HOST   over RDMA adapters: HOST is an address of one

  If the system's congestion control is bbr, whose pacing takes much CPU time on one machine:
  smbdirect bench --congestion-control reno

  If waking an idle core takes long, as in many virtual machines:
  smbdirect bench --keep-awake

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"row\", name, kind, means, transport, size, segment, crc, outstanding, both, busy_poll,
   connections, placement, gib_per_second, gib_per_second_p25, gib_per_second_p75,
   cpu_seconds_per_gib, messages_per_second, ratio_to_tcp, ratio_to_tcp_batched, latency, samples,
   usual_distance}
  {\"event\":\"idle_connections\", connections, bytes_each, credit_bytes, beyond_credits}
  {\"event\":\"active_connections\", connections, fastest_to_slowest, together_to_one}
  {\"event\":\"load\", kind, means, size, connections, gib_per_second, cpu_seconds_per_gib,
   least_to_most, requests, p50_seconds, p99_seconds, p999_seconds, rate_to_tcp, p99_to_tcp,
   rounds}, where a range is {median, least, most}
  {\"event\":\"load_memory\", connections, bytes_each}
  {\"event\":\"summary\", rows, samples, dropped, between_cores_seconds, core_share, load_before,
   load_after, spread, congestion_control, kept_awake, two_cores, interrupted}";

/// Maximum number of connections of a link.
const MAX_CONNECTIONS: u32 = 16_384;

impl Bench {
    /// Returns what the options choose to measure.
    ///
    /// # Errors
    /// A usage error: options that contradict each other, the system or this machine.
    pub(super) fn choice(&self, cores: &Cores) -> Result<Choice> {
        let config = self.options.config(Some(&self.connect), None)?;
        let over = self.options.transport;
        self.check_transport(over)?;
        self.check_congestion_control()?;
        let placement = self.placement(cores)?;
        self.check_sleep(placement)?;
        Ok(Choice {
            smb: Smb {
                over,
                crc: true,
                segment: 0,
                send_credit_target: config.send_credit_target,
                receive_credit_max: config.receive_credit_max,
                max_read_write_size: config.max_read_write_size,
            },
            // The ICRC of RoCE is not optional.
            crcs: vec![
                !matches!(over, Transport::Roce | Transport::Verbs)
                    && self.options.mpa_crc != MpaCrc::Off,
            ],
            segments: self.segments(&config)?,
            sizes: self.sizes()?,
            subjects: self.subjects(),
            outstanding: self.outstanding.clone(),
            directions: vec![self.both],
            busy: self.busy_poll,
            connections: match &self.connections[..] {
                [] => vec![1],
                connections => connections.to_vec(),
            },
            with_loads: !self.connections.is_empty(),
            placement,
            alone: self.alone,
        })
    }

    /// Checks that the transport reaches the other end.
    fn check_transport(&self, over: Transport) -> Result<()> {
        if over == Transport::Verbs && self.address.is_none() {
            return Err(usage(
                "--transport verbs needs ADDR: an address of an adapter, where \
                 `smbdirect bench --serve --transport verbs` runs, on this machine or another",
            ));
        }
        if over == Transport::Loopback && self.address.is_some() {
            return Err(usage("--transport loopback stays within one process"));
        }
        if let Some(address) = &self.address {
            transport::check_connectable(address)?;
        }
        if self.options.pcap.is_some() {
            return Err(usage(
                "--pcap cannot be used with bench: the time to write the capture would be measured too",
            ));
        }
        Ok(())
    }

    /// Checks that the chosen cores can be kept awake, and that the ends can spin on them.
    fn check_sleep(&self, placement: Placement) -> Result<()> {
        if self.keep_awake && placement == Placement::Free {
            return Err(usage(
                "--keep-awake needs a core for each end: --placement two-cores",
            ));
        }
        if self.busy_poll && self.both {
            return Err(usage("--busy-poll cannot be combined with --both"));
        }
        if self.busy_poll && placement == Placement::SameCore {
            return Err(usage(
                "--busy-poll cannot be combined with --placement same-core: the end that spins keeps the \
                 other end from running",
            ));
        }
        Ok(())
    }

    fn segments(&self, config: &Config) -> Result<Vec<u32>> {
        let segments = match &self.segment[..] {
            [] => vec![config.max_send_size.min(config.max_receive_size), 1364],
            segments => segments.to_vec(),
        };
        match segments.iter().find(|&&segment| segment < 128) {
            Some(segment) => Err(usage(format!(
                "--segment {segment} is too small; the minimum is 128"
            ))),
            None => Ok(segments),
        }
    }

    /// Checks that the system has the congestion control and lets this user choose it.
    fn check_congestion_control(&self) -> Result<()> {
        let Some(algorithm) = &self.congestion_control else {
            return Ok(());
        };
        check_congestion_control(algorithm).map_err(|error| {
            if cfg!(not(target_os = "linux")) {
                return usage("--congestion-control: this system offers no choice");
            }
            usage(format!(
                "--congestion-control {algorithm}: {}; see net.ipv4.tcp_allowed_congestion_control",
                report::plain(&error)
            ))
        })
    }

    fn placement(&self, cores: &Cores) -> Result<Placement> {
        let placement = match self.placement {
            Some(placement) => placement,
            None if self.address.is_some() || cores.near().is_none() => Placement::Free,
            None if cores.are_two() => Placement::TwoCores,
            None => Placement::SameCore,
        };
        if placement != Placement::Free && cores.near().is_none() {
            return Err(usage(
                "--placement: this system cannot pin threads to cores; use free",
            ));
        }
        if placement == Placement::TwoCores && self.address.is_none() && !cores.are_two() {
            return Err(usage(
                "--placement two-cores: this process may use one core only; use same-core",
            ));
        }
        if placement == Placement::SameCore && self.address.is_some() {
            return Err(usage(
                "--placement same-core: the other end is not on this machine",
            ));
        }
        Ok(placement)
    }

    fn sizes(&self) -> Result<Vec<u32>> {
        let wrong = |&&size: &&u32| size == 0 || size > MAX_MESSAGE_BYTES;
        match self.sizes.iter().find(wrong) {
            Some(size) => Err(usage(format!("--sizes {size} is not within 1 to 8M"))),
            None => Ok(self.sizes.clone()),
        }
    }

    fn subjects(&self) -> Vec<Subject> {
        if !self.what.is_empty() {
            return self.what.clone();
        }
        vec![
            Subject::Send,
            Subject::Write,
            Subject::Read,
            Subject::Latency,
            Subject::Memory,
        ]
    }

    /// Returns the adapters of this machine for --transport verbs.
    ///
    /// # Errors
    /// There are none.
    pub(super) fn adapters(&self) -> Result<Option<Arc<dyn Provider>>> {
        if self.options.transport != Transport::Verbs {
            return Ok(None);
        }
        let adapters = transport::adapters(&self.options, &self.connect)?;
        Ok(Some(adapters.provider().clone()))
    }

    pub(super) fn setting(
        &self,
        cores: &Cores,
        adapters: Option<Arc<dyn Provider>>,
    ) -> EndSettings {
        let mut iwarp = self.options.rdma(None).iwarp;
        iwarp.tuning.congestion_control = self.congestion_control.clone();
        EndSettings {
            cores: cores.clone(),
            iwarp,
            roce: self.options.rdma(None).roce,
            adapters,
            in_process: None,
            max_connections: MAX_CONNECTIONS,
        }
    }

    /// With --keep-awake, keeps the cores of `ends` from halting until the result is dropped.
    ///
    /// # Errors
    /// The system cannot.
    pub(super) fn keep_awake(
        &self,
        cores: &Cores,
        ends: &[Option<usize>],
    ) -> Result<Option<Awake>> {
        let awake = self.keep_awake.then(|| Awake::start(cores, ends));
        awake.transpose().context("--keep-awake")
    }

    /// Returns how often and how long to measure `rows` rows, so that all takes about `total`.
    pub(super) fn effort(&self, rows: usize, total: Duration) -> Effort {
        let rounds = self.rounds.min(1000) as u32;
        let time = self.time;
        Effort {
            rounds,
            time: time.unwrap_or_else(|| time_of_a_burst(rows, rounds, total)),
            most: total,
        }
    }

    /// Returns the congestion control of the TCP connections of all rows.
    pub(super) fn used_congestion_control(&self) -> Option<String> {
        let chosen = self.congestion_control.clone();
        chosen.or_else(congestion_control)
    }
}

const SUBJECTS: [Named<Subject>; 7] = [
    ("send", "Messages of each size", Subject::Send),
    ("write", "RDMA Writes of each size", Subject::Write),
    ("read", "RDMA Reads of each size", Subject::Read),
    (
        "latency",
        "Round trips of 64 B, sleeping and busy-polling",
        Subject::Latency,
    ),
    (
        "rate",
        "Messages of 64 B: several per call, and one per call",
        Subject::Rate,
    ),
    ("memory", "Copies and checksums in memory", Subject::Memory),
    (
        "connections",
        "A thousand idle connections and 64 busy ones; with --connections, data on that many connections while another \
         one carries requests",
        Subject::Connections,
    ),
];

const PLACEMENTS: [Named<Placement>; 3] = [
    (
        "two-cores",
        "Each end on a core of its own",
        Placement::TwoCores,
    ),
    ("same-core", "Both ends on one core", Placement::SameCore),
    ("free", "Wherever the system puts them", Placement::Free),
];
