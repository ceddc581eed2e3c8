use core::time::Duration;

use bats_types::Timestamp;

use crate::rate::HIGHEST;
use crate::{
    AckThinning, AlternateLoss, ConfigError, Contention, DelaySchedule, Discipline, Fade, Holes,
    Jitter, Loss, Policer, RateSchedule, Slots,
};

/// Bytes that Ethernet adds to an IP packet: header 14, FCS 4, preamble and start of frame 8, gap
/// 12 (IEEE 802.3). A packet of 1,500 bytes takes the transmission time of 1,538 bytes.
pub const ETHERNET_OVERHEAD: usize = 38;
/// Bytes of the headers of IPv4 and UDP before a UDP payload.
pub const IPV4_UDP_HEADERS: usize = 28;
/// Bytes of the headers of IPv6 and UDP before a UDP payload.
pub const IPV6_UDP_HEADERS: usize = 48;

/// Configuration of a link in one direction. It may change while the link runs.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Rate in bits per second of whole frames; `None` for unlimited. 0 counts as 1 bit/s; use
    /// `rate_schedule` for a link that stops.
    pub rate_bps: Option<u64>,
    /// A rate that changes with time. Replaces `rate_bps`.
    pub rate_schedule: Option<RateSchedule>,
    /// Queue limit in bytes, including the frame in transmission; `None` for unlimited.
    pub queue_bytes: Option<usize>,
    /// Queue limit in frames, including the frame in transmission; `None` for unlimited.
    pub queue_packets: Option<usize>,
    /// Queue discipline.
    pub discipline: Discipline,
    /// A token-bucket policer before the queue.
    pub policer: Option<Policer>,
    /// Thinning of acknowledgements before policer and queue.
    pub thinning: Option<AckThinning>,
    /// One-way delay.
    pub delay: Duration,
    /// Additional delay that changes with time.
    pub delay_schedule: Option<DelaySchedule>,
    /// Additional delay by flow: flow f gets entry f modulo the number of entries. Packets with
    /// different entries may overtake one another.
    pub flow_delays: Vec<Duration>,
    /// Variation of the delay.
    pub jitter: Option<Jitter>,
    /// Contention for a shared medium, as additional delay.
    pub contention: Option<Contention>,
    /// Delivery in batches at slot boundaries.
    pub slots: Option<Slots>,
    /// Loss model, applied after the queue: lost frames have used link capacity.
    pub loss: Loss,
    /// A second loss model that alternates with `loss`.
    pub alternate_loss: Option<AlternateLoss>,
    /// Periods of time in which all packets are lost.
    pub holes: Option<Holes>,
    /// Loss that depends on the current rate.
    pub fade: Option<Fade>,
    /// Fraction of packets delivered twice.
    pub duplicate: f64,
    /// Fraction of packets with one corrupted byte.
    pub corrupt: f64,
    /// MTU: longer packets are dropped.
    pub mtu: Option<usize>,
    /// Drop all packets.
    pub black_hole: bool,
    /// Bytes that a frame has in addition to the packet, for the rate: 42 for UDP payload over IPv4
    /// and Ethernet, 66 ([`IPV4_UDP_HEADERS`] + [`ETHERNET_OVERHEAD`]) with preamble, FCS and gap.
    pub frame_overhead: usize,
    /// Packets are marked with ECN-CE on entry if more bytes than this are queued.
    pub mark_threshold: Option<usize>,
    /// Origin of time for schedules, holes, alternating loss models and slots.
    pub epoch: Timestamp,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            rate_bps: None,
            rate_schedule: None,
            queue_bytes: None,
            queue_packets: None,
            discipline: Discipline::DropTail,
            policer: None,
            thinning: None,
            delay: Duration::ZERO,
            delay_schedule: None,
            flow_delays: Vec::new(),
            jitter: None,
            contention: None,
            slots: None,
            loss: Loss::None,
            alternate_loss: None,
            holes: None,
            fade: None,
            duplicate: 0.0,
            corrupt: 0.0,
            mtu: None,
            black_hole: false,
            frame_overhead: 0,
            mark_threshold: None,
            epoch: Timestamp::ZERO,
        }
    }
}

/// Larger than the overhead of any frame; larger values are clamped to it.
pub(crate) const MAX_OVERHEAD: usize = 65_536;
/// Longest delay accepted: one hour.
const MAX_DELAY: Duration = Duration::from_secs(3_600);

impl LinkConfig {
    /// The queue length in bytes of `bdps` BDP, for a path with the RTT `rtt`.
    pub fn queue_for(rate_bps: u64, rtt: Duration, bdps: f64) -> usize {
        (rate_bps as f64 / 8.0 * rtt.as_secs_f64() * bdps) as usize
    }

    /// A link with a constant rate in bit/s and a one-way delay.
    pub fn with_rate(rate_bps: u64, delay: Duration) -> Self {
        Self { rate_bps: Some(rate_bps), delay, ..Self::default() }
    }

    /// A link with a changing rate and a one-way delay.
    pub fn with_schedule(schedule: RateSchedule, delay: Duration) -> Self {
        Self { rate_schedule: Some(schedule), delay, ..Self::default() }
    }

    /// The same link with a queue of this many bytes and this queue discipline.
    #[must_use]
    pub fn queue(self, bytes: usize, discipline: Discipline) -> Self {
        Self { queue_bytes: Some(bytes), discipline, ..self }
    }

