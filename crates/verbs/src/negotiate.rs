//! The data that the two ends exchange when they connect: read depths and private data.

use bytes::Bytes;
use smbdirect::rdma::work::ProviderError;

use crate::{
    cm::{CmEvent, ReadDepths},
    config::VerbsConfig,
    device::Device,
    error::local_error,
};

/// Maximum number of bytes of private data in a connection request over iWARP. InfiniBand has room for 56 bytes,
/// and the kernel refuses more there.
const MAX_PRIVATE_DATA_BYTES: usize = 200;

/// Returns the read depths to request, or the most to accept.
pub(crate) fn wanted_read_depths(device: &Device, config: &VerbsConfig) -> ReadDepths {
    let limits = device.limits(config);
    let depth = |depth: u32| u8::try_from(depth).unwrap_or(u8::MAX);
    ReadDepths {
        inbound: depth(limits.max_inbound_reads),
        outbound: depth(limits.max_outbound_reads),
    }
}

/// Returns the read depths that both ends support.
///
/// Over InfiniBand the event has the depths from this end's point of view. Over iWARP the driver
/// decides which depth is in which field, so the lower of the two applies to both directions. There
/// 0 may mean that the depth is unknown.
pub(crate) fn agreed_read_depths(
    wanted: ReadDepths,
    event: &CmEvent,
    is_iwarp: bool,
) -> ReadDepths {
    let (inbound, outbound) = (event.responder_resources, event.initiator_depth);
    if !is_iwarp {
        return ReadDepths {
            inbound: wanted.inbound.min(inbound),
            outbound: wanted.outbound.min(outbound),
        };
    }
    let lower = [inbound, outbound]
        .into_iter()
        .filter(|&depth| depth > 0)
        .min();
    let lower = lower.unwrap_or(u8::MAX);
    ReadDepths {
        inbound: wanted.inbound.min(lower),
        outbound: wanted.outbound.min(lower),
    }
}

/// Checks the length of private data.
pub(crate) fn check_private_data(private_data: &Bytes) -> Result<(), ProviderError> {
    if private_data.len() > MAX_PRIVATE_DATA_BYTES {
        return Err(local_error(&format!(
            "{} bytes of private data, at most {MAX_PRIVATE_DATA_BYTES} can be sent",
            private_data.len()
        )));
    }
    Ok(())
}
