//! How an endpoint connects, accepts and rejects, and the effects of a change of a communication.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    Endpoint, LOWEST_QUEUE_PAIR,
    connection::{Connection, Stage},
    random,
    settings::{
        AcceptParameters, ConnectParameters, ConnectionId, EndpointEvent, EndpointSettings, Path,
        Rejection,
    },
    signature::{self, Cause},
};
use crate::{
    roce::{
        Psn,
        cm::{
            CmTimeout, Communication, CommunicationEvent, ConnectReply, ConnectRequest,
            DisconnectRequest, Failure, Output, PathMtu, PathRecord, PrivateData, RdmaCmHeader,
            RejectReason, ServiceId,
        },
        rc::{QueuePair, QueuePairSettings},
    },
    work::{Disconnect, ProviderError, ProviderErrorKind},
};

/// The number of reports of an unreachable port after which an attempt to connect fails.
const MIN_UNREACHABLE_REPORTS: u8 = 2;
/// The RNR retry count with which a Send that finds no receive is sent again without a limit.
const RNR_RETRY_ENDLESS: u8 = 7;

impl Endpoint {
    /// Begins to connect. [`EndpointEvent::Connected`] or [`EndpointEvent::Failed`] follows.
    ///
    /// # Errors
    /// Returns an error if there is too much private data or if the system has no random numbers.
    pub fn connect(
        &mut self,
        now: Instant,
        parameters: ConnectParameters,
    ) -> Result<ConnectionId, ProviderError> {
        let ConnectParameters {
            path,
            path_mtu,
            port,
            private_data,
            receive,
        } = parameters;
        let header = RdmaCmHeader {
            source_port: path.local.port(),
            source: path.local.ip().to_canonical(),
            destination: path.remote.ip().to_canonical(),
        };
        let signed = signature::sign(&header.encode(), &private_data)
            .ok_or_else(|| too_long(&private_data, super::MAX_REQUEST_DATA))?;
        let (number, communication_id) = self.new_identifiers()?;
        let starting_psn = random()? >> 8;
        let request = ConnectRequest {
            local_communication_id: communication_id,
            service_id: ServiceId::of_port(port),
            ca_guid: guid(path.local.ip()),
            queue_key: 0,
            queue_pair: number,
            responder_resources: self.settings.responder_resources,
            initiator_depth: self.settings.initiator_depth,
            remote_response_timeout: self.settings.timing.response_timeout,
            transport_service_type: 0,
            end_to_end_flow_control: false,
            starting_psn,
            local_response_timeout: self.settings.timing.response_timeout,
            retry_count: self.settings.retry_count,
            partition_key: 0xffff,
            path_mtu: Some(path_mtu),
            rdc_exists: false,
            rnr_retry_count: RNR_RETRY_ENDLESS,
            max_cm_retries: self.settings.timing.max_retries,
            shared_receive_queue: false,
            extended_transport_type: 0,
            primary_path: PathRecord::between(
                path.local.ip().to_canonical(),
                path.remote.ip().to_canonical(),
                self.settings.ack_timeout,
            ),
            alternate_path: None,
            private_data: signed,
        };
        let transaction_id = u64::from(random()?);
        let (communication, output) =
            Communication::connect(now, self.settings.timing, transaction_id, request);
        let stage = Stage::Connecting {
            receive,
            starting_psn,
            path_mtu,
        };
        let connection = Connection::new(communication, path, stage);
        self.connections.insert(number, connection);
        self.by_communication.insert(communication_id, number);
        self.apply(now, number, output);
        self.settle(now, number);
        Ok(ConnectionId(number))
    }

