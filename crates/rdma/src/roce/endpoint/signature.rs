//! The signature with which the ends of this library recognise each other in private data.
//!
//! It is in the last 8 bytes of the private data of REQ, REP and DREQ, where other implementations
//! have zeros and which SMB Direct does not use. It has three uses:
//!
//! * A REQ or DREQ with it is answered to the UDP port it came from. Other implementations receive on
//!   port 4791 only, and choose any source port.
//! * The length of the private data is transmitted.
//! * A DREQ tells whether the connection ended gracefully.

use bytes::Bytes;

use crate::roce::cm::PrivateData;

/// The first 7 bytes of the signature.
const MAGIC: [u8; 7] = *b"SMBDudp";
/// The length of the signature in bytes.
const LENGTH: usize = MAGIC.len() + 1;

/// Returns private data with the signature. `value` is its last byte.
fn signed<const N: usize>(data: &[u8], value: u8) -> Option<PrivateData<N>> {
    let mut bytes = [0; N];
    let room = N - LENGTH;
    bytes
        .get_mut(..room)?
        .get_mut(..data.len())?
        .copy_from_slice(data);
    bytes[room..][..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[N - 1] = value;
    PrivateData::new(&bytes).ok()
}

/// Returns the last byte of the signature, if there is one.
fn value<const N: usize>(data: &PrivateData<N>) -> Option<u8> {
    match data.as_bytes().last_chunk::<LENGTH>()? {
        [magic @ .., value] if magic == &MAGIC => Some(*value),
        _ => None,
    }
}

/// Returns `header` and `data` with a signature that holds the length of `data`, or `None` if they are too long.
pub(super) fn sign<const N: usize>(header: &[u8], data: &[u8]) -> Option<PrivateData<N>> {
    let length = u8::try_from(data.len()).ok()?;
    signed(&[header, data].concat(), length)
}

/// Returns the private data after the first `header` bytes, and whether the peer is an end of this library.
/// Private data of another implementation has zeros at its end.
pub(super) fn open<const N: usize>(data: &PrivateData<N>, header: usize) -> (Bytes, bool) {
    let bytes = &data.as_bytes()[header..];
    match value(data) {
        Some(length) if usize::from(length) + LENGTH <= bytes.len() => {
            (Bytes::copy_from_slice(&bytes[..usize::from(length)]), true)
        }
        _ => (Bytes::copy_from_slice(bytes), false),
    }
}

/// Returns whether private data has the signature.
pub(super) fn is_signed<const N: usize>(data: &PrivateData<N>) -> bool {
    value(data).is_some()
}

/// The cause of a disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// All work was finished.
    Graceful,
    /// The peer aborted the connection.
    Aborted,
    /// The connection broke at the peer.
    Broken,
}

impl Cause {
    /// Returns the private data of a DREQ with this cause.
    pub(super) fn sign(self) -> PrivateData<220> {
        signed(&[], self as u8).expect("the signature fits")
    }

    /// Returns the cause of a DREQ. Other implementations do not report the cause. Their disconnects count as
    /// graceful.
    pub(super) fn of(data: &PrivateData<220>) -> Self {
        match value(data) {
            Some(1) => Self::Aborted,
            Some(2) => Self::Broken,
            _ => Self::Graceful,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_arrives_with_its_length() {
        for length in [0, 1, 48] {
            let data = vec![0; length];
            let signed = sign::<92>(&[9; 36], &data).unwrap();
            assert_eq!(open(&signed, 36), (Bytes::from(data), true));
        }
        assert_eq!(sign::<92>(&[9; 36], &[0; 49]), None);
        assert_eq!(sign::<196>(&[], &[0; 189]), None);
    }

    #[test]
    fn other_private_data_is_padded() {
        let mut bytes = [0; 92];
        bytes[36..39].copy_from_slice(&[1, 2, 3]);
        let (data, is_ours) = open(&PrivateData::<92>::new(&bytes).unwrap(), 36);
        assert!(!is_ours && data.len() == 56 && data.starts_with(&[1, 2, 3]));
        // A length that does not fit shows that there is no signature.
        bytes[84..91].copy_from_slice(&MAGIC);
        bytes[91] = 49;
        assert!(!open(&PrivateData::<92>::new(&bytes).unwrap(), 36).1);
    }

    #[test]
    fn causes_are_told() {
        for cause in [Cause::Graceful, Cause::Aborted, Cause::Broken] {
            assert_eq!(Cause::of(&cause.sign()), cause);
        }
        assert_eq!(Cause::of(&PrivateData::default()), Cause::Graceful);
    }
}
