//! Settings of a link, for one direction and for both.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fmt;
use std::time::Duration;

mod delay_schedule;
mod discipline;
mod elements;
mod loss;
pub(crate) mod quantities;
mod rate_schedule;
mod trace;

use serde::{Deserialize, Serialize};

pub(crate) use delay_schedule::DelaySchedule;
pub(crate) use discipline::Discipline;
pub(crate) use elements::{
    AckThinning, AlternateLoss, Contention, ElementChanges, Elements, Fade, Holes, OrNone, Policer,
    Slots,
};
pub(crate) use loss::Loss;
pub(crate) use rate_schedule::RateSchedule;
pub(crate) use trace::TraceFile;

use crate::units::{self, PerDirection, rate_text, time_text};

/// Minimum queue in bytes: even a link without delay must absorb a burst.
const MIN_QUEUE_BYTES: u64 = 64 * 1024;

/// A fraction in percent, rounded.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The queue in front of the link.
    pub(crate) queue: Queue,
    /// Elements that few links have.
    #[serde(default, skip_serializing_if = "Elements::is_empty")]
    pub(crate) elements: Elements,
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
            elements: Elements::default(),
        }
    }
}

impl Direction {
    /// No rate limit, delay or loss.
    pub(crate) fn unrestricted() -> Self {
        Self { rate: 0, delay: Duration::ZERO, loss: Loss::Independent(0.0), ..Self::default() }
    }

    /// Mean rate in bits per second over a cycle of the schedule, if there is one; 0 for no limit.
    pub(crate) fn mean_rate(&self) -> u64 {
        self.elements.rate_schedule.as_ref().map_or(self.rate, RateSchedule::mean_bps)
    }

    /// Whether there is a rate limit.
    pub(crate) fn has_rate(&self) -> bool {
        self.rate > 0 || self.elements.rate_schedule.is_some()
    }

    /// Upper bound in bits per second of what passes between two times, in seconds from the start of
    /// the schedules; infinite without a limit.
    pub(crate) fn capacity(&self, from: f64, to: f64) -> f64 {
        let rate = match &self.elements.rate_schedule {
            Some(schedule) => schedule.mean_between(from, to),
            None if self.rate > 0 => self.rate as f64,
            None => f64::INFINITY,
        };
        let policed = self.elements.policer.as_ref().map_or(f64::INFINITY, |policer| {
            let burst = policer.burst.0 as f64 * 8.0 / (to - from).max(1e-3);
            policer.rate.0 as f64 + if policer.per_flow { f64::INFINITY } else { burst }
        });
        // Full frames of 1514 bytes are charged as 1538.
        let share = if self.elements.ethernet_overhead { 1514.0 / 1538.0 } else { 1.0 };
        rate.min(policed) * share
    }

    /// Fraction of the frames behind the queue that arrive in the long run.
    pub(crate) fn delivered(&self) -> f64 {
        if self.black_hole {
            return 0.0;
        }
        (1.0 - self.elements.mean_loss(&self.loss)) * (1.0 - self.elements.in_holes())
    }

    /// Whether rate, delay and loss are the same at any time, so that a short measurement can verify
    /// them.
    pub(crate) fn is_steady(&self) -> bool {
        self.elements.is_steady()
    }
}

/// A link in both directions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// Towards `b`.
    pub(crate) forward: Direction,
    /// Towards `a`.
    pub(crate) backward: Direction,
}

impl Link {
    /// Sum of the delays of both directions.
    pub(crate) fn round_trip(&self) -> Duration {
        self.forward.delay.saturating_add(self.backward.delay)
    }

    /// Capacity in bytes of the queue of a direction.
    pub(crate) fn queue_bytes(&self, direction: &Direction) -> u64 {
        match direction.queue {
            Queue::Bytes(bytes) => bytes,
            Queue::Bdp(_) if !direction.has_rate() => 64 << 20,
            Queue::Bdp(multiple) => {
                let bdp = direction.mean_rate() as f64 / 8.0 * self.round_trip().as_secs_f64();
                ((multiple * bdp) as u64).max(MIN_QUEUE_BYTES)
            }
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = match &self.elements.rate_schedule {
            Some(schedule) => schedule.to_string(),
            None => rate_text(self.rate),
        };
        write!(f, "{rate}, one-way delay {}, loss {}", time_text(self.delay), self.loss)?;
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
        write!(f, "{}", self.elements)
    }
}

/// Changes to one direction of a link; `None` leaves a setting unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DirectionChanges {
    pub(crate) rate: Option<u64>,
    pub(crate) delay: Option<Duration>,
    pub(crate) jitter: Option<Duration>,
    pub(crate) reorder: Option<bool>,
    pub(crate) loss: Option<Loss>,
    pub(crate) duplicate: Option<f64>,
    pub(crate) corrupt: Option<f64>,
    pub(crate) black_hole: Option<bool>,
    pub(crate) queue: Option<Queue>,
    pub(crate) elements: ElementChanges,
}

