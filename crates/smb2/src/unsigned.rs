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

use std::{collections::HashSet, fmt, ops::Range};

use aes_gcm::{
    Aes128Gcm, Nonce,
    aead::{Aead, KeyInit, Payload},
};
use smb2::crypto::signing::{self, SigningAlgorithm};
use smbdirect_smb::smb2::{Channel, Command, Flags, Header};

/// Where the signature is in a message.
const SIGNATURE: Range<usize> = 48..Header::LENGTH;

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
        let mut header = Header::decode(message).ok()?;
        let moves_data = matches!(header.command, Command::READ | Command::WRITE);
        if !moves_data
            || Channel::of_request(header.command, message).ok()? == Channel::None
            || !header.is_signed()
            || header.next_command != 0
        {
            return None;
        }
        header.flags = Flags(header.flags.0 & !Flags::SIGNED.0);
        header.signature = [0; 16];
        let mut unsigned = Vec::with_capacity(message.len());
        header.encode(&mut unsigned);
        unsigned.extend_from_slice(&message[Header::LENGTH..]);
        self.waiting.insert(header.message_id);
        Some(unsigned)
    }

    /// Signs `message` if it is the unsigned answer to a request that was sent unsigned.
    pub(crate) fn answer(&mut self, message: &mut [u8]) {
        let (Ok(mut header), Some((key, algorithm))) = (Header::decode(message), &self.key) else {
            return;
        };
        // The crate smb2 decides in the same way which answers are interim.
        if header.is_interim() || header.next_command != 0 {
            return;
        }
        if self.waiting.remove(&header.message_id) && !header.is_signed() {
            header.flags = header.flags | Flags::SIGNED;
            header.encode(&mut &mut *message);
            sign_as_server(message, key, *algorithm, header.message_id);
        }
    }
}

/// Signs an answer. Without a valid key it stays unsigned, and the crate smb2 refuses it.
fn sign_as_server(message: &mut [u8], key: &[u8], algorithm: SigningAlgorithm, message_id: u64) {
    message[SIGNATURE].fill(0);
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
                message[SIGNATURE].copy_from_slice(&tag);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use smbdirect_test::messages::{
        PENDING, READ, SIGNED, SUCCESS, V1, V1_INVALIDATE, WRITE, answer, compound, flagged, read,
        u32_at, with, write, write_by_rdma,
    };

    use super::*;

    const KEY: [u8; 16] = *b"0123456789abcdef";
    const ALGORITHMS: [SigningAlgorithm; 3] = [
        SigningAlgorithm::HmacSha256,
        SigningAlgorithm::AesCmac,
        SigningAlgorithm::AesGmac,
    ];

    fn begun(algorithm: SigningAlgorithm) -> Unsigned {
        let mut unsigned = Unsigned::default();
        unsigned.begin(KEY.to_vec(), algorithm);
        unsigned
    }

    /// Returns a signed READ with a channel.
    fn signed_read(message_id: u64) -> Vec<u8> {
        flagged(read(message_id, 0, 9, V1_INVALIDATE, &[]), SIGNED)
    }

    fn signed_write(message_id: u64) -> Vec<u8> {
        flagged(write_by_rdma(message_id, 0, 9, V1, &[]), SIGNED)
    }

    #[test]
    fn the_answer_to_an_unsigned_request_verifies() {
        for algorithm in ALGORITHMS {
            let mut unsigned = begun(algorithm);
            let read = signed_read(77);
            let sent = unsigned.request(&read).expect("the signature goes");
            assert_eq!(u32_at(&sent, 16), 0);
            assert_eq!(sent[48..64], [0; 16]);
            assert_eq!(sent[64..], read[64..]);
            // An interim answer, without the flag ASYNC.
            let before = answer(READ, 77, PENDING);
            let mut pending = before.clone();
            unsigned.answer(&mut pending);
            assert_eq!(pending, before, "an interim answer passes");
            let mut answer = answer(READ, 77, SUCCESS);
            unsigned.answer(&mut answer);
            signing::verify_signature(&answer, &KEY, algorithm, 77, false).expect("it verifies");
            assert!(unsigned.waiting.is_empty());
        }
    }

    #[test]
    fn other_requests_stay_signed() {
        let mut unsigned = begun(SigningAlgorithm::AesCmac);
        for request in [
            flagged(read(1, 0, 9, 0, &[]), SIGNED),
            flagged(write(1, 0, b"data"), SIGNED),
            with(signed_read(1), 12, &[5]),
            write_by_rdma(1, 0, 9, V1, &[]),
            compound(&[signed_read(1), signed_read(2)]),
            signed_read(1)[..100].to_vec(),
            b"\xfdSMB".to_vec(),
            Vec::new(),
        ] {
            assert_eq!(unsigned.request(&request), None);
        }
        let write = signed_write(1);
        assert_eq!(Unsigned::default().request(&write), None, "not begun");
        assert!(unsigned.request(&write).is_some());
    }

    #[test]
    fn an_unsigned_answer_to_a_signed_request_is_not_signed_here() {
        let mut unsigned = begun(SigningAlgorithm::AesGmac);
        let write = signed_write(8);
        unsigned.request(&write).unwrap();
        let mut other = answer(WRITE, 9, SUCCESS);
        let before = other.clone();
        unsigned.answer(&mut other);
        assert_eq!(other, before);
        // A second answer to the same request is refused too.
        let twice = answer(WRITE, 8, SUCCESS);
        let mut first = twice.clone();
        unsigned.answer(&mut first);
        assert_ne!(first, twice);
        let mut again = twice.clone();
        unsigned.answer(&mut again);
        assert_eq!(again, twice);
        // A signed answer keeps the server's signature.
        unsigned.request(&write).unwrap();
        let before = flagged(twice, SIGNED);
        let mut signed = before.clone();
        unsigned.answer(&mut signed);
        assert_eq!(signed, before);
    }
}
