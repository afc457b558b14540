//! The rows that the goals compare.

use smbdirect_bench::{Means, Operation, Placement, Program, Row, Smb, Work};
use smbdirect_transport::Kind;

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
pub(super) const OUTSTANDING: u32 = 16;

/// Returns the settings of an SMB Direct connection, which otherwise are those of the bench.
pub(super) fn smb(over: Kind, segment: u32, crc: bool) -> Smb {
    let config = smbdirect::Config::default();
    Smb {
        over,
        crc,
        segment,
        send_credit_target: config.send_credit_target,
        receive_credit_max: config.receive_credit_max,
        max_read_write_size: config.max_read_write_size,
    }
}

fn work(means: Means, kind: Operation, size: u32, placement: Placement) -> Work {
    Work {
        means,
        kind,
        size,
        outstanding: 0,
        both: false,
        busy: false,
        connections: 1,
        placement,
    }
}

fn iwarp(segment: u32, crc: bool) -> Means {
    Means::SmbDirect(smb(Kind::Iwarp, segment, crc))
}

/// Messages by Sends.
pub(super) fn send(segment: u32, crc: bool, size: u32, placement: Placement) -> Row {
    let means = iwarp(segment, crc);
    Row::Work(work(means, Operation::Send, size, placement))
}

/// 64-byte messages, several per call.
pub(super) fn rate(placement: Placement) -> Row {
    let means = iwarp(LARGE_SEGMENT, true);
    Row::Work(work(means, Operation::Batch, RATE_BYTES, placement))
}

/// RDMA operations.
pub(super) fn rdma(kind: Operation, crc: bool, size: u32, placement: Placement) -> Row {
    Row::Work(Work {
        outstanding: OUTSTANDING,
        ..work(iwarp(LARGE_SEGMENT, crc), kind, size, placement)
    })
}

/// RDMA Writes that each have their own place in the memory of the peer.
pub(super) fn write_apart(size: u32) -> Row {
    rdma(Operation::WriteApart, true, size, Placement::TwoCores)
}

/// Plain TCP, one write per message.
pub(super) fn tcp(size: u32, placement: Placement) -> Row {
    Row::Work(work(Means::Tcp, Operation::Send, size, placement))
}

/// tokio frames with the size of a small segment.
pub(super) fn frames() -> Row {
    let two = Placement::TwoCores;
    Row::Work(work(Means::Frames, Operation::Send, SMALL_SEGMENT, two))
}

/// Round trips of SMB Direct.
pub(super) fn echo(busy: bool) -> Row {
    round_trip(iwarp(LARGE_SEGMENT, true), busy)
}

/// Round trips of plain TCP.
pub(super) fn tcp_echo(busy: bool) -> Row {
    round_trip(Means::Tcp, busy)
}

fn round_trip(means: Means, busy: bool) -> Row {
    let work = work(means, Operation::Echo, RATE_BYTES, Placement::TwoCores);
    Row::Work(Work { busy, ..work })
}

/// Messages over the in-process provider, several per call.
pub(super) fn in_process(size: u32) -> Row {
    let means = Means::SmbDirect(smb(Kind::Loopback, LARGE_SEGMENT, false));
    Row::Work(work(means, Operation::Batch, size, Placement::TwoCores))
}

/// Pooled buffers through a channel between threads, copied in and out.
pub(super) fn channel(size: u32) -> Row {
    let two = Placement::TwoCores;
    Row::Work(work(Means::Channel, Operation::Send, size, two))
}

/// iperf3 with messages of 1 MiB.
pub(super) fn iperf3() -> Row {
    Row::Program(Program::Iperf3, SIZES[1])
}

/// UCX over shared memory with messages of 8 KiB.
pub(super) fn ucx() -> Row {
    Row::Program(Program::Ucx, 8 << 10)
}

/// Returns the rows of all goals that can be measured with two cores, or with one.
pub(super) fn all(two_cores: bool) -> Vec<Row> {
    let one = Placement::SameCore;
    let mut rows = of_placement(one);
    rows.extend([SMALL_SEGMENT, 8 << 10, SIZES[1]].map(|size| tcp(size, one)));
    // CPU time without CRC.
    rows.extend([SMALL_SEGMENT, LARGE_SEGMENT].map(|segment| send(segment, false, SIZES[0], one)));
    rows.push(rdma(Operation::Write, false, SIZES[0], one));
    if two_cores {
        let two = Placement::TwoCores;
        rows.extend(of_placement(two));
        rows.extend([RATE_BYTES, SMALL_SEGMENT, 8 << 10, SIZES[0]].map(|size| tcp(size, two)));
        rows.extend(SIZES.map(write_apart));
        rows.extend(SIZES.map(|size| rdma(Operation::Read, true, size, two)));
        rows.push(frames());
        for busy in [false, true] {
            rows.extend([echo(busy), tcp_echo(busy)]);
        }
        for size in [ONE_SEGMENT, RATE_BYTES] {
            rows.extend([in_process(size), channel(size)]);
        }
        rows.extend([iperf3(), ucx()]);
    }
    rows
}

/// Returns the rows that both placements have.
fn of_placement(placement: Placement) -> Vec<Row> {
    let mut rows = Vec::new();
    for segment in [SMALL_SEGMENT, LARGE_SEGMENT] {
        rows.extend(SIZES.map(|size| send(segment, true, size, placement)));
    }
    rows.push(rdma(Operation::Write, true, SIZES[0], placement));
    rows.extend([true, false].map(|crc| rdma(Operation::Write, crc, SIZES[1], placement)));
    rows.push(rate(placement));
    rows
}
