//! SMB2 messages of the crate smb2 over an SMB Direct connection, or over TCP.

use std::{
    fmt,
    future::{Future, pending},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use smb2::{
    client::{
        Session,
        connection::{self, NegotiatedParams},
    },
    transport::{TcpTransport, TransportReceive, TransportSend},
};
use smbdirect::{Connection, Token};
use tokio::time::{Instant, timeout};

use crate::{credits::Credits, error::Error, unsigned::Unsigned};

/// Longest time from the end of a connection to the end of a request whose answer had arrived before.
const LAST_ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Longest time for an answer, unless the caller sets another.
const DEFAULT_ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Carries the messages of a [`smb2::client::connection::Connection`] over SMB Direct. Clones share one
/// connection.
#[derive(Clone)]
pub struct Transport {
    link: Link,
    unsigned: Arc<Mutex<Unsigned>>,
    credits: Arc<Credits>,
    /// Set if this package limits the waits, and `None` if the crate smb2 does.
    answer_limit: Option<Duration>,
    on_invalidated: Option<Arc<dyn Fn(Token) + Send + Sync>>,
}

/// What carries the messages.
#[derive(Clone)]
enum Link {
    Direct(Connection),
    Tcp(Arc<TcpTransport>),
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("connection", &self.direct())
            .finish_non_exhaustive()
    }
}

impl Transport {
    /// Returns a transport over an established connection.
    pub fn new(connection: Connection) -> Self {
        Self::over(Link::Direct(connection))
    }

    /// Returns a transport over TCP.
    pub(crate) fn over_tcp(tcp: TcpTransport) -> Self {
        Self::over(Link::Tcp(Arc::new(tcp)))
    }

    fn over(link: Link) -> Self {
        Self {
            link,
            unsigned: Arc::default(),
            credits: Arc::default(),
            answer_limit: None,
            on_invalidated: None,
        }
    }

    /// Sets the longest time that the requests of this package wait for an answer.
    #[must_use]
    pub(crate) const fn answer_limit(mut self, limit: Duration) -> Self {
        self.answer_limit = Some(limit);
        self
    }

    /// Calls `observer` with each token that the server invalidates, before the message that did so is
    /// delivered. It runs in the receiving task, so it must not block.
    #[must_use]
    pub fn on_invalidated(mut self, observer: impl Fn(Token) + Send + Sync + 'static) -> Self {
        self.on_invalidated = Some(Arc::new(observer));
        self
    }

    /// Returns the SMB Direct connection, if it is one.
    pub(crate) const fn direct(&self) -> Option<&Connection> {
        match &self.link {
            Link::Direct(connection) => Some(connection),
            Link::Tcp(_) => None,
        }
    }

    /// Returns the connection of the crate smb2 over this transport. `server` is the name in the paths of
    /// shares, `\\server\share`.
    pub fn smb2(&self, server: &str) -> connection::Connection {
        let half = || Box::new(self.clone());
        let smb = connection::Connection::from_transport(half(), half(), server);
        self.limit_waits_of(&smb);
        smb
    }

    /// Makes this package limit the waits of a connection over this transport, in place of the crate smb2, if a limit
    /// was set.
    pub(crate) fn limit_waits_of(&self, smb: &connection::Connection) {
        if let Some(limit) = self.answer_limit {
            // If the crate gave a request up, this end would not learn when the server stops using the request's
            // memory.
            smb.set_response_timeout(None);
            smb.set_send_timeout(None);
            smb.set_credit_wait_timeout(limit);
            // Only needed for the limit of the crate. It would take credits.
            smb.set_keepalive(None);
        }
    }

    /// From now on sends READ and WRITE with an RDMA channel without a signature, if the session signs but
    /// requires no signatures ([MS-SMB2] 3.2.4.1.1). All other requests stay signed. Otherwise changes nothing.
    ///
    /// Returns whether the session allows it. If it does not, send no request with a channel: a server that
    /// requires signing or encryption refuses it.
    ///
    /// [MS-SMB2]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-smb2/
    pub fn leave_rdma_unsigned(&self, session: &Session, params: &NegotiatedParams) -> bool {
        let allowed = !params.signing_required && !session.should_encrypt;
        if allowed && session.should_sign {
            let key = session.signing_key.clone();
            self.unsigned().begin(key, session.signing_algorithm);
        }
        allowed
    }

