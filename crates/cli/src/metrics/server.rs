//! The HTTP server of `--metrics`: a few read-only pages, with a limit for everything.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use smbdirect_transport::Throttle;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::source::Source;

/// Maximum number of clients that are served at the same time; further ones wait.
const MAX_CLIENTS: usize = 16;
/// Longest time for a client to send a request and take the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for a client that uses the reserved file descriptor. Others wait for it.
const RESERVED_CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failure to accept a client, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const INDEX: &str =
    "/metrics  figures as Prometheus text\n/status   the same as JSON, with each connection\n";

/// Serves clients until the task is aborted. Each connection serves one request. Listeners share `room`.
pub(super) async fn serve(listener: TcpListener, source: Arc<Source>, room: Arc<Semaphore>) {
    let mut reserve = listener.reserve();
    let mut failures = Throttle::default();
    loop {
        let permit = room.clone().acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let error = match listener.accept().await {
            Ok((stream, _)) => {
                let source = source.clone();
                tokio::spawn(async move {
                    serve_one(stream, &source, CLIENT_TIMEOUT).await;
                    drop(permit);
                });
                continue;
            }
            Err(error) => error,
        };
        // If file descriptors have run out, the reserve is one for this client: the figures say that they have.
        if reserve.take().is_some()
            && let Ok(Ok((stream, _))) = timeout(ACCEPT_PAUSE, listener.accept()).await
        {
            serve_one(stream, &source, RESERVED_CLIENT_TIMEOUT).await;
        } else {
            if let Some(times) = failures.due(Instant::now()) {
                warn!(%error, times, "a client of --metrics cannot be accepted");
            }
            sleep(ACCEPT_PAUSE).await;
        }
        reserve = listener.reserve();
    }
}

/// Returns the room for all clients.
pub(super) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_CLIENTS))
}

/// Keeps a file descriptor, which is released when another one is needed.
trait Reserve {
    fn reserve(&self) -> Option<OwnedHandle>;
}

#[cfg(unix)]
type OwnedHandle = std::os::fd::OwnedFd;
#[cfg(windows)]
type OwnedHandle = std::os::windows::io::OwnedSocket;

impl Reserve for TcpListener {
    fn reserve(&self) -> Option<OwnedHandle> {
        #[cfg(unix)]
        use std::os::fd::AsFd as _;
        #[cfg(windows)]
        use std::os::windows::io::AsSocket as _;
        #[cfg(unix)]
        let own = self.as_fd().try_clone_to_owned();
        #[cfg(windows)]
        let own = self.as_socket().try_clone_to_owned();
        own.ok()
    }
}

async fn serve_one(stream: TcpStream, source: &Source, limit: Duration) {
    let service = service_fn(|request| {
        let response = respond(source, &request);
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(CLIENT_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(limit, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a client of --metrics failed"),
        Err(_) => debug!("a client of --metrics took too long"),
    }
}

fn respond<B>(source: &Source, request: &Request<B>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
        return response;
    }
    match request.uri().path() {
        "/metrics" => {
            let text = source.text();
            with_type(prometheus::TEXT_FORMAT, text)
        }
        "/status" => {
            let status = serde_json::to_string(&source.status()).expect("keys are strings");
            with_type("application/json", status)
        }
        "/" => plain(StatusCode::OK, INDEX),
        _ => plain(StatusCode::NOT_FOUND, INDEX),
    }
}

fn with_type(content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = with_type("text/plain; charset=utf-8", text.to_owned());
    *response.status_mut() = status;
    response
}
