//! Registered memory of all ends, by token.

use std::collections::HashMap;

use fastrand::Rng;
use smbdirect::BufferDescriptorV1;

/// All registered memory of a scenario.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    regions: HashMap<u32, Region>,
}

#[derive(Debug)]
struct Region {
    offset: u64,
    bytes: Vec<u8>,
    valid: bool,
}

/// The answer of an RDMA adapter to an access that is not allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessFault;

impl Memory {
    /// Registers memory with this content at an offset that may be anything.
    pub(crate) fn register(&mut self, random: &mut Rng, bytes: Vec<u8>) -> BufferDescriptorV1 {
        let token = loop {
            let token = random.u32(..);
            if !self.regions.contains_key(&token) {
                break token;
            }
        };
        let length = bytes.len() as u32;
        let offset = match random.u8(..4) {
            0 => 0,
            1 => u64::MAX - u64::from(length),
            _ => random.u64(..1 << 48),
        };
        let valid = true;
        let region = Region {
            offset,
            bytes,
            valid,
        };
        self.regions.insert(token, region);
        BufferDescriptorV1 {
            offset,
            token,
            length,
        }
    }

    /// Registers `length` bytes in up to three pieces, and returns their descriptors.
    pub(crate) fn register_pieces(
        &mut self,
        random: &mut Rng,
        bytes: &[u8],
    ) -> Vec<BufferDescriptorV1> {
        let mut cuts: Vec<_> = (0..random.usize(..3))
            .map(|_| random.usize(..=bytes.len()))
            .collect();
        cuts.sort_unstable();
        cuts.push(bytes.len());
        let mut start = 0;
        let mut descriptors = Vec::new();
        for end in cuts {
            descriptors.push(self.register(random, bytes[start..end].to_vec()));
            start = end;
        }
        descriptors
    }

    /// The content that its owner sees, valid for others or not.
    pub(crate) fn content(&self, descriptors: &[BufferDescriptorV1]) -> Vec<u8> {
        let regions = descriptors
            .iter()
            .map(|descriptor| &self.regions[&descriptor.token]);
        regions.flat_map(|region| region.bytes.clone()).collect()
    }

    /// Ends registrations.
    pub(crate) fn release(&mut self, descriptors: &[BufferDescriptorV1]) {
        for descriptor in descriptors {
            self.regions.remove(&descriptor.token);
        }
    }

    /// Invalidates a token for others, once.
    pub(crate) fn invalidate(&mut self, token: u32) -> Result<(), AccessFault> {
        match self.regions.get_mut(&token) {
            Some(region) if region.valid => {
                region.valid = false;
                Ok(())
            }
            _ => Err(AccessFault),
        }
    }

    /// RDMA Read of the first `length` bytes that the descriptors describe.
    pub(crate) fn read(
        &self,
        descriptors: &[BufferDescriptorV1],
        length: usize,
    ) -> Result<Vec<u8>, AccessFault> {
        let mut bytes = Vec::new();
        for descriptor in descriptors {
            let left = length - bytes.len();
            let take = left.min(descriptor.length as usize);
            if take == 0 {
                continue;
            }
            let (region, start) = self.find(descriptor, take)?;
            bytes.extend_from_slice(&region.bytes[start..start + take]);
        }
        if bytes.len() == length {
            Ok(bytes)
        } else {
            Err(AccessFault)
        }
    }

    /// RDMA Write from the beginning of what the descriptors describe.
    pub(crate) fn write(
        &mut self,
        descriptors: &[BufferDescriptorV1],
        mut data: &[u8],
    ) -> Result<(), AccessFault> {
        for descriptor in descriptors {
            let (now, later) = data.split_at(data.len().min(descriptor.length as usize));
            data = later;
            if now.is_empty() {
                continue;
            }
            let (_, start) = self.find(descriptor, now.len())?;
            let region = self
                .regions
                .get_mut(&descriptor.token)
                .expect("it is there");
            region.bytes[start..start + now.len()].copy_from_slice(now);
        }
        if data.is_empty() {
            Ok(())
        } else {
            Err(AccessFault)
        }
    }

    fn find(
        &self,
        descriptor: &BufferDescriptorV1,
        length: usize,
    ) -> Result<(&Region, usize), AccessFault> {
        let region = self.regions.get(&descriptor.token).ok_or(AccessFault)?;
        let start = descriptor.offset.checked_sub(region.offset);
        let start = start.ok_or(AccessFault)?;
        let room = (region.bytes.len() as u64).checked_sub(start);
        if room.is_some_and(|room| room >= length as u64) && region.valid {
            Ok((region, start as usize))
        } else {
            Err(AccessFault)
        }
    }

    /// How much is registered.
    pub(crate) fn len(&self) -> usize {
        self.regions.len()
    }
}
