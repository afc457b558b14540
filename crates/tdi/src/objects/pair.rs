//! Two endpoints for the tests of private parts of this package.

use std::sync::Arc;

use smbdirect::Loopback;

use super::{
    device::TransportSettings,
    port::Share,
    transport::Transport,
    types::{Address, Endpoint},
};

/// Two endpoints, with their addresses.
pub(crate) struct Pair {
    pub(crate) here: Endpoint,
    pub(crate) there: Endpoint,
    /// The address of `here`.
    pub(crate) local: Address,
    /// The address of `there`.
    pub(crate) remote: Address,
}

impl Pair {
    /// Opens two endpoints, which are not connected.
    pub(crate) async fn apart() -> Self {
        let provider = Arc::new(Loopback::new());
        let transport = Transport::new(provider, TransportSettings::default()).unwrap();
        let any_port = "127.0.0.1:0".parse().unwrap();
        let remote = transport.open_address(any_port, Share::Exclusive);
        let remote: Address = remote.await.unwrap();
        let local = transport.open_any_address();
        Self {
            here: local.open_endpoint(()),
            there: remote.open_endpoint(()),
            local,
            remote,
        }
    }

    pub(crate) async fn connect(&self) {
        let listen = self.there.listen(None);
        let connect = self.here.connect(self.remote.local_addr(), None);
        connect.await.unwrap();
        listen.await.unwrap();
    }
}
