//! `smbdirect devices`: the RDMA of this machine, in software and by adapters, and whether SMB Direct
//! can use it.

use std::io;

use anyhow::Result;
use clap::{ArgAction, Args};
use serde::Serialize;
use smbdirect::rdma::roce::{Capabilities, capabilities};
use smbdirect_transport::Kind;

use crate::report::{self, Report};

/// List the RDMA of this machine, and whether SMB Direct can use it
///
/// For adapters it uses the libraries of rdma-core, as `--transport verbs` does in the other commands.
/// Ends with status 1 if no adapter can be used, and prints what to do about it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Devices {
    /// Print one JSON object per line, for programs
    #[arg(long)]
    pub(crate) json: bool,

    /// Log to stderr; give it twice for more
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect devices
  rdma link add rxe0 type rxe netdev eth0      makes a software adapter: RoCE, or siw for iWARP

\x1b[1m\x1b[4mOf an adapter:\x1b[0m
  queue: work requests in a queue; pieces: of memory in a Send; reads: RDMA Reads that are served and
  issued concurrently on a connection; invalidates: it can send Send with Invalidate; windows: it has
  memory windows, whose tokens a peer can invalidate

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"software\", transport, port_of_smb_direct, usable, why_not, datagrams_per_send,
   datagrams_per_receive, receive_buffer, identification_is_right, udp_port_taken}
  {\"event\":\"device\", name, transport, port_of_smb_direct, ports, max_queue, max_send_elements,
   max_completions, max_inbound_reads, max_outbound_reads, send_with_invalidate, memory_windows,
   usable, why_not}";

impl Devices {
    pub(crate) fn run(self) -> Result<bool> {
        let report = Report::new(self.json);
        Software::new(Kind::Iwarp, 5445, None).print(&report);
        Software::new(Kind::Roce, 445, Some(capabilities())).print(&report);
        adapters(&report)
    }
}

/// Prints the adapters. Returns whether one can be used.
#[cfg(not(target_os = "linux"))]
fn adapters(_: &Report) -> Result<bool> {
    Err(anyhow::anyhow!(
        "RDMA adapters are used through rdma-core, which is for Linux"
    ))
}

/// Prints the adapters. Returns whether one can be used.
#[cfg(target_os = "linux")]
fn adapters(report: &Report) -> Result<bool> {
    use crate::transport::unavailable;

    let devices = smbdirect_verbs::Verbs::devices().map_err(|why| {
        let why = unavailable(&why);
        anyhow::anyhow!("no RDMA adapter can be used: {why:#}; only --transport verbs needs one")
    })?;
    for device in &devices {
        linux::Event::of(device).print(report);
    }
    Ok(devices.iter().any(|device| device.unusable.is_none()))
}

/// Returns whether SMB Direct can use something, in words.
fn verdict(port: Option<u16>, why_not: Option<&str>) -> String {
    match (why_not, port) {
        (Some(why), _) => format!("no: {}", report::printable(why)),
        (None, Some(port)) => format!("yes, port {port}"),
        (None, None) => "yes".into(),
    }
}

/// A transport in software.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "software")]
struct Software {
    transport: Kind,
    port_of_smb_direct: u16,
    usable: bool,
    why_not: Option<String>,
    datagrams_per_send: Option<usize>,
    datagrams_per_receive: Option<usize>,
    receive_buffer: Option<usize>,
    identification_is_right: Option<bool>,
    udp_port_taken: Option<String>,
}

impl Software {
    /// `udp` is what its UDP sockets can do, if it has some.
    fn new(
        transport: Kind,
        port_of_smb_direct: u16,
        udp: Option<io::Result<Capabilities>>,
    ) -> Self {
        let udp = udp.transpose();
        let why_not = udp.as_ref().err();
        let why_not = why_not.map(|error| format!("no UDP socket: {}", report::plain(error)));
        let udp = udp.ok().flatten();
        Self {
            transport,
            port_of_smb_direct,
            usable: why_not.is_none(),
            why_not,
            datagrams_per_send: udp.as_ref().map(|udp| udp.send_segments),
            datagrams_per_receive: udp.as_ref().map(|udp| udp.receive_segments),
            receive_buffer: udp.as_ref().map(|udp| udp.receive_buffer),
            identification_is_right: udp.as_ref().and_then(|udp| udp.identification),
            udp_port_taken: udp.and_then(|udp| udp.port_taken),
        }
    }

    fn print(&self, report: &Report) {
        let verdict = verdict(Some(self.port_of_smb_direct), self.why_not.as_deref());
        let over = if self.transport == Kind::Iwarp {
            "TCP"
        } else {
            "UDP"
        };
        report.line(format_args!(
            "{:<6}in software over {over}: {verdict}",
            self.transport.name()
        ));
        if let (Some(send), Some(receive), Some(buffer)) = (
            self.datagrams_per_send,
            self.datagrams_per_receive,
            self.receive_buffer,
        ) {
            let port = match &self.udp_port_taken {
                None => "UDP port 4791 is free".into(),
                Some(who) => format!(
                    "cannot listen: UDP port 4791 is taken, {}",
                    report::printable(who)
                ),
            };
            let checksums = match self.identification_is_right {
                Some(true) => "are right; tested with a raw socket",
                Some(false) => {
                    "are wrong on this system, and only peers that use this library accept them; use IPv6"
                }
                None => "were not tested: that needs the privilege to open a raw socket",
            };
            let buffer = report::bytes(buffer as u64);
            report.line(format_args!(
                "      sends {send} and receives {receive} datagrams per call (GSO, GRO), receive buffer {buffer}\n      \
                 {port}; RoCE checksums (ICRC) over IPv4 {checksums}"
            ));
        }
        report.event(self);
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use serde::Serialize;
    use smbdirect_verbs::Device;

    use crate::report::{Report, printable};

    #[derive(Serialize)]
    #[serde(tag = "event", rename = "device")]
    pub(super) struct Event<'a> {
        name: &'a str,
        transport: String,
        port_of_smb_direct: Option<u16>,
        ports: Vec<Port>,
        max_queue: u32,
        max_send_elements: u32,
        max_completions: u32,
        max_inbound_reads: u32,
        max_outbound_reads: u32,
        send_with_invalidate: bool,
        memory_windows: bool,
        usable: bool,
        why_not: Option<&'a str>,
    }

    #[derive(Serialize)]
    struct Port {
        number: u8,
        state: &'static str,
        link_layer: &'static str,
        mtu: u32,
        max_message: u32,
    }

    impl<'a> Event<'a> {
        pub(super) fn of(device: &'a Device) -> Self {
            let ports = device.ports.iter().map(|port| Port {
                number: port.number,
                state: port.state,
                link_layer: port.link_layer,
                mtu: port.mtu,
                max_message: port.max_message,
            });
            Self {
                name: &device.name,
                transport: device.transport.to_string(),
                port_of_smb_direct: device.transport.smb_direct_port(),
                ports: ports.collect(),
                max_queue: device.max_queue,
                max_send_elements: device.max_send_elements,
                max_completions: device.max_completions,
                max_inbound_reads: device.max_inbound_reads,
                max_outbound_reads: device.max_outbound_reads,
                send_with_invalidate: device.send_with_invalidate,
                memory_windows: device.memory_windows,
                usable: device.unusable.is_none(),
                why_not: device.unusable.as_deref(),
            }
        }

        pub(super) fn print(&self, report: &Report) {
            let (name, transport) = (printable(self.name), &self.transport);
            let verdict = super::verdict(self.port_of_smb_direct, self.why_not);
            report.line(format_args!(
                "{name}, an adapter for {transport}: {verdict}"
            ));
            let (queue, pieces) = (self.max_queue, self.max_send_elements);
            let reads = format!("{}/{}", self.max_inbound_reads, self.max_outbound_reads);
            let invalidates = match (self.send_with_invalidate, self.memory_windows) {
                (false, _) => "",
                (true, false) => ", invalidates",
                (true, true) => ", invalidates, windows",
            };
            report.line(format_args!(
                "      queue {queue}, pieces {pieces}, reads {reads}{invalidates}"
            ));
            for port in &self.ports {
                report.line(format_args!(
                    "      port {}: {} {}, MTU {}",
                    port.number, port.link_layer, port.state, port.mtu
                ));
            }
            report.event(self);
        }
    }
}
