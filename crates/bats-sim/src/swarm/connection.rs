//! State of one connection of a run, and checks of its statistics.

use bats_proto::{CloseReason, ConnectionHandle, ConnectionStats, Timestamp};

use super::model::{self, DirectionModel};
use super::plan::{ConnectionPlan, Plan, Traffic};
use super::rng::SeededRng;

/// Minimum memory of a sender in bytes, whatever its budget: a window of 512 large symbols.
const MIN_SEND_BUDGET: u64 = 2 << 20;
/// Minimum memory of a receiver in bytes, whatever its budget.
const MIN_RECEIVE_BUDGET: u64 = 4 << 20;

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) handle: Option<ConnectionHandle>,
    pub(super) open: bool,
    /// Model of the messages that this side sends.
    pub(super) model: DirectionModel,
    pub(super) traffic: Traffic,
    pub(super) rng: SeededRng,
    pub(super) next_size: usize,
    pub(super) due: Option<Timestamp>,
    pub(super) blocked: bool,
    pub(super) finished: bool,
    /// Whether this side has seen the end of the peer's messages.
    pub(super) has_seen_end: bool,
    pub(super) closed: Option<CloseReason>,
    /// Time of the next read, if reading is delayed.
    pub(super) read_at: Option<Timestamp>,
    pub(super) last: ConnectionStats,
    /// Coded packets sent when the peer had acknowledged everything.
    pub(super) coded_when_acknowledged: Option<u64>,
}

#[derive(Debug)]
pub(super) struct SwarmConnection {
    pub(super) plan: ConnectionPlan,
    pub(super) sides: [Side; 2],
    /// Whether an application closed the connection before both ends had finished.
    pub(super) closed_early: bool,
    /// Whether both ends have finished.
    pub(super) done: bool,
    /// Time at which the client closes the finished connection.
    pub(super) close_at: Option<Timestamp>,
}

impl SwarmConnection {
    /// Whether the connection is closed at both ends.
    pub(super) fn is_over(&self) -> bool {
        let [client, server] = &self.sides;
        client.closed.is_some() && (server.handle.is_none() || server.closed.is_some())
    }
}

/// Number of coded packets sent.
pub(super) fn coded(stats: &ConnectionStats) -> u64 {
    stats.coding.source_packets_sent
        + stats.coding.proactive_packets_sent
        + stats.coding.top_up_packets_sent
}

impl SwarmConnection {
    pub(super) fn new(seed: u64, index: usize, plan: &ConnectionPlan) -> Self {
        let side = |side: usize| {
            let tag = model::tag(seed, index, side);
            Side {
                handle: None,
                open: false,
                model: DirectionModel::new(plan.mode, tag),
                traffic: plan.traffic[side],
                rng: SeededRng::new(tag),
                next_size: model::LABEL_LEN,
                due: None,
                blocked: false,
                finished: false,
                has_seen_end: false,
                closed: None,
                read_at: None,
                last: ConnectionStats::default(),
                coded_when_acknowledged: None,
            }
        };
        let (plan, sides) = (plan.clone(), [side(0), side(1)]);
        Self { plan, sides, closed_early: false, done: false, close_at: None }
    }

    /// Checks the statistics of one end.
    pub(super) fn check(
        &self,
        plan: &Plan,
        side: usize,
        stats: &ConnectionStats,
    ) -> Result<(), String> {
        let connection = self;
        let (own, peer) = (&connection.sides[side], &connection.sides[1 - side]);
        let wrong = |what: &str| Err(what.to_owned());
        let limits = &plan.transport;
        let most = own.traffic.sizes.1 as u64;
        let budget = (limits.send_budget as u64).max(MIN_SEND_BUDGET);
        // Repairs may exceed the budget by a quarter.
        if stats.buffers.send_bytes > budget + budget / 4 + most {
            return wrong("the send buffer exceeds its budget");
        }
        let most = peer.traffic.sizes.1 as u64;
        let budget = (limits.receive_budget as u64).max(MIN_RECEIVE_BUDGET);
        // In unreliable modes, complete and incomplete messages have a budget each.
        let budget = if connection.plan.mode.is_reliable() { budget } else { budget * 2 };
        if stats.buffers.receive_bytes > budget + budget / 10 + most {
            return wrong("the receive buffer exceeds its budget");
        }
        if stats.packets.malformed > 0 {
            return wrong("an authentic packet was malformed");
        }
        // A packet that arrives after its keys were discarded counts as forged. Relays can delay
        // packets for long while a link is busy or idle, whatever the delays of the links are.
        let may_be_late = stats.key_updates > 0 && (plan.delays() || plan.nodes.is_some());
        if stats.packets.forged > 0 && !plan.corrupts() && !may_be_late {
            return wrong("a packet counts as forged, although the network corrupts nothing");
        }
        if stats.messages.sent != own.model.sent() {
            return wrong("the count of sent messages is wrong");
        }
        if stats.messages.received != peer.model.delivered() {
            return wrong("other messages are counted than were delivered");
        }
        let received = stats.messages.received + stats.messages.lost;
        if !connection.plan.mode.is_reliable()
            && received > peer.model.sent()
            && !peer.traffic_unknown()
        {
            return wrong("more messages are counted as received or lost than were sent");
        }
        if stats.coding.wasted_packets_received > stats.coding.coded_packets_received
            || stats.packets.received > stats.packets.bytes_received
        {
            return wrong("a counter exceeds the counter of which it is a part");
        }
        let shares = [stats.path.loss_estimate, stats.coding.code_rate];
        if shares.iter().any(|share| !(0.0..=1.0).contains(share)) {
            return wrong("a ratio is not within 0 to 1");
        }
        if stats.coding.symbols_polluted > 0 {
            return wrong("symbols count as polluted, although no relay pollutes");
        }
        if own.coded_when_acknowledged.is_some_and(|all| coded(stats) > all) {
            return wrong("coded packets are sent although the peer has acknowledged everything");
        }
        let last = &own.last;
        let counters = |s: &ConnectionStats| {
            [
                s.packets.bytes_sent,
                s.packets.sent,
                s.packets.bytes_received,
                s.packets.received,
                s.packets.lost,
                s.coding.source_packets_sent,
                s.coding.proactive_packets_sent,
                s.coding.top_up_packets_sent,
                s.coding.symbols_decoded,
                s.messages.sent,
                s.messages.bytes_sent,
                s.messages.received,
                s.messages.bytes_received,
                s.messages.expired,
                s.messages.lost,
                s.coding.symbols_lost,
                s.key_updates,
                s.congestion.probe_timeouts,
            ]
        };
        if counters(last).iter().zip(counters(stats)).any(|(before, now)| *before > now) {
            return wrong("a counter decreased");
        }
        Ok(())
    }
}

impl Side {
    /// Whether the model has not seen this side open the connection, so that its traffic is
    /// unknown.
    fn traffic_unknown(&self) -> bool {
        self.handle.is_none()
    }
}

/// Text about a connection that did not finish.
pub(super) fn describe(connection: &SwarmConnection) -> String {
    let side = |side: &Side| {
        let (sent, all) = (side.model.sent(), side.traffic.messages);
        let Side { open, finished, blocked, has_seen_end, .. } = side;
        format!(
            "open {open}, sent {sent}/{all}, finished {finished}, blocked {blocked}, delivered {}, \
             end seen {has_seen_end}, {:?}",
            side.model.delivered(),
            side.last,
        )
    };
    let [client, server] = &connection.sides;
    format!("{:?}: client {}; server {}", connection.plan.mode, side(client), side(server))
}
