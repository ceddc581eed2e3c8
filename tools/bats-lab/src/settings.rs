//! What a link is asked to do, in one direction and in both.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{self, Both, rate_text, time_text};

/// The least queue: a link without delay still has to take a burst.
const LEAST_QUEUE: u64 = 64 * 1024;

/// Which frames are lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Loss {
    /// Each frame by itself, with this probability.
    Independent(f64),
    /// In bursts: probability to enter a bad state, and to leave it; all is lost in it.
    GilbertElliott {
        /// From good to bad, per frame.
        enter: f64,
        /// From bad to good, per frame.
        leave: f64,
    },
}

impl Loss {
    /// Reads `10%` or `ge:1%,9%`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let Some(burst) = text.strip_prefix("ge:") else {
            return units::share(text).map(Self::Independent);
        };
        let (enter, leave) = burst
            .split_once(',')
            .ok_or_else(|| format!("`{text}` is no loss: say ge:ENTER%,LEAVE%"))?;
        let (enter, leave) = (units::share(enter)?, units::share(leave)?);
        if leave == 0.0 {
            return Err(format!("`{text}` would never leave the bad state"));
        }
        Ok(Self::GilbertElliott { enter, leave })
    }

    /// The share of frames that are lost in the long run.
    pub(crate) fn mean(self) -> f64 {
        match self {
            Self::Independent(share) => share,
            Self::GilbertElliott { enter, leave } => enter / (enter + leave),
        }
    }

    /// How much wider the spread of the measured loss is than that of independent loss.
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
            Self::Independent(share) => write!(f, "{} %", percent(*share)),
            Self::GilbertElliott { enter, leave } => write!(
                f,
                "{} % in bursts ({} % in, {} % out)",
                percent(self.mean()),
                percent(*enter),
                percent(*leave)
            ),
        }
    }
}

fn percent(share: f64) -> f64 {
    (share * 1e6).round() / 1e4
}

/// How much the FIFO before the link holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Queue {
    /// So many bytes.
    Bytes(u64),
    /// So many times rate x round-trip time.
    Bdp(f64),
}

impl Queue {
    /// Reads `1bdp`, `250k`, `4M` or bytes.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let error = || format!("`{text}` is no queue: say for example 1bdp, 250k or 4M (bytes)");
        let lower = text.to_ascii_lowercase();
        if let Some(times) = lower.strip_suffix("bdp") {
            let times = if times.is_empty() { "1" } else { times };
            let times: f64 = times.parse().map_err(|_| error())?;
            return if (0.0..=100.0).contains(&times) {
                Ok(Self::Bdp(times))
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
    /// Bits a second, counted in Ethernet frames without check sequence; 0 for no limit.
    pub(crate) rate: u64,
    /// From the end of the queue to the other side.
    pub(crate) delay: Duration,
    /// The delay of a frame lies within this much below and above `delay`.
    pub(crate) jitter: Duration,
    /// Whether jitter may change the order of frames.
    pub(crate) reorder: bool,
    /// Applied behind the queue: lost frames have used the link.
    pub(crate) loss: Loss,
    /// Share of frames that arrive twice.
    pub(crate) duplicate: f64,
    /// Share of frames that arrive with one byte changed.
    pub(crate) corrupt: f64,
    /// Whether nothing passes at all.
    pub(crate) black_hole: bool,
    /// The FIFO before the link.
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

/// A link: what it does towards `b` and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// Towards `b`.
    pub(crate) forward: Direction,
    /// Towards `a`.
    pub(crate) backward: Direction,
}

impl Link {
    /// The delay there and back.
    pub(crate) fn round_trip(&self) -> Duration {
        self.forward.delay + self.backward.delay
    }

    /// The bytes that the queue of a direction holds.
    pub(crate) fn queue_bytes(&self, direction: &Direction) -> u64 {
        match direction.queue {
            Queue::Bytes(bytes) => bytes,
            Queue::Bdp(_) if direction.rate == 0 => 64 << 20,
            Queue::Bdp(times) => {
                let bdp = direction.rate as f64 / 8.0 * self.round_trip().as_secs_f64();
                ((times * bdp) as u64).max(LEAST_QUEUE)
            }
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} one way, loss {}",
            rate_text(self.rate),
            time_text(self.delay),
            self.loss
        )?;
        match self.queue {
            Queue::Bytes(bytes) => write!(f, ", queue {bytes} bytes")?,
            Queue::Bdp(times) => write!(f, ", queue {times} BDP")?,
        }
        if !self.jitter.is_zero() {
            let order = if self.reorder { " with reordering" } else { "" };
            write!(f, ", jitter +-{}{order}", time_text(self.jitter))?;
        }
        if self.duplicate > 0.0 {
            write!(f, ", {} % twice", percent(self.duplicate))?;
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

/// Changes to a link; what is not said stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Changes {
    pub(crate) rate: Option<Both<u64>>,
    pub(crate) delay: Option<Both<Duration>>,
    pub(crate) jitter: Option<Both<Duration>>,
    pub(crate) reorder: Option<bool>,
    pub(crate) loss: Option<Both<Loss>>,
    pub(crate) duplicate: Option<Both<f64>>,
    pub(crate) corrupt: Option<Both<f64>>,
    pub(crate) black_hole: Option<bool>,
    pub(crate) queue: Option<Both<Queue>>,
}

impl Changes {
    /// Applies the changes to `link`.
    pub(crate) fn apply(&self, link: &mut Link) {
        fn put<T: Clone>(change: &Option<Both<T>>, forward: &mut T, backward: &mut T) {
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
    fn a_queue_of_one_bdp_is_rate_times_round_trip() {
        let link = Link::default();
        assert_eq!(link.queue_bytes(&link.forward), 12_500_000);
        let direction = Direction { queue: Queue::Bytes(5), ..Direction::default() };
        assert_eq!(link.queue_bytes(&direction), 5);
    }

    #[test]
    fn queues_and_losses_are_read() {
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
    fn changes_leave_the_rest_alone() {
        let mut link = Link::default();
        let loss = Both { forward: Loss::Independent(0.2), backward: Loss::Independent(0.0) };
        Changes { loss: Some(loss), ..Changes::default() }.apply(&mut link);
        assert_eq!(link.forward.loss, Loss::Independent(0.2));
        assert_eq!(link.backward.loss, Loss::Independent(0.0));
        assert_eq!(link.forward.rate, Direction::default().rate);
    }
}
