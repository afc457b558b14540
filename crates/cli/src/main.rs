//! The `smbdirect` command: SMB Direct for people and scripts.
//!
//! Each command has a file: [`demo`], [`listen`], [`ping`], [`bench`], [`check`], [`gateway`],
//! `run`, [`smb`] (`get`, `put`, `ls`), [`top`], [`conform`], [`decode`],
//! [`devices`]. They share [`options`] (the command line), [`transport`] (connecting, and why it
//! failed), [`metrics`] (figures over HTTP), [`password`],
//! [`report`] (output), [`streams`] (who writes it), [`panics`], [`signals`] and [`pcap`] (captures).
//!
//! The exit status is 0 if the command did what was asked, 1 if it did not, and 2 if the command
//! line asks for something impossible, or `check` could not find out.
#![forbid(unsafe_code)]

mod assets;
mod bench;
mod check;
mod conform;
mod decode;
mod demo;
mod devices;
mod failure;
mod gateway;
mod help;
#[cfg(target_os = "linux")]
mod journal;
mod listen;
mod login;
mod metrics;
mod options;
mod panics;
mod password;
mod pcap;
mod ping;
mod report;
mod resources;
#[cfg(target_os = "linux")]
mod run;
mod signals;
mod smb;
mod streams;
mod systemd;
#[cfg(feature = "top")]
mod top;
mod transport;

use std::{
    env,
    process::{self, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tokio::runtime;

use failure::UsageError;

/// SMB Direct in user space: serve and use SMB over RDMA, check, decode, measure.
#[derive(Debug, Parser)]
#[command(name = "smbdirect", version, propagate_version = true, after_help = EXAMPLES)]
#[command(arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Listen(listen::Listen),
    Ping(ping::Ping),
    Bench(Box<bench::Bench>),
    Check(check::Check),
    Gateway(Box<gateway::Gateway>),
    #[cfg(target_os = "linux")]
    Run(run::Run),
    Get(Box<smb::Get>),
    Put(Box<smb::Put>),
    #[command(name = "ls")]
    List(Box<smb::List>),
    #[cfg(feature = "top")]
    Top(top::Top),
    Conform(Box<conform::Conform>),
    Decode(decode::Decode),
    Devices(devices::Devices),
    Completions(assets::Completions),
    #[command(hide = true)]
    Assets(assets::Assets),
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect demo                        both ends on this machine
  smbdirect listen --echo               a peer to try others with
  smbdirect ping HOST                   is there SMB Direct, and how far away?
  smbdirect bench                       how fast, compared with plain TCP
  smbdirect check //HOST/SHARE          does SMB Direct work, and is it used?
  smbdirect gateway :5445 fileserver    for a server that has only TCP
  smbdirect run -- smbclient //HOST/S   SMB Direct for an unchanged program
  smbdirect top                         connections of a running gateway
  smbdirect get //HOST/SHARE/PATH       a file of a server; put stores, ls lists
  smbdirect conform HOST                does it keep the rules?
  smbdirect decode traffic.pcap         messages, and which rules they break
  smbdirect devices                     what this machine has for RDMA";

impl Command {
    /// Returns how often `-v` was given, and whether failures are printed as JSON too. Nothing is printed to the stdout of
    /// a program of `run`.
    fn switches(&self) -> (u8, bool) {
        let options = match self {
            Self::Demo(command) => &command.options,
            Self::Listen(command) => &command.options,
            Self::Ping(command) => &command.options,
            Self::Bench(command) => &command.options,
            Self::Get(command) => &command.options.common,
            Self::Put(command) => &command.options.common,
            Self::List(command) => &command.options.common,
            Self::Conform(command) => &command.options,
            Self::Gateway(command) => return (command.options.verbose, command.json()),
            #[cfg(target_os = "linux")]
            Self::Run(run::Run { options, .. }) => {
                return (options.verbose, options.json && !run::is_broker());
            }
            #[cfg(feature = "top")]
            Self::Top(command) => return (command.verbose, command.json),
            Self::Check(command) => return (command.verbose, command.json),
            Self::Decode(command) => return (command.verbose, command.json),
            Self::Devices(command) => return (command.verbose, command.json),
            Self::Completions(_) | Self::Assets(_) => return (0, false),
        };
        (options.verbose, options.json)
    }

    /// Returns whether the command serves others until a signal ends it, so that it must not wait for the reader of its
    /// output.
    fn is_service(&self) -> bool {
        match self {
            Self::Gateway(command) => command.is_service(),
            Self::Listen(_) => true,
            _ => false,
        }
    }

    /// Runs the command. Returns the exit status.
    async fn run(self) -> Result<u8> {
        let done = match self {
            Self::Demo(command) => command.run().await,
            Self::Listen(command) => command.run().await,
            Self::Ping(command) => command.run().await,
            Self::Bench(command) => command.run().await,
            // It has a third exit status, for a question that it could not answer.
            Self::Check(command) => return command.run().await,
            Self::Gateway(command) => command.run().await,
            Self::Get(command) => command.run().await,
            Self::Put(command) => command.run().await,
            Self::List(command) => command.run().await,
            #[cfg(feature = "top")]
            Self::Top(command) => command.run().await,
            // The exit status is that of the program.
            #[cfg(target_os = "linux")]
            Self::Run(command) => return command.run().await,
            Self::Conform(command) => command.run().await,
            Self::Decode(command) => command.run(),
            Self::Devices(command) => command.run(),
            Self::Completions(command) => command.run(command_line()),
            Self::Assets(command) => command.run(command_line()),
        };
        done.map(|done| u8::from(!done))
    }
}

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if env::args_os().nth(1).is_some_and(|name| name == "gateway") {
        signals::hold_requests();
    }
    let command = parse();
    let (verbosity, json) = command.switches();
    report::set_json(json);
    panics::install();
    let queued = if command.is_service() {
        streams::start_queue(report::lines_lost).context("the program cannot start a thread")
    } else {
        Ok(())
    };
    options::start_tracing(verbosity);
    let result = queued.and_then(|()| run(command));
    let result = result.and_then(|done| report::written().map(|()| done));
    let captured = pcap::complete();
    if let Err(error) = &captured {
        report::error(error);
    }
    let status = match result {
        Ok(0) if captured.is_err() => 1,
        Ok(status) => status,
        Err(error) => {
            report::error(&error);
            let usage = error.downcast_ref::<UsageError>().is_some();
            if usage { 2 } else { 1 }
        }
    };
    streams::finish();
    ExitCode::from(status)
}

/// Returns the whole command line, with its help.
fn command_line() -> clap::Command {
    help::arrange(Cli::command())
}

/// Parses the arguments. Help, versions and errors end the process.
fn parse() -> Command {
    let matches = command_line().try_get_matches();
    let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| refuse(&error)).command
}

