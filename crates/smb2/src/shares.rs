//! The list of the shares of a server: NetrShareEnum ([MS-SRVS] 3.1.4.8) over the pipe `srvsvc`.
//!
//! `list_shares` of the crate smb2 reserves memory for as many entries as the server counts, and joins fragments
//! without a limit, so that a server can end the process. This module makes the same exchange with the crate's
//! messages, and counts only what the answer can hold.
//!
//! [MS-SRVS]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-srvs/

use smb2::{
    msg::{tree_disconnect::TreeDisconnectRequest, write::WriteRequest},
    pack::ReadCursor,
    rpc::{
        self,
        srvsvc::{self, ShareInfo},
    },
    types::{Command, flags::FileAccessMask},
};

use crate::{
    error::Error,
    file::File,
    requests::{ReadAnswer, ReadRequest, written},
    share::Share,
};

/// Maximum number of bytes of an answer, all its fragments together: 5000 shares with long descriptions.
const MOST_BYTES: usize = 1 << 20;
/// Bytes of one READ of the pipe: one credit, and a message that every server sends.
const READ_BYTES: u32 = 65_536;
/// Where the data of a WRITE begins, after its header and its body.
const DATA_OFFSET: u16 = 112;
/// Bytes of an entry without its strings: two pointers and a type.
const ENTRY_BYTES: usize = 12;

/// A share in the list of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShareEntry {
    /// Name of the share.
    pub name: String,
    /// Description of the share; may be empty.
    pub comment: String,
}

/// Returns the shares for files of the server `server`, over its share `IPC$`.
pub(crate) async fn list(ipc: &Share, server: &str) -> Result<Vec<ShareEntry>, Error> {
    let access = FileAccessMask::FILE_READ_DATA | FileAccessMask::FILE_WRITE_DATA;
    let (pipe, _) = ipc.open_with(ipc.create("srvsvc", access, 0)).await?;
    let listed = Pipe { ipc, pipe: &pipe }.list(server).await;
    // The list is here, so a failure to close does not matter.
    let _ = pipe.close().await;
    let command = Command::TreeDisconnect;
    let _ = ipc.requests().execute(command, TreeDisconnectRequest).await;
    let entry = |share: ShareInfo| ShareEntry {
        name: share.name,
        comment: share.comment,
    };
    let shares = srvsvc::filter_disk_shares(listed?);
    Ok(shares.into_iter().map(entry).collect())
}

/// The open pipe.
struct Pipe<'a> {
    ipc: &'a Share,
    pipe: &'a File,
}

impl Pipe<'_> {
    async fn list(&self, server: &str) -> Result<Vec<ShareInfo>, Error> {
        self.write(rpc::build_srvsvc_bind(1)).await?;
        rpc::parse_bind_ack(&self.read().await?)?;
        let request = srvsvc::build_net_share_enum_all(2, &format!(r"\\{server}"));
        self.write(request).await?;
        let mut stub = Vec::new();
        loop {
            let message = self.read().await?;
            let (part, is_last) = rpc::parse_response_fragment(&message)?;
            if stub.len() + part.len() > MOST_BYTES {
                return Err(wrong("it has more than 1 MiB"));
            }
            stub.extend_from_slice(part);
            if is_last {
                return parse(&stub);
            }
            if part.is_empty() {
                return Err(wrong("a fragment is empty and not the last"));
            }
        }
    }

    async fn write(&self, message: Vec<u8>) -> Result<(), Error> {
        const COMMAND: Command = Command::Write;
        let length = message.len();
        let request = WriteRequest {
            data_offset: DATA_OFFSET,
            offset: 0,
            file_id: self.pipe.id(),
            channel: 0,
            remaining_bytes: 0,
            write_channel_info_offset: 0,
            write_channel_info_length: 0,
            flags: 0,
            data: message,
        };
        let answer = self.ipc.requests().execute(COMMAND, request).await?;
        match written(&answer.success(COMMAND)?) {
            Ok(count) if count as usize == length => Ok(()),
            _ => Err(Error::Answer {
                command: COMMAND,
                fault: "it does not take a whole message of a pipe",
            }),
        }
    }

    /// Reads one message. A message that is longer than a READ comes in parts, all but the last with
    /// STATUS_BUFFER_OVERFLOW.
    async fn read(&self) -> Result<Vec<u8>, Error> {
        const COMMAND: Command = Command::Read;
        let mut message = Vec::new();
        loop {
            let request = ReadRequest {
                file_id: self.pipe.id(),
                offset: 0,
                length: READ_BYTES,
                channel: None,
            };
            let answer = self.ipc.requests().execute(COMMAND, request).await?;
            let (body, is_part) = answer.success_or_part(COMMAND)?;
            let answer = ReadAnswer::decode(&body).map_err(|_| wrong("it is not well formed"))?;
            if message.len() + answer.inline.len() > MOST_BYTES {
                return Err(wrong("it has more than 1 MiB"));
            }
            message.extend_from_slice(answer.inline);
            if !is_part {
                return Ok(message);
            }
            if answer.inline.is_empty() {
                return Err(wrong("a part of a message of a pipe is empty"));
            }
        }
    }
}

