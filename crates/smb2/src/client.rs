//! A session with a server.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use smb2::{
    client::{Session, connection},
    crypto::encryption::Cipher,
    transport::TcpTransport,
    types::{Command, flags::Capabilities},
};
use smbdirect::Connection;
use tokio::sync::watch;

use crate::{
    account::Login,
    error::Error,
    handshake::{self, Established},
    share::Share,
    shares::{self, ShareEntry},
    transfer::{Terms, Transfer},
    transport::Transport,
    tree::{Handle, Requests},
};

/// A session with a server over one connection. When the last handle of the client, its shares and its files
/// is dropped while the server has requests, the connection lives until they are answered, at most for the limit of
/// [`connect`](Self::connect).
pub struct Client {
    transport: Transport,
    smb: connection::Connection,
    session: Session,
    terms: Terms,
    /// The session is a guest's or anonymous: it has no key.
    is_guest: bool,
    /// Whether the session encrypts, for the shares that are connected already.
    encrypts: Arc<AtomicBool>,
    handle: Handle,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("transport", &self.transport)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Negotiates SMB over `connection` and logs in. `server` is the name in the paths of shares, and for Kerberos the name
    /// under which the KDC knows the server. Each request of this client, its shares and its files ends with
    /// [`Error::NoAnswer`] if the server has not answered it within `answer_limit`. Before the server is asked, the KDC may
    /// take the time of [`Tickets::for_server`](crate::Tickets::for_server).
    ///
    /// # Errors
    /// The server refuses the login, asks a guest for encryption, breaks the protocol or does not answer, there is no
    /// ticket for the server, or the connection ends.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the session. The connection stays open as long as the caller has
    /// it.
    pub async fn connect(
        connection: Connection,
        server: &str,
        login: &Login,
        answer_limit: Duration,
    ) -> Result<Self, Error> {
        let transport = Transport::new(connection).answer_limit(answer_limit);
        Self::over(transport, server, login).await
    }

    /// Connects to `address` by TCP, and does the same as [`connect`](Self::connect) there. All data moves in messages.
    ///
    /// # Errors
    /// The errors of `connect`, and the server does not accept the connection within `answer_limit`.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the session and the connection.
    pub async fn connect_tcp(
        address: SocketAddr,
        server: &str,
        login: &Login,
        answer_limit: Duration,
    ) -> Result<Self, Error> {
        let connected = TcpTransport::connect(address, answer_limit).await;
        let transport = Transport::over_tcp(connected.map_err(Error::Smb2)?);
        Self::over(transport.answer_limit(answer_limit), server, login).await
    }

    async fn over(transport: Transport, server: &str, login: &Login) -> Result<Self, Error> {
        // The limits of the KDC are its own, and not those of the server.
        let ready = match login {
            Login::Tickets(tickets) => Some(Login::Tickets(tickets.for_server(server).await?)),
            Login::Account(_) => None,
        };
        let login = ready.as_ref().unwrap_or(login);
        let established = handshake::establish(&transport, server, login).await?;
        Ok(Self::with_session(transport, established))
    }

    /// Returns the shares for files that the server lists to everyone, by NetrShareEnum ([MS-SRVS] 3.1.4.8), without
    /// those whose names end with `$`.
    ///
    /// # Errors
    /// The server refuses the list, sends more than 1 MiB, breaks the protocol or does not answer, or the connection
    /// ends.
    ///
    /// [MS-SRVS]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-srvs/
    pub async fn shares(&mut self) -> Result<Vec<ShareEntry>, Error> {
        let server = self.smb.server_name().to_owned();
        let transport = self.transport.clone();
        let listing = async {
            let ipc = self.share("IPC$").await?;
            shares::list(&ipc, &server).await
        };
        // All requests together, so that a server cannot make them many.
        transport.within_limit(listing).await
    }

    /// Returns the client of an established session.
    pub(crate) fn with_session(transport: Transport, established: Established) -> Self {
        let Established {
            smb,
            session,
            signing_required,
            is_guest,
        } = established;
        let mut params = smb.params().expect("NEGOTIATE succeeded");
        params.signing_required = signing_required;
        let terms = Terms {
            dialect: params.dialect,
            signing_required,
            encrypts: session.should_encrypt,
            asked_for_messages: transport.direct().is_none(),
        };
        transport.leave_rdma_unsigned(&session, &params);
        Self {
            encrypts: Arc::new(AtomicBool::new(session.should_encrypt)),
            transport,
            smb,
            session,
            terms,
            is_guest,
            handle: Arc::new(watch::channel(()).0),
        }
    }

