//! When the program is told that everything has arrived.

use std::time::Duration;

use tokio::time::Instant;

/// Programs of the original miss the event while they are still busy with their last message, and
/// then wait for it for ever. So it comes after a quiet time, and again later: times from one to
/// the next.
const QUIET: [Duration; 3] =
    [Duration::from_millis(30), Duration::from_millis(250), Duration::from_millis(1_000)];

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Acks {
    /// Nothing was sent since the last event.
    Clean,
    /// The acknowledgement of everything sent.
    Wanted,
    /// The end of a quiet time, if the count of messages stays the same.
    Quiet { sent: u64, until: Instant, told: usize },
}

impl Acks {
    /// Everything has been acknowledged.
    pub(super) fn all_acknowledged(sent: u64) -> Self {
        Self::Quiet { sent, until: Instant::now() + QUIET[0], told: 0 }
    }

    /// A quiet time is over, with `sent` messages sent by now: the next state, and whether to
    /// tell (`Some(true)`: for the first time).
    pub(super) fn time_is_over(self, now_sent: u64) -> (Self, Option<bool>) {
        match self {
            Self::Quiet { sent, until, told } if sent == now_sent => {
                let next = match QUIET.get(told + 1) {
                    Some(&quiet) => Self::Quiet { sent, until: until + quiet, told: told + 1 },
                    None => Self::Clean,
                };
                (next, Some(told == 0))
            }
            _ => (Self::Wanted, None),
        }
    }

    pub(super) fn until(&self) -> Option<Instant> {
        match self {
            Self::Quiet { until, .. } => Some(*until),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_comes_three_times_unless_more_is_sent() {
        let acks = Acks::all_acknowledged(5);
        let (acks, first) = acks.time_is_over(5);
        assert_eq!(first, Some(true));
        let (acks, second) = acks.time_is_over(5);
        assert_eq!(second, Some(false));
        assert_eq!(acks.time_is_over(6), (Acks::Wanted, None));
        assert_eq!(acks.time_is_over(5), (Acks::Clean, Some(false)));
    }
}
