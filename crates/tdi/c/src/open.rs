//! Opening files, with the extended attributes that say what they stand for, and reading and writing without an IRP.

use std::{
    ffi::c_void,
    net::SocketAddr,
    ptr, slice,
    sync::{Arc, Mutex},
};

use smbdirect_tdi::{Share, Status};

use crate::{
    address,
    device::{Device, OBJECT_NAME_NOT_FOUND, may_wait, runtime, wait_for},
    dispatch::IofCallDriver,
    event::{KeWaitForSingleObject, NOTIFICATION_EVENT},
    files::{Body, File, ObfReferenceObject, ZwClose, of_handle},
    irp::IoAllocateIrp,
    layout::{
        DeviceObject, EaHeader, FileObject, Handle, IRP_MJ_READ, IRP_MJ_WRITE, IoStatusBlock,
        KEvent, NtStatus, ObjectAttributes, UnicodeString, nt,
    },
    mdl::description,
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

/// Opens the control channel of a device, and returns its file object and the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoGetDeviceObjectPointer(
    device_name: *const UnicodeString,
    _access: u32,
    file: *mut *mut FileObject,
    device: *mut *mut DeviceObject,
) -> NtStatus {
    if file.is_null() || device.is_null() {
        return nt(Status::INVALID_PARAMETER);
    }
    // SAFETY: the caller promises that the name is null or valid.
    let opened = unsafe { name(device_name) }.and_then(|name| create(&name, &[], 0));
    let found = opened.and_then(|handle| Ok((handle, of_handle(handle)?)));
    let (handle, opened) = match found {
        Ok(found) => found,
        Err(status) => return nt(status),
    };
    // The reference outlives the handle.
    ObfReferenceObject(opened.object().cast());
    ZwClose(handle);
    // SAFETY: the caller promises valid pointers.
    unsafe {
        file.write(opened.object());
        device.write(opened.device.object());
    }
    nt(Status::SUCCESS)
}

/// Sends a normal TSDU, and waits for its completion. The offset and the key have no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ZwWriteFile(
    handle: Handle,
    event: Handle,
    apc: *const c_void,
    _apc_context: *mut c_void,
    status_block: *mut IoStatusBlock,
    buffer: *mut c_void,
    length: u32,
    _offset: *const i64,
    _key: *const u32,
) -> NtStatus {
    // SAFETY: the promise is the same.
    unsafe {
        run(
            IRP_MJ_WRITE,
            handle,
            event,
            apc,
            status_block,
            buffer,
            length,
        )
    }
}

/// Receives normal data, and waits for it. The offset and the key have no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ZwReadFile(
    handle: Handle,
    event: Handle,
    apc: *const c_void,
    _apc_context: *mut c_void,
    status_block: *mut IoStatusBlock,
    buffer: *mut c_void,
    length: u32,
    _offset: *const i64,
    _key: *const u32,
) -> NtStatus {
    // SAFETY: the promise is the same.
    unsafe {
        run(
            IRP_MJ_READ,
            handle,
            event,
            apc,
            status_block,
            buffer,
            length,
        )
    }
}

/// Runs a request with this major function, and waits for its completion. Neither events, which have no handles here, nor
/// APCs are supported.
///
/// # Safety
/// The buffer has this length, and the status block is null or valid.
unsafe fn run(
    major: u8,
    handle: Handle,
    event: Handle,
    apc: *const c_void,
    status_block: *mut IoStatusBlock,
    buffer: *mut c_void,
    length: u32,
) -> NtStatus {
    let mut result = IoStatusBlock::new(nt(Status::SUCCESS), 0);
    let mut submit = || -> Result<(), Status> {
        // The request must not be submitted, because the transport would use the buffer after the call.
        if !may_wait() {
            return Err(Status::INVALID_DEVICE_STATE);
        }
        if !event.is_null() || !apc.is_null() {
            return Err(Status::NOT_SUPPORTED);
        }
        let file = of_handle(handle)?;
        let (mut mdl, mut done) = (
            description(buffer, length),
            KEvent::new(NOTIFICATION_EVENT, false),
        );
        let irp = IoAllocateIrp(1, 0);
        if irp.is_null() {
            return Err(Status::INSUFFICIENT_RESOURCES);
        }
        // SAFETY: the IRP is new and has one stack location. What it refers to outlives it, because this waits for its end.
        unsafe {
            (*irp).mdl_address = &raw mut mdl;
            (*irp).user_event = &raw mut done;
            (*irp).user_iosb = &raw mut result;
            let location = (*irp).current_stack_location.sub(1);
            (*location).major_function = major;
            (*location).file_object = file.object();
            (&raw mut (*location).parameters)
                .cast::<u32>()
                .write(length);
            IofCallDriver(file.device.object(), irp);
            KeWaitForSingleObject((&raw mut done).cast(), 0, 0, 0, ptr::null());
        }
        Ok(())
    };
    if let Err(status) = submit() {
        result = IoStatusBlock::new(nt(status), 0);
    }
    if !status_block.is_null() {
        // SAFETY: the caller promises that it is valid.
        unsafe { status_block.write(result) };
    }
    result.status()
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
