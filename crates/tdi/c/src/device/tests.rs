//! What requests do on transports with other settings than those of the devices that clients can open. The tests call the
//! functions that clients in C call, and fill the same structures.

use std::{
    ffi::c_void,
    net::SocketAddr,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use smbdirect::{Config, Settings};
use smbdirect_tdi::{Endpoint, Expedited, NoResponse};

use super::*;
use crate::{
    address,
    dispatch::IofCallDriver,
    event::KeWaitForSingleObject,
    files::{ObReferenceObjectByHandle, ObfDereferenceObject, ZwClose, of_handle},
    irp::IoAllocateIrp,
    layout::{
        ACCEPT, ConnectionInformation, FileObject, Handle, IRP_MJ_INTERNAL_DEVICE_CONTROL,
        IoStatusBlock, Irp, KEvent, Mdl, NtStatus, ObjectAttributes, RECEIVE, RequestData,
        RequestKernel, RequestQuery, SL_INVOKE_ON_CANCEL, SL_INVOKE_ON_ERROR, SL_INVOKE_ON_SUCCESS,
        UnicodeString, nt,
    },
    mdl::{IoAllocateMdl, IoFreeMdl, LENT},
    open::ZwCreateFile,
    slots::ConnectionContext,
};

const ASSOCIATE_ADDRESS: u8 = 0x01;
const CONNECT: u8 = 0x03;
const LISTEN: u8 = 0x04;
const DISCONNECT: u8 = 0x06;
const SEND: u8 = 0x07;
const QUERY_INFORMATION: u8 = 0x0C;
const QUERY_PROVIDER_INFO: i32 = 2;
const ABORT: u32 = 0x02;
const QUERY_ACCEPT: u32 = 0x01;
const EXPEDITED: u32 = 0x20;
const NO_RESPONSE_EXPECTED: u32 = 0x80;
const NON_BLOCKING: u32 = 0x100;

/// Adds a device with these settings. Returns its name.
fn device(provider: Arc<dyn Provider>, settings: TransportSettings, copies: bool) -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let name = format!("\\device\\smbdirecttest{number}");
    let device = Device::new(Transport::new(provider, settings).unwrap(), copies);
    let mut devices = DEVICES.lock().unwrap();
    assert!(devices.insert(name.clone(), device).is_none());
    name
}

/// Returns devices over loopback and iWARP.
fn devices(settings: &TransportSettings) -> [String; 2] {
    let iwarp = Arc::new(Iwarp::new(IwarpConfig::default()));
    [
        device(Arc::new(Loopback::new()), settings.clone(), true),
        device(iwarp, settings.clone(), false),
    ]
}

/// Runs a test over loopback and iWARP.
fn over_both(settings: &TransportSettings, test: impl Fn(&Pair)) {
    for name in devices(settings) {
        let pair = Pair::new(&name);
        test(&pair);
        pair.close();
    }
}

/// Settings with which a sender soon waits for a receiver that does not receive.
fn starving() -> TransportSettings {
    let mut connection = Settings::default();
    connection.receive_credit_max = 4;
    connection.send_credit_target = 4;
    connection.max_send_size = 1024;
    connection.max_receive_size = 1024;
    connection.receive_buffer = Some(16 << 10);
    connection.credit_grant_timeout = None;
    let mut settings = TransportSettings::new(Config::new(connection).unwrap());
    settings.receive.receive_buffer = 1;
    settings.receive.lendable = 0;
    settings
}

/// The number of requests that have completed while the transport still had their memory.
static EARLY: AtomicU32 = AtomicU32::new(0);

/// The routine of all requests, whose context is their memory.
unsafe extern "C" fn check_memory(
    _: *mut DeviceObject,
    _: *mut Irp,
    memory: *mut c_void,
) -> NtStatus {
    if LENT.lock().unwrap().contains(&(memory as usize)) {
        EARLY.fetch_add(1, Ordering::SeqCst);
    }
    0
}

/// An open file.
struct Opened {
    handle: Handle,
    object: *mut FileObject,
    device: *mut DeviceObject,
}