    pub(crate) fn limit(&self) -> Duration {
        self.answer_limit.unwrap_or(DEFAULT_ANSWER_LIMIT)
    }

    pub(crate) const fn credits(&self) -> &Arc<Credits> {
        &self.credits
    }

    /// Runs a request of the crate smb2 within the limit.
    pub(crate) async fn request<T, E: Into<Error>>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Error> {
        self.within_limit(self.until_end(request)).await
    }

    /// Drops `work` if the server does not answer. The time begins with the call, and again with each answer of the
    /// server, as long as these can be to requests that were sent before.
    pub(crate) async fn within_limit<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        let limit = self.limit();
        let most = limit.saturating_mul(self.credits.in_flight().saturating_add(1));
        let mut work = pin!(work);
        loop {
            let since = (*self.credits.last_answer()).max(start);
            let left = limit.saturating_sub(since.elapsed());
            let left = left.min(most.saturating_sub(start.elapsed()));
            if let Ok(done) = timeout(left, &mut work).await {
                return done;
            }
            let is_over = since >= *self.credits.last_answer() || start.elapsed() >= most;
            if is_over {
                return Err(Error::NoAnswer(limit));
            }
        }
    }

    /// Runs a request of the crate smb2, which ends when the connection ends. Without this, a request that begins at
    /// that moment sometimes waits forever, because the crate misses the end.
    pub(crate) async fn until_end<T, E: Into<Error>>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Error> {
        let mut request = pin!(request);
        let closed = async {
            match &self.link {
                Link::Direct(connection) => connection.closed().await,
                // The crate notices the end, or else the limit does.
                Link::Tcp(_) => pending().await,
            }
        };
        let reason = tokio::select! {
            biased;
            done = &mut request => return done.map_err(|error| self.explain(error)),
            reason = closed => reason,
        };
        match timeout(LAST_ANSWER_LIMIT, request).await {
            Ok(done) => done.map_err(|error| self.explain(error)),
            Err(_) => Err(Error::Connection(reason)),
        }
    }

    /// Replaces the error of a request by the reason for which the connection ended, if it did.
    pub(crate) fn explain(&self, error: impl Into<Error>) -> Error {
        match (self.direct().and_then(Connection::error), error.into()) {
            (Some(reason), Error::Smb2(_)) => Error::Connection(reason),
            (_, error) => error,
        }
    }

    fn unsigned(&self) -> MutexGuard<'_, Unsigned> {
        self.unsigned
            .lock()
            .expect("no thread panics while it holds the lock")
    }
}

fn lost(error: impl std::error::Error + Send + Sync + 'static) -> smb2::Error {
    smb2::Error::Io(std::io::Error::other(error))
}

#[async_trait]
impl TransportSend for Transport {
    async fn send(&self, message: &[u8]) -> smb2::Result<()> {
        let unsigned = self.unsigned().request(message);
        let message = match unsigned {
            Some(message) => Bytes::from(message),
            None => Bytes::copy_from_slice(message),
        };
        match &self.link {
            Link::Direct(connection) => {
                let sending = connection.send(message).map_err(lost)?;
                sending.await.map_err(lost)
            }
            Link::Tcp(tcp) => tcp.send(&message).await,
        }
    }
}

#[async_trait]
impl TransportReceive for Transport {
    async fn receive(&self) -> smb2::Result<Vec<u8>> {
        // The crate has counted the credits of the message before.
        self.credits.on_message();
        let connection = match &self.link {
            Link::Direct(connection) => connection,
            Link::Tcp(tcp) => return tcp.receive().await,
        };
        let message = connection.recv().await.map_err(lost)?;
        if let (Some(token), Some(observer)) = (message.invalidated_token(), &self.on_invalidated) {
            observer(token);
        }
        let mut message: Vec<u8> = message.into_bytes().into();
        self.unsigned().answer(&mut message);
        Ok(message)
    }
}
