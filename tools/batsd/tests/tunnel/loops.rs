//! A routing loop, as there is one for a moment while routing daemons converge.

use std::thread::sleep;
use std::time::Duration;

use crate::mesh::{Mesh, START, TRAFFIC, address, id, wait_for};
use crate::traffic::{Traffic, is_long};

/// Source 0 and destination 4 are neighbours of relay 1; relays 1, 2 and 3 are the loop.
const PAIRS: [(usize, usize); 5] = [(0, 1), (1, 2), (2, 3), (3, 1), (1, 4)];
/// Interfaces of the loop, each with the host that sends over it.
const CIRCLE: [(usize, usize); 3] = [(1, 1), (2, 2), (3, 3)];

/// Packets that a host has sent over the interface of a pair.
fn sent(mesh: &Mesh, host: usize, pair: usize) -> u64 {
    let output = mesh.on(host, &format!("ip -j -s link show dev v{pair}"));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    json[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
}

#[test]
fn packets_go_at_most_once_through_a_routing_loop() {
    need!();
    let mut mesh = Mesh::new(5, &PAIRS);
    mesh.start_nodes(|_, _, _| String::new());
    let route = |host: usize, to: usize, pair: usize, next: usize| {
        mesh.must(host, &format!("ip route replace {}/32 via {}", id(to), address(pair, next)));
    };
    for (host, to, pair, next) in
        [(0, 4, 0, 1), (1, 4, 4, 4), (2, 4, 2, 3), (3, 4, 3, 1), (4, 0, 4, 1), (1, 0, 0, 0)]
    {
        route(host, to, pair, next);
    }
    mesh.wait_for_ping(0, 4);
    let traffic = Traffic::echoed(mesh.namespace(0), mesh.namespace(4), "10.66.0.5:7000");
    sleep(Duration::from_secs(1));
    // Keep-alives and reports of the links, without traffic in the loop.
    let counts = || CIRCLE.map(|(host, pair)| sent(&mesh, host, pair));
    let time = Duration::from_secs(if is_long() { 3 } else { 1 });
    let difference = |before: [u64; 3]| {
        let now = counts();
        [0, 1, 2].map(|index| now[index] - before[index])
    };
    let before = counts();
    sleep(time);
    let idle = difference(before);
    let (source, before, looped) = (sent(&mesh, 0, 0), counts(), looped(&mesh));
    route(1, 4, 1, 2);
    sleep(time);
    let (offered, relayed) = (sent(&mesh, 0, 0) - source, difference(before));
    let ends = looped.iter().zip(self::looped(&mesh)).map(|(old, new)| new - old);
    let ends: u64 = ends.sum();
    let idle_all = mesh.routes(1);
    eprintln!(
        "a loop of three relays for {time:?}: the source sent {offered} packets, the relays {relayed:?} to the next \
         one (idle {idle:?}) and dropped {ends} that came back"
    );
    assert_eq!(mesh.in_use(1, 4), ["v1"], "{idle_all}");
    // A packet that went around until its hop limit would be counted 21 times on each link.
    for (index, packets) in relayed.into_iter().enumerate() {
        assert!(packets <= 2 * offered + 2 * idle[index] + 100, "{offered}: {relayed:?}");
    }
    assert!(relayed[0] > idle[0], "packets have entered the loop");
    route(1, 4, 4, 4);
    let start = std::time::Instant::now();
    let back = traffic.seen.wait_for_message_after("the loop has ended", start, TRAFFIC);
    eprintln!("traffic flows {:.0} ms after the end of the loop", back.as_secs_f64() * 1e3);
    let before = counts();
    sleep(time);
    let after = difference(before);
    eprintln!("after the loop: {after:?}");
    for (after, idle) in after.into_iter().zip(idle) {
        assert!(after <= 2 * idle + 100, "packets still go around");
    }
    assert_eq!(
        traffic.end(Duration::from_secs(1)).duplicates.load(std::sync::atomic::Ordering::Relaxed),
        0
    );
    wait_for("all links are up", START, || !mesh.in_use(0, 4).is_empty());
}

/// Packets that each relay has dropped because they came back.
fn looped(mesh: &Mesh) -> Vec<u64> {
    let count = |host: usize| {
        let status = mesh.daemons[host].ctl("status").unwrap();
        status["status"]["relay"]["looped"].as_u64().unwrap_or(0)
    };
    [1, 2, 3].map(count).to_vec()
}
