//! The flags of TDI, with its numbers: five sets, because the same number means another thing in
//! each.

use bitflags::bitflags;

//= TDI-FLAGS-01
bitflags! {
    /// How a send is to be done. None of them: a whole, normal TSDU.
    ///
    /// ```
    /// use smbdirect::tdi::SendFlags;
    ///
    /// let flags = SendFlags::PARTIAL | SendFlags::NON_BLOCKING;
    /// assert_eq!(flags.bits(), 0x0140);
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Ahead of the normal sends that still wait here. The peer sees nothing of it.
        const EXPEDITED = 0x0020;
        /// The TSDU goes on with the next send.
        const PARTIAL = 0x0040;
        /// The peer will not answer, so what it gives back is not to wait for its answer.
        const NO_RESPONSE_EXPECTED = 0x0080;
        /// Take what there is room for, and do not wait.
        const NON_BLOCKING = 0x0100;
        /// Disconnect behind this send. Came later than the rest; not supported here.
        const AND_DISCONNECT = 0x0200;
    }
}

bitflags! {
    /// What a receive request is to be given. None of them: any data.
    ///
    /// ```
    /// use smbdirect::tdi::{ReceiveFlags, SendFlags};
    ///
    /// // The trap of TDI: one number, two meanings.
    /// assert_eq!(ReceiveFlags::NORMAL.bits(), SendFlags::EXPEDITED.bits());
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReceiveFlags: u32 {
        /// Normal data.
        const NORMAL = 0x0020;
        /// Expedited data. SMB Direct has none: asking for nothing else is refused.
        const EXPEDITED = 0x0040;
        /// What is there now, which is kept and will be received again.
        const PEEK = 0x0080;
    }
}

bitflags! {
    /// What a receive indication is about.
    ///
    /// ```
    /// use smbdirect::tdi::IndicationFlags;
    ///
    /// let last = IndicationFlags::NORMAL | IndicationFlags::ENTIRE_MESSAGE;
    /// assert!(last.contains(IndicationFlags::ENTIRE_MESSAGE));
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct IndicationFlags: u32 {
        /// Normal data: always, over SMB Direct.
        const NORMAL = 0x0020;
        /// Expedited data: never, over SMB Direct.
        const EXPEDITED = 0x0040;
        /// The TSDU is not here to its end yet.
        const PEEK = 0x0080;
        /// The peer's send had [`SendFlags::NO_RESPONSE_EXPECTED`]: never, SMB Direct does not
        /// carry it.
        const NO_RESPONSE_EXPECTED = 0x0100;
        /// More of the TSDU is here than is indicated.
        const COPY_LOOKAHEAD = 0x0200;
        /// The indicated bytes are the last of the TSDU.
        const ENTIRE_MESSAGE = 0x0400;
        /// The handler must not wait: always, here.
        const AT_DISPATCH_LEVEL = 0x0800;
    }
}

bitflags! {
    /// How to disconnect, of which only one may be chosen. None of them is the same as
    /// [`ABORT`](Self::ABORT).
    ///
    /// ```
    /// use smbdirect::tdi::DisconnectFlags;
    ///
    /// assert!(DisconnectFlags::empty().is_one_choice());
    /// assert!(!(DisconnectFlags::ABORT | DisconnectFlags::RELEASE).is_one_choice());
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DisconnectFlags: u32 {
        /// Not a disconnect but the wait for one.
        const WAIT = 0x0001;
        /// At once; what is outstanding is cancelled.
        const ABORT = 0x0002;
        /// When what was sent before has left.
        const RELEASE = 0x0004;
    }
}

impl DisconnectFlags {
    /// Whether at most one is set, and none that does not exist.
    pub const fn is_one_choice(self) -> bool {
        //= TDI-DISC-01
        self.bits().count_ones() <= 1 && Self::all().contains(self)
    }
}

bitflags! {
    /// What a transport can do, as its information says.
    ///
    /// ```
    /// use smbdirect::tdi::ServiceFlags;
    ///
    /// assert!(ServiceFlags::SMB_DIRECT.contains(ServiceFlags::MESSAGE_MODE));
    /// assert!(!ServiceFlags::SMB_DIRECT.contains(ServiceFlags::ORDERLY_RELEASE));
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ServiceFlags: u32 {
        /// Connections.
        const CONNECTION_MODE = 0x0000_0001;
        /// One direction can end before the other.
        const ORDERLY_RELEASE = 0x0000_0002;
        /// Datagrams.
        const CONNECTIONLESS_MODE = 0x0000_0004;
        /// What arrives is what was sent.
        const ERROR_FREE_DELIVERY = 0x0000_0008;
        /// A security level.
        const SECURITY_LEVEL = 0x0000_0010;
        /// Broadcasts.
        const BROADCAST_SUPPORTED = 0x0000_0020;
        /// Multicasts.
        const MULTICAST_SUPPORTED = 0x0000_0040;
        /// A connection can be looked at before it is accepted.
        const DELAYED_ACCEPTANCE = 0x0000_0080;
        /// Expedited data, which the receiver is told of as such.
        const EXPEDITED_DATA = 0x0000_0100;
        /// Sends can be taken over into the transport's own memory.
        const INTERNAL_BUFFERING = 0x0000_0200;
        /// The route can be chosen.
        const ROUTE_DIRECTED = 0x0000_0400;
        /// TSDUs of no bytes do not exist.
        const NO_ZERO_LENGTH = 0x0000_0800;
        /// A link between two points.
        const POINT_TO_POINT = 0x0000_1000;
        /// TSDUs keep their boundaries.
        const MESSAGE_MODE = 0x0000_2000;
        /// Data is received after the peer has disconnected.
        const HALF_DUPLEX = 0x0000_4000;
        /// Datagrams on connections.
        const DGRAM_CONNECTION = 0x0000_8000;
        /// Access is checked in any case.
        const FORCE_ACCESS_CHECK = 0x0001_0000;
        /// [`SendFlags::AND_DISCONNECT`].
        const SEND_AND_DISCONNECT = 0x0002_0000;
        /// Connections are accepted without a handler.
        const DIRECT_ACCEPT = 0x0004_0000;
        /// Accepting tells the local address.
        const ACCEPT_LOCAL_ADDR = 0x0008_0000;
    }
}

