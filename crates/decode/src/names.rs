//! The names that the specifications give to codes of RoCE, and other forms for people.

use smbdirect::rdma::roce::packet::{NakCode, Opcode};

/// Returns private data without the zeros at its end.
pub(super) fn private_data_used(data: &[u8]) -> &[u8] {
    let end = data.iter().rposition(|&byte| byte != 0);
    &data[..end.map_or(0, |end| end + 1)]
}

/// Returns the name of a negative acknowledgement.
pub(super) const fn nak_name(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequenceError => "PSN sequence error",
        NakCode::InvalidRequest => "invalid request",
        NakCode::RemoteAccessError => "remote access error",
        NakCode::RemoteOperationalError => "remote operational error",
        NakCode::InvalidRdRequest => "invalid RD request",
        NakCode::Reserved(_) => "reserved code",
    }
}

/// The times that an RNR NAK codes, in hundredths of a millisecond (IBTA 9.7.5.2.8).
const WAITS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Returns the time that an RNR NAK asks to wait, in milliseconds.
pub(super) fn rnr_wait_ms(timer: u8) -> f64 {
    f64::from(WAITS[usize::from(timer) % WAITS.len()]) / 100.0
}

/// Returns the name of an opcode in the specification.
pub(super) const fn opcode_name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::SendFirst => "SEND First",
        Opcode::SendMiddle => "SEND Middle",
        Opcode::SendLast => "SEND Last",
        Opcode::SendLastImmediate => "SEND Last Immediate",
        Opcode::SendOnly => "SEND Only",
        Opcode::SendOnlyImmediate => "SEND Only Immediate",
        Opcode::WriteFirst => "WRITE First",
        Opcode::WriteMiddle => "WRITE Middle",
        Opcode::WriteLast => "WRITE Last",
        Opcode::WriteLastImmediate => "WRITE Last Immediate",
        Opcode::WriteOnly => "WRITE Only",
        Opcode::WriteOnlyImmediate => "WRITE Only Immediate",
        Opcode::ReadRequest => "READ Request",
        Opcode::ReadResponseFirst => "READ Response First",
        Opcode::ReadResponseMiddle => "READ Response Middle",
        Opcode::ReadResponseLast => "READ Response Last",
        Opcode::ReadResponseOnly => "READ Response Only",
        Opcode::Acknowledge => "Acknowledge",
        Opcode::AtomicAcknowledge => "Atomic Acknowledge",
        Opcode::CompareSwap => "Compare and Swap",
        Opcode::FetchAdd => "Fetch and Add",
        Opcode::SendLastInvalidate => "SEND Last Invalidate",
        Opcode::SendOnlyInvalidate => "SEND Only Invalidate",
        Opcode::UdSendOnly => "UD SEND Only",
        Opcode::UdSendOnlyImmediate => "UD SEND Only Immediate",
        Opcode::CongestionNotification => "CNP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_those_of_the_specification() {
        let milliseconds = [(0, 655.36), (1, 0.01), (12, 0.64), (14, 1.28), (31, 491.52)];
        for (timer, expected) in milliseconds {
            assert!((rnr_wait_ms(timer) - expected).abs() < 1e-9, "{timer}");
        }
    }

    #[test]
    fn zeros_after_private_data_are_not_shown() {
        assert_eq!(private_data_used(&[0, 7, 0, 1, 0, 0]), [0, 7, 0, 1]);
        assert_eq!(private_data_used(&[0; 9]), [0_u8; 0]);
        assert_eq!(private_data_used(&[]), [0_u8; 0]);
    }
}
