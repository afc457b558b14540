//! Identifies the client of a session, chooses its server, and connects to it.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::SendError;
use smbdirect_transport::text;
use tokio::{
    io::AsyncWriteExt,
    time::{sleep, timeout},
};
use tracing::info;

use crate::{
    admission::{clients::ClientKey, proxy_header},
    path::peer::{Peer, Source},
    servers::Seat,
    session::{Connected, Session},
    settings::ClientAddress,
    stop::{Side, Stop},
};

/// Time for which a client that has finished sending may still be served, while a server is being connected.
const LEAVING_TIME: Duration = Duration::from_secs(1);

impl Session {
    /// Connects to the server of the client. `here` is the address that the client has connected to.
    pub(crate) async fn connect(
        &mut self,
        from_client: &mut Source,
        here: Option<SocketAddr>,
    ) -> Result<Connected, Stop> {
        if self.live.trusts_proxy(self.peer.ip()) {
            self.take_proxy_header(from_client).await?;
        }
        let client = self.state.client();
        let (key, is_unknown) = self.key(from_client).await?;
        let left = async {
            from_client.leaving().wait().await;
            sleep(LEAVING_TIME).await;
        };
        tokio::select! {
            connected = self.reach(client, here, key, is_unknown) => connected,
            () = left => Err(Stop::Closed(Side::Client)),
        }
    }

    /// Connects to a server that takes the client, and tries one after the other.
    async fn reach(
        &self,
        client: SocketAddr,
        here: Option<SocketAddr>,
        key: ClientKey,
        is_unknown: bool,
    ) -> Result<Connected, Stop> {
        let began = Instant::now();
        let mut failed = Vec::new();
        let mut last = None;
        loop {
            let seat = self.service.servers.seat(self.live.balance, key, &failed);
            let Some(seat) = seat else {
                let none = || Stop::Unreachable("no server takes clients now".into());
                return Err(last.unwrap_or_else(none));
            };
            self.state.choose(&seat.server.name);
            let stop = match self.connect_to(&seat, client, here).await {
                Ok(server) if seat.has_others || !seat.server.is_drained() => {
                    seat.server.is_reached();
                    let outgoing = self.service.outgoing(&server)?;
                    self.state
                        .set_server(&seat.server.name, server.address(), began.elapsed());
                    return Ok(Connected {
                        server,
                        seat,
                        is_unknown,
                        _outgoing: outgoing,
                    });
                }
                Ok(_) => Stop::Unreachable("it was drained meanwhile".into()),
                // The sessions of the client are at this server, and go on.
                Err(stop) if seat.has_others => return Err(stop),
                Err(stop) => stop,
            };
            if !self.service.servers.is_one() {
                info!(server = seat.server.name, why = %stop, "the next server is tried");
            }
            last = Some(stop);
            failed.push(seat.server.clone());
        }
    }

    /// Takes the header of a trusted proxy. If it names a client, the session is that client's.
    async fn take_proxy_header(&mut self, from_client: &mut Source) -> Result<(), Stop> {
        // A connection without a client is the proxy's own, as for its checks.
        let Some(client) = self.in_time(from_client.proxy_header()).await? else {
            return Ok(());
        };
        self.state.set_client(client);
        let admitted = self.place.of_client(&self.live, client.ip());
        admitted.map_err(Stop::NotAdmitted)
    }

    /// Returns what the client is recognised by, and whether its ClientGuid may follow. With one server it does not
    /// matter, so that clients that say nothing, as `smbdirect ping`, are served.
    async fn key(&self, from_client: &mut Source) -> Result<(ClientKey, bool), Stop> {
        let by_address = ClientKey::Address(self.state.client().ip());
        if self.service.servers.is_one() {
            // Its ClientGuid is learnt for the case that a reload adds servers.
            return Ok((by_address, true));
        }
        let head = self.in_time(from_client.peek(ClientKey::HEAD)).await?;
        Ok(match ClientKey::of_first_message(&head) {
            Some(key) => (key, false),
            None => (by_address, true),
        })
    }

    /// Waits for the first bytes of a client for at most the stall limit.
    async fn in_time<T>(&self, first: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
        let limit = self.live.stall_limit;
        let late = || {
            let limit = text::time(limit);
            Err(Stop::Failed(
                Side::Client,
                format!("it has sent nothing for {limit}"),
            ))
        };
        timeout(limit, first).await.unwrap_or_else(|_| late())
    }

    /// Connects to the server of a seat, which learns the address of the client as the settings have it.
    async fn connect_to(
        &self,
        seat: &Seat,
        client: SocketAddr,
        here: Option<SocketAddr>,
    ) -> Result<Peer, Stop> {
        let settings = &self.service.settings;
        let source = match settings.client_address {
            ClientAddress::Transparent => Some(client.ip()),
            ClientAddress::Own | ClientAddress::Proxy => None,
        };
        let connected = self
            .service
            .connect(&seat.server.address, source, settings.connect_timeout)
            .await;
        let unreachable = |error: String| {
            let way = source.map(|source| {
                format!(
                    "; its answers to {source} have to come back to this machine: docs/service.md has the `ip rule` and \
                     `ip route` that --client-address transparent needs"
                )
            });
            Stop::Unreachable(format!("{error}{}", way.unwrap_or_default()))
        };
        let mut server = connected.map_err(|error| unreachable(error.to_string()))?;
        server.prepare(Side::Server, &settings.config)?;
        if settings.client_address == ClientAddress::Proxy {
            let header = proxy_header::encode(client, here.unwrap_or(client));
            send_header(&mut server, header.into())
                .await
                .map_err(unreachable)?;
        }
        Ok(server)
    }
}

/// Sends the header of the PROXY protocol before everything else.
async fn send_header(server: &mut Peer, header: Bytes) -> Result<(), String> {
    match server {
        Peer::Tcp(stream, _) => {
            let written = stream.write_all(&header).await;
            written.map_err(|error| text::plain(&error))
        }
        Peer::SmbDirect(connection) => {
            let sent = async { Ok::<_, SendError>(connection.send(header)?.await?) };
            sent.await.map_err(|error| error.to_string())
        }
    }
}
