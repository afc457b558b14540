//! The negotiation at the start of a connection: the content of the Request and of the Reply, and the agreement
//! that follows from them. This module works on frames and does no I/O.
//!
//! # CRC
//!
//! CRCs are on if either frame has the C flag. With [`MpaCrc::Auto`] a Request does not set it,
//! because the peer may be Linux siw, which reports a broken FPDU if the CRC field is split between
//! two TCP segments. A Request of revision 2 instead carries [`PEER_SIGNATURE`] after the private
//! data of the upper layer, where other implementations ignore it. A responder of this library that
//! finds the signature sets C in its Reply and adds the signature, by which the initiator recognises
//! it. CRCs are therefore on between two ends of this library, and otherwise if the peer asks for
//! them. With [`MpaCrc::Off`] a Request carries [`PEER_SIGNATURE_WITHOUT_CRC`], to which a responder
//! answers in the same way, but without C: both ends still recognise each other, and send long FPDUs.

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use super::{
    mpa::{Enhanced, FrameKind, StartupFrame},
    rdmap::TerminateCode,
};
use crate::work::{ProviderError, ProviderErrorKind};

/// The signature by which two ends of this library recognise each other. It shows that the peer
/// accepts FPDUs that TCP splits at any byte. Other private data is very unlikely to end with these
/// eight bytes.
pub(super) const PEER_SIGNATURE: [u8; 8] = *b"\x9d\xe1smbd\x03\x5b";
/// The signature of an initiator of this library that wants no CRCs.
const PEER_SIGNATURE_WITHOUT_CRC: [u8; 8] = *b"\x9d\xe1smbd\x03\x5c";

/// Selects the connections whose FPDUs carry a CRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MpaCrc {
    /// Use CRCs between two ends of this library, and if the peer asks for them.
    #[default]
    Auto,
    /// Always use CRCs.
    On,
    /// Use CRCs only if the peer asks for them.
    Off,
}

/// The zero-length message by which an initiator tells the responder that it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// An RDMA Write.
    Write,
    /// An RDMA Read.
    Read,
}

/// The settings of this end for the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MpaPreferences {
    pub(super) crc: MpaCrc,
    /// The most RDMA Reads of the peer to serve.
    pub(super) ird: u16,
    /// The most RDMA Reads of this end to have outstanding.
    pub(super) ord: u16,
}

/// The outcome of the negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    pub(super) crc: bool,
    /// Whether the peer is known to be this library.
    pub(super) peer_is_smbdirect: bool,
    pub(super) ird: u32,
    pub(super) ord: u32,
    /// The zero-length message that this end, as the initiator, has to send first after the Reply. `None` if none
    /// was agreed, and at the responder.
    pub(super) ready_to_receive: Option<Rtr>,
    /// The private data of the peer's upper layer.
    pub(super) private_data: Bytes,
}

/// The reason why a Reply does not lead to a connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum ReplyFault {
    #[error("the peer refused the connection{}", told(.0))]
    Rejected(Bytes),
    #[error("the peer answered with MPA revision {0}")]
    Revision(u8),
    #[error("the peer wants MPA markers")]
    Markers,
    #[error("the peer requests {ord} outstanding RDMA Reads; this end serves {ird}")]
    InsufficientIrd { ord: u16, ird: u16 },
    #[error("the peer accepts no ready-to-receive frame that was offered")]
    NoRtr,
}

/// Returns the private data of a refusal as a part of the error message.
fn told(private_data: &Bytes) -> String {
    if private_data.is_empty() {
        return String::new();
    }
    format!(", saying {private_data:02x?}")
}

impl ReplyFault {
    /// Returns the error for the caller of the provider.
    pub(super) fn to_error(&self) -> ProviderError {
        let kind = match self {
            Self::Rejected(_) => ProviderErrorKind::Rejected,
            _ => ProviderErrorKind::Protocol,
        };
        ProviderError::new(kind, self.to_string())
    }

    /// Returns the code of the Terminate to send before the connection is closed.
    pub(super) const fn terminate_code(&self) -> Option<TerminateCode> {
        match self {
            Self::InsufficientIrd { .. } => Some(TerminateCode::new(2, 0, 6)),
            Self::NoRtr => Some(TerminateCode::new(2, 0, 7)),
            _ => None,
        }
    }
}

