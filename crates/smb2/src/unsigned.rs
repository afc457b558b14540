//! READ and WRITE with an RDMA channel, without a signature.
//!
//! The crate smb2 signs every request of a session that has a key, and accepts only signed answers. RDMA
//! needs unsigned requests: a server does not have to take a signed one with a channel, the signature of
//! the answer could not cover the data, and ksmbd computes a wrong one. A session that does not require
//! signing may send some requests without a signature ([MS-SMB2] 3.2.4.1.1), and the server leaves the
//! answers to those unsigned (3.3.4.1.1).
//!
//! So the transport removes the signature of exactly these requests, and adds one to exactly their answers,
//! which the crate then verifies. All other messages pass untouched, and stay signed end to end.
//!
//! [MS-SMB2]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-smb2/

use std::{collections::HashSet, fmt};

use aes_gcm::{
    Aes128Gcm, Nonce,
    aead::{Aead, KeyInit, Payload},
};
use smb2::crypto::signing::{self, SigningAlgorithm};

const HEADER_BYTES: usize = 64;
const PROTOCOL_ID: &[u8] = b"\xfeSMB";
const COMMAND_READ: u16 = 0x0008;
const COMMAND_WRITE: u16 = 0x0009;
const FLAG_SIGNED: u32 = 0x0000_0008;
const STATUS_PENDING: u32 = 0x0000_0103;
/// Offsets of Channel in the requests.
const READ_CHANNEL: usize = 100;
const WRITE_CHANNEL: usize = 96;

/// The requests of one connection that were sent without a signature and are not answered.
#[derive(Default)]
pub(crate) struct Unsigned {
    key: Option<(Vec<u8>, SigningAlgorithm)>,
    /// Their MessageIds. The server's credits bound their number.
    waiting: HashSet<u64>,
}

impl fmt::Debug for Unsigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.waiting.len();
        f.debug_struct("Unsigned")
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

impl Unsigned {
    /// Begins to remove signatures; `key` is that of the session.
    pub(crate) fn begin(&mut self, key: Vec<u8>, algorithm: SigningAlgorithm) {
        self.key = Some((key, algorithm));
    }

    /// Returns the request to send in place of `message`, if its signature has to go.
    pub(crate) fn request(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        self.key.as_ref()?;
        let header = Header::of(message)?;
        let at = match header.command {
            COMMAND_READ => READ_CHANNEL,
            COMMAND_WRITE => WRITE_CHANNEL,
            _ => return None,
        };
        let has_channel = u32_at(message, at)? != 0;
        if !has_channel || header.flags & FLAG_SIGNED == 0 || header.next_command != 0 {
            return None;
        }
        let mut message = message.to_vec();
        message[16..20].copy_from_slice(&(header.flags & !FLAG_SIGNED).to_le_bytes());
        message[48..64].fill(0);
        self.waiting.insert(header.message_id);
        Some(message)
    }

    /// Signs `message` if it is the unsigned answer to a request that was sent unsigned.
    pub(crate) fn answer(&mut self, message: &mut [u8]) {
        let Some((header, (key, algorithm))) = Header::of(message).zip(self.key.as_ref()) else {
            return;
        };
        // An interim answer is told by its status alone, also without SMB2_FLAGS_ASYNC_COMMAND: no request ends with
        // STATUS_PENDING, so the answer follows. The crate smb2 decides in the same way.
        if header.status == STATUS_PENDING || header.next_command != 0 {
            return;
        }
        if self.waiting.remove(&header.message_id) && header.flags & FLAG_SIGNED == 0 {
            let flags = header.flags | FLAG_SIGNED;
            message[16..20].copy_from_slice(&flags.to_le_bytes());
            sign_as_server(message, key, *algorithm, header.message_id);
        }
    }
}

/// Signs an answer. Without a valid key it stays unsigned, and the crate smb2 refuses it.
fn sign_as_server(message: &mut [u8], key: &[u8], algorithm: SigningAlgorithm, message_id: u64) {
    message[48..64].fill(0);
    match algorithm {
        SigningAlgorithm::HmacSha256 | SigningAlgorithm::AesCmac => {
            // These two do not depend on the sender.
            let _ = signing::sign_message(message, key, algorithm, message_id, false);
        }
        SigningAlgorithm::AesGmac => {
            // AES-128-GMAC is GCM without plaintext. The nonce is the MessageId and the role, 1 for a
            // server ([MS-SMB2] 3.1.4.1).
            let mut nonce = [0; 12];
            nonce[..8].copy_from_slice(&message_id.to_le_bytes());
            nonce[8] = 1;
            let payload = Payload {
                msg: &[],
                aad: message,
            };
            let nonce = Nonce::from(nonce);
            let cipher = Aes128Gcm::new_from_slice(key).ok();
            let tag = cipher.and_then(|cipher| cipher.encrypt(&nonce, payload).ok());
            if let Some(tag) = tag {
                message[48..64].copy_from_slice(&tag);
            }
        }
    }
}

