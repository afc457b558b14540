//! The plan of a measurement: what is chosen, its rows, the links that they need, and the rows to compare with.

use std::time::Duration;

use smbdirect_transport::Kind;

use crate::work::{Burst, Link, Means, Operation, Placement, Smb};

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Row {
    /// Work of the two ends.
    Work(Work),
    /// Work of one core in memory, on blocks of this many bytes.
    Memory(Memory, u32),
    /// A run of another program with messages of this many bytes.
    Program(Program, u32),
}

/// Work of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    /// The means by which data moves.
    pub means: Means,
    /// The work of each connection.
    pub kind: Operation,
    /// Bytes of a message or an operation.
    pub size: u32,
    /// Maximum number of RDMA operations in flight; 0 for messages.
    pub outstanding: u32,
    /// Whether data moves in both directions at the same time.
    pub both: bool,
    /// Whether the ends busy-poll.
    pub busy: bool,
    /// Connections that work at the same time.
    pub connections: u32,
    /// Where the ends run.
    pub placement: Placement,
}

/// Work of one core in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// A copy.
    Copy,
    /// A CRC32C.
    Crc,
}

/// Other benchmark programs, which the caller of [`measure`](crate::measure) runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// iperf3 over TCP.
    Iperf3,
    /// ucx_perftest over shared memory.
    Ucx,
}

impl Row {
    /// Returns the bytes of a message, an operation or a block.
    pub const fn size(&self) -> u32 {
        match self {
            Self::Work(work) => work.size,
            Self::Memory(_, size) | Self::Program(_, size) => *size,
        }
    }

    /// Returns the work of the two ends, or `None` for a row that measures something else.
    pub const fn work(&self) -> Option<&Work> {
        match self {
            Self::Work(work) => Some(work),
            _ => None,
        }
    }

    /// Returns whether the row measures round trips, not bytes.
    pub const fn is_latency(&self) -> bool {
        match self {
            Self::Work(work) => matches!(work.kind, Operation::Echo),
            Self::Memory(..) | Self::Program(..) => false,
        }
    }

    /// Returns where the ends run, if the row has two.
    pub const fn placement(&self) -> Option<Placement> {
        match self {
            Self::Work(work) => Some(work.placement),
            Self::Program(..) => Some(Placement::TwoCores),
            Self::Memory(..) => None,
        }
    }

    /// Returns the name of the row, without the message size.
    pub fn name(&self) -> String {
        let work = match self {
            Self::Work(work) => work,
            Self::Memory(Memory::Copy, _) => return "memory copy, one core".into(),
            Self::Memory(Memory::Crc, _) => return "CRC32C, one core".into(),
            Self::Program(Program::Iperf3, _) => return "iperf3 -l SIZE".into(),
            Self::Program(Program::Ucx, _) => {
                return "ucx_perftest -t tag_bw, shared memory".into();
            }
        };
        let mut name = match (&work.means, work.kind) {
            (Means::SmbDirect(_), Operation::Send) => "Send".to_owned(),
            (Means::SmbDirect(_), Operation::Batch) => "Send, batched".into(),
            (Means::SmbDirect(_), Operation::Echo) => "echo".into(),
            (Means::SmbDirect(_), Operation::Write) => {
                format!("Write, {} outstanding", work.outstanding)
            }
            (Means::SmbDirect(_), Operation::WriteApart) => {
                format!("Write, {} outstanding, separate memory", work.outstanding)
            }
            (Means::SmbDirect(_), Operation::Read) => {
                format!("Read, {} outstanding", work.outstanding)
            }
            (Means::Tcp, Operation::Echo) => "TCP echo".into(),
            (Means::Tcp, Operation::Batch) => "TCP, batched".into(),
            (Means::Tcp, _) => "TCP, one write a message".into(),
            (Means::TcpLoop, _) => "TCP, one thread per end".into(),
            (Means::Frames, Operation::Echo) => "tokio frames echo".into(),
            (Means::Frames, _) => "tokio frames".into(),
            (Means::Channel, Operation::Echo) => "channel echo".into(),
            (Means::Channel, _) => "channel, two copies".into(),
        };
        if let Means::SmbDirect(smb) = &work.means {
            if matches!(
                work.kind,
                Operation::Send | Operation::Batch | Operation::Echo
            ) {
                name += &format!(", {} B segments", smb.segment);
            }
            name += match (smb.over, smb.crc) {
                (Kind::Loopback, _) => ", in process",
                (Kind::Roce, _) => ", RoCE",
                (Kind::Verbs, _) => ", verbs",
                (Kind::Iwarp, true) => ", CRC",
                (Kind::Iwarp, false) => ", no CRC",
            };
        }
        if work.both {
            name += ", both ways";
        }
        if work.busy {
            name += ", busy";
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
            Operation::Echo if batched => return None,
            Operation::Echo => Operation::Echo,
            _ if batched => Operation::Batch,
            _ => Operation::Send,
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
        let rdma = matches!(
            work.kind,
            Operation::Write | Operation::WriteApart | Operation::Read
        );
        let slots = match work.kind {
            Operation::WriteApart => work.outstanding.max(1),
            _ => 1,
        };
        let same =
            |link: &&mut Link| (link.means, link.connections) == (work.means, work.connections);
        match links.iter_mut().find(same) {
            Some(link) => {
                link.largest = link.largest.max(work.size);
                link.rdma |= rdma;
                link.slots = link.slots.max(slots);
            }
            None => links.push(Link {
                means: work.means,
                connections: work.connections,
                largest: work.size,
                rdma,
                slots,
            }),
        }
    }
    links
}

/// The rows to measure.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Settings of the connections; each row has its own `segment` and `crc`.
    pub smb: Smb,
    /// Whether software iWARP uses CRC, for each row.
    pub crcs: Vec<bool>,
    /// Sizes of segments, MaxSendSize and MaxReceiveSize of both ends.
    pub segments: Vec<u32>,
    /// Sizes of messages and RDMA operations.
    pub sizes: Vec<u32>,
    /// The subjects of the rows.
    pub subjects: Vec<Subject>,
    /// Numbers of RDMA operations to have outstanding.
    pub outstanding: Vec<u32>,
    /// Whether data moves in both directions, for each row.
    pub directions: Vec<bool>,
    /// Whether the ends busy-poll.
    pub busy: bool,
    /// Numbers of connections that work at the same time.
    pub connections: Vec<u32>,
    /// Whether [`Subject::Connections`] measures loads on each of `connections`, in place of idle and active
    /// connections.
    pub with_loads: bool,
    /// Where the ends run.
    pub placement: Placement,
    /// Whether rows for comparison are left out.
    pub alone: bool,
}

