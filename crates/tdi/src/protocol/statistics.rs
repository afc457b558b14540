//! The results of the queries of TDI: [`ProviderInfo`], [`ProviderStatistics`] and [`ConnectionInfo`].

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use smbdirect::Statistics;

use super::{cause::Cause, flags::ServiceFlags, state::EndpointState, status::Status};

/// The answer to TDI_QUERY_PROVIDER_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderInfo {
    /// Version of the interface: 0x0200.
    pub version: u32,
    /// MaxSendSize: the largest TSDU of the transport in bytes. The limit of one connection can be
    /// [smaller](crate::Endpoint::max_tsdu).
    pub max_send_size: usize,
    /// MaxConnectionUserData: 0, because SMB Direct carries no user data with a connect or a
    /// disconnect.
    pub max_connection_user_data: usize,
    /// MaxDatagramSize: 0, because SMB Direct has no datagrams.
    pub max_datagram_size: usize,
    /// The services of the transport.
    pub service_flags: ServiceFlags,
    /// Whether expedited sends overtake normal ones at this end. The service flag for expedited
    /// data promises more than this and is not set.
    pub local_priority_sends: bool,
    /// The smallest number of bytes in an indication, unless the TSDU has fewer bytes left.
    pub minimum_lookahead_data: usize,
    /// The most bytes that one indication carries.
    pub maximum_lookahead_data: usize,
    /// NumberOfResources: the number of entries in [`ProviderStatistics::resources`].
    pub number_of_resources: usize,
    /// The time at which the transport was created.
    pub start_time: SystemTime,
}

/// The answer to TDI_QUERY_PROVIDER_STATISTICS: counts over all endpoints since the transport was
/// created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderStatistics {
    /// Endpoints that are open now.
    pub open_connections: u64,
    /// Connections established. The transport makes one attempt and does not retry.
    pub connections_after_no_retry: u64,
    /// Connections that this end closed.
    pub local_disconnects: u64,
    /// Connections that the peer closed.
    pub remote_disconnects: u64,
    /// Connections lost because the link failed, before or after they were established.
    pub link_failures: u64,
    /// Connections and offers that ended because a timer expired.
    pub session_timeouts: u64,
    /// Offers that the client refused.
    pub cancelled_connections: u64,
    /// Connects that the peer refused, or had no resources for.
    pub remote_resource_failures: u64,
    /// Connections that this end had no resources for.
    pub local_resource_failures: u64,
    /// Connects to an address without a route.
    pub not_found_failures: u64,
    /// Connects to an address without a listener, and offers for which no listen was pending here.
    pub no_listen_failures: u64,
    /// SMB Direct messages sent, including empty ones.
    pub packets_sent: u64,
    /// SMB Direct messages received, including empty ones.
    pub packets_received: u64,
    /// SMB Direct messages with payload that were sent.
    pub data_frames_sent: u64,
    /// Payload bytes sent.
    pub data_frame_bytes_sent: u64,
    /// SMB Direct messages with payload that were received.
    pub data_frames_received: u64,
    /// Payload bytes received.
    pub data_frame_bytes_received: u64,
    /// Connections ended because a received message violated the protocol.
    pub data_frames_rejected: u64,
    /// Keepalives that the peer did not answer in time.
    pub response_timer_expirations: u64,
    /// Waits for send credits that timed out.
    pub ack_timer_expirations: u64,
    /// Empty messages that were sent only to grant credits.
    pub piggyback_ack_timeouts: u64,
    /// The send buffers of all connections, then the receive buffers of all connections.
    pub resources: [ResourceStatistics; 2],
}

/// How one kind of buffer was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceStatistics {
    /// The most bytes that one connection had in use at one time.
    pub maximum_used: u64,
    /// The number of times that a buffer had no room.
    pub exhausted: u64,
}

/// The answer to TDI_QUERY_CONNECTION_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// The state of the endpoint.
    pub state: EndpointState,
    /// TSDUs sent.
    pub transmitted_tsdus: u64,
    /// TSDUs received in full.
    pub received_tsdus: u64,
    /// Bytes of TSDUs sent.
    pub transmitted_bytes: u64,
    /// Bytes of TSDUs received.
    pub received_bytes: u64,
    /// Size of the send buffer in bytes; 0 if there is none.
    pub send_buffer_size: usize,
    /// Free bytes of the send buffer.
    pub send_buffer_available: usize,
    /// Size of the receive buffer in bytes.
    pub receive_buffer_size: usize,
    /// Bytes of the receive buffer that hold data which the client has not received.
    pub receive_buffer_held: usize,
    /// Whether sends and receives are likely to fail: a keepalive is unanswered, credits are
    /// withheld because the receive buffer is full, or the connection is ending.
    pub unreliable: bool,
}

/// The counters of a transport, which its device and its ports share.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<ProviderStatistics>);

impl Counters {
    fn lock(&self) -> MutexGuard<'_, ProviderStatistics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the counters under their lock.
    pub(crate) fn count(&self, add: impl FnOnce(&mut ProviderStatistics)) {
        add(&mut self.lock());
    }

    /// Returns the current counts.
    pub(crate) fn get(&self) -> ProviderStatistics {
        *self.lock()
    }
}

impl ProviderStatistics {
    /// Counts the result of a connect or of an acceptance.
    pub(crate) fn add_connect(&mut self, result: Result<(), Status>) {
        let Err(status) = result else {
            self.connections_after_no_retry += 1;
            return;
        };
        match status {
            Status::BAD_NETWORK_PATH => self.not_found_failures += 1,
            Status::REMOTE_NOT_LISTENING => self.no_listen_failures += 1,
            Status::IO_TIMEOUT => self.session_timeouts += 1,
            Status::INSUFFICIENT_RESOURCES => self.local_resource_failures += 1,
            Status::CONNECTION_REFUSED => self.remote_resource_failures += 1,
            _ => self.link_failures += 1,
        }
    }

