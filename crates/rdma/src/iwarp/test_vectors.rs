//! Example byte strings for tests, assembled by hand and decoded by tshark: startup frames (A, B),
//! FPDUs with CRC (C) and Terminates (D; the last two in the bit order of Linux siw).

pub(super) const A1: &str = "4d504120 49442052 65712046 72616d65 40010000";
pub(super) const A2: &str = "4d504120 49442052 65702046 72616d65 40010000";
pub(super) const A3: &str = "4d504120 49442052 65712046 72616d65 40010008 00000010 00000010";
pub(super) const A4: &str = "4d504120 49442052 65702046 72616d65 60010000";
pub(super) const B1: &str = "4d504120 49442052 65712046 72616d65 50020004 8020c010";
pub(super) const B2: &str = "4d504120 49442052 65702046 72616d65 50020004 80108020";
pub(super) const B3: &str = "4d504120 49442052 65712046 72616d65 10020004 00200008";
pub(super) const B4: &str = "4d504120 49442052 65702046 72616d65 10020004 00080020";

/// RDMA Write of length zero: a ready-to-receive frame.
pub(super) const C1: &str = "000ec140 00000001 00000000 00000000 ebd34c5f";
/// Send, MSN 1.
pub(super) const C2: &str =
    "00174143 00000000 00000000 00000001 00000000 68656c6c 6f000000 b990b10c";
/// Send, MSN 2, an SMB Direct Negotiate Request.
pub(super) const C3: &str = "00264143 00000000 00000000 00000002 00000000 00010001 0000ff00 \
     54050000 00200000 00001000 f2358687";
/// RDMA Write.
pub(super) const C4: &str =
    "001ec140 00012345 00007f00 12345678 00010203 04050607 08090a0b 0c0d0e0f 22561749";
/// RDMA Read Request, MSN 1.
pub(super) const C5: &str = "002e4141 00000000 00000001 00000001 00000000 0000ab00 00000000 \
     00001000 00000010 00012345 00007f00 12345678 bde85768";
/// RDMA Read Response to C5.
pub(super) const C6: &str =
    "001ec142 0000ab00 00000000 00001000 00010203 04050607 08090a0b 0c0d0e0f a33e82d7";
/// Send with Invalidate, MSN 3.
pub(super) const C7: &str = "00164144 00012345 00000000 00000003 00000000 646f6e65 b77fb710";
/// Send with Solicited Event and Invalidate, MSN 4.
pub(super) const C8: &str = "00164146 00012345 00000000 00000004 00000000 646f6e65 774ac3cd";
/// Send of length zero, MSN 5.
pub(super) const C9: &str = "00124143 00000000 00000000 00000005 00000000 e8c5ad24";
/// First half of an RDMA Write.
pub(super) const C10: &str = "00168140 00012345 00007f00 12345678 00010203 04050607 92085c34";
/// Second half of the RDMA Write of C10.
pub(super) const C11: &str = "0016c140 00012345 00007f00 12345680 08090a0b 0c0d0e0f 96dc0f56";
/// RDMA Read Request of length zero, MSN 2.
pub(super) const C12: &str = "002e4141 00000000 00000001 00000002 00000000 00000000 00000000 \
     00000000 00000000 00000001 00000000 00000000 cb6da827";
/// Send, MSN 6, with CRC off.
pub(super) const C13: &str =
    "00174143 00000000 00000000 00000006 00000000 68656c6c 6f000000 00000000";

/// Terminate: CRC error.
pub(super) const D1: &str = "00164147 00000000 00000002 00000001 00000000 20020000 7fe42585";
/// Terminate: bounds error, with the headers of C4.
pub(super) const D2: &str = "00264147 00000000 00000002 00000001 00000000 1101c000 001ec140 \
     00012345 00007f00 12345678 8de074de";
/// Terminate: access rights error, with the headers of C5.
pub(super) const D3: &str = "00464147 00000000 00000002 00000001 00000000 0102e000 002e4141 \
     00000000 00000001 00000001 00000000 0000ab00 00000000 00001000 00000010 00012345 00007f00 \
     12345678 488c8a03";
/// D1 as siw encodes it.
pub(super) const D4: &str = "00164147 00000000 00000002 00000001 00000000 02020000 75d367ed";
/// D2 as siw encodes it.
pub(super) const D5: &str = "00264147 00000000 00000002 00000001 00000000 11010300 0010c140 \
     00012345 00007f00 12345678 98a936d0";

/// Decodes hexadecimal digits; spaces are ignored.
pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}