/// A subject of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Messages of each size.
    Send,
    /// RDMA Writes of each size.
    Write,
    /// RDMA Reads of each size.
    Read,
    /// Round trips of 64 B, sleeping and busy-polling.
    Latency,
    /// Messages of 64 B: several per call, and one per call.
    Rate,
    /// Copies and checksums in memory.
    Memory,
    /// Idle and active connections, or loads on numbers of connections.
    Connections,
}

impl Choice {
    /// Returns the rows, in the order of the table.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for &both in &self.directions {
            for &crc in &self.crcs {
                // With --full, rows without CRC are measured in one direction only.
                if both && !crc && self.crcs.len() > 1 {
                    continue;
                }
                for (&subject, &connections) in self.subjects.iter().flat_map(|subject| {
                    self.connections.iter().map(move |number| (subject, number))
                }) {
                    self.add(subject, connections, (crc, both), &mut rows);
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

    fn work(&self, connections: u32, means: Means, kind: Operation, size: u32) -> Work {
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
        let crc = crc && self.smb.over == Kind::Iwarp;
        Means::SmbDirect(Smb {
            crc,
            segment,
            ..self.smb
        })
    }

    pub(crate) fn largest_segment(&self) -> u32 {
        self.segments.iter().copied().max().unwrap_or(8136)
    }

    fn add(
        &self,
        subject: Subject,
        connections: u32,
        (crc, both): (bool, bool),
        rows: &mut Vec<Row>,
    ) {
        let large = self.smb(crc, self.largest_segment());
        match subject {
            Subject::Send | Subject::Rate => {
                for &segment in &self.segments {
                    let sizes = match subject {
                        Subject::Rate => &[RATE_BYTES][..],
                        _ => &self.sizes,
                    };
                    for &size in sizes {
                        let kinds = match subject {
                            Subject::Rate => &[Operation::Batch, Operation::Send][..],
                            _ => &[Operation::Send],
                        };
                        for &kind in kinds {
                            let work = self.work(connections, self.smb(crc, segment), kind, size);
                            rows.push(Row::Work(Work { both, ..work }));
                        }
                    }
                }
            }
            Subject::Write | Subject::Read => {
                let kind = match subject {
                    Subject::Write => Operation::Write,
                    _ => Operation::Read,
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
            Subject::Latency => {
                for busy in [false, true] {
                    // On one core, the end that spins keeps the other from running.
                    if busy && self.placement == Placement::SameCore {
                        continue;
                    }
                    rows.push(Row::Work(Work {
                        busy,
                        ..self.work(1, large, Operation::Echo, RATE_BYTES)
                    }));
                }
            }
            Subject::Memory | Subject::Connections => {}
        }
    }

    fn add_peers(&self, both: bool, rows: &mut Vec<Row>) {
        if self.alone {
            return;
        }
        let ours: Vec<_> = rows.iter().filter_map(|row| row.work().copied()).collect();
        let one_way = |work: &&Work| {
            (work.both == both || work.kind == Operation::Echo) && work.means != Means::Tcp
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
                Operation::Echo => Operation::Echo,
                _ => Operation::Send,
            };
            if self.smb.over != Kind::Loopback {
                peers.push(peer(Means::Frames, kind));
            } else if !work.busy {
                peers.push(peer(Means::Channel, kind));
            }
        }
        peers.sort_by_key(|peer| peer.name());
        rows.extend(peers);
        if !both && self.subjects.contains(&Subject::Memory) {
            for memory in [Memory::Copy, Memory::Crc] {
                rows.extend(self.sizes.iter().map(|&size| Row::Memory(memory, size)));
            }
        }
    }
}

/// Message size in bytes for message rates and round trips.
pub(crate) const RATE_BYTES: u32 = 64;

/// Returns the length of a burst so that all of them take `total`.
pub fn time_of_a_burst(rows: usize, rounds: u32, total: Duration) -> Duration {
    // Calibrating a row takes about as long as one more burst.
    let bursts = (rows.max(1) as u32).saturating_mul(rounds + 1);
    (total / bursts).clamp(Duration::from_millis(20), Duration::from_millis(250))
}
