//! The content of the negotiate messages, and the limits that follow from them (3.1.5.2, 3.1.5.3,
//! 3.1.5.6, 3.1.5.7).

use std::time::Duration;

use super::{
    config::Config,
    error::{ConnectionError, Violation},
};
use crate::wire::{DataTransfer, NegotiateRequest, NegotiateResponse, Status, VERSION_1_0};

/// Smallest MaxReceiveSize (2.2.1, 2.2.2).
const MIN_RECEIVE_SIZE: u32 = 128;
/// Smallest MaxFragmentedSize (2.2.1, 2.2.2).
const MIN_FRAGMENTED_SIZE: u32 = 131_072;

/// The limits of an established connection, which never change (3.1.4.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Negotiated {
    /// MaxSendSize: largest single message that this end sends, in bytes with its header.
    pub max_send_size: u32,
    /// MaxReceiveSize: largest single message that this end receives, in bytes with its header.
    pub max_receive_size: u32,
    /// MaxFragmentedSendSize: largest upper-layer message the peer reassembles, in bytes.
    pub max_fragmented_send_size: u32,
    /// MaxFragmentedRecvSize: largest upper-layer message that this end reassembles, in bytes.
    pub max_fragmented_receive_size: u32,
    /// MaxReadWriteSize: largest RDMA Read or Write, in bytes.
    pub max_read_write_size: u32,
    /// KeepaliveInterval of this end.
    pub keepalive_interval: Duration,
}

impl Negotiated {
    /// Returns the largest payload of one message in bytes: MaxSendSize without the header and its
    /// padding.
    pub const fn max_payload(&self) -> usize {
        //= SMBD-3.1.5.4-05
        //= SMBD-3.1.5.4-06
        self.max_send_size as usize - DataTransfer::PAYLOAD_OFFSET as usize
    }
}

/// The result of a successful negotiation at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) negotiated: Negotiated,
    /// ReceiveCreditTarget.
    pub(super) receive_credit_target: u16,
    /// Initial SendCredits; 0 on the passive side.
    pub(super) send_credits: u16,
}

/// Returns the Negotiate Request for `config` (3.1.5.2).
pub(super) fn negotiate_request(config: &Config) -> NegotiateRequest {
    //= SMBD-2.2.1-01
    //= SMBD-3.1.5.2-01
    //= SMBD-3.1.5.2-02
    //= SMBD-3.1.5.2-03
    NegotiateRequest {
        min_version: VERSION_1_0,
        max_version: VERSION_1_0,
        credits_requested: config.send_credit_target,
        preferred_send_size: config.max_send_size,
        max_receive_size: config.max_receive_size,
        max_fragmented_size: config.max_fragmented_receive_size,
    }
}

/// Returns the Negotiate Response that accepts and grants `credits_granted` credits (3.1.5.3).
pub(super) fn negotiate_response(
    config: &Config,
    negotiated: &Negotiated,
    credits_granted: u16,
) -> NegotiateResponse {
    //= SMBD-2.2.2-01
    //= SMBD-2.2.2-02
    //= SMBD-2.2.2-03
    //= SMBD-3.1.5.3-01
    //= SMBD-3.1.5.3-04
    //= SMBD-3.1.5.3-05
    NegotiateResponse {
        min_version: VERSION_1_0,
        max_version: VERSION_1_0,
        negotiated_version: VERSION_1_0,
        credits_requested: config.send_credit_target,
        credits_granted,
        status: Status::SUCCESS,
        max_read_write_size: negotiated.max_read_write_size,
        preferred_send_size: negotiated.max_send_size,
        max_receive_size: negotiated.max_receive_size,
        max_fragmented_size: negotiated.max_fragmented_receive_size,
    }
}

/// Checks a received Negotiate Request (3.1.5.6).
///
/// # Errors
/// Returns [`ConnectionError::Violation`], after which the connection ends without an answer, or
/// [`ConnectionError::RefusedPeer`], after which it ends with a refusal of this status.
pub(super) fn receive_negotiate_request(
    config: &Config,
    bytes: &[u8],
) -> Result<Outcome, ConnectionError> {
    let request = NegotiateRequest::decode(bytes).map_err(|_| Violation::RequestTooShort {
        length: bytes.len(),
    })?;
    //= SMBD-3.1.5.6-02
    //= SMBD-3.1.5.6-03
    if !(request.min_version..=request.max_version).contains(&VERSION_1_0) {
        return Err(ConnectionError::RefusedPeer(Status::NOT_SUPPORTED));
    }
    //= SMBD-3.1.5.6-04
    if request.credits_requested == 0 {
        return Err(Violation::RequestWithoutCreditsRequested.into());
    }
    //= SMBD-3.1.5.6-05
    if request.max_receive_size < MIN_RECEIVE_SIZE {
        return Err(Violation::RequestMaxReceiveSize(request.max_receive_size).into());
    }
    //= SMBD-3.1.5.6-06
    if request.max_fragmented_size < MIN_FRAGMENTED_SIZE {
        return Err(Violation::RequestMaxFragmentedSize(request.max_fragmented_size).into());
    }
    //= SMBD-3.1.5.6-07
    //= SMBD-3.1.5.6-08
    let max_receive_size = config
        .max_receive_size
        .min(request.preferred_send_size)
        .max(MIN_RECEIVE_SIZE);
    //= SMBD-3.1.5.6-09
    Ok(Outcome {
        negotiated: Negotiated {
            max_send_size: config.max_send_size.min(request.max_receive_size),
            max_receive_size,
            max_fragmented_send_size: request.max_fragmented_size,
            max_fragmented_receive_size: config.max_fragmented_receive_size,
            max_read_write_size: config.max_read_write_size,
            keepalive_interval: config.keepalive_interval,
        },
        receive_credit_target: request.credits_requested,
        send_credits: 0,
    })
}

