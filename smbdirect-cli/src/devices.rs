//! `smbdirect devices`: the RDMA adapters of this machine, and whether SMB Direct can use them.

use anyhow::Result;
use clap::{ArgAction, Args};

/// List the RDMA adapters of this machine, and whether SMB Direct can use them
///
/// Uses the libraries of rdma-core, as `--transport verbs` does in the other commands. Ends with
/// status 1 if no adapter can be used, and prints what to do about it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Devices {
    /// Print one JSON object per line, for programs
    #[arg(long)]
    json: bool,

    /// Log to stderr; give it twice for more
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect devices
  rdma link add rxe0 type rxe netdev eth0      makes a software adapter: RoCE, or siw for iWARP

\x1b[1m\x1b[4mIn the table:\x1b[0m
  QUEUE work requests in a queue, SGES pieces of memory in a Send, READS that are served and issued
  concurrently on a connection, INVALIDATE whether a Send can carry a token to invalidate, and whether a
  peer's can invalidate a token of ours that is a memory window.

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"device\", name, transport, port_of_smb_direct, ports, max_queue, max_send_elements,
   max_completions, max_inbound_reads, max_outbound_reads, send_with_invalidate, memory_windows,
   usable, why_not}";

impl Devices {
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn run(self) -> Result<bool> {
        let _ = self.json;
        Err(anyhow::anyhow!(
            "RDMA adapters are used through rdma-core, which is for Linux"
        ))
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn run(self) -> Result<bool> {
        use crate::{report::Report, transport::unavailable};

        let devices = smbdirect_verbs::Verbs::devices().map_err(|why| unavailable(&why))?;
        let report = Report::new(self.json);
        let rows = devices.iter().flat_map(linux::rows).collect::<Vec<_>>();
        for line in linux::table(&rows, report.style) {
            report.line(line);
        }
        for device in &devices {
            report.event(&linux::Event::of(device));
        }
        Ok(devices.iter().any(|device| device.unusable.is_none()))
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
