//! Rebuilds the files whose bytes moved in a capture: names from CREATE, offsets from READ and WRITE, bytes from
//! messages and from RDMA.
//!
//! ```text
//! assembly   Data Transfers           -> SMB2 messages
//! opens      TREE_CONNECT, CREATE     -> names and sizes
//! moving     READ, WRITE, RDMA        -> bytes at offsets, once the server confirms them
//! names      names of the capture     -> paths that stay within a folder
//! ranges     offsets                  -> what is complete
//! ```

mod moving;
mod names;
mod opens;
mod ranges;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use serde::Serialize;
use smbdirect_smb::smb2::{Command, Elements, Header, Protocol};

use self::{
    moving::{Moving, Part, Target},
    names::Names,
    ranges::Ranges,
};
use crate::{
    capture::Packet,
    event::{Detail, Event, EventKind},
    explain::assembly::{Assembly, Message},
    streams::Streams,
};

/// Reads a capture, and hands over the bytes of its files.
#[derive(Debug)]
pub struct Extract {
    streams: Streams,
    files: Files,
    connections: BTreeMap<u32, Connection>,
}

/// Receives bytes of a file: its path below the folder, the offset, and the bytes.
pub type FileSink<'a> = &'a mut dyn FnMut(&Path, u64, &[u8]);

/// The files of a capture.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename = "extracted")]
pub struct Extraction {
    /// Each file of which bytes were seen.
    pub files: Vec<ExtractedFile>,
    /// Bytes of encrypted messages, which cannot be read.
    pub encrypted_bytes: u64,
    /// Bytes beyond [`MAX_FILE_BYTES`], or of more than [`MAX_FILES`] files, which were left out.
    pub left_out_bytes: u64,
}

/// A file of a capture.
#[derive(Clone, Debug, Serialize)]
pub struct ExtractedFile {
    /// Its path below the folder.
    pub path: PathBuf,
    /// Its share and its name, as in the capture; the name is `None` if it was opened before the capture.
    pub share: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Its size, if it is known.
    pub size: Option<u64>,
    /// Bytes that the capture shows.
    pub bytes: u64,
    /// Whether the capture shows all of it.
    pub complete: bool,
}

/// Offsets beyond this are left out. Files are sparse, but some file systems are not.
pub const MAX_FILE_BYTES: u64 = 1 << 44;
/// Maximum number of files.
pub const MAX_FILES: usize = 1 << 16;
/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 1000;
/// Maximum number of requests to open that wait for their response.
const MAX_PENDING: usize = 1 << 14;
const TREE_CONNECT: Command = Command(0x0003);
const CREATE: Command = Command(0x0005);
const SET_INFO: Command = Command(0x0011);

#[derive(Debug)]
struct Connection {
    assembly: Assembly,
    moving: Moving,
    /// Shares and names without a response, by MessageId.
    pending: HashMap<u64, String>,
    /// Files that were opened by a compound, by the MessageId of CREATE.
    opened: HashMap<u64, [u8; 16]>,
}

/// All files, whose sessions may have several connections.
#[derive(Debug, Default)]
struct Files {
    list: Vec<File>,
    names: Names,
    /// The share of each TreeId of a session.
    shares: HashMap<(u64, u32), String>,
    /// The file of each FileId of a session.
    open: HashMap<(u64, [u8; 16]), usize>,
    known: HashMap<(Option<String>, String), usize>,
    encrypted_bytes: u64,
    left_out_bytes: u64,
}

#[derive(Debug, Default)]
struct File {
    /// Its path, once bytes were seen.
    path: Option<PathBuf>,
    share: Option<String>,
    name: Option<String>,
    size: Option<u64>,
    ranges: Ranges,
}

impl Extract {
    /// Follows connections to the ports of SMB Direct and to `ports`, and RoCE on its UDP port and on `udp_ports`.
    pub fn new(ports: &[u16], udp_ports: &[u16]) -> Self {
        Self {
            streams: Streams::new(ports, udp_ports).with_detail(Detail::Content),
            files: Files::default(),
            connections: BTreeMap::new(),
        }
    }

