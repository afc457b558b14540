//! NETWORK_INTERFACE_INFO, with which a server answers FSCTL_QUERY_NETWORK_INTERFACE_INFO ([MS-SMB2] 2.2.32.5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum number of interfaces that are decoded; a server has a few.
const MAX_INTERFACES: usize = 256;
/// Bytes of the longest list that is decoded.
pub const MAX_LIST_BYTES: usize = MAX_INTERFACES * NetworkInterface::LENGTH;
/// RDMA_CAPABLE.
const RDMA_CAPABLE: u32 = 0x0000_0002;

/// An interface that a server offers to its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Capability: flags.
    pub capability: u32,
    /// LinkSpeed, in bits per second.
    pub link_speed: u64,
    /// The address of SockAddr_Storage.
    pub address: IpAddr,
}

impl NetworkInterface {
    /// Bytes of an entry.
    const LENGTH: usize = 152;

    /// Returns whether the interface is RDMA_CAPABLE.
    pub const fn is_rdma_capable(&self) -> bool {
        self.capability & RDMA_CAPABLE != 0
    }

    /// Decodes a list. Entries of other address families are skipped, and the list ends at an entry that is too short.
    pub fn decode_all(mut bytes: &[u8]) -> Vec<Self> {
        let mut interfaces = Vec::new();
        for _ in 0..MAX_INTERFACES {
            let Some(entry) = bytes.first_chunk() else {
                break;
            };
            interfaces.extend(Self::decode(entry));
            let [a, b, c, d, ..] = *entry;
            let next = u32::from_le_bytes([a, b, c, d]) as usize;
            match bytes.get(next..) {
                Some(rest) if next > 0 => bytes = rest,
                _ => break,
            }
        }
        interfaces
    }

    /// Decodes an entry, or returns `None` if its address is of another family.
    fn decode(entry: &[u8; Self::LENGTH]) -> Option<Self> {
        const INTER_NETWORK: u16 = 0x0002;
        const INTER_NETWORK_V6: u16 = 0x0017;
        let socket_address = &entry[24..];
        let address = match u16::from_le_bytes(*socket_address.first_chunk()?) {
            INTER_NETWORK => Ipv4Addr::from(*socket_address[4..].first_chunk::<4>()?).into(),
            INTER_NETWORK_V6 => Ipv6Addr::from(*socket_address[8..].first_chunk::<16>()?).into(),
            _ => return None,
        };
        Some(Self {
            capability: u32::from_le_bytes(*entry[8..].first_chunk()?),
            link_speed: u64::from_le_bytes(*entry[16..].first_chunk()?),
            address,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(next: u32, capability: u32, address: &[u8]) -> Vec<u8> {
        let mut entry = vec![0; NetworkInterface::LENGTH];
        entry[..4].copy_from_slice(&next.to_le_bytes());
        entry[8..12].copy_from_slice(&capability.to_le_bytes());
        entry[16..24].copy_from_slice(&1_000_000_000_u64.to_le_bytes());
        entry[24..24 + address.len()].copy_from_slice(address);
        entry
    }

    #[test]
    fn interfaces_are_decoded_and_hostile_lists_end() {
        let v4 = [2, 0, 0, 0, 10, 77, 0, 2];
        let mut list = entry(152, 3, &v4);
        list.extend(entry(0, 1, &[0x17, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0x80]));
        let found = NetworkInterface::decode_all(&list);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].address, IpAddr::from([10, 77, 0, 2]));
        assert_eq!(found[0].link_speed, 1_000_000_000);
        assert!(found[0].is_rdma_capable() && !found[1].is_rdma_capable());
        assert_eq!(found[1].address.to_string(), "fe80::");
        // A list that ends, points beyond its end, points into an entry, or is truncated or of another family.
        let number = |bytes: &[u8]| NetworkInterface::decode_all(bytes).len();
        assert_eq!(number(&entry(0, 2, &v4)), 1);
        assert_eq!(number(&entry(u32::MAX, 2, &v4)), 1);
        assert_eq!(number(&entry(8, 2, &v4)), 1);
        assert_eq!(number(&entry(0, 2, &v4)[..151]), 0);
        assert_eq!(number(&entry(0, 2, &[9, 9])), 0);
        assert_eq!(number(&[]), 0);
    }
}
