//! The figures of the process, with the names that every exporter gives them, on Linux.
//!
//! They are needed most when file descriptors have run out. So the files of `/proc` are opened once, at the start, and
//! read again for each answer.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    sync::{LazyLock, Mutex, PoisonError},
};

use rustix::{
    fs::{CWD, Dir, Mode, OFlags, openat},
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};
use smbdirect::metrics::{Family, Kind};

/// Reads the number of each thread of this process and its processor time in seconds. Those that cannot be read are left out.
pub(super) fn threads() -> impl Iterator<Item = (u64, f64)> {
    let ticks = clock_ticks_per_second() as f64;
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten();
    entries.flatten().filter_map(move |entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let id = entry.file_name().to_str()?.parse().ok()?;
        Some((id, Stat::parse(&stat)?.cpu_ticks as f64 / ticks))
    })
}

/// Opens the files that [`families`] reads.
pub(super) fn open() {
    drop(FILES.lock());
}

/// Returns CPU time, memory, threads and file descriptors of the process.
pub(super) fn families() -> Vec<Family> {
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    files.as_mut().map(Files::families).unwrap_or_default()
}

/// `None` if there is no `/proc`.
static FILES: LazyLock<Mutex<Option<Files>>> = LazyLock::new(|| Mutex::new(Files::open().ok()));

/// Longest text of `/proc/self/stat`: 52 numbers and a name.
const MAX_STAT_BYTES: usize = 2048;

/// Files of `/proc` about this process.
struct Files {
    /// `/proc/self/stat`.
    stat: File,
    /// `/proc/self/fd`.
    descriptors: Dir,
    /// When the system started, in seconds of Unix time.
    boot_seconds: Option<f64>,
}

impl Files {
    fn open() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = openat(CWD, "/proc/self/fd", flags, Mode::empty())?;
        let system = fs::read_to_string("/proc/stat").unwrap_or_default();
        let boot = system.lines().find_map(|line| line.strip_prefix("btime "));
        Ok(Self {
            stat: File::open("/proc/self/stat")?,
            descriptors: Dir::new(descriptors)?,
            boot_seconds: boot.and_then(|text| text.trim().parse().ok()),
        })
    }

    fn families(&mut self) -> Vec<Family> {
        let gauge = |name, help, value| Family::single(name, help, Kind::Gauge, value);
        let mut families = vec![gauge(
            "process_open_fds",
            "Number of open file descriptors.",
            self.count_descriptors() as f64,
        )];
        if let Some(limit) = getrlimit(Resource::Nofile).current {
            families.push(gauge(
                "process_max_fds",
                "Maximum number of open file descriptors.",
                limit as f64,
            ));
        }
        let mut text = [0; MAX_STAT_BYTES];
        let length = self.stat.read_at(&mut text, 0).unwrap_or(0);
        let Some(stat) = Stat::parse(&String::from_utf8_lossy(&text[..length])) else {
            return families;
        };
        let ticks = clock_ticks_per_second() as f64;
        families.push(Family::single(
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            Kind::Seconds,
            stat.cpu_ticks as f64 / ticks,
        ));
        families.extend([
            gauge(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                (stat.resident_pages * page_size() as u64) as f64,
            ),
            gauge(
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
                stat.virtual_bytes as f64,
            ),
            gauge(
                "process_threads",
                "Number of OS threads in the process.",
                stat.threads as f64,
            ),
        ]);
        families.extend(self.boot_seconds.map(|boot| {
            gauge(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                boot + stat.start_ticks as f64 / ticks,
            )
        }));
        families
    }

    fn count_descriptors(&mut self) -> usize {
        self.descriptors.rewind();
        let entries = self.descriptors.by_ref().filter_map(Result::ok);
        let is_number = |name: &[u8]| name.first().is_some_and(u8::is_ascii_digit);
        entries
            .filter(|entry| is_number(entry.file_name().to_bytes()))
            .count()
    }
}

/// Fields of `/proc/self/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name of the program is in parentheses, and may contain them.
        let (_, fields) = text.rsplit_once(") ")?;
        let fields: Vec<_> = fields.split_whitespace().collect();
        // Numbers are those of proc(5), where the first field after the name is 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_after_any_name() {
        let text = "1234 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 0 0 20 0 7 0 5000 1000000 250 18";
        let stat = Stat {
            cpu_ticks: 23,
            threads: 7,
            start_ticks: 5000,
            virtual_bytes: 1_000_000,
            resident_pages: 250,
        };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("1 (a"), None);
    }

    #[test]
    fn each_thread_has_its_processor_time() {
        let busy = || threads().map(|(_, seconds)| seconds).sum::<f64>();
        let before = busy();
        while busy() <= before {}
        let own = u64::from(std::process::id());
        assert!(threads().any(|(id, _)| id == own));
    }

    #[test]
    fn figures_are_those_of_this_process() {
        let mut files = Files::open().unwrap();
        let before = files.count_descriptors();
        let more = [File::open("/").unwrap(), File::open("/").unwrap()];
        // Other tests of this process open and close files, too.
        assert!(before > 3 && files.count_descriptors() > 3);
        drop(more);
        let names: Vec<_> = files.families().iter().map(|family| family.name).collect();
        assert_eq!(names.len(), 7, "{names:?}");
    }
}
