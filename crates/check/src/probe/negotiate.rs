//! SMB2 NEGOTIATE, over TCP and over SMB Direct, without a login.

use std::time::Duration;

use bytes::Bytes;
use smb2::{
    msg::{
        header::Header,
        negotiate::{
            CIPHER_AES_128_CCM, CIPHER_AES_128_GCM, CIPHER_AES_256_CCM, CIPHER_AES_256_GCM,
            HASH_ALGORITHM_SHA512, NegotiateContext, NegotiateRequest, NegotiateResponse,
        },
    },
    pack::{Guid, Pack, ReadCursor, Unpack, WriteCursor},
    types::{
        Command, Dialect,
        flags::{Capabilities, SecurityMode},
        status::NtStatus,
    },
};
use smbdirect::Connection;
use smbdirect_smb::frame;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::facts::{Smb, SmbFault};

/// Longest time for the answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer to NEGOTIATE that is read: it has a few hundred bytes.
const MAX_ANSWER_BYTES: usize = 1 << 16;
/// The first byte of a negative session response (RFC 1002, 4.3.4), by which Samba turns an address away.
const NEGATIVE_RESPONSE: u8 = 0x83;
/// Bytes of salt in the preauthentication context.
const SALT_BYTES: usize = 32;

/// Negotiates SMB2 over TCP, and leaves the connection.
pub(super) async fn over_tcp(mut stream: TcpStream) -> Result<Smb, SmbFault> {
    let request = request();
    let exchange = async {
        let header =
            frame::header(request.len()).expect("a NEGOTIATE is shorter than the longest frame");
        stream.write_all(&[&header, &request[..]].concat()).await?;
        let mut header = [0; frame::HEADER_LENGTH];
        stream.read_exact(&mut header).await?;
        if header[0] == NEGATIVE_RESPONSE {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let length = match frame::message_length(header) {
            Ok(length) => (length as usize).min(MAX_ANSWER_BYTES),
            Err(error) => return Ok(Err(error)),
        };
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(Ok(answer))
    };
    match timeout(TIMEOUT, exchange).await {
        Ok(Ok(Ok(answer))) => understand(&answer),
        Ok(Ok(Err(error))) => Err(SmbFault::Other(format!("the answer is not SMB2: {error}"))),
        Ok(Err(_)) => Err(SmbFault::HungUp),
        Err(_) => Err(SmbFault::Silent),
    }
}

/// Negotiates SMB2 over an SMB Direct connection.
pub(super) async fn over_smb_direct(connection: &Connection) -> Result<Smb, SmbFault> {
    let exchange = async {
        let sending = connection.send(Bytes::from(request()));
        sending
            .map_err(|_| SmbFault::HungUp)?
            .await
            .map_err(|_| SmbFault::HungUp)?;
        connection.recv().await.map_err(|_| SmbFault::HungUp)
    };
    match timeout(TIMEOUT, exchange).await {
        Ok(answer) => understand(&answer?.into_bytes()),
        Err(_) => Err(SmbFault::Silent),
    }
}

/// Returns a NEGOTIATE request with all dialects and with the capabilities of a client that uses
/// several channels: some servers name theirs only to such a client.
fn request() -> Vec<u8> {
    let body = NegotiateRequest {
        security_mode: SecurityMode::new(SecurityMode::SIGNING_ENABLED),
        capabilities: Capabilities::new(
            Capabilities::DFS
                | Capabilities::LEASING
                | Capabilities::LARGE_MTU
                | Capabilities::MULTI_CHANNEL
                | Capabilities::ENCRYPTION,
        ),
        client_guid: Guid {
            data1: fastrand::u32(..),
            data2: fastrand::u16(..),
            data3: fastrand::u16(..),
            data4: fastrand::u64(..).to_be_bytes(),
        },
        dialects: Dialect::ALL.to_vec(),
        negotiate_contexts: vec![
            NegotiateContext::PreauthIntegrity {
                hash_algorithms: vec![HASH_ALGORITHM_SHA512],
                salt: std::iter::repeat_with(|| fastrand::u8(..))
                    .take(SALT_BYTES)
                    .collect(),
            },
            NegotiateContext::Encryption {
                ciphers: vec![
                    CIPHER_AES_128_GCM,
                    CIPHER_AES_128_CCM,
                    CIPHER_AES_256_GCM,
                    CIPHER_AES_256_CCM,
                ],
            },
        ],
    };
    let mut cursor = WriteCursor::new();
    Header::new_request(Command::Negotiate).pack(&mut cursor);
    body.pack(&mut cursor);
    cursor.into_inner()
}

fn understand(answer: &[u8]) -> Result<Smb, SmbFault> {
    let other = |what: String| SmbFault::Other(what);
    if answer.get(..4) != Some(b"\xfeSMB") {
        return Err(other("the answer is not SMB2".into()));
    }
    let mut cursor = ReadCursor::new(answer);
    let header = Header::unpack(&mut cursor).map_err(|error| other(error.to_string()))?;
    if header.command != Command::Negotiate || !header.is_response() {
        return Err(other("the answer is not to NEGOTIATE".into()));
    }
    if header.status != NtStatus::SUCCESS {
        return Err(other(format!(
            "NEGOTIATE is refused with {}",
            header.status
        )));
    }
    let response = NegotiateResponse::unpack(&mut cursor);
    let response = response.map_err(|error| other(error.to_string()))?;
    Ok(Smb {
        dialect: response.dialect_revision.into(),
        signing_required: response.security_mode.signing_required(),
        multichannel: response.capabilities.contains(Capabilities::MULTI_CHANNEL),
        max_read_size: response.max_read_size,
        max_write_size: response.max_write_size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_smb2_and_other_answers_are_refused() {
        let request = request();
        assert_eq!(&request[..4], b"\xfeSMB");
        for answer in [&b""[..], b"SSH-2.0", b"\xfeSMB", &request[..70], &request] {
            assert!(
                matches!(understand(answer), Err(SmbFault::Other(_))),
                "{answer:?}"
            );
        }
    }
}
