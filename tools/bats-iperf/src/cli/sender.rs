//! Options of the sender of data.

use clap::{Args, ValueEnum};
use openbats::Goal;

use super::mode::{self, Congestion};

/// Congestion control and redundancy of the data that this side sends.
#[derive(Clone, Debug, Args)]
pub(crate) struct SenderOptions {
    /// Congestion control of the data that this side sends: ltcc (the default; also called bbr), bbr3,
    /// cubic, gcc, none, or a constant rate such as 100M; in mode 12 bbr or cubic. The client's option applies to data to the server, the server's option to
    /// data from it. A client rejects a value that its mode does not support; a server, whose
    /// clients choose the mode, reports when its value is not in effect.
    #[arg(long, value_name = "NAME", value_parser = mode::parse_congestion)]
    pub(crate) congestion: Option<Congestion>,

    /// Goal of the redundancy that this side sends. As with --congestion, each side sets its own
    /// direction.
    #[arg(long, value_enum)]
    pub(crate) goal: Option<GoalName>,
}

/// Goal of the redundancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GoalName {
    /// Hide losses at the cost of a few per cent of the rate.
    Latency,
    /// Little waste in bulk, strong protection of message ends.
    Balanced,
    /// Least waste; losses may cost a round trip.
    Throughput,
}

impl GoalName {
    pub(crate) fn to_library(self) -> Goal {
        match self {
            Self::Latency => Goal::Latency,
            Self::Balanced => Goal::Balanced,
            Self::Throughput => Goal::Throughput,
        }
    }
}
