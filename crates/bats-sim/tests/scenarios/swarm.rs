//! Random networks, faults and applications: nothing wrong is delivered while there are faults, and
//! all finish soon after they end. `bats-sim swarm` runs as many more as one likes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::relay::RelayConfig;
use bats_proto::{CongestionAlgorithm, ConnectionHandle, Event, Mode, Timestamp, TransportConfig};
use bats_sim::line::{Line, LineConfig, Way, node_id};
use bats_sim::network::Host;
use bats_sim::swarm::{Plan, Report, run};
use bats_sim::transfer::Transfer;

const LONGEST: Duration = Duration::from_secs(10);

/// Reports of `count` seeds, worked on by all cores.
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
                    reports.lock().expect("no thread panics with it").push(report);
                }
            });
        }
    });
    reports.into_inner().expect("no thread panics with it")
}

#[test]
fn two_hundred_seeds_are_safe_and_live() {
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
    // A swarm in which nothing happens would pass as well.
    let finished: u64 = reports.iter().map(|report| report.finished).sum();
    let delivered: u64 = reports.iter().map(|report| report.delivered).sum();
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let (relayed, restarts, moves) = (sum(|r| r.relayed), sum(|r| r.restarts), sum(|r| r.moves));
    println!("{finished} {delivered} {relayed} {restarts} {moves}");
    assert!(finished > 250 && delivered > 200_000, "{finished} finished, {delivered} delivered");
    assert!(relayed > 50 && restarts > 10 && moves > 20, "{relayed}, {restarts}, {moves}");
}

