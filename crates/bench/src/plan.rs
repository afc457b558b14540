//! The plan of a measurement: its rows, the links that they need, and the rows to compare with.

use std::time::Duration;

use super::work::{Burst, Kind, Link, Means, Over, Placement, Smb};

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Row {
    Work(Work),
    /// Work of one core in memory, on blocks of this many bytes.
    Memory(Memory, u32),
    /// A run of another program with messages of this many bytes.
    Other(Other, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Work {
    pub(crate) means: Means,
    pub(crate) kind: Kind,
    pub(crate) size: u32,
    pub(crate) outstanding: u32,
    pub(crate) both: bool,
    pub(crate) busy: bool,
    pub(crate) connections: u32,
    pub(crate) placement: Placement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Memory {
    Copy,
    Crc,
}

/// Other benchmark programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Other {
    Iperf3,
    Ucx,
    /// UCX over shared memory.
    UcxMemory,
    Libfabric,
    LibfabricLatency,
}

impl Other {
    pub(crate) const ALL: [Self; 5] = [
        Self::Iperf3,
        Self::Ucx,
        Self::UcxMemory,
        Self::Libfabric,
        Self::LibfabricLatency,
    ];
}

impl Row {
    pub(crate) const fn size(&self) -> u32 {
        match self {
            Self::Work(work) => work.size,
            Self::Memory(_, size) | Self::Other(_, size) => *size,
        }
    }

    pub(crate) const fn work(&self) -> Option<&Work> {
        match self {
            Self::Work(work) => Some(work),
            _ => None,
        }
    }

    /// Returns whether the row measures round trips, not bytes.
    pub(crate) const fn is_latency(&self) -> bool {
        match self {
            Self::Work(work) => matches!(work.kind, Kind::Echo),
            Self::Other(other, _) => matches!(other, Other::LibfabricLatency),
            Self::Memory(..) => false,
        }
    }

    pub(crate) const fn placement(&self) -> Option<Placement> {
        match self {
            Self::Work(work) => Some(work.placement),
            Self::Other(..) => Some(Placement::TwoCores),
            Self::Memory(..) => None,
        }
    }

    /// Returns the name of the row, without the message size.
    pub(crate) fn name(&self) -> String {
        let work = match self {
            Self::Work(work) => work,
            Self::Memory(Memory::Copy, _) => return "memory copy, one core".into(),
            Self::Memory(Memory::Crc, _) => return "CRC32C, one core".into(),
            Self::Other(Other::Iperf3, _) => return "iperf3 -l SIZE".into(),
            Self::Other(Other::Ucx, _) => return "ucx_perftest -t tag_bw".into(),
            Self::Other(Other::UcxMemory, _) => {
                return "ucx_perftest -t tag_bw, shared memory".into();
            }
            Self::Other(Other::Libfabric | Other::LibfabricLatency, _) => {
                return "fi_pingpong -e msg, one at a time".into();
            }
        };
        let mut name = match (&work.means, work.kind) {
            (Means::SmbDirect(_), Kind::Send) => "Send".to_owned(),
            (Means::SmbDirect(_), Kind::Batch) => "Send, batched".into(),
            (Means::SmbDirect(_), Kind::Echo) => "echo".into(),
            (Means::SmbDirect(_), Kind::Write) => {
                format!("Write, {} outstanding", work.outstanding)
            }
            (Means::SmbDirect(_), Kind::WriteApart) => {
                format!("Write, {} outstanding, separate memory", work.outstanding)
            }
            (Means::SmbDirect(_), Kind::Read) => format!("Read, {} outstanding", work.outstanding),
            (Means::Tcp, Kind::Echo) => "TCP echo".into(),
            (Means::Tcp, Kind::Batch) => "TCP, batched".into(),
            (Means::Tcp, _) => "TCP, one write a message".into(),
            (Means::TcpLoop, _) => "TCP, one thread an end".into(),
            (Means::Frames, Kind::Echo) => "tokio frames echo".into(),
            (Means::Frames, _) => "tokio frames".into(),
            (Means::Channel, Kind::Echo) => "channel echo".into(),
            (Means::Channel, _) => "channel, two copies".into(),
        };
        if let Means::SmbDirect(smb) = &work.means {
            if matches!(work.kind, Kind::Send | Kind::Batch | Kind::Echo) {
                name += &format!(", {} B segments", smb.segment);
            }
            name += match (smb.over, smb.crc) {
                (Over::Loopback, _) => ", in process",
                (Over::Roce, _) => ", RoCE",
                (Over::Verbs, _) => ", verbs",
                (Over::Iwarp, true) => ", CRC",
                (Over::Iwarp, false) => ", no CRC",
            };
        }
        for (said, what) in [(work.both, ", both ways"), (work.busy, ", busy")] {
            name += if said { what } else { "" };
        }
        if work.connections > 1 {
            name += &format!(", {} connections", work.connections);
        }
        if work.placement == Placement::SameCore {
            name += ", one core";
        }
        name
    }

    /// Returns the row of plain TCP to compare with: one write per message, or batched.
    pub(crate) fn by_tcp(&self, batched: bool) -> Option<Self> {
        let work = self.work()?;
        let kind = match work.kind {
            Kind::Echo if batched => return None,
            Kind::Echo => Kind::Echo,
            _ if batched => Kind::Batch,
            _ => Kind::Send,
        };
        Some(Self::Work(Work {
            means: Means::Tcp,
            kind,
            outstanding: 0,
            ..*work
        }))
    }
}

impl Work {
    pub(crate) fn burst(&self, count: u64) -> Burst {
        Burst {
            kind: self.kind,
            size: self.size,
            count,
            outstanding: self.outstanding,
            both: self.both,
            busy: self.busy,
            placement: self.placement,
            seconds: None,
            request: None,
        }
    }
}

/// Returns the links that `rows` need, each as large as its largest row.
pub(crate) fn links(rows: &[Row]) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for work in rows.iter().filter_map(Row::work) {
        let rdma = matches!(work.kind, Kind::Write | Kind::WriteApart | Kind::Read);
        let places = match work.kind {
            Kind::WriteApart => work.outstanding.max(1),
            _ => 1,
        };
        let same =
            |link: &&mut Link| (link.means, link.connections) == (work.means, work.connections);
        match links.iter_mut().find(same) {
            Some(link) => {
                link.largest = link.largest.max(work.size);
                link.rdma |= rdma;
                link.places = link.places.max(places);
            }
            None => links.push(Link {
                means: work.means,
                connections: work.connections,
                largest: work.size,
                rdma,
                places,
            }),
        }
    }
    links
}

/// What the command line chooses.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// Connection settings; `segment` and `crc` are set by row.
    pub(crate) smb: Smb,
    pub(crate) crcs: Vec<bool>,
    pub(crate) segments: Vec<u32>,
    pub(crate) sizes: Vec<u32>,
    pub(crate) what: Vec<What>,
    pub(crate) outstanding: Vec<u32>,
    pub(crate) directions: Vec<bool>,
    pub(crate) busy: bool,
    pub(crate) connections: Vec<u32>,
    /// Whether the numbers of connections were chosen.
    pub(crate) many: bool,
    pub(crate) placement: Placement,
    /// Measure SMB Direct only.
    pub(crate) alone: bool,
    /// The rows of --rows, which replace all others.
    pub(crate) given: Option<Vec<Row>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum What {
    /// Messages of each size
    Send,
    /// RDMA Writes of each size
    Write,
    /// RDMA Reads of each size
    Read,
    /// Round trips of 64 B, sleeping and busy-polling
    Latency,
    /// Messages of 64 B, several by one call and one by one call
    Rate,
    /// Copies and checksums in memory
    Memory,
    /// A thousand idle connections and 64 busy ones, or with --connections, requests beside data
    Connections,
}

impl Choice {
    /// Returns the rows, in the order of the table.
    pub(crate) fn rows(&self) -> Vec<Row> {
        if let Some(given) = &self.given {
            return given.clone();
        }
        let mut rows = Vec::new();
        for &both in &self.directions {
            for &crc in &self.crcs {
                // With --full, rows without CRC are measured in one direction only.
                if both && !crc && self.crcs.len() > 1 {
                    continue;
                }
                for (&what, &connections) in self
                    .what
                    .iter()
                    .flat_map(|what| self.connections.iter().map(move |number| (what, number)))
                {
                    self.add(what, connections, (crc, both), &mut rows);
                }
            }
            self.add_peers(both, &mut rows);
        }
        let mut seen = Vec::new();
        rows.retain(|row| {
            let new = !seen.contains(row);
            seen.push(*row);
            new
        });
        rows
    }

    fn work(&self, connections: u32, means: Means, kind: Kind, size: u32) -> Work {
        Work {
            means,
            kind,
            size,
            outstanding: 0,
            both: false,
            busy: self.busy,
            connections,
            placement: self.placement,
        }
    }

    fn smb(&self, crc: bool, segment: u32) -> Means {
        // The in-process provider has no frames to check.
        let crc = crc && self.smb.over == Over::Iwarp;
        Means::SmbDirect(Smb {
            crc,
            segment,
            ..self.smb
        })
    }

    pub(crate) fn largest_segment(&self) -> u32 {
        self.segments.iter().copied().max().unwrap_or(8136)
    }

    fn add(&self, what: What, connections: u32, (crc, both): (bool, bool), rows: &mut Vec<Row>) {
        let large = self.smb(crc, self.largest_segment());
        match what {
            What::Send | What::Rate => {
                for &segment in &self.segments {
                    let sizes = match what {
                        What::Rate => &[RATE_BYTES][..],
                        _ => &self.sizes,
                    };
                    for &size in sizes {
                        let kinds = match what {
                            What::Rate => &[Kind::Batch, Kind::Send][..],
                            _ => &[Kind::Send],
                        };
                        for &kind in kinds {
                            let work = self.work(connections, self.smb(crc, segment), kind, size);
                            rows.push(Row::Work(Work { both, ..work }));
                        }
                    }
                }
            }
            What::Write | What::Read => {
                let kind = match what {
                    What::Write => Kind::Write,
                    _ => Kind::Read,
                };
                for &outstanding in &self.outstanding {
                    for &size in &self.sizes {
                        rows.push(Row::Work(Work {
                            outstanding,
                            both,
                            ..self.work(connections, large, kind, size)
                        }));
                    }
                }
            }
            What::Latency => {
                for busy in [false, true] {
                    // On one core, the end that spins keeps the other from running.
                    if busy && self.placement == Placement::SameCore {
                        continue;
                    }
                    rows.push(Row::Work(Work {
                        busy,
                        ..self.work(1, large, Kind::Echo, RATE_BYTES)
                    }));
                }
            }
            What::Memory | What::Connections => {}
        }
    }

    fn add_peers(&self, both: bool, rows: &mut Vec<Row>) {
        if self.alone {
            return;
        }
        let ours: Vec<_> = rows.iter().filter_map(|row| row.work().copied()).collect();
        let one_way = |work: &&Work| {
            (work.both == both || work.kind == Kind::Echo) && work.means != Means::Tcp
        };
        let mut peers = Vec::new();
        for batched in [false, true] {
            for work in ours.iter().filter(one_way) {
                peers.extend(Row::Work(*work).by_tcp(batched));
            }
        }
        for work in ours.iter().filter(one_way) {
            if both || work.connections > 1 {
                continue;
            }
            let peer = |means, kind| {
                Row::Work(Work {
                    means,
                    kind,
                    outstanding: 0,
                    ..*work
                })
            };
            let kind = match work.kind {
                Kind::Echo => Kind::Echo,
                _ => Kind::Send,
            };
            if self.smb.over != Over::Loopback {
                peers.push(peer(Means::Frames, kind));
            } else if !work.busy {
                peers.push(peer(Means::Channel, kind));
            }
        }
        peers.sort_by_key(|peer| peer.name());
        rows.extend(peers);
        if !both && self.what.contains(&What::Memory) {
            for memory in [Memory::Copy, Memory::Crc] {
                rows.extend(self.sizes.iter().map(|&size| Row::Memory(memory, size)));
            }
        }
    }
}

/// Message size in bytes for message rates and round trips.
pub(crate) const RATE_BYTES: u32 = 64;

/// Returns the length of a burst so that all of them take `total`.
pub(crate) fn time_of_a_burst(rows: usize, rounds: u32, total: Duration) -> Duration {
    // Calibrating a row takes about as long as one more burst.
    let bursts = (rows.max(1) as u32).saturating_mul(rounds + 1);
    (total / bursts).clamp(Duration::from_millis(20), Duration::from_millis(250))
}
