//! The requests of TDI: the parameters in the stack location of an IRP, and what the objects do with them.

use std::time::Duration;

use smbdirect_tdi::{
    DisconnectFlags, Endpoint, Operation, ReceiveFlags, SendFlags, Status, Submitted,
};

use crate::{
    address::{self, Returned},
    device::{Device, runtime},
    event::duration,
    files::{File, of_handle, of_object},
    irp::{Cancel, Request, check_owner, is_cancelled, refuse},
    layout::{
        ACCEPT, DeviceObject, Handle, IO_TYPE_IRP, IRP_MJ_INTERNAL_DEVICE_CONTROL, IRP_MJ_READ,
        IRP_MJ_WRITE, IoStackLocation, Irp, Mdl, NtStatus, RECEIVE, RequestData, RequestKernel,
        RequestQuery, RequestSetEvent, nt,
    },
    mdl::{Outcome, Receive, Target, lend, parts, spans},
    query,
    slots::{ConnectionContext, EVENT_CHAINED_RECEIVE, EVENT_COUNT, EVENT_RECEIVE},
};

/// Minor functions of TDI.
const ASSOCIATE_ADDRESS: u8 = 0x01;
const DISASSOCIATE_ADDRESS: u8 = 0x02;
const CONNECT: u8 = 0x03;
const LISTEN: u8 = 0x04;
const DISCONNECT: u8 = 0x06;
const SEND: u8 = 0x07;
const SET_EVENT_HANDLER: u8 = 0x0B;
const QUERY_INFORMATION: u8 = 0x0C;
const SET_INFORMATION: u8 = 0x0D;
const ACTION: u8 = 0x0E;
/// The flag of a listen that completes with the offer.
const QUERY_ACCEPT: u32 = 0x1;

/// Starts a request whose parameters were read, and returns how it is cancelled, if it can be.
type Start = Box<dyn FnOnce(Request) -> Option<Cancel>>;

/// Submits a request. A request that no device of this package can take completes with STATUS_INVALID_PARAMETER, so that
/// its client gets it back as always.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IofCallDriver(device: *mut DeviceObject, irp: *mut Irp) -> NtStatus {
    check_owner("IoCallDriver", irp);
    // SAFETY: the caller promises a valid IRP that it owns.
    unsafe {
        if irp.is_null() || (*irp).kind != IO_TYPE_IRP {
            return nt(Status::INVALID_PARAMETER);
        }
        let has_location = (*irp).current_location > 1;
        if has_location {
            (*irp).current_location -= 1;
            (*irp).current_stack_location = (*irp).current_stack_location.sub(1);
            (*(*irp).current_stack_location).device_object = device;
        }
        match Device::of(device) {
            Some(known) if has_location => request(known, irp),
            _ => refuse(irp, Status::INVALID_PARAMETER),
        }
    }
}

/// Handles a request whose current stack location is that of this device. Returns what `IoCallDriver` returns.
///
/// # Safety
/// The IRP is valid and belongs to the transport.
unsafe fn request(device: &'static Device, irp: *mut Irp) -> NtStatus {
    // SAFETY: the caller promises a valid IRP.
    unsafe {
        let location = (*irp).current_stack_location;
        let file = of_object((*location).file_object);
        let file = match file {
            Ok(file) if std::ptr::eq(file.device, device) => file,
            Ok(_) => return refuse(irp, Status::INVALID_PARAMETER),
            Err(status) => return refuse(irp, status),
        };
        let _context = runtime().enter();
        let (request, progress) = Request::submitted(irp, file.clone());
        let start = match (*location).major_function {
            _ if is_cancelled(irp) => Err(Status::CANCELLED),
            IRP_MJ_INTERNAL_DEVICE_CONTROL => tdi(device, &file, irp, location),
            IRP_MJ_WRITE | IRP_MJ_READ => read_or_write(device, &file, irp, location),
            _ => Err(Status::INVALID_DEVICE_REQUEST),
        };
        // The request may have completed when this returns, and its IRP may be another one's.
        let cancel = start.unwrap_or_else(now)(request);
        progress.submitted(cancel)
    }
}

