//! The delays of receiver-not-ready (RNR) NAKs.

use std::time::Duration;

/// The delay of each timer code, in units of 10 microseconds (IBTA 9.7.5.2.8).
const DELAYS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];
/// The unit of [`DELAYS`].
const UNIT: Duration = Duration::from_micros(10);

/// The retry count that means "without limit".
pub(super) const RNR_RETRY_ENDLESS: u8 = 7;
/// The timer code that this end asks for: 2.56 ms. A peer that sends before a receive is posted
/// waits this long.
pub(super) const RNR_TIMER: u8 = 16;
/// How many times this end asks the peer to wait before it ends the connection.
///
/// SMB Direct posts a receive before it grants the credit for it, so a Send without a receive is an
/// error of one end. The pauses, 20 ms in all, help an upper layer that posts late.
pub(super) const MAX_RNR_NAKS: u32 = 8;

/// Returns how long the requester waits for a timer code of 5 bits.
pub(super) fn rnr_delay(timer: u8) -> Duration {
    UNIT * DELAYS[usize::from(timer & 0x1f)]
}

#[cfg(test)]
mod tests {
    use super::*;

    //= ROCE-9.7.5-07 test
    #[test]
    fn timer_codes_have_their_delays() {
        for (code, microseconds) in [
            (0, 655_360),
            (1, 10),
            (7, 120),
            (RNR_TIMER, 2_560),
            (31, 491_520),
            (0x21, 10),
        ] {
            assert_eq!(rnr_delay(code), Duration::from_micros(microseconds));
        }
        let increasing = DELAYS[1..].is_sorted();
        assert!(increasing && DELAYS[0] > DELAYS[31]);
    }
}
