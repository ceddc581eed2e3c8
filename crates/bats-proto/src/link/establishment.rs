//! When a link was established, and whether the client is validated.

use bats_types::Timestamp;

/// Whether a link is or was established, also after it is closed.
#[derive(Debug, Default)]
pub(super) struct Establishment {
    since: Option<Timestamp>,
    /// Server: the link is set up from the client's first flight alone; the client is not validated yet.
    is_provisional: bool,
}

impl Establishment {
    /// The link is established; `is_complete` if the handshake is, too.
    pub(super) fn establish(&mut self, now: Timestamp, is_complete: bool) {
        self.since = Some(now);
        self.is_provisional = !is_complete;
    }

    /// The client is validated after early data.
    pub(super) fn validate(&mut self) {
        self.is_provisional = false;
    }

    /// When the link was established.
    pub(super) fn since(&self) -> Option<Timestamp> {
        self.since
    }

    /// Whether the link is set up but the client is not validated yet.
    pub(super) fn is_provisional(&self) -> bool {
        self.is_provisional
    }

    /// Whether the handshake is done, even if the link was closed later.
    pub(super) fn was_validated(&self) -> bool {
        self.since.is_some() && !self.is_provisional
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provisional_link_is_validated_later() {
        let mut link = Establishment::default();
        assert!(!link.was_validated() && !link.is_provisional() && link.since().is_none());
        link.establish(Timestamp::from_millis(5), false);
        assert!(!link.was_validated() && link.is_provisional());
        link.validate();
        assert!(link.was_validated() && !link.is_provisional());
        assert_eq!(link.since(), Some(Timestamp::from_millis(5)));
    }

    #[test]
    fn a_link_with_a_complete_handshake_is_validated_at_once() {
        let mut link = Establishment::default();
        link.establish(Timestamp::ZERO, true);
        assert!(link.was_validated() && !link.is_provisional());
    }
}
