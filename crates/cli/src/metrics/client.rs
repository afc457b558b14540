//! Asks a running command over HTTP.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Method, Request, StatusCode, client::conn::http1, header::HOST, http::request::Builder,
};
use hyper_util::rt::TokioIo;
use smbdirect_transport::{Cause, connect_tcp};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
    time::timeout,
};

use super::{DEFAULT_PORT, endpoint::Endpoint};
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
    let request = Request::builder().method(method).uri(path);
    let answer = match endpoint {
        Endpoint::Address(address) => {
            let stream = connect_tcp(address, DEFAULT_PORT, ANSWER_TIMEOUT).await;
            let explained = stream.map_err(|error| match error.cause() {
                Cause::Name => error.into(),
                _ => anyhow!("{error}; the server is a gateway or listener with {what} ADDR"),
            });
            let stream = explained.of_kind(Kind::Connect)?;
            timeout(
                ANSWER_TIMEOUT,
                exchange(stream, request.header(HOST, address.to_string())),
            )
            .await
        }
        #[cfg(unix)]
        Endpoint::Path(socket) => {
            let stream = tokio::net::UnixStream::connect(socket).await.map_err(|error| {
                let why = crate::report::plain(&error);
                anyhow!("{endpoint}: {why}; start a gateway with {what} {endpoint}, or run this command as its user or as root")
            });
            let stream = stream.of_kind(Kind::Connect)?;
            timeout(
                ANSWER_TIMEOUT,
                exchange(stream, request.header(HOST, "localhost")),
            )
            .await
        }
        #[cfg(not(unix))]
        Endpoint::Path(_) => bail!("sockets with a path are for Unix"),
    };
    let Ok(answer) = answer else {
        bail!("{endpoint} does not answer; is it the address of {what}?");
    };
    answer.with_context(|| format!("{endpoint} is not the address of {what}"))
}

async fn exchange<T>(stream: T, request: Builder) -> Result<(StatusCode, Bytes)>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Aborted when the answer is complete.
    let mut task = JoinSet::new();
    task.spawn(async move {
        let _ = connection.await;
    });
    let request = request.body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
    let body = body.collect().await.map_err(|error| anyhow!(error))?;
    Ok((status, body.to_bytes()))
}
