//! Starts the far end of a bench as a thread or a child process, finds one elsewhere, or serves as
//! one.

use std::{
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use serde::Serialize;

use smbdirect_bench::{Cores, EndSettings, InProcess, Near, serve_orders, start_far_thread};

use super::options::Bench;
use crate::{
    failure::{Kind, OfKind},
    options::Address,
    report::{self, Report},
    signals, transport,
};

/// Default port for orders.
const PORT: u16 = 5446;
/// Longest time for connecting to the far end.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Listening { address: SocketAddr },
    Bench { address: SocketAddr },
    Kind { error: Option<String> },
}

/// The far end of the bench that runs here.
pub(crate) struct Far {
    address: SocketAddr,
    in_process: Option<Arc<InProcess>>,
    child: Option<Child>,
}

impl Far {
    /// Starts a thread or a process, or resolves the address of a far end elsewhere.
    ///
    /// # Errors
    /// The server does not start, or the address is unknown.
    pub(crate) fn start(bench: &Bench, setting: &EndSettings) -> Result<Self> {
        let far = |address, in_process, child| Self {
            address,
            in_process,
            child,
        };
        match (&bench.address, bench.processes) {
            (Some(address), _) => Ok(far(resolve(address)?, None, None)),
            (None, 1) => {
                let (address, shared) = start_far_thread(setting)?;
                Ok(far(address, Some(shared), None))
            }
            (None, _) => {
                let (child, address) = start_child()?;
                Ok(far(address, None, Some(child)))
            }
        }
    }

    /// Connects the near end to it.
    pub(crate) fn near(&mut self, setting: EndSettings) -> Result<Near> {
        let address = self.address;
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
            .map_err(|error| {
                anyhow!(
                    "{address} cannot be reached: {}; does `smbdirect bench --serve` run there?",
                    report::plain(&error)
                )
            })
            .of_kind(Kind::Connect)?;
        let in_process = self.in_process.clone();
        Near::new(
            stream,
            EndSettings {
                in_process,
                ..setting
            },
        )
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The child ends by itself when its orders end, unless it is stuck.
            let started = Instant::now();
            while matches!(child.try_wait(), Ok(None)) && started.elapsed() < CHILD_EXIT_TIMEOUT {
                thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Longest time for the child process to end by itself.
const CHILD_EXIT_TIMEOUT: Duration = Duration::from_millis(500);

fn start_child() -> Result<(Child, SocketAddr)> {
    let program = std::env::current_exe().context("the path of this program is unknown")?;
    let mut command = Command::new(program);
    command
        .args(["bench", "--serve", "127.0.0.1:0", "--once"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    // A signal from the terminal is for the near end, which may want to finish.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command
        .spawn()
        .context("the other process does not start")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let address = line.trim_end().strip_prefix("listening on ");
    let address = address.and_then(|address| address.parse().ok());
    let address = address.context("the other process does not listen")?;
    Ok((child, address))
}

fn resolve(address: &Address) -> Result<SocketAddr> {
    let port = address.port.unwrap_or(PORT);
    let host = address.host.as_str();
    let mut found = (host, port)
        .to_socket_addrs()
        .map_err(|error| anyhow!("`{host}` has no address: {error}; check the name"))?;
    found
        .next()
        .with_context(|| format!("{address} has no addresses"))
}

/// Serves as the far end of one bench at a time, until it is stopped.
///
/// # Errors
/// Listening fails.
pub(crate) async fn run(bench: &Bench, cores: &Cores) -> Result<bool> {
    let report = Report::new(bench.options.json);
    let everywhere = Address {
        host: String::new(),
        port: Some(PORT),
    };
    let address = bench.address.as_ref().unwrap_or(&everywhere);
    let adapters = bench.adapters()?;
    let listener = transport::listen_tcp(address, PORT).await;
    let listener = listener.of_kind(Kind::Listen)?;
    let address = listener.local_addr()?;
    report.line(format_args!("listening on {address}"));
    report.event(&Event::Listening { address });
    let mut interrupted = signals::Interrupted::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => accepted?,
            () = interrupted.wait() => return Ok(true),
        };
        let peer = transport::canonical(peer);
        report.line(format_args!("bench from {peer}"));
        report.event(&Event::Bench { address: peer });
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        // The peer is in another process, so nothing is shared with it.
        let setting = bench.setting(cores, adapters.clone());
        let _awake = bench.keep_awake(cores, &[cores.far()])?;
        let work = tokio::task::spawn_blocking(move || serve_orders(stream, setting));
        let result = tokio::select! {
            result = work => result?,
            // The thread ends with the process.
            () = interrupted.wait() => return Ok(true),
        };
        let error = result.err().map(|error| format!("{error:#}"));
        if let Some(error) = &error {
            report.line(format_args!("{peer}: {}", report.style.bad(error)));
        }
        report.event(&Event::Kind { error });
        if bench.once {
            return Ok(true);
        }
    }
}
