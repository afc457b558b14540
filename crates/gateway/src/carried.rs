//! Counters of the traffic of one session, or of all sessions.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use serde::Serialize;
use smbdirect_smb::smb2::{Command, Header};
use tokio::time::sleep;

/// Counters of one session, or of all sessions.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) messages_to_server: AtomicU64,
    pub(super) bytes_to_server: AtomicU64,
    pub(super) messages_to_client: AtomicU64,
    pub(super) bytes_to_client: AtomicU64,
    pub(super) reads_by_rdma: AtomicU64,
    pub(super) bytes_read_by_rdma: AtomicU64,
    pub(super) writes_by_rdma: AtomicU64,
    pub(super) bytes_written_by_rdma: AtomicU64,
    pub(super) requests_passed: AtomicU64,
    pub(super) requests_refused: AtomicU64,
    /// Messages to the server that have no answer: CANCEL.
    unanswerable: AtomicU64,
    /// Messages to the client that answer nothing: interim answers and notifications.
    unsolicited: AtomicU64,
}

/// The counters of a session together with those of all sessions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters<'a>(pub(super) [&'a Counts; 2]);

impl<'a> Counters<'a> {
    /// Returns the counters of the session alone.
    pub(super) const fn of_session(self) -> &'a Counts {
        self.0[0]
    }

    fn add(self, counter: fn(&Counts) -> &AtomicU64, number: u64) {
        for counts in self.0 {
            counter(counts).fetch_add(number, Relaxed);
        }
    }

    /// Counts a message to the server, by its length as sent.
    pub(super) fn to_server(self, length: usize) {
        self.add(|counts| &counts.messages_to_server, 1);
        self.add(|counts| &counts.bytes_to_server, length as u64);
    }

    /// Counts a message to the client, by its length and the data written by RDMA for it.
    pub(super) fn to_client(self, length: usize) {
        self.add(|counts| &counts.messages_to_client, 1);
        self.add(|counts| &counts.bytes_to_client, length as u64);
    }

    /// Notices a request that has no answer, by the first bytes of the message.
    pub(super) fn note_request(self, head: &[u8]) {
        let is_cancel = Header::decode(head).is_ok_and(|header| header.command == Command::CANCEL);
        self.add(|counts| &counts.unanswerable, u64::from(is_cancel));
    }

    /// Notices a message of the server that is not the last answer to a request, by its first bytes.
    pub(super) fn note_answer(self, head: &[u8]) {
        let answers_nothing = Header::decode(head)
            .is_ok_and(|header| header.is_interim() || header.message_id == NO_MESSAGE_ID);
        self.add(|counts| &counts.unsolicited, u64::from(answers_nothing));
    }

    /// Counts the data of a READ that moved by RDMA, if there was any.
    pub(super) fn read_by_rdma(self, length: usize) {
        self.add(|counts| &counts.reads_by_rdma, u64::from(length > 0));
        self.add(|counts| &counts.bytes_read_by_rdma, length as u64);
    }

    /// Counts the data of a WRITE that moved by RDMA, if there was any.
    pub(super) fn written_by_rdma(self, length: usize) {
        self.add(|counts| &counts.writes_by_rdma, u64::from(length > 0));
        self.add(|counts| &counts.bytes_written_by_rdma, length as u64);
    }

    /// Counts a message of the client that was forwarded unchanged.
    pub(super) fn passed(self) {
        self.add(|counts| &counts.requests_passed, 1);
    }

    /// Counts a message of the client that was refused.
    pub(super) fn refused(self) {
        self.add(|counts| &counts.requests_refused, 1);
    }
}

/// The MessageId of a notification ([MS-SMB2] 2.2.23.1), which belongs to no request.
const NO_MESSAGE_ID: u64 = u64::MAX;

/// Time without an answer after which the session of a TCP client that has finished sending ends.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

impl Counts {
    /// Returns whether the server has answered as many requests as it received. The contents of encrypted
    /// messages are unknown, so each of them counts as a request or an answer.
    pub(super) fn is_answered(&self) -> bool {
        let now = |counter: &AtomicU64| counter.load(Relaxed);
        let requests = now(&self.messages_to_server).saturating_sub(now(&self.unanswerable));
        let answers = now(&self.messages_to_client).saturating_sub(now(&self.unsolicited));
        answers >= requests
    }

    /// Waits until no message has gone to the client for [`ANSWER_TIMEOUT`].
    pub(super) async fn silence(&self) {
        loop {
            let before = self.messages_to_client.load(Relaxed);
            sleep(ANSWER_TIMEOUT).await;
            if self.messages_to_client.load(Relaxed) == before {
                return;
            }
        }
    }

    pub(super) fn carried(&self) -> Carried {
        let now = |counter: &AtomicU64| counter.load(Relaxed);
        Carried {
            messages_to_server: now(&self.messages_to_server),
            bytes_to_server: now(&self.bytes_to_server),
            messages_to_client: now(&self.messages_to_client),
            bytes_to_client: now(&self.bytes_to_client),
            reads_by_rdma: now(&self.reads_by_rdma),
            bytes_read_by_rdma: now(&self.bytes_read_by_rdma),
            writes_by_rdma: now(&self.writes_by_rdma),
            bytes_written_by_rdma: now(&self.bytes_written_by_rdma),
            requests_passed: now(&self.requests_passed),
            requests_refused: now(&self.requests_refused),
        }
    }
}

/// What was carried so far. Bytes include the SMB messages and the data that moved by RDMA.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Carried {
    /// SMB messages forwarded to the server.
    pub messages_to_server: u64,
    /// Bytes forwarded to the server.
    pub bytes_to_server: u64,
    /// SMB messages forwarded to the client.
    pub messages_to_client: u64,
    /// Bytes forwarded to the client.
    pub bytes_to_client: u64,
    /// READ requests whose data moved by RDMA.
    pub reads_by_rdma: u64,
    /// Data of READ requests that moved by RDMA.
    pub bytes_read_by_rdma: u64,
    /// WRITE requests whose data moved by RDMA.
    pub writes_by_rdma: u64,
    /// Data of WRITE requests that moved by RDMA.
    pub bytes_written_by_rdma: u64,
    /// Messages of the client that were forwarded unchanged.
    pub requests_passed: u64,
    /// Requests that cannot be translated.
    pub requests_refused: u64,
}