    /// Counts the end of a connection.
    pub(crate) fn add_end(&mut self, cause: &Cause) {
        match cause {
            Cause::LocalDisconnect | Cause::HandlerPanicked => self.local_disconnects += 1,
            Cause::RemoteDisconnect => self.remote_disconnects += 1,
            Cause::LinkFailed(_) => self.link_failures += 1,
            Cause::ProtocolViolation(_) => self.data_frames_rejected += 1,
            Cause::IdleTimeout => {
                self.response_timer_expirations += 1;
                self.session_timeouts += 1;
            }
            Cause::CreditTimeout => {
                self.ack_timer_expirations += 1;
                self.session_timeouts += 1;
            }
            Cause::SendTimeout | Cause::OfferTimeout => self.session_timeouts += 1,
        }
    }

    /// Adds the figures of one connection and of its send and receive buffers.
    pub(crate) fn add_connection(
        &mut self,
        connection: &Statistics,
        buffers: [ResourceStatistics; 2],
    ) {
        let Statistics {
            segments_sent,
            segments_received,
            empty_sent,
            empty_received,
            bytes_sent,
            bytes_received,
            ..
        } = *connection;
        self.packets_sent += segments_sent + empty_sent;
        self.packets_received += segments_received + empty_received;
        self.data_frames_sent += segments_sent;
        self.data_frame_bytes_sent += bytes_sent;
        self.data_frames_received += segments_received;
        self.data_frame_bytes_received += bytes_received;
        self.piggyback_ack_timeouts += empty_sent;
        for (resource, used) in self.resources.iter_mut().zip(buffers) {
            resource.maximum_used = resource.maximum_used.max(used.maximum_used);
            resource.exhausted += used.exhausted;
        }
    }
}

#[cfg(test)]
mod tests {
    use smbdirect::{ConnectionError, Violation};

    use super::*;

    /// Returns the counters after a change.
    fn after(change: impl Fn(&mut ProviderStatistics)) -> ProviderStatistics {
        let mut counters = ProviderStatistics::default();
        change(&mut counters);
        // Each change adds to what was counted before.
        let once = counters;
        change(&mut counters);
        for (counter, once) in counted(&counters).into_iter().zip(counted(&once)) {
            assert_eq!(counter, 2 * once);
        }
        once
    }

    /// Returns the counters of results and ends.
    fn counted(of: &ProviderStatistics) -> [u64; 12] {
        [
            of.connections_after_no_retry,
            of.not_found_failures,
            of.no_listen_failures,
            of.session_timeouts,
            of.local_resource_failures,
            of.remote_resource_failures,
            of.link_failures,
            of.local_disconnects,
            of.remote_disconnects,
            of.data_frames_rejected,
            of.response_timer_expirations,
            of.ack_timer_expirations,
        ]
    }

    #[test]
    fn each_result_of_a_connect_has_its_counter() {
        for (result, counter) in [
            (Ok(()), 0),
            (Err(Status::BAD_NETWORK_PATH), 1),
            (Err(Status::REMOTE_NOT_LISTENING), 2),
            (Err(Status::IO_TIMEOUT), 3),
            (Err(Status::INSUFFICIENT_RESOURCES), 4),
            (Err(Status::CONNECTION_REFUSED), 5),
            (Err(Status::CONNECTION_RESET), 6),
            (Err(Status::CONNECTION_ABORTED), 6),
        ] {
            let mut expected = [0; 12];
            expected[counter] = 1;
            let counters = after(|counters| counters.add_connect(result));
            assert_eq!(counted(&counters), expected, "{result:?}");
        }
    }

    #[test]
    fn each_cause_of_an_end_has_its_counters() {
        for (cause, places) in [
            (Cause::LocalDisconnect, &[7][..]),
            (Cause::HandlerPanicked, &[7]),
            (Cause::RemoteDisconnect, &[8]),
            (Cause::LinkFailed(ConnectionError::Aborted), &[6]),
            (Cause::ProtocolViolation(Violation::WithoutCredit), &[9]),
            (Cause::IdleTimeout, &[3, 10]),
            (Cause::CreditTimeout, &[3, 11]),
            (Cause::SendTimeout, &[3]),
            (Cause::OfferTimeout, &[3]),
        ] {
            let mut expected = [0; 12];
            for &place in places {
                expected[place] = 1;
            }
            let counters = after(|counters| counters.add_end(&cause));
            assert_eq!(counted(&counters), expected, "{cause}");
        }
    }

    #[test]
    fn the_figures_of_connections_are_added() {
        let mut connection = Statistics::default();
        connection.segments_sent = 3;
        connection.segments_received = 5;
        connection.empty_sent = 7;
        connection.empty_received = 11;
        connection.bytes_sent = 13;
        connection.bytes_received = 17;
        let used = |maximum_used, exhausted| ResourceStatistics {
            maximum_used,
            exhausted,
        };
        let mut counters = ProviderStatistics::default();
        counters.add_connection(&connection, [used(100, 1), used(200, 2)]);
        counters.add_connection(&connection, [used(50, 4), used(300, 0)]);
        assert_eq!(counters.packets_sent, 20);
        assert_eq!(counters.packets_received, 32);
        assert_eq!(counters.data_frames_sent, 6);
        assert_eq!(counters.data_frames_received, 10);
        assert_eq!(counters.data_frame_bytes_sent, 26);
        assert_eq!(counters.data_frame_bytes_received, 34);
        assert_eq!(counters.piggyback_ack_timeouts, 14);
        assert_eq!(counters.resources, [used(100, 5), used(300, 2)]);
    }
}
