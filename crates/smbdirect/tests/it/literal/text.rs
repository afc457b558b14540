//! A transcription of sections 3.1.5.1, 3.1.5.4, 3.1.5.8 and 3.1.5.9, and of the necessary parts of
//! 3.1.5.2, .3, .5, .6, .7 and 3.1.6.2, statement by statement, in the order and with the names of
//! the text.
//!
//! The literal text is executed with its faults, except for those that a [`Departures`] repairs.
//! Where the text leaves a number open (3.1.5.9: how many receives), the obvious one is used.

use std::{collections::VecDeque, time::Instant};

use smbdirect::{
    Settings,
    wire::{DataTransfer, Flags, NegotiateRequest, NegotiateResponse, Status},
};

use super::ends::{End, Who};

/// The two published wordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wording {
    Current,
    V2014,
}

impl Wording {
    pub(crate) const BOTH: [Self; 2] = [Self::Current, Self::V2014];
}

/// The departures of the engine from the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departures {
    /// The first message of the initiator grants the receives posted in 3.1.5.7, which the text
    /// never grants.
    pub(crate) grants_first_credits: bool,
    /// The MUST of 3.1.5.9 is applied before the SHOULD that precedes it in the text.
    pub(crate) must_before_should: bool,
    /// 3.1.5.9 adds no credits while the peer holds more than a quarter of its target, unless 64
    /// can be added.
    pub(crate) grants_in_batches: bool,
    /// An idle end by the wording of 2014 answers only if it has credits to grant.
    pub(crate) answers_only_to_grant: bool,
    /// The answer to a keepalive is not a keepalive.
    pub(crate) answers_without_asking: bool,
    /// SendImmediate sends an empty message only if the queue is empty.
    pub(crate) queue_satisfies_send_immediate: bool,
    /// Messages that only carry credits are not passed to the upper layer.
    pub(crate) keeps_empty_messages: bool,
    /// DataLength plus RemainingDataLength of a segment equals the number of missing bytes.
    pub(crate) checks_the_sum: bool,
}

