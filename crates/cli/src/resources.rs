//! The limits that the system puts on this process: open files, and memory.

/// Raises the limit of open files to the most that the system permits, and returns it. `None` if it
/// is unlimited or unknown.
#[cfg(target_os = "linux")]
pub(crate) fn raise_open_files() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "the limit of open files stays {current:?}");
            return current;
        }
    }
    maximum
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn raise_open_files() -> Option<u64> {
    None
}

/// The memory limit of the control group of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    /// The limit in bytes.
    pub(crate) bytes: u64,
    /// The file that has it.
    pub(crate) file: String,
}

/// Returns the smallest memory limit of the control groups of this process, if there is one.
#[cfg(target_os = "linux")]
pub(crate) fn memory_limit() -> Option<MemoryLimit> {
    use std::{fs, path::Path};

    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    smallest(&groups, Path::new("/sys/fs/cgroup"), |path| {
        fs::read_to_string(path).ok()
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn memory_limit() -> Option<MemoryLimit> {
    None
}

/// Returns the smallest limit of the groups in `groups`, which is the text of `/proc/self/cgroup`, and
/// of all groups that contain them.
#[cfg(any(target_os = "linux", test))]
fn smallest(
    groups: &str,
    root: &std::path::Path,
    read: impl Fn(&std::path::Path) -> Option<String>,
) -> Option<MemoryLimit> {
    let mut found: Option<MemoryLimit> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        // Version 2 has one hierarchy without a name; version 1 has one for memory.
        let (root, name) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            list if list.split(',').any(|one| one == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let group = root.join(group.trim_start_matches('/'));
        for directory in group.ancestors().take_while(|path| path.starts_with(&root)) {
            let file = directory.join(name);
            let bytes = read(&file).and_then(|text| text.trim().parse::<u64>().ok());
            // Version 1 has a number near the largest one if there is no limit.
            let bytes = bytes.filter(|&bytes| bytes < 1 << 60);
            if let Some(bytes) = bytes
                && found.as_ref().is_none_or(|found| bytes < found.bytes)
            {
                let file = file.display().to_string();
                found = Some(MemoryLimit { bytes, file });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<(u64, String)> {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_owned())
        };
        let limit = smallest(groups, Path::new("/cg"), read);
        limit.map(|limit| (limit.bytes, limit.file))
    }

    // Paths of control groups have the separators of Linux.
    #[cfg(not(windows))]
    #[test]
    fn the_smallest_limit_of_a_group_and_its_parents_counts() {
        let files = [
            ("/cg/a/b/memory.max", "max\n"),
            ("/cg/a/memory.max", "2000000\n"),
            ("/cg/memory.max", "3000000\n"),
        ];
        let found = Some((2_000_000, "/cg/a/memory.max".to_owned()));
        assert_eq!(limit("0::/a/b\n", &files), found);
        assert_eq!(limit("0::/other\n", &files[..2]), None);
        assert_eq!(limit("", &files), None);
    }

    #[test]
    fn version_1_has_a_hierarchy_of_its_own_for_memory() {
        let files = [
            ("/cg/memory/a/memory.limit_in_bytes", "1000\n"),
            ("/cg/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let groups = "5:cpu,cpuacct:/a\n4:memory:/a\n";
        assert_eq!(limit(groups, &files).map(|(bytes, _)| bytes), Some(1000));
        assert_eq!(limit("4:memory:/b\n", &files), None);
    }
}
