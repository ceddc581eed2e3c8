//! Goals of cells: what is measured, and the bound that it has to keep.

use core::fmt;

/// The figure that a goal bounds. All except the first group compare a run with other runs of the same
/// cell and seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Goodput over the optimum.
    Efficiency,
    /// Goodput over the optimum in the first ten seconds.
    First10s,
    /// 95th percentile of the standing queue in BDP.
    Queue,
    /// Packets dropped by queues and policers.
    Drops,
    /// Packets dropped before the measured time.
    StartDrops,
    /// Jain's index.
    Jain,
    /// Share of the goodput of all flows.
    Share,
    /// Share of the goodput over the fair share.
    OfFairShare,
    /// Share of the flow that began last, over its fair share.
    Latecomer,
    /// 95th percentile of the delay of messages in ms.
    MediaP95,
    /// Non-innovative packets.
    NonInnovative,
    /// Queue before a relay's hop in BDP.
    RelayQueue,
    /// Goodput over that of the best peer.
    OfBestPeer,
    /// Queue less that of the best peer, in BDP.
    QueueOverPeer,
    /// Goodput over that of CUBIC.
    OfCubic,
    /// 95th percentile of the one-way delay over that with CUBIC.
    DelayOfCubic,
    /// Time to completion of short flows over that with CUBIC.
    CompletionOfCubic,
    /// Drops less those with BBRv3.
    DropsOverBbr3,
    /// Harm to the competing flows less that of one more CUBIC.
    HarmOverCubic,
}

/// Other runs that a measure needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// All peers.
    Peers,
    /// The model of TCP CUBIC.
    Cubic,
    /// The model of TCP BBRv3.
    Bbr3,
    /// The model of TCP CUBIC, and the cell without the judged flows.
    CubicAndAbsence,
}

impl Measure {
    /// The runs that it relates to.
    pub fn reference(self) -> Option<Reference> {
        match self {
            Self::OfBestPeer | Self::QueueOverPeer => Some(Reference::Peers),
            Self::OfCubic | Self::DelayOfCubic | Self::CompletionOfCubic => Some(Reference::Cubic),
            Self::DropsOverBbr3 => Some(Reference::Bbr3),
            Self::HarmOverCubic => Some(Reference::CubicAndAbsence),
            _ => None,
        }
    }

    /// Name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Efficiency => "E",
            Self::First10s => "E of 10 s",
            Self::Queue => "queue p95 (BDP)",
            Self::Drops => "drops",
            Self::StartDrops => "start-up drops",
            Self::Jain => "Jain",
            Self::Share => "share",
            Self::OfFairShare => "of fair share",
            Self::Latecomer => "latecomer",
            Self::MediaP95 => "media p95 (ms)",
            Self::NonInnovative => "non-innovative",
            Self::RelayQueue => "relay queue (BDP)",
            Self::OfBestPeer => "of best peer",
            Self::QueueOverPeer => "queue over peer's (BDP)",
            Self::OfCubic => "of CUBIC",
            Self::DelayOfCubic => "delay of CUBIC's",
            Self::CompletionOfCubic => "completion of CUBIC's",
            Self::DropsOverBbr3 => "drops over BBRv3's",
            Self::HarmOverCubic => "harm over CUBIC's",
        }
    }

    /// Whether it is a share of packets, which tables show in per cent.
    fn is_percent(self) -> bool {
        matches!(self, Self::Drops | Self::NonInnovative | Self::DropsOverBbr3)
    }

    /// A value of it as text.
    pub fn text(self, value: f64) -> String {
        match self {
            _ if self.is_percent() => format!("{} %", (value * 1e4).round() / 1e2),
            Self::StartDrops => format!("{value:.0}"),
            Self::MediaP95 => format!("{value:.1}"),
            _ => format!("{value:.3}"),
        }
    }
}

/// A bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Between the two.
    Within(f64, f64),
    /// `weak` or more where the best peer's goodput over the optimum is below `below`, otherwise `strong`.
    ByPeer {
        /// Goodput over the optimum that separates the two.
        below: f64,
        /// Bound where the best peer is weaker.
        weak: f64,
        /// Bound where it is not.
        strong: f64,
    },
}

