//! The machine that a measurement runs on: cores to pin to, CPU clocks, the distance between two
//! cores, load.

use std::{
    fs, hint, io,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use socket2::SockRef;

/// The cores that this process could run on when it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

impl Cores {
    /// Returns the allowed cores. Call it before any thread is pinned.
    pub fn allowed() -> Self {
        Self(allowed())
    }

    /// Returns whether each end can have a core of its own.
    pub fn are_two(&self) -> bool {
        self.0.len() > 1
    }

    /// Returns the core of the end that connects. Both ends use it if they share one core.
    pub fn near(&self) -> Option<usize> {
        self.0.iter().take(2).next_back().copied()
    }

    /// Returns the core of the end that listens, unless the ends share one.
    pub fn far(&self) -> Option<usize> {
        self.0.first().copied()
    }

    /// Pins this thread to `core`, or lets it run on all cores. Returns whether that worked.
    pub fn pin(&self, core: Option<usize>) -> bool {
        match core {
            Some(core) => pin(&[core]),
            None => pin(&self.0),
        }
    }
}

#[cfg(target_os = "linux")]
fn allowed() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU)
        .filter(|&core| set.is_set(core))
        .collect()
}

#[cfg(target_os = "linux")]
fn pin(cores: &[usize]) -> bool {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core);
    }
    sched_setaffinity(None, &set).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> Vec<usize> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
fn pin(_: &[usize]) -> bool {
    false
}

/// Keeps the cores of the ends from halting: on each core a thread of idle priority spins. Waking a halted core
/// of a virtual machine takes from 10 us to milliseconds, which would dominate the results.
#[derive(Debug)]
pub struct Awake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Keeps the cores of `ends` awake; both ends may have the same core.
    ///
    /// # Errors
    /// The system has no idle priority, or pins no threads.
    pub fn start(cores: &Cores, ends: &[Option<usize>]) -> io::Result<Self> {
        let mut awake = Self {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        let mut ends = ends.to_vec();
        ends.dedup();
        for core in ends {
            let (cores, stop) = (cores.clone(), awake.stop.clone());
            let (ready_sender, ready_receiver) = mpsc::channel();
            let spin = move || {
                let ready = if cores.pin(core) {
                    run_when_idle()
                } else {
                    Err(io::Error::from(io::ErrorKind::Unsupported))
                };
                let spins = ready.is_ok();
                // start() waits for this.
                let _ = ready_sender.send(ready);
                while spins && !stop.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            };
            let thread = thread::Builder::new().name("awake".into()).spawn(spin)?;
            awake.threads.push(thread);
            ready_receiver
                .recv()
                .expect("the thread sends before it spins")?;
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a thread that spins does not panic");
        }
    }
}

/// Gives this thread idle priority: it runs only when no other thread wants to.
#[cfg(target_os = "linux")]
fn run_when_idle() -> io::Result<()> {
    use thread_priority::{
        Error, NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
        set_thread_priority_and_policy, thread_native_id, thread_schedule_policy,
    };
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    let set = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle);
    // After the policy it sets the nice value, which fails for a thread that is nice already. Among
    // idle threads the nice value does not matter.
    match (set, thread_schedule_policy()) {
        (Ok(()), _) => Ok(()),
        (Err(_), Ok(policy)) if policy == idle => Ok(()),
        (Err(Error::OS(code)), _) => Err(io::Error::from_raw_os_error(code)),
        (Err(other), _) => Err(io::Error::other(other.to_string())),
    }
}

#[cfg(not(target_os = "linux"))]
fn run_when_idle() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the CPU time of this thread so far; `None` where the system does not report it.
#[cfg(target_os = "linux")]
pub(crate) fn thread_cpu() -> Option<Duration> {
    use std::panic;

    use rustix::time::{ClockId, clock_gettime};
    // rustix panics where the vDSO of the kernel lacks getcpu, as in User Mode Linux.
    let time = panic::catch_unwind(|| clock_gettime(ClockId::ThreadCPUTime)).ok()?;
    Some(Duration::new(
        time.tv_sec.try_into().ok()?,
        time.tv_nsec.try_into().ok()?,
    ))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_cpu() -> Option<Duration> {
    None
}

/// Returns the resident memory of this process in bytes.
#[cfg(target_os = "linux")]
pub(crate) fn resident() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn resident() -> Option<u64> {
    None
}

/// Raises the limit of open files for the sockets of both ends of `connections`, and 1024 others.
pub(crate) fn allow_sockets(connections: u32) {
    allow_files(u64::from(connections) * 2 + 1024);
}

/// Raises this process's limit of open files to `files`, or to the most that it may have.
#[cfg(target_os = "linux")]
fn allow_files(files: u64) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < files) {
        limit.current = Some(limit.maximum.map_or(files, |maximum| maximum.min(files)));
        // If the limit cannot be raised, opening the files fails with an error that names the limit.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

#[cfg(not(target_os = "linux"))]
fn allow_files(_: u64) {}

/// Returns the load average of the last minute.
pub fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Returns the default congestion control of TCP connections.
pub fn congestion_control() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").ok()?;
    Some(text.trim().to_owned())
}

/// Checks that the system has a congestion control, and lets this user choose it.
///
/// # Errors
/// The system has no such congestion control, or this user may not choose it.
pub fn check_congestion_control(algorithm: &str) -> io::Result<()> {
    let socket = TcpListener::bind("127.0.0.1:0")?;
    set_congestion_control((&socket).into(), algorithm)
}

