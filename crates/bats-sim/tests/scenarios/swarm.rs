//! Swarm tests: random networks, faults and applications. No wrong message is delivered during
//! faults, and all connections finish soon after them. `bats-sim swarm` runs more seeds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::relay::RelayConfig;
use bats_proto::{CongestionAlgorithm, ConnectionHandle, Event, Mode, Timestamp, TransportConfig};
use bats_sim::network::Host;
use bats_sim::relay_network::{LinkDirection, RelayNetwork, RelayNetworkConfig, node_id};
use bats_sim::swarm::{Plan, Report, run};
use bats_sim::transfer::Transfer;

const LONGEST: Duration = Duration::from_secs(10);

/// Calls `work` with the numbers below `count` on all cores, and returns its reports.
fn reports(count: u64, work: impl Fn(u64) -> Report + Sync) -> Vec<Report> {
    let next = AtomicU64::new(0);
    let reports = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    let report = work(seed);
                    reports.lock().expect("no thread panics while it holds the lock").push(report);
                }
            });
        }
    });
    reports.into_inner().expect("no thread panics while it holds the lock")
}

#[test]
fn two_hundred_seeds_have_no_violation() {
    let reports = reports(200, |seed| run(&Plan::new(seed, LONGEST), false));
    assert_eq!(reports.len(), 200);
    let failures: Vec<_> = reports
        .iter()
        .filter_map(|report| {
            let violation = report.violation.as_ref()?;
            let seed = report.seed;
            Some(format!("seed {seed}: {violation}\n  bats-sim swarm --from {seed} --seeds 1"))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // A swarm without traffic and faults would pass too, so check that they occur.
    let finished: u64 = reports.iter().map(|report| report.finished).sum();
    let delivered: u64 = reports.iter().map(|report| report.delivered).sum();
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let (relayed, restarts, path_changes) =
        (sum(|r| r.relayed), sum(|r| r.restarts), sum(|r| r.path_changes));
    println!("{finished} finished, {delivered} delivered, {relayed}, {restarts}, {path_changes}");
    assert!(finished > 250 && delivered > 200_000, "{finished} finished, {delivered} delivered");
    assert!(
        relayed > 50 && restarts > 10 && path_changes > 20,
        "{relayed}, {restarts}, {path_changes}"
    );
}

/// Those of the first 10,000 seeds that have failed at some time. Seeds 2652 and 5409 fail now (docs/state.md,
/// `.ci/nightly`).
const FAILED_ONCE: [u64; 25] = [
    414, 1_154, 1_299, 1_670, 1_862, 2_384, 2_734, 3_110, 3_217, 3_468, 3_580, 3_916, 4_089, 4_293,
    4_814, 5_415, 5_676, 6_021, 6_211, 6_290, 6_585, 7_498, 7_937, 8_711, 9_500,
];

#[test]
fn seeds_that_failed_once_pass() {
    let failures: Vec<_> = reports(FAILED_ONCE.len() as u64, |index| {
        run(&Plan::new(FAILED_ONCE[index as usize], LONGEST), false)
    })
    .into_iter()
    .filter_map(|report| Some((report.seed, report.violation?)))
    .collect();
    assert!(failures.is_empty(), "{failures:?}");
}

#[test]
fn equal_seeds_give_equal_swarm_runs() {
    let different: Vec<_> = reports(20, |seed| {
        let plan = Plan::new(1_000 + seed, LONGEST);
        let (first, second) = (run(&plan, true), run(&plan, true));
        assert!(first.trace.is_some(), "a trace is computed");
        if first == second { Report::default() } else { first }
    })
    .into_iter()
    .filter(|report| *report != Report::default())
    .collect();
    assert!(different.is_empty(), "{different:?}");
}

/// A link with this rate in bits per second and one-way delay in microseconds.
fn plain_link((rate, delay): (u64, u64)) -> LinkConfig {
    LinkConfig {
        rate_bps: Some(rate),
        queue_bytes: Some(1_000_000),
        delay: Duration::from_micros(delay),
        frame_overhead: 42,
        ..LinkConfig::default()
    }
}

/// A network of nodes connected by `edges`, with links of these rates and delays.
fn network_of(
    links: &[(u64, u64)],
    edges: &[(usize, usize)],
    transport: TransportConfig,
) -> RelayNetwork {
    network_with_relay(RelayConfig::new(node_id(0)), links, edges, transport)
}

fn network_with_relay(
    relay: RelayConfig,
    links: &[(u64, u64)],
    edges: &[(usize, usize)],
    transport: TransportConfig,
) -> RelayNetwork {
    let config = RelayNetworkConfig {
        links: links.iter().copied().map(plain_link).collect(),
        relay,
        transport,
        seed: 1,
    };
    RelayNetwork::mesh(config, edges.to_vec())
}

/// A session from the client to the last node. The client sends without limit, or the server sends
/// small messages at an interval.
struct Session {
    client: ConnectionHandle,
    server: Option<ConnectionHandle>,
    /// Time between two messages of the server; `None` if the client sends.
    interval: Option<Duration>,
    sent: u64,
    /// Messages sent by the server.
    count: u64,
    received: u64,
}

impl Session {
    fn new(network: &mut RelayNetwork, interval: Option<Duration>) -> Self {
        Self {
            client: network.connect_ends(),
            server: None,
            interval,
            sent: 0,
            count: 0,
            received: 0,
        }
    }

    fn run(&mut self, network: &mut RelayNetwork, time: Duration) {
        self.exchange(network, time, network.now());
    }

    /// Advances virtual time without new messages.
    fn pass(&mut self, network: &mut RelayNetwork, time: Duration) {
        self.exchange(network, time, network.now() + time);
    }

    fn exchange(&mut self, network: &mut RelayNetwork, time: Duration, mut next: Timestamp) {
        let (end, last) = (network.now() + time, network.last());
        while network.now() < end {
            if let (Some(interval), Some(server)) = (self.interval, self.server)
                && next <= network.now()
            {
                let now = network.now();
                network.node(last).send(now, server, vec![7; 100].into()).expect("room");
                network.wake(last);
                self.count += 1;
                next = now + interval;
            }
            let waits = self.interval.is_some() && self.server.is_some();
            network.step(if waits { end.min(next) } else { end });
            let now = network.now();
            for (node, handle, event) in std::mem::take(&mut network.events) {
                if event == Event::Accepted && network.is_session(node, handle) {
                    self.server = Some(handle);
                }
                let client = (node, handle) == (0, self.client);
                if !client && (node != last || Some(handle) != self.server) {
                    continue;
                }
                assert!(!matches!(event, Event::Closed(_)), "node {node}: {event:?}");
                while client
                    && self.interval.is_none()
                    && network.node(node).send(now, handle, vec![7; 4_000].into()).is_ok()
                {
                    self.sent += 1;
                }
                while network.node(node).recv(now, handle).is_some() {
                    self.received += 1;
                }
                network.wake(node);
            }
        }
    }
}

/// A session may have data but none for the link that polls it: its window is full, or it reserves
/// the remaining packets of a batch for another link without send capacity. The swarm found this as
/// parallel links that polled without end.
#[test]
fn parallel_links_do_not_poll_a_session_without_end() {
    let transport = TransportConfig { send_budget: 256 << 10, ..TransportConfig::default() };
    let mut network =
        network_of(&[(20_000_000, 5_000), (2_000_000, 5_000)], &[(0, 1), (0, 1)], transport);
    let mut session = Session::new(&mut network, None);
    session.run(&mut network, Duration::from_secs(3));
    assert!(session.received > 1_000, "{} of {}", session.received, session.sent);
}

/// A client that only receives over a relay sends nothing, so its relay keeps sending to the old
/// address. The swarm found this as sessions that ended by their idle time-out.
#[test]
fn a_receiving_client_behind_a_relay_recovers_from_rebinding() {
    // Packets of the client are answered at once, so it rarely expects one.
    let links = [(100_000_000, 300), (20_000_000, 8_000)];
    let mut network = network_of(&links, &[(0, 1), (1, 2)], TransportConfig::default());
    let mut session = Session::new(&mut network, Some(Duration::from_millis(10)));
    session.run(&mut network, Duration::from_secs(1));
    for port in 50_001..50_006 {
        let before = session.received;
        network.rebind(0, port);
        session.run(&mut network, Duration::from_millis(1_003));
        let after = session.received;
        assert!(after > before + 80, "{port}: {before}, {after}");
    }
}

/// The last message is lost after a relay that does not repair, while keep-alives are acknowledged.
/// The swarm found this as sessions that never finished.
#[test]
fn keep_alives_do_not_delay_repairs_across_relays() {
    for mode in [Mode::Brtp, Mode::Brctp] {
        let keep_alive = Some(Duration::from_millis(50));
        let transport = TransportConfig { mode, keep_alive, ..TransportConfig::default() };
        let relay = RelayConfig { recoding: false, ..RelayConfig::new(node_id(0)) };
        let links = [(20_000_000, 20_000), (20_000_000, 20_000)];
        let mut network = network_with_relay(relay, &links, &[(0, 1), (1, 2)], transport);
        let mut session = Session::new(&mut network, Some(Duration::from_secs(60)));
        session.run(&mut network, Duration::from_secs(2));
        assert_eq!(session.received, 1, "{mode:?}");
        let (now, server) = (network.now(), session.server.expect("an accepted session"));
        network.node(2).send(now, server, vec![7; 100].into()).expect("room");
        network.wake(2);
        let blackout = LinkConfig { black_hole: true, ..plain_link(links[0]) };
        network.set_direction(0, LinkDirection::Reverse, blackout);
        session.pass(&mut network, Duration::from_millis(60));
        network.set_direction(0, LinkDirection::Reverse, plain_link(links[0]));
        session.pass(&mut network, Duration::from_secs(3));
        assert_eq!(session.received, 2, "{mode:?}");
    }
}

/// After a restart of a relay, its neighbours have parallel links that never answer again. Packets
/// that were reserved for them must leave on other links, and no new ones may be reserved. The
/// swarm found this as sessions that never finished.
#[test]
fn packets_reserved_for_dead_links_are_sent_on_other_links() {
    for (mode, recoding) in
        [(Mode::Brctp, false), (Mode::Brtp, false), (Mode::Brctp, true), (Mode::Brtp, true)]
    {
        for after in 0..8 {
            let transport = TransportConfig { mode, ..TransportConfig::default() };
            let relay = RelayConfig { recoding, ..RelayConfig::new(node_id(0)) };
            let links = [(20_000_000, 5_000), (2_000_000, 300), (20_000_000, 10_000)];
            let edges = [(0, 1), (1, 2), (1, 2)];
            let mut network = network_with_relay(relay, &links, &edges, transport);
            let mut session = Session::new(&mut network, Some(Duration::from_millis(20)));
            session.run(&mut network, Duration::from_millis(1_000 + 3 * after));
            network.restart(1);
            session.run(&mut network, Duration::from_secs(2));
            session.pass(&mut network, Duration::from_secs(4));
            let (sent, received) = (session.count, session.received);
            assert!(sent > 100, "{mode:?} {recoding} {after}: {sent} sent");
            assert_eq!(received, sent, "{mode:?} {recoding} {after}");
        }
    }
}

/// The last message expires before the link can send it, because another session has filled the
/// link. The end of the session must still be signalled. The swarm found this as sessions that
/// never finished.
#[test]
fn the_end_is_signalled_across_relays_after_an_expired_last_message() {
    let transport = TransportConfig {
        mode: Mode::Btp,
        also_accepted: vec![Mode::Brtp],
        deadline: Duration::from_millis(5),
        ..TransportConfig::default()
    };
    let links = [(200_000, 5_000), (20_000_000, 5_000)];
    let mut network = network_of(&links, &[(0, 1), (1, 2)], transport);
    let bulk = network.connect_ends_in(Mode::Brtp);
    let thin = network.connect_ends();
    let start = network.now();
    let end = start + Duration::from_secs(20);
    let (mut last_sent, mut finished) = (false, false);
    while network.now() < end && !finished {
        network.step(end.min(network.now() + Duration::from_millis(100)));
        let now = network.now();
        if !last_sent && now >= start + Duration::from_secs(5) {
            last_sent = true;
            network.node(0).send(now, thin, vec![7; 100].into()).expect("room");
            network.node(0).finish(now, thin).expect("an open session");
        }
        for (node, handle, event) in std::mem::take(&mut network.events) {
            if node == 0 && handle == bulk && event == Event::Connected {
                for _ in 0..200 {
                    network.node(0).send(now, bulk, vec![7; 4_000].into()).expect("room");
                }
            } else if node == 2 && network.is_session(2, handle) {
                while network.node(2).recv(now, handle).is_some() {}
                finished |= network.node(2).is_finished(handle);
            }
            network.wake(node);
        }
        network.wake(0);
    }
    assert!(last_sent && finished, "{last_sent}");
}

/// Path MTU probes must not fill the congestion window. The swarm found this as connections that
/// stopped sending on paths with a small MTU and a small window.
#[test]
fn path_mtu_probes_do_not_fill_a_small_window() {
    for congestion in [CongestionAlgorithm::Cubic, CongestionAlgorithm::Gcc] {
        let narrow = LinkConfig { mtu: Some(1_210), ..crate::common::link(10, 5) };
        let mut run: Transfer = crate::common::transfer(&narrow, 30);
        run.transport.congestion = congestion;
        run.total_bytes = Some(200_000);
        let outcome = run.run();
        assert!(outcome.finished.is_some(), "{congestion}: {} bytes", outcome.bytes);
    }
}

/// Packets that arrive after the end must not make the connection readable again.
#[test]
fn the_end_is_reported_to_the_application_once() {
    let link = crate::common::link(10, 5);
    let endpoints = bats_sim::transfer::endpoints(&TransportConfig::default(), 1);
    let mut network = bats_sim::network::Network::new(endpoints, [link.clone(), link], 1);
    let now = network.now();
    let client = network.connect(&TransportConfig::default());
    let end = now + Duration::from_secs(2);
    let (mut server, mut ends, mut repeated) = (None, 0, 0);
    while network.now() < end {
        network.step(end);
        let now = network.now();
        for (host, handle, event) in std::mem::take(&mut network.events) {
            match (host, event) {
                (Host::Client, Event::Connected) => {
                    let endpoint = network.endpoint(host);
                    endpoint.send(now, client, vec![1; 100].into()).expect("room");
                    endpoint.finish(now, client).expect("an open connection");
                }
                (Host::Server, Event::Accepted) => server = Some(handle),
                (Host::Server, Event::Readable) => {
                    repeated += ends;
                    while network.endpoint(host).recv(now, handle).is_some() {}
                    ends += u64::from(network.endpoint(host).is_finished(handle));
                    // The client acknowledges data from the server with packets after the end.
                    let mut sent = 0;
                    while ends == 1 && sent < 200 {
                        let endpoint = network.endpoint(host);
                        endpoint.send(now, handle, vec![2; 5_000].into()).expect("room");
                        sent += 1;
                    }
                }
                _ => {}
            }
            network.wake(host);
        }
    }
    assert!(server.is_some());
    assert_eq!((ends, repeated), (1, 0), "ends reported, and Readable events afterwards");
}