/// Prints help, versions and errors of the command line, and ends the process.
fn refuse(error: &clap::Error) -> ! {
    let wants_json = || env::args_os().any(|argument| argument == "--json");
    if error.use_stderr() && wants_json() {
        report::error_object(&reason(&error.to_string()), failure::Kind::Usage);
    }
    if error.use_stderr() {
        error.exit()
    }
    // clap itself would lose what stdout does not take.
    let written = report::help(&error.render());
    process::exit(written.inspect_err(report::error).is_err().into())
}

/// Returns the reason in an error of the command line, in one line. Advice and usage come after an empty line.
fn reason(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let lines = text.lines().take_while(|line| !line.is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Runs a command. Returns the exit status: 0 if it did what was asked; if it did not and there is no
/// error, the command has reported the reason.
fn run(command: Command) -> Result<u8> {
    #[cfg(target_os = "linux")]
    if let Command::Run(command) = &command
        && let Some(result) = command.without_threads()
    {
        return result;
    }
    #[cfg(target_os = "linux")]
    if let Command::Gateway(_) = &command
        && let Some(result) = gateway::start_new_process()
    {
        return result;
    }
    let mut runtime = runtime::Builder::new_multi_thread();
    let runtime = panics::while_starting(|| runtime.enable_all().build());
    let runtime = runtime.context("the runtime does not start")?;
    // Threads that write files remove unfinished ones. A disk that hangs is not waited for, nor is a look-up of a name.
    let shutdown_timeout = match command {
        Command::Gateway(_) => Duration::ZERO,
        _ => SHUTDOWN_TIMEOUT,
    };
    let result = runtime.block_on(command.run());
    runtime.shutdown_timeout(shutdown_timeout);
    result
}

/// Longest time that blocking threads may take to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
