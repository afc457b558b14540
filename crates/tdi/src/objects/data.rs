//! The requests of an [`Endpoint`] for data: sends, receives and queries.

use std::{
    future::Future,
    net::SocketAddr,
    task::{Context, Waker},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use smbdirect::{Connection, Message, Token};
use tokio::sync::oneshot;

use super::{
    device::TransportSettings,
    phase::Phase,
    types::{Endpoint, EndpointContext},
};
use crate::{
    protocol::{
        ConnectionInfo, ReceiveCompletion, ReceiveFlags, ReceiveTarget, RequestId, SendCompletion,
        SendFlags, SendRequest, Status,
    },
    session::{Receiving, Routine, Sending, Session, Submitted, now},
};

/// Options of a send other than its flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// The time at which the send is given up; `None` means after
    /// [`SendSettings::send_timeout`](crate::SendSettings::send_timeout). If a stall of the process delays the
    /// check of the deadline, the send gets one more second.
    pub deadline: Option<Instant>,
    /// A registration of the peer that the arrival of the TSDU invalidates. A token is only permitted in a send
    /// that ends its TSDU, which is a send without `PARTIAL`.
    pub invalidate: Option<Token>,
}

impl<C: EndpointContext> Endpoint<C> {
    /// Submits TDI_SEND, as `TdiBuildSend` and `IoCallDriver` do. `buffer` belongs to the transport
    /// until the completion, which returns it.
    ///
    /// The send completes with one of these statuses:
    /// - [`SUCCESS`](Status::SUCCESS): the TSDU was sent, or the send buffer has taken the bytes.
    ///   `information` is the number of bytes that were taken.
    /// - [`INVALID_CONNECTION`](Status::INVALID_CONNECTION): the endpoint is not connected.
    /// - [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): the TSDU is empty or too long, a flag is
    ///   unknown, or a partial send has a token.
    /// - [`NOT_SUPPORTED`](Status::NOT_SUPPORTED):
    ///   [`AND_DISCONNECT`](SendFlags::AND_DISCONNECT) is set.
    /// - [`DEVICE_NOT_READY`](Status::DEVICE_NOT_READY): the send buffer has no room for a
    ///   non-blocking send.
    /// - [`IO_TIMEOUT`](Status::IO_TIMEOUT): the send reached its deadline.
    /// - [`CANCELLED`](Status::CANCELLED): the send was cancelled.
    /// - [`REQUEST_ABORTED`](Status::REQUEST_ABORTED): another part of the same TSDU was cancelled
    ///   or reached its deadline.
    /// - The status of the [`Cause`](crate::Cause) that ended the connection.
    pub fn send(&self, buffer: impl Into<Message>, flags: SendFlags) -> Sending {
        self.send_with(buffer, flags, SendOptions::default())
    }

    /// Submits a [`send`](Self::send) with a deadline, or with a token to invalidate.
    pub fn send_with(
        &self,
        buffer: impl Into<Message>,
        flags: SendFlags,
        options: SendOptions,
    ) -> Sending {
        let request = request(buffer.into(), flags, options);
        match self.sending_session() {
            Ok(session) => sending(&session, session.sends.submit(now(), request)),
            Err(status) => Sending::refused(SendCompletion::refused(status, request.buffer)),
        }
    }

