//! How much of the processors this process and this machine use.

use std::time::Duration;

/// The processor time that has been used so far. What the system does not tell is `None`.
#[derive(Default)]
pub(super) struct Usage {
    /// Time of this process.
    process: Option<Duration>,
    /// Each thread of this process, and its time.
    threads: Vec<(u32, Duration)>,
    /// Time of all processors: in use, and in total.
    machine: Option<(u64, u64)>,
}

/// The usage in a span of time.
pub(super) struct Used {
    /// Seconds of this process.
    pub(super) process: Option<f64>,
    /// The part of the span for which the busiest thread used a processor.
    pub(super) busiest_thread: Option<f64>,
    /// The part of all processors that was in use.
    pub(super) machine: Option<f64>,
}

impl Usage {
    /// Returns the usage in a span of time from `before` to this.
    pub(super) fn since(&self, before: &Self, span: Duration) -> Used {
        let process = self.process.zip(before.process);
        let process = process.map(|(after, before)| after.saturating_sub(before).as_secs_f64());
        let threads = self.threads.iter().map(|(thread, after)| {
            let before = before.threads.iter().find(|(other, _)| other == thread);
            let before = before.map_or(Duration::ZERO, |(_, time)| *time);
            after.saturating_sub(before).as_secs_f64()
        });
        let busiest = threads.reduce(f64::max);
        let machine = self.machine.zip(before.machine);
        Used {
            process,
            busiest_thread: busiest.map(|seconds| (seconds / span.as_secs_f64()).min(1.0)),
            machine: machine.and_then(|((used, total), (used_before, total_before))| {
                let total = total.saturating_sub(total_before);
                let used = used.saturating_sub(used_before);
                (total > 0).then(|| used as f64 / total as f64)
            }),
        }
    }

    /// Returns no usage, which is known on Linux only.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn now() -> Self {
        Self::default()
    }

    /// Returns the usage so far.
    #[cfg(target_os = "linux")]
    pub(super) fn now() -> Self {
        use std::fs;

        use rustix::time::{ClockId, clock_gettime};

        let time = clock_gettime(ClockId::ProcessCPUTime);
        let process = Duration::try_from(time).ok();
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
        let threads = tasks.flatten().filter_map(|task| {
            let thread = task.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(task.path().join("stat")).ok()?;
            Some((thread, thread_time(&stat)?))
        });
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        Self {
            process,
            threads: threads.collect(),
            machine: machine_time(&stat),
        }
    }
}

/// Returns the time of a thread from its file `stat`.
#[cfg(any(target_os = "linux", test))]
fn thread_time(stat: &str) -> Option<Duration> {
    /// Ticks in a second in /proc, on all architectures of Linux that Rust supports.
    const TICKS: u64 = 100;
    // The name of the thread may contain spaces and parentheses. Behind it is the third field.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let ticks = ticks()? + ticks()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS))
}

/// Returns the time of all processors, in use and in total, from `/proc/stat`.
#[cfg(any(target_os = "linux", test))]
fn machine_time(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // User, nice, system, idle, I/O wait, interrupts, soft interrupts, steal. Guests are in user.
    let fields = line.split_ascii_whitespace().take(8);
    let fields: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    let total: u64 = fields.iter().sum();
    let idle = fields.get(3)? + fields.get(4)?;
    Some((total - idle, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_understood() {
        let stat = "7 (a) name) R 1 2 3 4 5 6 7 8 9 10 120 30 0 0 20 0\n";
        assert_eq!(thread_time(stat), Some(Duration::from_millis(1500)));
        assert_eq!(thread_time("7 (name) R 1"), None);
        let stat = "cpu  10 1 20 300 40 5 6 7 100 0\ncpu0 1 1 1 1\n";
        assert_eq!(machine_time(stat), Some((49, 389)));
        assert_eq!(machine_time("intr 1"), None);
    }

    #[test]
    fn the_busiest_thread_counts() {
        let second = Duration::from_secs(1);
        let before = Usage {
            process: Some(second),
            threads: vec![(1, second), (2, Duration::ZERO)],
            machine: Some((100, 200)),
        };
        let after = Usage {
            process: Some(3 * second),
            threads: vec![(1, second), (2, second * 3 / 2), (3, second / 2)],
            machine: Some((150, 400)),
        };
        let used = after.since(&before, 2 * second);
        assert_eq!(used.process, Some(2.0));
        assert_eq!(used.busiest_thread, Some(0.75));
        assert_eq!(used.machine, Some(0.25));
    }
}
