//! [`EndpointState`]: the states of an endpoint, and the requests that each state allows.

use super::status::Status;

/// The state of an endpoint.
///
/// A request is allowed in the states with "yes", and otherwise completes with the status given
/// here.
///
/// | request | Idle | Associated | Connecting, Listening, Accepting | Offered | Connected | Releasing |
/// |---|---|---|---|---|---|---|
/// | associate | yes | ALREADY_ASSOCIATED | the same | the same | the same | the same |
/// | disassociate | NOT_ASSOCIATED | yes | CONNECTION_ACTIVE | the same | the same | the same |
/// | connect, listen | NOT_ASSOCIATED | yes | CONNECTION_ACTIVE | the same | the same | the same |
/// | accept | NOT_ASSOCIATED | INVALID_CONNECTION | INVALID_DEVICE_STATE | yes | CONNECTION_ACTIVE | the same |
/// | send | INVALID_CONNECTION | the same | the same | the same | yes | INVALID_CONNECTION |
/// | receive | INVALID_CONNECTION | yes, if data is left | INVALID_CONNECTION | the same | yes | yes |
/// | disconnect: abort | INVALID_CONNECTION | the same | yes | yes | yes | yes |
/// | disconnect: release | INVALID_CONNECTION | the same | INVALID_DEVICE_STATE | yes | yes | INVALID_DEVICE_STATE |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointState {
    /// The endpoint is not associated with an address.
    Idle,
    /// The endpoint is associated with an address and has no connection.
    Associated,
    /// A connect is pending.
    Connecting,
    /// A listen is pending.
    Listening,
    /// A listen for delayed acceptance has completed, and its peer waits to be accepted or
    /// rejected.
    Offered,
    /// An offer was accepted, and the connection is being established.
    Accepting,
    /// The endpoint is connected.
    Connected,
    /// A controlled disconnect is pending.
    Releasing,
}

/// The requests of an endpoint whose state is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Associate,
    Disassociate,
    Connect,
    Listen,
    Accept,
    Send,
    Abort,
    Release,
}

impl EndpointState {
    /// Checks whether this state allows a request.
    ///
    /// # Errors
    /// Returns the status with which the request completes if it is not allowed.
    pub(crate) const fn check(self, request: Request) -> Result<(), Status> {
        //= TDI-CONN-09
        let status = match (request, self) {
            (Request::Associate, Self::Idle)
            | (Request::Disassociate | Request::Connect | Request::Listen, Self::Associated)
            | (Request::Accept, Self::Offered)
            | (Request::Send, Self::Connected)
            | (Request::Release, Self::Connected | Self::Offered) => return Ok(()),
            (Request::Associate, _) => Status::ADDRESS_ALREADY_ASSOCIATED,
            (
                Request::Disassociate | Request::Connect | Request::Listen | Request::Accept,
                Self::Idle,
            ) => Status::ADDRESS_NOT_ASSOCIATED,
            (Request::Disassociate | Request::Connect | Request::Listen, _) => {
                Status::CONNECTION_ACTIVE
            }
            (Request::Accept, Self::Associated) => Status::INVALID_CONNECTION,
            //= TDI-CONN-07
            (Request::Accept, Self::Connected | Self::Releasing) => Status::CONNECTION_ACTIVE,
            (Request::Accept, _) => Status::INVALID_DEVICE_STATE,
            //= TDI-SEND-01
            (Request::Send, _) => Status::INVALID_CONNECTION,
            //= TDI-DISC-06
            (Request::Abort | Request::Release, Self::Idle | Self::Associated) => {
                Status::INVALID_CONNECTION
            }
            //= TDI-DISC-02
            (Request::Abort, _) => return Ok(()),
            (Request::Release, _) => Status::INVALID_DEVICE_STATE,
        };
        Err(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= TDI-CONN-07 test
    //= TDI-CONN-09 test
    //= TDI-DISC-02 test
    #[test]
    fn each_state_allows_the_requests_of_the_table() {
        use EndpointState::*;
        const OK: Option<Status> = None;
        const ALREADY: Option<Status> = Some(Status::ADDRESS_ALREADY_ASSOCIATED);
        const UNASSOCIATED: Option<Status> = Some(Status::ADDRESS_NOT_ASSOCIATED);
        const ACTIVE: Option<Status> = Some(Status::CONNECTION_ACTIVE);
        const NONE: Option<Status> = Some(Status::INVALID_CONNECTION);
        const STATE: Option<Status> = Some(Status::INVALID_DEVICE_STATE);
        let requests = [
            Request::Associate,
            Request::Disassociate,
            Request::Connect,
            Request::Listen,
            Request::Accept,
            Request::Send,
            Request::Abort,
            Request::Release,
        ];
        for (state, expected) in [
            (
                Idle,
                [
                    OK,
                    UNASSOCIATED,
                    UNASSOCIATED,
                    UNASSOCIATED,
                    UNASSOCIATED,
                    NONE,
                    NONE,
                    NONE,
                ],
            ),
            (Associated, [ALREADY, OK, OK, OK, NONE, NONE, NONE, NONE]),
            (
                Connecting,
                [ALREADY, ACTIVE, ACTIVE, ACTIVE, STATE, NONE, OK, STATE],
            ),
            (
                Listening,
                [ALREADY, ACTIVE, ACTIVE, ACTIVE, STATE, NONE, OK, STATE],
            ),
            (Offered, [ALREADY, ACTIVE, ACTIVE, ACTIVE, OK, NONE, OK, OK]),
            (
                Accepting,
                [ALREADY, ACTIVE, ACTIVE, ACTIVE, STATE, NONE, OK, STATE],
            ),
            (
                Connected,
                [ALREADY, ACTIVE, ACTIVE, ACTIVE, ACTIVE, OK, OK, OK],
            ),
            (
                Releasing,
                [ALREADY, ACTIVE, ACTIVE, ACTIVE, ACTIVE, NONE, OK, STATE],
            ),
        ] {
            for (request, expected) in requests.into_iter().zip(expected) {
                let status = state.check(request).err();
                assert_eq!(status, expected, "{request:?} while {state:?}");
            }
        }
    }
}