const fn wrong(fault: &'static str) -> Error {
    Error::Answer {
        command: Command::Read,
        fault,
    }
}

/// Reads the answer of NetrShareEnum, a SHARE_ENUM_STRUCT of level 1 ([MS-SRVS] 2.2.4.38) in NDR.
fn parse(stub: &[u8]) -> Result<Vec<ShareInfo>, Error> {
    read(stub).map_err(|error| match error {
        Wrong::Fault(fault) => wrong(fault),
        Wrong::Short => wrong("the list of shares is cut off"),
    })
}

/// The fault of a list of shares.
enum Wrong {
    Fault(&'static str),
    Short,
}

impl From<smb2::Error> for Wrong {
    fn from(_: smb2::Error) -> Self {
        Self::Short
    }
}

fn read(stub: &[u8]) -> Result<Vec<ShareInfo>, Wrong> {
    let mut cursor = ReadCursor::new(stub);
    let (level, discriminant) = (cursor.read_u32_le()?, cursor.read_u32_le()?);
    if (level, discriminant) != (1, 1) {
        return Err(Wrong::Fault("the list of shares is not of level 1"));
    }
    let container = cursor.read_u32_le()?;
    if container == 0 {
        return Ok(Vec::new());
    }
    let count = cursor.read_u32_le()? as usize;
    let array = cursor.read_u32_le()?;
    if array == 0 || count == 0 {
        return Ok(Vec::new());
    }
    let most = cursor.read_u32_le()? as usize;
    if count > most || count > cursor.remaining() / ENTRY_BYTES {
        return Err(Wrong::Fault("its number of shares is larger than the list"));
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let name = cursor.read_u32_le()?;
        let share_type = cursor.read_u32_le()?;
        entries.push((name, share_type, cursor.read_u32_le()?));
    }
    // The strings follow the entries, in their order.
    let mut shares = Vec::with_capacity(count);
    for (name, share_type, comment) in entries {
        shares.push(ShareInfo {
            name: string(&mut cursor, name)?,
            share_type,
            comment: string(&mut cursor, comment)?,
        });
    }
    Ok(shares)
}

/// Reads a string that a pointer refers to, a conformant and varying array of UTF-16 units with a zero at its end.
fn string(cursor: &mut ReadCursor<'_>, pointer: u32) -> Result<String, Wrong> {
    if pointer == 0 {
        return Ok(String::new());
    }
    let (most, offset) = (cursor.read_u32_le()?, cursor.read_u32_le()?);
    let count = cursor.read_u32_le()?;
    if offset != 0 || count > most {
        return Err(Wrong::Fault(
            "a name in the list of shares is not well formed",
        ));
    }
    let bytes = (count as usize).saturating_mul(2);
    let (units, _) = cursor.read_bytes(bytes)?.as_chunks();
    let units: Vec<u16> = units.iter().copied().map(u16::from_le_bytes).collect();
    let padding = cursor.position().next_multiple_of(4) - cursor.position();
    cursor.skip(padding.min(cursor.remaining()))?;
    let text = String::from_utf16_lossy(&units);
    Ok(text.trim_end_matches('\0').to_owned())
}
