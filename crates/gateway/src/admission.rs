//! Admission of clients: how they are recognised, PROXY headers, refusals and their lines in the log.

pub(crate) mod clients;
pub(crate) mod proxy_header;
pub(crate) mod refused;
pub(crate) mod turned_away;