impl Opened {
    fn new(device: &str, attribute: &[u8], value: &[u8]) -> Self {
        let mut name: Vec<u16> = device.encode_utf16().collect();
        let length = (name.len() * 2) as u16;
        let mut name = UnicodeString {
            length,
            maximum_length: length,
            buffer: name.as_mut_ptr(),
        };
        let attributes = ObjectAttributes {
            length: size_of::<ObjectAttributes>() as u32,
            root_directory: ptr::null_mut(),
            object_name: &raw mut name,
            attributes: 0,
            security_descriptor: ptr::null_mut(),
            security_quality_of_service: ptr::null_mut(),
        };
        let mut ea = vec![0, 0, 0, 0, 0, attribute.len() as u8];
        ea.extend((value.len() as u16).to_ne_bytes());
        ea.extend([attribute, &[0], value].concat());
        let (mut handle, mut object) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: all pointers are valid during the calls.
        unsafe {
            let status = ZwCreateFile(
                &raw mut handle,
                0,
                &raw const attributes,
                ptr::null_mut(),
                ptr::null(),
                0,
                0,
                0,
                0,
                ea.as_ptr().cast(),
                ea.len() as u32,
            );
            assert_eq!(status, 0, "{device}");
            let none = ptr::null_mut();
            let found = ObReferenceObjectByHandle(handle, 0, ptr::null(), 0, &raw mut object, none);
            assert_eq!(found, 0);
        }
        let object = object.cast::<FileObject>();
        // SAFETY: the file object is valid while it is referenced.
        let device = unsafe { (*object).device_object };
        Self {
            handle,
            object,
            device,
        }
    }

    fn close(self) {
        assert_eq!(ZwClose(self.handle), 0);
        ObfDereferenceObject(self.object.cast());
    }

    fn endpoint(&self) -> Endpoint<ConnectionContext> {
        of_handle(self.handle).unwrap().endpoint().unwrap()
    }

    /// Submits a request for the memory, which it uses until [`Submitted::finish`].
    fn submit<T>(&self, minor: u8, parameters: T, mut memory: Vec<u8>) -> Submitted {
        assert!(size_of::<T>() <= size_of::<[*mut c_void; 4]>());
        let report = Box::into_raw(Box::<Report>::new_uninit()).cast::<Report>();
        // SAFETY: the report and the memory outlive the request. The IRP is new and has one stack location, whose
        // parameters have room for the type.
        unsafe {
            let (event, block) = (&raw mut (*report).event, &raw mut (*report).block);
            event.write(KEvent::new(0));
            let mdl = IoAllocateMdl(
                memory.as_mut_ptr().cast(),
                memory.len() as u32,
                0,
                0,
                ptr::null_mut(),
            );
            let irp = IoAllocateIrp(1, 0);
            (*irp).user_event = event;
            (*irp).user_iosb = block;
            (*irp).mdl_address = mdl;
            let location = (*irp).current_stack_location.sub(1);
            (*location).major_function = IRP_MJ_INTERNAL_DEVICE_CONTROL;
            (*location).minor_function = minor;
            (*location).file_object = self.object;
            (*location).completion_routine = Some(check_memory);
            (*location).context = memory.as_mut_ptr().cast();
            (*location).control = SL_INVOKE_ON_SUCCESS | SL_INVOKE_ON_ERROR | SL_INVOKE_ON_CANCEL;
            (&raw mut (*location).parameters)
                .cast::<T>()
                .write(parameters);
            let first = IofCallDriver(self.device, irp);
            Submitted {
                report,
                mdl,
                memory,
                first,
            }
        }
    }

    fn submit_send(&self, data: &[u8], flags: u32) -> Submitted {
        let length = data.len() as u32;
        self.submit(SEND, RequestData { length, flags }, data.to_vec())
    }

    fn submit_abort(&self) -> Submitted {
        let request = RequestKernel {
            flags: ABORT,
            request_connection_information: ptr::null_mut(),
            return_connection_information: ptr::null_mut(),
            specific: ptr::null_mut(),
        };
        self.submit(DISCONNECT, request, Vec::new())
    }

