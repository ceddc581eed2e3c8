//! Nodes follow the routes of real kernels, written by `ip route`.

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use crate::mesh::{Mesh, START, TRAFFIC, address, id, wait_for};

/// A triangle of nodes: v0 between 0 and 1, v1 between 0 and 2, v2 between 1 and 2.
pub(crate) const TRIANGLE: [(usize, usize); 3] = [(0, 1), (0, 2), (1, 2)];

fn triangle() -> Mesh {
    let mut mesh = Mesh::new(3, &TRIANGLE);
    mesh.start_nodes(|_, _, _| String::new());
    for (host, to, pair) in [(0, 1, 0), (1, 0, 0), (1, 2, 2), (2, 1, 2)] {
        mesh.must(host, &format!("ip route add {}/32 via {}", id(to), address(pair, to)));
    }
    mesh
}

#[test]
fn traffic_follows_routes_of_any_protocol() {
    need!();
    let mesh = triangle();
    wait_for("the reason for no route", START, || !mesh.ignored(0, 2).is_empty());
    assert_eq!(mesh.ignored(0, 2)[0]["reason"], "the kernel has no route");
    // 99 is `openr`, 100 is what olsrd2 writes; not every version of `ip` knows these names.
    for protocol in ["static", "babel", "ospf", "99", "100"] {
        let change = |host: usize, to: usize, gateway: String| {
            let to = id(to);
            mesh.must(host, &format!("ip route replace {to}/32 via {gateway} proto {protocol}"));
        };
        let what = format!("direct route of protocol {protocol}");
        change(2, 0, address(1, 0));
        let direct =
            mesh.moves(&what, (0, 2), &address(1, 2), "v1", || change(0, 2, address(1, 2)));
        let before = mesh.forwarded(1);
        let what = format!("route over node 1 of protocol {protocol}");
        let back = address(2, 1);
        let one_way = mesh.moves(&what, (2, 0), &back, &back, || change(2, 0, back.clone()));
        let over_node_1 =
            mesh.moves(&what, (0, 2), &address(0, 1), "v0", || change(0, 2, address(0, 1)));
        assert!(mesh.forwarded(1) > before, "the ping went over node 1");
        let pings = [direct, one_way, over_node_1];
        assert!(pings.iter().all(|ping| *ping <= TRAFFIC), "{what}: answered after {pings:?}");
    }
    let events = mesh.daemons[0].ctl("events").unwrap().to_string();
    assert!(events.contains("kernel_route"), "{events}");
}

#[test]
fn traffic_leaves_a_direct_link_that_is_cut() {
    need!();
    let mesh = triangle();
    for (host, to, pair) in [(0, 2, 0), (2, 0, 2)] {
        let (to, direct, relay) = (id(to), address(1, to), address(pair, 1));
        mesh.must(host, &format!("ip route add {to}/32 via {direct} metric 10"));
        mesh.must(host, &format!("ip route add {to}/32 via {relay} metric 20"));
        // Otherwise the kernel keeps routes over interfaces that are `linkdown`.
        mesh.must(host, "sysctl -qw net.ipv4.conf.all.ignore_routes_with_linkdown=1");
        mesh.must(host, "sysctl -qw net.ipv4.conf.v1.ignore_routes_with_linkdown=1");
    }
    mesh.wait_for_links(0, 2, &["v1"]);
    mesh.wait_for_links(2, 0, &[&address(1, 0)]);
    mesh.wait_for_ping(0, 2);
    mesh.moves("interface down", (0, 2), &address(0, 1), "v0", || {
        mesh.must(0, "ip link set v1 down");
    });
    // The interface of the other end is `linkdown`.
    mesh.wait_for_links(2, 0, &[&address(2, 1)]);
    mesh.must(0, "ip link set v1 up");
    // The kernel has removed the route over the interface.
    let (to, direct) = (id(2), address(1, 2));
    mesh.must(0, &format!("ip route add {to}/32 via {direct} metric 10"));
    mesh.wait_for_links(0, 2, &["v1"]);
    mesh.wait_for_links(2, 0, &[&address(1, 0)]);
    mesh.moves("other end down", (0, 2), &address(0, 1), "v0", || {
        mesh.must(2, "ip link set v1 down");
    });
}

