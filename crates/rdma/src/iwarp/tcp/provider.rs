//! The iWARP provider: it connects and it listens.

use std::{
    net::{self, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::net::TcpListener;
use tracing::debug;

use super::{
    config::{IwarpConfig, check_private_data},
    connect::{ConnectFailure, initiate},
    listen::IwarpListener,
    options::{adopt, bind},
    queue_pair::IwarpQueuePair,
};
use crate::{
    iwarp::stream::Stream,
    provider::{
        BoxFuture, ConnectRequest, Connected, Provider, ProviderAttributes, ProviderListener,
    },
    software::os_error::os_error,
    work::ProviderError,
};

/// The provider of iWARP in software, over TCP.
#[derive(Clone, Debug, Default)]
pub struct Iwarp {
    config: Arc<IwarpConfig>,
    /// A listening socket for the next listener.
    listener: Arc<Mutex<Option<net::TcpListener>>>,
}

impl Iwarp {
    /// Creates a provider with the settings `config`.
    ///
    /// ```
    /// use smbdirect_rdma::iwarp::{Iwarp, IwarpConfig};
    ///
    /// let provider = Iwarp::new(IwarpConfig::default());
    /// ```
    pub fn new(config: IwarpConfig) -> Self {
        Self {
            config: Arc::new(config),
            listener: Arc::default(),
        }
    }

    /// Makes the first call of `listen` use this listening socket instead of creating one, regardless of the
    /// address, so that a service manager can open the port (socket activation).
    #[must_use]
    pub fn with_listener(self, listener: net::TcpListener) -> Self {
        Self {
            listener: Arc::new(Mutex::new(Some(listener))),
            ..self
        }
    }

    /// Creates the listening socket that `listen` would create, for a caller that keeps a duplicate of it and gives it
    /// to [`with_listener`](Self::with_listener). Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn bind(&self, address: SocketAddr) -> Result<net::TcpListener, ProviderError> {
        let bound = bind(address, &self.config).and_then(TcpListener::into_std);
        bound.map_err(|error| os_error("listening", &error))
    }
}

impl Provider for Iwarp {
    fn attributes(&self) -> ProviderAttributes {
        // The private data of SMB Direct announces the same depths as the startup frames.
        let preferences = self.config.preferences();
        ProviderAttributes {
            name: "iwarp",
            default_port: 5445,
            limits: Stream::limits_of(preferences.ord().into(), preferences.ird().into()),
            negotiates_read_depths: false,
        }
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        Box::pin(async move {
            check_private_data(&request.private_data)?;
            let config = &self.config;
            let first_attempt = initiate(config, &request, config.revision).await;
            let (socket, agreement) = match first_attempt {
                //= MPA-32
                Err(ConnectFailure::MaybeRevision(error))
                    if config.revision == 2 && config.fall_back =>
                {
                    debug!(%error, "trying MPA revision 1");
                    initiate(config, &request, 1).await
                }
                other => other,
            }
            .map_err(ConnectFailure::into_error)?;
            //= MPA-06
            let private_data = agreement.private_data.clone();
            Ok(IwarpQueuePair::connected(
                socket,
                config,
                true,
                &agreement,
                request.receive,
                private_data,
            ))
        })
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>> {
        Box::pin(async move {
            let failed = |error| os_error("listening", &error);
            let passed = self
                .listener
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let listener = match passed {
                Some(listener) => adopt(listener, &self.config),
                None => bind(address, &self.config),
            };
            let listener = listener.and_then(|one| IwarpListener::new(one, self.config.clone()));
            Ok(Box::new(listener.map_err(failed)?) as Box<dyn ProviderListener>)
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        iwarp::IwarpTuning,
        work::{ProviderErrorKind, WorkId, WorkRequest},
    };

    #[tokio::test]
    async fn a_socket_that_listens_already_is_used_once() {
        let passed = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = passed.local_addr().unwrap();
        let iwarp = Iwarp::default().with_listener(passed);
        let other = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = iwarp.listen(other).await.unwrap();
        assert_eq!(first.local_addr(), address);
        let second = iwarp.listen(other).await.unwrap();
        assert_ne!(second.local_addr(), address);
    }

    #[tokio::test]
    async fn an_unknown_congestion_control_is_an_error() {
        let config = IwarpConfig {
            tuning: IwarpTuning {
                congestion_control: Some("telepathy".into()),
                ..IwarpTuning::default()
            },
            ..IwarpConfig::default()
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let other = Iwarp::default().listen(address).await.unwrap();
        let iwarp = Iwarp::new(config);
        assert!(iwarp.listen(address).await.is_err());
        let request = ConnectRequest {
            address: other.local_addr(),
            private_data: Bytes::new(),
            receive: WorkRequest::Receive {
                id: WorkId(0),
                length: 1,
                count: 1,
            },
        };
        let error = iwarp.connect(request).await.unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Local);
    }
}
