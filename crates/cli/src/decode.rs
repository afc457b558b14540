//! `smbdirect decode`: shows a capture message by message, and which rules were broken.

mod as_tcp;
mod explain;
mod text;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fs::File,
    io::{IsTerminal, Read, stdin},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow};
use clap::{ArgAction, Args};
use smbdirect_decode::{
    CaptureError, Counts, Event, EventKind, Explain, MAX_SUMMARISED, Packets, Streams, Summary,
};
use tracing::{debug, trace};

use crate::{
    failure::{Kind, OfKind},
    options::at_least_one,
    report::{self, Report, plain},
};

/// Read a capture: SMB Direct messages, credits, and broken rules
///
/// Reads pcap and pcapng files of iWARP on TCP and of RoCE, including those of --pcap, tcpdump and
/// Wireshark.
/// Prints a line for each message with the field names of the specification, the send credits that
/// each end holds after it, and each rule that it breaks, by its id in `specs`. The status is 0
/// only if the whole file was read, it contains SMB Direct, and no rule was broken.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Decode {
    /// The capture: pcap or pcapng; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print one JSON object per line, for programs
    #[arg(long)]
    pub(crate) json: bool,

    /// Treat this port as SMB Direct: TCP as on port 5445, even if the start of the connection was not
    /// captured, and RoCE as on port 445
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,

    /// Treat this UDP port as RoCE too
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    udp_port: Vec<u16>,

    /// Show only this stream, by its number
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    stream: Vec<u64>,

    /// Show each packet of RoCE too: opcode, PSN, acknowledgement
    #[arg(long)]
    packets: bool,

    /// Show only the messages that break a rule
    #[arg(long)]
    broken: bool,

    /// Say where the time went, what makes it slow, and the cure
    #[arg(long, conflicts_with_all = ["stream", "packets", "broken"])]
    explain: bool,

    /// Write the SMB traffic as pcapng of SMB2 over TCP port 445, with the data that RDMA moved, for Wireshark and
    /// other tools; `-` is stdout
    #[arg(long, value_name = "FILE", conflicts_with_all = ["explain", "stream", "packets", "broken"])]
    as_tcp: Option<PathBuf>,

    /// Log to stderr; give it twice to log every message
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect decode mount.pcap
  smbdirect decode mount.pcapng --stream 2 --broken
  smbdirect decode other-port.pcap --port 9000 --json

  smbdirect decode slow.pcap --explain      says why it is slow
  smbdirect decode copy.pcap --as-tcp tcp.pcapng      for Wireshark, tshark and Zeek
  smbdirect decode copy.pcap --as-tcp - | tshark -r - --export-objects smb,files

  smbdirect decode roce.pcap --packets      also shows PSNs, acknowledgements and ICRCs

  tcpdump -i any -s 0 -w mount.pcap tcp port 5445      makes such a file of iWARP
  tcpdump -i eth0 -s 0 -w roce.pcap udp port 4791      makes one of RoCEv2
  tcpdump -i any -s 0 -U -w - tcp port 5445 | smbdirect decode -      as packets are captured