    /// Returns the counts up to now.
    pub const fn counts(&self) -> &crate::Counts {
        self.streams.counts()
    }

    /// Takes the next packet, and hands over bytes that the server has confirmed.
    pub fn packet(&mut self, packet: &Packet<'_>, sink: FileSink<'_>) {
        let Self {
            streams,
            files,
            connections,
        } = self;
        streams.packet(packet, &mut |event| take(connections, files, event, sink));
    }

    /// Ends the capture, and lists its files.
    pub fn finish(mut self, sink: FileSink<'_>) -> Extraction {
        let Self {
            streams,
            files,
            connections,
        } = &mut self;
        streams.finish(&mut |event| take(connections, files, event, sink));
        let files = self.files.list.into_iter().filter_map(File::extracted);
        Extraction {
            files: files.collect(),
            encrypted_bytes: self.files.encrypted_bytes,
            left_out_bytes: self.files.left_out_bytes,
        }
    }
}

/// Hands an event to its connection.
fn take(
    connections: &mut BTreeMap<u32, Connection>,
    files: &mut Files,
    event: Event,
    sink: FileSink<'_>,
) {
    if matches!(event.kind, EventKind::Stream { .. }) && connections.len() < MAX_CONNECTIONS {
        let connection = Connection {
            assembly: Assembly::new(Detail::Content),
            moving: Moving::default(),
            pending: HashMap::new(),
            opened: HashMap::new(),
        };
        connections.insert(event.stream, connection);
    } else if let Some(connection) = connections.get_mut(&event.stream) {
        connection.event(event, files, sink);
    }
}

impl Connection {
    fn event(&mut self, event: Event, files: &mut Files, sink: FileSink<'_>) {
        let moving = &mut self.moving;
        match event.kind {
            EventKind::DataTransfer(_) => {
                if let Some(message) = self.assembly.event(&event) {
                    self.message(&message, files, sink);
                }
            }
            EventKind::Write(tagged) => {
                moving.data(tagged.stag, tagged.tagged_offset, event.extra.content);
            }
            EventKind::ReadRequest(read) => {
                let sink = (read.sink_stag, read.sink_tagged_offset);
                moving.read(read.source_stag, read.source_tagged_offset, sink);
            }
            EventKind::ReadResponse(tagged) => {
                let sink = (tagged.stag, tagged.tagged_offset);
                moving.read_response(sink, event.extra.content);
            }
            EventKind::RoceWrite(region) | EventKind::RoceReadResponse(region) => {
                if let Some(reth) = region.reth {
                    moving.data(reth.r_key, reth.virtual_address, event.extra.content);
                }
            }
            EventKind::Gap { .. } | EventKind::MissingPackets { .. } => {
                self.assembly.lost();
                moving.lost();
            }
            _ => {}
        }
    }

    fn message(&mut self, message: &Message, files: &mut Files, sink: FileSink<'_>) {
        if matches!(message.protocol, Protocol::Encrypted | Protocol::Compressed) {
            files.encrypted_bytes += message.length;
        }
        let mut opened_by = None;
        for element in Elements::of(&message.head).map_while(Result::ok) {
            let bytes = opens::bytes(&message.head, &element);
            let header = &element.header;
            if header.is_response() {
                self.response(header, bytes, files, sink);
            } else {
                self.request(header, bytes, opened_by, files);
                if header.command == CREATE {
                    opened_by = Some(header.message_id);
                }
            }
        }
    }

    fn request(
        &mut self,
        header: &Header,
        bytes: &[u8],
        opened_by: Option<u64>,
        files: &mut Files,
    ) {
        let name = match header.command {
            TREE_CONNECT => opens::share(bytes),
            CREATE => opens::name(bytes),
            Command::READ | Command::WRITE => {
                self.moving.request(header, bytes, opened_by);
                None
            }
            SET_INFO => {
                if let Some((file_id, size)) = opens::new_size(bytes) {
                    files.resize(header.session_id, file_id, size);
                }
                None
            }
            _ => None,
        };
        if let Some(name) = name
            && self.pending.len() < MAX_PENDING
        {
            self.pending.insert(header.message_id, name);
        }
    }