/// The read depth that is assumed for peers that cannot announce theirs.
const UNKNOWN_DEPTH: u16 = 16;
/// The greatest depth that adapters and siw accept.
const MAX_DEPTH: u16 = 128;

impl MpaPreferences {
    /// Returns the IRD to announce. Peers round the IRD up to a power of two and send that many Reads, so this
    /// end announces the rounded value.
    pub(super) fn ird(&self) -> u16 {
        //= EST-09
        self.ird.clamp(1, MAX_DEPTH).next_power_of_two()
    }

    /// Returns the ORD to announce.
    pub(super) fn ord(&self) -> u16 {
        //= EST-10
        self.ord.min(MAX_DEPTH)
    }

    /// Returns the Request of an initiator.
    pub(super) fn request(&self, revision: u8, private_data: &Bytes) -> StartupFrame {
        //= MPA-15
        let mut frame = StartupFrame::new(FrameKind::Request, revision);
        //= MPA-18
        frame.crc = self.crc == MpaCrc::On;
        frame.private_data = private_data.clone();
        if revision == 2 {
            //= EST-02
            frame.enhanced = Some(Enhanced {
                peer_to_peer: true,
                rtr_send: false,
                rtr_write: true,
                rtr_read: true,
                ird: self.ird(),
                ord: self.ord(),
            });
            frame.private_data = append_signature(
                private_data,
                match self.crc {
                    MpaCrc::Auto | MpaCrc::On => PEER_SIGNATURE,
                    MpaCrc::Off => PEER_SIGNATURE_WITHOUT_CRC,
                },
            );
        }
        frame
    }

    /// Returns the Reply of a responder, and the agreement that it establishes.
    ///
    /// `peer_serves_reads` is the IRD that the upper layer found in the private data.
    pub(super) fn answer(
        &self,
        request: &StartupFrame,
        private_data: &Bytes,
        peer_serves_reads: Option<u32>,
    ) -> (StartupFrame, Agreement) {
        //= MPA-11
        let mut reply = StartupFrame::new(FrameKind::Reply, request.revision);
        let (theirs, signature) = split_signature(request);
        let peer_is_smbdirect = signature.is_some();
        let wanted = match self.crc {
            MpaCrc::Auto => signature == Some(PEER_SIGNATURE),
            MpaCrc::On => true,
            MpaCrc::Off => false,
        };
        //= MPA-17
        reply.crc = request.crc || wanted;
        reply.private_data = if peer_is_smbdirect {
            append_signature(private_data, PEER_SIGNATURE)
        } else {
            private_data.clone()
        };
        let serves = peer_serves_reads.map(|reads| reads.min(MAX_DEPTH.into()) as u16);
        let mut ird = self.ird();
        //= EST-13
        let mut ord = self.ord().min(serves.unwrap_or(match request.enhanced {
            Some(enhanced) if enhanced.ird != Enhanced::NOT_NEGOTIATED => enhanced.ird,
            _ => UNKNOWN_DEPTH,
        }));
        if let Some(asked) = request.enhanced {
            //= EST-08
            ird = ird.min(asked.ord.clamp(1, MAX_DEPTH).next_power_of_two());
            //= EST-16
            ord = ord.min(asked.ird);
            //= EST-04
            //= EST-05
            let rtr_read = asked.peer_to_peer && asked.rtr_read && !asked.rtr_write;
            reply.enhanced = Some(Enhanced {
                peer_to_peer: asked.peer_to_peer,
                rtr_send: false,
                rtr_write: asked.peer_to_peer && !rtr_read,
                rtr_read,
                ird,
                ord,
            });
        }
        let agreement = Agreement {
            crc: reply.crc,
            peer_is_smbdirect,
            ird: ird.into(),
            ord: ord.into(),
            ready_to_receive: None,
            private_data: theirs,
        };
        (reply, agreement)
    }

