//! The calls of the event handlers that a client has set on an address, for the events of its endpoints.

use std::{ffi::c_void, ptr};

use smbdirect_tdi::{
    Address, Answer, Cause, ChainedTsdu, Client, ConnectAnswer, DisconnectFlags, Endpoint,
    EndpointState, Indication, Offer, ReceiveBuffer, ReceiveFlags, ReceiveRequest, RequestId,
    Status,
};

use crate::{
    address::{self, Returned},
    chained,
    device::call_client,
    files::of_object,
    irp::{Request, refuse},
    layout::{
        ACCEPT, IO_TYPE_IRP, IRP_MJ_INTERNAL_DEVICE_CONTROL, IoStackLocation, Irp, Mdl, NtStatus,
        RECEIVE, RequestData, nt,
    },
    mdl::{Receive, Target},
    slots::{
        ConnectionContext, EVENT_CHAINED_RECEIVE, EVENT_CONNECT, EVENT_DISCONNECT, EVENT_ERROR,
        EVENT_ERROR_EX, EVENT_RECEIVE, EVENT_SEND_POSSIBLE, Handlers,
    },
};

/// Declares the type of the handlers of an event.
macro_rules! handler {
    ($name:ident($($parameter:ty),+)) => {
        type $name = unsafe extern "C" fn($($parameter),+) -> NtStatus;
    };
}

type Pvoid = *mut c_void;

handler!(Connect(Pvoid, i32, Pvoid, i32, Pvoid, i32, Pvoid, *mut Pvoid, *mut *mut Irp));
handler!(Disconnect(Pvoid, Pvoid, i32, Pvoid, i32, Pvoid, u32));
handler!(Error(Pvoid, NtStatus));
handler!(ErrorEx(Pvoid, NtStatus, Pvoid));
handler!(ReceiveHandler(Pvoid, Pvoid, u32, u32, u32, *mut u32, *const c_void, *mut *mut Irp));
handler!(ChainedReceive(Pvoid, Pvoid, u32, u32, u32, *const Mdl, Pvoid));
handler!(SendPossible(Pvoid, Pvoid, u32));

/// Takes over an IRP that a handler has returned for a request with this minor function. Its current stack location is
/// that of the transport if the client has called IoSetNextIrpStackLocation as it should. Otherwise it becomes so here.
/// An IRP for another request completes here. Without a stack location, it stays the client's.
///
/// # Safety
/// The IRP is null or valid, and belongs to the transport from now on.
unsafe fn returned(irp: *mut Irp, minor: u8) -> Option<(Request, *const IoStackLocation)> {
    // SAFETY: the caller promises a valid IRP, or null.
    unsafe {
        if irp.is_null() || (*irp).kind != IO_TYPE_IRP || (*irp).stack_count < 1 {
            return None;
        }
        if (*irp).current_location > (*irp).stack_count {
            (*irp).current_location -= 1;
            (*irp).current_stack_location = (*irp).current_stack_location.sub(1);
        }
        let location = (*irp).current_stack_location;
        let is_minor = (*location).major_function == IRP_MJ_INTERNAL_DEVICE_CONTROL
            && (*location).minor_function == minor;
        let file = of_object((*location).file_object);
        match file.and_then(|file| {
            is_minor
                .then_some(file)
                .ok_or(Status::INVALID_DEVICE_REQUEST)
        }) {
            Ok(file) => Some((Request::returned(irp, file), location)),
            Err(status) => {
                refuse(irp, status);
                None
            }
        }
    }
}

