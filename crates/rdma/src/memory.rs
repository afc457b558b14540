//! The table of registered buffers, which permits or refuses each access of the peer.
//!
//! Each connection has its own table, which is its protection domain: a token is not valid on another connection.
//! The table owns a buffer from [`register`](MemoryTable::register) to [`deregister`](MemoryTable::deregister).
//! Tokens and base offsets are random, so a peer cannot guess values that were not advertised to it.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt, io,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use super::work::{Access, ByteCount, RemoteAddress, Token};

/// A registration, as its owner advertises it to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The token, and the offset at which the buffer starts.
    pub address: RemoteAddress,
    /// The length of the buffer, in bytes.
    pub length: u32,
}

/// The error of a failed registration.
#[derive(Error)]
#[error("{reason}")]
pub struct RegisterError {
    /// The buffer, unchanged.
    pub buffer: BytesMut,
    /// The reason.
    pub reason: RegisterFault,
}

impl From<RegisterError> for io::Error {
    fn from(error: RegisterError) -> Self {
        error.reason.into()
    }
}

/// Shows the number of bytes in the buffer, and not the bytes.
impl fmt::Debug for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterError")
            .field("buffer", &ByteCount(self.buffer.len()))
            .field("reason", &self.reason)
            .finish()
    }
}

/// The reason why a buffer cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterFault {
    /// The buffer is too long for the 32 bits of a buffer descriptor.
    #[error("a registered buffer has at most 4294967295 bytes")]
    TooLong,
    /// The operating system returned no random numbers, or too many buffers are registered.
    #[error("no token could be made")]
    NoToken,
    /// The provider refused the registration, with an error code of the operating system.
    #[error("the provider refused the registration (error {0})")]
    Provider(i32),
    /// The connection has ended or is closing, so the peer cannot use the buffer any more.
    #[error("the connection has ended or is closing")]
    Connection,
}

impl From<RegisterFault> for io::Error {
    fn from(fault: RegisterFault) -> Self {
        let kind = match fault {
            RegisterFault::TooLong => io::ErrorKind::InvalidInput,
            RegisterFault::NoToken => io::ErrorKind::OutOfMemory,
            RegisterFault::Provider(number) => Self::from_raw_os_error(number).kind(),
            RegisterFault::Connection => io::ErrorKind::NotConnected,
        };
        Self::new(kind, fault)
    }
}

/// Returns a buffer with its length as a buffer descriptor holds it. An implementation of
/// [`QueuePair::register`](super::provider::QueuePair::register) calls this first.
///
/// # Errors
/// Returns an error that holds the buffer if it has 4 GiB or more.
pub fn in_one_descriptor(buffer: BytesMut) -> Result<(BytesMut, u32), RegisterError> {
    match u32::try_from(buffer.len()) {
        Ok(length) => Ok((buffer, length)),
        Err(_) => Err(RegisterError {
            buffer,
            reason: RegisterFault::TooLong,
        }),
    }
}

/// The reason why a registration cannot be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeregisterError {
    /// Queued work still reads from the buffer. The access of the peer has already ended.
    #[error("work that is still queued names the buffer")]
    InUse,
    /// No buffer is registered under this token.
    #[error("no buffer is registered under this token")]
    Unknown,
}

impl From<DeregisterError> for io::Error {
    fn from(error: DeregisterError) -> Self {
        Self::other(error)
    }
}

/// The reason why an access of the peer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AccessFault {
    /// No valid registration has this token.
    #[error("the token names no valid registration")]
    InvalidToken,
    /// Some of the bytes are outside the registration.
    #[error("the bytes lie outside the registration")]
    Bounds,
    /// The registration does not allow this kind of access.
    #[error("the registration does not allow this access")]
    Rights,
    /// The sum of offset and length exceeds the address space.
    #[error("offset and length wrap around")]
    Wrap,
}

/// The registered buffers of one connection.
#[derive(Debug, Default)]
pub struct MemoryTable {
    regions: BTreeMap<Token, Region>,
}

#[derive(Debug)]
struct Region {
    base: u64,
    access: Access,
    /// Whether neither end has invalidated the token. The buffer stays until it is deregistered.
    valid: bool,
    memory: Memory,
}

/// The memory of a region. Queued work can share a buffer that is only read, but not one that is
/// written.
///
/// A reference count of its own tracks the queued work. The count of `Bytes` would also count other
/// slices of the same allocation, and so a buffer that was split off a larger one might never be
/// returned.
#[derive(Debug)]
enum Memory {
    ReadOnly {
        buffer: Arc<BytesMut>,
        /// The buffer as queued work shares it; empty when the registration has ended.
        loan: Bytes,
    },
    Writable(BytesMut),
}

