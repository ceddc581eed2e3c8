//! What is known of one connection, and what its statistics may say.

use bats_proto::{CloseReason, ConnectionHandle, ConnectionStats, Timestamp};

use super::draw::Draw;
use super::model::{self, Way};
use super::plan::{ConnectionPlan, Plan, Traffic};

/// Memory that a sender has in any case: a window of 512 symbols, with room for larger symbols.
const LEAST_SEND_BUDGET: u64 = 2 << 20;
/// Memory that a receiver has in any case.
const LEAST_RECEIVE_BUDGET: u64 = 4 << 20;

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) handle: Option<ConnectionHandle>,
    pub(super) open: bool,
    /// What this side sends.
    pub(super) way: Way,
    pub(super) traffic: Traffic,
    pub(super) draw: Draw,
    pub(super) next_size: usize,
    pub(super) due: Option<Timestamp>,
    pub(super) blocked: bool,
    pub(super) finished: bool,
    /// The end of the other side's messages was seen.
    pub(super) saw_end: bool,
    pub(super) closed: Option<CloseReason>,
    /// When to read next, if not at once.
    pub(super) read_at: Option<Timestamp>,
    pub(super) last: ConnectionStats,
    /// Coded packets sent when the other side was known to have all of them.
    pub(super) coded_in_all: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) plan: ConnectionPlan,
    pub(super) sides: [Side; 2],
    /// Closed by an application before both had finished.
    pub(super) cut: bool,
    /// Both had finished.
    pub(super) done: bool,
    /// When the client closes what is done.
    pub(super) close_at: Option<Timestamp>,
}

impl Pair {
    /// Nothing more can happen to it.
    pub(super) fn is_over(&self) -> bool {
        let [client, server] = &self.sides;
        client.closed.is_some() && (server.handle.is_none() || server.closed.is_some())
    }
}

/// Coded packets that were sent.
pub(super) fn coded(stats: &ConnectionStats) -> u64 {
    stats.source_packets_sent + stats.proactive_packets_sent + stats.top_up_packets_sent
}

impl Pair {
    pub(super) fn new(seed: u64, index: usize, plan: &ConnectionPlan) -> Self {
        let side = |side: usize| {
            let tag = model::tag(seed, index, side);
            Side {
                handle: None,
                open: false,
                way: Way::new(plan.mode, tag),
                traffic: plan.traffic[side],
                draw: Draw::new(tag),
                next_size: model::NAMED,
                due: None,
                blocked: false,
                finished: false,
                saw_end: false,
                closed: None,
                read_at: None,
                last: ConnectionStats::default(),
                coded_in_all: None,
            }
        };
        let (plan, sides) = (plan.clone(), [side(0), side(1)]);
        Self { plan, sides, cut: false, done: false, close_at: None }
    }

    /// Looks at the statistics of one end.
    pub(super) fn check(
        &self,
        plan: &Plan,
        side: usize,
        stats: &ConnectionStats,
    ) -> Result<(), String> {
        let pair = self;
        let (own, peer) = (&pair.sides[side], &pair.sides[1 - side]);
        let wrong = |what: &str| Err(what.to_owned());
        let limits = &plan.transport;
        let most = own.traffic.sizes.1 as u64;
        let budget = (limits.send_budget as u64).max(LEAST_SEND_BUDGET);
        // Repairs may take a quarter beyond.
        if stats.send_buffer_bytes > budget + budget / 4 + most {
            return wrong("more than the send budget is held");
        }
        let most = peer.traffic.sizes.1 as u64;
        let budget = (limits.receive_budget as u64).max(LEAST_RECEIVE_BUDGET);
        // Timely messages that are complete have the budget, and so have those that are not.
        let budget = if pair.plan.mode.is_reliable() { budget } else { budget * 2 };
        if stats.receive_buffer_bytes > budget + budget / 10 + most {
            return wrong("more than the receive budget is held");
        }
        if stats.packets_malformed > 0 {
            return wrong("an authentic packet was malformed");
        }
        // What comes so late that its keys are gone cannot be told from what was forged; nodes keep what
        // is between the ends while a link is busy or silent, whatever the delays of links are.
        let may_be_late = stats.key_updates > 0 && (plan.delays() || plan.nodes.is_some());
        if stats.packets_forged > 0 && !plan.corrupts() && !may_be_late {
            return wrong("a packet was taken for forged, and nothing alters packets");
        }
        if stats.messages_sent != own.way.sent() {
            return wrong("messages sent are miscounted");
        }
        if stats.messages_received < peer.way.delivered() {
            return wrong("fewer messages counted than delivered");
        }
        let received = stats.messages_received + stats.messages_lost;
        if !pair.plan.mode.is_reliable() && received > peer.way.sent() && !peer.traffic_unknown() {
            return wrong("more messages received and lost than were sent");
        }
        if stats.wasted_packets_received > stats.coded_packets_received
            || stats.packets_received > stats.bytes_received
        {
            return wrong("a part is more than the whole");
        }
        let shares = [stats.loss_estimate, stats.code_rate];
        if shares.iter().any(|share| !(0.0..=1.0).contains(share)) {
            return wrong("a share is not within 0 and 1");
        }
        if stats.symbols_altered > 0 {
            return wrong("symbols were altered, and all relays are honest");
        }
        if own.coded_in_all.is_some_and(|all| coded(stats) > all) {
            return wrong("it goes on sending what the peer has");
        }
        let last = &own.last;
        let counters = |s: &ConnectionStats| {
            [
                s.bytes_sent,
                s.packets_sent,
                s.bytes_received,
                s.packets_received,
                s.packets_lost,
                s.source_packets_sent,
                s.proactive_packets_sent,
                s.top_up_packets_sent,
                s.symbols_decoded,
                s.messages_sent,
                s.message_bytes_sent,
                s.messages_received,
                s.message_bytes_received,
                s.messages_expired,
                s.messages_lost,
                s.symbols_lost,
                s.key_updates,
                s.probe_timeouts,
            ]
        };
        if counters(last).iter().zip(counters(stats)).any(|(before, now)| *before > now) {
            return wrong("a counter went back");
        }
        Ok(())
    }
}

impl Side {
    /// Nothing is known of what this side sends: the model has not seen it begin.
    fn traffic_unknown(&self) -> bool {
        self.handle.is_none()
    }
}

/// The state of a connection that did not finish.
pub(super) fn describe(pair: &Pair) -> String {
    let side = |side: &Side| {
        let (sent, all) = (side.way.sent(), side.traffic.messages);
        let Side { open, finished, blocked, saw_end, .. } = side;
        format!(
            "open {open}, sent {sent}/{all}, finished {finished}, blocked {blocked}, delivered {}, \
             end seen {saw_end}, {:?}",
            side.way.delivered(),
            side.last,
        )
    };
    let [client, server] = &pair.sides;
    format!("{:?}: client {}; server {}", pair.plan.mode, side(client), side(server))
}
