//! Finds out which upper layer a peer carries.

use smbdirect_smb::smb2::Protocol;

use super::{Answering, Asking, Echo, Smb2, UpperLayer};

/// The upper layer that the peer carries: SMB2 towards a server; towards a client, [`Smb2`] or
/// [`Echo`], as its first message shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detect;

impl UpperLayer for Detect {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn ask(&self) -> Box<dyn Asking> {
        Smb2.ask()
    }

    fn answer(&self) -> Box<dyn Answering> {
        Box::new(Detecting { chosen: None })
    }
}

struct Detecting {
    chosen: Option<Box<dyn Answering>>,
}

impl Detecting {
    fn choose(&mut self, request: &[u8]) -> &mut dyn Answering {
        let is_smb2 = Protocol::of(request) == Protocol::Smb2;
        self.chosen
            .get_or_insert_with(|| {
                if is_smb2 {
                    Smb2.answer()
                } else {
                    Echo.answer()
                }
            })
            .as_mut()
    }
}

impl Answering for Detecting {
    fn reply(&mut self, request: &[u8], length: usize) -> Result<Vec<u8>, String> {
        self.choose(request).reply(request, length)
    }

    fn farewell(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        self.choose(request).farewell(request)
    }
}