/// The bytes for an RDMA Read of the peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Readable<'a> {
    /// Bytes of a read-only buffer, which the sender may share.
    Shared(Bytes),
    /// Bytes of a buffer that the peer may write at any time, which the sender has to copy.
    Borrowed(&'a [u8]),
}

impl AsRef<[u8]> for Readable<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes,
            Self::Borrowed(bytes) => bytes,
        }
    }
}

/// The reference of queued work to a buffer.
struct Loan(Arc<BytesMut>);

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Memory {
    /// Returns the length of the buffer, in bytes.
    fn len(&self) -> usize {
        match self {
            Self::ReadOnly { buffer, .. } => buffer.len(),
            Self::Writable(bytes) => bytes.len(),
        }
    }
}

/// The lowest token that is assigned. A peer would guess small numbers first, and ready-to-receive
/// frames carry 0 and 1.
const LOWEST_TOKEN: u32 = 0x100;
/// The alignment of base offsets, in bytes.
const BASE_ALIGNMENT: u64 = 4096;

impl MemoryTable {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `buffer`, so that the peer can access it as `access` permits.
    ///
    /// # Errors
    /// Returns an error that holds the buffer if it has 4 GiB or more, or if the system has no
    /// random numbers.
    pub fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        let (buffer, length) = in_one_descriptor(buffer)?;
        //= SEC-01
        for _ in 0..64 {
            let Ok(random) = getrandom::u64() else { break };
            let token = Token((random >> 32) as u32);
            // The random bits of the base end at bit 43, so no buffer reaches the end of the address space.
            let base = u64::from(random as u32) * BASE_ALIGNMENT;
            if token.0 < LOWEST_TOKEN {
                continue;
            }
            if let Entry::Vacant(entry) = self.regions.entry(token) {
                //= SMBD-3.1.4.3-01
                let memory = if access.contains(Access::REMOTE_WRITE) {
                    Memory::Writable(buffer)
                } else {
                    let buffer = Arc::new(buffer);
                    let loan = Bytes::from_owner(Loan(buffer.clone()));
                    Memory::ReadOnly { buffer, loan }
                };
                entry.insert(Region {
                    base,
                    access,
                    valid: true,
                    memory,
                });
                return Ok(Registration {
                    address: RemoteAddress {
                        token,
                        offset: base,
                    },
                    length,
                });
            }
        }
        Err(RegisterError {
            buffer,
            reason: RegisterFault::NoToken,
        })
    }

    /// Ends a registration and returns the buffer. The access of the peer ends with this call, even
    /// if the buffer is still in use.
    ///
    /// # Errors
    /// Returns [`DeregisterError::InUse`] while slices from [`read`](Self::read) exist, and
    /// [`DeregisterError::Unknown`] if the token is not registered.
    pub fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        let Entry::Occupied(mut entry) = self.regions.entry(token) else {
            return Err(DeregisterError::Unknown);
        };
        //= SMBD-3.1.4.4-03
        //= SMBD-3.1.4.4-04
        //= SEC-05
        entry.get_mut().valid = false;
        let Region {
            base,
            access,
            memory,
            ..
        } = entry.remove();
        match memory {
            Memory::Writable(buffer) => Ok(buffer),
            Memory::ReadOnly { buffer, loan } => {
                drop(loan);
                Arc::try_unwrap(buffer).map_err(|buffer| {
                    let loan = Bytes::new();
                    let memory = Memory::ReadOnly { buffer, loan };
                    self.regions.insert(
                        token,
                        Region {
                            base,
                            access,
                            valid: false,
                            memory,
                        },
                    );
                    DeregisterError::InUse
                })
            }
        }
    }

    /// Invalidates a token on behalf of the peer. Invalidating a token again is not an error.
    ///
    /// # Errors
    /// Returns an error if the token is unknown, or if its registration does not allow remote
    /// invalidation.
    pub fn invalidate(&mut self, token: Token) -> Result<(), AccessFault> {
        //= RDMAP-13
        let region = self
            .regions
            .get_mut(&token)
            .ok_or(AccessFault::InvalidToken)?;
        if !region.access.contains(Access::REMOTE_INVALIDATE) {
            return Err(AccessFault::Rights);
        }
        region.valid = false;
        Ok(())
    }

    /// Checks whether the peer has the right `right` to `length` bytes at `at`.
    ///
    /// # Errors
    /// Returns the first fault in this order: token, right, wrap, bounds.
    pub fn check(&self, at: RemoteAddress, length: u32, right: Access) -> Result<(), AccessFault> {
        self.find(at, length, right).map(|_| ())
    }

    /// Returns the bytes for an RDMA Read of the peer.
    ///
    /// # Errors
    /// Returns the same faults as [`check`](Self::check).
    pub fn read(&self, from: RemoteAddress, length: u32) -> Result<Readable<'_>, AccessFault> {
        let (region, start) = self.find(from, length, Access::REMOTE_READ)?;
        let range = start..start + length as usize;
        Ok(match &region.memory {
            Memory::ReadOnly { loan, .. } => Readable::Shared(loan.slice(range)),
            Memory::Writable(bytes) => Readable::Borrowed(&bytes[range]),
        })
    }

    /// Returns the bytes that an RDMA Write of the peer overwrites.
    ///
    /// # Errors
    /// Returns the same faults as [`check`](Self::check).
    pub fn write(&mut self, to: RemoteAddress, length: u32) -> Result<&mut [u8], AccessFault> {
        let region = self.regions.get_mut(&to.token);
        let start = locate(region.as_deref(), to, length, Access::REMOTE_WRITE)?;
        match region.map(|region| &mut region.memory) {
            Some(Memory::Writable(bytes)) => Ok(&mut bytes[start..start + length as usize]),
            _ => unreachable!("a region with remote write access is writable"),
        }
    }

    /// Returns the number of registrations, including invalidated ones.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns the region of an access that passes all checks, and the position of its first byte.
    fn find(
        &self,
        at: RemoteAddress,
        length: u32,
        right: Access,
    ) -> Result<(&Region, usize), AccessFault> {
        let region = self.regions.get(&at.token);
        let start = locate(region, at, length, right)?;
        let region = region.expect("the access is inside a region");
        Ok((region, start))
    }
}