/// The fields of an SMB2 header that decide.
struct Header {
    status: u32,
    command: u16,
    flags: u32,
    next_command: u32,
    message_id: u64,
}

impl Header {
    /// Decodes the header of a message that is not encrypted or compressed.
    fn of(message: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER_BYTES] = message.first_chunk()?;
        if !header.starts_with(PROTOCOL_ID) {
            return None;
        }
        Some(Self {
            status: u32_at(header, 8)?,
            command: u16::from_le_bytes([header[12], header[13]]),
            flags: u32_at(header, 16)?,
            next_command: u32_at(header, 20)?,
            message_id: u64::from(u32_at(header, 24)?) | u64::from(u32_at(header, 28)?) << 32,
        })
    }
}

fn u32_at(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 16] = *b"0123456789abcdef";
    const ALGORITHMS: [SigningAlgorithm; 3] = [
        SigningAlgorithm::HmacSha256,
        SigningAlgorithm::AesCmac,
        SigningAlgorithm::AesGmac,
    ];

    fn message(command: u16, channel: Option<(usize, u32)>, flags: u32, id: u64) -> Vec<u8> {
        let mut message = vec![0; 128];
        message[..4].copy_from_slice(PROTOCOL_ID);
        message[12..14].copy_from_slice(&command.to_le_bytes());
        message[16..20].copy_from_slice(&flags.to_le_bytes());
        message[24..32].copy_from_slice(&id.to_le_bytes());
        message[48..64].fill(0xee);
        if let Some((at, channel)) = channel {
            message[at..at + 4].copy_from_slice(&channel.to_le_bytes());
        }
        message
    }

    fn begun(algorithm: SigningAlgorithm) -> Unsigned {
        let mut unsigned = Unsigned::default();
        unsigned.begin(KEY.to_vec(), algorithm);
        unsigned
    }

    #[test]
    fn the_answer_to_an_unsigned_request_verifies() {
        for algorithm in ALGORITHMS {
            let mut unsigned = begun(algorithm);
            let read = message(COMMAND_READ, Some((READ_CHANNEL, 2)), FLAG_SIGNED, 77);
            let sent = unsigned.request(&read).expect("the signature goes");
            assert_eq!(u32_at(&sent, 16), Some(0));
            assert_eq!(sent[48..64], [0; 16]);
            assert_eq!(sent[64..], read[64..]);
            let mut interim = message(COMMAND_READ, None, 1, 77); // without the ASYNC flag
            interim[8..12].copy_from_slice(&STATUS_PENDING.to_le_bytes());
            let before = interim.clone();
            unsigned.answer(&mut interim);
            assert_eq!(interim, before, "an interim answer passes");
            let mut answer = message(COMMAND_READ, None, 1, 77);
            unsigned.answer(&mut answer);
            signing::verify_signature(&answer, &KEY, algorithm, 77, false).expect("it verifies");
            assert!(unsigned.waiting.is_empty());
        }
    }

    #[test]
    fn other_requests_stay_signed() {
        let mut unsigned = begun(SigningAlgorithm::AesCmac);
        let mut compound = message(COMMAND_READ, Some((READ_CHANNEL, 2)), FLAG_SIGNED, 1);
        compound[20] = 120;
        for request in [
            message(COMMAND_READ, None, FLAG_SIGNED, 1),
            message(COMMAND_WRITE, None, FLAG_SIGNED, 1),
            message(5, Some((READ_CHANNEL, 2)), FLAG_SIGNED, 1),
            message(COMMAND_WRITE, Some((WRITE_CHANNEL, 1)), 0, 1),
            compound,
            b"\xfdSMB".to_vec(),
            Vec::new(),
        ] {
            assert_eq!(unsigned.request(&request), None);
        }
        let write = message(COMMAND_WRITE, Some((WRITE_CHANNEL, 1)), FLAG_SIGNED, 1);
        assert_eq!(Unsigned::default().request(&write), None, "not begun");
        assert!(unsigned.request(&write).is_some());
    }

    #[test]
    fn an_unsigned_answer_to_a_signed_request_is_not_signed_here() {
        let mut unsigned = begun(SigningAlgorithm::AesGmac);
        let write = message(COMMAND_WRITE, Some((WRITE_CHANNEL, 1)), FLAG_SIGNED, 8);
        unsigned.request(&write).unwrap();
        let mut other = message(COMMAND_WRITE, None, 1, 9);
        let before = other.clone();
        unsigned.answer(&mut other);
        assert_eq!(other, before);
        // A second answer to the same request is refused too.
        let mut answer = message(COMMAND_WRITE, None, 1, 8);
        let twice = answer.clone();
        unsigned.answer(&mut answer);
        assert_ne!(answer, twice);
        let mut again = twice.clone();
        unsigned.answer(&mut again);
        assert_eq!(again, twice);
        // A signed answer keeps the server's signature.
        unsigned.request(&write).unwrap();
        let mut signed = message(COMMAND_WRITE, None, FLAG_SIGNED | 1, 8);
        let before = signed.clone();
        unsigned.answer(&mut signed);
        assert_eq!(signed, before);
    }
}
