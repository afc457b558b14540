//! The log of a test.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::EnvFilter;

use crate::within;

/// The captured log of this thread. The runtimes of these tests run their tasks on it.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Captures the lines that `filter` enables, until the guard is dropped.
    pub fn start(filter: &str) -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// Returns the lines so far.
    pub fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for a line that contains `text`.
    pub async fn wait_for(&self, text: &str) -> String {
        let found = async {
            loop {
                let found = self.lines().into_iter().find(|line| line.contains(text));
                match found {
                    Some(line) => return line,
                    None => tokio::task::yield_now().await,
                }
            }
        };
        within(found).await
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Asserts that the line is in one span of a connection and gives its peer.
///
/// # Panics
/// The line is in no such span, or in several.
#[track_caller]
pub fn peer(line: &str) -> SocketAddr {
    let mut spans = line.split("connection{peer=").skip(1);
    let (Some(span), None) = (spans.next(), spans.next()) else {
        panic!("{line}");
    };
    let end = span.find([' ', '}']).expect("a span ends");
    span[..end].parse().unwrap()
}
