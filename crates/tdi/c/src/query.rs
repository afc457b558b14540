//! The answers to TDI_QUERY_INFORMATION, as the bytes of the structures in `tdi.h`.

use smbdirect_tdi::{ConnectionInfo, ProviderInfo, ProviderStatistics, Status};

use crate::{address, device::Device, event::windows_time, files::File};

const QUERY_PROVIDER_INFO: i32 = 2;
const QUERY_ADDRESS_INFO: i32 = 3;
const QUERY_CONNECTION_INFO: i32 = 4;
const QUERY_PROVIDER_STATISTICS: i32 = 5;
/// STATUS_NOT_IMPLEMENTED.
pub(crate) const NOT_IMPLEMENTED: Status = Status(0xC000_0002);

/// Answers a query to a file.
///
/// # Errors
/// [`INVALID_DEVICE_REQUEST`](Status::INVALID_DEVICE_REQUEST): the query is for another kind of file.
/// [`NOT_IMPLEMENTED`]: the transport has no such information.
pub(crate) fn answer(device: &Device, file: &File, query: i32) -> Result<Vec<u8>, Status> {
    match query {
        QUERY_PROVIDER_INFO => {
            let mut info = device.transport.info();
            // A connection cannot send more than its peer reassembles.
            if let Ok(largest) = file.endpoint().and_then(|endpoint| endpoint.max_tsdu()) {
                //= TDI-SEND-23
                info.max_send_size = largest;
            }
            Ok(provider(&info))
        }
        QUERY_PROVIDER_STATISTICS => Ok(statistics(&device.transport.statistics())),
        QUERY_CONNECTION_INFO => Ok(connection(&file.endpoint()?.query_connection()?)),
        QUERY_ADDRESS_INFO => {
            let local = match file.endpoint() {
                Ok(endpoint) => endpoint.local_addr()?,
                Err(_) => file.address()?.0.local_addr(),
            };
            // ActivityCount, and the address.
            let mut bytes = 1_u32.to_ne_bytes().to_vec();
            bytes.extend(address::format(local));
            Ok(bytes)
        }
        _ => Err(NOT_IMPLEMENTED),
    }
}

/// The fields of a structure, each aligned to its size.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    /// Adds a ULONG. A value that does not fit is its largest one.
    fn ulong(&mut self, value: impl TryInto<u32>) -> &mut Self {
        let value = value.try_into().unwrap_or(u32::MAX);
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn ulongs(&mut self, values: &[u64]) -> &mut Self {
        for &value in values {
            self.ulong(value);
        }
        self
    }

    /// Adds a LARGE_INTEGER.
    fn large(&mut self, value: u64) -> &mut Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(value.to_ne_bytes());
        self
    }

    /// Returns the bytes of a structure that is aligned to 8 bytes.
    fn end(&mut self) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        std::mem::take(&mut self.0)
    }
}

fn provider(info: &ProviderInfo) -> Vec<u8> {
    let mut fields = Fields::default();
    fields
        .ulong(info.version)
        .ulong(info.max_send_size)
        .ulong(info.max_connection_user_data)
        .ulong(info.max_datagram_size)
        .ulong(info.service_flags.bits())
        .ulong(info.minimum_lookahead_data)
        .ulong(info.maximum_lookahead_data)
        .ulong(info.number_of_resources)
        .large(windows_time(info.start_time) as u64)
        .end()
}

fn connection(info: &ConnectionInfo) -> Vec<u8> {
    let mut fields = Fields::default();
    // The states are numbered in the order of their declaration.
    fields.ulong(info.state as u32).ulong(0_u32);
    fields.ulongs(&[info.transmitted_tsdus, info.received_tsdus, 0, 0]);
    // The throughput and the delay are not measured.
    fields.large(0).large(0);
    fields
        .ulong(info.send_buffer_size)
        .ulong(info.receive_buffer_size);
    fields.0.push(u8::from(info.unreliable));
    fields.end()
}

fn statistics(values: &ProviderStatistics) -> Vec<u8> {
    let mut fields = Fields::default();
    fields.ulong(0x0200_u32);
    fields.ulongs(&[
        values.open_connections,
        values.connections_after_no_retry,
        0,
        values.local_disconnects,
        values.remote_disconnects,
        values.link_failures,
        0,
        values.session_timeouts,
        values.cancelled_connections,
        values.remote_resource_failures,
        values.local_resource_failures,
        values.not_found_failures,
        values.no_listen_failures,
    ]);
    // Datagrams.
    fields.ulong(0_u32).large(0).ulong(0_u32).large(0);
    fields.ulongs(&[values.packets_sent, values.packets_received]);
    fields
        .ulong(values.data_frames_sent)
        .large(values.data_frame_bytes_sent);
    fields
        .ulong(values.data_frames_received)
        .large(values.data_frame_bytes_received);
    // RDMA sends again by itself.
    fields.ulong(0_u32).large(0);
    fields.ulong(values.data_frames_rejected).large(0);
    fields.ulongs(&[
        values.response_timer_expirations,
        values.ack_timer_expirations,
        0,
        0,
        0,
        values.piggyback_ack_timeouts,
    ]);
    fields.large(0).ulong(0_u32).ulong(values.resources.len());
    for (id, resource) in values.resources.iter().enumerate() {
        fields.ulong(id);
        fields.ulongs(&[resource.maximum_used, 0, resource.exhausted]);
    }
    fields.end()
}

#[cfg(test)]
mod tests {
    use smbdirect::Loopback;
    use smbdirect_tdi::{Transport, TransportSettings};

    use super::*;

    /// `docs/tdi-c.md` lists the numbers.
    #[test]
    fn states_have_their_numbers() {
        use smbdirect_tdi::EndpointState::*;
        let states = [
            Idle, Associated, Connecting, Listening, Offered, Accepting, Connected, Releasing,
        ];
        assert_eq!(states.map(|state| state as u32), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn answers_have_the_sizes_of_the_structures() {
        let loopback = std::sync::Arc::new(Loopback::new());
        let transport = Transport::new(loopback, TransportSettings::default()).unwrap();
        assert_eq!(provider(&transport.info()).len(), 40);
        // TDI_PROVIDER_STATISTICS has one entry for a resource; there are two.
        assert_eq!(statistics(&transport.statistics()).len(), 216 + 16);
    }
}
