//! Registered memory: protection domains, memory regions, memory windows, and the pool of small
//! buffers that messages are sent from and received into.
//!
//! An [`OwnedRegion`] owns the memory that the adapter may access until the registration has ended.
//! Meanwhile no reference to that memory exists.

use std::{
    alloc::{self, Layout, handle_alloc_error},
    collections::HashMap,
    ffi::c_int,
    io,
    mem::ManuallyDrop,
    ptr::NonNull,
    slice,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::{Bytes, BytesMut};

use crate::{
    cm::CmId,
    error::log_ffi_error,
    ffi::{self, Object, ibv_mr, ibv_mw, ibv_pd},
};

/// A protection domain: the keys of its regions and windows are valid for its queue pair only. Each
/// connection has its own.
pub(crate) struct Domain {
    pd: Object<ibv_pd>,
    id: Arc<CmId>,
}

impl Domain {
    pub(crate) fn new(id: Arc<CmId>) -> io::Result<Arc<Self>> {
        // SAFETY: the identifier keeps its device open, so the context is valid.
        let pd = Object::new(unsafe { (id.functions().ibv_alloc_pd)(id.context()) })?;
        Ok(Arc::new(Self { pd, id }))
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.pd.raw()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: regions, windows and the queue pair hold their domain, so they are already
        // released.
        let error = unsafe { (self.id.functions().ibv_dealloc_pd)(self.raw()) };
        log_ffi_error(self.id.span(), "ibv_dealloc_pd", error);
    }
}

/// Memory and its registration: the adapter may access the memory until the registration ends.
///
/// If the registration cannot be ended, the memory is neither freed nor returned, because the
/// adapter, and through it a peer, may still write to it.
pub(crate) struct OwnedRegion<M> {
    /// The region, and the domain that it belongs to.
    region: Option<(Object<ibv_mr>, Arc<Domain>)>,
    address: u64,
    length: usize,
    memory: ManuallyDrop<M>,
    /// Whether deregistration failed, so that the adapter may still access the memory.
    is_leaked: bool,
}

impl<M> OwnedRegion<M> {
    /// Registers `length` bytes at `address`, which `memory` owns.
    ///
    /// # Safety
    /// The bytes stay at their address when `memory` is moved. Until the registration has ended
    /// there is no reference to them that conflicts with `access`: no mutable reference, and no
    /// reference at all if `access` permits writing.
    ///
    /// # Errors
    /// The adapter refuses the registration. The memory is returned.
    unsafe fn new(
        domain: &Arc<Domain>,
        memory: M,
        address: *mut u8,
        length: usize,
        access: c_int,
    ) -> Result<Self, (M, io::Error)> {
        let reg_mr = domain.id.functions().ibv_reg_mr;
        // SAFETY: the bytes are allocated while `memory` lives, which the new object owns; the
        // caller guarantees the rest.
        let raw = unsafe { reg_mr(domain.raw(), address.cast(), length, access) };
        let region = match Object::new(raw) {
            Ok(region) => region,
            Err(error) => return Err((memory, error)),
        };
        Ok(Self {
            region: Some((region, domain.clone())),
            address: address as u64,
            length,
            memory: ManuallyDrop::new(memory),
            is_leaked: false,
        })
    }

    /// Returns memory without a registration. The adapter cannot register empty memory.
    pub(crate) const fn unregistered(memory: M) -> Self {
        Self {
            region: None,
            address: 0,
            length: 0,
            memory: ManuallyDrop::new(memory),
            is_leaked: false,
        }
    }

    pub(crate) const fn is_registered(&self) -> bool {
        self.region.is_some()
    }

    /// Returns the address of the registered bytes, or 0 if nothing is registered.
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of registered bytes.
    pub(crate) const fn length(&self) -> usize {
        self.length
    }

    /// Returns the memory region, if there is one.
    pub(crate) fn raw(&self) -> Option<*mut ibv_mr> {
        self.region.as_ref().map(|(region, _)| region.raw())
    }

    /// Returns the key for work requests of this end, or 0 if nothing is registered.
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: the region lives; the library set the field and does not change it.
        self.raw().map_or(0, |raw| unsafe { (*raw).lkey })
    }

    /// Returns the key for the peer's Reads and Writes, or 0 if nothing is registered.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: the region lives; the library set the field and does not change it.
        self.raw().map_or(0, |raw| unsafe { (*raw).rkey })
    }

    /// Ends the registration, and returns whether the adapter can no longer access the memory.
    pub(crate) fn deregister(&mut self) -> bool {
        if let Some((region, domain)) = self.region.take() {
            // SAFETY: the region was registered, and is taken and deregistered once.
            let error = unsafe { (domain.id.functions().ibv_dereg_mr)(region.raw()) };
            log_ffi_error(domain.id.span(), "ibv_dereg_mr", error);
            self.is_leaked = error != 0;
        }
        !self.is_leaked
    }

    /// Ends the registration and returns the memory, or `None` if the adapter can still access it.
    pub(crate) fn into_memory(self) -> Option<M> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither used nor dropped afterwards, and `deregister` has taken the
        // region out of it.
        this.deregister()
            .then(|| unsafe { ManuallyDrop::take(&mut this.memory) })
    }
}

