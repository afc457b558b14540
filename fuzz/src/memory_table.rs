//! The table of registered memory, compared with a plain list of regions.

use bytes::{Bytes, BytesMut};
use smbdirect::rdma::{
    memory::{AccessFault, DeregisterError, MemoryTable, Readable},
    work::{Access, RemoteAddress, Token},
};

use crate::input::Input;

/// Maximum number of buffers registered at a time, because each operation searches the whole list.
const MAX_REGIONS: usize = 16;
/// Length of the longest buffer in bytes.
const MAX_LENGTH: usize = 2000;

/// Applies the same operations to a table and to a list, and compares the results.
pub fn memory_table(data: &[u8]) {
    let mut input = Input::new(data);
    let mut pair = Pair {
        table: MemoryTable::new(),
        regions: Vec::new(),
    };
    while !input.is_empty() {
        pair.step(&mut input);
        assert_eq!(pair.table.len(), pair.regions.len());
        assert_eq!(pair.table.is_empty(), pair.regions.is_empty());
    }
    // Without loans every buffer is returned with the expected content.
    for mut region in pair.regions {
        region.loans.clear();
        let buffer = pair.table.deregister(region.at.token);
        assert_eq!(buffer.as_deref(), Ok(&region.content[..]));
    }
    assert!(pair.table.is_empty());
}

struct Pair {
    table: MemoryTable,
    regions: Vec<Region>,
}

struct Region {
    at: RemoteAddress,
    access: Access,
    valid: bool,
    content: Vec<u8>,
    /// Slices read from the region and still held, each with its expected content.
    loans: Vec<(Bytes, Vec<u8>)>,
}

