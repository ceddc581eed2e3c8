//! A cell: links, flows and how long they run.

use core::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::CongestionAlgorithm;

/// A controller that is judged, or that competes.
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
    /// Plain datagrams at the rate of the flow's work, without congestion control.
    Udp,
}

/// The peers that our controllers are compared with.
pub const PEERS: [Algorithm; 5] = [
    Algorithm::Cubic,
    Algorithm::Reno,
    Algorithm::Bbr1,
    Algorithm::Bare(CongestionAlgorithm::Bbr3),
    Algorithm::Copa,
];

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
            Self::Udp => "udp".into(),
        }
    }

    /// The algorithm of this name: a controller of the protocol (BRTP), `btp/` or `tcp/` before one, the
    /// name of a model of TCP, or `udp`.
    ///
    /// # Errors
    /// An error with the known names.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn parse(name: &str) -> Result<Self, String> {
        let controller = |inner: &str| {
            inner
                .parse::<CongestionAlgorithm>()
                .map_err(|error| format!("algorithm {name}: {error}"))
        };
        Ok(match name {
            "tcp/cubic" => Self::Cubic,
            "tcp/reno" => Self::Reno,
            "tcp/bbr1" => Self::Bbr1,
            "tcp/copa" => Self::Copa,
            "udp" => Self::Udp,
            other => match (other.strip_prefix("tcp/"), other.strip_prefix("btp/")) {
                (Some(inner), _) => Self::Bare(controller(inner)?),
                (_, Some(inner)) => Self::Btp(controller(inner)?),
                _ => Self::Brtp(controller(other)?),
            },
        })
    }

    /// Whether it is judged: a protocol of this project, not a peer.
    pub fn is_judged(self) -> bool {
        matches!(self, Self::Brtp(_) | Self::Btp(_))
    }

    /// The algorithm of media flows when this one is judged: BTP with the same controller; for peers the
    /// default one.
    pub fn of_media(self) -> Self {
        match self {
            Self::Brtp(controller) | Self::Btp(controller) => Self::Btp(controller),
            _ => Self::Btp(CongestionAlgorithm::default()),
        }
    }
}

/// Role of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who {
    /// The judged algorithm.
    Subject,
    /// Messages with deadlines under the controller that is judged; see [`Algorithm::of_media`].
    SubjectMedia,
    /// Always this one.
    Fixed(Algorithm),
}

/// Load of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Unlimited.
    Bulk,
    /// A number of bytes.
    Bytes(u64),
    /// Bits per second in messages of so many bytes.
    Rate {
        /// Bits per second of messages.
        bits_per_second: f64,
        /// Bytes of a message, at least 8.
        message: usize,
    },
    /// Application-limited to this many bits per second, then unlimited.
    RateThenBulk {
        /// Bits per second of messages at first.
        bits_per_second: f64,
        /// From the flow's start until it sends all that it can.
        after: Duration,
    },
}

/// A flow of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowSpec {
    /// Which algorithm.
    pub who: Who,
    /// Its load.
    pub work: Work,
    /// When it begins.
    pub start: Duration,
    /// When it ends, if before the run does.
    pub end: Option<Duration>,
    /// Sends against the direction of the others.
    pub reverse: bool,
}

impl FlowSpec {
    /// A bulk transfer of the subject from the beginning.
    pub fn subject() -> Self {
        Self {
            who: Who::Subject,
            work: Work::Bulk,
            start: Duration::ZERO,
            end: None,
            reverse: false,
        }
    }

    /// A bulk transfer of `algorithm`.
    pub fn competing(algorithm: Algorithm) -> Self {
        Self { who: Who::Fixed(algorithm), ..Self::subject() }
    }

    /// The same, begun at `start`.
    pub fn from(self, start: Duration) -> Self {
        Self { start, ..self }
    }

    /// The same against the direction of the others.
    pub fn reversed(self) -> Self {
        Self { reverse: true, ..self }
    }
}

/// One hop: both directions of a link, and their changes.
#[derive(Clone, Debug)]
pub struct Hop {
    /// The direction of the data.
    pub up: LinkConfig,
    /// The other one.
    pub down: LinkConfig,
}

/// The hops that a flow's data crosses, in order: their index, and whether in the hop's own direction.
pub type Route = Vec<(usize, bool)>;

/// A change of a direction of a hop while a cell runs.
#[derive(Clone, Debug)]
pub struct Change {
    /// From the start of the run.
    pub at: Duration,
    /// Index of the hop.
    pub hop: usize,
    /// Against the direction of the data.
    pub reverse: bool,
    /// From then on.
    pub link: LinkConfig,
}

/// A cell of the arena.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Short name, such as `F1`.
    pub name: String,
    /// One-line description.
    pub title: String,
    /// The links. Flows without a route cross all of them in order.
    pub hops: Vec<Hop>,
    /// Changes of the links.
    pub changes: Vec<Change>,
    /// The flows that share it.
    pub flows: Vec<FlowSpec>,
    /// Routes of flows by their index, where they are not all hops in order.
    pub routes: Vec<Option<Route>>,
    /// Nodes between hops recode and repair the losses of their hop where a single flow of BRTP is
    /// judged; otherwise they forward packets as routers do.
    pub relays: bool,
    /// The models of TCP are ECN-capable (RFC 3168).
    pub tcp_ecn: bool,
    /// The time that counts begins this long after the start.
    pub warm_up: Duration,
    /// And lasts so long.
    pub measure: Duration,
}

impl Cell {
    /// A cell of these hops and flows: 10 s to settle, 30 s that count.
    pub fn new(hops: Vec<Hop>, flows: Vec<FlowSpec>) -> Self {
        Self {
            name: String::new(),
            title: String::new(),
            hops,
            changes: Vec::new(),
            flows,
            routes: Vec::new(),
            relays: false,
            tcp_ecn: false,
            warm_up: Duration::from_secs(10),
            measure: Duration::from_secs(30),
        }
    }

    /// The hops that the data of a flow crosses.
    pub fn route(&self, flow: usize) -> Route {
        let given = self.routes.get(flow).cloned().flatten();
        let route = given.unwrap_or_else(|| (0..self.hops.len()).map(|hop| (hop, true)).collect());
        let is_reverse = self.flows.get(flow).is_some_and(|flow| flow.reverse);
        if is_reverse { opposite(&route) } else { route }
    }

    /// The link at a position of a route, with its initial settings.
    pub fn link(&self, (hop, is_forward): (usize, bool)) -> &LinkConfig {
        if is_forward { &self.hops[hop].up } else { &self.hops[hop].down }
    }

    /// Propagation delay of a route in one direction.
    pub fn delay(&self, route: &[(usize, bool)]) -> Duration {
        route.iter().map(|&at| self.link(at).delay).sum()
    }

    /// Propagation delay of a flow's route in both directions.
    pub fn rtt(&self, flow: usize) -> Duration {
        let route = self.route(flow);
        self.delay(&route) + self.delay(&opposite(&route))
    }

    /// Whether a flow is the one that is judged.
    pub fn is_subject(&self, flow: usize) -> bool {
        matches!(self.flows[flow].who, Who::Subject | Who::SubjectMedia)
    }
}

/// The same route in the other direction.
pub fn opposite(route: &[(usize, bool)]) -> Route {
    route.iter().rev().map(|&(hop, is_forward)| (hop, !is_forward)).collect()
}
