//! The upper layer of `smbdirect listen --echo` and `smbdirect ping --echo`: each message comes
//! back unchanged.

use super::{Answering, Asking, UpperLayer};

/// The peer, or this end, returns each message unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Echo;

impl UpperLayer for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn ask(&self) -> Box<dyn Asking> {
        Box::new(*self)
    }

    fn answer(&self) -> Box<dyn Answering> {
        Box::new(*self)
    }
}

impl Asking for Echo {
    /// Returns bytes that differ from place to place.
    fn request(&mut self, length: usize) -> Vec<u8> {
        let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8)) as u8;
        (0..length).map(byte).collect()
    }

    fn longest(&self) -> usize {
        16 << 20
    }

    fn check(&self, request: &[u8], answer: &[u8]) -> Result<(), String> {
        if request == answer {
            return Ok(());
        }
        let (sent, came) = (request.len(), answer.len());
        let same = request.iter().zip(answer).take_while(|(a, b)| a == b);
        let same = same.count();
        Err(format!(
            "a message of {sent} bytes came back with {came} bytes, the first {same} unchanged"
        ))
    }

    fn is_echo(&self) -> bool {
        true
    }
}

impl Answering for Echo {
    fn reply(&mut self, request: &[u8], _length: usize) -> Result<Vec<u8>, String> {
        Ok(request.to_vec())
    }

    fn farewell(&mut self, _request: &[u8]) -> Option<Vec<u8>> {
        None
    }
}