impl Bound {
    /// The bound for this goodput of the best peer over the optimum.
    pub fn of_peer(self, peer: Option<f64>) -> Self {
        match self {
            Self::ByPeer { below, weak, .. } if peer.is_some_and(|peer| peer < below) => {
                Self::AtLeast(weak)
            }
            Self::ByPeer { strong, .. } => Self::AtLeast(strong),
            other => other,
        }
    }

    /// How far a value is outside, relative to the bound; zero or less if it keeps it. What is not known
    /// misses.
    pub fn shortfall(self, value: Option<f64>) -> f64 {
        let Some(value) = value.filter(|value| value.is_finite()) else { return f64::INFINITY };
        let scale = |bound: f64| bound.abs().max(0.01);
        match self {
            Self::AtLeast(bound) | Self::ByPeer { strong: bound, .. } => {
                (bound - value) / scale(bound)
            }
            Self::AtMost(bound) => (value - bound) / scale(bound),
            Self::Within(low, high) => {
                ((low - value) / scale(low)).max((value - high) / scale(high))
            }
        }
    }
}

/// A bound of a measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// The bounded figure.
    pub measure: Measure,
    /// The bound.
    pub bound: Bound,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value| self.measure.text(value);
        write!(f, "{} ", self.measure.name())?;
        match self.bound {
            Bound::AtLeast(bound) => write!(f, ">= {}", text(bound)),
            Bound::AtMost(bound) => write!(f, "<= {}", text(bound)),
            Bound::Within(low, high) => write!(f, "{} to {}", text(low), text(high)),
            Bound::ByPeer { below, weak, strong } => {
                write!(f, ">= {} (>= {} where the peer has E < {below})", text(strong), text(weak))
            }
        }
    }
}

/// A goal of a cell: one of these checks must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal(pub Vec<Check>);

impl Goal {
    /// At least `bound`.
    pub fn at_least(measure: Measure, bound: f64) -> Self {
        Self(vec![Check { measure, bound: Bound::AtLeast(bound) }])
    }

    /// At most `bound`.
    pub fn at_most(measure: Measure, bound: f64) -> Self {
        Self(vec![Check { measure, bound: Bound::AtMost(bound) }])
    }

    /// This goal or the other.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, check) in self.0.iter().enumerate() {
            write!(f, "{}{check}", if index > 0 { " or " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_of_the_bound_have_a_shortfall() {
        let misses = |bound: Bound, value| bound.shortfall(Some(value)) > 0.0;
        assert!(misses(Bound::AtLeast(0.9), 0.89) && !misses(Bound::AtLeast(0.9), 0.9));
        assert!(misses(Bound::AtMost(0.02), 0.021) && !misses(Bound::AtMost(0.0), -1.0));
        let within = Bound::Within(0.35, 0.65);
        assert!(misses(within, 0.34) && misses(within, 0.66) && !misses(within, 0.5));
        assert_eq!(Bound::AtMost(1.0).shortfall(None), f64::INFINITY);
        assert_eq!(Bound::AtMost(1.0).shortfall(Some(f64::NAN)), f64::INFINITY);
    }

    #[test]
    fn the_bound_follows_the_strength_of_the_peer() {
        let bound = Bound::ByPeer { below: 0.7, weak: 1.3, strong: 1.0 };
        assert_eq!(bound.of_peer(Some(0.3)), Bound::AtLeast(1.3));
        assert_eq!(bound.of_peer(Some(0.7)), Bound::AtLeast(1.0));
    }

    #[test]
    fn goals_read_as_a_sentence() {
        let goal = Goal(vec![Check { measure: Measure::Share, bound: Bound::Within(0.35, 0.65) }])
            .or(Goal::at_most(Measure::HarmOverCubic, 0.05));
        assert_eq!(goal.to_string(), "share 0.350 to 0.650 or harm over CUBIC's <= 0.050");
        assert_eq!(Goal::at_most(Measure::Drops, 0.001).to_string(), "drops <= 0.1 %");
    }
}