    /// The same link with this loss.
    #[must_use]
    pub fn lossy(self, loss: Loss) -> Self {
        Self { loss, ..self }
    }

    /// Checks all settings. A link accepts any setting and clamps those that this function rejects.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let reject = |field, value: &dyn core::fmt::Debug, allowed| {
            Err(ConfigError::new(field, format_args!("{value:?}"), allowed))
        };
        let share = |p: f64| (0.0..=1.0).contains(&p);
        if self.rate_bps.is_some_and(|rate| rate > HIGHEST) {
            return reject("rate_bps", &self.rate_bps, "at most 17.5 Tbit/s");
        }
        self.validate_schedule()?;
        self.loss.validate()?;
        if let Some(AlternateLoss { loss, every }) = &self.alternate_loss {
            loss.validate()?;
            if every.is_zero() {
                return reject("alternate_loss.every", every, "above zero");
            }
        }
        for (field, p) in [("duplicate", self.duplicate), ("corrupt", self.corrupt)] {
            if !share(p) {
                return reject(field, &p, "0 to 1");
            }
        }
        if let Some(fade) = &self.fade
            && (!share(fade.loss) || fade.low_bps >= fade.high_bps)
        {
            return reject("fade", fade, "a loss of 0 to 1, and low_bps below high_bps");
        }
        if let Some(Holes::Periodic { period, length }) = &self.holes
            && length >= period
        {
            return reject("holes.length", length, "less than the period");
        }
        if let Some(Holes::Random { mean_gap, .. }) = &self.holes
            && mean_gap.is_zero()
        {
            return reject("holes.mean_gap", mean_gap, "above zero");
        }
        let jitter = self.jitter.map(|jitter| jitter.amplitude);
        let delays = self.flow_delays.iter().copied().chain([self.delay]).chain(jitter);
        if let Some(delay) = delays.max()
            && delay > MAX_DELAY
        {
            return reject("delay", &delay, "at most an hour");
        }
        if let Some(contention) = &self.contention
            && (!share(contention.long_probability)
                || !(0.0..=50.0).contains(&contention.long_mean))
        {
            return reject("contention", contention, "a share of 0 to 1 and a mean of 0 to 50");
        }
        if self.slots.is_some_and(|slots| slots.interval.is_zero()) {
            return reject("slots.interval", &self.slots, "above zero");
        }
        if self.thinning.is_some_and(|thinning| thinning.keep_one_of == 0) {
            return reject("thinning.keep_one_of", &self.thinning, "1 or more");
        }
        if self.frame_overhead > MAX_OVERHEAD {
            return reject("frame_overhead", &self.frame_overhead, "at most 65,536");
        }
        self.validate_discipline()
    }

    fn validate_schedule(&self) -> Result<(), ConfigError> {
        let least = Duration::from_millis(1);
        match &self.rate_schedule {
            None | Some(RateSchedule::Pieces(_)) => Ok(()),
            Some(RateSchedule::Lte(lte)) => {
                let is_valid = (0.0..1.0).contains(&lte.correlation)
                    && (0.0..=10.0).contains(&lte.sigma)
                    && lte.step >= least
                    && lte.floor_bps <= lte.ceiling_bps;
                let allowed = "correlation below 1, sigma of 0 to 10, steps of 1 ms and more, and a \
                               floor below the ceiling";
                if is_valid { Ok(()) } else { Err(ConfigError::new("rate_schedule", lte, allowed)) }
            }
            Some(RateSchedule::Leo(leo)) => {
                let is_valid = 0.0 <= leo.low && leo.low <= leo.high && leo.period >= least;
                let allowed = "factors of 0 and more, low up to high, and periods of 1 ms and more";
                if is_valid { Ok(()) } else { Err(ConfigError::new("rate_schedule", leo, allowed)) }
            }
        }
    }

    fn validate_discipline(&self) -> Result<(), ConfigError> {
        let codel = |codel: &crate::CoDel| !codel.target.is_zero() && !codel.interval.is_zero();
        let (is_valid, allowed) = match &self.discipline {
            Discipline::DropTail | Discipline::StepMark(_) => (true, ""),
            Discipline::CoDel(config) => (codel(config), "target and interval above zero"),
            Discipline::FqCoDel(config) => (
                codel(&config.codel)
                    && config.quantum >= 256
                    && (1..=65_536).contains(&config.flows),
                "target and interval above zero, a quantum of 256 and more, 1 to 65,536 flows",
            ),
            Discipline::Pie(config) => (
                config.update >= Duration::from_micros(100)
                    && config.alpha.is_finite()
                    && config.beta.is_finite(),
                "updates each 100 us and more, alpha and beta finite",
            ),
        };
        if is_valid {
            Ok(())
        } else {
            Err(ConfigError::new("discipline", self.discipline, allowed))
        }
    }

    /// Whether random decisions depend on the packet sequence alone, not on time, so that they can
    /// be made on entry.
    pub(crate) fn decides_on_entry(&self) -> bool {
        self.discipline == Discipline::DropTail
            && self.alternate_loss.is_none()
            && self.holes.is_none()
            && self.fade.is_none()
    }

    /// Whether the arrival time of a packet can be computed on entry.
    pub(crate) fn is_precomputable(&self) -> bool {
        self.decides_on_entry() && self.rate_schedule.is_none() && self.delay_schedule.is_none()
    }
}
