//! Messages of an arbitrary peer.

use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use smbdirect::{
    rdma::work::Token,
    wire::{DataTransfer, Flags, NegotiateRequest, NegotiateResponse, Status, VERSION_1_0},
};

use super::End;
use crate::input::Input;

impl End {
    /// Sends a message that is most likely legal.
    pub(crate) fn peer_sends_in_order(&mut self, now: Instant, input: &mut Input<'_>) {
        if !self.negotiate_received {
            let message = self.negotiate_message();
            return self.peer_sends(now, message, None);
        }
        let length = u32::from(input.byte());
        let grant = input.up_to(15) as u16;
        let (data_length, remaining) = match self.receiving {
            Some(expected) => (length.min(expected), expected - length.min(expected)),
            None => (
                length,
                if input.up_to(3) == 3 {
                    input.byte().into()
                } else {
                    0
                },
            ),
        };
        let mut message = BytesMut::new();
        let header = DataTransfer {
            credits_requested: input.pick(&[10, 1, 2, 255, u16::MAX]),
            credits_granted: grant,
            flags: Flags::from_bits_retain(u16::from(input.up_to(7) == 7)),
            remaining_data_length: remaining,
            data_offset: if data_length == 0 { 0 } else { 24 },
            data_length,
        };
        header.encode(&mut message);
        message.put_bytes(length as u8 ^ 0x5a, data_length as usize);
        let token = (input.up_to(15) == 15).then_some(Token(7));
        self.peer_sends(now, message.freeze(), token);
    }

    fn negotiate_message(&self) -> Bytes {
        let mut message = BytesMut::new();
        if self.passive {
            let request = NegotiateRequest {
                min_version: VERSION_1_0,
                max_version: VERSION_1_0,
                credits_requested: 10,
                preferred_send_size: 1364,
                max_receive_size: 1364,
                max_fragmented_size: 131_072,
            };
            request.encode(&mut message);
        } else {
            let response = NegotiateResponse {
                min_version: VERSION_1_0,
                max_version: VERSION_1_0,
                negotiated_version: VERSION_1_0,
                credits_requested: 10,
                credits_granted: 10,
                status: Status::SUCCESS,
                max_read_write_size: 1 << 20,
                preferred_send_size: 128,
                max_receive_size: 1364,
                max_fragmented_size: 131_072,
            };
            response.encode(&mut message);
        }
        message.freeze()
    }

    /// Sends a message of the right form with arbitrary numbers.
    pub(crate) fn peer_sends_fields(&mut self, now: Instant, input: &mut Input<'_>) {
        let mut message = BytesMut::new();
        if self.negotiate_received {
            message.put_u16_le(input.any());
            message.put_u16_le(input.any());
            message.put_u16_le(input.byte().into());
            message.put_u16_le(input.byte().into());
            for _ in 0..3 {
                match input.up_to(2) {
                    0 => message.put_u32_le(input.byte().into()),
                    1 => message.put_u32_le(u32::from(input.byte()) * 8),
                    _ => message.put_u32_le(input.any()),
                }
            }
            message.put_bytes(0x77, input.byte().into());
        } else {
            message.extend_from_slice(&self.negotiate_message());
            for _ in 0..input.up_to(2) {
                let at = 2 * input.up_to(message.len() as u8 / 2 - 1);
                message[at..at + 2].copy_from_slice(&input.any::<u16>().to_le_bytes());
            }
            if input.up_to(7) == 7 {
                message.truncate(input.up_to(32));
            }
        }
        self.peer_sends(now, message.freeze(), None);
    }

    pub(crate) fn peer_sends_bytes(&mut self, now: Instant, input: &mut Input<'_>) {
        let length = usize::from(input.byte());
        let message = Bytes::copy_from_slice(input.bytes(length));
        self.peer_sends(now, message, None);
    }

    /// Delivers a message, cut to the length of its receive. Most messages complete immediately.
    fn peer_sends(&mut self, now: Instant, message: Bytes, invalidated: Option<Token>) {
        let speaks = self.connected && !self.flushing_receives && !self.disconnected;
        let Some(&(_, length)) = self.receives.front().filter(|_| speaks) else {
            return;
        };
        let message = message.slice(..message.len().min(length as usize));
        self.arrive(message, invalidated);
        if self.arrived.len() % 4 == 1 {
            self.hand_over(now);
        }
    }
}
