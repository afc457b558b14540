//! Programs may add a socket to epoll before they connect it. The kernel removes it when another socket takes its
//! place, so it is added again.

use std::{fs, os::fd::RawFd, path::Path};

/// The entry of a descriptor in an epoll instance.
pub(crate) struct Registration {
    epoll: RawFd,
    event: libc::epoll_event,
}

impl Registration {
    /// Adds the descriptor again, with the events and the data that the program gave.
    pub(crate) fn renew(mut self, descriptor: RawFd) {
        let event = &raw mut self.event;
        // SAFETY: the event lives until the call returns. The call fails if the program has closed the instance, or
        // if the old socket has other descriptors, whose entry stays.
        unsafe { libc::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, descriptor, event) };
    }
}

/// Returns the entries of a descriptor in the epoll instances of this process. Without /proc there are none.
pub(crate) fn registrations(descriptor: RawFd) -> Vec<Registration> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let is_epoll = |path: &Path| {
        fs::read_link(path).is_ok_and(|target| target.as_os_str() == "anon_inode:[eventpoll]")
    };
    entries
        .filter_map(|entry| {
            let entry = entry.ok().filter(|entry| is_epoll(&entry.path()))?;
            let epoll: RawFd = entry.file_name().to_str()?.parse().ok()?;
            let entries = fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")).ok()?;
            let event = entries.lines().find_map(|line| event(line, descriptor))?;
            Some(Registration { epoll, event })
        })
        .collect()
}

/// Returns the event of a line such as `tfd: 5 events: 19 data: 5 pos:0 ino:60ac sdev:9`, if the line is of the
/// descriptor. The descriptor is decimal, the others are hexadecimal.
fn event(line: &str, descriptor: RawFd) -> Option<libc::epoll_event> {
    let mut words = line.split_whitespace();
    let mut value = |name: &str| words.by_ref().skip_while(|word| *word != name).nth(1);
    let found: RawFd = value("tfd:")?.parse().ok()?;
    let events = u32::from_str_radix(value("events:")?, 16).ok()?;
    let data = u64::from_str_radix(value("data:")?, 16).ok()?;
    (found == descriptor).then_some(libc::epoll_event { events, u64: data })
}
