//! Whether the times of a capture can be used.

use std::time::Duration;

/// The times of the packets of a capture, in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Clock {
    packets: u64,
    has_time: bool,
    last: Option<Duration>,
    pub(super) latest: Duration,
    /// The largest step back, and the packet after it.
    back: Option<(Duration, u64)>,
    /// Packets with the same time as the one before, and the smallest step between two others.
    same: u64,
    step: Option<Duration>,
}

/// Two network queues put packets into a wrong order by less than this.
const MAX_DISORDER: Duration = Duration::from_millis(10);
/// Times with larger steps than this, and most of them equal, are those of a coarse clock.
const COARSE_STEP: Duration = Duration::from_micros(500);
/// Fewer packets do not show how coarse a clock is.
const MIN_PACKETS: u64 = 64;

impl Clock {
    /// Takes the time of the next packet.
    pub(super) fn packet(&mut self, time: Duration, frame: u64) {
        self.packets += 1;
        self.has_time |= !time.is_zero();
        if let Some(last) = self.last {
            match time.checked_sub(last) {
                Some(Duration::ZERO) => self.same += 1,
                Some(step) => {
                    self.step = Some(self.step.map_or(step, |least| least.min(step)));
                }
                None => {
                    let step = last - time;
                    if step > MAX_DISORDER && self.back.is_none_or(|(most, _)| step > most) {
                        self.back = Some((step, frame));
                    }
                }
            }
        }
        self.last = Some(time);
        self.latest = self.latest.max(time);
    }

    /// Returns why no time of the capture can be used.
    pub(super) fn fault(&self) -> Option<String> {
        if self.packets > 0 && !self.has_time {
            return Some("The capture has no times.".into());
        }
        if let Some((step, frame)) = self.back {
            return Some(format!(
                "The time goes back by {:.3} s at frame {frame}: the clock was set, or captures were appended. Capture again, or sort them (reordercap).",
                step.as_secs_f64()
            ));
        }
        let step = self.step.filter(|&step| step >= COARSE_STEP)?;
        (self.packets >= MIN_PACKETS && self.same >= self.packets / 2).then(|| {
            format!(
                "The times have steps of {:.1} ms, which is longer than most requests take. Capture with a finer clock (tcpdump -j, or another adapter).",
                step.as_secs_f64() * 1e3
            )
        })
    }
}