impl Pair {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.up_to(6) {
            0 => self.register(input),
            1 => self.deregister(input),
            2 => self.invalidate(input),
            3 => self.check(input),
            4 => self.read(input),
            5 => self.write(input),
            _ => self.give_back(input),
        }
    }

    fn register(&mut self, input: &mut Input<'_>) {
        if self.regions.len() == MAX_REGIONS {
            return;
        }
        let access = Access::from_bits_truncate(input.byte());
        let fill = input.byte();
        let content: Vec<u8> = (0..input.length(MAX_LENGTH))
            .map(|at| fill.wrapping_add(at as u8))
            .collect();
        let mut buffer = BytesMut::from(&content[..]);
        if input.is_odd() {
            // A buffer that is a part of a larger one is returned too.
            let mut larger = BytesMut::zeroed(10);
            larger.extend_from_slice(&content);
            buffer = larger.split_off(10);
        }
        let registration = self
            .table
            .register(buffer, access)
            .expect("the buffer is shorter than the largest region");
        let at = registration.address;
        assert_eq!(registration.length as usize, content.len());
        assert!(
            self.regions.iter().all(|other| other.at.token != at.token),
            "a token is given out twice"
        );
        let end = at.offset.checked_add(content.len() as u64);
        assert!(end.is_some(), "a buffer wraps");
        self.regions.push(Region {
            at,
            access,
            valid: true,
            content,
            loans: Vec::new(),
        });
    }

    fn deregister(&mut self, input: &mut Input<'_>) {
        let token = self.token(input);
        let found = self.table.deregister(token);
        let Some(index) = self.index_of(token) else {
            return assert_eq!(found, Err(DeregisterError::Unknown));
        };
        if self.regions[index].loans.is_empty() {
            let region = self.regions.remove(index);
            assert_eq!(found.as_deref(), Ok(&region.content[..]));
        } else {
            self.regions[index].valid = false;
            assert_eq!(found, Err(DeregisterError::InUse));
        }
    }

    fn invalidate(&mut self, input: &mut Input<'_>) {
        let token = self.token(input);
        let found = self.table.invalidate(token);
        let expected = match self
            .regions
            .iter_mut()
            .find(|region| region.at.token == token)
        {
            None => Err(AccessFault::InvalidToken),
            Some(region) if !region.access.contains(Access::REMOTE_INVALIDATE) => {
                Err(AccessFault::Rights)
            }
            Some(region) => {
                region.valid = false;
                Ok(())
            }
        };
        assert_eq!(found, expected);
    }

    fn check(&self, input: &mut Input<'_>) {
        let (at, length) = self.place(input);
        let right = input.pick(&[
            Access::REMOTE_READ,
            Access::REMOTE_WRITE,
            Access::REMOTE_READ | Access::REMOTE_WRITE,
        ]);
        let expected = self.find(at, length, right).map(|_| ());
        assert_eq!(self.table.check(at, length, right), expected);
    }

    fn read(&mut self, input: &mut Input<'_>) {
        let (at, length) = self.place(input);
        let found = self.table.read(at, length);
        match self.find(at, length, Access::REMOTE_READ) {
            Err(fault) => assert_eq!(found, Err(fault)),
            Ok((index, start)) => {
                let region = &mut self.regions[index];
                let expected = region.content[start..start + length as usize].to_vec();
                let readable = found.expect("the list allows it");
                assert_eq!(readable.as_ref(), expected);
                let writable = region.access.contains(Access::REMOTE_WRITE);
                match readable {
                    Readable::Borrowed(_) => assert!(writable, "it could be shared"),
                    Readable::Shared(bytes) => {
                        assert!(!writable, "the peer may write to it");
                        // An empty slice keeps no region in use.
                        if length > 0 && input.is_odd() {
                            region.loans.push((bytes, expected));
                        }
                    }
                }
            }
        }
    }

    fn write(&mut self, input: &mut Input<'_>) {
        let (at, length) = self.place(input);
        let expected = self.find(at, length, Access::REMOTE_WRITE);
        match (self.table.write(at, length), expected) {
            (found, Err(fault)) => assert_eq!(found, Err(fault)),
            (found, Ok((index, start))) => {
                let place = found.expect("the list allows it");
                assert_eq!(place.len(), length as usize);
                let model = &mut self.regions[index].content[start..start + length as usize];
                assert_eq!(place, model);
                let value = input.byte();
                place.fill(value);
                model.fill(value);
            }
        }
    }

    /// Drops a loan, whose content must not have changed.
    fn give_back(&mut self, input: &mut Input<'_>) {
        let which = usize::from(input.byte());
        let lenders = self
            .regions
            .iter_mut()
            .filter(|region| !region.loans.is_empty());
        if let Some(region) = lenders.into_iter().nth(which % MAX_REGIONS) {
            let (bytes, expected) = region.loans.swap_remove(which % region.loans.len());
            assert_eq!(bytes, expected);
        }
    }

    /// Returns a token of the table, or an arbitrary one.
    fn token(&self, input: &mut Input<'_>) -> Token {
        match self.regions.get(input.up_to(MAX_REGIONS as u8)) {
            Some(region) => region.at.token,
            None => Token(input.any()),
        }
    }

    /// Returns a range: inside a region, at its edges, or anywhere.
    fn place(&self, input: &mut Input<'_>) -> (RemoteAddress, u32) {
        let token = self.token(input);
        let region = self.regions.iter().find(|region| region.at.token == token);
        let (base, size) = match region {
            Some(region) => (region.at.offset, region.content.len()),
            None => (0, 0),
        };
        let (offset, length) = match input.up_to(3) {
            0 => {
                let start = input.length(size);
                (base + start as u64, input.length(size - start) as u32)
            }
            1 => {
                let around = u64::from(input.byte()).wrapping_sub(128);
                let edge = if input.is_odd() { size as u64 } else { 0 };
                let offset = base.wrapping_add(edge).wrapping_add(around);
                (offset, input.any::<u16>().into())
            }
            2 => (u64::MAX - u64::from(input.byte()), input.byte().into()),
            _ => (input.any(), input.any()),
        };
        (RemoteAddress { token, offset }, length)
    }

    fn index_of(&self, token: Token) -> Option<usize> {
        self.regions
            .iter()
            .position(|region| region.at.token == token)
    }

    /// Applies the rule with numbers that cannot wrap.
    fn find(
        &self,
        at: RemoteAddress,
        length: u32,
        right: Access,
    ) -> Result<(usize, usize), AccessFault> {
        let index = self.index_of(at.token).ok_or(AccessFault::InvalidToken)?;
        let region = &self.regions[index];
        if !region.valid {
            return Err(AccessFault::InvalidToken);
        }
        if !region.access.contains(right) {
            return Err(AccessFault::Rights);
        }
        let (start, end) = (
            u128::from(at.offset),
            u128::from(at.offset) + u128::from(length),
        );
        if end > u128::from(u64::MAX) {
            return Err(AccessFault::Wrap);
        }
        let base = u128::from(region.at.offset);
        if start < base || end > base + region.content.len() as u128 {
            return Err(AccessFault::Bounds);
        }
        Ok((index, (start - base) as usize))
    }
}