/// Of the first 10,000 seeds those that have failed at some time.
const FAILED_ONCE: [u64; 24] = [
    414, 1_299, 1_670, 1_862, 2_384, 2_734, 3_110, 3_217, 3_468, 3_580, 4_089, 4_293, 4_814, 5_409,
    5_415, 5_676, 6_021, 6_211, 6_290, 6_585, 7_498, 7_937, 8_711, 9_500,
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
fn a_seed_is_the_same_run_every_time() {
    let different: Vec<_> = reports(20, |seed| {
        let plan = Plan::new(1_000 + seed, LONGEST);
        let (first, second) = (run(&plan, true), run(&plan, true));
        assert!(first.trace.is_some(), "no trace was kept");
        if first == second { Report::default() } else { first }
    })
    .into_iter()
    .filter(|report| *report != Report::default())
    .collect();
    assert!(different.is_empty(), "{different:?}");
}

/// A link of this rate and delay, in microseconds.
fn middling((rate, delay): (u64, u64)) -> LinkConfig {
    LinkConfig {
        rate_bps: Some(rate),
        queue_bytes: Some(1_000_000),
        delay: Duration::from_micros(delay),
        frame_overhead: 42,
        ..LinkConfig::default()
    }
}

/// Nodes joined as `edges` says by links of these rates and delays.
fn joined(links: &[(u64, u64)], edges: &[(usize, usize)], transport: TransportConfig) -> Line {
    joined_by(RelayConfig::new(node_id(0)), links, edges, transport)
}

fn joined_by(
    relay: RelayConfig,
    links: &[(u64, u64)],
    edges: &[(usize, usize)],
    transport: TransportConfig,
) -> Line {
    let config = LineConfig {
        links: links.iter().copied().map(middling).collect(),
        relay,
        transport,
        seed: 1,
    };
    Line::mesh(config, edges.to_vec())
}

/// The client opens a session with the last node and sends as much as possible, or gets a small message
/// from there now and then.
struct Session {
    client: ConnectionHandle,
    server: Option<ConnectionHandle>,
    /// Time between two messages of the server; `None` if the client sends.
    interval: Option<Duration>,
    sent: u64,
    /// Messages of the server.
    count: u64,
    received: u64,
}

impl Session {
    fn new(line: &mut Line, interval: Option<Duration>) -> Self {
        Self { client: line.connect_ends(), server: None, interval, sent: 0, count: 0, received: 0 }
    }

    fn run(&mut self, line: &mut Line, time: Duration) {
        self.speak(line, time, line.now());
    }

    /// Lets time go by without new messages.
    fn pass(&mut self, line: &mut Line, time: Duration) {
        self.speak(line, time, line.now() + time);
    }

    fn speak(&mut self, line: &mut Line, time: Duration, mut next: Timestamp) {
        let (end, last) = (line.now() + time, line.last());
        while line.now() < end {
            if let (Some(interval), Some(server)) = (self.interval, self.server)
                && next <= line.now()
            {
                let now = line.now();
                line.node(last).send(now, server, vec![7; 100].into()).expect("room");
                line.touch(last);
                self.count += 1;
                next = now + interval;
            }
            let waits = self.interval.is_some() && self.server.is_some();
            line.step(if waits { end.min(next) } else { end });
            let now = line.now();
            for (node, handle, event) in std::mem::take(&mut line.events) {
                if event == Event::Accepted && line.is_session(node, handle) {
                    self.server = Some(handle);
                }
                let client = (node, handle) == (0, self.client);
                if !client && (node != last || Some(handle) != self.server) {
                    continue;
                }
                assert!(!matches!(event, Event::Closed(_)), "node {node}: {event:?}");
                while client
                    && self.interval.is_none()
                    && line.node(node).send(now, handle, vec![7; 4_000].into()).is_ok()
                {
                    self.sent += 1;
                }
                while line.node(node).recv(now, handle).is_some() {
                    self.received += 1;
                }
                line.touch(node);
            }
        }
    }
}

/// A session whose window is full, or which keeps the rest of a batch for a link that has no room now,
/// has data and none for the link that asks: found by the swarm as links that asked without end.
#[test]
fn links_side_by_side_do_not_ask_for_ever() {
    let transport = TransportConfig { send_budget: 256 << 10, ..TransportConfig::default() };
    let mut line = joined(&[(20_000_000, 5_000), (2_000_000, 5_000)], &[(0, 1), (0, 1)], transport);
    let mut session = Session::new(&mut line, None);
    session.run(&mut line, Duration::from_secs(3));
    assert!(session.received > 1_000, "{} of {}", session.received, session.sent);
}

/// A client that only receives by a relay says nothing, and its relay goes on speaking to where it was:
/// found by the swarm as sessions that ended in silence.
#[test]
fn a_client_that_only_receives_by_a_relay_is_found_elsewhere() {
    // What the client says is answered at once: mostly it awaits nothing.
    let links = [(100_000_000, 300), (20_000_000, 8_000)];
    let mut line = joined(&links, &[(0, 1), (1, 2)], TransportConfig::default());
    let mut session = Session::new(&mut line, Some(Duration::from_millis(10)));
    session.run(&mut line, Duration::from_secs(1));
    for port in 50_001..50_006 {
        let before = session.received;
        line.rebind(0, port);
        session.run(&mut line, Duration::from_millis(1_003));
        let after = session.received;
        assert!(after > before + 80, "{port}: {before}, {after}");
    }
}

/// The last message is lost behind a relay that leaves repair to the ends, and answers to keep-alives
/// come all the time: found by the swarm as sessions that never finished.
#[test]
fn keep_alives_do_not_put_off_the_repair_across_relays() {
    for mode in [Mode::Brtp, Mode::Brctp] {
        let keep_alive = Some(Duration::from_millis(50));
        let transport = TransportConfig { mode, keep_alive, ..TransportConfig::default() };
        let relay = RelayConfig { recoding: false, ..RelayConfig::new(node_id(0)) };
        let links = [(20_000_000, 20_000), (20_000_000, 20_000)];
        let mut line = joined_by(relay, &links, &[(0, 1), (1, 2)], transport);
        let mut session = Session::new(&mut line, Some(Duration::from_secs(60)));
        session.run(&mut line, Duration::from_secs(2));
        assert_eq!(session.received, 1, "{mode:?}");
        let (now, server) = (line.now(), session.server.expect("an accepted session"));
        line.node(2).send(now, server, vec![7; 100].into()).expect("room");
        line.touch(2);
        let hole = LinkConfig { black_hole: true, ..middling(links[0]) };
        line.set_way(0, Way::Back, hole);
        session.pass(&mut line, Duration::from_millis(60));
        line.set_way(0, Way::Back, middling(links[0]));
        session.pass(&mut line, Duration::from_secs(3));
        assert_eq!(session.received, 2, "{mode:?}");
    }
}

/// After a relay's restart its neighbours have links side by side that are silent for good: what was
/// set aside for them leaves by others, and they take no more. Found by the swarm as sessions that never
/// finished.
#[test]
fn silent_links_keep_nothing_back() {
    for (mode, recoding) in
        [(Mode::Brctp, false), (Mode::Brtp, false), (Mode::Brctp, true), (Mode::Brtp, true)]
    {
        for after in 0..8 {
            let transport = TransportConfig { mode, ..TransportConfig::default() };
            let relay = RelayConfig { recoding, ..RelayConfig::new(node_id(0)) };
            let links = [(20_000_000, 5_000), (2_000_000, 300), (20_000_000, 10_000)];
            let edges = [(0, 1), (1, 2), (1, 2)];
            let mut line = joined_by(relay, &links, &edges, transport);
            let mut session = Session::new(&mut line, Some(Duration::from_millis(20)));
            session.run(&mut line, Duration::from_millis(1_000 + 3 * after));
            line.restart(1);
            session.run(&mut line, Duration::from_secs(2));
            session.pass(&mut line, Duration::from_secs(4));
            let (sent, received) = (session.count, session.received);
            assert!(sent > 100, "{mode:?} {recoding} {after}: {sent} sent");
            assert_eq!(received, sent, "{mode:?} {recoding} {after}");
        }
    }
}

/// The last message is too old when a link asks for it, as another session has filled the link: the end
/// is told all the same. Found by the swarm as sessions that never finished.
#[test]
fn an_end_after_a_message_that_was_too_old_is_told_across_relays() {
    let transport = TransportConfig {
        mode: Mode::Btp,
        also_accepted: vec![Mode::Brtp],
        deadline: Duration::from_millis(5),
        ..TransportConfig::default()
    };
    let links = [(200_000, 5_000), (20_000_000, 5_000)];
    let mut line = joined(&links, &[(0, 1), (1, 2)], transport);
    let bulk = line.connect_ends_as(Mode::Brtp);
    let thin = line.connect_ends();
    let start = line.now();
    let end = start + Duration::from_secs(20);
    let (mut last_sent, mut finished) = (false, false);
    while line.now() < end && !finished {
        line.step(end.min(line.now() + Duration::from_millis(100)));
        let now = line.now();
        if !last_sent && now >= start + Duration::from_secs(5) {
            last_sent = true;
            line.node(0).send(now, thin, vec![7; 100].into()).expect("room");
            line.node(0).finish(now, thin).expect("an open session");
        }
        for (node, handle, event) in std::mem::take(&mut line.events) {
            if node == 0 && handle == bulk && event == Event::Connected {
                for _ in 0..200 {
                    line.node(0).send(now, bulk, vec![7; 4_000].into()).expect("room");
                }
            } else if node == 2 && line.is_session(2, handle) {
                while line.node(2).recv(now, handle).is_some() {}
                finished |= line.node(2).is_finished(handle);
            }
            line.touch(node);
        }
        line.touch(0);
    }
    assert!(last_sent && finished, "{last_sent}");
}

/// A search for the path's MTU fills no window: found by the swarm as connections that never sent
/// again, where the path was narrow and the window small.
#[test]
fn a_small_window_is_not_full_of_probes() {
    for congestion in [CongestionAlgorithm::Cubic, CongestionAlgorithm::Gcc] {
        let narrow = LinkConfig { mtu: Some(1_210), ..crate::common::link(10, 5) };
        let mut run: Transfer = crate::common::transfer(&narrow, 30);
        run.transport.congestion = congestion;
        run.total_bytes = Some(200_000);
        let outcome = run.run();
        assert!(outcome.finished.is_some(), "{congestion}: {} bytes", outcome.bytes);
    }
}

/// Who has taken the end is not told of it with each packet that comes after it.
#[test]
fn an_end_that_was_taken_is_not_told_again() {
    let link = crate::common::link(10, 5);
    let endpoints = bats_sim::transfer::endpoints(&TransportConfig::default(), 1);
    let mut network = bats_sim::network::Network::new(endpoints, [link.clone(), link], 1);
    let now = network.now();
    let client = network.connect(&TransportConfig::default());
    let end = now + Duration::from_secs(2);
    let (mut server, mut ends, mut told) = (None, 0, 0);
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
                    told += ends;
                    while network.endpoint(host).recv(now, handle).is_some() {}
                    ends += u64::from(network.endpoint(host).is_finished(handle));
                    // What is sent back is answered, and each answer is a packet after the end.
                    let mut sent = 0;
                    while ends == 1 && sent < 200 {
                        let endpoint = network.endpoint(host);
                        endpoint.send(now, handle, vec![2; 5_000].into()).expect("room");
                        sent += 1;
                    }
                }
                _ => {}
            }
            network.touch(host);
        }
    }
    assert!(server.is_some());
    assert_eq!((ends, told), (1, 0), "ends taken, and told of afterwards");
}
