//! The modes of delivery, and what distinguishes them outside of their streams.

/// Delivery mode of a connection. The numbers are part of the API and of the wire format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// BTP: messages with a deadline, each delivered at most once, as soon as it is decoded.
    Btp = 0,
    /// BRTP: reliable, ordered messages.
    #[default]
    Brtp = 1,
    /// BRCTP: reliable, ordered messages in blocks with the rateless code of RFC 9426: coded
    /// packets are sent until the receiver can decode. For objects, and for relays that implement
    /// only the RFC.
    Brctp = 2,
    /// TRANSPARENT: messages are sent at once, encrypted, without redundancy and without congestion
    /// control. For networks with known sufficient capacity.
    Transparent = 3,
    /// Reliable, ordered messages over TCP with TLS 1.3, for networks that block UDP, or to use the
    /// kernel's congestion control. Another transport binding: see [`stream`](crate::stream).
    Tcp = 10,
    /// Plain UDP: one datagram per message, without encryption, repair, congestion control or
    /// handshake. Another transport binding.
    Udp = 11,
    /// Reliable, ordered messages over QUIC. Another transport binding: see
    /// [`stream`](crate::stream).
    Quic = 12,
}

/// What a mode has. Other transport bindings have neither early data nor channels of this protocol.
#[derive(Clone, Copy, Debug)]
struct Properties {
    is_own: bool,
    is_reliable: bool,
    supports_early_data: bool,
    has_channels: bool,
    is_uncontrolled: bool,
}

/// The properties of a mode, in the order of the fields of [`Properties`].
const fn properties(
    [is_own, is_reliable, supports_early_data, has_channels, is_uncontrolled]: [bool; 5],
) -> Properties {
    Properties { is_own, is_reliable, supports_early_data, has_channels, is_uncontrolled }
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 7] =
        [Self::Btp, Self::Brtp, Self::Brctp, Self::Transparent, Self::Tcp, Self::Udp, Self::Quic];

    /// The mode with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| *mode as u8 == number)
    }

    /// What other parts depend on, for all modes. What a mode does with messages is in `session/streams`.
    const fn properties(self) -> Properties {
        const YES: bool = true;
        const NO: bool = false;
        //                                own  reliable  early data  channels  uncontrolled
        match self {
            Self::Btp => properties([YES, NO, YES, NO, NO]),
            Self::Brtp => properties([YES, YES, NO, YES, NO]),
            Self::Brctp => properties([YES, YES, NO, YES, NO]),
            Self::Transparent => properties([YES, NO, NO, NO, YES]),
            Self::Tcp => properties([NO, YES, NO, NO, NO]),
            Self::Udp => properties([NO, NO, NO, NO, YES]),
            Self::Quic => properties([NO, YES, NO, NO, NO]),
        }
    }

    /// Whether messages are delivered reliably, once and in order.
    pub fn is_reliable(self) -> bool {
        self.properties().is_reliable
    }

    /// Whether the mode uses this protocol's packets. The driver implements the others.
    pub fn is_own(self) -> bool {
        self.properties().is_own
    }

    /// Whether messages can be sent as early data, which can be replayed.
    pub(crate) fn supports_early_data(self) -> bool {
        self.properties().supports_early_data
    }

    /// Whether sessions have channels if both ends want them.
    pub(crate) fn has_channels(self) -> bool {
        self.properties().has_channels
    }

    /// Whether nothing controls congestion.
    pub(crate) fn is_uncontrolled(self) -> bool {
        self.properties().is_uncontrolled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The modes of which this is true.
    fn with(property: impl Fn(Mode) -> bool) -> Vec<Mode> {
        Mode::ALL.into_iter().filter(|mode| property(*mode)).collect()
    }

    #[test]
    fn each_mode_has_the_properties_of_its_description() {
        use Mode::{Brctp, Brtp, Btp, Quic, Tcp, Transparent, Udp};
        assert_eq!(with(Mode::is_own), [Btp, Brtp, Brctp, Transparent]);
        assert_eq!(with(Mode::is_reliable), [Brtp, Brctp, Tcp, Quic]);
        assert_eq!(with(Mode::supports_early_data), [Btp]);
        assert_eq!(with(Mode::has_channels), [Brtp, Brctp]);
        assert_eq!(with(Mode::is_uncontrolled), [Transparent, Udp]);
    }
}