    /// Accepts a request. [`EndpointEvent::Connected`] or [`EndpointEvent::Failed`] follows.
    ///
    /// # Errors
    /// Returns an error if there is too much private data, or if the peer has given up.
    pub fn accept(
        &mut self,
        now: Instant,
        id: ConnectionId,
        parameters: AcceptParameters,
    ) -> Result<(), ProviderError> {
        let signed = signature::sign(&[], &parameters.private_data)
            .ok_or_else(|| too_long(&parameters.private_data, super::MAX_REPLY_DATA))?;
        let starting_psn = random()? >> 8;
        let connection = self.connections.get_mut(&id.0);
        let Some((connection, request)) =
            connection.and_then(|connection| {
                match std::mem::replace(&mut connection.stage, Stage::Accepting) {
                    Stage::Requested(request) => Some((connection, request)),
                    other => {
                        connection.stage = other;
                        None
                    }
                }
            })
        else {
            let what = "the peer has given up connecting";
            return Err(ProviderError::new(ProviderErrorKind::Reset, what));
        };
        let most = parameters.peer_serves_reads.unwrap_or(u32::MAX);
        let depth = u32::from(
            self.settings
                .initiator_depth
                .min(request.responder_resources),
        );
        let initiator_depth = depth.min(most) as u8;
        //= ROCE-12.7-01
        let responder_resources = self
            .settings
            .responder_resources
            .min(request.initiator_depth);
        let mut queue_pair = open_queue_pair(
            &self.settings,
            connection.path,
            &Agreed {
                queue_pairs: [id.0, request.queue_pair],
                starting_psns: [starting_psn, request.starting_psn],
                path_mtu: request.path_mtu.unwrap_or(PathMtu::Mtu256),
                responder_resources,
                initiator_depth,
                rnr_retry_count: request.rnr_retry_count,
                // A REQ does not announce this delay.
                target_ack_delay: Duration::ZERO,
            },
        );
        queue_pair.post(parameters.receive);
        connection.queue_pair = Some(Box::new(queue_pair));
        let output = connection.communication.accept(
            now,
            ConnectReply {
                local_communication_id: 0,
                remote_communication_id: 0,
                queue_key: 0,
                queue_pair: id.0,
                starting_psn,
                responder_resources,
                initiator_depth,
                target_ack_delay: self.settings.target_ack_delay,
                failover_accepted: 1,
                end_to_end_flow_control: false,
                rnr_retry_count: RNR_RETRY_ENDLESS,
                shared_receive_queue: false,
                ca_guid: guid(connection.path.local.ip()),
                private_data: signed,
            },
        );
        self.apply(now, id.0, output);
        self.settle(now, id.0);
        Ok(())
    }

    /// Rejects a request. The connection no longer exists for the owner.
    pub fn reject(&mut self, now: Instant, id: ConnectionId, rejection: Rejection) {
        let Some(connection) = self.connections.get_mut(&id.0) else {
            return;
        };
        connection.is_released = true;
        if !matches!(connection.stage, Stage::Requested(_)) {
            return;
        }
        self.half_open -= 1;
        connection.stage = Stage::Ended;
        let (reason, information) = rejection.fields();
        let none = PrivateData::default();
        let output = connection
            .communication
            .reject(now, reason, &information, none);
        self.apply(now, id.0, output);
        self.settle(now, id.0);
    }

    /// Records that the system of `remote` reported a UDP port as unreachable. The second
    /// report fails the attempts to connect there: the first may be about an earlier connection.
    pub fn handle_unreachable(&mut self, now: Instant, remote: IpAddr) {
        let is_meant = |connection: &Connection| {
            matches!(connection.stage, Stage::Connecting { .. })
                && connection.path.remote.ip() == remote
        };
        let all = self.connections.iter();
        let meant: Vec<_> = all
            .filter(|(_, connection)| is_meant(connection))
            .map(|(number, _)| *number)
            .collect();
        for number in meant {
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            connection.unreachable_reports += 1;
            if connection.unreachable_reports < MIN_UNREACHABLE_REPORTS {
                continue;
            }
            let none = PrivateData::default();
            // The REJ is not sent, because it would not arrive either.
            let _ = connection
                .communication
                .reject(now, RejectReason::TIMEOUT, &[], none);
            connection.stage = Stage::Ended;
            if !std::mem::replace(&mut connection.is_released, true) {
                let port = connection.path.remote.port();
                let what = format!("connection refused: UDP port {port} is unreachable there");
                self.events.push_back(EndpointEvent::Failed {
                    id: ConnectionId(number),
                    error: ProviderError::new(ProviderErrorKind::PortUnreachable, what),
                    path_mtu: None,
                });
            }
            self.settle(now, number);
        }
    }

    /// Sends the message of an output of the communication, and processes its event.
    pub(super) fn apply(&mut self, now: Instant, number: u32, output: Output) {
        let Some(connection) = self.connections.get(&number) else {
            return;
        };
        if let Some(mad) = output.message {
            let path = connection.path;
            self.send_mad(path, mad);
        }
        match output.event {
            None => {}
            Some(CommunicationEvent::Accepted(reply)) => self.accepted(now, number, &reply),
            Some(CommunicationEvent::Established) => self.established(number),
            Some(CommunicationEvent::Failed(failure)) => self.failed(number, &failure),
            Some(CommunicationEvent::Disconnected(request)) => {
                self.disconnected(number, &request);
            }
            Some(CommunicationEvent::DisconnectFinished) => {
                self.ended(number, Disconnect::Local);
            }
        }
    }

