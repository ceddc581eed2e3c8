//! Elements of a link that few links have, as test files set them: policers, losses in time, slots, and
//! the schedules and disciplines of their own files. `bats-netem` implements them.
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

use bats_netem::LinkConfig;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::Loss;
use super::delay_schedule::DelaySchedule;
use super::discipline::Discipline;
use super::quantities::{Bytes, LossModel, Rate, Share, Time};
use super::rate_schedule::RateSchedule;

/// An element, or `none`, which removes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OrNone<T> {
    /// Remove it.
    None,
    /// The element.
    Set(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrNone<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OrNone<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`none`, or keys with values")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                if text == "none" {
                    return Ok(OrNone::None);
                }
                Err(E::custom(format!("`{text}` is not `none`, and no keys with values")))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(OrNone::Set)
            }
        }
        deserializer.deserialize_any(Either(std::marker::PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for OrNone<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("{}OrNone", T::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [{ "const": "none" }, one] })
    }
}

/// A token bucket in front of the queue, which drops.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Policer {
    /// Rate of the tokens.
    pub(crate) rate: Rate,
    /// Bytes that the bucket holds; it begins full.
    pub(crate) burst: Bytes,
    /// Whether each flow has a bucket of its own.
    #[serde(default)]
    pub(crate) per_flow: bool,
}

/// Of small packets of a flow that come in a row only some pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AckThinning {
    /// Of so many packets one passes.
    pub(crate) keep_one_of: u32,
    /// How long a packet is held; default: 10 ms.
    pub(crate) window: Option<Time>,
    /// IP packets of at most so many bytes are thinned; default: 120.
    pub(crate) max_size: Option<Bytes>,
}

/// Waiting for a Wi-Fi medium that is shared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contention {
    /// Jitter in all: `1ms` for little, `7ms` for a bad, `85ms` for a very bad medium.
    pub(crate) jitter: Time,
}

/// Packets arrive at slot boundaries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Slots {
    /// Distance of the boundaries.
    pub(crate) interval: Time,
    /// Packets that arrive at a boundary; default: no limit.
    pub(crate) limit: Option<u32>,
}

/// Another loss model that takes turns with `loss`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AlternateLoss {
    /// As `loss` of a link.
    pub(crate) loss: LossModel,
    /// Length of each turn; `loss` begins.
    pub(crate) every: Time,
}

/// Times in which nothing passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Holes {
    /// The last part of each period.
    Periodic(PeriodicHoles),
    /// Gaps and lengths are exponentially distributed.
    Random(RandomHoles),
}

/// Periodic holes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeriodicHoles {
    /// From the end of a hole to the end of the next.
    pub(crate) period: Time,
    /// Length of a hole.
    pub(crate) length: Time,
}

/// Random holes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RandomHoles {
    /// Mean time from a hole to the next.
    pub(crate) mean_gap: Time,
    /// Mean length of a hole.
    pub(crate) mean_length: Time,
}

/// Loss that grows as the rate falls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fade {
    /// Rate from which on there is no loss by it.
    pub(crate) high: Rate,
    /// Rate up to which the loss is full.
    pub(crate) low: Rate,
    /// The full loss.
    pub(crate) loss: Share,
}

