//! The flags of TDI, with their values in TDI. There are five sets, because one value has different
//! meanings in different sets.

use bitflags::bitflags;

//= TDI-FLAGS-01
bitflags! {
    /// The flags of a send. Without flags it is a whole, normal TSDU.
    ///
    /// ```
    /// use smbdirect_tdi::SendFlags;
    ///
    /// let flags = SendFlags::PARTIAL | SendFlags::NON_BLOCKING;
    /// assert_eq!(flags.bits(), 0x0140);
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// The TSDU is sent before the normal TSDUs that wait at this end. The peer cannot see
        /// this.
        const EXPEDITED = 0x0020;
        /// The TSDU continues with the next send.
        const PARTIAL = 0x0040;
        /// No answer of the peer to this TSDU is expected. An answer would also grant credits, so this end may
        /// request credits with a keepalive instead; see `NoResponse`.
        const NO_RESPONSE_EXPECTED = 0x0080;
        /// The send takes the bytes for which there is room, and does not wait.
        const NON_BLOCKING = 0x0100;
        /// The endpoint disconnects after this send. TDI added this flag later; it is not supported
        /// here.
        const AND_DISCONNECT = 0x0200;
    }
}

bitflags! {
    /// The flags of a receive. Without flags it receives any data.
    ///
    /// ```
    /// use smbdirect_tdi::{ReceiveFlags, SendFlags};
    ///
    /// // One value of TDI has two meanings.
    /// assert_eq!(ReceiveFlags::NORMAL.bits(), SendFlags::EXPEDITED.bits());
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReceiveFlags: u32 {
        /// The receive accepts normal data.
        const NORMAL = 0x0020;
        /// The receive accepts expedited data. SMB Direct has none, so a receive of only expedited
        /// data is refused.
        const EXPEDITED = 0x0040;
        /// The receive copies the data that has arrived, without taking it.
        const PEEK = 0x0080;
    }
}

bitflags! {
    /// The flags of a receive indication.
    ///
    /// ```
    /// use smbdirect_tdi::IndicationFlags;
    ///
    /// let last = IndicationFlags::NORMAL | IndicationFlags::ENTIRE_MESSAGE;
    /// assert!(last.contains(IndicationFlags::ENTIRE_MESSAGE));
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct IndicationFlags: u32 {
        /// The data is normal, which is always so over SMB Direct.
        const NORMAL = 0x0020;
        /// The data is expedited, which is never so over SMB Direct.
        const EXPEDITED = 0x0040;
        /// The TSDU has not arrived in full.
        const PEEK = 0x0080;
        /// The peer's send had [`SendFlags::NO_RESPONSE_EXPECTED`]. This is never set, because SMB
        /// Direct does not carry the flag.
        const NO_RESPONSE_EXPECTED = 0x0100;
        /// More of the TSDU has arrived than is indicated.
        const COPY_LOOKAHEAD = 0x0200;
        /// The indicated bytes are the last of the TSDU.
        const ENTIRE_MESSAGE = 0x0400;
        /// The handler must not block. This is always set.
        const AT_DISPATCH_LEVEL = 0x0800;
    }
}

bitflags! {
    /// The kind of a disconnect. At most one flag may be set; without flags it is an
    /// [`ABORT`](Self::ABORT).
    ///
    /// ```
    /// use smbdirect_tdi::DisconnectFlags;
    ///
    /// assert!(DisconnectFlags::empty().is_one_choice());
    /// assert!(!(DisconnectFlags::ABORT | DisconnectFlags::RELEASE).is_one_choice());
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DisconnectFlags: u32 {
        /// The request waits for a disconnect and does not disconnect.
        const WAIT = 0x0001;
        /// The endpoint disconnects immediately, and outstanding requests are cancelled.
        const ABORT = 0x0002;
        /// The endpoint disconnects when the TSDUs of all earlier sends have been sent.
        const RELEASE = 0x0004;
    }
}

impl DisconnectFlags {
    /// Returns whether at most one flag is set and no unknown bit.
    pub const fn is_one_choice(self) -> bool {
        //= TDI-DISC-01
        self.bits().count_ones() <= 1 && Self::all().contains(self)
    }
}

bitflags! {
    /// The services that a transport offers, as reported by its information.
    ///
    /// ```
    /// use smbdirect_tdi::ServiceFlags;
    ///
    /// assert!(ServiceFlags::SMB_DIRECT.contains(ServiceFlags::MESSAGE_MODE));
    /// assert!(!ServiceFlags::SMB_DIRECT.contains(ServiceFlags::ORDERLY_RELEASE));
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ServiceFlags: u32 {
        /// The transport has connections.
        const CONNECTION_MODE = 0x0000_0001;
        /// One direction of a connection can be closed before the other.
        const ORDERLY_RELEASE = 0x0000_0002;
        /// The transport has datagrams.
        const CONNECTIONLESS_MODE = 0x0000_0004;
        /// Data arrives without errors, or the connection ends.
        const ERROR_FREE_DELIVERY = 0x0000_0008;
        /// The transport has a security level.
        const SECURITY_LEVEL = 0x0000_0010;
        /// The transport has broadcasts.
        const BROADCAST_SUPPORTED = 0x0000_0020;
        /// The transport has multicasts.
        const MULTICAST_SUPPORTED = 0x0000_0040;
        /// A listener can inspect an offer before it accepts the connection.
        const DELAYED_ACCEPTANCE = 0x0000_0080;
        /// The transport has expedited data, which is marked as such at the receiver.
        const EXPEDITED_DATA = 0x0000_0100;
        /// The transport can buffer sends in its own memory.
        const INTERNAL_BUFFERING = 0x0000_0200;
        /// The client can choose the route.
        const ROUTE_DIRECTED = 0x0000_0400;
        /// A TSDU must not be empty.
        const NO_ZERO_LENGTH = 0x0000_0800;
        /// The transport is a point-to-point link.
        const POINT_TO_POINT = 0x0000_1000;
        /// TSDUs keep their boundaries.
        const MESSAGE_MODE = 0x0000_2000;
        /// Data can be received after the peer has disconnected.
        const HALF_DUPLEX = 0x0000_4000;
        /// A connection can carry datagrams.
        const DGRAM_CONNECTION = 0x0000_8000;
        /// Access is always checked.
        const FORCE_ACCESS_CHECK = 0x0001_0000;
        /// The transport supports [`SendFlags::AND_DISCONNECT`].
        const SEND_AND_DISCONNECT = 0x0002_0000;
        /// The transport can accept connections without a handler.
        const DIRECT_ACCEPT = 0x0004_0000;
        /// An acceptance returns the local address.
        const ACCEPT_LOCAL_ADDR = 0x0008_0000;
    }
}

impl ServiceFlags {
    /// The services of this transport: 0x2A89. They do not include expedited data, half-close and empty TSDUs,
    /// because SMB Direct cannot carry them.
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
    fn flags_have_the_values_of_tdi() {
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
    fn service_flags_include_only_what_smb_direct_carries() {
        assert_eq!(ServiceFlags::SMB_DIRECT.bits(), 0x2A89);
    }

    //= TDI-DISC-01 test
    #[test]
    fn at_most_one_disconnect_flag_is_valid() {
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
