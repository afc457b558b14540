//! A channel between two threads, to compare with the in-process provider. The sender copies each
//! message into a pooled buffer and sends the buffer; the receiver copies the message out and
//! returns the buffer.

use std::{hint::black_box, time::Duration};

use anyhow::{Context, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::work::{Burst, Operation, window};

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct End {
    out: Sender<Vec<u8>>,
    into: Receiver<Vec<u8>>,
}

/// Creates the two ends of a channel.
pub(crate) fn pair() -> (End, End) {
    let ((there, to), (back, from)) = (unbounded(), unbounded());
    let near = End {
        out: there,
        into: from,
    };
    (
        near,
        End {
            out: back,
            into: to,
        },
    )
}

/// Time without a message after which the channel counts as stuck.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

impl End {
    /// Runs one burst. The active end gets the free buffers back, and returns the nanoseconds of
    /// each round trip.
    pub(crate) fn burst(&self, burst: &Burst, active: bool) -> Result<Vec<u64>> {
        let mut memory = super::smb_direct::source(burst.size).to_vec();
        let slots = match burst.kind {
            Operation::Echo => 1,
            _ => window(burst.size).min(256),
        };
        if !active {
            for _ in 0..burst.count {
                let buffer = self.next()?;
                memory.copy_from_slice(&buffer);
                black_box(&mut memory);
                self.out.send(buffer)?;
            }
            return Ok(Vec::new());
        }
        let mut pool = vec![memory.clone(); slots];
        let mut round_trips = Vec::new();
        let mut returned = 0;
        for _ in 0..burst.count {
            let started = (burst.kind == Operation::Echo).then(std::time::Instant::now);
            let mut buffer = match pool.pop() {
                Some(buffer) => buffer,
                None => {
                    returned += 1;
                    self.next()?
                }
            };
            buffer.copy_from_slice(&memory);
            self.out.send(buffer)?;
            if let Some(started) = started {
                pool.push(self.next()?);
                returned += 1;
                round_trips.push(started.elapsed().as_nanos() as u64);
            }
        }
        for _ in returned..burst.count {
            self.next()?;
        }
        Ok(round_trips)
    }

    fn next(&self) -> Result<Vec<u8>> {
        self.into
            .recv_timeout(STALL_TIMEOUT)
            .context("the channel is stuck")
    }
}
