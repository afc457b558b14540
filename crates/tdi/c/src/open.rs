//! Opening files, with the extended attributes that say what they stand for.

use std::{
    ffi::c_void,
    net::SocketAddr,
    slice,
    sync::{Arc, Mutex},
};

use smbdirect_tdi::{Share, Status};

use crate::{
    address,
    device::{Device, OBJECT_NAME_NOT_FOUND, runtime, wait_for},
    files::{Body, File},
    layout::{EaHeader, Handle, IoStatusBlock, NtStatus, ObjectAttributes, UnicodeString, nt},
    slots::{ConnectionContext, Handlers},
};

/// STATUS_NONEXISTENT_EA_ENTRY.
const NONEXISTENT_EA_ENTRY: Status = Status(0xC000_0051);
/// FILE_SHARE_READ and FILE_SHARE_WRITE.
const SHARE: u32 = 0x3;
const TRANSPORT_ADDRESS: &[u8] = b"TransportAddress";
const CONNECTION_CONTEXT: &[u8] = b"ConnectionContext";

/// Opens an address, a connection endpoint or the control channel of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ZwCreateFile(
    handle: *mut Handle,
    _access: u32,
    attributes: *const ObjectAttributes,
    status_block: *mut IoStatusBlock,
    _allocation_size: *const i64,
    _file_attributes: u32,
    share: u32,
    _disposition: u32,
    _options: u32,
    ea: *const c_void,
    ea_length: u32,
) -> NtStatus {
    // SAFETY: the caller promises that the pointers are null or valid, and that the attributes have their length.
    let result = unsafe {
        match attributes.as_ref() {
            Some(attributes) if !handle.is_null() => {
                let bytes = if ea.is_null() {
                    &[][..]
                } else {
                    slice::from_raw_parts(ea.cast::<u8>(), ea_length as usize)
                };
                name(attributes.object_name).and_then(|name| create(&name, bytes, share))
            }
            _ => Err(Status::INVALID_PARAMETER),
        }
    };
    let status = result.err().unwrap_or(Status::SUCCESS);
    // SAFETY: as above.
    unsafe {
        if let Ok(opened) = result {
            handle.write(opened);
        }
        if !status_block.is_null() {
            // FILE_OPENED is 1.
            status_block.write(IoStatusBlock::new(nt(status), usize::from(result.is_ok())));
        }
    }
    nt(status)
}

/// Reads a name.
unsafe fn name(name: *const UnicodeString) -> Result<String, Status> {
    // SAFETY: the caller promises that the pointer is null or valid with its text.
    unsafe {
        let name = name.as_ref().filter(|name| !name.buffer.is_null());
        let name = name.ok_or(OBJECT_NAME_NOT_FOUND)?;
        let units = slice::from_raw_parts(name.buffer, usize::from(name.length / 2));
        Ok(String::from_utf16_lossy(units))
    }
}

fn create(name: &str, ea: &[u8], share: u32) -> Result<Handle, Status> {
    let device = Device::named(name)?;
    let (mut address, mut context) = (None, None);
    for entry in entries(ea)? {
        let (name, value) = entry;
        match name {
            TRANSPORT_ADDRESS => address = Some(value),
            CONNECTION_CONTEXT => context = Some(value),
            _ => return Err(NONEXISTENT_EA_ENTRY),
        }
    }
    let body = match (address, context) {
        (None, None) => Body::ControlChannel,
        (Some(value), None) => open_address(device, address::parse(value)?, share)?,
        (None, Some(value)) => {
            let value = value.try_into().map_err(|_| Status::INVALID_PARAMETER)?;
            let context = ConnectionContext::new(usize::from_ne_bytes(value));
            let endpoint = device.transport.open_endpoint(context);
            Body::Connection(Mutex::new(Some(endpoint)))
        }
        (Some(_), Some(_)) => return Err(Status::INVALID_PARAMETER),
    };
    Ok(File::open(device, body))
}

/// Opens an address. Without an IP address and without a port, peers cannot connect to it.
fn open_address(device: &'static Device, local: SocketAddr, share: u32) -> Result<Body, Status> {
    let share = if share & SHARE == 0 {
        Share::Exclusive
    } else {
        Share::Shared
    };
    let opened = if local.ip().is_unspecified() && local.port() == 0 {
        let _context = runtime().enter();
        device.transport.open_any_address()
    } else {
        wait_for(device.transport.open_address(local, share))??
    };
    let handlers = Arc::new(Handlers::default());
    opened.set_client(Some(handlers.clone()));
    Ok(Body::Address {
        address: Mutex::new(Some(opened)),
        handlers,
    })
}

/// The name and the value of an extended attribute.
type Attribute<'a> = (&'a [u8], &'a [u8]);

/// Returns the attributes of FILE_FULL_EA_INFORMATION.
fn entries(mut bytes: &[u8]) -> Result<Vec<Attribute<'_>>, Status> {
    const HEADER: usize = size_of::<EaHeader>();
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let header = bytes.get(..HEADER).ok_or(Status::INVALID_PARAMETER)?;
        let next = u32::from_ne_bytes(header[..4].try_into().expect("it has 4 bytes")) as usize;
        let name_length = usize::from(header[5]);
        let value_length = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        let value_start = HEADER + name_length + 1;
        let name = bytes.get(HEADER..HEADER + name_length);
        let value = bytes.get(value_start..value_start + value_length);
        let entry = name.zip(value).ok_or(Status::INVALID_PARAMETER)?;
        entries.push(entry);
        if next == 0 {
            break;
        }
        if next < value_start {
            return Err(Status::INVALID_PARAMETER);
        }
        bytes = bytes.get(next..).ok_or(Status::INVALID_PARAMETER)?;
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(next: u32, name: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = next.to_ne_bytes().to_vec();
        bytes.extend([0, name.len() as u8]);
        bytes.extend((value.len() as u16).to_ne_bytes());
        bytes.extend(name);
        bytes.push(0);
        bytes.extend(value);
        bytes
    }

    #[test]
    fn attributes_are_read_within_their_bounds() {
        assert_eq!(entries(&[]), Ok(vec![]));
        let one = entry(0, b"ab", b"cde");
        assert_eq!(entries(&one), Ok(vec![(&b"ab"[..], &b"cde"[..])]));
        for length in 1..one.len() {
            assert_eq!(entries(&one[..length]), Err(Status::INVALID_PARAMETER));
        }
        let mut two = entry(16, b"ab", b"cde");
        two.resize(16, 0);
        two.extend(entry(0, b"f", b""));
        let expected = [(&b"ab"[..], &b"cde"[..]), (&b"f"[..], &b""[..])];
        assert_eq!(entries(&two), Ok(expected.to_vec()));
        // An entry cannot lie inside the one before it, so that a list ends.
        two[0] = 4;
        assert_eq!(entries(&two), Err(Status::INVALID_PARAMETER));
        two[0] = 200;
        assert_eq!(entries(&two), Err(Status::INVALID_PARAMETER));
    }
}
