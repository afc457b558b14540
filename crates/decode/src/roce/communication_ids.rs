//! The communication IDs of the connections in a capture.

use std::{collections::HashMap, net::IpAddr};

use super::super::per_end::Side;

/// The queue pair of the general services, which the CM uses.
pub(super) const CM_QUEUE_PAIR: u32 = 1;

/// The communication IDs of the connections.
#[derive(Debug, Default)]
pub(super) struct CommunicationIds {
    /// The connection and the direction of the end that chose the ID, by the two ends and the ID.
    ids: HashMap<Id, (u32, Side)>,
    /// The IDs of a connection.
    of: HashMap<u32, Vec<Id>>,
}

/// The sender of a message, its receiver, and the communication ID of the sender.
type Id = (IpAddr, IpAddr, u32);

impl CommunicationIds {
    pub(super) fn get(&self, from: IpAddr, to: IpAddr, id: u32) -> Option<(u32, Side)> {
        self.ids.get(&(from, to, id)).copied()
    }

    pub(super) fn insert(&mut self, id: Id, connection: u32, side: Side) {
        if self.ids.insert(id, (connection, side)) != Some((connection, side)) {
            self.of.entry(connection).or_default().push(id);
        }
    }

    /// Forgets the IDs of a connection.
    pub(super) fn forget(&mut self, connection: u32) {
        for id in self.of.remove(&connection).unwrap_or_default() {
            if self.ids.get(&id).is_some_and(|&(of, _)| of == connection) {
                self.ids.remove(&id);
            }
        }
    }
}
