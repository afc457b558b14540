//! Many connections: the memory of 1000 idle ones, the fairness between 64 active ones, and [`load`]s on chosen numbers.

mod load;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::Result;
use serde::Serialize;

use smbdirect_transport::Kind;

pub use load::{Load, LoadMemory, Range, measure_loads};

use crate::{
    ends::{LinkId, Near},
    plan::Choice,
    summary::quartiles,
    work::{Burst, Link, Means, Operation, Placement, Smb},
};

/// Idle connections.
const IDLE: u32 = 1000;
/// Active connections.
const ACTIVE: u32 = 64;
/// Credits of an idle connection. They are few, so that the memory of posted receives does not hide the memory of
/// the connection itself.
pub const IDLE_CREDITS: u16 = 8;
/// Message size in bytes of active connections.
const MESSAGE_BYTES: u32 = 64 << 10;
/// Messages that each active connection keeps outstanding, 1 MiB in all.
const OUTSTANDING_MESSAGES: u32 = 16;
/// Samples of active connections.
const ROUNDS: usize = 5;
/// Duration of a burst of active connections without --time.
const DEFAULT_BURST: Duration = Duration::from_millis(500);

/// The memory of idle connections.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "idle_connections")]
pub struct Idle {
    /// Number of connections.
    pub connections: u32,
    /// Resident bytes of each end of a connection.
    pub bytes_each: f64,
    /// Bytes of the receives that the credits of a connection need.
    pub credit_bytes: u32,
    /// Bytes of each end in addition to `credit_bytes`.
    pub beyond_credits: f64,
}

/// How active connections share two ends.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "active_connections")]
pub struct Active {
    /// Number of connections.
    pub connections: u32,
    /// Messages of the fastest connection divided by those of the slowest.
    pub fastest_to_slowest: f64,
    /// Rate of all connections together divided by the rate of a single connection.
    pub together_to_one: f64,
}

/// Returns the settings of connections with the largest segment.
fn smb(choice: &Choice) -> Smb {
    let segment = choice.segments.iter().copied().max().unwrap_or(8136);
    Smb {
        crc: choice.crcs[0] && choice.smb.over == Kind::Iwarp,
        segment,
        ..choice.smb
    }
}

/// Makes idle connections and measures their memory; `None` where the system does not report it.
/// Call this first: memory that earlier work has freed would be used again and not be counted.
///
/// # Errors
/// The connections cannot be made.
pub fn measure_idle(near: &mut Near, choice: &Choice) -> Result<Option<Idle>> {
    let few = Smb {
        segment: 1364,
        send_credit_target: IDLE_CREDITS,
        receive_credit_max: IDLE_CREDITS,
        ..smb(choice)
    };
    // Memory that the first connection needs once is not counted.
    let first = near.open(link(few, 1, 1364))?;
    near.burst(first, &burst(64, choice.placement, 1, None))?;
    let Some(before) = near.resident()? else {
        near.close(first)?;
        return Ok(None);
    };
    let id = near.open(link(few, IDLE, 1364))?;
    // A connection is completely set up after it has moved a message.
    near.burst(id, &burst(64, choice.placement, 1, None))?;
    let after = near.resident()?;
    near.close(id)?;
    near.close(first)?;
    let Some(after) = after else {
        return Ok(None);
    };
    let each = after.saturating_sub(before) as f64 / f64::from(2 * IDLE);
    // One receive more than the credits is posted, so that the last credit can be answered.
    let credit_bytes = (u32::from(IDLE_CREDITS) + 1) * few.segment;
    Ok(Some(Idle {
        connections: IDLE,
        bytes_each: each,
        credit_bytes,
        beyond_credits: (each - f64::from(credit_bytes)).max(0.0),
    }))
}

const fn link(smb: Smb, connections: u32, largest: u32) -> Link {
    Link {
        means: Means::SmbDirect(smb),
        connections,
        largest,
        rdma: false,
        slots: 1,
    }
}

fn burst(size: u32, placement: Placement, count: u64, seconds: Option<f64>) -> Burst {
    Burst {
        kind: Operation::Send,
        size,
        count,
        outstanding: OUTSTANDING_MESSAGES,
        both: false,
        busy: false,
        placement,
        seconds,
        request: None,
    }
}

/// Runs many connections and a single one alternately; `None` if it was interrupted.
///
/// # Errors
/// The connections cannot be made.
pub fn measure_active(
    near: &mut Near,
    choice: &Choice,
    time: Option<Duration>,
    stop: &AtomicBool,
) -> Result<Option<Active>> {
    let smb = smb(choice);
    let (many, one) = (
        near.open(link(smb, ACTIVE, MESSAGE_BYTES))?,
        near.open(link(smb, 1, MESSAGE_BYTES))?,
    );
    let seconds = time.unwrap_or(DEFAULT_BURST).as_secs_f64();
    let (mut unfairnesses, mut rate_ratios) = (Vec::new(), Vec::new());
    let mut timed = |id: LinkId| -> Result<(f64, f64)> {
        let burst = burst(MESSAGE_BYTES, choice.placement, 0, Some(seconds));
        let (near, far) = near.burst(id, &burst)?;
        let most = far.arrived.iter().max().copied().unwrap_or(0);
        let least = far.arrived.iter().min().copied().unwrap_or(0);
        let all: u64 = far.arrived.iter().sum();
        Ok((most as f64 / least.max(1) as f64, all as f64 / near.seconds))
    };
    for round in 0..=ROUNDS {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let ((unfairness, together), (_, alone)) = (timed(many)?, timed(one)?);
        // The first round warms up.
        if round > 0 {
            unfairnesses.push(unfairness);
            rate_ratios.push(together / alone);
        }
    }
    near.close(many)?;
    near.close(one)?;
    if unfairnesses.is_empty() {
        return Ok(None);
    }
    Ok(Some(Active {
        connections: ACTIVE,
        fastest_to_slowest: quartiles(unfairnesses)[1],
        together_to_one: quartiles(rate_ratios)[1],
    }))
}
