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

/// What a mode has. All but `is_reliable` is about sessions of this protocol, so that modes of other transport
/// bindings have none of it.
#[derive(Clone, Copy, Debug)]
struct Facts {
    is_own: bool,
    is_reliable: bool,
    takes_early: bool,
    has_channels: bool,
    is_uncontrolled: bool,
}

impl Facts {
    const NONE: Self = Self {
        is_own: false,
        is_reliable: false,
        takes_early: false,
        has_channels: false,
        is_uncontrolled: false,
    };
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
    const fn facts(self) -> Facts {
        match self {
            Self::Btp => Facts { is_own: true, takes_early: true, ..Facts::NONE },
            Self::Brtp => {
                Facts { is_own: true, is_reliable: true, has_channels: true, ..Facts::NONE }
            }
            Self::Brctp => Facts { is_own: true, is_reliable: true, ..Facts::NONE },
            Self::Transparent => Facts { is_own: true, is_uncontrolled: true, ..Facts::NONE },
            Self::Tcp | Self::Quic => Facts { is_reliable: true, ..Facts::NONE },
            Self::Udp => Facts::NONE,
        }
    }

    /// Whether messages are delivered reliably, once and in order.
    pub fn is_reliable(self) -> bool {
        self.facts().is_reliable
    }

    /// Whether the mode uses this protocol's packets. The driver implements the others.
    pub fn is_own(self) -> bool {
        self.facts().is_own
    }

    /// Whether messages can be sent as early data, which can be replayed.
    pub(crate) fn takes_early(self) -> bool {
        self.facts().takes_early
    }

    /// Whether sessions have channels if both ends want them.
    pub(crate) fn has_channels(self) -> bool {
        self.facts().has_channels
    }

    /// Whether the link of a session has no congestion controller.
    pub(crate) fn is_uncontrolled(self) -> bool {
        self.facts().is_uncontrolled
    }
}
