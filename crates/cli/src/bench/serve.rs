//! The far end of a bench: a thread, one elsewhere, or this process.

use std::{
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Result, anyhow};
use serde::Serialize;

use smbdirect_bench::{Cores, EndSettings, Near, serve_orders, start_far_thread};

use super::options::Bench;
use crate::{
    failure::{Kind, OfKind},
    options::Address,
    report::Report,
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

/// Connects to a far end elsewhere.
///
/// # Errors
/// It cannot be reached.
pub(super) async fn connect(address: &Address) -> Result<TcpStream> {
    let connected = transport::connect_tcp(address, PORT, CONNECT_TIMEOUT).await;
    let stream = connected
        .map_err(|error| anyhow!("{error:#}; does `smbdirect bench --serve` run there?"))
        .of_kind(Kind::Connect)?;
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Starts the near end, with the far end behind `stream`, or with one in a thread.
///
/// # Errors
/// An end does not start.
pub(super) fn near(stream: Option<TcpStream>, mut setting: EndSettings) -> Result<Near> {
    let stream = match stream {
        Some(stream) => stream,
        None => {
            let (address, shared) = start_far_thread(&setting)?;
            setting.in_process = Some(shared);
            TcpStream::connect(address)?
        }
    };
    Near::new(stream, setting)
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
