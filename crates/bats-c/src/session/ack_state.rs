//! When to report that all data are acknowledged (ALL_DATA_ACKED).

use std::time::Duration;

use tokio::time::Instant;

/// Delays before the first event, and from each event to the next. Programs of the original SDK
/// miss an event that arrives while they still process their last message, and would wait for it
/// forever.
const REPORT_DELAYS: [Duration; 3] =
    [Duration::from_millis(30), Duration::from_millis(250), Duration::from_millis(1_000)];

/// State of the acknowledgement of sent data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AckState {
    /// Nothing was sent since the last event.
    Idle,
    /// Data wait for their acknowledgement.
    Waiting,
    /// All data are acknowledged. The next event is due at `until`, if no more messages are sent.
    Acknowledged { sent: u64, until: Instant, reported: usize },
}

impl AckState {
    /// The state after everything was acknowledged, with `sent` messages sent.
    pub(super) fn all_acknowledged(sent: u64) -> Self {
        Self::Acknowledged { sent, until: Instant::now() + REPORT_DELAYS[0], reported: 0 }
    }

    /// Handles the end of a delay, with `now_sent` messages sent by now. Returns the next state,
    /// and whether to report the event: `Some(true)` for the first time, `Some(false)` for a
    /// repetition.
    pub(super) fn on_delay_over(self, now_sent: u64) -> (Self, Option<bool>) {
        match self {
            Self::Acknowledged { sent, until, reported } if sent == now_sent => {
                let next = match REPORT_DELAYS.get(reported + 1) {
                    Some(&delay) => {
                        Self::Acknowledged { sent, until: until + delay, reported: reported + 1 }
                    }
                    None => Self::Idle,
                };
                (next, Some(reported == 0))
            }
            _ => (Self::Waiting, None),
        }
    }

    pub(super) fn until(&self) -> Option<Instant> {
        match self {
            Self::Acknowledged { until, .. } => Some(*until),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_is_reported_three_times_unless_more_is_sent() {
        let state = AckState::all_acknowledged(5);
        let (state, first) = state.on_delay_over(5);
        assert_eq!(first, Some(true));
        let (state, second) = state.on_delay_over(5);
        assert_eq!(second, Some(false));
        assert_eq!(state.on_delay_over(6), (AckState::Waiting, None));
        assert_eq!(state.on_delay_over(5), (AckState::Idle, Some(false)));
    }
}
