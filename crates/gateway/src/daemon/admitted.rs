//! A client that has a place: its SMB Direct connection, and the beginning of its session.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use smbdirect::{Connection, Incoming};
use smbdirect_transport::canonical;
use tracing::{Instrument, debug, info, info_span};

use crate::{
    admission::refused::Refused,
    daemon::listener::{Accepted, Client},
    path::peer::Peer,
    phase::{Phase, Phases},
    session::{Session, service::Service, state::SessionState},
    stop::Stop,
};

/// A client that has a place.
pub(crate) struct Admitted {
    pub(crate) client: Client,
    pub(crate) service: Arc<Service>,
    pub(crate) phases: Phases,
}

impl Admitted {
    /// Negotiates SMB Direct, and runs the session. Each log line of the session names it.
    pub(crate) async fn run(self) {
        let Self {
            client,
            service,
            phases,
        } = self;
        let Client {
            mut place,
            peer,
            connection,
        } = client;
        // A reload meanwhile changes nothing of what the place was given by.
        let live = place.live.clone();
        let client = match connection {
            Accepted::Tcp(stream) => Peer::Tcp(stream, peer),
            Accepted::SmbDirect(incoming) => {
                let negotiated = tokio::select! {
                    negotiated = negotiate(incoming, &service) => negotiated,
                    () = phases.reached(Phase::Draining) => return,
                };
                match negotiated {
                    Some(connection) => Peer::SmbDirect(connection),
                    None => return,
                }
            }
        };
        let since = place.since;
        let here = client.local().map(canonical);
        let begun = place.begin(&live, |id| SessionState::new(id, peer, here, since));
        // Each end of a connection of the gateway to itself first records itself and then looks for the other.
        let state = match begun {
            Ok(state) if state.ends.is_some_and(|ends| service.is_itself(ends)) => {
                return service.turn_away(peer, &Refused::Itself);
            }
            Ok(state) => state,
            Err(why) => return service.turn_away(peer, &why),
        };
        let span = info_span!("session", id = state.id, client = %peer);
        let mut session = Session {
            state,
            place,
            peer,
            service,
            live,
            phases,
        };
        async {
            let stop = caught(session.carry(client)).await;
            session.report_closed(&stop);
        }
        .instrument(span)
        .await;
    }
}

/// Returns the connection, or logs why there is none.
async fn negotiate(incoming: Incoming, service: &Service) -> Option<Connection> {
    let span = incoming.span().clone();
    let negotiated = incoming.accept(service.settings.config.clone()).await;
    span.in_scope(|| match negotiated {
        Ok(connection) => {
            debug!("accepted");
            Some(connection)
        }
        Err(why) => {
            info!(%why, "a peer did not get a connection");
            None
        }
    })
}

/// Returns how the work has ended, also if it panics, so that the fault of one session has no effect on others.
async fn caught(work: impl Future<Output = Stop>) -> Stop {
    let mut work = pin!(work);
    poll_fn(|context| {
        // After a panic the work is not polled again. What it shares with others has locks that a panic does not close.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Poll::Ready(Stop::Fault(text.unwrap_or("a panic").to_owned()))
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_ends_the_session_as_a_fault() {
        let panics = async {
            tokio::task::yield_now().await;
            assert_eq!(1, 2, "the test panics");
            Stop::Here
        };
        let stop = caught(panics).await.to_string();
        assert!(stop.starts_with("a fault of smbdirect: "), "{stop}");
        assert!(stop.contains("the test panics"), "{stop}");
    }
}
