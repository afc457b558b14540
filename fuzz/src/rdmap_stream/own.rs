//! Reads the machine's output as a peer does, and compares it with the posted work.

use std::collections::{HashSet, VecDeque};

use smbdirect::rdma::{
    iwarp::{
        Rtr, StreamConfig,
        ddp::{Header, Tagged, Untagged},
        mpa::Fpdu,
        rdmap::{Opcode, ReadRequest},
    },
    work::{RemoteAddress, Token, WorkId},
};

pub(super) struct Own {
    crc: bool,
    longest: usize,
    /// Output bytes of an incomplete FPDU.
    rest: Vec<u8>,
    /// Whether output is waiting.
    backlog: bool,
    /// Messages that have to be sent, in the order of posting.
    to_be_said: VecDeque<Message>,
    /// Bytes sent of the first message, once it has begun.
    begun: Option<usize>,
    /// Whether a Read Response has begun and is not complete.
    responding: bool,
    next_send: u32,
    next_read_request: u32,
    said: HashSet<WorkId>,
    terminated: bool,
}

enum Message {
    Send {
        id: WorkId,
        bytes: Vec<u8>,
        invalidate: Option<Token>,
    },
    Write {
        id: Option<WorkId>,
        data: Vec<u8>,
        to: RemoteAddress,
    },
    Read {
        id: Option<WorkId>,
        from: RemoteAddress,
        length: usize,
    },
}

impl Message {
    /// Returns an empty Write, which the machine sends by itself.
    const fn empty_write() -> Self {
        Self::Write {
            id: None,
            data: Vec::new(),
            to: NOWHERE,
        }
    }
}

/// The address in empty Writes and Reads.
const NOWHERE: RemoteAddress = RemoteAddress {
    token: Token(1),
    offset: 0,
};

/// Output of the machine that the peer has to process.
pub(super) enum Said {
    ReadRequest {
        id: Option<WorkId>,
        sink_stag: u32,
        length: usize,
    },
    ReadResponse {
        stag: u32,
        tagged_offset: u64,
        payload: Vec<u8>,
        last: bool,
    },
    Terminate,
}

impl Own {
    pub(super) fn new(config: &StreamConfig) -> Self {
        let rtr = config.ready_to_receive.map(|kind| match kind {
            Rtr::Write => Message::empty_write(),
            Rtr::Read => Message::Read {
                id: None,
                from: NOWHERE,
                length: 0,
            },
        });
        Self {
            crc: config.crc,
            longest: config.max_fpdu,
            rest: Vec::new(),
            backlog: rtr.is_some(),
            to_be_said: rtr.into_iter().collect(),
            begun: None,
            responding: false,
            next_send: 1,
            next_read_request: 1,
            said: HashSet::new(),
            terminated: false,
        }
    }

    pub(super) fn may_be_so_long(&mut self, max_fpdu: usize) {
        self.longest = self.longest.max(max_fpdu);
    }

    /// Expects an empty Write next. All earlier output must have been sent.
    pub(super) fn is_to_nudge(&mut self) {
        assert!(self.to_be_said.is_empty() && self.rest.is_empty());
        self.to_be_said.push_back(Message::empty_write());
        self.backlog = true;
    }

    /// Returns whether the machine may have made segments that are not yet sent.
    pub(super) fn has_backlog(&self) -> bool {
        self.backlog
    }

    /// Records the number of waiting output bytes. With none, an FPDU can be incomplete only at the
    /// end of the stream, and not after a Terminate.
    pub(super) fn leave(&mut self, backlog: usize, ended: bool) {
        self.backlog = backlog > 0;
        let whole = self.rest.is_empty();
        assert!(self.backlog || whole || (ended && !self.terminated));
    }

    pub(super) fn is_to_send(&mut self, id: WorkId, bytes: Vec<u8>, invalidate: Option<Token>) {
        self.to_be_said.push_back(Message::Send {
            id,
            bytes,
            invalidate,
        });
    }

    pub(super) fn is_to_write(&mut self, id: WorkId, data: Vec<u8>, to: RemoteAddress) {
        let id = Some(id);
        self.to_be_said.push_back(Message::Write { id, data, to });
    }

    pub(super) fn is_to_read(&mut self, id: WorkId, from: RemoteAddress, length: usize) {
        let id = Some(id);
        self.to_be_said
            .push_back(Message::Read { id, from, length });
    }

