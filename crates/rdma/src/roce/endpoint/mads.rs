//! How an endpoint processes the CM messages that it receives.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Instant,
};

use super::{
    Endpoint,
    connection::{Connection, Stage},
    settings::{ConnectionId, EndpointEvent, Path},
    signature::{self, Cause},
};
use crate::{
    roce::{
        cm::{
            Communication, ConnectRequest, DisconnectReply, Mad, Message, MessageKind, PrivateData,
            RdmaCmHeader, Reject, RejectReason,
        },
        packet::UDP_PORT,
    },
    work::{Disconnect, ProviderError, ProviderErrorKind},
};

impl Endpoint {
    /// Processes a CM message, which came over `path`.
    pub(super) fn handle_mad(&mut self, now: Instant, path: Path, mad: Mad) {
        if !can_be_answered(path) {
            return;
        }
        if let Message::ConnectRequest(request) = mad.message {
            return self.handle_request(now, path, mad.transaction_id, request);
        }
        let id = mad.message.remote_communication_id();
        let number = id.and_then(|id| self.by_communication.get(&id).copied());
        let Some(number) = number else {
            return self.answer_stray(path, &mad);
        };
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if connection.path.remote.ip() != path.remote.ip() {
            return;
        }
        let output = connection.communication.handle_message(now, mad.message);
        self.apply(now, number, output);
        self.settle(now, number);
    }

    /// Answers a DREQ for a communication that no longer exists, so that the peer can finish its disconnect.
    fn answer_stray(&mut self, mut path: Path, mad: &Mad) {
        //= ROCE-12.9-09
        if let Message::DisconnectRequest(request) = &mad.message {
            //= ROCE-UDP-04
            if !signature::is_signed(&request.private_data) {
                path.remote.set_port(UDP_PORT);
            }
            let message = Message::DisconnectReply(Box::new(DisconnectReply {
                local_communication_id: request.remote_communication_id,
                remote_communication_id: request.local_communication_id,
                private_data: PrivateData::default(),
            }));
            let transaction_id = mad.transaction_id;
            let mad = Mad {
                transaction_id,
                message,
            };
            self.send_mad(path, mad);
        }
    }

    fn handle_request(
        &mut self,
        now: Instant,
        path: Path,
        transaction_id: u64,
        request: Box<ConnectRequest>,
    ) {
        let service_port = request.service_id.port();
        let header = match service_port {
            Some(_) if RdmaCmHeader::decode(request.private_data.as_bytes()).is_some() => {
                RdmaCmHeader::LENGTH
            }
            _ => 0,
        };
        let (private_data, peer_is_smbdirect) = signature::open(&request.private_data, header);
        //= ROCE-UDP-04
        let mut path = path;
        if !peer_is_smbdirect {
            path.remote.set_port(UDP_PORT);
        }
        let key = (path.remote.ip(), request.local_communication_id);
        if let Some(&number) = self.by_request.get(&key) {
            return self.handle_repeated_request(now, path, transaction_id, number, request);
        }
        let listener = service_port.filter(|port| self.listening.contains(port));
        let fault = match listener {
            None => Some(RejectReason::INVALID_SERVICE_ID),
            Some(_) => request.fault(),
        };
        let remote = (path.remote, request.queue_pair);
        let stale = self.connection_to(remote).filter(|_| fault.is_none());
        let is_full = self.connections.len() >= self.settings.max_connections;
        let fault = fault
            .or_else(|| stale.map(|_| RejectReason::STALE_CONNECTION))
            .or_else(|| is_full.then_some(RejectReason::NO_RESOURCES));
        if let Some(reason) = fault {
            self.reject_unknown(path, transaction_id, &request, reason);
            if let Some(stale) = stale {
                self.end_stale(now, stale);
            }
            return;
        }
        //= ROCE-UDP-05
        if self.half_open >= self.settings.max_half_open {
            self.statistics.ignored_requests += 1;
            return;
        }
        let (Some(port), Some(path_mtu)) = (listener, request.path_mtu) else {
            return;
        };
        let Ok((number, communication_id)) = self.new_identifiers() else {
            return;
        };
        let timing = self.settings.timing;
        let communication =
            Communication::requested(timing, transaction_id, &request, communication_id, number);
        let mut connection = Connection::new(communication, path, Stage::Requested(request));
        connection.peer_is_smbdirect = peer_is_smbdirect;
        self.connections.insert(number, connection);
        self.by_communication.insert(communication_id, number);
        self.by_request.insert(key, number);
        self.by_remote.insert(remote, number);
        self.half_open += 1;
        self.events.push_back(EndpointEvent::Requested {
            id: ConnectionId(number),
            port,
            path,
            path_mtu,
            private_data,
        });
    }

    fn handle_repeated_request(
        &mut self,
        now: Instant,
        path: Path,
        transaction_id: u64,
        number: u32,
        request: Box<ConnectRequest>,
    ) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        //= ROCE-12.9-03
        if !connection.communication.is_repeated(&request) {
            let reason = RejectReason::STALE_CONNECTION;
            return self.reject_unknown(path, transaction_id, &request, reason);
        }
        let message = Message::ConnectRequest(request);
        let output = connection.communication.handle_message(now, message);
        self.apply(now, number, output);
        self.settle(now, number);
    }

    /// Returns the connection to a queue pair of a peer, if it has not ended.
    pub(super) fn connection_to(&self, remote: (SocketAddr, u32)) -> Option<u32> {
        let number = *self.by_remote.get(&remote)?;
        let connection = self.connections.get(&number)?;
        (!matches!(connection.stage, Stage::Ended)).then_some(number)
    }

    /// Ends a connection whose peer uses the same queue pair for a new connection, which shows that the peer has
    /// restarted.
    //= ROCE-12.9-11
    pub(super) fn end_stale(&mut self, now: Instant, number: u32) {
        let what =
            "RoCE: the peer has started again, and uses the queue pair for another connection";
        let error = ProviderError::new(ProviderErrorKind::Reset, what);
        // A request that is not answered yet is not a connection, so it is not ended. Otherwise a flood of
        // requests would leave one ended communication each.
        let connection = self.connections.get(&number);
        if connection.is_some_and(Connection::takes_packets) {
            self.end(now, number, Disconnect::Broken(error), Cause::Aborted);
            self.settle(now, number);
        }
    }

    /// Rejects a request without keeping a communication for it.
    fn reject_unknown(
        &mut self,
        path: Path,
        transaction_id: u64,
        request: &ConnectRequest,
        reason: RejectReason,
    ) {
        //= ROCE-12.9-10
        let message = Message::Reject(Box::new(Reject {
            local_communication_id: 0,
            remote_communication_id: request.local_communication_id,
            rejected: MessageKind::Request,
            information_length: 0,
            reason,
            information: PrivateData::default(),
            private_data: PrivateData::default(),
        }));
        let mad = Mad {
            transaction_id,
            message,
        };
        self.send_mad(path, mad);
    }
}

/// Returns whether an answer can be sent over the reverse of `path`. An answer to port 0 or from a broadcast
/// address fails with an error that turns off segmentation offload for all peers of the socket.
pub(super) fn can_be_answered(path: Path) -> bool {
    let local = path.local.ip();
    let is_broadcast = local == IpAddr::V4(Ipv4Addr::BROADCAST);
    path.remote.port() != 0 && !local.is_unspecified() && !local.is_multicast() && !is_broadcast
}
