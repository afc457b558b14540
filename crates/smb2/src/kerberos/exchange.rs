//! The exchange with a KDC for the ticket of a server: TGS-REQ and TGS-REP (RFC 4120 3.3), over TCP (7.2.2).
//!
//! The messages and ciphers are those of the crate smb2. Its own exchange, `KerberosAuthenticator` of version 0.39, has
//! these faults:
//!
//! - It asks by UDP, and by TCP only when three datagrams had no answer, which takes 33 s where a firewall drops UDP.
//! - It does not compare the answer with the request: the answer to another request of this user counts, too.
//! - It asks the KDC and the server in one call, so that a KDC that does not answer looks like a server that does not.
//! - It keeps the ticket to itself.
//!
//! Its functions that encrypt for all kinds of keys are private, so [`seal`] and [`open`] make the profile of RFC 3961
//! 5.3 of its public ones.

use std::{io, time::SystemTime};

use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use sha1::Sha1;
use smb2::auth::kerberos::{
    ccache::{CcacheCredential, CcachePrincipal},
    crypto::{
        EncryptionType, compute_checksum, decrypt_aes_cts, decrypt_rc4_hmac, derive_key_aes,
        encrypt_aes_cts, encrypt_rc4_hmac, usage_enc, usage_int,
    },
    messages::{
        EncryptedData, PrincipalName, encode_ap_req, encode_authenticator, encode_tgs_req,
        encode_tgs_req_body, parse_enc_kdc_rep_part, parse_kdc_rep, parse_krb_error, parse_ticket,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Longest answer of a KDC in bytes.
const MAX_ANSWER_BYTES: u32 = 1 << 20;
/// Key usage numbers (RFC 4120 7.5.1): the checksum over the body of TGS-REQ, the authenticator next to it, and the
/// encrypted part of TGS-REP.
const BODY_CHECKSUM: u32 = 6;
const AUTHENTICATOR: u32 = 7;
const ANSWER: u32 = 8;
/// Name type of a server (RFC 4120 6.2).
const SERVER_AND_INSTANCE: i32 = 2;
/// Tag of KRB-ERROR (RFC 4120 5.9.1).
const KRB_ERROR: u8 = 0x7e;
const MSG_TYPE_TGS_REP: i32 = 13;
/// Bytes of the random data before what AES encrypts, and of the checksum after it.
const CONFOUNDER_BYTES: usize = 16;
const MAC_BYTES: usize = 12;

/// Kinds of keys, in the order of preference.
const ENCRYPTION_TYPES: [EncryptionType; 3] = [
    EncryptionType::Aes256CtsHmacSha196,
    EncryptionType::Aes128CtsHmacSha196,
    EncryptionType::Rc4Hmac,
];

/// Why there is no ticket.
#[derive(Debug)]
pub(super) enum NoTicket {
    /// The KDC does not answer, or its answer is wrong.
    Answer(String),
    /// The KDC refuses with this code and text (RFC 4120 7.5.9).
    Refused(i32, String),
}

impl From<io::Error> for NoTicket {
    fn from(error: io::Error) -> Self {
        Self::Answer(error.to_string())
    }
}

impl From<smb2::Error> for NoTicket {
    fn from(error: smb2::Error) -> Self {
        Self::Answer(error.to_string())
    }
}

impl From<&str> for NoTicket {
    fn from(why: &str) -> Self {
        Self::Answer(why.into())
    }
}

/// A request for the ticket of `cifs/SERVER`.
pub(super) struct Request<'a> {
    /// The ticket that admits to others.
    granting: &'a CcacheCredential,
    kind: EncryptionType,
    server: PrincipalName,
    nonce: u32,
}

impl<'a> Request<'a> {
    /// `granting` has a key that fits its type.
    pub(super) fn new(granting: &'a CcacheCredential, server: &str) -> Self {
        Self {
            granting,
            kind: kind(granting.key_etype).expect("its key fits its type"),
            server: PrincipalName {
                name_type: SERVER_AND_INSTANCE,
                name_string: vec!["cifs".into(), server.into()],
            },
            // Some KDCs take it for a signed number.
            nonce: u32::from_be_bytes(random()) >> 1,
        }
    }

    /// Asks a KDC.
    pub(super) async fn ask(&self, kdc: &mut TcpStream) -> Result<CcacheCredential, NoTicket> {
        let request = self.encode(SystemTime::now())?;
        kdc.write_u32(request.len() as u32).await?;
        kdc.write_all(&request).await?;
        let length = kdc.read_u32().await?;
        if length > MAX_ANSWER_BYTES {
            return Err(format!("an answer of {length} bytes is too long")
                .as_str()
                .into());
        }
        let mut answer = vec![0; length as usize];
        kdc.read_exact(&mut answer).await?;
        self.decode(&answer)
    }

    fn encode(&self, now: SystemTime) -> Result<Vec<u8>, NoTicket> {
        let CcacheCredential {
            client,
            key_data: key,
            ticket,
            ..
        } = self.granting;
        let body = encode_tgs_req_body(&client.realm, &self.server, self.nonce, &ENCRYPTION_TYPES);
        let checksum = compute_checksum(key, BODY_CHECKSUM, &body, self.kind);
        let checksum_type = match self.kind {
            EncryptionType::Aes256CtsHmacSha196 => 16,
            EncryptionType::Aes128CtsHmacSha196 => 15,
            EncryptionType::Rc4Hmac => -138,
        };
        let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH);
        let authenticator = encode_authenticator(
            &client.realm,
            &PrincipalName {
                name_type: client.name_type.cast_signed(),
                name_string: client.components.clone(),
            },
            &now.strftime("%Y%m%d%H%M%SZ").to_string(),
            now.subsec_nanosecond().unsigned_abs() / 1000,
            None,
            None,
            Some((&checksum, checksum_type)),
        );
        let authenticator = EncryptedData {
            etype: self.kind as i32,
            kvno: None,
            cipher: seal(self.kind, key, AUTHENTICATOR, &authenticator),
        };
        let admission = encode_ap_req(&parse_ticket(ticket)?, &authenticator, false);
        let realm = &client.realm;
        Ok(encode_tgs_req(
            realm,
            &self.server,
            self.nonce,
            &ENCRYPTION_TYPES,
            &admission,
        ))
    }

    fn decode(&self, answer: &[u8]) -> Result<CcacheCredential, NoTicket> {
        if answer.first() == Some(&KRB_ERROR) {
            let error = parse_krb_error(answer)?;
            return Err(NoTicket::Refused(
                error.error_code,
                error.e_text.unwrap_or_default(),
            ));
        }
        let answer = parse_kdc_rep(answer)?;
        let part = open(
            self.kind,
            &self.granting.key_data,
            ANSWER,
            &answer.enc_part.cipher,
        )?;
        let part = parse_enc_kdc_rep_part(&part)?;
        let is_ours = answer.msg_type == MSG_TYPE_TGS_REP
            && part.nonce == self.nonce
            && part.sname.name_string == self.server.name_string;
        if !is_ours {
            return Err("its answer is that to another request".into());
        }
        let ticket = answer.ticket.raw_bytes.ok_or("its answer has no ticket")?;
        Ok(CcacheCredential {
            server: CcachePrincipal {
                name_type: SERVER_AND_INSTANCE.cast_unsigned(),
                realm: part.srealm,
                components: part.sname.name_string,
            },
            key_etype: part.key.keytype.try_into().unwrap_or_default(),
            key_data: part.key.keyvalue,
            ticket,
            // It is used immediately.
            ..self.granting.clone()
        })
    }
}

