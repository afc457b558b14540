//! Measures what the path to a server carries without SMB: messages to a `smbdirect listen --sink`.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use bytes::Bytes;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use super::phase;
use crate::{
    facts::Remote,
    probe::attempt::{self, Candidate},
    settings::Stage,
};

/// Time after which no more messages are sent.
const TIME: Duration = Duration::from_secs(1);
/// Longest time for the measurement.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a message, if the other end takes them.
const MESSAGE_BYTES: u32 = 1 << 19;
/// Messages that are being sent at the same time.
const OUTSTANDING: usize = 4;

/// Sends messages to the port that the target names, if SMB Direct without SMB is there. Returns `None` if it is
/// not.
pub(super) async fn measure(
    remote: &Remote,
    address: SocketAddr,
    candidates: &[Candidate],
    port: Option<u16>,
    progress: &(dyn Fn(Stage) + Sync),
) -> Option<Result<f64, String>> {
    let is_sink = |candidate: &&Candidate| {
        let mut attempts = remote.attempts.iter();
        attempts.any(|attempt| {
            let is_bare = attempt.result.as_ref().is_ok_and(|it| it.smb.is_err());
            is_bare && (attempt.port, &attempt.by) == (candidate.port, &candidate.by)
        })
    };
    let candidate = candidates
        .iter()
        .filter(|candidate| Some(candidate.port) == port)
        .find(is_sink)?;
    progress(Stage::Measurement { transport: "path" });
    let connection = match attempt::open(candidate, address).await {
        Ok(connection) => connection,
        Err(fault) => return Some(Err(fault.to_string())),
    };
    let most = connection.negotiated().max_fragmented_send_size;
    let message = phase::buffer(most.min(MESSAGE_BYTES), true).freeze();
    let begun = Instant::now();
    let end = begun + TIME;
    let mut senders = JoinSet::new();
    for _ in 0..OUTSTANDING {
        let (connection, message) = (connection.clone(), message.clone());
        senders.spawn(async move {
            let mut bytes = 0;
            while Instant::now() < end {
                let sending = connection.send(Bytes::clone(&message));
                let sending = sending.map_err(|error| error.to_string())?;
                sending.await.map_err(|error| error.to_string())?;
                bytes += message.len() as u64;
            }
            Ok::<_, String>(bytes)
        });
    }
    let all = async {
        let mut bytes = 0;
        while let Some(sent) = senders.join_next().await {
            bytes += sent.expect("no sender panics or is aborted")?;
        }
        Ok(bytes)
    };
    let sent = timeout(TIMEOUT, all).await;
    let seconds = begun.elapsed().as_secs_f64();
    attempt::leave(&connection).await;
    Some(match sent {
        Ok(sent) => sent.map(|bytes: u64| bytes as f64 / seconds),
        Err(_) => Err("the sink did not receive the messages in time".into()),
    })
}
