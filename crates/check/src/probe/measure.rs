//! Measures the rates to a server over TCP and over SMB Direct.
//!
//! The data is a scratch file with a random name, which the server deletes when it is closed, also by the end of the
//! connection. So nothing stays when the command is interrupted; a file whose handle was not closed is named. With [`Measure::read_only`] nothing is written.

mod path;
mod phase;
mod session;
mod usage;

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use smbdirect_smb2::{File, Login};
use tokio::time::{Instant, timeout_at};

use self::{
    phase::{Phase, SMALL_BYTES},
    session::Session,
};
use super::attempt::Candidate;
use crate::{
    facts::{Fabric, Measured, Measurement, Remote},
    measurement::Operation,
    settings::{Measure, Stage},
};

/// Longest time for all measurements. The command has other steps, and ends within a minute.
const TIMEOUT: Duration = Duration::from_secs(42);
/// Bytes of a large request, if the server takes them.
const LARGE_BYTES: u32 = 1 << 20;
/// Requests that are outstanding at the same time, if they are many.
const MANY: u32 = 16;
/// Requests that are made before anything is measured, so that the server has granted its SMB2 credits.
const WARM_UP_REQUESTS: usize = 64;

/// Measures the rates to a server whose transports have been tried.
pub(super) async fn measure(
    remote: &Remote,
    address: SocketAddr,
    candidates: &[Candidate],
    login: &Login,
    measure: &Measure,
    port: Option<u16>,
    progress: &(dyn Fn(Stage) + Sync),
) -> Measurement {
    let end = Instant::now() + TIMEOUT;
    let mut measurement = Measurement {
        path: path::measure(remote, address, candidates, port, progress).await,
        ..Measurement::default()
    };
    let over_tcp = matches!(remote.smb, Some(Ok(_)));
    let tcp = over_tcp.then_some(None);
    let direct = working(remote, candidates).into_iter().map(Some);
    let mut cached = None;
    for candidate in tcp.into_iter().chain(direct) {
        let mut measured = unmeasured(candidate);
        let mut scratch = None;
        progress(Stage::Measurement {
            transport: candidate.map_or("TCP", |candidate| candidate.fabric.name()),
        });
        let share = remote.share.as_deref().unwrap_or_default();
        let work = async {
            let session = Session::open(candidate, address, &remote.host, share, login).await?;
            let done =
                all_phases(&session, measure, &mut cached, &mut measured, &mut scratch).await;
            session.close().await;
            done
        };
        match timeout_at(end, work).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => measured.failure = Some(format!("{error:#}")),
            Err(_) => measurement.is_cut_short = true,
        }
        measurement.left.extend(scratch);
        measurement.transports.push(measured);
    }
    measurement
}

fn unmeasured(candidate: Option<&Candidate>) -> Measured {
    Measured {
        fabric: candidate.map(|candidate| candidate.fabric),
        by: candidate
            .map_or("TCP", |candidate| &candidate.by)
            .to_owned(),
        rates: Vec::new(),
        failure: None,
        smb2_credits: 0,
        signs: false,
        in_messages: None,
    }
}

/// Returns a candidate for each kind of RDMA over which the server speaks SMB: that of an adapter, if one works.
fn working<'a>(remote: &Remote, candidates: &'a [Candidate]) -> Vec<&'a Candidate> {
    let mut working: Vec<&Candidate> = Vec::new();
    let tried = candidates.iter().filter(|candidate| {
        let mut attempts = remote.attempts.iter();
        attempts.any(|attempt| {
            let speaks_smb = attempt.result.as_ref().is_ok_and(|it| it.smb.is_ok());
            speaks_smb && (attempt.port, &attempt.by) == (candidate.port, &candidate.by)
        })
    });
    for candidate in tried {
        let is_known = |other: &&Candidate| fabric_of(other) == fabric_of(candidate);
        if !working.iter().any(is_known) {
            working.push(candidate);
        }
    }
    working
}

/// Returns the protocol, with InfiniBand as RoCE: one of them is enough to measure.
const fn fabric_of(candidate: &Candidate) -> bool {
    matches!(candidate.fabric, Fabric::Iwarp)
}

/// Measures everything over one transport. `cached` are the bytes of a file to read that the server has in its cache,
/// because another transport has read them. `scratch` is the path of the scratch file until its handle is closed.
async fn all_phases(
    session: &Session,
    measure: &Measure,
    cached: &mut Option<u64>,
    measured: &mut Measured,
    scratch: &mut Option<String>,
) -> Result<()> {
    let file = match &measure.read_only {
        Some(path) => session.open_file(path).await?,
        None => session.scratch_file(&measure.folder, scratch).await?,
    };
    measured.signs = session.signs;
    measured.in_messages = session.in_messages();
    let done = with_file(session, &file, measure, cached, measured).await;
    // The server may have refused RDMA, or granted more.
    measured.in_messages = session.in_messages();
    measured.smb2_credits = session.credits();
    // The server deletes a scratch file when it is closed.
    let closed = file.close().await;
    if closed.is_ok() {
        *scratch = None;
    }
    done?;
    Ok(closed?)
}

async fn with_file(
    session: &Session,
    file: &File,
    measure: &Measure,
    cached: &mut Option<u64>,
    measured: &mut Measured,
) -> Result<()> {
    let is_scratch = measure.read_only.is_none();
    let mut length = if is_scratch {
        measure.size
    } else {
        file.length().min(measure.size)
    };
    ensure!(
        length >= SMALL_BYTES.into(),
        "the file has fewer than {SMALL_BYTES} bytes"
    );
    for _ in 0..WARM_UP_REQUESTS {
        let buffer = phase::buffer(SMALL_BYTES, is_scratch);
        if is_scratch {
            file.write(0, buffer).await?;
        } else {
            file.read(0, buffer).await?;
        }
    }
    // No request is outstanding, so none has taken a credit.
    measured.smb2_credits = session.credits();
    let large = session.request_bytes(LARGE_BYTES);
    let large = u32::try_from(length).map_or(large, |length| large.min(length));
    let phase = |operation, request_bytes, outstanding, length| Phase {
        operation,
        request_bytes,
        outstanding,
        length,
    };
    if is_scratch {
        let mut written = 0;
        for (bytes, outstanding) in [
            (large, 1),
            (large, MANY),
            (SMALL_BYTES, 1),
            (SMALL_BYTES, MANY),
        ] {
            let (rate, extent) = phase(Operation::Write, bytes, outstanding, length)
                .run(session, file)
                .await?;
            measured.rates.push(rate);
            written = extent.max(written);
        }
        length = written;
    }
    // The server has what was just written in its cache. Of a file it may have nothing, and later only what was read.
    if !is_scratch && cached.is_none() {
        let (first, extent) = phase(Operation::FirstRead, large, MANY, length)
            .run(session, file)
            .await?;
        measured.rates.push(first);
        *cached = Some(extent);
    }
    let length = length.min(cached.unwrap_or(length));
    for (bytes, outstanding) in [
        (large, MANY),
        (large, 1),
        (SMALL_BYTES, MANY),
        (SMALL_BYTES, 1),
    ] {
        let (rate, _) = phase(Operation::Read, bytes, outstanding, length)
            .run(session, file)
            .await?;
        measured.rates.push(rate);
    }
    Ok(())
}
