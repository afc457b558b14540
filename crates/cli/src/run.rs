//! `smbdirect run`: the SMB connections of an unchanged program go over SMB Direct.
//!
//! The command starts itself twice and waits for both processes. One becomes the program, with a library that the dynamic
//! linker loads into it. The other is the [`broker`] of the program's connections, in a process group of its own, so that
//! signals of the terminal do not stop or end it.

mod broker;
mod program;
mod relay;

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use nix::sys::{
    signal::{SigSet, Signal as NixSignal},
    signalfd::SignalFd,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};
use smbdirect::Config;

use self::{
    broker::Broker,
    program::{LIBRARY, with_other_libraries},
};
use crate::{
    options::{Address, CommonOptions, ConnectOptions, SMB_MESSAGE_BYTES},
    resources, transport,
};

/// Run a program whose SMB connections go over SMB Direct
///
/// The program is unchanged: its connections to port 445 become SMB Direct connections to the same
/// server, and its other connections stay as they are. It has to be linked with the C library
/// dynamically, so static programs are refused. Data goes in messages, not by RDMA Read and Write.
///
/// Signals to this command reach the program. The exit status is that of the program, or 128 plus the number of
/// the signal that killed it.
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

/// The variable that names the part of a process of this command: [`BROKER`], [`PROGRAM`], or none.
const PART: &str = "SMBDIRECT_RUN_PART";
const BROKER: &str = "broker";
const PROGRAM: &str = "program";

/// The variable by which the program finds the broker.
const SOCKET: &str = "SMBDIRECT_RUN_BROKER";

/// Signals that reach the program.
const FORWARDED: [NixSignal; 9] = [
    NixSignal::SIGHUP,
    NixSignal::SIGINT,
    NixSignal::SIGQUIT,
    NixSignal::SIGUSR1,
    NixSignal::SIGUSR2,
    NixSignal::SIGTERM,
    NixSignal::SIGWINCH,
    NixSignal::SIGCONT,
    NixSignal::SIGTSTP,
];

/// Returns whether this process is the broker of a program, whose stdout it has.
pub(crate) fn is_broker() -> bool {
    env::var_os(PART).is_some_and(|part| part == BROKER)
}

impl Run {
    /// Runs the parts of this command that must not have threads: a signal to a process can be delivered to any of
    /// its threads. Returns `None` in the process that is the broker.
    pub(crate) fn without_threads(&self) -> Option<Result<u8>> {
        match env::var(PART).as_deref() {
            Ok(BROKER) => None,
            Ok(PROGRAM) => Some(self.become_program()),
            _ => Some(self.supervise()),
        }
    }