impl Client<ConnectionContext> for Handlers {
    fn connect(
        &self,
        _address: &Address<ConnectionContext>,
        offer: &Offer,
    ) -> ConnectAnswer<ConnectionContext> {
        // SAFETY: the type is that of the event.
        let Some((handler, event_context)) = (unsafe { self.get::<Connect>(EVENT_CONNECT) }) else {
            return ConnectAnswer::Refuse;
        };
        let mut peer = address::format(offer.peer_addr);
        let (mut context, mut irp) = (ptr::null_mut(), ptr::null_mut());
        let null = ptr::null_mut();
        // SAFETY: the pointers are valid during the call.
        let status = call_client(|| unsafe {
            let (length, peer) = (peer.len() as i32, peer.as_mut_ptr().cast());
            handler(
                event_context,
                length,
                peer,
                0,
                null,
                0,
                null,
                &mut context,
                &mut irp,
            )
        });
        if status == nt(Status::INSUFFICIENT_RESOURCES) {
            return ConnectAnswer::NoResources;
        }
        if status != nt(Status::MORE_PROCESSING_REQUIRED) {
            return ConnectAnswer::Refuse;
        }
        // SAFETY: the client returned the request of an accept.
        let Some((request, location)) = (unsafe { returned(irp, ACCEPT) }) else {
            return ConnectAnswer::Refuse;
        };
        let endpoint = match request.file().endpoint() {
            Ok(endpoint) => endpoint,
            Err(status) => {
                request.complete((status, 0));
                return ConnectAnswer::Refuse;
            }
        };
        if endpoint.state() != EndpointState::Associated {
            request.complete((Status::CONNECTION_ACTIVE, 0));
            return ConnectAnswer::Refuse;
        }
        // SAFETY: the IRP belongs to the transport, and its parameters are those of an accept.
        let [_, information, ..] = unsafe { (*location).parameters };
        let accept = request.establishes(Returned::new(information));
        if let Err(accept) = endpoint.context().keep_accept(Box::new(accept)) {
            accept(Err(Status::CONNECTION_ACTIVE));
            return ConnectAnswer::Refuse;
        }
        ConnectAnswer::Accept(endpoint)
    }

    fn accept_completed(&self, endpoint: &Endpoint<ConnectionContext>, result: Result<(), Status>) {
        endpoint.context().accepted(result);
    }

    fn receive(&self, endpoint: &Endpoint<ConnectionContext>, indication: Indication) -> Answer {
        // SAFETY: the type is that of the event.
        let Some((handler, event_context)) = (unsafe { self.get::<ReceiveHandler>(EVENT_RECEIVE) })
        else {
            return Answer::NotAccepted(0);
        };
        let (data, context) = (&indication.data, endpoint.context());
        let (mut taken, mut irp) = (0, ptr::null_mut());
        // SAFETY: the pointers are valid during the call.
        let status = call_client(|| unsafe {
            handler(
                event_context,
                context.pointer(),
                indication.flags.bits(),
                data.len() as u32,
                u32::try_from(indication.available).unwrap_or(u32::MAX),
                &mut taken,
                data.as_ptr().cast(),
                &mut irp,
            )
        });
        // A client cannot have taken what it was not shown.
        let taken = (taken as usize).min(data.len());
        if status == nt(Status::SUCCESS) {
            return Answer::Taken(taken);
        }
        if status != nt(Status::MORE_PROCESSING_REQUIRED) {
            return Answer::NotAccepted(taken);
        }
        // SAFETY: the client returned a receive.
        match unsafe { returned_receive(irp, endpoint) } {
            Some(request) => Answer::TakenThenReceive(taken, request),
            None => Answer::NotAccepted(taken),
        }
    }

    fn takes_chained(&self) -> bool {
        self.has(EVENT_CHAINED_RECEIVE)
    }

    fn chained_receive(
        &self,
        endpoint: &Endpoint<ConnectionContext>,
        tsdu: ChainedTsdu,
    ) -> Result<(), ChainedTsdu> {
        // SAFETY: the type is that of the event.
        let handler = unsafe { self.get::<ChainedReceive>(EVENT_CHAINED_RECEIVE) };
        let Some((handler, event_context)) = handler else {
            return Err(tsdu);
        };
        let context = endpoint.context().pointer();
        chained::lend(tsdu, |flags, length, mdl, descriptor| {
            // SAFETY: the pointers are valid until the client has returned the TSDU.
            call_client(|| unsafe {
                handler(event_context, context, flags, length, 0, mdl, descriptor)
            })
        })
    }

    fn send_possible(&self, endpoint: &Endpoint<ConnectionContext>, available: usize) {
        // SAFETY: the type is that of the event.
        let handler = unsafe { self.get::<SendPossible>(EVENT_SEND_POSSIBLE) };
        if let Some((handler, event_context)) = handler {
            let available = u32::try_from(available).unwrap_or(u32::MAX);
            let context = endpoint.context().pointer();
            // SAFETY: the client set the handler for such calls.
            call_client(|| unsafe { handler(event_context, context, available) });
        }
    }

