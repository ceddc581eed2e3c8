//! A cell: links, flows and how long they run.

use core::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::CongestionAlgorithm;

/// A controller that is judged, or one that competes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// BRTP with this controller: coded, encrypted, over real endpoints.
    Brtp(CongestionAlgorithm),
    /// BTP with this controller.
    Btp(CongestionAlgorithm),
    /// The model of TCP with a controller of the protocol: the algorithm without coding.
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

/// Who a flow is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who {
    /// The algorithm that is judged.
    Subject,
    /// Always this one.
    Fixed(Algorithm),
}

/// What a flow sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// As much as it can.
    Bulk,
    /// So many bytes.
    Bytes(u64),
    /// Bits per second in messages of so many bytes.
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
    /// When it begins.
    pub start: Duration,
    /// Sends against the direction of the others.
    pub reverse: bool,
}

impl FlowSpec {
    /// A bulk transfer of the subject from the beginning.
    pub fn subject() -> Self {
        Self { who: Who::Subject, work: Work::Bulk, start: Duration::ZERO, reverse: false }
    }

    /// A bulk transfer of `algorithm`.
    pub fn competing(algorithm: Algorithm) -> Self {
        Self { who: Who::Fixed(algorithm), ..Self::subject() }
    }

    /// The same, begun at `start`.
    pub fn from(self, start: Duration) -> Self {
        Self { start, ..self }
    }
}

/// One hop: both directions of a link, and what becomes of them.
#[derive(Clone, Debug)]
pub struct Hop {
    /// The direction of the data.
    pub up: LinkConfig,
    /// The other one.
    pub down: LinkConfig,
}

/// A cell of the arena.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Short name, such as `F1`.
    pub name: String,
    /// What it is, in a few words.
    pub title: String,
    /// The links in the direction of the data.
    pub hops: Vec<Hop>,
    /// Changes of a hop's direction of the data: when, which, and to what.
    pub changes: Vec<(Duration, usize, LinkConfig)>,
    /// Who shares it.
    pub flows: Vec<FlowSpec>,
    /// The time that counts begins this long after the start.
    pub warm_up: Duration,
    /// And lasts so long.
    pub measure: Duration,
}
