//! The tests of the public interface, in one binary: each module tests one subject.

mod connection;
mod endpoint;
mod examples;
mod futures;
mod receive;
mod send;
mod stall;
