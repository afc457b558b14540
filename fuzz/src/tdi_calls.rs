//! Calls of TDI in C in any order, with valid and invalid parameters: connections of one device with each other, whose
//! event handlers return requests, too.
//!
//! The library makes the allocations, so a run with AddressSanitizer finds misuse of memory.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

mod handlers;

use std::{
    collections::BTreeSet,
    ffi::c_void,
    mem::size_of,
    ptr,
    sync::{
        LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use smbdirect_tdi_c::{chained::*, dispatch::*, files::*, irp::*, layout::*, mdl::*, open::*};

use self::handlers::{on_chained, on_connect, on_disconnect, on_other, on_receive};
use crate::input::Input;

/// Maximum number of calls of one input, because each may take milliseconds.
const MAX_CALLS: usize = 150;
/// Number of files that are open at once.
const SLOTS: usize = 6;
/// Length of the memory of a request, in bytes.
const MEMORY_BYTES: usize = 70_000;
/// The value of every byte that is sent.
const FILL: u8 = 7;
/// Time in which every request has to complete after its file was closed.
const TIME_LIMIT: Duration = Duration::from_secs(60);

const PENDING: NtStatus = 0x103;
const MORE_PROCESSING_REQUIRED: NtStatus = 0xC000_0016_u32 as NtStatus;
const DATA_NOT_ACCEPTED: NtStatus = 0xC000_021B_u32 as NtStatus;
const ACCEPT: u8 = 0x05;
const SEND: u8 = 0x07;
const RECEIVE: u8 = 0x08;

/// Makes calls, and checks that each IRP completes once, with the status that `IoCallDriver` returned unless it was
/// pending, at the latest when its file is closed; that received data has the bytes that were sent; and that no file is
/// lost.
pub fn tdi_calls(data: &[u8]) {
    tdi_calls_and_statuses(data);
}

/// Does the same, and returns the minor functions with the statuses of their completions.
pub fn tdi_calls_and_statuses(data: &[u8]) -> BTreeSet<(u8, NtStatus)> {
    // The files of the process are counted, so inputs of several threads run one after the other.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let files = open_files();
    let mut input = Input::new(data);
    let mut world = World::new(input.pick(&["", "Loopback"]));
    match input.up_to(3) {
        0 => {}
        kind => world.connect(kind == 1),
    }
    for _ in 0..MAX_CALLS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
    assert_eq!(open_files(), files, "a file is lost");
    std::mem::take(&mut lock().statuses)
}

/// A request, and the memory that it uses until it completes.
struct Operation {
    irp: *mut Irp,
    minor: u8,
    memory: Box<[u8]>,
    mdls: Vec<*mut Mdl>,
    address: Vec<u8>,
    /// The connection informations that the request names, and the time-out.
    informations: [ConnectionInformation; 2],
    timeout: i64,
    completions: AtomicU32,
    /// The IRP ends with its completion, and is freed.
    ends: bool,
}

/// What handlers and routines share with the calls.
#[derive(Default)]
struct Shared {
    operations: Vec<usize>,
    /// How handlers answer.
    mode: u8,
    /// The device, and the file objects of the connections, as numbers.
    device: usize,
    connections: Vec<usize>,
    kept: Vec<usize>,
    statuses: BTreeSet<(u8, NtStatus)>,
}

fn lock() -> MutexGuard<'static, Shared> {
    static SHARED: LazyLock<Mutex<Shared>> = LazyLock::new(Mutex::default);
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Operation {
    /// Makes a request with its IRP, whose routine counts its completion.
    fn new(minor: u8, file: usize, parts: usize, part_bytes: usize, ends: bool) -> *mut Self {
        let information = || ConnectionInformation {
            user_data_length: 0,
            user_data: ptr::null_mut(),
            options_length: 0,
            options: ptr::null_mut(),
            remote_address_length: 0,
            remote_address: ptr::null_mut(),
        };
        let fill = if minor == SEND { FILL } else { 0 };
        let operation = Box::into_raw(Box::new(Self {
            irp: IoAllocateIrp(1, 0),
            minor,
            memory: vec![fill; MEMORY_BYTES].into(),
            mdls: Vec::new(),
            address: Vec::new(),
            informations: [information(), information()],
            timeout: -100_000,
            completions: AtomicU32::new(0),
            ends,
        }));
        // SAFETY: the operation and its IRP are new. The memory has room for the parts.
        unsafe {
            let this = &mut *operation;
            for part in 0..parts {
                let start = this.memory.as_mut_ptr().add(part * part_bytes);
                let mdl = IoAllocateMdl(start.cast(), part_bytes as u32, 1, 0, this.irp);
                this.mdls.push(mdl);
            }
            let location = (*this.irp).current_stack_location.sub(1);
            (*location).major_function = IRP_MJ_INTERNAL_DEVICE_CONTROL;
            (*location).minor_function = minor;
            (*location).file_object = file as *mut FileObject;
            (*location).control = SL_INVOKE_ON_SUCCESS | SL_INVOKE_ON_ERROR | SL_INVOKE_ON_CANCEL;
            (*location).completion_routine = Some(completed);
            (*location).context = operation.cast();
        }
        lock().operations.push(operation as usize);
        operation
    }

    /// Writes the parameters of the request.
    ///
    /// # Safety
    /// The request was not submitted.
    unsafe fn set<T>(&mut self, parameters: T) {
        assert!(size_of::<T>() <= size_of::<[*mut c_void; 4]>());
        // SAFETY: the IRP has one location, whose parameters have room for the type.
        unsafe {
            let location = (*self.irp).current_stack_location.sub(1);
            (&raw mut (*location).parameters)
                .cast::<T>()
                .write(parameters);
        }
    }
}

unsafe extern "C" fn completed(
    _: *mut DeviceObject,
    irp: *mut Irp,
    context: *mut c_void,
) -> NtStatus {
    // SAFETY: the context is the operation, which is freed after its completion.
    unsafe {
        let operation = &*context.cast::<Operation>();
        let (status, information) = ((*irp).io_status.status.status, (*irp).io_status.information);
        assert_ne!(status, PENDING);
        assert!(information <= MEMORY_BYTES);
        if operation.minor == RECEIVE {
            let is_sent = operation.memory[..information]
                .iter()
                .all(|byte| *byte == FILL);
            assert!(is_sent, "received data was not sent");
        }
        lock().statuses.insert((operation.minor, status));
        let ends = operation.ends;
        if ends {
            (*irp).mdl_address = ptr::null_mut();
        }
        // From here on another thread may free the operation.
        assert_eq!(
            operation.completions.fetch_add(1, Ordering::SeqCst),
            0,
            "a second completion"
        );
        if ends { 0 } else { MORE_PROCESSING_REQUIRED }
    }
}

/// A handle and its file object; 0 if there is none.
#[derive(Clone, Copy, Default)]
struct Opened {
    handle: usize,
    object: usize,
}

/// The files of one input: two addresses, three connections and a control channel.
struct World {
    name: Vec<u16>,
    files: [Opened; SLOTS],
    /// The address of the first file, as TDI writes it.
    address: Vec<u8>,
}

const ANY: [u8; 22] = [
    1, 0, 0, 0, 14, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Returns an extended attribute.
fn attribute(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, 0, name.len() as u8];
    bytes.extend((value.len() as u16).to_ne_bytes());
    bytes.extend([name, &[0], value].concat());
    bytes
}

impl World {
    fn new(device: &str) -> Self {
        *lock() = Shared::default();
        let mut world = Self {
            name: format!("\\Device\\SmbDirect{device}")
                .encode_utf16()
                .collect(),
            files: [Opened::default(); SLOTS],
            address: Vec::new(),
        };
        let mut local = ANY;
        local[10..14].copy_from_slice(&[127, 0, 0, 1]);
        world.open(0, &attribute(b"TransportAddress", &local), 0);
        world.open(1, &attribute(b"TransportAddress", &ANY), 0);
        for slot in 2..5 {
            world.open(
                slot,
                &attribute(b"ConnectionContext", &(slot - 1).to_ne_bytes()),
                0,
            );
        }
        world.open(5, &[], 0);
        let query = Operation::new(0x0C, world.files[0].object, 1, 100, false);
        // SAFETY: the operation is new, and its query completes in the call.
        unsafe {
            (*query).set(RequestQuery {
                query_type: 3,
                request_connection_information: ptr::null_mut(),
            });
            assert_eq!(world.submit(query), 0);
            world.address = (&(*query).memory)[4..26].to_vec();
        }
        world
    }

    /// Opens a file in a slot that is free. Returns the status.
    fn open(&mut self, slot: usize, attribute: &[u8], share: u32) -> NtStatus {
        let mut name = UnicodeString {
            length: (self.name.len() * 2) as u16,
            maximum_length: (self.name.len() * 2) as u16,
            buffer: self.name.as_mut_ptr(),
        };
        let attributes = ObjectAttributes {
            length: size_of::<ObjectAttributes>() as u32,
            root_directory: ptr::null_mut(),
            object_name: &raw mut name,
            attributes: 0,
            security_descriptor: ptr::null_mut(),
            security_quality_of_service: ptr::null_mut(),
        };
        let mut handle: Handle = ptr::null_mut();
        let mut object = ptr::null_mut();
        // SAFETY: all pointers are valid during the calls.
        unsafe {
            let (bytes, length) = (attribute.as_ptr().cast(), attribute.len() as u32);
            let none = ptr::null_mut();
            let status = ZwCreateFile(
                &raw mut handle,
                0,
                &raw const attributes,
                none,
                ptr::null(),
                0,
                share,
                0,
                0,
                bytes,
                length,
            );
            if status == 0 {
                let kind = ptr::null();
                let found =
                    ObReferenceObjectByHandle(handle, 0, kind, 0, &raw mut object, ptr::null_mut());
                assert_eq!(found, 0);
                self.files[slot] = Opened {
                    handle: handle as usize,
                    object: object as usize,
                };
                let device = IoGetRelatedDeviceObject(object.cast()) as usize;
                let mut shared = lock();
                shared.device = device;
                drop(shared);
                self.share_connections();
            }
            status
        }
    }

    /// Tells the handlers the file objects of the connections.
    fn share_connections(&self) {
        lock().connections = self.files[2..5].iter().map(|file| file.object).collect();
    }

    fn close(&mut self, slot: usize) {
        let Opened { handle, object } = std::mem::take(&mut self.files[slot]);
        if handle != 0 {
            assert_eq!(ZwClose(handle as Handle), 0);
            ObfDereferenceObject(object as *mut c_void);
            self.share_connections();
        }
    }

    /// Submits a request, and checks that its status is that of its completion.
    fn submit(&self, operation: *mut Operation) -> NtStatus {
        let device = lock().device as *mut DeviceObject;
        // SAFETY: the operation was made here, and is not freed before it has completed.
        unsafe {
            let status = IofCallDriver(device, (*operation).irp);
            let is_completed = (*operation).completions.load(Ordering::SeqCst) == 1;
            assert!(
                status == PENDING || is_completed,
                "{status:#x} without a completion"
            );
            status
        }
    }

    /// Connects the first two connections with each other. The first listens, or accepts by the connect handler.
    fn connect(&mut self, by_handler: bool) {
        for (slot, address) in [(2, 0), (3, 1)] {
            let operation = Operation::new(0x01, self.files[slot].object, 0, 0, false);
            // SAFETY: the operation is new.
            unsafe { (*operation).set(self.files[address].handle) };
            assert_eq!(self.submit(operation), 0);
        }
        let mut waits = Vec::new();
        if by_handler {
            lock().mode = 4;
            for (event_type, handler) in [
                (0, on_connect as *mut c_void),
                (3, on_receive as *mut c_void),
            ] {
                let operation = Operation::new(0x0B, self.files[0].object, 0, 0, false);
                let event = RequestSetEvent {
                    event_type,
                    handler,
                    context: ptr::null_mut(),
                };
                // SAFETY: the operation is new, and the handler has the type of the event.
                unsafe { (*operation).set(event) };
                // It completes behind the calls of the former handler.
                assert_eq!(self.submit(operation), PENDING);
            }
        } else {
            let listen = Operation::new(0x04, self.files[2].object, 0, 0, false);
            // SAFETY: the operation is new, and zeros are parameters without informations.
            unsafe { (*listen).set([0_usize; 4]) };
            assert_eq!(self.submit(listen), PENDING);
            waits.push(listen);
        }
        let connect = self.connection_request(0x03, 3, self.address.clone(), 0, false);
        self.submit(connect);
        waits.push(connect);
        for operation in waits {
            let begun = Instant::now();
            // SAFETY: operations are freed by `reap` only.
            while unsafe { (*operation).completions.load(Ordering::SeqCst) } == 0 {
                assert!(begun.elapsed() < TIME_LIMIT, "it does not connect");
                thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Makes a connect, a listen or a disconnect.
    fn connection_request(
        &self,
        minor: u8,
        slot: usize,
        address: Vec<u8>,
        flags: u32,
        has_timeout: bool,
    ) -> *mut Operation {
        let operation = Operation::new(minor, self.files[slot].object, 0, 0, false);
        // SAFETY: the operation is new, and its informations live as long as it.
        unsafe {
            let this = &mut *operation;
            this.address = address;
            this.informations[0].remote_address = this.address.as_mut_ptr().cast();
            this.informations[0].remote_address_length = this.address.len() as i32;
            this.informations[1].remote_address = this.memory.as_mut_ptr().cast();
            this.informations[1].remote_address_length = 30;
            let timeout = if has_timeout {
                (&raw mut this.timeout).cast()
            } else {
                ptr::null_mut()
            };
            let [to, returned] = &mut this.informations;
            let request = RequestKernel {
                flags,
                request_connection_information: to,
                return_connection_information: returned,
                specific: timeout,
            };
            this.set(request);
        }
        operation
    }

    /// Makes one call.
    fn step(&mut self, input: &mut Input<'_>) {
        let slot = input.up_to(SLOTS as u8 - 1);
        match input.up_to(15) {
            0 => self.close(slot),
            1 => self.reopen(slot, input),
            2 => lock().mode = input.byte(),
            3 => self.cancel(input),
            4 => self.return_chained(input),
            5 => {
                thread::sleep(Duration::from_micros(u64::from(input.byte()) * 10));
                reap();
            }
            6 => self.write_or_read_elsewhere(slot),
            _ => self.request(slot, input),
        }
    }

    fn reopen(&mut self, slot: usize, input: &mut Input<'_>) {
        self.close(slot);
        let mut bytes = match (input.up_to(7), slot) {
            (0, _) => input.bytes(60).to_vec(),
            (_, 0) => attribute(b"TransportAddress", &self.address),
            (_, 1) => attribute(b"TransportAddress", &ANY),
            (_, 5) => Vec::new(),
            _ => attribute(b"ConnectionContext", &(slot - 1).to_ne_bytes()),
        };
        if input.byte() == 0 && !bytes.is_empty() {
            let at = usize::from(input.byte()) % bytes.len();
            bytes[at] = input.byte();
        }
        self.open(slot, &bytes, input.byte().into());
    }

    fn cancel(&self, input: &mut Input<'_>) {
        let operations = lock().operations.clone();
        if operations.is_empty() {
            return;
        }
        let operation =
            operations[usize::from(input.byte()) % operations.len()] as *const Operation;
        // SAFETY: operations are freed by `reap` only, and an IRP that does not end is freed with its operation.
        unsafe {
            if !(*operation).ends {
                IoCancelIrp((*operation).irp);
            }
        }
    }

    fn return_chained(&self, input: &mut Input<'_>) {
        let mut descriptors: Vec<_> = lock().kept.drain(..).collect();
        if input.is_odd() {
            descriptors.push(input.any());
            descriptors.extend(descriptors.clone());
        }
        // SAFETY: the pointer has as many descriptors as the number says.
        unsafe {
            TdiReturnChainedReceives(descriptors.as_ptr().cast(), descriptors.len() as u32);
        }
    }

    /// Writes and reads of files that they are not for.
    fn write_or_read_elsewhere(&self, slot: usize) {
        if (2..5).contains(&slot) {
            return;
        }
        for major in [IRP_MJ_WRITE, IRP_MJ_READ] {
            let operation = Operation::new(SEND, self.files[slot].object, 1, 10, true);
            // SAFETY: the operation was not submitted, and its IRP has one location.
            unsafe {
                let location = (*(*operation).irp).current_stack_location.sub(1);
                (*location).major_function = major;
                (*operation).set(10_u32);
            }
            assert!(self.submit(operation) < 0);
        }
    }

    fn request(&mut self, slot: usize, input: &mut Input<'_>) {
        let minor = input.pick(&[
            1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 8, 8, 8, 8, 0x0B, 0x0B, 0x0C, 0x0D, 0x0E, 0,
        ]);
        let minor = if minor == 0 { input.byte() } else { minor };
        let operation = match minor {
            3 | 4 | 6 => {
                let address = match input.up_to(3) {
                    0 => input.bytes(30).to_vec(),
                    _ => self.address.clone(),
                };
                let flags = match minor {
                    3 => 0,
                    6 => input.pick(&[0, 2, 4, 4, 1, 6, 8]),
                    _ => input.byte().into(),
                };
                self.connection_request(minor, slot, address, flags, minor == 3 || input.is_odd())
            }
            _ => {
                let (parts, part_bytes) = (input.up_to(3), input.length(20_000));
                let ends = input.is_odd();
                Operation::new(minor, self.files[slot].object, parts, part_bytes, ends)
            }
        };
        let other = self.files[input.up_to(SLOTS as u8 - 1)].handle;
        // SAFETY: the operation is new, and the parameters are those of its minor function.
        unsafe {
            let this = &mut *operation;
            let room = this.mdls.iter().map(|mdl| (**mdl).byte_count).sum::<u32>();
            match minor {
                1 => this.set(other),
                5 => {
                    let returned = &raw mut this.informations[1];
                    this.set([ptr::null_mut(), returned]);
                }
                7 | 8 => {
                    let length = if input.byte() == 0 { input.any() } else { room };
                    let flags = if input.is_odd() {
                        input.any::<u16>()
                    } else {
                        0
                    };
                    this.set(RequestData {
                        length,
                        flags: flags.into(),
                    });
                }
                0x0B => this.set(set_event(input)),
                0x0C | 0x0D => this.set(RequestQuery {
                    query_type: input.up_to(8) as i32 - 1,
                    request_connection_information: ptr::null_mut(),
                }),
                _ => {}
            }
            match input.byte() {
                0 => (*(*this.irp).current_stack_location.sub(1)).file_object = ptr::null_mut(),
                1 => (*(*this.irp).current_stack_location.sub(1)).major_function = input.byte(),
                // A chain that leads back to itself, with and without bytes.
                2 => {
                    if let Some(last) = this.mdls.last() {
                        (**last).next = this.mdls[0];
                    }
                }
                3 => (*this.irp).kind = 0,
                4 => drop(IoCancelIrp(this.irp)),
                _ => {}
            }
            if (*this.irp).kind == 0 {
                // Not an IRP: it is refused, and stays the client's.
                assert!(IofCallDriver(lock().device as *mut DeviceObject, this.irp) < 0);
                this.ends = false;
                this.completions.store(1, Ordering::SeqCst);
                return;
            }
        }
        self.submit(operation);
    }

    /// Closes all files, and checks that every request has completed.
    fn end(&mut self) {
        for slot in 0..SLOTS {
            self.close(slot);
        }
        self.return_chained(&mut Input::new(&[]));
        let begun = Instant::now();
        while reap() > 0 {
            assert!(begun.elapsed() < TIME_LIMIT, "a request has not completed");
            thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Returns the parameters for an event, with the handler of its type.
fn set_event(input: &mut Input<'_>) -> RequestSetEvent {
    let event_type = input.up_to(13) as i32 - 1;
    let handler = match event_type {
        0 => on_connect as *mut c_void,
        1 => on_disconnect as *mut c_void,
        2 | 6 | 10 => on_other as *mut c_void,
        3 | 5 => on_receive as *mut c_void,
        7 | 9 => on_chained as *mut c_void,
        _ => ptr::null_mut(),
    };
    let is_removed = input.byte() < 40;
    RequestSetEvent {
        event_type,
        handler: if is_removed { ptr::null_mut() } else { handler },
        context: ptr::null_mut(),
    }
}

/// Frees the operations that have completed, and returns the number of the others.
fn reap() -> usize {
    let mut done = Vec::new();
    let mut shared = lock();
    shared.operations.retain(|&operation| {
        // SAFETY: operations are freed here only.
        let completions = unsafe { &(*(operation as *const Operation)).completions };
        let is_pending = completions.load(Ordering::SeqCst) == 0;
        if !is_pending {
            done.push(operation as *mut Operation);
        }
        is_pending
    });
    let left = shared.operations.len();
    drop(shared);
    for operation in done {
        // SAFETY: the operation has completed, and so its memory is this end's again. An IRP that ends is freed with its
        // completion.
        unsafe {
            let operation = Box::from_raw(operation);
            for mdl in &operation.mdls {
                IoFreeMdl(*mdl);
            }
            if !operation.ends {
                IoFreeIrp(operation.irp);
            }
        }
    }
    left
}
