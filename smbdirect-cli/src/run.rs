//! `smbdirect run`: the SMB connections of an unchanged program go over SMB Direct.
//!
//! The command starts the program with a library that the dynamic linker loads into it, and is the
//! [`broker`] of its connections.

mod broker;

use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use smbdirect::Config;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::timeout,
};
use tracing::warn;

use self::broker::Broker;
use crate::{
    options::{Address, CommonOptions, ConnectOptions, SMB_MESSAGE_BYTES},
    transport,
};

/// Run a program whose SMB connections go over SMB Direct
///
/// The program is unchanged: its connections to port 445 become SMB Direct connections to the same
/// server, and its other connections stay as they are. It has to be linked with the C library
/// dynamically, so programs in Go and static programs keep TCP. Data goes in messages, not by RDMA
/// Read and Write.
///
/// The exit status is that of the program, and 128 plus the signal if a signal killed it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// Ports whose connections go over SMB Direct
    #[arg(
        long,
        value_name = "PORT",
        value_delimiter = ',',
        default_value = "445"
    )]
    port: Vec<u16>,

    /// Port of SMB Direct at the server [default: 5445 for iWARP, otherwise 445]
    #[arg(long, value_name = "PORT")]
    direct_port: Option<u16>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    #[command(flatten)]
    connect: ConnectOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect run -- smbclient //fileserver/share -U user
  smbdirect run --direct-port 5446 -- python3 backup.py
  smbdirect run -v -- smbclient -L fileserver     says when a connection is made, and how it ends";

/// Longest time after the end of the program in which its connections close.
const LAST_FRAMES_TIMEOUT: Duration = Duration::from_secs(5);

/// Name of the library that is loaded into the program.
const LIBRARY: &str = "libsmbdirect_preload.so";

impl Run {
    pub(crate) async fn run(self) -> Result<u8> {
        let library = find_library()?;
        let mut settings = self
            .options
            .config(Some(&self.connect), None)?
            .into_settings();
        if self.options.is_default_fragmented_size() {
            settings.max_fragmented_receive_size = SMB_MESSAGE_BYTES;
        }
        let config = Config::new(settings)?;
        let any = Address {
            host: String::new(),
            port: self.direct_port,
        };
        let (provider, _capture) = transport::one_end(&self.options, Some(&self.connect), &any)?;
        let folder = tempfile::Builder::new()
            .prefix("smbdirect-run-")
            .tempdir()
            .context("no folder for the socket of the program")?;
        let socket = folder.path().join("broker");
        let port = self.direct_port.unwrap_or_else(|| provider.default_port());
        let broker = Broker::new(&socket, provider, port, config)
            .with_context(|| format!("no socket at {}", socket.display()))?;
        let connections = broker.connections();
        let serving = tokio::spawn(broker.serve());
        let status = self.program(&library, &socket).await;
        serving.abort();
        // The last frames of the program may still be in its socket, as TCP's would be in the kernel.
        if timeout(LAST_FRAMES_TIMEOUT, connections.all_ended())
            .await
            .is_err()
        {
            warn!("connections that the program has left open are cut off");
        }
        Ok(exit_code(status?))
    }

    /// Runs the program to its end.
    async fn program(&self, library: &Path, broker: &Path) -> Result<ExitStatus> {
        let ports: Vec<_> = self.port.iter().map(u16::to_string).collect();
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .env("LD_PRELOAD", with_other_libraries(library))
            .env("SMBDIRECT_RUN_BROKER", broker)
            .env("SMBDIRECT_RUN_PORTS", ports.join(","));
        // The handlers are set before the program starts, so that no signal is lost. The terminal sends
        // an interrupt to the program, too, which decides what it means.
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let name = self.command[0].display().to_string();
        let mut child = command
            .spawn()
            .map_err(|error| anyhow!("{name} does not start: {error}"))?;
        let pid = Pid::from_child(&child);
        let mut ending = tokio::task::spawn_blocking(move || child.wait());
        loop {
            tokio::select! {
                status = &mut ending => return Ok(status??),
                _ = interrupt.recv() => {}
                // A program that has ended in this moment needs no signal.
                _ = terminate.recv() => drop(kill_process(pid, Signal::TERM)),
            }
        }
    }
}

/// Returns the libraries to load: ours, and those that the environment names already.
fn with_other_libraries(library: &Path) -> OsString {
    let mut libraries = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    libraries
}

/// Finds the library next to the command, or where packages install it.
fn find_library() -> Result<PathBuf> {
    if let Some(path) = env::var_os("SMBDIRECT_PRELOAD") {
        return Ok(path.into());
    }
    let command = env::current_exe().context("the path of this command is unknown")?;
    let command = fs::canonicalize(&command).unwrap_or(command);
    let folder = command.parent().unwrap_or_else(|| Path::new("/"));
    let places = [
        folder.join(LIBRARY),
        folder.join("../lib/smbdirect").join(LIBRARY),
    ];
    let found = places.iter().find(|place| place.exists());
    found.cloned().ok_or_else(|| {
        anyhow!(
            "{LIBRARY} is missing: it was looked for at {} and {}; build it with `cargo build --release \
             -p smbdirect-preload`, or set SMBDIRECT_PRELOAD to its path",
            places[0].display(),
            places[1].display()
        )
    })
}

/// Returns the exit status as shells do.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