/// Returns the kind of a key that the crate smb2 has.
pub(super) fn kind(encryption_type: u16) -> Option<EncryptionType> {
    let is_it = |kind: &EncryptionType| *kind as u16 == encryption_type;
    ENCRYPTION_TYPES.into_iter().find(is_it)
}

/// Encrypts, and authenticates.
fn seal(kind: EncryptionType, key: &[u8], usage: u32, text: &[u8]) -> Vec<u8> {
    if kind == EncryptionType::Rc4Hmac {
        return encrypt_rc4_hmac(key, usage, text);
    }
    let text = [&random::<CONFOUNDER_BYTES>(), text].concat();
    let mut sealed = encrypt_aes_cts(&derive_key_aes(key, &usage_enc(usage)), &[0; 16], &text);
    let checksum = mac(key, usage, &text).finalize().into_bytes();
    sealed.extend(&checksum[..MAC_BYTES]);
    sealed
}

/// Decrypts what [`seal`] has encrypted.
fn open(kind: EncryptionType, key: &[u8], usage: u32, sealed: &[u8]) -> Result<Vec<u8>, NoTicket> {
    if kind == EncryptionType::Rc4Hmac {
        return Ok(decrypt_rc4_hmac(key, usage, sealed)?);
    }
    let end = sealed
        .len()
        .checked_sub(MAC_BYTES)
        .filter(|end| *end >= CONFOUNDER_BYTES);
    let (sealed, checksum) = sealed.split_at(end.ok_or("its answer is too short")?);
    let text = decrypt_aes_cts(&derive_key_aes(key, &usage_enc(usage)), &[0; 16], sealed)?;
    let is_whole = mac(key, usage, &text)
        .verify_truncated_left(checksum)
        .is_ok();
    let text = text.get(CONFOUNDER_BYTES..).filter(|_| is_whole);
    Ok(text
        .ok_or("its answer is not encrypted for this user")?
        .to_vec())
}

