//! The rows that the goals compare, in the form of `smbdirect bench --rows`.

use serde::{Deserialize, Serialize};

/// Segment size in bytes that Windows and Linux use by default.
pub(super) const SMALL_SEGMENT: u32 = 1364;
/// Largest segment size in bytes that Windows accepts.
pub(super) const LARGE_SEGMENT: u32 = 8136;
/// Size in bytes of a message that fills a large segment.
pub(super) const ONE_SEGMENT: u32 = LARGE_SEGMENT - 24;
/// Message size in bytes for message rates and round trips.
pub(super) const RATE_BYTES: u32 = 64;
/// Message sizes in bytes; for Sends the lower rate of the two counts.
pub(super) const SIZES: [u32; 2] = [64 << 10, 1 << 20];
/// RDMA operations outstanding.
const OUTSTANDING: u32 = 16;

/// The place where the two ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Placement {
    TwoCores,
    SameCore,
    Free,
}

/// One row: some of the keys of the event `row` of `smbdirect bench --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) kind: String,
    pub(super) means: Option<String>,
    pub(super) size: u32,
    pub(super) transport: Option<String>,
    pub(super) segment: Option<u32>,
    pub(super) crc: Option<bool>,
    pub(super) outstanding: Option<u32>,
    pub(super) busy_poll: bool,
    pub(super) placement: Option<Placement>,
    /// Set for programs only; the other keys identify the other measurements.
    #[serde(default)]
    pub(super) name: String,
}

impl Row {
    fn new(kind: &str, means: &str, size: u32, placement: Placement) -> Self {
        Self {
            kind: kind.into(),
            means: Some(means.into()),
            size,
            transport: None,
            segment: None,
            crc: None,
            outstanding: None,
            busy_poll: false,
            placement: Some(placement),
            name: String::new(),
        }
    }

    /// SMB Direct over iWARP.
    fn iwarp(self, segment: u32, crc: bool) -> Self {
        Self {
            transport: Some("iwarp".into()),
            segment: Some(segment),
            crc: Some(crc),
            ..self
        }
    }

    /// Returns the row without the name, unless it is that of a program.
    pub(super) fn key(&self) -> Self {
        let name = match self.kind.as_str() {
            "program" => self.name.clone(),
            _ => String::new(),
        };
        Self {
            name,
            ..self.clone()
        }
    }
}

/// Messages by Sends.
pub(super) fn send(segment: u32, crc: bool, size: u32, placement: Placement) -> Row {
    Row::new("send", "smbdirect", size, placement).iwarp(segment, crc)
}

/// 64-byte messages, several per call.
pub(super) fn rate(placement: Placement) -> Row {
    Row::new("send", "smbdirect-batched", RATE_BYTES, placement).iwarp(LARGE_SEGMENT, true)
}

/// RDMA operations: `write` or `read`.
pub(super) fn rdma(kind: &str, crc: bool, size: u32, placement: Placement) -> Row {
    Row {
        outstanding: Some(OUTSTANDING),
        ..Row::new(kind, "smbdirect", size, placement).iwarp(LARGE_SEGMENT, crc)
    }
}

/// RDMA Writes that each have their own place in the memory of the peer.
pub(super) fn write_apart(size: u32) -> Row {
    Row {
        means: Some("smbdirect-apart".into()),
        ..rdma("write", true, size, Placement::TwoCores)
    }
}

/// Plain TCP, one write per message.
pub(super) fn tcp(size: u32, placement: Placement) -> Row {
    Row::new("send", "tcp", size, placement)
}

/// tokio frames with the size of a small segment.
pub(super) fn frames() -> Row {
    Row::new("send", "frames", SMALL_SEGMENT, Placement::TwoCores)
}

/// Round trips of SMB Direct.
pub(super) fn echo(busy_poll: bool) -> Row {
    let row = Row::new("echo", "smbdirect", RATE_BYTES, Placement::TwoCores);
    Row {
        busy_poll,
        ..row.iwarp(LARGE_SEGMENT, true)
    }
}

/// Round trips of plain TCP.
pub(super) fn tcp_echo(busy_poll: bool) -> Row {
    let row = Row::new("echo", "tcp", RATE_BYTES, Placement::TwoCores);
    Row { busy_poll, ..row }
}

/// Messages over the in-process provider, several per call.
pub(super) fn in_process(size: u32) -> Row {
    Row {
        transport: Some("loopback".into()),
        segment: Some(LARGE_SEGMENT),
        crc: Some(false),
        ..Row::new("send", "smbdirect-batched", size, Placement::TwoCores)
    }
}

/// Pooled buffers through a channel between threads, copied in and out.
pub(super) fn channel(size: u32) -> Row {
    Row::new("send", "channel", size, Placement::TwoCores)
}

/// iperf3 with messages of 1 MiB.
pub(super) fn iperf3() -> Row {
    program("iperf3 -l SIZE", SIZES[1])
}

/// UCX over shared memory with messages of 8 KiB.
pub(super) fn ucx_memory() -> Row {
    program("ucx_perftest -t tag_bw, shared memory", 8 << 10)
}

fn program(name: &str, size: u32) -> Row {
    Row {
        means: None,
        name: name.into(),
        ..Row::new("program", "", size, Placement::TwoCores)
    }
}

/// Returns the rows of all goals that can be measured with two cores, or with one.
pub(super) fn all(two_cores: bool) -> Vec<Row> {
    let one = Placement::SameCore;
    let mut rows = of_placement(one);
    rows.extend([SMALL_SEGMENT, 8 << 10, SIZES[1]].map(|size| tcp(size, one)));
    // CPU time without CRC.
    rows.extend([SMALL_SEGMENT, LARGE_SEGMENT].map(|segment| send(segment, false, SIZES[0], one)));
    rows.push(rdma("write", false, SIZES[0], one));
    if two_cores {
        let two = Placement::TwoCores;
        rows.extend(of_placement(two));
        rows.extend([RATE_BYTES, SMALL_SEGMENT, 8 << 10, SIZES[0]].map(|size| tcp(size, two)));
        rows.extend(SIZES.map(write_apart));
        rows.extend(SIZES.map(|size| rdma("read", true, size, two)));
        rows.push(frames());
        for busy_poll in [false, true] {
            rows.extend([echo(busy_poll), tcp_echo(busy_poll)]);
        }
        for size in [ONE_SEGMENT, RATE_BYTES] {
            rows.extend([in_process(size), channel(size)]);
        }
        rows.extend([iperf3(), ucx_memory()]);
    }
    rows
}

/// Returns the rows that both placements have.
fn of_placement(placement: Placement) -> Vec<Row> {
    let mut rows = Vec::new();
    for segment in [SMALL_SEGMENT, LARGE_SEGMENT] {
        rows.extend(SIZES.map(|size| send(segment, true, size, placement)));
    }
    rows.push(rdma("write", true, SIZES[0], placement));
    rows.extend([true, false].map(|crc| rdma("write", crc, SIZES[1], placement)));
    rows.push(rate(placement));
    rows
}
