//! The negotiation of a connection: the first receive, the Negotiate Request and Response, and the
//! step to an established connection (3.1.5.2, 3.1.5.3, 3.1.5.6, 3.1.5.7).

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Connection, Kind, Role, receive::joined};
use crate::{
    engine::{
        config::Config,
        error::ConnectionError,
        event::Event,
        in_flight::Sent,
        negotiate_messages::{Outcome, negotiate_request, negotiate_response},
        timer::Timer,
    },
    rdma::work::{Inline, ProviderError, ProviderErrorKind, WorkRequest},
    wire::{NegotiateResponse, Status},
};

/// Least size of the receive for a negotiate message (3.1.4.1, 3.1.7.2).
const NEGOTIATE_RECEIVE_SIZE: u32 = 512;
/// Longest time that the initiator's first grant waits for a message to carry it. The acceptor
/// can send nothing before it has that grant.
pub(super) const FIRST_GRANT_DELAY: Duration = Duration::from_millis(20);

impl Connection {
    /// Returns the receive for the peer's negotiate message. The owner calls this once and posts
    /// the receive before it connects or accepts.
    pub fn negotiate_receive(&mut self) -> WorkRequest {
        //= SMBD-3.1.4.1-07
        //= SMBD-3.1.7.2-04
        self.statistics.receives_outstanding += 1;
        WorkRequest::Receive {
            id: self.work_id(Kind::Receive),
            length: NEGOTIATE_RECEIVE_SIZE,
            count: 1,
        }
    }

    #[cold]
    pub(super) fn receive_negotiate(
        &mut self,
        receive: impl FnOnce(&Config, &[u8]) -> Result<Outcome, ConnectionError>,
        passive: bool,
        message: Bytes,
    ) -> Result<(), ConnectionError> {
        let message = joined(self.head.take(), message);
        match receive(&self.config, &message) {
            Ok(outcome) => {
                self.receive_credits
                    .set_target(outcome.receive_credit_target);
                self.role = Role::Posting { outcome, passive };
                Ok(())
            }
            Err(ConnectionError::RefusedPeer(status)) => {
                self.role = Role::Refusing {
                    status,
                    sent: false,
                };
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Establishes the connecting side, which has posted as many receives as there is room for
    /// (3.1.5.7).
    #[cold]
    pub(super) fn conclude(&mut self, now: Instant, outcome: Outcome) {
        //= SMBD-3.1.5.7-15
        if self.receive_credits.posted() == 0 {
            let what = "no receive could be posted";
            return self.end(ProviderError::new(ProviderErrorKind::Local, what).into());
        }
        //= SMBD-3.1.5.7-16
        self.establish(now, outcome);
        self.holds_first_grant = true;
        self.timers.set(Timer::FirstGrant, now + FIRST_GRANT_DELAY);
    }

    /// Answers the Negotiate Request; the accepting side has posted as many receives as there is
    /// room for (3.1.5.6).
    #[cold]
    pub(super) fn answer(&mut self, now: Instant, outcome: Outcome) -> WorkRequest {
        //= SMBD-3.1.5.6-10
        let grant = self.receive_credits.grantable(false);
        if grant == 0 {
            return self.send_refusal(Status::INSUFFICIENT_RESOURCES);
        }
        //= SMBD-3.1.5.9-08
        //= SMBD-3.1.5.6-13
        self.receive_credits.grant(grant);
        self.statistics.credits_granted += u64::from(grant);
        let response = negotiate_response(&self.config, &outcome.negotiated, grant);
        self.log.accepting(&response);
        //= SMBD-3.1.5.6-11
        //= SMBD-3.1.5.6-12
        self.establish(now, outcome);
        //= SMBD-3.1.5.3-06
        let header = Inline::build(|out| response.encode(out));
        self.post_send(header, Bytes::new(), None, Some(Sent::Negotiate))
    }

    #[cold]
    fn establish(&mut self, now: Instant, outcome: Outcome) {
        let max_payload = outcome.negotiated.max_payload();
        self.send_queue
            .fit_packets(self.limits.packet_bytes, max_payload);
        self.role = Role::Established(outcome.negotiated);
        self.send_credits = outcome.send_credits;
        self.statistics.credits_received += u64::from(outcome.send_credits);
        self.timers.stop(Timer::Negotiation);
        self.timers
            .set(Timer::IdleConnection, now + self.config.keepalive_interval);
        self.log.established(&outcome.negotiated);
        self.events.push_back(Event::Negotiated(outcome.negotiated));
    }

    #[cold]
    pub(super) fn send_negotiate_request(&mut self) -> WorkRequest {
        self.role = Role::Active { request_sent: true };
        let request = negotiate_request(&self.config);
        self.log.proposing(&request);
        //= SMBD-3.1.5.2-04
        let header = Inline::build(|out| request.encode(out));
        self.post_send(header, Bytes::new(), None, Some(Sent::Negotiate))
    }

    #[cold]
    pub(super) fn send_refusal(&mut self, status: Status) -> WorkRequest {
        self.role = Role::Refusing { status, sent: true };
        self.log.refusing(status);
        let refusal = NegotiateResponse::refusal(status);
        let header = Inline::build(|out| refusal.encode(out));
        self.post_send(header, Bytes::new(), None, Some(Sent::Refusal))
    }
}
