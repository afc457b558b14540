//! [`Handlers`]: the event handlers of all endpoints of the command, which pass each event to the
//! session of its endpoint.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicBool, Ordering},
};

use anyhow::Result;
use smbdirect::{
    Token,
    rdma::provider::Provider,
    tdi::{
        self, Answer, Cause, ChainedTsdu, Client, ConnectAnswer, DisconnectFlags, Indication,
        Offer, ReceiveCompletion, Status, TransportSettings,
    },
};

use super::{
    lines::Event,
    session::{Session, SessionEndpoint},
};
use crate::options::usage;

/// What decides on the peers that connect to the address.
pub(super) trait Acceptor: Send + Sync {
    /// Answers an offer of a peer.
    fn offered(&self, handlers: &Arc<Handlers>, offer: &Offer) -> ConnectAnswer<Arc<Session>>;

    /// Handles the result of an offer that was accepted.
    fn accepted(
        &self,
        endpoint: &SessionEndpoint,
        result: Result<(), Status>,
        transport: &'static str,
    );

    /// Handles the failure of the address, after which no peer can connect.
    fn failed(&self, status: Status);
}

/// The handlers of the address that all endpoints of the command are associated with.
pub(super) struct Handlers {
    pub(super) transport: tdi::Transport,
    pub(super) transport_name: &'static str,
    /// The address, until [`Handlers::close`] breaks the circle of references between the two.
    address: Mutex<Option<tdi::Address<Arc<Session>>>>,
    chained: AtomicBool,
    acceptor: Option<Arc<dyn Acceptor>>,
    this: Weak<Self>,
}

impl Handlers {
    /// Creates handlers for endpoints of `provider`. Without an `acceptor`, offers are refused.
    ///
    /// # Errors
    /// A usage error: settings that TDI refuses.
    pub(super) fn new(
        provider: Arc<dyn Provider>,
        settings: TransportSettings,
        acceptor: Option<Arc<dyn Acceptor>>,
    ) -> Result<Arc<Self>> {
        let transport_name = provider.name();
        let transport = tdi::Transport::new(provider, settings);
        let transport = transport.map_err(|status| usage(format!("{status}: TDI settings")))?;
        Ok(Arc::new_cyclic(|this| Self {
            transport,
            transport_name,
            address: Mutex::default(),
            chained: AtomicBool::new(false),
            acceptor,
            this: this.clone(),
        }))
    }

    /// Handles the events of `address`.
    pub(super) fn open(self: &Arc<Self>, address: tdi::Address<Arc<Session>>) {
        *self.address.lock().expect("no panic under it") = Some(address.clone());
        address.set_client(Some(self.clone()));
    }

    /// Stops handling events.
    pub(super) fn close(&self) {
        let address = self.address.lock().expect("no panic under it").take();
        if let Some(address) = address {
            address.set_client(None);
        }
    }

    /// Associates an endpoint with the address.
    ///
    /// # Errors
    /// The status of TDI; ADDRESS_CLOSED after `close`.
    pub(super) fn associate(&self, endpoint: &SessionEndpoint) -> Result<(), Status> {
        let address = self.address.lock().expect("no panic under it").clone();
        endpoint.associate(&address.ok_or(Status::ADDRESS_CLOSED)?)
    }

    /// Says whether TSDUs may be lent.
    pub(super) fn take_chained(&self, chained: bool) {
        self.chained.store(chained, Ordering::Relaxed);
    }
}

impl Client<Arc<Session>> for Handlers {
    fn connect(
        &self,
        _: &tdi::Address<Arc<Session>>,
        offer: &Offer,
    ) -> ConnectAnswer<Arc<Session>> {
        match (&self.acceptor, self.this.upgrade()) {
            (Some(acceptor), Some(handlers)) => acceptor.offered(&handlers, offer),
            _ => ConnectAnswer::Refuse,
        }
    }

    fn accept_completed(&self, endpoint: &SessionEndpoint, result: Result<(), Status>) {
        if let Some(acceptor) = &self.acceptor {
            acceptor.accepted(endpoint, result, self.transport_name);
        }
    }

    fn receive(&self, endpoint: &SessionEndpoint, indication: Indication) -> Answer {
        endpoint.context().indicated(endpoint, indication)
    }

    fn takes_chained(&self) -> bool {
        self.chained.load(Ordering::Relaxed)
    }

    fn chained_receive(
        &self,
        endpoint: &SessionEndpoint,
        tsdu: ChainedTsdu,
    ) -> Result<(), ChainedTsdu> {
        match endpoint.context().lent(endpoint, tsdu) {
            Some(tsdu) => Err(tsdu),
            None => Ok(()),
        }
    }

    fn receive_completed(&self, endpoint: &SessionEndpoint, completion: ReceiveCompletion) {
        endpoint.context().supplied_completed(completion);
    }

    fn send_possible(&self, endpoint: &SessionEndpoint, available: usize) {
        endpoint.context().event(&Event::SendPossible { available });
    }

    fn invalidated(&self, endpoint: &SessionEndpoint, token: Token) {
        endpoint.context().invalidated(token);
    }

    fn disconnect(&self, endpoint: &SessionEndpoint, flags: DisconnectFlags, cause: &Cause) {
        endpoint.context().disconnected(flags, cause);
    }

    fn error(&self, status: Status) {
        if let Some(acceptor) = &self.acceptor {
            acceptor.failed(status);
        }
    }
}