macro_rules! elements {
    ($($field:ident: $kind:ty),* $(,)?) => {
        /// Elements of one direction of a link.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub(crate) struct Elements {
            $(#[serde(skip_serializing_if = "Option::is_none")] pub(crate) $field: Option<$kind>,)*
            /// How the queue is managed.
            pub(crate) discipline: Discipline,
            /// Further limit of the queue, in packets.
            pub(crate) queue_packets: Option<u32>,
            /// Additional delay of each flow, in turn.
            pub(crate) flow_delays: Vec<Time>,
            /// Whether preamble, check sequence and gap use the rate.
            pub(crate) ethernet_overhead: bool,
        }

        /// Changes to the elements; `None` leaves one unchanged.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub(crate) struct ElementChanges {
            $(pub(crate) $field: Option<OrNone<$kind>>,)*
            pub(crate) discipline: Option<Discipline>,
            /// 0 for no limit.
            pub(crate) queue_packets: Option<u32>,
            pub(crate) flow_delays: Option<Vec<Time>>,
            pub(crate) ethernet_overhead: Option<bool>,
        }

        impl ElementChanges {
            /// Applies the changes.
            pub(crate) fn apply(&self, elements: &mut Elements) {
                $(match &self.$field {
                    None => {}
                    Some(OrNone::None) => elements.$field = None,
                    Some(OrNone::Set(value)) => elements.$field = Some(value.clone()),
                })*
                if let Some(discipline) = &self.discipline {
                    elements.discipline = discipline.clone();
                }
                if let Some(packets) = self.queue_packets {
                    elements.queue_packets = (packets > 0).then_some(packets);
                }
                if let Some(delays) = &self.flow_delays {
                    elements.flow_delays = delays.clone();
                }
                if let Some(is_on) = self.ethernet_overhead {
                    elements.ethernet_overhead = is_on;
                }
            }

            /// Adds the settings of `other`, which replace those of `self`.
            pub(crate) fn extend(&mut self, other: Self) {
                $(if other.$field.is_some() {
                    self.$field = other.$field;
                })*
                if other.discipline.is_some() {
                    self.discipline = other.discipline;
                }
                self.queue_packets = other.queue_packets.or(self.queue_packets);
                if other.flow_delays.is_some() {
                    self.flow_delays = other.flow_delays;
                }
                self.ethernet_overhead = other.ethernet_overhead.or(self.ethernet_overhead);
            }

            /// A description of each change.
            pub(crate) fn describe(&self) -> Vec<String> {
                let mut all = Vec::new();
                $(if matches!(self.$field, Some(OrNone::None)) {
                    all.push(concat!(stringify!($field), " none").to_owned());
                })*
                let mut set = Elements::default();
                self.apply(&mut set);
                if let Some(schedule) = &set.rate_schedule {
                    all.push(schedule.to_string());
                }
                let text = set.to_string();
                if !text.is_empty() {
                    all.push(text.trim_start_matches(", ").to_owned());
                }
                if self.discipline == Some(Discipline::DropTail) {
                    all.push(Discipline::DropTail.to_string());
                }
                if self.queue_packets == Some(0) {
                    all.push("queue_packets 0".to_owned());
                }
                if self.flow_delays.as_ref().is_some_and(Vec::is_empty) {
                    all.push("flow_delays []".to_owned());
                }
                if self.ethernet_overhead == Some(false) {
                    all.push("ethernet_overhead false".to_owned());
                }
                all
            }
        }
    };
}

elements! {
    rate_schedule: RateSchedule,
    delay_schedule: DelaySchedule,
    policer: Policer,
    ack_thinning: AckThinning,
    contention: Contention,
    slots: Slots,
    alternate_loss: AlternateLoss,
    holes: Holes,
    fade: Fade,
}

/// Bytes of an Ethernet frame on the wire beyond header and payload: check sequence, preamble, gap.
const BEYOND_FRAME: usize = 24;
/// Ethernet header in bytes.
const ETHERNET: usize = 14;

impl Elements {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether nothing changes with time, drops at random or depends on the flow.
    pub(crate) fn is_steady(&self) -> bool {
        let Self {
            rate_schedule,
            delay_schedule,
            policer,
            ack_thinning,
            contention,
            slots,
            alternate_loss,
            holes,
            fade,
            discipline,
            queue_packets: _,
            flow_delays,
            ethernet_overhead,
        } = self;
        rate_schedule.is_none()
            && delay_schedule.is_none()
            && policer.is_none()
            && ack_thinning.is_none()
            && contention.is_none()
            && slots.is_none()
            && alternate_loss.is_none()
            && holes.is_none()
            && fade.is_none()
            && *discipline == Discipline::DropTail
            && flow_delays.is_empty()
            && !ethernet_overhead
    }

    /// Long-term loss of `loss` and the model that takes turns with it.
    pub(crate) fn mean_loss(&self, loss: &Loss) -> f64 {
        match &self.alternate_loss {
            Some(other) => f64::midpoint(loss.mean(), other.loss.0.mean()),
            None => loss.mean(),
        }
    }

    /// Share of the time in which nothing passes.
    pub(crate) fn in_holes(&self) -> f64 {
        let share = |length: Time, of: Duration| {
            (length.0.as_secs_f64() / of.as_secs_f64().max(1e-9)).min(1.0)
        };
        match &self.holes {
            None => 0.0,
            Some(Holes::Periodic(holes)) => share(holes.length, holes.period.0),
            Some(Holes::Random(holes)) => {
                share(holes.mean_length, holes.mean_gap.0.saturating_add(holes.mean_length.0))
            }
        }
    }

