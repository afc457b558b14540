//! Addresses as TDI writes them: TRANSPORT_ADDRESS, a count and so many entries of a length, a type and bytes.

use std::{
    ffi::c_void,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
};

use smbdirect_tdi::Status;

use crate::layout::ConnectionInformation;

const ADDRESS_TYPE_IP: u16 = 2;
const ADDRESS_TYPE_IP6: u16 = 23;
/// The lengths of TDI_ADDRESS_IP and TDI_ADDRESS_IP6.
const IP_LENGTH: usize = 14;
const IP6_LENGTH: usize = 26;

/// Reads the first IP address of a TRANSPORT_ADDRESS.
///
/// # Errors
/// [`INVALID_ADDRESS_COMPONENT`](Status::INVALID_ADDRESS_COMPONENT): it has none.
pub(crate) fn parse(mut bytes: &[u8]) -> Result<SocketAddr, Status> {
    let count = i32::from_ne_bytes(take(&mut bytes)?);
    for _ in 0..count.max(0) {
        let length = usize::from(u16::from_ne_bytes(take(&mut bytes)?));
        let kind = u16::from_ne_bytes(take(&mut bytes)?);
        let entry = bytes.split_off(..length);
        let mut entry = entry.ok_or(Status::INVALID_ADDRESS_COMPONENT)?;
        if kind == ADDRESS_TYPE_IP {
            let port = u16::from_be_bytes(take(&mut entry)?);
            let address: [u8; 4] = take(&mut entry)?;
            return Ok((Ipv4Addr::from(address), port).into());
        }
        if kind == ADDRESS_TYPE_IP6 {
            let port = u16::from_be_bytes(take(&mut entry)?);
            let flow = u32::from_be_bytes(take(&mut entry)?);
            let address: [u8; 16] = take(&mut entry)?;
            let scope = u32::from_ne_bytes(take(&mut entry)?);
            return Ok(SocketAddrV6::new(Ipv6Addr::from(address), port, flow, scope).into());
        }
    }
    Err(Status::INVALID_ADDRESS_COMPONENT)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Status> {
    let first = bytes.split_off(..N).and_then(|first| first.try_into().ok());
    first.ok_or(Status::INVALID_ADDRESS_COMPONENT)
}

/// Returns `address` as a TRANSPORT_ADDRESS.
pub(crate) fn format(address: SocketAddr) -> Vec<u8> {
    let mut bytes = 1_i32.to_ne_bytes().to_vec();
    match address {
        SocketAddr::V4(address) => {
            bytes.extend((IP_LENGTH as u16).to_ne_bytes());
            bytes.extend(ADDRESS_TYPE_IP.to_ne_bytes());
            bytes.extend(address.port().to_be_bytes());
            bytes.extend(address.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(address) => {
            bytes.extend((IP6_LENGTH as u16).to_ne_bytes());
            bytes.extend(ADDRESS_TYPE_IP6.to_ne_bytes());
            bytes.extend(address.port().to_be_bytes());
            bytes.extend(address.flowinfo().to_be_bytes());
            bytes.extend(address.ip().octets());
            bytes.extend(address.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// Reads the remote address of a request; `None` if it has none.
///
/// # Safety
/// `information` is null, or valid with the memory that it points to.
///
/// # Errors
/// As [`parse`].
pub(crate) unsafe fn remote(
    information: *const ConnectionInformation,
) -> Result<Option<SocketAddr>, Status> {
    // SAFETY: the caller promises that it is null or valid.
    let Some(information) = (unsafe { information.as_ref() }) else {
        return Ok(None);
    };
    let length = usize::try_from(information.remote_address_length).unwrap_or(0);
    if length == 0 || information.remote_address.is_null() {
        return Ok(None);
    }
    let start = information.remote_address.cast::<u8>();
    // SAFETY: the caller promises that the address has this length.
    parse(unsafe { std::slice::from_raw_parts(start, length) }).map(Some)
}

/// A place for the connection information that a request returns.
pub(crate) struct Returned(*mut ConnectionInformation);

// SAFETY: the memory belongs to the transport until the request completes.
unsafe impl Send for Returned {}

impl Returned {
    pub(crate) const fn new(information: *mut c_void) -> Self {
        Self(information.cast())
    }

    /// Writes the address of the peer, if there is room for it, and that there are no user data and no options.
    ///
    /// # Safety
    /// The pointer is null, or valid with the memory that it points to.
    pub(crate) unsafe fn write(&self, peer: Option<SocketAddr>) {
        // SAFETY: the caller promises that it is null or valid.
        let Some(information) = (unsafe { self.0.as_mut() }) else {
            return;
        };
        information.user_data_length = 0;
        information.options_length = 0;
        let Some(peer) = peer else { return };
        let bytes = format(peer);
        let room = usize::try_from(information.remote_address_length).unwrap_or(0);
        if information.remote_address.is_null() || room < bytes.len() {
            return;
        }
        let target = information.remote_address.cast::<u8>();
        // SAFETY: the target has room for `bytes`, and belongs to the client, so that it does not overlap.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        information.remote_address_length = bytes.len() as i32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["127.0.0.1:445", "[fe80::1%3]:5445", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let bytes = format(address);
            assert_eq!(parse(&bytes), Ok(address));
            for length in 0..bytes.len() {
                // The zeros at the end of an IPv4 address are not needed, but are part of its length.
                assert!(parse(&bytes[..length]).is_err(), "{text}: {length}");
            }
        }
    }

    #[test]
    fn entries_of_other_types_are_skipped() {
        let mut bytes = 2_i32.to_ne_bytes().to_vec();
        bytes.extend([3, 0, 17, 0, 1, 2, 3]);
        let only_other = bytes.clone();
        bytes.extend(&format("1.2.3.4:5".parse().unwrap())[4..]);
        assert_eq!(parse(&bytes), Ok("1.2.3.4:5".parse().unwrap()));
        assert!(parse(&only_other).is_err());
        assert!(parse(&(-1_i32).to_ne_bytes()).is_err());
    }
}