impl Departures {
    /// The literal text.
    pub(crate) const NONE: Self = Self {
        grants_first_credits: false,
        must_before_should: false,
        grants_in_batches: false,
        answers_only_to_grant: false,
        answers_without_asking: false,
        queue_satisfies_send_immediate: false,
        keeps_empty_messages: false,
        checks_the_sum: false,
    };
    /// All departures, which together are the behaviour of the engine.
    pub(crate) const ALL: Self = Self {
        grants_first_credits: true,
        must_before_should: true,
        grants_in_batches: true,
        answers_only_to_grant: true,
        answers_without_asking: true,
        queue_satisfies_send_immediate: true,
        keeps_empty_messages: true,
        checks_the_sum: true,
    };
    /// The departures without which no connection starts. Windows makes them too, as example 4.1
    /// shows.
    pub(crate) const TO_START: Self = Self {
        grants_first_credits: true,
        ..Self::NONE
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Active,
    Passive,
    Established,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeepaliveRequested {
    None,
    Pending,
    Sent,
}

/// A Data Transfer message in the SendQueue.
#[derive(Debug, Default)]
struct Message {
    credits_granted: u16,
    remaining_data_length: u32,
    buffer: Vec<u8>,
}

/// The Connection of 3.1.1.1.
#[derive(Debug)]
pub(crate) struct Literal {
    wording: Wording,
    departures: Departures,
    settings: Settings,
    role: Role,
    max_send_size: u32,
    max_fragmented_send_size: u32,
    max_fragmented_recv_size: u32,
    send_credit_target: u16,
    send_credits: u16,
    receive_credit_max: u16,
    receive_credit_target: u16,
    receive_credits: u16,
    send_queue: VecDeque<Message>,
    fragment_reassembly_buffer: Vec<u8>,
    fragment_reassembly_remaining: u32,
    keepalive_requested: KeepaliveRequested,
    send_immediate: bool,
    idle_connection_timer: Option<Instant>,
    /// Receives posted in 3.1.5.7 and not granted; the text has no variable for them.
    first_credits: u16,
    /// Receives that the RDMA provider holds.
    receives: usize,
    said: VecDeque<Vec<u8>>,
    delivered: Vec<Vec<u8>>,
    terminated: Option<String>,
}

impl Literal {
    pub(crate) fn new(
        who: Who,
        wording: Wording,
        departures: Departures,
        settings: Settings,
    ) -> Self {
        let mut connection = Self {
            wording,
            departures,
            role: match who {
                Who::Active => Role::Active,
                Who::Passive => Role::Passive,
            },
            max_send_size: settings.max_send_size,
            max_fragmented_send_size: 0,
            max_fragmented_recv_size: settings.max_fragmented_receive_size,
            send_credit_target: settings.send_credit_target,
            send_credits: 0,
            receive_credit_max: settings.receive_credit_max,
            receive_credit_target: 0,
            receive_credits: 0,
            send_queue: VecDeque::new(),
            fragment_reassembly_buffer: Vec::new(),
            fragment_reassembly_remaining: 0,
            keepalive_requested: KeepaliveRequested::None,
            send_immediate: false,
            idle_connection_timer: None,
            first_credits: 0,
            receives: 1,
            said: VecDeque::new(),
            delivered: Vec::new(),
            terminated: None,
            settings,
        };
        if who == Who::Active {
            connection.send_negotiate_request();
        }
        connection
    }

    /// 3.1.5.1.
    fn send_upper_layer_messages(&mut self, now: Instant, new: Vec<Message>) {
        let mut nothing_to_send = new.is_empty();
        self.send_queue.extend(new);
        if self.departures.queue_satisfies_send_immediate {
            nothing_to_send = self.send_queue.is_empty();
        }
        if nothing_to_send && self.send_immediate {
            self.send_queue.push_back(Message::default());
        }
        if self.wording == Wording::V2014 {
            let credits = self.manage_credits();
            if let Some(first) = self.send_queue.front_mut() {
                first.credits_granted += credits;
            }
        }
        while let Some(granted) = self.send_queue.front().map(|first| first.credits_granted) {
            if self.send_credits == 0 {
                break;
            }
            let added = match self.wording {
                Wording::Current if granted == 0 => self.manage_credits(),
                Wording::V2014 if granted == 0 && self.send_credits == 1 => self.manage_credits(),
                _ => 0,
            };
            let granted = granted + added;
            self.send_queue[0].credits_granted = granted;
            if self.send_credits == 1 && granted == 0 {
                break;
            }
            let message = self.send_queue.pop_front().expect("it is the first");
            self.send_credits -= 1;
            let mut flags = Flags::empty();
            if self.keepalive_requested == KeepaliveRequested::Pending {
                flags = Flags::RESPONSE_REQUESTED;
                self.keepalive_requested = KeepaliveRequested::Sent;
                self.idle_connection_timer = Some(now + self.settings.keepalive_response_timeout);
            }
            let header = DataTransfer {
                remaining_data_length: message.remaining_data_length,
                data_offset: if message.buffer.is_empty() { 0 } else { 24 },
                data_length: message.buffer.len() as u32,
                ..DataTransfer::empty(self.send_credit_target, granted, flags)
            };
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            bytes.extend(message.buffer);
            self.said.push_back(bytes);
            if self.wording == Wording::Current {
                self.send_immediate = false;
            }
        }
        if self.wording == Wording::V2014 && self.send_queue.is_empty() {
            self.send_immediate = false;
        }
    }

    /// 3.1.5.2.
    fn send_negotiate_request(&mut self) {
        let request = NegotiateRequest {
            min_version: 0x0100,
            max_version: 0x0100,
            credits_requested: self.send_credit_target,
            preferred_send_size: self.max_send_size,
            max_receive_size: self.settings.max_receive_size,
            max_fragmented_size: self.max_fragmented_recv_size,
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.said.push_back(bytes);
    }

    /// 3.1.5.4.
    fn send_data_transfer(&mut self, now: Instant, buffer: &[u8]) {
        assert!(buffer.len() <= self.max_fragmented_send_size as usize);
        let mut remaining = buffer.len();
        let segments = buffer.chunks(self.max_send_size as usize - 24);
        let messages = segments.map(|segment| {
            remaining -= segment.len();
            Message {
                credits_granted: 0,
                remaining_data_length: remaining as u32,
                buffer: segment.to_vec(),
            }
        });
        let messages = messages.collect();
        self.send_upper_layer_messages(now, messages);
    }

    /// 3.1.5.6 and 3.1.5.3, without the checks of an invalid message.
    fn receive_negotiate_request(&mut self, now: Instant, message: &[u8]) {
        let request = NegotiateRequest::decode(message).expect("the peer is without fault");
        self.receive_credit_target = request.credits_requested;
        self.max_send_size = self.max_send_size.min(request.max_receive_size);
        self.max_fragmented_send_size = request.max_fragmented_size;
        self.manage_credits();
        let response = NegotiateResponse {
            min_version: 0x0100,
            max_version: 0x0100,
            negotiated_version: 0x0100,
            credits_requested: self.send_credit_target,
            credits_granted: self.receive_credits,
            status: Status::SUCCESS,
            max_read_write_size: self.settings.max_read_write_size,
            preferred_send_size: self.max_send_size,
            max_receive_size: request.preferred_send_size.max(128),
            max_fragmented_size: self.max_fragmented_recv_size,
        };
        let mut bytes = Vec::new();
        response.encode(&mut bytes);
        self.said.push_back(bytes);
        self.idle_connection_timer = Some(now + self.settings.keepalive_interval);
        self.role = Role::Established;
    }

    /// 3.1.5.7, without the checks of an invalid message.
    fn receive_negotiate_response(&mut self, now: Instant, message: &[u8]) {
        let response = NegotiateResponse::decode(message).expect("the peer is without fault");
        self.receive_credit_target = response.credits_requested;
        self.max_send_size = self.max_send_size.min(response.max_receive_size);
        self.send_credits = response.credits_granted;
        self.max_fragmented_send_size = response.max_fragmented_size;
        let added = self.manage_credits();
        if self.departures.grants_first_credits {
            self.first_credits = added;
        }
        self.idle_connection_timer = Some(now + self.settings.keepalive_interval);
        self.role = Role::Established;
    }

    /// 3.1.5.8.
    fn receive_data_transfer(&mut self, now: Instant, message: &[u8]) {
        let Ok(header) = DataTransfer::decode(message) else {
            return self.terminate("a length or an offset");
        };
        let DataTransfer {
            credits_requested,
            credits_granted,
            flags,
            remaining_data_length,
            data_length,
            ..
        } = header;
        if credits_requested == 0 {
            return self.terminate("CreditsRequested");
        }
        let sum = u64::from(data_length) + u64::from(remaining_data_length);
        if sum > u64::from(self.max_fragmented_recv_size) {
            return self.terminate("MaxFragmentedSize");
        }
        let missing = self.fragment_reassembly_remaining;
        if self.departures.checks_the_sum && missing > 0 && sum != u64::from(missing) {
            return self.terminate("the sum");
        }
        self.receive_credits -= 1;
        if self.send_queue.is_empty() {
            self.answer(now);
        }
        self.receive_credit_target = credits_requested;
        if flags.contains(Flags::RESPONSE_REQUESTED) {
            if !self.departures.answers_without_asking {
                self.keepalive_requested = KeepaliveRequested::Pending;
            }
            match self.wording {
                Wording::Current => {
                    self.send_immediate = true;
                    self.send_upper_layer_messages(now, Vec::new());
                }
                Wording::V2014 if self.send_queue.is_empty() => {
                    self.send_upper_layer_messages(now, vec![Message::default()]);
                }
                Wording::V2014 => {}
            }
        }
        if credits_granted > 0 {
            self.send_credits += credits_granted;
            if !self.send_queue.is_empty() {
                self.send_upper_layer_messages(now, Vec::new());
            }
        }
        self.fragment_reassembly_buffer
            .extend_from_slice(&message[header.payload()]);
        if self.fragment_reassembly_remaining == 0 {
            self.fragment_reassembly_remaining = remaining_data_length;
        } else {
            // The text has no rule that prevents an underflow here.
            self.fragment_reassembly_remaining =
                self.fragment_reassembly_remaining.wrapping_sub(data_length);
        }
        if remaining_data_length == 0 {
            if self.fragment_reassembly_remaining > 0 {
                return self.terminate("FragmentReassemblyRemaining");
            }
            let buffer = std::mem::take(&mut self.fragment_reassembly_buffer);
            if !(buffer.is_empty() && self.departures.keeps_empty_messages) {
                self.delivered.push(buffer);
            }
        }
    }

    /// The part of 3.1.5.8 that grants credits if no message is queued.
    fn answer(&mut self, now: Instant) {
        if self.wording == Wording::V2014 && !self.departures.answers_only_to_grant {
            self.send_immediate = true;
            return self.send_upper_layer_messages(now, Vec::new());
        }
        let credits_granted = self.manage_credits();
        if credits_granted > 0 {
            let message = Message {
                credits_granted,
                ..Message::default()
            };
            self.send_upper_layer_messages(now, vec![message]);
        }
    }

    /// 3.1.5.9; returns the number of added credits.
    fn manage_credits(&mut self) -> u16 {
        let first_credits = std::mem::take(&mut self.first_credits);
        if first_credits > 0 {
            return first_credits;
        }
        let enough = self.receive_credits > 0 && self.receive_credits >= self.receive_credit_target;
        let must = self.receive_credits == 0 || self.spends_its_last_credit();
        if enough && !(must && self.departures.must_before_should) {
            return 0;
        }
        let low = self.receive_credits <= self.receive_credit_target / 4
            || self.receive_credit_target - self.receive_credits >= 64;
        if self.departures.grants_in_batches && !low && !must {
            return 0;
        }
        let before = self.receive_credits;
        if must {
            self.post_receives(1);
        }
        if self.receive_credit_target > self.receive_credits
            && self.receive_credits < self.receive_credit_max
        {
            let most = self.receive_credit_target.min(self.receive_credit_max);
            self.post_receives(most - self.receive_credits);
        }
        self.receive_credits - before
    }

    fn spends_its_last_credit(&self) -> bool {
        self.send_credits == 1 && !self.send_queue.is_empty()
    }

    fn post_receives(&mut self, number: u16) {
        self.receives += usize::from(number);
        self.receive_credits += number;
    }

    /// 3.1.6.2.
    fn idle_connection_timer_expired(&mut self, now: Instant) {
        if self.keepalive_requested != KeepaliveRequested::None {
            return self.terminate("the Idle Connection Timer");
        }
        self.keepalive_requested = KeepaliveRequested::Pending;
        let messages = if self.send_queue.is_empty() {
            vec![Message::default()]
        } else {
            Vec::new()
        };
        self.send_upper_layer_messages(now, messages);
    }

    fn terminate(&mut self, why: &str) {
        self.terminated = Some(why.to_owned());
    }
}

impl End for Literal {
    fn send(&mut self, now: Instant, message: &[u8]) {
        assert_eq!(self.role, Role::Established);
        self.send_data_transfer(now, message);
    }

    fn ask(&mut self, now: Instant) {
        self.idle_connection_timer_expired(now);
    }

    fn pause(&mut self, _now: Instant, paused: bool) {
        assert!(!paused, "the text has no receive buffer");
    }

    /// 3.1.5.5.
    fn receive(&mut self, now: Instant, message: &[u8]) {
        assert!(self.receives > 0, "no receive is posted");
        self.receives -= 1;
        match self.role {
            Role::Passive => self.receive_negotiate_request(now, message),
            Role::Active => self.receive_negotiate_response(now, message),
            Role::Established => {
                self.idle_connection_timer = Some(now + self.settings.keepalive_interval);
                self.keepalive_requested = KeepaliveRequested::None;
                self.receive_data_transfer(now, message);
            }
        }
    }

    fn said(&mut self) -> Option<Vec<u8>> {
        self.said.pop_front()
    }

    fn timeout(&self) -> Option<Instant> {
        self.idle_connection_timer
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self
            .idle_connection_timer
            .take_if(|due| *due <= now)
            .is_some()
        {
            self.idle_connection_timer_expired(now);
        }
    }

    fn delivered(&self) -> &[Vec<u8>] {
        &self.delivered
    }

    fn partial(&self) -> usize {
        self.fragment_reassembly_buffer.len()
    }

    fn queued(&self) -> usize {
        self.send_queue.len()
    }

    fn over(&self) -> Option<String> {
        self.terminated.clone()
    }
}