impl DirectionChanges {
    /// Applies the changes to `direction`.
    pub(crate) fn apply(&self, direction: &mut Direction) {
        fn put<T: Copy>(change: Option<T>, setting: &mut T) {
            *setting = change.unwrap_or(*setting);
        }
        put(self.rate, &mut direction.rate);
        if self.rate.is_some() {
            // A fixed rate replaces a schedule.
            direction.elements.rate_schedule = None;
        }
        put(self.delay, &mut direction.delay);
        put(self.jitter, &mut direction.jitter);
        put(self.reorder, &mut direction.reorder);
        put(self.loss, &mut direction.loss);
        put(self.duplicate, &mut direction.duplicate);
        put(self.corrupt, &mut direction.corrupt);
        put(self.black_hole, &mut direction.black_hole);
        put(self.queue, &mut direction.queue);
        self.elements.apply(&mut direction.elements);
    }

    /// Adds the settings of `other`, which replace those of `self`.
    pub(crate) fn extend(&mut self, other: Self) {
        let Self {
            rate,
            delay,
            jitter,
            reorder,
            loss,
            duplicate,
            corrupt,
            black_hole,
            queue,
            elements,
        } = other;
        self.rate = rate.or(self.rate);
        self.delay = delay.or(self.delay);
        self.jitter = jitter.or(self.jitter);
        self.reorder = reorder.or(self.reorder);
        self.loss = loss.or(self.loss);
        self.duplicate = duplicate.or(self.duplicate);
        self.corrupt = corrupt.or(self.corrupt);
        self.black_hole = black_hole.or(self.black_hole);
        self.queue = queue.or(self.queue);
        self.elements.extend(elements);
    }
}

/// Changes to a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Changes {
    pub(crate) forward: DirectionChanges,
    pub(crate) backward: DirectionChanges,
}

impl Changes {
    /// Applies the changes to `link`.
    pub(crate) fn apply(&self, link: &mut Link) {
        self.forward.apply(&mut link.forward);
        self.backward.apply(&mut link.backward);
    }

    /// Sets a setting of both directions.
    pub(crate) fn set<T: Clone>(
        &mut self,
        value: Option<PerDirection<T>>,
        setting: fn(&mut DirectionChanges) -> &mut Option<T>,
    ) {
        if let Some(PerDirection { forward, backward }) = value {
            *setting(&mut self.forward) = Some(forward);
            *setting(&mut self.backward) = Some(backward);
        }
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.forward == self.backward {
            return write!(f, "{}", self.forward);
        }
        let [forward, backward] = [&self.forward, &self.backward].map(ToString::to_string);
        match (forward.as_str(), backward.as_str()) {
            (forward, "") => write!(f, "forward {forward}"),
            ("", backward) => write!(f, "backward {backward}"),
            _ => write!(f, "forward {forward}; backward {backward}"),
        }
    }
}

impl fmt::Display for DirectionChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = |is_on: bool| if is_on { "on" } else { "off" };
        let parts = [
            self.rate.map(|rate| format!("rate {}", rate_text(rate))),
            self.delay.map(|delay| format!("delay {}", time_text(delay))),
            self.jitter.map(|jitter| format!("jitter +-{}", time_text(jitter))),
            self.reorder.map(|is_on| format!("reordering {}", on(is_on))),
            self.loss.map(|loss| format!("loss {loss}")),
            self.duplicate.map(|share| format!("{} % duplicated", percent(share))),
            self.corrupt.map(|share| format!("{} % corrupted", percent(share))),
            self.black_hole.map(|is_on| format!("black hole {}", on(is_on))),
            self.queue.map(|queue| match queue {
                Queue::Bytes(bytes) => format!("queue {bytes} bytes"),
                Queue::Bdp(multiple) => format!("queue {multiple} BDP"),
            }),
        ];
        let parts: Vec<String> =
            parts.into_iter().flatten().chain(self.elements.describe()).collect();
        f.write_str(&parts.join(", "))
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
    fn queue_sizes_are_parsed() {
        assert_eq!(Queue::parse("1bdp"), Ok(Queue::Bdp(1.0)));
        assert_eq!(Queue::parse("0.5bdp"), Ok(Queue::Bdp(0.5)));
        assert_eq!(Queue::parse("250k"), Ok(Queue::Bytes(250_000)));
        assert!(Queue::parse("-1bdp").is_err() && Queue::parse("0").is_err());
    }

    #[test]
    fn changes_leave_other_settings_unchanged() {
        let mut link = Link::default();
        let loss =
            PerDirection { forward: Loss::Independent(0.2), backward: Loss::Independent(0.0) };
        let mut changes = Changes::default();
        changes.set(Some(loss), |one| &mut one.loss);
        changes.apply(&mut link);
        assert_eq!(link.forward.loss, Loss::Independent(0.2));
        assert_eq!(link.backward.loss, Loss::Independent(0.0));
        assert_eq!(link.forward.rate, Direction::default().rate);
    }
}