/// Sets the congestion control of a socket that is not connected yet.
///
/// # Errors
/// The system does not have it, or does not allow it.
#[cfg(target_os = "linux")]
pub(crate) fn set_congestion_control(socket: SockRef<'_>, algorithm: &str) -> io::Result<()> {
    socket.set_tcp_congestion(algorithm.as_bytes())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn set_congestion_control(_: SockRef<'_>, _: &str) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Measures the round trip of a cache line between the two cores. Returns `None` where threads
/// cannot be pinned, or other threads keep the cores busy.
///
/// The hypervisor moves virtual cores: the same two can share a cache in one minute and be far
/// apart in the next, where everything that crosses them takes two or three times as long.
pub(crate) fn cache_line_round_trip(cores: &Cores) -> Option<Duration> {
    let (near, far) = (cores.near()?, cores.far()?);
    if near == far || !cores.pin(Some(near)) {
        return None;
    }
    let (line, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let answering = || {
            if !cores.pin(Some(far)) {
                return;
            }
            let mut expected = 1;
            while !stop.load(Ordering::Relaxed) {
                if line.load(Ordering::Acquire) == expected {
                    line.store(expected + 1, Ordering::Release);
                    expected += 2;
                }
            }
        };
        scope.spawn(answering);
        let fastest = fastest_block(&line);
        stop.store(true, Ordering::Relaxed);
        fastest
    })
}

/// Returns the mean round trip of the fastest of several blocks: disturbances only make blocks
/// slower.
fn fastest_block(line: &AtomicU32) -> Option<Duration> {
    let started = Instant::now();
    let mut fastest: Option<Duration> = None;
    let mut next = 1;
    for _ in 0..BLOCKS {
        let block = Instant::now();
        for _ in 0..BLOCK_ROUND_TRIPS {
            line.store(next, Ordering::Release);
            let mut turns = 0_u32;
            while line.load(Ordering::Acquire) != next + 1 {
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(4096) && started.elapsed() > CORE_TIMEOUT {
                    return fastest;
                }
            }
            next += 2;
        }
        let mean = block.elapsed() / BLOCK_ROUND_TRIPS;
        fastest = Some(fastest.map_or(mean, |fastest| fastest.min(mean)));
    }
    fastest
}

/// Blocks of a measurement.
const BLOCKS: u32 = 12;
/// Round trips of a block.
const BLOCK_ROUND_TRIPS: u32 = 100;
/// Longest wait for the other core.
const CORE_TIMEOUT: Duration = Duration::from_millis(20);

/// The distance between the two cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Distance {
    Near,
    Far,
}

/// Returns the distance during a measurement, from the round trips before and after it; `None` if
/// they differ. `nearest` is the shortest round trip of the run.
pub(crate) fn distance(before: Duration, after: Duration, nearest: Duration) -> Option<Distance> {
    let of = |time: Duration| {
        if time.as_nanos() * 10 > nearest.as_nanos() * FAR_IN_TENTHS {
            Distance::Far
        } else {
            Distance::Near
        }
    };
    (of(before) == of(after)).then(|| of(before))
}

/// A round trip above 1.8 times the shortest of the run means that the cores are far apart.
const FAR_IN_TENTHS: u128 = 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_that_differ_before_and_after_are_none() {
        let at = Duration::from_nanos;
        assert_eq!(distance(at(120), at(130), at(118)), Some(Distance::Near));
        assert_eq!(distance(at(370), at(430), at(118)), Some(Distance::Far));
        assert_eq!(distance(at(120), at(370), at(118)), None);
        assert_eq!(distance(at(370), at(430), at(370)), Some(Distance::Near));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pinning_a_thread_can_be_undone() {
        let cores = Cores::allowed();
        let near = cores.near().expect("this thread runs somewhere");
        assert!(cores.pin(Some(near)));
        assert_eq!(Cores::allowed(), Cores(vec![near]));
        assert!(cores.pin(None));
        assert_eq!(Cores::allowed(), cores);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn awake_spins_at_idle_priority_until_dropped() {
        // The cores and the scheduling policies of the spinning threads.
        let spinning = || {
            let mut all = Vec::new();
            for task in fs::read_dir("/proc/self/task").unwrap() {
                let read = |file| fs::read_to_string(task.as_ref().unwrap().path().join(file));
                let (Ok(status), Ok(stat)) = (read("status"), read("stat")) else {
                    continue;
                };
                if status.starts_with("Name:\tawake\n") {
                    let cores = status.split_once("Cpus_allowed_list:\t").unwrap().1;
                    // After the name, which is the second field.
                    let policy = stat.rsplit(") ").next().unwrap().split(' ').nth(41 - 3);
                    all.push((
                        cores.lines().next().unwrap().to_owned(),
                        policy.unwrap().to_owned(),
                    ));
                }
            }
            all.sort();
            all
        };
        let cores = Cores::allowed();
        let awake = Awake::start(&cores, &[cores.near(), cores.far()]).unwrap();
        const SCHED_IDLE: &str = "5";
        let mut expected = vec![cores.near().unwrap(), cores.far().unwrap()];
        expected.sort_unstable();
        expected.dedup();
        let expected = expected
            .into_iter()
            .map(|core| (core.to_string(), SCHED_IDLE.to_owned()));
        assert_eq!(spinning(), expected.collect::<Vec<_>>());
        assert_eq!(Cores::allowed(), cores, "this thread goes where it will");
        drop(awake);
        // The system may list a thread for a moment after it has ended.
        let started = Instant::now();
        while !spinning().is_empty() {
            assert!(started.elapsed() < Duration::from_secs(10), "they spin on");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn clocks_and_counters_return_values() {
        let before = thread_cpu().unwrap();
        let started = Instant::now();
        while thread_cpu().unwrap() == before {
            assert!(started.elapsed() < Duration::from_secs(10));
        }
        assert!(resident().unwrap() > 0);
        assert!(load_average().unwrap() >= 0.0);
    }
}
