//! From the queues of the peers into sessions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bats_tun::MAX_PACKET;
use openbats::node::Session;
use openbats::{ClientOptions, Fingerprint, Mode, TransportConfig, Trust};

use super::super::Worker;
use super::lane::Lane;
use super::links::LinkChannels;
use super::lock;
use super::outgoing::OutgoingChannels;
use bats_node::NodeId;

/// The channels of the tunnel have at most the bytes of so many round trips that are not sent: more would be
/// a queue behind CoDel. Bytes that are sent and wait for repairs do not count, so that new packets do not
/// wait for them, and neither do those of programs. The controller must not be limited by the application.
/// At 50 Mbit/s, 5 %, 10 ms, runs of 3 s with BBR inside and of 8 s with CUBIC: 1 gives 41.6, 41.3 and 42.3 Mbit/s,
/// CUBIC's RTT 65, 67 and 54 ms; 2, in two runs each, 41.6 and 30.8 Mbit/s, 72 and 76 ms.
const ROUND_TRIPS: u64 = 1;
/// They may have this much in any case: one packet of the largest size, and what it sends in this
/// time. Timers have steps of a millisecond, in which a fast path of short delay sends many windows.
const LEAST_UNSENT: (u64, Duration) = (MAX_PACKET as u64, Duration::from_millis(5));
/// Bounds of the time between two looks at channels that have enough.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(10));
/// Time between attempts to open a session: the first after a failure, doubled up to the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// Keep-alives and idle timeout of the tunnel's sessions.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);
/// Handshakes of sessions over a link that has just failed must not wait for long.
const HANDSHAKE: Duration = Duration::from_secs(5);

fn transport(mode: Mode) -> TransportConfig {
    TransportConfig {
        // This end opens them. The peer opens none, and one is the least.
        channels: (mode == Mode::Brtp).then_some(1),
        keep_alive: Some(KEEP_ALIVE),
        idle_timeout: IDLE,
        handshake_timeout: HANDSHAKE,
        ..TransportConfig::default()
    }
}

/// Keeps a session with a peer open and sends what waits in its lane. Each end opens its own
/// sessions and sends over those, so neither depends on the other's state.
pub(in super::super) async fn send_packets(
    worker: Arc<Worker>,
    lane: Arc<Lane>,
    peer: NodeId,
    fingerprint: Fingerprint,
) {
    let mut retry = RETRY.0;
    let mut links = LinkChannels::default();
    loop {
        let options = ClientOptions::new(Trust::fingerprint(fingerprint))
            .transport(transport(lane.mode))
            .mode(lane.mode);
        let id = openbats::node::NodeId(peer.0.to_bits());
        let error = match worker.node.connect_node(id, "node", options).await {
            Ok(session) => {
                *lock(&lane.session) = Some(session.clone());
                *lock(&lane.last_error) = None;
                let opened = Instant::now();
                let sends = async {
                    match lane.mode {
                        Mode::Btp => send_messages(&lane, &session).await,
                        _ => send_in_channels(&lane, &session, &mut links).await,
                    }
                };
                let error = tokio::select! {
                    error = sends => error,
                    // The peer sends nothing over this session, so a receive call detects its end.
                    received = session.recv() => match received {
                        Ok(_) => "the peer has ended the session".to_owned(),
                        Err(error) => error.to_string(),
                    },
                };
                session.close(0, "");
                *lock(&lane.session) = None;
                lane.set_used(None);
                // Sessions that the peer ends at once cost a handshake each.
                if opened.elapsed() >= RETRY.1 {
                    retry = RETRY.0;
                }
                error
            }
            Err(error) => error.to_string(),
        };
        *lock(&lane.last_error) = Some(error);
        tokio::time::sleep(retry).await;
        retry = retry.saturating_mul(2).min(RETRY.1);
    }
}

async fn send_messages(lane: &Lane, session: &Session) -> String {
    loop {
        lane.filled().await;
        let Some((message, deadline)) = lane.next_message() else { continue };
        match session.send_within(message, deadline).await {
            Ok(()) | Err(openbats::SendError::TooLarge { .. }) => {}
            Err(error) => return error.to_string(),
        }
    }
}

/// Sends in channels of the session of a sole link, otherwise in those of `session`.
async fn send_in_channels(lane: &Lane, session: &Session, links: &mut LinkChannels) -> String {
    let mut channels = OutgoingChannels::new();
    loop {
        links.follow(lane.links());
        let of_link = links.look();
        lane.set_used(of_link.as_ref().map(|(used, _)| used.clone()));
        lane.count_blocked(channels.take_dropped().saturating_add(links.take_dropped()));
        // Packets wait in the lane, not in the session: there CoDel sees them.
        let (used, held) = match &of_link {
            Some((used, held)) => (&used.session, *held),
            None => (session, channels.look()),
        };
        let excess = excess(used, held.unsent).or(held.is_full.then_some(LOOK_AGAIN.1));
        let waits = async {
            match excess {
                Some(wait) => tokio::time::sleep(wait).await,
                None => lane.filled().await,
            }
        };
        tokio::select! {
            biased;
            flushed = channels.flush(session.as_ref()) => match flushed {
                Ok(()) => continue,
                Err(error) => return error.to_string(),
            },
            () = links.flush() => continue,
            () = waits => {}
        }
        if excess.is_some() {
            continue;
        }
        // A link may have come or gone meanwhile.
        links.follow(lane.links());
        for (channel, packets) in lane.next_packets() {
            let Err(packets) = links.push(channel, packets) else { continue };
            if let Err(error) = channels.open(session.as_ref(), channel) {
                return error.to_string();
            }
            channels.push(channel, packets);
        }
        links.write().await;
        if let Err(error) = channels.write(session.as_ref()).await {
            return error.to_string();
        }
    }
}

/// The time until channels with more unsent bytes than [`ROUND_TRIPS`] have less; over links, the window is
/// what the first links send in one of them.
fn excess(session: &Session, unsent: u64) -> Option<Duration> {
    let stats = session.stats();
    let bytes_per_second = stats.congestion.delivery_bps.max(1) as f64 / 8.0;
    let least = (bytes_per_second * LEAST_UNSENT.1.as_secs_f64()) as u64;
    let limit =
        (stats.congestion.cwnd_bytes.saturating_mul(ROUND_TRIPS)).max(LEAST_UNSENT.0).max(least);
    let excess = unsent.checked_sub(limit)?;
    let wait = Duration::try_from_secs_f64(excess as f64 / bytes_per_second);
    Some(wait.unwrap_or(LOOK_AGAIN.1).clamp(LOOK_AGAIN.0, LOOK_AGAIN.1))
}