/// Returns the position of the first byte of an access that passes all checks.
#[inline]
fn locate(
    region: Option<&Region>,
    at: RemoteAddress,
    length: u32,
    right: Access,
) -> Result<usize, AccessFault> {
    //= SEC-02
    //= DDP-15
    let region = region.filter(|region| region.valid);
    let region = region.ok_or(AccessFault::InvalidToken)?;
    //= SEC-03
    if !region.access.contains(right) {
        return Err(AccessFault::Rights);
    }
    //= DDP-14
    at.offset
        .checked_add(u64::from(length))
        .ok_or(AccessFault::Wrap)?;
    //= SEC-04
    let start = at
        .offset
        .checked_sub(region.base)
        .ok_or(AccessFault::Bounds)?;
    let size = region.memory.len() as u64;
    if u64::from(length) > size || start > size - u64::from(length) {
        return Err(AccessFault::Bounds);
    }
    Ok(start as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Access = Access::REMOTE_READ;
    const WRITE: Access = Access::REMOTE_WRITE;

    fn buffer(length: usize) -> BytesMut {
        (0..length).map(|i| i as u8).collect()
    }

    fn past(registration: Registration, bytes: u64) -> RemoteAddress {
        let RemoteAddress { token, offset } = registration.address;
        RemoteAddress {
            token,
            offset: offset.wrapping_add(bytes),
        }
    }

    //= SEC-04 test
    //= DDP-14 test
    //= DDP-15 test
    #[test]
    fn bounds_are_checked_to_the_byte() {
        let mut table = MemoryTable::new();
        let region = table.register(buffer(100), READ | WRITE).unwrap();
        for (start, length, expected) in [
            (0, 100, Ok(())),
            (0, 0, Ok(())),
            (100, 0, Ok(())),
            (99, 1, Ok(())),
            (99, 2, Err(AccessFault::Bounds)),
            (100, 1, Err(AccessFault::Bounds)),
            (101, 0, Err(AccessFault::Bounds)),
            (0, 101, Err(AccessFault::Bounds)),
            (u64::MAX, 1, Err(AccessFault::Bounds)),
            (50, u32::MAX, Err(AccessFault::Bounds)),
        ] {
            assert_eq!(
                table.check(past(region, start), length, READ),
                expected,
                "{start} {length}"
            );
            assert_eq!(
                table.write(past(region, start), length).map(|_| ()),
                expected
            );
        }
        let top = RemoteAddress {
            token: region.address.token,
            offset: u64::MAX,
        };
        assert_eq!(table.check(top, 2, READ), Err(AccessFault::Wrap));
    }

    //= SEC-03 test
    //= SMBD-3.1.4.3-01 test
    #[test]
    fn only_granted_rights_are_permitted() {
        for access in (0..8).map(Access::from_bits_truncate) {
            let mut table = MemoryTable::new();
            let region = table.register(buffer(8), access).unwrap();
            let address = region.address;
            assert_eq!(table.read(address, 8).is_ok(), access.contains(READ));
            assert_eq!(table.write(address, 8).is_ok(), access.contains(WRITE));
            let invalidate = access.contains(Access::REMOTE_INVALIDATE);
            assert_eq!(table.invalidate(address.token).is_ok(), invalidate);
        }
    }

    //= RDMAP-13 test
    //= SMBD-3.1.4.4-04 test
    //= DDP-15 test
    #[test]
    fn an_invalidated_token_grants_no_access_and_its_buffer_is_returned() {
        let mut table = MemoryTable::new();
        let region = table
            .register(buffer(8), WRITE | Access::REMOTE_INVALIDATE)
            .unwrap();
        table.write(region.address, 8).unwrap().fill(7);
        let token = region.address.token;
        assert_eq!(table.invalidate(token), Ok(()));
        assert_eq!(table.invalidate(token), Ok(()));
        assert_eq!(
            table.write(region.address, 8),
            Err(AccessFault::InvalidToken)
        );
        assert_eq!(
            table.invalidate(Token(token.0 ^ 1)),
            Err(AccessFault::InvalidToken)
        );
        assert_eq!(table.deregister(token).unwrap(), &[7; 8][..]);
        assert_eq!(table.deregister(token), Err(DeregisterError::Unknown));
        assert!(table.is_empty());
    }

    //= SMBD-3.1.4.4-03 test
    //= SEC-05 test
    #[test]
    fn a_buffer_in_use_is_returned_once_it_was_sent() {
        let mut table = MemoryTable::new();
        let region = table.register(buffer(8), READ).unwrap();
        let token = region.address.token;
        let Ok(Readable::Shared(outgoing)) = table.read(region.address, 4) else {
            panic!("the buffer is read-only");
        };
        assert_eq!(table.deregister(token), Err(DeregisterError::InUse));
        assert_eq!(
            table.read(region.address, 4),
            Err(AccessFault::InvalidToken)
        );
        drop(outgoing);
        let pointer = table.deregister(token).unwrap();
        assert_eq!(pointer, &[0, 1, 2, 3, 4, 5, 6, 7][..]);
    }

    //= SMBD-3.1.4.4-03 test
    #[test]
    fn empty_and_split_buffers_are_returned() {
        let mut table = MemoryTable::new();
        let mut rest = buffer(16);
        let part = rest.split_to(8);
        for buffer in [part, BytesMut::new()] {
            for access in [READ, WRITE, Access::empty()] {
                let region = table.register(buffer.clone(), access).unwrap();
                drop(table.read(region.address, region.length));
                let back = table.deregister(region.address.token).unwrap();
                assert_eq!(back, buffer);
            }
            let place = buffer.as_ptr();
            let region = table.register(buffer, READ).unwrap();
            let back = table.deregister(region.address.token).unwrap();
            assert_eq!(back.as_ptr(), place);
        }
    }

    //= SEC-01 test
    //= SEC-02 test
    #[test]
    fn tokens_and_bases_are_random_and_valid_in_one_table_only() {
        let (mut one, other) = (MemoryTable::new(), MemoryTable::new());
        let mut first = std::collections::HashSet::new();
        for _ in 0..100 {
            let region = MemoryTable::new().register(buffer(1), READ).unwrap();
            let RemoteAddress { token, offset } = region.address;
            assert!(first.insert((token, offset)), "no two tables start alike");
        }
        let mut seen = std::collections::HashSet::new();
        // The bits that were 1 in at least one token, and the bits that were 0 in at least one token.
        let (mut ones, mut zeros) = (0, 0);
        for _ in 0..1000 {
            let region = one.register(buffer(1), READ).unwrap();
            ones |= region.address.token.0;
            zeros |= !region.address.token.0;
            assert!(region.address.token.0 >= LOWEST_TOKEN);
            assert_eq!(region.address.offset % BASE_ALIGNMENT, 0);
            assert!(region.address.offset < 1 << 52);
            assert!(seen.insert(region.address.token));
            assert_eq!(
                other.read(region.address, 1),
                Err(AccessFault::InvalidToken)
            );
        }
        assert_eq!((ones, zeros), (u32::MAX, u32::MAX), "every bit varies");
    }
}
