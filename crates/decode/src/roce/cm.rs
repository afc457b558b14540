//! The messages of the communication manager (CM) in a capture, and the connections that they make.

use std::net::IpAddr;

use smbdirect::rdma::roce::cm::{Mad, Message};

use super::{
    super::{event::Repeated, out::Out, per_end::Side},
    connection::Connection,
    datagram::Packet,
    flows::Roce,
};

impl Roce {
    /// Handles a datagram for the general services. Returns false if it is not a message of the CM, or belongs to
    /// an unknown connection.
    pub(super) fn cm(
        &mut self,
        (from, to): (IpAddr, IpAddr),
        packet: &Packet,
        out: &mut Out<'_>,
    ) -> bool {
        let Ok(mad) = Mad::decode(&packet.head) else {
            return false;
        };
        let is_copy = self.recent.has(packet);
        let found = match &mad.message {
            message if is_copy => self.find(from, to, message),
            Message::ConnectRequest(request) => {
                let id = request.local_communication_id;
                let queue_pair = request.queue_pair;
                Some(self.requested(from, to, id, queue_pair, out))
            }
            message => self.find(from, to, message),
        };
        let Some((id, side)) = found else {
            return false;
        };
        if is_copy {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.show(side, packet, Repeated::CapturedAgain, out);
            }
            return true;
        }
        let local = mad.message.local_communication_id();
        if local != 0 {
            self.ids.insert((from, to, local), id, side);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.cm(side, mad.transaction_id, mad.message, out);
        }
        self.name(id);
        true
    }

    /// Finds or adds the connection of a REQ.
    fn requested(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        id: u32,
        queue_pair: u32,
        out: &mut Out<'_>,
    ) -> (u32, Side) {
        if let Some((known, side)) = self.ids.get(from, to, id) {
            let connection = self.connections.get(&known);
            let number = connection.and_then(|connection| connection.ends[side].number);
            if number.is_none_or(|number| number == queue_pair) {
                return (known, side);
            }
            self.remove(known, out);
        }
        // The queue pair belonged to another connection before.
        if let Some((before, _)) = self.with_queue_pair(to, from, queue_pair) {
            self.remove(before, out);
        }
        self.make_room(out);
        (
            self.add(Connection::new([(from, None), (to, None)])),
            Side::A,
        )
    }

    /// Finds the connection of a message other than REQ, and the direction of its sender.
    fn find(&mut self, from: IpAddr, to: IpAddr, message: &Message) -> Option<(u32, Side)> {
        let local = message.local_communication_id();
        if let Some(found) = self.ids.get(from, to, local) {
            return Some(found);
        }
        let remote = message.remote_communication_id()?;
        if let Some((id, side)) = self.ids.get(to, from, remote) {
            return Some((id, !side));
        }
        match message {
            // The REQ is later in the file, or not in it.
            Message::ConnectReply(_) => {
                let added = self.add(Connection::new([(to, None), (from, None)]));
                self.ids.insert((to, from, remote), added, Side::A);
                Some((added, Side::B))
            }
            Message::DisconnectRequest(request) => {
                self.with_queue_pair(from, to, request.remote_queue_pair)
            }
            _ => None,
        }
    }
}
