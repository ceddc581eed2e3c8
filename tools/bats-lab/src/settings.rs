//! Settings of a link, for one direction and for both.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{self, PerDirection, rate_text, time_text};

/// Minimum queue in bytes: even a link without delay must absorb a burst.
const MIN_QUEUE_BYTES: u64 = 64 * 1024;

/// Loss model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Loss {
    /// Independent loss of each frame with this probability.
    Independent(f64),
    /// Gilbert-Elliott: every frame is lost in the bad state, none in the good state.
    GilbertElliott {
        /// Probability per frame to enter the bad state.
        enter: f64,
        /// Probability per frame to leave the bad state.
        leave: f64,
    },
}

impl Loss {
    /// Reads `10%` or `ge:1%,9%`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let Some(burst) = text.strip_prefix("ge:") else {
            return units::fraction(text).map(Self::Independent);
        };
        let (enter, leave) = burst.split_once(',').ok_or_else(|| {
            format!("`{text}` is not a loss: use for example 10%, or ge:ENTER%,LEAVE%")
        })?;
        let (enter, leave) = (units::fraction(enter)?, units::fraction(leave)?);
        if leave == 0.0 {
            return Err(format!("`{text}` would never leave the bad state"));
        }
        Ok(Self::GilbertElliott { enter, leave })
    }

    /// Long-term loss probability.
    pub(crate) fn mean(self) -> f64 {
        match self {
            Self::Independent(rate) => rate,
            Self::GilbertElliott { enter, leave } => enter / (enter + leave),
        }
    }

    /// Standard deviation of the measured loss relative to that of independent loss.
    pub(crate) fn burst_factor(self) -> f64 {
        match self {
            Self::Independent(_) => 1.0,
            Self::GilbertElliott { enter, leave } => {
                ((2.0 - enter - leave) / (enter + leave)).max(1.0).sqrt()
            }
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Independent(rate) => write!(f, "{} %", percent(*rate)),
            Self::GilbertElliott { enter, leave } => write!(
                f,
                "{} % in bursts (enter {} %, leave {} %)",
                percent(self.mean()),
                percent(*enter),
                percent(*leave)
            ),
        }
    }
}

fn percent(fraction: f64) -> f64 {
    (fraction * 1e6).round() / 1e4
}

/// Capacity of the FIFO queue in front of the link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Queue {
    /// In bytes.
    Bytes(u64),
    /// In multiples of the BDP (rate x RTT).
    Bdp(f64),
}

impl Queue {
    /// Reads `1bdp`, `250k`, `4M` or bytes.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let error =
            || format!("`{text}` is not a queue size: use for example 1bdp, 250k or 4M (bytes)");
        let lower = text.to_ascii_lowercase();
        if let Some(multiple) = lower.strip_suffix("bdp") {
            let multiple = if multiple.is_empty() { "1" } else { multiple };
            let multiple: f64 = multiple.parse().map_err(|_| error())?;
            return if (0.0..=100.0).contains(&multiple) {
                Ok(Self::Bdp(multiple))
            } else {
                Err(error())
            };
        }
        match units::rate(&lower).map_err(|_| error())? {
            bytes @ 1..=4_000_000_000 => Ok(Self::Bytes(bytes)),
            _ => Err(error()),
        }
    }
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Direction {
    /// Bits per second, counted in Ethernet frames without frame check sequence; 0 for no limit.
    pub(crate) rate: u64,
    /// Delay from the head of the queue to the far end.
    pub(crate) delay: Duration,
    /// Maximum deviation of the delay of a frame from `delay`, in both directions.
    pub(crate) jitter: Duration,
    /// Whether jitter may reorder frames.
    pub(crate) reorder: bool,
    /// Applied after the queue: lost frames have used the capacity of the link.
    pub(crate) loss: Loss,
    /// Fraction of frames that are duplicated.
    pub(crate) duplicate: f64,
    /// Fraction of frames with one byte corrupted.
    pub(crate) corrupt: f64,
    /// Whether all frames are dropped.
    pub(crate) black_hole: bool,
    /// The FIFO queue in front of the link.
    pub(crate) queue: Queue,
}

impl Default for Direction {
    fn default() -> Self {
        Self {
            rate: 1_000_000_000,
            delay: Duration::from_millis(50),
            jitter: Duration::ZERO,
            reorder: false,
            loss: Loss::Independent(0.1),
            duplicate: 0.0,
            corrupt: 0.0,
            black_hole: false,
            queue: Queue::Bdp(1.0),
        }
    }
}

/// A link in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// Towards `b`.
    pub(crate) forward: Direction,
    /// Towards `a`.
    pub(crate) backward: Direction,
}

impl Link {
    /// Sum of the delays of both directions.
    pub(crate) fn round_trip(&self) -> Duration {
        self.forward.delay + self.backward.delay
    }