    fn disconnect(
        &self,
        endpoint: &Endpoint<ConnectionContext>,
        flags: DisconnectFlags,
        _cause: &Cause,
    ) {
        // SAFETY: the type is that of the event.
        let handler = unsafe { self.get::<Disconnect>(EVENT_DISCONNECT) };
        if let Some((handler, event_context)) = handler {
            let (context, null) = (endpoint.context().pointer(), ptr::null_mut());
            // SAFETY: the client set the handler for such calls.
            call_client(|| unsafe {
                handler(event_context, context, 0, null, 0, null, flags.bits())
            });
        }
    }

    fn error(&self, status: Status) {
        // SAFETY: the types are those of the events.
        let (extended, plain) = unsafe {
            (
                self.get::<ErrorEx>(EVENT_ERROR_EX),
                self.get::<Error>(EVENT_ERROR),
            )
        };
        // SAFETY: the client set the handlers for such calls.
        call_client(|| unsafe {
            if let Some((handler, context)) = extended {
                handler(context, nt(status), ptr::null_mut());
            } else if let Some((handler, context)) = plain {
                handler(context, nt(status));
            }
        });
    }
}

/// Takes over the receive that a receive handler has returned. A request with a wrong buffer completes here.
///
/// # Safety
/// As [`returned`].
unsafe fn returned_receive(
    irp: *mut Irp,
    endpoint: &Endpoint<ConnectionContext>,
) -> Option<ReceiveRequest> {
    let context = endpoint.context();
    // SAFETY: the promise is the same. The parameters are those of a receive.
    unsafe {
        let (request, location) = returned(irp, RECEIVE)?;
        let is_own = |other: &Endpoint<_>| ptr::eq(other.context(), context);
        if !request.file().endpoint().is_ok_and(|other| is_own(&other)) {
            request.complete((Status::INVALID_CONNECTION, 0));
            return None;
        }
        let data: RequestData = (*location).parameters();
        match Target::new((*irp).mdl_address, data.length as usize) {
            Ok(target) => {
                let receive = Receive(target, move |outcome| request.complete(outcome));
                Some(ReceiveRequest {
                    id: RequestId(0),
                    buffer: ReceiveBuffer::Target(Box::new(receive)),
                    flags: ReceiveFlags::from_bits_retain(data.flags),
                })
            }
            Err(status) => {
                request.complete((status, 0));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn plain(context: *mut c_void, status: NtStatus) -> NtStatus {
        // SAFETY: the context is the vector of the test.
        unsafe { &mut *context.cast::<Vec<(NtStatus, bool)>>() }.push((status, false));
        0
    }

    unsafe extern "C" fn extended(
        context: *mut c_void,
        status: NtStatus,
        buffer: *mut c_void,
    ) -> NtStatus {
        assert!(buffer.is_null());
        // SAFETY: as above.
        unsafe { &mut *context.cast::<Vec<(NtStatus, bool)>>() }.push((status, true));
        0
    }

    /// No provider loses its listener on demand, so the events are made here.
    #[test]
    fn errors_call_the_extended_handler_or_else_the_plain_one() {
        let handlers = Handlers::default();
        let mut seen: Vec<(NtStatus, bool)> = Vec::new();
        let context = (&raw mut seen).cast();
        handlers.error(Status::INSUFFICIENT_RESOURCES);
        // SAFETY: the handlers have the types of their events.
        unsafe { handlers.set(EVENT_ERROR, plain as *mut c_void, context) };
        handlers.error(Status::INSUFFICIENT_RESOURCES);
        // SAFETY: as above.
        unsafe { handlers.set(EVENT_ERROR_EX, extended as *mut c_void, context) };
        handlers.error(Status::LINK_FAILED);
        handlers.remove_all();
        handlers.error(Status::LINK_FAILED);
        let resources = nt(Status::INSUFFICIENT_RESOURCES);
        assert_eq!(seen, [(resources, false), (nt(Status::LINK_FAILED), true)]);
    }
}
