//! iWARP.

#[cfg(test)]
mod examples;

pub mod ddp;
pub mod mpa;
pub mod rdmap;