    /// Capacity in bytes of the queue of a direction.
    pub(crate) fn queue_bytes(&self, direction: &Direction) -> u64 {
        match direction.queue {
            Queue::Bytes(bytes) => bytes,
            Queue::Bdp(_) if direction.rate == 0 => 64 << 20,
            Queue::Bdp(multiple) => {
                let bdp = direction.rate as f64 / 8.0 * self.round_trip().as_secs_f64();
                ((multiple * bdp) as u64).max(MIN_QUEUE_BYTES)
            }
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, one-way delay {}, loss {}",
            rate_text(self.rate),
            time_text(self.delay),
            self.loss
        )?;
        match self.queue {
            Queue::Bytes(bytes) => write!(f, ", queue {bytes} bytes")?,
            Queue::Bdp(multiple) => write!(f, ", queue {multiple} BDP")?,
        }
        if !self.jitter.is_zero() {
            let order = if self.reorder { " with reordering" } else { "" };
            write!(f, ", jitter +-{}{order}", time_text(self.jitter))?;
        }
        if self.duplicate > 0.0 {
            write!(f, ", {} % duplicated", percent(self.duplicate))?;
        }
        if self.corrupt > 0.0 {
            write!(f, ", {} % corrupted", percent(self.corrupt))?;
        }
        if self.black_hole {
            write!(f, ", BLACK HOLE")?;
        }
        Ok(())
    }
}

/// Changes to a link; `None` leaves a setting unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Changes {
    pub(crate) rate: Option<PerDirection<u64>>,
    pub(crate) delay: Option<PerDirection<Duration>>,
    pub(crate) jitter: Option<PerDirection<Duration>>,
    pub(crate) reorder: Option<bool>,
    pub(crate) loss: Option<PerDirection<Loss>>,
    pub(crate) duplicate: Option<PerDirection<f64>>,
    pub(crate) corrupt: Option<PerDirection<f64>>,
    pub(crate) black_hole: Option<bool>,
    pub(crate) queue: Option<PerDirection<Queue>>,
}

impl Changes {
    /// Applies the changes to `link`.
    pub(crate) fn apply(&self, link: &mut Link) {
        fn put<T: Clone>(change: &Option<PerDirection<T>>, forward: &mut T, backward: &mut T) {
            if let Some(both) = change {
                *forward = both.forward.clone();
                *backward = both.backward.clone();
            }
        }
        let Link { forward, backward } = link;
        put(&self.rate, &mut forward.rate, &mut backward.rate);
        put(&self.delay, &mut forward.delay, &mut backward.delay);
        put(&self.jitter, &mut forward.jitter, &mut backward.jitter);
        put(&self.loss, &mut forward.loss, &mut backward.loss);
        put(&self.duplicate, &mut forward.duplicate, &mut backward.duplicate);
        put(&self.corrupt, &mut forward.corrupt, &mut backward.corrupt);
        put(&self.queue, &mut forward.queue, &mut backward.queue);
        for direction in [forward, backward] {
            direction.reorder = self.reorder.unwrap_or(direction.reorder);
            direction.black_hole = self.black_hole.unwrap_or(direction.black_hole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_of_one_bdp_is_rate_times_rtt() {
        let link = Link::default();
        assert_eq!(link.queue_bytes(&link.forward), 12_500_000);
        let direction = Direction { queue: Queue::Bytes(5), ..Direction::default() };
        assert_eq!(link.queue_bytes(&direction), 5);
    }

    #[test]
    fn queue_sizes_and_losses_are_parsed() {
        assert_eq!(Queue::parse("1bdp"), Ok(Queue::Bdp(1.0)));
        assert_eq!(Queue::parse("0.5bdp"), Ok(Queue::Bdp(0.5)));
        assert_eq!(Queue::parse("250k"), Ok(Queue::Bytes(250_000)));
        assert!(Queue::parse("-1bdp").is_err() && Queue::parse("0").is_err());
        assert_eq!(Loss::parse("10%"), Ok(Loss::Independent(0.1)));
        let burst = Loss::parse("ge:1%,9%").unwrap();
        assert!((burst.mean() - 0.1).abs() < 1e-12);
        assert!(burst.burst_factor() > 1.0);
        assert!(Loss::parse("ge:1%").is_err() && Loss::parse("ge:1%,0").is_err());
    }

    #[test]
    fn changes_leave_other_settings_unchanged() {
        let mut link = Link::default();
        let loss =
            PerDirection { forward: Loss::Independent(0.2), backward: Loss::Independent(0.0) };
        Changes { loss: Some(loss), ..Changes::default() }.apply(&mut link);
        assert_eq!(link.forward.loss, Loss::Independent(0.2));
        assert_eq!(link.backward.loss, Loss::Independent(0.0));
        assert_eq!(link.forward.rate, Direction::default().rate);
    }
}
