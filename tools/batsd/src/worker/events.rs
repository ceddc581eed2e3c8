//! What happened to links and sessions, for clients of the control socket.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use openbats::Fingerprint;
use openbats::node::{Event, LinkId, NodeId};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::tunnel::lock;

/// Number of events that are kept for later clients.
const RECENT: usize = 256;
/// How many of them may be refusals: anyone can cause those.
const RECENT_REFUSALS: usize = RECENT / 4;
/// Time from one reported refusal to the next.
const REFUSAL_INTERVAL: Duration = Duration::from_secs(1);

/// The latest events.
pub(super) struct EventLog {
    recent: Mutex<VecDeque<Value>>,
    new: broadcast::Sender<Value>,
    refusals: Mutex<Refusals>,
}

/// Refusals that are not reported yet.
#[derive(Default)]
struct Refusals {
    reported: Option<Instant>,
    waiting: Option<Value>,
    left_out: u64,
}

impl Default for EventLog {
    fn default() -> Self {
        let new = broadcast::Sender::new(RECENT);
        Self { recent: Mutex::default(), new, refusals: Mutex::default() }
    }
}

impl EventLog {
    pub(super) fn record(&self, event: Value) {
        let mut recent = lock(&self.recent);
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(event.clone());
        // Without clients there is no receiver.
        let _ = self.new.send(event);
    }

    /// Records the refusal of a link or session. Within a second only the latest one is kept, which
    /// counts the others, so that handshakes of unauthenticated peers do not displace other events.
    pub(super) fn record_refusal(&self, event: Value, now: Instant) {
        let mut refusals = lock(&self.refusals);
        if refusals.waiting.replace(event).is_some() {
            refusals.left_out = refusals.left_out.saturating_add(1);
        }
        drop(refusals);
        self.report_refusal(now);
    }

    /// Reports the refusal that waits, if a second has passed since the last one.
    pub(super) fn report_refusal(&self, now: Instant) {
        let mut refusals = lock(&self.refusals);
        let is_early = |at: Instant| now.saturating_duration_since(at) < REFUSAL_INTERVAL;
        if refusals.reported.is_some_and(is_early) {
            return;
        }
        let Some(mut event) = refusals.waiting.take() else { return };
        refusals.reported = Some(now);
        let left_out = std::mem::take(&mut refusals.left_out);
        if left_out > 0 {
            event["left_out"] = json!(left_out);
        }
        drop(refusals);
        let mut recent = lock(&self.recent);
        if recent.iter().filter(|event| is_refusal_value(event)).count() >= RECENT_REFUSALS
            && let Some(oldest) = recent.iter().position(is_refusal_value)
        {
            recent.remove(oldest);
        }
        drop(recent);
        self.record(event);
    }

    /// The recent events.
    pub(super) fn recent(&self) -> Vec<Value> {
        lock(&self.recent).iter().cloned().collect()
    }

    /// The recent events, and a receiver of those that follow them.
    pub(super) fn follow(&self) -> (Vec<Value>, broadcast::Receiver<Value>) {
        let recent = lock(&self.recent);
        (recent.iter().cloned().collect(), self.new.subscribe())
    }
}

/// Whether a link or session was refused. Nothing of this node changes then.
pub(super) fn is_refusal(event: &Event) -> bool {
    matches!(event, Event::LinkRefused { .. } | Event::SessionRefused { .. })
}

/// As [`is_refusal`], for an event of the log.
fn is_refusal_value(event: &Value) -> bool {
    event["event"] == "link_refused" || event["event"] == "session_refused"
}

fn node(id: NodeId) -> String {
    std::net::Ipv4Addr::from_bits(id.0).to_string()
}

fn print(fingerprint: Option<Fingerprint>) -> Option<String> {
    fingerprint.map(|print| format!("sha256:{print}"))
}