impl OwnedRegion<Bytes> {
    /// Registers a payload for reading by the adapter.
    ///
    /// # Errors
    /// The adapter refuses the registration. The payload is returned.
    pub(crate) fn of_payload(
        domain: &Arc<Domain>,
        payload: Bytes,
    ) -> Result<Self, (Bytes, io::Error)> {
        let (address, length) = (payload.as_ptr().cast_mut(), payload.len());
        // SAFETY: `Bytes` keeps its bytes at one address and shares them for reading, and an access
        // of 0 permits the adapter only to read.
        unsafe { Self::new(domain, payload, address, length, 0) }
    }
}

impl OwnedRegion<BytesMut> {
    /// Registers a buffer with this access.
    ///
    /// # Errors
    /// The adapter refuses the registration. The buffer is returned.
    pub(crate) fn of_buffer(
        domain: &Arc<Domain>,
        mut buffer: BytesMut,
        access: c_int,
    ) -> Result<Self, (BytesMut, io::Error)> {
        let (address, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: `BytesMut` keeps its bytes at one address and is their only owner. It is moved
        // into the new object, which makes no reference to them before the registration has ended.
        unsafe { Self::new(domain, buffer, address, length, access) }
    }
}

impl<M> Drop for OwnedRegion<M> {
    fn drop(&mut self) {
        if self.deregister() {
            // SAFETY: the memory is dropped once, together with its owner.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// A memory window of type 2, which gives a region a token that the peer can invalidate.
pub(crate) struct Window {
    mw: Object<ibv_mw>,
    domain: Arc<Domain>,
    remote_key: u32,
}

impl Window {
    /// Allocates a window that is not bound to a region.
    pub(crate) fn new(domain: &Arc<Domain>) -> io::Result<Self> {
        let ops = domain.id.ops();
        let alloc_mw = ops.alloc_mw.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the function and the domain belong to the same device.
        let mw = Object::new(unsafe { alloc_mw(domain.raw(), ffi::IBV_MW_TYPE_2) })?;
        // SAFETY: the library has set the field.
        let allocated = unsafe { (*mw.raw()).rkey };
        // The owner chooses the low 8 bits, and each binding needs new ones.
        let remote_key = (allocated & !0xff) | (allocated.wrapping_add(1) & 0xff);
        Ok(Self {
            mw,
            domain: domain.clone(),
            remote_key,
        })
    }

    pub(crate) fn raw(&self) -> *mut ibv_mw {
        self.mw.raw()
    }

    /// Returns the token that the window has once it is bound.
    pub(crate) fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(dealloc_mw) = self.domain.id.ops().dealloc_mw {
            // SAFETY: the window was allocated by the same device, and is deallocated once.
            let error = unsafe { dealloc_mw(self.raw()) };
            log_ffi_error(self.domain.id.span(), "ibv_dealloc_mw", error);
        }
    }
}

/// Size of the smallest buffer of a pool, in bytes. Received messages up to this length are copied.
const MIN_SLOT_BYTES: usize = 256;
/// Fewest bytes that the pool registers in one call.
const MIN_REGION_BYTES: usize = 64 << 10;
/// Maximum number of bytes that the pool registers in one call, unless a single buffer is larger.
const MAX_REGION_BYTES: usize = 1 << 20;
/// Buffers of one size that can be on loan to the receiver of messages. Further messages are copied,
/// so that a program that keeps many small messages does not hold registered memory.
const MAX_LOANS: usize = 1024;

/// A pool of registered buffers, whose sizes are powers of two.
///
/// It grows on demand and never shrinks. The depth of the queue pair and [`MAX_LOANS`] bound it.
pub(crate) struct Pool {
    domain: Arc<Domain>,
    regions: Vec<OwnedRegion<Arc<Memory>>>,
    buffers: Arc<Buffers>,
}

/// The buffers of a pool, by size. Loans hold it too and return their buffers to it.
#[derive(Default)]
struct Buffers(Mutex<HashMap<usize, OfSize>>);

/// The buffers of one size.
#[derive(Default)]
struct OfSize {
    free: Vec<Slot>,
    /// The number of buffers that are on loan.
    loans: usize,
    /// The number of bytes that are registered.
    registered: usize,
}

impl Buffers {
    fn of_size<R>(&self, size: usize, change: impl FnOnce(&mut OfSize) -> R) -> R {
        let mut sizes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(sizes.entry(size).or_default())
    }
}

/// A buffer of a pool. A work request, a loan or the pool owns it.
pub(crate) struct Slot {
    memory: Arc<Memory>,
    offset: usize,
    size: usize,
    local_key: u32,
}

impl Pool {
    pub(crate) fn new(domain: Arc<Domain>) -> Self {
        Self {
            domain,
            regions: Vec::new(),
            buffers: Arc::default(),
        }
    }

    /// Returns a buffer of at least `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> io::Result<Slot> {
        let size = length.max(MIN_SLOT_BYTES).next_power_of_two();
        let free = |of_size: &mut OfSize| of_size.free.pop();
        if let Some(slot) = self.buffers.of_size(size, free) {
            return Ok(slot);
        }
        self.grow(size)?;
        let slot = self.buffers.of_size(size, free);
        Ok(slot.expect("the pool has just grown"))
    }

    /// Registers further buffers of `size` bytes.
    fn grow(&mut self, size: usize) -> io::Result<()> {
        let registered = self.buffers.of_size(size, |of_size| of_size.registered);
        let length = size.max(registered.clamp(MIN_REGION_BYTES, MAX_REGION_BYTES));
        let memory = Arc::new(Memory::new(length));
        let start = memory.start.as_ptr();
        // SAFETY: the memory is a heap allocation, which does not move. Only the owner of a slot
        // that is not posted makes references to its bytes.
        let region = unsafe {
            let access = ffi::IBV_ACCESS_LOCAL_WRITE;
            OwnedRegion::new(&self.domain, memory.clone(), start, length, access)
        }
        .map_err(|(_, error)| error)?;
        let local_key = region.local_key();
        self.regions.push(region);
        let slots = (0..length / size).map(|i| Slot {
            memory: memory.clone(),
            offset: i * size,
            size,
            local_key,
        });
        self.buffers.of_size(size, |of_size| {
            of_size.registered += length;
            of_size.free.extend(slots);
        });
        Ok(())
    }

    /// Returns a buffer to the pool.
    pub(crate) fn put(&self, slot: Slot) {
        self.buffers
            .of_size(slot.size, |of_size| of_size.free.push(slot));
    }

    /// Returns the first `length` bytes of a buffer that the adapter has filled. They are copied or
    /// on loan; a buffer on loan returns to the pool when the bytes are dropped.
    pub(crate) fn lend(&self, slot: Slot, length: usize) -> Bytes {
        assert!(length <= slot.size, "a message fits into the posted buffer");
        let lends = self.buffers.of_size(slot.size, |of_size| {
            let lends = length > MIN_SLOT_BYTES && of_size.loans < MAX_LOANS;
            of_size.loans += usize::from(lends);
            lends
        });
        if !lends {
            let message = Bytes::copy_from_slice(&slot.bytes()[..length]);
            self.put(slot);
            return message;
        }
        Bytes::from_owner(Loan {
            slot: Some(slot),
            length,
            buffers: self.buffers.clone(),
        })
    }
}

/// A message in a buffer that is on loan from a pool.
struct Loan {
    slot: Option<Slot>,
    length: usize,
    buffers: Arc<Buffers>,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        let slot = self.slot.as_ref().expect("only drop takes the slot");
        &slot.bytes()[..self.length]
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let slot = self.slot.take().expect("only drop takes the slot");
        self.buffers.of_size(slot.size, |of_size| {
            of_size.loans -= 1;
            of_size.free.push(slot);
        });
    }
}

impl Slot {
    pub(crate) fn address(&self) -> u64 {
        self.start().as_ptr() as u64
    }