    /// Checks that work completes only after its last byte was sent.
    pub(super) fn has_said(&mut self, id: WorkId) {
        assert!(self.said.remove(&id), "{id:?} completes unsaid");
    }

    /// Parses output bytes and returns what the peer has to process.
    pub(super) fn hear(&mut self, bytes: &[u8]) -> Vec<Said> {
        self.rest.extend_from_slice(bytes);
        let mut all = Vec::new();
        let buffer = std::mem::take(&mut self.rest);
        let mut rest = &buffer[..];
        while let Some(fpdu) = Fpdu::decode(rest, self.crc).expect("the CRC is right") {
            assert!(!self.terminated, "something behind the Terminate");
            assert!(fpdu.length <= self.longest);
            all.extend(self.segment(fpdu.ulpdu));
            rest = &rest[fpdu.length..];
        }
        self.rest = rest.to_vec();
        all
    }

    fn segment(&mut self, ulpdu: &[u8]) -> Option<Said> {
        let (header, payload) = Header::decode(ulpdu).expect("the stream encodes valid segments");
        let opcode = Opcode::of(&header).expect("the stream encodes valid segments");
        match header {
            Header::Tagged(header) if opcode == Opcode::RdmaWrite => {
                self.write(&header, payload);
                None
            }
            Header::Tagged(header) => {
                assert!(self.begun.is_none(), "a response inside a message");
                self.responding = !header.last;
                Some(Said::ReadResponse {
                    stag: header.stag,
                    tagged_offset: header.tagged_offset,
                    payload: payload.to_vec(),
                    last: header.last,
                })
            }
            Header::Untagged(header) => {
                assert_eq!(header.queue_number, opcode.queue_number());
                match opcode {
                    Opcode::RdmaReadRequest => Some(self.read_request(&header, payload)),
                    Opcode::Terminate => {
                        self.terminated = true;
                        Some(Said::Terminate)
                    }
                    _ => {
                        self.send(&header, opcode, payload);
                        None
                    }
                }
            }
        }
    }

    fn send(&mut self, header: &Untagged, opcode: Opcode, payload: &[u8]) {
        let Some(Message::Send {
            id,
            bytes,
            invalidate,
        }) = self.to_be_said.front()
        else {
            panic!("a Send that was not posted");
        };
        assert!(!self.responding);
        let begun = self.begun.unwrap_or(0);
        assert_eq!(header.message_sequence_number, self.next_send);
        assert_eq!(header.message_offset as usize, begun);
        assert_eq!(opcode.invalidates(), invalidate.is_some());
        assert_eq!(header.rsvd_ulp, invalidate.map_or(0, |token| token.0));
        let end = begun + payload.len();
        assert_eq!(bytes[begun..end], *payload);
        assert_eq!(header.last, end == bytes.len());
        self.begun = Some(end);
        if header.last {
            self.said.insert(*id);
            self.next_send += 1;
            self.begun = None;
            self.to_be_said.pop_front();
        }
    }

    fn write(&mut self, header: &Tagged, payload: &[u8]) {
        let Some(Message::Write { id, data, to }) = self.to_be_said.front() else {
            panic!("a Write that was not posted");
        };
        assert!(!self.responding);
        let begun = self.begun.unwrap_or(0);
        assert_eq!(header.stag, to.token.0);
        assert_eq!(header.tagged_offset, to.offset.wrapping_add(begun as u64));
        let end = begun + payload.len();
        assert_eq!(data[begun..end], *payload);
        assert_eq!(header.last, end == data.len());
        self.begun = Some(end);
        if header.last {
            self.said.extend(*id);
            self.begun = None;
            self.to_be_said.pop_front();
        }
    }

    fn read_request(&mut self, header: &Untagged, payload: &[u8]) -> Said {
        let Some(Message::Read { id, from, length }) = self.to_be_said.pop_front() else {
            panic!("a Read that was not posted");
        };
        assert!(!self.responding && self.begun.is_none() && header.last);
        assert_eq!(header.message_sequence_number, self.next_read_request);
        assert_eq!(header.message_offset, 0);
        self.next_read_request += 1;
        let request = ReadRequest::decode(payload).expect("the stream encodes valid segments");
        assert_eq!(request.source_stag, from.token.0);
        assert_eq!(request.source_tagged_offset, from.offset);
        assert_eq!(request.read_message_size as usize, length);
        assert_eq!(request.sink_tagged_offset, 0);
        Said::ReadRequest {
            id,
            sink_stag: request.sink_stag,
            length,
        }
    }
}