    /// Returns the agreement that `reply` to `request` establishes.
    pub(super) fn agree(
        &self,
        request: &StartupFrame,
        reply: &StartupFrame,
    ) -> Result<Agreement, ReplyFault> {
        let (theirs, signature) = split_signature(reply);
        if reply.revision != request.revision {
            return Err(ReplyFault::Revision(reply.revision));
        }
        //= MPA-29
        if reply.rejected {
            return Err(ReplyFault::Rejected(theirs));
        }
        //= MPA-16
        if reply.markers {
            return Err(ReplyFault::Markers);
        }
        let (ird, mut ord) = (self.ird(), self.ord().min(UNKNOWN_DEPTH));
        let mut ready_to_receive = None;
        if let Some(answer) = reply.enhanced {
            //= EST-11
            if answer.ord != Enhanced::NOT_NEGOTIATED && answer.ord > ird {
                let ord = answer.ord;
                return Err(ReplyFault::InsufficientIrd { ord, ird });
            }
            if answer.ird != Enhanced::NOT_NEGOTIATED {
                ord = self.ord().min(answer.ird);
            }
            //= EST-03
            //= EST-12
            if answer.peer_to_peer {
                ready_to_receive = Some(match answer {
                    Enhanced {
                        rtr_write: true, ..
                    } => Rtr::Write,
                    Enhanced { rtr_read: true, .. } => Rtr::Read,
                    _ => return Err(ReplyFault::NoRtr),
                });
            }
        }
        Ok(Agreement {
            //= MPA-17
            //= MPA-19
            crc: request.crc || reply.crc,
            peer_is_smbdirect: signature.is_some(),
            ird: ird.into(),
            ord: ord.into(),
            ready_to_receive,
            private_data: theirs,
        })
    }
}

/// Returns the Reply that refuses a Request. `None` means a Request of revision 2 that could not be decoded.
pub(super) fn rejection(request: Option<&StartupFrame>) -> StartupFrame {
    //= MPA-11
    //= MPA-13
    //= MPA-16
    let revision = request.map_or(2, |request| request.revision);
    StartupFrame {
        crc: request.is_some_and(|request| request.crc),
        rejected: true,
        enhanced: match request {
            Some(request) => request.enhanced.map(|_| Enhanced::default()),
            None => Some(Enhanced::default()),
        },
        ..StartupFrame::new(FrameKind::Reply, revision)
    }
}

/// Returns `private_data` followed by a signature of this library.
fn append_signature(private_data: &Bytes, signature: [u8; 8]) -> Bytes {
    let mut signed = BytesMut::from(&private_data[..]);
    signed.extend_from_slice(&signature);
    signed.freeze()
}