    fn response(&mut self, header: &Header, bytes: &[u8], files: &mut Files, sink: FileSink<'_>) {
        match header.command {
            Command::READ | Command::WRITE => {
                for part in self.moving.response(header, bytes) {
                    self.part(header, part, files, sink);
                }
            }
            TREE_CONNECT | CREATE if !header.is_interim() => {
                let name = self.pending.remove(&header.message_id);
                if header.is_error() {
                    return;
                }
                if header.command == TREE_CONNECT {
                    if let Some(share) = name {
                        let tree = opens::tree(header);
                        files.shares.insert((header.session_id, tree), share);
                    }
                } else if let Some((file_id, size)) = opens::opened(bytes) {
                    if self.opened.len() >= MAX_PENDING {
                        self.opened.clear();
                    }
                    self.opened.insert(header.message_id, file_id);
                    files.opened(header, file_id, name, size);
                }
            }
            _ => {}
        }
    }

    fn part(&self, header: &Header, part: Part, files: &mut Files, sink: FileSink<'_>) {
        let (target, offset, data) = part;
        let file_id = match target {
            Target::File(file_id) => Some(file_id),
            Target::OpenedBy(create) => self.opened.get(&create).copied(),
        };
        if let Some(file_id) = file_id {
            files.write(header, file_id, offset, &data, sink);
        }
    }
}

impl Files {
    /// Opens a file.
    fn opened(&mut self, header: &Header, file_id: [u8; 16], name: Option<String>, size: u64) {
        let session = header.session_id;
        let share = self.shares.get(&(session, opens::tree(header))).cloned();
        let index = match &name {
            Some(name) => self.known.get(&(share.clone(), name.clone())).copied(),
            None => None,
        };
        let Some(index) = index.or_else(|| self.add(share, name)) else {
            return;
        };
        self.list[index].size = Some(size);
        self.open.insert((session, file_id), index);
    }

    /// Adds a file, unless there are too many.
    fn add(&mut self, share: Option<String>, name: Option<String>) -> Option<usize> {
        let index = self.list.len();
        if index >= MAX_FILES {
            return None;
        }
        if let Some(name) = &name {
            self.known.insert((share.clone(), name.clone()), index);
        }
        self.list.push(File {
            share,
            name,
            ..File::default()
        });
        Some(index)
    }

    fn resize(&mut self, session: u64, file_id: [u8; 16], size: u64) {
        if let Some(&index) = self.open.get(&(session, file_id)) {
            self.list[index].size = Some(size);
        }
    }

    fn write(
        &mut self,
        header: &Header,
        file_id: [u8; 16],
        offset: u64,
        data: &[u8],
        sink: FileSink<'_>,
    ) {
        let session = header.session_id;
        let end = offset.checked_add(data.len() as u64);
        let known = self.open.get(&(session, file_id)).copied();
        let index = known.or_else(|| {
            let share = self.shares.get(&(session, opens::tree(header))).cloned();
            let index = self.add(share, None)?;
            self.open.insert((session, file_id), index);
            Some(index)
        });
        let (Some(index), Some(end @ ..=MAX_FILE_BYTES)) = (index, end) else {
            self.left_out_bytes += data.len() as u64;
            return;
        };
        let file = &mut self.list[index];
        let path = file.path.get_or_insert_with(|| {
            let share = file.share.as_deref().unwrap_or("share");
            match &file.name {
                Some(name) => self.names.path(share, name),
                None => self.names.path(share, &format!("unnamed-{index}")),
            }
        });
        file.ranges.add(offset, end);
        if header.command == Command::WRITE {
            file.size = file.size.map(|size| size.max(end));
        }
        sink(path, offset, data);
    }
}

impl File {
    fn extracted(self) -> Option<ExtractedFile> {
        let size = self.size.map(|size| size.max(self.ranges.end()));
        Some(ExtractedFile {
            path: self.path?,
            share: self.share,
            name: self.name,
            size,
            bytes: self.ranges.bytes(),
            complete: size.is_some_and(|size| self.ranges.is_whole(size)),
        })
    }
}