    pub(crate) const fn local_key(&self) -> u32 {
        self.local_key
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: a slot is within its memory.
        unsafe { self.memory.start.add(self.offset) }
    }

    /// Returns the bytes of a buffer that is not posted.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes were allocated as zeros and stay allocated while the slot lives. The
        // slot is their only owner, and the adapter accesses them only while they are posted.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.size) }
    }

    /// Returns the bytes of a buffer that is not posted, for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; slots do not overlap, and this one is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.size) }
    }
}

/// Zeroed memory in whole pages, so that registered memory shares no page with other data.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is plain memory, and references to its bytes are made through slots only.
unsafe impl Send for Memory {}
// SAFETY: it is plain memory, and references to its bytes are made through slots only.
unsafe impl Sync for Memory {}

/// Alignment of registered memory, in bytes: the smallest page of the architectures that rdma-core supports.
const PAGE_BYTES: usize = 4096;

impl Memory {
    fn new(length: usize) -> Self {
        let layout = Layout::from_size_align(length, PAGE_BYTES)
            .expect("a message is shorter than isize::MAX");
        // SAFETY: the length is not 0, because it is at least that of the smallest buffer.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout);
        };
        Self { start, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and every slot holds it, so none is left.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;
    use crate::ffi::{Functions, ibv_context};

    unsafe extern "C" fn alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
        NonNull::dangling().as_ptr()
    }