    /// Returns MaxSendSize of the answer to a query for the provider's information.
    fn max_send_size(&self) -> usize {
        let query = RequestQuery {
            query_type: QUERY_PROVIDER_INFO,
            request_connection_information: ptr::null_mut(),
        };
        let (outcome, answer) = self.submit(QUERY_INFORMATION, query, vec![0; 40]).finish();
        assert_eq!(outcome, (Status::SUCCESS, 40));
        u32::from_ne_bytes(answer[4..8].try_into().unwrap()) as usize
    }

    fn send(&self, data: &[u8], flags: u32) -> (Status, usize) {
        self.submit_send(data, flags).finish().0
    }

    fn receive(&self) -> Vec<u8> {
        const LENGTH: u32 = 100_000;
        let request = RequestData {
            length: LENGTH,
            flags: 0,
        };
        let submitted = self.submit(RECEIVE, request, vec![0; LENGTH as usize]);
        let ((status, length), mut memory) = submitted.finish();
        assert_eq!(status, Status::SUCCESS);
        memory.truncate(length);
        memory
    }
}

/// Where the transport reports the completion of a request.
struct Report {
    event: KEvent,
    block: IoStatusBlock,
}

/// A request that was submitted.
struct Submitted {
    report: *mut Report,
    mdl: *mut Mdl,
    memory: Vec<u8>,
    /// What `IoCallDriver` has returned.
    first: NtStatus,
}

impl Submitted {
    fn has_completed(&self) -> bool {
        // SAFETY: the event was initialized, and exists until `finish`.
        unsafe { (&raw const (*self.report).event.signal_state).read_volatile() != 0 }
    }

    /// Waits for the completion. Returns it, and the memory.
    fn finish(self) -> ((Status, usize), Vec<u8>) {
        let mut limit = -60_i64 * 10_000_000;
        // SAFETY: the event was initialized. The request uses the report and the description until its completion, which
        // writes the block.
        let block = unsafe {
            let event = (&raw mut (*self.report).event).cast();
            let waited = KeWaitForSingleObject(event, 0, 0, 0, &raw mut limit);
            assert_eq!(waited, 0, "the request does not complete");
            IoFreeMdl(self.mdl);
            Box::from_raw(self.report).block
        };
        assert!(self.first == nt(Status::PENDING) || self.first == block.status());
        let outcome = (Status(block.status() as u32), block.information);
        (outcome, self.memory)
    }
}

/// Two connections that are connected with each other.
struct Pair {
    server: Opened,
    client: Opened,
    there: Opened,
    here: Opened,
}

impl Pair {
    /// Opens two connections that are connected with each other.
    fn new(device: &str) -> Self {
        let pair = Self::open(device);
        let (listen, connect) = pair.connect(0);
        assert_eq!(connect.finish().0, (Status::SUCCESS, 0));
        assert_eq!(listen.finish().0, (Status::SUCCESS, 0));
        pair
    }

    fn open(device: &str) -> Self {
        Self::between(device, device)
    }

    /// Opens the two ends on devices of their own.
    fn between(server: &str, client: &str) -> Self {
        let devices = [server, client];
        let open = |device: &str, address: &str| {
            let address: SocketAddr = address.parse().unwrap();
            Opened::new(device, b"TransportAddress", &address::format(address))
        };
        let (server, client) = (open(server, "127.0.0.1:0"), open(client, "0.0.0.0:0"));
        let [there, here] = [(0, &server), (1, &client)].map(|(index, address)| {
            let context = index + 1_usize;
            let device = devices[index];
            let connection = Opened::new(device, b"ConnectionContext", &context.to_ne_bytes());
            let associate = connection.submit(ASSOCIATE_ADDRESS, address.handle, Vec::new());
            assert_eq!(associate.finish().0, (Status::SUCCESS, 0));
            connection
        });
        Self {
            server,
            client,
            there,
            here,
        }
    }

