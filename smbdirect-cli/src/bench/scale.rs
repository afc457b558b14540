//! Many connections: what idle ones cost, and how fairly busy ones share.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::Result;
use serde::Serialize;

use super::{
    ends::{LinkId, Near},
    measure,
    plan::Choice,
    work::{Burst, Kind, Link, Means, Over, Placement, Smb},
};
use crate::report::{self, Report};

const IDLE: u32 = 1000;
const ACTIVE: u32 = 64;
/// Of idle connections: few, so that they do not hide the rest.
const CREDITS: u16 = 8;
const SIZE: u32 = 64 << 10;
/// Messages that each active connection has under way: a MiB.
const UNDER_WAY: u32 = 16;
const ROUNDS: usize = 5;
/// How long a burst of active connections is unless somebody says.
const TIME: Duration = Duration::from_millis(500);

/// What idle connections cost.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "idle_connections")]
pub(crate) struct Idle {
    pub(crate) connections: u32,
    /// Resident bytes of each end.
    bytes_each: f64,
    /// Bytes that the receives behind its credits may fill.
    credit_bytes: u32,
    pub(crate) beyond_credits: f64,
}

/// How active connections share two ends.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "active_connections")]
pub(crate) struct Active {
    pub(crate) connections: u32,
    /// Messages of the fastest beside those of the slowest.
    pub(crate) fastest_to_slowest: f64,
    /// The rate of all together beside that of one alone.
    pub(crate) together_to_one: f64,
}

fn smb(choice: &Choice) -> Smb {
    let segment = choice.segments.iter().copied().max().unwrap_or(8136);
    Smb {
        crc: choice.crcs[0] && choice.smb.over == Over::Iwarp,
        segment,
        ..choice.smb
    }
}

/// Makes idle connections and counts the memory; `None` where the system does not tell. It is to
/// come before everything else: what others gave back would be taken without being counted.
///
/// # Errors
/// So many connections cannot be made.
pub(crate) fn idle(report: &Report, near: &mut Near, choice: &Choice) -> Result<Option<Idle>> {
    let few = Smb {
        segment: 1364,
        send_credit_target: CREDITS,
        receive_credit_max: CREDITS,
        ..smb(choice)
    };
    // What the first one needs is not theirs.
    let first = near.open(link(few, 1, 1364))?;
    near.burst(first, &burst(64, choice.placement, 1, None))?;
    let before = near.resident()?;
    let id = near.open(link(few, IDLE, 1364))?;
    // Everything that sets a connection up has happened once it has moved a message.
    near.burst(id, &burst(64, choice.placement, 1, None))?;
    let after = near.resident()?;
    near.close(id)?;
    near.close(first)?;
    let Some((before, after)) = before.zip(after) else {
        return Ok(None);
    };
    let each = after.saturating_sub(before) as f64 / f64::from(2 * IDLE);
    // One more than the credits is posted, so that the last can be answered.
    let credit_bytes = (u32::from(CREDITS) + 1) * few.segment;
    let idle = Idle {
        connections: IDLE,
        bytes_each: each,
        credit_bytes,
        beyond_credits: (each - f64::from(credit_bytes)).max(0.0),
    };
    report.line(format_args!(
        "\n{IDLE} idle connections: {} resident for each end; {CREDITS} credits need {}",
        report::bytes(each as u64),
        report::bytes(credit_bytes.into()),
    ));
    report.event(&idle);
    Ok(Some(idle))
}

const fn link(smb: Smb, connections: u32, largest: u32) -> Link {
    Link {
        means: Means::SmbDirect(smb),
        connections,
        largest,
        rdma: false,
        places: 1,
    }
}

fn burst(size: u32, placement: Placement, count: u64, seconds: Option<f64>) -> Burst {
    Burst {
        kind: Kind::Send,
        size,
        count,
        outstanding: UNDER_WAY,
        both: false,
        busy: false,
        placement,
        seconds,
    }
}

/// Has many connections and one work by turns; `None` if it was interrupted.
///
/// # Errors
/// So many connections cannot be made.
pub(crate) fn active(
    report: &Report,
    near: &mut Near,
    choice: &Choice,
    time: Option<Duration>,
    stop: &AtomicBool,
) -> Result<Option<Active>> {
    let smb = smb(choice);
    let (many, one) = (
        near.open(link(smb, ACTIVE, SIZE))?,
        near.open(link(smb, 1, SIZE))?,
    );
    let seconds = time.unwrap_or(TIME).as_secs_f64();
    let (mut unfair, mut beside) = (Vec::new(), Vec::new());
    let mut timed = |id: LinkId| -> Result<(f64, f64)> {
        let burst = burst(SIZE, choice.placement, 0, Some(seconds));
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
        // The first warms up.
        if round > 0 {
            unfair.push(unfairness);
            beside.push(together / alone);
        }
    }
    near.close(many)?;
    near.close(one)?;
    if unfair.is_empty() {
        return Ok(None);
    }
    let active = Active {
        connections: ACTIVE,
        fastest_to_slowest: measure::quartiles(unfair)[1],
        together_to_one: measure::quartiles(beside)[1],
    };
    report.line(format_args!(
        "\n{ACTIVE} active connections: the fastest has {:.2} times the messages of the slowest; \
         all together have {:.2} times the rate of one",
        active.fastest_to_slowest, active.together_to_one
    ));
    report.event(&active);
    Ok(Some(active))
}