    unsafe extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
        0
    }

    unsafe extern "C" fn reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        _: c_int,
    ) -> *mut ibv_mr {
        Box::leak(Box::new(ibv_mr {
            context: std::ptr::null_mut(),
            pd,
            addr,
            length,
            handle: 0,
            lkey: 1,
            rkey: 2,
        }))
    }

    /// Reads every registered byte, as an adapter may do until deregistration.
    unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
        // SAFETY: `reg_mr` allocated the region; the test checks that its bytes are still
        // allocated.
        let (mr, bytes) = unsafe {
            let mr = Box::from_raw(mr);
            let bytes = slice::from_raw_parts(mr.addr.cast::<u8>(), mr.length);
            (mr, bytes)
        };
        assert_eq!(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 0);
        drop(mr);
        0
    }

    unsafe extern "C" fn dereg_mr_fails(mr: *mut ibv_mr) -> c_int {
        // SAFETY: `reg_mr` allocated the region, and it is deregistered once.
        drop(unsafe { Box::from_raw(mr) });
        16
    }

    fn domain(dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int) -> Arc<Domain> {
        let mut functions = Functions::none();
        functions.ibv_alloc_pd = alloc_pd;
        functions.ibv_dealloc_pd = dealloc_pd;
        functions.ibv_reg_mr = reg_mr;
        functions.ibv_dereg_mr = dereg_mr;
        Domain::new(CmId::fake(functions)).unwrap()
    }

    /// Returns memory and a weak reference that shows whether it was freed.
    fn memory_with_weak() -> (Arc<Memory>, std::sync::Weak<Memory>) {
        let memory = Arc::new(Memory::new(PAGE_BYTES));
        let weak = Arc::downgrade(&memory);
        (memory, weak)
    }

    fn registered(domain: &Arc<Domain>, memory: Arc<Memory>) -> OwnedRegion<Arc<Memory>> {
        let start = memory.start.as_ptr();
        // SAFETY: the memory is a heap allocation, and the test makes no reference to it.
        let region = unsafe {
            OwnedRegion::new(
                domain,
                memory,
                start,
                PAGE_BYTES,
                ffi::IBV_ACCESS_REMOTE_WRITE,
            )
        };
        region.map_err(|(_, error)| error).unwrap()
    }

    #[test]
    fn memory_is_freed_after_deregistration() {
        let domain = domain(dereg_mr);
        let (memory, weak) = memory_with_weak();
        drop(registered(&domain, memory));
        assert!(weak.upgrade().is_none());
        let (memory, weak) = memory_with_weak();
        let memory = registered(&domain, memory).into_memory();
        assert!(memory.is_some());
        drop(memory);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn memory_is_leaked_if_deregistration_fails() {
        let domain = domain(dereg_mr_fails);
        let (memory, dropped) = memory_with_weak();
        drop(registered(&domain, memory));
        let (memory, taken) = memory_with_weak();
        assert!(registered(&domain, memory).into_memory().is_none());
        let (memory, ended) = memory_with_weak();
        let mut region = registered(&domain, memory);
        assert!(!region.deregister());
        assert!(!region.deregister(), "the failure is remembered");
        drop(region);
        for weak in [dropped, taken, ended] {
            // SAFETY: the region leaked one strong reference, which is released here once.
            unsafe { Arc::decrement_strong_count(weak.as_ptr()) };
            assert!(weak.upgrade().is_none(), "one reference was leaked");
        }
    }

    #[test]
    fn pool_keeps_registered_memory_after_its_only_slot_is_dropped() {
        let mut pool = Pool::new(domain(dereg_mr));
        // A region of this size holds one slot.
        let slot = pool.take(MIN_REGION_BYTES).unwrap();
        assert_eq!(slot.size, MIN_REGION_BYTES);
        let weak = Arc::downgrade(&slot.memory);
        drop(slot);
        assert!(weak.upgrade().is_some(), "the memory is registered");
        drop(pool);
        assert!(weak.upgrade().is_none());
    }
}