    /// Submits a listen with these flags, and a connect.
    fn connect(&self, flags: u32) -> (Submitted, Submitted) {
        let mut request = RequestKernel {
            flags,
            request_connection_information: ptr::null_mut(),
            return_connection_information: ptr::null_mut(),
            specific: ptr::null_mut(),
        };
        let listen = self.there.submit(LISTEN, request, Vec::new());
        let local = of_handle(self.server.handle).unwrap();
        let mut to = address::format(local.address().unwrap().0.local_addr());
        let mut information = ConnectionInformation {
            user_data_length: 0,
            user_data: ptr::null_mut(),
            options_length: 0,
            options: ptr::null_mut(),
            remote_address_length: to.len() as i32,
            remote_address: to.as_mut_ptr().cast(),
        };
        // The transport reads the address during the submission.
        request.flags = 0;
        request.request_connection_information = &raw mut information;
        (listen, self.here.submit(CONNECT, request, Vec::new()))
    }

    fn close(self) {
        for file in [self.here, self.there, self.client, self.server] {
            file.close();
        }
    }
}

//= TDI-SEND-06 test
#[test]
fn expedited_has_no_effect_without_expedited_sends() {
    let mut settings = starving();
    settings.send.expedited = Expedited::Ignore;
    over_both(&settings, |pair| {
        // More than the receiver holds, so that the last ones wait.
        let sends = [(); 64].map(|()| pair.here.submit_send(&[1; 1000], 0));
        assert_eq!(sends[63].first, nt(Status::PENDING));
        let expedited = pair.here.submit_send(b"expedited", EXPEDITED);
        for _ in 0..64 {
            assert_eq!(pair.there.receive().len(), 1000);
        }
        assert_eq!(pair.there.receive(), b"expedited");
        for send in sends {
            assert_eq!(send.finish().0, (Status::SUCCESS, 1000));
        }
        assert_eq!(expedited.finish().0, (Status::SUCCESS, 9));
    });
}

/// The transport's thread serves both ends, so the peer answers between two sends.
//= TDI-SEND-13 test
#[test]
fn no_response_expected_requests_credits() {
    let mut settings = TransportSettings::default();
    settings.send.no_response = NoResponse::Always;
    over_both(&settings, |pair| {
        let keepalives = || {
            let endpoint = pair.here.endpoint();
            endpoint.connection().unwrap().stats().keepalives_sent
        };
        assert_eq!(pair.here.send(b"plain", 0), (Status::SUCCESS, 5));
        assert_eq!(pair.there.receive(), b"plain");
        assert_eq!(keepalives(), 0);
        let sent = pair.here.send(b"no hurry", NO_RESPONSE_EXPECTED);
        assert_eq!(sent, (Status::SUCCESS, 8));
        assert_eq!(pair.there.receive(), b"no hurry");
        assert_eq!(keepalives(), 1);
    });
}

//= TDI-SEND-19 test
#[test]
fn non_blocking_has_no_effect_without_a_send_buffer() {
    let mut settings = starving();
    settings.send.high_water = 0;
    settings.send.low_water = 0;
    over_both(&settings, |pair| {
        // With a send buffer they would complete, or be refused when it is full.
        let sends = [(); 64].map(|()| pair.here.submit_send(&[1; 1000], NON_BLOCKING));
        assert_eq!(sends[63].first, nt(Status::PENDING));
        for _ in 0..64 {
            assert_eq!(pair.there.receive().len(), 1000);
        }
        for send in sends {
            assert_eq!(send.finish().0, (Status::SUCCESS, 1000));
        }
    });
}

//= TDI-SEND-27 test
#[test]
fn sends_complete_with_a_time_out_of_the_transport() {
    let mut settings = starving();
    settings.send.send_timeout = Some(Duration::from_millis(200));
    over_both(&settings, |pair| {
        let sends = [(); 64].map(|()| pair.here.submit_send(&[1; 1000], 0));
        let outcomes = sends.map(|send| send.finish().0);
        // The first ones have left. One may have begun to leave, and then its connection ends with it.
        assert_eq!(outcomes[0], (Status::SUCCESS, 1000));
        let late = outcomes
            .iter()
            .position(|(status, _)| *status != Status::SUCCESS);
        assert_eq!(outcomes[late.unwrap()], (Status::IO_TIMEOUT, 0));
        assert_eq!(pair.there.receive().len(), 1000);
    });
}