\x1b[1m\x1b[4mIn the lines:\x1b[0m
  I> is a message of the initiator, which connected, <R one of the responder. The last columns are
  the send credits that the initiator and the responder hold then; ? if the capture lacks something
  that they depend on. Rules are only checked where everything that they depend on was captured.

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"stream\", stream, transport, initiator, responder, from_start}
  {\"event\":\"message\", stream, frame, seconds, from, message, its fields, initiator_credits,
   responder_credits, broken}
  {\"event\":\"gap\", stream, frame, seconds, from, bytes}      and in_step, note, closed;
   for RoCE missing_packets, sent_again, and packet with --packets
  {\"event\":\"summary\", packets, streams, messages, counts by kind, lowest credits, broken}
  {\"event\":\"explanation\", verdict, connections, unseen}      the only one with --explain
  {\"event\":\"as_tcp\", connections, messages, put_back_bytes, without_data, gaps, not_smb,
   copied_packets}      the only one with --as-tcp";

impl Decode {
    pub(crate) fn run(self) -> Result<bool> {
        let report = Report::new(self.json);
        let name = if is_stdin(&self.file) {
            "stdin".into()
        } else {
            self.file.to_string_lossy()
        };
        let failed = || format!("cannot read the capture {name}");
        let file = open(&self.file).with_context(failed).of_kind(Kind::File)?;
        let mut packets = Packets::new(file)
            .map_err(|error| in_words(&error))
            .with_context(failed)
            .of_kind(Kind::File)?;
        if self.explain {
            return self.explain(&report, &mut packets, &name);
        }
        if let Some(to) = &self.as_tcp {
            return self.as_tcp(&report, &mut packets, &name, to);
        }
        let mut streams = Streams::new(&self.port, &self.udp_port);
        let mut show = Show {
            report: &report,
            decode: &self,
            waiting: BTreeMap::new(),
            summary: Summary::default(),
        };
        let ended = loop {
            match packets.next_packet() {
                Ok(Some(packet)) => {
                    let (frame, length) = (packet.frame, packet.data.len());
                    trace!(frame, length, link = packet.link, "packet");
                    streams.packet(&packet, &mut |event| show.event(event));
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
            if report::is_unread() {
                break Ok(());
            }
        };
        streams.finish(&mut |event| show.event(event));
        debug!(counts = ?streams.counts(), "the capture has been read");
        let mut summary = show.summary;
        summary.counts = streams.counts().clone();
        text::summary(&report, &summary);
        report.event(&summary);
        ended
            .map_err(|error| in_words(&error))
            .with_context(failed)
            .of_kind(Kind::File)?;
        if summary.messages.is_empty() {
            return Err(nothing_found(&self, &summary.counts).context(format!("nothing in {name}")));
        }
        Ok(summary.broken.is_empty())
    }

    /// Explains where the time went. Returns whether the whole file was read.
    fn explain(
        &self,
        report: &Report,
        packets: &mut Packets<Box<dyn Read>>,
        name: &str,
    ) -> Result<bool> {
        let mut explain = Explain::new(&self.port, &self.udp_port);
        let ended = loop {
            match packets.next_packet() {
                Ok(Some(packet)) => explain.packet(&packet),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let counts = explain.counts().clone();
        let explanation = explain.finish();
        if explanation.connections.is_empty() && explanation.verdict.causes.is_empty() {
            return Err(nothing_found(self, &counts).context(format!("nothing in {name}")));
        }
        explain::text(report, &explanation);
        report.event(&explanation);
        ended
            .map_err(|error| in_words(&error))
            .with_context(|| format!("cannot read the capture {name}"))
            .of_kind(Kind::File)?;
        Ok(true)
    }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn open(path: &Path) -> Result<Box<dyn Read>> {
    if is_stdin(path) {
        let stdin = stdin();
        if stdin.is_terminal() {
            return Err(anyhow!("it is a terminal; pipe a capture into it"));
        }
        return Ok(Box::new(stdin.lock()));
    }
    // Windows does not open directories, and its error names another reason.
    if path.is_dir() {
        return Err(anyhow!("it is a directory"));
    }
    let file = File::open(path).map_err(|error| anyhow!(plain(&error)))?;
    Ok(Box::new(file))
}

fn in_words(error: &CaptureError) -> anyhow::Error {
    anyhow!(plain(error))
}

/// Explains why there is no message, and what to try.
fn nothing_found(decode: &Decode, counts: &Counts) -> anyhow::Error {
    if !decode.stream.is_empty() {
        return anyhow!("no such stream has messages of SMB Direct or iWARP; try without --stream");
    }
    if counts.roce.packets > 0 {
        let packets = report::plural(counts.roce.packets, "packet");
        if counts.roce.wrong_icrc > counts.roce.packets / 2 {
            return anyhow!(
                "{packets} of RoCE, most with a wrong ICRC: addresses were changed after the capture, or it was made \
                 before the adapter computes the ICRC; decode the original, or capture at a switch"
            );
        }
        return anyhow!(
            "{packets} of RoCE, but no connection to port 445 and no message of SMB Direct; \
             if it was another port, give --port"
        );
    }
    let named = not_understood(counts);
    if counts.tcp == 0 && !named.is_empty() {
        return anyhow!(
            "{named} not understood; capture where no other protocol encloses TCP or RoCE; \
             for RoCE on another UDP port, give --udp-port"
        );
    }
    if counts.tcp == 0 {
        return anyhow!(
            "no packet of TCP, so no iWARP, and none of RoCE (UDP 4791); if it was another UDP port, \
             give --udp-port"
        );
    }
    if counts.cut > 0 {
        let packets = report::plural(counts.cut, "packet");
        return anyhow!(
            "{packets} of TCP cut by the snap length of the capture, and no message in the rest; capture whole \
             packets, as with `tcpdump -s 0`"
        );
    }
    anyhow!(
        "no stream of TCP begins with an MPA Request or is on port 5445; \
         if the beginning was not captured, give --port"
    )
}

/// Names the most frequent packets that are not understood.
fn not_understood(counts: &Counts) -> String {
    const MAX_NAMED: usize = 3;
    let mut kinds: Vec<_> = counts.unread.iter().collect();
    kinds.sort_by_key(|(_, packets)| Reverse(**packets));
    let kinds = kinds.iter().take(MAX_NAMED).map(|(unread, packets)| {
        let packets = report::plural(**packets, "packet");
        format!("{packets} of {unread}")
    });
    kinds.collect::<Vec<_>>().join(", ")
}

/// Shows and counts events.
struct Show<'a> {
    report: &'a Report,
    decode: &'a Decode,
    /// The first event of each stream, held until another event of the stream is shown.
    waiting: BTreeMap<u32, Event>,
    summary: Summary,
}

impl Show<'_> {
    fn event(&mut self, event: Event) {
        let wanted = &self.decode.stream;
        if !wanted.is_empty() && !wanted.contains(&event.stream.into()) {
            return;
        }
        self.summary.count(&event);
        if matches!(event.kind, EventKind::Packet(_)) && !self.decode.packets {
            return;
        }
        let is_stream = matches!(event.kind, EventKind::Stream { .. });
        if is_stream && self.waiting.len() < MAX_SUMMARISED {
            self.waiting.insert(event.stream, event);
            return;
        }
        if self.decode.broken && event.broken.is_empty() {
            return;
        }
        if let Some(stream) = self.waiting.remove(&event.stream) {
            self.show(&stream);
        }
        self.show(&event);
    }

    fn show(&self, event: &Event) {
        text::event(self.report, event);
        self.report.event(event);
    }
}
