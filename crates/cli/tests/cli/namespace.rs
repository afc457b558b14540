//! Network namespaces, in which all ports are free.

use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::support::PROGRAM;

/// A network namespace. Dropping it removes the namespace.
pub(crate) struct Namespace(String);

impl Namespace {
    /// Makes one whose loopback interface has the given MTU, or returns `None` if that is not possible here.
    pub(crate) fn new(mtu: usize) -> Option<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let namespace = Self(format!("smbd-{}-{number}", std::process::id()));
        let made = ip(&["netns", "add", &namespace.0]) && namespace.set_mtu(mtu);
        made.then_some(namespace)
    }

    pub(crate) fn set_mtu(&self, mtu: usize) -> bool {
        let mtu = mtu.to_string();
        ip(&["-n", &self.0, "link", "set", "lo", "up", "mtu", &mtu])
    }

    /// Returns a command that runs in it.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.0, program])
            .stdin(Stdio::null());
        command
    }

    /// Returns this command, as [`support::command`](crate::support::command) does.
    pub(crate) fn smbdirect(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(PROGRAM);
        command
            .args(arguments)
            .env_remove("NO_COLOR")
            .env_remove("RUST_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> bool {
    let output = Command::new("ip").args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
