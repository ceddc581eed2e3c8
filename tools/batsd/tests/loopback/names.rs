//! Neighbours whose addresses are host names.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::node::{Daemon, free_udp_port, identity, node, start, start_by, wait_for};
use crate::skip::skipped;

/// The entry of a peer.
fn peer(host: usize, print: &str, remote: &str) -> String {
    let remote = match remote {
        "" => String::new(),
        remote => format!("remote = \"{remote}\"\n"),
    };
    format!("[[peer]]\nid = \"10.255.0.{}\"\nfingerprint = \"{print}\"\n{remote}", host + 1)
}

fn link(daemon: &Daemon, name: &str) -> Value {
    let links = daemon.ctl("links").unwrap();
    let all = links["links"].as_array().unwrap();
    all.iter().find(|link| link["name"] == name).cloned().unwrap_or_default()
}

fn is_up(daemon: &Daemon, name: &str, remote: &str) -> bool {
    let link = link(daemon, name);
    link["state"] == "up" && link["remote"] == remote
}

#[test]
fn names_come_and_go_by_reloads_and_changes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let prints = [0, 1].map(|host| identity(&folder.join(format!("{host}.pem"))));
    let ports = [free_udp_port(), free_udp_port()];
    let far = node(folder, 1, ports[1], "") + &peer(0, &prints[0], "");
    let _far = start(folder, 1, &far);
    let near = |remote: &str| node(folder, 0, ports[0], "") + &peer(1, &prints[1], remote);
    // A label has at most 63 letters, so no resolver has to be asked.
    let unknown = format!("{}.example.org", "x".repeat(64));
    let daemon = start(folder, 0, &near(&format!("{unknown}:4900")));
    wait_for("the resolution fails", || {
        link(&daemon, "peer-10.255.0.2")["last_end"]
            .as_str()
            .is_some_and(|error| error.starts_with(&format!("cannot resolve {unknown}: ")))
    });
    let waiting = link(&daemon, "peer-10.255.0.2");
    assert_eq!(waiting["state"], "waiting");
    assert_eq!(waiting["remote"], format!("{unknown}:4900"));
    let name = format!("localhost:{}", ports[1]);
    let address = format!("127.0.0.1:{}", ports[1]);
    std::fs::write(&daemon.config, near(&name)).unwrap();
    daemon.ctl("reload").unwrap();
    wait_for("the link to the name is up", || is_up(&daemon, "peer-10.255.0.2", &address));
    wait_for("sessions over it", || {
        daemon.ctl("sessions").unwrap()["sessions"].as_array().unwrap().len() == 4
    });
    // The file goes from the name to its address and back. The link stays, also with a name that has no address.
    for remote in [&name, &format!("{unknown}:{}", ports[1])] {
        for remote in [&address, remote] {
            std::fs::write(&daemon.config, near(remote)).unwrap();
            daemon.ctl("reload").unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
        let kept = link(&daemon, "peer-10.255.0.2");
        assert_eq!((&kept["state"], &kept["established"]), (&"up".into(), &1.into()), "{kept}");
    }
    assert!(
        link(&daemon, "peer-10.255.0.2")["last_end"].as_str().unwrap().contains("cannot resolve")
    );
    // Another link at run time.
    let add = format!("link add east --remote {name} --fingerprint {}", prints[1]);
    daemon.ctl(&add).unwrap();
    wait_for("the added link is up", || is_up(&daemon, "east", &address));
    let error = daemon.ctl(&add).unwrap_err();
    assert!(error.contains("there is a link of the name 'east'"), "{error}");
    daemon.ctl("link del east").unwrap();
    assert_eq!(link(&daemon, "east"), Value::Null);
}

#[test]
fn a_worker_that_was_started_without_names_says_that_it_resolves_none() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let prints = [0, 1].map(|host| identity(&folder.join(format!("{host}.pem"))));
    let near = |remote: &str| node(folder, 0, free_udp_port(), "") + &peer(1, &prints[1], remote);
    let text = near("127.0.0.1:9");
    let daemon = start(folder, 0, &text);
    let add = format!("link add east --remote localhost:4900 --fingerprint {}", prints[1]);
    let error = daemon.ctl(&add).unwrap_err();
    assert!(error.contains("may not resolve names"), "{error}");
    std::fs::write(&daemon.config, text.replace("127.0.0.1:9", "localhost:9")).unwrap();
    let error = daemon.ctl("reload").unwrap_err();
    assert!(error.contains("the first host name in a `remote` needs a restart"), "{error}");
}

/// The command of a daemon that has these lines as its /etc/hosts, in a mount namespace of its own.
fn with_hosts(hosts: &Path) -> Command {
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command.arg(hosts).arg(env!("CARGO_BIN_EXE_batsd"));
    command
}

#[test]
fn every_address_of_a_name_is_tried_and_a_new_one_is_found() {
    let may_mount = Command::new("unshare").args(["--mount", "true"]).output();
    let has_ipv6 = std::net::UdpSocket::bind("[::1]:0").is_ok();
    if !may_mount.is_ok_and(|output| output.status.success()) || !has_ipv6 {
        let needs = "it needs an /etc/hosts of its own in a mount namespace, and IPv6";
        return skipped("addresses of a name", needs);
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let prints = [0, 1].map(|host| identity(&folder.join(format!("{host}.pem"))));
    let port = free_udp_port();
    let hosts = folder.join("hosts");
    let name_has = |addresses: &[&str]| {
        let lines: String =
            addresses.iter().map(|address| format!("{address} node.example.org\n")).collect();
        std::fs::write(&hosts, lines).unwrap();
    };
    let at = |address: &str| {
        let listen = format!("listen = [\"{address}:{port}\"]");
        let text = node(folder, 1, port, "") + &peer(0, &prints[0], "");
        text.replace(&format!("listen = [\"127.0.0.1:{port}\"]"), &listen)
    };
    name_has(&["127.0.0.1", "::1"]);
    let near = node(folder, 0, 0, "") + &peer(1, &prints[1], &format!("Node.Example.org:{port}"));
    let near = near.replace("127.0.0.1:0", "[::]:0");
    let daemon = start_by(with_hosts(&hosts), folder, 0, &near);
    // Nothing answers: one address is tried after the other, again and again.
    for address in ["[::1]", "127.0.0.1", "[::1]"] {
        let remote = format!("{address}:{port}");
        wait_for(&remote, || link(&daemon, "peer-10.255.0.2")["remote"] == remote);
    }
    let far = start(folder, 1, &at("127.0.0.1"));
    let up_at = |address: &str| {
        let remote = format!("{address}:{port}");
        wait_for(&remote, || is_up(&daemon, "peer-10.255.0.2", &remote));
    };
    up_at("127.0.0.1");
    // The neighbour gets another address.
    drop(far);
    name_has(&["127.0.0.5"]);
    let _far = start(folder, 1, &at("127.0.0.5"));
    up_at("127.0.0.5");
    wait_for("sessions over it", || {
        daemon.ctl("sessions").unwrap()["sessions"].as_array().unwrap().len() == 4
    });
}
