//! [`Session`]: one connection of an endpoint, from its establishment to its last event, with the
//! requests that end it.

use std::{
    mem::take,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use smbdirect::{Connection, ConnectionError};

use super::{pending::Completer, receives::Receives, sends::Sends};
use crate::protocol::{
    Cause, ConnectionInfo, EndpointState, Inbound, Outbound, ProviderStatistics, ReceiveSettings,
    SendAvailability, SendSettings, Status,
};

/// The state that the handles of an endpoint and the task of its connection share.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) connection: Connection,
    pub(crate) sends: Arc<Sends>,
    pub(crate) receives: Arc<Receives>,
    control: Mutex<Control>,
}

#[derive(Debug, Default)]
struct Control {
    /// Why the connection ends. The first cause that is set stays.
    cause: Option<Cause>,
    /// The client has ended the connection, so its disconnect handler is not called.
    is_local: bool,
    /// The disconnects of the client, each with its result if that does not depend on the cause of the end.
    disconnects: Vec<(Completer, Option<Result<(), Status>>)>,
    /// When a controlled disconnect becomes an abort.
    release_deadline: Option<Instant>,
    /// Everything was sent after a controlled disconnect.
    is_drained: bool,
    /// Everything was reported to the client, and its disconnects were completed.
    is_over: bool,
}

impl Control {
    /// Sets the result of the controlled disconnects that have none.
    fn end_releases(&mut self, status: Status) {
        self.release_deadline = None;
        for (_, result) in &mut self.disconnects {
            result.get_or_insert(Err(status));
        }
    }
}

impl Session {
    /// Creates the session of an established connection. The settings must have been checked.
    pub(crate) fn new(
        connection: Connection,
        send: &SendSettings,
        receive: &ReceiveSettings,
    ) -> Arc<Self> {
        let max_tsdu = connection.negotiated().max_fragmented_send_size as usize;
        let send = SendSettings {
            max_tsdu: send.max_tsdu.min(max_tsdu),
            ..send.clone()
        };
        let outbound = Outbound::new(send).expect("a smaller TSDU limit needs less buffer");
        let inbound = Inbound::new(receive.clone()).expect("the transport has checked them");
        Arc::new(Self {
            connection,
            sends: Arc::new(Sends::new(outbound)),
            receives: Arc::new(Receives::new(inbound)),
            control: Mutex::default(),
        })
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection immediately, because the client asked for it: pending sends complete
    /// with `sends`, and pending receives are cancelled. The task completes `completer` after them.
    pub(crate) fn abort(&self, sends: Status, completer: Completer) {
        let mut control = self.control();
        control.cause.get_or_insert(Cause::LocalDisconnect);
        control.is_local = true;
        drop(control);
        self.sends.end(sends);
        //= TDI-DISC-08
        self.receives.close(Status::CANCELLED);
        self.connection.abort();
        // No release can start after the sends have ended.
        let mut control = self.control();
        control.end_releases(Status::CONNECTION_ABORTED);
        if control.is_over {
            drop(control);
            completer.complete(Ok(()));
        } else {
            control.disconnects.push((completer, Some(Ok(()))));
        }
    }

    /// Ends the connection immediately, because the transport has found a fault.
    pub(crate) fn fail(&self, cause: Cause) {
        let status = cause.status();
        self.control().cause.get_or_insert(cause);
        self.sends.end(status);
        self.connection.abort();
    }

    /// Ends the connection when every TSDU that was submitted has been sent.
    pub(crate) fn release(
        &self,
        deadline: Option<Instant>,
        completer: &mut Completer,
    ) -> Result<(), Status> {
        let mut control = self.control();
        self.sends.release()?;
        control.disconnects.push((take(completer), None));
        control.release_deadline = deadline;
        drop(control);
        // The task must set its timer to the deadline.
        self.receives.wake_task();
        Ok(())
    }

    /// Closes the connection, because everything was sent after a controlled disconnect.
    pub(crate) fn close_drained(&self) {
        self.control().is_drained = true;
        self.connection.start_close();
    }

    /// Returns the time at which a controlled disconnect becomes an abort.
    pub(crate) fn release_deadline(&self) -> Option<Instant> {
        self.control().release_deadline
    }

    /// Aborts the connection, because a controlled disconnect has reached its deadline.
    pub(crate) fn release_timed_out(&self) {
        let mut control = self.control();
        control.is_local = true;
        //= TDI-DISC-05
        control.end_releases(Status::IO_TIMEOUT);
        drop(control);
        self.fail(Cause::LocalDisconnect);
    }

    /// Returns why the connection has ended. `reason` is the cause if none is known.
    pub(crate) fn end_cause(&self, reason: ConnectionError) -> Cause {
        let mut control = self.control();
        control.cause.get_or_insert_with(|| reason.into()).clone()
    }

    /// Returns whether the client has asked for the end of the connection.
    pub(crate) fn is_disconnected_here(&self) -> bool {
        let control = self.control();
        control.is_local || !control.disconnects.is_empty()
    }

    /// Completes the disconnects of the client, because everything else was reported.
    pub(crate) fn complete_disconnects(&self, cause: &Cause) {
        let mut control = self.control();
        control.is_over = true;
        control.release_deadline = None;
        let disconnects = take(&mut control.disconnects);
        let is_drained = control.is_drained;
        drop(control);
        for (completer, result) in disconnects {
            completer.complete(match (result, cause) {
                (Some(result), _) => result,
                (None, Cause::LocalDisconnect) => Ok(()),
                // The peer has released the connection at the same time.
                //= TDI-DISC-03
                (None, Cause::RemoteDisconnect) if is_drained => Ok(()),
                (None, cause) => Err(cause.status()),
            });
        }
    }

    /// Ends the task, unless events or data are left. Returns whether it ends.
    pub(crate) fn end_task(&self) -> bool {
        let sends = self.sends.end_task();
        self.receives.end_task() && sends
    }

    pub(crate) fn send_availability(&self) -> SendAvailability {
        let credits = self.connection.credits();
        SendAvailability {
            send_credits: credits.send_credits,
            low_credits: credits.send_credit_target / 4,
            segment_payload: self.connection.negotiated().max_payload(),
        }
    }

    /// Adds the figures of this connection to the counters of its transport.
    pub(crate) fn add_to(&self, statistics: &mut ProviderStatistics) {
        let buffers = [self.sends.usage(), self.receives.usage()];
        statistics.add_connection(&self.connection.stats(), buffers);
    }

    /// Answers TDI_QUERY_CONNECTION_INFO for an endpoint in `state`.
    pub(crate) fn info(
        &self,
        state: EndpointState,
        send: &SendSettings,
        receive: &ReceiveSettings,
    ) -> ConnectionInfo {
        let statistics = self.connection.stats();
        let held = self.receives.held();
        ConnectionInfo {
            state,
            transmitted_tsdus: statistics.messages_sent,
            received_tsdus: statistics.messages_received,
            transmitted_bytes: statistics.bytes_sent,
            received_bytes: statistics.bytes_received,
            send_buffer_size: send.high_water,
            send_buffer_available: self.sends.available(),
            receive_buffer_size: receive.receive_buffer,
            receive_buffer_held: held,
            unreliable: state != EndpointState::Connected
                || self.connection.is_response_due()
                || held >= receive.receive_buffer,
        }
    }
}