/// An abort ends sends while the connection still has their data.
//= TDI-SEND-24 test
#[test]
fn aborted_sends_complete_when_their_memory_is_released() {
    let iwarp = Arc::new(Iwarp::new(IwarpConfig::default()));
    let pair = Pair::new(&device(iwarp, TransportSettings::default(), false));
    // More than the peer and the sockets take.
    let sends = [(); 32].map(|()| pair.here.submit_send(&vec![1; 1 << 20], 0));
    let abort = pair.here.submit_abort();
    let mut aborted = 0;
    for send in sends {
        let place = send.memory.as_ptr() as usize;
        let ((status, _), memory) = send.finish();
        assert!(!LENT.lock().unwrap().contains(&place), "it is still lent");
        assert_eq!(memory.as_ptr() as usize, place);
        aborted += usize::from(status == Status::LOCAL_DISCONNECT);
    }
    assert!(aborted > 0);
    assert_eq!(EARLY.load(Ordering::SeqCst), 0);
    assert_eq!(abort.finish().0, (Status::SUCCESS, 0));
    pair.close();
}

/// The receiver of a loopback without copies reads the memory of the sender, and has taken nothing yet.
//= TDI-SEND-24 test
#[test]
fn sends_complete_when_the_receiver_has_read_their_memory() {
    let mut large = Settings::default();
    large.max_send_size = 8192;
    large.max_receive_size = 8192;
    let large = TransportSettings::new(Config::new(large).unwrap());
    let pair = Pair::new(&device(Arc::new(Loopback::new()), large, false));
    let send = pair.here.submit_send(&[7; 8000], 0);
    let there = pair.there.endpoint();
    while there.query_connection().unwrap().received_tsdus == 0 {
        wait_for(async {}).unwrap();
    }
    // What is ready to run on the transport's thread runs before the last of these.
    for _ in 0..100 {
        wait_for(async {}).unwrap();
    }
    let place = send.memory.as_ptr() as usize;
    assert!(LENT.lock().unwrap().contains(&place), "it is read in place");
    assert!(!send.has_completed());
    assert_eq!(pair.there.receive(), [7; 8000]);
    assert_eq!(send.finish().0, (Status::SUCCESS, 8000));
    pair.close();
}

/// A peer that reassembles less than this end sends lowers the largest send of the connection.
//= TDI-SEND-22 test
//= TDI-SEND-23 test
#[test]
fn query_of_a_connection_returns_its_largest_send() {
    let loopback: Arc<dyn Provider> = Arc::new(Loopback::new());
    let mut small = Settings::default();
    small.max_fragmented_receive_size = 128 << 10;
    let small = TransportSettings::new(Config::new(small).unwrap());
    let server = device(loopback.clone(), small, true);
    let client = device(loopback, TransportSettings::default(), true);
    let pair = Pair::between(&server, &client);
    let largest = pair.client.max_send_size();
    assert!(largest > 128 << 10);
    assert_eq!(pair.here.max_send_size(), largest, "it is not connected");
    let (listen, connect) = pair.connect(0);
    assert_eq!(connect.finish().0, (Status::SUCCESS, 0));
    assert_eq!(listen.finish().0, (Status::SUCCESS, 0));
    assert_eq!(pair.here.max_send_size(), 128 << 10);
    assert_eq!(pair.client.max_send_size(), largest);
    let mut data = vec![7; (128 << 10) + 1];
    let refused = (Status::INVALID_PARAMETER, 0);
    assert_eq!(pair.here.send(&data, 0), refused);
    data.pop();
    assert_eq!(pair.here.send(&data, 0), (Status::SUCCESS, data.len()));
    pair.close();
}

//= TDI-CONN-03 test
#[test]
fn offers_that_are_not_decided_on_are_rejected() {
    let settings = TransportSettings {
        offer_timeout: Duration::from_millis(100),
        ..TransportSettings::default()
    };
    for name in devices(&settings) {
        let pair = Pair::open(&name);
        let (listen, connect) = pair.connect(QUERY_ACCEPT);
        assert_eq!(listen.finish().0, (Status::SUCCESS, 0));
        assert_eq!(connect.finish().0, (Status::REMOTE_NOT_LISTENING, 0));
        let accept = pair.there.submit(ACCEPT, [0_usize; 4], Vec::new());
        assert_eq!(accept.finish().0, (Status::INVALID_CONNECTION, 0));
        pair.close();
    }
}
