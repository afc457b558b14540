//! The errors of [`Connection`](super::Connection).

use std::{error::Error, fmt, io, net::SocketAddr};

use bytes::BytesMut;
use thiserror::Error;

use crate::{
    engine::{ConnectionError, Message, SendError, TransferFault},
    rdma::{
        memory::RegisterFault,
        work::{ByteCount, ProviderError},
    },
};

/// A [`Connection::connect`](super::Connection::connect) that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectError {
    /// The address that failed, or `None` if no address was found.
    pub address: Option<SocketAddr>,
    /// Why the connection failed.
    pub fault: ConnectFault,
}

/// Why [`Connection::connect`](super::Connection::connect) failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectFault {
    /// No RDMA connection to the peer was established.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// An RDMA connection was established, and the negotiation of SMB Direct on it failed.
    #[error(transparent)]
    Negotiation(#[from] ConnectionError),
}

impl ConnectError {
    /// Returns whether a later attempt with the same address and settings may succeed; see
    /// [`ConnectionError::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        self.fault.is_retryable()
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address {
            write!(f, "{address}: ")?;
        }
        self.fault.fmt(f)
    }
}

/// The text contains the fault, so the source is that of the fault.
impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.fault.source()
    }
}

impl ConnectFault {
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Self::Provider(error) => error.kind.is_retryable(),
            Self::Negotiation(error) => error.is_retryable(),
        }
    }
}

impl From<ConnectError> for ConnectionError {
    fn from(error: ConnectError) -> Self {
        match error.fault {
            ConnectFault::Provider(error) => error.into(),
            ConnectFault::Negotiation(error) => error,
        }
    }
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> Self {
        let kind = Self::from(ConnectionError::from(error.clone())).kind();
        Self::new(kind, error)
    }
}

/// Why [`Connection::try_send`](super::Connection::try_send) did not submit a message.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrySendError {
    /// The message would have to wait for credits or for earlier messages. The error returns it.
    #[error("the message would have to wait")]
    NotReady(Message),
    /// The message can never be sent.
    #[error(transparent)]
    Send(#[from] SendError),
}

impl From<TrySendError> for io::Error {
    fn from(error: TrySendError) -> Self {
        match error {
            TrySendError::NotReady(_) => Self::new(io::ErrorKind::WouldBlock, error),
            TrySendError::Send(error) => error.into(),
        }
    }
}

/// A read that failed, with its buffer.
#[derive(Error)]
#[error("{fault}")]
#[non_exhaustive]
pub struct ReadError {
    /// Why the read failed.
    pub fault: TransferFault,
    /// The buffer, with unspecified contents, or `None` if it was lost when the runtime stopped.
    pub buffer: Option<BytesMut>,
}

/// Shows the number of bytes in the buffer, and not the bytes.
impl fmt::Debug for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffer = self.buffer.as_ref().map(|buffer| ByteCount(buffer.len()));
        f.debug_struct("ReadError")
            .field("fault", &self.fault)
            .field("buffer", &buffer)
            .finish()
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        error.fault.into()
    }
}

/// A registration of several buffers that failed at one of them. None of them is registered.
#[derive(Error)]
#[error("buffer {index} of those to register: {reason}")]
#[non_exhaustive]
pub struct RegisterAllError {
    /// The buffers, unchanged and in order. A buffer whose registration the provider could not end
    /// immediately is lost and missing here.
    pub buffers: Vec<BytesMut>,
    /// Index of the buffer that was not registered, counted from 0.
    pub index: usize,
    /// Why that buffer was not registered.
    pub reason: RegisterFault,
}

/// Shows the number of bytes in each buffer, and not the bytes.
impl fmt::Debug for RegisterAllError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lengths = self.buffers.iter().map(|buffer| ByteCount(buffer.len()));
        f.debug_struct("RegisterAllError")
            .field("buffers", &lengths.collect::<Vec<_>>())
            .field("index", &self.index)
            .field("reason", &self.reason)
            .finish()
    }
}

impl From<RegisterAllError> for io::Error {
    fn from(error: RegisterAllError) -> Self {
        error.reason.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::Violation, rdma::work::ProviderErrorKind};

    /// The error displays its cause, so its `source` is the source of that cause: code that prints the whole
    /// chain of sources prints each cause once.
    #[test]
    fn connect_error_displays_its_cause_and_is_no_link_of_the_chain() {
        let provider = ProviderError::new(ProviderErrorKind::Refused, "connection refused");
        let ended = ConnectionError::from(Violation::WithoutCredit);
        let address = "192.0.2.1:5445".parse().ok();
        for (fault, cause, source) in [
            (
                ConnectFault::from(provider.clone()),
                provider.to_string(),
                provider.source().map(ToString::to_string),
            ),
            (
                ConnectFault::from(ended.clone()),
                ended.to_string(),
                ended.source().map(ToString::to_string),
            ),
        ] {
            let error = ConnectError { address, fault };
            assert_eq!(error.to_string(), format!("192.0.2.1:5445: {cause}"));
            assert!(io::Error::from(error.clone()).to_string().contains(&cause));
            assert_eq!(error.source().map(ToString::to_string), source);
        }
    }
}
