//! Asks a running command for its status, over HTTP.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use smbdirect_transport::ResolveError;
use tokio::{task::JoinSet, time::timeout};

use crate::{
    failure::{Kind, OfKind},
    metrics::Status,
    options::Address,
    transport,
};

/// Longest time for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of an answer, enough for tens of thousands of connections.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// Returns the status of the command whose `--metrics` is `address`.
///
/// # Errors
/// The reason, and what to try.
pub(super) async fn status(address: &Address, default_port: u16) -> Result<Status> {
    let stream = transport::connect_tcp(address, default_port, ANSWER_TIMEOUT)
        .await
        .map_err(|error| match error.downcast::<ResolveError>() {
            Ok(unknown_name) => unknown_name.into(),
            Err(error) => {
                anyhow!("{error:#}; the server is a gateway or listener with --metrics ADDR")
            }
        })
        .of_kind(Kind::Connect)?;
    let asking = timeout(ANSWER_TIMEOUT, ask(stream, address));
    let Ok(answer) = asking.await else {
        bail!("{address} does not answer; is it the address of --metrics?");
    };
    let answer = answer.with_context(|| not_metrics(address))?;
    serde_json::from_slice(&answer).map_err(|error| {
        anyhow!(
            "{}: {error}; versions of the two programs may differ",
            not_metrics(address)
        )
    })
}

fn not_metrics(address: &Address) -> String {
    format!("{address} is not the address of --metrics")
}

async fn ask(stream: tokio::net::TcpStream, address: &Address) -> Result<Bytes> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Aborted when the answer is complete.
    let mut task = JoinSet::new();
    task.spawn(async move {
        let _ = connection.await;
    });
    let request = Request::get("/status")
        .header(HOST, address.to_string())
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    if !response.status().is_success() {
        bail!("HTTP status {}", response.status());
    }
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
    let body = body.collect().await.map_err(|error| anyhow!(error))?;
    Ok(body.to_bytes())
}