#[test]
fn what_is_no_route_to_a_neighbour_is_not_used_and_reported() {
    need!();
    let mesh = triangle();
    let (to, direct) = (id(2), address(1, 2));
    mesh.must(2, &format!("ip route add {}/32 via {}", id(0), address(1, 0)));
    let use_direct = || {
        mesh.must(0, &format!("ip route replace {to}/32 via {direct}"));
        mesh.wait_for_links(0, 2, &["v1"]);
        mesh.wait_for_ping(0, 2);
    };
    for (route, words) in [
        (format!("unreachable {to}/32"), "`unreachable`"),
        (format!("blackhole {to}/32"), "`blackhole`"),
        (format!("prohibit {to}/32"), "`prohibit`"),
        (format!("{to}/32 via {}", address(1, 76)), "no link has the gateway"),
        (format!("{to}/32 dev v0"), "no link with this node leads over the interface"),
    ] {
        use_direct();
        mesh.must(0, &format!("ip route replace {route}"));
        wait_for(&route, START, || mesh.in_use(0, 2).is_empty());
        let ignored = mesh.ignored(0, 2);
        assert!(ignored[0]["reason"].as_str().unwrap().contains(words), "{ignored:?}");
        assert!(!mesh.answers(0, 2), "{route}");
    }
    let unknown = format!("ip route replace {to}/32 via {}", address(1, 76));
    mesh.must(0, &unknown);
    wait_for("a gateway", START, || mesh.ignored(0, 2)[0]["gateway"] == address(1, 76));
    assert_eq!(mesh.ignored(0, 2)[0]["interface"], "v1");
    // A route that remains over an interface that is `linkdown`.
    use_direct();
    mesh.must(2, "ip link set v1 down");
    wait_for("linkdown", START, || {
        mesh.ignored(0, 2).iter().any(|entry| entry["reason"] == "the interface is `linkdown`")
    });
    assert!(mesh.in_use(0, 2).is_empty());
    mesh.must(2, "ip link set v1 up");
    mesh.must(2, &format!("ip route replace {}/32 via {}", id(0), address(1, 0)));
    mesh.wait_for_ping(0, 2);
    // Rules are the kernel's affair: another table has the route.
    mesh.must(0, &format!("ip route add {to}/32 via {} table 77", address(0, 1)));
    mesh.must(0, &format!("ip rule add to {to}/32 lookup 77 priority 77"));
    mesh.wait_for_links(0, 2, &["v0"]);
    mesh.must(0, "ip rule del priority 77");
    mesh.wait_for_links(0, 2, &["v1"]);
}

#[test]
fn host_routes_to_other_nodes_come_back_with_a_rule() {
    need!();
    let mut mesh = Mesh::new(2, &[(0, 1)]);
    mesh.start_nodes(|_, _, _| String::new());
    mesh.must(0, &format!("ip route add {}/32 via {}", id(1), address(0, 1)));
    mesh.wait_for_links(0, 1, &["v0"]);
    let has_route = || {
        let routes = mesh.routes(0)["routes"].as_array().unwrap().clone();
        routes.iter().any(|route| route["to"] == "10.255.0.99")
    };
    mesh.must(0, &format!("ip route add 10.255.0.99/32 via {} table 77", address(0, 1)));
    // The node looks at it, and no packet would use it.
    sleep(Duration::from_millis(500));
    assert!(!has_route());
    mesh.must(0, "ip rule add to 10.255.0.99/32 lookup 77 priority 77");
    wait_for("the route of the rule", START, has_route);
    mesh.must(0, "ip rule del priority 77");
    wait_for("no route", START, || !has_route());
}

