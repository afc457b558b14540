//! Messages of the upper layer, which show that the connection works.

use super::{Script, Transfer};
use crate::{
    outcome::{Verdict, fail, require, skip},
    peer::Next,
};

impl Script {
    /// Returns a request for a server. The first on a connection has `length` bytes, or the shortest
    /// possible length above it.
    pub(crate) fn request(&mut self, length: usize) -> Vec<u8> {
        self.asking.request(length)
    }

    /// Returns the longest request in bytes.
    pub(crate) fn longest_request(&self) -> usize {
        self.asking.longest()
    }

    /// Returns a request of `length` bytes, or the longest one.
    pub(crate) fn long_request(&mut self, length: usize) -> Vec<u8> {
        let most = self.longest_request();
        self.request(length.min(most))
    }

    /// Returns whether the answer of the server is as long as the request.
    pub(crate) fn is_echo(&self) -> bool {
        self.asking.is_echo()
    }

    /// Receives a message and checks that it answers `request`.
    pub(crate) fn expect_answer(&mut self, request: &[u8]) -> Verdict {
        let answer = self.receive()?;
        self.check_answer(request, &answer)
    }

    /// Checks that `answer` is the answer to `request`.
    pub(crate) fn check_answer(&self, request: &[u8], answer: &[u8]) -> Verdict {
        match self.asking.check(request, answer) {
            Ok(()) => Ok(()),
            Err(seen) => fail("the answer of the upper layer", seen),
        }
    }

    /// Sends a request of `length` bytes, or the longest one, in segments of `size` bytes, and checks the answer.
    pub(crate) fn exchange(&mut self, length: usize, size: usize) -> Verdict {
        let request = self.long_request(length);
        self.send(&request, size)?;
        self.expect_answer(&request)
    }

    /// Checks that the connection works: the server answers a short request.
    pub(crate) fn works(&mut self) -> Verdict {
        let request = self.request(500);
        let size = self.max_payload();
        self.send(&request, size)?;
        self.expect_answer(&request)
    }

    /// Receives the first request of a client.
    pub(crate) fn receive_request(&mut self) -> Verdict<Vec<u8>> {
        let message = self.expect_use("the client's first message of the upper layer")?;
        let transfer = self.check(&message)?;
        self.arrived.push_back(transfer);
        self.receive()
    }

    /// Returns an answer to `request` of a client. It has about `length` bytes, unless the upper
    /// layer determines its length.
    pub(crate) fn reply_to(&mut self, request: &[u8], length: usize) -> Verdict<Vec<u8>> {
        match self.answering.reply(request, length) {
            Ok(reply) => Ok(reply),
            Err(why) => skip(format!(
                "the client's message is of another upper layer: {why}"
            )),
        }
    }

    /// Like [`reply_to`](Self::reply_to), for a case that needs at least `length` bytes.
    pub(crate) fn long_reply_to(&mut self, request: &[u8], length: usize) -> Verdict<Vec<u8>> {
        let reply = self.reply_to(request, length)?;
        if reply.len() < length {
            let has = reply.len();
            return skip(format!(
                "the case needs an answer of {length} bytes, but this upper layer answers with as \
                 many bytes as the client sent, {has}"
            ));
        }
        Ok(reply)
    }

    /// Checks that the client has taken the answer: it sends its next message, or it ends the
    /// connection. Then ends the conversation.
    pub(crate) fn expect_taken(&mut self) -> Verdict {
        loop {
            match self.link.next(self.facts.prompt) {
                Next::End => return Ok(()),
                Next::Silence => {
                    return fail(
                        "the client takes the answer, and sends its next message or ends the \
                         connection",
                        "it did nothing",
                    );
                }
                Next::Message(message) => {
                    let transfer = self.check(&message)?;
                    if !transfer.is_empty() {
                        return self.end_conversation(transfer);
                    }
                    // The client may need a credit for its next message.
                    if self.granted == 0 && self.send_credits > 0 {
                        self.grant(self.lacking())?;
                    }
                }
            }
        }
    }

    fn end_conversation(&mut self, first: Transfer) -> Verdict {
        self.arrived.push_front(first);
        let request = self.receive()?;
        let Some(farewell) = self.answering.farewell(&request) else {
            return Ok(());
        };
        let size = self.max_payload();
        self.send(&farewell, size)
    }

    /// Checks that the answer of a server is longer than `least` bytes, so that its segments can be
    /// counted.
    pub(crate) fn require_longer(length: usize, least: usize) -> Verdict {
        require(
            length > least,
            format!("an answer of more than {least} bytes"),
            || format!("{length} bytes"),
        )
    }
}