/// Reads the parameters of a request of TDI.
///
/// # Safety
/// The IRP and its stack location are valid, with what they point to.
unsafe fn tdi(
    device: &'static Device,
    file: &File,
    irp: *mut Irp,
    location: *mut IoStackLocation,
) -> Result<Start, Status> {
    // SAFETY: the caller promises a valid request, whose parameters have the type of its minor function.
    unsafe {
        let mdl = (*irp).mdl_address;
        match (*location).minor_function {
            ASSOCIATE_ADDRESS => {
                let endpoint = file.endpoint()?;
                let address = of_handle((*location).parameters::<Handle>())?;
                endpoint.associate(&address.address()?.0)?;
                Ok(now(Status::SUCCESS))
            }
            DISASSOCIATE_ADDRESS => {
                file.endpoint()?.disassociate()?;
                Ok(now(Status::SUCCESS))
            }
            CONNECT => connect(file, (*location).parameters()),
            LISTEN => listen(file, (*location).parameters()),
            ACCEPT => {
                let [_, returned, ..] = (*location).parameters;
                established(file, Operation::Accept, Returned::new(returned))
            }
            DISCONNECT => disconnect(file, (*location).parameters()),
            SEND => {
                let RequestData { length, flags } = (*location).parameters();
                let flags = SendFlags::from_bits_retain(flags);
                send(device, file.endpoint()?, mdl, length, flags)
            }
            RECEIVE => {
                let RequestData { length, flags } = (*location).parameters();
                let flags = ReceiveFlags::from_bits_retain(flags);
                receive(file.endpoint()?, mdl, length, flags)
            }
            SET_EVENT_HANDLER => set_event_handler(file, (*location).parameters()),
            QUERY_INFORMATION => {
                let RequestQuery { query_type, .. } = (*location).parameters();
                let answer = query::answer(device, file, query_type)?;
                Ok(outcome(return_answer(mdl, &answer)?))
            }
            // SMB Direct has nothing to set.
            SET_INFORMATION => Err(query::NOT_IMPLEMENTED),
            ACTION => Err(Status::NOT_SUPPORTED),
            // Datagrams, and what is not of TDI.
            _ => Err(Status::INVALID_DEVICE_REQUEST),
        }
    }
}

/// Completes a request with this status.
fn now(status: Status) -> Start {
    outcome((status, 0))
}

fn outcome(outcome: Outcome) -> Start {
    Box::new(move |request| {
        request.complete(outcome);
        None
    })
}

/// Copies the answer of a query. An answer that is longer than the client's memory is cut off.
unsafe fn return_answer(mdl: *const Mdl, answer: &[u8]) -> Result<Outcome, Status> {
    // SAFETY: the caller promises a valid chain.
    let room: usize = unsafe { parts(mdl).map(|mdl| (*mdl).byte_count as usize).sum() };
    let copied = room.min(answer.len());
    // SAFETY: as above.
    let mut target = unsafe { Target::new(mdl, copied)? };
    target.put(&answer[..copied]);
    let status = if copied < answer.len() {
        Status::BUFFER_OVERFLOW
    } else {
        Status::SUCCESS
    };
    Ok((status, copied))
}

/// Sets or removes the handler of an event. The request completes on the transport's thread: a call of the former handler
/// has returned then.
///
/// # Safety
/// The handler has the type that TDI defines for the event.
unsafe fn set_event_handler(file: &File, request: RequestSetEvent) -> Result<Start, Status> {
    let (address, handlers) = file.address()?;
    let event = usize::try_from(request.event_type).ok();
    let event = event.filter(|&event| event < EVENT_COUNT);
    let event = event.ok_or(Status::INVALID_PARAMETER)?;
    // SAFETY: the caller promises the type.
    unsafe { handlers.set(event, request.handler, request.context) };
    if matches!(event, EVENT_RECEIVE | EVENT_CHAINED_RECEIVE) && !request.handler.is_null() {
        // Data that is held is indicated to the new handler.
        //= TDI-RECV-11
        address.set_client(Some(handlers.clone()));
    }
    Ok(Box::new(|request| {
        runtime().spawn(async move { request.complete((Status::SUCCESS, 0)) });
        None
    }))
}

/// Returns the time-out of a connect or a disconnect; `None` is that of the transport.
unsafe fn timeout(request: &RequestKernel) -> Option<Duration> {
    // SAFETY: the caller promises that it is null or points to a LARGE_INTEGER.
    let time = unsafe { request.specific.cast::<i64>().as_ref() };
    time.filter(|time| **time != 0).map(|&time| duration(time))
}

unsafe fn connect(file: &File, request: RequestKernel) -> Result<Start, Status> {
    // SAFETY: the caller promises that the information is null or valid.
    let (remote, timeout) = unsafe {
        let remote = address::remote(request.request_connection_information)?;
        (remote, timeout(&request))
    };
    let remote = remote.ok_or(Status::INVALID_ADDRESS_COMPONENT)?;
    let returned = Returned::new(request.return_connection_information.cast());
    established(file, Operation::Connect { remote, timeout }, returned)
}