/// Checks a received Negotiate Response (3.1.5.7).
///
/// The status is checked first, because a refusal has zeros in all other fields and the upper layer
/// needs its reason.
///
/// # Errors
/// Returns the violation or refusal, after which the connection ends.
pub(super) fn receive_negotiate_response(
    config: &Config,
    bytes: &[u8],
) -> Result<Outcome, ConnectionError> {
    let response = NegotiateResponse::decode(bytes).map_err(|_| Violation::ResponseTooShort {
        length: bytes.len(),
    })?;
    //= SMBD-3.1.5.7-08
    if response.status != Status::SUCCESS {
        return Err(ConnectionError::Refused(response.status));
    }
    //= SMBD-3.1.5.7-09
    check_response(config, &response)?;
    //= SMBD-3.1.5.7-10
    //= SMBD-3.1.5.7-11
    //= SMBD-3.1.5.7-12
    //= SMBD-3.1.5.7-13
    //= SMBD-3.1.5.7-14
    Ok(Outcome {
        negotiated: Negotiated {
            max_send_size: config.max_send_size.min(response.max_receive_size),
            max_receive_size: config
                .max_receive_size
                .min(response.preferred_send_size)
                .max(MIN_RECEIVE_SIZE),
            max_fragmented_send_size: response.max_fragmented_size,
            max_fragmented_receive_size: config.max_fragmented_receive_size,
            max_read_write_size: config.max_read_write_size.min(response.max_read_write_size),
            keepalive_interval: config.keepalive_interval,
        },
        receive_credit_target: response.credits_requested,
        send_credits: response.credits_granted,
    })
}