    /// Sets the elements in the configuration of a link, whose packets are IP packets with
    /// `header` bytes less or more: positive for frames, negative for UDP payload.
    ///
    /// # Errors
    /// If a trace cannot be read or a value is out of range.
    pub(crate) fn configure(&self, config: &mut LinkConfig, header: isize) -> Result<(), String> {
        config.rate_schedule = self.rate_schedule.as_ref().map(RateSchedule::model).transpose()?;
        config.delay_schedule =
            self.delay_schedule.as_ref().map(DelaySchedule::model).transpose()?;
        config.discipline = self.discipline.model();
        config.queue_packets = self.queue_packets.map(|packets| packets as usize);
        config.policer = self.policer.as_ref().map(|policer| bats_netem::Policer {
            rate_bps: policer.rate.0,
            burst_bytes: policer.burst.0 as usize,
            per_flow: policer.per_flow,
        });
        config.thinning = self.ack_thinning.as_ref().map(|thinning| {
            let size = thinning.max_size.map_or(120, |size| size.0);
            bats_netem::AckThinning {
                max_len: usize::try_from(size).unwrap_or(usize::MAX).saturating_add_signed(header),
                keep_one_of: thinning.keep_one_of,
                window: thinning.window.map_or(Duration::from_millis(10), |window| window.0),
            }
        });
        config.flow_delays = self.flow_delays.iter().map(|delay| delay.0).collect();
        config.contention =
            self.contention.as_ref().map(|one| bats_netem::Contention::wifi(one.jitter.0));
        config.slots = self.slots.as_ref().map(|slots| bats_netem::Slots {
            interval: slots.interval.0,
            limit: slots.limit.unwrap_or(0),
        });
        config.alternate_loss = self.alternate_loss.as_ref().map(|other| {
            bats_netem::AlternateLoss { loss: other.loss.0.model(), every: other.every.0 }
        });
        config.holes = self.holes.as_ref().map(|holes| match holes {
            Holes::Periodic(holes) => {
                bats_netem::Holes::Periodic { period: holes.period.0, length: holes.length.0 }
            }
            Holes::Random(holes) => bats_netem::Holes::Random {
                mean_gap: holes.mean_gap.0,
                mean_length: holes.mean_length.0,
            },
        });
        config.fade = self.fade.as_ref().map(|fade| bats_netem::Fade {
            high_bps: fade.high.0,
            low_bps: fade.low.0,
            loss: fade.loss.0,
        });
        if self.ethernet_overhead {
            config.frame_overhead = config.frame_overhead.saturating_add(BEYOND_FRAME);
        }
        config.validate().map_err(|error| error.to_string())
    }

    /// The difference of a frame with its Ethernet header to the IP packet, for
    /// [`Elements::configure`].
    pub(crate) const FRAMES: isize = ETHERNET as isize;
    /// The same of the UDP payload of an IPv4 packet.
    pub(crate) const UDP_PAYLOAD: isize = -(bats_netem::IPV4_UDP_HEADERS as isize);
}

impl fmt::Display for Elements {
    /// All but the schedule of the rate, which stands in place of the rate.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.discipline != Discipline::DropTail {
            write!(f, ", {}", self.discipline)?;
        }
        if let Some(packets) = self.queue_packets {
            write!(f, ", queue of at most {packets} packets")?;
        }
        if let Some(policer) = &self.policer {
            let each = if policer.per_flow { " for each flow" } else { "" };
            write!(f, ", policer of {} and {}{each}", policer.rate, policer.burst)?;
        }
        if let Some(schedule) = &self.delay_schedule {
            write!(f, ", {schedule}")?;
        }
        if !self.flow_delays.is_empty() {
            let all: Vec<String> = self.flow_delays.iter().map(ToString::to_string).collect();
            write!(f, ", more delay by flow: {}", all.join(", "))?;
        }
        if let Some(contention) = &self.contention {
            write!(f, ", Wi-Fi contention of {}", contention.jitter)?;
        }
        if let Some(slots) = &self.slots {
            write!(f, ", arrivals each {}", slots.interval)?;
            if let Some(limit) = slots.limit.filter(|&limit| limit > 0) {
                write!(f, ", at most {limit}")?;
            }
        }
        if let Some(other) = &self.alternate_loss {
            write!(f, ", in turns of {} loss {}", other.every, other.loss.0)?;
        }
        match &self.holes {
            None => {}
            Some(Holes::Periodic(holes)) => {
                write!(f, ", nothing passes for {} of each {}", holes.length, holes.period)?;
            }
            Some(Holes::Random(holes)) => write!(
                f,
                ", nothing passes for {} about each {} (means, random)",
                holes.mean_length, holes.mean_gap
            )?,
        }
        if let Some(fade) = &self.fade {
            write!(f, ", loss up to {} from {} down to {}", fade.loss, fade.high, fade.low)?;
        }
        if let Some(thinning) = &self.ack_thinning {
            write!(f, ", one of {} ACKs passes", thinning.keep_one_of)?;
            write!(f, " (within {}", thinning.window.unwrap_or(Time(Duration::from_millis(10))))?;
            write!(f, ", up to {})", thinning.max_size.unwrap_or(Bytes(120)))?;
        }
        if self.ethernet_overhead {
            write!(f, ", with Ethernet overhead")?;
        }
        Ok(())
    }
}
