//! Upgrades: the gateway starts its program again, which may be a new version, and the new process takes its place.
//!
//! The new process gets the listening sockets as systemd passes sockets, and one end of a stream. It listens as after any
//! start, writes `ready ID` with its process ID to the stream, reads what the old process knows, as one line of JSON, and
//! serves when it has read `go`. If either process ends before that, the stream ends, and the other one goes on alone.
//! Versions of the two processes may differ, so this stays as it is, but for members of the JSON that are added.

use std::collections::BTreeMap;

#[cfg(not(target_os = "linux"))]
use anyhow::Result;
use serde::{Deserialize, Serialize};
use smbdirect_gateway::{Remembered, ServerStatus, observe::Counters};

#[cfg(target_os = "linux")]
pub(crate) use linux::start_new_process;
#[cfg(target_os = "linux")]
pub(super) use linux::{Predecessor, Successor, be_ready};

/// Returns why the process cannot be upgraded, if it cannot.
pub(super) fn prevented() -> Option<&'static str> {
    #[cfg(target_os = "linux")]
    {
        ancestors::end_with(std::process::id())
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// What a process knows that its successor would have to find out.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Knowledge {
    /// The servers of each service, with checks and `gateway ctl drain`.
    pub(super) servers: BTreeMap<String, Vec<ServerStatus>>,
    /// The servers of clients, whose sessions may go on in the old process.
    pub(super) clients: Vec<Remembered>,
    /// The servers that an administrator has drained, also those that no service has.
    pub(super) drained: Vec<String>,
    /// The number after which the sessions of each service are numbered.
    pub(super) numbers: BTreeMap<String, u64>,
    pub(super) counters: Counters,
}

/// Finds out whether the processes above this one end with it.
#[cfg(target_os = "linux")]
mod ancestors {
    use std::fs;

    /// Programs that run for as long as the machine or the container, whatever becomes of the processes that they start.
    const LASTING: [&str; 2] = ["systemd", "init"];
    /// Programs that are likely to wait for the program that they start, and to end with it.
    const WAITING: [&str; 6] = ["sh", "bash", "dash", "ash", "busybox", "ksh"];