    /// Makes the files of shares that are connected from now on move their data in messages. Requests
    /// with data are then signed too, if the session has a key.
    pub const fn use_messages(&mut self) {
        self.terms.asked_for_messages = true;
    }

    /// Returns how files of a share without encryption of its own move their data.
    pub fn transfer(&self) -> Transfer {
        Transfer::decide(self.terms)
    }

    /// Returns the negotiated dialect, as in `SMB 3.1.1`.
    pub fn dialect(&self) -> String {
        self.terms.dialect.to_string()
    }

    /// Returns whether the session signs the requests that carry no data by RDMA.
    pub const fn signs(&self) -> bool {
        self.session.should_sign
    }

    /// Returns whether the session encrypts all requests.
    pub fn encrypts(&self) -> bool {
        self.encrypts.load(Ordering::Relaxed)
    }

    /// Returns whether the session can encrypt: it has a key, and the server has encryption. A share that requires
    /// encryption refuses all other sessions with STATUS_ACCESS_DENIED.
    pub fn can_encrypt(&self) -> bool {
        let has_cipher = self.smb.params().is_some_and(|params| {
            params.cipher.is_some() || params.capabilities.contains(Capabilities::ENCRYPTION)
        });
        has_cipher && !self.is_guest && self.session.encryption_key.is_some()
    }

    #[cfg(test)]
    pub(crate) const fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the connection of the crate smb2, for everything that this package does not do.
    pub const fn smb2(&mut self) -> &mut connection::Connection {
        &mut self.smb
    }

    /// Connects to a share.
    ///
    /// # Errors
    /// The server has no such share, refuses the access, or asks a session without a key for encryption, or the
    /// connection ends.
    pub async fn share(&mut self, name: &str) -> Result<Share, Error> {
        let connecting = smb2::Tree::connect(&mut self.smb, name);
        let tree = self.transport.request(connecting).await;
        // The crate reports this only for an asynchronous answer. Its header has an AsyncId in place of the
        // TreeId ([MS-SMB2] 2.2.1.1), and it cannot be determined with certainty whether a server put a TreeId
        // there nevertheless, as smbclient assumes. A wrong TreeId would reach another share, so this share is
        // given up, and the session stays open.
        let tree = tree.map_err(|error| match error {
            Error::Smb2(smb2::Error::InvalidData { .. }) => Error::Answer {
                command: Command::TreeConnect,
                fault: "it has no TreeId, because it is asynchronous, or it is not well formed",
            },
            error => error,
        })?;
        let mut terms = self.terms;
        if tree.encrypt_data && !terms.encrypts {
            terms.encrypts = true;
            self.encrypt()?;
        }
        let transfer = Transfer::decide(terms);
        let (transport, smb) = (self.transport.clone(), self.smb.clone());
        let encrypts = self.encrypts.clone();
        let handle = self.handle.clone();
        let requests = Requests::new(transport, smb, tree, transfer, encrypts, handle);
        Ok(Share::new(requests))
    }

    /// Encrypts all requests from now on, because a share asks for it. Files of shares that were connected before
    /// then move their data in messages too.
    fn encrypt(&mut self) -> Result<(), Error> {
        let Session {
            encryption_key: Some(encryption),
            decryption_key: Some(decryption),
            ..
        } = &self.session
        else {
            return Err(Error::NoKey);
        };
        if self.is_guest {
            return Err(Error::NoKey);
        }
        let cipher = self.smb.params().and_then(|params| params.cipher);
        // A server that names no cipher speaks SMB 3.0, which has only this one.
        let cipher = cipher.unwrap_or(Cipher::Aes128Ccm);
        let (encryption, decryption) = (encryption.clone(), decryption.clone());
        self.smb.activate_encryption(encryption, decryption, cipher);
        self.terms.encrypts = true;
        self.encrypts.store(true, Ordering::Relaxed);
        Ok(())
    }
}
