//! Polynomials modulo the polynomial of the CRC-32, with which the register of a CRC moves over bytes of zero.

/// The polynomial of the CRC, reflected: bit 31 is the coefficient of x^0.
pub(super) const POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial 1.
const ONE: u32 = 1 << 31;
/// x^(2^n) modulo the polynomial of the CRC, for n from 0 to 31.
const SQUARES: [u32; 32] = {
    let mut squares = [ONE >> 1; 32];
    let mut n = 1;
    while n < 32 {
        squares[n] = multiply(squares[n - 1], squares[n - 1]);
        n += 1;
    }
    squares
};

/// Returns the product of two polynomials modulo the polynomial of the CRC.
pub(super) const fn multiply(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, ONE);
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        bit >>= 1;
        b = b >> 1 ^ if b & 1 != 0 { POLYNOMIAL } else { 0 };
    }
    product
}

/// Returns x^-n modulo the polynomial of the CRC, whose powers of x repeat after 2^32 - 1.
pub(super) fn inverse_power(n: u32) -> u32 {
    power(u32::MAX - n)
}

/// Returns x^n modulo the polynomial of the CRC.
pub(super) fn power(n: u32) -> u32 {
    let bits = (0..32).filter(|bit| n >> bit & 1 != 0);
    bits.fold(ONE, |power, bit| multiply(power, SQUARES[bit]))
}