fn check_response(config: &Config, response: &NegotiateResponse) -> Result<(), Violation> {
    //= SMBD-3.1.5.7-02
    if response.negotiated_version != VERSION_1_0 {
        return Err(Violation::NegotiatedVersion(response.negotiated_version));
    }
    //= SMBD-3.1.5.7-03
    if response.max_receive_size < MIN_RECEIVE_SIZE {
        return Err(Violation::ResponseMaxReceiveSize(response.max_receive_size));
    }
    //= SMBD-3.1.5.7-04
    if response.max_fragmented_size < MIN_FRAGMENTED_SIZE {
        return Err(Violation::ResponseMaxFragmentedSize(
            response.max_fragmented_size,
        ));
    }
    //= SMBD-3.1.5.7-05
    if response.credits_granted == 0 {
        return Err(Violation::ResponseWithoutCreditsGranted);
    }
    //= SMBD-3.1.5.7-06
    if response.credits_requested == 0 {
        return Err(Violation::ResponseWithoutCreditsRequested);
    }
    //= SMBD-3.1.5.7-07
    if response.preferred_send_size > config.max_receive_size {
        return Err(Violation::ResponsePreferredSendSize {
            preferred_send_size: response.preferred_send_size,
            max_receive_size: config.max_receive_size,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::config::Settings, *};

    fn request() -> NegotiateRequest {
        NegotiateRequest {
            min_version: 0x0100,
            max_version: 0x0100,
            credits_requested: 10,
            preferred_send_size: 1024,
            max_receive_size: 1024,
            max_fragmented_size: 131_072,
        }
    }

    fn response() -> NegotiateResponse {
        NegotiateResponse {
            min_version: 0x0100,
            max_version: 0x0100,
            negotiated_version: 0x0100,
            credits_requested: 10,
            credits_granted: 10,
            status: Status::SUCCESS,
            max_read_write_size: 1 << 20,
            preferred_send_size: 1024,
            max_receive_size: 1024,
            max_fragmented_size: 131_072,
        }
    }

    fn windows() -> Config {
        Config::new(Settings::windows()).unwrap()
    }

    fn accept(config: &Config, request: NegotiateRequest) -> Result<Outcome, ConnectionError> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        receive_negotiate_request(config, &bytes)
    }

    fn conclude(config: &Config, response: NegotiateResponse) -> Result<Outcome, ConnectionError> {
        let mut bytes = Vec::new();
        response.encode(&mut bytes);
        receive_negotiate_response(config, &bytes)
    }

    //= SMBD-2.2.1-01 test
    //= SMBD-3.1.5.2-01 test
    //= SMBD-3.1.5.2-02 test
    //= SMBD-3.1.5.2-03 test
    #[test]
    fn the_request_contains_the_settings() {
        assert_eq!(
            negotiate_request(&windows()),
            NegotiateRequest {
                min_version: 0x0100,
                max_version: 0x0100,
                credits_requested: 255,
                preferred_send_size: 1364,
                max_receive_size: 8192,
                max_fragmented_size: 1 << 20,
            }
        );
    }

    //= SMBD-3.1.5.6-02 test
    //= SMBD-3.1.5.6-03 test
    #[test]
    fn a_version_range_that_contains_1_0_is_accepted() {
        for (min_version, max_version, is_accepted) in [
            (0x0100, 0x0100, true),
            (0x0000, 0xffff, true),
            (0x0100, 0xffff, true),
            (0x0000, 0x0100, true),
            (0x00ff, 0x0101, true),
            (0x0101, 0xffff, false),
            (0x0000, 0x00ff, false),
            (0x0101, 0x00ff, false),
        ] {
            let request = NegotiateRequest {
                min_version,
                max_version,
                ..request()
            };
            let refused = Err(ConnectionError::RefusedPeer(Status::NOT_SUPPORTED));
            let result = accept(&windows(), request);
            assert_eq!(
                result.is_ok(),
                is_accepted,
                "{min_version:x} {max_version:x}"
            );
            if !is_accepted {
                assert_eq!(result, refused);
            }
        }
    }

    //= SMBD-3.1.5.6-04 test
    //= SMBD-3.1.5.6-05 test
    //= SMBD-3.1.5.6-06 test
    #[test]
    fn each_minimum_of_a_request_is_checked() {
        let config = windows();
        let no_credits = NegotiateRequest {
            credits_requested: 0,
            ..request()
        };
        let expected = Violation::RequestWithoutCreditsRequested;
        assert_eq!(accept(&config, no_credits), Err(expected.into()));
        for credits_requested in [1, 65535] {
            assert!(
                accept(
                    &config,
                    NegotiateRequest {
                        credits_requested,
                        ..request()
                    }
                )
                .is_ok()
            );
        }
        for max_receive_size in [0, 127] {
            let request = NegotiateRequest {
                max_receive_size,
                ..request()
            };
            let expected = Violation::RequestMaxReceiveSize(max_receive_size);
            assert_eq!(accept(&config, request), Err(expected.into()));
        }
        for max_fragmented_size in [0, 131_071] {
            let request = NegotiateRequest {
                max_fragmented_size,
                ..request()
            };
            let expected = Violation::RequestMaxFragmentedSize(max_fragmented_size);
            assert_eq!(accept(&config, request), Err(expected.into()));
        }
        for max_receive_size in [128, u32::MAX] {
            assert!(
                accept(
                    &config,
                    NegotiateRequest {
                        max_receive_size,
                        ..request()
                    }
                )
                .is_ok()
            );
        }
        let max_fragmented_size = u32::MAX;
        assert!(
            accept(
                &config,
                NegotiateRequest {
                    max_fragmented_size,
                    ..request()
                }
            )
            .is_ok()
        );
    }

    //= SMBD-3.1.5.6-07 test
    //= SMBD-3.1.5.6-08 test
    //= SMBD-3.1.5.6-09 test
    #[test]
    fn the_passive_side_computes_the_sizes() {
        for (preferred_send_size, max_receive_size) in [
            (0, 128),
            (127, 128),
            (128, 128),
            (129, 129),
            (8192, 8192),
            (u32::MAX, 8192),
        ] {
            let outcome = accept(
                &windows(),
                NegotiateRequest {
                    preferred_send_size,
                    ..request()
                },
            )
            .unwrap();
            assert_eq!(outcome.negotiated.max_receive_size, max_receive_size);
        }
        let outcome = accept(&windows(), request()).unwrap();
        assert_eq!(outcome.negotiated.max_send_size, 1024);
        assert_eq!(outcome.negotiated.max_fragmented_send_size, 131_072);
        assert_eq!(
            (outcome.receive_credit_target, outcome.send_credits),
            (10, 0)
        );
    }

    //= SMBD-3.1.5.3-01 test
    //= SMBD-3.1.5.3-04 test
    //= SMBD-3.1.5.3-05 test
    //= SMBD-2.2.2-01 test
    //= SMBD-2.2.2-02 test
    //= SMBD-2.2.2-03 test
    #[test]
    fn the_preferred_send_size_of_a_response_is_within_the_initiators_limit() {
        let config = windows();
        let asked = NegotiateRequest {
            max_receive_size: 200,
            ..request()
        };
        let outcome = accept(&config, asked).unwrap();
        let response = negotiate_response(&config, &outcome.negotiated, 10);
        assert_eq!(response.preferred_send_size, 200);
        assert_eq!(response.max_receive_size, 1024);
        assert_eq!(response.negotiated_version, 0x0100);
        assert_eq!(response.status, Status::SUCCESS);
        assert_eq!(
            (response.credits_requested, response.credits_granted),
            (255, 10)
        );
        assert_eq!(response.max_read_write_size, 8 << 20);
        assert_eq!(response.max_fragmented_size, 1 << 20);
    }

    //= SMBD-3.1.5.7-08 test
    //= SMBD-3.1.5.7-09 test
    #[test]
    fn each_field_of_a_response_is_checked() {
        let config = windows();
        let broken = [
            //= SMBD-3.1.5.7-02 test
            (
                NegotiateResponse {
                    negotiated_version: 0x0101,
                    ..response()
                },
                Violation::NegotiatedVersion(0x0101),
            ),
            //= SMBD-3.1.5.7-03 test
            (
                NegotiateResponse {
                    max_receive_size: 127,
                    ..response()
                },
                Violation::ResponseMaxReceiveSize(127),
            ),
            //= SMBD-3.1.5.7-04 test
            (
                NegotiateResponse {
                    max_fragmented_size: 131_071,
                    ..response()
                },
                Violation::ResponseMaxFragmentedSize(131_071),
            ),
            //= SMBD-3.1.5.7-05 test
            (
                NegotiateResponse {
                    credits_granted: 0,
                    ..response()
                },
                Violation::ResponseWithoutCreditsGranted,
            ),
            //= SMBD-3.1.5.7-06 test
            (
                NegotiateResponse {
                    credits_requested: 0,
                    ..response()
                },
                Violation::ResponseWithoutCreditsRequested,
            ),
            //= SMBD-3.1.5.7-07 test
            (
                NegotiateResponse {
                    preferred_send_size: 8193,
                    ..response()
                },
                Violation::ResponsePreferredSendSize {
                    preferred_send_size: 8193,
                    max_receive_size: 8192,
                },
            ),
        ];
        for (response, violation) in broken {
            assert_eq!(conclude(&config, response), Err(violation.into()));
        }
        for status in [Status::NOT_SUPPORTED, Status(0xC000_0001), Status(1)] {
            let refusal = NegotiateResponse::refusal(status);
            assert_eq!(
                conclude(&config, refusal),
                Err(ConnectionError::Refused(status))
            );
        }
        let strange = NegotiateResponse {
            min_version: 7,
            max_version: 3,
            ..response()
        };
        assert!(
            conclude(&config, strange).is_ok(),
            "only NegotiatedVersion is checked"
        );
    }

    //= SMBD-3.1.5.7-03 test
    //= SMBD-3.1.5.7-04 test
    #[test]
    fn the_minimum_sizes_of_a_response_are_accepted() {
        let smallest = NegotiateResponse {
            max_receive_size: 128,
            max_fragmented_size: 131_072,
            ..response()
        };
        let negotiated = conclude(&windows(), smallest).unwrap().negotiated;
        let sizes = (
            negotiated.max_send_size,
            negotiated.max_fragmented_send_size,
        );
        assert_eq!(sizes, (128, 131_072));
    }

    //= SMBD-3.1.5.7-10 test
    //= SMBD-3.1.5.7-11 test
    //= SMBD-3.1.5.7-12 test
    //= SMBD-3.1.5.7-13 test
    //= SMBD-3.1.5.7-14 test
    #[test]
    fn the_active_side_computes_the_sizes() {
        let outcome = conclude(&windows(), response()).unwrap();
        assert_eq!(outcome.negotiated.max_send_size, 1024);
        assert_eq!(outcome.negotiated.max_receive_size, 1024);
        assert_eq!(outcome.negotiated.max_read_write_size, 1 << 20);
        assert_eq!(outcome.negotiated.max_fragmented_send_size, 131_072);
        assert_eq!(
            (outcome.receive_credit_target, outcome.send_credits),
            (10, 10)
        );
        for (preferred_send_size, expected) in [(0, 128), (127, 128), (129, 129), (8192, 8192)] {
            let response = NegotiateResponse {
                preferred_send_size,
                ..response()
            };
            let outcome = conclude(&windows(), response).unwrap();
            assert_eq!(outcome.negotiated.max_receive_size, expected);
        }
    }
}
