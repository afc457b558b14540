//! Puts the data that RDMA moved back into the elements of a message, as a client or a server over TCP sends them.

use smbdirect_smb::{
    frame::MAX_MESSAGE_LENGTH,
    smb2::{Element, Elements, Header, ReadResponse, WriteRequest},
};

/// Data that is put back into an element.
#[derive(Debug)]
pub(super) enum Data {
    /// Of a READ response with these Flags.
    Read(u32, Vec<u8>),
    /// Of a WRITE request.
    Write(Vec<u8>),
}

impl Data {
    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Read(_, data) | Self::Write(data) => data.len(),
        }
    }
}

/// Returns a message with data in those elements for which `data` returns some; `None` if the message stays as it is.
pub(super) fn put_back(
    message: &[u8],
    mut data: impl FnMut(&Element, &[u8]) -> Option<Data>,
) -> Option<Vec<u8>> {
    let mut changed = false;
    let mut out = Vec::with_capacity(message.len());
    for element in Elements::of(message) {
        let element = element.ok()?;
        let bytes = &message[element.place.clone()];
        let start = out.len();
        let replaced =
            data(&element, bytes).and_then(|data| replacement(&element.header, bytes, &data));
        changed |= replaced.is_some();
        match replaced {
            Some(element) => out.extend_from_slice(&element),
            None => out.extend_from_slice(bytes),
        }
        if element.place.end < message.len() {
            out.resize(start + (out.len() - start).next_multiple_of(8), 0);
            let next_command = (out.len() - start) as u32;
            let header = Header {
                next_command,
                ..element.header
            };
            header.encode(&mut &mut out[start..start + Header::LENGTH]);
        }
        if out.len() > MAX_MESSAGE_LENGTH as usize {
            return None;
        }
    }
    changed.then_some(out)
}

/// Returns an element with its data.
fn replacement(header: &Header, bytes: &[u8], data: &Data) -> Option<Vec<u8>> {
    let mut element = Vec::with_capacity(WriteRequest::FIXED + data.len());
    header.encode(&mut element);
    let length = data.len() as u32;
    match data {
        Data::Read(flags, data) => {
            ReadResponse::encode(length, 0, *flags, &mut element);
            element.extend_from_slice(data);
        }
        Data::Write(data) => {
            let request = WriteRequest::decode(bytes, bytes.len()).ok()?;
            request.encode_inline(length, &mut element);
            element.extend_from_slice(data);
        }
    }
    Some(element)
}
