//! Asks a running command over HTTP.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Method, Request, StatusCode, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use smbdirect_transport::{ResolveError, connect_tcp};
use tokio::{task::JoinSet, time::timeout};

use super::{DEFAULT_PORT, endpoint::Endpoint, socket::Connection};
use crate::failure::{Kind, OfKind};

/// Longest time for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of an answer, enough for tens of thousands of connections.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// Returns the status and the body of the answer of the command that serves at `endpoint`, which option `what` of it
/// names.
///
/// # Errors
/// The reason, and what to try.
pub(crate) async fn ask(
    endpoint: &Endpoint,
    method: Method,
    path: &str,
    what: &str,
) -> Result<(StatusCode, Bytes)> {
    let stream = connect(endpoint, what).await.of_kind(Kind::Connect)?;
    let asking = timeout(ANSWER_TIMEOUT, exchange(stream, endpoint, method, path));
    let Ok(answer) = asking.await else {
        bail!("{endpoint} does not answer; is it the address of {what}?");
    };
    answer.with_context(|| format!("{endpoint} is not the address of {what}"))
}

async fn connect(endpoint: &Endpoint, what: &str) -> Result<Box<dyn Connection>> {
    match endpoint {
        Endpoint::Address(address) => {
            let stream = connect_tcp(address, DEFAULT_PORT, ANSWER_TIMEOUT).await;
            let explained = stream.map_err(|error| match error.downcast::<ResolveError>() {
                Ok(unknown_name) => unknown_name.into(),
                Err(error) => {
                    anyhow!("{error:#}; the server is a gateway or listener with {what} ADDR")
                }
            });
            Ok(Box::new(explained?))
        }
        #[cfg(unix)]
        Endpoint::Path(path) => {
            let stream = tokio::net::UnixStream::connect(path).await.map_err(|error| {
                let why = crate::report::plain(&error);
                anyhow!("{endpoint}: {why}; the server is a gateway with {what} {endpoint}, of the same user or root")
            });
            Ok(Box::new(stream?))
        }
        #[cfg(not(unix))]
        Endpoint::Path(_) => bail!("sockets with a path are for Unix"),
    }
}

async fn exchange(
    stream: Box<dyn Connection>,
    endpoint: &Endpoint,
    method: Method,
    path: &str,
) -> Result<(StatusCode, Bytes)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Aborted when the answer is complete.
    let mut task = JoinSet::new();
    task.spawn(async move {
        let _ = connection.await;
    });
    let host = match endpoint {
        Endpoint::Address(address) => address.to_string(),
        Endpoint::Path(_) => "localhost".into(),
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, host)
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
    let body = body.collect().await.map_err(|error| anyhow!(error))?;
    Ok((status, body.to_bytes()))
}