impl ServiceFlags {
    /// What SMB Direct can carry, and this transport does: 0x2A89. Expedited data, half-close and
    /// TSDUs of no bytes are not on the wire, and hence not here.
    //= TDI-QUERY-01
    pub const SMB_DIRECT: Self = Self::CONNECTION_MODE
        .union(Self::ERROR_FREE_DELIVERY)
        .union(Self::DELAYED_ACCEPTANCE)
        .union(Self::INTERNAL_BUFFERING)
        .union(Self::NO_ZERO_LENGTH)
        .union(Self::MESSAGE_MODE);
}

#[cfg(test)]
mod tests {
    use bitflags::Flags;

    use super::*;

    fn table<F: Flags<Bits = u32>>() -> Vec<(&'static str, u32)> {
        let flags = F::FLAGS.iter();
        flags
            .map(|flag| (flag.name(), flag.value().bits()))
            .collect()
    }

    //= TDI-FLAGS-01 test
    #[test]
    fn the_numbers_are_those_of_tdi() {
        assert_eq!(
            table::<SendFlags>(),
            [
                ("EXPEDITED", 0x20),
                ("PARTIAL", 0x40),
                ("NO_RESPONSE_EXPECTED", 0x80),
                ("NON_BLOCKING", 0x100),
                ("AND_DISCONNECT", 0x200),
            ]
        );
        assert_eq!(
            table::<ReceiveFlags>(),
            [("NORMAL", 0x20), ("EXPEDITED", 0x40), ("PEEK", 0x80)]
        );
        assert_eq!(
            table::<IndicationFlags>(),
            [
                ("NORMAL", 0x20),
                ("EXPEDITED", 0x40),
                ("PEEK", 0x80),
                ("NO_RESPONSE_EXPECTED", 0x100),
                ("COPY_LOOKAHEAD", 0x200),
                ("ENTIRE_MESSAGE", 0x400),
                ("AT_DISPATCH_LEVEL", 0x800),
            ]
        );
        assert_eq!(
            table::<DisconnectFlags>(),
            [("WAIT", 1), ("ABORT", 2), ("RELEASE", 4)]
        );
        assert_eq!(
            table::<ServiceFlags>(),
            [
                ("CONNECTION_MODE", 0x1),
                ("ORDERLY_RELEASE", 0x2),
                ("CONNECTIONLESS_MODE", 0x4),
                ("ERROR_FREE_DELIVERY", 0x8),
                ("SECURITY_LEVEL", 0x10),
                ("BROADCAST_SUPPORTED", 0x20),
                ("MULTICAST_SUPPORTED", 0x40),
                ("DELAYED_ACCEPTANCE", 0x80),
                ("EXPEDITED_DATA", 0x100),
                ("INTERNAL_BUFFERING", 0x200),
                ("ROUTE_DIRECTED", 0x400),
                ("NO_ZERO_LENGTH", 0x800),
                ("POINT_TO_POINT", 0x1000),
                ("MESSAGE_MODE", 0x2000),
                ("HALF_DUPLEX", 0x4000),
                ("DGRAM_CONNECTION", 0x8000),
                ("FORCE_ACCESS_CHECK", 0x1_0000),
                ("SEND_AND_DISCONNECT", 0x2_0000),
                ("DIRECT_ACCEPT", 0x4_0000),
                ("ACCEPT_LOCAL_ADDR", 0x8_0000),
            ]
        );
    }

    //= TDI-QUERY-01 test
    #[test]
    fn the_service_flags_promise_what_the_wire_carries() {
        assert_eq!(ServiceFlags::SMB_DIRECT.bits(), 0x2A89);
    }

    //= TDI-DISC-01 test
    #[test]
    fn one_way_to_disconnect_at_most() {
        for bits in 0..16 {
            let one = [0, 1, 2, 4].contains(&bits);
            assert_eq!(
                DisconnectFlags::from_bits_retain(bits).is_one_choice(),
                one,
                "{bits}"
            );
        }
    }
}
