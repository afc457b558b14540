//! The startup of a connection: the two MPA frames, and their agreement.

use std::collections::VecDeque;

use smbdirect::rdma::iwarp::mpa::{FrameKind, StartupError, StartupFrame};

use super::{
    super::{
        event::{Broken, EventKind, broken},
        per_end::{PerEnd, Side},
    },
    EventSink, State,
};

/// Undefined flags of a startup frame.
const RESERVED_FLAGS: u8 = 0x0f;

impl State {
    /// Handles a direction that does not begin with a startup frame.
    pub(super) fn foreign(&mut self, side: Side, sink: EventSink<'_>) {
        (self.confirmed, self.directions[side].is_certain) = (true, true);
        let kind = if self.connection.initiator == Some(side) {
            FrameKind::Request
        } else {
            FrameKind::Reply
        };
        let error = StartupError::Key;
        let faults = vec![broken("MPA-09", error.to_string())];
        self.emit(side, (EventKind::BadStartup { kind, error }, faults), sink);
    }

    /// Handles a startup frame, and returns which directions cannot be read after it.
    pub(super) fn startup(
        &mut self,
        side: Side,
        kind: FrameKind,
        flags: u8,
        result: Result<StartupFrame, StartupError>,
        sink: EventSink<'_>,
    ) -> Option<PerEnd<bool>> {
        let mut faults = Vec::new();
        (self.expected, self.confirmed) = (true, true);
        self.directions[side].is_certain = true;
        if flags & RESERVED_FLAGS != 0 {
            faults.push(broken("MPA-33", format!("flags 0x{flags:02x}")));
        }
        let by_kind = if kind == FrameKind::Request {
            side
        } else {
            !side
        };
        let initiator = *self.connection.initiator.get_or_insert(by_kind);
        if initiator != by_kind {
            let how = "the startup frame of the other role";
            faults.push(broken("MPA-09", how));
        }
        let frame = match result {
            Ok(frame) => frame,
            Err(error) => {
                let rule = match error {
                    StartupError::PrivateDataLength(_) => "MPA-03",
                    StartupError::Revision(_) => "MPA-10",
                    StartupError::EnhancedMissing => "MPA-13",
                    StartupError::Key | StartupError::Incomplete { .. } => "MPA-09",
                };
                faults.push(broken(rule, error.to_string()));
                self.emit(side, (EventKind::BadStartup { kind, error }, faults), sink);
                return Some(PerEnd([true; 2]));
            }
        };
        let this = &mut self.directions[side];
        this.whole = true;
        this.next = [Some(1); 3];
        this.reads = Some(VecDeque::new());
        this.startup = Some(frame.clone());
        let request = self.directions[initiator].startup.clone();
        if let (FrameKind::Reply, Some(request)) = (kind, &request) {
            check_reply(request, &frame, &mut faults);
        }
        let is_reply = kind == FrameKind::Reply;
        if is_reply && frame.rejected {
            self.refused = true;
        } else if is_reply {
            let asked = request.as_ref().map(|request| request.crc);
            self.crc = match asked {
                _ if frame.crc => Some(true),
                asked => asked,
            };
        }
        let markers = [
            request.as_ref(),
            self.directions[!initiator].startup.as_ref(),
        ]
        .map(|frame| frame.is_some_and(|frame| frame.markers));
        self.emit(side, (EventKind::Startup(frame), faults), sink);
        if !is_reply || self.refused || markers == [false; 2] {
            return None;
        }
        let note = "with markers, which are not read: nothing more of such a direction is shown";
        self.emit(side, EventKind::Note { note }, sink);
        // An end asks for markers in the direction that it receives.
        let mut stopped = PerEnd([false; 2]);
        stopped[!initiator] = markers[0];
        stopped[initiator] = markers[1];
        for side in Side::BOTH.into_iter().filter(|&side| stopped[side]) {
            self.lost(side, sink);
        }
        Some(stopped)
    }
}

fn check_reply(request: &StartupFrame, reply: &StartupFrame, faults: &mut Vec<Broken>) {
    if reply.revision != request.revision {
        let how = format!(
            "revision {} for a Request of revision {}",
            reply.revision, request.revision
        );
        faults.push(broken("MPA-11", how));
    }
    let Some(asked) = request.enhanced else {
        return;
    };
    let Some(answered) = reply.enhanced else {
        let how = "a Reply without the enhanced block that the Request has";
        faults.push(broken("MPA-11", how));
        return;
    };
    if reply.rejected {
        return;
    }
    let chosen = [answered.rtr_send, answered.rtr_write, answered.rtr_read];
    if asked.peer_to_peer {
        if !answered.peer_to_peer || chosen == [false; 3] {
            let how = "a Reply without a ready-to-receive frame for a Request that asks for one";
            faults.push(broken("EST-04", how));
        }
    } else if answered.peer_to_peer || chosen != [false; 3] {
        let how = "a Reply with flags in the enhanced block for a Request without A";
        faults.push(broken("EST-05", how));
    }
}