    /// Submits a [`send`](Self::send) whose completion calls `routine`, in order with the other completions and the events
    /// of this connection. The next of them waits until the future that `routine` returns has resolved. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// The endpoint is not connected, and the routine was called with this status.
    pub fn send_then<R: Future<Output = ()> + Send + 'static>(
        &self,
        buffer: impl Into<Message>,
        flags: SendFlags,
        routine: impl FnOnce(SendCompletion) -> R + Send + 'static,
    ) -> Result<Submitted, Status> {
        let request = request(buffer.into(), flags, SendOptions::default());
        let routine = Routine(Box::new(move |completion| Box::pin(routine(completion))));
        let (status, request, routine) = match self.sending_session() {
            Ok(session) => match session.sends.submit_then(now(), request, routine) {
                Ok(id) => return Ok(Submitted::send(session.sends.clone(), id)),
                Err(refused) => (Status::INVALID_CONNECTION, refused.0, refused.1),
            },
            Err(status) => (status, request, routine),
        };
        let mut returning = routine.0(SendCompletion::refused(status, request.buffer));
        let context = &mut Context::from_waker(Waker::noop());
        if returning.as_mut().poll(context).is_pending() {
            tokio::spawn(returning);
        }
        Err(status)
    }

    /// Sends a copy of `data` as a normal TSDU or as the end of one.
    pub fn write(&self, data: &[u8]) -> Sending {
        //= TDI-SEND-32
        self.send(Bytes::copy_from_slice(data), SendFlags::empty())
    }

    /// Submits a send that is a whole TSDU.
    pub(crate) fn send_whole(&self, buffer: Message, flags: SendFlags) -> Sending {
        let request = request(buffer, flags, SendOptions::default());
        let buffer = request.buffer.clone();
        let submitted = self.sending_session().and_then(|session| {
            let pending = session.sends.submit_whole(now(), request)?;
            Ok(sending(&session, pending))
        });
        let refused = |status| Sending::refused(SendCompletion::refused(status, buffer));
        submitted.unwrap_or_else(refused)
    }

    /// Sends with [`NON_BLOCKING`](SendFlags::NON_BLOCKING) and returns the number of bytes taken,
    /// which can be fewer than `buffer` has. The TSDU then stays open for the rest.
    ///
    /// # Errors
    /// [`DEVICE_NOT_READY`](Status::DEVICE_NOT_READY): the send buffer has no room;
    /// [`send_possible`](Self::send_possible) waits until it has. All other errors are the errors of
    /// [`send`](Self::send).
    pub fn try_send(&self, buffer: impl Into<Message>, flags: SendFlags) -> Result<usize, Status> {
        let flags = flags | SendFlags::NON_BLOCKING;
        let request = request(buffer.into(), flags, SendOptions::default());
        self.sending_session()?.sends.try_send(now(), request)
    }

    /// Waits until the send buffer has room again after a refused non-blocking send, and returns its free bytes,
    /// which are not reserved. Resolves immediately if no send was refused, or if there has been room since the
    /// last refusal.
    ///
    /// # Errors
    /// The status of the cause that ended the connection, or
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION) if there was none.
    pub async fn send_possible(&self) -> Result<usize, Status> {
        let session = self.sending_session()?;
        session.sends.possible().await
    }

    /// Discards the incomplete TSDU of the class that `flags` select, and cancels its pending sends. Returns
    /// whether there was such a TSDU.
    pub fn discard_partial(&self, flags: SendFlags) -> bool {
        let session = self.sending_session();
        session.is_ok_and(|session| session.sends.discard_partial(flags))
    }

    /// Returns the largest TSDU of this connection in bytes: MaxFragmentedSendSize, or MaxSendSize
    /// of the transport if that is smaller.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION): the endpoint is not connected.
    pub fn max_tsdu(&self) -> Result<usize, Status> {
        //= TDI-SEND-23
        let negotiated = self.sending_session()?.connection.negotiated();
        let ours = self.shared.device.settings.send.max_tsdu;
        Ok(ours.min(negotiated.max_fragmented_send_size as usize))
    }

    /// Returns the number of bytes that the available send credits can carry, which is a useful
    /// amount to have outstanding; 0 without a connection.
    pub fn ideal_backlog(&self) -> usize {
        let Ok(session) = self.sending_session() else {
            return 0;
        };
        let credits = usize::from(session.connection.credits().send_credits);
        credits * session.connection.negotiated().max_payload()
    }

    /// Sends an empty SMB Direct message, which carries the credits that can be granted. On other
    /// transports a send of no bytes does this. The client of the peer does not see the message.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION): the endpoint is not connected.
    pub fn force_send(&self) -> Result<(), Status> {
        self.sending_session()?.connection.send_credits();
        Ok(())
    }

    /// Submits TDI_RECEIVE: fills `buffer` to its length or to the end of a TSDU. No data is
    /// indicated while a receive is pending. With an empty buffer it completes immediately, and
    /// indications that a handler had stopped resume.
    ///
    /// The receive completes with one of these statuses:
    /// - [`SUCCESS`](Status::SUCCESS): the end of the TSDU is in the buffer.
    /// - [`BUFFER_OVERFLOW`](Status::BUFFER_OVERFLOW): the buffer is full before the end of the
    ///   TSDU. The next receive continues with the rest.
    /// - [`RECEIVE_PARTIAL`](Status::RECEIVE_PARTIAL): a receive with [`PEEK`](ReceiveFlags::PEEK) did not see the
    ///   end of the TSDU.
    /// - [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): a flag is unknown.
    /// - [`NOT_SUPPORTED`](Status::NOT_SUPPORTED): only expedited data is asked for.
    /// - [`CANCELLED`](Status::CANCELLED): the receive was cancelled, or this end disconnected.
    /// - The status of the [`Cause`](crate::Cause) that ended the connection, if the receive was pending at that
    ///   time. A later receive completes with [`INVALID_CONNECTION`](Status::INVALID_CONNECTION) once all data
    ///   that had arrived was received.
    pub fn receive(&self, buffer: BytesMut, flags: ReceiveFlags) -> Receiving {
        match self.receiving_session() {
            Some(session) => {
                let (id, completion) = session.receives.receive(buffer, flags);
                let submitted = Submitted::receive(session.receives.clone(), id);
                Receiving::new(submitted, completion)
            }
            //= TDI-RECV-03
            None => Receiving::refused(ReceiveCompletion {
                id: RequestId(0),
                status: Status::INVALID_CONNECTION,
                information: 0,
                buffer,
                target: None,
                invalidated_token: None,
            }),
        }
    }

    /// Submits a [`receive`](Self::receive) into memory that is not a [`BytesMut`]. It completes at its target, in order
    /// with the other completions and the events of this connection.
    ///
    /// # Errors
    /// There is no connection to receive from, and the target was told this status.
    pub fn receive_into(
        &self,
        target: Box<dyn ReceiveTarget>,
        flags: ReceiveFlags,
    ) -> Result<Submitted, Status> {
        let refused = match self.receiving_session() {
            Some(session) => match session.receives.receive_into(target, flags) {
                Ok(id) => return Ok(Submitted::receive(session.receives.clone(), id)),
                Err(target) => target,
            },
            None => target,
        };
        refused.completed(Status::INVALID_CONNECTION, 0);
        Err(Status::INVALID_CONNECTION)
    }

    /// Submits a [`receive`](Self::receive) of normal data.
    pub fn read(&self, buffer: BytesMut) -> Receiving {
        //= TDI-RECV-09
        self.receive(buffer, ReceiveFlags::NORMAL)
    }

    /// Resumes indications that a handler has stopped by not accepting data.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION): there is no connection to receive from.
    pub fn resume(&self) -> Result<(), Status> {
        let session = self.receiving_session();
        session.ok_or(Status::INVALID_CONNECTION)?.receives.resume();
        Ok(())
    }

    /// Answers TDI_QUERY_CONNECTION_INFO, for the connection or, if there is none, for the last one.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION): there was no connection yet.
    pub fn query_connection(&self) -> Result<ConnectionInfo, Status> {
        let state = self.lock();
        let session = state.session.clone().ok_or(Status::INVALID_CONNECTION)?;
        let endpoint_state = state.phase.state();
        drop(state);
        let TransportSettings { send, receive, .. } = &self.shared.device.settings;
        //= TDI-QUERY-02
        Ok(session.info(endpoint_state, send, receive))
    }

    /// Returns the address of the peer of the connection or of the offer.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION): there is neither.
    pub fn peer_addr(&self) -> Result<SocketAddr, Status> {
        let state = self.lock();
        match (&state.phase, &state.session) {
            (Phase::Offered(incoming, _), _) => Ok(incoming.peer_addr()),
            (Phase::Connected | Phase::Releasing, Some(session)) => {
                Ok(session.connection.peer_addr())
            }
            _ => Err(Status::INVALID_CONNECTION),
        }
    }

    /// Returns the local address: that of the connection if there is one, otherwise that of the associated address.
    ///
    /// # Errors
    /// [`ADDRESS_NOT_ASSOCIATED`](Status::ADDRESS_NOT_ASSOCIATED): there is neither.
    pub fn local_addr(&self) -> Result<SocketAddr, Status> {
        if let Ok(session) = self.sending_session() {
            return Ok(session.connection.local_addr());
        }
        let address = self.lock().address.clone();
        address.map_or(Err(Status::ADDRESS_NOT_ASSOCIATED), |address| {
            Ok(address.local_addr)
        })
    }

    /// Returns the SMB Direct connection, to register memory and to read and write the peer's
    /// memory, for which TDI has no requests. Do not receive from it: a message that is taken from
    /// the connection does not reach this endpoint.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION): the endpoint is not connected.
    pub fn connection(&self) -> Result<Connection, Status> {
        Ok(self.sending_session()?.connection.clone())
    }
}

/// Returns a send that was submitted, as its future.
fn sending(
    session: &Session,
    (id, completion): (RequestId, oneshot::Receiver<SendCompletion>),
) -> Sending {
    Sending::new(Submitted::send(session.sends.clone(), id), completion)
}

fn request(buffer: Message, flags: SendFlags, options: SendOptions) -> SendRequest {
    SendRequest {
        deadline: options.deadline,
        invalidate: options.invalidate,
        ..SendRequest::new(RequestId(0), buffer, flags)
    }
}
