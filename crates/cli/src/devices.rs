//! `smbdirect devices`: the RDMA of this machine, in software and by adapters, and whether SMB Direct
//! can use it.

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

\x1b[1m\x1b[4mIn the table:\x1b[0m
  QUEUE work requests in a queue, SGES pieces of memory in a Send, READS that are served and issued
  concurrently on a connection. INVALIDATE is `sends` if the adapter can send Send with Invalidate, and
  `windows` if it has memory windows, whose tokens a peer can invalidate.

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"software\", transport, port_of_smb_direct, usable, why_not, datagrams_per_send,
   datagrams_per_receive, receive_buffer, identification_is_right, udp_port_taken}
  {\"event\":\"device\", name, transport, port_of_smb_direct, ports, max_queue, max_send_elements,
   max_completions, max_inbound_reads, max_outbound_reads, send_with_invalidate, memory_windows,
   usable, why_not}";

impl Devices {
    pub(crate) fn run(self) -> Result<bool> {
        let report = Report::new(self.json);
        for software in [Software::iwarp(), Software::roce()] {
            software.print(&report);
        }
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
    let rows = devices.iter().flat_map(linux::rows).collect::<Vec<_>>();
    for line in linux::table(&rows, report.style) {
        report.line(line);
    }
    for device in &devices {
        report.event(&linux::Event::of(device));
    }
    Ok(devices.iter().any(|device| device.unusable.is_none()))
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
    const fn iwarp() -> Self {
        Self {
            transport: Kind::Iwarp,
            port_of_smb_direct: 5445,
            usable: true,
            why_not: None,
            datagrams_per_send: None,
            datagrams_per_receive: None,
            receive_buffer: None,
            identification_is_right: None,
            udp_port_taken: None,
        }
    }

    fn roce() -> Self {
        let roce = Self {
            transport: Kind::Roce,
            port_of_smb_direct: 445,
            ..Self::iwarp()
        };
        match capabilities() {
            Ok(Capabilities {
                send_segments,
                receive_segments,
                receive_buffer,
                identification,
                port_taken,
            }) => Self {
                datagrams_per_send: Some(send_segments),
                datagrams_per_receive: Some(receive_segments),
                receive_buffer: Some(receive_buffer),
                identification_is_right: identification,
                udp_port_taken: port_taken,
                ..roce
            },
            Err(error) => Self {
                usable: false,
                why_not: Some(format!("no UDP socket: {}", report::plain(&error))),
                ..roce
            },
        }
    }

    fn print(&self, report: &Report) {
        let port = self.port_of_smb_direct;
        let verdict = match &self.why_not {
            None => format!("yes, port {port}"),
            Some(why) => format!("no: {}", report::printable(why)),
        };
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
            let ports = match &self.udp_port_taken {
                None => "UDP port 4791 is free".into(),
                Some(who) => format!(
                    "cannot listen: UDP port 4791 is taken, {}",
                    report::printable(who)
                ),
            };
            let checksums = match self.identification_is_right {
                Some(true) => "RoCE checksums (ICRC) over IPv4 are right; tested with a raw socket",
                Some(false) => {
                    "RoCE checksums (ICRC) over IPv4 are wrong on this system, and only peers that use this \
                     library accept them; use IPv6"
                }
                None => {
                    "RoCE checksums (ICRC) over IPv4 were not tested: that needs the privilege to open a raw socket"
                }
            };
            let buffer = report::bytes(buffer as u64);
            report.line(format_args!(
                "      sends {send} and receives {receive} datagrams per call (GSO, GRO), receive buffer {buffer}"
            ));
            report.line(format_args!("      {ports}; {checksums}"));
        }
        report.event(self);
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use serde::Serialize;
    use smbdirect_verbs::{Device, Port};

    use crate::report::{Style, printable};

    const COLUMNS: usize = 11;
    const HEAD: [&str; COLUMNS] = [
        "DEVICE",
        "TRANSPORT",
        "PORT",
        "STATE",
        "LINK",
        "MTU",
        "QUEUE",
        "SGES",
        "READS",
        "INVALIDATE",
        "SMB DIRECT",
    ];

    /// Returns a row for each port, the first with the fields of the device.
    pub(super) fn rows(device: &Device) -> Vec<[String; COLUMNS]> {
        let verdict = match &device.unusable {
            None => {
                let port = device.transport.smb_direct_port();
                port.map_or_else(|| "yes".into(), |port| format!("yes, port {port}"))
            }
            Some(why) => format!("no: {}", printable(why)),
        };
        let invalidate = match (device.send_with_invalidate, device.memory_windows) {
            (false, _) => "no",
            (true, false) => "sends",
            (true, true) => "sends, windows",
        };
        let first = [
            printable(&device.name),
            device.transport.to_string(),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            device.max_queue.to_string(),
            device.max_send_elements.to_string(),
            format!("{}/{}", device.max_inbound_reads, device.max_outbound_reads),
            invalidate.into(),
            verdict,
        ];
        let with_port = |mut row: [String; COLUMNS], port: &Port| {
            row[2] = port.number.to_string();
            row[3] = port.state.into();
            row[4] = port.link_layer.into();
            row[5] = port.mtu.to_string();
            row
        };
        match device.ports.split_first() {
            None => vec![first],
            Some((port, others)) => {
                let others = others
                    .iter()
                    .map(|port| with_port(Default::default(), port));
                std::iter::once(with_port(first, port))
                    .chain(others)
                    .collect()
            }
        }
    }

    pub(super) fn table(rows: &[[String; COLUMNS]], style: Style) -> Vec<String> {
        let mut widths = HEAD.map(str::len);
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: [&str; COLUMNS]| {
            let cells = cells.iter().zip(widths);
            let line: String = cells
                .map(|(cell, width)| format!("{cell:<width$}  "))
                .collect();
            line.trim_end().to_owned()
        };
        let head = style.dim(&line(HEAD));
        let body = rows
            .iter()
            .map(|row| line(row.each_ref().map(String::as_str)));
        std::iter::once(head).chain(body).collect()
    }

    #[derive(Debug, Serialize)]
    #[serde(tag = "event", rename_all = "snake_case")]
    pub(super) enum Event<'a> {
        Device {
            name: &'a str,
            transport: String,
            port_of_smb_direct: Option<u16>,
            ports: Vec<PortOf>,
            max_queue: u32,
            max_send_elements: u32,
            max_completions: u32,
            max_inbound_reads: u32,
            max_outbound_reads: u32,
            send_with_invalidate: bool,
            memory_windows: bool,
            usable: bool,
            why_not: Option<&'a str>,
        },
    }

    #[derive(Debug, Serialize)]
    pub(super) struct PortOf {
        number: u8,
        state: &'static str,
        link_layer: &'static str,
        mtu: u32,
        max_message: u32,
    }

    impl<'a> Event<'a> {
        pub(super) fn of(device: &'a Device) -> Self {
            let port = |port: &Port| PortOf {
                number: port.number,
                state: port.state,
                link_layer: port.link_layer,
                mtu: port.mtu,
                max_message: port.max_message,
            };
            Self::Device {
                name: &device.name,
                transport: device.transport.to_string(),
                port_of_smb_direct: device.transport.smb_direct_port(),
                ports: device.ports.iter().map(port).collect(),
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
    }
}