    /// Starts the broker and the program, and waits for both.
    fn supervise(&self) -> Result<u8> {
        program::check(&self.command[0], &find_library()?)?;
        let signals = Signals::new()?;
        let part = |part: &str| {
            let mut command = Command::new("/proc/self/exe");
            command.args(env::args_os().skip(1)).env(PART, part);
            command
        };
        let mut broker = part(BROKER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("the broker of the program does not start")?;
        let mut socket = String::new();
        let mut output = BufReader::new(broker.stdout.take().expect("the output is a pipe"));
        output.read_line(&mut socket)?;
        if socket.is_empty() {
            // The broker has reported the reason.
            return Ok(exit_code(broker.wait()?));
        }
        let program = part(PROGRAM).env(SOCKET, socket.trim_end()).spawn();
        let status = program.and_then(|program| signals.wait_for(program));
        drop(signals);
        // The end of file on this pipe means that the program has ended. The broker delivers what the program has
        // written.
        drop(broker.stdin.take());
        broker.wait()?;
        Ok(exit_code(status?))
    }

    /// Replaces this process by the program. Signals that arrive before that end this process, as they would end the
    /// program.
    fn become_program(&self) -> Result<u8> {
        program::forbid_tcp(&self.port);
        passed_signals().thread_unblock()?;
        let ports: Vec<_> = self.port.iter().map(u16::to_string).collect();
        let error = Command::new(&self.command[0])
            .args(&self.command[1..])
            .env("LD_PRELOAD", with_other_libraries(&find_library()?))
            .env("SMBDIRECT_RUN_PORTS", ports.join(","))
            .env_remove(PART)
            .exec();
        let name = self.command[0].display();
        Err(anyhow!("{name} does not start: {error}"))
    }

    /// Runs the broker until the program has ended.
    pub(crate) async fn run(self) -> Result<u8> {
        resources::raise_open_files();
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
        let (rdma, _capture) = transport::one_end(&self.options, Some(&self.connect), &any)?;
        let folder = tempfile::Builder::new()
            .prefix("smbdirect-run-")
            .tempdir()
            .context("cannot create a temporary folder for the program's socket")?;
        let provider = rdma.provider().clone();
        let socket = folder.path().join("broker");
        let port = self
            .direct_port
            .unwrap_or_else(|| provider.attributes().default_port);
        let broker = Broker::new(&socket, provider, port, config)
            .with_context(|| format!("cannot create a socket at {}", socket.display()))?;
        writeln!(io::stdout(), "{}", socket.display())?;
        let program_end = tokio::task::spawn_blocking(|| io::stdin().read(&mut [0]));
        broker
            .serve(async {
                // Any result is the end of the process that would write to the pipe.
                let _ = program_end.await;
            })
            .await;
        Ok(0)
    }
}

/// Returns the signals that pass to the program, and the signal of its end.
fn passed_signals() -> SigSet {
    let mut signals: SigSet = FORWARDED.into_iter().collect();
    signals.add(NixSignal::SIGCHLD);
    signals
}

/// The signals that this process passes to the program. They are blocked while this value exists. Their
/// dispositions do not change, so the program inherits those that this process had.
struct Signals(SignalFd);

impl Signals {
    fn new() -> Result<Self> {
        let signals = passed_signals();
        // Blocked before the program starts, so that none is lost.
        signals.thread_block()?;
        Ok(Self(SignalFd::new(&signals)?))
    }

    /// Passes signals until the program has ended.
    fn wait_for(&self, mut program: Child) -> io::Result<ExitStatus> {
        let pid = Pid::from_child(&program);
        loop {
            if let Some(status) = program.try_wait()? {
                return Ok(status);
            }
            let Some(arrival) = self.0.read_signal()? else {
                continue;
            };
            let signal = i32::try_from(arrival.ssi_signo).ok();
            let signal = signal.and_then(Signal::from_named_raw);
            match signal {
                Some(Signal::CHILD) => stop_with(pid),
                // The kernel sends the signals of a terminal to the program, too.
                Some(signal) if arrival.ssi_code <= 0 => {
                    // A program that has just ended needs no signal.
                    let _ = kill_process(pid, signal);
                }
                _ => {}
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // A signal that arrives while the last bytes leave ends this process.
        let _ = passed_signals().thread_unblock();
    }
}

/// Stops this process if the terminal has stopped the program, so that the shell takes the terminal back.
fn stop_with(program: Pid) {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    let Ok(Some(status)) = waitid(WaitId::Pid(program), options) else {
        return;
    };
    let signal = status.stopping_signal().and_then(Signal::from_named_raw);
    let by_terminal = matches!(signal, Some(Signal::TSTP | Signal::TTIN | Signal::TTOU));
    // Without a terminal there is no shell that would continue both processes.
    if by_terminal && fs::File::open("/dev/tty").is_ok() {
        // A process may send itself any signal.
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

/// Finds the library next to the command, or where packages install it.
fn find_library() -> Result<PathBuf> {
    if let Some(path) = env::var_os("SMBDIRECT_PRELOAD") {
        return fs::canonicalize(&path)
            .with_context(|| format!("SMBDIRECT_PRELOAD is {}", path.display()));
    }
    let command = env::current_exe().context("the path of this command is unknown")?;
    let command = fs::canonicalize(&command).unwrap_or(command);
    let folder = command.parent().unwrap_or_else(|| Path::new("/"));
    let places = [
        folder.join(LIBRARY),
        folder.join("../lib/smbdirect").join(LIBRARY),
    ];
    let found = places.iter().find_map(|place| fs::canonicalize(place).ok());
    found.ok_or_else(|| {
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
