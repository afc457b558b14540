//! The tests that every RDMA provider of smbdirect has to pass: one for each guarantee of
//! [`work`](smbdirect_rdma::work) and [`provider`](smbdirect_rdma::provider).
//!
//! [`conformance!`] makes tests of them for a provider:
//!
//! ```
//! use smbdirect_provider_suite::{Fabric, conformance};
//! use smbdirect_rdma::loopback::Loopback;
//!
//! conformance!(loopback, Fabric::new(Loopback::new()));
//! ```
//!
//! To change the suite, read `fabric.rs` first: it creates connected pairs, drives them, and checks for every
//! completion that nothing completes twice, out of order, or after the end.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod connecting;
#[doc(hidden)]
pub mod ending;
mod fabric;
#[doc(hidden)]
pub mod interleaving;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod sending;
#[doc(hidden)]
pub mod transfers;

use tokio::runtime::Builder;

pub use fabric::{Capabilities, Fabric, poll_completion};

/// Creates a module with one test for each behaviour. The expression makes the fabric of the tests. After
/// `optional` the expression may return `None`, after it has printed the reason.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $fabric:expr) => {
        $crate::conformance!($name, optional Some($fabric));
    };
    ($name:ident, optional $fabric:expr) => {
        $crate::conformance! {
            $name, $fabric;
            connecting: private_data_travels_both_ways, connecting_without_a_listener_fails, dropped_incoming_refuses,
                closed_listener_refuses, given_up_connect, the_receive_posted_before_connecting,
                a_hundred_connections, connections_outlive_the_listener, silent_peer_blocks_no_other,
                limits_of_the_two_ends_agree;
            sending: sends_arrive_in_order, both_ways_at_once, two_tasks_wake_each_other,
                busy_polling_finds_messages_and_the_end, empty_send, header_and_large_payload,
                send_fills_its_receive_to_the_byte, no_receive_posted, longer_than_the_receive,
                a_short_message_does_not_keep_later_ones_short, nothing_leaves_before_flush,
                room_shrinks_and_recovers, usage_counts_what_moves, limited_flushes_send_everything;
            transfers: write_then_send, writes_of_many_sizes, reads_of_many_sizes,
                empty_transfers_need_no_token, reads_beyond_ord_complete_in_order,
                a_write_lands_where_it_should, reads_and_writes_both_ways;
            memory: bounds, rights, unknown_token, guessed_tokens, stale_token,
                deregister_ends_access_and_gives_the_buffer_back,
                parts_of_a_larger_buffer_come_back, another_connection,
                send_with_invalidate, invalidation_that_is_not_allowed,
                invalidation_of_an_unknown_token, buffers_come_back_after_the_end;
            ending: graceful_delivers_everything_first, graceful_from_the_passive_side,
                both_at_once, abort_is_seen, dropping_is_seen, everything_completes_once,
                everything_completes_once_when_the_peer_ends_it, read_buffers_come_back,
                posting_after_the_end, ending_twice, silence_after_the_end,
                a_connection_outlives_its_runtime;
            interleaving: random_work_both_ways;
        }
    };
    ($name:ident, $fabric:expr; $($chapter:ident: $($behaviour:ident),+;)+) => {
        mod $name {
            use super::*;

            $(mod $chapter {
                use super::*;

                $(#[test]
                fn $behaviour() {
                    $crate::run(async {
                        if let Some(fabric) = $fabric {
                            $crate::$chapter::$behaviour(&fabric).await;
                        }
                    });
                })+
            })+
        }
    };
}

/// Runs a test in a runtime with two threads.
#[doc(hidden)]
pub fn run(test: impl Future<Output = ()>) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(test);
}
