//! Received TSDUs that are lent to clients: the chain of MDLs that describes one, and its descriptor.

use std::{
    collections::HashMap,
    ffi::c_void,
    ptr,
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Buf;
use smbdirect_tdi::{ChainedTsdu, IndicationFlags, Status};

use crate::{
    device::lock,
    layout::{MDL_MAPPED_TO_SYSTEM_VA, Mdl, NtStatus, nt},
    mdl::description,
};

/// A TSDU that is lent.
struct Lent {
    tsdu: ChainedTsdu,
    /// The chain, whose addresses stay the same.
    chain: Box<[Mdl]>,
}

// SAFETY: the chain describes the memory of the TSDU, and is only read.
unsafe impl Send for Lent {}

/// The TSDUs that are lent, by their descriptors. A descriptor is never used again, so a TSDU that is returned twice does
/// no harm.
static LENT: LazyLock<Mutex<HashMap<usize, Lent>>> = LazyLock::new(Mutex::default);
static LAST_DESCRIPTOR: AtomicUsize = AtomicUsize::new(0);

impl Lent {
    fn new(tsdu: ChainedTsdu) -> Self {
        let mut chain = Vec::new();
        let mut rest = tsdu.clone();
        while rest.has_remaining() {
            let part = rest.chunk();
            let address = part.as_ptr().cast_mut().cast();
            let mut mdl = description(address, part.len() as u32);
            mdl.flags = MDL_MAPPED_TO_SYSTEM_VA;
            mdl.mapped_system_va = address;
            chain.push(mdl);
            let length = part.len();
            rest.advance(length);
        }
        let mut chain = chain.into_boxed_slice();
        let mut next = ptr::null_mut();
        for mdl in chain.iter_mut().rev() {
            mdl.next = next;
            next = mdl;
        }
        Self { tsdu, chain }
    }
}

/// Lends a TSDU to the handler of a client, which gets the flags, the length, the chain and the descriptor. Returns
/// the TSDU if the client does not accept it.
pub(crate) fn lend(
    tsdu: ChainedTsdu,
    handler: impl FnOnce(u32, u32, *const Mdl, *mut c_void) -> NtStatus,
) -> Result<(), ChainedTsdu> {
    let flags = IndicationFlags::NORMAL
        | IndicationFlags::ENTIRE_MESSAGE
        | IndicationFlags::AT_DISPATCH_LEVEL;
    let length = tsdu.len() as u32;
    let lent = Lent::new(tsdu);
    let chain = lent.chain.as_ptr();
    let descriptor = LAST_DESCRIPTOR.fetch_add(1, Ordering::Relaxed) + 1;
    // Another thread can return the TSDU before the handler has.
    lock(&LENT).insert(descriptor, lent);
    let status = handler(flags.bits(), length, chain, descriptor as *mut c_void);
    if status == nt(Status::PENDING) {
        return Ok(());
    }
    let lent = lock(&LENT).remove(&descriptor);
    match lent {
        //= TDI-CHN-06
        Some(lent) if status == nt(Status::DATA_NOT_ACCEPTED) => Err(lent.tsdu),
        _ => Ok(()),
    }
}

/// Returns TSDUs whose handler has returned STATUS_PENDING.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TdiReturnChainedReceives(descriptors: *const *mut c_void, count: u32) {
    if descriptors.is_null() {
        return;
    }
    for index in 0..count as usize {
        // SAFETY: the caller promises so many descriptors.
        let descriptor = unsafe { *descriptors.add(index) };
        let lent = lock(&LENT).remove(&(descriptor as usize));
        // The TSDU is dropped without the lock, because that wakes its connection.
        drop(lent);
    }
}
