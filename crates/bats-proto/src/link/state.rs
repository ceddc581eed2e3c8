//! The state of a link. The enum is private, so that only this file can change the state.

use bats_types::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inner {
    Handshaking,
    Established,
    /// Closed locally; answers late packets with the CLOSE frame until the given time.
    Closing(Timestamp),
    Dead,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct State(Inner);

impl State {
    pub(super) fn new() -> Self {
        Self(Inner::Handshaking)
    }

    pub(super) fn establish(&mut self) {
        if self.0 == Inner::Handshaking {
            self.0 = Inner::Established;
        }
    }

    /// Enters the closing state until `until`; no effect if already closing or closed.
    pub(super) fn close(&mut self, until: Timestamp) {
        if self.is_open() {
            self.0 = Inner::Closing(until);
        }
    }

    /// Prolongs the closing state until `until`; no effect in other states.
    pub(super) fn linger(&mut self, until: Timestamp) {
        if let Inner::Closing(end) = &mut self.0 {
            *end = until.max(*end);
        }
    }

    pub(super) fn die(&mut self) {
        self.0 = Inner::Dead;
    }

    pub(super) fn is_handshaking(self) -> bool {
        self.0 == Inner::Handshaking
    }

    pub(super) fn is_established(self) -> bool {
        self.0 == Inner::Established
    }

    pub(super) fn is_open(self) -> bool {
        matches!(self.0, Inner::Handshaking | Inner::Established)
    }

    pub(super) fn is_dead(self) -> bool {
        self.0 == Inner::Dead
    }

    /// When a closing link is removed.
    pub(super) fn closing_until(self) -> Option<Timestamp> {
        match self.0 {
            Inner::Closing(until) => Some(until),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [State; 4] {
        [Inner::Handshaking, Inner::Established, Inner::Closing(Timestamp::ZERO), Inner::Dead]
            .map(State)
    }

    /// All transitions: rows are the states above, columns are establish, close, die.
    #[test]
    fn transition_matrix() {
        let later = Timestamp::from_millis(5);
        let matrix = all().map(|state| {
            let mut after = [state; 3];
            after[0].establish();
            after[1].close(later);
            after[2].die();
            after.map(|state| state.0)
        });
        let closing = Inner::Closing(Timestamp::ZERO);
        assert_eq!(
            matrix,
            [
                [Inner::Established, Inner::Closing(later), Inner::Dead],
                [Inner::Established, Inner::Closing(later), Inner::Dead],
                [closing, closing, Inner::Dead],
                [Inner::Dead, Inner::Dead, Inner::Dead],
            ]
        );
    }
}