#[test]
fn equal_cost_routes_use_several_links() {
    need!();
    // The third link has link-local addresses of IPv6.
    let mut mesh = Mesh::new(2, &[(0, 1), (0, 1), (0, 1)]);
    for host in 0..2 {
        mesh.must(host, "ip addr flush dev v2");
        mesh.must(host, &format!("ip addr add fe80::{}/64 dev v2 nodad", host + 1));
    }
    mesh.start_nodes(|_, host, prints| {
        let open = format!(
            "[[link]]\nname = \"local\"\nfingerprint = \"{}\"\ntransit = true\n\
             remote = \"[fe80::2%v2]:4900\"\n",
            prints[1]
        );
        if host == 0 { open } else { String::new() }
    });
    let (one, other) = (id(0), id(1));
    mesh.must(1, &format!("ip route add {one}/32 via {}", address(0, 0)));
    let use_route = |route: &str, links: &[&str]| {
        mesh.must(0, &format!("ip route replace {other}/32 {route}"));
        mesh.wait_for_links(0, 1, links);
        mesh.wait_for_ping(0, 1);
    };
    use_route("via inet6 fe80::2 dev v2", &["local"]);
    use_route("dev v1", &["v1"]);
    use_route("dev v2", &["local"]);
    let (first, second) = (address(0, 1), address(1, 1));
    use_route(&format!("nexthop via {first} nexthop via {second}"), &["v0", "v1"]);

    let sent = |name: &str| {
        let links = mesh.daemons[0].ctl("links").unwrap();
        let links = links["links"].as_array().unwrap().clone();
        let link = links.into_iter().find(|link| link["name"] == name).unwrap();
        link["traffic"]["bytes_sent"].as_u64().unwrap()
    };
    let before = [sent("v0"), sent("v1")];
    let mut server = mesh.command(1);
    let mut server = server.args(["iperf3", "-s", "-1"]).stdout(Stdio::null()).spawn().unwrap();
    sleep(Duration::from_millis(300));
    mesh.on(0, "iperf3 -c 10.66.0.2 -t 2");
    let _ = server.kill();
    let _ = server.wait();
    let sent = [sent("v0") - before[0], sent("v1") - before[1]];
    eprintln!("equal-cost route: {sent:?} bytes over the two links");
    assert!(sent.iter().all(|&bytes| bytes > 100_000), "{sent:?}");

    // Nexthop objects, as FRR uses them.
    mesh.must(0, &format!("ip nexthop add id 1 via {first} dev v0"));
    mesh.must(0, &format!("ip nexthop add id 2 via {second} dev v1"));
    mesh.must(0, "ip nexthop add id 10 group 1/2");
    use_route(&format!("via {first}"), &["v0"]);
    use_route("nhid 10", &["v0", "v1"]);
    mesh.must(0, "ip nexthop del id 1");
    mesh.wait_for_links(0, 1, &["v1"]);
    // Without the compatible form the message has only the number of the object.
    mesh.must(0, "sysctl -qw net.ipv4.nexthop_compat_mode=0");
    mesh.must(0, &format!("ip nexthop replace id 2 via {first} dev v0"));
    mesh.wait_for_links(0, 1, &["v0"]);
}

#[test]
fn a_worker_that_starts_again_and_a_reload_follow_the_kernel() {
    need!();
    let mut mesh = Mesh::new(2, &[(0, 1)]);
    mesh.start_nodes(|_, _, _| String::new());
    mesh.must(0, &format!("ip route add {}/32 via {}", id(1), address(0, 1)));
    mesh.must(1, &format!("ip route add {}/32 via {}", id(0), address(0, 0)));
    mesh.wait_for_ping(0, 1);
    let worker = mesh.daemons[0].worker().unwrap();
    rustix::process::kill_process(worker, rustix::process::Signal::KILL).unwrap();
    wait_for("another worker", START, || mesh.daemons[0].worker().is_some_and(|new| new != worker));
    mesh.wait_for_ping(0, 1);
    // Without the kernel, a static route leads to the peer.
    let config = mesh.daemons[0].config.clone();
    let text = std::fs::read_to_string(&config).unwrap();
    let fixed = "[routes]\nstatic = [{ to = \"10.255.0.2\", via = [\"v0\"] }]";
    let kernel = "[routes]\nsource = [\"static\", \"kernel\"]";
    std::fs::write(&config, text.replace(kernel, fixed)).unwrap();
    mesh.daemons[0].ctl("reload").unwrap();
    assert_eq!(mesh.routes(0)["kernel"], false);
    assert_eq!(mesh.routes(0)["routes"][0]["source"], "static");
    mesh.must(0, &format!("ip route replace unreachable {}/32", id(1)));
    mesh.wait_for_ping(0, 1);
    std::fs::write(&config, text).unwrap();
    mesh.daemons[0].ctl("reload").unwrap();
    wait_for("unreachable", START, || mesh.in_use(0, 1).is_empty());
    mesh.must(0, &format!("ip route replace {}/32 via {}", id(1), address(0, 1)));
    mesh.wait_for_ping(0, 1);
    assert_eq!(mesh.routes(0)["routes"][0]["source"], "kernel");
}