    /// Returns why the end of this process would be that of its container, if it would.
    pub(super) fn end_with(process: u32) -> Option<&'static str> {
        end_with_of(process, parent_of)
    }

    /// A process and those above it, whose names and parents `parent_of` returns.
    pub(super) fn end_with_of(
        process: u32,
        parent_of: impl Fn(u32) -> Option<(String, u32)>,
    ) -> Option<&'static str> {
        if process == 1 {
            return Some("it is PID 1 of its container, which stops when it exits");
        }
        let (_, mut above) = parent_of(process)?;
        loop {
            if above == 0 {
                // The parent is outside of the container.
                return Some("it is the main process of its container, which stops when it exits");
            }
            let (name, parent) = parent_of(above)?;
            if above == 1 {
                let lasts = LASTING.contains(&name.as_str());
                return (!lasts).then_some(
                    "the init of its container waits for it, and the container stops when it exits",
                );
            }
            if !WAITING.contains(&name.as_str()) {
                return None;
            }
            above = parent;
        }
    }

    /// Returns the name of a process, and its parent.
    fn parent_of(process: u32) -> Option<(String, u32)> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name is in brackets, and may have brackets and spaces.
        let (before, after) = stat.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let parent = after.split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some((name.to_owned(), parent))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_container_ends_with_what_its_init_waits_for() {
            let ends = |names: &'static [&'static str]| {
                // The first one is the init, and each one is the parent of the next.
                let parent_of = move |process: u32| {
                    let name = names.get(process as usize - 1)?;
                    Some(((*name).to_owned(), process - 1))
                };
                end_with_of(names.len() as u32, parent_of).is_some()
            };
            for names in [
                &["smbdirect"][..],
                &["tini", "smbdirect"],
                &["docker-init", "smbdirect"],
                &["bash", "smbdirect"],
                &["dumb-init", "sh", "smbdirect"],
                &["sh", "bash", "smbdirect"],
            ] {
                assert!(ends(names), "{names:?}");
            }
            for names in [
                &["systemd", "smbdirect"][..],
                &["init", "sh", "smbdirect"],
                &["tini", "supervisord", "smbdirect"],
                &["systemd", "sshd", "bash", "smbdirect"],
            ] {
                assert!(!ends(names), "{names:?}");
            }
            let outside = |process| (process == 7).then(|| ("smbdirect".to_owned(), 0));
            assert!(end_with_of(7, outside).is_some());
            assert_eq!(
                parent_of(std::process::id()).unwrap().1,
                std::os::unix::process::parent_id()
            );
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        env,
        os::{fd::OwnedFd, unix::net},
        process::{self, Command},
        time::Duration,
    };

    use anyhow::{Context, Result, bail};
    use command_fds::{CommandFdExt, FdMapping};
    use rustix::process::{Pid, Signal, kill_process, kill_process_group};
    use tokio::{
        io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Take},
        net::UnixStream,
        time::{sleep, timeout},
    };
    use tracing::warn;

    use super::Knowledge;
    use crate::{
        signals::holding_requests,
        systemd::{self, PREDECESSOR, Passed, State},
    };

    /// The stream to the process that this one has succeeded, which ends with that process.
    pub(in super::super) struct Predecessor(Take<BufReader<UnixStream>>);

    impl Predecessor {
        /// Waits until the other process has ended.
        pub(in super::super) async fn ended(mut self) {
            let mut rest = [0; 64];
            self.0.set_limit(u64::MAX);
            while matches!(self.0.read(&mut rest).await, Ok(read) if read > 0) {}
        }
    }

    /// Longest time that the new process may take to be ready.
    const READY_TIMEOUT: Duration = Duration::from_secs(30);
    /// Time in which a new process that gives up may say why.
    const LAST_WORDS_TIME: Duration = Duration::from_secs(2);
    /// The variable of the process that starts the new one and ends. So the new process is a child of the service manager,
    /// which otherwise would not be told of its end.
    const STARTER: &str = "SMBDIRECT_GATEWAY_STARTER";
    /// The descriptor of the first passed socket.
    const FIRST_DESCRIPTOR: i32 = 3;
    const GO: &str = "go\n";
    /// Maximum number of bytes of the line in which the new process learns what the old one knows. Each of 65,536 clients
    /// has a hundred.
    const MAX_KNOWLEDGE_BYTES: u64 = 64 << 20;

    /// The process that is to take the place of this one, and is ready.
    pub(in super::super) struct Successor {
        pub(in super::super) id: i32,
        stream: BufReader<UnixStream>,
        group: Group,
    }

    /// The processes that come of an upgrade. A drop kills them, unless they are to serve.
    struct Group(Option<Pid>);

    impl Drop for Group {
        fn drop(&mut self) {
            if let Some(group) = self.0 {
                // There may be none any more.
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
    }

    impl Successor {
        /// Starts the program of this process again, with these sockets, and waits until it is ready. Dropping the future
        /// ends the new process.
        ///
        /// # Errors
        /// The new process cannot be started, has ended, or is not ready in time.
        pub(in super::super) async fn start(sockets: Vec<Passed>) -> Result<Self> {
            let (own, other) = net::UnixStream::pair()?;
            own.set_nonblocking(true)?;
            let mut passed: Vec<(String, OwnedFd)> = sockets
                .into_iter()
                .map(|Passed { name, socket }| (name, socket.into()))
                .collect();
            passed.push((PREDECESSOR.into(), other.into()));
            let mut command = tokio::process::Command::from(again(passed)?);
            // All processes that come of it, so that they can be ended.
            command.process_group(0);
            let starter = holding_requests(|| command.spawn());
            let mut starter = starter.context("the program cannot be started")?;
            // It has the other end of the stream.
            drop(command);
            let group = starter
                .id()
                .and_then(|id| Pid::from_raw(id.try_into().ok()?));
            let group = Group(group);
            let ready = async {
                let status = starter.wait().await?;
                if !status.success() {
                    bail!("the new process has ended: {status}");
                }
                let mut stream = BufReader::new(UnixStream::from_std(own)?);
                let mut line = String::new();
                stream.read_line(&mut line).await?;
                let id = line.strip_prefix("ready ").map(str::trim_end);
                let id = id.and_then(|id| id.parse().ok());
                let id = id.context("the new process has ended before it was ready")?;
                Ok((id, stream))
            };
            let ready = timeout(READY_TIMEOUT, ready).await;
            let (id, stream) = match ready {
                Ok(Ok(ready)) => ready,
                Ok(Err(error)) => {
                    // It says why it ends.
                    tokio::spawn(async move {
                        sleep(LAST_WORDS_TIME).await;
                        drop(group);
                    });
                    return Err(error);
                }
                Err(_) => {
                    let limit = READY_TIMEOUT.as_secs();
                    bail!("the new process was not ready within {limit} s, and is ended");
                }
            };
            Ok(Self { id, stream, group })
        }

        /// Has the new process serve, with what this one knows.
        ///
        /// # Errors
        /// The other process has ended, or does not read.
        pub(in super::super) async fn take_over(&mut self, knowledge: &Knowledge) -> Result<()> {
            let line = format!("{}\n", serde_json::to_string(knowledge)?);
            let stream = self.stream.get_mut();
            let told = timeout(READY_TIMEOUT, stream.write_all(line.as_bytes())).await;
            told.context("the new process does not read")?
                .context("the new process has ended")?;
            // Before the new process reports anything, because the service manager listens to the main process only.
            systemd::notify(State::Succeeded(self.id.unsigned_abs()));
            let wrote = stream.write_all(GO.as_bytes()).await;
            wrote.context("the new process has ended")?;
            self.group.0 = None;
            Ok(())
        }

        /// Has the new process read its settings again.
        pub(in super::super) fn reload(&self) {
            if let Some(id) = Pid::from_raw(self.id) {
                // A process that has ended has no settings.
                let _ = kill_process(id, Signal::HUP);
            }
        }
    }

    /// Returns the command that starts this program again, by the path by which it was started.
    fn again(passed: Vec<(String, OwnedFd)>) -> Result<Command> {
        let mut arguments = env::args_os();
        let program = arguments.next().context("the program has no name")?;
        let (names, descriptors): (Vec<_>, Vec<_>) = passed.into_iter().unzip();
        let mappings = descriptors.into_iter().zip(FIRST_DESCRIPTOR..);
        let mappings = mappings.map(|(parent_fd, child_fd)| FdMapping {
            parent_fd,
            child_fd,
        });
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env(STARTER, "1")
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            // They are for this process only.
            .env_remove("LISTEN_PID")
            .env_remove("WATCHDOG_PID")
            .fd_mappings(mappings.collect())?;
        Ok(command)
    }

    /// Starts the new process, if this is the process for that.
    pub(crate) fn start_new_process() -> Option<Result<u8>> {
        env::var_os(STARTER)?;
        let mut arguments = env::args_os();
        let mut command = Command::new(arguments.next()?);
        let started = command.args(arguments).env_remove(STARTER).spawn();
        Some(started.map(|_| 0).context("the program cannot be started"))
    }

    /// Tells the process that this one is to succeed that it is ready, and waits until it is to serve. Returns what the
    /// other process knows.
    ///
    /// # Errors
    /// The other process goes on.
    pub(in super::super) async fn be_ready(
        predecessor: net::UnixStream,
    ) -> Result<(Knowledge, Predecessor)> {
        predecessor.set_nonblocking(true)?;
        let mut stream = UnixStream::from_std(predecessor)?;
        let ready = format!("ready {}\n", process::id());
        stream.write_all(ready.as_bytes()).await?;
        let (mut known, mut go) = (String::new(), String::new());
        let mut stream = BufReader::new(stream).take(MAX_KNOWLEDGE_BYTES);
        stream.read_line(&mut known).await?;
        stream.read_line(&mut go).await?;
        if go != GO {
            bail!("the upgrade was given up, so the process that this one was to succeed goes on");
        }
        let knowledge = serde_json::from_str(&known).unwrap_or_else(|error| {
            // It ends now, so this one has to serve.
            warn!(
                "what the earlier process knows of servers and clients was not understood: {error}"
            );
            Knowledge::default()
        });
        Ok((knowledge, Predecessor(stream)))
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) enum Predecessor {}

#[cfg(not(target_os = "linux"))]
impl Predecessor {
    pub(super) async fn ended(self) {
        match self {}
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) struct Successor {
    pub(super) id: i32,
}

#[cfg(not(target_os = "linux"))]
impl Successor {
    pub(super) async fn start(_: Vec<crate::systemd::Passed>) -> Result<Self> {
        anyhow::bail!("upgrades are for Linux")
    }

    pub(super) async fn take_over(&mut self, _: &Knowledge) -> Result<()> {
        Ok(())
    }

    pub(super) fn reload(&self) {}
}