    /// Handles the acceptance of the peer: creates the queue pair and confirms.
    fn accepted(&mut self, now: Instant, number: u32, reply: &ConnectReply) {
        let Some(connection) = self.connections.get(&number) else {
            return;
        };
        let remote = (connection.path.remote, reply.queue_pair);
        let stale = self.connection_to(remote);
        let reason = stale.map(|_| RejectReason::STALE_CONNECTION);
        if let Some(reason) = reply.fault().or(reason) {
            self.refuse_reply(now, number, reason);
            if let (RejectReason::STALE_CONNECTION, Some(stale)) = (reason, stale) {
                self.end_stale(now, stale);
            }
            return;
        }
        self.by_remote.insert(remote, number);
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let stage = std::mem::replace(&mut connection.stage, Stage::Open);
        let Stage::Connecting {
            receive,
            starting_psn,
            path_mtu,
        } = stage
        else {
            connection.stage = stage;
            return;
        };
        //= ROCE-12.7-01
        let initiator_depth = self.settings.initiator_depth.min(reply.responder_resources);
        let responder_resources = self.settings.responder_resources.min(reply.initiator_depth);
        let mut queue_pair = open_queue_pair(
            &self.settings,
            connection.path,
            &Agreed {
                queue_pairs: [number, reply.queue_pair],
                starting_psns: [starting_psn, reply.starting_psn],
                path_mtu,
                responder_resources,
                initiator_depth,
                rnr_retry_count: reply.rnr_retry_count,
                //= ROCE-9.7.6-03
                target_ack_delay: reply.target_ack_delay.duration(),
            },
        );
        queue_pair.post(receive);
        connection.queue_pair = Some(Box::new(queue_pair));
        let (private_data, peer_is_smbdirect) = signature::open(&reply.private_data, 0);
        connection.peer_is_smbdirect = peer_is_smbdirect;
        let output = connection.communication.confirm();
        self.apply(now, number, output);
        self.events.push_back(EndpointEvent::Connected {
            id: ConnectionId(number),
            private_data,
        });
    }

    /// Rejects the answer of the peer, which fails the attempt to connect.
    fn refuse_reply(&mut self, now: Instant, number: u32, reason: RejectReason) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        connection.stage = Stage::Ended;
        let was_released = std::mem::replace(&mut connection.is_released, true);
        let remote = connection.path.remote;
        let none = PrivateData::default();
        let output = connection.communication.reject(now, reason, &[], none);
        self.apply(now, number, output);
        if !was_released {
            let what = format!("RoCE: the answer of {remote} was rejected: {reason}");
            self.events.push_back(EndpointEvent::Failed {
                id: ConnectionId(number),
                error: ProviderError::new(ProviderErrorKind::Protocol, what),
                path_mtu: None,
            });
        }
    }

    /// Opens the connection, because the peer has received the REP.
    fn established(&mut self, number: u32) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if matches!(connection.stage, Stage::Accepting) {
            self.half_open -= 1;
            connection.stage = Stage::Open;
            self.events.push_back(EndpointEvent::Connected {
                id: ConnectionId(number),
                private_data: Bytes::new(),
            });
        }
    }

    fn failed(&mut self, number: u32, failure: &Failure) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        self.half_open -= usize::from(connection.is_half_open());
        connection.stage = Stage::Ended;
        let was_released = std::mem::replace(&mut connection.is_released, true);
        if was_released {
            return;
        }
        let (error, path_mtu) = explain(failure, connection.path);
        let id = ConnectionId(number);
        self.events.push_back(EndpointEvent::Failed {
            id,
            error,
            path_mtu,
        });
    }

    /// Handles a disconnect of the peer.
    fn disconnected(&mut self, number: u32, request: &DisconnectRequest) {
        let how = match Cause::of(&request.private_data) {
            Cause::Graceful => Disconnect::Remote,
            Cause::Aborted => Disconnect::Broken(ProviderError::new(
                ProviderErrorKind::Reset,
                "RoCE: the peer aborted the connection",
            )),
            Cause::Broken => Disconnect::Broken(ProviderError::new(
                ProviderErrorKind::Reset,
                "RoCE: the connection broke at the peer",
            )),
        };
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        // The DREQ overtook the RTU, or the data that counts as one.
        if matches!(connection.stage, Stage::Accepting) {
            self.established(number);
        }
        self.ended(number, how);
    }

    /// Ends the queue pair of a connection whose communication has ended.
    fn ended(&mut self, number: u32, how: Disconnect) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        connection.stage = Stage::Ended;
        connection.close_deadline = None;
        if let Some(pair) = &mut connection.queue_pair {
            pair.end(how);
        }
    }

    /// Returns a queue pair number and a communication ID that are not in use.
    pub(super) fn new_identifiers(&self) -> Result<(u32, u32), ProviderError> {
        //= ROCE-UDP-01
        let number = loop {
            let number = random()? >> 8;
            let is_assignable = (LOWEST_QUEUE_PAIR..0xff_ffff).contains(&number);
            if is_assignable && !self.connections.contains_key(&number) {
                break number;
            }
        };
        loop {
            let id = random()?;
            if id != 0 && !self.by_communication.contains_key(&id) {
                return Ok((number, id));
            }
        }
    }
}

