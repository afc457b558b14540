//! NEGOTIATE and SESSION_SETUP of the crate smb2, with what the crate leaves out.
//!
//! Version 0.39 of the crate, with no setting for any of these:
//!
//! - offers ciphers in NEGOTIATE and encrypts, but does not set SMB2_GLOBAL_CAP_ENCRYPTION. A server that requires
//!   encryption refuses such a client ([MS-SMB2] 3.3.5.5.3, 3.3.5.7). This transport sets the bit.
//! - offers AES-256 and HMAC-SHA256, and fails to log in if the server selects one of them: it signs with a key of
//!   256 bits in place of 128, or by AES-CMAC. This transport takes both out of the offer.
//! - signs a guest session if the server requires signing. The server has no key for a guest and signs nothing
//!   (3.3.5.5.3). This transport hides the requirement from a guest.
//!
//! SMB 3.1.1 derives its keys from a hash of the messages as they were on the wire, so the hash of the crate is
//! replaced by one of these. `packaging/notes/smb2.md` is the note to the authors of the crate. This file can be
//! removed when the package uses a version without these faults.
//!
//! [MS-SMB2]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-smb2/

use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use smb2::{
    client::{Session, connection},
    crypto::kdf::PreauthHasher,
    msg::{
        header::Header,
        negotiate::{
            CIPHER_AES_128_CCM, CIPHER_AES_128_GCM, NegotiateContext, NegotiateRequest,
            SIGNING_HMAC_SHA256,
        },
    },
    pack::{Pack, ReadCursor, Unpack, WriteCursor},
    transport::{TransportReceive, TransportSend},
    types::flags::Capabilities,
};
use smbdirect_smb::smb2::{
    Command, Header as SmbHeader, NegotiateResponse, SIGNING_REQUIRED, SessionSetupResponse,
};

use crate::{
    account::{Account, Login},
    error::Error,
    transport::Transport,
};

/// A session, and the properties that the server reported for it.
pub(crate) struct Established {
    pub(crate) smb: connection::Connection,
    pub(crate) session: Session,
    /// The server requires signed requests of this session.
    pub(crate) signing_required: bool,
    /// The session is a guest's or anonymous: it has no key, so it neither signs nor encrypts.
    pub(crate) is_guest: bool,
}

/// Negotiates over `transport` and logs in.
///
/// # Errors
/// The server refuses the login, asks a guest for encryption or breaks the protocol, or the connection ends.
pub(crate) async fn establish(
    transport: &Transport,
    server: &str,
    login: &Login,
) -> Result<Established, Error> {
    let handshake = Handshake {
        transport: transport.clone(),
        seen: Arc::new(Mutex::new(Seen {
            wants_guest: login.wants_guest(),
            ..Seen::default()
        })),
    };
    let half = || Box::new(handshake.clone());
    let mut smb = connection::Connection::from_transport(half(), half(), server);
    transport.limit_waits_of(&smb);
    transport.request(smb.negotiate()).await?;
    let hash = handshake.seen().hasher.clone();
    smb.with_preauth_hasher_mut(|hasher| *hasher = hash);
    let session = match login {
        Login::Account(Account {
            user,
            domain,
            password,
        }) => {
            let login = Session::setup(&mut smb, user, password, domain);
            transport.request(login).await?
        }
        Login::Tickets(tickets) => transport.request(tickets.log_in(&mut smb, server)).await?,
    };
    let Seen {
        signing_required,
        is_guest,
        ..
    } = *handshake.seen();
    if is_guest && session.should_encrypt {
        return Err(Error::NoKey);
    }
    Ok(Established {
        smb,
        session,
        signing_required: signing_required && !is_guest,
        is_guest,
    })
}

/// A transport that changes NEGOTIATE, and passes all other messages.
#[derive(Clone)]
struct Handshake {
    transport: Transport,
    seen: Arc<Mutex<Seen>>,
}

impl Handshake {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen
            .lock()
            .expect("no thread panics while it holds the lock")
    }
}

/// The results of the handshake.
#[derive(Default)]
struct Seen {
    /// The caller wants a guest or anonymous session. The crate accepts one only for the name `Guest`.
    wants_guest: bool,
    /// The hash of the NEGOTIATE messages as they were on the wire.
    hasher: PreauthHasher,
    signing_required: bool,
    is_guest: bool,
}

impl Seen {
    /// Returns the request to send in place of `message`, if it has to change.
    fn request(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if command(message) != Some(Command::NEGOTIATE) {
            return None;
        }
        let message = offer(message).ok()?;
        self.hasher.update(&message);
        Some(message)
    }

    /// Reads an answer, and hides from the crate what does not concern a guest.
    fn answer(&mut self, message: &mut [u8]) {
        match command(message) {
            Some(Command::NEGOTIATE) => {
                self.hasher.update(message);
                let Ok(response) = NegotiateResponse::decode(message) else {
                    // Data then moves in messages, which are signed.
                    self.signing_required = true;
                    return;
                };
                let mode = response.security_mode;
                self.signing_required = mode & SIGNING_REQUIRED != 0;
                if self.wants_guest {
                    NegotiateResponse::set_security_mode(message, mode & !SIGNING_REQUIRED);
                }
            }
            Some(Command::SESSION_SETUP) => {
                if let Ok(response) = SessionSetupResponse::decode(message) {
                    self.is_guest = response.is_guest_or_anonymous();
                }
            }
            _ => {}
        }
    }
}

