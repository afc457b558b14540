//! The HTTP server: a few read-only pages, with a limit for everything.

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
    sync::Semaphore,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::{
    socket::{Connection, Socket},
    source::Source,
    text,
};

/// Maximum number of clients that are served at the same time; further ones wait.
const MAX_CLIENTS: usize = 64;
/// Longest time for a client to send a request and take the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for a client to send a request, so that clients that say nothing delay others only shortly.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time for a client that uses the reserved file descriptor. Others wait for it.
const RESERVED_CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failure to accept a client, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const INDEX: &str = "/metrics  figures as Prometheus text\n/status   the same as JSON, with each connection\n\
                     /healthz  200 while the program lives\n/readyz   200 while it takes clients, and 503 otherwise\n";

/// Serves clients until the task is aborted. Each connection serves one request. Listeners share `room`.
pub(super) async fn serve(socket: Socket, site: Site, room: Arc<Semaphore>) {
    let mut reserve = socket.reserve();
    let mut failures = Throttle::default();
    loop {
        let permit = room.clone().acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let error = match socket.accept().await {
            Ok(stream) => {
                let site = site.clone();
                tokio::spawn(async move {
                    serve_one(stream, &site, CLIENT_TIMEOUT).await;
                    drop(permit);
                });
                continue;
            }
            Err(error) => error,
        };
        // If file descriptors have run out, the reserve is one for this client: the figures say that they have.
        if reserve.take().is_some()
            && let Ok(Ok(stream)) = timeout(ACCEPT_PAUSE, socket.accept()).await
        {
            serve_one(stream, &site, RESERVED_CLIENT_TIMEOUT).await;
        } else {
            if let Some(times) = failures.due(Instant::now()) {
                warn!(%error, times, "a client of --metrics cannot be accepted");
            }
            sleep(ACCEPT_PAUSE).await;
        }
        reserve = socket.reserve();
    }
}

/// Returns the room for all clients.
pub(super) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_CLIENTS))
}

/// What a socket serves.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) source: Arc<Source>,
    /// Whether what runs can be changed.
    pub(super) has_control: bool,
}

async fn serve_one(stream: Box<dyn Connection>, site: &Site, limit: Duration) {
    let service = service_fn(|request| {
        let response = respond(site, &request);
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(limit, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a client of --metrics failed"),
        Err(_) => debug!("a client of --metrics took too long"),
    }
}

fn respond<B>(site: &Site, request: &Request<B>) -> Response<Full<Bytes>> {
    let is_change = request.method() == Method::POST;
    if site.has_control
        && let Some(answer) = site
            .source
            .figures()
            .control(is_change, request.uri().path())
    {
        return match answer {
            Ok(value) => with_type("application/json", value.to_string()),
            Err(why) => plain(StatusCode::NOT_FOUND, &format!("{why}\n")),
        };
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
        return response;
    }
    let source = &site.source;
    match request.uri().path() {
        "/metrics" => {
            let text = source.text();
            with_type(text::CONTENT_TYPE, text)
        }
        "/status" => {
            let status = serde_json::to_string(&source.status()).expect("keys are strings");
            with_type("application/json", status)
        }
        "/healthz" => plain(StatusCode::OK, "ok\n"),
        "/readyz" if source.figures().is_ready() => plain(StatusCode::OK, "ready\n"),
        "/readyz" => plain(StatusCode::SERVICE_UNAVAILABLE, "takes no clients\n"),
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
