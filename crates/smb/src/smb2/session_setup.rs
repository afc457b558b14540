//! The SESSION_SETUP response ([MS-SMB2] 2.2.6).

use super::{
    header::Header,
    reader::{Malformed, Reader},
};

/// The fixed part of a SESSION_SETUP response, without its header and its security buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSetupResponse {
    /// SessionFlags.
    pub session_flags: u16,
}

impl SessionSetupResponse {
    /// SMB2_SESSION_FLAG_IS_GUEST and SMB2_SESSION_FLAG_IS_NULL: the session has no key.
    const WITHOUT_KEY: u16 = 0x0001 | 0x0002;

    /// Decodes the body of an element.
    ///
    /// # Errors
    /// The element is too short or has another StructureSize.
    pub fn decode(element: &[u8]) -> Result<Self, Malformed> {
        let minimum = Header::LENGTH + 8;
        let mut reader = Reader::body("SESSION_SETUP response", element, minimum, 9)?;
        Ok(Self {
            session_flags: reader.u16(),
        })
    }

    /// Returns whether the session is a guest's or anonymous, which has no key.
    pub const fn is_guest_or_anonymous(self) -> bool {
        self.session_flags & Self::WITHOUT_KEY != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::*;

    #[test]
    fn a_guest_is_known_by_the_flags_of_the_session() {
        for (flags, is_guest) in [(0, false), (1, true), (2, true), (4, false), (5, true)] {
            let element = other(answer(1, 2, SUCCESS), &[9, 0, flags, 0, 0, 0, 0, 0]);
            let response = SessionSetupResponse::decode(&element).unwrap();
            assert_eq!(response.is_guest_or_anonymous(), is_guest, "{flags}");
            for length in 0..element.len() {
                assert!(SessionSetupResponse::decode(&element[..length]).is_err());
            }
        }
    }
}