/// An event as JSON; `name` gives the name of a link. `None` for kinds of events that this version does
/// not know.
pub(super) fn describe(event: &Event, name: impl Fn(LinkId) -> Option<String>) -> Option<Value> {
    let mut value = match event {
        Event::LinkUp { link, remote, fingerprint, .. } => json!({
            "event": "link_up", "link": name(*link), "remote": remote.to_string(),
            "fingerprint": print(*fingerprint),
        }),
        Event::LinkSilent { link, .. } => json!({ "event": "link_silent", "link": name(*link) }),
        Event::LinkResponsive { link, .. } => {
            json!({ "event": "link_responsive", "link": name(*link) })
        }
        Event::LinkDown { link, reason, .. } => {
            json!({ "event": "link_down", "link": name(*link), "reason": reason.to_string() })
        }
        Event::LinkRefused { remote, fingerprint, reason, .. } => json!({
            "event": "link_refused", "remote": remote.to_string(),
            "fingerprint": print(*fingerprint), "reason": reason,
        }),
        Event::SessionOpened { node: id, .. } => {
            json!({ "event": "session_opened", "node": node(*id) })
        }
        Event::SessionClosed { node: id, reason, .. } => json!({
            "event": "session_closed", "node": node(*id), "reason": reason.to_string(),
        }),
        Event::SessionRefused { node: id, fingerprint, reason, .. } => json!({
            "event": "session_refused", "node": node(*id), "fingerprint": print(*fingerprint),
            "reason": reason,
        }),
        Event::NoRoute { destination, .. } => {
            json!({ "event": "no_route", "node": node(*destination) })
        }
        Event::NonInnovativeNeighbour { link, .. } => {
            json!({ "event": "non_innovative_neighbour", "link": name(*link) })
        }
        Event::PollutingPath { link, destination, .. } => json!({
            "event": "polluting_path", "link": name(*link), "node": node(*destination),
        }),
        Event::Missed { count, .. } => json!({ "event": "missed", "count": count }),
        _ => return None,
    };
    value["time"] = json!(now());
    Some(value)
}

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0.0, |time| time.as_millis() as f64 / 1e3)
}

/// The links to which the kernel's route to a node leads now; none if there is no such route.
pub(super) fn kernel_route(node: bats_node::NodeId, via: Vec<String>) -> Value {
    json!({ "event": "kernel_route", "node": node, "via": via, "time": now() })
}

/// Events that a client lost because it did not read in time.
pub(super) fn missed(count: u64) -> Value {
    json!({ "event": "missed", "count": count, "time": now() })
}

/// The configuration was applied, or why not.
pub(super) fn reloaded(result: &Result<(), String>) -> Value {
    json!({ "event": "reloaded", "error": result.as_ref().err(), "time": now() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_clients_get_the_latest_events_and_then_each_new_one_once() {
        let log = EventLog::default();
        for count in 0..300 {
            log.record(missed(count));
        }
        let (recent, mut new) = log.follow();
        let counts: Vec<_> = recent.iter().map(|event| event["count"].as_u64().unwrap()).collect();
        assert_eq!(counts, (44..300).collect::<Vec<_>>());
        log.record(missed(300));
        assert_eq!(new.try_recv().unwrap()["count"], 300);
        assert!(new.try_recv().is_err());
    }

    fn refused(number: u64) -> Value {
        json!({ "event": "link_refused", "number": number })
    }

    #[test]
    fn of_the_refusals_of_a_second_one_is_reported_with_the_number_of_the_others() {
        let log = EventLog::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        log.record_refusal(refused(0), start);
        for number in 1..1_000 {
            log.record_refusal(refused(number), at(number));
        }
        log.report_refusal(at(999));
        assert_eq!(log.recent(), [refused(0)]);
        log.report_refusal(at(1_000));
        let mut latest = refused(999);
        latest["left_out"] = json!(998);
        assert_eq!(log.recent(), [refused(0), latest]);
        log.report_refusal(at(9_000));
        log.record_refusal(refused(1_000), at(9_000));
        assert_eq!(log.recent()[2..], [refused(1_000)], "none was left out");
    }

    #[test]
    fn refusals_displace_at_most_a_quarter_of_the_events() {
        let log = EventLog::default();
        let start = Instant::now();
        (0..RECENT as u64).for_each(|number| log.record(missed(number)));
        for number in 0..1_000 {
            log.record_refusal(refused(number), start + REFUSAL_INTERVAL * number as u32);
        }
        let recent = log.recent();
        let others = RECENT - RECENT_REFUSALS;
        assert_eq!(recent.len(), RECENT);
        assert_eq!(
            recent[..others].iter().filter(|event| !is_refusal_value(event)).count(),
            others
        );
        assert_eq!(recent[others..], (936..1_000).map(refused).collect::<Vec<_>>());
    }
}
