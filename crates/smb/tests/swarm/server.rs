//! A server, with RDMA or without: files, and answers in any order.

use fastrand::Rng;

use crate::{
    Sent,
    client::{FILE, FILES},
    meaning::{channel, command, elements},
    memory::{AccessFault, Memory},
    messages::*,
};

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) rdma: bool,
    /// It answers requests of different messages together.
    mixes: bool,
    pub(crate) files: Vec<Vec<u8>>,
    /// Messages of which elements wait for their answer.
    waiting: Vec<Vec<Task>>,
    /// Encrypted and compressed messages to answer.
    opaque: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Task {
    element: Vec<u8>,
    interim: bool,
    cancelled: bool,
}

impl Server {
    pub(crate) fn new(random: &mut Rng, rdma: bool, mixes: bool) -> Self {
        let mut file = || {
            let mut bytes = vec![0; random.usize(..FILE as usize)];
            random.fill(&mut bytes);
            bytes
        };
        Self {
            rdma,
            mixes,
            files: (0..FILES).map(|_| file()).collect(),
            waiting: Vec::new(),
            opaque: Vec::new(),
        }
    }

    /// Whether it has nothing left to answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.opaque.is_empty()
    }

    /// Takes a message.
    pub(crate) fn receives(&mut self, message: &[u8]) {
        if matches!(message.first_chunk(), Some(b"\xfcSMB" | b"\xfdSMB")) {
            self.opaque.push(message.to_vec());
        }
        let mut tasks = Vec::new();
        for place in elements(message).unwrap_or_default() {
            let element = message[place].to_vec();
            if command(&element) == CANCEL {
                let id = u64_at(&element, 24);
                let waiting = self.waiting.iter_mut().flatten();
                for task in waiting.filter(|task| u64_at(&task.element, 24) == id) {
                    task.cancelled = true;
                }
                continue;
            }
            let is_plain = channel(&element).is_none();
            assert!(self.rdma || is_plain, "a channel to a server without RDMA");
            tasks.push(Task {
                element,
                interim: false,
                cancelled: false,
            });
        }
        if !tasks.is_empty() {
            self.waiting.push(tasks);
        }
    }

    /// Sends an answer, if one is due.
    pub(crate) fn says(
        &mut self,
        random: &mut Rng,
        memory: &mut Memory,
    ) -> Result<Option<Sent>, AccessFault> {
        if random.u8(..16) == 0 {
            let bytes = other(answer(18, u64::MAX, SUCCESS), &[24; 24]);
            return Ok(Some(bytes.into()));
        }
        if let Some(mut bytes) = self.opaque.pop() {
            bytes.reverse();
            let first = *bytes.last().expect("it is not empty");
            put(&mut bytes, 0, &[first, b'S', b'M', b'B']);
            return Ok(Some(bytes.into()));
        }
        if self.waiting.is_empty() {
            return Ok(None);
        }
        let group = random.usize(..self.waiting.len());
        let tasks = &mut self.waiting[group];
        let index = random.usize(..tasks.len());
        if random.u8(..4) == 0 && !tasks[index].interim {
            let task = &mut tasks[index];
            task.interim = true;
            let id = u64_at(&task.element, 24);
            return Ok(Some(interim(command(&task.element), id).into()));
        }
        if tasks.len() == 1 || random.bool() {
            let task = tasks.remove(index);
            self.waiting.retain(|tasks| !tasks.is_empty());
            let sent = self.answer(&task, random, memory)?;
            return Ok(Some(sent));
        }
        // A signed answer is not put together with others, which may have to be taken apart again.
        let is_signed = |task: &Task| u32_at(&task.element, 16) & SIGNED != 0;
        let has_signed = self.waiting.iter().flatten().any(is_signed);
        let tasks = if self.mixes && !has_signed {
            let mut all: Vec<_> = self.waiting.drain(..).flatten().collect();
            random.shuffle(&mut all);
            let rest = all.split_off(random.usize(1..=all.len().min(5)));
            self.waiting = rest.into_iter().map(|task| vec![task]).collect();
            all
        } else {
            self.waiting.remove(group)
        };
        let mut answers = Vec::new();
        for task in tasks {
            let Sent { bytes, invalidate } = self.answer(&task, random, memory)?;
            assert_eq!(invalidate, None, "no compound has a channel here");
            let related = if answers.is_empty() { 0 } else { RELATED };
            answers.push(flagged(bytes, related));
        }
        let padding = if random.bool() { 0 } else { 0xaa };
        let mut bytes = compound_padded(&answers, padding);
        if random.bool() {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        Ok(Some(bytes.into()))
    }

    /// Does what a request asks for, and answers it.
    fn answer(
        &mut self,
        task: &Task,
        random: &mut Rng,
        memory: &mut Memory,
    ) -> Result<Sent, AccessFault> {
        let element = &task.element[..];
        let (id, command) = (u64_at(element, 24), command(element));
        let channel = channel(element);
        let is_whole = element.len() >= 112;
        let mut bytes = if task.cancelled {
            error(command, id, CANCELLED)
        } else if random.u8(..8) == 0 {
            error(command, id, 0xc000_0022)
        } else if command == READ && is_whole {
            self.read(element, random, memory)?
        } else if command == WRITE && is_whole {
            self.write(element, memory)?
        } else {
            other(answer(command, id, SUCCESS), &[0x3c; 20])
        };
        let flags = u32_at(element, 16) & SIGNED;
        bytes = flagged(bytes, if task.interim { flags | ASYNC } else { flags });
        let invalidate = match &channel {
            Some((V1_INVALIDATE, _, descriptors)) => descriptors.first(),
            _ => None,
        };
        let invalidate = invalidate.map(|first| first.token);
        Ok(Sent { bytes, invalidate })
    }

    fn file(&mut self, element: &[u8]) -> &mut Vec<u8> {
        &mut self.files[usize::from(element[80] % FILES)]
    }

    fn read(
        &mut self,
        element: &[u8],
        random: &mut Rng,
        memory: &mut Memory,
    ) -> Result<Vec<u8>, AccessFault> {
        let (id, offset) = (u64_at(element, 24), u64_at(element, 72));
        let length = u32_at(element, 68) as usize;
        let file = self.file(element);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut data = file.get(start..).unwrap_or_default().to_vec();
        data.truncate(length);
        if data.is_empty() && length > 0 {
            return Ok(error(READ, id, END_OF_FILE));
        }
        let mut status = SUCCESS;
        if random.u8(..4) == 0 {
            data.truncate(random.usize(..=data.len()));
            status = [SUCCESS, BUFFER_OVERFLOW][random.usize(..2)];
        }
        let by_rdma = channel(element).filter(|_| random.u8(..8) > 0);
        let bytes = match by_rdma {
            Some((_, _, descriptors)) => {
                memory.write(&descriptors, &data)?;
                read_answer(id, &[], data.len() as u32)
            }
            None => {
                let mut bytes = read_answer(id, &data, 0);
                let gap = random.usize(..2) * random.usize(..176);
                bytes[66] += gap as u8;
                bytes.splice(80..80, vec![0xbb; gap]);
                bytes
            }
        };
        Ok(with(bytes, 8, &status.to_le_bytes()))
    }

    fn write(&mut self, element: &[u8], memory: &Memory) -> Result<Vec<u8>, AccessFault> {
        let (id, offset) = (u64_at(element, 24), u64_at(element, 72));
        let data = written(element, memory)?;
        let end =
            usize::try_from(offset).map_or(usize::MAX, |start| start.saturating_add(data.len()));
        if end > FILE as usize * 2 {
            return Ok(error(WRITE, id, 0xc000_007f));
        }
        apply(self.file(element), offset as usize, &data);
        Ok(write_answer(id, data.len() as u32))
    }
}

/// The data of a WRITE, in the message or by RDMA.
pub(crate) fn written(element: &[u8], memory: &Memory) -> Result<Vec<u8>, AccessFault> {
    if let Some((_, length, descriptors)) = channel(element) {
        return memory.read(&descriptors, length as usize);
    }
    let (start, length) = (
        usize::from(u16_at(element, 66)),
        u32_at(element, 68) as usize,
    );
    let data = element.get(start..start.saturating_add(length));
    Ok(data.unwrap_or_default().to_vec())
}

/// Puts data into a file.
pub(crate) fn apply(file: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if file.len() < offset + data.len() && !data.is_empty() {
        file.resize(offset + data.len(), 0);
    }
    if !data.is_empty() {
        file[offset..offset + data.len()].copy_from_slice(data);
    }
}