unsafe fn listen(file: &File, request: RequestKernel) -> Result<Start, Status> {
    // SAFETY: the caller promises that the information is null or valid.
    let remote = unsafe { address::remote(request.request_connection_information)? };
    // An address without an IP address accepts every peer.
    let remote = remote
        .map(|remote| remote.ip())
        .filter(|ip| !ip.is_unspecified());
    let query_accept = request.flags & QUERY_ACCEPT != 0;
    let returned = Returned::new(request.return_connection_information.cast());
    let operation = Operation::Listen {
        remote,
        query_accept,
    };
    established(file, operation, returned)
}

/// Returns a request that establishes a connection, and returns the address of the peer.
fn established(file: &File, operation: Operation, returned: Returned) -> Result<Start, Status> {
    let endpoint = file.endpoint()?;
    Ok(Box::new(move |request| {
        let file = request.file().clone();
        endpoint.request_then(operation, request.establishes(returned));
        Some(Box::new(move || {
            if let Ok(endpoint) = file.endpoint() {
                endpoint.cancel();
            }
        }))
    }))
}

unsafe fn disconnect(file: &File, request: RequestKernel) -> Result<Start, Status> {
    let endpoint = file.endpoint()?;
    let flags = DisconnectFlags::from_bits_retain(request.flags);
    // SAFETY: the caller promises that the time-out is null or valid.
    let timeout = unsafe { timeout(&request) };
    let returned = Returned::new(request.return_connection_information.cast());
    Ok(Box::new(move |request| {
        endpoint.request_then(Operation::Disconnect { flags, timeout }, move |result| {
            if result.is_ok() {
                // SAFETY: the information belongs to the transport until the request completes.
                unsafe { returned.write(None) };
            }
            request.complete((result.err().unwrap_or(Status::SUCCESS), 0));
        });
        None
    }))
}

/// Returns a send of the first `length` bytes of a chain.
unsafe fn send(
    device: &Device,
    endpoint: Endpoint<ConnectionContext>,
    mdl: *const Mdl,
    length: u32,
    flags: SendFlags,
) -> Result<Start, Status> {
    // The send buffer can take these sends, so that they complete while the transport still needs their data.
    let is_buffered = flags.intersects(SendFlags::PARTIAL | SendFlags::NON_BLOCKING);
    // SAFETY: the caller promises a valid chain, whose memory stays unchanged until the request completes.
    let (message, released) = unsafe {
        let spans = spans(mdl, length as usize)?;
        lend(spans, device.copies || is_buffered)
    };
    Ok(Box::new(move |request| {
        let submitted = endpoint.send_then(message, flags, move |completion| async move {
            let outcome = (completion.status, completion.information);
            drop(completion);
            //= TDI-SEND-24
            released.wait().await;
            request.complete(outcome);
        });
        cancel_of(submitted)
    }))
}

/// Returns a receive into the first `length` bytes of a chain.
unsafe fn receive(
    endpoint: Endpoint<ConnectionContext>,
    mdl: *const Mdl,
    length: u32,
    flags: ReceiveFlags,
) -> Result<Start, Status> {
    // SAFETY: the caller promises a valid chain, whose memory belongs to the transport until the request completes.
    let target = unsafe { Target::new(mdl, length as usize)? };
    Ok(Box::new(move |request| {
        let receive = Receive(target, move |outcome| request.complete(outcome));
        cancel_of(endpoint.receive_into(Box::new(receive), flags))
    }))
}

fn cancel_of(submitted: Result<Submitted, Status>) -> Option<Cancel> {
    let submitted = submitted.ok()?;
    Some(Box::new(move || {
        submitted.cancel();
    }))
}

/// Returns a read or a write, whose parameters begin with the length.
unsafe fn read_or_write(
    device: &Device,
    file: &File,
    irp: *mut Irp,
    location: *const IoStackLocation,
) -> Result<Start, Status> {
    // SAFETY: the caller promises a valid request.
    unsafe {
        let (mdl, length) = ((*irp).mdl_address, (*location).parameters::<u32>());
        let endpoint = file.endpoint()?;
        if (*location).major_function == IRP_MJ_WRITE {
            //= TDI-SEND-32
            send(device, endpoint, mdl, length, SendFlags::empty())
        } else {
            //= TDI-RECV-09
            receive(endpoint, mdl, length, ReceiveFlags::NORMAL)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_of_0_is_that_of_the_transport() {
        for (time, expected) in [(0, None), (-20_000, Some(Duration::from_millis(2)))] {
            let mut time: i64 = time;
            let request = RequestKernel {
                flags: 0,
                request_connection_information: std::ptr::null_mut(),
                return_connection_information: std::ptr::null_mut(),
                specific: (&raw mut time).cast(),
            };
            // SAFETY: the time-out is valid.
            assert_eq!(unsafe { timeout(&request) }, expected);
        }
    }
}
