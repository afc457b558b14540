//! Timed bursts over SMB Direct connections: messages, writes or reads until the time is over, and
//! requests one at a time.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use bytes::Buf;

use super::{Done, END_MARK, End, STEP_TIMEOUT, check_length, finish};
use crate::work::{Burst, Operation};

impl End {
    /// Runs this end's part of a timed burst. The active end sends a mark after it.
    pub(super) async fn timed(&mut self, burst: &Burst, active: bool) -> Result<Done> {
        let length = Duration::try_from_secs_f64(burst.seconds.unwrap_or(0.0))?.min(STEP_TIMEOUT);
        let mut done = Done::default();
        match (burst.request, burst.kind, active) {
            (Some(_), _, true) => done.round_trips = self.timed_requests(burst, length).await?,
            (Some(_), _, false) => return self.timed_answers().await.map(|()| done),
            (_, Operation::Send | Operation::Batch | Operation::Echo, true) => {
                self.timed_sends(burst, length).await?;
            }
            (_, Operation::Send | Operation::Batch | Operation::Echo, false) => {
                done.arrived = Some(self.timed_receives(burst).await?);
                self.settle(false).await?;
                return Ok(done);
            }
            (_, Operation::Write | Operation::WriteApart, true) => {
                done.arrived = Some(self.write_while(burst, until(length)).await?);
            }
            (_, Operation::Read, true) => {
                done.arrived = Some(self.read_while(burst, until(length)).await?);
            }
            (..) => self.marked().await?,
        }
        if active {
            drop(self.connection.send(END_MARK)?);
        }
        self.settle(active).await?;
        Ok(done)
    }

    async fn timed_sends(&self, burst: &Burst, length: Duration) -> Result<()> {
        let mut messages = self.to_send(burst);
        let window = burst.outstanding.max(2) as usize;
        let mut sending = VecDeque::with_capacity(window);
        let started = Instant::now();
        while started.elapsed() < length {
            if sending.len() == window {
                finish(&mut sending, window / 2).await?;
            }
            sending.push_back(self.connection.send(messages.next())?);
        }
        Ok(())
    }

    /// Receives messages up to the end mark of the burst, and returns their number.
    async fn timed_receives(&self, burst: &Burst) -> Result<u64> {
        let mut arrived = 0;
        loop {
            let message = self.connection.recv().await?;
            if message.chunk() == END_MARK {
                return Ok(arrived);
            }
            check_length(message.len(), burst)?;
            arrived += 1;
        }
    }

    /// Sends requests one at a time, and returns the nanoseconds until each answer.
    async fn timed_requests(&self, burst: &Burst, length: Duration) -> Result<Vec<u64>> {
        let size = burst.request.unwrap_or(1) as usize;
        let request = self.source.slice(..size);
        let (started, mut round_trips) = (Instant::now(), Vec::new());
        while started.elapsed() < length {
            let asked = Instant::now();
            let sending = self.connection.send(request.clone())?;
            let answer = self.connection.recv().await?.into_bytes();
            round_trips.push(asked.elapsed().as_nanos() as u64);
            drop(sending);
            ensure!(
                answer.len() == size,
                "the answer has {} bytes",
                answer.len()
            );
        }
        Ok(round_trips)
    }

    /// Returns each request to its sender, up to the mark.
    async fn timed_answers(&self) -> Result<()> {
        loop {
            let message = self.connection.recv().await?;
            if message.chunk() == END_MARK {
                return self.settle(false).await;
            }
            drop(self.connection.send(message)?);
        }
    }
}

/// Returns whether the burst continues, given when it began and its length.
fn until(length: Duration) -> impl Fn(u64) -> bool {
    let started = Instant::now();
    move |_| started.elapsed() < length
}
