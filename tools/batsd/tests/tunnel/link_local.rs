//! Link-local addresses and multicast inside the tunnel, and a routing daemon that runs over it.

use std::time::Duration;

use crate::mesh::{Mesh, START, wait_for};
use crate::ping::Ping;
use crate::routing_daemons::{Programs, lacks};

/// The link-local address of a host's TUN device, as `ip` prints it: `fe80::5efe:10.255.0.N`.
fn local(host: usize) -> String {
    format!("fe80::5efe:aff:{}", host + 1)
}

/// A chain of nodes 0, 1 and 2 with static routes; all are peers, and the outer ones are no neighbours.
fn chain() -> Mesh {
    let mut mesh = Mesh::new(3, &[(0, 1), (1, 2)]);
    mesh.start_nodes(|_, host, _| {
        let routes = match host {
            0 => {
                "[{ to = \"10.255.0.2\", via = [\"v0\"] }, { to = \"10.255.0.3\", via = [\"v0\"] }]"
            }
            1 => {
                "[{ to = \"10.255.0.1\", via = [\"v0\"] }, { to = \"10.255.0.3\", via = [\"v1\"] }]"
            }
            _ => {
                "[{ to = \"10.255.0.2\", via = [\"v1\"] }, { to = \"10.255.0.1\", via = [\"v1\"] }]"
            }
        };
        format!("static = {routes}\n")
    });
    mesh
}

/// Which of three requests over the TUN device of a host are answered.
fn answered(mesh: &Mesh, host: usize, to: &str) -> usize {
    Ping::new(to).times(3).over("bats0").count(mesh.namespace(host))
}

fn refused(mesh: &Mesh, host: usize) -> u64 {
    let status = mesh.daemons[host].ctl("status").unwrap();
    status["status"]["tun"]["dropped_foreign_source"].as_u64().unwrap()
}

#[test]
fn link_local_packets_go_to_neighbours_under_their_own_addresses() {
    need!();
    let mesh = chain();
    mesh.wait_for_ping(0, 2);
    wait_for("an answer of the neighbour", START, || answered(&mesh, 0, &local(1)) == 3);
    assert_eq!(answered(&mesh, 0, &local(2)), 0, "node 2 is a peer, but no neighbour");
    assert_eq!(answered(&mesh, 0, "fe80::1"), 0, "an address of no node");
    // All nodes of the link: the neighbours.
    for (host, neighbours) in [(1, vec![0, 2]), (0, vec![1])] {
        let ping = Ping::new("ff02::1").times(3).over("bats0");
        let mut answering = ping.answering(mesh.namespace(host));
        answering.remove(&local(host).parse().unwrap());
        let wanted = neighbours.into_iter().map(|host| local(host).parse().unwrap()).collect();
        assert_eq!(answering, wanted, "node {host}");
    }
    // The address of another node as a source.
    let before = refused(&mesh, 0);
    mesh.must(1, &format!("ip -6 addr add {}/64 dev bats0 nodad", local(2)));
    let forged = Ping::new(&local(0)).times(3).from(&local(2)).over("bats0");
    assert_eq!(forged.count(mesh.namespace(1)), 0);
    assert_eq!(refused(&mesh, 0), before + 3);
    let peers = mesh.daemons[0].ctl("peers").unwrap();
    assert_eq!(peers["peers"][0]["link_local"], "fe80::5efe:aff:2");
    assert_eq!(
        (&peers["peers"][0]["neighbour"], &peers["peers"][1]["neighbour"]),
        (&true.into(), &false.into())
    );
}

#[test]
fn babeld_runs_over_the_tunnel() {
    need!();
    if lacks(&["babeld"]) {
        return;
    }
    let mesh = chain();
    mesh.wait_for_ping(0, 2);
    let mut programs = Programs::new();
    for host in 0..3 {
        mesh.must(host, &format!("ip addr add 10.88.{host}.1/32 dev lo"));
        let text = "default type tunnel\ndefault hello-interval 1\ndefault update-interval 4\n\
                    redistribute local ip 10.88.0.0/16 allow\nredistribute local deny\nredistribute deny\n";
        let config = mesh.folder.path().join(format!("{host}.babeld"));
        std::fs::write(&config, text).unwrap();
        let config = config.display();
        let command = format!("babeld -c {config} -I {config}.pid -S {config}.state bats0");
        programs.start(&mesh, host, &command);
    }
    // Node 1 is the next hop of both, because they are not neighbours.
    for (host, to, gateway) in [(0, 1, 2), (0, 2, 2), (2, 0, 2), (1, 0, 1), (1, 2, 3)] {
        let wanted = format!("10.88.{to}.1 via 10.66.0.{gateway} dev bats0");
        let has_route = || {
            std::thread::sleep(Duration::from_millis(50));
            let output = mesh.on(host, "ip route show proto babel");
            let routes = String::from_utf8(output.stdout).unwrap();
            routes.lines().any(|line| line.starts_with(&wanted))
        };
        let time = wait_for(&format!("host {host}: {wanted}"), START, has_route);
        eprintln!(
            "babeld over the tunnel: host {host} has `{wanted}` after {:.1} s",
            time.as_secs_f64()
        );
    }
}