/// The values that both ends agreed on. In each array, the value of this end comes first.
struct Agreed {
    queue_pairs: [u32; 2],
    starting_psns: [u32; 2],
    path_mtu: PathMtu,
    responder_resources: u8,
    initiator_depth: u8,
    /// The RNR retry count that the peer asks for.
    rnr_retry_count: u8,
    /// How long the peer takes to acknowledge a packet, as it announces.
    target_ack_delay: Duration,
}

/// The longest delay of acknowledgements that is accepted from a peer: 17.2 s. Without a limit a peer that is
/// gone could keep a connection for hours.
const MAX_TARGET_ACK_DELAY: CmTimeout = CmTimeout::from_exponent(22);

/// Returns a queue pair that is ready to send and to receive.
fn open_queue_pair(settings: &EndpointSettings, path: Path, agreed: &Agreed) -> QueuePair {
    let is_within_host = path.local.ip() == path.remote.ip();
    let [local_qpn, remote_qpn] = agreed.queue_pairs;
    // Each end announces the PSN that it expects first.
    //= ROCE-12.7-02
    let [expected_psn, send_psn] = agreed.starting_psns.map(Psn::new);
    QueuePair::new(&QueuePairSettings {
        local_qpn,
        remote_qpn,
        send_psn,
        expected_psn,
        path_mtu: agreed.path_mtu.bytes(),
        responder_resources: agreed.responder_resources.into(),
        initiator_depth: agreed.initiator_depth.into(),
        retry_count: settings.retry_count,
        //= ROCE-12.7-03
        rnr_retry_count: agreed.rnr_retry_count,
        ack_timeout: settings.ack_timeout.duration(),
        target_ack_delay: agreed.target_ack_delay.min(MAX_TARGET_ACK_DELAY.duration()),
        max_in_flight: if is_within_host {
            settings.max_in_flight_within_host
        } else {
            settings.max_in_flight
        },
    })
}

/// Returns the identifier of the channel adapter of an address. It only informs the peer.
fn guid(address: IpAddr) -> u64 {
    let octets = match address.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let low: [u8; 8] = octets[8..].try_into().expect("eight of sixteen bytes");
    u64::from_be_bytes(low)
}

fn too_long(private_data: &Bytes, limit: usize) -> ProviderError {
    let length = private_data.len();
    let what = format!("{length} bytes of private data, at most {limit} can be sent over RoCE");
    ProviderError::new(ProviderErrorKind::Local, what)
}

/// Returns the error of a failed communication, and the path MTU that the peer asks for instead.
fn explain(failure: &Failure, path: Path) -> (ProviderError, Option<PathMtu>) {
    let remote = path.remote;
    let reject = match failure {
        Failure::TimedOut => {
            let what = format!("{remote} did not answer");
            return (ProviderError::new(ProviderErrorKind::TimedOut, what), None);
        }
        Failure::Rejected(reject) => reject,
    };
    let information = reject.information.as_bytes();
    let path_mtu = match (reject.reason, reject.information_length) {
        (RejectReason::INVALID_PATH_MTU, 1..) => PathMtu::from_code(information[0] & 0x0f),
        _ => None,
    };
    let (kind, what) = match reject.reason {
        RejectReason::INVALID_SERVICE_ID => {
            (ProviderErrorKind::Refused, "connection refused".to_owned())
        }
        RejectReason::TIMEOUT => (
            ProviderErrorKind::TimedOut,
            format!("{remote} got no answer from this end"),
        ),
        reason => (ProviderErrorKind::Rejected, format!("rejected: {reason}")),
    };
    (ProviderError::new(kind, what), path_mtu)
}
