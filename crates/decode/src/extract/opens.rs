//! The names of open files: shares from TREE_CONNECT, names from CREATE, sizes from both ends.

use smbdirect_smb::smb2::{Element, Header};

/// The FileId of a related element: that of the element before it.
pub(super) const RELATED_FILE: [u8; 16] = [0xff; 16];

/// Returns the TreeId of a header.
pub(super) const fn tree(header: &Header) -> u32 {
    (header.tree_or_async_id >> 32) as u32
}

/// Returns the name of the share in a TREE_CONNECT request.
pub(super) fn share(element: &[u8]) -> Option<String> {
    let path = string(element, short(element, 68)?, short(element, 70)?)?;
    let share = path.rsplit('\\').next().unwrap_or_default();
    Some(share.to_owned())
}

/// Returns the name in a CREATE request.
pub(super) fn name(element: &[u8]) -> Option<String> {
    string(element, short(element, 108)?, short(element, 110)?)
}

/// Returns the FileId and the size in a CREATE response.
pub(super) fn opened(element: &[u8]) -> Option<([u8; 16], u64)> {
    Some((file_id(element, 128)?, long(element, 112)?))
}

/// Returns the FileId at an offset.
pub(super) fn file_id(element: &[u8], at: usize) -> Option<[u8; 16]> {
    element.get(at..)?.first_chunk().copied()
}

/// Returns the FileId and the new size in a SET_INFO request that sets the end of a file.
pub(super) fn new_size(element: &[u8]) -> Option<([u8; 16], u64)> {
    /// SMB2_0_INFO_FILE, and FileEndOfFileInformation.
    const END_OF_FILE: [u8; 2] = [1, 20];
    if element.get(66..68)? != END_OF_FILE {
        return None;
    }
    let offset = usize::from(short(element, 72)?);
    Some((file_id(element, 80)?, long(element, offset)?))
}

/// Returns the bytes of an element.
pub(super) fn bytes<'a>(message: &'a [u8], element: &Element) -> &'a [u8] {
    &message[element.place.clone()]
}

/// Returns a string of UTF-16. Halves of a character become U+FFFD.
fn string(element: &[u8], offset: u16, length: u16) -> Option<String> {
    let start = usize::from(offset);
    let bytes = element.get(start..start + usize::from(length))?;
    let units: Vec<_> = bytes
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect();
    Some(String::from_utf16_lossy(&units))
}

fn short(element: &[u8], at: usize) -> Option<u16> {
    let field = element.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*field))
}

fn long(element: &[u8], at: usize) -> Option<u64> {
    let field = element.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*field))
}