/// Returns a NEGOTIATE request that announces encryption, and offers only what the crate can do.
fn offer(message: &[u8]) -> smb2::Result<Vec<u8>> {
    let mut cursor = ReadCursor::new(message);
    let header = Header::unpack(&mut cursor)?;
    let mut request = NegotiateRequest::unpack(&mut cursor)?;
    let capabilities = request.capabilities.bits() | Capabilities::ENCRYPTION;
    request.capabilities = Capabilities::new(capabilities);
    for context in &mut request.negotiate_contexts {
        match context {
            NegotiateContext::Encryption { ciphers } => {
                ciphers.retain(|cipher| [CIPHER_AES_128_CCM, CIPHER_AES_128_GCM].contains(cipher));
            }
            NegotiateContext::Signing { algorithms } => {
                algorithms.retain(|algorithm| *algorithm != SIGNING_HMAC_SHA256);
            }
            _ => {}
        }
    }
    let (mut message, mut body) = (WriteCursor::new(), WriteCursor::new());
    header.pack(&mut message);
    // The offsets within the body count from the header.
    request.pack(&mut body);
    message.write_bytes(body.as_bytes());
    Ok(message.into_inner())
}

/// Returns the command of a message that is not encrypted.
fn command(message: &[u8]) -> Option<Command> {
    SmbHeader::command_and_flags(message).map(|(command, _)| command)
}

#[async_trait]
impl TransportSend for Handshake {
    async fn send(&self, message: &[u8]) -> smb2::Result<()> {
        let changed = self.seen().request(message);
        self.transport
            .send(changed.as_deref().unwrap_or(message))
            .await
    }
}

#[async_trait]
impl TransportReceive for Handshake {
    async fn receive(&self) -> smb2::Result<Vec<u8>> {
        let mut message = self.transport.receive().await?;
        self.seen().answer(&mut message);
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use smb2::{
        msg::negotiate::{SIGNING_AES_CMAC, SIGNING_AES_GMAC},
        pack::Guid,
        types::{Dialect, flags::SecurityMode},
    };
    use smbdirect_test::messages::{SUCCESS, answer, negotiated, other, with};

    use super::*;

    fn hash(messages: &[&[u8]]) -> PreauthHasher {
        let mut hasher = PreauthHasher::new();
        for message in messages {
            hasher.update(message);
        }
        hasher
    }

    fn request() -> Vec<u8> {
        let mut bytes = WriteCursor::new();
        Header::new_request(smb2::types::Command::Negotiate).pack(&mut bytes);
        let mut body = WriteCursor::new();
        let request = NegotiateRequest {
            security_mode: SecurityMode::new(SecurityMode::SIGNING_ENABLED),
            capabilities: Capabilities::new(Capabilities::DFS),
            client_guid: Guid::default(),
            dialects: Dialect::ALL.to_vec(),
            negotiate_contexts: vec![
                NegotiateContext::Encryption {
                    ciphers: vec![4, CIPHER_AES_128_GCM, 3, CIPHER_AES_128_CCM],
                },
                NegotiateContext::Signing {
                    algorithms: vec![SIGNING_AES_GMAC, SIGNING_AES_CMAC, SIGNING_HMAC_SHA256],
                },
            ],
        };
        request.pack(&mut body);
        bytes.write_bytes(body.as_bytes());
        bytes.into_inner()
    }

    #[test]
    fn negotiate_announces_encryption_and_offers_what_the_crate_can_do() {
        let request = request();
        let sent = Seen::default().request(&request).expect("it changes");
        assert_eq!(sent[..64], request[..64], "the header");
        let sent = NegotiateRequest::unpack(&mut ReadCursor::new(&sent[64..])).unwrap();
        let capabilities = Capabilities::DFS | Capabilities::ENCRYPTION;
        assert_eq!(sent.capabilities.bits(), capabilities);
        assert_eq!(sent.dialects, Dialect::ALL);
        let [
            NegotiateContext::Encryption { ciphers },
            NegotiateContext::Signing { algorithms },
        ] = &*sent.negotiate_contexts
        else {
            panic!("{:?}", sent.negotiate_contexts);
        };
        assert_eq!(ciphers, &[CIPHER_AES_128_GCM, CIPHER_AES_128_CCM]);
        assert_eq!(algorithms, &[SIGNING_AES_GMAC, SIGNING_AES_CMAC]);
    }

    #[test]
    fn the_hash_is_of_the_messages_on_the_wire() {
        for (wants_guest, shown) in [(false, 0x03), (true, 0x01)] {
            let mut seen = Seen {
                wants_guest,
                ..Seen::default()
            };
            let sent = seen.request(&request()).expect("it changes");
            let wire = with(negotiated(0x0300), 66, &[0x03]);
            let mut answer = wire.clone();
            seen.answer(&mut answer);
            assert_eq!(answer[66], shown, "SecurityMode");
            assert!(seen.signing_required);
            assert_eq!(seen.hasher.value(), hash(&[&sent, &wire]).value());
        }
    }

    #[test]
    fn a_guest_is_known_by_the_flags_of_the_session() {
        for (flags, is_guest) in [(0, false), (1, true), (2, true), (4, false), (5, true)] {
            let mut seen = Seen::default();
            let body = [9, 0, flags, 0, 0, 0, 0, 0];
            let mut answer = other(answer(1, 7, SUCCESS), &body);
            let before = answer.clone();
            seen.answer(&mut answer);
            assert_eq!(answer, before);
            assert_eq!(seen.is_guest, is_guest, "{flags}");
        }
    }

    #[test]
    fn other_messages_pass_and_short_ones_do_no_harm() {
        let mut seen = Seen::default();
        let (mut sealed, mut login) = (request(), request());
        sealed[0] = 0xfd;
        login[12] = 1; // SESSION_SETUP
        for other in [sealed, login, Vec::new()] {
            assert_eq!(seen.request(&other), None);
        }
        for length in 0..request().len() {
            let short = &mut request()[..length];
            let _ = seen.request(short);
            seen.answer(short);
        }
    }
}