/// Splits the private data of a frame into the private data of the upper layer, and the signature of this library
/// after it, if there is one.
pub(super) fn split_signature(frame: &StartupFrame) -> (Bytes, Option<[u8; 8]>) {
    let all = &frame.private_data;
    match all.split_last_chunk() {
        Some((theirs, &signature))
            if frame.revision == 2
                && [PEER_SIGNATURE, PEER_SIGNATURE_WITHOUT_CRC].contains(&signature) =>
        {
            (all.slice(..theirs.len()), Some(signature))
        }
        _ => (all.clone(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn preferences(crc: MpaCrc, ird: u16, ord: u16) -> MpaPreferences {
        MpaPreferences { crc, ird, ord }
    }

    fn asked(ird: u16, ord: u16) -> StartupFrame {
        StartupFrame {
            enhanced: Some(Enhanced {
                ird,
                ord,
                ..Enhanced::default()
            }),
            ..StartupFrame::new(FrameKind::Request, 2)
        }
    }

    /// Returns the IRD and ORD in the Reply to a Request with these depths.
    fn answered(ours: MpaPreferences, ird: u16, ord: u16, serves: Option<u32>) -> (u16, u16) {
        let (reply, agreement) = ours.answer(&asked(ird, ord), &Bytes::new(), serves);
        let enhanced = reply.enhanced.unwrap();
        assert_eq!((u32::from(enhanced.ird), u32::from(enhanced.ord)), {
            (agreement.ird, agreement.ord)
        });
        (enhanced.ird, enhanced.ord)
    }

    //= EST-08 test
    //= EST-09 test
    //= EST-10 test
    //= EST-13 test
    //= EST-16 test
    //= SEC-06 test
    #[test]
    fn a_reply_announces_the_lower_depths() {
        let ours = preferences(MpaCrc::Auto, 32, 32);
        // The Request of siw, and the answer that is known to work with it.
        assert_eq!(answered(ours, 32, 8, None), (8, 32));
        assert_eq!(answered(ours, 32, 0, None), (1, 32));
        assert_eq!(answered(ours, 0, 5, None), (8, 0));
        assert_eq!(answered(ours, 32, 200, Some(3)), (32, 3));
        assert_eq!(answered(ours, 2, 200, Some(30)), (32, 2));
        let greedy = preferences(MpaCrc::Auto, u16::MAX, u16::MAX);
        assert_eq!(answered(greedy, 200, 200, None), (128, 128));
        let not_negotiated = Enhanced::NOT_NEGOTIATED;
        assert_eq!(
            answered(ours, not_negotiated, not_negotiated, None),
            (32, 16)
        );
        assert_eq!(answered(ours, not_negotiated, 1, Some(20)), (1, 20));
        assert_eq!(
            answered(preferences(MpaCrc::Auto, 0, 0), 9, 9, None),
            (1, 0)
        );
        let uneven = preferences(MpaCrc::Auto, 5, 5);
        assert_eq!(answered(uneven, 9, 9, None), (8, 5));
        assert_eq!(uneven.request(2, &Bytes::new()).enhanced.unwrap().ird, 8);
    }

    //= MPA-11 test
    //= MPA-12 test
    //= EST-13 test
    #[test]
    fn without_enhanced_data_the_depths_come_from_the_upper_layer() {
        for revision in [1, 2] {
            let request = StartupFrame::new(FrameKind::Request, revision);
            for (serves, expected) in [(None, 16), (Some(4), 4), (Some(u32::MAX), 32)] {
                let ours = preferences(MpaCrc::Auto, 20, 32);
                let (reply, agreement) = ours.answer(&request, &Bytes::new(), serves);
                assert_eq!((reply.revision, reply.enhanced), (revision, None));
                assert_eq!((agreement.ird, agreement.ord), (32, expected));
            }
        }
    }

    //= EST-02 test
    //= EST-03 test
    //= EST-04 test
    //= EST-05 test
    #[test]
    fn ready_to_receive_is_a_write_if_offered() {
        let ours = preferences(MpaCrc::Auto, 32, 32);
        for (send, write, read, expected) in [
            (false, true, true, Rtr::Write),
            (false, true, false, Rtr::Write),
            (false, false, true, Rtr::Read),
            (true, false, true, Rtr::Read),
            // The Reply asks for a Write even if only a Send was offered, because few peers implement the Send
            // well.
            (true, false, false, Rtr::Write),
        ] {
            let mut request = asked(8, 8);
            request.enhanced = Some(Enhanced {
                peer_to_peer: true,
                rtr_send: send,
                rtr_write: write,
                rtr_read: read,
                ..request.enhanced.unwrap()
            });
            let (reply, _) = ours.answer(&request, &Bytes::new(), None);
            let chosen = reply.enhanced.unwrap();
            assert!(chosen.peer_to_peer && !chosen.rtr_send);
            assert_ne!(chosen.rtr_write, chosen.rtr_read);
            let agreement = ours.agree(&request, &reply).unwrap();
            assert_eq!(agreement.ready_to_receive, Some(expected));
        }
        let (reply, _) = ours.answer(&asked(8, 8), &Bytes::new(), None);
        let chosen = reply.enhanced.unwrap();
        assert!(!chosen.peer_to_peer && !chosen.rtr_write && !chosen.rtr_read);
        let own = ours.request(2, &Bytes::new()).enhanced.unwrap();
        assert!(own.peer_to_peer && own.rtr_write && own.rtr_read && !own.rtr_send);
    }

    //= MPA-04 test
    //= MPA-17 test
    //= MPA-18 test
    #[test]
    fn the_signature_identifies_this_library_and_is_hidden_from_the_upper_layer() {
        let private_data = Bytes::from_static(b"01234567");
        let ours = preferences(MpaCrc::Auto, 32, 32);
        let request = ours.request(2, &private_data);
        assert!(!request.crc && request.private_data.starts_with(&private_data));
        assert!(request.encoded_length() <= 20 + 4 + 248);
        let (reply, agreement) = ours.answer(&request, &private_data, None);
        assert!(reply.crc && agreement.crc && agreement.peer_is_smbdirect);
        assert_eq!(agreement.private_data, private_data);
        let agreement = ours.agree(&request, &reply).unwrap();
        assert!(agreement.crc && agreement.peer_is_smbdirect);
        assert_eq!(agreement.private_data, private_data);

        // A peer that sent no signature gets none, and is not asked for CRCs.
        let mut foreign = asked(8, 8);
        foreign.private_data = private_data.clone();
        let (reply, agreement) = ours.answer(&foreign, &private_data, None);
        assert!(!reply.crc && !agreement.crc && !agreement.peer_is_smbdirect);
        assert_eq!(reply.private_data, private_data);
        for crc in [MpaCrc::Auto, MpaCrc::Off] {
            let request = preferences(crc, 32, 32).request(1, &private_data);
            assert_eq!(request.private_data, private_data);
        }
    }

    //= MPA-17 test
    //= MPA-18 test
    #[test]
    fn two_ends_of_this_library_recognise_each_other_without_crcs() {
        let private_data = Bytes::from_static(b"01234567");
        let without = preferences(MpaCrc::Off, 32, 32);
        let request = without.request(2, &private_data);
        assert!(!request.crc);
        for (theirs, crc) in [
            (MpaCrc::Auto, false),
            (MpaCrc::On, true),
            (MpaCrc::Off, false),
        ] {
            let theirs = preferences(theirs, 32, 32);
            let (reply, there) = theirs.answer(&request, &private_data, None);
            let here = without.agree(&request, &reply).unwrap();
            for agreement in [&here, &there] {
                assert!(agreement.peer_is_smbdirect, "{theirs:?}");
                assert_eq!(agreement.crc, crc, "{theirs:?}");
                assert_eq!(agreement.private_data, private_data);
            }
        }
        // A responder that wants no CRCs uses none, unless the Request asks for them.
        let request = preferences(MpaCrc::Auto, 32, 32).request(2, &private_data);
        let (reply, there) = without.answer(&request, &private_data, None);
        assert!(!reply.crc && !there.crc && there.peer_is_smbdirect);
    }

    //= MPA-17 test
    //= MPA-19 test
    #[test]
    fn a_reply_cannot_switch_crcs_off() {
        for (asked, replied) in [(false, false), (false, true), (true, false), (true, true)] {
            let crc = if asked { MpaCrc::On } else { MpaCrc::Off };
            let ours = preferences(crc, 32, 32);
            let request = ours.request(1, &Bytes::new());
            assert_eq!(request.crc, asked);
            let reply = StartupFrame {
                crc: replied,
                ..StartupFrame::new(FrameKind::Reply, 1)
            };
            let agreement = ours.agree(&request, &reply).unwrap();
            assert_eq!(agreement.crc, asked || replied);
        }
    }

    //= EST-11 test
    //= EST-13 test
    #[test]
    fn depths_in_a_reply_limit_the_initiator() {
        let ours = preferences(MpaCrc::Auto, 8, 32);
        let request = ours.request(2, &Bytes::new());
        let replied = |ird, ord| {
            let reply = StartupFrame {
                kind: FrameKind::Reply,
                ..asked(ird, ord)
            };
            let agreed = ours.agree(&request, &reply);
            agreed.map(|agreement| (agreement.ird, agreement.ord))
        };
        assert_eq!(replied(4, 8), Ok((8, 4)));
        assert_eq!(replied(0, 0), Ok((8, 0)));
        assert_eq!(replied(100, 1), Ok((8, 32)));
        let not_negotiated = Enhanced::NOT_NEGOTIATED;
        assert_eq!(replied(not_negotiated, not_negotiated), Ok((8, 16)));
        let fault = replied(4, 9).unwrap_err();
        assert_eq!(fault.terminate_code(), Some(TerminateCode::new(2, 0, 6)));
        let older = StartupFrame::new(FrameKind::Reply, 1);
        let fault = ours.agree(&request, &older).unwrap_err();
        assert_eq!(fault, ReplyFault::Revision(1));
        // The peer answers so at every attempt.
        assert_eq!(fault.to_error().kind, ProviderErrorKind::Protocol);
    }

    //= MPA-11 test
    //= MPA-13 test
    //= MPA-16 test
    #[test]
    fn a_rejection_has_the_form_of_its_request() {
        let request = StartupFrame {
            crc: true,
            markers: true,
            ..asked(8, 8)
        };
        let reply = rejection(Some(&request));
        assert!(reply.rejected && reply.crc && !reply.markers);
        assert_eq!((reply.revision, reply.enhanced.is_some()), (2, true));
        let reply = rejection(Some(&StartupFrame::new(FrameKind::Request, 1)));
        assert_eq!((reply.revision, reply.enhanced.is_some()), (1, false));
    }
}
