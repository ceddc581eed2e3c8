//! Partitions, while three clients send numbered messages to one server. With `OPENBATS_TEST_LONG=1` there are ten
//! of 20 s.

use std::process::Stdio;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::mesh::{Mesh, START, address, id};
use crate::routing_daemons::lacks;
use crate::traffic::{Times, Traffic, is_long};

/// The second is that of a short run. Links and sessions have ended after both: they take 10 s.
const PARTITIONS: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(12)];
const LIMIT: Duration = Duration::from_secs(120);
/// Bounds on the time from the end of a partition until messages of a client arrive, for long and for short runs. A node
/// waits up to 5 s between two attempts to open a link. So 5 s and a handshake are due, and 420 ms are the median of ten
/// partitions of 20 s. After the one partition of a short run 1.3 to 5.2 s are measured on a busy host.
const BOUNDS: [Duration; 2] = [Duration::from_secs(6), Duration::from_secs(10)];
/// Packets of all links of a host are dropped without an error, as a network in between does.
const CUT: &str = "add table inet cut; \
                   add chain inet cut in { type filter hook prerouting priority -300; }; \
                   add rule inet cut in udp dport 4900 drop; \
                   add rule inet cut in udp sport 4900 drop";

#[test]
fn numbered_messages_of_three_clients_outlast_partitions() {
    need!();
    if lacks(&["nft"]) {
        return;
    }
    // The server is the first host; the clients open the links.
    let mut mesh = Mesh::new(4, &[(1, 0), (2, 0), (3, 0)]);
    mesh.start_nodes(|_, _, _| String::new());
    for client in 1..4 {
        let pair = client - 1;
        mesh.must(client, &format!("ip route add {}/32 via {}", id(0), address(pair, 0)));
        mesh.must(0, &format!("ip route add {}/32 via {}", id(client), address(pair, client)));
        mesh.wait_for_ping(client, 0);
    }
    let traffic = [1, 2, 3].map(|client: usize| {
        let hosts = || (mesh.namespace(client), mesh.namespace(0));
        let ((a, b), (c, d)) = (hosts(), hosts());
        let at = |port: usize| format!("10.66.0.1:{}", port + client);
        [Traffic::echoed(a, b, &at(7_000)), Traffic::stream(c, d, &at(7_100))]
    });
    let nft = |rules: &str| {
        let mut command = mesh.command(0);
        let status = command.args(["nft", rules]).stdout(Stdio::null()).status().unwrap();
        assert!(status.success(), "nft {rules}");
    };
    let partition = PARTITIONS[usize::from(!is_long())];
    let mut times: [Times; 2] = Default::default();
    for _ in 0..if is_long() { 10 } else { 1 } {
        sleep(Duration::from_secs(2));
        nft(CUT);
        sleep(partition);
        let healed = Instant::now();
        nft("delete table inet cut");
        // All at once: each has its own time.
        std::thread::scope(|scope| {
            let wait = |traffic: &Traffic| {
                traffic.seen.wait_for_message_after("the network heals", healed, START)
            };
            let waits: Vec<_> = (traffic.iter())
                .map(|client| client.each_ref().map(|traffic| scope.spawn(move || wait(traffic))))
                .collect();
            for client in waits {
                for (wait, times) in client.into_iter().zip(&mut times) {
                    times.add(wait.join().unwrap());
                }
            }
        });
    }
    times[0].report(&format!("after partitions of {partition:?}, datagrams"), BOUNDS);
    times[1].report(&format!("after partitions of {partition:?}, TCP"), BOUNDS);
    for (client, [datagrams, stream]) in traffic.into_iter().enumerate() {
        let (datagrams, stream) = (datagrams.end(Duration::from_secs(1)), stream.end(LIMIT));
        eprintln!("client {client}, datagrams: {}", datagrams.summary());
        eprintln!("client {client}, TCP: {}", stream.summary());
        assert_eq!(datagrams.duplicates.load(Relaxed), 0);
        let nothing = "0 missing, 0 duplicates, 0 reordered, 0 broken connections";
        assert_eq!(stream.summary().split_once(" sent, ").unwrap().1, nothing);
    }
}
