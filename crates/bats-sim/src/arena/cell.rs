//! A cell: links, flows and duration.

use core::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::CongestionAlgorithm;

/// A controller under test, or one that competes with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// BRTP with this controller: coded, encrypted, over real endpoints.
    Brtp(CongestionAlgorithm),
    /// BTP with this controller.
    Btp(CongestionAlgorithm),
    /// The TCP model with a controller of this project: the algorithm without coding.
    Bare(CongestionAlgorithm),
    /// The model of TCP Reno.
    Reno,
    /// The model of TCP CUBIC.
    Cubic,
    /// The model of TCP BBRv1.
    Bbr1,
    /// The model of Copa.
    Copa,
}

impl Algorithm {
    /// Name in tables.
    pub fn name(self) -> String {
        match self {
            Self::Brtp(algorithm) => format!("{algorithm}"),
            Self::Btp(algorithm) => format!("btp/{algorithm}"),
            Self::Bare(algorithm) => format!("tcp/{algorithm}"),
            Self::Reno => "tcp/reno".into(),
            Self::Cubic => "tcp/cubic".into(),
            Self::Bbr1 => "tcp/bbr1".into(),
            Self::Copa => "tcp/copa".into(),
        }
    }
}

/// The algorithm of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who {
    /// The algorithm under test.
    Subject,
    /// This algorithm.
    Fixed(Algorithm),
}

/// Traffic of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Unlimited.
    Bulk,
    /// This many bytes.
    Bytes(u64),
    /// Bits per second in messages of this size.
    Rate {
        /// Bits per second of messages.
        bits_per_second: f64,
        /// Bytes of a message, at least 8.
        message: usize,
    },
}

/// A flow of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowSpec {
    /// Which algorithm.
    pub who: Who,
    /// What it sends.
    pub work: Work,
    /// Start time.
    pub start: Duration,
    /// Sends in the opposite direction.
    pub reverse: bool,
}

impl FlowSpec {
    /// A bulk transfer of the algorithm under test, from the start.
    pub fn subject() -> Self {
        Self { who: Who::Subject, work: Work::Bulk, start: Duration::ZERO, reverse: false }
    }

    /// A bulk transfer of `algorithm`.
    pub fn competing(algorithm: Algorithm) -> Self {
        Self { who: Who::Fixed(algorithm), ..Self::subject() }
    }

    /// The same flow, started at `start`.
    pub fn from(self, start: Duration) -> Self {
        Self { start, ..self }
    }
}

/// One hop: both directions of a link, and the changes of their configuration.
#[derive(Clone, Debug)]
pub struct Hop {
    /// The data direction.
    pub up: LinkConfig,
    /// The reverse direction.
    pub down: LinkConfig,
}

/// A cell of the arena.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Short name such as `F1`.
    pub name: String,
    /// Description in a few words.
    pub title: String,
    /// The links in the data direction.
    pub hops: Vec<Hop>,
    /// Changes of the data direction of a hop: time, hop and new configuration.
    pub changes: Vec<(Duration, usize, LinkConfig)>,
    /// The flows that share it.
    pub flows: Vec<FlowSpec>,
    /// Start of the measurement, after the start of the run.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub measure: Duration,
}