/// Returns the checksum of a text for AES.
fn mac(key: &[u8], usage: u32, text: &[u8]) -> Hmac<Sha1> {
    let key = derive_key_aes(key, &usage_int(usage));
    let mac = <Hmac<Sha1> as KeyInit>::new_from_slice(&key);
    mac.expect("a key of any length").chain_update(text)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    bytes
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            cache::TICKET,
            tests::{element, granting},
        },
        *,
    };

    /// RFC 3962 has no test for a whole message, so this shows that each part is undone, and that a change is found;
    /// `interop/kerberos` shows that MIT Kerberos reads it.
    #[test]
    fn what_is_sealed_opens_with_the_same_key_and_usage_only() {
        for kind in ENCRYPTION_TYPES {
            let bytes = if kind == EncryptionType::Aes256CtsHmacSha196 {
                32
            } else {
                16
            };
            let (key, other) = (vec![7; bytes], vec![8; bytes]);
            for length in [0, 1, 15, 16, 17, 1000] {
                let text = vec![9; length];
                let sealed = seal(kind, &key, ANSWER, &text);
                assert_eq!(open(kind, &key, ANSWER, &sealed).unwrap(), text);
                assert!(open(kind, &other, ANSWER, &sealed).is_err());
                assert!(open(kind, &key, AUTHENTICATOR, &sealed).is_err());
                for at in 0..sealed.len() {
                    let mut changed = sealed.clone();
                    changed[at] ^= 1;
                    assert!(open(kind, &key, ANSWER, &changed).is_err());
                    assert!(open(kind, &key, ANSWER, &sealed[..at]).is_err());
                }
            }
        }
    }

    /// Returns a TGS-REP with the ticket of a server.
    fn answer(request: &Request<'_>, msg_type: u8, nonce: u32, server: &str) -> Vec<u8> {
        let text = |text: &str| element(0x1b, &[text.as_bytes()]);
        let number = |tag, number: u8| element(tag, &[&[2, 1, number]]);
        let name = |parts: &[&str]| {
            let parts: Vec<_> = parts.iter().map(|part| text(part)).collect();
            let parts = element(0x30, &[&parts.concat()]);
            element(0x30, &[&number(0xa0, 2), &element(0xa1, &[&parts])])
        };
        let realm = |tag| element(tag, &[&text("EXAMPLE.ORG")]);
        let time = |tag| element(tag, &[&element(0x18, &[b"20260101000000Z"])]);
        let key = element(0xa1, &[&element(4, &[&[9; 32]])]);
        let part = element(
            0x30,
            &[
                &element(0xa0, &[&element(0x30, &[&number(0xa0, 18), &key])]),
                &element(0xa2, &[&element(2, &[&nonce.to_be_bytes()])]),
                &element(0xa4, &[&[3, 5, 0, 0, 0, 0, 0]]),
                &time(0xa5),
                &time(0xa7),
                &realm(0xa9),
                &element(0xaa, &[&name(&["cifs", server])]),
            ],
        );
        let part = element(0x7a, &[&part]);
        let cipher = seal(request.kind, &request.granting.key_data, ANSWER, &part);
        let cipher = element(0xa2, &[&element(4, &[&cipher])]);
        let fields = element(
            0x30,
            &[
                &number(0xa0, 5),
                &number(0xa1, msg_type),
                &realm(0xa3),
                &element(0xa4, &[&name(&["me"])]),
                &element(0xa5, &[&TICKET]),
                &element(0xa6, &[&element(0x30, &[&number(0xa0, 18), &cipher])]),
            ],
        );
        element(0x60 + msg_type, &[&fields])
    }

    #[test]
    fn only_the_answer_to_the_request_counts() {
        let granting = granting(0);
        let request = Request::new(&granting, "nas");
        let ticket = request
            .decode(&answer(&request, 13, request.nonce, "nas"))
            .unwrap();
        assert_eq!(ticket.server.components, ["cifs", "nas"]);
        assert_eq!(
            (ticket.key_etype, &*ticket.key_data, &*ticket.ticket),
            (18, &[9; 32][..], &TICKET[..])
        );
        for (msg_type, nonce, server) in [
            (11, request.nonce, "nas"),
            (13, request.nonce ^ 1, "nas"),
            (13, request.nonce, "other"),
        ] {
            let answer = answer(&request, msg_type, nonce, server);
            let error = request.decode(&answer).unwrap_err();
            assert!(
                matches!(&error, NoTicket::Answer(why) if why.contains("another request")),
                "{error:?}"
            );
        }
        let answer = answer(&request, 13, request.nonce, "nas");
        for length in 0..answer.len() {
            assert!(request.decode(&answer[..length]).is_err());
        }
    }
}
