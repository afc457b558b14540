//! Event handlers, which check what they are given, and answer as the input says.

use std::{ffi::c_void, ptr, slice};

use smbdirect_tdi_c::{
    layout::{Irp, Mdl, NtStatus, RequestData},
    mdl::TdiCopyMdlToBuffer,
};

use super::{
    ACCEPT, DATA_NOT_ACCEPTED, FILL, MORE_PROCESSING_REQUIRED, Operation, PENDING, RECEIVE, lock,
};

/// STATUS_CONNECTION_REFUSED.
const CONNECTION_REFUSED: NtStatus = 0xC000_0236_u32 as NtStatus;
/// STATUS_INSUFFICIENT_RESOURCES.
const INSUFFICIENT_RESOURCES: NtStatus = 0xC000_009A_u32 as NtStatus;

pub(super) unsafe extern "C" fn on_connect(
    _: *mut c_void,
    length: i32,
    address: *mut c_void,
    _: i32,
    _: *mut c_void,
    _: i32,
    _: *mut c_void,
    _: *mut *mut c_void,
    accept: *mut *mut Irp,
) -> NtStatus {
    assert!(length > 4 && !address.is_null());
    let (mode, connections) = {
        let shared = lock();
        (shared.mode, shared.connections.clone())
    };
    let Some(connection) = connections.get(usize::from(mode >> 4) % connections.len().max(1))
    else {
        return CONNECTION_REFUSED;
    };
    let minor = match mode % 8 {
        0 => return CONNECTION_REFUSED,
        1 => return INSUFFICIENT_RESOURCES,
        // No IRP.
        2 => return MORE_PROCESSING_REQUIRED,
        3 => RECEIVE,
        _ => ACCEPT,
    };
    let operation = Operation::new(minor, *connection, 0, 0, false);
    // SAFETY: the operation is new, and the pointer is valid during the call.
    unsafe {
        let returned = &raw mut (*operation).informations[1];
        (*operation).set([ptr::null_mut(), returned]);
        accept.write((*operation).irp);
    }
    MORE_PROCESSING_REQUIRED
}

pub(super) unsafe extern "C" fn on_receive(
    _: *mut c_void,
    context: *mut c_void,
    _: u32,
    indicated: u32,
    available: u32,
    taken: *mut u32,
    data: *const c_void,
    receive: *mut *mut Irp,
) -> NtStatus {
    assert!(indicated <= available);
    // SAFETY: the data is valid during the call.
    let data = unsafe { slice::from_raw_parts(data.cast::<u8>(), indicated as usize) };
    assert!(data.iter().all(|byte| *byte == FILL));
    let (mode, connections) = {
        let shared = lock();
        (shared.mode, shared.connections.clone())
    };
    let (count, status) = match mode % 6 {
        0 => (indicated, 0),
        1 => (indicated / 2, 0),
        2 => (u32::MAX, 0),
        3 => (0, DATA_NOT_ACCEPTED),
        _ => (indicated.min(1), MORE_PROCESSING_REQUIRED),
    };
    // SAFETY: the pointers are valid during the call, and the operation is new.
    unsafe {
        taken.write(count);
        // The context is the number of the connection, which may be another's here.
        let own = (context as usize).wrapping_sub(1 + usize::from(mode % 6 == 5));
        if status == MORE_PROCESSING_REQUIRED
            && let Some(file) = connections.get(own)
        {
            let operation = Operation::new(RECEIVE, *file, 2, 500, false);
            let length = if mode & 0x40 == 0 { 1000 } else { 100_000 };
            (*operation).set(RequestData { length, flags: 0 });
            receive.write((*operation).irp);
        }
    }
    status
}

pub(super) unsafe extern "C" fn on_chained(
    _: *mut c_void,
    _: *mut c_void,
    _: u32,
    length: u32,
    _: u32,
    mdl: *const Mdl,
    descriptor: *mut c_void,
) -> NtStatus {
    let mut bytes = vec![0; length as usize];
    let mut copied = 0;
    // SAFETY: the chain is valid during the call, and the buffer has this length.
    let status = unsafe {
        TdiCopyMdlToBuffer(
            mdl,
            0,
            bytes.as_mut_ptr().cast(),
            0,
            length,
            &raw mut copied,
        )
    };
    assert!(status == 0 && copied == length && bytes.iter().all(|byte| *byte == FILL));
    let mut shared = lock();
    match shared.mode % 3 {
        0 => 0,
        1 => DATA_NOT_ACCEPTED,
        _ => {
            shared.kept.push(descriptor as usize);
            PENDING
        }
    }
}

pub(super) unsafe extern "C" fn on_other(_: *mut c_void, _: *mut c_void, _: u32) -> NtStatus {
    0
}

pub(super) unsafe extern "C" fn on_disconnect(
    _: *mut c_void,
    _: *mut c_void,
    _: i32,
    _: *mut c_void,
    _: i32,
    _: *mut c_void,
    _: u32,
) -> NtStatus {
    0
}
