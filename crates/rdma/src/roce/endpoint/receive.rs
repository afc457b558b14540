//! How an endpoint processes received datagrams.

use std::time::Instant;

use bytes::Bytes;

use super::{Endpoint, GENERAL_SERVICES_QUEUE_KEY, GENERAL_SERVICES_QUEUE_PAIR, settings::Path};
use crate::roce::{
    cm::Mad,
    icrc::{self, DatagramHeader},
    packet::{Bth, Extended, Opcode, Packet},
    rc::Payload,
};

impl Endpoint {
    /// Processes the payload of a UDP datagram that came over `path`.
    ///
    /// For IPv4, returns the Identification that makes the ICRC right, for captures. The result is
    /// 0 for IPv6, and `None` for a datagram that was dropped.
    pub fn handle_datagram(&mut self, now: Instant, path: Path, datagram: &[u8]) -> Option<u16> {
        self.handle_datagram_in(None, false, now, path, datagram)
    }

    /// Does the same as [`handle_datagram`](Self::handle_datagram) for a datagram with the mark of congestion: the ECN
    /// field of its IP header is CE.
    pub fn handle_marked_datagram(
        &mut self,
        now: Instant,
        path: Path,
        datagram: &[u8],
    ) -> Option<u16> {
        self.handle_datagram_in(None, true, now, path, datagram)
    }

    /// Does the same as [`handle_datagram`](Self::handle_datagram) for a datagram in `block`. Received messages
    /// may be slices of `block`. `is_marked` tells whether it has the mark of congestion.
    pub(in crate::roce) fn handle_datagram_in(
        &mut self,
        block: Option<&Bytes>,
        is_marked: bool,
        now: Instant,
        path: Path,
        datagram: &[u8],
    ) -> Option<u16> {
        self.statistics.received += 1;
        let Ok((bth, extended, payload)) = Packet::split(datagram) else {
            self.statistics.malformed += 1;
            return None;
        };
        let number = bth.destination_qp;
        if number == GENERAL_SERVICES_QUEUE_PAIR {
            let is_valid = is_general_services(&bth, &extended);
            let mad = Mad::decode(payload).ok().filter(|_| is_valid);
            let header = DatagramHeader::between(path.remote, path.local)?;
            return self.handle_general_services(now, path, &header, mad, datagram);
        }
        //= ROCE-UDP-06
        let connection = self.connections.get_mut(&number).filter(|connection| {
            let (expected, from) = (connection.path.remote, path.remote);
            let is_same_port = !connection.peer_is_smbdirect || expected.port() == from.port();
            expected.ip() == from.ip() && is_same_port && connection.takes_packets()
        });
        let Some(connection) = connection else {
            self.statistics.unknown_queue_pair += 1;
            return None;
        };
        let flow = connection.inbound.get(path.remote, path.local)?;
        let is_ipv4 = flow.has_identification();
        let guess = connection.identification.guess();
        let Some(identification) = flow.solve(guess, datagram) else {
            self.statistics.wrong_icrc += 1;
            return None;
        };
        if is_ipv4 {
            let (peer, recent) = (path.remote.ip(), &mut self.recent_identifications);
            let known = &mut connection.identification;
            if !known.accept(now, identification, peer, recent) {
                self.statistics.unexpected_identification += 1;
                return None;
            }
            recent.record(number, peer, identification);
        }
        let output = connection.communication.handle_data();
        if let Some(pair) = &mut connection.queue_pair {
            let payload = Payload {
                bytes: payload,
                block,
                account: Some(&self.account),
            };
            pair.handle_payload(now, &bth, &extended, payload);
            if is_marked {
                pair.handle_mark(now, bth.opcode);
            }
            connection.moved.1 += datagram.len() as u64;
        }
        if !output.is_empty() {
            self.apply(now, number, output);
        }
        // The packets of a group are usually for one queue pair, which is then settled only once.
        if self.unsettled.last() != Some(&number) {
            self.unsettled.push(number);
        }
        Some(identification)
    }

    /// Processes a packet for queue pair 1, which belongs to the CM.
    fn handle_general_services(
        &mut self,
        now: Instant,
        path: Path,
        header: &DatagramHeader,
        mad: Option<Mad>,
        datagram: &[u8],
    ) -> Option<u16> {
        let Some(mad) = mad else {
            self.statistics.malformed += 1;
            return None;
        };
        let Some(identification) = icrc::solve(header, datagram) else {
            self.statistics.wrong_icrc += 1;
            return None;
        };
        self.handle_mad(now, path, mad);
        Some(identification)
    }
}

/// Returns whether a packet for queue pair 1 comes from the queue pair of the peer's CM.
fn is_general_services(bth: &Bth, extended: &Extended) -> bool {
    //= ROCE-12.6-02
    match extended {
        Extended::Deth(deth) => {
            bth.opcode == Opcode::UdSendOnly
                && deth.q_key == GENERAL_SERVICES_QUEUE_KEY
                && deth.source_qp == GENERAL_SERVICES_QUEUE_PAIR
        }
        _ => false,
    }
}
